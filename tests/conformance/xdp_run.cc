#include "tests/conformance/xdp_run.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <net/if.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/base/assert.h"

namespace netsum::conformance {
namespace {

constexpr uint16_t kAggregatorPort = 5152;
constexpr uint16_t kFirstPeerPort = 1000;
constexpr uint32_t kSlots = 64;
constexpr int kMaxJobs = 8;
constexpr uint32_t kPayload = 1440;

uint32_t aggregator_ip() {
  return htonl(0x0A0000FE);
}
uint32_t peer_ip(Peer peer) {
  return htonl(0x0A000001u + static_cast<uint32_t>(peer));
}
uint16_t peer_port(Peer peer) {
  return htons(static_cast<uint16_t>(kFirstPeerPort + peer));
}

uint16_t ip_checksum(const iphdr& header) {
  uint16_t words[10];
  std::memcpy(words, &header, sizeof words);
  uint32_t sum = 0;
  for (const uint16_t word : words) sum += word;
  while (sum >> 16) sum = (sum & 0xFFFF) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

struct Headers {
  ethhdr eth;
  iphdr ip;
  udphdr udp;
} __attribute__((packed));
static_assert(sizeof(Headers) == NETSUM_XDP_HEADERS_BYTES);

// To whom the frame goes.
Peer peer_of(const Bytes& frame) {
  Headers h;
  std::memcpy(&h, frame.data(), sizeof h);
  return ntohs(h.udp.dest) - kFirstPeerPort;
}

Address address_of(Peer peer) {
  Address address;
  address.family = 4;
  const uint32_t ip = peer_ip(peer);
  std::memcpy(address.ip.data(), &ip, sizeof ip);
  address.port = ntohs(peer_port(peer));
  return address;
}

}  // namespace

Bytes frame_around(const Bytes& datagram, Peer from) {
  Headers h{};
  for (int i = 0; i < ETH_ALEN; ++i) {
    h.eth.h_dest[i] = static_cast<uint8_t>(0xA0 + i);
    h.eth.h_source[i] = static_cast<uint8_t>(0x10 * i + from);
  }
  h.eth.h_proto = htons(ETH_P_IP);
  iphdr ip{};
  ip.version = 4;
  ip.ihl = 5;
  ip.ttl = 64;
  ip.protocol = IPPROTO_UDP;
  ip.saddr = peer_ip(from);
  ip.daddr = aggregator_ip();
  ip.tot_len = htons(static_cast<uint16_t>(28 + datagram.size()));
  ip.check = ip_checksum(ip);
  h.ip = ip;
  h.udp.source = peer_port(from);
  h.udp.dest = htons(kAggregatorPort);
  h.udp.len = htons(static_cast<uint16_t>(8 + datagram.size()));
  Bytes frame(sizeof h);
  std::memcpy(frame.data(), &h, sizeof h);
  frame.insert(frame.end(), datagram.begin(), datagram.end());
  return frame;
}

std::string what_is_wrong_with_answer(const Bytes& frame, Peer to) {
  Headers h;
  if (frame.size() < sizeof h) return "shorter than its headers";
  std::memcpy(&h, frame.data(), sizeof h);
  iphdr ip = h.ip;
  const uint16_t check = ip.check;
  ip.check = 0;
  if (check != ip_checksum(ip)) return "IP checksum";
  if (ntohs(ip.tot_len) != frame.size() - ETH_HLEN) return "IP length";
  if (ntohs(h.udp.len) != frame.size() - ETH_HLEN - sizeof ip) return "UDP length";
  if (h.udp.check != 0) return "a UDP checksum that nobody has computed";
  if (ip.saddr != aggregator_ip() || h.udp.source != htons(kAggregatorPort)) return "source";
  if (ip.daddr != peer_ip(to) || h.udp.dest != peer_port(to)) return "destination";
  if (h.eth.h_source[1] != 0xA1 || h.eth.h_dest[1] != 0x10 + to) return "Ethernet addresses";
  return "";
}

Result<std::unique_ptr<XdpProgram>> XdpRun::load(uint64_t job_packets_per_s) {
  Address address;
  address.family = 4;
  const uint32_t ip = aggregator_ip();
  std::memcpy(address.ip.data(), &ip, sizeof ip);
  address.port = kAggregatorPort;
  auto program = XdpProgram::load({.address = address,
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

XdpRun::Output XdpRun::run(XdpProgram* program, const Bytes& frame) {
  Output output;
  output.frame.resize(4096);
  LIBBPF_OPTS(bpf_test_run_opts, options, .data_in = frame.data(), .data_out = output.frame.data(),
              .data_size_in = static_cast<uint32_t>(frame.size()),
              .data_size_out = static_cast<uint32_t>(output.frame.size()), .repeat = 1);
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
      // The device map's program addresses each copy.
      std::vector<Reply> replies;
      for (const auto& [member, peer] : jobs_.at(out.job).peers) replies.push_back(answer(peer));
      return replies;
    }
    case XDP_PASS: {  // what the loader's socket gets
      const DataplaneJob& spec = job->second.job;
      Bytes frame(NETSUM_HEADER_BYTES + fields.payload_bytes);
      if (spec.parent && !program_->parent_welcomed(spec.job)) {
        return {{job->second.parent, Bytes(frame.data(), frame.data() + XdpProgram::hello_to_parent(
                                                                            spec, fields, frame.data()))}};
      }
      if (program_->welcome(job->second.job, fields, address_of(from), frame.data()) == 0) return {};
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
