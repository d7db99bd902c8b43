#include "torch/src/recorder.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "src/program/json_lines.h"
#include "src/program/replay.h"
#include "src/program/values.h"
#include "torch/src/recorded_values.h"

namespace netsum::torch_backend {
namespace {

using program::Instruction;

constexpr int64_t kNever = INT64_MAX;
constexpr int kNoTask = -1;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Grows without moving what it holds. One thread adds; others may read what was added.
template <typename T>
class Chunks {
 public:
  Chunks() = default;
  Chunks(const Chunks&) = delete;
  Chunks& operator=(const Chunks&) = delete;
  ~Chunks() {
    // One by one: a chain of unique_ptr would be released recursively.
    while (first_) first_ = std::move(first_->next);
  }

  // `fill` gets the new item, which readers see when it returns.
  template <typename Fill>
  T& add(const Fill& fill) {
    const size_t size = size_.load(std::memory_order_relaxed);
    const size_t place = size % kItems;
    if (place == 0) {
      auto& next = last_ ? last_->next : first_;
      next = std::make_unique<Chunk>();
      last_ = next.get();
    }
    T& item = last_->items[place];
    fill(item);
    size_.store(size + 1, std::memory_order_release);
    return item;
  }

  template <typename Visit>
  void for_each(const Visit& visit) {
    size_t left = size_.load(std::memory_order_acquire);
    for (Chunk* chunk = first_.get(); left > 0; chunk = chunk->next.get())
      for (size_t i = 0; i < kItems && left > 0; ++i, --left) visit(chunk->items[i]);
  }

 private:
  static constexpr size_t kItems = 1024;
  struct Chunk {
    std::array<T, kItems> items;
    std::unique_ptr<Chunk> next;
  };

  std::unique_ptr<Chunk> first_;
  Chunk* last_ = nullptr;
  std::atomic<size_t> size_ = 0;
};

struct Event {
  enum class Kind : uint8_t {
    kSubmit,
    kWait,
    kBackwardEnds,   // before DDP waits for its futures
    kBackwardEnded,  // after it
    kCallbacks,      // callbacks of a future begin
    kCallbacksEnded,
  };
  Kind kind = Kind::kSubmit;
  int64_t begin_ns = 0, end_ns = 0;
  const RecordedOperation* first = nullptr;
  size_t count = 0;
  int task = kNoTask;  // of autograd
};

}  // namespace

struct RecordedOperation {
  program::Operation what;      // without its group and its times
  std::vector<uint8_t> values;  // that this rank contributes, if they are recorded
  std::shared_ptr<const RecordedGroup> group;
  int64_t submitted_ns = 0;
  int task = kNoTask;                 // the backward pass that submitted it, perhaps through callbacks
  RecordedOperation* next = nullptr;  // of the same call
  std::atomic<int64_t> done_ns = kNever;
  std::atomic<bool> has_future = false;
};

class ThreadLog {
 public:
  explicit ThreadLog(uint64_t generation) : generation_(generation) {}

  uint64_t generation() const { return generation_; }
  void add(const Event& event) {
    events.add([&](Event& added) { added = event; });
  }

  // Of this thread in the recording that runs, or null.
  static const std::shared_ptr<ThreadLog>& own();

  Chunks<RecordedOperation> operations;
  Chunks<Event> events;

  // Of the thread itself.
  int watched_task = kNoTask;    // the backward pass whose end is being watched
  int inherited_task = kNoTask;  // that of the call whose callbacks run

