// The gRPC service: passes calls to a JobService and reports the aggregator's status.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <climits>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "aggregator/control/connections.h"
#include "aggregator/control/control_service.h"
#include "aggregator/control/dataplane_looks.h"
#include "aggregator/control/local_jobs.h"
#include "aggregator/control/parent_relay.h"
#include "aggregator/control/request_checks.h"
#include "netsum/version.h"
#include "src/base/thread.h"
#include "src/base/timeout.h"
#include "src/base/wall_clock.h"
#include "src/control/channel.h"
#include "src/control/control.grpc.pb.h"
#include "src/control/rpc_status.h"
#include "src/net/tcp_sockets.h"
#include "wire/ids.h"

namespace netsum {
namespace {

// Requests of workers are much smaller.
constexpr int kMaxRequestBytes = 64 << 10;
// Of a connection: so many calls may take memory, some 20 KB each, before this code knows of the first. An aggregator below
// this one has one connection for all members of its jobs (ParentRelay::kMostSessions).
constexpr int kMaxStreamsOfConnection = 4096;
constexpr int kMaxIdleMs = 300'000;  // of a connection without calls
constexpr int kHandshakeTimeoutMs = 10'000;
// gRPC then refuses connections and ends calls.
constexpr size_t kMaxMemoryBytes = size_t{1} << 30;
// For the last events to the members.
constexpr std::chrono::milliseconds kShutdownGrace{500};

// All methods are served by a generic service, because only it knows of a call before its request has come.
class Service final : public ControlService, public grpc::CallbackGenericService {
 public:
  Service(const ControlServiceOptions& options, Dataplane* dataplane, std::shared_ptr<JobService> jobs)
      : patience_(options.read_timeout),
        place_(options.place),
        writes_events_(options.on_event != nullptr),
        dataplane_(dataplane),
        jobs_(std::move(jobs)),
        looks_(dataplane, [jobs = jobs_.get()] { return jobs->running_jobs(); }) {}

  ~Service() override {
    connections_.stop();
    jobs_->stop({ErrorCode::kAggregatorLost, "the aggregator at " + address_ + " was stopped"});
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    looks_.halt();
    jobs_->halt();
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }

  Status listen(const std::string& listen, const TlsOptions& tls);

  std::string address() const override { return address_; }
  AggregatorStatus status() const override { return status(*looks_.fresh()); }
  bool drain(std::chrono::milliseconds deadline) override {
    jobs_->drain();
    return jobs_->wait_until_empty(std::chrono::steady_clock::now() + bounded(deadline));
  }

 private:
  using Call = std::shared_ptr<MemberStream>;
  // Answers the call, now or later.
  using Method = void (Service::*)(grpc::CallbackServerContext* context, const Call& call,
                                   const grpc::ByteBuffer& request);

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;
  static Method method_of(const std::string& name);

  void join(grpc::CallbackServerContext* context, const Call& call, const grpc::ByteBuffer& request);
  void leave(grpc::CallbackServerContext* context, const Call& call, const grpc::ByteBuffer& request);
  void fail(grpc::CallbackServerContext* context, const Call& call, const grpc::ByteBuffer& request);
  void alive(grpc::CallbackServerContext* context, const Call& call, const grpc::ByteBuffer& request);
  void get_status(grpc::CallbackServerContext* context, const Call& call, const grpc::ByteBuffer& request);
  void get_place(grpc::CallbackServerContext* context, const Call& call, const grpc::ByteBuffer& request);
  void get_topology(grpc::CallbackServerContext* context, const Call& call, const grpc::ByteBuffer& request);

  Status start_threads(std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor);
  AggregatorStatus status(const DataplaneLook& look) const;
  control::StatusReply status_reply(const DataplaneLook& look) const;

  // Returns false, and ends the call, if `request` is no such message.
  static bool parse(const grpc::ByteBuffer& request, google::protobuf::MessageLite* message,
                    const Call& call) {
    if (from_buffer(request, message)) return true;
    call->enqueue_end({grpc::StatusCode::INVALID_ARGUMENT, "the request cannot be parsed"});
    return false;
  }
  static void answer(const Call& call, const google::protobuf::MessageLite& reply) {
    call->enqueue_reply(to_buffer(reply));
    call->pump();
  }
  static void answer(const Call& call, const Status& status) {
    if (status.ok()) return answer(call, control::Empty());
    call->enqueue_end(to_rpc_status(status));
    call->pump();
  }

