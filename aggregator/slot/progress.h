// How far the slots of a job are, for people: what the slot machine itself never needs to know.
#ifndef NETSUM_AGGREGATOR_SLOT_PROGRESS_H_
#define NETSUM_AGGREGATOR_SLOT_PROGRESS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "aggregator/slot/slot.h"

namespace netsum {

struct SlotProgress {
  uint64_t rounds = 0;      // completed
  uint32_t open_slots = 0;  // with a round under way
  // The oldest step under way, of data if there is one, else of scales: every member that is alive gets as
  // far as that, while later ones may be missing only because a window is smaller.
  uint64_t missing = 0;  // members that have not contributed to it; 0: nothing is under way
  uint64_t oldest = 0;   // tells it from every other step of the job
};

// `slots`: the job's, its `data_slots` first. Rounds are taken to have not yet wrapped, so for figures only.
inline SlotProgress slot_progress(std::span<const netsum_slot> slots, uint32_t data_slots, uint16_t members) {
  SlotProgress progress;
  bool found_data = false;
  for (size_t i = 0; i < slots.size(); ++i) {
    const netsum_slot& slot = slots[i];
    if (slot.current == 0) continue;  // never used
    const netsum_round& round = slot.rounds[slot.current & 1];
    const bool open = round.state == NETSUM_ROUND_OPEN;
    progress.rounds += slot.current - (round.state == NETSUM_ROUND_COMPLETE ? 0 : 1);
    if (!open) continue;
    ++progress.open_slots;
    const bool data = i < data_slots;
    // The q-th step of data uses slot q mod S in round q / S + 1; scales alike.
    const uint64_t slots_of_kind = data ? data_slots : slots.size() - data_slots;
    const uint64_t index = data ? i : i - data_slots;
    const uint64_t step = ((slot.current - uint64_t{1}) * slots_of_kind + index) * 2 + (data ? 0 : 1);
    const bool older =
        progress.missing == 0 || (data && !found_data) || (data == found_data && step < progress.oldest);
    if (!older || (found_data && !data)) continue;
    found_data = data;
    progress.oldest = step;
    progress.missing = netsum_all_members(members) & ~round.seen;
  }
  return progress;
}

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_SLOT_PROGRESS_H_
