// What is not for the aggregator: an ordinary switch, which also answers ARP requests for the aggregator's address.
#ifndef NETSUM_AGGREGATOR_P4_COMMON_FORWARD_P4_
#define NETSUM_AGGREGATOR_P4_COMMON_FORWARD_P4_

#include "aggregator/p4/common/headers.p4"

// It leaves by `egress_port`, or, if `group` is not 0, by all ports of this multicast group except `from_port`.
control Forward(inout headers_t h, in bit<9> from_port, inout bit<9> egress_port, inout bit<16> group) {
  action answer(bit<48> mac) {
    h.arp.kind = ARP_REPLY;
    h.arp.target_mac = h.arp.sender_mac;
    h.arp.sender_mac = mac;
    bit<32> asked = h.arp.target_ip;
    h.arp.target_ip = h.arp.sender_ip;
    h.arp.sender_ip = asked;
    h.ethernet.to = h.ethernet.from;
    h.ethernet.from = mac;
    egress_port = from_port;
  }
  table own_arp {
    key = {
      h.arp.kind: exact;
      h.arp.target_ip: exact;
    }
    actions = { answer; NoAction; }
    default_action = NoAction();
    size = 8;
  }
  action to_port(bit<9> port) {
    egress_port = port;
  }
  action flood() {
    group = NETSUM_P4_FLOOD_GROUP;
  }
  table macs {
    key = { h.ethernet.to: exact; }
    actions = { to_port; flood; }
    default_action = flood();
    size = 1024;
  }
  apply {
    bool answered = false;
    if (h.arp.isValid()) {
      answered = own_arp.apply().hit;
    }
    if (!answered) {
      macs.apply();
    }
  }
}

#endif
