#include "emulate/ghost/crew.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "emulate/ghost/operation.h"
#include "session/network_path.h"
#include "session/rack_membership.h"
#include "src/base/assert.h"
#include "src/base/clock.h"
#include "src/net/udp/udp_io.h"
#include "src/program/values.h"
#include "wire/packet.h"

namespace netsum::ghost {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

// Before something of a program is due, the thread polls instead of sleeping.
constexpr int64_t kSpinUs = 50;
// How long the thread sleeps at most, so that it notices a failure of the job.
constexpr int64_t kLookUs = 20'000;
// How long the thread sleeps at most while ghosts wait for a submission of the leader.
constexpr int64_t kFollowUs = 50;
// How long ghosts go on without a rank that has left: what it has taken part in may not have ended for them yet.
constexpr seconds kAfterLeaving{1};
// A member with so many packets in flight waits for none of them in particular, and a round trip of 16 pauses hides one.
constexpr int64_t kManyInFlight = 32, kPauseUs = 100, kPausesOfRoundTrip = 16;
// Bursts of one ghost that are handled before the others get their turn.
constexpr int kBurstsInTurn = 8;
// Packets that are sent before programs get their turn: a system call takes so long.
constexpr size_t kPacketsInTurn = 22;
// Of the first operation, which connects the ranks. Programs have smaller numbers.
constexpr uint64_t kConnectId = UINT64_MAX - 1;

Status no_epoll() {
  return {ErrorCode::kResourceExhausted,
          std::string("cannot watch sockets by epoll: ") + std::strerror(errno)};
}

Status check(const CrewOptions& options) {
  if (options.communicator.aggregators.empty())
    return {ErrorCode::kUnsupported, "ghosts need an aggregator: they have no embedded shards"};
  if (options.communicator.verify != Verify::kPacket)
    return {ErrorCode::kUnsupported, "ghosts send no tags of sums: unset NETSUM_VERIFY"};
  for (const Ghost& ghost : options.ghosts) {
    if (options.rack_size > 1 && options.contributions == Contributions::kRecorded)
      return {ErrorCode::kUnsupported, "ghost racks have no recorded values: leave them out"};
    if (options.rack_size > 1 && ghost.groups.size() > 1)
      return {ErrorCode::kUnsupported,
              "ghost racks take part in the group of all ranks alone: leave them out"};
    for (const program::Step* step : ghost.steps) {
      for (const program::Operation& operation : step->operations) {
        const Status status = check_supported(operation);
        if (!status.ok())
          return {status.code(), "step " + std::to_string(step->number) + ": " + status.message()};
      }
    }
  }
  return {};
}

}  // namespace

Crew::Crew(CrewOptions options) : options_(std::move(options)), burst_(WorkerCore::kBurst) {
  const std::vector<int> all = all_ranks(options_.communicator.world_size);
  for (Ghost& ghost : options_.ghosts) {
    if (ghost.groups.empty()) ghost.groups = {{.id = 0, .ranks = all, .job = options_.communicator.job}};
    players_.emplace_back(ghost.steps, ghost.knobs);
    if (options_.pace) players_.back().follow(ghost.groups.front().id);
    contributions_.emplace_back();
    if (options_.contributions == Contributions::kZeros) continue;
    const bool noise = options_.contributions == Contributions::kNoise;
    const bool recorded = options_.contributions == Contributions::kRecorded;
    for (const program::Step* step : ghost.steps) {
      for (const program::Operation& operation : step->operations) {
        const uint64_t number = contributions_.back().size();
        const uint64_t seed =
            netsum_mix64(netsum_mix64(options_.seed + static_cast<uint64_t>(ghost.rank)) + number);
        contributions_.back().push_back({.scales = operation.scales, .noise = noise, .seed = seed});
        const auto values = options_.values.find(&operation);
        if (!recorded || values == options_.values.end()) continue;
        const auto group = std::find_if(ghost.groups.begin(), ghost.groups.end(),
                                        [&](const GroupJob& one) { return one.id == operation.group; });
        NETSUM_ASSERT(group != ghost.groups.end());
        Contribution& own = contributions_.back().back();
        const auto [begin, count] = program::contributed_by(operation, group->rank_of(ghost.rank),
                                                            static_cast<int>(group->ranks.size()));
        own.values = values->second;
        // Of what moves, bytes are the elements.
        own.values_begin = begin * (program::reduces(operation.collective) ? 1 : size_of(operation.type));
      }
    }
  }
  const Ghost& first = options_.ghosts.front();
  of_all_ = operations_of(first.steps, first.groups.front().id);
  add_members();
}