  const std::chrono::milliseconds patience_;
  const PlaceInfo place_;
  const bool writes_events_;
  Dataplane* const dataplane_;
  const std::shared_ptr<JobService> jobs_;
  const std::shared_ptr<CallLimits> limits_ = std::make_shared<CallLimits>();
  mutable DataplaneLooks looks_;
  std::string address_;
  forked_children::TcpSockets sockets_;  // the process of an embedded service may fork
  Connections connections_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<std::thread> threads_;
};

Service::Method Service::method_of(const std::string& name) {
  static const std::map<std::string, Method> methods = {
      {"/netsum.control.Aggregator/Join", &Service::join},
      {"/netsum.control.Aggregator/Leave", &Service::leave},
      {"/netsum.control.Aggregator/Fail", &Service::fail},
      {"/netsum.control.Aggregator/Alive", &Service::alive},
      {"/netsum.control.Aggregator/GetStatus", &Service::get_status},
      {"/netsum.control.Aggregator/GetPlace", &Service::get_place},
      {"/netsum.control.Aggregator/GetTopology", &Service::get_topology}};
  const auto found = methods.find(name);
  return found == methods.end() ? nullptr : found->second;
}

grpc::ServerGenericBidiReactor* Service::CreateReactor(grpc::GenericCallbackServerContext* context) {
  const auto refuse = [&](grpc::Status status) {
    const Call call = MemberStream::create(context, patience_, nullptr, nullptr);
    call->enqueue_end(std::move(status));
    call->pump();
    return call.get();
  };
  const Method method = method_of(context->method());
  if (method == nullptr) return refuse({grpc::StatusCode::UNIMPLEMENTED, "there is no such method"});
  Address peer = peer_address(context->peer());
  peer.port = 0;
  std::unique_ptr<CallLimits::Ticket> ticket = limits_->take(peer.valid() ? peer.to_string() : "");
  if (ticket == nullptr)
    return refuse(to_rpc_status({ErrorCode::kResourceExhausted,
                                 "too many calls to this aggregator are in progress, from this address (" +
                                     std::to_string(CallLimits::kMostOfOnePeer) + ") or from all (" +
                                     std::to_string(CallLimits::kMost) + ")"}));
  const auto on_request = [this, context, method](const Call& call, const grpc::ByteBuffer& request) {
    (this->*method)(context, call, request);
  };
  return MemberStream::create(context, patience_, on_request, std::move(ticket)).get();
}

void Service::join(grpc::CallbackServerContext* context, const Call& call, const grpc::ByteBuffer& request) {
  control::JoinRequest message;
  if (!parse(request, &message, call)) return;
  call->release_ticket();
  const Address peer = peer_address(context->peer());
  connections_.set_silence(peer, std::chrono::milliseconds(message.liveness_ms()));
  jobs_->join(message, peer, call);
}

void Service::leave(grpc::CallbackServerContext*, const Call& call, const grpc::ByteBuffer& request) {
  control::MemberRequest message;
  if (!parse(request, &message, call)) return;
  const Result<control::LeaveReply> reply = jobs_->leave(to_member_claim(message));
  reply.ok() ? answer(call, *reply) : answer(call, reply.status());
}

void Service::fail(grpc::CallbackServerContext*, const Call& call, const grpc::ByteBuffer& request) {
  control::FailRequest message;
  if (!parse(request, &message, call)) return;
  answer(call, jobs_->report(to_member_claim(message.member()), from_failed(message.failure())));
}

void Service::alive(grpc::CallbackServerContext*, const Call& call, const grpc::ByteBuffer& request) {
  control::MemberRequest message;
  if (!parse(request, &message, call)) return;
  const Result<control::AliveReply> reply =
      jobs_->alive(to_member_claim(message), message.has_beat() ? &message.beat() : nullptr);
  reply.ok() ? answer(call, *reply) : answer(call, reply.status());
}

void Service::get_status(grpc::CallbackServerContext*, const Call& call, const grpc::ByteBuffer& request) {
  control::StatusRequest message;
  if (!parse(request, &message, call)) return;
  if (Status refusal = jobs_->check_aggregator_token(message.aggregator_token()); !refusal.ok())
    return answer(call, refusal);
  looks_.recent([this, call](const DataplaneLooks::Look& look) { answer(call, status_reply(*look)); });
}

void Service::get_place(grpc::CallbackServerContext* context, const Call& call,
                        const grpc::ByteBuffer& request) {
  control::StatusRequest message;
  if (!parse(request, &message, call)) return;
  if (Status refusal = jobs_->check_aggregator_token(message.aggregator_token()); !refusal.ok())
    return answer(call, refusal);
  jobs_->place(*context, place_of(place_, *dataplane_), [call](const Result<PlaceInfo>& path) {
    path.ok() ? answer(call, *path) : answer(call, path.status());
  });
}

void Service::get_topology(grpc::CallbackServerContext*, const Call& call, const grpc::ByteBuffer& request) {
  control::TopologyRequest message;
  if (!parse(request, &message, call)) return;
  if (Status refusal = jobs_->check_aggregator_token(message.aggregator_token()); !refusal.ok())
    return answer(call, refusal);
  const Result<control::TopologyReply> topology = jobs_->topology(message.job());
  topology.ok() ? answer(call, *topology) : answer(call, topology.status());
}

Result<std::shared_ptr<grpc::ServerCredentials>> credentials(const TlsOptions& tls) {
  const auto invalid = [](const char* what) { return Status(ErrorCode::kInvalidArgument, what); };
  if (tls.require_client_cert && tls.ca_cert.empty())
    return invalid("TLS: requiring client certificates needs the CA certificate that signs them");
  if (!tls.enabled()) return grpc::InsecureServerCredentials();
  if (tls.cert.empty() || tls.private_key.empty())
    return invalid("TLS: a server needs a certificate and its private key");
  grpc::SslServerCredentialsOptions options(tls.require_client_cert
                                                ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  options.pem_root_certs = tls.ca_cert;
  options.pem_key_cert_pairs.push_back({tls.private_key, tls.cert});
  return grpc::SslServerCredentials(options);
}

// gRPC tells it only of a port of its own.
bool are_usable(const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  grpc::CallbackGenericService nothing;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix-abstract:netsum-" + std::to_string(system_random()), credentials);
  builder.RegisterCallbackGenericService(&nothing);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server != nullptr) server->Shutdown();
  return server != nullptr;
}

Status Service::listen(const std::string& listen, const TlsOptions& tls) {
  const Result<HostPort> parts = split_host_port(listen);
  if (!parts.ok()) return parts.status();
  const Result<Address> address = Address::resolve(listen);
  if (!address.ok()) return address.status();
  const auto creds = credentials(tls);
  if (!creds.ok()) return creds.status();
  if (tls.enabled() && !are_usable(*creds))
    return {
        ErrorCode::kInvalidArgument,
        "cannot serve on " + listen +
            ": the TLS certificate, its key or the CA certificate is not valid PEM, or they do not belong "
            "together"};
  if (Status status = connections_.listen(*address); !status.ok()) return status;

  grpc::ServerBuilder builder;
  auto acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, *creds);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsOfConnection);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kMaxIdleMs);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeTimeoutMs);
  builder.SetResourceQuota(grpc::ResourceQuota("netsum control").Resize(kMaxMemoryBytes));
  // The kernel finds hosts that disappear (Connections::set_silence). gRPC would count a stopped process as lost, too.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, INT_MAX);
  // Accept the members' keepalive pings, which gRPC would count as abuse.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kKeepaliveTimeMs / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.RegisterCallbackGenericService(this);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr) {
    return {ErrorCode::kInvalidArgument, "cannot serve on " + listen + ": gRPC gave no reason"};
  }
  const bool v6 = parts->host.find(':') != std::string::npos;
  sockets_ = forked_children::TcpSockets::with_local_port(connections_.port());
  address_ = (v6 ? "[" + parts->host + "]" : parts->host) + ":" + std::to_string(connections_.port());
  return start_threads(std::move(acceptor));
}

