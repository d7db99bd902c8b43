// netsum plan --jobs: offsets and priorities for jobs that share links.
#ifndef NETSUM_TOOLS_NETSUM_PLAN_JOBS_H_
#define NETSUM_TOOLS_NETSUM_PLAN_JOBS_H_

#include <string>

namespace netsum::tool {

// Reads the jobs, plans and prints. Returns the exit status. Throws UsageError (flags.h), whose message starts with
// "file:line: " where a value in the file is wrong.
int plan_jobs(const std::string& file, bool json);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PLAN_JOBS_H_
