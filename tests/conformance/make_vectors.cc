// What the golden vectors say.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "tests/conformance/dataplane_vectors.h"
#include "tests/conformance/vector_writer.h"

namespace netsum::conformance {
namespace {

const Round kFirst{.slot = 0, .round = 1, .chunk = 5};

Vector hello_welcome() {
  VectorWriter w("hello_welcome",
                 "HELLO is answered by a WELCOME of the same size; the first one fixes the member's address");
  const Bytes early = w.contribution(0, kFirst, lanes32({1, 2}));
  w.feed(0, "a contribution before any HELLO", early).expect_drop("unknown_peer");
  w.everybody_says_hello();
  w.feed(0, "HELLO again (the WELCOME was lost)", w.hello(0, 77));
  w.expect({0}, "answered each time, repeating the number in `round`", w.welcome(0, 77));
  w.feed(9, "HELLO of member 0 from elsewhere", w.hello(0, 78)).expect_drop("unknown_peer");
  w.feed(9, "a contribution of member 0 from elsewhere", early).expect_drop("unknown_peer");
  w.feed(1, "a contribution of member 0 from member 1's address", early).expect_drop("unknown_peer");
  w.feed(9, "a probe of member 0 from elsewhere", w.probe(0, kFirst)).expect_drop("unknown_peer");
  w.contribute(0, kFirst, lanes32({1, 2}));
  w.contribute(1, kFirst, lanes32({10, 20})).expect_result_for_all(kFirst, lanes32({11, 22}));
  return w.done();
}

Vector single_member() {
  VectorWriter w("single_member", "a job of one: its contribution is the result", 1);
  w.everybody_says_hello();
  for (uint32_t round = 1; round <= 3; ++round) {
    const Round r{.slot = 1, .round = round, .chunk = round};
    const Bytes lanes = lanes32({static_cast<int32_t>(round), -7, INT32_MIN, INT32_MAX});
    w.contribute(0, r, lanes).expect_result_for_all(r, lanes);
    w.contribute(0, r, lanes, "the same again: the result was lost").expect_result_for(0, r, lanes);
  }
  return w.done();
}

Vector four_members() {
  VectorWriter w("four_members_in_order", "four members, one round, negative and large lanes", 4);
  w.everybody_says_hello();
  w.contribute(0, kFirst, lanes32({1, -1, 1 << 29, 0}));
  w.contribute(1, kFirst, lanes32({2, -2, 1 << 29, 0}));
  w.contribute(2, kFirst, lanes32({3, -3, 1 << 29, 0}));
  w.contribute(3, kFirst, lanes32({4, -4, (1 << 29) - 1, 0}));
  w.expect_result_for_all(kFirst, lanes32({10, -10, INT32_MAX, 0}));
  return w.done();
}

Vector lost_result() {
  VectorWriter w("lost_result",
                 "a member that lacks a result sends its contribution again, also when others have moved on");
  w.everybody_says_hello();
  const Round next{.slot = 0, .round = 2, .chunk = 7};
  w.contribute(0, kFirst, lanes32({1, 2}));
  w.contribute(1, kFirst, lanes32({10, 20})).expect_result_for_all(kFirst, lanes32({11, 22}));
  w.contribute(1, kFirst, lanes32({10, 20}), "member 1 lost the result")
      .expect_result_for(1, kFirst, lanes32({11, 22}));
  w.contribute(0, next, lanes32({100, 0}), "member 0 moves on");
  w.contribute(1, kFirst, lanes32({10, 20}), "member 1 lost it again; round 2 is open")
      .expect_result_for(1, kFirst, lanes32({11, 22}));
  w.contribute(0, kFirst, lanes32({1, 2}), "an old copy of member 0, who has that result");
  w.expect_drop("stale_round");
  w.contribute(1, next, lanes32({1000, 5})).expect_result_for_all(next, lanes32({1100, 5}));
  w.contribute(1, kFirst, lanes32({10, 20}), "round 1 again: everybody has it").expect_drop("stale_round");
  return w.done();
}

Vector duplicates() {
  VectorWriter w("duplicates", "a contribution counts once, however often it arrives", 3);
  w.everybody_says_hello();
  w.contribute(0, kFirst, lanes32({1, 0}));
  for (int i = 0; i < 2; ++i) {
    w.contribute(0, kFirst, lanes32({1, 0}), "a copy").expect_drop("duplicate");
  }
  w.contribute(1, kFirst, lanes32({10, 0}));
  w.contribute(0, kFirst, lanes32({1, 0}), "a copy").expect_drop("duplicate");
  w.contribute(2, kFirst, lanes32({100, 0})).expect_result_for_all(kFirst, lanes32({111, 0}));
  return w.done();
}

Vector stale_epoch() {
  VectorWriter w("stale_epoch", "packets of another incarnation of the job are refused, the key aside");
  w.everybody_says_hello();
  VectorJob old = w.job();
  w.contribute(0, kFirst, lanes32({1, 2}));
  for (uint16_t epoch : {6, 8}) {
    old.epoch = epoch;
    w.pretend(old);
    w.contribute(1, kFirst, lanes32({9, 9}), "epoch " + std::to_string(epoch)).expect_drop("stale_epoch");
    w.ask(1, kFirst, "a probe of that epoch").expect_drop("stale_epoch");
    w.feed(1, "a hello of that epoch", w.hello(1, 5)).expect_drop("stale_epoch");
  }
  w.speak_for(0).contribute(1, kFirst, lanes32({10, 20}));
  w.expect_result_for_all(kFirst, lanes32({11, 22}));
  return w.done();
}

Vector stale_round() {
  VectorWriter w("stale_round", "packets of rounds long over change nothing and get no reply");
  w.everybody_says_hello();
  for (uint32_t round = 1; round <= 4; ++round) {
    const Round r{.slot = 0, .round = round, .chunk = round};
    w.contribute(0, r, lanes32({1, 1}));
    if (round == 4) break;
    w.contribute(1, r, lanes32({2, 2})).expect_result_for_all(r, lanes32({3, 3}));
  }
  for (uint32_t round = 0; round <= 2; ++round) {
    const Round r{.slot = 0, .round = round, .chunk = round};
    w.contribute(1, r, lanes32({500, 500}), "a packet of round " + std::to_string(round) + ", much delayed");
    w.expect_drop("stale_round");
    w.ask(1, r, "a probe of that round").expect_drop("stale_round");
  }
  const Round last{.slot = 0, .round = 4, .chunk = 4};
  w.contribute(1, last, lanes32({2, 2})).expect_result_for_all(last, lanes32({3, 3}));
  return w.done();
}

Vector future_round() {
  VectorWriter w("future_round", "a round opens only when the one before is complete");
  w.everybody_says_hello();
  for (uint32_t round : {0u, 2u, 100u, 0x7FFFFFFFu}) {
    const Round r{.slot = 0, .round = round};
    w.contribute(0, r, lanes32({1, 1}), "round " + std::to_string(round) + " of a slot never used");
    w.expect_drop("future_round");
  }
  const Round second{.slot = 0, .round = 2, .chunk = 6}, third{.slot = 0, .round = 3, .chunk = 7};
  w.contribute(0, kFirst, lanes32({1, 1}));
  w.contribute(0, second, lanes32({1, 1}), "round 2 while round 1 is open").expect_drop("future_round");
  w.ask(0, second, "a probe of it").expect_drop("future_round");
  w.contribute(1, kFirst, lanes32({2, 2})).expect_result_for_all(kFirst, lanes32({3, 3}));
  w.contribute(0, third, lanes32({1, 1}), "round 3 after round 1").expect_drop("future_round");
  w.contribute(0, second, lanes32({1, 1}));
  w.contribute(1, second, lanes32({4, 4})).expect_result_for_all(second, lanes32({5, 5}));
  return w.done();
}

Vector bad_check() {
  VectorWriter w("bad_check", "a packet altered on the way is refused: payload, header, or check itself");
  w.everybody_says_hello();
  const Bytes good = w.contribution(0, kFirst, lanes32({1, 2, 3, 4}));
  const auto feed = [&](const char* what, size_t at, uint8_t flip) {
    Bytes bad = good;
    bad[at] ^= flip;
    w.feed(0, what, bad).expect_drop("bad_check");
  };
  feed("a bit of the first lane", 32, 1);
  feed("a bit of the last lane", 47, 0x80);
  feed("a bit of the round", 15, 2);
  feed("a bit of the chunk", 16, 1);
  feed("a bit of the signature", 23, 1);
  feed("a bit of the flags", 3, 1);
  feed("a bit of the check", 24, 0x80);
  feed("the format turned to 64-bit lanes", 2, NETSUM_FORMAT_SUM_I32 ^ NETSUM_FORMAT_SUM_I64);
  Bytes swapped = good;
  std::swap_ranges(swapped.begin() + 32, swapped.begin() + 40, swapped.begin() + 40);
  w.feed(0, "two pairs of lanes swapped, which the UDP checksum does not see", swapped);
  w.expect_drop("bad_check");
  VectorJob other = w.job();
  other.key.k1 ^= 1;
  w.pretend(other);
  w.contribute(0, kFirst, lanes32({1, 2, 3, 4}), "right but for the job's key").expect_drop("bad_check");
  w.speak_for(0).contribute(0, kFirst, lanes32({1, 2, 3, 4}));
  w.contribute(1, kFirst, lanes32({1, 1, 1, 1})).expect_result_for_all(kFirst, lanes32({2, 3, 4, 5}));
  return w.done();
}

VectorJob job_without_tags() {
  VectorJob job = usual_job();
  job.tag = NETSUM_TAG_COOKIE;
  return job;
}

// The check field of the packet becomes that of the same packet in a job with tags.
Bytes tagged(Bytes packet) {
  netsum_fields f{};
  netsum_parse(packet.data(), static_cast<uint32_t>(packet.size()), &f);
  wire::write_header(f, usual_job().packet_key(), packet.data());
  return packet;
}

Vector cookies() {
  VectorWriter w("cookies", "a job without tags: the check field is the cookie of the stripe, but for HELLO",
                 {job_without_tags()});
  w.everybody_says_hello();
  const Bytes good = w.contribution(0, kFirst, lanes32({1, 2, 3, 4}));
  Bytes bad = good;
  bad[24] ^= 0x80;
  w.feed(0, "the first bit of the cookie", bad).expect_drop("bad_check");
  bad = good;
  bad[31] ^= 1;
  w.feed(0, "the last bit of the cookie", bad).expect_drop("bad_check");
  bad = good;
  std::fill_n(bad.begin() + 24, 8, uint8_t{0});
  w.feed(0, "nothing in the place of the cookie", bad).expect_drop("bad_check");
  w.feed(0, "a tag in the place of the cookie", tagged(good)).expect_drop("bad_check");
  w.feed(0, "the same of a probe", tagged(w.probe(0, kFirst))).expect_drop("bad_check");
  w.feed(0, "right", good);
  w.ask(1, kFirst, "member 1 asks").expect_status(1, kFirst, 1, true);
  Bytes altered = w.contribution(1, kFirst, lanes32({1, 1, 1, 1}));
  altered[32] ^= 2;
  w.feed(1, "lanes altered on the way: nobody here sees it", altered);
  w.expect_result_for_all(kFirst, lanes32({4, 3, 4, 5}));
  w.contribute(0, kFirst, lanes32({1, 2, 3, 4}), "again").expect_result_for(0, kFirst, lanes32({4, 3, 4, 5}));
  Round other{.slot = 1, .round = 1, .chunk = 6};
  w.contribute(0, other, lanes32({1, 1}));
  other.signature ^= 1;
  w.contribute(1, other, lanes32({1, 1})).expect({0, 1}, "members disagree", w.error(other, 1));
  return w.done();
}

Vector cookie_in_hello() {
  VectorWriter w("cookie_in_hello", "a job without tags: HELLO has one all the same, and no cookie",
                 {job_without_tags()});
  const Bytes good = w.hello(0, 1000);
  const Bytes welcome = w.welcome(0, 1000);
  Bytes bad = good;
  std::copy_n(welcome.begin() + 24, 8, bad.begin() + 24);
  w.feed(0, "with the cookie", bad).expect_drop("bad_check");
  w.everybody_says_hello();
  return w.done();
}

Vector malformed() {
  VectorWriter w("malformed", "truncated, padded and nonsensical packets are refused by name");
  w.everybody_says_hello();
  const Bytes good = w.contribution(0, kFirst, lanes32({1, 2, 3, 4}));
  const auto sized = [&](const char* what, size_t size, const char* reason) {
    Bytes bad = good;
    bad.resize(size);
    w.feed(0, what, bad).expect_drop(reason);
  };
  sized("an empty datagram", 0, "too_short");
  sized("one byte short of a header", 31, "too_short");
  sized("a header without lanes", 32, "bad_length");
  sized("half a lane is missing", 46, "bad_length");
  sized("the second pair of lanes is missing", 40, "bad_check");
  sized("zeros behind", 56, "bad_check");
  sized("longer than the job's payload", 32 + 40, "bad_length");
  const auto byte = [&](const char* what, size_t at, uint8_t value, const char* reason) {
    Bytes bad = good;
    bad[at] = value;
    w.feed(0, what, bad).expect_drop(reason);
  };
  byte("not netsum's", 0, 0x00, "bad_magic");
  byte("version 1", 1, 0x11, "bad_version");
  byte("type 0", 1, 0x20, "bad_type");
  byte("type 15", 1, 0x2F, "bad_type");
  byte("an unknown flag", 3, 0x08, "bad_flags");
  byte("the maximum of 32-bit lanes, which nobody knows", 2, 0x24, "bad_format");
  byte("the sum of unsigned 16-bit lanes, which nobody knows", 2, 0x18, "bad_format");
  w.feed(0, "a RESULT, which an aggregator does not take", w.result(kFirst, lanes32({1, 2})));
  w.expect_drop("bad_type");
  w.feed(0, "a STATUS", w.status(0, kFirst, 1, false)).expect_drop("bad_type");
  w.feed(0, "an ERROR", w.error(kFirst, 0)).expect_drop("bad_type");
  w.feed(0, "a WELCOME", w.welcome(0, 1)).expect_drop("bad_type");
  w.contribute(0, kFirst, lanes32({1, 2, 3, 4}));
  w.contribute(1, kFirst, lanes32({1, 1, 1, 1})).expect_result_for_all(kFirst, lanes32({2, 3, 4, 5}));
  return w.done();
}

// Apart from the others: not every dataplane can be sent so much.
Vector oversized() {
  VectorWriter w("oversized", "a datagram longer than any payload");
  w.everybody_says_hello();
  Bytes bad = w.contribution(0, kFirst, lanes32({1, 2, 3, 4}));
  bad.resize(NETSUM_HEADER_BYTES + NETSUM_MAX_PAYLOAD + 8);
  w.feed(0, "8 bytes too many", bad).expect_drop("bad_length");
  return w.done();
}

Vector bounds() {
  VectorWriter w("slot_and_member_bounds", "job, slot and member indices are checked against the grant");
  w.everybody_says_hello();
  for (uint16_t slot : {3, 4, 8192, 65535}) {
    const Round r{.slot = slot, .round = 1};
    w.contribute(0, r, lanes32({1, 1}), "slot " + std::to_string(slot) + " of 3").expect_drop("bad_slot");
  }
  for (uint16_t member : {2, 64, 65535}) {
    const std::string who = "member " + std::to_string(member) + " of 2";
    w.feed(0, who, w.contribution(member, kFirst, lanes32({1, 1}))).expect_drop("bad_member");
    w.feed(5, who + " says hello", w.hello(member, 1)).expect_drop("bad_member");
  }
  VectorJob other = w.job();
  for (uint16_t job : {0, 4, 65535}) {
    other.job = job;
    w.pretend(other);
    w.contribute(0, kFirst, lanes32({1, 1}), "job " + std::to_string(job) + ", which does not exist");
    w.expect_drop("unknown_job");
  }
  return w.done();
}

Vector two_jobs() {
  VectorJob first{
      .job = 1, .epoch = 4, .key = {0x1111, 1}, .members = 2, .data_slots = 1, .payload_bytes = 32};
  VectorJob second{
      .job = 2, .epoch = 4, .key = {0x2222, 2}, .members = 2, .data_slots = 1, .payload_bytes = 32};
  VectorWriter w("two_jobs", "two jobs with the same slot and round numbers do not meet", {first, second});
  w.everybody_says_hello(0);
  w.speak_for(1).everybody_says_hello(10);
  const Round r{.slot = 0, .round = 1, .chunk = 5};
  w.speak_for(0).feed(0, "job 1, member 0", w.contribution(0, r, lanes32({1, 1})));
  w.speak_for(1).feed(10, "job 2, member 0", w.contribution(0, r, lanes32({100, 100})));
  w.feed(11, "job 2, member 1", w.contribution(1, r, lanes32({200, 200})));
  w.expect({10, 11}, "the result of job 2", w.result(r, lanes32({300, 300})));
  VectorJob forged = first;
  forged.key = second.key;
  w.pretend(forged).feed(11, "job 2's member in job 1's name", w.contribution(1, r, lanes32({9, 9})));
  w.expect_drop("bad_check");
  w.speak_for(0).feed(11, "even with the key, not from its address", w.contribution(1, r, lanes32({9, 9})));
  w.expect_drop("unknown_peer");
  const Round beyond{.slot = 1, .round = 1};
  w.feed(0, "job 1 reaches for the slot behind its own", w.contribution(0, beyond, lanes32({9, 9})));
  w.expect_drop("bad_slot");
  w.feed(1, "job 1, member 1", w.contribution(1, r, lanes32({2, 2})));
  w.expect({0, 1}, "the result of job 1", w.result(r, lanes32({3, 3})));
  return w.done();
}

Vector mismatch(const char* name, const char* what, Round other, const Bytes& lanes) {
  VectorWriter w(std::string("mismatch_") + name,
                 std::string("members that differ in ") + what + " are told so, all of them", 3);
  w.everybody_says_hello();
  w.contribute(0, kFirst, lanes32({1, 2, 3, 4}));
  w.contribute(2, other, lanes, std::string("member 2 differs in ") + what);
  w.expect({0, 1, 2}, "an error that blames member 2, one frame for all", w.error(other, 2));
  w.contribute(1, kFirst, lanes32({1, 1, 1, 1}), "member 1, who missed it, contributes");
  w.expect({1}, "the error, again", w.error(kFirst, 2));
  w.ask(0, kFirst, "member 0 asks").expect({0}, "the error, again", w.error(kFirst, 2));
  w.contribute(2, other, lanes, "member 2 again").expect({2}, "the error, again", w.error(other, 2));
  Round next = kFirst;
  next.round = 2;
  w.contribute(0, next, lanes32({1, 1, 1, 1}), "the slot is of no use any more").expect_drop("future_round");
  const Round elsewhere{.slot = 1, .round = 1, .chunk = 6};
  w.contribute(0, elsewhere, lanes32({1, 1}), "other slots are not affected");
  w.contribute(1, elsewhere, lanes32({1, 1}));
  w.contribute(2, elsewhere, lanes32({1, 1})).expect_result_for_all(elsewhere, lanes32({3, 3}));
  return w.done();
}

std::vector<Vector> mismatches() {
  Round signature = kFirst, chunk = kFirst, format = kFirst, part = kFirst;
  signature.signature ^= 0x10;
  chunk.chunk = 6;
  format.format = NETSUM_FORMAT_SUM_I64;
  part.flags = NETSUM_FLAG_PART;
  const Bytes same = lanes32({9, 9, 9, 9});
  return {mismatch("signature", "the operation's signature", signature, same),
          mismatch("chunk", "the chunk", chunk, same),
          mismatch("format", "the format of the lanes", format, same),
          mismatch("length", "the length", kFirst, lanes32({9, 9})),
          mismatch("part", "the half of a wide chunk", part, same)};
}

Vector overflow() {
  VectorWriter w("overflow", "a lane out of range is flagged in the result; lanes wrap");
  w.everybody_says_hello();
  Round flagged = kFirst;
  flagged.flags = NETSUM_FLAG_OVERFLOW;
  w.contribute(0, kFirst, lanes32({INT32_MAX, 5}));
  w.contribute(1, kFirst, lanes32({1, 5})).expect_result_for_all(flagged, lanes32({INT32_MIN, 10}));
  w.contribute(0, kFirst, lanes32({INT32_MAX, 5}), "asked again");
  w.expect_result_for(0, flagged, lanes32({INT32_MIN, 10}));
  const Round second{.slot = 0, .round = 2, .chunk = 6}, third{.slot = 0, .round = 3, .chunk = 7};
  w.contribute(0, second, lanes32({INT32_MIN, INT32_MAX}), "the extremes themselves are in range");
  w.contribute(1, second, lanes32({0, 0}));
  w.expect_result_for_all(second, lanes32({INT32_MIN, INT32_MAX}));
  w.contribute(0, third, lanes32({1, 1}));
  w.contribute(1, third, lanes32({1, 1})).expect_result_for_all(third, lanes32({2, 2}));
  Round child = third, wide = third;
  child.round = 4;
  w.contribute(0, child, lanes32({1, 1}));
  Round says_so = child;
  says_so.flags = NETSUM_FLAG_OVERFLOW;
  w.contribute(1, says_so, lanes32({1, 1}), "a contribution that says its own sum overflowed");
  w.expect_result_for_all(says_so, lanes32({2, 2}));
  wide.round = 5;
  wide.format = NETSUM_FORMAT_SUM_I64;
  Round wide_flagged = wide;
  wide_flagged.flags = NETSUM_FLAG_OVERFLOW;
  w.contribute(0, wide, lanes64({INT64_MIN, 1}));
  w.contribute(1, wide, lanes64({-1, 1})).expect_result_for_all(wide_flagged, lanes64({INT64_MAX, 2}));
  return w.done();
}

Vector narrow() {
  VectorWriter w("narrow_lanes", "16-bit lanes: no carry crosses into a neighbour, and overflow is flagged",
                 3);
  w.everybody_says_hello();
  const Round r{.slot = 0, .round = 1, .chunk = 5, .format = NETSUM_FORMAT_SUM_I16};
  w.contribute(0, r, lanes16({1, -1, 0, -1, 30000, -32768, 0, 7}));
  w.contribute(2, r, lanes16({2, 1, 1, -1, -30000, 32767, -1, 0}));
  w.contribute(1, r, lanes16({3, 1, -1, -1, 5, 1, 2, -7}), "carries stay within their lanes");
  w.expect_result_for_all(r, lanes16({6, 1, 0, -3, 5, 0, 1, 0}));
  Round second = r, flagged = r, third = r;
  second.round = flagged.round = 2;
  flagged.flags = NETSUM_FLAG_OVERFLOW;
  w.contribute(0, second, lanes16({0, 32767, 0, 0}));
  w.contribute(1, second, lanes16({0, 1, 0, 0}), "one lane passes its range, its neighbours do not notice");
  w.contribute(2, second, lanes16({5, 0, 5, 5}));
  w.expect_result_for_all(flagged, lanes16({5, -32768, 5, 5}));
  third.round = 3;
  w.contribute(0, third, lanes16({-32768, 32767, -1, 0}), "the extremes themselves are in range");
  w.contribute(1, third, lanes16({0, 0, 0, 0}));
  w.contribute(2, third, lanes16({0, 0, 0, 0}));
  w.expect_result_for_all(third, lanes16({-32768, 32767, -1, 0}));
  return w.done();
}

Vector bytes() {
  VectorWriter w("byte_lanes", "8-bit lanes: no carry crosses into a neighbour, and overflow is flagged", 3);
  w.everybody_says_hello();
  const Round r{.slot = 0, .round = 1, .chunk = 5, .format = NETSUM_FORMAT_SUM_I8};
  w.contribute(0, r, lanes8({1, -1, 0, -1, 100, -128, 0, 7, -42, 42, 42, -42, 0, 0, -1, 1}));
  w.contribute(2, r, lanes8({2, 1, 1, -1, -100, 127, -1, 0, -43, 43, 43, -43, 127, -128, -1, 1}));
  w.contribute(1, r, lanes8({3, 1, -1, -1, 5, 1, 2, -7, -43, 42, 42, -43, 0, 0, -1, 1}),
               "carries stay within their lanes");
  w.expect_result_for_all(r, lanes8({6, 1, 0, -3, 5, 0, 1, 0, -128, 127, 127, -128, 127, -128, -3, 3}));
  Round second = r, flagged = r, third = r;
  second.round = flagged.round = 2;
  flagged.flags = NETSUM_FLAG_OVERFLOW;
  w.contribute(0, second, lanes8({0, 127, 0, 0, 0, 0, 0, 0}));
  w.contribute(1, second, lanes8({0, 1, 0, 0, 0, 0, 0, 0}),
               "one lane passes its range, its neighbours do not notice");
  w.contribute(2, second, lanes8({5, 0, 5, 5, 5, 5, 5, 5}));
  w.expect_result_for_all(flagged, lanes8({5, -128, 5, 5, 5, 5, 5, 5}));
  third.round = flagged.round = 3;
  w.contribute(0, third, lanes8({0, 0, 0, 0, 0, 0, 0, -128}));
  w.contribute(1, third, lanes8({0, 0, 0, 0, 0, 0, 0, -1}), "the last lane passes its range");
  w.contribute(2, third, lanes8({1, 1, 1, 1, 1, 1, 1, 0}));
  w.expect_result_for_all(flagged, lanes8({1, 1, 1, 1, 1, 1, 1, 127}));
  Round mixed = r, other = r;
  mixed.round = other.round = 4;
  other.format = NETSUM_FORMAT_SUM_I16;
  w.contribute(0, mixed, lanes8({1, 2, 3, 4, 5, 6, 7, 8}));
  w.contribute(1, other, lanes16({1, 2, 3, 4}), "lanes of another width");
  w.expect({0, 1, 2}, "an error that blames member 1, one frame for all", w.error(other, 1));
  return w.done();
}

Vector wide() {
  VectorWriter w("wide_lanes", "64-bit lanes; a wide chunk is two packets, the second marked PART");
  w.everybody_says_hello();
  Round low{.slot = 0, .round = 1, .chunk = 5, .format = NETSUM_FORMAT_SUM_I64};
  Round high = low;
  high.slot = 1;
  high.flags = NETSUM_FLAG_PART;
  w.contribute(0, low, lanes64({1ll << 40, -1, 0xFFFFFFFFll}));
  w.contribute(1, high, lanes64({1, 2, 3, 4}));
  w.contribute(1, low, lanes64({1ll << 40, -1, 1}));
  w.expect_result_for_all(low, lanes64({1ll << 41, -2, 1ll << 32}));
  w.contribute(0, high, lanes64({10, 20, 30, 40}));
  w.expect_result_for_all(high, lanes64({11, 22, 33, 44}));
  return w.done();
}

Vector scales() {
  VectorWriter w("scales", "8-bit maxima, unsigned, in a scale slot", 3);
  w.everybody_says_hello();
  const Round r{.slot = 2, .round = 1, .chunk = 0, .format = NETSUM_FORMAT_MAX_U8};
  w.contribute(0, r, {0, 1, 127, 128, 255, 0, 9, 200});
  w.contribute(1, r, {0, 2, 128, 127, 0, 0, 9, 100});
  w.contribute(2, r, {0, 1, 1, 1, 1, 255, 8, 201});
  w.expect_result_for_all(r, {0, 2, 128, 128, 255, 255, 9, 201});
  return w.done();
}

Vector words() {
  VectorWriter w("words", "unsigned words: OR, XOR, and maxima of 16, 32 and 64 bits", 3);
  w.everybody_says_hello();
  Round r{.slot = 0, .round = 1, .chunk = 5, .format = NETSUM_FORMAT_OR_U64};
  w.contribute(0, r, lanes64({0x0F, INT64_MIN, 0}));
  w.contribute(2, r, lanes64({0xF0, 1, 0}));
  w.contribute(2, r, lanes64({0xF0, 1, 0}), "member 2 again").expect_drop("duplicate");
  w.contribute(1, r, lanes64({0x3C, -2, 0})).expect_result_for_all(r, lanes64({0xFF, -1, 0}));
  w.contribute(1, r, lanes64({0x3C, -2, 0}), "member 1 lost the result");
  w.expect_result_for(1, r, lanes64({0xFF, -1, 0}));
  r = {.slot = 0, .round = 2, .chunk = 6, .format = NETSUM_FORMAT_XOR_U64};
  w.contribute(0, r, lanes64({0x0F, INT64_MIN, -1}));
  w.contribute(1, r, lanes64({0x3C, INT64_MIN, 0}));
  w.contribute(2, r, lanes64({0x01, 1, -1})).expect_result_for_all(r, lanes64({0x32, 1, 0}));
  r = {.slot = 0, .round = 3, .chunk = 7, .format = NETSUM_FORMAT_MAX_U64};
  w.contribute(0, r, lanes64({0, INT64_MAX, 1ll << 40, 5}));
  w.contribute(1, r, lanes64({0, INT64_MIN, (1ll << 40) - 1, 6}), "the top bit is no sign");
  w.contribute(2, r, lanes64({0, 1, 7, 4}));
  w.expect_result_for_all(r, lanes64({0, INT64_MIN, 1ll << 40, 6}));
  r = {.slot = 0, .round = 4, .chunk = 8, .format = NETSUM_FORMAT_MAX_U32};
  w.contribute(0, r, lanes32({0, 7, INT32_MAX, -1}));
  w.contribute(1, r, lanes32({0, -1, INT32_MIN, 0}), "neighbours do not notice each other");
  w.contribute(2, r, lanes32({1, 6, 5, 4})).expect_result_for_all(r, lanes32({1, -1, INT32_MIN, -1}));
  r = {.slot = 0, .round = 5, .chunk = 9, .format = NETSUM_FORMAT_MAX_U16};
  w.contribute(0, r, lanes16({0, 7, 32767, -1}));
  w.contribute(1, r, lanes16({0, -1, -32768, 0}));
  w.contribute(2, r, lanes16({1, 6, 5, 4})).expect_result_for_all(r, lanes16({1, -1, -32768, -1}));
  const Round mixed{.slot = 1, .round = 1, .chunk = 5, .format = NETSUM_FORMAT_OR_U64};
  Round other = mixed;
  other.format = NETSUM_FORMAT_XOR_U64;
  w.contribute(0, mixed, lanes64({1, 2}));
  w.contribute(1, other, lanes64({1, 2}), "member 1 has another operator");
  w.expect({0, 1, 2}, "an error that blames member 1, one frame for all", w.error(other, 1));
  for (const uint8_t format :
       {NETSUM_FORMAT(NETSUM_OP_OR, NETSUM_LANE_I64), NETSUM_FORMAT(NETSUM_OP_OR, NETSUM_LANE_U32),
        NETSUM_FORMAT(NETSUM_OP_XOR, NETSUM_LANE_NONE), NETSUM_FORMAT(NETSUM_OP_SUM, NETSUM_LANE_U64),
        NETSUM_FORMAT(NETSUM_OP_MAX, NETSUM_LANE_I64)}) {
    Round unknown = mixed;
    unknown.slot = 2;
    unknown.format = format;
    w.contribute(0, unknown, lanes64({1, 2}), "format " + std::to_string(format) + ", which nobody knows");
    w.expect_drop("bad_format");
  }
  return w.done();
}

Vector no_lanes_vector() {
  VectorWriter w("no_lanes", "a contribution without lanes counts as zeros, and is never answered by lanes",
                 3);
  w.everybody_says_hello();
  const Bytes lanes = lanes32({1, -2, 3, 4}), zeros = lanes32({0, 0, 0, 0});
  w.contribute_nothing(0, kFirst, 16);
  w.contribute_nothing(0, kFirst, 16, "a copy").expect_drop("duplicate");
  w.contribute_nothing(2, kFirst, 16);
  w.ask(2, kFirst, "open, the asker's contribution is in").expect_status(2, kFirst, 5, false);
  w.contribute(1, kFirst, lanes).expect_result_for_all(kFirst, lanes);
  w.contribute_nothing(0, kFirst, 16, "a copy: the answer would be longer").expect_drop("duplicate");
  w.ask(0, kFirst, "member 0 lost the result").expect_status(0, kFirst, 7, true);
  w.contribute(0, kFirst, zeros, "as told, with lanes of zeros").expect_result_for(0, kFirst, lanes);
  w.contribute(1, kFirst, lanes, "member 1 lost it, too").expect_result_for(1, kFirst, lanes);

  Round r{.slot = 0, .round = 2, .chunk = 6};
  w.contribute(2, r, lanes32({9, 9}), "lanes of zeros and none may be mixed");
  w.contribute_nothing(0, kFirst, 16, "of the round before").expect_drop("stale_round");
  w.contribute_nothing(1, r, 8);
  w.contribute(0, r, lanes32({0, 0})).expect_result_for_all(r, lanes32({9, 9}));

  r = {.slot = 0, .round = 3, .chunk = 7};
  const Round without = without_lanes(r);
  w.contribute_nothing(0, r, 24).contribute_nothing(1, r, 24).contribute_nothing(2, r, 24);
  w.expect_result_for_all(without, no_lanes(24));
  w.contribute(1, r, lanes64({0, 0, 0}), "member 1 lost the result")
      .expect_result_for(1, without, no_lanes(24));

  r = {.slot = 2, .round = 1, .chunk = 0, .format = NETSUM_FORMAT_MAX_U8};
  w.contribute_nothing(0, r, 8).contribute_nothing(2, r, 8);
  w.contribute(1, r, {0, 1, 2, 3, 4, 5, 6, 255}).expect_result_for_all(r, {0, 1, 2, 3, 4, 5, 6, 255});

  r = {.slot = 1, .round = 1, .chunk = 5};
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{12}, uint64_t{40}, uint64_t{1} << 32, ~uint64_t{7}}) {
    w.contribute_nothing(0, r, bytes, "in place of " + std::to_string(bytes) + " bytes")
        .expect_drop("bad_length");
  }
  w.contribute(0, without_lanes(r), lanes32({0, 0, 0, 8}), "two words").expect_drop("bad_length");
  Round values = without_lanes(r);
  values.format = NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32);
  w.contribute(0, values, no_lanes(8), "in place of values").expect_drop("bad_format");
  Bytes probe = w.probe(0, r);
  probe[3] = NETSUM_FLAG_EMPTY;
  w.feed(0, "a probe without lanes", probe).expect_drop("bad_flags");
  w.contribute_nothing(0, r, 16);
  w.contribute(1, r, lanes32({1, 2}), "member 1 differs in the length");
  w.expect({0, 1, 2}, "an error that blames member 1, one frame for all", w.error(r, 1));
  w.contribute_nothing(2, r, 16, "member 2, who missed it").expect({2}, "the error, again", w.error(r, 1));
  return w.done();
}

