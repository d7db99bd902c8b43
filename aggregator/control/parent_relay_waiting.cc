// The part of ParentRelay that lets members wait until this aggregator has slots for their job, if the job may wait
// (WhenFull::kWait).
#include <algorithm>

#include "aggregator/control/parent_call.h"
#include "aggregator/control/parent_relay.h"
#include "src/base/clock.h"
#include "src/control/rpc_status.h"
#include "src/job/ranks.h"

namespace netsum {

bool ParentRelay::may_wait(const JobSpec& spec) const {
  return when_full_of(spec) == WhenFull::kWait && dataplane_->limits().job_slots(spec) > kScaleSlots;
}

void ParentRelay::notify_room() {
  room_changed_ = true;
  changed_.notify_all();
}

std::function<void()> ParentRelay::admit(Session& session, std::shared_ptr<Reservation> reservation) {
  session.reservation = std::move(reservation);
  ++calls_;
  return [call = session.call, slots = session.reservation->slots, deadline_us = session.deadline_us] {
    call->start(call, slots, deadline_us - monotonic_us());
  };
}

void ParentRelay::forget_waiting(SessionId id) {
  std::erase(waiting_, id);
  sessions_.erase(id);
  notify_room();  // the next one may be admitted now
}

bool ParentRelay::serve_waiting(std::unique_lock<std::mutex>& lock, int64_t now_us) {
  std::vector<std::function<void()>> starts;
  std::vector<std::shared_ptr<MemberStream>> ended;
  if (std::exchange(room_changed_, false) && !draining_) {
    // First come, first served. But the further ranks of an admitted job share its reservation, and pass those that
    // wait.
    bool is_next = true;
    for (const SessionId id : std::deque(waiting_)) {
      Session& session = sessions_.at(id);
      auto reservation = reserve(session.spec, is_next);
      is_next &= reservation.ok();
      if (!reservation.ok() && (removals_ > 0 || may_wait(session.spec))) continue;
      if (!reservation.ok()) {
        // It was to wait until jobs that had ended were removed, and no longer.
        ended.push_back(session.stream);
        session.stream->enqueue_end(to_rpc_status(reservation.status()));
        forget_waiting(id);
        continue;
      }
      std::erase(waiting_, id);
      starts.push_back(admit(session, std::move(reservation).value()));
    }
  }
  for (const SessionId id : std::deque(waiting_)) {
    const Session& session = sessions_.at(id);
    if (session.deadline_us > now_us) continue;
    ended.push_back(session.stream);
    session.stream->enqueue_end(to_rpc_status(
        {ErrorCode::kResourceExhausted, "job '" + session.spec.name() + "' has waited " +
                                            describe_ms((now_us - session.began_us) / 1000) +
                                            " for room at this aggregator: wait for another job to end, or "
                                            "start it with more slots per core"}));
    forget_waiting(id);
  }
  if (starts.empty() && ended.empty()) return false;
  lock.unlock();
  for (const auto& start : starts) start();
  for (const auto& stream : ended) stream->pump();
  lock.lock();
  return true;
}

}  // namespace netsum
