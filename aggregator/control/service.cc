// The gRPC service: passes calls to a JobService and reports the aggregator's status.
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <algorithm>
#include <thread>

#include "aggregator/control/control_service.h"
#include "aggregator/control/listen.h"
#include "aggregator/control/local_jobs.h"
#include "aggregator/control/parent_relay.h"
#include "aggregator/control/request_checks.h"
#include "netsum/version.h"
#include "src/base/thread.h"
#include "src/base/timeout.h"
#include "src/control/channel.h"
#include "src/control/control.grpc.pb.h"
#include "src/control/rpc_status.h"
#include "src/net/tcp_sockets.h"
#include "wire/ids.h"

namespace netsum {
namespace {

// Requests of workers are much smaller.
constexpr int kMaxRequestBytes = 64 << 10;
// For the last events to the members.
constexpr std::chrono::milliseconds kShutdownGrace{500};

class Service final : public ControlService, public control::Aggregator::CallbackService {
 public:
  Service(const ControlServiceOptions& options, Dataplane* dataplane, std::shared_ptr<JobService> jobs)
      : read_timeout_(options.read_timeout),
        place_(options.place),
        dataplane_(dataplane),
        jobs_(std::move(jobs)) {}

  ~Service() override {
    jobs_->stop({ErrorCode::kAggregatorLost, "the aggregator at " + address_ + " was stopped"});
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
    jobs_->halt();
    if (watcher_.joinable()) watcher_.join();
  }

  Status listen(const std::string& listen, const TlsOptions& tls);

  std::string address() const override { return address_; }
  AggregatorStatus status() const override;
  bool drain(std::chrono::milliseconds deadline) override {
    jobs_->drain();
    return jobs_->wait_until_empty(std::chrono::steady_clock::now() + bounded(deadline));
  }

 private:
  grpc::ServerWriteReactor<control::Event>* Join(grpc::CallbackServerContext* context,
                                                 const control::JoinRequest* request) override {
    const auto stream = MemberStream::create(context, read_timeout_);
    jobs_->join(*request, peer_address(context->peer()), stream);
    return stream.get();
  }

  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context, const control::MemberRequest* request,
                                  control::Empty*) override {
    return answer(context, jobs_->leave(to_member_claim(*request)));
  }

  grpc::ServerUnaryReactor* Fail(grpc::CallbackServerContext* context, const control::FailRequest* request,
                                 control::Empty*) override {
    return answer(context,
                  jobs_->report(to_member_claim(request->member()), from_failed(request->failure())));
  }

  grpc::ServerUnaryReactor* Alive(grpc::CallbackServerContext* context, const control::MemberRequest* request,
                                  control::Empty*) override {
    return answer(context, jobs_->alive(to_member_claim(*request)));
  }

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const control::StatusRequest* request,
                                      control::StatusReply* reply) override;

