// Whether pacing gains at an aggregator: sums of two ranks of this process, with the pace and without, in turns.
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <future>

#include "netsum/communicator.h"
#include "tools/netsum/doctor_checks.h"
#include "tools/netsum/quantity.h"

namespace netsum::tool {
namespace {

using std::chrono::steady_clock;

constexpr int kTurns = 5;           // of each way
constexpr size_t kFewestTurns = 4;  // of which chance makes one way the better one in all, once in 70 times
constexpr int kSums = 8;            // of a turn, at most; the first one is not counted
constexpr int kFirstSums = 4;       // of the turn that shows how long sums take
constexpr size_t kPaceElements = 65'536;  // 256 KiB
constexpr double kBudgetMs = 20'000;      // after which no turn begins
// What counts as a gain: by so much less time, or so many packets less of a thousand sent again in as much time.
constexpr double kFaster = 0.95, kAsFast = 1.02, kFewerOfThousand = 2;
// Where sums must take so many times as long, no turn is needed.
constexpr double kFarSlower = 2;

double upper_median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double median_ms(const PaceTrial& turn) {
  return upper_median(turn.ms);
}

double again_of_thousand(const PaceTrial& trial) {
  return 1e3 * static_cast<double>(trial.sent_again) /
         static_cast<double>(std::max<uint64_t>(1, trial.packets));
}

PaceTrial together(const std::vector<PaceTrial>& turns) {
  PaceTrial all;
  for (const PaceTrial& turn : turns) {
    all.ms.push_back(median_ms(turn));
    all.packets += turn.packets;
    all.sent_again += turn.sent_again;
  }
  return all;
}

// Each of these turns was below all others.
bool is_below(const std::vector<PaceTrial>& ones, const std::vector<PaceTrial>& others,
              double (*value)(const PaceTrial&)) {
  if (std::min(ones.size(), others.size()) < kFewestTurns) return false;
  const auto less = [&](const PaceTrial& a, const PaceTrial& b) { return value(a) < value(b); };
  return value(*std::max_element(ones.begin(), ones.end(), less)) <
         value(*std::min_element(others.begin(), others.end(), less));
}

Status sum_at_pace(const GroupCheck& check, int rank, double pace_bps, int sums, PaceTrial* trial) {
  CommunicatorOptions options;
  options.rank = rank;
  options.world_size = kCheckRanks;
  options.job = "doctor-" + std::to_string(getpid()) + "-pace";
  options.aggregators = {check.address};
  options.aggregator_token = check.aggregator_token;
  options.tls = check.tls;
  options.mtu = check.mtu;
  options.shared_memory = false;
  options.pace_bps = pace_bps;
  options.connect_timeout = check.timeout;
  options.timeout = check.timeout;
  const auto connected = Communicator::connect(options);
  if (!connected.ok()) return connected.status();
  Communicator& communicator = **connected;
  std::vector<float> data(kPaceElements, 1);
  for (int i = 0; i < sums; ++i) {
    const auto begin = steady_clock::now();
    const Status status =
        communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {}).wait();
    if (!status.ok()) return status;
    const std::chrono::duration<double, std::milli> took = steady_clock::now() - begin;
    if (i > 0) trial->ms.push_back(took.count());
  }
  const CommunicatorStats stats = communicator.stats();
  trial->packets += stats.packets_sent;
  trial->sent_again += stats.retransmissions;
  return communicator.barrier(check.timeout);  // so that the other one has its last result
}

Status take_turn(const GroupCheck& check, double pace_bps, int sums, PaceTrial* trial) {
  PaceTrial of_other;
  std::future<Status> other =
      std::async(std::launch::async, [&] { return sum_at_pace(check, 1, pace_bps, sums, &of_other); });
  const Status mine = sum_at_pace(check, 0, pace_bps, sums, trial);
  const Status its = other.get();
  if (!mine.ok() || !its.ok()) return mine.ok() ? its : mine;
  trial->packets += of_other.packets;
  trial->sent_again += of_other.sent_again;
  return {};
}

std::string trial_text(const PaceTrial& trial) {
  return fmt::format("{:.2f} ms a sum, {} of {} packets sent again", upper_median(trial.ms), trial.sent_again,
                     trial.packets);
}

// What a rank cannot send faster at this pace: all but 16 packets, which leave at once (WorkerOptions::pace_bytes_per_s).
double least_ms(const GroupCheck& check) {
  const double paced = static_cast<double>(kPaceElements * sizeof(float)) - 16.0 * check.mtu;
  return std::max(0.0, paced) * 8e3 / check.pace_bps;
}

}  // namespace

