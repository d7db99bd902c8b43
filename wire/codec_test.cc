#include "wire/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/base/rng.h"
#include "wire/values.h"

namespace netsum::wire::codec_test {
namespace {

constexpr netsum_key kKey{0x0123456789ABCDEF, 0x0F1E2D3C4B5A6978};

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
      {"contribution, 8-bit lanes", fields_of(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT_SUM_I8, 24)},
      {"contribution, OR", fields_of(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT_OR_U64, 24)},
      {"result, maxima", fields_of(NETSUM_TYPE_RESULT, NETSUM_FORMAT_MAX_U32, 24, NETSUM_MEMBER_ALL)},
  };
  all.push_back(
      {"contribution without lanes", fields_of(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT_SUM_I32, 8)});
  all.back().fields.flags = NETSUM_FLAG_EMPTY;
  all[1].fields.flags = NETSUM_FLAG_PART;
  all[3].fields.flags = NETSUM_FLAG_OVERFLOW;
  return all;
}

std::vector<uint8_t> build(const netsum_fields& fields, const netsum_key& key = kKey, uint64_t seed = 7) {
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
int accept(const uint8_t* frame, uint32_t size, const netsum_key& key) {
  netsum_fields f;
  const int reason = netsum_parse(frame, size, &f);
  if (reason != NETSUM_DROP_NONE) return reason;
  return check_is_right(frame, f, key) ? NETSUM_DROP_NONE : NETSUM_DROP_BAD_CHECK;
}
int accept(const std::vector<uint8_t>& frame, const netsum_key& key = kKey) {
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

TEST(Codec, TheLengthOfAbsentLanesIsRead) {
  netsum_fields fields = fields_of(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT_SUM_I32, NETSUM_EMPTY_BYTES);
  fields.flags = NETSUM_FLAG_EMPTY;
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{1440}, uint64_t{NETSUM_MAX_PAYLOAD}, uint64_t{1} << 40}) {
    std::vector<uint8_t> frame = build(fields);
    const netsum_be64 length = netsum_put64(bytes);
    std::memcpy(&frame[NETSUM_HEADER_BYTES], &length, sizeof length);
    netsum_fields read;
    ASSERT_EQ(parse(frame, &read), NETSUM_DROP_NONE);
    EXPECT_EQ(netsum_full_bytes(&read), bytes <= NETSUM_MAX_PAYLOAD ? bytes : UINT32_MAX);
  }
  const auto refusal = [&](uint8_t type, uint8_t format, uint32_t payload_bytes) {
    netsum_fields wrong = fields_of(type, format, payload_bytes);
    wrong.flags = NETSUM_FLAG_EMPTY;
    netsum_fields read;
    return parse(build(wrong), &read);
  };
  EXPECT_EQ(refusal(NETSUM_TYPE_RESULT, NETSUM_FORMAT_OR_U64, 8), NETSUM_DROP_NONE);
  EXPECT_EQ(refusal(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT_SUM_I32, 16), NETSUM_DROP_BAD_LENGTH);
  EXPECT_EQ(refusal(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT_SUM_I32, 0), NETSUM_DROP_BAD_LENGTH);
  EXPECT_EQ(refusal(NETSUM_TYPE_PROBE, NETSUM_FORMAT_NONE, 8), NETSUM_DROP_BAD_FLAGS);
  EXPECT_EQ(refusal(NETSUM_TYPE_CONTRIBUTION, NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32), 8),
            NETSUM_DROP_BAD_FORMAT);
}

TEST(Codec, LayoutIsThatOfTheDocument) {
  const std::vector<uint8_t> frame = build(samples()[0].fields);
  const uint8_t expected[24] = {0xA5, 0x21, 0x14, 0x00, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x00, 0x02,
                                0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x0E, 0x0F, 0x10, 0x11, 0x12, 0x13, 0x14};
  EXPECT_EQ(std::memcmp(frame.data(), expected, sizeof expected), 0);
}

uint64_t little(const uint8_t* p, size_t bytes) {
  uint64_t x = 0;
  for (size_t i = bytes; i > 0; --i) x = x << 8 | p[i - 1];
  return x;
}

