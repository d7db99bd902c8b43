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
#include "netsum/aggregator.h"
#include "netsum/communicator.h"
#include "src/base/rng.h"
#include "tests/attack/frame_path.h"
#include "tests/attack/known_jobs.h"
#include "tests/attack/xdp_memory.h"
#include "tests/conformance/veth_lab.h"

namespace netsum::attack {
namespace {

using conformance::VethLab;

constexpr uint32_t kSlots = 64;
constexpr unsigned kPatienceS = 90;
constexpr size_t kElements = 3'000;

// In memory that all processes share.
struct Board {
  std::atomic<bool> listening = false;         // the aggregator
  std::atomic<bool> parent_listening = false;  // its parent
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

int ranks_of(const RackOptions& options) {
  return options.has_parent ? kMostRanks : kRackRanks;
}

// Ranks are on the first hosts, the parent on the next one.
std::string address_on(int host, int port) {
  const std::string address = VethLab::host_address(host).to_string();
  return address.substr(0, address.rfind(':') + 1) + std::to_string(port);
}
std::string parent_control(const RackOptions& options) {
  return address_on(ranks_of(options), 7001);
}
std::string rack_control() {
  const std::string address = VethLab::switch_address().to_string();
  return address.substr(0, address.rfind(':') + 1) + "7001";
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

void run_parent(const VethLab& lab, const RackOptions& options, Board* board) {
  const VethLab::Inside inside = lab.in_host(ranks_of(options));
  AggregatorOptions parent;
  parent.listen = parent_control(options);
  parent.in_switch = true;
  const auto aggregator = Aggregator::start(parent);
  if (!aggregator.ok()) return fail(board, aggregator.status());
  board->parent_listening = true;
  while (!board->stop) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

// While ranks sum, about as often as they do.
void flip_bits(XdpMemory* memory, Board* board) {
  for (Rng rng(1); !board->stop;) {
    std::this_thread::sleep_for(std::chrono::microseconds(50 + rng.below(500)));
    if (board->lying) board->report.flips += memory->flip(&rng, kSlots) ? 1 : 0;
  }
}

Result<std::unique_ptr<ControlService>> start_control(const RackOptions& options, Dataplane* dataplane) {
  ControlServiceOptions control;
  control.listen = rack_control();
  control.max_jobs = 8;
  control.place.set_kind(PlaceInfo::SWITCH);
  control.place.set_address(control.listen);
  if (options.has_parent) control.parent = parent_control(options);
  return ControlService::start(control, dataplane);
}

// The aggregator, what is on its links, and what happens to its memory.
void aggregate(const VethLab& lab, const RackOptions& options, Board* board) {
  const VethLab::Inside inside = lab.in_switch();
  auto xdp = start_xdp_dataplane(
      {.bind = VethLab::switch_address(), .interfaces = lab.ports(), .slots = kSlots, .max_jobs = 8});
  if (!xdp.ok()) return fail(board, xdp.status());
  auto memory = XdpMemory::find();
  if (!memory.ok()) return fail(board, memory.status());
  KnownJobs jobs(std::move(xdp).value());
  auto path = FramePath::open(lab, static_cast<int>(lab.ports().size()));
  if (!path.ok()) return fail(board, path.status());
  PathLiar liar(options.liar, jobs);
  std::thread carrier([&] {
    const auto edit = [&](const FramePath::Passing& passing) { return liar(passing, !board->lying); };
    (*path)->carry(edit, board->stop);
  });
  const auto service = start_control(options, &jobs);
  if (!service.ok()) fail(board, service.status());
  board->listening = service.ok();
  if (!service.ok()) board->stop = true;
  if (options.flips_bits) flip_bits(&*memory, board);
  carrier.join();
  board->report.path = liar.report();
  board->report.frames_lost = (*path)->lost();
}

// Sums numbers whose sums are exact.
template <class Element>
Status sum_exact(Communicator& communicator, DataType type, RankReport* report) {
  const int world = communicator.world_size();
  const int ranks_sum = world * (world - 1) / 2;
  std::vector<Element> data(kElements);
  const auto number = [](size_t i) { return static_cast<Element>(i % 100); };
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<Element>(communicator.rank()) + number(i);
  Status status =
      communicator.all_reduce(TensorView{data.data(), data.data(), data.size()}, {.type = type}).wait();
  if (!status.ok()) return status;
  bool right = true;
  for (size_t i = 0; i < data.size(); ++i)
    right &= data[i] == static_cast<Element>(ranks_sum) + static_cast<Element>(world) * number(i);
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
  mine.world_size = ranks_of(options);
  mine.job = "lies" + std::to_string(job);
  mine.aggregators = {rank < kRackRanks ? rack_control() : parent_control(options)};
  mine.verify = options.verify;
  mine.slots = 8;
  mine.shared_memory = false;
  if (options.failover) {
    mine.root = address_on(0, 7100 + job);
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
    for (const CommunicatorStats::WrongSums& wrong : stats.wrong_sums)
      (wrong.aggregator == "hosts" ? report.hosts_refused : report.sums_refused) += wrong.results;
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
  const auto lab = VethLab::make(ranks_of(options) + (options.has_parent ? 1 : 0), {.cut_links = true});
  if (!lab.ok()) return lab.status();
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return Status(ErrorCode::kInternal, "no shared memory");
  const std::unique_ptr<Board, void (*)(Board*)> board(new (memory) Board,
                                                       [](Board* shared) { munmap(shared, sizeof *shared); });
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&board->ranks, &shared, static_cast<unsigned>(ranks_of(options)));

  std::vector<pid_t> aggregators;
  const auto start = [&](void (*run)(const VethLab&, const RackOptions&, Board*),
                         const std::atomic<bool>& ready) {
    aggregators.push_back(fork_to([&] { run(**lab, options, board.get()); }));
    wait_until(ready, aggregators.back());
  };
  if (options.has_parent) start(run_parent, board->parent_listening);
  start(aggregate, board->listening);
  bool well = true;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < ranks_of(options) && board->listening; ++rank)
    ranks.push_back(fork_to([&, rank] { run_rank(**lab, options, rank, board.get()); }));
  for (const pid_t rank : ranks) well &= ended_well(rank);
  board->stop = true;
  for (const pid_t aggregator : aggregators) well &= ended_well(aggregator);
  if (board->failure != ErrorCode::kOk) return Status(board->failure, board->message.data());
  if (!well) return Status(ErrorCode::kInternal, "a process of the rack did not end by itself");
  return board->report;
}

}  // namespace netsum::attack
