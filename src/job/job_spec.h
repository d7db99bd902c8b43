// A job's specification: its valid values, and the comparison of the specifications of two members.
#ifndef NETSUM_SRC_JOB_JOB_SPEC_H_
#define NETSUM_SRC_JOB_JOB_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "netsum/options.h"
#include "netsum/regroup.h"
#include "netsum/status.h"
#include "src/job/job.pb.h"

namespace netsum {

inline constexpr size_t kMaxJobNameBytes = 128;
inline constexpr size_t kMaxTokenBytes = 256;

// A specification of this release's protocol version for one rank, with default values.
JobSpec new_job_spec();

// A copy without credentials.
JobSpec without_tokens(JobSpec spec);

// Check it before all other fields, because they may have other meanings in another version. kVersionMismatch.
Status check_version(const JobSpec& spec);
// The error names the first rule that the specification violates. kInvalidArgument.
Status check_spec(const JobSpec& spec);
// Whether a member with the specification `asked` can join the job that was created with `first`. The error names the
// first field that differs, or its number if this release does not know it. It does not compare the job's identity (name,
// token, `succeeds`), by which the caller has found the job, nor the version and the aggregator's token, which may differ
// between members. kInvalidArgument.
Status check_same(const JobSpec& first, const JobSpec& asked);

// Of a job that may start without all ranks (`min_members` above 0) and has passed check_spec().
RegroupRule regroup_rule(const JobSpec& spec);

// The name of the mode by which the job's sums are protected (netsum::Verify); its number if this release does not know it.
std::string verify_name(const JobSpec& spec);
std::string verify_name(Verify verify);

// A value that this release does not know counts as kFail.
WhenFull when_full_of(const JobSpec& spec);
// The name of a field in messages; empty if this release does not know the field.
std::string name_of_job_field(int number);

}  // namespace netsum

#endif  // NETSUM_SRC_JOB_JOB_SPEC_H_