// SipHash of any bytes, by the parts that packets use.
uint64_t siphash(const netsum_key& key, const std::vector<uint8_t>& message) {
  netsum_sip s = netsum_sip_begin(&key);
  size_t at = 0;
  for (; at + 8 <= message.size(); at += 8) netsum_sip_word(&s, little(&message[at], 8));
  return netsum_sip_end(&s, little(message.data() + at, message.size() - at),
                        static_cast<uint32_t>(message.size()));
}

// Appendix A of the paper, and the first of the vectors of its reference implementation: key 00 01 ... 0f,
// message 00 01 ... of each length.
TEST(SipHash, GivesTheReferenceVectors) {
  const netsum_key key{0x0706050403020100, 0x0F0E0D0C0B0A0908};
  const uint64_t expected[] = {
      0x726FDB47DD0E0E31, 0x74F839C593DC67FD, 0x0D6C8009D9A94F5A, 0x85676696D7FB7E2D,
      0xCF2794E0277187B7, 0x18765564CD99A68D, 0xCBC9466E58FEE3CE, 0xAB0200F58B01D137,
      0x93F5F5799A932462, 0x9E0082DF0BA9E4B0, 0x7A5DBBC594DDB9F3, 0xF4B32F46226BADA7,
      0x751E8FBC860EE5FB, 0x14EA5627C0843D90, 0xF723CA908E7AF2EE, 0xA129CA6149BE45E5};
  std::vector<uint8_t> message;
  for (const uint64_t hash : expected) {
    EXPECT_EQ(siphash(key, message), hash) << message.size() << " bytes";
    message.push_back(static_cast<uint8_t>(message.size()));
  }
}

// The computation of PROTOCOL.md, from bytes.
TEST(Codec, CheckIsThatOfTheDocument) {
  for (const Sample& sample : samples()) {
    const std::vector<uint8_t> frame = build(sample.fields);
    uint64_t nh = 0;
    const uint8_t* payload = frame.data() + 32;
    for (uint32_t i = 0; i < sample.fields.payload_bytes / 8; ++i) {
      std::vector<uint8_t> name = {'n', 'e', 't', 's', 'u', 'm', 'N', 'H', 0, 0, 0, 0, 0, 0, 0, 0};
      name[8] = static_cast<uint8_t>(i);
      const uint64_t pair = siphash(kKey, name);
      const uint64_t x = (little(payload + 8 * i, 4) + pair % (1ull << 32)) % (1ull << 32);
      const uint64_t y = (little(payload + 8 * i + 4, 4) + (pair >> 32)) % (1ull << 32);
      nh += x * y;
    }
    std::vector<uint8_t> message(frame.begin(), frame.begin() + 24);
    for (int i = 0; i < 8; ++i) message.push_back(static_cast<uint8_t>(nh >> 8 * i));
    for (int i = 0; i < 4; ++i) message.push_back(static_cast<uint8_t>(sample.fields.payload_bytes >> 8 * i));
    uint64_t check = 0;
    for (size_t i = 24; i < 32; ++i) check = check << 8 | frame[i];
    EXPECT_EQ(check, siphash(kKey, message)) << sample.name;
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
      {NETSUM_DROP_BAD_VERSION, 0, [](Frame* f) { (*f)[1] = 0x11; }},
      {NETSUM_DROP_BAD_VERSION, 0, [](Frame* f) { (*f)[1] = 0x01; }},
      {NETSUM_DROP_BAD_TYPE, 0, [](Frame* f) { (*f)[1] = 0x20; }},
      {NETSUM_DROP_BAD_TYPE, 0, [](Frame* f) { (*f)[1] = 0x28; }},
      {NETSUM_DROP_BAD_TYPE, 0, [](Frame* f) { (*f)[1] = 0x2F; }},
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
      {NETSUM_DROP_BAD_FORMAT, 0, [](Frame* f) { (*f)[2] = 0x11; }},            // SUM of unsigned 8-bit lanes
      {NETSUM_DROP_BAD_FORMAT, 0, [](Frame* f) { (*f)[2] = 0x24; }},            // MAX of 32-bit lanes
      {NETSUM_DROP_BAD_FORMAT, 0, [](Frame* f) { (*f)[2] = 0x18; }},  // SUM of unsigned 16-bit lanes
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
    EXPECT_EQ(accept(frame, {}), NETSUM_DROP_BAD_CHECK);
    for (int bit = 0; bit < 64; ++bit) {
      EXPECT_EQ(accept(frame, {kKey.k0 ^ 1ull << bit, kKey.k1}), NETSUM_DROP_BAD_CHECK);
      EXPECT_EQ(accept(frame, {kKey.k0, kKey.k1 ^ 1ull << bit}), NETSUM_DROP_BAD_CHECK);
    }
  }
}

