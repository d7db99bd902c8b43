#include "tests/conformance/reference_dataplane.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "aggregator/slot/lanes.h"
#include "src/base/assert.h"
#include "src/kernels/half.h"

namespace netsum::conformance {

namespace {

template <typename T>
T element(const Bytes& bytes, size_t index) {
  T value;
  std::memcpy(&value, &bytes[index * sizeof value], sizeof value);
  return value;
}

struct Float32 {
  using Bits = float;
  static float read(float value) { return value; }
  static float write(float value) {
    return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
  }
};
struct BFloat16 {
  using Bits = uint16_t;
  static float read(uint16_t bits) { return kernels::bfloat16_to_float(bits); }
  static uint16_t write(float value) { return kernels::float_to_bfloat16(value); }
};
struct Float16 {
  using Bits = uint16_t;
  static float read(uint16_t bits) { return kernels::float16_to_float(bits); }
  static uint16_t write(float value) { return kernels::float_to_float16(value); }
};

// docs/numerics.md: float32 additions, in the order of the members, rounded once at the end.
template <typename Type>
void sum_floats(const netsum_fields& f, const std::map<uint16_t, Bytes>& values, uint8_t* out) {
  using Bits = typename Type::Bits;
  const bool average = f.format >> 4 == NETSUM_OP_AVG_FLOATS;
  const size_t count = f.payload_bytes / sizeof(Bits);
  for (size_t i = 0; i < count; ++i) {
    auto member = values.begin();
    float sum = Type::read(element<Bits>(member->second, i));
    while (++member != values.end()) sum += Type::read(element<Bits>(member->second, i));
    if (average) sum /= static_cast<float>(values.size());
    const Bits result = Type::write(sum);
    std::memcpy(out + i * sizeof result, &result, sizeof result);
  }
}

template <typename T>
bool sum_integers(const std::map<uint16_t, Bytes>& values, size_t count, uint8_t* out) {
  bool fits = true;
  for (size_t i = 0; i < count; ++i) {
    __int128 sum = 0;
    for (const auto& [member, bytes] : values) sum += element<T>(bytes, i);
    const T result = static_cast<T>(sum);
    fits &= result == sum;
    std::memcpy(out + i * sizeof result, &result, sizeof result);
  }
  return fits;
}

// Returns 1 if a sum does not fit its type.
int sum_values(const netsum_fields& f, const std::map<uint16_t, Bytes>& values, uint8_t* out) {
  switch (f.format) {
    case NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32):
    case NETSUM_FORMAT(NETSUM_OP_AVG_FLOATS, NETSUM_FLOAT_F32):
      sum_floats<Float32>(f, values, out);
      return 0;
    case NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_BF16):
    case NETSUM_FORMAT(NETSUM_OP_AVG_FLOATS, NETSUM_FLOAT_BF16):
      sum_floats<BFloat16>(f, values, out);
      return 0;
    case NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F16):
    case NETSUM_FORMAT(NETSUM_OP_AVG_FLOATS, NETSUM_FLOAT_F16):
      sum_floats<Float16>(f, values, out);
      return 0;
    case NETSUM_FORMAT(NETSUM_OP_SUM_VALUES, NETSUM_VALUE_I32):
      return !sum_integers<int32_t>(values, f.payload_bytes / 4, out);
    default:
      NETSUM_ASSERT(f.format == NETSUM_FORMAT(NETSUM_OP_SUM_VALUES, NETSUM_VALUE_I64));
      return !sum_integers<int64_t>(values, f.payload_bytes / 8, out);
  }
}

bool is_right(const Bytes& datagram, const netsum_fields& f, const wire::PacketKey& key) {
  const uint64_t nh = netsum_nh(datagram.data() + NETSUM_HEADER_BYTES, f.payload_bytes, key.table());
  return wire::check_is_right(datagram.data(), f, key, nh);
}

}  // namespace

