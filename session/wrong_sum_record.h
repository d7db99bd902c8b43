// Where a communicator's results were wrong, over all its sessions. Any thread may call any method.
#ifndef NETSUM_SESSION_WRONG_SUM_RECORD_H_
#define NETSUM_SESSION_WRONG_SUM_RECORD_H_

#include <map>
#include <mutex>
#include <vector>

#include "netsum/communicator.h"

namespace netsum {

class WrongSumRecord {
 public:
  using List = std::vector<CommunicatorStats::WrongSums>;

  // What `session` has found since it began. Returns that of all sessions.
  List update(const void* session, List found);
  // The session ends; what it has found is kept.
  void end(const void* session);
  // Of all sessions, added up by stripe, in the order in which they were found.
  List all() const;

 private:
  List sum() const;

  mutable std::mutex mutex_;
  List ended_;
  std::map<const void*, List> sessions_;  // that have not ended
};

}  // namespace netsum

#endif  // NETSUM_SESSION_WRONG_SUM_RECORD_H_
