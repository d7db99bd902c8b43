// What a host runs while `netsum doctor --rates` measures: it sends and receives at the caller's request.
#ifndef NETSUM_TOOLS_NETSUM_RATE_AGENT_H_
#define NETSUM_TOOLS_NETSUM_RATE_AGENT_H_

#include <memory>
#include <string>

#include "netsum/status.h"

namespace netsum::tool {

// At most one test in each direction at a time: another one is refused with kResourceExhausted. Stops when destroyed.
class RateAgent {
 public:
  // `listen`: "host:port"; data is sent from and received at that host. Callers need `token`, unless it is empty.
  static Result<std::unique_ptr<RateAgent>> start(const std::string& listen, const std::string& token);
  virtual ~RateAgent() = default;
  virtual std::string address() const = 0;  // with the port in fact bound
};

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RATE_AGENT_H_
