#include "wire/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/base/rng.h"

namespace netsum::wire {
namespace {

constexpr uint64_t kKey = 0x0123456789ABCDEF;

struct Sample {
  const char* name;
  netsum_fields fields;
};

netsum_fields fields_of(uint8_t type, uint8_t format, uint32_t payload_bytes, uint16_t member = 2) {
  netsum_fields f{};
  f.type = type;
  f.format = format;
  f.job = 0x0304;
  f.epoch = 0x0506;
  f.slot = 0x0708;
  f.member = member;
  f.round = 0x090A0B0C;
  f.chunk = 0x0D0E0F10;
  f.signature = 0x11121314;
  f.payload_bytes = payload_bytes;
  return f;
}

// One of each type, and of each size and format that matters.
std::vector<Sample> samples() {
  std::vector<Sample> all = {
      {"contribution, 32-bit lanes", fields_of(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT_SUM_I32, 64)},
      {"contribution, 64-bit lanes", fields_of(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT_SUM_I64, 40)},
      {"contribution, scales", fields_of(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT_MAX_U8, 8)},
      {"result", fields_of(NETSUM_TYPE_RESULT, NETSUM_FORMAT_SUM_I32, 64, NETSUM_MEMBER_ALL)},
      {"probe", fields_of(NETSUM_TYPE_PROBE, NETSUM_FORMAT_NONE, NETSUM_PROBE_BYTES)},
      {"status", fields_of(NETSUM_TYPE_STATUS, NETSUM_FORMAT_NONE, NETSUM_STATUS_BYTES)},
      {"error", fields_of(NETSUM_TYPE_ERROR, NETSUM_FORMAT_NONE, NETSUM_ERROR_BYTES, NETSUM_MEMBER_ALL)},
      {"hello", fields_of(NETSUM_TYPE_HELLO, NETSUM_FORMAT_NONE, 72)},
      {"welcome", fields_of(NETSUM_TYPE_WELCOME, NETSUM_FORMAT_NONE, 72)},
      {"full packet", fields_of(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT_SUM_I32, 1440)},
      {"contribution, 16-bit lanes", fields_of(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT_SUM_I16, 24)},
  };
  all[1].fields.flags = NETSUM_FLAG_PART;
  all[3].fields.flags = NETSUM_FLAG_OVERFLOW;
  return all;
}

std::vector<uint8_t> build(const netsum_fields& fields, uint64_t key = kKey, uint64_t seed = 7) {
  std::vector<uint8_t> frame(NETSUM_HEADER_BYTES + fields.payload_bytes);
  Rng rng(seed);
  for (size_t i = NETSUM_HEADER_BYTES; i < frame.size(); ++i) frame[i] = static_cast<uint8_t>(rng.next());
  EXPECT_EQ(write_header(fields, key, frame.data()), frame.size());
  return frame;
}

int parse(const std::vector<uint8_t>& frame, netsum_fields* out) {
  return netsum_parse(frame.data(), static_cast<uint32_t>(frame.size()), out);
}

// What every receiver does first. Names the rule that the packet breaks.
int accept(const uint8_t* frame, uint32_t size, uint64_t key) {
  netsum_fields f;
  const int reason = netsum_parse(frame, size, &f);
  if (reason != NETSUM_DROP_NONE) return reason;
  const uint64_t nh = netsum_nh(frame + NETSUM_HEADER_BYTES, f.payload_bytes);
  return check_is_right(frame, f, key, nh) ? NETSUM_DROP_NONE : NETSUM_DROP_BAD_CHECK;
}
int accept(const std::vector<uint8_t>& frame, uint64_t key = kKey) {
  return accept(frame.data(), static_cast<uint32_t>(frame.size()), key);
}

TEST(Codec, RoundTripsEveryType) {
  for (const Sample& sample : samples()) {
    const std::vector<uint8_t> frame = build(sample.fields);
    netsum_fields f;
    ASSERT_EQ(parse(frame, &f), NETSUM_DROP_NONE) << sample.name;
    EXPECT_EQ(accept(frame), NETSUM_DROP_NONE) << sample.name;
    const netsum_fields& s = sample.fields;
    EXPECT_EQ(std::tie(f.type, f.format, f.flags, f.job, f.epoch, f.slot, f.member),
              std::tie(s.type, s.format, s.flags, s.job, s.epoch, s.slot, s.member));
    EXPECT_EQ(std::tie(f.round, f.chunk, f.signature, f.payload_bytes),
              std::tie(s.round, s.chunk, s.signature, s.payload_bytes));
  }
}

TEST(Codec, LayoutIsThatOfTheDocument) {
  const std::vector<uint8_t> frame = build(samples()[0].fields);
  const uint8_t expected[24] = {0xA5, 0x11, 0x14, 0x00, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x00, 0x02,
                                0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12, 0x13, 0x14};
  EXPECT_EQ(std::memcmp(frame.data(), expected, sizeof expected), 0);
}

// The computation of PROTOCOL.md with nothing shared but the key table.
TEST(Codec, CheckIsThatOfTheDocument) {
  const auto mix = [](uint64_t h) {
    h = (h ^ (h >> 33)) * 0xFF51AFD7ED558CCD;
    h = (h ^ (h >> 33)) * 0xC4CEB9FE1A85EC53;
    return h ^ (h >> 33);
  };
  const auto little = [](const uint8_t* p, int bytes) {
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; --i) x = x << 8 | p[i];
    return x;
  };
  for (const Sample& sample : samples()) {
    const std::vector<uint8_t> frame = build(sample.fields);
    uint64_t nh = 0;
    const uint8_t* payload = frame.data() + 32;
    for (uint32_t i = 0; i < sample.fields.payload_bytes / 8; ++i) {
      const uint64_t x = (little(payload + 8 * i, 4) + netsum_check_key[2 * i]) % (1ull << 32);
      const uint64_t y = (little(payload + 8 * i + 4, 4) + netsum_check_key[2 * i + 1]) % (1ull << 32);
      nh += x * y;
    }
    uint64_t h = mix(nh ^ kKey);
    h = mix((h + sample.fields.payload_bytes) ^ little(&frame[0], 8));
    h = mix(h ^ little(&frame[8], 8));
    h = mix(h ^ little(&frame[16], 8)) ^ kKey;
    uint64_t check = 0;
    for (int i = 24; i < 32; ++i) check = check << 8 | frame[static_cast<size_t>(i)];
    EXPECT_EQ(check, h) << sample.name;
  }
}

// --- Every reason of the parser ----------------------------------------------------------------------------

int reason_after(const Sample& sample, void (*change)(std::vector<uint8_t>*)) {
  std::vector<uint8_t> frame = build(sample.fields);
  change(&frame);
  netsum_fields f;
  return parse(frame, &f);
}

TEST(Parse, NamesTheRuleThatIsBroken) {
  using Frame = std::vector<uint8_t>;
  const struct {
    int reason;
    size_t sample;
    void (*change)(Frame*);
  } cases[] = {
      {NETSUM_DROP_TOO_SHORT, 0, [](Frame* f) { f->clear(); }},
      {NETSUM_DROP_TOO_SHORT, 0, [](Frame* f) { f->resize(31); }},
      {NETSUM_DROP_BAD_MAGIC, 0, [](Frame* f) { (*f)[0] = 0x5A; }},
      {NETSUM_DROP_BAD_VERSION, 0, [](Frame* f) { (*f)[1] = 0x21; }},
      {NETSUM_DROP_BAD_VERSION, 0, [](Frame* f) { (*f)[1] = 0x01; }},
      {NETSUM_DROP_BAD_TYPE, 0, [](Frame* f) { (*f)[1] = 0x10; }},
      {NETSUM_DROP_BAD_TYPE, 0, [](Frame* f) { (*f)[1] = 0x18; }},
      {NETSUM_DROP_BAD_TYPE, 0, [](Frame* f) { (*f)[1] = 0x1F; }},
      {NETSUM_DROP_BAD_FLAGS, 0, [](Frame* f) { (*f)[3] = 0x08; }},
      {NETSUM_DROP_BAD_FLAGS, 4, [](Frame* f) { (*f)[3] = 0x80; }},
      {NETSUM_DROP_BAD_LENGTH, 0, [](Frame* f) { f->resize(32); }},             // nothing to add
      {NETSUM_DROP_BAD_LENGTH, 0, [](Frame* f) { f->resize(f->size() - 4); }},  // not a multiple of 8
      {NETSUM_DROP_BAD_LENGTH, 0, [](Frame* f) { f->resize(32 + 8928 + 8); }},  // above the limit
      {NETSUM_DROP_BAD_LENGTH, 3, [](Frame* f) { f->resize(32); }},             // RESULT without lanes
      {NETSUM_DROP_BAD_LENGTH, 4, [](Frame* f) { f->resize(32); }},             // PROBE without room
      {NETSUM_DROP_BAD_LENGTH, 5, [](Frame* f) { f->resize(48); }},             // STATUS too long
      {NETSUM_DROP_BAD_LENGTH, 6, [](Frame* f) { f->resize(32); }},             // ERROR too short
      {NETSUM_DROP_BAD_FORMAT, 0, [](Frame* f) { (*f)[2] = 0x00; }},            // no operation
      {NETSUM_DROP_BAD_FORMAT, 0, [](Frame* f) { (*f)[2] = 0x11; }},            // SUM of 8-bit lanes
      {NETSUM_DROP_BAD_FORMAT, 0, [](Frame* f) { (*f)[2] = 0x24; }},            // MAX of 32-bit lanes
      {NETSUM_DROP_BAD_FORMAT, 0, [](Frame* f) { (*f)[2] = 0x13; }},  // reserved: signed 8-bit lanes
      {NETSUM_DROP_BAD_FORMAT, 4, [](Frame* f) { (*f)[2] = 0x14; }},  // PROBE with a format
      {NETSUM_DROP_NONE, 0, [](Frame* f) { f->resize(32 + 8928); }},  // exactly the limit
      {NETSUM_DROP_NONE, 7, [](Frame* f) { f->resize(32); }},         // HELLO without padding
  };
  for (const auto& c : cases) {
    EXPECT_EQ(drop_name(reason_after(samples()[c.sample], c.change)), drop_name(c.reason))
        << "case " << &c - cases;
  }
}

TEST(Parse, NeedsNoAlignment) {
  for (const Sample& sample : samples()) {
    const std::vector<uint8_t> frame = build(sample.fields);
    for (size_t shift = 0; shift < 8; ++shift) {
      std::vector<uint8_t> moved(frame.size() + shift);
      std::copy(frame.begin(), frame.end(), moved.begin() + static_cast<std::ptrdiff_t>(shift));
      EXPECT_EQ(accept(&moved[shift], static_cast<uint32_t>(frame.size()), kKey), NETSUM_DROP_NONE);
    }
  }
}

// --- Integrity ---------------------------------------------------------------------------------------------

TEST(Check, RefusesEverySingleBitFlip) {
  for (const Sample& sample : samples()) {
    std::vector<uint8_t> frame = build(sample.fields);
    for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
      frame[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      ASSERT_NE(accept(frame), NETSUM_DROP_NONE) << sample.name << ", bit " << bit;
      frame[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    }
  }
}

TEST(Check, RefusesEveryTruncationAndExtension) {
  for (const Sample& sample : samples()) {
    const std::vector<uint8_t> frame = build(sample.fields);
    for (size_t size = 0; size < frame.size(); ++size) {
      const std::vector<uint8_t> cut(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size));
      ASSERT_NE(accept(cut), NETSUM_DROP_NONE) << sample.name << " cut to " << size;
    }
    for (size_t extra = 1; extra <= 64; ++extra) {
      std::vector<uint8_t> longer = frame;
      longer.resize(frame.size() + extra);
      ASSERT_NE(accept(longer), NETSUM_DROP_NONE) << sample.name << " plus " << extra;
    }
  }
}

// The UDP checksum misses these: a one's complement sum does not depend on the order of its words.
TEST(Check, RefusesSwappedWords) {
  for (size_t width : {2, 4, 8}) {
    std::vector<uint8_t> frame = build(samples()[0].fields);
    const size_t words = (frame.size() - NETSUM_HEADER_BYTES) / width;
    for (size_t i = 0; i < words; ++i) {
      for (size_t j = 0; j < i; ++j) {
        std::vector<uint8_t> swapped = frame;
        const auto at = [&](size_t k) {
          return swapped.begin() + static_cast<std::ptrdiff_t>(NETSUM_HEADER_BYTES + k * width);
        };
        std::swap_ranges(at(i), at(i + 1), at(j));
        if (swapped == frame) continue;
        ASSERT_EQ(accept(swapped), NETSUM_DROP_BAD_CHECK) << "words " << i << " and " << j;
      }
    }
  }
}

TEST(Check, RefusesShiftedAndExchangedPayloads) {
  std::vector<uint8_t> frame = build(samples()[0].fields);
  std::vector<uint8_t> shifted = frame;
  std::rotate(shifted.begin() + 32, shifted.begin() + 40, shifted.end());
  EXPECT_EQ(accept(shifted), NETSUM_DROP_BAD_CHECK);
  const std::vector<uint8_t> other = build(samples()[0].fields, kKey, 8);
  std::copy(other.begin() + 32, other.end(), frame.begin() + 32);  // another packet's payload
  EXPECT_EQ(accept(frame), NETSUM_DROP_BAD_CHECK);
}

TEST(Check, ZeroPayloadsOfDifferentLengthsDiffer) {
  std::set<uint64_t> checks;
  for (uint32_t bytes = 0; bytes <= 1440; bytes += 8) {
    netsum_fields f = fields_of(NETSUM_TYPE_HELLO, NETSUM_FORMAT_NONE, bytes);
    std::vector<uint8_t> frame(NETSUM_HEADER_BYTES + bytes);
    write_header(f, kKey, frame.data());
    netsum_fields read;
    ASSERT_EQ(parse(frame, &read), NETSUM_DROP_NONE);
    checks.insert(read.check);
  }
  EXPECT_EQ(checks.size(), 181u);
}

TEST(Check, RefusesPacketsOfOtherJobs) {
  for (const Sample& sample : samples()) {
    const std::vector<uint8_t> frame = build(sample.fields);
    EXPECT_EQ(accept(frame, 0), NETSUM_DROP_BAD_CHECK);
    for (int bit = 0; bit < 64; ++bit) EXPECT_EQ(accept(frame, kKey ^ 1ull << bit), NETSUM_DROP_BAD_CHECK);
  }
}

// A zero word in the table would blind the check to its neighbour wherever the payload is zero.
TEST(Check, KeyTableHasNoZeroAndNoRepeatedPair) {
  std::set<std::pair<uint32_t, uint32_t>> pairs;
  for (size_t i = 0; i < std::size(netsum_check_key); i += 2) {
    EXPECT_NE(netsum_check_key[i], 0u);
    EXPECT_NE(netsum_check_key[i + 1], 0u);
    pairs.insert({netsum_check_key[i], netsum_check_key[i + 1]});
  }
  EXPECT_EQ(std::size(netsum_check_key) * 4, size_t{NETSUM_MAX_PAYLOAD});
  EXPECT_EQ(pairs.size(), std::size(netsum_check_key) / 2);
}

TEST(Check, NeverAcceptsRandomBytes) {
  Rng rng(3);
  const std::vector<uint8_t> model = build(samples()[0].fields);
  for (int trial = 0; trial < 100000; ++trial) {
    std::vector<uint8_t> frame(rng.below(120));
    for (uint8_t& byte : frame) byte = static_cast<uint8_t>(rng.next());
    // Half of them look right up to some field.
    const size_t kept = rng.chance(0.5) ? rng.below(24) : 0;
    std::copy_n(model.begin(), std::min(kept, frame.size()), frame.begin());
    ASSERT_NE(accept(frame), NETSUM_DROP_NONE) << "trial " << trial;
  }
}

// Random damage to real packets: overwritten runs, as a faulty memory or DMA leaves them.
TEST(Check, NeverAcceptsDamagedRuns) {
  Rng rng(4);
  for (int trial = 0; trial < 50000; ++trial) {
    const std::vector<Sample> all = samples();
    const std::vector<uint8_t> frame = build(all[rng.below(9)].fields, kKey, rng.next());
    std::vector<uint8_t> damaged = frame;
    const size_t begin = rng.below(frame.size());
    const size_t end = std::min(frame.size(), begin + 1 + rng.below(16));
    for (size_t i = begin; i < end; ++i) {
      damaged[i] = rng.chance(0.5) ? 0 : static_cast<uint8_t>(rng.next());
    }
    if (damaged == frame) continue;
    ASSERT_NE(accept(damaged), NETSUM_DROP_NONE) << "trial " << trial;
  }
}

// --- Names -------------------------------------------------------------------------------------------------

TEST(Names, AreDistinctAndTotal) {
  std::set<std::string_view> names;
  for (int reason = 0; reason < NETSUM_DROP_COUNT; ++reason) names.insert(drop_name(reason));
  EXPECT_EQ(names.size(), size_t{NETSUM_DROP_COUNT});
  EXPECT_EQ(drop_name(NETSUM_DROP_UNKNOWN_PEER), "unknown_peer");
  EXPECT_EQ(drop_name(NETSUM_DROP_COUNT), "unknown");
  EXPECT_EQ(drop_name(-1), "unknown");
  EXPECT_EQ(type_name(NETSUM_TYPE_WELCOME), "welcome");
  EXPECT_EQ(type_name(8), "unknown");
}

TEST(Names, DescribeShowsTheIdentity) {
  EXPECT_EQ(describe(fields_of(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT_SUM_I32, 64)),
            "contribution job 772 epoch 1286 member 2 slot 1800 round 151653132 chunk 219025168 signature "
            "11121314 format 14 flags 00 payload 64");
}

}  // namespace
}  // namespace netsum::wire
