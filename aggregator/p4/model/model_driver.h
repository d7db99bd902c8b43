// The model of the pipeline as a switch with a control plane, for tests. Datagrams go in and come out; the frames of the control
// plane have made-up Ethernet addresses.
#ifndef NETSUM_AGGREGATOR_P4_MODEL_MODEL_DRIVER_H_
#define NETSUM_AGGREGATOR_P4_MODEL_MODEL_DRIVER_H_

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "aggregator/p4/driver/switch_driver.h"
#include "aggregator/p4/model/pipeline.h"

namespace netsum::p4 {

class ModelDriver final : public SwitchDriver {
 public:
  explicit ModelDriver(uint32_t own_ip) : own_ip_(own_ip) {}

  void set_events(Events events) override;
  SwitchLimits limits() const override;
  Status set_job(uint16_t job, const JobEntry& entry) override;
  Status remove_job(uint16_t job) override;
  Status set_member(uint16_t job, uint16_t member, const MemberEntry& entry) override;
  Status set_parent(uint16_t job, const ParentPlace& place) override;
  std::vector<uint16_t> ports() const override;
  Status send(uint16_t port, std::span<const uint8_t> frame) override;
  Result<SwitchCounters> counters() override;
  SwitchCounters last_counters() override;

  // A host that answers ARP requests, by this port.
  void add_host(uint32_t ip, uint16_t port);
  // Delivers the answers to the control plane's requests.
  void answer_requests();
  // All that leaves the switch because of the datagram, that of the control plane included.
  std::vector<Datagram> feed(const Datagram& datagram);
  // The slot stands as after `round` completed there.
  void start_slot_at(uint16_t job, uint16_t slot, uint32_t round);
  // As Pipeline::flip_lane_bit().
  void flip_lane_bit(uint16_t job, uint16_t slot, uint32_t bank, uint32_t bit);
  // Loses all tables and registers.
  void restart();

 private:
  SwitchCounters count() const;
  std::vector<uint8_t> frame_of(const Datagram& datagram) const;

  const uint32_t own_ip_;
  std::mutex events_mutex_;
  Events events_;
  mutable std::mutex mutex_;  // all below
  std::unique_ptr<Pipeline> pipeline_ = std::make_unique<Pipeline>();
  std::map<uint16_t, JobEntry> jobs_;
  std::vector<Datagram> sent_;  // by the control plane
  std::map<uint32_t, uint16_t> hosts_;
  std::vector<std::pair<uint16_t, std::vector<uint8_t>>> answers_;  // by port
};

}  // namespace netsum::p4

#endif  // NETSUM_AGGREGATOR_P4_MODEL_MODEL_DRIVER_H_