// To be guessed, NH's table must be known: it is another one under each secret, throughout.
TEST(Check, EverySecretHasATableOfItsOwn) {
  constexpr size_t kWords = NETSUM_MAX_PAYLOAD / 4;
  std::set<uint32_t> words;
  for (uint64_t i = 0; i < 16; ++i) {
    const PacketKey key({kKey.k0 ^ i, kKey.k1}, NETSUM_MAX_PAYLOAD);
    words.insert(key.table(), key.table() + kWords);
  }
  // Of so many random words, about one in 240'000 repeats another.
  EXPECT_GT(words.size(), 16 * kWords - 10);
}

// The computation of PROTOCOL.md, from bytes.
TEST(Check, StripesHaveKeysOfTheirOwn) {
  for (const size_t stripe : {0, 1, 511}) {
    std::vector<uint8_t> message{'n', 'e', 't', 's', 'u', 'm', 'K', '0'};
    for (int i = 0; i < 8; ++i) message.push_back(static_cast<uint8_t>(stripe >> 8 * i));
    const uint64_t k0 = siphash(kKey, message);
    message[7] = '1';
    EXPECT_EQ(stripe_key(kKey, stripe), (netsum_key{k0, siphash(kKey, message)}));
  }
  for (const Sample& sample : samples()) {
    const std::vector<uint8_t> frame = build(sample.fields, stripe_key(kKey, 1));
    EXPECT_EQ(accept(frame, stripe_key(kKey, 1)), NETSUM_DROP_NONE);
    for (const netsum_key& other : {kKey, stripe_key(kKey, 0), stripe_key(kKey, 2)}) {
      EXPECT_EQ(accept(frame, other), NETSUM_DROP_BAD_CHECK);
    }
  }
}

// Packets of a job without tags, all but HELLO.
TEST(Check, TheCookieIsThatOfTheDocument) {
  const uint64_t cookie = siphash(kKey, {'n', 'e', 't', 's', 'u', 'm', 'C', 'K'}) | 1;
  const PacketKey key(kKey, NETSUM_MAX_PAYLOAD, NETSUM_TAG_COOKIE);
  EXPECT_EQ(key.cookie(), cookie);
  for (const Sample& sample : samples()) {
    std::vector<uint8_t> frame = build(sample.fields);
    netsum_fields fields = sample.fields;
    fields.payload_bytes = static_cast<uint32_t>(frame.size()) - NETSUM_HEADER_BYTES;
    const std::vector<uint8_t> with_tag = frame;
    write_header(fields, key, frame.data());
    if (fields.type == NETSUM_TYPE_HELLO) {
      EXPECT_EQ(frame, with_tag);
      continue;
    }
    ASSERT_EQ(netsum_parse(frame.data(), static_cast<uint32_t>(frame.size()), &fields), NETSUM_DROP_NONE);
    EXPECT_EQ(fields.check, cookie);
    EXPECT_TRUE(check_is_right(frame.data(), fields, key, /*payload_nh=*/0));
    for (int bit = 0; bit < 64; ++bit) {
      fields.check = cookie ^ uint64_t { 1 } << bit;
      EXPECT_FALSE(check_is_right(frame.data(), fields, key, 0));
    }
    EXPECT_EQ(accept(frame, kKey), NETSUM_DROP_BAD_CHECK) << "in a job with tags";
  }
  const PacketKey other({kKey.k0, kKey.k1 ^ 1}, 64, NETSUM_TAG_COOKIE);
  EXPECT_NE(other.cookie(), cookie);
}