void ReferenceDataplane::install(const VectorJob& spec) {
  Job job;
  job.rules = {.epoch = spec.epoch,
               .members = spec.members,
               .slots = spec.data_slots + spec.scale_slots,
               .payload_bytes = spec.payload_bytes,
               .has_parent = spec.parent.has_value(),
               .adds_floats = spec.adds_floats,
               .value_slots = static_cast<uint16_t>(spec.sums_values ? spec.scale_slots : 0)};
  job.key = spec.packet_key();
  job.parent = spec.parent;
  if (job.parent) job.parents_key = spec.parents_packet_key();
  job.slots.resize(job.rules.slots);
  for (SlotState& slot : job.slots) {
    for (Bytes& lanes : slot.lanes) lanes.resize(spec.payload_bytes);
  }
  jobs_[spec.job] = std::move(job);
}

bool ReferenceDataplane::start_at(const VectorStart& start) {
  netsum_slot& slot = jobs_.at(start.job).slots.at(start.slot).machine;
  slot.current = start.round;
  slot.rounds[start.round & 1].state = NETSUM_ROUND_COMPLETE;
  return true;
}

std::vector<Reply> ReferenceDataplane::drop(int reason) {
  ++drops_[std::string(wire::drop_name(reason))];
  return {};
}

std::vector<Reply> ReferenceDataplane::feed(Peer from, const Bytes& datagram) {
  netsum_fields f;
  if (int reason = netsum_parse(datagram.data(), static_cast<uint32_t>(datagram.size()), &f)) {
    return drop(reason);
  }
  if (netsum_is_parents(f.type)) return on_parent(from, f, datagram);
  const auto found = jobs_.find(f.job);
  if (found == jobs_.end()) return drop(NETSUM_DROP_UNKNOWN_JOB);
  Job& job = found->second;
  if (int reason = netsum_check_rules(&f, &job.rules)) return drop(reason);
  const uint8_t* payload = datagram.data() + NETSUM_HEADER_BYTES;
  if (!is_right(datagram, f, job.key)) return drop(NETSUM_DROP_BAD_CHECK);
  if (f.type == NETSUM_TYPE_HELLO) return on_hello(job, f, from);
  const auto peer = job.peers.find(f.member);
  if (peer == job.peers.end() || peer->second != from) return drop(NETSUM_DROP_UNKNOWN_PEER);

  SlotState& slot = job.slots[f.slot];
  if (f.type == NETSUM_TYPE_PROBE) return on_verdict(job, f, netsum_slot_probe(&slot.machine, &f), from);
  const netsum_verdict verdict = netsum_slot_contribute(&slot.machine, &f);
  uint8_t* lanes = slot.lanes[verdict.bank].data();
  int overflow = 0;
  if (verdict.action == NETSUM_ACT_STORE || verdict.action == NETSUM_ACT_CLEAR) slot.values.clear();
  if (netsum_is_values(f.format) &&
      (verdict.action == NETSUM_ACT_STORE || verdict.action == NETSUM_ACT_ADD)) {
    slot.values[f.member] = Bytes(payload, payload + f.payload_bytes);
    if (slot.values.size() == job.rules.members) overflow = sum_values(f, slot.values, lanes);
  } else if (verdict.action == NETSUM_ACT_STORE) {
    netsum_lanes_store(lanes, payload, f.payload_bytes);
  } else if (verdict.action == NETSUM_ACT_CLEAR) {
    std::fill_n(lanes, f.absent_bytes, uint8_t{0});
  } else if (verdict.action == NETSUM_ACT_COUNT) {
    // They stay.
  } else if (verdict.action == NETSUM_ACT_ADD) {
    overflow = netsum_lanes_add(f.format, lanes, payload, f.payload_bytes);
  } else {
    return on_verdict(job, f, verdict, from);
  }
  if (!netsum_slot_added(&slot.machine, verdict.bank, overflow, &job.rules)) return {};
  if (!lengthens_) {
    if (const uint16_t asked = netsum_slot_asks(&slot.machine, &f); asked != NETSUM_MEMBER_ALL)
      return ask(job, f, asked);
  }
  return job.parent ? sum_up(job, f.slot, verdict.bank,
                             slot.machine.rounds[verdict.bank].filled == NETSUM_MEMBER_ALL)
                    : result_to_all(job, f, verdict.bank);
}

