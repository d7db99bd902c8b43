// Parser, checksums and deparser.
#ifndef NETSUM_AGGREGATOR_P4_V1MODEL_PARSER_P4_
#define NETSUM_AGGREGATOR_P4_V1MODEL_PARSER_P4_

#include "aggregator/p4/v1model/headers.p4"

#define INSTANCE_RECIRCULATED 4

parser Parse(packet_in packet, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {
  state start {
    transition select(s.instance_type) {
      INSTANCE_RECIRCULATED: later_pass;
      default: first_pass;
    }
  }
  state first_pass {
    transition select(s.ingress_port) {
      NETSUM_P4_CONTROL_PORT: from_control;
      default: ethernet;
    }
  }
  state from_control {
    packet.extract(h.packet_out);
    transition accept;
  }
  state later_pass {
    packet.extract(h.pass);
    m.later = 1;
    m.left_bytes = h.pass.left_bytes;  // 0 in passes that do not consume
    transition ethernet;
  }
  state ethernet {
    packet.extract(h.ethernet);
    transition select(h.ethernet.ethertype) {
      ETHERTYPE_ARP: arp;
      ETHERTYPE_IPV4: ipv4;
      default: accept;
    }
  }
  state arp {
    packet.extract(h.arp);
    transition accept;
  }
  // Without options and fragments: others are forwarded, as are those of other protocols.
  state ipv4 {
    packet.extract(h.ipv4);
    transition select(h.ipv4.version_ihl, h.ipv4.flags_offset, h.ipv4.protocol) {
      (0x45, 0 &&& 0x3FFF, IP_PROTOCOL_UDP): udp;
      default: accept;
    }
  }
  state udp {
    packet.extract(h.udp);
    transition select(h.udp.to, h.udp.length) {
      (NETSUM_P4_DATA_PORT, 0 .. UDP_BYTES + NETSUM_HEADER_BYTES - 1): accept;  // too short
      (NETSUM_P4_DATA_PORT, _): netsum;
      default: accept;
    }
  }
  state netsum {
    packet.extract(h.netsum);
    m.payload_bytes = h.udp.length - (UDP_BYTES + NETSUM_HEADER_BYTES);
    transition select(m.later) {
      0: first_words;
      default: words;
    }
  }
  state first_words {
    m.left_bytes = m.payload_bytes;
    transition words;
  }
  state words {
    transition select(m.left_bytes) {
      0 &&& 0xFFF8: accept;  // fewer than 8 bytes
      default: word;
    }
  }
  state word {
    packet.extract(h.words.next);
    m.left_bytes = m.left_bytes - 8;
    m.words = m.words + 1;
    transition select(m.words, m.left_bytes) {
      (NETSUM_P4_WORDS, _): accept;
      (_, 0 &&& 0xFFF8): accept;
      default: word;
    }
  }
}

control Verify(inout headers_t h, inout metadata_t m) {
  apply {
    verify_checksum(h.ipv4.isValid(),
                    {h.ipv4.version_ihl, h.ipv4.tos, h.ipv4.total_length, h.ipv4.id, h.ipv4.flags_offset, h.ipv4.ttl,
                     h.ipv4.protocol, h.ipv4.from, h.ipv4.to},
                    h.ipv4.checksum, HashAlgorithm.csum16);
  }
}

control Update(inout headers_t h, inout metadata_t m) {
  apply {
    update_checksum(h.ipv4.isValid() && (m.to_member == 1 || m.to_all == 1 || m.to_parent == 1),
                    {h.ipv4.version_ihl, h.ipv4.tos, h.ipv4.total_length, h.ipv4.id, h.ipv4.flags_offset, h.ipv4.ttl,
                     h.ipv4.protocol, h.ipv4.from, h.ipv4.to},
                    h.ipv4.checksum, HashAlgorithm.csum16);
  }
}

control Deparse(packet_out packet, in headers_t h) {
  apply {
    packet.emit(h.packet_in);
    packet.emit(h.pass);
    packet.emit(h.ethernet);
    packet.emit(h.arp);
    packet.emit(h.ipv4);
    packet.emit(h.udp);
    packet.emit(h.netsum);
    packet.emit(h.words);
  }
}

#endif
