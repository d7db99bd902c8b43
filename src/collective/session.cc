#include "src/collective/session.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <set>
#include <utility>

#include "src/base/timeout.h"
#include "src/kernels/kernels.h"
#include "src/telemetry/worker_metrics.h"
#include "wire/codec.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

std::chrono::milliseconds left_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

}  // namespace

Session::Session(SessionOptions options)
    : options_(std::move(options.user)),
      succession_(options.succession),
      shard_(std::move(options.shard)),
      on_the_hosts_because_(std::move(options.on_the_hosts_because)),
      trace_(std::move(options.trace)),
      on_failure_(std::move(options.on_failure)) {}

Result<std::unique_ptr<Session>> Session::open(SessionOptions options) {
  const Clock::time_point join_deadline = options.join_deadline, deadline = options.deadline;
  std::unique_ptr<Session> session(new Session(std::move(options)));
  if (Status status = session->connect(join_deadline, deadline); !status.ok()) return status;
  return session;
}

Status Session::connect(Clock::time_point join_deadline, Clock::time_point deadline) {
  if (Status status = open_metrics(); !status.ok()) return status;
  JobMember member;
  member.job = options_.job;
  member.rank = options_.rank;
  member.world_size = options_.world_size;
  member.succession = succession_;
  if (options_.shared_memory) member.host = options_.host.empty() ? this_host() : options_.host;
  member.on_failure = [this](const Status& status) { on_control_failure(status); };
  member.on_left = [this](int rank) { on_rank_left(rank); };
  member.on_missing = [this](const std::vector<int>& ranks) {
    const std::lock_guard lock(news_mutex_);
    missing_ = ranks;
  };
  Status status = join_job(member, options_, shard_.get(), join_deadline, &controls_);
  if (status.ok()) {
    options_.rank = controls_.front()->rank();
    options_.world_size = controls_.front()->world_size();
    const Membership& membership = first_membership();
    if (membership.hosts.size() == static_cast<size_t>(options_.world_size))
      placement_ = place(membership.hosts, options_.rank);
    status = placement_.shares_memory() ? open_host(deadline) : open_network(deadline);
  }
  // Nobody goes on before everybody can: what one rank does first must not fail another's connect().
  if (status.ok()) status = sum_one(left_until(deadline));
  // Of a job that moves, nobody is to blame: all try again elsewhere.
  const bool moves = succession_.succeeds != 0 && succession_.min_members == 0;
  if (!status.ok()) report(moves ? Status(ErrorCode::kAggregatorLost, status.message()) : status);
  const std::lock_guard lock(news_mutex_);
  connected_ = status.ok();
  return status;
}

Status Session::open_metrics() {
  if (options_.metrics_address.empty()) return Status();
  auto metrics =
      MetricsSource::open(options_.metrics_address,
                          {[this](MetricsPage* page) { add_metrics(page); }, [this] { return not_ready(); }});
  if (!metrics.ok()) return metrics.status();
  metrics_ = std::move(metrics).value();
  return Status();
}

// On the metrics endpoint's thread, at any time from before joining to the destructor.
void Session::add_metrics(MetricsPage* page) {
  WorkerView view{.job = options_.job, .rank = options_.rank, .world_size = options_.world_size};
  {
    const std::lock_guard lock(news_mutex_);
    if (connected_) {
      view.stats = stats();
      view.ready = status().ok();
    } else {
      view.stats.waiting_for = missing_;
    }
  }
  add_worker_metrics(view, page);
}

std::string Session::not_ready() {
  const std::string who = "rank " + std::to_string(options_.rank) + " of " + options_.job + ": ";
  const std::lock_guard lock(news_mutex_);
  const Status failure = connected_ ? status() : control_failure_;
  if (!failure.ok()) return who + failure.to_string();
  if (connected_) return "";
  std::string missing;
  for (const int rank : missing_) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
  if (missing.empty()) return who + "connecting";
  return who + "waiting for " + (missing_.size() == 1 ? "rank " : "ranks ") + missing + " to join";
}

Status Session::open_network(Clock::time_point deadline) {
  WorkerOptions worker;
  worker.rank = options_.rank;
  worker.world_size = options_.world_size;
  return connect_engine(
      std::move(worker), controls_, 0, [this](const Status& status) { on_engine_failure(status); }, deadline);
}

