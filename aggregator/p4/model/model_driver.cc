#include "aggregator/p4/model/model_driver.h"

#include "aggregator/p4/driver/frame.h"

namespace netsum::p4 {
namespace {

uint64_t mac_of(uint32_t ip) {
  return uint64_t{0x0200} << 32 | ip;
}

}  // namespace

void ModelDriver::set_events(Events events) {
  const std::lock_guard lock(events_mutex_);
  events_ = std::move(events);
}

SwitchLimits ModelDriver::limits() const {
  return {.jobs = NETSUM_P4_JOBS,
          .members = NETSUM_P4_MEMBERS,
          .slots = NETSUM_P4_SLOTS,
          .payload_bytes = NETSUM_P4_GROUPS * NETSUM_P4_PASS_BYTES};
}

Status ModelDriver::set_job(uint16_t job, const JobEntry& entry) {
  const std::lock_guard lock(mutex_);
  pipeline_->set_job(job, entry);
  jobs_[job] = entry;
  return {};
}

Status ModelDriver::remove_job(uint16_t job) {
  const std::lock_guard lock(mutex_);
  if (!jobs_.contains(job)) return {};
  pipeline_->remove_job(job);
  jobs_.erase(job);
  return {};
}

Status ModelDriver::set_member(uint16_t job, uint16_t member, const MemberEntry& entry) {
  const std::lock_guard lock(mutex_);
  if (!jobs_.contains(job))
    return {ErrorCode::kInvalidArgument, "there is no job " + std::to_string(job) + " in the model"};
  pipeline_->set_member(job, member, {.ip = entry.ip, .udp_port = entry.udp_port, .port = entry.port});
  return {};
}

Status ModelDriver::set_parent(uint16_t job, const ParentPlace& place) {
  const std::lock_guard lock(mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || !found->second.parent)
    return {ErrorCode::kInvalidArgument,
            "there is no job " + std::to_string(job) + " with a parent in the model"};
  pipeline_->set_parent(job, place.port);
  return {};
}

std::vector<uint16_t> ModelDriver::ports() const {
  const std::lock_guard lock(mutex_);
  std::vector<uint16_t> ports;
  for (const auto& [ip, port] : hosts_) ports.push_back(port);
  return ports;
}

void ModelDriver::add_host(uint32_t ip, uint16_t port) {
  const std::lock_guard lock(mutex_);
  hosts_[ip] = port;
}

void ModelDriver::answer_requests() {
  std::vector<std::pair<uint16_t, std::vector<uint8_t>>> answers;
  {
    const std::lock_guard lock(mutex_);
    answers.swap(answers_);
  }
  const std::lock_guard lock(events_mutex_);
  for (const auto& [port, frame] : answers)
    if (events_.on_packet) events_.on_packet(port, frame);
}

Status ModelDriver::send(uint16_t port, std::span<const uint8_t> bytes) {
  const std::lock_guard lock(mutex_);
  if (const std::optional<ArpFrame> request = parse_arp(bytes)) {
    const auto host = hosts_.find(request->target_ip);
    if (host == hosts_.end() || host->second != port) return {};
    answers_.emplace_back(port, build_arp({.is_reply = true,
                                           .to_mac = request->sender_mac,
                                           .sender_mac = mac_of(request->target_ip),
                                           .target_mac = request->sender_mac,
                                           .sender_ip = request->target_ip,
                                           .target_ip = request->sender_ip}));
    return {};
  }
  std::optional<UdpFrame> frame = parse_frame(bytes);
  if (!frame)
    return {ErrorCode::kInvalidArgument, "the model has no other frames than UDP datagrams and ARP"};
  sent_.push_back({.peer = {.ip = frame->to_ip, .udp_port = frame->to_port, .port = port},
                   .bytes = std::move(frame->datagram)});
  return {};
}

SwitchCounters ModelDriver::count() const {
  SwitchCounters counters;
  for (size_t i = 0; i < counters.events.size(); ++i)
    counters.events[i] = pipeline_->counter(static_cast<int>(i));
  for (uint16_t job = 0; job < NETSUM_P4_JOBS; ++job) counters.rounds.push_back(pipeline_->rounds(job));
  return counters;
}

Result<SwitchCounters> ModelDriver::counters() {
  const std::lock_guard lock(mutex_);
  return count();
}

SwitchCounters ModelDriver::last_counters() {
  const std::lock_guard lock(mutex_);
  return count();
}

std::vector<uint8_t> ModelDriver::frame_of(const Datagram& datagram) const {
  return build_frame({.to_mac = mac_of(own_ip_),
                      .from_mac = mac_of(datagram.peer.ip),
                      .from_ip = datagram.peer.ip,
                      .to_ip = own_ip_,
                      .from_port = datagram.peer.udp_port,
                      .to_port = NETSUM_P4_DATA_PORT,
                      .datagram = datagram.bytes});
}

std::vector<Datagram> ModelDriver::feed(const Datagram& datagram) {
  std::vector<Datagram> for_control;
  {
    const std::lock_guard lock(mutex_);
    pipeline_->run_arrival(datagram);
    while (pipeline_->run_recirculated()) {
    }
    for_control = pipeline_->take_for_control();
  }
  {
    const std::lock_guard lock(events_mutex_);
    for (const Datagram& one : for_control) {
      if (events_.on_packet) events_.on_packet(one.peer.port, frame_of(one));
    }
  }
  const std::lock_guard lock(mutex_);
  std::vector<Datagram> sent = pipeline_->take_sent();
  sent.insert(sent.end(), sent_.begin(), sent_.end());
  sent_.clear();
  return sent;
}

void ModelDriver::start_slot_at(uint16_t job, uint16_t slot, uint32_t round) {
  const std::lock_guard lock(mutex_);
  pipeline_->start_slot_at(job, slot, round);
}

void ModelDriver::flip_lane_bit(uint16_t job, uint16_t slot, uint32_t bank, uint32_t bit) {
  const std::lock_guard lock(mutex_);
  pipeline_->flip_lane_bit(job, slot, bank, bit);
}

void ModelDriver::restart() {
  {
    const std::lock_guard lock(mutex_);
    pipeline_ = std::make_unique<Pipeline>();
    jobs_.clear();
  }
  const std::lock_guard lock(events_mutex_);
  if (events_.on_restart) events_.on_restart({ErrorCode::kAggregatorLost, "the model has restarted"});
}

}  // namespace netsum::p4
