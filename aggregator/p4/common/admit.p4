// Whether a packet may touch a slot: the rules of PROTOCOL.md, section 3, in their order. For both programs, each with
// headers_t and metadata_t of its own. The look-ups need no rule before them, so that they take one stage of a chip.
#ifndef NETSUM_AGGREGATOR_P4_COMMON_ADMIT_P4_
#define NETSUM_AGGREGATOR_P4_COMMON_ADMIT_P4_

control Job(inout headers_t h, inout metadata_t m) {
  action is_job(bit<16> job_epoch, bit<16> members, bit<16> job_slots, bit<16> payload_bytes, bit<32> first_slot,
                bit<64> everybody, bit<16> multicast_group, bit<64> cookie) {
    m.job_known = 1;
    m.epoch = job_epoch;
    m.members = members;
    m.slots = job_slots;
    m.largest_payload = payload_bytes;
    m.slot_index = first_slot + (bit<32>)h.netsum.slot;
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
    m.owner = h.netsum.job ++ h.netsum.epoch;
    jobs.apply();
  }
}

// The control plane enters a member when its first HELLO comes.
control Member(inout headers_t h, inout metadata_t m) {
  action is_member(bit<32> member_ip, bit<16> member_udp_port, bit<9> port, bit<64> member_bit) {
    m.member_known = 1;
    m.member_ip = member_ip;
    m.member_udp_port = member_udp_port;
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
    m.addressee = h.netsum.member;
    members.apply();
  }
}

// What the look-ups and the headers say against the packet. Between two passes, job and member can have gone.
control Refuse(inout headers_t h, inout metadata_t m, in bit<9> from_port) {
  apply {
    bit<4> packet_type = 0;
    if (h.netsum.isValid()) {
      packet_type = h.netsum.packet_type;
    }
    bool has_lanes = packet_type == NETSUM_TYPE_CONTRIBUTION || packet_type == NETSUM_TYPE_RESULT;
    bool is_hello = packet_type == NETSUM_TYPE_HELLO || packet_type == NETSUM_TYPE_WELCOME;
    if (m.later == 1) {
      if (m.job_known == 0 || h.netsum.epoch != m.epoch || m.member_known == 0) {
        m.drop = NETSUM_P4_COUNT_LOST_PASS;
      }
    } else if (!h.netsum.isValid()) {
      m.drop = NETSUM_DROP_TOO_SHORT;
    } else if (h.netsum.magic != NETSUM_MAGIC) {
      m.drop = NETSUM_DROP_BAD_MAGIC;
    } else if (h.netsum.version != NETSUM_VERSION) {
      m.drop = NETSUM_DROP_BAD_VERSION;
    } else if (packet_type < NETSUM_TYPE_CONTRIBUTION || packet_type > NETSUM_TYPE_WELCOME) {
      m.drop = NETSUM_DROP_BAD_TYPE;
    } else if (h.netsum.flags & ~(bit<8>)(NETSUM_FLAG_PART + NETSUM_FLAG_OVERFLOW + NETSUM_FLAG_AGAIN) != 0) {
      m.drop = NETSUM_DROP_BAD_FLAGS;  // neither EMPTY nor NO_RESULT is announced
    } else if (m.bad_frame == 1 || h.ipv4.total_length != m.ip_bytes || m.payload_bytes > NETSUM_MAX_PAYLOAD ||
               m.payload_bytes & 7 != 0) {
      m.drop = NETSUM_DROP_BAD_LENGTH;
    } else if (has_lanes && m.payload_bytes == 0) {
      m.drop = NETSUM_DROP_BAD_LENGTH;
    } else if (!has_lanes && !is_hello && m.payload_bytes != NETSUM_PROBE_BYTES) {
      m.drop = NETSUM_DROP_BAD_LENGTH;
    } else if (has_lanes && m.format_known == 0) {
      m.drop = NETSUM_DROP_BAD_FORMAT;
    } else if (!has_lanes && h.netsum.format != NETSUM_FORMAT_NONE) {
      m.drop = NETSUM_DROP_BAD_FORMAT;
    } else if (packet_type != NETSUM_TYPE_CONTRIBUTION && packet_type != NETSUM_TYPE_PROBE &&
               packet_type != NETSUM_TYPE_HELLO) {
      m.drop = NETSUM_DROP_BAD_TYPE;  // it comes from parents, of which there are none
    } else if (m.job_known == 0) {
      m.drop = NETSUM_DROP_UNKNOWN_JOB;
    } else if (h.netsum.epoch != m.epoch) {
      m.drop = NETSUM_DROP_STALE_EPOCH;
    } else if (h.netsum.member >= m.members) {
      m.drop = NETSUM_DROP_BAD_MEMBER;
    } else if (h.netsum.slot >= m.slots) {
      m.drop = NETSUM_DROP_BAD_SLOT;
    } else if (m.payload_bytes > m.largest_payload) {
      m.drop = NETSUM_DROP_BAD_LENGTH;
    } else if (packet_type == NETSUM_TYPE_CONTRIBUTION && m.values == 1) {
      m.drop = NETSUM_DROP_BAD_FORMAT;
    } else if (m.cookie != 0 && packet_type != NETSUM_TYPE_HELLO && h.netsum.check != m.cookie) {
      m.drop = NETSUM_DROP_BAD_CHECK;
    } else if (m.member_known == 0) {
      if (packet_type == NETSUM_TYPE_HELLO) {
        m.verdict = NETSUM_P4_VERDICT_TO_CONTROL;
      } else {
        m.drop = NETSUM_DROP_UNKNOWN_PEER;
      }
    } else if (h.ipv4.from != m.member_ip || h.udp.from != m.member_udp_port || from_port != m.member_port) {
      m.drop = NETSUM_DROP_UNKNOWN_PEER;
    } else if (packet_type == NETSUM_TYPE_HELLO) {
      m.verdict = NETSUM_P4_VERDICT_WELCOME;
    }
  }
}

#endif
