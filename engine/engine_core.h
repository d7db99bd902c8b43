// What an Engine drives: a way of summing (over the network, or in the memory of a host), with its own I/O and with time as
// a parameter. An emulated rank, which has another clock, can drive a core in the same way:
//
//   poll(); advance(now); submit() or fail(); on_tick(now) when it is due; send(now); report_delivered();
//   take_completions(); wait()
//
// While no operation is in progress and no timer is set, it need not be polled: no other rank waits for a packet from it.
//
// Thread rule: one thread at a time calls everything but wake(), which any thread may call. It is not always the same one:
// callers that wait drive, too (core_lock.h).
#ifndef NETSUM_ENGINE_ENGINE_CORE_H_
#define NETSUM_ENGINE_ENGINE_CORE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "netsum/communicator.h"
#include "src/worker/worker_core.h"

namespace netsum {

class EngineCore {
 public:
  using Completion = WorkerCore::Completion;

  virtual ~EngineCore() = default;

  // Starts an operation. `id` comes back in its completion.
  virtual void submit(uint64_t id, OperationSpec&& spec) = 0;

  // Receives what has arrived. wait() returns at once if anything arrives after that.
  virtual void poll() = 0;
  // Handles what poll() received: at most a burst of packets, or one phase in shared memory. False: there was nothing.
  virtual bool advance(int64_t now_us) = 0;
  // After an advance() that was true: false if poll() would probably receive nothing, so that wait() costs less.
  virtual bool expects_more() { return true; }
  // Sends what is due, at most a burst. False: nothing was due.
  virtual bool send(int64_t now_us) = 0;
  // Sleeps until something arrives, wake() is called or the time has passed. INT64_MAX: no limit.
  virtual void wait(int64_t timeout_us) = 0;
  virtual void wake() = 0;

  virtual void on_tick(int64_t now_us) = 0;
  // When on_tick() has something to do at the latest. INT64_MAX: never.
  virtual int64_t next_tick_us() const = 0;

  // True when every data path has answered.
  virtual bool connected() const = 0;
  // Why not yet.
  virtual std::string not_connected_reason() const = 0;

  // Tells callers what has been delivered of operations with watermarks: never within submit().
  virtual void report_delivered() {}
  // Moves the completions since the last call to the end of `out`.
  virtual void take_completions(std::vector<Completion>* out) = 0;
  // Ends all operations with `status` and refuses further ones likewise. Only the first call counts.
  virtual void fail(const Status& status) = 0;
  virtual const Status& status() const = 0;
  virtual bool idle() const = 0;  // no operation is in progress
  // Grows while operations come closer to their end by what other ranks have sent.
  virtual uint64_t progress() const { return 0; }
};

}  // namespace netsum

#endif  // NETSUM_ENGINE_ENGINE_CORE_H_
