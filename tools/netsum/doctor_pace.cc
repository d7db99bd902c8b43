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

constexpr int kRanks = 2;
constexpr int kTurns = 4;             // of each way
constexpr int kSums = 8;              // of a turn; the first one is not counted
constexpr size_t kElements = 65'536;  // 256 KiB
// What counts as a gain: by so much less time, or so many packets less of a thousand sent again in as much time.
constexpr double kFaster = 0.95, kAsFast = 1.02, kFewerOfThousand = 2;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double again_of_thousand(const PaceTrial& trial) {
  return 1e3 * static_cast<double>(trial.sent_again) /
         static_cast<double>(std::max<uint64_t>(1, trial.packets));
}

Status sum_as(const GroupCheck& check, int rank, double pace_bps, PaceTrial* trial) {
  CommunicatorOptions options;
  options.rank = rank;
  options.world_size = kRanks;
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
  std::vector<float> data(kElements, 1);
  for (int i = 0; i < kSums; ++i) {
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

// One turn; adds it to the trial.
Status take_turn(const GroupCheck& check, double pace_bps, PaceTrial* trial) {
  PaceTrial of_other;
  std::future<Status> other =
      std::async(std::launch::async, [&] { return sum_as(check, 1, pace_bps, &of_other); });
  const Status mine = sum_as(check, 0, pace_bps, trial);
  const Status its = other.get();
  if (!mine.ok() || !its.ok()) return mine.ok() ? its : mine;
  trial->packets += of_other.packets;
  trial->sent_again += of_other.sent_again;
  return {};
}

std::string text_of(const PaceTrial& trial) {
  return fmt::format("{:.2f} ms a sum, {} of {} packets sent again", median(trial.ms), trial.sent_again,
                     trial.packets);
}

}  // namespace

Finding judge_pace(const std::string& address, double pace_bps, const PaceTrial& without,
                   const PaceTrial& with) {
  const std::string pace = format_rate(static_cast<uint64_t>(pace_bps));
  Finding finding{Grade::kOk, address + " pace",
                  fmt::format("without: {}; at {}: {}", text_of(without), pace, text_of(with)), ""};
  const double time = median(with.ms) / median(without.ms);
  const double fewer = again_of_thousand(without) - again_of_thousand(with);
  const std::string advice = fmt::format("set NETSUM_PACE={} on all ranks: in these sums ", pace);
  if (time <= kFaster) {
    finding.advice = advice + fmt::format("it saved {:.0f} % of the time", 100 * (1 - time));
  } else if (time <= kAsFast && fewer >= kFewerOfThousand) {
    finding.advice =
        advice + fmt::format("{:.1f} % fewer packets were sent again, in as much time", fewer / 10);
  } else {
    finding.found += time > kAsFast ? fmt::format("; pacing costs {:.0f} % more time here", 100 * (time - 1))
                                    : "; pacing gains nothing here";
  }
  if (!finding.advice.empty()) finding.grade = Grade::kWarn;
  return finding;
}

Finding check_pace(const GroupCheck& check) {
  PaceTrial without, with;
  for (int turn = 0; turn < kTurns; ++turn) {
    for (const bool paced : {turn % 2 == 0, turn % 2 != 0}) {
      const Status status = take_turn(check, paced ? check.pace_bps : 0, paced ? &with : &without);
      if (!status.ok())
        return {Grade::kFail, check.address + " pace", status.to_string(), advice_for(status)};
    }
  }
  return judge_pace(check.address, check.pace_bps, without, with);
}

}  // namespace netsum::tool
