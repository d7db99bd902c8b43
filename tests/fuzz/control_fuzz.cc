// The control plane without its network: joins, claims and reports in any order and with any values, structured and
// as bytes of their messages, while a job of others runs. Nothing aborts; the other job never hears of it; whatever
// has been taken is there again when everybody has gone.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "aggregator/control/event_queue.h"
#include "aggregator/control/job_table.h"
#include "aggregator/control/request_checks.h"
#include "aggregator/dataplane/member_shards.h"
#include "src/base/rng.h"
#include "src/base/text.h"
#include "src/control/membership.h"
#include "src/control/rpc_status.h"
#include "wire/ids.h"

namespace netsum {
namespace {

constexpr uint32_t kSlots = 1100;
constexpr int kMaxJobs = 6;
constexpr int64_t kLongAfterUs = int64_t{1} << 52;
constexpr char kOthersToken[] = "the others'";

void require(bool holds) {
  if (!holds) std::abort();
}

void require_text(const std::string& text) {
  require(is_printable(text));
  require(text.size() <= 4096);
}

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  bool empty() const { return data_ == end_; }
  uint8_t byte() { return empty() ? 0 : *data_++; }
  template <typename T, size_t N>
  const T& pick(const T (&choices)[N]) {
    return choices[byte() % N];
  }
  std::string bytes() {
    const size_t asked = byte();
    const size_t size = std::min(asked, static_cast<size_t>(end_ - data_));
    std::string text(reinterpret_cast<const char*>(data_), size);
    data_ += size;
    return text;
  }

 private:
  const uint8_t* data_;
  const uint8_t* const end_;
};

// Checks that the table never grants the same slot or index twice, nor frees what it has not granted.
class Books final : public Dataplane {
 public:
  std::string_view kind() const override { return "books"; }
  DataplaneLimits limits() const override { return {2, kMaxJobs, kSlots, standard_capabilities(1440)}; }
  std::vector<Address> endpoints() const override {
    return {*Address::parse("10.0.0.9:7000"), *Address::parse("10.0.0.9:7001")};
  }
  uint32_t free_slots() const override { return ranges_.free(); }
  Status install(const DataplaneJob& job) override {
    require(job.first_slot.has_value() && job.members >= 1 && job.members <= NETSUM_MAX_MEMBERS);
    require(job.job < kMaxJobs && !held_.contains(job.job));
    require(ranges_.take(job.data_slots + job.scale_slots, job.first_slot).ok());
    held_[job.job] = job;
    return {};
  }
  void remove(uint16_t index, uint16_t epoch) override {
    const auto held = held_.find(index);
    require(held != held_.end() && held->second.epoch == epoch);
    ranges_.give_back(*held->second.first_slot, held->second.data_slots + held->second.scale_slots);
    held_.erase(held);
  }
  std::vector<AggregatorCounter> counters() const override { return {}; }
  JobProgress progress(uint16_t, uint16_t) const override { return {}; }

 private:
  SlotRanges ranges_{kSlots};
  std::map<uint16_t, DataplaneJob> held_;
};

struct Member {
  MemberClaim claim;
  EventQueue queue;   // of a member that does not read
  bool over = false;  // has been told of its end
  bool others = false;
};

class Run {
 public:
  explicit Run(Input input) : input_(input) {
    const uint8_t how = input_.byte();
    shards_ = how & 1;
    JobTableOptions options;
    options.max_jobs = kMaxJobs;
    if (how & 2) options.token = "house";
    token_ = options.token;
    table_.emplace(options, shards_ ? static_cast<Dataplane*>(&member_shards_) : &books_,
                   [this] { return rng_.next(); });
    for (uint32_t rank = 0; rank < 2; ++rank) {
      control::JoinRequest request = good("others", 2, rank);
      request.mutable_job()->set_token(kOthersToken);
      request.set_shard_endpoint(shards_ ? "10.0.0.1:7000" : "");
      require(join(request, true));
    }
    after();
  }

  void run() {
    while (!input_.empty()) {
      step();
      after();
    }
    finish();
  }

 private:
  control::JoinRequest good(const std::string& name, uint32_t world_size, uint32_t rank) const {
    control::JoinRequest request;
    JobSpec& job = *request.mutable_job();
    job.set_protocol_version(NETSUM_VERSION);
    job.set_name(name);
    job.set_aggregator_token(token_);
    job.set_world_size(world_size);
    job.set_mtu(1500);
    job.set_slots(64);
    request.set_rank(rank);
    if (shards_) {
      request.set_shard_endpoint("10.0.0.2:7000");
      request.set_shard_payload_bytes(1440);
      request.set_shard_slots(4096);
    }
    return request;
  }

