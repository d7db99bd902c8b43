#include "aggregator/p4/model/pipeline.h"

#include <algorithm>

namespace netsum::p4 {
namespace {

// The order of the stages. One step may take several stages of a chip.
enum Stage { kOver, kCurrent, kIdentity, kFailed, kSeen, kArrived, kLanes, kOverflow };

uint16_t get16(const uint8_t* p) {
  return static_cast<uint16_t>(p[0] << 8 | p[1]);
}
uint32_t get32(const uint8_t* p) {
  return static_cast<uint32_t>(get16(p)) << 16 | get16(p + 2);
}
uint64_t get64(const uint8_t* p) {
  return static_cast<uint64_t>(get32(p)) << 32 | get32(p + 4);
}
void put(uint64_t value, int bytes, std::vector<uint8_t>* out) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
    out->push_back(static_cast<uint8_t>(value >> shift));
}

// The parser: the header of a datagram of at least 32 bytes.
NetsumHeader parse_header(const uint8_t* p) {
  NetsumHeader h;
  h.valid = true;
  h.magic = p[0];
  h.version_type = p[1];
  h.format = p[2];
  h.flags = p[3];
  h.job = get16(p + 4);
  h.epoch = get16(p + 6);
  h.slot = get16(p + 8);
  h.member = get16(p + 10);
  h.round = get32(p + 12);
  h.chunk = get32(p + 16);
  h.signature = get32(p + 20);
  h.check = get64(p + 24);
  return h;
}

// The parser, in every pass that consumes: the words in front of the payload, as many as there are and fit a pass.
void parse_words(Packet* packet) {
  std::vector<uint8_t>& payload = packet->payload;
  const size_t words = std::min<size_t>(payload.size() / 8, NETSUM_P4_WORDS);
  for (size_t i = 0; i < words; ++i) packet->words[i] = get64(&payload[8 * i]);
  packet->word_count = static_cast<int>(words);
  payload.erase(payload.begin(), payload.begin() + static_cast<long>(8 * words));
  packet->meta.left_bytes = static_cast<uint16_t>(payload.size());
}

// The deparser.
std::vector<uint8_t> bytes_of(const Packet& packet) {
  const NetsumHeader& h = packet.netsum;
  std::vector<uint8_t> bytes = {h.magic, h.version_type, h.format, h.flags};
  put(h.job, 2, &bytes);
  put(h.epoch, 2, &bytes);
  put(h.slot, 2, &bytes);
  put(h.member, 2, &bytes);
  put(h.round, 4, &bytes);
  put(h.chunk, 4, &bytes);
  put(h.signature, 4, &bytes);
  put(h.check, 8, &bytes);
  for (int i = 0; i < packet.word_count; ++i) put(packet.words[static_cast<size_t>(i)], 8, &bytes);
  bytes.insert(bytes.end(), packet.payload.begin(), packet.payload.end());
  return bytes;
}

}  // namespace

Pipeline::Pipeline(TagExtern* tag, bool detects_overflow)
    : tag_(tag),
      detects_overflow_(detects_overflow),
      over_(kOver, NETSUM_P4_SLOTS),
      current_(kCurrent, NETSUM_P4_SLOTS),
      chunk_(kIdentity, NETSUM_P4_BANKS),
      signature_(kIdentity, NETSUM_P4_BANKS),
      shape_(kIdentity, NETSUM_P4_BANKS),
      failed_(kFailed, NETSUM_P4_BANKS),
      seen_(kSeen, NETSUM_P4_BANKS),
      arrived_(kArrived, NETSUM_P4_BANKS),
      lanes_(NETSUM_P4_WORDS, Register<uint64_t>(kLanes, NETSUM_P4_LANE_REGISTERS)),
      overflow_(kOverflow, NETSUM_P4_BANKS) {}

void Pipeline::set_job(uint16_t job, const JobEntry& entry) {
  NETSUM_ASSERT(job < NETSUM_P4_JOBS && entry.members > 0 && entry.members <= NETSUM_MAX_MEMBERS);
  NETSUM_ASSERT(entry.first_slot + entry.slots <= NETSUM_P4_SLOTS);
  NETSUM_ASSERT(entry.payload_bytes <= NETSUM_P4_GROUPS * NETSUM_P4_PASS_BYTES);
  remove_job(job);
  jobs_[job] = entry;
  if (entry.parent) parents_[{entry.parent->ip, entry.parent->udp_port, entry.parent->job}] = job;
}

void Pipeline::remove_job(uint16_t job) {
  jobs_.erase(job);
  parent_ports_.erase(job);
  std::erase_if(parents_, [job](const auto& parent) { return parent.second == job; });
  std::erase_if(members_, [job](const auto& member) { return member.first.first == job; });
}

void Pipeline::set_member(uint16_t job, uint16_t member, const Endpoint& at) {
  members_[{job, member}] = at;
}

void Pipeline::set_parent(uint16_t job, uint16_t port) {
  NETSUM_ASSERT(jobs_.at(job).parent.has_value());
  parent_ports_[job] = port;
}

void Pipeline::start_slot_at(uint16_t job, uint16_t slot, uint32_t round) {
  const JobEntry& entry = jobs_.at(job);
  const size_t index = entry.first_slot + slot;
  const uint64_t value = owned(uint32_t{job} << 16 | entry.epoch, round);
  over_.write(index, value);
  current_.write(index, value);
}

