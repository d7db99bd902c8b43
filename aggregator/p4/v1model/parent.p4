// Hierarchy: the job of another aggregator, the parent, of which a job is a member. netsum_check_parent(),
// netsum_slot_from_parent() and what slot.h does for rules with has_parent.
#ifndef NETSUM_AGGREGATOR_P4_V1MODEL_PARENT_P4_
#define NETSUM_AGGREGATOR_P4_V1MODEL_PARENT_P4_

#include "aggregator/p4/v1model/headers.p4"

// A parent's packet names the own job from here on, and so do its later passes, in which its type alone tells whose it is. A
// STATUS is for the member in whose name its PROBE went up; an ERROR blames nobody here.
control FromParent(inout headers_t h, inout metadata_t m) {
  action is_parent(bit<16> own_job, bit<16> parents_epoch, bit<64> parents_cookie) {
    m.from_parent = 1;
    m.parents_epoch = parents_epoch;
    m.parents_cookie = parents_cookie;
    h.netsum.job = own_job;
  }
  table parents {
    key = {
      h.ipv4.from: exact;
      h.udp.from: exact;
      h.netsum.job: exact;
    }
    actions = { is_parent; NoAction; }
    default_action = NoAction();
    size = NETSUM_P4_JOBS;
  }
  apply {
    if (h.netsum.packet_type == NETSUM_TYPE_RESULT || h.netsum.packet_type == NETSUM_TYPE_STATUS ||
        h.netsum.packet_type == NETSUM_TYPE_ERROR || h.netsum.packet_type == NETSUM_TYPE_WELCOME) {
      if (m.later == 1) {
        m.from_parent = 1;
      } else if (parents.apply().hit) {
        h.netsum.member = NETSUM_MEMBER_ALL;
        if (h.netsum.packet_type == NETSUM_TYPE_STATUS) {
          h.netsum.member = (bit<16>)h.netsum.chunk[5:0];
          h.netsum.chunk = h.netsum.chunk >> 6;
        }
      }
    }
  }
}

// Refuse has let a parent's packet come as far as the rules of members, or, in a later pass, has missed the member.
control AdmitParent(inout headers_t h, inout metadata_t m, in bit<9> from_port) {
  action has_parent(bit<9> port, bit<1> waits) {
    m.has_parent = 1;
    m.parent_port = port;
    m.waits = waits;
  }
  table uplinks {
    key = { h.netsum.job: exact; }
    actions = { has_parent; NoAction; }
    default_action = NoAction();
    size = NETSUM_P4_JOBS;
  }
  apply {
    if (h.netsum.isValid()) {
      uplinks.apply();
    }
    if (m.from_parent == 1 && m.later == 1) {
      if (m.job_known == 1 && h.netsum.epoch == m.epoch) {
        m.drop = NETSUM_DROP_NONE;
      }
    } else if (m.from_parent == 1 && m.drop == NETSUM_DROP_BAD_TYPE) {
      if (h.netsum.epoch != m.parents_epoch) {
        m.drop = NETSUM_DROP_STALE_EPOCH;
      } else if (h.netsum.slot >= m.slots) {
        m.drop = NETSUM_DROP_BAD_SLOT;
      } else if (m.payload_bytes > m.largest_payload) {
        m.drop = NETSUM_DROP_BAD_LENGTH;
      } else if (m.parents_cookie != 0 && h.netsum.check != m.parents_cookie) {
        m.drop = NETSUM_DROP_BAD_CHECK;
      } else if (m.waits == 0 && from_port != m.parent_port) {
        m.drop = NETSUM_DROP_UNKNOWN_PEER;
      } else {
        m.drop = NETSUM_DROP_NONE;
        h.netsum.epoch = m.epoch;
        h.netsum.check = m.cookie;
        m.owner = h.netsum.job ++ m.epoch;
      }
    }
  }
}

// In place of Verdict. Only a round whose sum is with the parent takes something from it.
control ParentVerdict(inout headers_t h, inout metadata_t m) {
  apply {
    bool summed = m.ahead == 0 && m.used == 1 && m.failed == 0 && m.all_here == 1 && m.is_over == 0;
    if (m.later == 1) {
      bool there = summed;
      if (h.pass.step == NETSUM_P4_STEP_HARVEST) {
        there = m.ahead == 0 || m.ahead == NETSUM_P4_AHEAD_BEFORE;
      }
      if (there) {
        m.verdict = h.pass.verdict;
      } else {
        m.event = NETSUM_P4_COUNT_LOST_PASS;
      }
    } else if (!summed) {
      if (m.ahead[31:31] == 0 && (m.ahead != 0 || m.used == 0)) {
        m.drop = NETSUM_DROP_FUTURE_ROUND;
      } else {
        m.drop = NETSUM_DROP_STALE_ROUND;
      }
    } else if (h.netsum.packet_type == NETSUM_TYPE_STATUS) {
      if (h.netsum.member < m.members) {
        m.verdict = NETSUM_P4_VERDICT_REPLY_STATUS;
        m.again = h.netsum.flags[2:2];
      } else {
        m.drop = NETSUM_DROP_BAD_MEMBER;
      }
    } else if (h.netsum.packet_type == NETSUM_TYPE_ERROR) {
      m.verdict = NETSUM_P4_VERDICT_ERROR_ALL;
    } else if (m.agrees == 1) {
      m.verdict = NETSUM_P4_VERDICT_TAKE_RESULT;
    } else {
      m.drop = NETSUM_DROP_STALE_ROUND;
    }
  }
}

// Verdicts of a job with a parent that one without would not get. Until the parent has answered, no member is welcome.
control Uplink(inout headers_t h, inout metadata_t m) {
  apply {
    if (m.has_parent == 1 && m.later == 0 && m.drop == NETSUM_DROP_NONE) {
      bool with_parent = m.ahead == 0 && m.all_here == 1 && m.is_over == 0;
      if (h.netsum.packet_type == NETSUM_TYPE_HELLO || h.netsum.packet_type == NETSUM_TYPE_WELCOME) {
        if (m.waits == 1) {
          m.verdict = NETSUM_P4_VERDICT_TO_CONTROL;
        }
      } else if (m.from_parent == 0 && with_parent) {
        if (m.verdict == NETSUM_P4_VERDICT_REPLY_STATUS) {
          m.verdict = NETSUM_P4_VERDICT_PROBE_UP;
        } else if (m.verdict == NETSUM_P4_VERDICT_RESULT_ALL) {
          m.verdict = NETSUM_P4_VERDICT_SEND_UP;
        }
      }
    }
  }
}

#endif
