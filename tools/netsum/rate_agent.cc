#include "tools/netsum/rate_agent.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_context.h>

#include <mutex>
#include <vector>

#include "src/base/text.h"
#include "src/control/channel.h"
#include "src/control/rpc_status.h"
#include "src/net/address.h"
#include "tools/netsum/rate_flow.h"
#include "tools/netsum/rates.grpc.pb.h"
#include "tools/netsum/usage.h"
#include "wire/mtu.h"

namespace netsum::tool {
namespace {

Result<RateTest> parse_test(const rates::Test& test) {
  const RateTest parsed{.nonce = test.nonce(),
                        .packet_bytes = test.packet_bytes(),
                        .time = std::chrono::milliseconds(test.time_ms())};
  if (parsed.packet_bytes < kMinRatePacketBytes || parsed.packet_bytes > wire::kMaxMtu)
    return invalid("packets of " + std::to_string(parsed.packet_bytes) + " bytes; at most " +
                   std::to_string(wire::kMaxMtu) + " are possible");
  if (parsed.time < kMinRateTime || parsed.time > kMaxRateTime)
    return invalid("a test of " + std::to_string(test.time_ms()) + " ms; 100 to 10000 are possible");
  return parsed;
}

class Agent final : public RateAgent, public rates::RateAgent::Service {
 public:
  explicit Agent(std::string token) : token_(std::move(token)) {}

  ~Agent() override {
    // Calls under way are cancelled.
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  Status listen(const std::string& listen) {
    const Result<Address> address = Address::resolve(listen);
    if (!address.ok()) return address.status();
    data_ = *address;
    data_.port = 0;
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address->to_string(), grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kKeepaliveTimeMs / 2);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return {
          ErrorCode::kAddressInUse,
          "cannot listen on " + listen + ": another process does already, or this host has no such address"};
    }
    Address bound = *address;
    bound.port = static_cast<uint16_t>(port);
    address_ = bound.to_string();
    return {};
  }

  std::string address() const override { return address_; }

  grpc::Status Receive(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<rates::ReceiveReply, rates::ReceiveRequest>* stream) override {
    rates::ReceiveRequest request;
    if (!stream->Read(&request)) return grpc::Status::CANCELLED;
    const Result<RateTest> test = admit(request.test(), request.flows());
    if (!test.ok()) return to_rpc_status(test.status());
    const std::unique_lock turn(receiving_, std::try_to_lock);
    if (!turn) return busy();
    const auto receiver = RateReceiver::open(data_, *test, request.flows());
    if (!receiver.ok()) return to_rpc_status(receiver.status());
    rates::ReceiveReply reply;
    reply.set_port((*receiver)->port());
    if (!stream->Write(reply)) return grpc::Status::CANCELLED;
    stream->Read(&request);  // returns when the caller closes its side, or with the call
    const RateCounts counts = (*receiver)->stop();
    reply.set_bits_per_second(counts.bits_per_second);
    reply.mutable_received()->Add(counts.received.begin(), counts.received.end());
    stream->Write(reply);
    return grpc::Status::OK;
  }

  grpc::Status Send(grpc::ServerContext* context, const rates::SendRequest* request,
                    rates::SendReply* reply) override {
    const Result<RateTest> test = admit(request->test(), static_cast<size_t>(request->targets_size()));
    if (!test.ok()) return to_rpc_status(test.status());
    std::vector<RateTarget> targets;
    for (const rates::Target& target : request->targets()) {
      const Result<Address> to = Address::parse(target.endpoint());
      if (!to.ok()) return to_rpc_status(to.status());
      targets.push_back({target.flow(), *to});
    }
    const std::unique_lock turn(sending_, std::try_to_lock);
    if (!turn) return busy();
    const auto sent = send_rate_flows(data_, *test, targets, [&] { return context->IsCancelled(); });
    if (!sent.ok()) return to_rpc_status(sent.status());
    reply->mutable_sent()->Add(sent->begin(), sent->end());
    return grpc::Status::OK;
  }

 private:
  Result<RateTest> admit(const rates::Test& test, size_t flows) const {
    if (!token_.empty() && !equal_in_constant_time(token_, test.token()))
      return Status(ErrorCode::kPermissionDenied, "the token is not that of the host's --serve-rates");
    if (flows == 0 || flows > kMaxRateFlows)
      return invalid(std::to_string(flows) + " flows; 1 to " + std::to_string(kMaxRateFlows) +
                     " are possible");
    return parse_test(test);
  }

  static grpc::Status busy() {
    return to_rpc_status({ErrorCode::kResourceExhausted,
                          "the host takes part in another measurement: wait until that has ended"});
  }

  const std::string token_;
  Address data_;  // port 0
  std::string address_;
  std::mutex sending_, receiving_;  // held during a test
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Result<std::unique_ptr<RateAgent>> RateAgent::start(const std::string& listen, const std::string& token) {
  auto agent = std::make_unique<Agent>(token);
  if (Status status = agent->listen(listen); !status.ok()) return status;
  return std::unique_ptr<RateAgent>(std::move(agent));
}

}  // namespace netsum::tool
