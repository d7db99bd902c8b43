// The sums: for each word of 4 bytes that a pass takes, a register of two halves, `low` and `high`, added to by one access.
//
//  SUM I32, MAX U32   low: the word
//  SUM I16, MAX U16   low: the first lane, high: the second one, each in the upper 16 bits, where nothing is above it
//  SUM I8             low: the first and the third lane, high: the others, each with 8 bits of room above it, which the
//                     sum of 64 lanes needs
//  MAX U8             the word, rotated so that another lane is uppermost in each half: only that one is right. So the
//                     word is taken twice, with another element of the register for the third and the fourth lane.
//
// An access returns one half, so that a sum is read in as many passes as there are halves. What is done depends on the headers
// and the table of jobs alone, not on the slot: its registers and those of the lanes lie side by side in the stages.
#ifndef NETSUM_AGGREGATOR_P4_TNA_LANES_P4_
#define NETSUM_AGGREGATOR_P4_TNA_LANES_P4_

#include "aggregator/p4/tna/headers.p4"

struct sums_t {
  bit<32> low;
  bit<32> high;
}

// The bytes of a word, b0 ahead on the wire. Lanes are little-endian there.
#define B0(x) (x)[31:24]
#define B1(x) (x)[23:16]
#define B2(x) (x)[15:8]
#define B3(x) (x)[7:0]

#define LANES_INDEX (bit<32>)(m.slot_index[8:0] ++ netsum.round[0:0] ++ pass.group[2:0] ++ pass.element[0:0])

control Word(inout word_t word, in netsum_t netsum, in pass_t pass, in metadata_t m, in bool job_here) {
  bit<32> high = 0;
  Register<sums_t, bit<32>>(NETSUM_TNA_LANE_REGISTERS, {0, 0}) sums;
  RegisterAction<sums_t, bit<32>, bit<32>>(sums) store = {
    void apply(inout sums_t value) {
      value.low = word.bits;
      value.high = high;
    }
  };
  RegisterAction<sums_t, bit<32>, bit<32>>(sums) sum = {
    void apply(inout sums_t value) {
      value.low = value.low + word.bits;
      value.high = value.high + high;
    }
  };
  RegisterAction<sums_t, bit<32>, bit<32>>(sums) maximum = {
    void apply(inout sums_t value) {
      value.low = max(value.low, word.bits);
      value.high = max(value.high, high);
    }
  };
  RegisterAction<sums_t, bit<32>, bit<32>>(sums) read_half = {
    void apply(inout sums_t value, out bit<32> half) {
      if (high == 0) {
        half = value.low;
      } else {
        half = value.high;
      }
    }
  };

  action split_word() {
    word.bits = B3(word.bits) ++ B2(word.bits) ++ B1(word.bits) ++ B0(word.bits);
  }
  action split_16() {
    high = B3(word.bits) ++ B2(word.bits) ++ 16w0;
    word.bits = B1(word.bits) ++ B0(word.bits) ++ 16w0;
  }
  action split_8() {
    high = 8w0 ++ B1(word.bits) ++ 8w0 ++ B3(word.bits);
    word.bits = 8w0 ++ B0(word.bits) ++ 8w0 ++ B2(word.bits);
  }
  action rotate_first() {
    high = B1(word.bits) ++ B2(word.bits) ++ B3(word.bits) ++ B0(word.bits);
  }
  action rotate_second() {
    high = B3(word.bits) ++ B0(word.bits) ++ B1(word.bits) ++ B2(word.bits);
    word.bits = B2(word.bits) ++ B3(word.bits) ++ B0(word.bits) ++ B1(word.bits);
  }
  table split {
    key = {
      netsum.format: exact;
      pass.part: exact;
    }
    actions = { split_word; split_16; split_8; rotate_first; rotate_second; NoAction; }
    default_action = NoAction();
    const entries = {
      (NETSUM_FORMAT_SUM_I32, 0): split_word();
      (NETSUM_FORMAT_MAX_U32, 0): split_word();
      (NETSUM_FORMAT_SUM_I16, 0): split_16();
      (NETSUM_FORMAT_MAX_U16, 0): split_16();
      (NETSUM_FORMAT_SUM_I8, 0): split_8();
      (NETSUM_FORMAT_MAX_U8, 0): rotate_first();
      (NETSUM_FORMAT_MAX_U8, 1): rotate_second();
    }
  }

  // `high` is the half that has been read. The word holds what the passes before have put there.
  action join_word() {
    word.bits = B3(high) ++ B2(high) ++ B1(high) ++ B0(high);
  }
  action join_16_first() {
    word.bits = B1(high) ++ B0(high) ++ 16w0;
  }
  action join_16_second() {
    word.bits = word.bits[31:16] ++ B1(high) ++ B0(high);
  }
  action join_8_first() {
    word.bits = B1(high) ++ 8w0 ++ B3(high) ++ 8w0;
  }
  action join_8_second() {
    word.bits = B0(word.bits) ++ B1(high) ++ B2(word.bits) ++ B3(high);
  }
  action join_top_0() {
    word.bits = B0(high) ++ 24w0;
  }
  action join_top_1() {
    word.bits = B0(word.bits) ++ B0(high) ++ 16w0;
  }
  action join_top_2() {
    word.bits = word.bits[31:16] ++ B0(high) ++ 8w0;
  }
  action join_top_3() {
    word.bits = word.bits[31:8] ++ B0(high);
  }
  table join {
    key = {
      netsum.format: exact;
      pass.part: exact;
    }
    actions = {
      join_word; join_16_first; join_16_second; join_8_first; join_8_second;
      join_top_0; join_top_1; join_top_2; join_top_3; NoAction;
    }
    default_action = NoAction();
    const entries = {
      (NETSUM_FORMAT_SUM_I32, 0): join_word();
      (NETSUM_FORMAT_MAX_U32, 0): join_word();
      (NETSUM_FORMAT_SUM_I16, 0): join_16_first();
      (NETSUM_FORMAT_SUM_I16, 1): join_16_second();
      (NETSUM_FORMAT_MAX_U16, 0): join_16_first();
      (NETSUM_FORMAT_MAX_U16, 1): join_16_second();
      (NETSUM_FORMAT_SUM_I8, 0): join_8_first();
      (NETSUM_FORMAT_SUM_I8, 1): join_8_second();
      (NETSUM_FORMAT_MAX_U8, 0): join_top_0();
      (NETSUM_FORMAT_MAX_U8, 1): join_top_1();
      (NETSUM_FORMAT_MAX_U8, 2): join_top_2();
      (NETSUM_FORMAT_MAX_U8, 3): join_top_3();
    }
  }

  apply {
    if (word.isValid()) {
      if (pass.lanes == NETSUM_P4_LANES_READ) {
        high = (bit<32>)pass.part & 1;
        if (job_here) {
          high = read_half.execute(LANES_INDEX);
          join.apply();
        }
      } else if (pass.lanes != NETSUM_P4_LANES_KEEP) {
        split.apply();
        if (job_here) {
          if (pass.lanes == NETSUM_P4_LANES_STORE) {
            store.execute(LANES_INDEX);
          } else if (netsum.format[7:4] == NETSUM_OP_SUM) {
            sum.execute(LANES_INDEX);
          } else {
            maximum.execute(LANES_INDEX);
          }
        }
      }
    }
  }
}

