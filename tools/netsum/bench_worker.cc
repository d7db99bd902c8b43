#include "tools/netsum/bench_worker.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/compression.h"
#include "tools/measure/start_gate.h"
#include "tools/netsum/bench_data.h"
#include "tools/netsum/process.h"

namespace netsum::tool {
namespace {

// The traffic of this rank's link. It does not include traffic with the shard in this process, but that shard's traffic with
// the other ranks.
struct LinkBytes {
  uint64_t sent = 0;
  uint64_t received = 0;
};

LinkBytes link_bytes(const CommunicatorStats& stats) {
  LinkBytes link{stats.bytes_sent + stats.shard_bytes_sent,
                 stats.bytes_received + stats.shard_bytes_received};
  uint64_t inside = 0;
  for (const CommunicatorStats::Stripe& stripe : stats.stripes) {
    if (stripe.local) inside += stripe.bytes_sent + stripe.bytes_received;
  }
  // The minimum, because the two ends count at slightly different times.
  link.sent -= std::min(inside, link.sent);
  link.received -= std::min(inside, link.received);
  return link;
}

// Longer than the operation's deadline, because the other ranks may still be checking the previous iteration.
constexpr std::chrono::milliseconds kVerifyAllowance{60'000};

// Sums differences of the communicator's counters over the timed parts only.
struct Totals {
  uint64_t gradient_bytes = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;
  uint64_t link_bytes_sent = 0, link_bytes_received = 0;
  uint64_t shared_memory_bytes_written = 0, shared_memory_bytes_read = 0;
  uint64_t packets_sent = 0, packets_received = 0;
  uint64_t retransmissions = 0, probes = 0, packets_dropped = 0;
  uint64_t scales_predicted = 0, scales_mispredicted = 0;
  uint64_t share_changes = 0;  // since the communicator was made
  double cpu_seconds = 0;

  void add(const CommunicatorStats& before, const CommunicatorStats& after) {
    gradient_bytes += after.gradient_bytes - before.gradient_bytes;
    bytes_sent += after.bytes_sent - before.bytes_sent;
    bytes_received += after.bytes_received - before.bytes_received;
    link_bytes_sent += link_bytes(after).sent - link_bytes(before).sent;
    link_bytes_received += link_bytes(after).received - link_bytes(before).received;
    shared_memory_bytes_written += after.shared_memory_bytes_written - before.shared_memory_bytes_written;
    shared_memory_bytes_read += after.shared_memory_bytes_read - before.shared_memory_bytes_read;
    packets_sent += after.packets_sent - before.packets_sent;
    packets_received += after.packets_received - before.packets_received;
    retransmissions += after.retransmissions - before.retransmissions;
    probes += after.probes - before.probes;
    packets_dropped += after.packets_dropped - before.packets_dropped;
    scales_predicted += after.scales_predicted - before.scales_predicted;
    scales_mispredicted += after.scales_mispredicted - before.scales_mispredicted;
    share_changes = after.share_changes;
  }

  Json to_json(double srtt_us) const {
    const double share =
        bytes_sent == 0 ? 0.0 : static_cast<double>(gradient_bytes) / static_cast<double>(bytes_sent);
    return {{"gradient_bytes", gradient_bytes},
            {"bytes_sent", bytes_sent},
            {"bytes_received", bytes_received},
            {"payload_share", share},
            {"link_bytes_sent", link_bytes_sent},
            {"link_bytes_received", link_bytes_received},
            {"shared_memory_bytes_written", shared_memory_bytes_written},
            {"shared_memory_bytes_read", shared_memory_bytes_read},
            {"packets_sent", packets_sent},
            {"packets_received", packets_received},
            {"retransmissions", retransmissions},
            {"probes", probes},
            {"packets_dropped", packets_dropped},
            {"scales_predicted", scales_predicted},
            {"scales_mispredicted", scales_mispredicted},
            {"share_changes", share_changes},
            {"srtt_us", srtt_us},
            {"cpu_seconds", cpu_seconds}};
  }
};

class BenchRank {
 public:
  BenchRank(std::unique_ptr<Communicator> communicator, const BenchSettings& settings,
            std::chrono::milliseconds timeout)
      : communicator_(std::move(communicator)),
        timeout_(timeout),
        barrier_timeout_(timeout + kVerifyAllowance),
        settings_(settings),
        started_(started_for(settings.collective)),
        data_(settings.type, settings.op, communicator_->world_size(), settings.seed, settings.lane_bits,
              settings.pattern),
        tensors_(static_cast<size_t>(settings.inflight) * started_.size()) {
    for (Tensor& tensor : tensors_) {
      tensor.input.resize(settings.bytes);
      tensor.output.resize(settings.bytes);
    }
    for (size_t i = 0; i < tensors_.size(); ++i)
      calls_.emplace_back(collective_of(i), communicator_->rank(), communicator_->world_size(),
                          view_of(tensors_[i]));
    works_.reserve(calls_.size());
  }

  // With compression: all ranks must have the same.
  Status agree_on_compression() {
    if (!settings_.compression) return {};
    auto made = Compression::make(*settings_.compression);
    if (!made.ok()) return made.status();
    compression_ = std::move(made).value();
    for (size_t i = 0; i < tensors_.size(); ++i)
      tensors_[i].compressed = compression_->tensor(i, settings_.count(), communicator_->rank(),
                                                    communicator_->world_size(), rows_of(settings_.count()));
    return check_same_on_all_ranks(*communicator_, compression_->describe(), barrier_timeout_);
  }

  Status open_gate() {
    if (settings_.start_gate.empty()) return {};
    const int error = start_gate_open(&gate_.emplace(), settings_.start_gate.c_str(), communicator_->rank(),
                                      communicator_->world_size());
    if (error == 0) return {};
    return {ErrorCode::kInvalidArgument,
            "--start-gate " + settings_.start_gate + ": " + std::strerror(error) +
                "; it must be a file of 8 bytes for each rank and 16 more, all zero"};
  }
  Status wait_for_all() { return communicator_->barrier(barrier_timeout_); }
  Communicator& communicator() { return *communicator_; }
  const Totals& totals() const { return totals_; }

  // One iteration: a pause, new inputs, a barrier, the timed operations, a barrier, then the check. Nothing but the operations runs
  // between the barriers, because on few cores it would delay the ranks that are not ready yet.
  Result<Json> iterate(int n) {
    std::this_thread::sleep_for(settings_.pause);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      data_.fill(communicator_->rank(), {n, static_cast<int>(i)}, tensors_[i].input.data(),
                 settings_.count());
      // So that a result of the previous iteration does not count as this one's.
      std::fill(tensors_[i].output.begin(), tensors_[i].output.end(), uint8_t{0xEE});
      prepare(collective_of(i), communicator_->rank(), communicator_->world_size(), view_of(tensors_[i]));
    }
    if (Status status = wait_for_all(); !status.ok()) return status;
    const bool timed = n >= settings_.warmup;
    const bool count_busy = gate_ && settings_.bytes >= kStartGateBusyBytes;
    const int64_t busy_before = count_busy ? machine_busy_ticks() : 0;
    const CommunicatorStats stats_before = communicator_->stats();
    if (Status status = pass_gate(n); !status.ok()) return status;
    const double cpu_before = cpu_seconds();
    const int64_t start_ns = start_gate_now_ns();
    if (Status status = run_all(); !status.ok()) return status;
    const int64_t end_ns = start_gate_now_ns();
    const int64_t busy_after = count_busy ? machine_busy_ticks() : 0;
    if (timed) {
      totals_.cpu_seconds += cpu_seconds() - cpu_before;
      const CommunicatorStats stats_after = communicator_->stats();
      const bool moved = stats_after.failovers != stats_before.failovers;  // counters restart at zero
      totals_.add(moved ? CommunicatorStats{} : stats_before, stats_after);
    }
    works_.clear();
    if (Status status = wait_for_all(); !status.ok()) return status;
    Json event = {{"event", "iteration"}, {"n", n}, {"timed", timed}};
    if (gate_) event["stamp"] = {start_ns, end_ns, busy_before, busy_after};
    event.update(verify(n));
    Result<Comparison> compared = compare(event.at("checksum"), (end_ns - start_ns) / 1000);
    if (!compared.ok()) return compared.status();
    event["time_us"] = compared.value().slowest_us;
    if (!compared.value().same_bits) {
      event["wrong"] = event.at("wrong").get<uint64_t>() + 1;
      event["first_wrong"] = "this result has other bits than another rank's";
    }
    return event;
  }

 private:
  struct Tensor {
    std::vector<uint8_t> input;
    std::vector<uint8_t> output;
    std::unique_ptr<CompressedTensor> compressed;  // with compression
  };

  // A tensor as a matrix that is as square as powers of two allow.
  static size_t rows_of(size_t count) {
    size_t rows = 1;
    while (count % (2 * rows) == 0 && 4 * rows * rows <= count) rows *= 2;
    return rows;
  }

  BenchTensor view_of(Tensor& tensor) const {
    return {tensor.input.data(), tensor.output.data(), settings_.count(), settings_.type, settings_.op};
  }

  BenchCollective collective_of(size_t tensor) const { return started_[tensor % started_.size()]; }

  // One after the other, as a compressed all-reduce blocks.
  Status run_compressed() {
    for (Tensor& tensor : tensors_) {
      const Status status =
          compressed_all_reduce(*communicator_, *compression_, *tensor.compressed,
                                reinterpret_cast<const float*>(tensor.input.data()),
                                reinterpret_cast<float*>(tensor.output.data()), buffers_, timeout_);
      if (!status.ok()) return status;
    }
    return {};
  }

  Status run_all() {
    if (compression_) return run_compressed();
    for (const BenchCall& call : calls_) works_.push_back(call.start(*communicator_, timeout_));
    for (const Work& work : works_) {
      if (Status status = work.wait(); !status.ok()) return status;
    }
    return {};
  }

  // The combined result of all ranks for an iteration.
  struct Comparison {
    bool same_bits = false;
    int64_t slowest_us = 0;
  };

  // One sum of integers: the two halves of the checksum, whose sums are world_size times the values if all ranks agree, and
  // one element per rank with its time.
  Result<Comparison> compare(uint64_t checksum, int64_t own_us) {
    const auto ranks = static_cast<size_t>(communicator_->world_size());
    std::vector<int64_t> mine(2 + ranks), sums(2 + ranks);
    mine[0] = static_cast<int64_t>(checksum >> 32);
    mine[1] = static_cast<int64_t>(checksum & 0xFFFFFFFF);
    mine[2 + static_cast<size_t>(communicator_->rank())] = own_us;
    AllReduceOptions options;
    options.type = DataType::kInt64;
    options.timeout = barrier_timeout_;
    const TensorView view{mine.data(), sums.data(), mine.size()};
    if (const Status status = communicator_->all_reduce(view, options).wait(); !status.ok()) return status;
    const auto n = static_cast<int64_t>(ranks);
    return Comparison{sums[0] == mine[0] * n && sums[1] == mine[1] * n,
                      *std::max_element(sums.begin() + 2, sums.end())};
  }

  Status pass_gate(int n) {
    if (!gate_) return {};
    const int64_t timeout_ns = std::chrono::nanoseconds(barrier_timeout_).count();
    if (start_gate_wait(&*gate_, n + 1, timeout_ns) == 0) return {};
    return {ErrorCode::kTimeout, "--start-gate " + settings_.start_gate +
                                     ": not all ranks came to iteration " + std::to_string(n) + " in time"};
  }

  // Each rank checks what it has received. Of an all-reduce, it checks a part of the elements: as all ranks have the same
  // bits, all elements are checked.
  Json verify(int n) {
    uint64_t wrong = 0;
    uint64_t checksum = 0;
    double worst_error = 0, squared_error = 0, squared_expected = 0;
    std::string first_wrong;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const size_t count = settings_.count();
      const uint8_t* output = tensors_[i].output.data();
      const TensorId id{n, static_cast<int>(i)};
      bool right = true;
      for (const auto& [first, last, from] :
           expected(collective_of(i), communicator_->rank(), communicator_->world_size(), count)) {
        const Verdict verdict =
            compression_ ? data_.verify_lossy(id, reinterpret_cast<const float*>(output), count, first, last)
            : from == BenchExpectation::kSum ? data_.verify(id, output, count, first, last)
                                             : data_.verify_moved(from, id, output, first, last);
        right &= verdict.wrong == 0;
        if (first_wrong.empty()) first_wrong = verdict.first_wrong;
        worst_error = std::max(worst_error, verdict.worst_error);
        squared_error += verdict.squared_error;
        squared_expected += verdict.squared_expected;
        if (settings_.collective == BenchCollective::kAllReduce) checksum = checksum * 31 + verdict.checksum;
      }
      wrong += right ? 0 : 1;
    }
    return {{"verified", tensors_.size()},
            {"wrong", wrong},
            {"first_wrong", first_wrong},
            {"worst_error", worst_error},
            {"squared_error", squared_error},
            {"squared_expected", squared_expected},
            {"checksum", checksum}};
  }