// The client's threads call on_failure(), so the memberships end first.
Crew::~Crew() {
  for (const auto& member : members_)
    if (member->joining.joinable()) member->joining.join();
  for (const auto& member : members_) member->memberships.clear();
}

void Crew::add_members() {
  const std::vector<Ghost>& ghosts = options_.ghosts;
  member_of_.resize(ghosts.size());
  for (size_t i = 0; i < ghosts.size(); ++i) {
    const bool is_next = i > 0 && ghosts[i].rank == ghosts[i - 1].rank + 1;
    const bool in_rack = is_next && members_.back()->ghosts.size() < static_cast<size_t>(options_.rack_size);
    if (!in_rack) {
      members_.push_back(std::make_unique<Member>());
      members_.back()->group = &ghosts[i].groups.front();
    }
    members_.back()->ghosts.push_back(i);
    member_of_[i].emplace_back(ghosts[i].groups.front().id, members_.back().get());
  }
  main_members_ = members_.size();
  for (size_t i = 0; i < ghosts.size(); ++i) {
    for (size_t k = 1; k < ghosts[i].groups.size(); ++k) {
      members_.push_back(std::make_unique<Member>());
      members_.back()->group = &ghosts[i].groups[k];
      members_.back()->ghosts = {i};
      member_of_[i].emplace_back(ghosts[i].groups[k].id, members_.back().get());
    }
  }
}

Result<std::unique_ptr<Crew>> Crew::join(CrewOptions options) {
  if (const Status status = check(options); !status.ok()) return status;
  std::unique_ptr<Crew> crew(new Crew(std::move(options)));
  crew->epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!crew->epoll_.valid()) return no_epoll();
  if (const Status status = crew->join_all(); !status.ok()) return status;
  return crew;
}

// Waits for all ranks of the group.
Status Crew::join(Member* member, steady_clock::time_point deadline) {
  const Ghost& first = options_.ghosts[member->ghosts.front()];
  const bool is_main = member->group->job == options_.communicator.job;
  if (is_main) {
    milliseconds latest{0};
    for (const size_t ghost : member->ghosts) latest = std::max(latest, options_.ghosts[ghost].joins_after);
    std::this_thread::sleep_for(latest);
  }
  CommunicatorOptions options = options_.communicator;
  options.job = member->group->job;
  options.rank = member->group->rank_of(first.rank);
  options.world_size = static_cast<int>(member->group->ranks.size());
  JobMember of;
  of.job = options.job;
  of.rank = options.rank;
  of.world_size = options.world_size;
  of.on_failure = [this](const Status& status) { on_failure(status); };
  if (is_main) of.on_left = [this](int rank) { on_left(rank); };
  if (options_.rack_size > 1)
    return join_job_for_rack(of, static_cast<int>(member->ghosts.size()),
                             "ghosts " + std::to_string(first.rank), options, deadline, &member->memberships);
  member->memberships.resize(1);
  return join_job(of, options, nullptr, deadline, &member->memberships.front());
}

Status Crew::join_all() {
  const auto deadline = steady_clock::now() + options_.communicator.connect_timeout;
  std::vector<Status> joined(main_members_);
  std::vector<std::thread> threads;  // which then end
  for (size_t i = 0; i < main_members_; ++i)
    threads.emplace_back([this, i, deadline, &joined] { joined[i] = join(members_[i].get(), deadline); });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : joined)
    if (!status.ok()) return status;
  for (size_t i = 0; i < main_members_; ++i)
    if (const Status status = open(i); !status.ok()) return status;
  // As every rank: connect, and sum one element.
  const auto connected = [this] {
    return std::all_of(members_.begin(), members_.begin() + static_cast<std::ptrdiff_t>(main_members_),
                       [](const auto& one) { return one->core->connected(); });
  };
  const int64_t deadline_us = monotonic_us() + time_left(deadline).count() * 1000;
  bool in_time = true;
  const auto within = [&](const std::function<bool()>& done) {
    return drive([&] {
      in_time = monotonic_us() < deadline_us;
      return done() || !in_time;
    });
  };
  if (const Status status = within(connected); !status.ok()) return status;
  for (size_t i = 0; i < main_members_; ++i) {
    if (!members_[i]->core->connected())
      return {ErrorCode::kTimeout, members_[i]->core->not_connected_reason()};
    connect(members_[i].get(), deadline_us);
  }
  join_further_groups();
  return within([this] {
    return std::all_of(members_.begin(), members_.begin() + static_cast<std::ptrdiff_t>(main_members_),
                       [](const auto& one) { return one->core->idle(); });
  });
}

