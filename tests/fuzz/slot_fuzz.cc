// The slot machine against a naive model: the tables of PROTOCOL.md sections 5 and 5.1, taken literally, over a
// memory that forgets nothing. Members and parent may send anything: they skip rounds, disagree, repeat themselves
// and send packets of the past.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "aggregator/slot/slot_bench.h"

namespace netsum {
namespace {

constexpr uint32_t kPayload = 16;

struct Round {
  enum State { kOpen, kSummed, kComplete, kFailed } state = kOpen;
  uint64_t seen = 0;
  netsum_fields identity{};
  bool overflow = false;
  uint16_t filled = NETSUM_MEMBER_ALL;  // who has contributed lanes last
  bool unsent = false;
  uint64_t no_result = 0;
  uint8_t lanes[kPayload] = {};
};

bool has_lanes(const netsum_fields& f) {
  return (f.flags & NETSUM_FLAG_EMPTY) == 0;
}
uint32_t lane_bytes_of(const netsum_fields& f) {
  return has_lanes(f) ? f.payload_bytes : f.absent_bytes;
}

bool agree(const netsum_fields& a, const netsum_fields& b) {
  return a.chunk == b.chunk && a.signature == b.signature && a.format == b.format &&
         lane_bytes_of(a) == lane_bytes_of(b) && (a.flags & NETSUM_FLAG_PART) == (b.flags & NETSUM_FLAG_PART);
}

template <typename T>
bool add_lanes(uint8_t* sums, const uint8_t* lanes, uint32_t bytes) {
  bool overflow = false;
  for (uint32_t at = 0; at < bytes; at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, sums + at, sizeof a);
    std::memcpy(&b, lanes + at, sizeof b);
    const __int128 exact = static_cast<__int128>(a) + b;
    const auto sum = static_cast<T>(exact);
    overflow |= sum != exact;
    std::memcpy(sums + at, &sum, sizeof sum);
  }
  return overflow;
}

template <typename T>
void max_lanes(uint8_t* maxima, const uint8_t* lanes, uint32_t bytes) {
  for (uint32_t at = 0; at < bytes; at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, maxima + at, sizeof a);
    std::memcpy(&b, lanes + at, sizeof b);
    if (b > a) std::memcpy(maxima + at, &b, sizeof b);
  }
}

class Model {
 public:
  Model(uint16_t members, bool has_parent, bool lengthens)
      : members_(members),
        all_(netsum_all_members(members)),
        has_parent_(has_parent),
        lengthens_(lengthens) {}

  // As if everything up to `round` had been done.
  void start_after(uint32_t round) {
    current_ = round;
    rounds_[round].state = Round::kComplete;
    rounds_[round].seen = all_;
    used_ = true;
  }

  SlotOutcome take(const netsum_fields& f, const uint8_t* lanes) {
    const uint32_t distance = f.round - current_;
    const bool over = !used_ || rounds_[current_].state == Round::kComplete;
    if (distance == 1) {
      if (!over) return dropped(NETSUM_DROP_FUTURE_ROUND);
      return f.type == NETSUM_TYPE_PROBE ? status(f, 0, true) : open(f, lanes);
    }
    if (distance == 0 && used_) return of_current(f, lanes);
    if (distance == 0) return dropped(NETSUM_DROP_FUTURE_ROUND);
    if (distance == 0xFFFFFFFFu) return of_previous(f);
    return dropped(distance < 0x80000000u ? NETSUM_DROP_FUTURE_ROUND : NETSUM_DROP_STALE_ROUND);
  }

  SlotOutcome take_from_parent(const netsum_fields& f, const uint8_t* lanes) {
    const uint32_t distance = f.round - current_;
    if (distance != 0 || !used_) {
      return dropped(distance < 0x80000000u ? NETSUM_DROP_FUTURE_ROUND : NETSUM_DROP_STALE_ROUND);
    }
    Round& round = rounds_[current_];
    if (round.state != Round::kSummed) return dropped(NETSUM_DROP_STALE_ROUND);
    if (f.type == NETSUM_TYPE_ERROR) {
      round.state = Round::kFailed;
      return act(NETSUM_ACT_ERROR_ALL, f);
    }
    if (f.type == NETSUM_TYPE_STATUS) {
      if (f.chunk % 64 >= members_) return dropped(NETSUM_DROP_BAD_MEMBER);
      SlotOutcome outcome = status(f, round.seen, (f.flags & NETSUM_FLAG_AGAIN) != 0);
      outcome.action = NETSUM_ACT_PASS_STATUS;
      outcome.addressee = static_cast<uint16_t>(f.chunk % 64);
      return outcome;
    }
    if (!agree(f, round.identity)) return dropped(NETSUM_DROP_STALE_ROUND);
    round.overflow |= (f.flags & NETSUM_FLAG_OVERFLOW) != 0;
    round.state = Round::kComplete;
    if (has_lanes(f)) std::memcpy(round.lanes, lanes, f.payload_bytes);
    round.filled = has_lanes(f) ? 0 : NETSUM_MEMBER_ALL;
    SlotOutcome outcome = act(NETSUM_ACT_TAKE_RESULT, f);
    outcome.completed = true;
    return outcome;
  }

