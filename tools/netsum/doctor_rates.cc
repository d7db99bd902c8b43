#include "tools/netsum/doctor_rates.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/sync_stream.h>
#include <sys/random.h>

#include <algorithm>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "src/base/assert.h"
#include "src/base/text.h"
#include "src/control/channel.h"
#include "src/control/rpc_status.h"
#include "tools/netsum/quantity.h"
#include "tools/netsum/rate_flow.h"
#include "tools/netsum/rates.grpc.pb.h"
#include "tools/netsum/usage.h"
#include "wire/mtu.h"

namespace netsum::tool {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using std::chrono::system_clock;

constexpr size_t kQuotedBytes = 512;

struct Flow {
  size_t from = 0;
  size_t to = 0;
};

struct FlowResult {
  double bits_per_second = 0;  // of all flows to the same host
  double lost = 0;
};

// One host's agent, as this end sees it.
struct Host {
  std::string address;
  Address endpoint;
  std::unique_ptr<rates::RateAgent::Stub> stub;
};

using ReceiveStream = grpc::ClientReaderWriter<rates::ReceiveRequest, rates::ReceiveReply>;

// The context comes first, because the stream must end before it.
struct Receiver {
  grpc::ClientContext context;
  std::unique_ptr<ReceiveStream> stream;
  uint32_t flows = 0;
  uint32_t port = 0;
  rates::ReceiveReply result;

  // A stream that was not read to its end would make the agent count on.
  ~Receiver() {
    if (stream != nullptr) context.TryCancel();
  }
};

Status failure_of(const Host& host, const grpc::Status& failed) {
  const std::string quoted = " (" + printable(failed.error_message(), kQuotedBytes) + ")";
  if (const auto answer = from_rpc_status(failed))
    return {answer->code(), host.address + ": " + printable(answer->message(), kQuotedBytes)};
  switch (failed.error_code()) {
    case grpc::StatusCode::UNIMPLEMENTED:
      return {ErrorCode::kUnreachable, host.address +
                                           " does not measure rates: start `netsum doctor --serve-rates " +
                                           host.address + "` there"};
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return {ErrorCode::kTimeout, host.address + " did not answer in time" + quoted};
    case grpc::StatusCode::OK:
    case grpc::StatusCode::CANCELLED:
      return {ErrorCode::kPeerLost,
              host.address + ": its `netsum doctor --serve-rates` has ended; start it again"};
    default:
      return {ErrorCode::kUnreachable,
              host.address +
                  " cannot be reached: check the address, that `netsum doctor --serve-rates` runs there, "
                  "and that no firewall blocks TCP to it" +
                  quoted};
  }
}

class Measurements {
 public:
  explicit Measurements(const RatesCheck& check) : check_(check) {}

  Status connect() {
    for (const auto* list : {&check_.hosts, &check_.spares}) {
      for (const std::string& address : *list) {
        const Result<Address> endpoint = Address::resolve(address);
        if (!endpoint.ok()) return endpoint.status();
        const auto channel = make_channel(address, {});
        if (!channel.ok()) return channel.status();
        hosts_.push_back({address, *endpoint, rates::RateAgent::NewStub(*channel)});
      }
    }
    return {};
  }

