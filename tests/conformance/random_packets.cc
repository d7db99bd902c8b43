#include "tests/conformance/random_packets.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>

#include "aggregator/slot/slot.h"
#include "src/base/rng.h"

namespace netsum::conformance {
namespace {

constexpr Peer kParentPeer = 10;

class Traffic {
 public:
  Traffic(uint64_t seed, const DataplaneUnderTest& dataplane, uint32_t payload_bytes) : rng_(seed) {
    netsum_fields without{};
    without.type = NETSUM_TYPE_CONTRIBUTION;
    without.format = NETSUM_FORMAT_SUM_I32;
    without.flags = NETSUM_FLAG_EMPTY | NETSUM_FLAG_NO_RESULT;
    takes_without_lanes_ = dataplane.takes(without);
    adds_floats_ = dataplane.adds_floats();
    static constexpr uint8_t kFormats[] = {
        NETSUM_FORMAT_SUM_I16, NETSUM_FORMAT_SUM_I32, NETSUM_FORMAT_SUM_I64, NETSUM_FORMAT_MAX_U8,
        NETSUM_FORMAT_OR_U64,  NETSUM_FORMAT_XOR_U64, NETSUM_FORMAT_MAX_U16, NETSUM_FORMAT_MAX_U32,
        NETSUM_FORMAT_MAX_U64, NETSUM_FORMAT_SUM_I8};
    for (const uint8_t format : kFormats) {
      netsum_fields f{};
      f.type = NETSUM_TYPE_CONTRIBUTION;
      f.format = format;
      if (dataplane.takes(f)) formats_.push_back(format);
    }
    for (uint16_t index = 0; index < 2; ++index) {
      VectorJob job;
      job.job = static_cast<uint16_t>(index * 3 + 1);
      job.epoch = static_cast<uint16_t>(7 + index);
      job.key = {rng_.next(), rng_.next()};
      job.members = static_cast<uint16_t>(1 + rng_.below(4));
      job.data_slots = 2;
      job.scale_slots = 1;
      job.payload_bytes = payload_bytes - 32 * static_cast<uint32_t>(rng_.below(2));
      job.sums_values = dataplane.sums_values() && index == 0;
      job.adds_floats = adds_floats_ && index == 0;
      job.tag = rng_.chance(0.3) ? NETSUM_TAG_COOKIE : NETSUM_TAG_KEYED;
      if (index == 1 && dataplane.has_parents()) {  // sums of the second job go on to a parent
        job.parent = VectorParent{
            .peer = kParentPeer, .job = 1, .epoch = 3, .key = {rng_.next(), rng_.next()}, .member = 2};
      }
      jobs_.push_back(job);
      keys_.push_back(job.packet_key());
    }
    if (jobs_[1].parent) parents_key_ = jobs_[1].parents_packet_key();
    rounds_.assign(jobs_.size() * 3, 1);
  }
  const std::vector<VectorJob>& jobs() const { return jobs_; }

  // What every member says first, and the parent: one HELLO goes up, a small WELCOME is not enough, the full one is.
  std::vector<std::pair<Peer, Bytes>> hellos() {
    std::vector<std::pair<Peer, Bytes>> all;
    const uint16_t first = static_cast<uint16_t>(rng_.below(jobs_[1].members));
    const bool has_parent = jobs_[1].parent.has_value();
    if (has_parent && rng_.chance(0.5)) all.push_back(hello(1, first));
    if (has_parent && rng_.chance(0.5)) {
      all.push_back(parents_welcome(jobs_[1].payload_bytes - 8 * static_cast<uint32_t>(1 + rng_.below(4))));
      all.push_back(hello(1, first));
    }
    if (has_parent) all.push_back(parents_welcome(jobs_[1].payload_bytes));
    for (size_t j = 0; j < jobs_.size(); ++j) {
      for (uint16_t m = 0; m < jobs_[j].members; ++m) {
        // Otherwise this one is a stranger. Whoever was not answered before repeats its HELLO, as the protocol demands.
        const bool was_first = j == 1 && m == first;
        if (!rng_.chance(0.05) || was_first) all.push_back(hello(j, m));
      }
    }
    return all;
  }

