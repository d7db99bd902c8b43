// What `netsum status` shows, worked out from two looks at an aggregator.
#ifndef NETSUM_TOOLS_NETSUM_STATUS_VIEW_H_
#define NETSUM_TOOLS_NETSUM_STATUS_VIEW_H_

#include <string>

#include "src/control/client.h"
#include "tools/netsum/log.h"

namespace netsum::tool {

// `seconds` lie between the looks. Members of the object: docs/operations.md.
Json status_report(const std::string& address, const RemoteStatus& before, const RemoteStatus& now,
                   double seconds);
// The same for an aggregator that does not answer.
Json status_failure(const std::string& address, const Status& status);

// Of a port, as in status_report().
Json bursts_json(const Bursts& bursts);
// One of a job's `faults` in status_report(), for people.
std::string fault_text(const Json& fault);

// For people: a few lines per aggregator and job.
std::string status_text(const Json& report);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_STATUS_VIEW_H_
