// Communicator::connect and what stands behind it: control clients, the engine, and an embedded shard.
#include "netsum/communicator.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "src/collective/engine.h"
#include "src/collective/shard.h"
#include "src/collective/work_state.h"
#include "src/collective/worker_io.h"
#include "src/control/client.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

using Clock = std::chrono::steady_clock;

Status invalid(const std::string& message) {
  return Status(ErrorCode::kInvalidArgument, message);
}

Status check(const CommunicatorOptions& options) {
  const std::string world = std::to_string(options.world_size);
  if (options.world_size < 1 || options.world_size > kMaxMembers) {
    return invalid("world_size is " + world + "; an aggregator sums for 1 to " + std::to_string(kMaxMembers) +
                   " ranks");
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return invalid("rank is " + std::to_string(options.rank) + "; it must be 0 to world_size - 1 (" + world +
                   " ranks)");
  }
  if (options.mtu < wire::kMinMtu || options.mtu > wire::kMaxMtu) {
    return invalid("mtu is " + std::to_string(options.mtu) + "; it must be " + std::to_string(wire::kMinMtu) +
                   " to " + std::to_string(wire::kMaxMtu) + " bytes");
  }
  if (options.slots < 1 || options.slots > 1024 || (options.slots & (options.slots - 1)) != 0) {
    return invalid("slots is " + std::to_string(options.slots) + "; it must be a power of two, 1 to 1024");
  }
  if (options.timeout.count() <= 0 || options.connect_timeout.count() <= 0) {
    return invalid("timeout and connect_timeout must be above zero");
  }
  if (options.aggregators.empty() && options.root.empty()) {
    return invalid(
        "neither aggregators nor root is set: without an aggregator every rank embeds a shard of "
        "one, and rank 0's address (root, \"host:port\") is needed to bring them together");
  }
  return Status();
}

class NetworkCommunicator final : public Communicator {
 public:
  explicit NetworkCommunicator(const CommunicatorOptions& options) : options_(options) {}
  ~NetworkCommunicator() override;

  Status connect();

  int rank() const override { return options_.rank; }
  int world_size() const override { return options_.world_size; }
  Work all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options) override;
  Status barrier(std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override;
  Status status() const override { return engine_->status(); }
  CommunicatorStats stats() const override;
  std::string describe() const override;

 private:
  Status join_all(Clock::time_point deadline);
  Status open_engine(Clock::time_point deadline);
  Status sum_one(std::chrono::milliseconds timeout);
  Result<StripeOptions> stripe_options(const Membership& membership, const StripeInfo& info) const;
  void on_control_failure(const Status& status);
  void on_rank_left(int rank);
  void report(const Status& status);

  const CommunicatorOptions options_;
  std::unique_ptr<Shard> shard_;
  std::vector<std::unique_ptr<ControlClient>> controls_;
  std::unique_ptr<Engine> engine_;
  int ip_family_ = 4;
  std::string io_note_;

  // What the control plane reports before the engine exists.
  std::mutex early_mutex_;
  Status early_failure_;
  int early_left_ = kNoRank;
  Engine* engine_for_failures_ = nullptr;

  std::atomic<uint64_t> operations_{0};
  std::atomic<uint64_t> gradient_bytes_{0};
};

std::chrono::milliseconds left_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

Status NetworkCommunicator::connect() {
  const Clock::time_point deadline = Clock::now() + options_.connect_timeout;
  if (options_.aggregators.empty()) {
    auto shard = Shard::start(options_);
    if (!shard.ok()) return shard.status();
    shard_ = std::move(shard).value();
  }
  Status status = join_all(deadline);
  if (status.ok()) status = open_engine(deadline);
  if (!status.ok()) report(status);
  return status;
}

Status NetworkCommunicator::join_all(Clock::time_point deadline) {
  JoinParameters join;
  join.job = options_.job;
  join.token = options_.token;
  join.aggregator_token = options_.aggregator_token;
  join.rank = options_.rank;
  join.world_size = options_.world_size;
  join.mtu = options_.mtu;
  join.slots = static_cast<uint32_t>(options_.slots);
  join.tls = options_.tls;
  join.on_left = [this](int rank) { on_rank_left(rank); };
  if (shard_ != nullptr) {
    join.shard_endpoint = shard_->endpoint().to_string();
    join.shard_payload_bytes = shard_->limits().payload_bytes;
    join.shard_slots = shard_->limits().slots_per_stripe;
  }
  std::vector<std::string> addresses = options_.aggregators;
  if (shard_ != nullptr) addresses = {shard_->root()};
  for (const std::string& address : addresses) {
    join.address = address;
    join.timeout = left_until(deadline);
    auto client = ControlClient::join(join, [this](const Status& status) { on_control_failure(status); });
    if (!client.ok()) return client.status();
    controls_.push_back(std::move(client).value());
  }
  return Status();
}

