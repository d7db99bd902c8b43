// What a pass knows of its packet: the headers of headers.p4 and the metadata of metadata_t, by the same names.
#ifndef NETSUM_AGGREGATOR_P4_MODEL_PACKET_H_
#define NETSUM_AGGREGATOR_P4_MODEL_PACKET_H_

#include <array>
#include <cstdint>
#include <vector>

#include "aggregator/p4/sizes.h"
#include "wire/ids.h"

namespace netsum::p4 {

// Where a member is: what the switch takes from, and writes to, IP and UDP headers, and the port that its link is on.
struct Endpoint {
  uint32_t ip = 0;
  uint16_t udp_port = 0;
  uint16_t port = 0;
  bool operator==(const Endpoint&) const = default;
};

struct NetsumHeader {
  bool valid = false;
  uint8_t magic = 0, version_type = 0, format = 0, flags = 0;
  uint16_t job = 0, epoch = 0, slot = 0, member = 0;
  uint32_t round = 0, chunk = 0, signature = 0;
  uint64_t check = 0;
  uint8_t version() const { return version_type >> 4; }
  uint8_t type() const { return version_type & 15; }
};

// Carried between the passes of a packet, in front of the other headers.
struct PassHeader {
  bool valid = false;
  uint8_t step = NETSUM_P4_STEP_CONSUME;
  uint8_t group = 0;         // of 256 bytes of lanes
  uint8_t verdict = 0;       // of the passes before
  uint16_t blamed = 0;       // REPLY_ERROR: the member
  uint16_t lanes_bytes = 0;  // of the packet as it came
  uint16_t left_bytes = 0;   // of its payload, not consumed yet
};

struct Metadata {
  // Of the packet.
  Endpoint from;
  uint16_t payload_bytes = 0;  // of the datagram as it came
  uint16_t left_bytes = 0;     // behind the words that the parser has extracted
  uint8_t drop = NETSUM_DROP_NONE;
  // Of the job (table `jobs`) and the member (table `members`).
  uint16_t addressee = 0;  // the sender: replies go there
  uint16_t members = 0;
  uint32_t first_slot = 0;
  uint64_t everybody = 0;
  uint64_t cookie = 0;
  uint64_t bit = 0;
  // Of the parent (tables `parents` and `uplinks`).
  bool from_parent = false;  // the packet is one of its
  bool has_parent = false;
  bool waits = false;  // for the parent's WELCOME
  // Of the slot.
  uint32_t owner = 0;  // the job's index and epoch
  uint32_t bank_index = 0;
  uint32_t ahead = 0;  // packet's round - current, modulo 2^32
  bool before_is_over = false, is_over = false;
  bool opens = false;
  bool used = false, agrees = false;
  bool failed = false;
  uint16_t blamed = 0;
  uint64_t seen = 0;
  bool known = false;  // the member has contributed to the open round
  bool adds = false;   // this packet counts
  bool all_here = false;
  // What is done.
  uint8_t verdict = NETSUM_P4_VERDICT_DROP;
  bool again = false;
  uint8_t lanes = NETSUM_P4_LANES_KEEP;
  uint8_t combine = NETSUM_P4_COMBINE_SUM;
  uint64_t top_bits = 0;  // of the format's lanes
  uint8_t top_shift = 0;  // of the top bit of a lane
  bool lanes_overflow = false, overflow = false;
  // Where it goes: again through the pipeline, to the control plane, to one member, to all, or to the parent.
  bool recirculate = false, to_control = false, to_member = false, to_all = false, to_parent = false;
};

struct Packet {
  PassHeader pass;
  NetsumHeader netsum;
  std::array<uint64_t, NETSUM_P4_WORDS> words{};  // of the payload, as parsed: big-endian
  int word_count = 0;
  std::vector<uint8_t> payload;  // what the parser has not extracted
  Metadata meta;
};

}  // namespace netsum::p4

#endif  // NETSUM_AGGREGATOR_P4_MODEL_PACKET_H_
