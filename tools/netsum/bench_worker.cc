#include "tools/netsum/bench_worker.h"

#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "netsum/communicator.h"
#include "src/base/clock.h"
#include "tools/netsum/bench_data.h"

namespace netsum::tool {
namespace {

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// What this rank's link carried. A shard in this very process is reached without the link, while the shard's
// own traffic with the other ranks does use it.
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
  // The two ends count at slightly different moments, hence the minimum.
  link.sent -= std::min(inside, link.sent);
  link.received -= std::min(inside, link.received);
  return link;
}

// Beyond the operation's own deadline: the other ranks may still be checking the iteration before.
constexpr std::chrono::milliseconds kVerifyAllowance{60'000};

// Sums differences of the communicator's counters over the timed parts only.
struct Totals {
  uint64_t gradient_bytes = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;
  uint64_t link_bytes_sent = 0, link_bytes_received = 0;
  uint64_t shared_memory_bytes_written = 0, shared_memory_bytes_read = 0;
  uint64_t packets_sent = 0, packets_received = 0;
  uint64_t retransmissions = 0, probes = 0, packets_dropped = 0;
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
            {"srtt_us", srtt_us},
            {"cpu_seconds", cpu_seconds}};
  }
};

class BenchRank {
 public:
  BenchRank(std::unique_ptr<Communicator> communicator, const BenchSettings& settings,
            std::chrono::milliseconds timeout)
      : communicator_(std::move(communicator)),
        barrier_timeout_(timeout + kVerifyAllowance),
        settings_(settings),
        data_(settings.type, settings.op, communicator_->world_size(), settings.seed, settings.lane_bits),
        tensors_(static_cast<size_t>(settings.inflight)) {
    for (Tensor& tensor : tensors_) {
      tensor.input.resize(settings.bytes);
      tensor.output.resize(settings.bytes);
    }
  }

  Status wait_for_all() { return communicator_->barrier(barrier_timeout_); }
  Communicator& communicator() { return *communicator_; }
  const Totals& totals() const { return totals_; }

  // One iteration: new inputs, a barrier, the timed sums, then the check.
  Result<Json> iterate(int n) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      data_.fill(communicator_->rank(), {n, static_cast<int>(i)}, tensors_[i].input.data(),
                 settings_.count());
      // So that a result left from the iteration before cannot pass for this one's.
      std::fill(tensors_[i].output.begin(), tensors_[i].output.end(), uint8_t{0xEE});
    }
    if (Status status = wait_for_all(); !status.ok()) return status;
    const bool timed = n >= settings_.warmup;
    const CommunicatorStats stats_before = communicator_->stats();
    const double cpu_before = cpu_seconds();
    const int64_t start_us = monotonic_us();
    if (Status status = sum_all(); !status.ok()) return status;
    const int64_t time_us = monotonic_us() - start_us;
    if (timed) {
      totals_.cpu_seconds += cpu_seconds() - cpu_before;
      const CommunicatorStats stats_after = communicator_->stats();
      const bool moved = stats_after.failovers != stats_before.failovers;  // then it counts from zero
      totals_.add(moved ? CommunicatorStats{} : stats_before, stats_after);
    }
    Json event = {{"event", "iteration"}, {"n", n}, {"timed", timed}, {"time_us", time_us}};
    event.update(verify(n));
    const uint64_t checksum = event.at("checksum");
    Result<bool> same = all_ranks_have(checksum);
    if (!same.ok()) return same.status();
    if (!same.value()) {
      event["wrong"] = event.at("wrong").get<uint64_t>() + 1;
      event["first_wrong"] = "this result has other bits than another rank's";
    }
    return event;
  }

 private:
  struct Tensor {
    std::vector<uint8_t> input;
    std::vector<uint8_t> output;
  };

  Status sum_all() {
    AllReduceOptions options;
    options.type = settings_.type;
    options.op = settings_.op;
    std::vector<Work> works;
    for (Tensor& tensor : tensors_) {
      const TensorView view{tensor.input.data(), tensor.output.data(), settings_.count()};
      works.push_back(communicator_->all_reduce(view, options));
    }
    for (const Work& work : works) {
      if (Status status = work.wait(); !status.ok()) return status;
    }
    return {};
  }

  // If all ranks have the same checksum, its halves sum to world_size times themselves.
  Result<bool> all_ranks_have(uint64_t checksum) {
    const int64_t halves[2] = {static_cast<int64_t>(checksum >> 32),
                               static_cast<int64_t>(checksum & 0xFFFFFFFF)};
    int64_t sums[2] = {0, 0};
    AllReduceOptions options;
    options.type = DataType::kInt64;
    options.timeout = barrier_timeout_;
    const Status status = communicator_->all_reduce(TensorView{halves, sums, 2}, options).wait();
    if (!status.ok()) return status;
    const int ranks = communicator_->world_size();
    return sums[0] == halves[0] * ranks && sums[1] == halves[1] * ranks;
  }

  Json verify(int n) {
    uint64_t wrong = 0;
    uint64_t checksum = 0;
    double worst_error = 0;
    std::string first_wrong;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Verdict verdict =
          data_.verify({n, static_cast<int>(i)}, tensors_[i].output.data(), settings_.count());
      wrong += verdict.wrong > 0 ? 1 : 0;
      if (first_wrong.empty()) first_wrong = verdict.first_wrong;
      worst_error = std::max(worst_error, verdict.worst_error);
      checksum = checksum * 31 + verdict.checksum;
    }
    return {{"verified", tensors_.size()},
            {"wrong", wrong},
            {"first_wrong", first_wrong},
            {"worst_error", worst_error},
            {"checksum", checksum}};
  }

  std::unique_ptr<Communicator> communicator_;
  std::chrono::milliseconds barrier_timeout_;
  const BenchSettings& settings_;
  BenchData data_;
  std::vector<Tensor> tensors_;
  Totals totals_;
};

Status run(CommunicatorOptions options, const BenchSettings& settings, const BenchEvents& report) {
  options.on_root_bound = [&](const std::string& address) {
    report({{"event", "root"}, {"address", address}});
  };
  Result<std::unique_ptr<Communicator>> joined = Communicator::connect(options);
  if (!joined.ok()) return joined.status();
  BenchRank rank(std::move(joined).value(), settings, options.timeout);
  report({{"event", "joined"}, {"summed_by", rank.communicator().describe()}});
  for (int n = 0; n < settings.warmup + settings.iterations; ++n) {
    Result<Json> event = rank.iterate(n);
    if (!event.ok()) return event.status();
    report(event.value());
  }
  // Nobody leaves while another rank still waits for a last result.
  if (Status status = rank.wait_for_all(); !status.ok()) return status;
  const CommunicatorStats stats = rank.communicator().stats();
  Json end = rank.totals().to_json(stats.srtt_us);
  end["failovers"] = stats.failovers;
  end["event"] = "end";
  report(end);
  return {};
}

}  // namespace

Status run_bench_worker(CommunicatorOptions options, const BenchSettings& settings,
                        const BenchEvents& report) {
  const Status status = run(std::move(options), settings, report);
  if (!status.ok()) {
    report({{"event", "error"},
            {"code", error_name(status.code())},
            {"message", status.to_string()},
            {"rank", status.rank()}});
  }
  return status;
}

}  // namespace netsum::tool
