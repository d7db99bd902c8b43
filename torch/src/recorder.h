// Records what a rank does as a program (src/program): when it submits and waits for collectives, and when these end.
#ifndef NETSUM_TORCH_SRC_RECORDER_H_
#define NETSUM_TORCH_SRC_RECORDER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/program/program.h"

namespace netsum::torch_backend {

// A process group, as recordings name it. `number` differs between the groups of a process.
struct RecordedGroup {
  int number = 0;
  std::vector<int> ranks;  // in the job
};

// What one thread does. Only that thread writes, without locks; others read while it does.
class ThreadLog;
struct RecordedOperation;

// The operations of one call that are recorded. Costs one load of an atomic while nothing records.
class RecordedCall {
 public:
  static bool is_on() { return generation() != 0; }
  static uint64_t generation() { return generation_.load(std::memory_order_acquire); }
  // 0: nothing records from now on.
  static void set_generation(uint64_t generation) {
    generation_.store(generation, std::memory_order_release);
  }

  // is_on(), on the thread of the call, just before the operation is submitted. `scales`: makes its scales, if they are recorded,
  // which counts as computing; null: it has none.
  void submit(const std::shared_ptr<const RecordedGroup>& group, program::Operation operation,
              const std::function<std::vector<uint8_t>()>& scales = nullptr);
  // Without an error, before another thread can see that.
  void done() noexcept;
  // Somebody may wait for the call's future, which nothing but the end of the backward pass shows.
  void future_taken() noexcept;
  // As `callbacks`, as an event of the thread that runs them. `callbacks` themselves if the call is not recorded.
  std::function<void()> around(std::function<void()> callbacks) const;

  // A wait for the call, from construction to destruction.
  class Wait {
   public:
    explicit Wait(const RecordedCall& call);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    const RecordedCall& call_;
    int64_t begin_ns_ = 0;
  };

 private:
  static std::atomic<uint64_t> generation_;  // of the recording that runs; 0: none does

  std::shared_ptr<ThreadLog> log_;  // of the thread that submitted; keeps the operations alive
  RecordedOperation* first_ = nullptr;
  size_t count_ = 0;
};

// Records this process from start() to stop(). One at a time. `with_scales`: also those of sums of floats in host memory.
void start_recording(bool with_scales);
// A step ends, and the next one begins.
void end_recorded_step();
// Ends the recording and writes the program to `path`, which appears when it is whole. `without_network`: operations count as done
// when they are submitted, since no other rank took part. kInvalidArgument: nothing records, or
// what was recorded is no program. kResourceExhausted: the file cannot be written.
Status stop_recording(program::Header header, const std::string& path, bool without_network);

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_RECORDER_H_
