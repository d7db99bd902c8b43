// What an attacker on the path can do, on the loopback interface: read every datagram, and send datagrams
// with any source address. Needs CAP_NET_RAW.
#ifndef NETSUM_TESTS_ATTACK_WIRE_TAP_H_
#define NETSUM_TESTS_ATTACK_WIRE_TAP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace netsum::attack {

struct Datagram {
  uint16_t from_port = 0, to_port = 0;  // both ends are 127.0.0.1
  std::vector<uint8_t> bytes;
};

class WireTap {
 public:
  // False where the process may not open such sockets; `error` is then errno.
  bool open(int* error);
  ~WireTap();

  // Datagrams to or from `port` since the last call, at most `most`: the kernel keeps what fits its buffer. A
  // run of datagrams that crossed the interface as one (segmentation offload) is cut every `datagram_bytes`.
  std::vector<Datagram> take(uint16_t port, size_t datagram_bytes, size_t most);
  // As if from 127.0.0.1:from_port. False if the kernel did not take it.
  bool send(uint16_t from_port, uint16_t to_port, std::span<const uint8_t> payload) const;

 private:
  int listen_ = -1;
  int send_ = -1;
};

}  // namespace netsum::attack

#endif  // NETSUM_TESTS_ATTACK_WIRE_TAP_H_