void Pipeline::flip_lane_bit(uint16_t job, uint16_t slot, uint32_t bank, uint32_t bit) {
  const JobEntry& entry = jobs_.at(job);
  NETSUM_ASSERT(slot < entry.slots && bank < 2 && bit < 8 * entry.payload_bytes);
  const uint32_t word = bit / 64, group = word / NETSUM_P4_WORDS;
  const size_t index = size_t{2 * (entry.first_slot + slot) + bank} * NETSUM_P4_GROUPS + group;
  lanes_[word % NETSUM_P4_WORDS].flip(index, bit % 64);
}

void Pipeline::run_arrival(const Datagram& datagram) {
  Packet packet;
  packet.meta.from = datagram.peer;
  const std::vector<uint8_t>& bytes = datagram.bytes;
  if (bytes.size() >= NETSUM_HEADER_BYTES) {
    packet.netsum = parse_header(bytes.data());
    packet.payload.assign(bytes.begin() + NETSUM_HEADER_BYTES, bytes.end());
    packet.meta.payload_bytes = static_cast<uint16_t>(packet.payload.size());
    parse_words(&packet);
  }
  run(&packet, bytes);
}

bool Pipeline::run_recirculated() {
  if (recirculated_.empty()) return false;
  Packet packet = std::move(recirculated_.front());
  recirculated_.pop_front();
  packet.meta = {};
  packet.meta.payload_bytes = packet.pass.lanes_bytes;
  if (packet.pass.step == NETSUM_P4_STEP_CONSUME) parse_words(&packet);
  run(&packet, {});
  return true;
}

bool Pipeline::lose_recirculated() {
  if (recirculated_.empty()) return false;
  recirculated_.pop_front();
  return true;
}

// Whether the packet may touch a slot.
void Pipeline::admit(Packet* packet, const std::vector<uint8_t>& datagram) {
  Metadata& m = packet->meta;
  const bool first = !packet->pass.valid;
  from_parent(packet);
  if (first) refuse(packet);
  if (m.from_parent) {
    admit_parent(packet);
  } else if (m.drop == NETSUM_DROP_NONE) {
    job(packet);
  }
  if (m.drop == NETSUM_DROP_NONE && first && tag_ != nullptr &&
      !tag_->is_right(datagram, packet->netsum.job, m.from_parent))
    m.drop = NETSUM_DROP_BAD_CHECK;
  if (m.drop == NETSUM_DROP_NONE && !m.from_parent) member(packet);
}

// The ingress.
void Pipeline::run(Packet* packet, const std::vector<uint8_t>& datagram) {
  Metadata& m = packet->meta;
  Pass pass(++passes_);
  const bool first = !packet->pass.valid;
  admit(packet, datagram);
  if (m.drop != NETSUM_DROP_NONE) return count(first ? m.drop : NETSUM_P4_COUNT_LOST_PASS);
  const uint8_t type = packet->netsum.type();
  if (type != NETSUM_TYPE_HELLO && type != NETSUM_TYPE_WELCOME) {
    round(&pass, packet);
    identity(&pass, packet);
    failed(&pass, packet);
    seen(&pass, packet);
    arrived(&pass, packet);
    m.from_parent ? parent_verdict(packet) : verdict(packet);
    lanes(&pass, packet);
    overflow(&pass, packet);
  }
  uplink(packet);
  next(packet);
  if (m.recirculate) {
    recirculated_.push_back(std::move(*packet));
  } else if (m.to_control) {
    for_control_.push_back({m.from, bytes_of(*packet)});
  } else if (m.to_parent) {
    emit_to_parent(*packet);
  } else if (m.to_member || m.to_all) {
    emit(*packet);
  }
}

// The multicast engine: a copy to each member of the job's group, in which members are from their first HELLO on.
void Pipeline::emit(const Packet& packet) {
  const uint16_t job = packet.netsum.job;
  if (packet.meta.to_member) {
    const auto member = members_.find({job, packet.meta.addressee});
    if (member != members_.end()) send(packet, member->second, job, /*parents=*/false);
    return;
  }
  for (auto at = members_.lower_bound({job, 0}); at != members_.end() && at->first.first == job; ++at)
    send(packet, at->second, job, /*parents=*/false);
}

// Table `parent_addresses`: a packet of the job becomes one of a member of the parent's job.
void Pipeline::emit_to_parent(const Packet& packet) {
  const uint16_t job = packet.netsum.job;
  const auto port = parent_ports_.find(job);
  if (port == parent_ports_.end()) return;
  const JobEntry::Parent& parent = *jobs_.at(job).parent;
  Packet up = packet;
  up.netsum.job = parent.job;
  up.netsum.epoch = parent.epoch;
  up.netsum.member = parent.member;
  up.netsum.check = parent.cookie;
  send(up, {.ip = parent.ip, .udp_port = parent.udp_port, .port = port->second}, job, /*parents=*/true);
}

void Pipeline::send(const Packet& packet, const Endpoint& to, uint16_t job, bool parents) {
  Datagram out{to, bytes_of(packet)};
  if (tag_ != nullptr) tag_->write(&out.bytes, job, parents);
  sent_.push_back(std::move(out));
}

std::vector<std::pair<const char*, uint64_t>> Pipeline::register_accesses() const {
  std::vector<std::pair<const char*, uint64_t>> all{
      {"over", over_.accesses()},        {"current", current_.accesses()},
      {"chunk", chunk_.accesses()},      {"signature", signature_.accesses()},
      {"shape", shape_.accesses()},      {"failed", failed_.accesses()},
      {"seen", seen_.accesses()},        {"arrived", arrived_.accesses()},
      {"overflow", overflow_.accesses()}};
  for (const Register<uint64_t>& word : lanes_) all.emplace_back("lanes", word.accesses());
  return all;
}

}  // namespace netsum::p4