Vector no_lanes_last(bool lengthens) {
  VectorWriter w(lengthens ? "no_lanes_last" : "no_lanes_last_asks",
                 lengthens
                     ? "a packet without lanes that completes a round: the result has its lanes"
                     : "the same, of a dataplane that cannot lengthen packets: it asks for one with lanes",
                 3);
  w.only_for(lengthens).everybody_says_hello();
  const Bytes lanes = lanes32({1, -2, 3, 4});
  w.contribute(1, kFirst, lanes);
  w.contribute_nothing(0, kFirst, 16);
  w.contribute_nothing(2, kFirst, 16);
  if (!lengthens) {
    Round asked = kFirst;
    asked.chunk = 0;
    w.expect({1}, "contribute again", w.status(1, asked, 7, true));
    w.contribute_nothing(2, kFirst, 16, "a copy").expect_drop("duplicate");
    w.ask(0, kFirst, "member 0 asks").expect_status(0, kFirst, 7, true);
    w.contribute(1, kFirst, lanes);
  }
  w.expect_result_for_all(kFirst, lanes);
  w.contribute(1, kFirst, lanes, "member 1 lost the result").expect_result_for(1, kFirst, lanes);
  return w.done();
}

Vector brief_vector() {
  VectorWriter w("brief", "members that need no lanes of the result get it without", 3);
  w.everybody_says_hello();
  const Bytes lanes = lanes32({1, -2, 3, 4}), sum = lanes32({3, -6, 9, 12});
  w.contribute(0, brief(kFirst), lanes);
  w.contribute(1, kFirst, lanes);
  w.contribute(2, brief(kFirst), lanes);
  w.expect({0, 2}, "the result without lanes", w.result(without_lanes(kFirst), no_lanes(16)));
  w.expect({1}, "the result", w.result(kFirst, sum));
  w.contribute(0, brief(kFirst), lanes, "member 0 lost it");
  w.expect_result_for(0, without_lanes(kFirst), no_lanes(16));
  w.contribute(1, kFirst, lanes, "member 1 lost it").expect_result_for(1, kFirst, sum);

  Round r{.slot = 0, .round = 2, .chunk = 6};
  w.contribute_nothing(0, brief(r), 16).contribute_nothing(1, brief(r), 16);
  w.contribute(2, brief(r), lanes, "nobody needs the lanes, as in a barrier");
  w.expect_result_for_all(without_lanes(r), no_lanes(16));
  w.contribute_nothing(1, brief(r), 16, "member 1 lost it: the answer is as short");
  w.expect_result_for(1, without_lanes(r), no_lanes(16));
  w.contribute_nothing(2, {.slot = 0, .round = 3, .chunk = 7}, 16);
  w.contribute_nothing(1, brief(r), 16, "and once more; round 3 is open");
  w.expect_result_for(1, without_lanes(r), no_lanes(16));

  Round overflow{.slot = 1, .round = 1, .chunk = 8}, flagged = overflow;
  flagged.flags = NETSUM_FLAG_OVERFLOW;
  w.contribute(0, overflow, lanes32({INT32_MAX, 0})).contribute_nothing(1, brief(overflow), 8);
  w.contribute(2, overflow, lanes32({1, 0}));
  w.expect({0, 2}, "the result", w.result(flagged, lanes32({INT32_MIN, 0})));
  w.expect({1}, "the result without lanes, with its overflow", w.result(without_lanes(flagged), no_lanes(8)));

  Bytes probe = w.probe(0, r);
  probe[3] = NETSUM_FLAG_NO_RESULT;
  w.feed(0, "a brief probe", probe).expect_drop("bad_flags");
  Round values = brief({.slot = 2, .round = 1, .chunk = 4});
  values.format = NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32);
  w.contribute(0, values, lanes32({1, 2}), "values").expect_drop("bad_format");
  return w.done();
}