 private:
  const uint64_t generation_;
};

namespace {

struct StepEnd {
  int64_t ns = 0;
  const ThreadLog* thread = nullptr;
};

// What start_recording() has begun.
struct Running {
  std::mutex mutex;
  uint64_t generation = 0;
  std::atomic<bool> with_scales = false;
  std::atomic<size_t> most_value_bytes = 0;  // 0: none are recorded
  std::atomic<size_t> value_bytes = 0;
  std::vector<std::shared_ptr<ThreadLog>> logs;
  std::vector<StepEnd> ends;  // The first one is the begin of the recording.
};

Running& running() {
  static auto* const instance = new Running;  // threads may end after main()
  return *instance;
}

// Autograd runs callbacks at the end of a backward pass, in the order in which they were queued. DDP queues its own, which waits
// for the futures of its buckets, after the last bucket was submitted. Those futures are final: there is no other place to see the
// wait.
void watch_end_of_backward(int task) {
  torch::autograd::Engine::get_default_engine().queue_callback([task] {
    const int ending = task;  // The list that holds this function may move when another one is queued.
    if (const auto& log = ThreadLog::own()) {
      const int64_t now = now_ns();
      log->add({.kind = Event::Kind::kBackwardEnds, .begin_ns = now, .end_ns = now, .task = ending});
    }
    torch::autograd::Engine::get_default_engine().queue_callback([ending] {
      if (const auto& log = ThreadLog::own()) {
        const int64_t now = now_ns();
        log->add({.kind = Event::Kind::kBackwardEnded, .begin_ns = now, .end_ns = now, .task = ending});
      }
    });
  });
}

thread_local std::vector<uint8_t> values_of_next;  // of the thread's next operation

// Makes the program of the logs.
class Conversion {
 public:
  Conversion(const std::vector<std::shared_ptr<ThreadLog>>& logs, std::vector<StepEnd> ends)
      : logs_(logs), ends_(std::move(ends)) {}

  program::Program run(program::Header header) {
    program_.header = std::move(header);
    program_.steps.resize(ends_.size() - 1);
    for (size_t k = 0; k < program_.steps.size(); ++k) program_.steps[k].number = k;
    for (size_t t = 0; t < logs_.size(); ++t) {
      events_.emplace_back();
      logs_[t]->events.for_each([&](const Event& event) { events_[t].push_back(&event); });
    }
    number_operations();
    next_.resize(logs_.size());
    for (size_t k = 0; k < program_.steps.size(); ++k) add_step(k);
    program_.steps.back().partial = true;
    // What follows the last step is kept if it is more than a way out.
    if (program_.steps.size() > 1 && program_.steps.back().operations.empty()) program_.steps.pop_back();
    return std::move(program_);
  }

  // Of run(), which must have been called: of each operation.
  std::vector<std::vector<uint8_t>> take_values() {
    std::vector<std::vector<uint8_t>> values;
    for (RecordedOperation* const operation : in_order_) values.push_back(std::move(operation->values));
    return values;
  }

 private:
  struct Place {
    size_t step = 0, number = 0;
  };

  size_t step_at(int64_t ns) const {
    const auto end = std::lower_bound(ends_.begin() + 1, ends_.end(), ns,
                                      [](const StepEnd& one, int64_t at) { return one.ns < at; });
    return std::min(static_cast<size_t>(end - ends_.begin()) - 1, ends_.size() - 2);
  }

  void number_operations() {
    std::vector<const RecordedOperation*> all;
    for (const auto& events : events_)
      for (const Event* const event : events)
        if (event->kind == Event::Kind::kSubmit && event->end_ns <= ends_.back().ns)
          all.push_back(event->first);
    std::stable_sort(all.begin(), all.end(), [](const RecordedOperation* a, const RecordedOperation* b) {
      return a->submitted_ns < b->submitted_ns;
    });
    std::map<int, const RecordedGroup*> groups;
    for (const RecordedOperation* const operation : all)
      groups[operation->group->number] = operation->group.get();
    std::map<int, int> ids;
    for (const auto& [number, group] : groups) {
      ids[number] = static_cast<int>(ids.size());
      program_.header.groups.push_back({.id = ids[number], .ranks = group->ranks});
    }
    for (const RecordedOperation* const operation : all) {
      const size_t k = step_at(operation->submitted_ns);
      const int64_t begin = ends_[k].ns, done = operation->done_ns.load(std::memory_order_acquire);
      program::Operation added = operation->what;
      added.group = ids[operation->group->number];
      added.submitted_ns = operation->submitted_ns - begin;
      if (done != kNever) added.done_ns = done - begin;
      auto& operations = program_.steps[k].operations;
      places_[operation] = {k, operations.size()};
      operations.push_back(std::move(added));
      in_order_.push_back(const_cast<RecordedOperation*>(operation));
      if (operation->task != kNoTask) of_task_[operation->task].push_back(operation);
    }
  }

