// How the ranks of a plug-in's communicator agree on a job of netsum and join it, or agree not to.
#ifndef NETSUM_SRC_RENDEZVOUS_JOIN_H_
#define NETSUM_SRC_RENDEZVOUS_JOIN_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "netsum/netsum.h"
#include "netsum/settings.h"

namespace netsum {

// How the ranks talk to each other before they have a job. All ranks call the same functions in the same order. A
// function returns false if the ranks can no longer talk.
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Copies rank 0's `bytes` at `data` to all ranks.
  virtual bool broadcast(void* data, size_t bytes) = 0;
  // all[r * bytes] becomes rank r's `mine`, on all ranks.
  virtual bool gather(const void* mine, void* all, size_t bytes) = 0;
};

// The value of an environment variable, "" if it is not set.
std::string process_environment(const std::string& name);

struct JoinOptions {
  Settings::Lookup lookup = process_environment;  // of settings
  int local_rank = 0;                             // of this process among those of its host
  std::string default_prefix;                     // of the job's name, if NETSUM_JOB is not set
  std::string
      plugin_settings;     // "NAME=value\n" for each setting of the plug-in that must be equal on all ranks
  int64_t timeout_ms = 0;  // deadline of operations; 0: that of netsum_comm_options
  // Called with what this rank has to do without: metrics or a trace are no reason to refuse a job.
  std::function<void(const std::string& text)> on_warning;
};

struct Joined {
  netsum_comm* comm = nullptr;  // the caller closes it
  std::string text;  // where the sums are made, or why there is no communicator: equal on all ranks
};

// Joins a job with all ranks of `rendezvous`. Either every rank gets a communicator, or none does, and all get the same
// text. Takes up to NETSUM_CONNECT_TIMEOUT, and as long as a rank has not called it.
Joined join(Rendezvous& rendezvous, const JoinOptions& options);

}  // namespace netsum

#endif  // NETSUM_SRC_RENDEZVOUS_JOIN_H_
