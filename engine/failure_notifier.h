// Passes the control plane's reports about a job to the engine that sums for it. Remembers the reports for an engine that
// is attached later.
//
// Thread rule: any thread may call any method.
#ifndef NETSUM_ENGINE_FAILURE_NOTIFIER_H_
#define NETSUM_ENGINE_FAILURE_NOTIFIER_H_

#include <mutex>
#include <vector>

#include "engine/engine.h"
#include "netsum/status.h"

namespace netsum {

class FailureNotifier {
 public:
  // What the control plane reports. The first failure counts.
  void job_failed(const Status& status);
  void rank_left(int rank);
  void ranks_missing(const std::vector<int>& ranks);  // while joining

  // From now on reports go to `engine` instead of the previous one; null: to none. After this returns, the previous engine
  // is not called.
  void attach(Engine* engine);

  Status failure() const;
  std::vector<int> missing() const;

 private:
  mutable std::mutex mutex_;
  Engine* engine_ = nullptr;
  Status failure_;
  int left_rank_ = kNoRank;
  std::vector<int> missing_;
};

}  // namespace netsum

#endif  // NETSUM_ENGINE_FAILURE_NOTIFIER_H_
