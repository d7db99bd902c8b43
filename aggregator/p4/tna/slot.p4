// The slot machine: aggregator/slot/slot.h in the order of PROTOCOL.md, section 11. Each register is accessed once per pass, by
// one action of its stateful ALU: at most two comparisons, two operands and one word of result. @stage is the stage of the
// register, which comes behind all that the access depends on.
//
// A contribution takes its first pass without its lanes, and further ones with them: see lanes.p4.
#ifndef NETSUM_AGGREGATOR_P4_TNA_SLOT_P4_
#define NETSUM_AGGREGATOR_P4_TNA_SLOT_P4_

#include "aggregator/p4/tna/headers.p4"

// A value that holds for one epoch of one job. To all others it is 0.
struct owned_t {
  bit<32> owner;
  bit<32> value;
}

// A packet of round r opens r if r - 1 is both the current round and over. The packet that completes a round says so in its
// next pass.
control Round(inout headers_t h, inout metadata_t m, in bit<32> before, out bit<32> over_round,
              out bit<32> current_round) {
  @stage(2) Register<owned_t, bit<32>>(NETSUM_TNA_SLOTS, {0, 0}) over;
  RegisterAction<owned_t, bit<32>, bit<32>>(over) read_over = {
    void apply(inout owned_t slot, out bit<32> round) {
      if (slot.owner != m.owner) {
        slot.owner = m.owner;
        slot.value = 0;
        round = 0;
      } else {
        round = slot.value;
      }
    }
  };
  RegisterAction<owned_t, bit<32>, bit<32>>(over) complete = {
    void apply(inout owned_t slot, out bit<32> round) {
      round = slot.value;
      if (slot.owner == m.owner && slot.value == before) {
        slot.value = slot.value + 1;
      }
    }
  };
  @stage(3) Register<owned_t, bit<32>>(NETSUM_TNA_SLOTS, {0, 0}) current;
  RegisterAction<owned_t, bit<32>, bit<32>>(current) read_current = {
    void apply(inout owned_t slot, out bit<32> round) {
      if (slot.owner != m.owner) {
        slot.owner = m.owner;
        slot.value = 0;
        round = 0;
      } else {
        round = slot.value;
      }
    }
  };
  // Only if the round before is over. If the slot had another owner, that is round 0, as `over` says.
  RegisterAction<owned_t, bit<32>, bit<32>>(current) open = {
    void apply(inout owned_t slot, out bit<32> round) {
      if (slot.owner != m.owner) {
        slot.owner = m.owner;
        slot.value = 1;
        round = 0;
      } else {
        round = slot.value;
        if (slot.value == before) {
          slot.value = slot.value + 1;
        }
      }
    }
  };
  apply {
    if (m.later == 1 && h.pass.step == NETSUM_P4_STEP_HARVEST && h.pass.verdict == NETSUM_P4_VERDICT_RESULT_ALL) {
      over_round = complete.execute(m.slot_index);
    } else {
      over_round = read_over.execute(m.slot_index);
    }
    if (m.later == 0 && h.netsum.packet_type == NETSUM_TYPE_CONTRIBUTION && over_round == before) {
      current_round = open.execute(m.slot_index);
    } else {
      current_round = read_current.execute(m.slot_index);
    }
    if (over_round == before) {
      m.before_is_over = 1;
    }
    if (over_round == h.netsum.round) {
      m.is_over = 1;
    }
    m.ahead = h.netsum.round - current_round;
  }
}

// What the round is summing.
struct identity_t {
  bit<32> chunk;
  bit<32> signature;
}
control Identity(inout headers_t h, inout metadata_t m, in bool opens, in bit<32> own_shape, out bit<8> same_identity,
                 out bit<32> its_shape) {
  @stage(4) Register<identity_t, bit<32>>(NETSUM_TNA_BANKS, {0, 0}) identity;
  RegisterAction<identity_t, bit<32>, bit<8>>(identity) set_identity = {
    void apply(inout identity_t its, out bit<8> same) {
      its.chunk = h.netsum.chunk;
      its.signature = h.netsum.signature;
      same = 1;
    }
  };
  RegisterAction<identity_t, bit<32>, bit<8>>(identity) compare_identity = {
    void apply(inout identity_t its, out bit<8> same) {
      same = 0;
      if (its.chunk == h.netsum.chunk && its.signature == h.netsum.signature) {
        same = 1;
      }
    }
  };
  @stage(4) Register<owned_t, bit<32>>(NETSUM_TNA_BANKS, {0, 0}) shape;  // 0: the bank has not been used
  RegisterAction<owned_t, bit<32>, bit<32>>(shape) set_shape = {
    void apply(inout owned_t bank, out bit<32> shown) {
      bank.owner = m.owner;
      bank.value = own_shape;
      shown = own_shape;
    }
  };
  RegisterAction<owned_t, bit<32>, bit<32>>(shape) read_shape = {
    void apply(inout owned_t bank, out bit<32> shown) {
      shown = 0;
      if (bank.owner == m.owner) {
        shown = bank.value;
      }
    }
  };
  apply {
    if (opens) {
      same_identity = set_identity.execute(m.bank_index);
      its_shape = set_shape.execute(m.bank_index);
    } else {
      same_identity = compare_identity.execute(m.bank_index);
      its_shape = read_shape.execute(m.bank_index);
    }
    if (its_shape != 0) {
      m.used = 1;
    }
    if (same_identity == 1 && its_shape == own_shape) {
      m.agrees = 1;
    }
  }
}

