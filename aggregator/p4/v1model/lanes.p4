// The sums: a register for each of the words that a pass takes.
#ifndef NETSUM_AGGREGATOR_P4_V1MODEL_LANES_P4_
#define NETSUM_AGGREGATOR_P4_V1MODEL_LANES_P4_

#include "aggregator/p4/v1model/headers.p4"

// Lanes are little-endian on the wire.
#define SWAPPED(x) ((x)[7:0] ++ (x)[15:8] ++ (x)[23:16] ++ (x)[31:24] ++ (x)[39:32] ++ (x)[47:40] ++ (x)[55:48] ++ (x)[63:56])

control Word(inout word_t word, inout metadata_t m) {
  register<bit<64>, bit<32>>(NETSUM_P4_LANE_REGISTERS) sums;
  apply {
    if (word.isValid()) {
      bit<64> top = m.top_bits;
      bit<64> y = SWAPPED(word.bits);
      bit<64> x;
      sums.read(x, m.lanes_index);
      bit<64> total = x;
      if (m.lanes == NETSUM_P4_LANES_STORE) {
        total = y;
      } else if (m.lanes == NETSUM_P4_LANES_ADD) {
        if (m.combine == NETSUM_P4_COMBINE_SUM) {
          // Lane by lane, because no carry passes a lane's top bit.
          total = ((x & ~top) + (y & ~top)) ^ ((x ^ y) & top);
          if ((x ^ total) & (y ^ total) & top != 0) {
            m.lanes_overflow = 1;
          }
        } else if (m.combine == NETSUM_P4_COMBINE_MAX) {
          // `ge` has the top bit of each lane of which x is the larger.
          bit<64> low_ge = (x | top) - (y & ~top);
          bit<64> ge = ((x & ~y) | (~(x ^ y) & low_ge)) & top;
          bit<64> take_x = ge | (ge - (ge >> m.top_shift));
          total = (x & take_x) | (y & ~take_x);
        } else if (m.combine == NETSUM_P4_COMBINE_OR) {
          total = x | y;
        } else {
          total = x ^ y;
        }
      }
      sums.write(m.lanes_index, total);
      word.bits = SWAPPED(total);
    }
  }
}

#define WORD(i) \
  if (m.harvest_words > i) { \
    h.words[i].setValid(); \
    h.words[i].bits = 0; \
  } \
  word_##i.apply(h.words[i], m);

control Lanes(inout headers_t h, inout metadata_t m) {
  Word() word_0;
  Word() word_1;
  Word() word_2;
  Word() word_3;
  Word() word_4;
  Word() word_5;
  Word() word_6;
  Word() word_7;
  Word() word_8;
  Word() word_9;
  Word() word_10;
  Word() word_11;
  Word() word_12;
  Word() word_13;
  Word() word_14;
  Word() word_15;
  Word() word_16;
  Word() word_17;
  Word() word_18;
  Word() word_19;
  Word() word_20;
  Word() word_21;
  Word() word_22;
  Word() word_23;
  Word() word_24;
  Word() word_25;
  Word() word_26;
  Word() word_27;
  Word() word_28;
  Word() word_29;
  Word() word_30;
  Word() word_31;
  apply {
    bit<8> group = 0;
    if (m.later == 1) {
      group = h.pass.group;
    }
    if (m.verdict == NETSUM_P4_VERDICT_DROP) {
      m.lanes = NETSUM_P4_LANES_KEEP;
    } else if (m.later == 1 && h.pass.step == NETSUM_P4_STEP_HARVEST) {
      m.lanes = NETSUM_P4_LANES_READ;
      m.harvest_words = (m.payload_bytes - ((bit<16>)group << 8)) >> 3;
    } else if (m.verdict == NETSUM_P4_VERDICT_STORE || m.verdict == NETSUM_P4_VERDICT_TAKE_RESULT) {
      m.lanes = NETSUM_P4_LANES_STORE;
    } else if (m.verdict == NETSUM_P4_VERDICT_ADD) {
      m.lanes = NETSUM_P4_LANES_ADD;
    }
    m.lanes_index = m.bank_index * NETSUM_P4_GROUPS + (bit<32>)group;
    if (m.lanes != NETSUM_P4_LANES_KEEP) {
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

// A lane has passed its range, here or at an aggregator below or above.
control Overflow(inout headers_t h, inout metadata_t m) {
  register<bit<8>, bit<32>>(NETSUM_P4_BANKS) overflow;
  apply {
    bit<8> value;
    overflow.read(value, m.bank_index);
    if (m.opens == 1) {
      value = 0;
    }
    bool says_so = m.later == 0 && h.netsum.flags & NETSUM_FLAG_OVERFLOW != 0;
    if (m.adds == 1 && (m.lanes_overflow == 1 || says_so)) {
      value = 1;
    }
    if (m.verdict == NETSUM_P4_VERDICT_TAKE_RESULT && says_so) {
      value = 1;
    }
    overflow.write(m.bank_index, value);
    m.overflow = value[0:0];
  }
}

#endif
