// Whether an aggregator adds right: sums whose values are known, by two ranks of this process.
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <future>

#include "netsum/communicator.h"
#include "tools/netsum/doctor_checks.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr int kOperations = 20;
constexpr size_t kSumsElements = 50'000;  // hundreds of packets

struct RankReport {
  Status status;
  uint64_t wrong = 0;  // elements that were wrong, although nothing was refused
  CommunicatorStats stats;
};

CommunicatorOptions options_for(const GroupCheck& check, int rank) {
  CommunicatorOptions options;
  options.rank = rank;
  options.world_size = kCheckRanks;
  options.job = "doctor-" + std::to_string(getpid()) + "-sums";
  options.aggregators = {check.address};
  options.aggregator_token = check.aggregator_token;
  options.tls = check.tls;
  options.mtu = check.mtu;
  options.slots = 16;
  options.shared_memory = false;
  options.verify = *check.verify;
  options.connect_timeout = check.timeout;
  options.timeout = check.timeout;
  return options;
}

// Small whole numbers, whose sums are exact.
float contribution(int rank, int operation, size_t i) {
  return static_cast<float>((i + static_cast<size_t>(7 * operation)) % 100 + static_cast<size_t>(rank));
}

RankReport sum_as(const GroupCheck& check, int rank) {
  RankReport report;
  const auto connected = Communicator::connect(options_for(check, rank));
  report.status = connected.status();
  if (!report.status.ok()) return report;
  Communicator& communicator = **connected;
  std::vector<float> data(kSumsElements);
  for (int operation = 0; operation < kOperations && report.status.ok(); ++operation) {
    for (size_t i = 0; i < data.size(); ++i) data[i] = contribution(rank, operation, i);
    report.status = communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {}).wait();
    if (!report.status.ok()) break;
    for (size_t i = 0; i < data.size(); ++i) {
      const float right = contribution(0, operation, i) + contribution(1, operation, i);
      report.wrong += data[i] == right ? 0 : 1;
    }
  }
  report.stats = communicator.stats();
  return report;
}

std::string name_of(Verify mode) {
  const auto named = std::find_if(kVerifyModes.begin(), kVerifyModes.end(),
                                  [mode](const auto& entry) { return entry.second == mode; });
  return named->first;
}

// The rank that has seen the cause: the other one may only have been told.
const RankReport& more_telling(const std::array<RankReport, kCheckRanks>& ranks) {
  return ranks[0].status.ok() ? ranks[1] : ranks[0];
}

}  // namespace

Finding check_sums(const GroupCheck& check, const std::vector<std::string>& can) {
  const std::string subject = check.address + " sums", mode = name_of(*check.verify);
  if (!can.empty() && std::find(can.begin(), can.end(), mode) == can.end()) {
    return {
        Grade::kFail, subject,
        fmt::format("this aggregator cannot sum for jobs with verify '{}', only with {}", mode, listed(can)),
        fmt::format("set verify to {} on all ranks, or use another aggregator", can.back())};
  }
  std::array<RankReport, kCheckRanks> ranks;
  std::future<RankReport> other = std::async(std::launch::async, [&] { return sum_as(check, 1); });
  ranks[0] = sum_as(check, 0);
  ranks[1] = other.get();

  const std::string what_to_do =
      "take this aggregator out of service; test its memory, and the network devices on the way";
  if (const Status& status = more_telling(ranks).status; !status.ok()) {
    return {Grade::kFail, subject, status.to_string(),
            status.code() == ErrorCode::kWrongSum ? what_to_do : advice_for(status)};
  }
  const uint64_t wrong = ranks[0].wrong + ranks[1].wrong;
  if (wrong > 0) {
    return {Grade::kFail, subject,
            fmt::format("{} of {} elements were wrong, and with verify '{}' nothing has told", wrong,
                        kCheckRanks * kOperations * kSumsElements, mode),
            what_to_do + "; with verify both or sum, jobs notice it"};
  }
  const uint64_t refused = ranks[0].stats.sums_refused + ranks[1].stats.sums_refused;
  if (refused > 0) {
    return {Grade::kWarn, subject,
            fmt::format("{} results had wrong sums, and were right when they were asked for again", refused),
            "test the memory of this host, and the network devices on the way"};
  }
  const uint64_t verified = ranks[0].stats.sums_verified + ranks[1].stats.sums_verified;
  return {Grade::kOk, subject,
          fmt::format("{} sums of two ranks were right with verify '{}'{}", kOperations, mode,
                      verified > 0 ? fmt::format("; {} results were verified by their tags", verified) : ""),
          ""};
}

}  // namespace netsum::tool
