// What `netsum rack` does to the machine: network namespaces, links, and processes in them.
#ifndef NETSUM_TOOLS_NETSUM_RACK_SYSTEM_H_
#define NETSUM_TOOLS_NETSUM_RACK_SYSTEM_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/base/file_descriptor.h"
#include "tools/netsum/rack_plan.h"

namespace netsum::tool {

// Which privileges this process lacks for making namespaces and links, and what to do; empty: none.
std::string missing_privilege();

// Runs iproute2's `program` on `batch`. The error has the line that failed, and iproute2's message.
Status run_batch(const RackBatch& batch);

// A veth end takes frames that XDP at its peer redirects to it only if it polls, which GRO makes it do.
Status switch_gro_on(const std::string& network_namespace, const std::string& interface);
// Checksums and segmentation: for frames that XDP carries on, which lose the kernel's notes on what is left to do.
Status switch_send_offloads_off(const std::string& network_namespace, const std::string& interface);
// Writes to /proc/sys/net/NAME there.
Status set_network_parameter(const std::string& network_namespace, const std::string& name,
                             const std::string& value);

std::vector<std::string> named_network_namespaces();
// Ends the processes in it (SIGTERM, then SIGKILL), deletes the links and the name. One that does not exist
// is ignored.
Status delete_network_namespace(const std::string& name);
// Moves this thread (and what it executes) there.
Status enter_network_namespace(const std::string& name);

// This thread is in a network namespace until the end of the block.
class InNetworkNamespace {
 public:
  explicit InNetworkNamespace(const std::string& name);
  ~InNetworkNamespace();
  InNetworkNamespace(const InNetworkNamespace&) = delete;
  InNetworkNamespace& operator=(const InNetworkNamespace&) = delete;
  const Status& status() const { return status_; }  // if not ok, the thread is where it was

 private:
  FileDescriptor home_;
  Status status_;
};

// A process, distinguished from a later one with the same number.
struct ProcessMark {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // since boot
};
bool is_alive(const ProcessMark& mark);
// Runs `command`, as start_process() has it, there, detached from the terminal, with its output in the file `log`.
Result<ProcessMark> start_detached(const std::string& network_namespace,
                                   const std::vector<std::string>& command, const std::string& log);
// SIGTERM, then SIGKILL after two seconds. Only if it is still that process.
void end_process(const ProcessMark& mark);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_SYSTEM_H_