Vector probes() {
  VectorWriter w("probes", "a probe gets an answer in every state of the slot and changes none");
  w.everybody_says_hello();
  const Round second{.slot = 0, .round = 2, .chunk = 6};
  w.ask(0, kFirst, "a slot never used").expect_status(0, kFirst, 0, true);
  w.contribute(1, kFirst, lanes32({1, 2}));
  w.ask(0, kFirst, "open, the asker's contribution is missing").expect_status(0, kFirst, 2, true);
  w.ask(1, kFirst, "open, the asker's contribution is in").expect_status(1, kFirst, 2, false);
  w.contribute(0, kFirst, lanes32({10, 20})).expect_result_for_all(kFirst, lanes32({11, 22}));
  w.ask(1, kFirst, "complete").expect_status(1, kFirst, 3, true);
  w.contribute(1, kFirst, lanes32({1, 2}), "as told").expect_result_for(1, kFirst, lanes32({11, 22}));
  w.ask(1, second, "the next one, not begun").expect_status(1, second, 0, true);
  w.contribute(0, second, lanes32({3, 3}));
  w.ask(1, kFirst, "the one before, still owed").expect_status(1, kFirst, 3, true);
  w.ask(0, kFirst, "the one before, not owed").expect_drop("stale_round");
  w.ask(1, second, "open").expect_status(1, second, 1, true);
  w.contribute(1, second, lanes32({4, 4})).expect_result_for_all(second, lanes32({7, 7}));
  w.ask(1, kFirst, "the one before, everybody has it").expect_drop("stale_round");
  return w.done();
}

