// Headers of both P4 programs, with the names of model/packet.h.
#ifndef NETSUM_AGGREGATOR_P4_COMMON_HEADERS_P4_
#define NETSUM_AGGREGATOR_P4_COMMON_HEADERS_P4_

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

#endif
