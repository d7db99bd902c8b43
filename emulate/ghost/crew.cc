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
#include "src/base/clock.h"
#include "src/net/udp/udp_io.h"
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
// How long ghosts go on without a rank that has left: what it has taken part in may not have ended for them yet.
constexpr seconds kAfterLeaving{1};
// Bursts of one ghost that are handled before the others get their turn.
constexpr int kBurstsInTurn = 8;
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
  for (const Ghost& ghost : options_.ghosts)
    members_.push_back(std::make_unique<Member>(Player(ghost.steps, ghost.knobs)));
}

// The client's threads call on_failure(), so the memberships end first.
Crew::~Crew() {
  for (const auto& member : members_) member->memberships.clear();
}

Result<std::unique_ptr<Crew>> Crew::join(CrewOptions options) {
  if (const Status status = check(options); !status.ok()) return status;
  std::unique_ptr<Crew> crew(new Crew(std::move(options)));
  crew->epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!crew->epoll_.valid()) return no_epoll();
  if (const Status status = crew->join_all(); !status.ok()) return status;
  return crew;
}

// Joining waits for all ranks, so each ghost joins in a thread, which then ends.
Status Crew::join_all() {
  const auto deadline = steady_clock::now() + options_.communicator.connect_timeout;
  std::vector<Status> joined(members_.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < members_.size(); ++i) {
    threads.emplace_back([this, i, deadline, &joined] {
      const Ghost& ghost = options_.ghosts[i];
      std::this_thread::sleep_for(ghost.joins_after);
      CommunicatorOptions options = options_.communicator;
      options.rank = ghost.rank;
      JobMember member;
      member.job = options.job;
      member.rank = options.rank;
      member.world_size = options.world_size;
      member.on_failure = [this](const Status& status) { on_failure(status); };
      member.on_left = [this](int rank) { on_left(rank); };
      joined[i] = join_job(member, options, nullptr, deadline, &members_[i]->memberships);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : joined)
    if (!status.ok()) return status;
  for (size_t i = 0; i < members_.size(); ++i)
    if (const Status status = open(i); !status.ok()) return status;
  // As every rank: connect, and sum one element.
  const auto connected = [this] {
    return std::all_of(members_.begin(), members_.end(),
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
  if (!in_time) {
    for (const auto& one : members_)
      if (!one->core->connected()) return {ErrorCode::kTimeout, one->core->not_connected_reason()};
  }
  for (const auto& one : members_) {
    OperationSpec spec = spec_of({.type = DataType::kInt32, .count = 1}, 0, 1);
    spec.role.rank = one->memberships.front()->rank();
    spec.deadline_us = deadline_us;
    one->core->submit(kConnectId, std::move(spec));
    one->due_us = 0;
  }
  return within([this] {
    return std::all_of(members_.begin(), members_.end(), [](const auto& one) { return one->core->idle(); });
  });
}

Status Crew::open(size_t ghost) {
  Member& member = *members_[ghost];
  CommunicatorOptions options = options_.communicator;
  options.rank = options_.ghosts[ghost].rank;
  WorkerOptions unconnected;
  unconnected.rank = options.rank;
  unconnected.world_size = options.world_size;
  unconnected.encoding = {.lane_bits = options.lane_bits,
                          .fixed_floats = options.numerics == Numerics::kFixed};
  std::vector<JobStripe> stripes;
  const Result<WorkerOptions> worker =
      worker_of(member.memberships, std::move(unconnected), 0, options, &stripes);
  if (!worker.ok()) return worker.status();
  if (std::any_of(worker->stripes.begin(), worker->stripes.end(),
                  [](const StripeOptions& stripe) { return stripe.local; }))
    return {ErrorCode::kUnsupported,
            "the job's plan gives ghosts embedded shards, which they do not have: set "
            "NETSUM_SHARES=off"};
  member.epoll = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = ghost}};
  if (!member.epoll.valid() || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, member.epoll.get(), &event) != 0)
    return no_epoll();
  const StripeOptions& first = worker->stripes.front();
  const Status opened = options_.in_place_of(options.rank, [&]() -> Status {
    auto groups = multicast_groups(worker->stripes);
    if (!groups.ok()) return groups.status();
    UdpIoOptions udp;
    udp.bind.family = first.address.family;
    udp.max_packet = NETSUM_HEADER_BYTES + first.payload_bytes;
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
  if (failure_.ok() && !left_.ok() && steady_clock::now() - left_at_ > kAfterLeaving) return left_;
  return failure_;
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

Status Crew::run() {
  plays_ = true;
  const int64_t begin_ns = now_ns();
  for (const auto& member : members_) {
    member->player.start(begin_ns);
    member->due_us = 0;
  }
  return drive([this] {
    return stopped_.load() ||
           std::all_of(members_.begin(), members_.end(), [](const auto& one) { return one->player.ended(); });
  });
}

Status Crew::drive(const std::function<bool()>& done) {
  std::vector<bool> ready(members_.size(), true);
  while (!done()) {
    play_due();
    for (size_t i = 0; i < members_.size(); ++i) {
      if (ready[i] || members_[i]->due_us <= monotonic_us()) {
        if (const Status status = drive_one(i, ready[i]); !status.ok()) return status;
      }
    }
    int64_t next_us = INT64_MAX;
    for (const auto& one : members_) next_us = std::min({next_us, one->due_us, one->awake_us});
    if (const Status status = failure(); !status.ok()) return status;
    if (plays_ && options_.on_step) {
      for (; told_ < members_.front()->player.step(); ++told_) options_.on_step(told_);
    }
    wait(next_us, &ready);
  }
  return {};
}

void Crew::wait(int64_t until_us, std::vector<bool>* ready) {
  const int64_t left_us = std::clamp<int64_t>(until_us - monotonic_us(), 0, kLookUs);
  epoll_event events[64];
  const timespec limit{left_us / 1'000'000, left_us % 1'000'000 * 1000};
  const int count = epoll_pwait2(epoll_.get(), events, 64, &limit, nullptr);
  ready->assign(ready->size(), false);
  for (int i = 0; i < count; ++i) (*ready)[events[i].data.u64] = true;
}

void Crew::play_due() {
  if (!plays_) return;
  const int64_t now = now_ns();
  for (size_t i = 0; i < members_.size(); ++i)
    if (members_[i]->player.next_ns() <= now) play(i);
}

void Crew::play(size_t ghost) {
  Member& member = *members_[ghost];
  submissions_.clear();
  member.player.advance(now_ns(), &submissions_);
  for (const Player::Submission& one : submissions_) {
    OperationSpec spec =
        spec_of(*one.operation, options_.ghosts[ghost].rank, options_.communicator.world_size);
    spec.deadline_us = monotonic_us() + options_.communicator.timeout.count() * 1000;
    member.core->submit(one.id, std::move(spec));
  }
  if (member.player.crashes()) options_.on_crash(options_.ghosts[ghost].rank);
  member.due_us = 0;
}

Status Crew::drive_one(size_t ghost, bool ready) {
  Member& member = *members_[ghost];
  WorkerCore& core = *member.core;
  int64_t now_us = monotonic_us();
  bool drained = !ready;
  for (int turn = 0; !drained; ++turn) {
    const size_t count = member.io->receive(burst_);
    for (size_t i = 0; i < count; ++i) core.on_packet(now_us, burst_[i]);
    drained = count == 0;
    play_due();
    now_us = monotonic_us();
    if (turn < kBurstsInTurn) continue;
    // The window may be open again.
    if (const auto due = core.collect(now_us); !due.empty()) member.io->send(due);
  }
  if (core.next_tick_us() <= now_us) core.on_tick(now_us);
  if (const Status status = take_completions(&member); !status.ok()) return status;
  if (plays_) play(ghost);
  // One burst, so that no other ghost is late: the rest follows in the next turn.
  const auto due = core.collect(now_us);
  if (!due.empty()) member.io->send(due);
  // An operation without elements ends at once.
  if (const Status status = take_completions(&member); !status.ok()) return status;
  const int64_t play_ns = plays_ ? member.player.next_ns() : INT64_MAX;
  const int64_t play_us = play_ns == INT64_MAX ? INT64_MAX : play_ns / 1000;
  member.due_us = due.empty() ? std::min(core.next_tick_us(), play_us) : 0;
  member.awake_us = std::min(member.due_us, play_us - kSpinUs);
  play_due();
  return core.status();
}

Status Crew::take_completions(Member* member) {
  completions_.clear();
  member->core->take_completions(&completions_);
  for (const WorkerCore::Completion& one : completions_) {
    if (!one.status.ok()) return one.status;
    if (one.id != kConnectId) member->player.complete(one.id, now_ns());
  }
  return {};
}

}  // namespace netsum::ghost