  std::unique_ptr<Communicator> communicator_;
  const std::chrono::milliseconds timeout_, barrier_timeout_;
  const BenchSettings& settings_;
  const std::span<const BenchCollective> started_;
  BenchData data_;
  std::vector<Tensor> tensors_;
  Totals totals_;
  std::vector<BenchCall> calls_;  // of each tensor
  std::vector<Work> works_;
  std::optional<StartGate> gate_;
  std::shared_ptr<const Compression> compression_;
  CompressionBuffers buffers_;
};

Status run_rank(CommunicatorOptions options, const BenchSettings& settings, const BenchEvents& report) {
  options.on_root_bound = [&](const std::string& address) {
    report({{"event", "root"}, {"address", address}});
  };
  Result<std::unique_ptr<Communicator>> joined = Communicator::connect(options);
  if (!joined.ok()) return joined.status();
  BenchRank rank(std::move(joined).value(), settings, options.timeout);
  if (Status status = rank.open_gate(); !status.ok()) return status;
  if (Status status = rank.agree_on_compression(); !status.ok()) return status;
  report({{"event", "joined"}, {"summed_by", rank.communicator().describe()}});
  for (int n = 0; n < settings.warmup + settings.iterations; ++n) {
    Result<Json> event = rank.iterate(n);
    if (!event.ok()) return event.status();
    report(event.value());
  }
  // All ranks stay until the last result has arrived everywhere.
  if (Status status = rank.wait_for_all(); !status.ok()) return status;
  const CommunicatorStats stats = rank.communicator().stats();
  Json end = rank.totals().to_json(stats.srtt_us);
  end["failovers"] = stats.failovers;
  if (stats.share_changes > 0) end["summed_by"] = rank.communicator().describe();
  end["event"] = "end";
  report(end);
  return {};
}

}  // namespace

Status run_bench_worker(CommunicatorOptions options, const BenchSettings& settings,
                        const BenchEvents& report) {
  const Status status = run_rank(std::move(options), settings, report);
  if (!status.ok()) {
    report({{"event", "error"},
            {"code", error_name(status.code())},
            {"message", status.to_string()},
            {"rank", status.rank()}});
  }
  return status;
}

}  // namespace netsum::tool
