#include "emulate/aggregator.h"

#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "aggregator/p4/driver/p4_dataplane.h"
#include "aggregator/p4/model/model_driver.h"
#include "aggregator/user/core.h"
#include "src/base/rng.h"

namespace netsum::emulate {
namespace {

class Core final : public SimulatedAggregator {
 public:
  explicit Core(const Options& options)
      : core_({.max_jobs = options.max_jobs,
               .slots = options.slots,
               .payload_bytes = options.payload_bytes,
               .flipped_bits = options.flipped_bits,
               .seed = options.seed}) {}

  Status install(const DataplaneJob& job, size_t stripe) override { return core_.install(job, stripe); }
  void remove(uint16_t job, uint16_t epoch) override { core_.remove(job, epoch); }
  uint32_t free_slots() const override { return core_.free_slots(); }
  void on_packet(int64_t now_us, const InPacket& packet) override { core_.on_packet(now_us, packet); }
  std::span<const OutPacket> outbox() override { return core_.outbox(); }
  void clear() override { core_.clear(); }
  uint64_t drops(int reason) const override {
    return core_.counters().drops[static_cast<size_t>(reason)].get();
  }
  uint64_t mismatches() const override { return core_.counters().mismatches.get(); }
  std::vector<faults::MemberTotals> members(uint16_t job, uint16_t epoch) const override {
    return core_.members(job, epoch);
  }

 private:
  AggregatorCore core_;
};

uint32_t ip_of(const Address& address) {
  const auto& ip = address.ip;
  return uint32_t{ip[0]} << 24 | uint32_t{ip[1]} << 16 | uint32_t{ip[2]} << 8 | ip[3];
}

// Each host has a port of its own.
p4::Endpoint endpoint_of(const Address& address) {
  const uint32_t ip = ip_of(address);
  return {.ip = ip, .udp_port = address.port, .port = static_cast<uint16_t>(ip)};
}

Address address_of(const p4::Endpoint& endpoint) {
  Address address;
  for (size_t i = 0; i < 4; ++i) address.ip[i] = static_cast<uint8_t>(endpoint.ip >> (24 - 8 * i));
  address.port = endpoint.udp_port;
  address.family = 4;
  return address;
}

class Switch final : public SimulatedAggregator {
 public:
  explicit Switch(const Options& options) : options_(options), rng_(options.seed) {
    auto driver = std::make_unique<p4::ModelDriver>(ip_of(options.address));
    model_ = driver.get();
    dataplane_ = p4::make_p4_dataplane({.address = options.address,
                                        .max_jobs = options.max_jobs,
                                        .slots = options.slots,
                                        .payload_bytes = options.payload_bytes},
                                       std::move(driver));
  }

  Status install(const DataplaneJob& job, size_t stripe) override {
    DataplaneJob own = job;
    own.first_stripe = static_cast<uint32_t>(stripe);
    if (own.parent) {
      const p4::Endpoint parent = endpoint_of(own.parent->stripes[stripe]);
      own.parent->stripes = {own.parent->stripes[stripe]};
      model_->add_host(parent.ip, parent.port);
    }
    const Status installed = dataplane_->install(own);
    model_->answer_requests();
    if (installed.ok()) jobs_[job.job] = own;
    return installed;
  }
  void remove(uint16_t job, uint16_t epoch) override {
    dataplane_->remove(job, epoch);
    const auto found = jobs_.find(job);
    if (found != jobs_.end() && found->second.epoch == epoch) jobs_.erase(found);
  }
  uint32_t free_slots() const override { return dataplane_->free_slots(); }
  void on_packet(int64_t now_us, const InPacket& packet) override;
  std::span<const OutPacket> outbox() override;
  void clear() override { sent_.clear(); }
  uint64_t drops(int reason) const override { return count(reason); }
  uint64_t mismatches() const override { return count(NETSUM_P4_COUNT_MISMATCHES); }

 private:
  uint64_t count(int event) const { return model_->counters()->events[static_cast<size_t>(event)]; }
  void flip_a_bit();

  const Options options_;
  Rng rng_;
  p4::ModelDriver* model_;  // of dataplane_
  std::unique_ptr<Dataplane> dataplane_;
  std::map<uint16_t, DataplaneJob> jobs_;
  std::vector<p4::Datagram> sent_;
  std::vector<OutPacket> outbox_;  // what is in sent_
};

void Switch::on_packet(int64_t /*now_us*/, const InPacket& packet) {
  if (options_.flipped_bits > 0 && rng_.chance(options_.flipped_bits)) flip_a_bit();
  for (p4::Datagram& datagram :
       model_->feed({endpoint_of(packet.from), {packet.data, packet.data + packet.size}}))
    sent_.push_back(std::move(datagram));
}

void Switch::flip_a_bit() {
  if (jobs_.empty()) return;
  const DataplaneJob& job = std::next(jobs_.begin(), static_cast<long>(rng_.below(jobs_.size())))->second;
  const auto slot = static_cast<uint16_t>(rng_.below(job.data_slots + job.scale_slots));
  const auto bank = static_cast<uint32_t>(rng_.below(2));
  model_->flip_lane_bit(job.job, slot, bank, static_cast<uint32_t>(rng_.below(8 * job.payload_bytes)));
}

std::span<const OutPacket> Switch::outbox() {
  outbox_.clear();
  for (const p4::Datagram& datagram : sent_) {
    outbox_.push_back({.data = datagram.bytes.data(),
                       .size = static_cast<uint32_t>(datagram.bytes.size()),
                       .to = address_of(datagram.peer)});
  }
  return outbox_;
}

}  // namespace

std::unique_ptr<SimulatedAggregator> make_core(const SimulatedAggregator::Options& options) {
  return std::make_unique<Core>(options);
}

uint32_t switch_payload_bytes() {
  return NETSUM_P4_GROUPS * NETSUM_P4_PASS_BYTES;
}

std::unique_ptr<SimulatedAggregator> make_switch(const SimulatedAggregator::Options& options) {
  return std::make_unique<Switch>(options);
}

}  // namespace netsum::emulate
