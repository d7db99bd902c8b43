// The XDP program under test without a network: frames go through BPF_PROG_TEST_RUN.
#ifndef NETSUM_TESTS_CONFORMANCE_XDP_RUN_H_
#define NETSUM_TESTS_CONFORMANCE_XDP_RUN_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aggregator/xdp/program.h"
#include "tests/conformance/dataplane_vectors.h"

namespace netsum::conformance {

Address address_of(Peer peer);
// Ethernet, IPv4 and UDP around `datagram`, from a peer to the aggregator.
Bytes frame_around(const Bytes& datagram, Peer from);
// Right checksums, lengths and addresses, from the aggregator to the peer; or what is wrong.
std::string what_is_wrong_with_answer(const Bytes& frame, Peer to);

class XdpRun : public DataplaneUnderTest {
 public:
  // One program for all objects: the verifier takes its time. Null, and the reason in *why, where it may not
  // be loaded.
  static XdpProgram* program(std::string* why);
  // One more, in which each job may send so many packets per second.
  static Result<std::unique_ptr<XdpProgram>> load(uint64_t job_packets_per_s);

  explicit XdpRun(XdpProgram* program);
  ~XdpRun() override;
  void install(const VectorJob& job) override;
  bool start_at(const VectorStart& start) override;
  size_t largest_datagram() const override { return NETSUM_HEADER_BYTES + NETSUM_XDP_MAX_PAYLOAD; }
  bool lengthens() const override { return false; }
  std::vector<Reply> feed(Peer from, const Bytes& datagram) override;
  std::map<std::string, uint64_t> drops() override;  // since construction

  struct Output {
    uint32_t verdict = 0;  // XDP_*
    Bytes frame;
    uint32_t duration_ns = 0;
  };
  // `repeat`: so many times, on what the former run has left of the frame.
  static Output run(XdpProgram* program, const Bytes& frame, int repeat = 1);

 private:
  struct Job {
    DataplaneJob job;
    uint32_t first_slot = 0;
    std::map<uint16_t, Peer> peers;
    Peer parent = 0;
  };
  XdpProgram* program_;
  uint32_t next_slot_ = 0;
  std::map<uint16_t, Job> jobs_;
  std::map<std::string, uint64_t> before_;
};

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_XDP_RUN_H_