  std::pair<Peer, Bytes> next() {
    const size_t j = rng_.below(jobs_.size());
    const auto m = static_cast<uint16_t>(rng_.below(jobs_[j].members));
    netsum_fields f = identity(j, m);
    f.slot = static_cast<uint16_t>(rng_.below(3));
    uint32_t& round = rounds_[j * 3 + f.slot];
    if (rng_.chance(0.2)) ++round;
    f.round = round + (rng_.chance(0.2) ? static_cast<uint32_t>(rng_.below(4)) - 2 : 0);
    f.chunk = f.round * 5 + f.slot;
    f.signature = 0x5EED;
    f.type = NETSUM_TYPE_CONTRIBUTION;
    // Each round has its format and length, so that members agree most of the time.
    f.format = formats_[f.round % formats_.size()];
    // In the scale slot, mostly. In the first data slot, floats of all types.
    static constexpr uint8_t kFloats[] = {NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32),
                                          NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_BF16),
                                          NETSUM_FORMAT(NETSUM_OP_AVG_FLOATS, NETSUM_FLOAT_F16)};
    static constexpr uint8_t kValues[] = {NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32),
                                          NETSUM_FORMAT(NETSUM_OP_AVG_FLOATS, NETSUM_FLOAT_F32),
                                          NETSUM_FORMAT(NETSUM_OP_SUM_VALUES, NETSUM_VALUE_I32),
                                          NETSUM_FORMAT(NETSUM_OP_SUM_VALUES, NETSUM_VALUE_I64)};
    if (f.slot == 2 ? f.round % 3 != 0 : f.round % 31 == 0) f.format = kValues[f.round / 3 % 4];
    if (f.slot == 0 && jobs_[j].adds_floats && f.round % 2 == 0) f.format = kFloats[f.round / 2 % 3];
    f.payload_bytes = 8 * (1 + f.round * 7 % (jobs_[j].payload_bytes / 8));
    if (f.round % 5 == 0) f.flags = NETSUM_FLAG_PART;
    const bool may_be_short = takes_without_lanes_ && !netsum_is_values(f.format);
    if (may_be_short && rng_.chance(0.3)) leave_out_lanes(&f);
    if ((may_be_short || (adds_floats_ && netsum_is_floats(f.format))) && rng_.chance(0.3))
      f.flags |= NETSUM_FLAG_NO_RESULT;
    Peer from = peer(j, m);
    if (j == 1 && jobs_[1].parent && rng_.chance(0.3)) return parents(f);
    if (rng_.chance(0.15)) {
      f.type = NETSUM_TYPE_PROBE;
      f.format = NETSUM_FORMAT_NONE;
      f.flags = 0;
      f.payload_bytes = NETSUM_PROBE_BYTES;
      f.absent_bytes = 0;
    }
    if (rng_.chance(0.1)) spoil(&f, &from);
    Bytes payload(f.payload_bytes);
    const bool extreme = rng_.chance(0.2);
    for (uint8_t& byte : payload) {
      byte = static_cast<uint8_t>(extreme ? (rng_.chance(0.5) ? 0x7F : 0x80) : rng_.next());
    }
    if (f.type == NETSUM_TYPE_PROBE) std::fill(payload.begin(), payload.end(), uint8_t{0});
    if (f.flags & NETSUM_FLAG_EMPTY) write_length(f, &payload);
    Bytes packet = build(f, j, payload);
    if (rng_.chance(0.03)) packet[rng_.below(packet.size())] ^= static_cast<uint8_t>(1u << rng_.below(8));
    if (rng_.chance(0.01)) packet.resize(rng_.below(packet.size() + 20));
    return {from, packet};
  }

 private:
  std::pair<Peer, Bytes> hello(size_t j, uint16_t m) const {
    netsum_fields f = identity(j, m);
    f.type = NETSUM_TYPE_HELLO;
    f.payload_bytes = jobs_[j].payload_bytes;
    return {peer(j, m), build(f, j, Bytes(f.payload_bytes))};
  }
  std::pair<Peer, Bytes> parents_welcome(uint32_t payload_bytes) const {
    netsum_fields f = identity(1, 0);
    f.type = NETSUM_TYPE_WELCOME;
    return {kParentPeer, build_parents(f, Bytes(payload_bytes))};
  }

  static void leave_out_lanes(netsum_fields* f) {
    f->flags |= NETSUM_FLAG_EMPTY;
    f->absent_bytes = f->payload_bytes;
    f->payload_bytes = NETSUM_EMPTY_BYTES;
  }
  static void write_length(const netsum_fields& f, Bytes* payload) {
    const netsum_be64 length = netsum_put64(f.absent_bytes);
    std::copy_n(length.b, std::min(sizeof length, payload->size()), payload->begin());
  }

  // What the parent says of the step that `f` contributes to.
  std::pair<Peer, Bytes> parents(netsum_fields f) {
    f.type = NETSUM_TYPE_RESULT;
    f.flags &= static_cast<uint8_t>(~NETSUM_FLAG_NO_RESULT);
    f.member = NETSUM_MEMBER_ALL;
    if (rng_.chance(0.3)) {
      f.type = NETSUM_TYPE_STATUS;
      f.format = NETSUM_FORMAT_NONE;
      f.flags = rng_.chance(0.5) ? NETSUM_FLAG_AGAIN : 0;
      f.member = jobs_[1].parent->member;
      const uint16_t members = rng_.chance(0.5) ? NETSUM_MAX_MEMBERS : jobs_[1].members;
      f.chunk = netsum_chunk_up(f.chunk, static_cast<uint16_t>(rng_.below(members)));
      f.payload_bytes = NETSUM_STATUS_BYTES;
    } else if (rng_.chance(0.02)) {
      f.type = NETSUM_TYPE_ERROR;
      f.format = NETSUM_FORMAT_NONE;
      f.flags = 0;
      f.payload_bytes = NETSUM_ERROR_BYTES;
    } else if (rng_.chance(0.1)) {
      f.flags |= NETSUM_FLAG_OVERFLOW;
    }
    Peer from = kParentPeer;
    if (rng_.chance(0.1)) spoil(&f, &from);
    Bytes payload(f.payload_bytes);
    for (uint8_t& byte : payload) byte = static_cast<uint8_t>(rng_.next());
    if (f.flags & NETSUM_FLAG_EMPTY) write_length(f, &payload);
    Bytes packet = build_parents(f, payload);
    if (rng_.chance(0.03)) packet[rng_.below(packet.size())] ^= static_cast<uint8_t>(1u << rng_.below(8));
    return {from, packet};
  }
  Bytes build_parents(netsum_fields f, const Bytes& payload) const {
    const VectorParent& parent = *jobs_[1].parent;
    f.job = parent.job;
    f.epoch = static_cast<uint16_t>(f.epoch ^ jobs_[1].epoch ^ parent.epoch);  // stays wrong if it was spoilt
    return build_with(parents_key_, f, payload);
  }
  static Peer peer(size_t job, uint16_t member) { return static_cast<Peer>(job * 5 + member); }
  netsum_fields identity(size_t j, uint16_t member) const {
    netsum_fields f{};
    f.job = jobs_[j].job;
    f.epoch = jobs_[j].epoch;
    f.member = member;
    return f;
  }
  void spoil(netsum_fields* f, Peer* from) {
    switch (rng_.below(9)) {
      case 0:
        f->epoch ^= 1;
        break;
      case 1:
        f->member = static_cast<uint16_t>(f->member + rng_.below(5));
        break;
      case 2:
        f->slot = static_cast<uint16_t>(f->slot + rng_.below(3));
        break;
      case 3:
        f->chunk ^= 1;
        break;
      case 4:
        f->signature ^= 1;
        break;
      case 5:
        f->payload_bytes += 8;
        break;
      case 6:
        f->job ^= 1;
        break;
      case 7:
        *from = *from + 1;
        break;
      default:
        f->flags |= NETSUM_FLAG_OVERFLOW;
        break;
    }
  }
  Bytes build(const netsum_fields& f, size_t j, const Bytes& payload) const {
    return build_with(keys_[j], f, payload);
  }
  static Bytes build_with(const wire::PacketKey& key, netsum_fields f, const Bytes& payload) {
    Bytes frame(NETSUM_HEADER_BYTES);
    frame.insert(frame.end(), payload.begin(), payload.end());
    f.payload_bytes = static_cast<uint32_t>(payload.size());
    wire::write_header(f, key, frame.data());
    return frame;
  }

  Rng rng_;
  bool takes_without_lanes_ = true;
  bool adds_floats_ = false;
  std::vector<uint8_t> formats_;  // of lanes, that the dataplane takes
  std::vector<VectorJob> jobs_;
  std::vector<wire::PacketKey> keys_;  // by job
  wire::PacketKey parents_key_;
  std::vector<uint32_t> rounds_;  // by job and slot
};