void Crew::connect(Member* member, int64_t deadline_us) {
  OperationSpec spec = spec_of({.type = DataType::kInt32, .count = 1}, 0, 1);
  spec.role.rank = member->memberships.front().front()->rank();
  spec.deadline_us = deadline_us;
  member->core->submit(kConnectId, std::move(spec));
  for (auto& [id, waiting] : member->waiting) member->core->submit(id, std::move(waiting));
  member->waiting.clear();
  member->ready = true;
  member->due_us = 0;
}

void Crew::join_further_groups() {
  const auto deadline = steady_clock::now() + options_.communicator.timeout;
  for (size_t i = main_members_; i < members_.size(); ++i) {
    Member* const member = members_[i].get();
    member->joining = std::thread([this, member, deadline] {
      if (const Status status = join(member, deadline); status.ok())
        member->joined.store(true);
      else
        on_failure(status);
    });
  }
  all_open_ = members_.size() == main_members_;
}

Status Crew::open_joined() {
  all_open_ = true;
  for (size_t i = main_members_; i < members_.size(); ++i) {
    Member* const member = members_[i].get();
    if (member->ready) continue;
    all_open_ = false;
    if (!member->joined.load()) continue;
    if (member->core == nullptr) {
      if (const Status status = open(i); !status.ok()) return status;
    } else if (member->core->connected()) {
      connect(member, monotonic_us() + options_.communicator.timeout.count() * 1000);
    }
  }
  return {};
}

Status Crew::open(size_t number) {
  Member& member = *members_[number];
  const int first = options_.ghosts[member.ghosts.front()].rank;
  CommunicatorOptions options = options_.communicator;
  options.job = member.group->job;
  options.rank = member.group->rank_of(first);
  options.world_size = static_cast<int>(member.group->ranks.size());
  WorkerOptions unconnected;
  unconnected.rank = options.rank;
  unconnected.world_size = options.world_size;
  unconnected.encoding = {.lane_bits = options.lane_bits,
                          .fixed_floats = options.numerics == Numerics::kFixed};
  std::vector<JobStripe> stripes;
  const Result<WorkerOptions> worker =
      worker_of(member.memberships.front(), std::move(unconnected), 0, options, &stripes);
  if (!worker.ok()) return worker.status();
  if (std::any_of(worker->stripes.begin(), worker->stripes.end(),
                  [](const StripeOptions& stripe) { return stripe.local; }))
    return {ErrorCode::kUnsupported,
            "the job's plan gives ghosts embedded shards, which they do not have: set "
            "NETSUM_SHARES=off"};
  member.epoll = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = number}};
  if (!member.epoll.valid() || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, member.epoll.get(), &event) != 0)
    return no_epoll();
  const StripeOptions& of_first = worker->stripes.front();
  const Status opened = options_.in_place_of(first, [&]() -> Status {
    auto groups = multicast_groups(worker->stripes);
    if (!groups.ok()) return groups.status();
    UdpIoOptions udp;
    udp.bind.family = of_first.address.family;
    udp.max_packet = NETSUM_HEADER_BYTES + of_first.payload_bytes;
    udp.multicast_groups = std::move(groups).value();
    udp.epoll = member.epoll.get();
    auto io = open_udp(udp);
    if (!io.ok()) return io.status();
    member.io = std::move(io).value();
    return {};
  });
  if (!opened.ok()) return opened;
  member.core = std::make_unique<WorkerCore>(*worker);
  return {};
}

uint64_t Crew::bytes_sent(size_t ghost) const {
  uint64_t bytes = 0;
  for (const auto& [id, member] : member_of_[ghost])
    if (member->ghosts.front() == ghost && member->io) bytes += member->io->counters().bytes_sent.get();
  return bytes;
}

uint64_t Crew::bytes_received(size_t ghost) const {
  uint64_t bytes = 0;
  for (const auto& [id, member] : member_of_[ghost])
    if (member->ghosts.front() == ghost && member->io) bytes += member->io->counters().bytes_received.get();
  return bytes;
}

void Crew::on_failure(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = status;
}

void Crew::on_left(int rank) {
  const std::lock_guard lock(mutex_);
  if (left_.ok()) left_ = {ErrorCode::kPeerLost, "rank " + std::to_string(rank) + " has left the job", rank};
  left_at_ = steady_clock::now();
}

Status Crew::failure() {
  const std::lock_guard lock(mutex_);
  const bool others_left = !left_.ok() && steady_clock::now() - left_at_ > kAfterLeaving;
  if (!failure_.ok()) return failure_;
  if (const Status status = missing_group(others_left); !status.ok()) return status;
  return others_left ? left_ : Status();
}

