// netsum emulate-role: one process of `netsum emulate`, which is no command for people: ghosts, or a real rank without PyTorch,
// which has tensors, adds nothing to them but their sums, and sleeps where its program computes.
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "emulate/ghost/cast.h"
#include "emulate/ghost/crew.h"
#include "emulate/ghost/operation.h"
#include "netsum/communicator.h"
#include "netsum/settings.h"
#include "src/base/clock.h"
#include "src/base/file_descriptor.h"
#include "tools/netsum/emulate_plan.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/process.h"
#include "tools/netsum/rack_system.h"
#include "tools/netsum/stop_signals.h"
#include "tools/netsum/subcommand.h"

namespace netsum::tool {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr milliseconds kMostSleep{50};
// Steps are reported at most so often.
constexpr milliseconds kReportInterval{200};
// As that of ghosts: before something is due, the thread spins instead of sleeping.
constexpr nanoseconds kSpin{50'000};
// As that of a process group by default: the real rank may compute for long.
constexpr std::chrono::minutes kOperationTimeout{30};

// Of this program: what getrusage() has includes the one that started it.
uint64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  uint64_t kib = 0;
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) kib = std::strtoull(line.c_str() + 6, nullptr, 10);
  return kib * 1024;
}

// What computes on this machine must not delay ghosts, which would compute elsewhere. Niceness does not help among sessions, of which
// the kernel makes groups. It is this thread's alone, so that it takes one core at most. Without the right to it, ghosts may be late.
void put_first() {
  prctl(PR_SET_TIMERSLACK, 1UL);  // otherwise timers of threads without that right are 50 us late
  const sched_param least{.sched_priority = sched_get_priority_min(SCHED_RR)};
  static_cast<void>(sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &least));
}

void tell(const Json& event) {
  std::printf("%s\n", event.dump().c_str());
  std::fflush(stdout);
}

// Times are of the wall clock, as in traces.
Json result_of(int rank, const std::vector<const program::Step*>& steps, int group,
               const ghost::Player& player, int64_t wall_offset_us) {
  const auto wall_us = [wall_offset_us](const std::vector<int64_t>& times_ns) {
    Json json = Json::array();
    for (const int64_t ns : times_ns)
      json.push_back(ns == INT64_MAX ? Json() : Json(ns / 1000 + wall_offset_us));
    return json;
  };
  return {{"rank", rank},
          {"of_all", ghost::operations_of(steps, group)},
          {"in_first_step", steps.front()->operations.size()},
          {"begins_us", wall_us(player.begins_ns())},
          {"submitted_us", wall_us(player.submitted_ns())},
          {"done_us", wall_us(player.done_ns())},
          {"lateness_ns", player.lateness_ns()}};
}

// Executes a program over a communicator.
class RealRank {
 public:
  // Communicators of all groups, by number.
  using Communicators = std::map<int, std::unique_ptr<Communicator>>;

  RealRank(Communicators communicators, std::vector<const program::Step*> steps, const ghost::Knobs& knobs,
           std::chrono::milliseconds timeout)
      : steps_(steps),
        player_(std::move(steps), knobs),
        timeout_(timeout),
        communicators_(std::move(communicators)) {
    size_t bytes = 0;
    for (const program::Step* step : steps_)
      for (const program::Operation& operation : step->operations)
        bytes = std::max(bytes, static_cast<size_t>(operation.count) * size_of(operation.type));
    input_.resize(bytes, 0x3c);  // small floating-point numbers, the same in each type
    output_.resize(bytes);
  }