Vector slot_reuse() {
  VectorWriter w("slot_reuse", "both slots over three rounds, members taking turns to be first");
  w.everybody_says_hello();
  for (uint32_t round = 1; round <= 3; ++round) {
    for (uint16_t slot = 0; slot < 2; ++slot) {
      const Round r{.slot = slot, .round = round, .chunk = 2 * (round - 1) + slot};
      const int32_t base = static_cast<int32_t>(r.chunk);
      const uint16_t first = (round + slot) & 1;
      // Lengths vary, so that nothing of a longer round shows in a shorter one.
      const bool is_long = round != 2;
      w.contribute(first, r, is_long ? lanes32({base, 1, 1, 1}) : lanes32({base, 1}));
      w.contribute(first ^ 1, r, is_long ? lanes32({100, 2, 2, 2}) : lanes32({100, 2}));
      w.expect_result_for_all(r, is_long ? lanes32({base + 100, 3, 3, 3}) : lanes32({base + 100, 3}));
    }
  }
  return w.done();
}

Vector round_wrap() {
  VectorWriter w("round_wrap", "after round 2^32 - 1 comes round 0, with all rules in force");
  w.start_at(0, 0xFFFFFFFD);
  w.everybody_says_hello();
  uint32_t round = 0xFFFFFFFE;
  Round before{};
  for (int i = 0; i < 4; ++i, ++round) {
    const Round r{.slot = 0, .round = round, .chunk = static_cast<uint32_t>(i)};
    w.contribute(0, r, lanes32({i, 0}));
    if (i > 0) {
      const Bytes sum = lanes32({i - 1 + 10, 0});
      w.contribute(1, before, lanes32({10, 0}), "the result before was lost")
          .expect_result_for(1, before, sum);
      w.ask(1, before, "and once more, by a probe").expect_status(1, before, 3, true);
      w.contribute(0, before, lanes32({i - 1, 0}), "an old copy").expect_drop("stale_round");
    }
    w.contribute(1, r, lanes32({10, 0})).expect_result_for_all(r, lanes32({i + 10, 0}));
    before = r;
  }
  return w.done();
}

