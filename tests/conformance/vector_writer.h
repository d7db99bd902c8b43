// For make_vectors.cc: says packets and replies in a line each. Replies are built here from what PROTOCOL.md
// says, never by a dataplane.
#ifndef NETSUM_TESTS_CONFORMANCE_VECTOR_WRITER_H_
#define NETSUM_TESTS_CONFORMANCE_VECTOR_WRITER_H_

#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/dataplane_vectors.h"

namespace netsum::conformance {

// What ranks are adding: where, when and which.
struct Round {
  uint16_t slot = 0;
  uint32_t round = 1;
  uint32_t chunk = 0;
  uint32_t signature = 0xC0FFEE01;
  uint8_t format = NETSUM_FORMAT_SUM_I32;
  uint8_t flags = 0;
};

inline Bytes lanes8(const std::vector<int8_t>& values) {
  return Bytes(values.begin(), values.end());
}
inline Bytes lanes16(const std::vector<int16_t>& values) {
  Bytes payload(values.size() * 2);
  for (size_t i = 0; i < values.size(); ++i) {
    payload[2 * i] = static_cast<uint8_t>(values[i]);
    payload[2 * i + 1] = static_cast<uint8_t>(values[i] >> 8);
  }
  return payload;
}
inline Bytes lanes32(const std::vector<int32_t>& values) {
  Bytes payload(values.size() * 4);
  for (size_t i = 0; i < values.size(); ++i) {
    netsum_store32(&payload[4 * i], static_cast<uint32_t>(values[i]));
  }
  return payload;
}
inline Bytes lanes64(const std::vector<int64_t>& values) {
  Bytes payload(values.size() * 8);
  for (size_t i = 0; i < values.size(); ++i) {
    netsum_store64(&payload[8 * i], static_cast<uint64_t>(values[i]));
  }
  return payload;
}

// In place of so many bytes of lanes, with NETSUM_FLAG_EMPTY.
inline Bytes no_lanes(uint64_t bytes) {
  const netsum_be64 length = netsum_put64(bytes);
  return Bytes(length.b, length.b + sizeof length);
}
inline Round without_lanes(Round r) {
  r.flags |= NETSUM_FLAG_EMPTY;
  return r;
}

inline Round brief(Round r) {
  r.flags |= NETSUM_FLAG_NO_RESULT;
  return r;
}

// That of most vectors.
inline VectorJob usual_job(uint16_t members = 2) {
  return {.job = 3,
          .epoch = 7,
          .key = {0x243F6A8885A308D3, 0x13198A2E03707344},
          .members = members,
          .data_slots = 2,
          .scale_slots = 1,
          .payload_bytes = 32,
          .sums_values = false,
          .adds_floats = false,
          .parent = {},
          .tag = NETSUM_TAG_KEYED};
}

class VectorWriter {
 public:
  VectorWriter(std::string name, std::string description, uint16_t members = 2)
      : VectorWriter(std::move(name), std::move(description), std::vector<VectorJob>{usual_job(members)}) {}
  VectorWriter(std::string name, std::string description, std::vector<VectorJob> jobs) : job_(jobs[0]) {
    vector_.name = std::move(name);
    vector_.description = std::move(description);
    vector_.jobs = std::move(jobs);
  }