  void add_step(size_t k) {
    const auto own = std::find_if(logs_.begin(), logs_.end(), [&](const std::shared_ptr<ThreadLog>& log) {
      return log.get() == ends_[k + 1].thread;
    });
    const auto first = static_cast<size_t>(own - logs_.begin());
    program::Step& step = program_.steps[k];
    step.duration_ns = ends_[k + 1].ns - ends_[k].ns;
    add_thread(k, first);
    compute_until(ends_[k + 1].ns);
    for (size_t t = 0; t < logs_.size(); ++t) {
      if (t == first || next_[t] == events_[t].size() || events_[t][next_[t]]->end_ns > ends_[k + 1].ns)
        continue;
      add_thread(k, t);
    }
  }

  // The events of a thread that end in the step.
  void add_thread(size_t k, size_t t) {
    step_ = k;
    program_.steps[k].threads.emplace_back();
    now_ = ends_[k].ns;
    for (; next_[t] < events_[t].size() && events_[t][next_[t]]->end_ns <= ends_[k + 1].ns; ++next_[t])
      add_event(*events_[t][next_[t]]);
  }

  void add_event(const Event& event) {
    std::vector<const RecordedOperation*> operations;
    const RecordedOperation* one = event.first;
    for (size_t i = 0; i < event.count; ++i, one = one->next) operations.push_back(one);
    switch (event.kind) {
      case Event::Kind::kSubmit:
        compute_until(event.begin_ns);
        add({Instruction::Kind::kSubmit, places_.at(operations.front()).number});
        break;
      case Event::Kind::kWait:
        compute_until(event.begin_ns);
        wait_until(operations, event.end_ns);
        break;
      case Event::Kind::kBackwardEnds:
      case Event::Kind::kCallbacksEnded:
        compute_until(event.begin_ns);
        break;
      case Event::Kind::kBackwardEnded:
        for (const RecordedOperation* const of_task : of_task_[event.task])
          if (of_task->has_future.load(std::memory_order_relaxed)) operations.push_back(of_task);
        wait_until(operations, event.end_ns);
        break;
      case Event::Kind::kCallbacks:  // The thread was idle before.
        wait_until(operations, event.begin_ns);
        break;
    }
  }

  void add(Instruction instruction) { program_.steps[step_].threads.back().push_back(instruction); }
  void compute_until(int64_t ns) {
    if (ns <= now_) return;
    auto& thread = program_.steps[step_].threads.back();
    if (!thread.empty() && thread.back().kind == Instruction::Kind::kCompute)
      thread.back().value += static_cast<uint64_t>(ns - now_);
    else
      add({Instruction::Kind::kCompute, static_cast<uint64_t>(ns - now_)});
    now_ = ns;
  }
  // What the thread needed after the last of the operations, to wake up or to copy, is computation.
  void wait_until(const std::vector<const RecordedOperation*>& operations, int64_t ns) {
    for (const RecordedOperation* const operation : operations) {
      const int64_t done = operation->done_ns.load(std::memory_order_acquire);
      if (done > ns) continue;  // a wait that has failed
      add({Instruction::Kind::kWait, number_of(*operation, done)});
      now_ = std::max(now_, done);
    }
    compute_until(ns);
  }

  // In the step, which carries it if it is one of an earlier step.
  uint64_t number_of(const RecordedOperation& operation, int64_t done) {
    const Place& place = places_.at(&operation);
    if (place.step == step_) return place.number;
    program::Step& step = program_.steps[step_];
    const program::Carried wanted{
        .steps_back = step_ - place.step, .operation = place.number, .done_ns = done - ends_[step_].ns};
    const auto known =
        std::find_if(step.carried.begin(), step.carried.end(), [&](const program::Carried& one) {
          return one.steps_back == wanted.steps_back && one.operation == wanted.operation;
        });
    const auto index = static_cast<size_t>(known - step.carried.begin());
    if (known == step.carried.end()) step.carried.push_back(wanted);
    return step.operations.size() + index;
  }

