#include "tests/conformance/xdp_run.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/base/assert.h"
#include "tests/conformance/frames.h"

namespace netsum::conformance {
namespace {

constexpr uint16_t kFirstPeerPort = 1000;
constexpr uint32_t kSlots = 1024;
constexpr int kMaxJobs = 8;
constexpr uint32_t kPayload = 1440;

// The destination of the frame.
Peer peer_of(const Bytes& frame) {
  FrameHeaders h;
  std::memcpy(&h, frame.data(), sizeof h);
  return ntohs(h.udp.dest) - kFirstPeerPort;
}

Address aggregator() {
  return Address::parse("10.0.0.254:5152").value();
}

Mac aggregator_mac() {
  return {0xA0, 0xA1, 0xA2, 0xA3, 0xA4, 0xA5};
}
Mac mac_of(Peer peer) {
  Mac mac{};
  for (size_t i = 0; i < mac.size(); ++i) mac[i] = static_cast<uint8_t>(0x10 * i + static_cast<size_t>(peer));
  return mac;
}

bool is_at(const Address& address, uint32_t ip, uint16_t port) {
  return std::memcmp(address.ip.data(), &ip, sizeof ip) == 0 && htons(address.port) == port;
}

// The same RESULT without its lanes.
Bytes without_lanes(const Bytes& datagram, const DataplaneJob& job) {
  netsum_fields f{};
  netsum_parse(datagram.data(), static_cast<uint32_t>(datagram.size()), &f);
  const netsum_be64 length = netsum_put64(f.payload_bytes);
  Bytes shorter(NETSUM_HEADER_BYTES);
  shorter.insert(shorter.end(), length.b, length.b + sizeof length);
  f.flags |= NETSUM_FLAG_EMPTY;
  f.payload_bytes = NETSUM_EMPTY_BYTES;
  wire::write_header(f, wire::PacketKey(wire::stripe_key(job.key, 0), f.payload_bytes, job.tag),
                     shorter.data());
  return shorter;
}

}  // namespace

Address address_of(Peer peer) {
  Address address = aggregator();
  address.ip[3] = static_cast<uint8_t>(1 + peer);
  address.port = static_cast<uint16_t>(kFirstPeerPort + peer);
  return address;
}

Bytes frame_around(const Bytes& datagram, Peer from) {
  return frame_of({mac_of(from), aggregator_mac(), address_of(from), aggregator()}, datagram);
}

std::string what_is_wrong_with_answer(const Bytes& frame, Peer to) {
  FrameHeaders h;
  if (frame.size() < sizeof h) return "shorter than its headers";
  std::memcpy(&h, frame.data(), sizeof h);
  const iphdr ip = h.ip;
  if (ip.check != ip_checksum(ip)) return "IP checksum";
  if (ntohs(ip.tot_len) != frame.size() - ETH_HLEN) return "IP length";
  if (ntohs(h.udp.len) != frame.size() - ETH_HLEN - sizeof ip) return "UDP length";
  if (h.udp.check != 0) return "a UDP checksum that nobody has computed";
  if (!is_at(aggregator(), ip.saddr, h.udp.source)) return "source";
  if (!is_at(address_of(to), ip.daddr, h.udp.dest)) return "destination";
  const Mac from_mac = aggregator_mac(), to_mac = mac_of(to);
  if (!std::equal(from_mac.begin(), from_mac.end(), h.eth.h_source) ||
      !std::equal(to_mac.begin(), to_mac.end(), h.eth.h_dest)) {
    return "Ethernet addresses";
  }
  return "";
}

Result<std::unique_ptr<XdpProgram>> XdpRun::load(uint64_t job_packets_per_s) {
  auto program = XdpProgram::load({.address = aggregator(),
                                   .slots = kSlots,
                                   .max_jobs = kMaxJobs,
                                   .payload_bytes = kPayload,
                                   .job_packets_per_s = job_packets_per_s});
  if (!program.ok()) return program;
  // To the program, frames of BPF_PROG_TEST_RUN come in by the loopback interface.
  const Status status = program.value()->send_by(if_nametoindex("lo"));
  if (!status.ok()) return status;
  return program;
}

XdpProgram* XdpRun::program(std::string* why) {
  static Result<std::unique_ptr<XdpProgram>> loaded = load(0);
  if (loaded.ok()) return loaded.value().get();
  *why = loaded.status().to_string();
  return nullptr;
}

XdpRun::XdpRun(XdpProgram* program) : program_(program) {
  before_ = drops();
}

XdpRun::~XdpRun() {
  for (const auto& [index, job] : jobs_) program_->remove(index);
}

void XdpRun::install(const VectorJob& spec) {
  const DataplaneJob job = dataplane_job(spec, address_of);
  const Status status = program_->install(job, next_slot_);
  NETSUM_ASSERT(status.ok());
  jobs_[spec.job] = {job, next_slot_, {}, spec.parent ? spec.parent->peer : 0};
  next_slot_ += spec.data_slots + spec.scale_slots;
  NETSUM_ASSERT(next_slot_ <= kSlots);
}

bool XdpRun::start_at(const VectorStart& start) {
  netsum_slot slot{};
  slot.current = start.round;
  slot.rounds[start.round & 1].state = NETSUM_ROUND_COMPLETE;
  return program_->set_slot(jobs_.at(start.job).first_slot + start.slot, slot).ok();
}

XdpRun::Output XdpRun::run(XdpProgram* program, const Bytes& frame, int repeat) {
  Output output;
  output.frame.resize(4096);
  LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = frame.data(), .data_out = output.frame.data(),
              .data_size_in = static_cast<uint32_t>(frame.size()),
              .data_size_out = static_cast<uint32_t>(output.frame.size()), .repeat = repeat);
  const int error = bpf_prog_test_run_opts(program->program_fd(), &options);
  NETSUM_ASSERT(error == 0);
  output.frame.resize(options.data_size_out);
  output.verdict = options.retval;
  output.duration_ns = options.duration;
  return output;
}