Bytes floats(const std::vector<float>& elements) {
  std::vector<int32_t> bits;
  for (const float element : elements) bits.push_back(std::bit_cast<int32_t>(element));
  return lanes32(bits);
}

// Floats are added one after the other, in the order of the members and not of the packets.
Vector values() {
  const auto round_of = [](uint32_t round, uint8_t format) {
    return Round{.slot = 2, .round = round, .chunk = 4, .format = format};
  };
  const auto halves = [](const std::vector<int16_t>& bits) { return lanes16(bits); };
  VectorJob job = usual_job();
  job.members = 3;
  job.sums_values = true;
  VectorWriter w(
      "values", "the scale slots of a job take values of elements, and answer with their sum or mean", {job});
  w.everybody_says_hello();
  const Round sum = round_of(1, NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32));
  w.contribute(1, sum, floats({-1e8f, 1e9f}));
  w.contribute(1, sum, floats({-1e8f, 1e9f}), "member 1 again").expect_drop("duplicate");
  w.ask(1, sum, "members 0 and 2 have not contributed").expect_status(1, sum, 2, false);
  w.contribute(2, sum, floats({1e-3f, 2.3f}));
  w.contribute(0, sum, floats({1e8f, 2.3f})).expect_result_for_all(sum, floats({1e-3f, 2.3f + 1e9f + 2.3f}));
  w.contribute(1, sum, floats({-1e8f, 1e9f}), "member 1 lost the result")
      .expect_result_for(1, sum, floats({1e-3f, 2.3f + 1e9f + 2.3f}));

  const Round mean = round_of(2, NETSUM_FORMAT(NETSUM_OP_AVG_FLOATS, NETSUM_FLOAT_F32));
  w.contribute(0, mean, floats({1.0f, 1e-3f}));
  w.contribute(2, mean, floats({0.5f, -1e8f}));
  w.contribute(1, mean, floats({1.0f, 1e8f})).expect_result_for_all(mean, floats({2.5f / 3, 0.0f}));

  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const Round special = round_of(3, sum.format);
  w.contribute(2, special, floats({1.0f, -0.0f, tiny, -3e38f, nan, 1.0f}));
  w.contribute(0, special, floats({inf, -0.0f, tiny, 3e38f, 1.0f, inf}));
  w.contribute(1, special, floats({1.0f, -0.0f, tiny, 3e38f, 1.0f, -inf}))
      .expect_result_for_all(special, floats({inf, -0.0f, 3 * tiny, inf, nan, nan}));

  Round integers = round_of(4, NETSUM_FORMAT(NETSUM_OP_SUM_VALUES, NETSUM_VALUE_I32));
  w.contribute(0, integers, lanes32({INT32_MAX, -5}));
  w.contribute(1, integers, lanes32({2, 3}));
  w.contribute(2, integers, lanes32({-1, 0}));
  integers.flags = NETSUM_FLAG_OVERFLOW;
  w.expect_result_for_all(integers, lanes32({INT32_MIN, -2}));

  const Round lanes = round_of(5, NETSUM_FORMAT_MAX_U8);
  w.contribute(0, lanes, {1, 9, 3, 4, 5, 6, 7, 8});
  w.contribute(2, lanes, {1, 2, 3, 4, 5, 6, 7, 8});
  w.contribute(1, lanes, {2, 8, 3, 4, 5, 6, 7, 8}).expect_result_for_all(lanes, {2, 9, 3, 4, 5, 6, 7, 8});

  // 1, 2^-8 and 2^-8: in float32 their sum is 1 + 2^-7; each addition in bfloat16 would be rounded to 1.
  const Round bfloat = round_of(6, NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_BF16));
  w.contribute(0, bfloat, halves({0x3F80, 0x7F7F, 0, 0}));
  w.contribute(1, bfloat, halves({0x3B80, 0x7F7F, 0, 0}));
  w.contribute(2, bfloat, halves({0x3B80, 0x0000, 0, 0}))
      .expect_result_for_all(bfloat, halves({0x3F81, 0x7F80, 0, 0}));

  // 2048, 1 and 1: 2050. 65504 times 3, divided by 3 in float32: 65504.
  const Round half = round_of(7, NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F16));
  w.contribute(0, half, halves({0x6800, 0x7BFF, 0, 0}));
  w.contribute(1, half, halves({0x3C00, 0x7BFF, 0, 0}));
  w.contribute(2, half, halves({0x3C00, 0x7BFF, 0, 0}))
      .expect_result_for_all(half, halves({0x6801, 0x7C00, 0, 0}));
  const Round half_mean = round_of(8, NETSUM_FORMAT(NETSUM_OP_AVG_FLOATS, NETSUM_FLOAT_F16));
  w.contribute(0, half_mean, halves({0x6800, 0x7BFF, 0, 0}));
  w.contribute(1, half_mean, halves({0x6800, 0x7BFF, 0, 0}));
  w.contribute(2, half_mean, halves({0x6800, 0x7BFF, 0, 0}))
      .expect_result_for_all(half_mean, halves({0x6800, 0x7BFF, 0, 0}));

  const Round mixed = round_of(9, sum.format);
  w.contribute(0, mixed, floats({1.0f, 2.0f}));
  const Round other = round_of(9, NETSUM_FORMAT_SUM_I32);
  w.contribute(1, other, lanes32({1, 2}), "member 1 sends lanes of the same chunk");
  w.expect({0, 1, 2}, "the members differ", w.error(other, 1));

  Round data = round_of(1, sum.format);
  data.slot = 0;
  w.contribute(0, data, floats({1.0f, 2.0f}), "values in a data slot").expect_drop("bad_format");
  for (const int format :
       {NETSUM_FORMAT(NETSUM_OP_AVG_FLOATS, NETSUM_VALUE_I32), 0x31, 0x35, 0x41, 0x74, 0x80})
    w.contribute(0, round_of(10, static_cast<uint8_t>(format)), lanes32({1, 2}),
                 "an unknown format of values")
        .expect_drop("bad_format");
  return w.done();
}