  double some_number() {
    static const double kNumbers[] = {0,    1e9,    1e10, 1,    -1,       1e300, 5e-324, 1e-300,
                                      1e18, 1.1e18, 1e3,  1e14, INFINITY, NAN,   999,    1};
    return input_.pick(kNumbers);
  }

  Capabilities structured_capabilities() {
    Capabilities can = input_.byte() & 1 ? standard_capabilities(1440) : Capabilities();
    const uint8_t odd = input_.byte();
    if (odd & 1) can.add_formats(input_.byte());
    if (odd & 2) can.add_byte_orders(input_.byte());
    if (odd & 4) can.add_tags(input_.byte());
    if (odd & 8) can.set_payload_bytes(input_.byte() * 32u);
    if (odd & 16) can.set_max_members(input_.byte());
    can.set_multicast(odd & 32);
    can.set_empty_packets(odd & 64);
    can.set_no_result(odd & 128);
    if (odd == 255)
      for (uint32_t i = 0; i < 300; ++i) can.add_formats(i);
    return can;
  }

  // Aggregators below each other, or beside each other where only one can be.
  PlaceInfo structured_place() {
    PlaceInfo top;
    PlaceInfo* place = &top;
    for (int levels = input_.byte() % 10;; --levels) {
      const uint8_t odd = input_.byte();
      place->set_id(odd % 4);
      place->set_address(odd & 4 ? input_.bytes() : "10.0.0.8:5151");
      place->set_cores(odd & 8 ? input_.byte() : 2);
      place->set_stripes(odd & 16 ? input_.byte() : 2);
      if (odd & 32) place->set_kind(PlaceInfo::SWITCH);
      if (odd & 64) place->mutable_uplink()->set_in_bps(some_number());
      if (odd & 64) place->mutable_uplink()->set_out_bps(some_number());
      for (int ports = odd & 128 ? input_.byte() % 80 : 0; ports > 0; --ports) {
        place->add_ports()->mutable_link()->set_in_bps(some_number());
        place->mutable_ports(place->ports_size() - 1)->mutable_link()->set_out_bps(some_number());
        if (odd & 4) place->mutable_ports(0)->set_address(input_.bytes());
      }
      const uint8_t more = input_.byte();
      if (more & 1) place->set_adds_per_second(some_number());
      if (more & 2) place->set_stream_bps(some_number());
      if (more & 4) place->set_ranks(more & 8 ? 0xFFFFFFFF : input_.byte());
      place->set_multicast(more & 16);
      if (more & 32) place->set_cores(0xFFFFFFFF);
      if (more & 64) place->set_stripes(0xFFFFFFFF);
      if (levels == 0) return top;
      if (odd == 255) place->add_below();
      place = place->add_below();
    }
  }

  control::Sharing structured_sharing() {
    control::Sharing sharing;
    const uint8_t how = input_.byte();
    if (how & 1) *sharing.mutable_first_place() = structured_place();
    for (int others = how >> 1 & 3; others > 0; --others) *sharing.add_other_places() = structured_place();
    if (how & 8) sharing.mutable_link()->set_in_bps(some_number());
    if (how & 16) sharing.mutable_link()->set_out_bps(some_number());
    for (int empty = how == 255 ? 100 : 0; empty > 0; --empty) sharing.add_other_places();
    return sharing;
  }