Status Service::start_threads(std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor) {
  const auto start = [this](const char* what, std::function<void()> run) {
    return start_thread(what, std::move(run), &threads_.emplace_back());
  };
  if (Status status = start("for deadlines", [jobs = jobs_] { jobs->watch_deadlines(); }); !status.ok())
    return status;
  // The shards that members bring do not block, because this process does not call them.
  if (!dataplane_->limits().members_bring_shards) {
    if (Status status = start("for jobs that start", [jobs = jobs_] { jobs->run_tasks(); }); !status.ok())
      return status;
  }
  if (writes_events_) {
    if (Status status = start("for events", [jobs = jobs_] { jobs->write_events(); }); !status.ok())
      return status;
  }
  return start("for connections", [this, acceptor] { connections_.accept_for(*acceptor); });
}

AggregatorStatus Service::status(const DataplaneLook& look) const {
  AggregatorStatus status;
  status.version = NETSUM_VERSION_STRING;
  status.jobs = jobs_->jobs(look.jobs);
  status.draining = jobs_->draining();
  status.unix_time_ms = static_cast<uint64_t>(wall_us() / 1000);
  for (const Address& endpoint : dataplane_->endpoints())
    status.data_addresses.push_back(endpoint.to_string());
  for (const DataplanePort& port : look.ports) {
    status.ports.push_back({.address = split_host_port(port.address.to_string())->host,
                            .link_rate_bps = port.rate_bps,
                            .packets_received = port.packets_received,
                            .bytes_received = port.bytes_received,
                            .packets_sent = port.packets_sent,
                            .bytes_sent = port.bytes_sent,
                            .received = port.received,
                            .sent = port.sent});
  }
  status.counters = look.counters;
  for (AggregatorCounter& counter : jobs_->failures()) status.counters.push_back(std::move(counter));
  status.dataplane = dataplane_->kind();
  status.verify_modes = verify_modes_of(dataplane_->limits().capabilities);
  status.slots_per_core = dataplane_->limits().slots_per_stripe;
  status.slots_free = look.free_slots;
  return status;
}