Status Session::connect_engine(WorkerOptions worker, const Memberships& memberships, uint32_t payload_bytes,
                               std::function<void(const Status&)> on_failed, Clock::time_point deadline) {
  worker.lane_bits = options_.lane_bits;
  auto path = open_path(memberships, std::move(worker), payload_bytes, options_, shard_.get(),
                        std::move(on_failed), placement_.shares_memory() ? nullptr : trace_.get());
  if (!path.ok()) return path.status();
  engine_ = std::move(path->engine);
  worker_ = path->worker;
  shard_job_ = std::move(path->shard_job);
  faults_ = path->faults;
  if (!path->note.empty()) io_note_ = "; " + path->note;
  tell_failures_to([this](const Status& status) { engine_->fail(status); },
                   [this](int rank) { engine_->peer_left(rank); });
  watch_data_of(memberships);
  return engine_->wait_connected(deadline);
}

// Results are signs of life of the aggregator that sends them: of its stripes or, if the ranks meet at one of
// them, of that rank's shard.
void Session::watch_data_of(const Memberships& memberships) {
  size_t stripe = 0;
  for (size_t i = 0; i < memberships.size(); ++i) {
    std::vector<const Counter*> results;
    for (const StripeInfo& info : memberships[i]->membership().stripes) {
      const Counter& counter = worker_->stripe(stripe++).counters().results;
      if (!info.embedded || (shard_ != nullptr && info.owner_rank == shard_->root_rank()))
        results.push_back(&counter);
    }
    const auto witness = [results] {
      uint64_t sum = 0;
      for (const Counter* counter : results) sum += counter->get();
      return sum;
    };
    memberships[i]->set_witness(witness);
    if (&memberships != &controls_ && i < controls_.size()) controls_[i]->set_witness(witness);
  }
}

void Session::watch_no_data() {
  for (const Memberships* memberships : {&controls_, &host_controls_}) {
    for (const auto& control : *memberships) control->set_witness(nullptr);
  }
}

// The ranks of each host are summed in its memory. Where there are several hosts, the ranks that have the
// same part form a job among the hosts.
Status Session::open_host(Clock::time_point deadline) {
  const Membership& membership = controls_.front()->membership();
  SegmentOptions memory;
  char name[64];
  std::snprintf(name, sizeof name, "netsum-%016" PRIx64 "-%zu", membership.host_meeting, placement_.host);
  memory.name = name;
  memory.local = placement_.local;
  memory.ranks = placement_.local_ranks().size();
  memory.block_bytes = placement_.block_bytes();
  memory.deadline = deadline;
  memory.interrupted = [this] {
    const std::lock_guard lock(news_mutex_);
    return control_failure_;
  };
  auto segment = Segment::open(memory);
  if (!segment.ok()) return segment.status();

  if (placement_.hosts.size() > 1 && placement_.is_owner()) {
    JobMember member;
    member.job = options_.job + "/" + std::to_string(placement_.local);
    member.rank = static_cast<int>(placement_.host);
    member.world_size = static_cast<int>(placement_.hosts.size());
    // Not to be taken for that of the job that this one succeeds, which may still be there.
    if (succession_.succeeds != 0) member.succession.succeeds = membership.succession_id;
    // Its members are also those of the whole job, where the news comes with the right ranks.
    member.on_failure = [](const Status&) {};
    Status status = join_job(member, options_, shard_.get(), deadline, &host_controls_);
    if (!status.ok()) return status;
    WorkerOptions worker;
    worker.rank = member.rank;
    worker.world_size = member.world_size;
    worker.summands = options_.world_size;
    worker.names = placement_.counterparts();
    // What fails there fails an operation of the host engine's, which reports it.
    status = connect_engine(
        std::move(worker), host_controls_, membership.payload_bytes, [](const Status&) {}, deadline);
    if (!status.ok()) return status;
  }
  auto core = std::make_unique<SharedMemoryCore>(
      SharedMemoryCore::Options{placement_, options_.world_size, options_.lane_bits,
                                membership.payload_bytes},
      std::move(segment).value(), engine_.get());
  host_counters_ = &core->counters();
  host_engine_ = std::make_unique<Engine>(
      std::move(core), [this](const Status& status) { on_engine_failure(status); }, trace_.get());
  tell_failures_to([this](const Status& status) { host_engine_->fail(status); },
                   [this](int rank) { host_engine_->peer_left(rank); });
  return Status();
}

