#include "tests/attack/lies_rack.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "aggregator/control/control_service.h"
#include "aggregator/xdp/xdp_dataplane.h"
#include "netsum/communicator.h"
#include "tests/attack/frame_path.h"
#include "tests/attack/known_jobs.h"
#include "tests/conformance/veth_lab.h"

namespace netsum::attack {
namespace {

using conformance::VethLab;

constexpr const char* kControl = "10.99.1.1:7001";
constexpr unsigned kPatienceS = 90;
constexpr size_t kElements = 3'000;

// In memory that all processes share.
struct Board {
  std::atomic<bool> listening = false;  // the aggregator
  std::atomic<bool> lying = false;
  std::atomic<bool> stop = false;
  pthread_barrier_t ranks;
  RackReport report;
  ErrorCode failure = ErrorCode::kOk;  // of the aggregator
  std::array<char, 400> message{};
};

void write_text(const std::string& text, std::array<char, 400>* out) {
  const size_t size = std::min(text.size(), out->size() - 1);
  std::memcpy(out->data(), text.data(), size);
  (*out)[size] = 0;
}

pid_t fork_to(const std::function<void()>& body) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child != 0) return child;
  // Whatever goes wrong, nobody is left behind.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  alarm(kPatienceS);
  body();
  _exit(0);
}

void fail(Board* board, const Status& status) {
  board->failure = status.code();
  write_text(status.message(), &board->message);
}

// The aggregator and what is on its links.
void aggregate(const VethLab& lab, const RackOptions& options, Board* board) {
  const VethLab::Inside inside = lab.in_switch();
  auto xdp = start_xdp_dataplane(
      {.bind = VethLab::switch_address(), .interfaces = lab.ports(), .slots = 64, .max_jobs = 8});
  if (!xdp.ok()) return fail(board, xdp.status());
  KnownJobs jobs(std::move(xdp).value());
  auto path = FramePath::open(lab, static_cast<int>(lab.ports().size()));
  if (!path.ok()) return fail(board, path.status());
  PathLiar liar(options.liar, jobs);
  std::thread carrier([&] {
    const auto edit = [&](const FramePath::Passing& passing) { return liar(passing, !board->lying); };
    (*path)->carry(edit, board->stop);
  });
  ControlServiceOptions control;
  control.listen = kControl;
  control.max_jobs = 8;
  control.place.set_kind(PlaceInfo::SWITCH);
  control.place.set_address(kControl);
  const auto service = ControlService::start(control, &jobs);
  if (!service.ok()) fail(board, service.status());
  board->listening = service.ok();
  if (!service.ok()) board->stop = true;
  carrier.join();
  board->report.path = liar.report();
  board->report.frames_lost = (*path)->lost();
}

// Sums numbers whose sums are exact.
template <class Element>
Status sum_exact(Communicator& communicator, DataType type, RankReport* report) {
  const int world = communicator.world_size();
  std::vector<Element> data(kElements);
  const auto number = [](size_t i) { return static_cast<int>(i % 100); };
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<Element>(communicator.rank() + number(i));
  Status status =
      communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {.type = type}).wait();
  if (!status.ok()) return status;
  bool right = true;
  for (size_t i = 0; i < data.size(); ++i)
    right &= data[i] == static_cast<Element>(world * (world - 1) / 2 + world * number(i));
  ++report->operations;
  report->wrong_results += right ? 0 : 1;
  return status;
}

Status run_operations(Communicator& communicator, int count, RankReport* report) {
  Status status;
  for (int i = 0; i < count && status.ok(); ++i)
    status = i % 2 == 0 ? sum_exact<float>(communicator, DataType::kFloat32, report)
                        : sum_exact<int64_t>(communicator, DataType::kInt64, report);
  return status;
}

void note_end(int job, const Status& status, RankReport* report) {
  const bool says_where = status.message().find("by the aggregator at 10.99.") != std::string::npos;
  if (status.ok()) {
    ++report->jobs_whole;
  } else if (status.code() == ErrorCode::kWrongSum && says_where) {
    ++report->jobs_wrong_sum;
  } else if (report->trouble[0] == 0) {
    write_text("job " + std::to_string(job) + ": " + status.to_string(), &report->trouble);
  }
}

CommunicatorOptions options_of(const RackOptions& options, int rank, int job) {
  CommunicatorOptions mine;
  mine.rank = rank;
  mine.world_size = kRackRanks;
  mine.job = "lies" + std::to_string(job);
  mine.aggregators = {kControl};
  mine.verify = options.verify;
  mine.slots = 8;
  mine.shared_memory = false;
  if (options.failover) {
    const std::string first = VethLab::host_address(0).to_string();
    mine.root = first.substr(0, first.rfind(':') + 1) + std::to_string(7100 + job);
    mine.on_failure = FailurePolicy::kFailover;
    mine.fallback_aggregators = {"hosts"};
  }
  return mine;
}

void run_rank(const VethLab& lab, const RackOptions& options, int rank, Board* board) {
  const VethLab::Inside inside = lab.in_host(rank);
  RankReport& report = board->report.ranks[static_cast<size_t>(rank)];
  for (int job = 0; job < options.jobs; ++job) {
    auto communicator = Communicator::connect(options_of(options, rank, job));
    pthread_barrier_wait(&board->ranks);
    if (rank == 0) board->lying = true;
    note_end(job,
             communicator.ok() ? run_operations(**communicator, options.operations, &report)
                               : communicator.status(),
             &report);
    pthread_barrier_wait(&board->ranks);
    if (rank == 0) board->lying = false;
    if (!communicator.ok()) continue;
    const CommunicatorStats stats = (*communicator)->stats();
    report.sums_verified += stats.sums_verified;
    report.sums_refused += stats.sums_refused;
    report.failovers += stats.failovers;
  }
}

// Or the end of the process that is to make it so.
void wait_until(const std::atomic<bool>& ready, pid_t process) {
  siginfo_t end{};
  while (!ready && end.si_pid == 0) {
    waitid(P_PID, static_cast<id_t>(process), &end, WEXITED | WNOHANG | WNOWAIT);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

bool ended_well(pid_t child) {
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

uint64_t RackReport::sum(uint64_t RankReport::*count) const {
  uint64_t sum = 0;
  for (const RankReport& rank : ranks) sum += rank.*count;
  return sum;
}

Result<RackReport> run_rack(const RackOptions& options) {
  const auto lab = VethLab::make(kRackRanks, 1500, /*cut_links=*/true);
  if (!lab.ok()) return lab.status();
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status(ErrorCode::kInternal, "no shared memory");
  const std::unique_ptr<Board, void (*)(Board*)> board(new (memory) Board,
                                                       [](Board* shared) { munmap(shared, sizeof *shared); });
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&board->ranks, &shared, kRackRanks);

  const pid_t aggregator = fork_to([&] { aggregate(**lab, options, board.get()); });
  wait_until(board->listening, aggregator);
  bool well = true;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < kRackRanks && board->listening; ++rank)
    ranks.push_back(fork_to([&, rank] { run_rank(**lab, options, rank, board.get()); }));
  for (const pid_t rank : ranks) well &= ended_well(rank);
  board->stop = true;
  well &= ended_well(aggregator);
  if (board->failure != ErrorCode::kOk) return Status(board->failure, board->message.data());
  if (!well) return Status(ErrorCode::kInternal, "a process of the rack did not end by itself");
  return board->report;
}

}  // namespace netsum::attack
