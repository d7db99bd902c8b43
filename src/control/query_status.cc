#include <grpcpp/client_context.h>

#include <algorithm>
#include <utility>

#include "src/base/clock.h"
#include "src/base/text.h"
#include "src/base/wall_clock.h"
#include "src/control/client.h"
#include "src/control/connection_errors.h"
#include "src/control/rpc_status.h"
#include "src/control/status_query.h"

namespace netsum {
namespace {

std::string text(const std::string& remote) {
  return printable(remote, kStatusTextBytes);
}

std::vector<std::string> texts(const google::protobuf::RepeatedPtrField<std::string>& remote) {
  std::vector<std::string> all;
  for (const std::string& one : remote) all.push_back(text(one));
  return all;
}

AggregatorJobStatus from_job(const control::JobStatus& job) {
  AggregatorJobStatus status;
  status.name = text(job.name());
  status.world_size = static_cast<int>(job.world_size());
  status.joined.assign(job.joined().begin(), job.joined().end());
  status.state = text(job.state());
  status.age_ms = job.age_ms();
  status.hosts = texts(job.hosts());
  status.waiting_for.assign(job.waiting_for().begin(), job.waiting_for().end());
  status.waiting_ms = job.waiting_ms();
  status.waited_ms.assign(job.waited_ms().begin(), job.waited_ms().end());
  status.sums = job.sums();
  status.payload_bytes = job.payload_bytes();
  status.slots = job.slots();
  status.open_slots = job.open_slots();
  status.delivery = text(job.delivery());
  status.plan = text(job.plan());
  status.verify = text(job.verify());
  status.id = text(job.id());
  status.away.assign(job.away().begin(), job.away().end());
  for (const std::string& hang : job.hangs()) status.hangs.push_back(text(hang));
  for (const control::Fault& fault : job.faults())
    status.faults.push_back({.ranks = {fault.ranks().begin(), fault.ranks().end()},
                             .kind = text(fault.kind()),
                             .value = fault.value(),
                             .others = fault.others(),
                             .cause = text(fault.cause())});
  for (const control::Path& path : job.paths())
    status.paths.push_back({.ranks = {path.ranks().begin(), path.ranks().end()},
                            .shard = path.has_shard() ? static_cast<int>(path.shard()) : -1,
                            .kept_to = path.kept_to(),
                            .lost_to = path.lost_to(),
                            .kept_from = path.kept_from(),
                            .lost_from = path.lost_from()});
  return status;
}

Bursts from_bursts(const control::Bursts& bursts) {
  return {.backlog_bytes = {bursts.backlog_bytes().begin(), bursts.backlog_bytes().end()},
          .bytes = bursts.bytes(),
          .largest_ms_bytes = bursts.largest_ms_bytes(),
          .largest_10ms_bytes = bursts.largest_10ms_bytes(),
          .milliseconds = {bursts.milliseconds().begin(), bursts.milliseconds().end()}};
}

RemoteStatus from_reply(const control::StatusReply& reply) {
  RemoteStatus remote;
  remote.protocol_version = reply.protocol_version();
  remote.dataplane = text(reply.dataplane());
  remote.payload_bytes = reply.payload_bytes();
  AggregatorStatus& status = remote.status;
  status.version = text(reply.version());
  status.data_addresses = texts(reply.data_endpoints());
  for (const control::PortStatus& port : reply.ports()) {
    status.ports.push_back({.address = text(port.address()),
                            .link_rate_bps = port.link_rate_bps(),
                            .packets_received = port.packets_received(),
                            .bytes_received = port.bytes_received(),
                            .packets_sent = port.packets_sent(),
                            .bytes_sent = port.bytes_sent(),
                            .received = from_bursts(port.received()),
                            .sent = from_bursts(port.sent())});
  }
  for (const control::JobStatus& job : reply.jobs()) status.jobs.push_back(from_job(job));
  for (const control::Counter& counter : reply.counters())
    status.counters.push_back({text(counter.name()), counter.value()});
  status.unix_time_ms = reply.unix_time_ms();
  status.draining = reply.draining();
  status.dataplane = text(reply.dataplane());
  status.verify_modes = texts(reply.verify_modes());
  status.slots_per_core = reply.slots_per_core();
  status.slots_free = reply.slots_free();
  return remote;
}

}  // namespace

void RemoteStatus::note_clock(uint64_t unix_ms, int64_t begin_us, int64_t end_us) {
  constexpr int64_t kPerMs = 1000;
  const auto read_us = static_cast<int64_t>(std::min<uint64_t>(unix_ms, INT64_MAX / kPerMs / 2)) * kPerMs;
  const int64_t least = read_us - end_us, most = read_us + kPerMs - begin_us;
  if (end_us < begin_us) return;  // this clock was set
  if (std::max(least, least_ahead_us) <= std::min(most, most_ahead_us)) {
    least_ahead_us = std::max(least, least_ahead_us);
    most_ahead_us = std::min(most, most_ahead_us);
  } else if (most - least < most_ahead_us - least_ahead_us) {
    least_ahead_us = least;
    most_ahead_us = most;
  }
}

Result<RemoteStatus> query_status(const std::string& address, const std::string& aggregator_token,
                                  const TlsOptions& tls, std::chrono::milliseconds timeout, int calls) {
  const auto query = make_status_query(address, aggregator_token, tls, timeout);
  if (!query.ok()) return query.status();

  RemoteStatus remote;
  for (int i = 0; i < calls; ++i) {
    grpc::ClientContext context;
    context.set_deadline(query->deadline);
    control::StatusReply reply;
    const int64_t begin_us = wall_us(), start_us = monotonic_us();
    const grpc::Status result = query->stub->GetStatus(&context, query->request, &reply);
    const auto took_us = static_cast<double>(monotonic_us() - start_us);
    const int64_t end_us = wall_us();
    if (!result.ok()) {
      if (const auto answer = from_rpc_status(result)) return *answer;
      return explain(address, tls, result).status;
    }
    RemoteStatus latest = from_reply(reply);
    latest.least_ahead_us = remote.least_ahead_us;
    latest.most_ahead_us = remote.most_ahead_us;
    latest.note_clock(reply.unix_time_ms(), begin_us, end_us);
    latest.round_trip_us = i < 2 ? took_us : std::min(remote.round_trip_us, took_us);
    remote = std::move(latest);
  }
  return remote;
}

}  // namespace netsum