  Status run(const StopSignals& stop, const std::function<void(uint64_t)>& on_step) {
    player_.start(ghost::now_ns());
    uint64_t told = 0;
    std::vector<ghost::Player::Submission> due;
    while (!player_.ended()) {
      due.clear();
      {
        const std::lock_guard lock(mutex_);
        if (!failure_.ok()) return failure_;
        for (const auto& [id, at_ns] : done_) player_.complete(id, at_ns);
        done_.clear();
      }
      player_.advance(ghost::now_ns(), &due);
      for (const auto& one : due) submit(one);
      for (; told < player_.step(); ++told) on_step(told);
      if (player_.ended() || !due.empty()) continue;
      if (stop.wait(milliseconds(0)) != 0) return {ErrorCode::kAborted, "stopped"};
      const int64_t now = ghost::now_ns();
      const nanoseconds left(std::min<int64_t>(player_.next_ns() - now, nanoseconds(kMostSleep).count()));
      if (left <= kSpin) continue;
      std::unique_lock lock(mutex_);
      ended_.wait_for(lock, left - kSpin, [this] { return !done_.empty() || !failure_.ok(); });
    }
    return {};
  }
  // Writes when it submits each operation of that group.
  void write_times(const std::string& path, int group) {
    times_ = FileDescriptor(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    group_of_all_ = group;
  }
  const ghost::Player& player() const { return player_; }
  std::pair<uint64_t, uint64_t> bytes_sent_and_received() const {
    std::pair<uint64_t, uint64_t> bytes;
    for (const auto& [group, communicator] : communicators_) {
      const CommunicatorStats stats = communicator->stats();
      bytes.first += stats.bytes_sent;
      bytes.second += stats.bytes_received;
    }
    return bytes;
  }

 private:
  void submit(const ghost::Player::Submission& one) {
    if (times_.valid() && one.operation->group == group_of_all_) {
      const int64_t now = ghost::now_ns();
      static_cast<void>(
          pwrite(times_.get(), &now, sizeof now, static_cast<off_t>(sizeof now * submitted_++)));
    }
    const Work work = start(*one.operation);
    work.on_done([this, id = one.id](const Status& status) {
      const std::lock_guard lock(mutex_);
      if (!status.ok() && failure_.ok()) failure_ = status;
      done_.emplace_back(id, ghost::now_ns());
      ended_.notify_one();
    });
  }

  Work start(const program::Operation& operation) {
    using program::Collective;
    Communicator* const communicator = communicators_.at(operation.group).get();
    const int rank = communicator->rank();
    const size_t element = size_of(operation.type);
    std::vector<TensorView> tensors;
    std::vector<BufferView> buffers;
    size_t begin = 0;
    for (const uint64_t count : program::counts_of_parts(operation, communicator->world_size())) {
      tensors.push_back({input_.data() + begin, output_.data() + begin, count});
      buffers.push_back({input_.data() + begin, output_.data() + begin, count * element});
      begin += count * element;
    }
    const ReduceOptions reduce{
        .type = operation.type, .op = operation.op, .timeout = timeout_, .tag = operation.tag};
    const CollectiveOptions move{.timeout = timeout_, .tag = operation.tag};
    const auto own = static_cast<size_t>(rank);
    switch (operation.collective) {
      case Collective::kReduce:
        return communicator->reduce(tensors, operation.root, reduce);
      case Collective::kReduceScatter:
        return communicator->reduce_scatter(tensors, reduce);
      case Collective::kBroadcast:
        return communicator->broadcast(buffers, operation.root, move);
      case Collective::kAllGather:
      case Collective::kGather:
        for (size_t i = 0; i < buffers.size(); ++i)
          if (i != own) buffers[i].input = nullptr;
        return operation.collective == Collective::kGather
                   ? communicator->gather(buffers, operation.root, move)
                   : communicator->all_gather(buffers, move);
      case Collective::kScatter:
        return communicator->scatter(buffers, operation.root, move);
      case Collective::kBarrier:
        return communicator->start_barrier(timeout_);
      default:
        return communicator->all_reduce(tensors, reduce);
    }
  }

  const std::vector<const program::Step*> steps_;
  ghost::Player player_;
  const std::chrono::milliseconds timeout_;
  FileDescriptor times_;
  int group_of_all_ = -1;
  uint64_t submitted_ = 0;  // of that group, if there are times
  // All operations use the same memory: what comes out is of no interest.
  std::vector<uint8_t> input_, output_;
  std::mutex mutex_;  // guards the following members
  std::condition_variable ended_;
  std::vector<std::pair<uint64_t, int64_t>> done_;  // ids and times
  Status failure_;
  // The last one: when it ends, it ends operations in flight, which use the others.
  const Communicators communicators_;
};

class EmulateRole : public Subcommand {
 public:
  explicit EmulateRole(CLI::App& root) {
    app_ = root.add_subcommand("emulate-role", "One process of `netsum emulate`")->group("");
    app_->add_option("PLAN", path_)->required();
  }
  bool chosen() const override { return app_->parsed(); }
  int run() override;

 private:
  struct Part {
    int rank = 0;
    std::vector<const program::Step*> steps;
    std::vector<ghost::GroupJob> groups;
  };

