#include "aggregator/user/core.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "src/base/assert.h"
#include "src/kernels/kernels.h"
#include "src/kernels/packet_check.h"
#include "wire/values.h"

namespace netsum {
namespace {

static_assert(kMaxJobPacketsPerS == NETSUM_RATE_MAX);

constexpr auto kUp = static_cast<size_t>(faults::Kind::kLossUp),
               kDown = static_cast<size_t>(faults::Kind::kLossDown);

uint32_t frame_stride(uint32_t payload_bytes) {
  return (NETSUM_HEADER_BYTES + payload_bytes + 63) / 64 * 64;
}

// "train" of "train/3", the job of the ranks that own the portion 3 of their hosts' sums.
std::string without_portion(const std::string& job) {
  const size_t digits = job.find_last_not_of("0123456789");
  const bool is_portion = digits != std::string::npos && digits + 1 < job.size() && job[digits] == '/';
  return is_portion ? job.substr(0, digits) : job;
}

}  // namespace

uint32_t AggregatorCore::slot_bytes(uint32_t payload_bytes) {
  return static_cast<uint32_t>(sizeof(netsum_slot)) + 2 * frame_stride(payload_bytes);
}

AggregatorCore::AggregatorCore(const Limits& limits)
    : limits_(limits),
      faults_(limits.seed),
      frame_stride_(frame_stride(limits.payload_bytes)),
      rate_(netsum_rate_of(limits.job_packets_per_s)),
      jobs_(static_cast<size_t>(limits.max_jobs)),
      ranges_(limits.slots),
      slots_(limits.slots),
      frames_(static_cast<uint8_t*>(std::calloc(size_t{limits.slots} * 2, frame_stride_)), &std::free),
      scratch_(size_t{kScratchFrames} * frame_stride_) {
  NETSUM_ASSERT(limits.payload_bytes <= NETSUM_MAX_PAYLOAD && limits.job_packets_per_s <= NETSUM_RATE_MAX);
  NETSUM_ASSERT(limits.max_jobs > 0 && limits.max_jobs <= 65536 && limits.slots > 0 && limits.slots <= 65536);
  if (frames_ == nullptr) throw std::bad_alloc();
  for (Job& job : jobs_) {
    job.key.reserve(limits.payload_bytes);
    job.parent_key.reserve(limits.payload_bytes);
  }
  unicasts_.reserve(kScratchFrames);
  broadcasts_.reserve(kMaxBurst);
  outbox_.reserve(static_cast<size_t>(kMaxBurst) * NETSUM_MAX_MEMBERS + kScratchFrames);
}

Status AggregatorCore::install(const DataplaneJob& spec, size_t stripe) {
  const uint32_t wanted = spec.data_slots + spec.scale_slots;
  if (Status status = check_fits(spec, limits_.max_jobs, limits_.payload_bytes, stripe + 1); !status.ok())
    return status;
  remove(spec.job, jobs_[spec.job].rules.epoch);
  Job& job = jobs_[spec.job];
  job.turns.assign(spec.adds_floats ? wanted : spec.sums_values ? spec.scale_slots : 0, 0);
  const size_t places = job.turns.size() * (spec.members + size_t{1});
  if (places > 0) job.places.reset(static_cast<uint8_t*>(std::calloc(places, spec.payload_bytes)));
  if (places > 0 && job.places == nullptr)
    return {ErrorCode::kResourceExhausted,
            "no memory for the packets of " + std::to_string(spec.members) + " members that wait, " +
                std::to_string(places * spec.payload_bytes) + " bytes: ask for fewer slots"};
  const Result<uint32_t> first = ranges_.take(wanted, spec.first_slot);
  if (!first.ok()) return first.status();
  std::fill_n(slots_.begin() + first.value(), wanted, netsum_slot{});
  job.rules = netsum_job_rules{.epoch = spec.epoch,
                               .members = spec.members,
                               .slots = wanted,
                               .payload_bytes = spec.payload_bytes,
                               .has_parent = spec.parent.has_value(),
                               .adds_floats = spec.adds_floats,
                               .value_slots = static_cast<uint16_t>(spec.sums_values ? spec.scale_slots : 0)};
  job.key.set(wire::stripe_key(spec.key, spec.first_stripe + stripe), spec.payload_bytes, spec.tag);
  job.first_slot = first.value();
  job.data_slots = spec.data_slots;
  job.opened_us.assign(spec.data_slots, 0);
  job.lost_in.assign(size_t{2} * job.rules.slots, {});
  job.last = spec.last;
  job.frame_bytes = NETSUM_HEADER_BYTES + spec.payload_bytes;
  job.spent = {};
  job.multicast_group = spec.multicast_group;
  job.takes_turns = spec.spec.phase_period_us() > 0;
  job.period_us = static_cast<int64_t>(spec.spec.phase_period_us());
  job.work_us = static_cast<double>(job.period_us) * spec.spec.world_size();
  job.turns_of = without_portion(spec.spec.name());
  job.sent_us = job.asked_us = INT64_MIN / 2;
  job.step_began_us = 0;
  job.step_packets = job.usual_packets = 0;
  job.peers.fill(Peer());
  if (spec.parent) {
    job.parent = netsum_parent_job{
        .job = spec.parent->job, .epoch = spec.parent->epoch, .member = spec.parent->member};
    job.parent_key.set(wire::stripe_key(spec.parent->key, stripe), spec.payload_bytes, spec.tag);
    job.parent_address = spec.parent->stripes[stripe];
    job.parent_welcomed = false;
    parent_jobs_[{job.parent_address, job.parent.job}] = spec.job;
  }
  return Status();
}

void AggregatorCore::remove(uint16_t index, uint16_t epoch) {
  if (index >= jobs_.size()) return;
  Job& job = jobs_[index];
  if (job.rules.members == 0 || job.rules.epoch != epoch) return;
  ranges_.give_back(job.first_slot, job.rules.slots);
  if (job.rules.has_parent) {
    // The key may belong to a later job by now: the parent reuses the index before this aggregator is told.
    const auto found = parent_jobs_.find({job.parent_address, job.parent.job});
    if (found != parent_jobs_.end() && found->second == index) parent_jobs_.erase(found);
  }
  job.rules.members = 0;
  job.places.reset();
  job.turns = {};
  job.opened_us = {};
  job.lost_in = {};
  job.last.reset();
  job.key.wipe();
  job.parent_key.wipe();
}

SlotProgress AggregatorCore::progress(uint16_t index, uint16_t epoch) const {
  if (index >= jobs_.size()) return {};
  const Job& job = jobs_[index];
  if (job.rules.members == 0 || job.rules.epoch != epoch) return {};
  return slot_progress(std::span(slots_).subspan(job.first_slot, job.rules.slots), job.data_slots,
                       job.rules.members);
}

std::vector<int64_t> AggregatorCore::heard(uint16_t index, uint16_t epoch) const {
  std::vector<int64_t> heard_us;
  if (index >= jobs_.size() || jobs_[index].rules.epoch != epoch) return heard_us;
  const Job& job = jobs_[index];
  for (uint16_t member = 0; member < job.rules.members; ++member)
    heard_us.push_back(job.peers[member].heard_us);
  return heard_us;
}

std::vector<faults::MemberTotals> AggregatorCore::members(uint16_t index, uint16_t epoch) const {
  std::vector<faults::MemberTotals> totals;
  if (index >= jobs_.size() || jobs_[index].rules.epoch != epoch) return totals;
  const Job& job = jobs_[index];
  const uint64_t rounds = progress(index, epoch).rounds;
  for (uint16_t member = 0; member < job.rules.members; ++member) {
    totals.push_back(job.peers[member].totals);
    totals.back().kept[kDown] = rounds;
  }
  return totals;
}

void AggregatorCore::on_packet(int64_t now_us, const InPacket& packet) {
  counters_.packets_received.add();
  counters_.bytes_received.add(packet.size);
  netsum_fields fields;
  int reason = netsum_parse(packet.data, packet.size, &fields);
  if (reason != NETSUM_DROP_NONE) return drop(reason);
  if (netsum_is_parents(fields.type)) return on_parent(packet, fields);
  if (fields.job >= jobs_.size()) return drop(NETSUM_DROP_UNKNOWN_JOB);
  Job& job = jobs_[fields.job];
  reason = netsum_check_rules(&fields, &job.rules);
  if (reason != NETSUM_DROP_NONE) return drop(reason);
  reason = admit(packet, fields, job, now_us);
  if (reason != NETSUM_DROP_NONE) return drop(reason);
  if (fields.type == NETSUM_TYPE_HELLO) {
    on_hello(now_us, packet, fields, job);
  } else {
    on_contribution(now_us, packet, fields, job);
  }
}

// The first HELLO determines the member's address for the lifetime of the job; results are sent only there.
bool AggregatorCore::is_from_member(const InPacket& packet, const netsum_fields& fields,
                                    const Job& job) const {
  const Address& address = job.peers[fields.member].address;
  return address == packet.from || (fields.type == NETSUM_TYPE_HELLO && !address.valid());
}

int AggregatorCore::admit(const InPacket& packet, const netsum_fields& fields, Job& job, int64_t now_us) {
  const bool from_member = is_from_member(packet, fields, job);
  const bool limited = rate_.interval_ns != 0 && from_member;
  netsum_slot& slot = slots_[job.first_slot + fields.slot];
  const uint64_t now_ns = static_cast<uint64_t>(now_us) * 1000;
  const int kind = limited ? netsum_rate_kind(&rate_, &slot, &fields, now_ns) : 0;
  uint64_t& spent_until_ns = job.spent.spent_until_ns[kind];
  // The rate is checked before the tag, because verifying costs more; it is charged after, so only for the member's own
  // packets.
  if (limited && netsum_rate_is_spent(&rate_, spent_until_ns, now_ns)) return NETSUM_DROP_OVER_RATE;
  if (!packet.in_memory && !kernels::check_is_right(packet.data, fields, job.key))
    return NETSUM_DROP_BAD_CHECK;
  if (!from_member) return NETSUM_DROP_UNKNOWN_PEER;
  if (limited) {
    spent_until_ns = netsum_rate_take(&rate_, spent_until_ns, now_ns);
    if (kind == NETSUM_RATE_ANSWERS) netsum_rate_note_answer(&slot, &fields, now_ns);
  }
  return NETSUM_DROP_NONE;
}

int AggregatorCore::priority_of(const Job& job) {
  return job.usual_packets == 0 ? INT_MAX : std::ilogb(job.work_us / static_cast<double>(job.usual_packets));
}

bool AggregatorCore::has_turn(int64_t now_us, Job& job) {
  const auto sends = [&](const Job& one) { return now_us - one.sent_us <= kTurnUs; };
  const auto asks = [&](const Job& one) { return now_us - one.asked_us <= kWaitsUs; };
  if (!asks(job)) job.asks_since_us = now_us;
  if (!asks(job) && !sends(job) && now_us - job.step_began_us >= job.period_us / 2) {
    const uint64_t usual = job.usual_packets == 0 ? job.step_packets : job.usual_packets;
    job.usual_packets = (3 * usual + job.step_packets) / 4;
    job.step_packets = 0;
    job.step_began_us = now_us;
  }
  job.asked_us = now_us;
  const auto has_begun = [&](const Job& one) {
    return one.rules.members > 0 && one.turns_of == job.turns_of && sends(one);
  };
  const int priority = priority_of(job);
  const auto is_before = [&](const Job& other) {
    if (other.rules.members == 0 || !other.takes_turns || other.turns_of == job.turns_of) return false;
    if (sends(other) || !asks(other)) return sends(other);
    const int of_other = priority_of(other);
    return of_other > priority || (of_other == priority && other.asks_since_us < job.asks_since_us);
  };
  if (std::none_of(jobs_.begin(), jobs_.end(), has_begun) &&
      std::any_of(jobs_.begin(), jobs_.end(), is_before))
    return false;
  job.sent_us = now_us;
  job.asked_us = INT64_MIN / 2;
  return true;
}

void AggregatorCore::on_hello(int64_t now_us, const InPacket& packet, const netsum_fields& fields, Job& job) {
  Peer& peer = job.peers[fields.member];
  if (!peer.address.valid()) peer = {packet.from, packet.local};
  // A member that has contributed asks for the job's turn, by further HELLOs until one is answered.
  if (job.takes_turns && peer.heard_us != 0) {
    if (fields.round <= std::exchange(peer.hello, std::max(peer.hello, fields.round))) return;
    if (!has_turn(now_us, job)) return;
  }
  counters_.hellos.add();
  uint8_t* frame = scratch_frame();
  std::memset(frame + NETSUM_HEADER_BYTES, 0, fields.payload_bytes);
  if (job.rules.has_parent && !job.parent_welcomed) {
    // The parent must answer first. The member repeats its HELLO until then.
    netsum_fields hello = fields_for_parent(fields, job);
    hello.flags = 0;
    return send_up(job, frame, kernels::write_header(hello, job.parent_key, frame));
  }
  const netsum_fields welcome = reply_fields(fields, NETSUM_TYPE_WELCOME);
  reply(frame, kernels::write_header(welcome, job.key, frame), peer);
  if (job.multicast_group.valid() && fields.payload_bytes == job.rules.payload_bytes)
    welcome_multicast_group(fields, job);
}

// A WELCOME to the multicast group, whichever member sent the HELLO: members learn whether the group reaches them before
// they depend on it.
void AggregatorCore::welcome_multicast_group(const netsum_fields& hello, const Job& job) {
  netsum_fields welcome = reply_fields(hello, NETSUM_TYPE_WELCOME);
  welcome.member = NETSUM_MEMBER_ALL;
  uint8_t* frame = scratch_frame();
  std::memset(frame + NETSUM_HEADER_BYTES, 0, hello.payload_bytes);
  reply(frame, kernels::write_header(welcome, job.key, frame), {job.multicast_group});
  counters_.multicast_packets_sent.add();
}

void AggregatorCore::on_contribution(int64_t now_us, const InPacket& packet, const netsum_fields& fields,
                                     Job& job) {
  Peer& peer = job.peers[fields.member];
  const uint32_t index = job.first_slot + fields.slot;
  netsum_slot& slot = slots_[index];
  const bool is_probe = fields.type == NETSUM_TYPE_PROBE;
  const netsum_verdict verdict =
      is_probe ? netsum_slot_probe(&slot, &fields) : netsum_slot_contribute(&slot, &fields);
  note_loss(verdict, fields, job);
  switch (verdict.action) {
    case NETSUM_ACT_STORE:
    case NETSUM_ACT_ADD:
    case NETSUM_ACT_CLEAR:
    case NETSUM_ACT_COUNT:
      break;
    default:
      return act(verdict, fields, job, peer);
  }
  peer.heard_us = job.sent_us = now_us;
  ++job.step_packets;
  ++peer.totals.kept[kUp];
  note_lateness(now_us, verdict, fields, job);
  counters_.contributions.add();
  counters_.bytes_summed.add(fields.payload_bytes);
  const bool overflow = add(fields, verdict, packet.data + NETSUM_HEADER_BYTES, job);
  if (!netsum_slot_added(&slot, verdict.bank, overflow, &job.rules)) return;
  if (job.last != nullptr && fields.slot < job.data_slots) job.last->sums[fields.member].add();
  if (job.rules.has_parent) {
    send_sum_up(job, index, verdict.bank, slot.rounds[verdict.bank].filled == NETSUM_MEMBER_ALL);
  } else {
    broadcast_result(job, fields.job, index, verdict.bank);
  }
}

// A member probes what it has sent, and on one path a probe does not overtake. So what a probe finds missing is lost. A result is
// lost if the member asks for it again after the answer to its probe, which follows the result. One loss counts in a round: behind
// an aggregator, all its ranks ask for what it has lost.
void AggregatorCore::note_loss(const netsum_verdict& verdict, const netsum_fields& fields, Job& job) {
  const uint64_t member = netsum_member_bit(fields.member);
  const bool asked_again =
      verdict.action == NETSUM_ACT_REPLY_STATUS && (verdict.flags & NETSUM_FLAG_AGAIN) != 0;
  const bool up = asked_again && (verdict.seen & member) == 0;
  if (!up && verdict.action != NETSUM_ACT_REPLY_RESULT) return;
  auto& [round, members] = job.lost_in[size_t{2} * fields.slot + fields.round % 2];
  if (round != fields.round) members = 0;
  round = fields.round;
  if ((members & member) != 0) return;
  members |= member;
  ++job.peers[fields.member].totals.lost[up ? kUp : kDown];
}

void AggregatorCore::note_lateness(int64_t now_us, const netsum_verdict& verdict, const netsum_fields& fields,
                                   Job& job) {
  if (fields.slot >= job.data_slots) return;
  int64_t& opened_us = job.opened_us[fields.slot];
  if (verdict.seen == netsum_member_bit(fields.member)) opened_us = now_us;
  // Members send the first packet of an operation into each slot when they begin, and all later ones when a result has come.
  const netsum_slot& slot = slots_[job.first_slot + fields.slot];
  faults::MemberTotals& totals = job.peers[fields.member].totals;
  const auto late_us = static_cast<uint64_t>(std::max<int64_t>(0, now_us - opened_us));
  if (slot.rounds[verdict.bank ^ 1].signature != fields.signature)
    return totals.begin.add(fields.slot, late_us);
  ++totals.contributions;
  totals.late_us += late_us;
}

bool AggregatorCore::add(const netsum_fields& fields, const netsum_verdict& verdict, const uint8_t* payload,
                         Job& job) {
  if (netsum_is_floats(fields.format)) {
    add_floats(fields, verdict, payload, job);
    return false;
  }
  if (netsum_is_values(fields.format)) return add_integers(fields, verdict.bank, payload, job);
  uint8_t* acc = frame_of(job, job.first_slot + fields.slot, verdict.bank) + NETSUM_HEADER_BYTES;
  if (verdict.action == NETSUM_ACT_ADD)
    return kernels::combine_lanes(fields.format, acc, payload, fields.payload_bytes);
  if (verdict.action == NETSUM_ACT_STORE) std::memcpy(acc, payload, fields.payload_bytes);
  if (verdict.action == NETSUM_ACT_CLEAR) std::memset(acc, 0, fields.absent_bytes);
  return false;
}

// The exact sum of each element must fit its type, which is known when the last packet is here.
bool AggregatorCore::add_integers(const netsum_fields& fields, uint32_t bank, const uint8_t* payload,
                                  Job& job) {
  const uint32_t members = job.rules.members;
  uint8_t* const values = places_of(job, fields.slot) + job.rules.payload_bytes;
  std::memcpy(values + size_t{fields.member} * job.rules.payload_bytes, payload, fields.payload_bytes);
  const uint32_t index = job.first_slot + fields.slot;
  if (slots_[index].rounds[bank].seen != netsum_all_members(job.rules.members)) return false;
  const DataType type = wire::value_type_of(fields.format);
  const kernels::Values all{.first = values,
                            .stride = job.rules.payload_bytes,
                            .members = static_cast<int>(members),
                            .count = fields.payload_bytes / size_of(type)};
  return !kernels::sum_values(type, /*average=*/false, all, frame_of(job, index, bank) + NETSUM_HEADER_BYTES);
}

// In the order of the members, though the packets arrive in any order. One whose turn it is is added at once, and those behind
// it that wait already. One place for each member suffices, although a slot has two rounds: the next one opens only when this
// one is over, and then nothing waits for it any more.
void AggregatorCore::add_floats(const netsum_fields& fields, const netsum_verdict& verdict,
                                const uint8_t* payload, Job& job) {
  const uint16_t members = job.rules.members;
  const uint32_t index = job.first_slot + fields.slot;
  uint16_t& turn = job.turns[place_of(job, fields.slot)];
  uint8_t* const places = places_of(job, fields.slot);
  const auto place = [&](uint16_t member) { return places + (member + size_t{1}) * job.rules.payload_bytes; };
  if (verdict.action == NETSUM_ACT_STORE) turn = 0;
  if (fields.member != turn) {
    std::memcpy(place(fields.member), payload, fields.payload_bytes);
    return;
  }
  std::array<const uint8_t*, NETSUM_MAX_MEMBERS> inputs;
  size_t count = 0;
  const bool begins = turn == 0;
  const uint64_t seen = slots_[index].rounds[verdict.bank].seen;
  for (; turn < members && (seen & netsum_member_bit(turn)) != 0; ++turn)
    inputs[count++] = turn == fields.member ? payload : place(turn);
  const DataType type = wire::value_type_of(fields.format);
  uint8_t* const result = frame_of(job, index, verdict.bank) + NETSUM_HEADER_BYTES;
  uint8_t* const sum = type == DataType::kFloat32 ? result : places;
  const bool ends = turn == members;
  const int divisor = ends && wire::is_average_of_values(fields.format) ? members : 1;
  kernels::sum_in_order(type, {inputs.data(), count}, fields.payload_bytes / size_of(type), divisor,
                        ends ? type : DataType::kFloat32, ends ? result : sum, begins ? nullptr : sum);
}

// A packet of the parent of a job. It names the job by the parent's index.
void AggregatorCore::on_parent(const InPacket& packet, const netsum_fields& fields) {
  const auto found = parent_jobs_.find({packet.from, fields.job});
  if (found == parent_jobs_.end()) return drop(NETSUM_DROP_BAD_TYPE);
  Job& job = jobs_[found->second];
  const int reason = netsum_check_parent(&fields, &job.parent, &job.rules);
  if (reason != NETSUM_DROP_NONE) return drop(reason);
  if (!kernels::check_is_right(packet.data, fields, job.parent_key)) return drop(NETSUM_DROP_BAD_CHECK);
  if (fields.type == NETSUM_TYPE_WELCOME) {
    job.parent_welcomed |= fields.payload_bytes == job.rules.payload_bytes;
    return;
  }
  const uint32_t index = job.first_slot + fields.slot;
  const netsum_verdict verdict = netsum_slot_from_parent(&slots_[index], &fields, job.rules.members);
  netsum_fields own = fields;
  own.job = found->second;
  own.epoch = job.rules.epoch;
  switch (verdict.action) {
    case NETSUM_ACT_TAKE_RESULT:
      // A contribution of this round in the outbox is overwritten by the RESULT, which the parent refuses.
      if (!netsum_is_empty(&fields))
        std::memcpy(frame_of(job, index, verdict.bank) + NETSUM_HEADER_BYTES,
                    packet.data + NETSUM_HEADER_BYTES, fields.payload_bytes);
      return broadcast_result(job, found->second, index, verdict.bank);
    case NETSUM_ACT_PASS_STATUS:
      own.chunk = netsum_chunk_down(fields.chunk);
      own.member = verdict.addressee;
      return act(verdict, own, job, job.peers[verdict.addressee]);
    default:
      return act(verdict, own, job, Peer());
  }
}

netsum_fields AggregatorCore::fields_of_round(const Job& job, uint32_t slot, uint32_t bank) const {
  const netsum_round& round = slots_[slot].rounds[bank];
  netsum_fields fields{};
  fields.format = round.format;
  fields.flags = static_cast<uint8_t>(round.flags | (round.overflow ? NETSUM_FLAG_OVERFLOW : 0));
  fields.slot = static_cast<uint16_t>(slot - job.first_slot);
  fields.round = slots_[slot].current;
  fields.chunk = round.chunk;
  fields.signature = round.signature;
  fields.payload_bytes = round.payload_bytes;
  return fields;
}

netsum_fields AggregatorCore::fields_for_parent(const netsum_fields& fields, const Job& job) {
  netsum_fields up = fields;
  up.job = job.parent.job;
  up.epoch = job.parent.epoch;
  up.member = job.parent.member;
  return up;
}

// `fields` are those of a round, with lanes. Returns the frame in which the lanes are or, if they are to be left out, one
// without them.
uint8_t* AggregatorCore::frame_for(bool without_lanes, const Job& job, uint32_t slot, uint32_t bank,
                                   netsum_fields* fields) {
  if (!without_lanes) return frame_of(job, slot, bank);
  uint8_t* frame = scratch_frame();
  const netsum_be64 length = netsum_put64(fields->payload_bytes);
  std::memcpy(frame + NETSUM_HEADER_BYTES, &length, sizeof length);
  fields->flags |= NETSUM_FLAG_EMPTY;
  fields->payload_bytes = NETSUM_EMPTY_BYTES;
  return frame;
}

void AggregatorCore::send_sum_up(const Job& job, uint32_t slot, uint32_t bank, bool without_lanes) {
  netsum_fields sum = fields_for_parent(fields_of_round(job, slot, bank), job);
  sum.type = NETSUM_TYPE_CONTRIBUTION;
  if (slots_[slot].rounds[bank].no_result == netsum_all_members(job.rules.members))
    sum.flags |= NETSUM_FLAG_NO_RESULT;
  uint8_t* frame = frame_for(without_lanes, job, slot, bank, &sum);
  send_up(job, frame, kernels::write_header(sum, job.parent_key, frame));
}

void AggregatorCore::send_up(const Job& job, const uint8_t* frame, uint32_t size) {
  counters_.sent_to_parent.add();
  counters_.parent_bytes_sent.add(size);
  reply(frame, size, {job.parent_address});
}

AggregatorCore::Frame AggregatorCore::result_of(const Job& job, uint16_t job_index, uint32_t slot,
                                                uint32_t round, bool without_lanes) {
  const uint32_t bank = round & 1;
  netsum_fields result = fields_of_round(job, slot, bank);
  result.type = NETSUM_TYPE_RESULT;
  result.job = job_index;
  result.epoch = job.rules.epoch;
  result.member = NETSUM_MEMBER_ALL;
  result.round = round;
  uint8_t* frame = frame_for(without_lanes, job, slot, bank, &result);
  return {frame, kernels::write_header(result, job.key, frame)};
}

void AggregatorCore::flip_a_bit(const Job& job, uint32_t slot, uint32_t bank) {
  injected_flips_.add();
  const uint64_t bit = faults_.below(8 * uint64_t{slots_[slot].rounds[bank].payload_bytes});
  uint8_t& byte = frame_of(job, slot, bank)[NETSUM_HEADER_BYTES + bit / 8];
  byte = static_cast<uint8_t>(byte ^ 1u << bit % 8);
}

void AggregatorCore::broadcast_result(const Job& job, uint16_t job_index, uint32_t slot, uint32_t bank) {
  const netsum_round& round = slots_[slot].rounds[bank];
  if (round.overflow) counters_.overflows.add();
  counters_.rounds_completed.add();
  if (limits_.flipped_bits > 0 && faults_.chance(limits_.flipped_bits)) flip_a_bit(job, slot, bank);
  const uint64_t all = netsum_all_members(job.rules.members);
  const uint64_t no_result = netsum_without_lanes(&round) & all;
  const Frame frame = result_of(job, job_index, slot, slots_[slot].current, no_result == all);
  Broadcast broadcast{frame.data, frame.size, job_index};
  if (no_result != 0 && no_result != all && !job.multicast_group.valid()) {
    const Frame short_frame = result_of(job, job_index, slot, slots_[slot].current, true);
    broadcast.no_result = no_result;
    broadcast.no_result_frame = short_frame.data;
    broadcast.no_result_size = short_frame.size;
  }
  broadcasts_.push_back(broadcast);
}

void AggregatorCore::act(const netsum_verdict& verdict, const netsum_fields& fields, const Job& job,
                         const Peer& to) {
  const uint32_t index = job.first_slot + fields.slot;
  const netsum_round& round = slots_[index].rounds[verdict.bank];
  switch (verdict.action) {
    case NETSUM_ACT_DROP:
      return drop(verdict.drop);
    case NETSUM_ACT_REPLY_RESULT: {
      counters_.results_repeated.add();
      if ((netsum_without_lanes(&round) & netsum_member_bit(fields.member)) == 0)  // the frame is there still
        return reply(frame_of(job, index, verdict.bank), NETSUM_HEADER_BYTES + round.payload_bytes, to);
      const Frame result = result_of(job, fields.job, index, fields.round, /*without_lanes=*/true);
      return reply(result.data, result.size, to);
    }
    case NETSUM_ACT_SEND_UP:
      return send_sum_up(job, index, verdict.bank, netsum_is_empty(&fields));
    case NETSUM_ACT_PROBE_UP: {
      netsum_fields probe = fields_for_parent(fields, job);
      probe.flags = 0;
      probe.chunk = netsum_chunk_up(fields.chunk, fields.member);
      uint8_t* frame = scratch_frame();
      std::memset(frame + NETSUM_HEADER_BYTES, 0, NETSUM_PROBE_BYTES);
      return send_up(job, frame, kernels::write_header(probe, job.parent_key, frame));
    }
    case NETSUM_ACT_REPLY_STATUS:
    case NETSUM_ACT_PASS_STATUS: {
      counters_.statuses.add();
      uint8_t* frame = scratch_frame();
      const netsum_be64 seen = netsum_put64(verdict.seen);
      std::memcpy(frame + NETSUM_HEADER_BYTES, &seen, sizeof seen);
      netsum_fields status = reply_fields(fields, NETSUM_TYPE_STATUS);
      status.flags = verdict.flags;
      status.payload_bytes = NETSUM_STATUS_BYTES;
      return reply(frame, kernels::write_header(status, job.key, frame), to);
    }
    default: {
      NETSUM_ASSERT(verdict.action == NETSUM_ACT_REPLY_ERROR || verdict.action == NETSUM_ACT_ERROR_ALL);
      uint8_t* frame = scratch_frame();
      uint8_t payload[NETSUM_ERROR_BYTES] = {0, NETSUM_ERROR_MISMATCH};
      const netsum_be16 blamed = netsum_put16(round.blamed);
      std::memcpy(payload + 2, &blamed, sizeof blamed);
      std::memcpy(frame + NETSUM_HEADER_BYTES, payload, sizeof payload);
      netsum_fields error = reply_fields(fields, NETSUM_TYPE_ERROR);
      error.member = NETSUM_MEMBER_ALL;
      error.payload_bytes = NETSUM_ERROR_BYTES;
      const uint32_t size = kernels::write_header(error, job.key, frame);
      if (verdict.action == NETSUM_ACT_REPLY_ERROR) return reply(frame, size, to);
      counters_.mismatches.add();
      broadcasts_.push_back({frame, size, fields.job});
    }
  }
}

netsum_fields AggregatorCore::reply_fields(const netsum_fields& request, uint8_t type) const {
  netsum_fields fields = request;
  fields.type = type;
  fields.format = NETSUM_FORMAT_NONE;
  fields.flags = 0;
  return fields;
}

uint8_t* AggregatorCore::scratch_frame() {
  NETSUM_ASSERT(scratch_used_ < kScratchFrames);
  return &scratch_[static_cast<size_t>(scratch_used_++) * frame_stride_];
}

void AggregatorCore::reply(const uint8_t* frame, uint32_t size, const Peer& to) {
  unicasts_.push_back({frame, size, to.address, to.local});
}

std::span<const OutPacket> AggregatorCore::outbox() {
  outbox_.clear();
  // Broadcasts of one job are sorted by member, so that the driver can pass one run per member to the kernel.
  for (size_t begin = 0; begin < broadcasts_.size();) {
    size_t end = begin;
    while (end < broadcasts_.size() && broadcasts_[end].job == broadcasts_[begin].job) ++end;
    const Job& job = jobs_[broadcasts_[begin].job];
    if (job.multicast_group.valid()) {
      for (size_t i = begin; i < end; ++i) {
        outbox_.push_back({broadcasts_[i].frame, broadcasts_[i].size, job.multicast_group});
      }
      counters_.multicast_packets_sent.add(end - begin);
      begin = end;
      continue;
    }
    for (uint16_t member = 0; member < job.rules.members; ++member) {
      const Peer& peer = job.peers[member];
      if (!peer.address.valid()) continue;
      for (size_t i = begin; i < end; ++i) {
        const Broadcast& broadcast = broadcasts_[i];
        const bool no_result = (broadcast.no_result & netsum_member_bit(member)) != 0;
        outbox_.push_back({no_result ? broadcast.no_result_frame : broadcast.frame,
                           no_result ? broadcast.no_result_size : broadcast.size, peer.address, peer.local});
      }
    }
    begin = end;
  }
  // After the broadcasts, so that a repeated result does not overtake earlier ones: the worker would see a gap.
  outbox_.insert(outbox_.end(), unicasts_.begin(), unicasts_.end());
  for (const OutPacket& packet : outbox_) counters_.bytes_sent.add(packet.size);
  counters_.packets_sent.add(outbox_.size());
  return outbox_;
}

void AggregatorCore::clear() {
  scratch_used_ = 0;
  unicasts_.clear();
  broadcasts_.clear();
}

}  // namespace netsum
