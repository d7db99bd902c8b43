#include "session/session.h"

#include <algorithm>
#include <utility>

#include "session/tensor_check.h"
#include "src/base/clock.h"
#include "src/base/quiet.h"
#include "src/base/timeout.h"
#include "src/control/control.pb.h"
#include "src/job/capabilities.h"
#include "src/job/job_spec.h"
#include "src/telemetry/worker_metrics.h"

namespace netsum {
namespace {

int64_t microseconds(std::chrono::milliseconds time) {
  return time.count() * 1000;
}

// What one rank reduces with no other is its input, bit for bit, which no encoding may change.
void move_instead(OperationSpec* spec) {
  for (TensorView& tensor : spec->tensors) tensor.count *= size_of(spec->type);
  spec->type = DataType::kByte;
  spec->op = ReduceOp::kSum;
}

}  // namespace

Session::Session(SessionOptions options)
    : options_(std::move(options.user)),
      rank_(options_.rank),
      world_size_(options_.world_size),
      succession_(options.succession),
      shard_(std::move(options.shard)),
      on_the_hosts_because_(std::move(options.on_the_hosts_because)),
      trace_(std::move(options.trace)),
      wrong_sums_(std::move(options.wrong_sums)),
      on_failure_(std::move(options.on_failure)),
      fixed_floats_(options.fixed_floats) {}

Result<std::unique_ptr<Session>> Session::open(SessionOptions options) {
  const Clock::time_point join_deadline = options.join_deadline, deadline = options.deadline;
  Meeting* const meeting = options.meeting;
  std::unique_ptr<Session> session(new Session(std::move(options)));
  const Status status = session->connect(join_deadline, deadline);
  if (meeting != nullptr) {
    const bool joined = !session->memberships_.empty();
    *meeting = {.whole = joined || session->met_.load(),
                .succession_id = joined ? session->succession_id() : 0};
  }
  if (!status.ok()) return status;
  return session;
}

Status Session::connect(Clock::time_point join_deadline, Clock::time_point deadline) {
  if (Status status = open_metrics(); !status.ok()) return status;
  Status status = join(join_deadline);
  if (status.ok()) {
    const Membership& membership = first_membership();
    Placement placement;
    if (membership.hosts.size() == static_cast<size_t>(options_.world_size))
      placement = place(membership.hosts, options_.rank);
    path_ = std::make_unique<DataPath>(
        DataPath::Options{.user = options_,
                          .job = memberships_,
                          .placement = std::move(placement),
                          .succeeds_another_job = succession_.succeeds != 0,
                          .fixed_floats = fixed_floats_,
                          .shard = shard_.get(),
                          .trace = trace_.get(),
                          .failures = &failures_,
                          .on_failed = [this](const Status& failure) { on_engine_failure(failure); }});
    status = path_->open(deadline);
  }
  // A sum after the deadline could end on the other ranks, which would begin without this one.
  if (status.ok() && Clock::now() >= deadline)
    status = {ErrorCode::kTimeout, "job '" + options_.job + "': all ranks have joined, but rank " +
                                       std::to_string(rank_) + " had no time left to connect its data path"};
  // All ranks wait for each other here, so that the first operation of one rank cannot fail the connect() of another.
  if (status.ok()) {
    const Status reception = check_reception(memberships_);
    // Half the time, if results may be lost on this host alone: the others are told why before their time has passed.
    knows_reason_.store(!reception.ok());
    status = sum_one(time_left(deadline) / (reception.ok() ? 1 : 2));
    if (status.ok())
      knows_reason_.store(false);  // otherwise the engine may report it yet, beside what is reported below
    const bool silent = status.code() == ErrorCode::kTimeout || status.code() == ErrorCode::kUnreachable ||
                        status.code() == ErrorCode::kAggregatorLost;
    if (silent && !reception.ok()) status = reception;
  }
  if (status.ok()) tell_progress();
  if (!status.ok()) report(for_other_ranks(status));
  connected_.store(status.ok(), std::memory_order_release);
  return status;
}

Status Session::join(Clock::time_point deadline) {
  JobMember member;
  member.job = options_.job;
  member.rank = options_.rank;
  member.world_size = options_.world_size;
  member.succession = succession_;
  if (options_.shared_memory) member.host = options_.host.empty() ? this_host() : options_.host;
  member.on_failure = [this](const Status& status) { on_control_failure(status); };
  member.on_left = [this](int rank) { failures_.rank_left(rank); };
  member.on_missing = [this](const std::vector<int>& ranks) {
    if (ranks.empty()) met_.store(true);
    failures_.ranks_missing(ranks);
  };
  member.given_up = [this] { return failures_.failure(); };
  Status status = join_job(member, options_, shard_.get(), deadline, &memberships_);
  if (!status.ok()) return status;
  rank_ = options_.rank = memberships_.front()->rank();
  world_size_ = options_.world_size = memberships_.front()->world_size();
  lacks_words_ = who_lacks_words(memberships_);
  return status;
}

bool Session::others_need_shard() const {
  return options_.world_size > 1 && path_ != nullptr && path_->network().shard_job.installed() &&
         path_->network().engine != nullptr && status().ok();
}

void Session::linger(Clock::time_point deadline) const {
  if (!others_need_shard()) return;
  shard_->linger(
      [this](auto step) { return memberships_.front()->others_need_nothing(step) || !status().ok(); },
      deadline);
}

Session::~Session() {
  const bool lingers = others_need_shard();
  close();
  memberships_.resize(std::min<size_t>(memberships_.size(), 1));  // the first has the shards
  if (lingers) {
    memberships_.front()->leave_and_stay();
    shard_->linger([this](auto step) { return memberships_.front()->others_need_nothing(step); },
                   Clock::now() + kLongestService);
  }
  memberships_.clear();  // leaves the job
}

void Session::close() {
  metrics_.reset();
  for (const auto& control : memberships_) control->set_beat(nullptr);
  // No other thread reads the statistics from here on.
  if (path_ == nullptr) return;
  find_wrong_sums();
  wrong_sums_->end(this);
  path_->close();
}

Memberships Session::release() {
  close();
  path_.reset();
  for (const auto& control : memberships_) control->detach();
  return std::exchange(memberships_, {});
}

void Session::on_control_failure(const Status& status) {
  Status reported = status;
  // The control service of a job without aggregators is on one of its ranks. Its own loss names no rank.
  const bool is_of_service = status.code() == ErrorCode::kAggregatorLost && status.rank() == kNoRank;
  if (meets_at_a_rank() && is_of_service && shard_->root_rank() >= 0)
    reported =
        Status(ErrorCode::kPeerLost,
               "rank " + std::to_string(shard_->root_rank()) + ", where the ranks meet: " + status.message(),
               shard_->root_rank());
  failures_.job_failed(reported);
  if (on_failure_) on_failure_(reported);
}

// During failover no rank is blamed: all ranks retry at the next aggregator.
Status Session::for_other_ranks(const Status& status) const {
  const bool moves = succession_.succeeds != 0 && succession_.min_members == 0;
  if (!moves || connected_.load(std::memory_order_acquire)) return status;
  return {ErrorCode::kAggregatorLost, status.message(), rank_.load(std::memory_order_relaxed)};
}

void Session::on_engine_failure(const Status& status) {
  if (!knows_reason_.load()) report(for_other_ranks(status));
  if (on_failure_) on_failure_(status);
}

Status Session::check(const OperationSpec& spec) const {
  if (Status status = check_operation(spec, payload_bytes()); !status.ok()) return status;
  // Not all ranks of a host have a part in the network.
  const Placement& placement = path_->placement();
  const bool in_network = !placement.shares_memory() || placement.hosts.size() > 1;
  if (!in_network || options_.world_size == 1) return Status();
  if (Status status = check_words(spec, lacks_words_); !status.ok()) return status;
  return options_.verify != Verify::kPacket ? check_verifiable(spec, options_.lane_bits) : Status();
}

Work Session::submit(OperationSpec&& spec, std::chrono::milliseconds timeout, OnEnd on_end) {
  const bool counts = spec.role.collective != Collective::kBarrier;
  if (counts) {
    uint64_t bytes = 0;
    for (const TensorView& tensor : spec.tensors) bytes += tensor.count * size_of(spec.type);
    counts_.submitted.fetch_add(1, std::memory_order_relaxed);
    gradient_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    if (options_.world_size == 1) move_instead(&spec);
  }
  submitted_.fetch_add(1, std::memory_order_relaxed);
  spec.deadline_us = monotonic_us() + microseconds(timeout.count() > 0 ? bounded(timeout) : options_.timeout);
  return path_->engine()->submit(std::move(spec), std::move(on_end), counts ? &counts_ : nullptr);
}

namespace {

// What this rank's shard has counted of each rank.
void tell_paths(const NetworkPath& network, control::Beat* beat) {
  const std::vector<faults::MemberTotals> members = network.shard_job.members();
  if (network.stripes.empty()) return;
  const StripeOptions& any = network.stripes.front().stripe->options();
  for (size_t member = 0; member < members.size(); ++member) {
    control::Path& path = *beat->add_paths();
    path.add_ranks(static_cast<uint32_t>(any.name_of(static_cast<int>(member))));
    path.set_kept_to(members[member].kept[0]);
    path.set_lost_to(members[member].lost[0]);
    path.set_kept_from(members[member].kept[1]);
    path.set_lost_from(members[member].lost[1]);
  }
}

}  // namespace

// Each aggregator of the job can say for whom it waits; the first is asked.
void Session::tell_progress() {
  for (const auto& control : memberships_)
    control->set_beat([this, first = control == memberships_.front()](control::Beat* beat) {
      beat->set_submitted(submitted_.load(std::memory_order_relaxed));
      for (const PacketIoCounters* packets : path_->network().packets) {
        beat->set_receive_calls(beat->receive_calls() + packets->receive_calls.get());
        beat->set_packets_received(beat->packets_received() + packets->packets_received.get());
      }
      for (const int rank : ranks_away(path_->network())) beat->add_away(static_cast<uint32_t>(rank));
      if (first) tell_paths(path_->network(), beat);
    });
  path_->engine()->set_hang([control = memberships_.front().get()] { return control->hang(); });
}

Status Session::sum_one(std::chrono::milliseconds timeout) {
  int32_t token = 0;
  OperationSpec spec;
  spec.type = DataType::kInt32;
  spec.tensors = {{&token, &token, 1}};
  spec.deadline_us = monotonic_us() + microseconds(timeout);
  return path_->engine()->submit(std::move(spec)).wait();
}

CommunicatorStats Session::stats() const {
  CommunicatorStats stats;
  stats.operations_submitted = counts_.submitted.load(std::memory_order_relaxed);
  stats.operations = counts_.completed.load(std::memory_order_relaxed);
  stats.operations_failed = counts_.failed.load(std::memory_order_relaxed);
  stats.gradient_bytes = gradient_bytes_.load(std::memory_order_relaxed);
  add_path_stats(*path_, shard_.get(), &stats);
  stats.wrong_sums = find_wrong_sums();
  if (metrics_ != nullptr) stats.metrics_address = metrics_->address();
  return stats;
}

PathDescription Session::description() const {
  return {.path = *path_,
          .job = memberships_,
          .aggregators = options_.aggregators,
          .why_shards = on_the_hosts_because_};
}

std::string Session::describe() const {
  return netsum::describe(description());
}

// Of all sessions of the communicator.
WrongSumRecord::List Session::find_wrong_sums() const {
  return wrong_sums_->update(this, wrong_sums_of(description()));
}

Status Session::open_metrics() {
  if (options_.metrics_address.empty()) return Status();
  auto metrics = MetricsSource::open(
      options_.metrics_address,
      {[this](MetricsPage* page) { add_metrics(page); }, [this] { return why_not_ready(); }});
  if (!metrics.ok()) return metrics.status();
  metrics_ = std::move(metrics).value();
  return Status();
}

// Runs on the metrics endpoint's thread, at any time between open_metrics() and the destructor.
void Session::add_metrics(MetricsPage* page) {
  WorkerView view{
      .job = options_.job, .rank = rank_, .world_size = world_size_, .verify = verify_name(options_.verify)};
  if (connected_.load(std::memory_order_acquire)) {
    view.stats = stats();
    view.places = places_of(description());
    view.ready = status().ok();
  } else {
    view.stats.waiting_for = failures_.missing();
  }
  add_worker_metrics(view, page);
}

std::string Session::why_not_ready() {
  const std::string who = "rank " + std::to_string(rank_) + " of " + options_.job + ": ";
  const bool connected = connected_.load(std::memory_order_acquire);
  const Status failure = connected ? status() : failures_.failure();
  if (!failure.ok()) return who + failure.to_string();
  if (connected) return "";
  const std::vector<int> ranks = failures_.missing();
  std::string missing;
  for (const int rank : ranks) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  if (missing.empty()) return who + "connecting";
  return who + "waiting for " + (ranks.size() == 1 ? "rank " : "ranks ") + missing + " to join";
}

}  // namespace netsum
