#include "session/session_factory.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <utility>

#include "netsum/regroup.h"
#include "src/base/thread.h"
#include "src/base/timeout.h"
#include "src/job/plan_token.h"

namespace netsum {
namespace {

// An aggregator that lives has answered by then. The next session can be there, as another job.
constexpr std::chrono::milliseconds kEndPatience{100};

}  // namespace

bool may_meet_at_a_rank(const CommunicatorOptions& options) {
  const auto& fallbacks = options.fallback_aggregators;
  const bool may_sum = options.on_failure == FailurePolicy::kFailover &&
                       std::find(fallbacks.begin(), fallbacks.end(), kHosts) != fallbacks.end();
  return options.aggregators.empty() || may_sum || options.when_full == WhenFull::kHosts;
}

SessionFactory::SessionFactory(const CommunicatorOptions& options)
    : options_(options), rank_(options.rank), world_size_(options.world_size) {}

Status SessionFactory::prepare() {
  if (!options_.trace_path.empty()) {
    auto trace = TraceLog::open(options_.trace_path, options_.job, options_.rank);
    if (!trace.ok()) return trace.status();
    trace_ = std::move(trace).value();
  }
  if (!options_.metrics_address.empty()) {
    auto metrics = MetricsEndpoint::open(options_.metrics_address);
    if (!metrics.ok()) return metrics.status();
    metrics_ = std::move(metrics).value();
    options_.metrics_address = metrics_->address();
  }
  // A shard that may be needed later is created now, because its address must be known before an aggregator is lost.
  const bool may_meet = may_meet_at_a_rank(options_);
  if (!may_meet && !sums_beside_aggregators()) return Status();
  auto shard = Shard::start(options_, may_meet && options_.rank == 0);
  if (!shard.ok()) return shard.status();
  shard_ = std::move(shard).value();
  if (!shard_->hosts_root()) shard_->set_root_rank(0);
  return Status();
}

SessionOptions SessionFactory::session_options() const {
  SessionOptions session;
  session.user = options_;
  session.trace = trace_;
  session.wrong_sums = wrong_sums_;
  session.shard = shard_for(options_.aggregators);
  return session;
}

std::shared_ptr<Shard> SessionFactory::shard_for(const std::vector<std::string>& aggregators) const {
  return aggregators.empty() || sums_beside_aggregators() ? shard_ : nullptr;
}

// A single rank has nothing to share, and more than a shard serves are members by a hierarchy, which has no plan. A plan of trees
// has what ranks sum in it.
bool SessionFactory::sums_beside_aggregators() const {
  const bool has_trees = without_plan(options_.aggregator_token) != options_.aggregator_token;
  return options_.shares != Shares::kOff && world_size_ > 1 && world_size_ <= kMaxMembers && !has_trees;
}

Result<std::unique_ptr<Session>> SessionFactory::open(SessionOptions options) {
  auto session = Session::open(std::move(options));
  if (!session.ok()) return session;
  former_ranks_ = (*session)->former_ranks();
  rank_ = options_.rank = (*session)->rank();
  world_size_ = options_.world_size = (*session)->world_size();
  if (former_ranks_.empty()) {
    former_ranks_.resize(static_cast<size_t>(options_.world_size));
    std::iota(former_ranks_.begin(), former_ranks_.end(), 0);
  } else if (shard_ != nullptr && !shard_->hosts_root()) {
    shard_->set_root_rank(RegroupRule::new_rank(former_ranks_, shard_->root_rank()));
  }
  return session;
}

Result<std::unique_ptr<Session>> SessionFactory::connect(std::function<void(const Status&)> on_failure) {
  SessionOptions session = session_options();
  session.join_deadline = session.deadline = Clock::now() + options_.connect_timeout;
  session.on_failure = std::move(on_failure);
  auto opened = open_first(session);
  const bool full = !opened.ok() && opened.status().code() == ErrorCode::kResourceExhausted;
  if (!full || options_.aggregators.empty() || options_.when_full != WhenFull::kHosts) return opened;
  options_.aggregators.clear();  // for good: ranks that regroup meet at the shards
  session.user = options_;
  session.shard = shard_;
  session.on_the_hosts_because = opened.status().message();
  return open_first(std::move(session));
}

Result<std::unique_ptr<Session>> SessionFactory::open_first(SessionOptions options) {
  auto session = open(std::move(options));
  if (session.ok()) succession_id_ = (*session)->succession_id();
  return session;
}

SessionFactory::~SessionFactory() {
  for (std::thread& thread : ending_) thread.join();
}

void SessionFactory::end(std::unique_ptr<Session> session, const Status& why) {
  ended_by_ = why;
  struct Ending {
    std::mutex mutex;
    std::condition_variable changed;
    size_t left = 0;
  };
  const auto ending = std::make_shared<Ending>();
  std::vector<std::thread> threads;
  for (auto& membership : session->release()) {
    const auto one = std::make_shared<std::unique_ptr<ControlClient>>(std::move(membership));
    {
      const std::lock_guard lock(ending->mutex);
      ++ending->left;
    }
    // If there are several aggregators, some of them and their members may not know of the failure yet.
    const auto end_one = [ending, why, one] {
      (*one)->report_failure(why);
      one->reset();
      const std::lock_guard lock(ending->mutex);
      --ending->left;
      ending->changed.notify_all();
    };
    std::thread thread;
    if (start_thread("to leave a job", end_one, &thread).ok())
      threads.push_back(std::move(thread));
    else
      end_one();
  }
  std::unique_lock lock(ending->mutex);
  const bool ended = ending->changed.wait_for(lock, kEndPatience, [&] { return ending->left == 0; });
  lock.unlock();
  for (std::thread& thread : threads) {
    if (ended)
      thread.join();
    else
      ending_.push_back(std::move(thread));
  }
}

Status SessionFactory::move_root(const RegroupOptions& options) {
  if (options.root.empty()) {
    const bool root_is_gone = !shard_->hosts_root() && ended_by_.code() == ErrorCode::kPeerLost &&
                              ended_by_.rank() == shard_->root_rank();
    if (!root_is_gone || options.who == RegroupOptions::Who::kAll) return Status();
    return {
        ErrorCode::kUnreachable,
        "rank " + std::to_string(shard_->root_rank()) +
            ", where the ranks met, is gone: set the same new address on all ranks (RegroupOptions::root)",
        shard_->root_rank()};
  }
  shard_.reset();
  options_.root = options.root;
  auto shard = Shard::start(options_, options.hosts_root);
  if (!shard.ok()) return shard.status();
  shard_ = std::move(shard).value();
  return Status();
}

Result<std::unique_ptr<Session>> SessionFactory::regroup(const RegroupOptions& options,
                                                         std::function<void(const Status&)> on_failure) {
  if (options.gather.count() < 0)
    return Status(ErrorCode::kInvalidArgument, "regroup: gather must not be negative");
  const auto rule = RegroupRule::make(options_.world_size, options.min_members, bounded(options.gather));
  if (!rule.ok()) return rule.status();
  if (options_.aggregators.empty())
    if (Status status = move_root(options); !status.ok()) return status;
  SessionOptions session = session_options();
  if (options.who == RegroupOptions::Who::kSurvivors) {
    session.succession.succeeds = succession_id_;
    session.succession.min_members = rule->min_members();
    session.succession.gather = bounded(options.gather);
  }
  session.join_deadline = session.deadline =
      Clock::now() + (options.timeout.count() > 0 ? bounded(options.timeout) : options_.connect_timeout);
  session.on_failure = std::move(on_failure);
  return open_first(std::move(session));
}

Regrouped SessionFactory::regrouped() const {
  return {options_.rank, options_.world_size, former_ranks_};
}

Result<std::unique_ptr<Session>> SessionFactory::move(Move move) {
  SessionOptions session = session_options();
  session.user.aggregators = std::move(move.aggregators);
  session.shard = shard_for(session.user.aggregators);
  session.succession.succeeds = succession_id_;
  session.succession.completed = move.completed;
  session.join_deadline = move.join_deadline;
  session.deadline = move.deadline;
  session.on_failure = std::move(move.on_failure);
  session.fixed_floats = move.fixed_floats;
  session.meeting = move.meeting;
  std::vector<std::string> place = session.user.aggregators;
  auto opened = open(std::move(session));
  if (opened.ok()) options_.aggregators = std::move(place);
  return opened;
}

}  // namespace netsum