Result<StripeOptions> NetworkCommunicator::stripe_options(const Membership& membership,
                                                          const StripeInfo& info) const {
  const Result<Address> address = Address::parse(info.endpoint);
  if (!address.ok()) return address.status();
  StripeOptions stripe;
  stripe.address = address.value();
  stripe.local = info.embedded && info.owner_rank == options_.rank;
  stripe.job = membership.job;
  stripe.epoch = membership.epoch;
  stripe.key = membership.key;
  stripe.data_slots = membership.data_slots;
  stripe.scale_slots = membership.scale_slots;
  stripe.payload_bytes = membership.payload_bytes;
  return stripe;
}

Status NetworkCommunicator::open_engine(Clock::time_point deadline) {
  WorkerOptions worker;
  worker.rank = options_.rank;
  worker.world_size = options_.world_size;
  for (const auto& control : controls_) {
    const Membership& membership = control->membership();
    if (shard_ != nullptr) {
      const Status status = shard_->install(membership, options_.world_size);
      if (!status.ok()) return status;
    }
    for (const StripeInfo& info : membership.stripes) {
      Result<StripeOptions> stripe = stripe_options(membership, info);
      if (!stripe.ok()) return stripe.status();
      worker.stripes.push_back(stripe.value());
    }
  }
  const StripeOptions& first = worker.stripes.front();
  for (const StripeOptions& stripe : worker.stripes) {
    if (stripe.payload_bytes != first.payload_bytes || stripe.address.family != first.address.family) {
      return invalid("the aggregators at " + first.address.to_string() + " and " +
                     stripe.address.to_string() +
                     " differ in IP version or packet size: give all of them addresses of one IP version and "
                     "one --mtu");
    }
  }
  ip_family_ = first.address.family;
  // One's own shard is on this host: which way the packets go, another tells.
  const auto elsewhere = std::find_if(worker.stripes.begin(), worker.stripes.end(),
                                      [](const StripeOptions& stripe) { return !stripe.local; });
  const Address& remote = (elsewhere != worker.stripes.end() ? *elsewhere : first).address;
  Result<WorkerIo> io = open_worker_io(options_.packet_io, remote, NETSUM_HEADER_BYTES + first.payload_bytes);
  if (!io.ok()) return io.status();
  if (!io->note.empty()) io_note_ = "; " + io->note;
  engine_ =
      std::make_unique<Engine>(std::move(io->io), worker, [this](const Status& status) { report(status); });
  {
    const std::lock_guard lock(early_mutex_);
    engine_for_failures_ = engine_.get();
    if (!early_failure_.ok()) engine_->fail(early_failure_);
    if (early_left_ != kNoRank) engine_->peer_left(early_left_);
  }
  const Status connected = engine_->wait_connected(deadline);
  if (!connected.ok()) return connected;
  // Nobody goes on before everybody can: what one rank does first must not fail another's connect().
  return sum_one(left_until(deadline));
}

// Sums a single number, so that it ends when every rank has called it.
Status NetworkCommunicator::sum_one(std::chrono::milliseconds timeout) {
  int32_t token = 0;
  return engine_->submit(DataType::kInt32, ReduceOp::kSum, {TensorView{&token, &token, 1}}, timeout).wait();
}

NetworkCommunicator::~NetworkCommunicator() {
  const bool in_order = engine_ != nullptr && engine_->status().ok();
  {
    const std::lock_guard lock(early_mutex_);
    engine_for_failures_ = nullptr;
  }
  engine_.reset();
  controls_.clear();  // leaves the job
  if (shard_ != nullptr && in_order && options_.world_size > 1) shard_->linger();
}

void NetworkCommunicator::on_control_failure(const Status& status) {
  const std::lock_guard lock(early_mutex_);
  if (early_failure_.ok()) early_failure_ = status;
  if (engine_for_failures_ != nullptr) engine_for_failures_->fail(status);
}