// A packet that disagrees is known as such only after Seen, behind this register: it marks the round in a pass of its own.
control Failed(inout headers_t h, inout metadata_t m, in bool opens, in bool fails, out bit<16> its_failure) {
  @stage(4) Register<bit<16>, bit<32>>(NETSUM_TNA_BANKS, 0) failed;  // 1 + the member that is to blame; 0: none
  RegisterAction<bit<16>, bit<32>, bit<16>>(failed) clear = {
    void apply(inout bit<16> value, out bit<16> old) {
      value = 0;
      old = 0;
    }
  };
  RegisterAction<bit<16>, bit<32>, bit<16>>(failed) mark = {
    void apply(inout bit<16> value, out bit<16> old) {
      old = value;
      if (value == 0) {
        value = h.netsum.member + 1;
      }
    }
  };
  RegisterAction<bit<16>, bit<32>, bit<16>>(failed) read_failed = {
    void apply(inout bit<16> value, out bit<16> old) {
      old = value;
    }
  };
  apply {
    if (opens) {
      its_failure = clear.execute(m.bank_index);
    } else if (fails) {
      its_failure = mark.execute(m.bank_index);
    } else {
      its_failure = read_failed.execute(m.bank_index);
    }
    if (its_failure != 0) {
      m.failed = 1;
      m.blamed = its_failure - 1;
    } else {
      m.blamed = h.netsum.member;
    }
  }
}

// Of the round that is open, which for packets of the round before is in the other bank. A result has one word, so that each
// half of the members has a register.
control Half(inout metadata_t m, in bit<32> index, in bit<32> member_bit, in bool opens, in bool counts, out bit<32> before) {
  @stage(5) Register<bit<32>, bit<32>>(NETSUM_TNA_BANKS, 0) seen;
  RegisterAction<bit<32>, bit<32>, bit<32>>(seen) set = {
    void apply(inout bit<32> value, out bit<32> old) {
      old = value;
      value = member_bit;
    }
  };
  RegisterAction<bit<32>, bit<32>, bit<32>>(seen) enter = {
    void apply(inout bit<32> value, out bit<32> old) {
      old = value;
      value = value | member_bit;
    }
  };
  RegisterAction<bit<32>, bit<32>, bit<32>>(seen) read_seen = {
    void apply(inout bit<32> value, out bit<32> old) {
      old = value;
    }
  };
  apply {
    if (opens) {
      before = set.execute(index);
    } else if (counts) {
      before = enter.execute(index);
    } else {
      before = read_seen.execute(index);
    }
  }
}
control Seen(inout headers_t h, inout metadata_t m, in bool opens, in bool counts, in bool of_before) {
  Half() high_half;
  Half() low_half;
  apply {
    bit<32> index = m.bank_index;
    if (of_before) {
      index = m.bank_index ^ 1;
    }
    bit<32> high;
    bit<32> low;
    high_half.apply(m, index, m.member_bit[63:32], opens, counts, high);
    low_half.apply(m, index, m.member_bit[31:0], opens, counts, low);
    m.seen = high ++ low;
    if (opens) {
      m.adds = 1;
    } else if (high & m.member_bit[63:32] != 0 || low & m.member_bit[31:0] != 0) {
      m.known = 1;
    } else if (counts) {
      m.adds = 1;
    }
  }
}

// Contributions whose last word is in the lanes with this pass, and whether one of them said that a lane had passed its range
// at an aggregator below. The ALUs of the lanes do not report it: docs/p4.md.
struct arrived_t {
  bit<16> count;
  bit<16> overflow;
}
control Arrived(inout headers_t h, inout metadata_t m, in bool opens, in bool whole, in bit<16> overflows) {
  @stage(5) Register<arrived_t, bit<32>>(NETSUM_TNA_BANKS, {0, 0}) arrived;
  RegisterAction<arrived_t, bit<32>, bit<16>>(arrived) clear = {
    void apply(inout arrived_t its, out bit<16> shown) {
      its.count = 0;
      its.overflow = 0;
      shown = 0;
    }
  };
  RegisterAction<arrived_t, bit<32>, bit<16>>(arrived) count_one = {
    void apply(inout arrived_t its, out bit<16> shown) {
      its.count = its.count + 1;
      its.overflow = its.overflow | overflows;
      shown = its.count;
    }
  };
  RegisterAction<arrived_t, bit<32>, bit<16>>(arrived) read_count = {
    void apply(inout arrived_t its, out bit<16> shown) {
      shown = its.count;
    }
  };
  RegisterAction<arrived_t, bit<32>, bit<16>>(arrived) read_overflow = {
    void apply(inout arrived_t its, out bit<16> shown) {
      shown = its.overflow;
    }
  };
  apply {
    bit<16> shown;
    if (whole) {
      m.adds = 1;
    }
    if (m.later == 1 && h.pass.step == NETSUM_P4_STEP_HARVEST) {
      shown = read_overflow.execute(m.bank_index);
      m.overflow = shown[0:0];
    } else {
      if (opens) {
        shown = clear.execute(m.bank_index);
      } else if (whole) {
        shown = count_one.execute(m.bank_index);
      } else {
        shown = read_count.execute(m.bank_index);
      }
      if (shown == m.members) {
        m.all_here = 1;
      }
    }
  }
}

#endif
