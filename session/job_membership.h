// Joining a job: one membership at each of its aggregators, or one at the control service of rank 0.
#ifndef NETSUM_SESSION_JOB_MEMBERSHIP_H_
#define NETSUM_SESSION_JOB_MEMBERSHIP_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "netsum/options.h"
#include "netsum/status.h"
#include "session/shard.h"
#include "src/control/client.h"

namespace netsum {

using Memberships = std::vector<std::unique_ptr<ControlClient>>;

// How a job follows one that has failed; as in JoinParameters.
struct Succession {
  uint64_t succeeds = 0;  // succession_id of the failed one; 0: of none
  uint64_t completed = 0;
  int min_members = 0;
  std::chrono::milliseconds gather{0};
};

struct JobMember {
  std::string job;
  int rank = 0;
  int world_size = 1;
  Succession succession;
  std::string host;  // ranks of equal names share memory; empty: with no other rank
  uint32_t shard_job =
      0;  // what this rank's shard calls the job, beside an aggregator; one number for each job at once
  // As ControlClient's: on its threads.
  std::function<void(const Status&)> on_failure;
  std::function<void(int rank)> on_left;
  std::function<void(const std::vector<int>&)> on_missing;
  // As JoinParameters::given_up. May be null.
  std::function<Status()> given_up;
};

// Joins the job at all of options.aggregators or, without any, at `shard`'s root. Memberships are added to
// `memberships` one by one, those before an error stay. The first aggregator settles who takes part, and plans the shares;
// there the rank offers `shard`, unless it is null. A job that succeeds another one without regrouping, where this rank cannot
// reach a further aggregator: all ranks meet at the first one, and the job is given up there at once, on all of them
// (kAggregatorLost).
Status join_job(const JobMember& member, const CommunicatorOptions& options, const Shard* shard,
                std::chrono::steady_clock::time_point deadline, Memberships* memberships);

// Describes an aggregator of the job that cannot combine words, as WorkerOptions::lacks_words.
std::string who_lacks_words(const Memberships& memberships);

// Of each packet of the job, the bytes for lanes.
uint32_t lane_room(const CommunicatorOptions& options, const Membership& membership);

// Tells all members that the job has failed. Waits at most a second per aggregator.
void report_failure(const Memberships& memberships, const Status& status);

// At least a millisecond: 0 has other meanings.
std::chrono::milliseconds time_left(std::chrono::steady_clock::time_point deadline);

}  // namespace netsum

#endif  // NETSUM_SESSION_JOB_MEMBERSHIP_H_