  // All flows at the same time; results in their order.
  Result<std::vector<FlowResult>> run(const std::vector<Flow>& flows) {
    NETSUM_ASSERT(getrandom(&nonce_, sizeof nonce_, 0) == sizeof nonce_);
    std::map<size_t, Receiver> receivers;
    std::map<size_t, rates::SendRequest> requests;
    std::vector<std::pair<int, int>> places;  // of each flow: in its sender's request, at its receiver
    for (const Flow& flow : flows) {
      rates::SendRequest& request = requests[flow.from];
      places.emplace_back(request.targets_size(), static_cast<int>(receivers[flow.to].flows));
      request.add_targets()->set_flow(receivers[flow.to].flows++);
    }
    for (auto& [host, receiver] : receivers) {
      if (Status status = open(hosts_[host], &receiver); !status.ok()) return status;
    }
    for (size_t i = 0; i < flows.size(); ++i) {
      Address to = hosts_[flows[i].to].endpoint;
      to.port = static_cast<uint16_t>(receivers[flows[i].to].port);
      requests[flows[i].from].mutable_targets(places[i].first)->set_endpoint(to.to_string());
    }
    auto sent = send(requests);
    if (!sent.ok()) return sent.status();
    for (auto& [host, receiver] : receivers) {
      if (Status status = close(hosts_[host], &receiver); !status.ok()) return status;
    }
    std::vector<FlowResult> results;
    for (size_t i = 0; i < flows.size(); ++i) {
      const rates::ReceiveReply& arrived = receivers[flows[i].to].result;
      const auto sent_count = static_cast<double>((*sent)[flows[i].from].sent(places[i].first));
      const uint64_t received = arrived.received(places[i].second);
      if (received == 0) return nothing_arrived(flows[i]);
      if (arrived.bits_per_second() < plan::kMinRateBps) return too_busy(flows[i]);
      results.push_back(
          {arrived.bits_per_second(), std::max(0.0, 1 - static_cast<double>(received) / sent_count)});
    }
    return results;
  }

 private:
  rates::Test test(const Host& host) const {
    rates::Test test;
    test.set_token(check_.token);
    test.set_nonce(nonce_);
    test.set_packet_bytes(NETSUM_HEADER_BYTES + wire::payload_for_mtu(check_.mtu, host.endpoint.family));
    test.set_time_ms(static_cast<uint32_t>(check_.time.count()));
    return test;
  }

  void limit(grpc::ClientContext* context) const {
    context->set_deadline(system_clock::now() + check_.time + 2 * check_.timeout);
  }

  Status open(const Host& host, Receiver* receiver) {
    limit(&receiver->context);
    receiver->stream = host.stub->Receive(&receiver->context);
    rates::ReceiveRequest request;
    *request.mutable_test() = test(host);
    request.set_flows(receiver->flows);
    rates::ReceiveReply reply;
    if (!receiver->stream->Write(request) || !receiver->stream->Read(&reply) || reply.port() > UINT16_MAX)
      return failure_of(host, receiver->stream->Finish());
    receiver->port = reply.port();
    return {};
  }

  Status close(const Host& host, Receiver* receiver) {
    receiver->stream->WritesDone();
    const bool complete = receiver->stream->Read(&receiver->result);
    const grpc::Status ended = receiver->stream->Finish();
    receiver->stream.reset();
    if (ended.ok() && complete && receiver->result.received_size() == static_cast<int>(receiver->flows))
      return {};
    return failure_of(host, ended);
  }

  Result<std::map<size_t, rates::SendReply>> send(std::map<size_t, rates::SendRequest>& requests) {
    std::map<size_t, rates::SendReply> replies;
    std::map<size_t, std::future<grpc::Status>> calls;
    for (auto& [number, request] : requests) {
      const Host& host = hosts_[number];
      *request.mutable_test() = test(host);
      calls[number] = std::async(std::launch::async, [&, reply = &replies[number]] {
        grpc::ClientContext context;
        limit(&context);
        return host.stub->Send(&context, request, reply);
      });
    }
    Status first;
    for (auto& [number, call] : calls) {
      const grpc::Status ended = call.get();
      const bool complete = replies[number].sent_size() == requests[number].targets_size();
      if ((!ended.ok() || !complete) && first.ok()) first = failure_of(hosts_[number], ended);
    }
    if (!first.ok()) return first;
    return replies;
  }

  Status nothing_arrived(const Flow& flow) const {
    return {ErrorCode::kUnreachable, "nothing that " + hosts_[flow.from].address + " has sent arrived at " +
                                         hosts_[flow.to].address +
                                         ": check the links and firewalls between them, and --mtu"};
  }

  Status too_busy(const Flow& flow) const {
    return {ErrorCode::kResourceExhausted,
            hosts_[flow.to].address + " or " + hosts_[flow.from].address +
                " was too busy to measure: give a longer --measure-time, or measure when the hosts are idle"};
  }