void NetworkCommunicator::on_rank_left(int rank) {
  const std::lock_guard lock(early_mutex_);
  early_left_ = rank;
  if (engine_for_failures_ != nullptr) engine_for_failures_->peer_left(rank);
}

void NetworkCommunicator::report(const Status& status) {
  for (const auto& control : controls_) control->report_failure(status);
}

Work NetworkCommunicator::all_reduce(std::span<const TensorView> tensors, const AllReduceOptions& options) {
  Status refusal;
  uint64_t bytes = 0;
  for (const TensorView& tensor : tensors) {
    bytes += tensor.count * size_of(options.type);
    if (tensor.count > 0 && (tensor.input == nullptr || tensor.output == nullptr)) {
      refusal =
          invalid("all_reduce: a tensor of " + std::to_string(tensor.count) + " elements has a null pointer");
    }
  }
  if (size_of(options.type) == 0) refusal = Status(ErrorCode::kUnsupported, "all_reduce: unknown data type");
  if (options.op != ReduceOp::kSum && options.op != ReduceOp::kAvg) {
    refusal = Status(ErrorCode::kUnsupported, "all_reduce: only sum and avg are summed in the network");
  }
  if (options.op == ReduceOp::kAvg && !is_floating(options.type)) {
    refusal = Status(ErrorCode::kUnsupported, "all_reduce: avg is defined for floating-point types only");
  }
  if (!refusal.ok()) {
    auto state = std::make_shared<Work::State>();
    state->finish(refusal);
    return Work(std::move(state));
  }
  operations_.fetch_add(1, std::memory_order_relaxed);
  gradient_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return engine_->submit(options.type, options.op, {tensors.begin(), tensors.end()},
                         options.timeout.count() > 0 ? options.timeout : options_.timeout);
}

Status NetworkCommunicator::barrier(std::chrono::milliseconds timeout) {
  return sum_one(timeout.count() > 0 ? timeout : options_.timeout);
}

void NetworkCommunicator::abort(const std::string& reason) {
  const Status status(ErrorCode::kAborted, "rank " + std::to_string(options_.rank) + " aborted: " + reason,
                      options_.rank);
  engine_->fail(status);
  report(status);
}

CommunicatorStats NetworkCommunicator::stats() const {
  CommunicatorStats stats;
  stats.operations = operations_.load(std::memory_order_relaxed);
  stats.gradient_bytes = gradient_bytes_.load(std::memory_order_relaxed);
  const auto overhead = static_cast<uint64_t>(wire::overhead_bytes(ip_family_));
  for (size_t i = 0; i < engine_->core().stripe_count(); ++i) {
    const Stripe& stripe = engine_->core().stripe(i);
    const StripeCounters& counters = stripe.counters();
    CommunicatorStats::Stripe one;
    one.address = stripe.options().address.to_string();
    one.local = stripe.options().local;
    one.bytes_sent = counters.bytes_sent.get() + overhead * counters.packets_sent.get();
    one.bytes_received = counters.bytes_received.get() + overhead * counters.packets_received.get();
    stats.bytes_sent += one.bytes_sent;
    stats.bytes_received += one.bytes_received;
    stats.packets_sent += counters.packets_sent.get();
    stats.packets_received += counters.packets_received.get();
    stats.retransmissions += counters.retransmissions.get();
    stats.probes += counters.probes.get();
    stats.packets_dropped += counters.dropped.get();
    stats.srtt_us = std::max(stats.srtt_us, static_cast<double>(counters.srtt_us.get()));
    stats.stripes.push_back(std::move(one));
  }
  if (shard_ != nullptr) {
    stats.shard_bytes_received = shard_->bytes_received() + overhead * shard_->packets_received();
    stats.shard_bytes_sent = shard_->bytes_sent() + overhead * shard_->packets_sent();
  }
  return stats;
}

std::string NetworkCommunicator::describe() const {
  const size_t stripes = engine_->core().stripe_count();
  if (shard_ != nullptr) {
    return "summed by " + std::to_string(stripes) +
           " embedded shards, one in each rank: no aggregator is configured" + io_note_;
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

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::connect(const CommunicatorOptions& options) {
  const Status checked = check(options);
  if (!checked.ok()) return checked;
  auto communicator = std::make_unique<NetworkCommunicator>(options);
  const Status status = communicator->connect();
  if (!status.ok()) return status;
  return std::unique_ptr<Communicator>(std::move(communicator));
}

}  // namespace netsum