std::vector<Reply> ReferenceDataplane::on_parent(Peer from, const netsum_fields& f, const Bytes& datagram) {
  const auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    return entry.second.parent && entry.second.parent->peer == from && entry.second.parent->job == f.job;
  });
  if (found == jobs_.end()) return drop(NETSUM_DROP_BAD_TYPE);
  Job& job = found->second;
  const netsum_parent_job parent{
      .job = job.parent->job, .epoch = job.parent->epoch, .member = job.parent->member};
  if (int reason = netsum_check_parent(&f, &parent, &job.rules)) return drop(reason);
  const uint8_t* payload = datagram.data() + NETSUM_HEADER_BYTES;
  if (!is_right(datagram, f, job.parents_key)) return drop(NETSUM_DROP_BAD_CHECK);
  if (f.type == NETSUM_TYPE_WELCOME) {
    job.parent_welcomed |= f.payload_bytes == job.rules.payload_bytes;
    return {};
  }
  SlotState& slot = job.slots[f.slot];
  const netsum_verdict verdict = netsum_slot_from_parent(&slot.machine, &f, job.rules.members);
  netsum_fields own = f;
  own.job = found->first;
  own.epoch = job.rules.epoch;
  if (verdict.action == NETSUM_ACT_TAKE_RESULT) {
    if (!netsum_is_empty(&f)) netsum_lanes_store(slot.lanes[verdict.bank].data(), payload, f.payload_bytes);
    return result_to_all(job, own, verdict.bank);
  }
  Peer to = from;
  if (verdict.action == NETSUM_ACT_PASS_STATUS) {
    own.member = verdict.addressee;
    own.chunk = netsum_chunk_down(f.chunk);
    to = job.peers.at(verdict.addressee);
  }
  return on_verdict(job, own, verdict, to);
}

// A STATUS that nobody has asked for.
std::vector<Reply> ReferenceDataplane::ask(const Job& job, const netsum_fields& f, uint16_t member) {
  netsum_fields status = f;
  status.type = NETSUM_TYPE_STATUS;
  status.format = NETSUM_FORMAT_NONE;
  status.flags = NETSUM_FLAG_AGAIN;
  status.member = member;
  status.chunk = 0;
  const netsum_be64 seen = netsum_put64(netsum_all_members(job.rules.members));
  return {{job.peers.at(member), build(job.key, status, Bytes(seen.b, seen.b + sizeof seen))}};
}

// The lanes of a round or, instead, how long they would be.
Bytes ReferenceDataplane::payload_of(const SlotState& slot, uint32_t bank, bool without_lanes,
                                     netsum_fields* f) {
  const Bytes& lanes = slot.lanes[bank];
  const uint32_t bytes = slot.machine.rounds[bank].payload_bytes;
  if (!without_lanes) return Bytes(lanes.begin(), lanes.begin() + bytes);
  f->flags |= NETSUM_FLAG_EMPTY;
  const netsum_be64 length = netsum_put64(bytes);
  return Bytes(length.b, length.b + sizeof length);
}

std::vector<Reply> ReferenceDataplane::sum_up(const Job& job, uint16_t slot, uint32_t bank,
                                              bool without_lanes) const {
  const netsum_slot& machine = job.slots[slot].machine;
  const netsum_round& round = machine.rounds[bank];
  netsum_fields f{};
  f.type = NETSUM_TYPE_CONTRIBUTION;
  f.format = round.format;
  f.flags = static_cast<uint8_t>(round.flags | (round.overflow ? NETSUM_FLAG_OVERFLOW : 0));
  f.slot = slot;
  f.round = machine.current;
  f.chunk = round.chunk;
  f.signature = round.signature;
  if (round.no_result == netsum_all_members(job.rules.members)) f.flags |= NETSUM_FLAG_NO_RESULT;
  const Bytes payload = payload_of(job.slots[slot], bank, without_lanes, &f);
  return send_up(job, f, payload);
}

std::vector<Reply> ReferenceDataplane::send_up(const Job& job, netsum_fields f, const Bytes& payload) {
  f.job = job.parent->job;
  f.epoch = job.parent->epoch;
  f.member = job.parent->member;
  return {{job.parent->peer, build(job.parents_key, f, payload)}};
}