std::vector<Reply> XdpRun::feed(Peer from, const Bytes& datagram) {
  const uint64_t sent_before = program_->counter(NETSUM_XDP_PACKETS_SENT);
  const Output output = run(program_, frame_around(datagram, from));
  netsum_fields fields{};
  netsum_parse(datagram.data(), static_cast<uint32_t>(datagram.size()), &fields);
  const auto job = jobs_.find(fields.job);
  const auto answer = [&](Peer to) {
    return Reply{to, Bytes(output.frame.begin() + NETSUM_XDP_HEADERS_BYTES, output.frame.end())};
  };
  switch (output.verdict) {
    case XDP_DROP:
      return {};
    case XDP_REDIRECT: {
      netsum_fields out{};
      netsum_parse(output.frame.data() + NETSUM_XDP_HEADERS_BYTES,
                   static_cast<uint32_t>(output.frame.size() - NETSUM_XDP_HEADERS_BYTES), &out);
      // A frame for one addressee has been counted; copies for all are counted by the device map's program.
      if (program_->counter(NETSUM_XDP_PACKETS_SENT) != sent_before) {
        const Peer to = peer_of(output.frame);
        if (const std::string wrong = what_is_wrong_with_answer(output.frame, to); !wrong.empty()) {
          return {{to, Bytes(wrong.begin(), wrong.end())}};  // shows in the comparison
        }
        return {answer(to)};
      }
      // The device map's program, which does not run here, addresses each copy, and leaves out lanes that its member does not
      // need.
      const Job& of = jobs_.at(out.job);
      const bool has_lanes = out.type == NETSUM_TYPE_RESULT && (out.flags & NETSUM_FLAG_EMPTY) == 0;
      const uint64_t no_result =
          has_lanes ? program_->slots(of.first_slot + out.slot, 1)[0].rounds[out.round & 1].no_result : 0;
      std::vector<Reply> replies;
      for (const auto& [member, peer] : of.peers) {
        const Reply full = answer(peer);
        replies.push_back(no_result >> member & 1 ? Reply{peer, without_lanes(full.datagram, of.job)} : full);
      }
      return replies;
    }
    case XDP_PASS: {  // what the loader's socket gets
      Bytes frame(datagram.size());
      const XdpProgram::Answer said =
          program_->answer_hello(job->second.job, datagram, address_of(from), frame.data());
      if (said.size == 0) return {};
      if (!said.welcome) return {{job->second.parent, frame}};
      job->second.peers.emplace(fields.member, from);
      return {{from, frame}};
    }
    default:
      return {{from, Bytes{static_cast<uint8_t>(output.verdict)}}};  // no packet may abort the program
  }
}

std::map<std::string, uint64_t> XdpRun::drops() {
  std::map<std::string, uint64_t> drops;
  for (int reason = 1; reason < NETSUM_DROP_COUNT; ++reason) {
    const std::string name(wire::drop_name(reason));
    const auto before = before_.find(name);
    drops[name] =
        program_->counter(static_cast<uint32_t>(reason)) - (before == before_.end() ? 0 : before->second);
  }
  return drops;
}

}  // namespace netsum::conformance
