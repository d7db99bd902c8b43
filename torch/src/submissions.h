// The order in which a group's calls begin.
#ifndef NETSUM_TORCH_SRC_SUBMISSIONS_H_
#define NETSUM_TORCH_SRC_SUBMISSIONS_H_

#include <chrono>
#include <functional>
#include <memory>

#include "netsum/status.h"

namespace netsum::torch_backend {

// The ranks' operations must begin in the order of the calls. The input of a call with tensors of a device is in the host's memory
// only some time after the call, and until then later calls must wait, too, also those of other groups: a call may wait for the
// other ranks (join_late()). One thread of the process does so. Where there are no such calls, there is no thread, and calls
// begin on that of their caller. The thread also brings what is left of a call's input when the call has begun: later calls
// wait for that, too, because their copies do.
class Submissions {
 public:
  using Abandoned = std::function<bool()>;
  // Brings the input to the host, or the first of it. May wait; must return when abandoned() is true.
  using Stage = std::function<Status(const Abandoned& abandoned)>;
  // Brings the rest; likewise.
  using Rest = std::function<void(const Abandoned& abandoned)>;
  struct Call {
    Stage stage;                                // empty: the input is there
    std::function<Rest()> submit;               // returns nothing if `stage` is empty
    std::function<void(const Status&)> refuse;  // in its place, if the input cannot be brought
  };

  Submissions();
  Submissions(const Submissions&) = delete;
  Submissions& operator=(const Submissions&) = delete;

  // Throws what `submit` throws if the call begins here; on the thread, an exception becomes a refusal.
  void begin(Call call);
  // Refuses the calls of this group that have not begun. One that the device holds up for longer than `deadline` is refused later.
  void stop(std::chrono::milliseconds deadline);

 private:
  class Thread;
  struct Group;
  const std::shared_ptr<Group> group_;
  Thread& thread_;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_SUBMISSIONS_H_
