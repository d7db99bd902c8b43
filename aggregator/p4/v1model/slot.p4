// The slot machine: aggregator/slot/slot.h in the order of PROTOCOL.md, section 11. Each register is read once and written
// once per pass, at one index.
//
// The upper halves of `over`, `current` and `shape` tell for which epoch of which job the lower ones hold. To all others the
// slot is empty, so that a control plane installs and removes jobs by tables alone. What the other registers hold has a meaning
// only if one of these three says so.
#ifndef NETSUM_AGGREGATOR_P4_V1MODEL_SLOT_P4_
#define NETSUM_AGGREGATOR_P4_V1MODEL_SLOT_P4_

#include "aggregator/p4/v1model/headers.p4"

// A packet of round r opens r if r - 1 is both the current round and over. The packet that completes a round says so in its
// next pass.
control Round(inout headers_t h, inout metadata_t m) {
  register<bit<64>, bit<32>>(NETSUM_P4_SLOTS) over;
  register<bit<64>, bit<32>>(NETSUM_P4_SLOTS) current;
  apply {
    bit<32> before = h.netsum.round - 1;
    bit<64> value;
    over.read(value, m.slot_index);
    if (value[63:32] != m.owner) {
      value = m.owner ++ 32w0;
    }
    m.before_is_over = value[31:0] == before ? 1w1 : 0;
    m.is_over = value[31:0] == h.netsum.round ? 1w1 : 0;
    if (m.later == 1 && h.pass.step == NETSUM_P4_STEP_HARVEST && h.pass.verdict == NETSUM_P4_VERDICT_RESULT_ALL &&
        m.before_is_over == 1) {
      value = m.owner ++ h.netsum.round;
    }
    over.write(m.slot_index, value);

    current.read(value, m.slot_index);
    if (value[63:32] != m.owner) {
      value = m.owner ++ 32w0;
    }
    m.ahead = h.netsum.round - value[31:0];
    if (m.later == 0 && h.netsum.packet_type == NETSUM_TYPE_CONTRIBUTION && m.before_is_over == 1 && m.ahead == 1) {
      m.opens = 1;
      value = m.owner ++ h.netsum.round;
    }
    current.write(m.slot_index, value);
  }
}

// What the round is summing.
control Identity(inout headers_t h, inout metadata_t m) {
  register<bit<32>, bit<32>>(NETSUM_P4_BANKS) chunk;
  register<bit<32>, bit<32>>(NETSUM_P4_BANKS) signature;
  register<bit<64>, bit<32>>(NETSUM_P4_BANKS) shape;  // lower half 0: the bank has not been used
  apply {
    bit<64> own_shape = m.owner ++ m.payload_bytes ++ (h.netsum.flags & NETSUM_FLAG_PART) ++ h.netsum.format;
    bit<32> its_chunk;
    bit<32> its_signature;
    bit<64> its_shape;
    chunk.read(its_chunk, m.bank_index);
    signature.read(its_signature, m.bank_index);
    shape.read(its_shape, m.bank_index);
    if (m.opens == 1) {
      its_chunk = h.netsum.chunk;
      its_signature = h.netsum.signature;
      its_shape = own_shape;
    }
    chunk.write(m.bank_index, its_chunk);
    signature.write(m.bank_index, its_signature);
    shape.write(m.bank_index, its_shape);
    m.used = its_shape[63:32] == m.owner && its_shape[31:0] != 0 ? 1w1 : 0;
    m.agrees =
        its_chunk == h.netsum.chunk && its_signature == h.netsum.signature && its_shape == own_shape ? 1w1 : 0;
  }
}

// A packet that disagrees is known as such only after Seen, behind this register: it marks the round in a pass of its own.
control Failed(inout headers_t h, inout metadata_t m) {
  register<bit<16>, bit<32>>(NETSUM_P4_BANKS) failed;  // 1 + the member that is to blame; 0: none; 0xFFFF: ALL
  apply {
    bit<16> value;
    failed.read(value, m.bank_index);
    m.blamed = h.netsum.member;
    if (m.opens == 1) {
      value = 0;
    } else if (value != 0) {
      m.failed = 1;
      m.blamed = value == NETSUM_MEMBER_ALL ? value : value - 1;
    } else if (m.later == 1 && h.pass.step == NETSUM_P4_STEP_FAIL && m.ahead == 0 && m.is_over == 0) {
      value = h.netsum.member == NETSUM_MEMBER_ALL ? h.netsum.member : h.netsum.member + 1;
    }
    failed.write(m.bank_index, value);
  }
}

// Of the round that is open, which for packets of the round before is in the other bank.
control Seen(inout headers_t h, inout metadata_t m) {
  register<bit<64>, bit<32>>(NETSUM_P4_BANKS) seen;
  apply {
    bit<32> index = m.bank_index;
    if (m.ahead == NETSUM_P4_AHEAD_BEFORE) {
      index = index ^ 1;
    }
    bool counts = m.later == 0 && h.netsum.packet_type == NETSUM_TYPE_CONTRIBUTION && m.ahead == 0 && m.used == 1 &&
                  m.agrees == 1 && m.failed == 0 && m.is_over == 0;
    bit<64> value;
    seen.read(value, index);
    m.seen = value;
    if (m.opens == 1) {
      value = m.member_bit;
      m.adds = 1;
    } else {
      m.known = value & m.member_bit != 0 ? 1w1 : 0;
      if (counts) {
        value = value | m.member_bit;
        m.adds = ~m.known;
      }
    }
    seen.write(index, value);
  }
}

// Contributions whose last word is in the lanes with this pass.
control Arrived(inout headers_t h, inout metadata_t m) {
  register<bit<8>, bit<32>>(NETSUM_P4_BANKS) arrived;
  apply {
    if (m.later == 1 && h.pass.step == NETSUM_P4_STEP_CONSUME && m.ahead == 0 &&
        (h.pass.verdict == NETSUM_P4_VERDICT_STORE || h.pass.verdict == NETSUM_P4_VERDICT_ADD)) {
      m.adds = 1;
    }
    bit<8> value;
    arrived.read(value, m.bank_index);
    if (m.opens == 1) {
      value = 0;
    }
    if (m.adds == 1 && m.left_bytes == 0) {
      value = value + 1;
    }
    arrived.write(m.bank_index, value);
    m.all_here = (bit<16>)value == m.members ? 1w1 : 0;
  }
}

#endif
