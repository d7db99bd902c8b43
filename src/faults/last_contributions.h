// How often each member of a job was the last whose contribution completed a sum: of an aggregator that counts it for those who
// divide the job's chunks. A rank whose link is slow is the last of almost all sums, whoever computes them.
#ifndef NETSUM_SRC_FAULTS_LAST_CONTRIBUTIONS_H_
#define NETSUM_SRC_FAULTS_LAST_CONTRIBUTIONS_H_

#include <array>

#include "src/base/counter.h"
#include "wire/packet.h"

namespace netsum::faults {

// One core writes it.
struct LastContributions {
  std::array<Counter, NETSUM_MAX_MEMBERS> sums;  // by member
};

}  // namespace netsum::faults

#endif  // NETSUM_SRC_FAULTS_LAST_CONTRIBUTIONS_H_
