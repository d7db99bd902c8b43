// What `netsum rack` does to the machine: commands, namespaces, processes, and the note of them on disk.
// Everything is named after the rack, and noted before it is made, so that a later run can take away what a
// dead one has left.
#ifndef NETSUM_TOOLS_NETSUM_RACK_SYSTEM_H_
#define NETSUM_TOOLS_NETSUM_RACK_SYSTEM_H_

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "tools/netsum/rack_plan.h"

namespace netsum::tool {

// What making namespaces and links needs and this process lacks, and what to do; empty: it may.
std::string missing_privilege();

// Runs iproute2's `program` on `batch`. The error carries its own words.
Status run_batch(const RackBatch& batch);
// Offloads of an interface, by ethtool.
Status run_ethtool(const std::string& network_namespace, const std::vector<std::string>& arguments);

std::vector<std::string> named_network_namespaces();
// Ends the processes inside (SIGTERM, then SIGKILL), deletes the links and the name. One that does not exist
// is ignored.
Status delete_network_namespace(const std::string& name);
// Moves this process (and what it executes) there.
Status enter_network_namespace(const std::string& name);

// A process that cannot be confused with a later one of the same number.
struct ProcessMark {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // since boot
};
bool is_alive(const ProcessMark& mark);
// Runs this very binary there, detached from the terminal, with its output in the file `log`.
Result<ProcessMark> start_detached(const std::string& network_namespace,
                                   const std::vector<std::string>& arguments, const std::string& log);
// SIGTERM, then SIGKILL after two seconds. Only if it is still that process.
void end_process(const ProcessMark& mark);

struct RackAggregator {
  std::string node;
  ProcessMark process;
};

// A link as `rack set` has left it.
struct RackLinkState {
  uint64_t rate_bits = 0;
  double loss = 0;
  bool up = true;
};

// The note of a rack. `complete`: everything was made.
struct RackNote {
  RackOptions options;
  bool complete = false;
  std::vector<RackAggregator> aggregators;
  std::map<std::string, RackLinkState> links;  // those that differ from the options, by RackLink::id
};

std::string rack_folder(const std::string& name);  // logs are there, too
std::vector<std::string> noted_racks();
std::optional<RackNote> read_note(const std::string& name);  // nothing if there is none, or it cannot be read
Status write_note(const RackNote& note);
void delete_folder(const std::string& name);

// Held while a rack is made or taken down, so that two runs do not meet. Error: kAddressInUse if another run
// holds it.
class RackLock {
 public:
  static Result<RackLock> take(const std::string& name);
  RackLock(RackLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  RackLock& operator=(RackLock&&) = delete;
  ~RackLock();

 private:
  explicit RackLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_SYSTEM_H_
