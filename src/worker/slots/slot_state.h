// The states of a worker's slot and their transitions. wire/PROTOCOL.md, section 7.1, has the same table.
//
//   event                                  IDLE      WAITING      PROBE_DUE    RESEND_DUE
//   STARTED     its payload is sent        WAITING   -            -            -
//   OVERDUE     no result in time, a gap   -         PROBE_DUE    -            -
//   PROBED      the PROBE is sent          -         -            WAITING      -
//   AGAIN       a STATUS asks for it       -         RESEND_DUE   RESEND_DUE   -
//   RESENT      the payload is sent again  -         -            -            WAITING
//   FINISHED    its RESULT is delivered    -         IDLE         IDLE         IDLE
//
// A dash: the event cannot occur in this state.
#ifndef NETSUM_SRC_WORKER_SLOTS_SLOT_STATE_H_
#define NETSUM_SRC_WORKER_SLOTS_SLOT_STATE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

namespace netsum {

enum class SlotState : uint8_t {
  kIdle,       // no step, or its result has been delivered
  kWaiting,    // for the result
  kProbeDue,   // for the result; a PROBE is due
  kResendDue,  // for the result; the payload is due again
};

enum class SlotEvent : uint8_t { kStarted, kOverdue, kProbed, kAgain, kResent, kFinished };

// The state after `event`; none if it cannot happen in `state`.
constexpr std::optional<SlotState> slot_state_after(SlotState state, SlotEvent event) {
  using enum SlotState;
  constexpr std::optional<SlotState> kNever;
  constexpr std::optional<SlotState> kTable[6][4] = {
      {kWaiting, kNever, kNever, kNever},        // STARTED
      {kNever, kProbeDue, kNever, kNever},       // OVERDUE
      {kNever, kNever, kWaiting, kNever},        // PROBED
      {kNever, kResendDue, kResendDue, kNever},  // AGAIN
      {kNever, kNever, kNever, kWaiting},        // RESENT
      {kNever, kIdle, kIdle, kIdle},             // FINISHED
  };
  return kTable[static_cast<size_t>(event)][static_cast<size_t>(state)];
}

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_SLOTS_SLOT_STATE_H_