std::map<std::string, uint64_t> without_zeros(std::map<std::string, uint64_t> counts) {
  std::erase_if(counts, [](const auto& count) { return count.second == 0; });
  return counts;
}

std::string describe(const Bytes& datagram) {
  netsum_fields f{};
  const int reason = netsum_parse(datagram.data(), static_cast<uint32_t>(datagram.size()), &f);
  return reason ? std::string(wire::drop_name(reason)) : wire::describe(f);
}

std::string describe(const std::vector<Reply>& replies) {
  std::string text;
  for (const Reply& reply : replies)
    text += "\n  to " + std::to_string(reply.to) + ": " + describe(reply.datagram);
  return text.empty() ? " none" : text;
}

}  // namespace

std::string first_difference(uint64_t seed, int packets, DataplaneUnderTest& reference,
                             DataplaneUnderTest& dataplane, uint32_t payload_bytes) {
  Traffic traffic(seed, dataplane, payload_bytes);
  for (const VectorJob& job : traffic.jobs()) {
    reference.install(job);
    dataplane.install(job);
  }
  std::vector<std::pair<Peer, Bytes>> first = traffic.hellos();
  for (int i = 0; i < packets; ++i) {
    const auto [from, packet] =
        i < static_cast<int>(first.size()) ? first[static_cast<size_t>(i)] : traffic.next();
    if (is_not_for(dataplane, packet)) continue;
    std::vector<Reply> expected = reference.feed(from, packet), got = dataplane.feed(from, packet);
    std::sort(expected.begin(), expected.end());
    std::sort(got.begin(), got.end());
    const auto expected_drops = without_zeros(reference.drops()), drops = without_zeros(dataplane.drops());
    if (expected == got && expected_drops == drops) continue;
    std::string text = "packet " + std::to_string(i) + " from " + std::to_string(from) + ": " +
                       describe(packet) + "\nexpected:" + describe(expected) + "\ngot:" + describe(got);
    for (const auto& [name, count] : expected_drops) {
      if (!drops.contains(name) || drops.at(name) != count) text += "\nmissing drop " + name;
    }
    for (const auto& [name, count] : drops) {
      if (!expected_drops.contains(name) || expected_drops.at(name) != count)
        text += "\nsurplus drop " + name;
    }
    return text;
  }
  return "";
}