TEST(Check, NothingIsLeftOfAWipedKey) {
  PacketKey key(kKey, 64, NETSUM_TAG_COOKIE);
  const uint32_t* table = key.table();
  EXPECT_NE(std::count(table, table + 16, 0u), 16);
  key.wipe();
  EXPECT_EQ(key.key(), netsum_key{});
  EXPECT_EQ(key.cookie(), 0u);
  EXPECT_EQ(key.table(), table);
  EXPECT_EQ(std::count(table, table + 16, 0u), 16);
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
TEST(Check, NeverAcceptsCorruptedRuns) {
  Rng rng(4);
  for (int trial = 0; trial < 50000; ++trial) {
    const std::vector<Sample> all = samples();
    const std::vector<uint8_t> frame = build(all[rng.below(9)].fields, kKey, rng.next());
    std::vector<uint8_t> corrupted = frame;
    const size_t begin = rng.below(frame.size());
    const size_t end = std::min(frame.size(), begin + 1 + rng.below(16));
    for (size_t i = begin; i < end; ++i) {
      corrupted[i] = rng.chance(0.5) ? 0 : static_cast<uint8_t>(rng.next());
    }
    if (corrupted == frame) continue;
    ASSERT_NE(accept(corrupted), NETSUM_DROP_NONE) << "trial " << trial;
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

TEST(ValuesTest, EveryFormatOfValuesHasItsType) {
  size_t formats = 0;
  for (int format = 0; format < 256; ++format) {
    const auto byte = static_cast<uint8_t>(format);
    if (!netsum_is_values(byte)) continue;
    ++formats;
    EXPECT_EQ(format_of_values(value_type_of(byte), is_average_of_values(byte)), byte);
  }
  EXPECT_EQ(formats, 8u);  // five sums; no averages of integers
  EXPECT_EQ(format_of_values(DataType::kByte, false), NETSUM_FORMAT_NONE);
}

// A member may need no sum of floats, and then gets none. It always contributes its own.
TEST(ValuesTest, OnlyResultsOfFloatsMayBeWithoutThem) {
  const auto parsed = [](uint8_t type, uint8_t format, uint8_t flags) {
    netsum_fields fields = fields_of(type, format, NETSUM_EMPTY_BYTES);
    fields.flags = flags;
    std::vector<uint8_t> frame(NETSUM_HEADER_BYTES + NETSUM_EMPTY_BYTES);
    const uint32_t size = write_header(fields, PacketKey(), /*payload_nh=*/0, frame.data());
    return netsum_parse(frame.data(), size, &fields);
  };
  constexpr uint8_t kFloats = NETSUM_FORMAT(NETSUM_OP_AVG_FLOATS, NETSUM_FLOAT_BF16);
  constexpr uint8_t kIntegers = NETSUM_FORMAT(NETSUM_OP_SUM_VALUES, NETSUM_VALUE_I64);
  EXPECT_EQ(parsed(NETSUM_TYPE_CONTRIBUTION, kFloats, NETSUM_FLAG_NO_RESULT), NETSUM_DROP_NONE);
  EXPECT_EQ(parsed(NETSUM_TYPE_RESULT, kFloats, NETSUM_FLAG_EMPTY), NETSUM_DROP_NONE);
  EXPECT_EQ(parsed(NETSUM_TYPE_CONTRIBUTION, kFloats, NETSUM_FLAG_EMPTY), NETSUM_DROP_BAD_FORMAT);
  EXPECT_EQ(parsed(NETSUM_TYPE_CONTRIBUTION, kIntegers, NETSUM_FLAG_NO_RESULT), NETSUM_DROP_BAD_FORMAT);
  EXPECT_EQ(parsed(NETSUM_TYPE_RESULT, kIntegers, NETSUM_FLAG_EMPTY), NETSUM_DROP_BAD_FORMAT);
}

}  // namespace
}  // namespace netsum::wire::codec_test
