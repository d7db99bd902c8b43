// The aggregator on Tofino: tna for Tofino 1, t2na with -D__TARGET_TOFINO__=2. It replies as v1model/netsum.p4 and the model do,
// to packets in the formats that it knows: docs/p4.md.
#include <core.p4>
#if __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

#include "aggregator/p4/tna/headers.p4"

#include "aggregator/p4/common/admit.p4"
#include "aggregator/p4/common/forward.p4"
#include "aggregator/p4/common/verdict.p4"
#include "aggregator/p4/tna/format.p4"
#include "aggregator/p4/tna/lanes.p4"
#include "aggregator/p4/tna/next.p4"
#include "aggregator/p4/tna/parser.p4"
#include "aggregator/p4/tna/slot.p4"

// The slot machine. Booleans stand for their expressions, which choose the actions of the registers.
control Slot(inout headers_t h, inout metadata_t m, in bit<32> before, in bit<32> after, in bit<32> own_shape) {
  Round() round;
  Identity() identity;
  Failed() failed;
  Seen() seen;
  Arrived() arrived;
  Verdict() verdict;
  apply {
    bit<32> over_round;
    bit<32> current_round;
    round.apply(h, m, before, over_round, current_round);
    bool contributes = m.later == 0 && h.netsum.packet_type == NETSUM_TYPE_CONTRIBUTION;
    bool opens = contributes && over_round == before && current_round == before;
    if (opens) {
      m.opens = 1;
    }
    bit<8> same_identity;
    bit<32> its_shape;
    identity.apply(h, m, opens, own_shape, same_identity, its_shape);
    bool open_round = current_round == h.netsum.round && over_round != h.netsum.round;
    bit<16> its_failure;
    failed.apply(h, m, opens, m.later == 1 && h.pass.step == NETSUM_P4_STEP_FAIL && open_round, its_failure);
    seen.apply(h, m, opens,
               contributes && open_round && same_identity == 1 && its_shape == own_shape && its_failure == 0,
               current_round == after);
    // `open_round` holds for each contribution between two passes: the round waits for it.
    arrived.apply(h, m, opens,
                  m.later == 1 && h.pass.step == NETSUM_P4_STEP_CONSUME && h.pass.lanes != NETSUM_P4_LANES_KEEP &&
                      h.pass.left_bytes == 0 && h.pass.part == m.last_part_in && open_round,
                  15w0 ++ h.netsum.flags[1:1]);
    verdict.apply(h, m);
  }
}

control NetsumIngress(inout headers_t h, inout metadata_t m, in ingress_intrinsic_metadata_t i,
                      in ingress_intrinsic_metadata_from_parser_t from_parser,
                      inout ingress_intrinsic_metadata_for_deparser_t d, inout ingress_intrinsic_metadata_for_tm_t tm) {
  Format() format;
  Job() job;
  Member() member;
  Refuse() refuse;
  Slot() slot;
  Lanes() lanes;
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
  action to_control() {
    h.packet_in.setValid();
    h.packet_in.port = 7w0 ++ i.ingress_port;
    tm.ucast_egress_port = NETSUM_TNA_CONTROL_PORT;
  }

  apply {
    bit<32> before = 0;
    bit<32> after = 0;
    bit<32> own_shape = 0;
    if (h.netsum.isValid()) {
      format.apply(h, m);
      job.apply(h, m);
      member.apply(h, m);
      before = h.netsum.round - 1;
      after = h.netsum.round + 1;
      m.payload_bytes = h.udp.length - (UDP_BYTES + NETSUM_HEADER_BYTES);
      m.ip_bytes = h.udp.length + IP_BYTES;
      own_shape = m.payload_bytes ++ 7w0 ++ h.netsum.flags[0:0] ++ h.netsum.format;
      m.bank_index = 22w0 ++ m.slot_index[8:0] ++ h.netsum.round[0:0];
      lanes.apply(h, m);
    }
    if (from_parser.parser_err != 0) {
      m.bad_frame = 1;
    }
    bool own = m.later == 1;
    if (!own && h.udp.isValid()) {
      own = own_addresses.apply().hit;
    }

    h.bridge.setValid();
    h.bridge.path = NETSUM_TNA_PATH_AS_IT_IS;
    h.bridge.number = 7w0 ++ i.ingress_port;
    bit<16> group = 0;
    if (h.packet_out.isValid()) {
      tm.ucast_egress_port = h.packet_out.port[8:0];
      h.packet_out.setInvalid();
    } else if (!own) {
      forward.apply(h, i.ingress_port, tm.ucast_egress_port, group);
      if (group != 0) {
        tm.mcast_grp_a = group;
        h.bridge.path = NETSUM_TNA_PATH_FLOOD;
      }
    } else if (m.bad_checksum == 1) {
      d.drop_ctl = 1;
    } else {
      if (m.later == 1 && m.bad_frame == 1) {
        m.drop = NETSUM_P4_COUNT_LOST_PASS;  // its words end before those that it promised
      } else {
        refuse.apply(h, m, i.ingress_port);
      }
      if (m.drop == NETSUM_DROP_NONE && h.netsum.packet_type != NETSUM_TYPE_HELLO) {
        slot.apply(h, m, before, after, own_shape);
      }
      next.apply(h, m);
      if (m.recirculate == 1) {
        tm.ucast_egress_port = NETSUM_TNA_RECIRCULATION_PORT;  // one port, so that packets keep their order
      } else if (m.to_member == 1) {
        tm.ucast_egress_port = m.member_port;
        h.bridge.path = NETSUM_TNA_PATH_MEMBER;
        h.bridge.number = m.addressee;
      } else if (m.to_all == 1) {
        tm.mcast_grp_a = m.multicast_group;
        h.bridge.path = NETSUM_TNA_PATH_ALL;
      } else if (m.to_control == 1) {
        to_control();
      } else {
        d.drop_ctl = 1;
      }
    }
  }
}

// Each copy of a reply gets the addresses of its member.
control NetsumEgress(inout headers_t h, inout metadata_t m, in egress_intrinsic_metadata_t e,
                     in egress_intrinsic_metadata_from_parser_t from_parser,
                     inout egress_intrinsic_metadata_for_deparser_t d,
                     inout egress_intrinsic_metadata_for_output_port_t port) {
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
  action nobody() {
    d.drop_ctl = 1;
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
  apply {
    if (h.bridge.path == NETSUM_TNA_PATH_FLOOD) {
      if (h.bridge.number[8:0] == e.egress_port) {
        d.drop_ctl = 1;
      }
    } else if (h.bridge.path != NETSUM_TNA_PATH_AS_IT_IS) {
      m.addressee = h.bridge.number;
      if (h.bridge.path == NETSUM_TNA_PATH_ALL) {
        m.addressee = e.egress_rid;
      }
      addresses.apply();
    }
  }
}

Pipeline(IngressParse(), NetsumIngress(), IngressDeparse(), EgressParse(), NetsumEgress(), EgressDeparse()) pipe;
@pkginfo(name="netsum", version=NETSUM_P4_PROGRAM_VERSION)
Switch(pipe) main;
