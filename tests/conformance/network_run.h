// A running dataplane under test, with real packets: every peer is a UDP socket.
//
// A dataplane that works beside the test does not say when it is done with a packet. So each packet is
// followed by fences: HELLOs of a job that the adapter has of its own, whose WELCOMEs come after everything
// that was sent to the same socket before. That needs packets to keep their order, which on a machine with
// several processors they do only if all handle them on one: see pin_to_one_cpu(). A dataplane with several
// receive queues may take the fence first, but not in an earlier burst.
#ifndef NETSUM_TESTS_CONFORMANCE_NETWORK_RUN_H_
#define NETSUM_TESTS_CONFORMANCE_NETWORK_RUN_H_

#include <chrono>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "aggregator/dataplane/dataplane.h"
#include "tests/conformance/dataplane_vectors.h"

namespace netsum::conformance {

// As many as the vectors and the random packets name.
inline constexpr Peer kNetworkPeers = 12;
// How long an answer may take.
inline constexpr std::chrono::seconds kNetworkPatience{20};

// This thread and those that it starts from now on, with the soft interrupts of what they send.
void pin_to_one_cpu();

// A UDP socket at `local` that talks to `remote` alone; -1 if there can be none.
int open_peer(const Address& local, const Address& remote);

class NetworkRun : public DataplaneUnderTest {
 public:
  // `sockets`, one for each peer, and `dataplane`, which has job 63 to spare, stay the caller's. One object
  // at a time. Counters count from here.
  // `turns`: how many fences, one after the other, a packet and what becomes of it may need to get through.
  NetworkRun(Dataplane* dataplane, std::vector<int> sockets, bool lengthens = true, int turns = 1);
  ~NetworkRun() override;
  void install(const VectorJob& job) override;
  bool start_at(const VectorStart&) override { return false; }  // no packet leads there
  size_t largest_datagram() const override;
  bool sums_values() const override;
  bool adds_floats() const override;
  bool lengthens() const override { return lengthens_; }
  std::vector<Reply> feed(Peer from, const Bytes& datagram) override;
  std::map<std::string, uint64_t> drops() override;

 private:
  // Sends a HELLO from each of `peers`, and takes in all that comes until every one is answered. False if
  // that takes too long.
  bool fence(std::span<const Peer> peers, std::vector<Reply>* replies);
  bool is_welcome(const Bytes& datagram) const;
  std::map<std::string, uint64_t> all_drops() const;

  Dataplane* const dataplane_;
  const std::vector<int> sockets_;
  const bool lengthens_;
  const int turns_;
  std::vector<DataplaneJob> installed_;
  DataplaneJob fence_job_;
  uint32_t fences_ = 0;  // number of the latest; in its HELLO's `round`
  std::map<std::string, uint64_t> before_;
};

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_NETWORK_RUN_H_