// A job of two below an aggregator at peer 11, which knows it as member 2 of its job 1.
constexpr Peer kAbove = 11;
constexpr VectorParent kParent{
    .peer = kAbove, .job = 1, .epoch = 9, .key = {0x13198A2E03707344, 0xA4093822299F31D0}, .member = 2};

// Packets as the parent knows the job; its members are aggregators like ours.
VectorWriter writer_above() {
  return {"", "", {{.job = 1, .epoch = 9, .key = kParent.key, .members = 4, .payload_bytes = 32}}};
}

constexpr uint8_t kFloatSum = NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32);

// In data slots, whatever arrives first, again, or late.
Vector floats_in_data_slots() {
  const auto round_of = [](uint16_t slot, uint32_t round, uint8_t format = kFloatSum) {
    return Round{.slot = slot, .round = round, .chunk = 4 + 2 * round + slot, .format = format};
  };
  VectorJob job = usual_job();
  job.members = 3;
  job.sums_values = job.adds_floats = true;
  VectorWriter w("floats_in_data_slots",
                 "the data slots take floats, and add them in the order of the members", {job});
  w.everybody_says_hello();
  // Member 0 is late by a window: in both data slots, all others wait for it.
  const Round first = round_of(0, 1), second = round_of(1, 1);
  w.contribute(2, first, floats({1e-3f, 2.3f, -0.0f, 1.0f}));
  w.contribute(2, first, floats({1e-3f, 2.3f, -0.0f, 1.0f}), "member 2 again").expect_drop("duplicate");
  w.contribute(1, first, floats({-1e8f, 1e9f, -0.0f, std::numeric_limits<float>::quiet_NaN()}));
  w.ask(1, first, "member 0 has not contributed").expect_status(1, first, 6, false);
  w.contribute(1, second, floats({1e8f, 1.0f})).contribute(2, second, floats({-1e8f, 1.0f}));
  w.contribute(0, first, floats({1e8f, 2.3f, -0.0f, 1.0f}));
  const Bytes sum = floats({1e-3f, 2.3f + 1e9f + 2.3f, -0.0f, std::bit_cast<float>(0x7FC00000)});
  w.expect_result_for_all(first, sum);
  w.contribute(0, second, floats({1e-3f, 1.0f})).expect_result_for_all(second, floats({0.0f, 3.0f}));
  w.contribute(2, first, floats({1e-3f, 2.3f, -0.0f, 1.0f}), "member 2 lost the result")
      .expect_result_for(2, first, sum);
  // Nothing of the round before is left: shorter, of other types, and in other orders.
  const Round mean = round_of(0, 2, NETSUM_FORMAT(NETSUM_OP_AVG_FLOATS, NETSUM_FLOAT_F32));
  w.contribute(1, mean, floats({1.0f, 1e8f}));
  w.contribute(0, mean, floats({1.0f, 1e-3f}));
  w.contribute(0, first, floats({1e8f, 2.3f, -0.0f, 1.0f}), "an old copy").expect_drop("stale_round");
  w.contribute(2, mean, floats({0.5f, -1e8f})).expect_result_for_all(mean, floats({2.5f / 3, 0.0f}));
  const float inf = std::numeric_limits<float>::infinity();
  const float tiny = std::numeric_limits<float>::denorm_min();
  const Round special = round_of(0, 3);
  w.contribute(0, special, floats({inf, tiny, 3e38f, inf}));
  w.contribute(2, special, floats({1.0f, tiny, -3e38f, 1.0f}));
  w.contribute(1, special, floats({1.0f, tiny, 3e38f, -inf}))
      .expect_result_for_all(special, floats({inf, 3 * tiny, inf, std::bit_cast<float>(0x7FC00000)}));
  // 1, 2^-8 and 2^-8: in float32 their sum is 1 + 2^-7; each addition in bfloat16 would be rounded to 1.
  const Round bfloat = round_of(0, 4, NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_BF16));
  w.contribute(1, bfloat, lanes16({0x3B80, 0x7F7F, 0x0001, 0}));
  w.contribute(0, bfloat, lanes16({0x3F80, 0x7F7F, 0x0001, 0}));
  w.contribute(2, bfloat, lanes16({0x3B80, 0x0000, 0x0001, 0}))
      .expect_result_for_all(bfloat, lanes16({0x3F81, 0x7F80, 0x0003, 0}));
  const Round half = round_of(0, 5, NETSUM_FORMAT(NETSUM_OP_AVG_FLOATS, NETSUM_FLOAT_F16));
  w.contribute(2, half, lanes16({0x6800, 0x7BFF, 0, 0}));
  w.contribute(1, half, lanes16({0x6800, 0x7BFF, 0, 0}));
  w.contribute(0, half, lanes16({0x6800, 0x7BFF, 0, 0}))
      .expect_result_for_all(half, lanes16({0x6800, 0x7BFF, 0, 0}));
  const Round mixed = round_of(1, 2);
  w.contribute(1, mixed, floats({1.0f, 2.0f}));
  const Round other = round_of(1, 2, NETSUM_FORMAT_SUM_I32);
  w.contribute(0, other, lanes32({1, 2}), "member 0 sums in block fixed point");
  w.expect({0, 1, 2}, "the members differ", w.error(other, 0));
  w.contribute(0, round_of(0, 6, NETSUM_FORMAT(NETSUM_OP_SUM_VALUES, NETSUM_VALUE_I32)), lanes32({1, 2}),
               "integers in a data slot")
      .expect_drop("bad_format");
  w.contribute(0, without_lanes(round_of(0, 6)), no_lanes(8), "nothing in place of floats")
      .expect_drop("bad_format");
  return w.done();
}