  const Round* find(uint32_t round) const {
    const auto it = rounds_.find(round);
    return it == rounds_.end() ? nullptr : &it->second;
  }

 private:
  static SlotOutcome dropped(int reason) { return {NETSUM_ACT_DROP, static_cast<uint8_t>(reason)}; }
  static uint8_t bank(const netsum_fields& f) { return f.round & 1; }
  static SlotOutcome status(const netsum_fields& f, uint64_t seen, bool again) {
    return {NETSUM_ACT_REPLY_STATUS, NETSUM_DROP_NONE, bank(f),
            static_cast<uint8_t>(again ? NETSUM_FLAG_AGAIN : 0), seen};
  }
  static SlotOutcome act(uint8_t action, const netsum_fields& f, uint64_t seen = 0) {
    return {action, NETSUM_DROP_NONE, bank(f), 0, seen};
  }

  // Whether the member's copy of the result is as short as the packet.
  static bool may_answer(const Round& round, const netsum_fields& f) {
    return has_lanes(f) || round.filled == NETSUM_MEMBER_ALL || (round.no_result >> f.member & 1) != 0;
  }

  SlotOutcome open(const netsum_fields& f, const uint8_t* lanes) {
    current_ = f.round;
    used_ = true;
    Round& round = rounds_[current_] = Round();
    round.identity = f;
    round.overflow = (f.flags & NETSUM_FLAG_OVERFLOW) != 0;
    round.seen = netsum_member_bit(f.member);
    if (f.flags & NETSUM_FLAG_NO_RESULT) round.no_result = round.seen;
    SlotOutcome outcome = act(has_lanes(f) ? NETSUM_ACT_STORE : NETSUM_ACT_CLEAR, f, round.seen);
    if (has_lanes(f)) {
      std::memcpy(round.lanes, lanes, f.payload_bytes);
      round.filled = f.member;
    }
    complete(f, &round, &outcome);
    return outcome;
  }

  SlotOutcome of_current(const netsum_fields& f, const uint8_t* lanes) {
    Round& round = rounds_[current_];
    const uint64_t bit = netsum_member_bit(f.member);
    if (round.state == Round::kFailed) return act(NETSUM_ACT_REPLY_ERROR, f);
    const bool done = round.state == Round::kComplete;
    const bool above = round.state == Round::kSummed;
    if (f.type == NETSUM_TYPE_PROBE && above) return act(NETSUM_ACT_PROBE_UP, f);
    if (f.type == NETSUM_TYPE_PROBE) return status(f, round.seen, done || !(round.seen & bit));
    if (round.seen & bit) {
      const bool agrees = agree(f, round.identity);
      if (done && agrees && has_lanes(f) && std::exchange(round.unsent, false))
        return act(NETSUM_ACT_RESULT_ALL, f);
      if (done && agrees && may_answer(round, f)) return act(NETSUM_ACT_REPLY_RESULT, f);
      const bool short_sum = round.filled == NETSUM_MEMBER_ALL && round.no_result == all_;
      if (above && agrees && (has_lanes(f) || short_sum)) return act(NETSUM_ACT_SEND_UP, f);
      return dropped(NETSUM_DROP_DUPLICATE);
    }
    if (!agree(f, round.identity)) {
      round.state = Round::kFailed;
      return act(NETSUM_ACT_ERROR_ALL, f);
    }
    round.seen |= bit;
    round.overflow |= (f.flags & NETSUM_FLAG_OVERFLOW) != 0;
    if (f.flags & NETSUM_FLAG_NO_RESULT) round.no_result |= bit;
    SlotOutcome outcome = act(has_lanes(f) ? NETSUM_ACT_ADD : NETSUM_ACT_COUNT, f, round.seen);
    if (has_lanes(f)) {
      add(&round, lanes);
      round.filled = f.member;
    }
    complete(f, &round, &outcome);
    return outcome;
  }

