// Parsers and deparsers of ingress and egress.
#ifndef NETSUM_AGGREGATOR_P4_TNA_PARSER_P4_
#define NETSUM_AGGREGATOR_P4_TNA_PARSER_P4_

#include "aggregator/p4/tna/headers.p4"

parser IngressParse(packet_in packet, out headers_t h, out metadata_t m, out ingress_intrinsic_metadata_t i) {
  Checksum() ip_checksum;
  ParserCounter() words;
  state start {
    packet.extract(i);
    packet.advance(PORT_METADATA_SIZE);
    transition select(i.ingress_port) {
      NETSUM_TNA_RECIRCULATION_PORT: later_pass;
      NETSUM_TNA_CONTROL_PORT: from_control;
      default: ethernet;
    }
  }
  state from_control {
    packet.extract(h.packet_out);
    transition accept;
  }
  // What has passed the first pass: there is nothing to find out.
  state later_pass {
    packet.extract(h.pass);
    packet.extract(h.ethernet);
    packet.extract(h.ipv4);
    packet.extract(h.udp);
    packet.extract(h.netsum);
    m.later = 1;
    words.set(h.pass.words);
    transition words_left;
  }
  state words_left {
    transition select(words.is_zero()) {
      true: accept;
      false: word;
    }
  }
  state word {
    packet.extract(h.words.next);
    words.decrement(1);
    transition words_left;
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
    ip_checksum.add(h.ipv4);
    m.bad_checksum = (bit<1>)ip_checksum.verify();
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
    transition select(h.netsum.packet_type, h.udp.length) {
      (NETSUM_TYPE_PROBE, UDP_BYTES + NETSUM_HEADER_BYTES + NETSUM_PROBE_BYTES): answer;
      default: accept;
    }
  }
  state answer {
    packet.extract(h.answer);
    transition accept;
  }
}

control IngressDeparse(packet_out packet, inout headers_t h, in metadata_t m,
                       in ingress_intrinsic_metadata_for_deparser_t d) {
  apply {
    packet.emit(h.bridge);
    packet.emit(h.packet_in);
    packet.emit(h.pass);
    packet.emit(h.ethernet);
    packet.emit(h.arp);
    packet.emit(h.ipv4);
    packet.emit(h.udp);
    packet.emit(h.netsum);
    packet.emit(h.answer);
    packet.emit(h.words);
  }
}

// Only replies to members are more than bytes to the egress.
parser EgressParse(packet_in packet, out headers_t h, out metadata_t m, out egress_intrinsic_metadata_t e) {
  state start {
    packet.extract(e);
    packet.extract(h.bridge);
    transition select(h.bridge.path) {
      NETSUM_TNA_PATH_MEMBER: reply;
      NETSUM_TNA_PATH_ALL: reply;
      default: accept;
    }
  }
  state reply {
    packet.extract(h.ethernet);
    packet.extract(h.ipv4);
    packet.extract(h.udp);
    packet.extract(h.netsum);
    transition accept;
  }
}

control EgressDeparse(packet_out packet, inout headers_t h, in metadata_t m,
                      in egress_intrinsic_metadata_for_deparser_t d) {
  Checksum() ip_checksum;
  apply {
    if (h.ipv4.isValid()) {
      h.ipv4.checksum = ip_checksum.update({h.ipv4.version_ihl, h.ipv4.tos, h.ipv4.total_length, h.ipv4.id,
                                            h.ipv4.flags_offset, h.ipv4.ttl, h.ipv4.protocol, h.ipv4.from, h.ipv4.to});
    }
    packet.emit(h.ethernet);
    packet.emit(h.ipv4);
    packet.emit(h.udp);
    packet.emit(h.netsum);
  }
}

#endif