Work Session::submit(DataType type, ReduceOp op, std::vector<TensorView> tensors,
                     std::chrono::milliseconds timeout, OnEnd on_end) {
  if (host_engine_ != nullptr)
    return host_engine_->submit(type, op, std::move(tensors), timeout, std::move(on_end));
  return engine_->submit(type, op, std::move(tensors), timeout, std::move(on_end));
}

Status Session::sum_one(std::chrono::milliseconds timeout) {
  int32_t token = 0;
  return submit(DataType::kInt32, ReduceOp::kSum, {TensorView{&token, &token, 1}}, timeout).wait();
}

Session::~Session() {
  metrics_.reset();  // from here on nobody looks in
  const bool in_order = engine_ != nullptr && status().ok();
  {
    const std::lock_guard lock(news_mutex_);
    tell_failure_ = nullptr;
    tell_left_ = nullptr;
  }
  watch_no_data();
  // The one gives operations to the other, which works in the one's memory.
  if (host_engine_ != nullptr) host_engine_->stop();
  engine_.reset();
  host_engine_.reset();
  host_controls_.clear();
  controls_.clear();  // leaves the job
  if (shard_ != nullptr && in_order && options_.world_size > 1) shard_->linger();
}

uint32_t Session::data_slots() const {
  uint32_t least = first_membership().data_slots;
  for (const auto& control : controls_) least = std::min(least, control->membership().data_slots);
  return least;
}

size_t Session::stripe_count() const {
  size_t count = 0;
  for (const auto& control : controls_) count += control->membership().stripes.size();
  return count;
}

Status Session::status() const {
  return host_engine_ != nullptr ? host_engine_->status() : engine_->status();
}

void Session::tell_failures_to(std::function<void(const Status&)> fail, std::function<void(int)> left) {
  const std::lock_guard lock(news_mutex_);
  tell_failure_ = std::move(fail);
  tell_left_ = std::move(left);
  if (!control_failure_.ok()) tell_failure_(control_failure_);
  if (left_rank_ != kNoRank) tell_left_(left_rank_);
}

void Session::on_control_failure(const Status& status) {
  Status told = status;
  // Who keeps the job together in its members' own midst is rank 0.
  if (shard_ != nullptr && status.code() == ErrorCode::kAggregatorLost && shard_->root_rank() >= 0)
    told =
        Status(ErrorCode::kPeerLost,
               "rank " + std::to_string(shard_->root_rank()) + ", where the ranks meet: " + status.message(),
               shard_->root_rank());
  {
    const std::lock_guard lock(news_mutex_);
    if (control_failure_.ok()) control_failure_ = told;
    if (tell_failure_) tell_failure_(told);
  }
  if (on_failure_) on_failure_(told);
}

void Session::on_engine_failure(const Status& status) {
  report(status);
  if (on_failure_) on_failure_(status);
}

void Session::on_rank_left(int rank) {
  const std::lock_guard lock(news_mutex_);
  left_rank_ = rank;
  if (tell_left_) tell_left_(rank);
}

void Session::report(const Status& status) {
  for (const auto& control : controls_) control->report_failure(status);
}

Work Session::all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options, OnEnd on_end) {
  uint64_t bytes = 0;
  for (const TensorView& tensor : tensors) bytes += tensor.count * size_of(options.type);
  submitted_.fetch_add(1, std::memory_order_relaxed);
  gradient_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return submit(options.type, options.op, {tensors.begin(), tensors.end()},
                options.timeout.count() > 0 ? bounded(options.timeout) : options_.timeout,
                [this, on_end = std::move(on_end)](const Status& status) {
                  (status.ok() ? completed_ : failed_).fetch_add(1, std::memory_order_relaxed);
                  if (on_end) on_end(status);
                });
}

void Session::fail(const Status& status) {
  if (host_engine_ != nullptr) {
    host_engine_->fail(status);
  } else {
    engine_->fail(status);
  }
}

CommunicatorStats Session::stats() const {
  CommunicatorStats stats;
  stats.operations_submitted = submitted_.load(std::memory_order_relaxed);
  stats.operations = completed_.load(std::memory_order_relaxed);
  stats.operations_failed = failed_.load(std::memory_order_relaxed);
  stats.gradient_bytes = gradient_bytes_.load(std::memory_order_relaxed);
  if (host_engine_ != nullptr) {
    stats.shared_memory_bytes_written = host_counters_->bytes_staged.get();
    stats.shared_memory_bytes_read = host_counters_->bytes_taken.get();
  }
  if (engine_ != nullptr) add_network_stats(&stats);
  (host_engine_ != nullptr ? host_engine_->completed() : engine_->completed()).add_to(&stats.completed);
  (host_engine_ != nullptr ? host_engine_->failed() : engine_->failed()).add_to(&stats.failed);
  if (metrics_ != nullptr) stats.metrics_address = metrics_->address();
  return stats;
}

