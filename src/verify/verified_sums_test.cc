#include "src/verify/verified_sums.h"

#include <gmock/gmock.h>

#include <cstring>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "src/base/rng.h"
#include "src/kernels/kernels.h"

namespace netsum::verify::verified_sums_test {
namespace {

constexpr netsum_key kKey = {0x0123456789ABCDEF, 0xFEDCBA9876543210};
constexpr uint32_t kLanesBytes = 232;  // no multiple of a vector
constexpr uint32_t kPayloadBytes = 512;

using Payload = std::vector<uint8_t>;

SumId id_of(uint8_t format) {
  SumId id;
  id.operation = 12;
  id.signature = 0xABCD1234;
  id.chunk = 7;
  id.round = 3;
  id.slot = 5;
  id.format = format;
  id.lanes_bytes = kLanesBytes;
  id.agreed = 99;
  return id;
}

int64_t get(const Payload& payload, size_t bytes, size_t i) {
  uint64_t lane = 0;
  std::memcpy(&lane, &payload[i * bytes], bytes);
  return static_cast<int64_t>(lane << (64 - 8 * bytes)) >> (64 - 8 * bytes);
}
void add_to(Payload* payload, size_t bytes, size_t i, int64_t what) {
  const int64_t lane = get(*payload, bytes, i) + what;
  std::memcpy(&(*payload)[i * bytes], &lane, bytes);
}

// The ranks of a job, with one stripe's key.
class Ranks {
 public:
  explicit Ranks(int ranks, const netsum_key& key = kKey) {
    for (int rank = 0; rank < ranks; ++rank) ranks_.emplace_back(key, rank, ranks, kPayloadBytes);
  }
  size_t size() const { return ranks_.size(); }
  const VerifiedSums& operator[](size_t rank) const { return ranks_[rank]; }

  // What each rank sends: lanes whose sums stay in their range, of the whole range of that, and the tag.
  std::vector<Payload> contributions(const SumId& id, Rng* rng) const {
    std::vector<Payload> payloads;
    for (const VerifiedSums& rank : ranks_) {
      payloads.push_back(lanes(id.format, rng));
      rank.write_tag(id, payloads.back().data());
    }
    return payloads;
  }
  Payload lanes(uint8_t format, Rng* rng) const {
    const size_t bytes = netsum_lane_bytes(format);
    Payload payload(kLanesBytes + tag_bytes(bytes, static_cast<int>(size())));
    for (size_t i = 0; i < kLanesBytes / bytes; ++i) {
      const auto word = static_cast<int64_t>(rng->next()) >> (64 - 8 * bytes);
      add_to(&payload, bytes, i, word / static_cast<int64_t>(size()));
    }
    return payload;
  }

