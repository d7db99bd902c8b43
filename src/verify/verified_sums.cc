#include "src/verify/verified_sums.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/base/assert.h"
#include "wire/codec.h"

namespace netsum::verify {
namespace {

using kernels::Uint128;

// The first word of each use of the key says which it is.
constexpr uint64_t kWeightsLabel = 0x57566D757374656Eull;  // "netsumVW"
constexpr uint64_t kPadLabel = 0x50566D757374656Eull;      // "netsumVP"
constexpr uint64_t kDigestLabel = 0x44566D757374656Eull;   // "netsumVD"
// Of the job's secret.
constexpr uint64_t kKeyLabels[] = {0x30566D757374656Eull, 0x31566D757374656Eull};  // "netsumV0", "netsumV1"

Uint128 modulo(Uint128 x, int bits) {
  return x & ((Uint128{1} << bits) - 1);
}

// So many bits of a tag are in each lane: the sum of `ranks` such limbs is in the lane's range.
int limb_bits(size_t lane_bytes, int ranks) {
  return static_cast<int>(8 * lane_bytes) - 1 - std::bit_width(static_cast<unsigned>(ranks - 1));
}

size_t limbs(size_t lane_bytes, int ranks) {
  const int bits = limb_bits(lane_bytes, ranks);
  return static_cast<size_t>((kernels::weighted_sum_bits(lane_bytes) + bits - 1) / bits);
}

int64_t load_lane(const uint8_t* from, size_t bytes) {
  uint64_t lane = 0;
  std::memcpy(&lane, from, bytes);
  const int shift = 64 - static_cast<int>(8 * bytes);
  return static_cast<int64_t>(lane << shift) >> shift;
}

}  // namespace

uint32_t tag_bytes(size_t lane_bytes, int ranks) {
  if (limb_bits(lane_bytes, ranks) < 1) return 0;
  return static_cast<uint32_t>((limbs(lane_bytes, ranks) * lane_bytes + 7) / 8 * 8);
}

uint32_t room_for_lanes(uint32_t payload_bytes, int ranks) {
  return payload_bytes - std::max({tag_bytes(2, ranks), tag_bytes(4, ranks), tag_bytes(8, ranks)});
}

netsum_key sum_key(const netsum_key& secret, size_t stripe) {
  uint64_t halves[2];
  for (size_t i = 0; i < 2; ++i) {
    netsum_sip s = netsum_sip_begin(&secret);
    netsum_sip_word(&s, kKeyLabels[i]);
    netsum_sip_word(&s, stripe);
    halves[i] = netsum_sip_end(&s, 0, 16);
  }
  return {halves[0], halves[1]};
}

VerifiedSums::VerifiedSums(const netsum_key& key, int rank, int ranks, uint32_t payload_bytes)
    : key_(key), rank_(rank), ranks_(ranks), weights_(payload_bytes) {
  NETSUM_ASSERT(ranks >= 1 && rank >= 0 && rank < ranks && payload_bytes % 2 == 0);
  for (size_t i = 0; i < weights_.size(); i += 2) {
    netsum_sip s = netsum_sip_begin(&key_);
    netsum_sip_word(&s, kWeightsLabel);
    netsum_sip_word(&s, i / 2);
    const uint64_t pair = netsum_sip_end(&s, 0, 16);
    weights_[i] = static_cast<int32_t>(static_cast<uint32_t>(pair));
    weights_[i + 1] = static_cast<int32_t>(static_cast<uint32_t>(pair >> 32));
  }
}

VerifiedSums::~VerifiedSums() {
  wire::wipe(&key_);
  explicit_bzero(weights_.data(), weights_.size() * sizeof(int32_t));
}

// All pads of a step begin with the same words, which are hashed once.
struct VerifiedSums::PadHash {
  PadHash(const netsum_key& key, const SumId& id) : common(netsum_sip_begin(&key)) {
    netsum_sip_word(&common, kPadLabel);
    netsum_sip_word(&common, id.operation);
    netsum_sip_word(&common, uint64_t{id.signature} << 32 | id.chunk);
    netsum_sip_word(&common, uint64_t{id.round} << 32 | uint64_t{id.slot} << 16 |
                                 static_cast<uint64_t>(id.part) << 8 | id.format);
    netsum_sip_word(&common, id.agreed);
    last = uint64_t{id.lanes_bytes} << 32;
    bits = kernels::weighted_sum_bits(netsum_lane_bytes(id.format));
  }

  uint64_t half(uint32_t pad, int member) const {
    netsum_sip s = common;
    netsum_sip_word(&s, last | pad << 16 | static_cast<uint64_t>(member));
    return netsum_sip_end(&s, 0, 48);
  }
  Uint128 operator()(Pad pad, int member) const {
    const Uint128 low = half(pad, member);
    return bits == 64 ? low : low | Uint128{half(pad + 1, member)} << 64;
  }

  netsum_sip common;
  uint64_t last;
  int bits;  // of a tag
};

Uint128 VerifiedSums::weighted(const SumId& id, const uint8_t* payload) const {
  const size_t lane_bytes = netsum_lane_bytes(id.format);
  return kernels::weighted_sum(lane_bytes, payload, id.lanes_bytes / lane_bytes, weights_.data());
}

void VerifiedSums::write_tag(const SumId& id, uint8_t* payload) const {
  const PadHash pad(key_, id);
  Uint128 tag = weighted(id, payload) + pad(kF, rank_) - pad(kF, (rank_ + 1) % ranks_);
  if (rank_ == 0) tag += pad(kG, 0);
  tag = modulo(tag, pad.bits);

  const size_t lane_bytes = netsum_lane_bytes(id.format);
  const int bits = limb_bits(lane_bytes, ranks_);
  uint8_t* to = payload + id.lanes_bytes;
  std::memset(to, 0, tag_bytes(lane_bytes, ranks_));
  for (size_t n = limbs(lane_bytes, ranks_); n > 0; --n, to += lane_bytes, tag >>= bits) {
    const auto limb = static_cast<uint64_t>(modulo(tag, bits));
    std::memcpy(to, &limb, lane_bytes);
  }
}

bool VerifiedSums::is_right(const SumId& id, const uint8_t* payload) const {
  const PadHash pad(key_, id);
  const size_t lane_bytes = netsum_lane_bytes(id.format);
  const int bits = limb_bits(lane_bytes, ranks_);
  const uint8_t* from = payload + id.lanes_bytes;
  const uint8_t* const end = from + tag_bytes(lane_bytes, ranks_);
  Uint128 tag = 0;
  int shift = 0;
  for (size_t n = limbs(lane_bytes, ranks_); n > 0; --n, from += lane_bytes, shift += bits)
    tag += static_cast<Uint128>(static_cast<__int128>(load_lane(from, lane_bytes))) << shift;
  bool zeros = true;  // behind the limbs
  for (; from < end; ++from) zeros &= *from == 0;
  return zeros && modulo(tag - weighted(id, payload) - pad(kG, 0), pad.bits) == 0;
}

uint64_t VerifiedSums::digest(const uint8_t* bytes, size_t size) const {
  netsum_sip s = netsum_sip_begin(&key_);
  netsum_sip_word(&s, kDigestLabel);
  netsum_sip_word(&s, size);
  size_t i = 0;
  for (; i + 8 <= size; i += 8) netsum_sip_word(&s, netsum_load64(bytes + i));
  uint64_t rest = 0;
  std::memcpy(&rest, bytes + i, size - i);
  return netsum_sip_end(&s, rest, static_cast<uint32_t>(16 + size));
}

}  // namespace netsum::verify
