// Headers and metadata, with the names of model/packet.h.
#ifndef NETSUM_AGGREGATOR_P4_V1MODEL_HEADERS_P4_
#define NETSUM_AGGREGATOR_P4_V1MODEL_HEADERS_P4_

#include "aggregator/p4/common/headers.p4"

// Carried between the passes of a packet, in front of the other headers.
header pass_t {
  bit<8> step;        // NETSUM_P4_STEP_*
  bit<8> group;       // of 256 bytes of lanes
  bit<8> verdict;     // of the passes before
  bit<16> blamed;     // REPLY_ERROR: the member
  bit<16> left_bytes; // of the payload, not consumed yet
}

header word_t {
  bit<64> bits;
}

struct headers_t {
  packet_in_t packet_in;
  packet_out_t packet_out;
  pass_t pass;
  ethernet_t ethernet;
  arp_t arp;
  ipv4_t ipv4;
  udp_t udp;
  netsum_t netsum;
  word_t[NETSUM_P4_WORDS] words;
}

struct metadata_t {
  // Of the packet.
  bit<1> later;           // not its first pass
  bit<16> payload_bytes;  // of the datagram as it came
  bit<8> words;           // that the parser has extracted
  bit<16> left_bytes;     // behind them
  bit<16> ip_bytes;       // that the UDP header implies
  bit<1> bad_frame;       // the frame's length is not that of its headers
  bit<8> drop;            // NETSUM_DROP_*
  // Of the format (table formats).
  bit<1> format_known;
  bit<1> values;
  bit<8> combine;
  bit<64> top_bits;
  bit<8> top_shift;
  // Of the job (table jobs) and the member (table members).
  bit<16> addressee;
  bit<1> job_known;
  bit<16> epoch;
  bit<16> members;
  bit<16> slots;
  bit<16> largest_payload;
  bit<64> everybody;
  bit<64> cookie;
  bit<16> multicast_group;
  bit<1> member_known;
  bit<32> member_ip;
  bit<16> member_udp_port;
  bit<64> member_bit;
  bit<9> member_port;
  // Of the parent (tables parents and uplinks).
  bit<1> from_parent;  // the packet is one of its
  bit<16> parents_epoch;
  bit<64> parents_cookie;
  bit<1> has_parent;
  bit<1> waits;  // for the parent's WELCOME
  bit<9> parent_port;
  // Of the slot.
  bit<32> owner;  // the job's index and epoch
  bit<32> slot_index;
  bit<32> bank_index;
  bit<32> lanes_index;
  bit<32> ahead;
  bit<1> before_is_over;
  bit<1> is_over;
  bit<1> opens;
  bit<1> used;
  bit<1> agrees;
  bit<1> failed;
  bit<16> blamed;
  bit<64> seen;
  bit<1> known;
  bit<1> adds;
  bit<1> all_here;
  // What is done.
  bit<8> verdict;
  bit<1> again;
  bit<8> lanes;
  bit<16> harvest_words;
  bit<1> lanes_overflow;
  bit<1> overflow;
  bit<8> event;  // a counter, or 0
  // Where it goes.
  bit<1> recirculate;
  bit<1> to_member;
  bit<1> to_all;
  bit<1> to_parent;
  bit<1> flooded;
}

#endif
