// Headers and metadata. Those of netsum have the names of model/packet.h.
#ifndef NETSUM_AGGREGATOR_P4_V1MODEL_HEADERS_P4_
#define NETSUM_AGGREGATOR_P4_V1MODEL_HEADERS_P4_

#include "aggregator/p4/sizes.h"
#include "wire/ids.h"

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_ARP 0x0806
#define IP_PROTOCOL_UDP 17
#define IP_BYTES 20
#define UDP_BYTES 8
#define ETHERNET_BYTES 14

header ethernet_t {
  bit<48> to;
  bit<48> from;
  bit<16> ethertype;
}

// Ethernet and IPv4 only.
header arp_t {
  bit<64> kind;  // hardware and protocol types and lengths, and the operation
  bit<48> sender_mac;
  bit<32> sender_ip;
  bit<48> target_mac;
  bit<32> target_ip;
}
#define ARP_REQUEST 0x0001080006040001
#define ARP_REPLY 0x0001080006040002

header ipv4_t {
  bit<8> version_ihl;
  bit<8> tos;
  bit<16> total_length;
  bit<16> id;
  bit<16> flags_offset;
  bit<8> ttl;
  bit<8> protocol;
  bit<16> checksum;
  bit<32> from;
  bit<32> to;
}

header udp_t {
  bit<16> from;
  bit<16> to;
  bit<16> length;
  bit<16> checksum;
}

// In front of a frame to the control plane, and of one that it sends. Behind the latter nothing is parsed.
@controller_header("packet_in")
header packet_in_t {
  bit<16> port;  // by which it came
}
@controller_header("packet_out")
header packet_out_t {
  bit<16> port;  // by which it leaves
}

// Carried between the passes of a packet, in front of the other headers.
header pass_t {
  bit<8> step;        // NETSUM_P4_STEP_*
  bit<8> group;       // of 256 bytes of lanes
  bit<8> verdict;     // of the passes before
  bit<16> blamed;     // REPLY_ERROR: the member
  bit<16> left_bytes; // of the payload, not consumed yet
}

header netsum_t {
  bit<8> magic;
  bit<4> version;
  bit<4> packet_type;
  bit<8> format;
  bit<8> flags;
  bit<16> job;
  bit<16> epoch;
  bit<16> slot;
  bit<16> member;
  bit<32> round;
  bit<32> chunk;
  bit<32> signature;
  bit<64> check;
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
  bit<8> drop;            // NETSUM_DROP_*
  // Of the format (table formats).
  bit<1> format_known;
  bit<1> values;
  bit<8> combine;
  bit<64> top_bits;
  bit<8> top_shift;
  // Of the job (table jobs) and the member (table members).
  bit<16> addressee;
  bit<16> members;
  bit<32> first_slot;
  bit<64> everybody;
  bit<64> cookie;
  bit<16> multicast_group;
  bit<64> member_bit;
  bit<9> member_port;
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
  bit<1> flooded;
}

#endif