Vector brief_floats() {
  VectorJob job = usual_job();
  job.members = 3;
  job.sums_values = job.adds_floats = true;
  VectorWriter w("brief_floats", "members that need no sum of floats get results without", {job});
  w.everybody_says_hello();
  const Round r{
      .slot = 0, .round = 1, .chunk = 4, .format = NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32)};
  w.contribute(2, brief(r), floats({3.0f, 1.0f})).contribute(1, r, floats({2.0f, 1.0f}));
  w.contribute(0, brief(r), floats({1.0f, 1.0f}));
  w.expect({0, 2}, "the result without floats", w.result(without_lanes(r), no_lanes(8)));
  w.expect({1}, "the sum", w.result(r, floats({6.0f, 3.0f})));
  w.contribute(0, brief(r), floats({1.0f, 1.0f}), "member 0 lost it");
  w.expect_result_for(0, without_lanes(r), no_lanes(8));
  return w.done();
}

Vector floats_in_a_hierarchy() {
  VectorJob job = usual_job();
  job.sums_values = job.adds_floats = true;
  job.parent = kParent;
  VectorWriter w("floats_in_a_hierarchy", "the float32 sum of a rack in a data slot is sent to the parent",
                 {job});
  const VectorWriter above = writer_above();
  w.feed(0, "member 0 says hello", w.hello(0, 1000));
  w.expect({kAbove}, "a HELLO to the parent first", above.hello(2, 1000));
  w.feed(kAbove, "the parent's welcome", above.welcome(2, 1000));
  w.everybody_says_hello();
  const Round r{
      .slot = 0, .round = 1, .chunk = 4, .format = NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32)};
  const Bytes sum = floats({2.0f, -0.0f}), all = floats({3.0f, 0.0f});
  w.contribute(1, r, floats({1.0f, -0.0f})).contribute(0, r, floats({1.0f, -0.0f}));
  w.expect({kAbove}, "the sum, as member 2's contribution", above.contribution(2, r, sum));
  w.contribute(1, r, floats({1.0f, -0.0f}), "member 1 has no result yet");
  w.expect({kAbove}, "the sum again", above.contribution(2, r, sum));
  w.feed(kAbove, "the sum of all racks", above.result(r, all)).expect_result_for_all(r, all);
  return w.done();
}

Vector values_refused() {
  VectorWriter w("values_refused",
                 "a job whose dataplane cannot sum values refuses them, as unknown formats");
  w.everybody_says_hello();
  const Round values{
      .slot = 2, .round = 1, .chunk = 4, .format = NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32)};
  w.contribute(0, values, lanes32({1, 2})).expect_drop("bad_format");
  return w.done();
}

Vector words_in_a_hierarchy() {
  VectorJob job = usual_job();
  job.parent = kParent;
  VectorWriter w("words_in_a_hierarchy",
                 "the OR of a rack is sent to the parent, and the OR of all to the members", {job});
  const VectorWriter above = writer_above();
  w.feed(0, "member 0 says hello", w.hello(0, 1000));
  w.expect({kAbove}, "a HELLO to the parent first", above.hello(2, 1000));
  w.feed(kAbove, "the parent's welcome", above.welcome(2, 1000));
  w.everybody_says_hello();
  const Round r{.slot = 0, .round = 1, .chunk = 5, .format = NETSUM_FORMAT_OR_U64};
  w.contribute(0, r, lanes64({0x01, INT64_MIN}));
  w.contribute(1, r, lanes64({0x03, 0}));
  w.expect({kAbove}, "the OR, as member 2's contribution",
           above.contribution(2, r, lanes64({0x03, INT64_MIN})));
  w.feed(kAbove, "the OR of all racks", above.result(r, lanes64({0xF3, INT64_MIN | 1})));
  w.expect_result_for_all(r, lanes64({0xF3, INT64_MIN | 1}));
  return w.done();
}

Vector values_in_a_hierarchy() {
  VectorJob job = usual_job();
  job.sums_values = true;
  job.parent = kParent;
  VectorWriter w("values_in_a_hierarchy", "the float32 sum of a rack is sent to the parent", {job});
  const VectorWriter above = writer_above();
  w.feed(0, "member 0 says hello", w.hello(0, 1000));
  w.expect({kAbove}, "a HELLO to the parent first", above.hello(2, 1000));
  w.feed(kAbove, "the parent's welcome", above.welcome(2, 1000));
  w.everybody_says_hello();
  const Round r{
      .slot = 2, .round = 1, .chunk = 4, .format = NETSUM_FORMAT(NETSUM_OP_SUM_FLOATS, NETSUM_FLOAT_F32)};
  const Bytes sum = lanes32({0x40000000, 0x7FC00000});
  w.contribute(1, r, lanes32({0x3F800000, 0x3F800000}));
  w.contribute(0, r, lanes32({0x3F800000, 0x7F800001}));
  w.expect({kAbove}, "1 + 1 and NaN + 1, as member 2's contribution", above.contribution(2, r, sum));
  w.contribute(1, r, lanes32({0x3F800000, 0x3F800000}), "member 1 has no result yet");
  w.expect({kAbove}, "the sum again", above.contribution(2, r, sum));
  w.feed(kAbove, "the sum of all racks", above.result(r, lanes32({0x40400000, 0x7FC00000})));
  w.expect_result_for_all(r, lanes32({0x40400000, 0x7FC00000}));
  return w.done();
}

