// The part of JobTable that tells for whom a running job waits: heartbeats say how many operations each rank has submitted.
#include <algorithm>
#include <string>

#include "aggregator/control/job_table.h"
#include "src/base/stack_hint.h"
#include "src/base/text.h"

namespace netsum {
namespace {

// Ranks that are behind for a shorter time are computing.
constexpr int64_t kHangUs = 1'000'000;
// Who is behind is found again after so long.
constexpr int64_t kFreshUs = 250'000;
constexpr size_t kMostHangs = 8;

}  // namespace

void JobTable::Job::find_hangs(int64_t now_us) {
  if (hangs_us != 0 && now_us - hangs_us < kFreshUs) return;
  hangs_us = now_us;
  hangs.clear();
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (!members[rank] || !members[rank]->submitted || *members[rank]->submitted >= most_submitted) continue;
    Member& member = *members[rank];
    if (member.behind_us == 0) member.behind_us = now_us;
    if (now_us - member.behind_us < kHangUs || hangs.size() == kMostHangs) continue;
    std::string text = "rank " + std::to_string(rank) + " has not submitted operation " +
                       std::to_string(*member.submitted + 1);
    if (!member.hint.empty()) text += "; its main thread is at " + member.hint;
    hangs.push_back(std::move(text));
  }
}

Result<control::AliveReply> JobTable::alive(int64_t now_us, const MemberClaim& claim,
                                            const control::Beat* beat) {
  const Result<JobNumber> number = find_member(claim);
  if (!number.ok()) return number.status();
  Job& job = jobs_.at(*number);
  Member& member = *job.members[claim.rank];
  member.heard_us = now_us;
  member.forgiven = 0;
  control::AliveReply reply;
  if (beat == nullptr || job.state != State::kRunning) return reply;
  if (member.submitted != beat->submitted()) {
    member.submitted = beat->submitted();
    member.behind_us = 0;
    member.hint.clear();
    job.most_submitted = std::max(job.most_submitted, beat->submitted());
  }
  member.sockets.receive_calls = beat->receive_calls();
  member.sockets.packets_received = beat->packets_received();
  job.take_paths(*beat, &member);
  if (!beat->hint().empty()) {
    member.hint = printable(beat->hint(), kMostHintBytes);
    job.hangs_us = 0;
  }
  // All ranks change the shares at the same operation, but tell it at different times.
  if (static_cast<int>(claim.rank) == job.ranks(true).front()) {
    job.away.clear();
    for (const uint32_t rank : beat->away())
      if (rank < job.members.size() && job.away.size() < job.members.size())
        job.away.push_back(static_cast<int>(rank));
  }
  job.find_hangs(now_us);
  reply.set_hint(member.behind_us != 0 && now_us - member.behind_us >= kHangUs);
  for (const std::string& hang : job.hangs)
    reply.mutable_hang()->append((reply.hang().empty() ? "" : "; ") + hang);
  return reply;
}

}  // namespace netsum