  control::JoinRequest structured_join() {
    static const char* const kNames[] = {"a", "b", "others", "c"};
    static const char* const kTokens[] = {"", "x", "the others", "y"};
    static const uint32_t kCounts[] = {1, 2, 3, 2, 70, 0, 512, 0xFFFFFFFF};
    static const uint32_t kTimes[] = {0, 1, 1000, 100'000, 0xFFFFFFFF};
    static const uint32_t kSlotCounts[] = {64, 128, 256, 512, 1024, 0, 1u << 31, 0xFFFFFFFF};
    static const uint64_t kIds[] = {0, 1, 0xFFFFFFFFFFFFFFFF};
    const uint32_t world_size = input_.pick(kCounts);
    control::JoinRequest request = good(input_.pick(kNames), world_size, input_.byte() % 4);
    JobSpec& job = *request.mutable_job();
    job.set_token(input_.pick(kTokens));
    const uint8_t more = input_.byte();
    if (more & 1) job.set_slots(input_.pick(kSlotCounts));
    if (more & 2) {
      const uint8_t how = input_.byte();
      job.set_when_full(how % 4);
      if (how & 4) *request.mutable_sharing() = structured_sharing();
      if (how & 8) job.set_shares(how >> 4);
    }
    if (more & 4) job.set_succeeds(succession_ids_.empty() ? input_.pick(kIds) : succession_ids_.back());
    if (more & 8) {
      job.set_min_members(input_.pick(kCounts));
      job.set_gather_ms(input_.pick(kTimes));
    }
    if (more & 16) request.set_deadline_ms(input_.pick(kTimes));
    if (more & 32) request.set_liveness_ms(input_.pick(kTimes));
    if (more & 64) {
      const uint8_t odd = input_.byte();
      if (odd & 1) request.set_host(input_.bytes());
      if (odd & 2) *request.mutable_dataplane() = structured_capabilities();
      if (odd & 4) *job.mutable_needs() = structured_capabilities();
      if (odd & 8) job.set_verify(input_.pick(kCounts));
      if (odd & 16) request.set_completed(input_.pick(kIds));
      if (odd & 32) request.set_shard_job(input_.pick(kSlotCounts));
      if (odd & 64) request.set_shard_slots(input_.pick(kSlotCounts));
      if (odd & 128) request.set_shard_payload_bytes(input_.pick(kSlotCounts));
      request.set_multicast(odd & 3);
      for (int i = 0; i < (odd & 5); ++i) {
        JobOption& option = *job.add_options();
        option.set_name(input_.bytes());
        option.set_value(input_.bytes());
      }
    }
    if (more & 128) {
      const uint8_t odd = input_.byte();
      request.set_rack(odd & 1 ? input_.bytes() : "rack");
      request.set_origin(odd & 2 ? input_.bytes() : "10.0.0.7");
      request.set_rack_payload_bytes(odd & 4 ? input_.pick(kCounts) : 1440);
      request.set_rack_slots(odd & 8 ? input_.pick(kSlotCounts) : 300);
      request.set_rack_stripes(odd & 16 ? input_.pick(kCounts) : 2);
      if (odd & 32) request.set_shard_endpoint(input_.bytes());
      if (odd & 64) job.set_mtu(input_.pick(kSlotCounts));
      if (odd & 128) request.set_rank(input_.pick(kCounts));
    }
    return request;
  }

  // All ranks of a job, which differ in nothing but their ranks or, for some, in what they declare.
  void join_whole_job() {
    control::JoinRequest request = structured_join();
    const uint32_t ranks = 1 + input_.byte() % NETSUM_MAX_MEMBERS;
    request.mutable_job()->set_world_size(ranks);
    const int differs = input_.byte();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      request.set_rank(rank);
      if (rank == static_cast<uint32_t>(differs)) *request.mutable_sharing() = structured_sharing();
      join(request);
    }
  }

  bool join(const control::JoinRequest& message, bool others = false) {
    // Nobody guesses 88 random bits.
    if (!others && message.job().token() == kOthersToken) return false;
    static const char* const kPeers[] = {"10.0.0.1:4000", "[fd00::1]:4000"};
    Address peer;
    if (others || input_.byte() % 8 != 0) peer = *Address::parse(kPeers[others ? 0 : input_.byte() % 2]);
    const MemberRequest request = to_member_request(message, peer);
    const Result<MemberId> id = table_->join(now_us_, request);
    if (!id.ok()) {
      require_text(id.status().message());
      return false;
    }
    require(!members_.contains(*id));
    members_[*id] = {
        {request.job.name(), request.job.token(), request.job.aggregator_token(), request.rank, *id},
        {},
        false,
        others};
    return true;
  }

  // One of those that are not the others', or nothing.
  MemberId some_member() {
    std::vector<MemberId> ids;
    for (const auto& [id, member] : members_)
      if (!member.others) ids.push_back(id);
    return ids.empty() ? 0 : ids[input_.byte() % ids.size()];
  }

  MemberClaim some_claim() {
    const MemberId id = some_member();
    const uint8_t how = input_.byte();
    if (id == 0 || how == 255) {
      control::MemberRequest message;
      (void)message.ParseFromString(input_.bytes());
      return to_member_claim(message);
    }
    MemberClaim claim = members_.at(id).claim;
    if (how & 1) claim.rank = input_.byte();  // also that after a renumbering
    if (how == 2) claim.token += "?";
    if (how == 4) claim.job = input_.bytes();
    return claim;
  }

