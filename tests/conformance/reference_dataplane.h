// The smallest whole dataplane: the slot machine, its lanes and the members' addresses, without speed or I/O.
#ifndef NETSUM_TESTS_CONFORMANCE_REFERENCE_DATAPLANE_H_
#define NETSUM_TESTS_CONFORMANCE_REFERENCE_DATAPLANE_H_

#include <map>
#include <string>
#include <vector>

#include "aggregator/slot/slot.h"
#include "tests/conformance/dataplane_vectors.h"

namespace netsum::conformance {

class ReferenceDataplane : public DataplaneUnderTest {
 public:
  // `lengthens`: as lengthens() says of the dataplane that is compared with it.
  explicit ReferenceDataplane(bool lengthens = true) : lengthens_(lengthens) {}
  void install(const VectorJob& job) override;
  bool start_at(const VectorStart& start) override;
  std::vector<Reply> feed(Peer from, const Bytes& datagram) override;
  std::map<std::string, uint64_t> drops() override { return drops_; }
  bool sums_values() const override { return true; }
  bool adds_floats() const override { return true; }
  bool lengthens() const override { return lengthens_; }

 private:
  struct SlotState {
    netsum_slot machine{};
    Bytes lanes[2];
    std::map<uint16_t, Bytes> values;  // of the current round, by member
  };
  struct Job {
    netsum_job_rules rules{};
    wire::PacketKey key, parents_key;
    std::vector<SlotState> slots;
    std::map<uint16_t, Peer> peers;  // by member
    std::optional<VectorParent> parent;
    bool parent_welcomed = false;
  };

  std::vector<Reply> drop(int reason);
  std::vector<Reply> on_parent(Peer from, const netsum_fields& f, const Bytes& datagram);
  std::vector<Reply> on_hello(Job& job, const netsum_fields& f, Peer from);
  std::vector<Reply> on_verdict(Job& job, const netsum_fields& f, const netsum_verdict& verdict, Peer from);
  std::vector<Reply> result_to_all(const Job& job, const netsum_fields& f, uint32_t bank) const;
  Bytes result(const Job& job, const netsum_fields& f, uint32_t bank, uint16_t member) const;
  static std::vector<Reply> ask(const Job& job, const netsum_fields& f, uint16_t member);
  static Bytes payload_of(const SlotState& slot, uint32_t bank, bool without_lanes, netsum_fields* f);
  std::vector<Reply> sum_up(const Job& job, uint16_t slot, uint32_t bank, bool without_lanes) const;
  static std::vector<Reply> send_up(const Job& job, netsum_fields f, const Bytes& payload);
  static Bytes build(const wire::PacketKey& key, netsum_fields f, const Bytes& payload);
  static std::vector<Reply> to_all(const Job& job, const Bytes& frame);

  const bool lengthens_;
  std::map<uint16_t, Job> jobs_;
  std::map<std::string, uint64_t> drops_;
};

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_REFERENCE_DATAPLANE_H_
