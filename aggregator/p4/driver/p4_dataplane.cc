#include "aggregator/p4/driver/p4_dataplane.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "aggregator/dataplane/slot_ranges.h"
#include "aggregator/p4/driver/frame.h"
#include "src/base/counter.h"
#include "wire/codec.h"

namespace netsum::p4 {
namespace {

Address address_of(uint32_t ip, uint16_t port) {
  Address address;
  for (size_t i = 0; i < 4; ++i) address.ip[i] = static_cast<uint8_t>(ip >> (24 - 8 * i));
  address.port = port;
  address.family = 4;
  return address;
}

uint32_t ip_of(const Address& address) {
  uint32_t ip = 0;
  for (size_t i = 0; i < 4; ++i) ip = ip << 8 | address.ip[i];
  return ip;
}

bool is_right(const std::vector<uint8_t>& datagram, const netsum_fields& fields, const wire::PacketKey& key) {
  const uint64_t nh = netsum_nh(&datagram[NETSUM_HEADER_BYTES], fields.payload_bytes, key.table());
  return wire::check_is_right(datagram.data(), fields, key, nh);
}

class P4Dataplane final : public Dataplane {
 public:
  P4Dataplane(const P4DataplaneOptions& options, std::unique_ptr<SwitchDriver> driver)
      : options_(options), switch_(driver->limits()), driver_(std::move(driver)), ranges_(slots()) {
    driver_->set_events(
        {.on_packet = [this](uint16_t port, std::span<const uint8_t> frame) { on_packet(port, frame); },
         .on_restart = [this](const Status& reason) { on_restart(reason); },
         .on_silence = [this](const Status& reason) { report_lost(reason); }});
  }

  ~P4Dataplane() override {
    driver_->set_events({});
    for (const auto& [index, held] : jobs_) static_cast<void>(driver_->remove_job(index));
  }

  std::string_view kind() const override { return "p4"; }

  DataplaneLimits limits() const override {
    Capabilities capabilities =
        standard_capabilities(std::min(options_.payload_bytes, switch_.payload_bytes));
    capabilities.add_formats(NETSUM_FORMAT_SUM_I8);
    add_words(&capabilities);
    capabilities.clear_tags();
    capabilities.add_tags(NETSUM_TAG_COOKIE);
    return {.stripes = 1,
            .max_jobs = std::min(options_.max_jobs, switch_.jobs),
            .slots_per_stripe = slots(),
            .capabilities = std::move(capabilities),
            .quota = options_.quota,
            .slot_bytes = 2 * uint64_t{switch_.payload_bytes}};
  }

  std::vector<Address> endpoints() const override {
    Address address = options_.address;
    address.port = NETSUM_P4_DATA_PORT;
    return {address};
  }

  uint32_t free_slots() const override {
    const Lock lock(mutex_);
    return ranges_.free();
  }

  Status install(const DataplaneJob& job) override;
  void remove(uint16_t job, uint16_t epoch) override;
  std::vector<AggregatorCounter> counters() const override;
  JobProgress progress(uint16_t job, uint16_t epoch) const override;

  void set_on_lost(std::function<void(const Status&)> on_lost) override {
    const Lock lock(lost_mutex_);
    on_lost_ = std::move(on_lost);
  }

 private:
  struct Held {
    DataplaneJob job;  // without its key
    wire::PacketKey key;
    uint32_t first_slot = 0;
    uint64_t rounds_before = 0;  // of earlier jobs with this index
    std::map<uint16_t, MemberEntry> members;
    // If the job has a parent:
    wire::PacketKey parent_key;
    // Who has answered an ARP request for it, the latest last: several, if one of them is not the parent.
    std::vector<ParentPlace> parents;
    bool parent_welcomed = false;  // it has answered a HELLO of full size
    bool removed = false;          // but the switch may still have it, so its slots are nobody else's
  };
  using Lock = std::lock_guard<std::mutex>;

  uint32_t slots() const { return std::min(options_.slots, switch_.slots); }
  static uint32_t slots_of(const DataplaneJob& job) { return job.data_slots + job.scale_slots; }
  Status check_room(const DataplaneJob& job) const;
  Status remove_again();
  Result<uint32_t> take_slots(uint32_t count, std::optional<uint32_t> first) {
    const Lock lock(mutex_);
    return ranges_.take(count, first);
  }
  bool forget(uint16_t index);
  void on_packet(uint16_t port, std::span<const uint8_t> frame);
  void on_arp_reply(uint16_t port, const ArpFrame& reply);
  void on_hello(uint16_t port, const netsum_fields& hello, UdpFrame frame, Held* held);
  void on_welcome(uint16_t port, const netsum_fields& welcome, const UdpFrame& frame, Held* held);
  void ask_for_parent(const Held& held);
  void hello_up(const netsum_fields& hello, const Held& held);
  Status meet(Held* held, const netsum_fields& hello, const MemberEntry& from);
  void on_restart(const Status& reason);
  void report_lost(const Status& reason);

