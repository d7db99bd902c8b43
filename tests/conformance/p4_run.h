// The model of the P4 pipeline under test. It cannot make or verify tags, only cookies: tags of the vectors are made and
// verified here, in the place that they have in the order of refusals.
#ifndef NETSUM_TESTS_CONFORMANCE_P4_RUN_H_
#define NETSUM_TESTS_CONFORMANCE_P4_RUN_H_

#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/p4/model/pipeline.h"
#include "tests/conformance/dataplane_vectors.h"

namespace netsum::conformance {

inline constexpr uint32_t kFirstIp = 0x0A000100;  // of peer 0

inline p4::Endpoint endpoint_of(Peer peer) {
  return {.ip = kFirstIp + static_cast<uint32_t>(peer),
          .udp_port = 7000,
          .port = static_cast<uint16_t>(peer + 1)};
}

// The model combines what BMv2 can. As Tofino, it is given packets that Tofino's program takes, and does not notice overflows.
enum class P4Chip { kBmv2, kTofino };

class P4Run : public DataplaneUnderTest, private p4::TagExtern {
 public:
  explicit P4Run(P4Chip chip = P4Chip::kBmv2) : chip_(chip), pipeline_(this, chip == P4Chip::kBmv2) {}
  void install(const VectorJob& job) override;
  bool start_at(const VectorStart& start) override;
  std::vector<Reply> feed(Peer from, const Bytes& datagram) override;
  std::map<std::string, uint64_t> drops() override;
  bool lengthens() const override { return false; }
  bool has_parents() const override { return chip_ == P4Chip::kBmv2; }
  bool takes(const netsum_fields& packet) const override;
  const p4::Pipeline& pipeline() const { return pipeline_; }

 private:
  bool is_right(std::span<const uint8_t> datagram, uint16_t job, bool parents) override;
  void write(std::vector<uint8_t>* datagram, uint16_t job, bool parents) override;
  const wire::PacketKey& key_of(uint16_t job, bool parents) const {
    return parents ? parents_.at(job).key : keys_.at(job);
  }
  // The control plane: the first HELLO tells where a member is, and what a job's parent answers to it that the parent is there.
  void on_control(const p4::Datagram& packet);
  void hello_up(const netsum_fields& hello);

  struct Parent {
    VectorParent at;
    wire::PacketKey key;
    uint32_t payload_bytes = 0;
    bool welcomed = false;
  };
  const P4Chip chip_;
  std::map<uint16_t, wire::PacketKey> keys_;     // by job
  std::map<uint16_t, Parent> parents_;           // by job
  std::set<std::pair<uint16_t, uint16_t>> met_;  // job and member
  uint32_t next_slot_ = 0;
  std::vector<Reply> replies_;  // of the control plane
  p4::Pipeline pipeline_;
};

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_P4_RUN_H_