#define WORD(i) \
  if (h.pass.room > i) { \
    h.words[i].setValid(); \
    h.words[i].bits = 0; \
  } \
  word_##i.apply(h.words[i], h.netsum, h.pass, m, job_here);

control Lanes(inout headers_t h, inout metadata_t m) {
  @stage(1) Word() word_0;
  @stage(1) Word() word_1;
  @stage(1) Word() word_2;
  @stage(1) Word() word_3;
  @stage(2) Word() word_4;
  @stage(2) Word() word_5;
  @stage(2) Word() word_6;
  @stage(3) Word() word_7;
  @stage(3) Word() word_8;
  @stage(3) Word() word_9;
  @stage(4) Word() word_10;
  @stage(5) Word() word_11;
  @stage(6) Word() word_12;
  @stage(6) Word() word_13;
  @stage(6) Word() word_14;
  @stage(6) Word() word_15;
  @stage(7) Word() word_16;
  @stage(7) Word() word_17;
  @stage(7) Word() word_18;
  @stage(7) Word() word_19;
  @stage(8) Word() word_20;
  @stage(8) Word() word_21;
  @stage(8) Word() word_22;
  @stage(8) Word() word_23;
  @stage(9) Word() word_24;
  @stage(9) Word() word_25;
  @stage(9) Word() word_26;
  @stage(9) Word() word_27;
  @stage(10) Word() word_28;
  @stage(10) Word() word_29;
  @stage(10) Word() word_30;
  @stage(10) Word() word_31;
  apply {
    if (m.later == 1) {
      bool job_here = m.job_known == 1 && m.epoch == h.netsum.epoch;
      WORD(0)
      WORD(1)
      WORD(2)
      WORD(3)
      WORD(4)
      WORD(5)
      WORD(6)
      WORD(7)
      WORD(8)
      WORD(9)
      WORD(10)
      WORD(11)
      WORD(12)
      WORD(13)
      WORD(14)
      WORD(15)
      WORD(16)
      WORD(17)
      WORD(18)
      WORD(19)
      WORD(20)
      WORD(21)
      WORD(22)
      WORD(23)
      WORD(24)
      WORD(25)
      WORD(26)
      WORD(27)
      WORD(28)
      WORD(29)
      WORD(30)
      WORD(31)
    }
  }
}

#endif
