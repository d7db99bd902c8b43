// The controls of the ingress, each as the P4 control of its name.
#include <algorithm>

#include "aggregator/p4/model/pipeline.h"

namespace netsum::p4 {
namespace {

constexpr uint8_t kPart = NETSUM_FLAG_PART;
// This dataplane announces neither EMPTY nor NO_RESULT.
constexpr uint8_t kFlags = NETSUM_FLAG_PART | NETSUM_FLAG_OVERFLOW | NETSUM_FLAG_AGAIN;

bool has_lanes(uint8_t type) {
  return type == NETSUM_TYPE_CONTRIBUTION || type == NETSUM_TYPE_RESULT;
}

bool is_parents(uint8_t type) {
  return type == NETSUM_TYPE_RESULT || type == NETSUM_TYPE_STATUS || type == NETSUM_TYPE_ERROR ||
         type == NETSUM_TYPE_WELCOME;
}

bool length_fits(uint8_t type, uint16_t payload_bytes) {
  if (payload_bytes > NETSUM_MAX_PAYLOAD || payload_bytes % NETSUM_PAYLOAD_MULTIPLE != 0) return false;
  if (has_lanes(type)) return payload_bytes > 0;
  return type == NETSUM_TYPE_HELLO || type == NETSUM_TYPE_WELCOME || payload_bytes == NETSUM_PROBE_BYTES;
}

// Table `formats`: what is known, and how it is added. Values are known, and refused after the job's other rules.
struct Format {
  bool known = false, values = false;
  uint8_t combine = NETSUM_P4_COMBINE_SUM;
  uint64_t top_bits = 0;
  uint8_t top_shift = 0;
};
Format format_of(uint8_t format) {
  constexpr uint64_t k8 = 0x8080808080808080, k16 = 0x8000800080008000, k32 = 0x8000000080000000,
                     k64 = 0x8000000000000000;
  switch (format) {
    case NETSUM_FORMAT_SUM_I8:
      return {true, false, NETSUM_P4_COMBINE_SUM, k8, 7};
    case NETSUM_FORMAT_SUM_I16:
      return {true, false, NETSUM_P4_COMBINE_SUM, k16, 15};
    case NETSUM_FORMAT_SUM_I32:
      return {true, false, NETSUM_P4_COMBINE_SUM, k32, 31};
    case NETSUM_FORMAT_SUM_I64:
      return {true, false, NETSUM_P4_COMBINE_SUM, k64, 63};
    case NETSUM_FORMAT_MAX_U8:
      return {true, false, NETSUM_P4_COMBINE_MAX, k8, 7};
    case NETSUM_FORMAT_MAX_U16:
      return {true, false, NETSUM_P4_COMBINE_MAX, k16, 15};
    case NETSUM_FORMAT_MAX_U32:
      return {true, false, NETSUM_P4_COMBINE_MAX, k32, 31};
    case NETSUM_FORMAT_MAX_U64:
      return {true, false, NETSUM_P4_COMBINE_MAX, k64, 63};
    case NETSUM_FORMAT_OR_U64:
      return {true, false, NETSUM_P4_COMBINE_OR, 0, 0};
    case NETSUM_FORMAT_XOR_U64:
      return {true, false, NETSUM_P4_COMBINE_XOR, 0, 0};
    default:
      break;
  }
  const uint8_t op = format >> 4, value = format & 15;
  const bool integers =
      op == NETSUM_OP_SUM_VALUES && (value == NETSUM_VALUE_I32 || value == NETSUM_VALUE_I64);
  const bool floats = (op == NETSUM_OP_SUM_FLOATS || op == NETSUM_OP_AVG_FLOATS) &&
                      value >= NETSUM_FLOAT_F32 && value <= NETSUM_FLOAT_F16;
  return {integers || floats, true};
}

// Lanes are little-endian on the wire, and the parser's words big-endian.
uint64_t swapped(uint64_t word) {
  return __builtin_bswap64(word);
}

// Action `sum` of control Word: lane by lane, because no carry passes a lane's top bit.
uint64_t sum(uint64_t x, uint64_t y, uint64_t top, bool* overflow) {
  const uint64_t total = ((x & ~top) + (y & ~top)) ^ ((x ^ y) & top);
  if (((x ^ total) & (y ^ total) & top) != 0) *overflow = true;
  return total;
}
// Action `maximum`: `ge` has the top bit of each lane of which x is the larger.
uint64_t maximum(uint64_t x, uint64_t y, uint64_t top, uint8_t shift) {
  const uint64_t low_ge = (x | top) - (y & ~top);
  const uint64_t ge = ((x & ~y) | (~(x ^ y) & low_ge)) & top;
  const uint64_t take_x = ge | (ge - (ge >> shift));
  return (x & take_x) | (y & ~take_x);
}

}  // namespace

// Table `parents`: a parent's packet names the own job from here on, and so do its later passes, in which its type alone tells
// whose it is. A STATUS is for the member in whose name its PROBE went up; an ERROR blames nobody here.
void Pipeline::from_parent(Packet* packet) {
  NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  if (!h.valid || !is_parents(h.type())) return;
  if (packet->pass.valid) {
    m.from_parent = true;
    return;
  }
  const auto found = parents_.find({m.from.ip, m.from.udp_port, h.job});
  if (found == parents_.end()) return;
  m.from_parent = true;
  h.job = found->second;
  h.member = NETSUM_MEMBER_ALL;
  if (h.type() != NETSUM_TYPE_STATUS) return;
  h.member = h.chunk % NETSUM_MAX_MEMBERS;
  h.chunk /= NETSUM_MAX_MEMBERS;
}

// The rules that need no job, in the order of PROTOCOL.md, section 3.
void Pipeline::refuse(Packet* packet) {
  const NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  const uint8_t type = h.type();
  if (!h.valid) {
    m.drop = NETSUM_DROP_TOO_SHORT;
  } else if (h.magic != NETSUM_MAGIC) {
    m.drop = NETSUM_DROP_BAD_MAGIC;
  } else if (h.version() != NETSUM_VERSION) {
    m.drop = NETSUM_DROP_BAD_VERSION;
  } else if (type < NETSUM_TYPE_CONTRIBUTION || type > NETSUM_TYPE_WELCOME) {
    m.drop = NETSUM_DROP_BAD_TYPE;
  } else if ((h.flags & ~kFlags) != 0) {
    m.drop = NETSUM_DROP_BAD_FLAGS;
  } else if (!length_fits(type, m.payload_bytes)) {
    m.drop = NETSUM_DROP_BAD_LENGTH;
  } else if (has_lanes(type) ? !format_of(h.format).known : h.format != NETSUM_FORMAT_NONE) {
    m.drop = NETSUM_DROP_BAD_FORMAT;
  } else if (type != NETSUM_TYPE_CONTRIBUTION && type != NETSUM_TYPE_PROBE && type != NETSUM_TYPE_HELLO) {
    m.drop = NETSUM_DROP_BAD_TYPE;  // it comes from a parent, if it is one's: admit_parent() says so
  }
}

// A parent's packet, of which refuse() has nothing to say but that it is no member's.
void Pipeline::admit_parent(Packet* packet) {
  NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  const bool first = !packet->pass.valid;
  if (first && m.drop != NETSUM_DROP_BAD_TYPE) return;
  const auto entry = jobs_.find(h.job);
  if (entry == jobs_.end() || !entry->second.parent) {
    m.drop = NETSUM_DROP_BAD_SLOT;
    return;
  }
  const JobEntry& job = entry->second;
  const auto port = parent_ports_.find(h.job);
  m.drop = NETSUM_DROP_NONE;
  if (!first) {
    if (h.epoch != job.epoch) m.drop = NETSUM_DROP_STALE_EPOCH;
  } else if (h.epoch != job.parent->epoch) {
    m.drop = NETSUM_DROP_STALE_EPOCH;
  } else if (h.slot >= job.slots) {
    m.drop = NETSUM_DROP_BAD_SLOT;
  } else if (m.payload_bytes > job.payload_bytes) {
    m.drop = NETSUM_DROP_BAD_LENGTH;
  } else if (job.parent->cookie != 0 && h.check != job.parent->cookie) {
    m.drop = NETSUM_DROP_BAD_CHECK;
  } else if (port != parent_ports_.end() && port->second != m.from.port) {
    m.drop = NETSUM_DROP_UNKNOWN_PEER;
  } else {
    h.epoch = job.epoch;
    h.check = job.cookie;
  }
  note_job(job, packet);
  m.addressee = h.member;
}

void Pipeline::job(Packet* packet) {
  const NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  const auto entry = jobs_.find(h.job);
  if (entry == jobs_.end()) {
    m.drop = NETSUM_DROP_UNKNOWN_JOB;
    return;
  }
  const JobEntry& job = entry->second;
  if (h.epoch != job.epoch) {
    m.drop = NETSUM_DROP_STALE_EPOCH;
  } else if (h.member >= job.members) {
    m.drop = NETSUM_DROP_BAD_MEMBER;
  } else if (h.slot >= job.slots) {
    m.drop = NETSUM_DROP_BAD_SLOT;
  } else if (m.payload_bytes > job.payload_bytes) {
    m.drop = NETSUM_DROP_BAD_LENGTH;
  } else if (h.type() == NETSUM_TYPE_CONTRIBUTION && format_of(h.format).values) {
    m.drop = NETSUM_DROP_BAD_FORMAT;
  } else if (job.cookie != 0 && h.type() != NETSUM_TYPE_HELLO && h.check != job.cookie) {
    m.drop = NETSUM_DROP_BAD_CHECK;
  }
  note_job(job, packet);
}

// Tables `jobs` and `uplinks`.
void Pipeline::note_job(const JobEntry& job, Packet* packet) {
  const NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  m.has_parent = job.parent.has_value();
  m.waits = m.has_parent && !parent_ports_.contains(h.job);
  m.cookie = job.cookie;
  m.members = job.members;
  m.first_slot = job.first_slot;
  m.everybody = job.members == NETSUM_MAX_MEMBERS ? ~uint64_t{0} : (uint64_t{1} << job.members) - 1;
  m.owner = uint32_t{h.job} << 16 | h.epoch;
  m.bank_index = 2 * (job.first_slot + h.slot) + (h.round & 1);
}

// Whether the packet is from the member's address. The control plane enters it when the first HELLO comes.
void Pipeline::member(Packet* packet) {
  const NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  const bool hello = h.type() == NETSUM_TYPE_HELLO;
  m.addressee = h.member;
  const auto entry = members_.find({h.job, h.member});
  if (entry == members_.end()) {
    m.verdict = NETSUM_P4_VERDICT_TO_CONTROL;
    if (!hello) m.drop = NETSUM_DROP_UNKNOWN_PEER;
    return;
  }
  if (!packet->pass.valid && entry->second != m.from) m.drop = NETSUM_DROP_UNKNOWN_PEER;
  if (hello) m.verdict = NETSUM_P4_VERDICT_WELCOME;
  m.bit = uint64_t{1} << h.member;
}

// Registers `over` and `current`. A packet of round r opens r if r - 1 is both the current round and over; after it has
// read the first, one comparison of the second decides. The packet that completes a round says so in its next pass.
void Pipeline::round(Pass* pass, Packet* packet) {
  const NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  const uint32_t slot = m.bank_index >> 1;
  const bool completes =
      packet->pass.step == NETSUM_P4_STEP_HARVEST && packet->pass.verdict == NETSUM_P4_VERDICT_RESULT_ALL;
  const uint32_t over = over_.access(pass, slot, [&](uint64_t& value) {
    if (!is_owned(m.owner, value)) value = owned(m.owner, 0);
    const uint32_t old = static_cast<uint32_t>(value);
    if (completes && old == h.round - 1) value = owned(m.owner, h.round);
    return old;
  });
  m.before_is_over = over == h.round - 1;
  m.is_over = over == h.round;
  const bool may_open = !packet->pass.valid && h.type() == NETSUM_TYPE_CONTRIBUTION && m.before_is_over;
  const uint32_t current = current_.access(pass, slot, [&](uint64_t& value) {
    if (!is_owned(m.owner, value)) value = owned(m.owner, 0);
    const uint32_t old = static_cast<uint32_t>(value);
    if (may_open && old == h.round - 1) value = owned(m.owner, h.round);
    return old;
  });
  m.ahead = h.round - current;
  m.opens = may_open && m.ahead == 1;
}

// Registers `chunk`, `signature` and `shape`: what the round is summing.
void Pipeline::identity(Pass* pass, Packet* packet) {
  const NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  const uint64_t shape = owned(m.owner, static_cast<uint32_t>(m.payload_bytes) << 16 |
                                            static_cast<uint32_t>(h.flags & kPart) << 8 | h.format);
  const auto set_or_read = [&m]<typename T>(T own) {
    return [&m, own](T& value) {
      if (m.opens) value = own;
      return value;
    };
  };
  const uint32_t chunk = chunk_.access(pass, m.bank_index, set_or_read(h.chunk));
  const uint32_t signature = signature_.access(pass, m.bank_index, set_or_read(h.signature));
  const uint64_t stored = shape_.access(pass, m.bank_index, set_or_read(shape));
  m.used = is_owned(m.owner, stored) && static_cast<uint32_t>(stored) != 0;
  m.agrees = chunk == h.chunk && signature == h.signature && stored == shape;
}

// Register `failed`. A packet that disagrees is known as such only after `seen`, behind this register: it marks the round in a
// pass of its own.
void Pipeline::failed(Pass* pass, Packet* packet) {
  const NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  const bool fails = packet->pass.step == NETSUM_P4_STEP_FAIL && m.ahead == 0 && !m.is_over;
  const uint16_t old = failed_.access(pass, m.bank_index, [&](uint16_t& value) {
    const uint16_t before = value;
    if (m.opens) value = 0;
    if (fails && value == 0) {
      const bool all = h.member == NETSUM_MEMBER_ALL;
      value = static_cast<uint16_t>(all ? h.member : h.member + 1);
    }
    return before;
  });
  m.failed = !m.opens && old != 0;
  m.blamed = h.member;
  if (m.failed) m.blamed = static_cast<uint16_t>(old == NETSUM_MEMBER_ALL ? old : old - 1);
}

// Register `seen`: of the round that is open, which for packets of the round before is in the other bank.
void Pipeline::seen(Pass* pass, Packet* packet) {
  const NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  const uint32_t index = m.bank_index ^ (m.ahead == 0xFFFFFFFF ? 1 : 0);
  const bool counts = !packet->pass.valid && h.type() == NETSUM_TYPE_CONTRIBUTION && m.ahead == 0 && m.used &&
                      m.agrees && !m.failed && !m.is_over;
  m.seen = seen_.access(pass, index, [&](uint64_t& value) {
    const uint64_t old = value;
    if (m.opens) value = m.bit;
    if (counts) value |= m.bit;
    return old;
  });
  m.known = !m.opens && (m.seen & m.bit) != 0;
  m.adds = m.opens || (counts && !m.known);
}

// Register `arrived`: contributions whose last word is in the lanes with this pass.
void Pipeline::arrived(Pass* pass, Packet* packet) {
  Metadata& m = packet->meta;
  const PassHeader& p = packet->pass;
  if (p.valid && p.step == NETSUM_P4_STEP_CONSUME && m.ahead == 0)
    m.adds = p.verdict == NETSUM_P4_VERDICT_STORE || p.verdict == NETSUM_P4_VERDICT_ADD;
  const bool whole = m.adds && m.left_bytes == 0;
  const uint8_t arrived = arrived_.access(pass, m.bank_index, [&](uint8_t& value) {
    if (m.opens) value = 0;
    if (whole) ++value;
    return value;
  });
  m.all_here = arrived == m.members;
}

// What becomes of the packet: netsum_slot_contribute() and netsum_slot_probe() of aggregator/slot/slot.h. In later passes,
// what the first one has decided.
void Pipeline::verdict(Packet* packet) {
  const PassHeader& p = packet->pass;
  if (!p.valid) {
    packet->netsum.type() == NETSUM_TYPE_PROBE ? verdict_on_probe(packet) : verdict_on_contribution(packet);
  } else {
    verdict_on_later_pass(packet);
  }
  lanes_of_pass(packet);
}

void Pipeline::verdict_on_later_pass(Packet* packet) {
  Metadata& m = packet->meta;
  const PassHeader& p = packet->pass;
  const bool counts = p.verdict == NETSUM_P4_VERDICT_STORE || p.verdict == NETSUM_P4_VERDICT_ADD;
  m.verdict = p.verdict;
  bool gone = false;  // the round, while the packet was between two passes
  if (p.step == NETSUM_P4_STEP_CONSUME) {
    gone = counts && m.ahead != 0;
    m.blamed = p.blamed;
  } else if (p.step == NETSUM_P4_STEP_HARVEST) {
    gone = m.ahead != 0 && m.ahead != 0xFFFFFFFF;
  } else {
    gone = m.ahead != 0 || m.is_over;
    if (m.failed) m.verdict = NETSUM_P4_VERDICT_REPLY_ERROR;
  }
  if (!gone) return;
  m.verdict = NETSUM_P4_VERDICT_DROP;
  count(NETSUM_P4_COUNT_LOST_PASS);
}

void Pipeline::verdict_on_contribution(Packet* packet) {
  Metadata& m = packet->meta;
  m.verdict = NETSUM_P4_VERDICT_DROP;
  if (m.opens) {
    m.verdict = NETSUM_P4_VERDICT_STORE;
  } else if (m.ahead == 1) {
    m.drop = NETSUM_DROP_FUTURE_ROUND;
  } else if (m.ahead == 0xFFFFFFFF) {
    if (m.used && m.agrees && !m.known) {
      m.verdict = NETSUM_P4_VERDICT_REPLY_RESULT;
    } else {
      m.drop = NETSUM_DROP_STALE_ROUND;
    }
  } else if (m.ahead != 0 || !m.used) {
    m.drop = m.ahead < 0x80000000 ? NETSUM_DROP_FUTURE_ROUND : NETSUM_DROP_STALE_ROUND;
  } else if (m.failed) {
    m.verdict = NETSUM_P4_VERDICT_REPLY_ERROR;
  } else if (m.adds) {
    m.verdict = NETSUM_P4_VERDICT_ADD;
  } else if (!m.known) {
    m.verdict = NETSUM_P4_VERDICT_ERROR_ALL;
  } else if (m.agrees && m.is_over) {
    m.verdict = NETSUM_P4_VERDICT_REPLY_RESULT;
  } else if (m.agrees && m.all_here) {
    m.verdict =
        NETSUM_P4_VERDICT_RESULT_ALL;  // the packet that completed the round was lost between two passes
  } else {
    m.drop = NETSUM_DROP_DUPLICATE;
  }
}

void Pipeline::verdict_on_probe(Packet* packet) {
  Metadata& m = packet->meta;
  m.verdict = NETSUM_P4_VERDICT_REPLY_STATUS;
  m.again = true;
  if (m.ahead == 1 && m.before_is_over) {
    m.seen = 0;
  } else if (m.ahead == 0xFFFFFFFF && m.used && !m.known) {
    m.seen = m.everybody;
  } else if (m.ahead == 0xFFFFFFFF) {
    m.drop = NETSUM_DROP_STALE_ROUND;
  } else if (m.ahead != 0 || !m.used) {
    m.drop = m.ahead < 0x80000000 ? NETSUM_DROP_FUTURE_ROUND : NETSUM_DROP_STALE_ROUND;
  } else if (m.failed) {
    m.verdict = NETSUM_P4_VERDICT_REPLY_ERROR;
  } else {
    m.again = m.is_over || !m.known || m.all_here;
  }
  if (m.drop != NETSUM_DROP_NONE) m.verdict = NETSUM_P4_VERDICT_DROP;
}

// In place of verdict(): netsum_slot_from_parent() of slot.h. Only a round whose sum is with the parent takes something from it.
void Pipeline::parent_verdict(Packet* packet) {
  const NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  const PassHeader& p = packet->pass;
  const bool summed = m.ahead == 0 && m.used && !m.failed && m.all_here && !m.is_over;
  if (p.valid) {
    const bool live = m.ahead == 0 || m.ahead == NETSUM_P4_AHEAD_BEFORE;
    const bool there = p.step == NETSUM_P4_STEP_HARVEST ? live : summed;
    m.verdict = there ? p.verdict : NETSUM_P4_VERDICT_DROP;
    if (!there) count(NETSUM_P4_COUNT_LOST_PASS);
  } else if (!summed) {
    const bool future = m.ahead < 0x80000000 && (m.ahead != 0 || !m.used);
    m.drop = future ? NETSUM_DROP_FUTURE_ROUND : NETSUM_DROP_STALE_ROUND;
  } else if (h.type() == NETSUM_TYPE_STATUS) {
    m.verdict = NETSUM_P4_VERDICT_REPLY_STATUS;
    m.again = (h.flags & NETSUM_FLAG_AGAIN) != 0;
    if (h.member >= m.members) m.drop = NETSUM_DROP_BAD_MEMBER;
  } else if (h.type() == NETSUM_TYPE_ERROR) {
    m.verdict = NETSUM_P4_VERDICT_ERROR_ALL;
  } else if (m.agrees) {
    m.verdict = NETSUM_P4_VERDICT_TAKE_RESULT;
  } else {
    m.drop = NETSUM_DROP_STALE_ROUND;
  }
  if (m.drop != NETSUM_DROP_NONE) m.verdict = NETSUM_P4_VERDICT_DROP;
  lanes_of_pass(packet);
}

// Verdicts of a job with a parent that one without would not get. Until the parent has answered, no member is welcome.
void Pipeline::uplink(Packet* packet) {
  Metadata& m = packet->meta;
  const uint8_t type = packet->netsum.type();
  if (!m.has_parent || packet->pass.valid || m.drop != NETSUM_DROP_NONE) return;
  if (type == NETSUM_TYPE_HELLO || type == NETSUM_TYPE_WELCOME) {
    if (m.waits) m.verdict = NETSUM_P4_VERDICT_TO_CONTROL;
  } else if (!m.from_parent && m.ahead == 0 && m.all_here && !m.is_over) {
    if (m.verdict == NETSUM_P4_VERDICT_REPLY_STATUS) m.verdict = NETSUM_P4_VERDICT_PROBE_UP;
    if (m.verdict == NETSUM_P4_VERDICT_RESULT_ALL) m.verdict = NETSUM_P4_VERDICT_SEND_UP;
  }
}

// Table `lanes_of_pass`: what this pass does to the lanes' registers.
void Pipeline::lanes_of_pass(Packet* packet) {
  Metadata& m = packet->meta;
  if (m.verdict == NETSUM_P4_VERDICT_DROP) return;
  if (packet->pass.step == NETSUM_P4_STEP_HARVEST) {
    m.lanes = NETSUM_P4_LANES_READ;
  } else if (m.verdict == NETSUM_P4_VERDICT_STORE || m.verdict == NETSUM_P4_VERDICT_TAKE_RESULT) {
    m.lanes = NETSUM_P4_LANES_STORE;
  } else if (m.verdict == NETSUM_P4_VERDICT_ADD) {
    m.lanes = NETSUM_P4_LANES_ADD;
  }
}

// Registers `lanes`, one for each word: 32 instances of control Word.
void Pipeline::lanes(Pass* pass, Packet* packet) {
  Metadata& m = packet->meta;
  if (m.lanes == NETSUM_P4_LANES_KEEP) return;
  const Format format = format_of(packet->netsum.format);
  if (m.lanes == NETSUM_P4_LANES_READ) {
    const int left = m.payload_bytes - packet->pass.group * NETSUM_P4_PASS_BYTES;
    packet->word_count = std::min(left / 8, NETSUM_P4_WORDS);
  }
  const size_t index = size_t{m.bank_index} * NETSUM_P4_GROUPS + packet->pass.group;
  for (int i = 0; i < packet->word_count; ++i) {
    uint64_t& word = packet->words[static_cast<size_t>(i)];
    const uint64_t own = swapped(word);
    const uint64_t total = lanes_[static_cast<size_t>(i)].access(pass, index, [&](uint64_t& value) {
      if (m.lanes == NETSUM_P4_LANES_STORE) value = own;
      if (m.lanes == NETSUM_P4_LANES_ADD) {
        if (format.combine == NETSUM_P4_COMBINE_SUM)
          value = sum(value, own, format.top_bits, &m.lanes_overflow);
        if (format.combine == NETSUM_P4_COMBINE_MAX)
          value = maximum(value, own, format.top_bits, format.top_shift);
        if (format.combine == NETSUM_P4_COMBINE_OR) value |= own;
        if (format.combine == NETSUM_P4_COMBINE_XOR) value ^= own;
      }
      return value;
    });
    word = swapped(total);
  }
}

// Register `overflow`: a lane has passed its range, here or at an aggregator below or above.
void Pipeline::overflow(Pass* pass, Packet* packet) {
  Metadata& m = packet->meta;
  const bool says_so = !packet->pass.valid && (packet->netsum.flags & NETSUM_FLAG_OVERFLOW) != 0;
  const bool counts = m.adds || m.verdict == NETSUM_P4_VERDICT_TAKE_RESULT;
  const bool more = (m.adds && m.lanes_overflow && detects_overflow_) || (counts && says_so);
  m.overflow = overflow_.access(pass, m.bank_index, [&](uint8_t& value) {
    if (m.opens) value = 0;
    if (more) value = 1;
    return value;
  }) != 0;
}

// Where the packet goes.
void Pipeline::next(Packet* packet) {
  Metadata& m = packet->meta;
  const PassHeader p = packet->pass;
  if (m.drop != NETSUM_DROP_NONE) return count(m.drop);
  switch (m.verdict) {
    case NETSUM_P4_VERDICT_DROP:
      return;
    case NETSUM_P4_VERDICT_REPLY_STATUS:
      return status(packet);
    case NETSUM_P4_VERDICT_PROBE_UP:
      return probe_up(packet);
    case NETSUM_P4_VERDICT_TO_CONTROL:
      m.to_control = true;
      return;
    case NETSUM_P4_VERDICT_WELCOME:
      packet->netsum.version_type = NETSUM_VERSION << 4 | NETSUM_TYPE_WELCOME;
      packet->netsum.flags = 0;
      packet->netsum.check = m.cookie;
      m.to_member = true;
      return count(NETSUM_P4_COUNT_HELLOS);
    default:
      break;
  }
  const uint32_t last_group = (m.payload_bytes - 1u) / NETSUM_P4_PASS_BYTES;
  if (p.step == NETSUM_P4_STEP_HARVEST) {
    if (p.group > 0) return recirculate(packet, NETSUM_P4_STEP_HARVEST, p.group - 1u);
    return m.verdict == NETSUM_P4_VERDICT_SEND_UP ? contribution_up(packet) : result(packet);
  }
  if (p.step == NETSUM_P4_STEP_FAIL) return error(packet);
  packet->word_count = 0;  // consumed
  if (m.adds && !p.valid) count(NETSUM_P4_COUNT_CONTRIBUTIONS);
  if (m.left_bytes > 0) return recirculate(packet, NETSUM_P4_STEP_CONSUME, p.group + 1u);
  if (m.adds) {
    if (!m.all_here) return;
    m.verdict = m.has_parent ? NETSUM_P4_VERDICT_SEND_UP : NETSUM_P4_VERDICT_RESULT_ALL;
  }
  if (m.verdict == NETSUM_P4_VERDICT_TAKE_RESULT) m.verdict = NETSUM_P4_VERDICT_RESULT_ALL;
  if (m.verdict == NETSUM_P4_VERDICT_REPLY_ERROR) return error(packet);
  if (m.verdict == NETSUM_P4_VERDICT_ERROR_ALL) return recirculate(packet, NETSUM_P4_STEP_FAIL, 0);
  recirculate(packet, NETSUM_P4_STEP_HARVEST, last_group);
}

void Pipeline::recirculate(Packet* packet, uint8_t step, uint32_t group) {
  Metadata& m = packet->meta;
  packet->pass = {.valid = true,
                  .step = step,
                  .group = static_cast<uint8_t>(group),
                  .verdict = m.verdict,
                  .blamed = m.blamed,
                  .lanes_bytes = m.payload_bytes,
                  .left_bytes = m.left_bytes};
  if (step == NETSUM_P4_STEP_HARVEST) {  // the words of this pass are behind those of the next one
    std::vector<uint8_t> front;
    for (int i = 0; i < packet->word_count; ++i) {
      for (int shift = 56; shift >= 0; shift -= 8)
        front.push_back(static_cast<uint8_t>(packet->words[static_cast<size_t>(i)] >> shift));
    }
    packet->payload.insert(packet->payload.begin(), front.begin(), front.end());
    packet->word_count = 0;
  }
  m.recirculate = true;
}

void Pipeline::result(Packet* packet) {
  NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  h.version_type = NETSUM_VERSION << 4 | NETSUM_TYPE_RESULT;
  h.flags = static_cast<uint8_t>((h.flags & kPart) | (m.overflow ? NETSUM_FLAG_OVERFLOW : 0));
  h.member = NETSUM_MEMBER_ALL;
  if (m.verdict == NETSUM_P4_VERDICT_REPLY_RESULT) {
    m.to_member = true;
    return count(NETSUM_P4_COUNT_RESULTS_REPEATED);
  }
  m.to_all = true;
  if (m.overflow) count(NETSUM_P4_COUNT_OVERFLOWS);
  count(NETSUM_P4_COUNT_ROUNDS_COMPLETED);
  ++rounds_.at(h.job);
}

void Pipeline::contribution_up(Packet* packet) {
  NetsumHeader& h = packet->netsum;
  h.flags = static_cast<uint8_t>((h.flags & kPart) | (packet->meta.overflow ? NETSUM_FLAG_OVERFLOW : 0));
  packet->meta.to_parent = true;
  count(NETSUM_P4_COUNT_SENT_TO_PARENT);
}

// The answer repeats the chunk, which names the member that asks.
void Pipeline::probe_up(Packet* packet) {
  NetsumHeader& h = packet->netsum;
  h.flags = 0;
  h.chunk = h.chunk * NETSUM_MAX_MEMBERS + h.member;
  packet->words[0] = 0;
  packet->meta.to_parent = true;
  count(NETSUM_P4_COUNT_SENT_TO_PARENT);
}

// In place of a PROBE's payload.
void Pipeline::status(Packet* packet) {
  NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  h.version_type = NETSUM_VERSION << 4 | NETSUM_TYPE_STATUS;
  h.flags = m.again ? NETSUM_FLAG_AGAIN : 0;
  packet->words[0] = m.seen;
  m.to_member = true;
  count(NETSUM_P4_COUNT_STATUSES);
}

void Pipeline::error(Packet* packet) {
  NetsumHeader& h = packet->netsum;
  Metadata& m = packet->meta;
  h.version_type = NETSUM_VERSION << 4 | NETSUM_TYPE_ERROR;
  h.format = NETSUM_FORMAT_NONE;
  h.flags = 0;
  h.member = NETSUM_MEMBER_ALL;
  packet->words[0] = uint64_t{NETSUM_ERROR_MISMATCH} << 48 | uint64_t{m.blamed} << 32;
  packet->word_count = 1;
  if (m.verdict == NETSUM_P4_VERDICT_REPLY_ERROR) {
    m.to_member = true;
    return;
  }
  m.to_all = true;
  count(NETSUM_P4_COUNT_MISMATCHES);
}

}  // namespace netsum::p4
