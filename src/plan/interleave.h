// Offsets for jobs that share links: each job communicates for a part of its period, and computes for the rest. With the
// right offsets the jobs use a link one after the other.
#ifndef NETSUM_SRC_PLAN_INTERLEAVE_H_
#define NETSUM_SRC_PLAN_INTERLEAVE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "netsum/status.h"
#include "src/plan/fraction.h"
#include "src/plan/graph.h"

namespace netsum::plan {

// In each period it sends for the time `busy`, and then not until the next period. Times are whole numbers in one unit.
struct PeriodicJob {
  std::string name;
  int64_t period = 0;         // 1 to kMostPeriod
  int64_t busy = 0;           // 1 to `period`
  std::vector<size_t> links;  // different ones
  int64_t rate = kUnlimited;  // on each of them while it sends; unlimited: all of the link
  Fraction work = 0;          // per period, in a unit that all jobs share
  int line = 0;               // in the file; 0: none
};

struct Interleaving {
  // Of one link: 1 - the mean of what jobs ask for above its rate, in parts of this rate. Below 0 with many jobs.
  struct Score {
    Fraction before = 1;  // with all offsets 0
    Fraction after = 1;
    bool exact = true;  // no offsets give more; for links that form a cycle with jobs: of their sum
  };
  std::vector<int64_t> offsets;  // by job: 0 to its period, exclusively
  std::vector<Score> scores;     // by link
};

inline constexpr int64_t kMostPeriod = 1'000'000'000'000;
inline constexpr size_t kMostJobs = 256;
// Offsets are worth their trouble if the score of a link grows by more.
inline const Fraction kOffsetsPay{Integer(1), Integer(20)};

// `rates`: of the links, in the unit of the jobs' rates. Exact for up to three jobs on each link, if no cycle leads through links
// and jobs; a component with a cycle is searched jointly, exactly if it has up to three jobs. Where several offsets are best,
// those are taken that leave most room for jitter.
// Errors: kInvalidArgument with the line of the job; kResourceExhausted if the periods of jobs that share a link have no
// common multiple that is small enough.
Result<Interleaving> interleave(std::span<const PeriodicJob> jobs, std::span<const int64_t> rates);

// The score of one link, of whose jobs `jobs` has all. The common multiple of their periods must be small enough for interleave().
Fraction link_score(std::span<const PeriodicJob> jobs, std::span<const int64_t> offsets, size_t link,
                    int64_t rate);

// Whether some offset keeps two jobs apart for ever, each of which needs more than half of a link.
bool can_avoid(const PeriodicJob& a, const PeriodicJob& b);

// Its work per time of communication.
Fraction intensity(const PeriodicJob& job);
// The jobs in the order of their intensity, most first (Crux, SIGCOMM'24): the first one should have the highest priority.
std::vector<size_t> by_intensity(std::span<const PeriodicJob> jobs);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_INTERLEAVE_H_
