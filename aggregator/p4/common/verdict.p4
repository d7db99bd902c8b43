// What becomes of the packet: netsum_slot_contribute() and netsum_slot_probe() of slot.h. In later passes, what the first
// one has decided.
#ifndef NETSUM_AGGREGATOR_P4_COMMON_VERDICT_P4_
#define NETSUM_AGGREGATOR_P4_COMMON_VERDICT_P4_

control Verdict(inout headers_t h, inout metadata_t m) {
  apply {
    if (m.later == 1) {
      bool counts = h.pass.verdict == NETSUM_P4_VERDICT_STORE || h.pass.verdict == NETSUM_P4_VERDICT_ADD;
      bool gone = false;  // the round, while the packet was between two passes
      if (h.pass.step == NETSUM_P4_STEP_CONSUME) {
        gone = counts && m.ahead != 0;
        m.blamed = h.pass.blamed;
      } else if (h.pass.step == NETSUM_P4_STEP_HARVEST) {
        gone = m.ahead != 0 && m.ahead != NETSUM_P4_AHEAD_BEFORE;
      } else {
        gone = m.ahead != 0 || m.is_over == 1;
      }
      if (gone) {
        m.event = NETSUM_P4_COUNT_LOST_PASS;
      } else if (h.pass.step == NETSUM_P4_STEP_FAIL && m.failed == 1) {
        m.verdict = NETSUM_P4_VERDICT_REPLY_ERROR;
      } else {
        m.verdict = h.pass.verdict;
      }
    } else if (m.ahead == 1 && m.opens == 0) {
      if (h.netsum.packet_type == NETSUM_TYPE_PROBE && m.before_is_over == 1) {
        m.verdict = NETSUM_P4_VERDICT_REPLY_STATUS;
        m.again = 1;
        m.seen = 0;
      } else {
        m.drop = NETSUM_DROP_FUTURE_ROUND;
      }
    } else if (m.ahead == NETSUM_P4_AHEAD_BEFORE) {
      if (m.used == 0 || m.known == 1) {
        m.drop = NETSUM_DROP_STALE_ROUND;
      } else if (h.netsum.packet_type == NETSUM_TYPE_PROBE) {
        m.verdict = NETSUM_P4_VERDICT_REPLY_STATUS;
        m.again = 1;
        m.seen = m.everybody;
      } else if (m.agrees == 1) {
        m.verdict = NETSUM_P4_VERDICT_REPLY_RESULT;
      } else {
        m.drop = NETSUM_DROP_STALE_ROUND;
      }
    } else if (m.opens == 1) {
      m.verdict = NETSUM_P4_VERDICT_STORE;
    } else if (m.ahead != 0 || m.used == 0) {
      if (m.ahead[31:31] == 0) {
        m.drop = NETSUM_DROP_FUTURE_ROUND;
      } else {
        m.drop = NETSUM_DROP_STALE_ROUND;
      }
    } else if (m.failed == 1) {
      m.verdict = NETSUM_P4_VERDICT_REPLY_ERROR;
    } else if (h.netsum.packet_type == NETSUM_TYPE_PROBE) {
      m.verdict = NETSUM_P4_VERDICT_REPLY_STATUS;
      m.again = m.is_over | ~m.known | m.all_here;
    } else if (m.adds == 1) {
      m.verdict = NETSUM_P4_VERDICT_ADD;
    } else if (m.known == 0) {
      m.verdict = NETSUM_P4_VERDICT_ERROR_ALL;
    } else if (m.agrees == 1 && m.is_over == 1) {
      m.verdict = NETSUM_P4_VERDICT_REPLY_RESULT;
    } else if (m.agrees == 1 && m.all_here == 1) {
      m.verdict = NETSUM_P4_VERDICT_RESULT_ALL;  // the packet that completed the round was lost between two passes
    } else {
      m.drop = NETSUM_DROP_DUPLICATE;
    }
  }
}

#endif