 private:
  std::deque<VerifiedSums> ranks_;
};

// As an aggregator adds; no lane may overflow, those of the tags neither.
Payload sum_of(uint8_t format, const std::vector<Payload>& contributions) {
  Payload sum(contributions.front().size());
  for (const Payload& payload : contributions)
    EXPECT_FALSE(kernels::combine_lanes(format, sum.data(), payload.data(), sum.size()));
  return sum;
}

class VerifiedSumsTest : public testing::TestWithParam<uint8_t> {
 protected:
  const uint8_t format_ = GetParam();
  const size_t lane_bytes_ = netsum_lane_bytes(format_);
  const SumId id_ = id_of(format_);
  Rng rng_{format_};
};

TEST_P(VerifiedSumsTest, ThePadsCancelForAnyNumberOfRanks) {
  for (const int n : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 512}) {
    if (tag_bytes(lane_bytes_, n) == 0) continue;
    const Ranks ranks(n);
    const Payload sum = sum_of(format_, ranks.contributions(id_, &rng_));
    for (size_t rank = 0; rank < ranks.size(); rank += 1 + ranks.size() / 3)
      EXPECT_TRUE(ranks[rank].is_right(id_, sum.data())) << n << " ranks, rank " << rank;
  }
}

TEST_P(VerifiedSumsTest, TheTagHasRoomBehindTheLanes) {
  for (const int n : {1, 2, 16, 64, 512}) {
    const uint32_t bytes = tag_bytes(lane_bytes_, n);
    EXPECT_EQ(bytes % 8, 0u);
    if (lane_bytes_ >= 2) {
      EXPECT_GE(bytes, 8u);
      EXPECT_LE(bytes, n <= 16 ? 16u : 24u) << n;
    }
  }
}

// Each alteration of what an aggregator adds, or of what it has added.
TEST_P(VerifiedSumsTest, EveryWrongSumIsRefused) {
  for (const int n : {2, 3, 8, 16}) {
    if (tag_bytes(lane_bytes_, n) == 0) continue;
    const Ranks ranks(n);
    SumId other_round = id_, other_slot = id_, other_chunk = id_, other_part = id_, other_operation = id_,
          other_signature = id_, other_scales = id_;
    --other_round.round;
    ++other_slot.slot;
    ++other_chunk.chunk;
    ++other_part.part;
    --other_operation.operation;
    ++other_signature.signature;
    ++other_scales.agreed;
    const Ranks other_job(n, {kKey.k0 ^ 1, kKey.k1});
    for (size_t m = 0; m < ranks.size(); ++m) {
      const std::vector<Payload> honest = ranks.contributions(id_, &rng_);
      const auto refused = [&](const std::string& what, std::vector<Payload> altered) {
        const Payload sum = sum_of(format_, altered);
        for (size_t rank = 0; rank < ranks.size(); ++rank)
          EXPECT_FALSE(ranks[rank].is_right(id_, sum.data())) << what << " of rank " << m << " of " << n;
      };
      const auto replaced = [&](const std::string& what, const Payload& by) {
        std::vector<Payload> altered = honest;
        altered[m] = by;
        refused(what, altered);
      };
      ASSERT_TRUE(ranks[0].is_right(id_, sum_of(format_, honest).data()));

      std::vector<Payload> altered = honest;
      altered.erase(altered.begin() + static_cast<long>(m));
      refused("a dropped contribution", altered);
      replaced("a contribution counted twice, in the place of another", honest[(m + 1) % ranks.size()]);
      for (const SumId& other : {other_round, other_slot, other_chunk, other_part, other_operation,
                                 other_signature, other_scales}) {
        Payload same_lanes = honest[m];
        ranks[m].write_tag(other, same_lanes.data());
        replaced("another step's contribution, with the same lanes", same_lanes);
        replaced("another step's contribution", ranks.contributions(other, &rng_)[m]);
      }
      replaced("another job's contribution", other_job.contributions(id_, &rng_)[m]);
      replaced("zeros", Payload(honest[m].size()));
      Payload halves(honest[m].size());
      for (size_t i = 0; i < halves.size() / lane_bytes_; ++i)
        add_to(&halves, lane_bytes_, i, get(honest[m], lane_bytes_, i) / 2);
      replaced("halves of the lanes", halves);

      // Sums of lanes wrap, as in an aggregator.
      const Payload sum = sum_of(format_, honest);
      const auto wrong = [&](const std::string& what, const Payload& result) {
        EXPECT_FALSE(ranks[m].is_right(id_, result.data())) << what << ", " << n << " ranks";
      };
      const size_t lanes = kLanesBytes / lane_bytes_;
      for (size_t i = 0; i < lanes; ++i) {
        Payload result = sum;
        add_to(&result, lane_bytes_, i, 1);
        wrong("a lane off by one", result);
        add_to(&result, lane_bytes_, (i + 1) % lanes, -1);
        wrong("two lanes whose sum is right", result);
        result = sum;
        std::swap_ranges(&result[i * lane_bytes_], &result[(i + 1) * lane_bytes_],
                         &result[(i + 3) % lanes * lane_bytes_]);
        if (result != sum) wrong("two lanes exchanged", result);
      }
      // All of the lanes and of the tag's first limb. (The highest bits of the last limb may have no weight.)
      for (size_t bit = 0; bit < (kLanesBytes + lane_bytes_) * 8; ++bit) {
        Payload result = sum;
        result[bit / 8] = static_cast<uint8_t>(result[bit / 8] ^ 1u << bit % 8);
        wrong("bit " + std::to_string(bit) + " flipped", result);
      }
      wrong("zeros", Payload(sum.size()));
    }
  }
}

// The aggregator counts one contribution twice where lanes have room for it.
TEST_P(VerifiedSumsTest, AContributionThatIsAddedTwiceIsRefused) {
  const Ranks ranks(3);
  std::vector<Payload> contributions;
  for (size_t m = 0; m < 3; ++m) {
    contributions.emplace_back(kLanesBytes + tag_bytes(lane_bytes_, 3));
    for (size_t i = 0; i < kLanesBytes / lane_bytes_; ++i)
      add_to(&contributions[m], lane_bytes_, i, static_cast<int64_t>(rng_.below(20)) - 10);
    ranks[m].write_tag(id_, contributions[m].data());
  }
  ASSERT_TRUE(ranks[0].is_right(id_, sum_of(format_, contributions).data()));
  for (size_t m = 0; m < 3; ++m) {
    Payload sum = sum_of(format_, contributions);
    kernels::combine_lanes(format_, sum.data(), contributions[m].data(), sum.size());
    EXPECT_FALSE(ranks[0].is_right(id_, sum.data())) << m;
  }
}

// Nothing repeats that would tell about the weights: tags of equal lanes look different in every step, and those of zeros.
TEST_P(VerifiedSumsTest, TagsOfEqualLanesDiffer) {
  const Ranks ranks(4);
  std::set<Payload> tags;
  SumId id = id_;
  for (id.round = 1; id.round <= 50; ++id.round) {
    for (size_t m = 0; m < 4; ++m) {
      Payload payload(kLanesBytes + tag_bytes(lane_bytes_, 4));
      ranks[m].write_tag(id, payload.data());
      tags.insert(payload);
    }
  }
  EXPECT_EQ(tags.size(), 200u);
}

INSTANTIATE_TEST_SUITE_P(Formats, VerifiedSumsTest,
                         testing::Values(NETSUM_FORMAT_SUM_I16, NETSUM_FORMAT_SUM_I32, NETSUM_FORMAT_SUM_I64),
                         [](const auto& format) {
                           return std::to_string(8 * netsum_lane_bytes(format.param)) + "_bit_lanes";
                         });

// Modulo 2^64 the product of an even weight and the highest bit of a 64-bit lane is 0: half of all keys would pass it.
TEST(VerifiedSums, DifferencesThatAreMultiplesOfPowersOfTwoAreRefused) {
  const SumId id = id_of(NETSUM_FORMAT_SUM_I64);
  Rng rng(1);
  int pass_modulo_2_64 = 0;
  for (uint64_t k = 0; k < 200; ++k) {
    const Ranks ranks(2, {k, ~k});
    const Payload sum = sum_of(NETSUM_FORMAT_SUM_I64, ranks.contributions(id, &rng));
    for (const int bit : {63, 62, 60, 56}) {
      Payload result = sum;
      result[7] = static_cast<uint8_t>(result[7] ^ 1u << (bit - 56));
      EXPECT_FALSE(ranks[0].is_right(id, result.data())) << "key " << k << ", bit " << bit;
      // With the weights unknown, but the pads equal, the difference of the tags is that of the lanes.
      Payload zeros(sum.size()), one(sum.size());
      one[7] = static_cast<uint8_t>(1u << (bit - 56));
      ranks[1].write_tag(id, zeros.data());
      ranks[1].write_tag(id, one.data());
      const auto tag = [](const Payload& p) {
        return netsum_load64(&p[kLanesBytes]) + (netsum_load64(&p[kLanesBytes + 8]) << 62);
      };
      pass_modulo_2_64 += tag(zeros) == tag(one) ? 1 : 0;
    }
  }
  EXPECT_GT(pass_modulo_2_64, 80);
}

TEST(VerifiedSums, WhatIsBehindTheLimbsIsZero) {
  const Ranks ranks(3);
  const SumId id = id_of(NETSUM_FORMAT_SUM_I32);
  Rng rng(5);
  Payload sum = sum_of(id.format, ranks.contributions(id, &rng));
  ASSERT_TRUE(ranks[0].is_right(id, sum.data()));
  EXPECT_EQ(sum.back(), 0);  // three limbs of four bytes, in sixteen
  sum.back() = 1;
  EXPECT_FALSE(ranks[0].is_right(id, sum.data()));
}

// Ranks of two builds may be in one job.
TEST(VerifiedSums, TagsKeysAndDigestsNeverChange) {
  const VerifiedSums rank(kKey, 0, 3, kPayloadBytes);
  Payload payload(kPayloadBytes);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<uint8_t>(7 * i + 1);
  std::vector<uint64_t> found;
  for (const uint8_t format : {NETSUM_FORMAT_SUM_I16, NETSUM_FORMAT_SUM_I32, NETSUM_FORMAT_SUM_I64}) {
    SumId id = id_of(format);
    id.part = 2;
    Payload tagged = payload;
    rank.write_tag(id, tagged.data());
    found.push_back(rank.digest(&tagged[kLanesBytes], kPayloadBytes - kLanesBytes));
  }
  for (const size_t size : {13u, 16u}) found.push_back(rank.digest(payload.data(), size));
  const netsum_key key = sum_key(kKey, 3);
  found.insert(found.end(), {key.k0, key.k1});
  EXPECT_THAT(found, testing::ElementsAre(12029606832441968657u, 14761581573574192230u, 2327238281304294870u,
                                          7617895546199859350u, 12581178106732930192u, 5881434338357010827u,
                                          16079231009859452520u));
}

TEST(VerifiedSums, KeysDifferByStripeAndSecret) {
  const netsum_key stripe0 = sum_key(kKey, 0);
  EXPECT_NE(stripe0, sum_key(kKey, 1));
  EXPECT_NE(stripe0, sum_key({kKey.k0, kKey.k1 + 1}, 0));
  EXPECT_NE(stripe0, netsum_stripe_key(&kKey, 0)) << "not that of packets";
}

TEST(VerifiedSums, DigestsDifferByEveryBitAndLength) {
  const VerifiedSums sums(kKey, 0, 1, kPayloadBytes);
  std::set<uint64_t> digests;
  std::vector<uint8_t> bytes(64);
  for (size_t n = 0; n <= 64; ++n) digests.insert(sums.digest(bytes.data(), n));
  for (size_t bit = 0; bit < 61 * 8; ++bit) {
    bytes[bit / 8] = static_cast<uint8_t>(1u << bit % 8);
    digests.insert(sums.digest(bytes.data(), 61));
    bytes[bit / 8] = 0;
  }
  EXPECT_EQ(digests.size(), 65u + 61u * 8u);
  const VerifiedSums other({1, 2}, 0, 1, kPayloadBytes);
  EXPECT_NE(sums.digest(bytes.data(), 64), other.digest(bytes.data(), 64));
}

// 8-bit lanes have room for the tags of 64 ranks, bit by bit, and no more.
TEST(VerifiedSums, TheLargestTagOfAnyWidthHasRoom) {
  std::vector<uint32_t> largest;
  for (const int ranks : {1, 2, 64, 4096}) largest.push_back(1472 - room_for_lanes(1472, ranks));
  EXPECT_THAT(largest, testing::ElementsAre(16, 16, 16, 48));
}

TEST(VerifiedSums, NarrowLanesHaveRoomForFewRanks) {
  EXPECT_EQ(tag_bytes(1, 16), 24u);
  EXPECT_EQ(tag_bytes(1, 64), 64u);
  EXPECT_EQ(tag_bytes(1, 65), 0u);
}

}  // namespace
}  // namespace netsum::verify::verified_sums_test
