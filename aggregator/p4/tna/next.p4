// Where a packet goes, and what it becomes.
#ifndef NETSUM_AGGREGATOR_P4_TNA_NEXT_P4_
#define NETSUM_AGGREGATOR_P4_TNA_NEXT_P4_

#include "aggregator/p4/tna/headers.p4"

#define DROP_WORD(i) h.words[i].setInvalid();

control Next(inout headers_t h, inout metadata_t m) {
  // By NETSUM_DROP_* and NETSUM_P4_COUNT_*, without NETSUM_P4_COUNT_OVERFLOWS: a counter counts one event per pass.
  Counter<bit<32>, bit<8>>(NETSUM_P4_COUNTERS, CounterType_t.PACKETS) events;
  // By job.
  Counter<bit<32>, bit<16>>(NETSUM_P4_JOBS, CounterType_t.PACKETS) rounds;
  Counter<bit<32>, bit<16>>(NETSUM_P4_JOBS, CounterType_t.PACKETS) overflows;

  action drop_words() {
    DROP_WORD(0)
    DROP_WORD(1)
    DROP_WORD(2)
    DROP_WORD(3)
    DROP_WORD(4)
    DROP_WORD(5)
    DROP_WORD(6)
    DROP_WORD(7)
    DROP_WORD(8)
    DROP_WORD(9)
    DROP_WORD(10)
    DROP_WORD(11)
    DROP_WORD(12)
    DROP_WORD(13)
    DROP_WORD(14)
    DROP_WORD(15)
    DROP_WORD(16)
    DROP_WORD(17)
    DROP_WORD(18)
    DROP_WORD(19)
    DROP_WORD(20)
    DROP_WORD(21)
    DROP_WORD(22)
    DROP_WORD(23)
    DROP_WORD(24)
    DROP_WORD(25)
    DROP_WORD(26)
    DROP_WORD(27)
    DROP_WORD(28)
    DROP_WORD(29)
    DROP_WORD(30)
    DROP_WORD(31)
  }
  action recirculate_as(bit<8> step, bit<8> group, bit<8> part, bit<8> lanes, bit<8> element) {
    h.pass.setValid();
    h.pass.step = step;
    h.pass.group = group;
    h.pass.part = part;
    h.pass.lanes = lanes;
    h.pass.element = element;
    h.pass.verdict = m.verdict;
    h.pass.blamed = m.blamed;
    m.recirculate = 1;
  }
  // The next 128 bytes of the payload, or what is left of it. Contributions that count are stored or added.
  action consume(bit<8> group, bit<8> lanes) {
    recirculate_as(NETSUM_P4_STEP_CONSUME, group, 0, lanes, 0);
    h.pass.room = 0;
  }
  // The sum's last 128 bytes, or fewer, come first, because each pass puts its words in front of the payload.
  action harvest(bit<8> group, bit<8> room) {
    recirculate_as(NETSUM_P4_STEP_HARVEST, group, 0, NETSUM_P4_LANES_READ, 0);
    h.pass.words = 0;
    h.pass.room = room;
    h.pass.left_bytes = 0;
  }
  action reply_result() {
    h.netsum.packet_type = NETSUM_TYPE_RESULT;
    h.netsum.flags = (h.netsum.flags & NETSUM_FLAG_PART) | (6w0 ++ m.overflow ++ 1w0);
    h.netsum.member = NETSUM_MEMBER_ALL;
  }
  action reply_status() {  // in place of a PROBE's payload
    h.netsum.packet_type = NETSUM_TYPE_STATUS;
    h.netsum.flags = 5w0 ++ m.again ++ 2w0;
    h.answer.high = m.seen[63:32];
    h.answer.low = m.seen[31:0];
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
    h.answer.setValid();
    h.answer.high = 16w1 ++ m.blamed;  // 1: NETSUM_ERROR_MISMATCH
    h.answer.low = 0;
    h.udp.length = UDP_BYTES + NETSUM_HEADER_BYTES + NETSUM_ERROR_BYTES;
    h.ipv4.total_length = IP_BYTES + UDP_BYTES + NETSUM_HEADER_BYTES + NETSUM_ERROR_BYTES;
  }

  apply {
    bit<16> left_bytes = 0;  // of the payload, behind this pass
    bit<8> next_group = 0;
    bit<8> next_part = 0;
    if (m.later == 1) {
      left_bytes = h.pass.left_bytes;
      next_group = h.pass.group + 1;
      next_part = h.pass.part + 1;
    } else if (!h.answer.isValid()) {
      left_bytes = m.payload_bytes;
    }
    bit<16> left_behind = left_bytes - NETSUM_TNA_PASS_BYTES;
    bit<16> last_byte = m.payload_bytes - 1;
    bit<8> last_words = 3w0 ++ last_byte[6:2];
    last_words = last_words + 1;
    bool harvests = m.later == 1 && h.pass.step == NETSUM_P4_STEP_HARVEST;
    bool consumes = m.later == 1 && h.pass.step == NETSUM_P4_STEP_CONSUME;
    bool counts = m.verdict == NETSUM_P4_VERDICT_STORE || m.verdict == NETSUM_P4_VERDICT_ADD;
    if (m.drop != NETSUM_DROP_NONE) {
      m.event = m.drop;
    } else if (m.verdict == NETSUM_P4_VERDICT_DROP) {
      // Counted by Verdict.
    } else if (m.verdict == NETSUM_P4_VERDICT_REPLY_STATUS) {
      reply_status();
    } else if (m.verdict == NETSUM_P4_VERDICT_TO_CONTROL) {
      m.to_control = 1;
    } else if (m.verdict == NETSUM_P4_VERDICT_WELCOME) {
      reply_welcome();
    } else if (harvests) {
      if (h.pass.part != m.last_part_out) {
        // The same words again, with another half of each.
        h.pass.words = h.pass.words + h.pass.room;
        h.pass.room = 0;
        h.pass.part = next_part;
        h.pass.element = next_part >> 1;
        m.recirculate = 1;
      } else if (h.pass.group != 0) {
        harvest(h.pass.group - 1, NETSUM_TNA_WORDS);
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
            overflows.count(h.netsum.job);
          }
        }
      }
    } else if (consumes && counts && h.pass.part != m.last_part_in) {
      h.pass.part = next_part;  // the same words again
      h.pass.element = next_part;
      m.recirculate = 1;
    } else {
      drop_words();
      if (m.later == 0 && m.adds == 1) {
        m.event = NETSUM_P4_COUNT_CONTRIBUTIONS;
      }
      if (left_bytes != 0) {
        bit<8> lanes = NETSUM_P4_LANES_KEEP;
        if (m.verdict == NETSUM_P4_VERDICT_STORE) {
          lanes = NETSUM_P4_LANES_STORE;
        } else if (m.verdict == NETSUM_P4_VERDICT_ADD) {
          lanes = NETSUM_P4_LANES_ADD;
        }
        consume(next_group, lanes);
        if (left_bytes > NETSUM_TNA_PASS_BYTES) {
          h.pass.words = NETSUM_TNA_WORDS;
          h.pass.left_bytes = left_behind;
        } else {
          h.pass.words = left_bytes[9:2];
          h.pass.left_bytes = 0;
        }
      } else if (counts) {
        if (m.all_here == 1) {
          m.verdict = NETSUM_P4_VERDICT_RESULT_ALL;
          harvest(5w0 ++ last_byte[9:7], last_words);
        }
      } else if (m.verdict == NETSUM_P4_VERDICT_REPLY_ERROR) {
        reply_error();
        m.to_member = 1;
      } else if (m.verdict != NETSUM_P4_VERDICT_ERROR_ALL) {
        harvest(5w0 ++ last_byte[9:7], last_words);
      } else if (m.later == 1 && h.pass.step == NETSUM_P4_STEP_FAIL) {
        reply_error();
        m.to_all = 1;
        m.event = NETSUM_P4_COUNT_MISMATCHES;
      } else {
        recirculate_as(NETSUM_P4_STEP_FAIL, 0, 0, NETSUM_P4_LANES_KEEP, 0);
        h.pass.words = 0;
        h.pass.room = 0;
        h.pass.left_bytes = 0;
      }
    }
    if (m.recirculate == 0) {
      h.pass.setInvalid();
    }
    if (m.event != 0) {
      events.count(m.event);
    }
  }
}

#endif
