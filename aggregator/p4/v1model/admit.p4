// Whether a packet may touch a slot: the rules of PROTOCOL.md, section 3, in their order.
#ifndef NETSUM_AGGREGATOR_P4_V1MODEL_ADMIT_P4_
#define NETSUM_AGGREGATOR_P4_V1MODEL_ADMIT_P4_

#include "aggregator/p4/v1model/headers.p4"

#define TOP_BITS_8 0x8080808080808080
#define TOP_BITS_16 0x8000800080008000
#define TOP_BITS_32 0x8000000080000000
#define TOP_BITS_64 0x8000000000000000

// What the format is, and how its lanes are added. Values are known, and refused after the job's other rules.
control Format(inout headers_t h, inout metadata_t m) {
  action lanes(bit<8> combine, bit<64> top_bits, bit<8> top_shift) {
    m.format_known = 1;
    m.combine = combine;
    m.top_bits = top_bits;
    m.top_shift = top_shift;
  }
  action element_values() {
    m.format_known = 1;
    m.values = 1;
  }
  table formats {
    key = { h.netsum.format: ternary; }
    actions = { lanes; element_values; NoAction; }
    default_action = NoAction();
    const entries = {
      NETSUM_FORMAT_SUM_I8: lanes(NETSUM_P4_COMBINE_SUM, TOP_BITS_8, 7);
      NETSUM_FORMAT_SUM_I16: lanes(NETSUM_P4_COMBINE_SUM, TOP_BITS_16, 15);
      NETSUM_FORMAT_SUM_I32: lanes(NETSUM_P4_COMBINE_SUM, TOP_BITS_32, 31);
      NETSUM_FORMAT_SUM_I64: lanes(NETSUM_P4_COMBINE_SUM, TOP_BITS_64, 63);
      NETSUM_FORMAT_MAX_U8: lanes(NETSUM_P4_COMBINE_MAX, TOP_BITS_8, 7);
      NETSUM_FORMAT_MAX_U16: lanes(NETSUM_P4_COMBINE_MAX, TOP_BITS_16, 15);
      NETSUM_FORMAT_MAX_U32: lanes(NETSUM_P4_COMBINE_MAX, TOP_BITS_32, 31);
      NETSUM_FORMAT_MAX_U64: lanes(NETSUM_P4_COMBINE_MAX, TOP_BITS_64, 63);
      NETSUM_FORMAT_OR_U64: lanes(NETSUM_P4_COMBINE_OR, 0, 0);
      NETSUM_FORMAT_XOR_U64: lanes(NETSUM_P4_COMBINE_XOR, 0, 0);
      // SUM of values has the types 1 to 7, AVG 1 to 5.
      0x30: NoAction();
      0x30 &&& 0xF8: element_values();
      0x40: NoAction();
      0x40 &&& 0xFC: element_values();
      0x44 &&& 0xFE: element_values();
    }
  }
  apply { formats.apply(); }
}

// The rules that need no job.
control Refuse(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
  apply {
    bit<4> packet_type = 0;
    if (h.netsum.isValid()) {
      packet_type = h.netsum.packet_type;
    }
    bool has_lanes = packet_type == NETSUM_TYPE_CONTRIBUTION || packet_type == NETSUM_TYPE_RESULT;
    bool is_hello = packet_type == NETSUM_TYPE_HELLO || packet_type == NETSUM_TYPE_WELCOME;
    if (!h.netsum.isValid()) {
      m.drop = NETSUM_DROP_TOO_SHORT;
    } else if (h.netsum.magic != NETSUM_MAGIC) {
      m.drop = NETSUM_DROP_BAD_MAGIC;
    } else if (h.netsum.version != NETSUM_VERSION) {
      m.drop = NETSUM_DROP_BAD_VERSION;
    } else if (packet_type < NETSUM_TYPE_CONTRIBUTION || packet_type > NETSUM_TYPE_WELCOME) {
      m.drop = NETSUM_DROP_BAD_TYPE;
    } else if (h.netsum.flags & ~(bit<8>)(NETSUM_FLAG_PART + NETSUM_FLAG_OVERFLOW + NETSUM_FLAG_AGAIN) != 0) {
      m.drop = NETSUM_DROP_BAD_FLAGS;  // neither NO_LANES nor BRIEF is announced
    } else if (s.parser_error != error.NoError || s.packet_length != (bit<32>)h.ipv4.total_length + ETHERNET_BYTES ||
               h.ipv4.total_length != h.udp.length + IP_BYTES || m.payload_bytes > NETSUM_MAX_PAYLOAD ||
               m.payload_bytes & 7 != 0) {
      m.drop = NETSUM_DROP_BAD_LENGTH;
    } else if (has_lanes ? m.payload_bytes == 0 : !is_hello && m.payload_bytes != NETSUM_PROBE_BYTES) {
      m.drop = NETSUM_DROP_BAD_LENGTH;
    } else if (has_lanes ? m.format_known == 0 : h.netsum.format != NETSUM_FORMAT_NONE) {
      m.drop = NETSUM_DROP_BAD_FORMAT;
    } else if (packet_type != NETSUM_TYPE_CONTRIBUTION && packet_type != NETSUM_TYPE_PROBE &&
               packet_type != NETSUM_TYPE_HELLO) {
      m.drop = NETSUM_DROP_BAD_TYPE;  // it comes from parents, of which there are none
    }
  }
}