  Status prepare();
  Status run_ghosts();
  Status run_real();
  void on_step(uint64_t step);
  // `cpu_seconds`: after joining.
  Status write_result(double cpu_seconds, Json ranks);

  CLI::App* app_;
  std::string path_;
  std::optional<StopSignals> stop_;  // from run() on
  EmulatePlan plan_;
  CommunicatorOptions options_;
  std::vector<program::Program> records_;
  std::vector<std::shared_ptr<const void>> value_files_;
  std::vector<Part> parts_;
  // Of rank 0, and the number of its group of all ranks.
  std::vector<const program::Step*> leader_steps_;
  int leader_group_ = 0;
  int64_t wall_offset_us_ = 0;
  bool exits_at_once_ = false;
  steady_clock::time_point told_;
};

Status EmulateRole::prepare() {
  std::ifstream in(path_);
  try {
    plan_ = emulate_plan_from_json(Json::parse(in));
  } catch (const Json::exception& error) {
    return {ErrorCode::kInvalidArgument, path_ + ": " + error.what()};
  }
  wall_offset_us_ = std::chrono::duration_cast<std::chrono::microseconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count() -
                    monotonic_us();
  const auto lookup = [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value == nullptr ? "" : value);
  };
  const Result<Settings> settings = Settings::read(lookup);
  if (!settings.ok()) return settings.status();
  options_ = settings->options();
  options_.job = plan_.job;
  options_.token = plan_.token;
  options_.world_size = plan_.ranks;
  options_.connect_timeout = plan_.connect_timeout;
  options_.timeout = std::max<milliseconds>(options_.timeout, kOperationTimeout);
  options_.shared_memory = false;  // each rank is a host
  Result<std::vector<program::Program>> records = read_profile(plan_);
  if (!records.ok()) return records.status();
  records_ = std::move(records).value();
  const auto cast = ghost::Cast::of(records_);
  if (!cast.ok()) return cast.status();
  if (!plan_.times_path.empty()) {
    auto steps = cast->steps(0, plan_.steps, plan_.seed);
    auto groups = cast->groups(0, plan_.job);
    if (!steps.ok() || !groups.ok()) return steps.ok() ? groups.status() : steps.status();
    leader_steps_ = std::move(steps).value();
    leader_group_ = groups->front().id;
  }
  for (const int rank : plan_.own_ranks) {
    auto steps = cast->steps(rank, plan_.steps, plan_.seed);
    if (!steps.ok()) return steps.status();
    auto groups = cast->groups(rank, plan_.job);
    if (!groups.ok()) return groups.status();
    parts_.push_back({rank, std::move(steps).value(), std::move(groups).value()});
  }
  return {};
}

void EmulateRole::on_step(uint64_t step) {
  const auto now = steady_clock::now();
  if (now - told_ < kReportInterval) return;
  told_ = now;
  tell({{"event", "step"}, {"step", step}});
}

Status EmulateRole::write_result(double cpu_seconds, Json ranks) {
  const Json result = {{"is_real", plan_.is_real},
                       {"cpu_seconds", cpu_seconds},
                       {"peak_bytes", peak_bytes()},
                       {"ranks", std::move(ranks)}};
  std::ofstream out(plan_.result_path);
  out << result.dump() << "\n";
  out.close();
  return out.fail() ? Status(ErrorCode::kResourceExhausted, "cannot write " + plan_.result_path) : Status();
}