  void step() {
    switch (input_.byte() % 12) {
      case 0:
        join_whole_job();
        return;
      case 1:
      case 2:
        join(structured_join());
        return;
      case 3: {
        control::JoinRequest message;
        if (message.ParseFromString(input_.bytes())) join(message);
        return;
      }
      case 4:
      case 5:
        return require_text(table_->leave(some_claim()).message());
      case 6: {
        control::Event::Failed failed;
        (void)failed.ParseFromString(input_.bytes());
        return require_text(table_->report(some_claim(), from_failed(failed)).message());
      }
      case 7:
        return require_text(table_->alive(now_us_, some_claim()).status().message());
      case 8: {
        const MemberId id = some_member();
        table_->stream_ended(id);
        members_.erase(id);
        return;
      }
      case 9:
        now_us_ += int64_t{1} << input_.byte() % 36;
        return;
      default: {
        control::Ready ready;
        if (!ready.ParseFromString(input_.bytes())) return;
        const Result<Membership> membership = to_membership(ready, *Address::parse("10.0.0.9:5151"));
        if (!membership.ok()) return require_text(membership.status().message());
        require(!membership->stripes.empty() && membership->payload_bytes % 32 == 0);
      }
    }
  }

  // As the service does.
  void after() {
    take_events();
    for (int ticks = 0; table_->next_deadline_us().value_or(now_us_ + 1) <= now_us_; ++ticks) {
      require(ticks < 100);  // else it would never sleep
      table_->on_tick(now_us_);
      take_events();
    }
    for (const AggregatorEvent& note : table_->take_notes())
      for (const std::string& text : {note.job, note.host, note.reason}) require_text(text);
    const std::vector<AggregatorJobStatus> jobs = table_->jobs(now_us_);
    for (const AggregatorJobStatus& job : jobs) {
      for (const std::string& text : {job.name, job.state, job.delivery, job.verify}) require_text(text);
      require_topology(job.name);
      for (const std::string& host : job.hosts) require_text(host);
    }
    require(jobs.front().name == "others" && (others_leave_ || jobs.front().state == "running"));
  }

  void require_topology(const std::string& job) {
    const Result<control::TopologyReply> topology = table_->topology(job);
    if (!topology.ok()) return require_text(topology.status().message());
    require(topology->job() == job && topology->links_size() >= 1);
    for (const PlaceInfo& place : topology->places()) require_tree(place);
  }

  void require_tree(const PlaceInfo& place) {
    require_text(place.address());
    require(place.ranks() + static_cast<uint32_t>(place.below_size()) >= 1);
    for (const PlaceInfo& lower : place.below()) require_tree(lower);
  }

  void take_events() {
    for (const JobEvent& event : table_->take_events()) {
      const auto found = members_.find(event.to);
      if (found == members_.end()) continue;  // its stream has ended
      Member& member = found->second;
      require(!member.over);
      require_text(event.failure.message());
      control::Event message;
      switch (event.kind) {
        case JobEvent::Kind::kJoined:
          message.mutable_joined();
          break;
        case JobEvent::Kind::kReady:
          message.mutable_ready();
          if (!member.others) succession_ids_.push_back(event.grant->succession_id);
          break;
        case JobEvent::Kind::kDraining:
          message.mutable_draining();
          break;
        case JobEvent::Kind::kFailed:
        case JobEvent::Kind::kEnd:
          require(!member.others || others_leave_);
          member.over = true;
          continue;
      }
      require(member.queue.push(std::move(message)));
    }
  }

  void finish() {
    for (auto member = members_.begin(); member != members_.end();) {
      if (member->second.others) {
        ++member;
        continue;
      }
      table_->stream_ended(member->first);
      member = members_.erase(member);
      after();
    }
    now_us_ += kLongAfterUs;  // jobs that were created ahead
    after();
    require(table_->jobs(now_us_).size() == 1);
    // The others run as they did, and the rest of the aggregator is free: as many jobs fit as before.
    if (!shards_) require(books_.free_slots() == kSlots - 64 - kScaleSlots);
    for (int job = 1; job < kMaxJobs; ++job) require(join(good("after " + std::to_string(job), 1, 0)));
    after();
    require(table_->jobs(now_us_).size() == kMaxJobs);
    others_leave_ = true;
    for (const auto& [id, member] : members_)
      if (member.others) require(table_->leave(member.claim).ok());
    take_events();
    for (const auto& [id, member] : members_) table_->stream_ended(id);
    require(table_->jobs(now_us_).empty());
    if (!shards_) require(books_.free_slots() == kSlots);
  }

  Input input_;
  Rng rng_{1};
  Books books_;
  MemberShards member_shards_;
  std::optional<JobTable> table_;
  bool shards_ = false;
  bool others_leave_ = false;
  std::string token_;
  int64_t now_us_ = 0;
  std::map<MemberId, Member> members_;  // whose streams have not ended
  std::vector<uint64_t> succession_ids_;
};

}  // namespace
}  // namespace netsum

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  netsum::Run(netsum::Input(data, size)).run();
  return 0;
}