control Job(inout headers_t h, inout metadata_t m) {
  bit<16> epoch = 0;
  bit<16> slots = 0;
  bit<16> largest_payload = 0;
  action is_job(bit<16> job_epoch, bit<16> members, bit<16> job_slots, bit<16> payload_bytes, bit<32> first_slot,
                bit<64> everybody, bit<16> multicast_group, bit<64> cookie) {
    epoch = job_epoch;
    slots = job_slots;
    largest_payload = payload_bytes;
    m.members = members;
    m.first_slot = first_slot;
    m.everybody = everybody;
    m.multicast_group = multicast_group;
    m.cookie = cookie;
  }
  table jobs {
    key = { h.netsum.job: exact; }
    actions = { is_job; NoAction; }
    default_action = NoAction();
    size = NETSUM_P4_JOBS;
  }
  apply {
    if (!jobs.apply().hit) {
      m.drop = NETSUM_DROP_UNKNOWN_JOB;
    } else if (h.netsum.epoch != epoch) {
      m.drop = NETSUM_DROP_STALE_EPOCH;
    } else if (h.netsum.member >= m.members) {
      m.drop = NETSUM_DROP_BAD_MEMBER;
    } else if (h.netsum.slot >= slots) {
      m.drop = NETSUM_DROP_BAD_SLOT;
    } else if (m.payload_bytes > largest_payload) {
      m.drop = NETSUM_DROP_BAD_LENGTH;
    } else if (h.netsum.packet_type == NETSUM_TYPE_CONTRIBUTION && m.values == 1) {
      m.drop = NETSUM_DROP_BAD_FORMAT;
    } else if (m.cookie != 0 && h.netsum.packet_type != NETSUM_TYPE_HELLO && h.netsum.check != m.cookie) {
      m.drop = NETSUM_DROP_BAD_CHECK;
    }
    m.owner = h.netsum.job ++ h.netsum.epoch;
    m.slot_index = m.first_slot + (bit<32>)h.netsum.slot;
    m.bank_index = (m.slot_index << 1) | (h.netsum.round & 1);
  }
}

// Whether the packet is from the member's address. The control plane enters it when the first HELLO comes.
control Member(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {
  bit<32> ip = 0;
  bit<16> udp_port = 0;
  action is_member(bit<32> member_ip, bit<16> member_udp_port, bit<9> port, bit<64> member_bit) {
    ip = member_ip;
    udp_port = member_udp_port;
    m.member_port = port;
    m.member_bit = member_bit;
  }
  table members {
    key = {
      h.netsum.job: exact;
      h.netsum.member: exact;
    }
    actions = { is_member; NoAction; }
    default_action = NoAction();
    size = NETSUM_P4_MEMBERS;
  }
  apply {
    bool is_hello = h.netsum.packet_type == NETSUM_TYPE_HELLO;
    m.addressee = h.netsum.member;
    if (!members.apply().hit) {
      m.verdict = NETSUM_P4_VERDICT_TO_CONTROL;
      if (!is_hello) {
        m.drop = NETSUM_DROP_UNKNOWN_PEER;
      }
    } else if (m.later == 0) {
      if (h.ipv4.from != ip || h.udp.from != udp_port || s.ingress_port != m.member_port) {
        m.drop = NETSUM_DROP_UNKNOWN_PEER;
      }
      if (is_hello) {
        m.verdict = NETSUM_P4_VERDICT_WELCOME;
        h.netsum.check = m.cookie;
      }
    }
  }
}

#endif