Status EmulateRole::run_ghosts() {
  ghost::CrewOptions options;
  options.communicator = options_;
  options.rack_size = plan_.rack_size;
  options.contributions = plan_.contributions;
  options.seed = plan_.seed;
  if (plan_.contributions == ghost::Contributions::kRecorded)
    if (const Status status = read_profile_values(plan_, records_, &options.values, &value_files_);
        !status.ok())
      return status;
  for (Part& part : parts_) {
    const auto late = plan_.late.find(part.rank);
    options.ghosts.push_back({.rank = part.rank,
                              .groups = part.groups,
                              .steps = part.steps,
                              .knobs = plan_.knobs_of(part.rank),
                              .joins_after = late != plan_.late.end() ? late->second : milliseconds(0)});
  }
  const FileDescriptor times(plan_.times_path.empty() ? -1
                                                      : open(plan_.times_path.c_str(), O_RDONLY | O_CLOEXEC));
  if (times.valid()) {
    options.pace.emplace(leader_steps_, leader_group_, plan_.follows, !ghost::of_one_machine(records_));
    options.leader_submitted_ns = [&times](uint64_t operation) {
      int64_t ns = 0;  // stays, where nothing has been written yet
      static_cast<void>(pread(times.get(), &ns, sizeof ns, static_cast<off_t>(sizeof ns * operation)));
      return ns;
    };
  }
  options.in_place_of = [this](int rank, const std::function<Status()>& open) -> Status {
    const auto place = plan_.network_namespaces.find(rank);
    if (place == plan_.network_namespaces.end()) return open();
    const InNetworkNamespace there(place->second);
    return there.status().ok() ? open() : there.status();
  };
  options.on_step = [this](uint64_t step) { on_step(step); };
  // As a killed process: nothing is said, and no connection is closed in order.
  options.on_crash = [](int rank) {
    tell({{"event", "crash"}, {"rank", rank}});
    std::raise(SIGKILL);
  };
  auto crew = ghost::Crew::join(std::move(options));
  if (!crew.ok()) return crew.status();
  tell({{"event", "joined"}});
  const double cpu_before = cpu_seconds();
  put_first();
  std::atomic<bool> ended = false;
  std::thread watch([this, &crew, &ended] {
    while (!ended.load())
      if (stop_->wait(kMostSleep) != 0) (*crew)->stop();
  });
  const Status status = (*crew)->run();
  ended.store(true);
  watch.join();
  Json ranks = Json::array();
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    Json rank = result_of(part.rank, part.steps, part.groups.front().id, (*crew)->player(i), wall_offset_us_);
    rank["bytes_sent"] = (*crew)->bytes_sent(i);
    rank["bytes_received"] = (*crew)->bytes_received(i);
    ranks.push_back(std::move(rank));
  }
  // Joins of groups that nobody makes would take as long as an operation: the end of the process ends them.
  if (!(*crew)->has_all_groups()) {
    static_cast<void>(crew->release());
    exits_at_once_ = true;
  }
  if (const Status written = write_result(cpu_seconds() - cpu_before, std::move(ranks)); !written.ok())
    return written;
  return status;
}

Status EmulateRole::run_real() {
  const Part& part = parts_.front();
  for (const program::Step* step : part.steps)
    for (const program::Operation& operation : step->operations)
      if (const Status status = ghost::check_supported(operation); !status.ok()) return status;
  RealRank::Communicators communicators;
  for (const ghost::GroupJob& group : part.groups) {
    CommunicatorOptions options = options_;
    options.job = group.job;
    options.rank = group.rank_of(part.rank);
    options.world_size = static_cast<int>(group.ranks.size());
    auto communicator = Communicator::connect(options);
    if (!communicator.ok()) return communicator.status();
    communicators[group.id] = std::move(communicator).value();
  }
  tell({{"event", "joined"}});
  const double cpu_before = cpu_seconds();
  RealRank rank(std::move(communicators), part.steps, plan_.knobs_of(part.rank), options_.timeout);
  if (part.rank == 0 && !plan_.times_path.empty()) rank.write_times(plan_.times_path, part.groups.front().id);
  const Status status = rank.run(*stop_, [this](uint64_t step) { on_step(step); });
  Json result = result_of(part.rank, part.steps, part.groups.front().id, rank.player(), wall_offset_us_);
  const auto [sent, received] = rank.bytes_sent_and_received();
  result["bytes_sent"] = sent;
  result["bytes_received"] = received;
  if (const Status written = write_result(cpu_seconds() - cpu_before, Json::array({std::move(result)}));
      !written.ok())
    return written;
  return status;
}

int EmulateRole::run() {
  stop_.emplace();
  Status status = prepare();
  if (status.ok()) status = plan_.is_real ? run_real() : run_ghosts();
  if (status.ok()) {
    tell({{"event", "ended"}});
    if (exits_at_once_) std::quick_exit(kExitOk);
    return kExitOk;
  }
  tell({{"event", "failed"},
        {"code", error_name(status.code())},
        {"rank", status.rank()},
        {"message", status.message()}});
  if (exits_at_once_) std::quick_exit(kExitFailed);
  return kExitFailed;
}

}  // namespace

std::unique_ptr<Subcommand> make_emulate_role_command(CLI::App& root) {
  return std::make_unique<EmulateRole>(root);
}

}  // namespace netsum::tool