Status Crew::missing_group(bool others_left) {
  if (all_open_) return {};
  for (size_t i = main_members_; i < members_.size(); ++i) {
    const Member& member = *members_[i];
    if (member.ready || member.waiting.empty()) continue;
    const auto waited = std::chrono::duration_cast<seconds>(steady_clock::now() - member.waiting_since);
    if (!others_left && waited < options_.communicator.connect_timeout) continue;
    const size_t ghost = member.ghosts.front();
    std::string ranks;
    for (const int rank : member.group->ranks) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
    return {ErrorCode::kMismatch,
            "ghost " + std::to_string(options_.ghosts[ghost].rank) + " has a call of the group of ranks " +
                ranks + " in step " + std::to_string(players_[ghost].step()) + " of its record, but " +
                (others_left
                     ? std::string("the script has ended without making that group")
                     : "the script has not made that group for " + std::to_string(waited.count()) + " s") +
                ": record the script that is run"};
  }
  return {};
}

int64_t pause_us(std::span<const Flight> members) {
  bool any = false;
  for (const Flight& one : members) {
    if (one.packets <= 0) continue;
    if (one.packets < kManyInFlight || one.round_trip_us < kPausesOfRoundTrip * kPauseUs) return 0;
    any = true;
  }
  return any ? kPauseUs : 0;
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

Status Crew::run() {
  plays_ = true;
  soonest_ns_ = now_ns();
  for (Player& player : players_) player.start(soonest_ns_);
  for (const auto& member : members_) member->due_us = 0;
  return drive([this] {
    return stopped_.load() ||
           std::all_of(players_.begin(), players_.end(), [](const Player& player) { return player.ended(); });
  });
}

Status Crew::drive(const std::function<bool()>& done) {
  std::vector<bool> ready(members_.size(), true);
  while (!done()) {
    if (!all_open_)
      if (const Status status = open_joined(); !status.ok()) return status;
    play_due();
    int64_t next_us = INT64_MAX;
    for (size_t i = 0; i < members_.size(); ++i) {
      Member& member = *members_[i];
      if (member.core == nullptr) continue;
      if (ready[i] || member.due_us <= monotonic_us()) {
        if (const Status status = drive_one(&member, ready[i]); !status.ok()) return status;
      }
    }
    for (const auto& one : members_)
      if (one->core != nullptr) next_us = std::min(next_us, one->due_us);
    if (plays_ && options_.pace && options_.pace->number() < of_all_.size())
      next_us = std::min(next_us, monotonic_us() + kFollowUs);
    if (plays_ && soonest_ns_ != INT64_MAX) next_us = std::min(next_us, soonest_ns_ / 1000 - kSpinUs);
    if (const Status status = failure(); !status.ok()) return status;
    if (plays_ && options_.on_step) {
      for (; told_ < players_.front().step(); ++told_) options_.on_step(told_);
    }
    wait(next_us, &ready);
  }
  return {};
}

// Each packet that is sent is answered by one.
Flight Crew::flight_of(Member* member) {
  Flight flight;
  const WorkerCore& core = *member->core;
  for (size_t i = 0; i < core.stripe_count(); ++i) {
    const StripeCounters& counters = core.stripe(i).counters();
    flight.packets += static_cast<int64_t>(counters.packets_sent.get()) -
                      static_cast<int64_t>(counters.packets_received.get());
    flight.round_trip_us = std::max(flight.round_trip_us, static_cast<int64_t>(counters.srtt_us.get()));
  }
  if (core.idle()) member->unanswered = flight.packets;
  flight.packets -= member->unanswered;
  return flight;
}

void Crew::wait(int64_t until_us, std::vector<bool>* ready) {
  flights_.clear();
  for (const auto& member : members_)
    if (member->core != nullptr) flights_.push_back(flight_of(member.get()));
  if (const int64_t pause = std::min(pause_us(flights_), until_us - monotonic_us()); pause > 0)
    std::this_thread::sleep_for(std::chrono::microseconds(pause));
  const int64_t left_us = std::clamp<int64_t>(until_us - monotonic_us(), 0, kLookUs);
  epoll_event events[64];
  const timespec limit{left_us / 1'000'000, left_us % 1'000'000 * 1000};
  const int count = epoll_pwait2(epoll_.get(), events, 64, &limit, nullptr);
  ready->assign(ready->size(), false);
  for (int i = 0; i < count; ++i) (*ready)[events[i].data.u64] = true;
}

// The leader submits an operation when it has computed until there: no ghost can submit it before it knows by how much longer that
// takes. One that it does not hold up computes less than the leader, on which the operation waits anyway.
void Crew::follow_leader() {
  const std::vector<int64_t>& ends_ns = players_.front().done_ns();
  const auto done_ns = [&](uint64_t number) {
    const int64_t ns = number < of_all_.size() ? ends_ns[of_all_[number]] : INT64_MAX;
    return ns == INT64_MAX ? 0 : ns;
  };
  while (options_.pace->number() < of_all_.size()) {
    const std::optional<double> factor = options_.pace->next(options_.leader_submitted_ns, done_ns);
    if (!factor) return;
    for (Player& player : players_) player.set_factor(*factor, now_ns());
    soonest_ns_ = 0;
  }
}

void Crew::play_due() {
  if (plays_ && options_.pace) follow_leader();
  if (!plays_ || soonest_ns_ > now_ns()) return;
  const int64_t now = now_ns();
  soonest_ns_ = INT64_MAX;
  for (size_t i = 0; i < players_.size(); ++i) {
    if (players_[i].next_ns() <= now) play(i);
    soonest_ns_ = std::min(soonest_ns_, players_[i].next_ns());
  }
}

void Crew::play(size_t ghost) {
  submissions_.clear();
  players_[ghost].advance(now_ns(), &submissions_);
  for (const Player::Submission& one : submissions_) submit(ghost, one);
  if (players_[ghost].crashes()) options_.on_crash(options_.ghosts[ghost].rank);
}

void Crew::submit(size_t ghost, const Player::Submission& one) {
  const auto found = std::find_if(member_of_[ghost].begin(), member_of_[ghost].end(),
                                  [&](const auto& entry) { return entry.first == one.operation->group; });
  NETSUM_ASSERT(found != member_of_[ghost].end());
  Member& member = *found->second;
  if (member.ghosts.size() > 1) {
    if (++member.submitted[one.id] < member.ghosts.size()) return;
    member.submitted.erase(one.id);
  }
  const int first = options_.ghosts[member.ghosts.front()].rank;
  OperationSpec spec =
      spec_of(*one.operation, member.group->rank_of(first), static_cast<int>(member.group->ranks.size()),
              static_cast<int>(member.ghosts.size()),
              contributions_[ghost].empty() ? nullptr : &contributions_[member.ghosts.front()][one.id]);
  spec.deadline_us = monotonic_us() + options_.communicator.timeout.count() * 1000;
  if (member.ready) {
    member.core->submit(one.id, std::move(spec));
  } else {
    if (member.waiting.empty()) member.waiting_since = steady_clock::now();
    member.waiting.emplace_back(one.id, std::move(spec));
  }
  member.due_us = 0;
}

// In parts, so that no other ghost is late.
void Crew::send(Member* member, std::span<const OutPacket> packets) {
  while (!packets.empty()) {
    const size_t count = std::min(packets.size(), kPacketsInTurn);
    member->io->send(packets.first(count));
    packets = packets.subspan(count);
    play_due();
  }
}

Status Crew::drive_one(Member* member, bool ready) {
  WorkerCore& core = *member->core;
  int64_t now_us = monotonic_us();
  bool drained = !ready;
  for (int turn = 0; !drained; ++turn) {
    const size_t count = member->io->receive(burst_);
    for (size_t i = 0; i < count; ++i) core.on_packet(now_us, burst_[i]);
    drained = count == 0;
    play_due();
    now_us = monotonic_us();
    if (turn < kBurstsInTurn) continue;
    // The window may be open again.
    if (const auto due = core.collect(now_us); !due.empty()) send(member, due);
  }
  if (core.next_tick_us() <= now_us) core.on_tick(now_us);
  if (const Status status = take_completions(member); !status.ok()) return status;
  play_due();
  // One burst, so that no other ghost is late: the rest follows in the next turn.
  const auto due = core.collect(now_us);
  const bool more = !due.empty();
  member->due_us = more ? 0 : core.next_tick_us();
  if (more) send(member, due);
  // An operation without elements ends at once.
  if (const Status status = take_completions(member); !status.ok()) return status;
  play_due();
  return core.status();
}

Status Crew::take_completions(Member* member) {
  completions_.clear();
  member->core->take_completions(&completions_);
  for (const WorkerCore::Completion& one : completions_) {
    if (!one.status.ok()) return one.status;
    if (one.id == kConnectId) continue;
    for (const size_t ghost : member->ghosts) {
      players_[ghost].complete(one.id, now_ns());
      soonest_ns_ = std::min(soonest_ns_, players_[ghost].next_ns());
    }
  }
  return {};
}

}  // namespace netsum::ghost