  SlotOutcome of_previous(const netsum_fields& f) {
    const Round* round = find(f.round);
    const Round* current = find(current_);
    if (round == nullptr || current->state == Round::kComplete ||
        (current->seen & netsum_member_bit(f.member))) {
      return dropped(NETSUM_DROP_STALE_ROUND);
    }
    if (f.type == NETSUM_TYPE_PROBE) return status(f, round->seen, true);
    const bool answers = agree(f, round->identity) && may_answer(*round, f);
    return answers ? act(NETSUM_ACT_REPLY_RESULT, f) : dropped(NETSUM_DROP_STALE_ROUND);
  }

  void add(Round* round, const uint8_t* lanes) const {
    const uint32_t bytes = lane_bytes_of(round->identity);
    switch (round->identity.format) {
      case NETSUM_FORMAT_SUM_I8:
        round->overflow |= add_lanes<int8_t>(round->lanes, lanes, bytes);
        return;
      case NETSUM_FORMAT_SUM_I16:
        round->overflow |= add_lanes<int16_t>(round->lanes, lanes, bytes);
        return;
      case NETSUM_FORMAT_SUM_I32:
        round->overflow |= add_lanes<int32_t>(round->lanes, lanes, bytes);
        return;
      case NETSUM_FORMAT_SUM_I64:
        round->overflow |= add_lanes<int64_t>(round->lanes, lanes, bytes);
        return;
      case NETSUM_FORMAT_MAX_U8:
        return max_lanes<uint8_t>(round->lanes, lanes, bytes);
      case NETSUM_FORMAT_MAX_U16:
        return max_lanes<uint16_t>(round->lanes, lanes, bytes);
      case NETSUM_FORMAT_MAX_U32:
        return max_lanes<uint32_t>(round->lanes, lanes, bytes);
      case NETSUM_FORMAT_MAX_U64:
        return max_lanes<uint64_t>(round->lanes, lanes, bytes);
      case NETSUM_FORMAT_OR_U64:
        for (uint32_t i = 0; i < bytes; ++i) round->lanes[i] |= lanes[i];
        return;
      default:
        for (uint32_t i = 0; i < bytes; ++i) round->lanes[i] ^= lanes[i];
    }
  }

  void complete(const netsum_fields& f, Round* round, SlotOutcome* outcome) const {
    outcome->completed = round->seen == all_;
    if (!outcome->completed) return;
    round->state = has_parent_ ? Round::kSummed : Round::kComplete;
    if (lengthens_ || has_lanes(f)) return;
    if (!has_parent_ && round->no_result == all_) return;
    outcome->asked = round->filled;
    round->unsent = !has_parent_ && round->filled != NETSUM_MEMBER_ALL;
  }

  const uint16_t members_;
  const uint64_t all_;
  const bool has_parent_;
  const bool lengthens_;
  uint32_t current_ = 0;
  bool used_ = false;
  std::map<uint32_t, Round> rounds_;
};

void require(bool holds) {
  if (!holds) std::abort();
}

constexpr uint8_t kFormats[] = {NETSUM_FORMAT_SUM_I32, NETSUM_FORMAT_SUM_I16, NETSUM_FORMAT_SUM_I64,
                                NETSUM_FORMAT_MAX_U8,  NETSUM_FORMAT_OR_U64,  NETSUM_FORMAT_XOR_U64,
                                NETSUM_FORMAT_MAX_U16, NETSUM_FORMAT_MAX_U32, NETSUM_FORMAT_MAX_U64,
                                NETSUM_FORMAT_SUM_I8};

// What an input's first two bytes say.
struct Setting {
  uint16_t members;
  bool has_parent;
  bool lengthens;
  uint8_t format;  // of nearly all contributions
  bool wraps;      // begins shortly before the rounds wrap
};

Setting setting_from(const uint8_t* bytes) {
  return {.members = static_cast<uint16_t>(1 + bytes[0] % 4),
          .has_parent = bytes[0] / 4 % 2 == 1,
          .lengthens = bytes[0] / 8 % 2 == 0,
          .format = kFormats[bytes[1] / 2 % std::size(kFormats)],
          .wraps = bytes[1] % 2 == 1};
}