namespace {

void set_bursts(const Bursts& bursts, control::Bursts* entry) {
  entry->mutable_backlog_bytes()->Add(bursts.backlog_bytes.begin(), bursts.backlog_bytes.end());
  entry->set_bytes(bursts.bytes);
  entry->set_largest_ms_bytes(bursts.largest_ms_bytes);
  entry->set_largest_10ms_bytes(bursts.largest_10ms_bytes);
  entry->mutable_milliseconds()->Add(bursts.milliseconds.begin(), bursts.milliseconds.end());
}

}  // namespace

control::StatusReply Service::status_reply(const DataplaneLook& look) const {
  const AggregatorStatus now = status(look);
  control::StatusReply reply;
  reply.set_version(now.version);
  reply.set_protocol_version(NETSUM_VERSION);
  reply.set_dataplane(now.dataplane);
  reply.set_payload_bytes(jobs_->payload_limit());
  reply.set_unix_time_ms(now.unix_time_ms);
  reply.set_draining(now.draining);
  reply.set_slots_per_core(now.slots_per_core);
  reply.set_slots_free(now.slots_free);
  for (const std::string& endpoint : now.data_addresses) reply.add_data_endpoints(endpoint);
  for (const std::string& mode : now.verify_modes) reply.add_verify_modes(mode);
  for (const AggregatorPortStatus& port : now.ports) {
    control::PortStatus& entry = *reply.add_ports();
    entry.set_address(port.address);
    entry.set_link_rate_bps(port.link_rate_bps);
    entry.set_packets_received(port.packets_received);
    entry.set_bytes_received(port.bytes_received);
    entry.set_packets_sent(port.packets_sent);
    entry.set_bytes_sent(port.bytes_sent);
    set_bursts(port.received, entry.mutable_received());
    set_bursts(port.sent, entry.mutable_sent());
  }
  for (const AggregatorJobStatus& job : now.jobs) {
    control::JobStatus& entry = *reply.add_jobs();
    entry.set_name(job.name);
    entry.set_world_size(static_cast<uint32_t>(job.world_size));
    for (const int rank : job.joined) entry.add_joined(static_cast<uint32_t>(rank));
    entry.set_state(job.state);
    entry.set_age_ms(job.age_ms);
    for (const std::string& host : job.hosts) entry.add_hosts(host);
    for (const int rank : job.waiting_for) entry.add_waiting_for(static_cast<uint32_t>(rank));
    entry.set_waiting_ms(job.waiting_ms);
    for (const uint64_t waited_ms : job.waited_ms) entry.add_waited_ms(waited_ms);
    entry.set_sums(job.sums);
    entry.set_payload_bytes(job.payload_bytes);
    entry.set_slots(job.slots);
    entry.set_open_slots(job.open_slots);
    entry.set_delivery(job.delivery);
    entry.set_plan(job.plan);
    entry.set_verify(job.verify);
    entry.set_id(job.id);
    for (const AggregatorJobStatus::Fault& fault : job.faults) {
      control::Fault& one = *entry.add_faults();
      for (const int rank : fault.ranks) one.add_ranks(static_cast<uint32_t>(rank));
      one.set_kind(fault.kind);
      one.set_value(fault.value);
      one.set_others(fault.others);
      one.set_cause(fault.cause);
    }
    for (const AggregatorJobStatus::Path& path : job.paths) {
      control::Path& one = *entry.add_paths();
      for (const int rank : path.ranks) one.add_ranks(static_cast<uint32_t>(rank));
      if (path.shard >= 0) one.set_shard(static_cast<uint32_t>(path.shard));
      one.set_kept_to(path.kept_to);
      one.set_lost_to(path.lost_to);
      one.set_kept_from(path.kept_from);
      one.set_lost_from(path.lost_from);
    }
    for (const std::string& hang : job.hangs) entry.add_hangs(hang);
    for (const int rank : job.away) entry.add_away(static_cast<uint32_t>(rank));
  }
  for (const AggregatorCounter& counter : now.counters) {
    control::Counter& entry = *reply.add_counters();
    entry.set_name(counter.name);
    entry.set_value(counter.value);
  }
  return reply;
}