  const std::vector<std::shared_ptr<ThreadLog>>& logs_;
  const std::vector<StepEnd> ends_;
  program::Program program_;
  std::unordered_map<const RecordedOperation*, Place> places_;
  std::vector<RecordedOperation*> in_order_;
  std::unordered_map<int, std::vector<const RecordedOperation*>> of_task_;
  std::vector<std::vector<const Event*>> events_;  // [thread]
  std::vector<size_t> next_;                       // [thread]: the first event that is not in a step yet
  size_t step_ = 0;                                // the one that is being made
  int64_t now_ = 0;                                // in its thread
};

// Replaces the times of operations and steps by those of a network that takes none.
Status end_at_once(program::Program& made) {
  for (size_t k = 0; k < made.steps.size(); ++k) {
    program::Step& step = made.steps[k];
    for (program::Carried& carried : step.carried) {
      carried.done_ns = made.steps[k - carried.steps_back].operations[carried.operation].submitted_ns;
      for (size_t s = k - carried.steps_back; s < k; ++s) carried.done_ns -= made.steps[s].duration_ns;
    }
    program::Completions none = program::recorded_completions(step);
    none.after_submission.assign(step.operations.size(), 0);
    const auto times = program::replay(step, none);
    if (!times.ok()) return times.status();
    for (size_t i = 0; i < step.operations.size(); ++i) {
      step.operations[i].submitted_ns = times->submitted_ns[i];
      step.operations[i].done_ns = times->submitted_ns[i];
    }
    step.duration_ns = times->duration_ns;
  }
  return {};
}

}  // namespace

std::atomic<uint64_t> RecordedCall::generation_ = 0;

const std::shared_ptr<ThreadLog>& ThreadLog::own() {
  static const std::shared_ptr<ThreadLog> none;
  thread_local std::shared_ptr<ThreadLog> log;
  const uint64_t generation = RecordedCall::generation();
  if (generation == 0) return none;
  if (!log || log->generation() != generation) {
    Running& state = running();
    const std::lock_guard lock(state.mutex);
    if (state.generation != generation) return none;
    log = std::make_shared<ThreadLog>(generation);
    state.logs.push_back(log);
  }
  return log;
}

void RecordedCall::submit(const std::shared_ptr<const RecordedGroup>& group, program::Operation operation,
                          const std::function<std::vector<uint8_t>()>& scales) {
  std::vector<uint8_t> values = std::exchange(values_of_next, {});
  const std::shared_ptr<ThreadLog>& log = ThreadLog::own();
  if (!log || (log_ && log_ != log)) return;
  int task = torch::autograd::get_current_graph_task_id();
  if (task != kNoTask && log->watched_task != task) {
    log->watched_task = task;
    watch_end_of_backward(task);
  }
  if (task == kNoTask) task = log->inherited_task;
  if (scales && running().with_scales.load(std::memory_order_relaxed)) operation.scales = scales();
  int64_t now = 0;
  RecordedOperation& added = log->operations.add([&](RecordedOperation& item) {
    item.what = std::move(operation);
    item.values = std::move(values);
    item.group = group;
    item.task = task;
    item.submitted_ns = now = now_ns();
  });
  if (count_++ == 0) {
    log_ = log;
    first_ = &added;
  } else {
    RecordedOperation* last = first_;
    while (last->next) last = last->next;
    last->next = &added;
  }
  log->add({.kind = Event::Kind::kSubmit, .begin_ns = now, .end_ns = now, .first = &added, .count = 1});
}

void RecordedCall::done() noexcept {
  if (!first_) return;
  const int64_t now = now_ns();
  RecordedOperation* one = first_;
  for (size_t i = 0; i < count_; ++i, one = one->next) one->done_ns.store(now, std::memory_order_release);
}

void RecordedCall::future_taken() noexcept {
  RecordedOperation* one = first_;
  for (size_t i = 0; i < count_; ++i, one = one->next) one->has_future.store(true, std::memory_order_relaxed);
}

std::function<void()> RecordedCall::around(std::function<void()> callbacks) const {
  if (!first_ || !callbacks) return callbacks;
  return [call = *this, callbacks = std::move(callbacks)] {
    const auto log = ThreadLog::own();
    if (!log || log->generation() != call.log_->generation()) return callbacks();
    const int64_t begin = now_ns();
    log->add({.kind = Event::Kind::kCallbacks,
              .begin_ns = begin,
              .end_ns = begin,
              .first = call.first_,
              .count = call.count_});
    const int before = std::exchange(log->inherited_task, call.first_->task);
    callbacks();
    log->inherited_task = before;
    const int64_t end = now_ns();
    log->add({.kind = Event::Kind::kCallbacksEnded, .begin_ns = end, .end_ns = end});
  };
}

RecordedCall::Wait::Wait(const RecordedCall& call) : call_(call) {
  if (call.first_) begin_ns_ = now_ns();
}

RecordedCall::Wait::~Wait() {
  if (!call_.first_) return;
  const std::shared_ptr<ThreadLog>& log = ThreadLog::own();
  if (!log || log->generation() != call_.log_->generation()) return;
  log->add({.kind = Event::Kind::kWait,
            .begin_ns = begin_ns_,
            .end_ns = now_ns(),
            .first = call_.first_,
            .count = call_.count_});
}

void record_values(size_t most_bytes) {
  Running& state = running();
  const std::lock_guard lock(state.mutex);
  state.most_value_bytes.store(most_bytes);
}

void add_recorded_values(size_t bytes, const std::function<std::vector<uint8_t>()>& copy) {
  Running& state = running();
  const size_t most = state.most_value_bytes.load(std::memory_order_relaxed);
  if (most > 0 && state.value_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes <= most)
    values_of_next = copy();
}

void start_recording(bool with_scales) {
  static uint64_t generations = 0;
  Running& state = running();
  const std::lock_guard lock(state.mutex);
  state.logs.clear();
  state.generation = ++generations;
  state.with_scales.store(with_scales);
  state.value_bytes.store(0);
  state.ends = {{.ns = now_ns()}};
  RecordedCall::set_generation(state.generation);
}

void end_recorded_step() {
  const std::shared_ptr<ThreadLog> log = ThreadLog::own();
  if (!log) return;
  Running& state = running();
  const std::lock_guard lock(state.mutex);
  if (state.generation == log->generation()) state.ends.push_back({now_ns(), log.get()});
}

namespace {

// The file appears when it is whole.
Status write_file(const std::string& path, const std::function<Status(std::ostream&)>& write) {
  const std::string unfinished = path + ".part";
  std::ofstream file(unfinished, std::ios::binary | std::ios::trunc);
  if (!file)
    return {ErrorCode::kResourceExhausted,
            unfinished + " cannot be written: check that the folder exists and its permissions"};
  Status status = write(file);
  file.close();
  if (status.ok() && (!file || std::rename(unfinished.c_str(), path.c_str()) != 0))
    status = {ErrorCode::kResourceExhausted, "it cannot be written: check the disk's space"};
  if (status.ok()) return status;
  std::remove(unfinished.c_str());
  return {status.code(), path + ": " + status.message()};
}

}  // namespace

Status stop_recording(program::Header header, const std::string& path, bool without_network) {
  end_recorded_step();
  std::vector<std::shared_ptr<ThreadLog>> logs;
  std::vector<StepEnd> ends;
  bool has_values = false;
  {
    Running& state = running();
    const std::lock_guard lock(state.mutex);
    if (state.generation == 0) return {ErrorCode::kInvalidArgument, "nothing is being recorded"};
    state.generation = 0;
    RecordedCall::set_generation(0);
    has_values = state.most_value_bytes.load() > 0;
    logs.swap(state.logs);
    ends.swap(state.ends);
  }
  Conversion conversion(logs, std::move(ends));
  program::Program made = conversion.run(std::move(header));
  if (without_network) {
    const Status status = end_at_once(made);
    if (!status.ok()) return status;
  }
  const std::string values_path = path.substr(0, path.rfind('.')) + ".values";
  std::remove(values_path.c_str());  // of an earlier record
  if (has_values) {
    const std::vector<std::vector<uint8_t>> values = conversion.take_values();
    const Status status =
        write_file(values_path, [&](std::ostream& out) { return program::write_values(out, made, values); });
    if (!status.ok()) return status;
  }
  return write_file(path, [&](std::ostream& out) { return program::write_program(out, made); });
}

}  // namespace netsum::torch_backend