std::vector<Reply> ReferenceDataplane::on_hello(Job& job, const netsum_fields& f, Peer from) {
  if (job.peers.emplace(f.member, from).first->second != from) return drop(NETSUM_DROP_UNKNOWN_PEER);
  netsum_fields welcome = f;
  welcome.flags = 0;
  if (job.parent && !job.parent_welcomed) return send_up(job, welcome, Bytes(f.payload_bytes));
  welcome.type = NETSUM_TYPE_WELCOME;
  return {{from, build(job.key, welcome, Bytes(f.payload_bytes))}};
}

std::vector<Reply> ReferenceDataplane::on_verdict(Job& job, const netsum_fields& f,
                                                  const netsum_verdict& verdict, Peer from) {
  netsum_fields reply = f;
  reply.format = NETSUM_FORMAT_NONE;
  reply.flags = 0;
  switch (verdict.action) {
    case NETSUM_ACT_REPLY_RESULT:
      return {{from, result(job, f, verdict.bank, f.member)}};
    case NETSUM_ACT_RESULT_ALL:
      return result_to_all(job, f, verdict.bank);
    case NETSUM_ACT_SEND_UP:
      return sum_up(job, f.slot, verdict.bank, netsum_is_empty(&f));
    case NETSUM_ACT_PROBE_UP:
      reply.chunk = netsum_chunk_up(f.chunk, f.member);
      return send_up(job, reply, Bytes(NETSUM_PROBE_BYTES));
    case NETSUM_ACT_REPLY_STATUS:
    case NETSUM_ACT_PASS_STATUS: {
      reply.type = NETSUM_TYPE_STATUS;
      reply.flags = verdict.flags;
      const netsum_be64 seen = netsum_put64(verdict.seen);
      return {{from, build(job.key, reply, Bytes(seen.b, seen.b + sizeof seen))}};
    }
    case NETSUM_ACT_REPLY_ERROR:
    case NETSUM_ACT_ERROR_ALL: {
      reply.type = NETSUM_TYPE_ERROR;
      reply.member = NETSUM_MEMBER_ALL;
      const netsum_be16 blamed = netsum_put16(job.slots[f.slot].machine.rounds[verdict.bank].blamed);
      const Bytes frame =
          build(job.key, reply, {0, NETSUM_ERROR_MISMATCH, blamed.b[0], blamed.b[1], 0, 0, 0, 0});
      return verdict.action == NETSUM_ACT_ERROR_ALL ? to_all(job, frame) : std::vector<Reply>{{from, frame}};
    }
    default:
      return drop(verdict.drop);
  }
}

std::vector<Reply> ReferenceDataplane::result_to_all(const Job& job, const netsum_fields& f,
                                                     uint32_t bank) const {
  std::vector<Reply> replies;
  for (const auto& [member, peer] : job.peers) replies.push_back({peer, result(job, f, bank, member)});
  return replies;
}

// The copy of `member`.
Bytes ReferenceDataplane::result(const Job& job, const netsum_fields& f, uint32_t bank,
                                 uint16_t member) const {
  const SlotState& slot = job.slots[f.slot];
  const netsum_round& round = slot.machine.rounds[bank];
  netsum_fields reply = f;  // job, epoch, slot and round are those asked for
  reply.type = NETSUM_TYPE_RESULT;
  reply.format = round.format;
  reply.flags = static_cast<uint8_t>(round.flags | (round.overflow ? NETSUM_FLAG_OVERFLOW : 0));
  reply.member = NETSUM_MEMBER_ALL;
  reply.chunk = round.chunk;
  reply.signature = round.signature;
  const Bytes payload =
      payload_of(slot, bank, (netsum_without_lanes(&round) & netsum_member_bit(member)) != 0, &reply);
  return build(job.key, reply, payload);
}

Bytes ReferenceDataplane::build(const wire::PacketKey& key, netsum_fields f, const Bytes& payload) {
  Bytes frame(NETSUM_HEADER_BYTES);
  frame.insert(frame.end(), payload.begin(), payload.end());
  f.payload_bytes = static_cast<uint32_t>(payload.size());
  wire::write_header(f, key, frame.data());
  return frame;
}

std::vector<Reply> ReferenceDataplane::to_all(const Job& job, const Bytes& frame) {
  std::vector<Reply> replies;
  for (const auto& [member, peer] : job.peers) replies.push_back({peer, frame});
  return replies;
}

}  // namespace netsum::conformance