  const P4DataplaneOptions options_;
  const SwitchLimits switch_;
  const std::unique_ptr<SwitchDriver> driver_;
  // One at a time calls the switch and changes what is below. Locked before mutex_.
  std::mutex calls_mutex_;
  // Never held while the switch is called, so that looks do not wait for it: ranges_, and which jobs there are. Either mutex
  // suffices to read them, both are needed to change them.
  mutable std::mutex mutex_;
  SlotRanges ranges_;
  std::map<uint16_t, Held> jobs_;
  Counter hellos_;
  Counter refused_hellos_;
  Counter forged_hellos_;
  Counter parents_found_;
  std::mutex lost_mutex_;
  std::function<void(const Status&)> on_lost_;
};

// More than the tables of the switch hold.
Status P4Dataplane::check_room(const DataplaneJob& job) const {
  if (job.parent && job.parent->stripes[0].family != 4) {
    return {ErrorCode::kUnsupported,
            "the dataplane 'p4' reaches parents by IPv4 alone, not at " + job.parent->stripes[0].to_string()};
  }
  if (job.tag != NETSUM_TAG_COOKIE) {
    return {ErrorCode::kUnsupported,
            "the dataplane 'p4' cannot compute the tags of packets: its jobs need verify 'sum'"};
  }
  uint32_t members = 0;
  for (const auto& [index, held] : jobs_) members += held.job.members;
  if (members + job.members > switch_.members) {
    return {ErrorCode::kResourceExhausted, "the switch's table holds " + std::to_string(switch_.members) +
                                               " members; " + std::to_string(members) +
                                               " are taken, and job '" + job.spec.name() + "' has " +
                                               std::to_string(job.members)};
  }
  return {};
}

// Jobs that the switch could not be told to remove.
Status P4Dataplane::remove_again() {
  Status first;
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const uint16_t index = (at++)->first;
    if (!jobs_.at(index).removed) continue;
    if (!forget(index) && first.ok())
      first = {ErrorCode::kUnreachable, "an earlier job with index " + std::to_string(index) +
                                            " is still to be removed from the switch"};
  }
  return first;
}

Status P4Dataplane::install(const DataplaneJob& job) {
  const Lock calls(calls_mutex_);
  const DataplaneLimits limit = limits();
  if (Status status = check_fits(job, limit.max_jobs, limit.capabilities.payload_bytes(), 1); !status.ok())
    return status;
  if (const auto before = jobs_.find(job.job); before != jobs_.end()) before->second.removed = true;
  const Status removed = remove_again();
  if (jobs_.contains(job.job)) return removed;
  if (Status status = check_room(job); !status.ok()) return status;
  Held held{.job = job, .key = {}, .first_slot = 0, .rounds_before = 0, .members = {}};
  held.key.set(wire::stripe_key(job.key, job.first_stripe), job.payload_bytes, job.tag);
  wire::wipe(&held.job.key);
  std::optional<JobEntry::Parent> parent;
  if (held.job.parent) {
    DataplaneParent& up = *held.job.parent;
    held.parent_key.set(wire::stripe_key(up.key, job.first_stripe), job.payload_bytes, job.tag);
    wire::wipe(&up.key);
    parent = {.ip = ip_of(up.stripes[0]),
              .udp_port = up.stripes[0].port,
              .job = up.job,
              .epoch = up.epoch,
              .member = up.member,
              .cookie = held.parent_key.cookie()};
  }
  const uint32_t wanted = slots_of(job);
  const Result<uint32_t> first = take_slots(wanted, job.first_slot);
  if (!first.ok()) return removed.ok() ? first.status() : removed;
  Result<SwitchCounters> before = driver_->counters();
  Status status = before.status();
  if (status.ok()) {
    status = driver_->set_job(job.job, {.epoch = job.epoch,
                                        .members = job.members,
                                        .slots = wanted,
                                        .payload_bytes = job.payload_bytes,
                                        .first_slot = *first,
                                        .cookie = held.key.cookie(),
                                        .parent = parent});
  }
  held.first_slot = *first;
  held.removed = !status.ok();
  if (before.ok()) held.rounds_before = before->rounds.at(job.job);
  {
    const Lock lock(mutex_);
    jobs_[job.job] = std::move(held);
  }
  if (!status.ok()) {
    static_cast<void>(forget(job.job));
  } else if (job.parent) {
    ask_for_parent(jobs_.at(job.job));
  }
  return status;
}

void P4Dataplane::remove(uint16_t job, uint16_t epoch) {
  const Lock calls(calls_mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || found->second.job.epoch != epoch) return;
  found->second.removed = true;
  static_cast<void>(forget(job));
}

// False if the switch may still have it.
bool P4Dataplane::forget(uint16_t index) {
  Held& held = jobs_.at(index);
  held.key.wipe();
  held.parent_key.wipe();
  held.removed = true;
  if (!driver_->remove_job(index).ok()) return false;
  const Lock lock(mutex_);
  ranges_.give_back(held.first_slot, slots_of(held.job));
  jobs_.erase(index);
  return true;
}

std::vector<AggregatorCounter> P4Dataplane::counters() const {
  const SwitchCounters now = driver_->last_counters();
  std::vector<AggregatorCounter> counters = {
      {"contributions", now.events[NETSUM_P4_COUNT_CONTRIBUTIONS]},
      {"rounds_completed", now.events[NETSUM_P4_COUNT_ROUNDS_COMPLETED]},
      {"results_repeated", now.events[NETSUM_P4_COUNT_RESULTS_REPEATED]},
      {"statuses", now.events[NETSUM_P4_COUNT_STATUSES]},
      {"mismatches", now.events[NETSUM_P4_COUNT_MISMATCHES]},
      {"overflows", now.events[NETSUM_P4_COUNT_OVERFLOWS]},
      {"hellos", now.events[NETSUM_P4_COUNT_HELLOS] + hellos_.get()},
      {"hellos_refused", refused_hellos_.get()},
      {"sent_to_parent", now.events[NETSUM_P4_COUNT_SENT_TO_PARENT]},
      {"parents_found", parents_found_.get()},
      {"lost_passes", now.events[NETSUM_P4_COUNT_LOST_PASS]}};
  const auto drops = [&](int reason) {
    return now.events[static_cast<size_t>(reason)] +
           (reason == NETSUM_DROP_BAD_CHECK ? forged_hellos_.get() : 0);
  };
  append_drops(drops, &counters);
  return counters;
}

// Registers are not read, so only what the program counts by job is known.
JobProgress P4Dataplane::progress(uint16_t job, uint16_t epoch) const {
  const SwitchCounters now = driver_->last_counters();
  const Lock lock(mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || found->second.job.epoch != epoch) return {};
  JobProgress progress;
  if (job < now.rounds.size() && now.rounds[job] > found->second.rounds_before)
    progress.rounds = now.rounds[job] - found->second.rounds_before;
  return progress;
}

// HELLOs of members that the switch does not know or whose job waits for its parent, what this parent answers, and answers to
// ARP requests.
void P4Dataplane::on_packet(uint16_t port, std::span<const uint8_t> bytes) {
  if (const std::optional<ArpFrame> arp = parse_arp(bytes)) {
    if (arp->is_reply) on_arp_reply(port, *arp);
    return;
  }
  std::optional<UdpFrame> frame = parse_frame(bytes);
  if (!frame) return refused_hellos_.add();
  netsum_fields fields;
  const std::vector<uint8_t>& datagram = frame->datagram;
  if (netsum_parse(datagram.data(), static_cast<uint32_t>(datagram.size()), &fields) != NETSUM_DROP_NONE)
    return refused_hellos_.add();
  const Lock calls(calls_mutex_);
  const auto found = jobs_.find(fields.job);
  if (found == jobs_.end() || found->second.removed || found->second.job.epoch != fields.epoch ||
      fields.payload_bytes > found->second.job.payload_bytes)
    return refused_hellos_.add();
  Held& held = found->second;
  if (fields.type == NETSUM_TYPE_HELLO) return on_hello(port, fields, std::move(*frame), &held);
  if (fields.type == NETSUM_TYPE_WELCOME) return on_welcome(port, fields, *frame, &held);
  refused_hellos_.add();
}

void P4Dataplane::on_hello(uint16_t port, const netsum_fields& hello, UdpFrame frame, Held* held) {
  if (hello.member >= held->job.members) return refused_hellos_.add();
  if (!is_right(frame.datagram, hello, held->key)) return forged_hellos_.add();
  const MemberEntry from{
      .port = port, .mac = frame.from_mac, .ip = frame.from_ip, .udp_port = frame.from_port};
  if (!meet(held, hello, from).ok()) return refused_hellos_.add();  // the next HELLO tries again
  if (held->job.parent && !held->parent_welcomed) return hello_up(hello, *held);

  netsum_fields welcome = hello;
  welcome.type = NETSUM_TYPE_WELCOME;
  welcome.flags = 0;
  std::swap(frame.from_mac, frame.to_mac);
  std::swap(frame.from_ip, frame.to_ip);
  std::swap(frame.from_port, frame.to_port);
  wire::write_header(welcome, held->key, frame.datagram.data());
  if (driver_->send(port, build_frame(frame)).ok()) hellos_.add();
}

// The parent must answer first. The member repeats its HELLO until then, and the ARP request is repeated, too: what has been
// answered may be wrong, and the parent may have moved.
void P4Dataplane::hello_up(const netsum_fields& hello, const Held& held) {
  hellos_.add();
  ask_for_parent(held);
  const DataplaneParent& parent = *held.job.parent;
  netsum_fields up = hello;
  up.flags = 0;
  up.job = parent.job;
  up.epoch = parent.epoch;
  up.member = parent.member;
  UdpFrame frame{.to_mac = 0,
                 .from_mac = options_.mac,
                 .from_ip = ip_of(options_.address),
                 .to_ip = ip_of(parent.stripes[0]),
                 .from_port = NETSUM_P4_DATA_PORT,
                 .to_port = parent.stripes[0].port,
                 .datagram = std::vector<uint8_t>(NETSUM_HEADER_BYTES + hello.payload_bytes)};
  wire::write_header(up, held.parent_key, frame.datagram.data());
  // To all: only the parent can answer with the right tag.
  for (const ParentPlace& place : held.parents) {
    frame.to_mac = place.mac;
    static_cast<void>(driver_->send(place.port, build_frame(frame)));
  }
}

// The switch has checked its cookie, and made it a packet of the own job.
void P4Dataplane::on_welcome(uint16_t port, const netsum_fields& welcome, const UdpFrame& frame, Held* held) {
  if (!held->job.parent || held->parent_welcomed || welcome.payload_bytes != held->job.payload_bytes) return;
  if (!is_right(frame.datagram, welcome, held->key)) return forged_hellos_.add();
  held->parent_welcomed = driver_->set_parent(welcome.job, {.port = port, .mac = frame.from_mac}).ok();
}

// By all ports, because none is known yet.
void P4Dataplane::ask_for_parent(const Held& held) {
  const std::vector<uint8_t> request = build_arp({.is_reply = false,
                                                  .to_mac = kBroadcastMac,
                                                  .sender_mac = options_.mac,
                                                  .target_mac = 0,
                                                  .sender_ip = ip_of(options_.address),
                                                  .target_ip = ip_of(held.job.parent->stripes[0])});
  for (const uint16_t port : driver_->ports()) static_cast<void>(driver_->send(port, request));
}

void P4Dataplane::on_arp_reply(uint16_t port, const ArpFrame& reply) {
  constexpr size_t kMostPlaces = 8;  // beyond which the one that was answered first is forgotten
  const Lock calls(calls_mutex_);
  for (auto& [index, held] : jobs_) {
    if (held.removed || !held.job.parent || held.parent_welcomed) continue;
    if (ip_of(held.job.parent->stripes[0]) != reply.sender_ip) continue;
    if (held.parents.empty()) parents_found_.add();
    const ParentPlace place{.port = port, .mac = reply.sender_mac};
    std::erase(held.parents, place);
    held.parents.push_back(place);
    if (held.parents.size() > kMostPlaces) held.parents.erase(held.parents.begin());
  }
}

// The first HELLO of a member says where it is; from then on, the switch answers it.
Status P4Dataplane::meet(Held* held, const netsum_fields& hello, const MemberEntry& from) {
  const auto known = held->members.find(hello.member);
  if (known != held->members.end()) {
    if (known->second == from) return {};  // it came before the switch had the entry
    return {ErrorCode::kInvalidArgument,
            "member " + std::to_string(hello.member) + " is at " +
                address_of(known->second.ip, known->second.udp_port).to_string()};
  }
  Status status = driver_->set_member(hello.job, hello.member, from);
  if (status.ok()) held->members[hello.member] = from;
  return status;
}

void P4Dataplane::on_restart(const Status& reason) {
  {
    const Lock calls(calls_mutex_);
    const Lock lock(mutex_);
    for (const auto& [index, held] : jobs_) ranges_.give_back(held.first_slot, slots_of(held.job));
    jobs_.clear();
  }
  report_lost(reason);
}

void P4Dataplane::report_lost(const Status& reason) {
  const Lock lock(lost_mutex_);
  if (on_lost_) on_lost_(reason);
}

}  // namespace

std::unique_ptr<Dataplane> make_p4_dataplane(const P4DataplaneOptions& options,
                                             std::unique_ptr<SwitchDriver> driver) {
  return std::make_unique<P4Dataplane>(options, std::move(driver));
}

}  // namespace netsum::p4