Vector no_lanes_in_a_hierarchy() {
  VectorJob job = usual_job();
  job.parent = kParent;
  VectorWriter w("no_lanes_in_a_hierarchy", "a rack without lanes sends none to the parent", {job});
  const VectorWriter above = writer_above();
  w.feed(0, "member 0 says hello", w.hello(0, 1000));
  w.expect({kAbove}, "a HELLO to the parent first", above.hello(2, 1000));
  w.feed(kAbove, "the parent's welcome", above.welcome(2, 1000));
  w.everybody_says_hello();
  const Bytes lanes = lanes32({1, -2, 3, 4}), zeros = lanes32({0, 0, 0, 0});
  w.contribute_nothing(0, kFirst, 16).contribute_nothing(1, kFirst, 16);
  w.expect({kAbove}, "no lanes, as member 2's", above.contribution(2, without_lanes(kFirst), no_lanes(16)));
  w.contribute_nothing(1, kFirst, 16, "a copy").expect_drop("duplicate");
  w.contribute(1, kFirst, zeros, "member 1 again");
  w.expect({kAbove}, "with lanes of zeros", above.contribution(2, kFirst, zeros));
  w.feed(kAbove, "the result", above.result(kFirst, lanes)).expect_result_for_all(kFirst, lanes);
  w.contribute(0, kFirst, zeros, "member 0 lost it").expect_result_for(0, kFirst, lanes);
  const Round r{.slot = 0, .round = 2, .chunk = 6};
  w.contribute_nothing(0, r, 16).contribute(1, r, lanes);
  w.expect({kAbove}, "the sum, as member 2's contribution", above.contribution(2, r, lanes));
  w.feed(kAbove, "the result", above.result(r, lanes)).expect_result_for_all(r, lanes);
  const Round none{.slot = 0, .round = 3, .chunk = 7};
  w.contribute_nothing(0, none, 16).contribute_nothing(1, none, 16);
  w.expect({kAbove}, "no lanes", above.contribution(2, without_lanes(none), no_lanes(16)));
  w.feed(kAbove, "nobody has any", above.result(without_lanes(none), no_lanes(16)));
  w.expect_result_for_all(without_lanes(none), no_lanes(16));
  w.contribute(0, none, zeros, "member 0 lost it");
  w.expect_result_for(0, without_lanes(none), no_lanes(16));
  return w.done();
}

Vector brief_in_a_hierarchy() {
  VectorJob job = usual_job();
  job.parent = kParent;
  VectorWriter w("brief_in_a_hierarchy", "a rack of which no member needs lanes says so to the parent",
                 {job});
  const VectorWriter above = writer_above();
  w.feed(0, "member 0 says hello", w.hello(0, 1000));
  w.expect({kAbove}, "a HELLO to the parent first", above.hello(2, 1000));
  w.feed(kAbove, "the parent's welcome", above.welcome(2, 1000));
  w.everybody_says_hello();
  const Bytes lanes = lanes32({1, -2, 3, 4}), sum = lanes32({5, 5, 5, 5});
  w.contribute_nothing(1, brief(kFirst), 16).contribute(0, brief(kFirst), lanes);
  w.expect({kAbove}, "the sum", above.contribution(2, brief(kFirst), lanes));
  w.contribute_nothing(1, brief(kFirst), 16, "a copy, without room for the sum").expect_drop("duplicate");
  w.contribute(0, brief(kFirst), lanes, "member 0 again");
  w.expect({kAbove}, "the sum, again", above.contribution(2, brief(kFirst), lanes));
  w.feed(kAbove, "the result", above.result(without_lanes(kFirst), no_lanes(16)));
  w.expect_result_for_all(without_lanes(kFirst), no_lanes(16));

  const Round r{.slot = 0, .round = 2, .chunk = 6};
  w.contribute_nothing(0, brief(r), 16).contribute_nothing(1, brief(r), 16);
  w.expect({kAbove}, "no lanes", above.contribution(2, without_lanes(brief(r)), no_lanes(16)));
  w.contribute_nothing(1, brief(r), 16, "member 1 again");
  w.expect({kAbove}, "no lanes, again", above.contribution(2, without_lanes(brief(r)), no_lanes(16)));
  w.feed(kAbove, "the result", above.result(without_lanes(r), no_lanes(16)));
  w.expect_result_for_all(without_lanes(r), no_lanes(16));

  const Round one{.slot = 0, .round = 3, .chunk = 7};
  w.contribute(0, brief(one), lanes).contribute(1, one, lanes32({0, 0, 0, 0}));
  w.expect({kAbove}, "the sum: member 1 needs the result", above.contribution(2, one, lanes));
  w.feed(kAbove, "the result", above.result(one, sum));
  w.expect({0}, "the result without lanes", w.result(without_lanes(one), no_lanes(16)));
  w.expect({1}, "the result", w.result(one, sum));
  return w.done();
}

Vector hierarchy() {
  VectorJob job = usual_job();
  job.parent = kParent;
  VectorWriter w("hierarchy", "sums are sent to the parent, and its results to the members", {job});
  const VectorWriter above = writer_above();
  const Round up_asked{.slot = 0, .round = 1, .chunk = 5 * 64 + 1};

  w.feed(0, "member 0 says hello", w.hello(0, 1000));
  w.expect({kAbove}, "a HELLO to the parent first", above.hello(2, 1000));
  w.feed(kAbove, "the parent's welcome", above.welcome(2, 1000));
  w.everybody_says_hello();

  w.contribute(0, kFirst, lanes32({1, 2}));
  w.feed(kAbove, "a result before there is a sum", above.result(kFirst, lanes32({0, 0})));
  w.expect_drop("stale_round");
  w.ask(0, kFirst, "member 1 has not contributed").expect_status(0, kFirst, 1, false);
  w.contribute(1, kFirst, lanes32({10, 20}));
  w.expect({kAbove}, "the sum, as member 2's contribution", above.contribution(2, kFirst, lanes32({11, 22})));
  w.contribute(1, kFirst, lanes32({10, 20}), "member 1 again");
  w.expect({kAbove}, "the sum again", above.contribution(2, kFirst, lanes32({11, 22})));
  w.ask(1, kFirst, "member 1 asks");
  w.expect({kAbove}, "the probe is forwarded, as member 2's", above.probe(2, up_asked));
  w.feed(kAbove, "other members of the parent have not contributed",
         above.status(2, up_asked, 0b0111, false));
  w.expect_status(1, kFirst, 0b11, false);
  w.feed(kAbove, "the sum was lost", above.status(2, up_asked, 0b0011, true));
  w.expect_status(1, kFirst, 0b11, true);
  w.feed(0, "a result from a member", above.result(kFirst, lanes32({9, 9})));
  w.expect_drop("bad_type");
  w.feed(kAbove, "the parent's result under the wrong key", w.result(kFirst, lanes32({9, 9})));
  w.expect_drop("bad_type");
  w.feed(kAbove, "the result", above.result(kFirst, lanes32({111, 222})));
  w.expect_result_for_all(kFirst, lanes32({111, 222}));
  w.feed(kAbove, "and once more", above.result(kFirst, lanes32({111, 222}))).expect_drop("stale_round");
  w.contribute(0, kFirst, lanes32({1, 2}), "member 0 lost it")
      .expect_result_for(0, kFirst, lanes32({111, 222}));
  return w.done();
}

}  // namespace

std::vector<Vector> make_vectors() {
  std::vector<Vector> all = {hello_welcome(),
                             single_member(),
                             four_members(),
                             lost_result(),
                             duplicates(),
                             stale_epoch(),
                             stale_round(),
                             future_round(),
                             bad_check(),
                             cookies(),
                             cookie_in_hello(),
                             malformed(),
                             oversized(),
                             bounds(),
                             two_jobs(),
                             overflow(),
                             narrow(),
                             bytes(),
                             wide(),
                             scales(),
                             probes(),
                             slot_reuse(),
                             round_wrap(),
                             hierarchy(),
                             values(),
                             floats_in_data_slots(),
                             brief_floats(),
                             floats_in_a_hierarchy(),
                             values_refused(),
                             values_in_a_hierarchy(),
                             words(),
                             words_in_a_hierarchy(),
                             no_lanes_vector(),
                             no_lanes_last(true),
                             no_lanes_last(false),
                             no_lanes_in_a_hierarchy(),
                             brief_vector(),
                             brief_in_a_hierarchy()};
  for (Vector& vector : mismatches()) all.push_back(std::move(vector));
  return all;
}

}  // namespace netsum::conformance