  grpc::ServerUnaryReactor* GetPlace(grpc::CallbackServerContext* context,
                                     const control::StatusRequest* request, PlaceInfo* reply) override {
    const Status refusal = jobs_->check_aggregator_token(request->aggregator_token());
    if (!refusal.ok()) return answer(context, refusal);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    jobs_->place(*context, place_of(place_, *dataplane_), [reactor, reply](const Result<PlaceInfo>& path) {
      if (path.ok()) *reply = *path;
      reactor->Finish(to_rpc_status(path.status()));
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* GetTopology(grpc::CallbackServerContext* context,
                                        const control::TopologyRequest* request,
                                        control::TopologyReply* reply) override {
    Status refusal = jobs_->check_aggregator_token(request->aggregator_token());
    if (!refusal.ok()) return answer(context, refusal);
    Result<control::TopologyReply> topology = jobs_->topology(request->job());
    if (!topology.ok()) return answer(context, topology.status());
    *reply = std::move(topology).value();
    return answer(context, {});
  }

  static grpc::ServerUnaryReactor* answer(grpc::CallbackServerContext* context, const Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(to_rpc_status(status));
    return reactor;
  }

  const std::chrono::milliseconds read_timeout_;
  const PlaceInfo place_;
  Dataplane* const dataplane_;
  const std::shared_ptr<JobService> jobs_;
  std::string address_;
  forked_children::TcpSockets sockets_;  // the process of an embedded service may fork
  std::unique_ptr<grpc::Server> server_;
  std::thread watcher_;
};

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

Status Service::listen(const std::string& listen, const TlsOptions& tls) {
  const Result<HostPort> parts = split_host_port(listen);
  if (!parts.ok()) return parts.status();
  const Result<Address> address = Address::resolve(listen);
  if (!address.ok()) return address.status();
  const auto creds = credentials(tls);
  if (!creds.ok()) return creds.status();
  if (Status status = check_listen(*address); !status.ok()) return status;

  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address->to_string(), *creds, &port);
  // By default, gRPC shares the port with other processes that listen on it.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Accept the members' keepalive pings, which gRPC would count as abuse.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kKeepaliveTimeMs / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) {
    server_.reset();
    if (Status status = check_listen(*address); !status.ok()) return status;  // another process was faster
    return {
        ErrorCode::kInvalidArgument,
        "cannot serve on " + listen +
            (tls.enabled() ? ": the TLS certificate, its key or the CA certificate is not valid PEM, or they "
                             "do not belong together"
                           : ": gRPC gave no reason")};
  }
  const bool v6 = parts->host.find(':') != std::string::npos;
  sockets_ = forked_children::TcpSockets::with_local_port(static_cast<uint16_t>(port));
  address_ = (v6 ? "[" + parts->host + "]" : parts->host) + ":" + std::to_string(port);
  return start_thread(
      "for deadlines", [jobs = jobs_] { jobs->watch_deadlines(); }, &watcher_);
}

AggregatorStatus Service::status() const {
  AggregatorStatus status;
  status.version = NETSUM_VERSION_STRING;
  status.jobs = jobs_->jobs();
  status.draining = jobs_->draining();
  status.unix_time_ms = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(
                                                  std::chrono::system_clock::now().time_since_epoch())
                                                  .count());
  for (const Address& endpoint : dataplane_->endpoints())
    status.data_addresses.push_back(endpoint.to_string());
  for (const DataplanePort& port : dataplane_->ports()) {
    status.ports.push_back({.address = split_host_port(port.address.to_string())->host,
                            .link_rate_bps = port.rate_bps,
                            .packets_received = port.packets_received,
                            .bytes_received = port.bytes_received,
                            .packets_sent = port.packets_sent,
                            .bytes_sent = port.bytes_sent});
  }
  status.counters = dataplane_->counters();
  for (AggregatorCounter& counter : jobs_->failures()) status.counters.push_back(std::move(counter));
  status.dataplane = dataplane_->kind();
  status.verify_modes = verify_modes_of(dataplane_->limits().capabilities);
  status.slots_per_core = dataplane_->limits().slots_per_stripe;
  status.slots_free = dataplane_->free_slots();
  return status;
}

grpc::ServerUnaryReactor* Service::GetStatus(grpc::CallbackServerContext* context,
                                             const control::StatusRequest* request,
                                             control::StatusReply* reply) {
  if (Status refusal = jobs_->check_aggregator_token(request->aggregator_token()); !refusal.ok())
    return answer(context, refusal);
  const AggregatorStatus now = status();
  reply->set_version(now.version);
  reply->set_protocol_version(NETSUM_VERSION);
  reply->set_dataplane(now.dataplane);
  reply->set_payload_bytes(jobs_->payload_limit());
  reply->set_unix_time_ms(now.unix_time_ms);
  reply->set_draining(now.draining);
  reply->set_slots_per_core(now.slots_per_core);
  reply->set_slots_free(now.slots_free);
  for (const std::string& endpoint : now.data_addresses) reply->add_data_endpoints(endpoint);
  for (const std::string& mode : now.verify_modes) reply->add_verify_modes(mode);
  for (const AggregatorPortStatus& port : now.ports) {
    control::PortStatus& entry = *reply->add_ports();
    entry.set_address(port.address);
    entry.set_link_rate_bps(port.link_rate_bps);
    entry.set_packets_received(port.packets_received);
    entry.set_bytes_received(port.bytes_received);
    entry.set_packets_sent(port.packets_sent);
    entry.set_bytes_sent(port.bytes_sent);
  }
  for (const AggregatorJobStatus& job : now.jobs) {
    control::JobStatus& entry = *reply->add_jobs();
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
  }
  for (const AggregatorCounter& counter : now.counters) {
    control::Counter& entry = *reply->add_counters();
    entry.set_name(counter.name);
    entry.set_value(counter.value);
  }
  return answer(context, {});
}

Result<std::shared_ptr<JobService>> make_job_service(const ControlServiceOptions& options,
                                                     Dataplane* dataplane) {
  const auto join_timeout = bounded(options.join_timeout);
  if (options.parent.empty()) {
    return std::shared_ptr<JobService>(std::make_shared<LocalJobs>(
        JobTableOptions{options.token, options.max_jobs, std::chrono::microseconds(join_timeout).count(),
                        options.place},
        dataplane, options.on_event));
  }
  auto channel = make_channel(options.parent, options.tls);
  if (!channel.ok()) return channel.status();
  auto relay = std::make_shared<ParentRelay>(RelayOptions{options.parent, options.parent_token, options.token,
                                                          options.max_jobs, join_timeout, options.place},
                                             dataplane, *channel);
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
