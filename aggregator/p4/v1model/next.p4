// Where a packet goes, and what it becomes.
#ifndef NETSUM_AGGREGATOR_P4_V1MODEL_NEXT_P4_
#define NETSUM_AGGREGATOR_P4_V1MODEL_NEXT_P4_

#include "aggregator/p4/v1model/headers.p4"

control Next(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
  // By NETSUM_DROP_* and NETSUM_P4_COUNT_*.
  counter<bit<8>>(NETSUM_P4_COUNTERS, CounterType.packets) events;
  // By job.
  counter<bit<16>>(NETSUM_P4_JOBS, CounterType.packets) rounds;

  action recirculate_as(bit<8> step, bit<8> group) {
    h.pass.setValid();
    h.pass.step = step;
    h.pass.group = group;
    h.pass.verdict = m.verdict;
    h.pass.blamed = m.blamed;
    h.pass.left_bytes = m.left_bytes;
    m.recirculate = 1;
  }
  action reply_result() {
    h.netsum.packet_type = NETSUM_TYPE_RESULT;
    h.netsum.flags = (h.netsum.flags & NETSUM_FLAG_PART) | ((bit<8>)m.overflow << 1);
    h.netsum.member = NETSUM_MEMBER_ALL;
  }
  action reply_status() {  // in place of a PROBE's payload
    h.netsum.packet_type = NETSUM_TYPE_STATUS;
    h.netsum.flags = (bit<8>)m.again << 2;
    h.words[0].bits = m.seen;
    m.to_member = 1;
    m.event = NETSUM_P4_COUNT_STATUSES;
  }
  action reply_welcome() {
    h.netsum.packet_type = NETSUM_TYPE_WELCOME;
    h.netsum.flags = 0;
    h.netsum.check = m.cookie;
    m.to_member = 1;
    m.event = NETSUM_P4_COUNT_HELLOS;
  }
  action reply_error() {
    h.netsum.packet_type = NETSUM_TYPE_ERROR;
    h.netsum.format = NETSUM_FORMAT_NONE;
    h.netsum.flags = 0;
    h.netsum.member = NETSUM_MEMBER_ALL;
    h.words[0].setValid();
    h.words[0].bits = 16w1 ++ m.blamed ++ 32w0;  // 1: NETSUM_ERROR_MISMATCH
    h.udp.length = UDP_BYTES + NETSUM_HEADER_BYTES + NETSUM_ERROR_BYTES;
    h.ipv4.total_length = IP_BYTES + UDP_BYTES + NETSUM_HEADER_BYTES + NETSUM_ERROR_BYTES;
  }
  action contribute_up() {
    h.netsum.flags = (h.netsum.flags & NETSUM_FLAG_PART) | ((bit<8>)m.overflow << 1);
    m.to_parent = 1;
    m.event = NETSUM_P4_COUNT_SENT_TO_PARENT;
  }
  action probe_up() {  // the answer repeats the chunk, which names the member that asks
    h.netsum.flags = 0;
    h.netsum.chunk = (h.netsum.chunk << 6) + (bit<32>)h.netsum.member;
    h.words[0].bits = 0;
    m.to_parent = 1;
    m.event = NETSUM_P4_COUNT_SENT_TO_PARENT;
  }
  action to_control() {
    h.packet_in.setValid();
    h.packet_in.port = (bit<16>)s.ingress_port;
    s.egress_spec = NETSUM_P4_CONTROL_PORT;
  }

  apply {
    bit<8> step = NETSUM_P4_STEP_CONSUME;
    bit<8> group = 0;
    if (m.later == 1) {
      step = h.pass.step;
      group = h.pass.group;
    }
    h.pass.setInvalid();
    bit<16> last_byte = m.payload_bytes - 1;
    if (m.drop != NETSUM_DROP_NONE) {
      m.event = m.drop;
    } else if (m.verdict == NETSUM_P4_VERDICT_DROP) {
      // Counted by Verdict.
    } else if (m.verdict == NETSUM_P4_VERDICT_REPLY_STATUS) {
      reply_status();
    } else if (m.verdict == NETSUM_P4_VERDICT_PROBE_UP) {
      probe_up();
    } else if (m.verdict == NETSUM_P4_VERDICT_TO_CONTROL) {
      to_control();
    } else if (m.verdict == NETSUM_P4_VERDICT_WELCOME) {
      reply_welcome();
    } else if (step == NETSUM_P4_STEP_HARVEST) {
      if (group != 0) {
        recirculate_as(NETSUM_P4_STEP_HARVEST, group - 1);
      } else if (m.verdict == NETSUM_P4_VERDICT_SEND_UP) {
        contribute_up();
      } else {
        reply_result();
        if (m.verdict == NETSUM_P4_VERDICT_REPLY_RESULT) {
          m.to_member = 1;
          m.event = NETSUM_P4_COUNT_RESULTS_REPEATED;
        } else {
          m.to_all = 1;
          m.event = NETSUM_P4_COUNT_ROUNDS_COMPLETED;
          rounds.count(h.netsum.job);
          if (m.overflow == 1) {
            events.count(NETSUM_P4_COUNT_OVERFLOWS);
          }
        }
      }
    } else {
      if (step == NETSUM_P4_STEP_CONSUME) {
        h.words.pop_front(NETSUM_P4_WORDS);  // consumed
        if (m.adds == 1 && m.later == 0) {
          m.event = NETSUM_P4_COUNT_CONTRIBUTIONS;
        }
      }
      if (m.left_bytes != 0) {
        recirculate_as(NETSUM_P4_STEP_CONSUME, group + 1);
      } else if (m.adds == 1) {
        if (m.all_here == 1) {
          m.verdict = NETSUM_P4_VERDICT_RESULT_ALL;
          if (m.has_parent == 1) {
            m.verdict = NETSUM_P4_VERDICT_SEND_UP;
          }
          recirculate_as(NETSUM_P4_STEP_HARVEST, last_byte[15:8]);
        }
      } else if (m.verdict == NETSUM_P4_VERDICT_TAKE_RESULT) {
        m.verdict = NETSUM_P4_VERDICT_RESULT_ALL;
        recirculate_as(NETSUM_P4_STEP_HARVEST, last_byte[15:8]);
      } else if (m.verdict == NETSUM_P4_VERDICT_REPLY_ERROR) {
        reply_error();
        m.to_member = 1;
      } else if (m.verdict != NETSUM_P4_VERDICT_ERROR_ALL) {
        recirculate_as(NETSUM_P4_STEP_HARVEST, last_byte[15:8]);
      } else if (step != NETSUM_P4_STEP_FAIL) {
        recirculate_as(NETSUM_P4_STEP_FAIL, 0);
      } else {
        reply_error();
        m.to_all = 1;
        m.event = NETSUM_P4_COUNT_MISMATCHES;
      }
    }
    if (m.event != 0) {
      events.count(m.event);
    }
    if (m.recirculate == 1) {
      s.egress_spec = NETSUM_P4_RECIRCULATION_PORT;  // one port, so that packets keep their order
    } else if (m.to_member == 1) {
      s.egress_spec = m.member_port;
    } else if (m.to_parent == 1) {
      s.egress_spec = m.parent_port;
    } else if (m.to_all == 1) {
      s.mcast_grp = m.multicast_group;
    } else if (m.verdict != NETSUM_P4_VERDICT_TO_CONTROL || m.drop != NETSUM_DROP_NONE) {
      mark_to_drop(s);
    }
  }
}

#endif