netsum_fields fields_from(const uint8_t* bytes, const Setting& setting, uint32_t near_round,
                          const SlotBench& bench) {
  netsum_fields f = bench.contribution(bytes[0] % setting.members, 0);
  // Mostly the rounds around the current one; some far away.
  const uint8_t step = bytes[1];
  f.round = near_round + (step % 8) - 3;
  if (step >= 250) f.round += 1u << (26 + step - 250);
  // Mostly what the others contribute, too.
  const uint8_t variant = bytes[2];
  f.chunk = variant == 255 ? 7 : 3;
  f.signature = variant == 254 ? 8 : 4;
  f.format = variant < 250 ? setting.format : kFormats[variant % std::size(kFormats)];
  f.payload_bytes = variant == 253 ? 16 : 8;
  f.flags = variant == 252 ? NETSUM_FLAG_PART : variant == 251 ? NETSUM_FLAG_OVERFLOW : 0;
  if (variant >= 200 && variant < 250) {
    f.flags = NETSUM_FLAG_EMPTY;
    f.absent_bytes = variant == 249 ? 16 : variant == 248 ? 24 : variant == 247 ? 12 : variant == 246 ? 0 : 8;
  }
  const uint8_t kind = bytes[3];
  if (kind / 16 % 4 == 3) f.flags |= NETSUM_FLAG_NO_RESULT;
  if (kind % 4 == 0) {
    f.type = NETSUM_TYPE_PROBE;
    f.format = NETSUM_FORMAT_NONE;
    f.flags = 0;
    f.payload_bytes = NETSUM_PROBE_BYTES;
    f.absent_bytes = 0;
  } else if (kind % 4 == 1 && setting.has_parent) {
    f.flags &= static_cast<uint8_t>(~NETSUM_FLAG_NO_RESULT);
    f.type = kind % 32 == 1 ? NETSUM_TYPE_ERROR : kind % 16 == 5 ? NETSUM_TYPE_STATUS : NETSUM_TYPE_RESULT;
    f.member = NETSUM_MEMBER_ALL;
    if (f.type == NETSUM_TYPE_RESULT) return f;
    f.chunk = bytes[4];  // of a STATUS: its last six bits are the destination
    f.format = NETSUM_FORMAT_NONE;
    f.flags = bytes[5] % 2 ? NETSUM_FLAG_AGAIN : 0;
    f.payload_bytes = NETSUM_STATUS_BYTES;
  }
  return f;
}

void run(const uint8_t* data, size_t size) {
  if (size < 2) return;
  const Setting setting = setting_from(data);
  SlotBench bench(setting.members, 1, kPayload, setting.has_parent, setting.lengthens);
  Model model(setting.members, setting.has_parent, setting.lengthens);
  uint32_t near_round = 0;
  if (setting.wraps) {
    near_round = 0xFFFFFFFDu;
    bench.slot().current = near_round;
    netsum_round& round = bench.slot().rounds[near_round & 1];
    round.state = NETSUM_ROUND_COMPLETE;
    round.seen = netsum_all_members(setting.members);
    model.start_after(near_round);
  }
  constexpr size_t kBytesPerPacket = 6;
  for (size_t at = 2; at + kBytesPerPacket <= size; at += kBytesPerPacket) {
    const netsum_fields f = fields_from(data + at, setting, near_round, bench);
    uint8_t lanes[kPayload];
    // Small and extreme values: sums that fit, and sums that do not.
    for (uint32_t i = 0; i < kPayload; ++i) lanes[i] = i % 4 == 3 ? data[at + 5] : data[at + 4];
    const bool from_parent = netsum_is_parents(f.type) != 0;
    if (f.type == NETSUM_TYPE_RESULT && !netsum_length_fits_job(&f, &bench.rules())) continue;
    if (const int reason = netsum_check_rules(&f, &bench.rules());
        reason != NETSUM_DROP_NONE && !from_parent) {
      require(reason == NETSUM_DROP_BAD_LENGTH && !has_lanes(f));
      require(f.absent_bytes == 0 || f.absent_bytes > kPayload || f.absent_bytes % 8 != 0);
      continue;
    }
    const SlotOutcome expected = from_parent ? model.take_from_parent(f, lanes) : model.take(f, lanes);
    const SlotOutcome outcome = from_parent ? bench.feed_from_parent(f, lanes) : bench.feed(f, lanes);
    require(outcome == expected);
    if (outcome.action == NETSUM_ACT_STORE || outcome.action == NETSUM_ACT_CLEAR) near_round = f.round;
    const bool repeats = outcome.action == NETSUM_ACT_REPLY_RESULT || outcome.action == NETSUM_ACT_SEND_UP ||
                         outcome.action == NETSUM_ACT_RESULT_ALL;
    if (!outcome.completed && !repeats) continue;
    const Round* round = model.find(f.round);
    require(std::memcmp(bench.lanes(0, f.round).data(), round->lanes, lane_bytes_of(round->identity)) == 0);
    require((bench.slot().rounds[f.round & 1].overflow != 0) == round->overflow);
  }
}

}  // namespace
}  // namespace netsum

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  netsum::run(data, size);
  return 0;
}
