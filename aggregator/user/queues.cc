#include "aggregator/user/queues.h"

#include <algorithm>
#include <cstddef>

#include "wire/packet.h"

namespace netsum {
namespace {

enum : uint32_t { kStray, kParents, kFirstJob };

}  // namespace

JobQueues queues_for_jobs(uint32_t max_jobs) {
  const uint32_t job_queues = std::min(max_jobs, JobQueues::kMostJobs);
  return {.count = static_cast<int>(kFirstJob + job_queues),
          .selector = {// A load from beyond the end returns 0.
                       BPF_STMT(BPF_LD | BPF_B | BPF_ABS, offsetof(netsum_header, version_type)),
                       BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 15),
                       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NETSUM_TYPE_RESULT, 8, 0),
                       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NETSUM_TYPE_STATUS, 7, 0),
                       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NETSUM_TYPE_ERROR, 6, 0),
                       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, NETSUM_TYPE_WELCOME, 5, 0),
                       BPF_STMT(BPF_LD | BPF_H | BPF_ABS, offsetof(netsum_header, job)),
                       BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, max_jobs, 4, 0),
                       BPF_STMT(BPF_ALU | BPF_MOD | BPF_K, job_queues),
                       BPF_STMT(BPF_ALU | BPF_ADD | BPF_K, kFirstJob), BPF_STMT(BPF_RET | BPF_A, 0),
                       BPF_STMT(BPF_RET | BPF_K, kParents), BPF_STMT(BPF_RET | BPF_K, kStray)}};
}

}  // namespace netsum
