// A job's specification: which values are possible, and whether two members ask for the same job.
#ifndef NETSUM_SRC_JOB_JOB_SPEC_H_
#define NETSUM_SRC_JOB_JOB_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "netsum/options.h"
#include "netsum/status.h"
#include "src/job/job.pb.h"

namespace netsum {

inline constexpr size_t kMaxJobNameBytes = 128;
inline constexpr size_t kMaxTokenBytes = 256;

// With this release's protocol version, for one rank, and the usual values of the rest.
JobSpec new_job_spec();

// Without what only shows that the sender may ask for it.
JobSpec without_tokens(JobSpec spec);

// Another version's other fields may mean something else: check it before anything else. kVersionMismatch.
Status check_version(const JobSpec& spec);
// Names the first rule that the specification breaks. kInvalidArgument.
Status check_spec(const JobSpec& spec);
// That who asks for `asked` can be a member of the job that was created with `first`: names the first field that
// differs, fields that this release does not know by number. Tokens, `succeeds` and the name are the job's identity,
// by which it was found; the version and the aggregator's token are each member's own. kInvalidArgument.
Status check_same(const JobSpec& first, const JobSpec& asked);

// A value that this release does not know counts as kFail.
WhenFull when_full_of(const JobSpec& spec);
// The name by which messages call a field, or nothing if this release does not know it.
std::string name_of_job_field(int number);

}  // namespace netsum

#endif  // NETSUM_SRC_JOB_JOB_SPEC_H_