Finding judge_pace(const std::string& address, double pace_bps, const std::vector<PaceTrial>& without,
                   const std::vector<PaceTrial>& with) {
  const std::string pace = format_rate(static_cast<uint64_t>(pace_bps));
  const PaceTrial all_without = together(without), all_with = together(with);
  Finding finding{Grade::kOk, address + " pace",
                  fmt::format("without: {}; at {}: {}", trial_text(all_without), pace, trial_text(all_with)),
                  ""};
  const double time = median_ms(all_with) / median_ms(all_without);
  const double fewer = again_of_thousand(all_without) - again_of_thousand(all_with);
  const bool faster = time <= kFaster, calmer = time <= kAsFast && fewer >= kFewerOfThousand;
  const std::string advice = fmt::format("set NETSUM_PACE={} on all ranks: in these sums ", pace);
  if (faster && is_below(with, without, median_ms)) {
    finding.advice = advice + fmt::format("it saved {:.0f} % of the time", 100 * (1 - time));
  } else if (calmer && is_below(with, without, again_of_thousand)) {
    finding.advice =
        advice + fmt::format("{:.1f} % fewer packets were sent again, in as much time", fewer / 10);
  } else if (time > kAsFast && is_below(without, with, median_ms)) {
    finding.found += fmt::format("; pacing costs {:.0f} % more time here", 100 * (time - 1));
  } else if (std::min(with.size(), without.size()) < kFewestTurns) {
    finding.found += fmt::format("; {} turns of each way do not show whether pacing gains", with.size());
  } else {
    finding.found += faster || calmer ? "; pacing gains nothing here that turns without it do not reach, too"
                                      : "; pacing gains nothing here";
  }
  if (!finding.advice.empty()) finding.grade = Grade::kWarn;
  return finding;
}

Finding check_pace(const GroupCheck& check) {
  const auto begin = steady_clock::now();
  const auto failed = [&](const Status& status) {
    return Finding{Grade::kFail, check.address + " pace", status.to_string(), advice_for(status)};
  };
  PaceTrial first;
  if (const Status status = take_turn(check, 0, kFirstSums, &first); !status.ok()) return failed(status);
  const double slowest_ms = *std::max_element(first.ms.begin(), first.ms.end()), least = least_ms(check);
  if (least > kFarSlower * slowest_ms) {
    return {Grade::kOk, check.address + " pace",
            fmt::format("without: {}; at {}: at least {:.2f} ms; pacing costs {:.0f} % more time here",
                        trial_text(first), format_rate(static_cast<uint64_t>(check.pace_bps)), least,
                        100 * (least / median_ms(first) - 1)),
            ""};
  }
  const double of_turn_ms = kBudgetMs / (2 * kTurns);
  const int sums = static_cast<int>(std::clamp(of_turn_ms / std::max(slowest_ms, least), 2.0, 1.0 * kSums));
  std::vector<PaceTrial> without, with;
  for (int turn = 0; turn < kTurns; ++turn) {
    const std::chrono::duration<double, std::milli> spent = steady_clock::now() - begin;
    if (turn > 0 && spent.count() > kBudgetMs) break;
    for (const bool paced : {turn % 2 == 0, turn % 2 != 0}) {
      PaceTrial& trial = (paced ? with : without).emplace_back();
      const Status status = take_turn(check, paced ? check.pace_bps : 0, sums, &trial);
      if (!status.ok()) return failed(status);
    }
  }
  return judge_pace(check.address, check.pace_bps, without, with);
}

}  // namespace netsum::tool