void Session::add_network_stats(CommunicatorStats* stats) const {
  const int ip_family = worker_->stripe(0).options().address.family;
  const auto overhead = static_cast<uint64_t>(wire::overhead_bytes(ip_family));
  std::set<int> waits_for;
  std::array<uint64_t, NETSUM_DROP_COUNT> drops{};
  for (size_t i = 0; i < worker_->stripe_count(); ++i) {
    const Stripe& stripe = worker_->stripe(i);
    const StripeCounters& counters = stripe.counters();
    CommunicatorStats::Stripe one;
    one.address = stripe.options().address.to_string();
    one.local = stripe.options().local;
    one.bytes_sent = counters.bytes_sent.get() + overhead * counters.packets_sent.get();
    one.bytes_received = counters.bytes_received.get() + overhead * counters.packets_received.get();
    stats->bytes_sent += one.bytes_sent;
    stats->bytes_received += one.bytes_received;
    stats->packets_sent += counters.packets_sent.get();
    stats->packets_received += counters.packets_received.get();
    stats->retransmissions += counters.retransmissions.get();
    stats->probes += counters.probes.get();
    stats->packets_dropped += counters.dropped.get();
    stats->srtt_us = std::max(stats->srtt_us, static_cast<double>(counters.srtt_us.get()));
    stats->stripes.push_back(std::move(one));
    for (int rank = 0; rank < stripe.options().world_size; ++rank) {
      const uint16_t member = stripe.options().member_of(rank);
      if (member < NETSUM_MAX_MEMBERS && (counters.waiting_for.get() >> member & 1))
        waits_for.insert(stripe.options().name_of(rank));
    }
    counters.round_trip.add_to(&stats->round_trip);
    for (size_t reason = 1; reason < drops.size(); ++reason) drops[reason] += counters.drops[reason].get();
  }
  for (size_t reason = 1; reason < drops.size(); ++reason) {
    stats->drops.push_back({std::string(wire::drop_name(static_cast<int>(reason))), drops[reason]});
  }
  if (faults_ != nullptr) {
    const uint64_t lost = faults_->receive_counters().lost.get();
    stats->drops.push_back({"injected", lost});
    stats->packets_dropped += lost;
  }
  stats->waiting_for.assign(waits_for.begin(), waits_for.end());
  if (shard_ != nullptr) {
    stats->shard_bytes_received = shard_->bytes_received() + overhead * shard_->packets_received();
    stats->shard_bytes_sent = shard_->bytes_sent() + overhead * shard_->packets_sent();
  }
}

std::string Session::describe() const {
  if (host_engine_ == nullptr) return describe_network();
  const size_t ranks = placement_.local_ranks().size();
  std::string text = ranks == 1
                         ? "this rank is alone on its host"
                         : "the " + std::to_string(ranks) + " ranks of this host are summed in shared memory";
  if (placement_.hosts.size() == 1) return text + "; no other host takes part";
  text += "; " + std::to_string(placement_.hosts.size()) + " hosts with " +
          std::to_string(placement_.owners) + (placement_.owners == 1 ? " rank" : " ranks") +
          " each in the network, ";
  return text + (engine_ != nullptr ? describe_network() : "not this one");
}

std::string Session::describe_network() const {
  const size_t stripes = worker_->stripe_count();
  if (shard_ != nullptr) {
    return "summed by " + std::to_string(stripes) + " embedded shards, one in each rank: " +
           (on_the_hosts_because_.empty() ? "no aggregator is configured" : on_the_hosts_because_) + io_note_;
  }
  std::string text = "summed in the network by " + std::to_string(controls_.size()) +
                     (controls_.size() == 1 ? " aggregator (" : " aggregators (");
  for (size_t i = 0; i < controls_.size(); ++i) {
    const Membership& membership = controls_[i]->membership();
    text += (i > 0 ? ", " : "") + options_.aggregators[i] + ": " + membership.dataplane + ", " +
            std::to_string(membership.stripes.size()) + (membership.stripes.size() == 1 ? " core" : " cores");
  }
  return text + ")" + io_note_;
}

}  // namespace netsum