Vector record(uint64_t seed, int packets, DataplaneUnderTest& dataplane, uint32_t payload_bytes) {
  Traffic traffic(seed, dataplane, payload_bytes);
  Vector vector;
  vector.name = "random_" + std::to_string(seed);
  vector.description = "random packets";
  vector.jobs = traffic.jobs();
  for (const VectorJob& job : vector.jobs) dataplane.install(job);
  std::vector<std::pair<Peer, Bytes>> first = traffic.hellos();
  const std::string bad_check(wire::drop_name(NETSUM_DROP_BAD_CHECK));
  for (int i = 0; i < packets; ++i) {
    const auto [from, packet] =
        i < static_cast<int>(first.size()) ? first[static_cast<size_t>(i)] : traffic.next();
    if (is_not_for(dataplane, packet)) continue;
    const uint64_t before = dataplane.drops()[bad_check];
    VectorStep step{.what = describe(packet), .from = from, .packet = packet};
    for (const Reply& reply : dataplane.feed(from, packet))
      step.replies.push_back({.to = {reply.to}, .what = describe(reply.datagram), .packet = reply.datagram});
    if (dataplane.drops()[bad_check] == before) vector.steps.push_back(std::move(step));
  }
  vector.drops = without_zeros(dataplane.drops());
  vector.drops.erase(bad_check);
  return vector;
}

std::vector<uint64_t> seeds(int count) {
  if (const char* only = std::getenv("NETSUM_SEED")) return {std::strtoull(only, nullptr, 0)};
  std::vector<uint64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), uint64_t{1});
  return all;
}

}  // namespace netsum::conformance
