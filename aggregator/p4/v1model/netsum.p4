// The aggregator on BMv2's simple_switch (v1model). aggregator/p4/model is the same in C++, control by control, and is what
// the tests run: docs/p4.md.
#include <core.p4>
#define V1MODEL_VERSION 20200408
#include <v1model.p4>

#include "aggregator/p4/v1model/headers.p4"

#include "aggregator/p4/common/admit.p4"
#include "aggregator/p4/common/forward.p4"
#include "aggregator/p4/common/verdict.p4"
#include "aggregator/p4/v1model/format.p4"
#include "aggregator/p4/v1model/lanes.p4"
#include "aggregator/p4/v1model/next.p4"
#include "aggregator/p4/v1model/parent.p4"
#include "aggregator/p4/v1model/parser.p4"
#include "aggregator/p4/v1model/slot.p4"

control NetsumIngress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
  Format() format;
  FromParent() from_parent;
  Job() job;
  Member() member;
  Refuse() refuse;
  AdmitParent() admit_parent;
  Round() round;
  Identity() identity;
  Failed() failed;
  Seen() seen;
  Arrived() arrived;
  Verdict() verdict;
  ParentVerdict() parent_verdict;
  Uplink() uplink;
  Lanes() lanes;
  Overflow() overflow;
  Next() next;
  Forward() forward;

  // The aggregator's addresses.
  table own_addresses {
    key = {
      h.ipv4.to: exact;
      h.udp.to: exact;
    }
    actions = { NoAction; }
    default_action = NoAction();
    size = 8;
  }

  // Answers to the control plane's ARP requests.
  action arp_to_control() {
    h.packet_in.setValid();
    h.packet_in.port = (bit<16>)s.ingress_port;
    s.egress_spec = NETSUM_P4_CONTROL_PORT;
  }
  table own_arp_replies {
    key = {
      h.arp.kind: exact;
      h.arp.target_ip: exact;
    }
    actions = { arp_to_control; NoAction; }
    default_action = NoAction();
    size = 8;
  }

  apply {
    bool own = m.later == 1;
    if (!own && h.udp.isValid()) {
      own = own_addresses.apply().hit;
    }
    if (h.packet_out.isValid()) {
      s.egress_spec = h.packet_out.port[8:0];
      h.packet_out.setInvalid();
    } else if (!own) {
      bool taken = false;
      if (h.arp.isValid()) {
        taken = own_arp_replies.apply().hit;
      }
      if (!taken) {
        forward.apply(h, s.ingress_port, s.egress_spec, s.mcast_grp);
      }
      if (s.mcast_grp != 0) {
        m.flooded = 1;
      }
    } else if (m.later == 0 && s.checksum_error == 1) {
      mark_to_drop(s);
    } else {
      if (h.netsum.isValid()) {
        format.apply(h, m);
        from_parent.apply(h, m);
        job.apply(h, m);
        member.apply(h, m);
        m.bank_index = (m.slot_index << 1) | (h.netsum.round & 1);
      }
      m.ip_bytes = h.udp.length + IP_BYTES;
      if (s.parser_error != error.NoError || s.packet_length != (bit<32>)h.ipv4.total_length + ETHERNET_BYTES) {
        m.bad_frame = 1;
      }
      refuse.apply(h, m, s.ingress_port);
      admit_parent.apply(h, m, s.ingress_port);
      if (m.drop == NETSUM_DROP_NONE && h.netsum.packet_type != NETSUM_TYPE_HELLO &&
          h.netsum.packet_type != NETSUM_TYPE_WELCOME) {
        round.apply(h, m);
        identity.apply(h, m);
        failed.apply(h, m);
        seen.apply(h, m);
        arrived.apply(h, m);
        if (m.from_parent == 1) {
          parent_verdict.apply(h, m);
        } else {
          verdict.apply(h, m);
        }
        lanes.apply(h, m);
        overflow.apply(h, m);
      }
      uplink.apply(h, m);
      next.apply(h, m, s);
    }
  }
}

// Each copy of a reply gets the addresses of its member. What goes to a parent becomes a packet of a member of its job.
control NetsumEgress(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
  action send_to(bit<48> mac, bit<32> ip, bit<16> udp_port) {
    h.ethernet.from = h.ethernet.to;
    h.ethernet.to = mac;
    h.ipv4.from = h.ipv4.to;
    h.ipv4.to = ip;
    h.ipv4.ttl = 64;
    h.udp.from = h.udp.to;
    h.udp.to = udp_port;
    h.udp.checksum = 0;
  }
  action send_up(bit<48> mac, bit<32> ip, bit<16> udp_port, bit<16> parents_job, bit<16> parents_epoch,
                 bit<16> own_member, bit<64> parents_cookie) {
    send_to(mac, ip, udp_port);
    h.netsum.job = parents_job;
    h.netsum.epoch = parents_epoch;
    h.netsum.member = own_member;
    h.netsum.check = parents_cookie;
  }
  action nobody() {
    mark_to_drop(s);
  }
  table addresses {
    key = {
      h.netsum.job: exact;
      m.addressee: exact;
    }
    actions = { send_to; nobody; }
    default_action = nobody();
    size = NETSUM_P4_MEMBERS;
  }
  table parent_addresses {
    key = { h.netsum.job: exact; }
    actions = { send_up; nobody; }
    default_action = nobody();
    size = NETSUM_P4_JOBS;
  }
  apply {
    if (m.recirculate == 1) {
      recirculate_preserving_field_list(0);
    } else if (m.flooded == 1) {
      if (s.egress_port == s.ingress_port) {
        mark_to_drop(s);
      }
    } else if (m.to_member == 1 || m.to_all == 1) {
      if (m.to_all == 1) {
        m.addressee = s.egress_rid;
      }
      addresses.apply();
    } else if (m.to_parent == 1) {
      parent_addresses.apply();
    }
  }
}

@pkginfo(name="netsum", version=NETSUM_P4_PROGRAM_VERSION)
V1Switch(Parse(), Verify(), NetsumIngress(), NetsumEgress(), Update(), Deparse()) main;
