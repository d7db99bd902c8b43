// The model of the P4 pipeline under test. It cannot make or verify tags, only cookies: tags of the vectors are made and
// verified here, in the place that they have in the order of refusals.
#ifndef NETSUM_TESTS_CONFORMANCE_P4_RUN_H_
#define NETSUM_TESTS_CONFORMANCE_P4_RUN_H_

#include <map>
#include <span>
#include <string>
#include <vector>

#include "aggregator/p4/model/pipeline.h"
#include "tests/conformance/dataplane_vectors.h"

namespace netsum::conformance {

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
  bool has_parents() const override { return false; }
  bool takes(const netsum_fields& packet) const override;
  const p4::Pipeline& pipeline() const { return pipeline_; }

 private:
  bool is_right(std::span<const uint8_t> datagram) override;
  void write(std::vector<uint8_t>* datagram) override;
  // The control plane: the first HELLO tells where a member is.
  void meet(const p4::Datagram& hello);

  const P4Chip chip_;
  std::map<uint16_t, wire::PacketKey> keys_;  // by job
  uint32_t next_slot_ = 0;
  p4::Pipeline pipeline_;
};

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_P4_RUN_H_
