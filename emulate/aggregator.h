// The aggregators of a simulated run, without I/O: the core of the user-space dataplane, or a P4 switch, which is the model of
// its pipeline below its real control plane.
#ifndef NETSUM_EMULATE_AGGREGATOR_H_
#define NETSUM_EMULATE_AGGREGATOR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "aggregator/dataplane/dataplane.h"
#include "src/faults/link_watch.h"
#include "src/net/packet_io.h"

namespace netsum::emulate {

class SimulatedAggregator {
 public:
  struct Options {
    Address address;
    int max_jobs = 8;
    uint32_t slots = 0;
    uint32_t payload_bytes = 0;
    // One bit of the lanes flips. The core: of a sum that it has completed, with this probability. The switch: of any round
    // in its registers, with this probability before each packet.
    double flipped_bits = 0;
    uint64_t seed = 1;  // of these
  };

  virtual ~SimulatedAggregator() = default;

  // As those of AggregatorCore.
  virtual Status install(const DataplaneJob& job, size_t stripe) = 0;
  virtual void remove(uint16_t job, uint16_t epoch) = 0;
  virtual uint32_t free_slots() const = 0;
  virtual void on_packet(int64_t now_us, const InPacket& packet) = 0;
  virtual std::span<const OutPacket> outbox() = 0;
  virtual void clear() = 0;

  virtual uint64_t drops(int reason) const = 0;  // NETSUM_DROP_*
  virtual uint64_t mismatches() const = 0;
  // As JobProgress::members.
  virtual std::vector<faults::MemberTotals> members(uint16_t /*job*/, uint16_t /*epoch*/) const { return {}; }
};

std::unique_ptr<SimulatedAggregator> make_core(const SimulatedAggregator::Options& options);
// Its jobs have packets without tags, of payloads that it can hold.
uint32_t switch_payload_bytes();
std::unique_ptr<SimulatedAggregator> make_switch(const SimulatedAggregator::Options& options);

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_AGGREGATOR_H_