Result<std::shared_ptr<JobService>> make_job_service(const ControlServiceOptions& options,
                                                     Dataplane* dataplane) {
  const auto join_timeout = bounded(options.join_timeout);
  if (options.parent.empty()) {
    return std::shared_ptr<JobService>(std::make_shared<LocalJobs>(
        JobTableOptions{.token = options.token,
                        .max_jobs = options.max_jobs,
                        .join_timeout_us = std::chrono::microseconds(join_timeout).count(),
                        .place = options.place,
                        .tenant = options.tenant,
                        .inside_rank = options.inside_rank},
        dataplane, options.on_event));
  }
  if (const auto channel = make_channel(options.parent, options.tls); !channel.ok()) return channel.status();
  const auto connect = [parent = options.parent, tls = options.tls](int silence_ms) {
    return make_channel(parent, tls, silence_ms).value();
  };
  auto relay = std::make_shared<ParentRelay>(
      RelayOptions{options.parent, options.parent_token, options.token, options.max_jobs, join_timeout,
                   options.place, options.inside_rank},
      dataplane, connect);
  dataplane->set_on_lost([weak = std::weak_ptr(relay)](const Status& reason) {
    if (const auto one = weak.lock()) one->on_dataplane_lost(reason);
  });
  return std::shared_ptr<JobService>(std::move(relay));
}

}  // namespace

Result<std::unique_ptr<ControlService>> ControlService::start(const ControlServiceOptions& asked,
                                                              Dataplane* dataplane) {
  ControlServiceOptions options = asked;
  options.place.set_id(system_random());
  if (options.max_jobs < 1 || options.max_jobs > 65535)
    return Status(ErrorCode::kInvalidArgument,
                  "max_jobs is " + std::to_string(options.max_jobs) + "; 1 to 65535 are possible");
  if (options.join_timeout.count() <= 0)
    return Status(ErrorCode::kInvalidArgument, "join_timeout must be positive");
  auto jobs = make_job_service(options, dataplane);
  if (!jobs.ok()) return jobs.status();
  auto service = std::make_unique<Service>(options, dataplane, *jobs);
  if (Status status = service->listen(options.listen, options.tls); !status.ok()) return status;
  return std::unique_ptr<ControlService>(std::move(service));
}

}  // namespace netsum
