#include "tests/conformance/p4_run.h"

#include "src/base/assert.h"

namespace netsum::conformance {
namespace {

netsum_fields parsed(std::span<const uint8_t> datagram) {
  netsum_fields f;
  NETSUM_ASSERT(netsum_parse(datagram.data(), static_cast<uint32_t>(datagram.size()), &f) ==
                NETSUM_DROP_NONE);
  return f;
}

}  // namespace

void P4Run::install(const VectorJob& job) {
  const uint32_t slots = job.data_slots + job.scale_slots;
  keys_[job.job] = job.packet_key();
  p4::JobEntry entry{.epoch = job.epoch,
                     .members = job.members,
                     .slots = slots,
                     .payload_bytes = job.payload_bytes,
                     .first_slot = next_slot_,
                     .cookie = keys_[job.job].cookie(),
                     .parent = {}};
  if (job.parent) {
    const Parent& parent = parents_[job.job] = {
        .at = *job.parent, .key = job.parents_packet_key(), .payload_bytes = job.payload_bytes};
    const p4::Endpoint at = endpoint_of(job.parent->peer);
    entry.parent = {.ip = at.ip,
                    .udp_port = at.udp_port,
                    .job = job.parent->job,
                    .epoch = job.parent->epoch,
                    .member = job.parent->member,
                    .cookie = parent.key.cookie()};
  }
  pipeline_.set_job(job.job, entry);
  next_slot_ += slots;
}

bool P4Run::start_at(const VectorStart& start) {
  pipeline_.start_slot_at(start.job, start.slot, start.round);
  return true;
}

// What the model announces: the formats of lanes that its table knows, no packets or results without lanes, and no values.
bool P4Run::takes(const netsum_fields& packet) const {
  if ((packet.flags & (NETSUM_FLAG_EMPTY | NETSUM_FLAG_NO_RESULT)) != 0) return false;
  switch (packet.format) {
    case NETSUM_FORMAT_NONE:
    case NETSUM_FORMAT_SUM_I8:
    case NETSUM_FORMAT_SUM_I16:
    case NETSUM_FORMAT_SUM_I32:
    case NETSUM_FORMAT_MAX_U8:
    case NETSUM_FORMAT_MAX_U16:
    case NETSUM_FORMAT_MAX_U32:
      return true;
    case NETSUM_FORMAT_SUM_I64:
    case NETSUM_FORMAT_MAX_U64:
    case NETSUM_FORMAT_OR_U64:
    case NETSUM_FORMAT_XOR_U64:
      return chip_ == P4Chip::kBmv2;
    default:
      if (netsum_is_words(packet.format) || netsum_is_values(packet.format))
        return true;                                                             // values are refused by name
      return !netsum_format_fits_type(NETSUM_TYPE_CONTRIBUTION, packet.format);  // as is what nobody knows
  }
}

bool P4Run::is_right(std::span<const uint8_t> datagram, uint16_t job, bool parents) {
  const netsum_fields f = parsed(datagram);
  const wire::PacketKey& key = key_of(job, parents);
  const uint64_t nh = netsum_nh(&datagram[NETSUM_HEADER_BYTES], f.payload_bytes, key.table());
  return !key.tags(f.type) || wire::check_is_right(datagram.data(), f, key, nh);
}

void P4Run::write(std::vector<uint8_t>* datagram, uint16_t job, bool parents) {
  const netsum_fields f = parsed(*datagram);
  const wire::PacketKey& key = key_of(job, parents);
  if (key.tags(f.type)) wire::write_header(f, key, datagram->data());
}

void P4Run::on_control(const p4::Datagram& packet) {
  const netsum_fields f = parsed(packet.bytes);
  const auto parent = parents_.find(f.job);
  if (f.type == NETSUM_TYPE_WELCOME) {
    if (f.payload_bytes != parent->second.payload_bytes) return;
    parent->second.welcomed = true;
    return pipeline_.set_parent(f.job, packet.peer.port);
  }
  if (met_.insert({f.job, f.member}).second) pipeline_.set_member(f.job, f.member, packet.peer);
  if (parent != parents_.end() && !parent->second.welcomed) return hello_up(f);
  pipeline_.run_arrival(packet);
}

void P4Run::hello_up(const netsum_fields& hello) {
  const Parent& parent = parents_.at(hello.job);
  netsum_fields up = hello;
  up.flags = 0;
  up.job = parent.at.job;
  up.epoch = parent.at.epoch;
  up.member = parent.at.member;
  Bytes datagram(NETSUM_HEADER_BYTES + hello.payload_bytes);
  wire::write_header(up, parent.key, datagram.data());
  replies_.push_back({parent.at.peer, datagram});
}

std::vector<Reply> P4Run::feed(Peer from, const Bytes& datagram) {
  const p4::Datagram packet{endpoint_of(from), datagram};
  pipeline_.run_arrival(packet);
  for (const p4::Datagram& for_control : pipeline_.take_for_control()) on_control(for_control);
  while (pipeline_.run_recirculated()) {
  }
  std::vector<Reply> replies = std::exchange(replies_, {});
  for (const p4::Datagram& sent : pipeline_.take_sent()) {
    const Peer to = static_cast<Peer>(sent.peer.ip - kFirstIp);
    NETSUM_ASSERT(sent.peer == endpoint_of(to));
    replies.push_back({to, sent.bytes});
  }
  return replies;
}

std::map<std::string, uint64_t> P4Run::drops() {
  std::map<std::string, uint64_t> drops;
  for (int reason = 0; reason < NETSUM_DROP_COUNT; ++reason)
    drops[std::string(wire::drop_name(reason))] = pipeline_.counter(reason);
  return drops;
}

}  // namespace netsum::conformance
