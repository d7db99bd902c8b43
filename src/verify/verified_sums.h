// Verified sums: a linear keyed tag that travels with the lanes through an aggregator's additions, by which a rank knows that a
// sum is that of all ranks' contributions to this very step, each once and unaltered.
//
// Rank m of N sends lanes x[m][i], whose sums over the ranks X[i] do not leave their range, and the tag
//
//   t[m] = sum_i w[i] x[m][i] + F(id, m) - F(id, (m + 1) mod N) + (m == 0 ? G(id) : 0)      modulo 2^M
//
// w: secret weights of 32 bits, signed. F, G: pads, SipHash under a secret key of the identity of the step. Over all ranks the
// pads F cancel, so a receiver of the sums X[i] and T accepts them if T = sum_i w[i] X[i] + G(id). M is 64 or, for lanes of 64
// bits, 96 (kernels::weighted_sum_bits). The tag is cut into limbs, which travel in further lanes of the same width, small enough
// that those of N ranks add without overflow. docs/security.md has the proof, and what a wrong sum's chance is: 2^-32.
//
// Thread rule: immutable.
#ifndef NETSUM_SRC_VERIFY_VERIFIED_SUMS_H_
#define NETSUM_SRC_VERIFY_VERIFIED_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/kernels/weighted.h"
#include "wire/packet.h"

namespace netsum::verify {

// The identity of a step, equal on all ranks. No two steps of a key have the same: the tags of two different payloads under one
// identity would tell about the weights.
struct SumId {
  uint64_t operation = 0;  // its number in the job
  uint32_t signature = 0;
  uint32_t chunk = 0;
  uint32_t round = 0;
  uint16_t slot = 0;
  uint8_t part = 0;    // which packet of the chunk
  uint8_t format = 0;  // NETSUM_FORMAT_*: a sum of lanes
  uint32_t lanes_bytes = 0;
  uint64_t agreed = 0;  // digest() of what the ranks have agreed on for the lanes
};

// Bytes behind the lanes that the tag takes, a multiple of 8. 0: lanes of this width cannot carry the tags of so many ranks.
uint32_t tag_bytes(size_t lane_bytes, int ranks);
// What a payload of `payload_bytes` has left for lanes of 16 bits or more.
uint32_t room_for_lanes(uint32_t payload_bytes, int ranks);

// The key for the sums of one stripe, which counts as for packet keys. `secret`: of the sums of one incarnation of a job
// (Membership::sum_secret).
netsum_key sum_key(const netsum_key& secret, size_t stripe);

class VerifiedSums {
 public:
  // `key`: of one stripe; the same on all ranks. `payload_bytes`: the largest payload.
  VerifiedSums(const netsum_key& key, int rank, int ranks, uint32_t payload_bytes);
  ~VerifiedSums();
  VerifiedSums(const VerifiedSums&) = delete;
  VerifiedSums& operator=(const VerifiedSums&) = delete;

  // Writes this rank's tag of the first id.lanes_bytes of the payload behind them.
  void write_tag(const SumId& id, uint8_t* payload) const;
  // Whether the payload is the sum of what all ranks have written under this identity.
  bool is_right(const SumId& id, const uint8_t* payload) const;

  // Of bytes that all ranks have to have alike; different ones have the same digest with probability 2^-64.
  uint64_t digest(const uint8_t* bytes, size_t size) const;

 private:
  enum Pad : uint32_t { kF = 0, kG = 2 };  // the second half of a pad has the number behind it
  struct PadHash;
  kernels::Uint128 weighted(const SumId& id, const uint8_t* payload) const;

  netsum_key key_;
  const int rank_, ranks_;
  std::vector<int32_t> weights_;  // by lane
};

}  // namespace netsum::verify

#endif  // NETSUM_SRC_VERIFY_VERIFIED_SUMS_H_