  const RatesCheck check_;
  std::vector<Host> hosts_;
  uint64_t nonce_ = 0;
};

std::string host_name(const std::string& address, bool with_port) {
  const Result<HostPort> parts = split_host_port(address);
  std::string name = parts.ok() ? parts->host : address;
  if (with_port && parts.ok()) name.append("-").append(std::to_string(parts->port));
  for (char& c : name) {
    if (c == ':' || c == '%') c = '_';
  }
  return name;
}

}  // namespace

size_t RatesCheck::steps() const {
  return count() == 2 ? 1 : count() - 1 + 2 * count();
}

Status check_rates_request(const RatesCheck& check) {
  if (check.count() < 2) return invalid("rates are measured between hosts: give at least two");
  if (check.count() > kMaxRateHosts) {
    return invalid("at most " + std::to_string(kMaxRateHosts) + " hosts can be measured at once, not " +
                   std::to_string(check.count()) + ": measure them in groups");
  }
  std::set<std::string> seen;
  for (const auto* list : {&check.hosts, &check.spares}) {
    for (const std::string& address : *list) {
      if (!seen.insert(address).second) return invalid("'" + address + "' is listed twice; leave out one");
    }
  }
  const auto least = check.time * static_cast<int64_t>(check.steps());
  if (least > check.deadline) {
    return invalid(std::to_string(check.count()) + " hosts take " + std::to_string(check.steps()) +
                   " measurements of " + format_duration(check.time) + ", more than --deadline " +
                   format_duration(check.deadline) +
                   ": raise it, lower --measure-time, or measure fewer hosts");
  }
  return {};
}

Result<RateSurvey> measure_rates(const RatesCheck& check) {
  if (Status status = check_rates_request(check); !status.ok()) return status;
  RateSurvey survey(check);
  Measurements measurements(check);
  if (Status status = measurements.connect(); !status.ok()) return status;
  const auto until = steady_clock::now() + check.deadline;
  size_t done = 0;
  const auto run = [&](const std::vector<Flow>& flows) -> Result<std::vector<FlowResult>> {
    if (steady_clock::now() + check.time > until) {
      return Status(ErrorCode::kTimeout, "--deadline " + format_duration(check.deadline) +
                                             " has passed after " + std::to_string(done) + " of " +
                                             std::to_string(check.steps()) +
                                             " measurements: raise it, or measure fewer hosts");
    }
    ++done;
    return measurements.run(flows);
  };
  const size_t count = check.count();
  for (size_t shift = 1; shift < count; ++shift) {
    std::vector<Flow> flows;
    for (size_t from = 0; from < count; ++from) flows.push_back({from, (from + shift) % count});
    const auto results = run(flows);
    if (!results.ok()) return results.status();
    for (size_t from = 0; from < count; ++from) {
      survey.pairs[from][flows[from].to] = (*results)[from].bits_per_second;
      survey.lost[from][flows[from].to] = (*results)[from].lost;
    }
  }
  for (size_t host = 0; host < count && count > 2; ++host) {
    std::vector<Flow> in, out;
    for (size_t other = 0; other < count; ++other) {
      if (other == host) continue;
      in.push_back({other, host});
      out.push_back({host, other});
    }
    const auto received = run(in);
    if (!received.ok()) return received.status();
    survey.fan_in.push_back(received->front().bits_per_second);
    const auto sent = run(out);
    if (!sent.ok()) return sent.status();
    double sum = 0;
    for (const FlowResult& result : *sent) sum += result.bits_per_second;
    survey.fan_out.push_back(sum);
  }
  return survey;
}

RateSurvey::RateSurvey(const RatesCheck& check) : spares(check.spares.size()) {
  std::map<std::string, int> uses;
  std::vector<std::string> addresses = check.hosts;
  addresses.insert(addresses.end(), check.spares.begin(), check.spares.end());
  for (const std::string& address : addresses) ++uses[host_name(address, false)];
  for (const std::string& address : addresses)
    names.push_back(host_name(address, uses[host_name(address, false)] > 1));
  pairs.assign(names.size(), std::vector<double>(names.size(), 0));
  lost = pairs;
}

}  // namespace netsum::tool