  // --- Steps -----------------------------------------------------------------------------------------------
  VectorWriter& feed(Peer from, std::string what, Bytes packet) {
    vector_.steps.push_back({std::move(what), from, std::move(packet), {}});
    return *this;
  }
  VectorWriter& expect(std::vector<Peer> to, std::string what, Bytes packet) {
    vector_.steps.back().replies.push_back({std::move(to), std::move(what), std::move(packet)});
    return *this;
  }
  VectorWriter& expect_drop(const std::string& reason) {
    ++vector_.drops[reason];
    return *this;
  }
  // Every member of the job says HELLO; member m sits at peer `first_peer` + m.
  VectorWriter& everybody_says_hello(Peer first_peer = 0) {
    for (uint16_t m = 0; m < job_.members; ++m) {
      feed(first_peer + m, "member " + std::to_string(m) + " says hello", hello(m, 1000u + m));
      expect({first_peer + m}, "welcome, of the same size, to where it came from", welcome(m, 1000u + m));
    }
    return *this;
  }
  VectorWriter& contribute_nothing(uint16_t member, const Round& r, uint64_t bytes, std::string what = "") {
    if (what.empty()) what = "member " + std::to_string(member) + " has no lanes for round " + text(r);
    return contribute(member, without_lanes(r), no_lanes(bytes), std::move(what));
  }
  // Applies to dataplanes of which `lengthens` is true, or false, alone.
  VectorWriter& only_for(bool lengthens) {
    vector_.lengthens = lengthens;
    return *this;
  }
  VectorWriter& contribute(uint16_t member, const Round& r, const Bytes& lanes, std::string what = "") {
    if (what.empty()) what = "member " + std::to_string(member) + " contributes to round " + text(r);
    return feed(member, std::move(what), contribution(member, r, lanes));
  }
  VectorWriter& ask(uint16_t member, const Round& r, std::string what) {
    return feed(member, std::move(what), probe(member, r));
  }
  VectorWriter& expect_result_for_all(const Round& r, const Bytes& sum) {
    std::vector<Peer> all;
    for (uint16_t m = 0; m < job_.members; ++m) all.push_back(m);
    return expect(all, "the result of round " + text(r) + ", one frame for all", result(r, sum));
  }
  VectorWriter& expect_result_for(Peer peer, const Round& r, const Bytes& sum) {
    return expect({peer}, "the result of round " + text(r) + ", again", result(r, sum));
  }
  VectorWriter& expect_status(uint16_t member, const Round& r, uint64_t seen, bool again) {
    return expect({member}, again ? "who has contributed; contribute again" : "who has contributed",
                  status(member, r, seen, again));
  }
  VectorWriter& start_at(uint16_t slot, uint32_t round) {
    vector_.start.push_back({job_.job, slot, round});
    return *this;
  }
  VectorWriter& speak_for(size_t job_index) {
    job_ = vector_.jobs[job_index];
    return *this;
  }
  // What follows is sent as if the job were this one, whatever the dataplane has installed.
  VectorWriter& pretend(const VectorJob& job) {
    job_ = job;
    return *this;
  }
  const VectorJob& job() const { return job_; }
  Vector done() const { return vector_; }

  // --- Packets ---------------------------------------------------------------------------------------------
  Bytes contribution(uint16_t member, const Round& r, const Bytes& lanes) const {
    return build(NETSUM_TYPE_CONTRIBUTION, r.format, r.flags, member, r, lanes);
  }
  Bytes result(const Round& r, const Bytes& sum) const {
    return build(NETSUM_TYPE_RESULT, r.format, r.flags, NETSUM_MEMBER_ALL, r, sum);
  }
  Bytes probe(uint16_t member, const Round& r) const {
    return build(NETSUM_TYPE_PROBE, NETSUM_FORMAT_NONE, 0, member, r, Bytes(NETSUM_PROBE_BYTES));
  }
  Bytes status(uint16_t member, const Round& r, uint64_t seen, bool again) const {
    const netsum_be64 bitmap = netsum_put64(seen);
    return build(NETSUM_TYPE_STATUS, NETSUM_FORMAT_NONE, again ? NETSUM_FLAG_AGAIN : 0, member, r,
                 Bytes(bitmap.b, bitmap.b + sizeof bitmap));
  }
  Bytes error(const Round& asked, uint16_t blamed) const {
    const netsum_be16 code = netsum_put16(NETSUM_ERROR_MISMATCH), who = netsum_put16(blamed);
    return build(NETSUM_TYPE_ERROR, NETSUM_FORMAT_NONE, 0, NETSUM_MEMBER_ALL, asked,
                 {code.b[0], code.b[1], who.b[0], who.b[1], 0, 0, 0, 0});
  }
  Bytes hello(uint16_t member, uint32_t nonce) const { return greeting(NETSUM_TYPE_HELLO, member, nonce); }
  Bytes welcome(uint16_t member, uint32_t nonce) const {
    return greeting(NETSUM_TYPE_WELCOME, member, nonce);
  }

 private:
  static std::string text(const Round& r) {
    return std::to_string(r.round) + " of slot " + std::to_string(r.slot);
  }
  Bytes greeting(uint8_t type, uint16_t member, uint32_t nonce) const {
    const Round r{.slot = 0, .round = nonce, .chunk = 0, .signature = 0};
    return build(type, NETSUM_FORMAT_NONE, 0, member, r, Bytes(job_.payload_bytes));
  }
  Bytes build(uint8_t type, uint8_t format, uint8_t flags, uint16_t member, const Round& r,
              const Bytes& payload) const {
    netsum_fields f{};
    f.type = type;
    f.format = format;
    f.flags = flags;
    f.job = job_.job;
    f.epoch = job_.epoch;
    f.slot = r.slot;
    f.member = member;
    f.round = r.round;
    f.chunk = r.chunk;
    f.signature = r.signature;
    f.payload_bytes = static_cast<uint32_t>(payload.size());
    Bytes frame(NETSUM_HEADER_BYTES);
    frame.insert(frame.end(), payload.begin(), payload.end());
    wire::write_header(f, job_.packet_key(), frame.data());
    return frame;
  }

  Vector vector_;
  VectorJob job_;
};

}  // namespace netsum::conformance

#endif  // NETSUM_TESTS_CONFORMANCE_VECTOR_WRITER_H_
