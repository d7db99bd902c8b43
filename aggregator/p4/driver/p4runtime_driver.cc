#include "aggregator/p4/driver/p4runtime_driver.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "aggregator/p4/driver/frame.h"
#include "aggregator/p4/driver/p4_program.h"
#include "aggregator/p4/driver/p4runtime.grpc.pb.h"
#include "src/net/address.h"

namespace netsum::p4 {
namespace {

namespace v1 = ::p4::v1;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kCallPatience{5000};
constexpr milliseconds kLoadPatience{60'000};  // of a program
constexpr milliseconds kConnectPatience{10'000};
constexpr milliseconds kPause{200};  // before connecting again
// The same for all control planes: the switch then refuses a second one while the first is connected.
constexpr uint64_t kElectionId = 1;
constexpr int kMaxMessageBytes = 256 << 20;  // a program for BMv2 has tens of megabytes

std::shared_ptr<grpc::Channel> channel_to(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

// What the switch says about each update of a Write, behind the status of the call.
std::string details_of(const grpc::Status& status) {
  v1::RpcStatus details;
  if (!details.ParseFromString(status.error_details())) return "";
  std::string text;
  for (const v1::AnyError& one : details.details()) {
    if (one.value().canonical_code() != grpc::OK) text += ": " + one.value().message();
  }
  return text;
}
// The only code that updates have failed with, or that of the call.
int code_of(const grpc::Status& status) {
  v1::RpcStatus details;
  if (!details.ParseFromString(status.error_details())) return status.error_code();
  int code = grpc::OK;
  for (const v1::AnyError& one : details.details()) {
    const int own = one.value().canonical_code();
    if (own == grpc::OK) continue;
    if (code != grpc::OK && code != own) return grpc::UNKNOWN;
    code = own;
  }
  return code == grpc::OK ? status.error_code() : code;
}

class P4RuntimeDriver final : public SwitchDriver {
 public:
  P4RuntimeDriver(const P4RuntimeOptions& options, const std::string& target)
      : options_(options),
        whose_("the switch at " + options.server),
        stub_(v1::P4Runtime::NewStub(channel_to(target))) {}

  ~P4RuntimeDriver() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      if (context_) context_->TryCancel();
      changed_.notify_all();
    }
    if (thread_.joinable()) thread_.join();
  }

  // Until the switch is set up, or start has failed.
  Status start();

  void set_events(Events events) override {
    const std::lock_guard lock(events_mutex_);
    events_ = std::move(events);
  }
  SwitchLimits limits() const override { return limits_; }
  Status set_job(uint16_t job, const JobEntry& entry) override;
  Status remove_job(uint16_t job) override;
  Status set_member(uint16_t job, uint16_t member, const MemberEntry& entry) override;
  Status set_parent(uint16_t job, const ParentPlace& place) override;
  std::vector<uint16_t> ports() const override { return options_.ports; }
  Status send(uint16_t port, std::span<const uint8_t> frame) override;
  Result<SwitchCounters> counters() override;

 private:
  using Stream = grpc::ClientReaderWriter<v1::StreamMessageRequest, v1::StreamMessageResponse>;
  struct Member {
    uint16_t number = 0;
    MemberEntry entry;
  };
  struct Job {
    std::vector<Member> members;
    std::optional<JobEntry::Parent> parent;
  };

  // --- The thread that holds the stream
  void run();
  Status hold_stream(grpc::ClientContext* context);
  enum class Arbitration { kPrimary, kBackup, kEnded };
  Arbitration ask_to_be_primary();
  Status not_primary(Arbitration answer, const grpc::Status& status) const;
  Status set_up_if_needed();
  Status set_up();
  Status load_program();
  Result<P4Program> program_of_switch();
  Result<bool> has_own_address();
  Status clear(const std::vector<uint32_t>& tables);
  Status enter_own_address();
  void on_message(const v1::StreamMessageResponse& message);
  void set_state(Status state);

  // --- Calls, with calls_mutex_ held
  Status write(const std::string& what, const std::vector<v1::Update>& updates,
               std::optional<int> harmless = std::nullopt);
  Result<std::vector<v1::Entity>> read(const v1::ReadRequest& request);
  Status failure(const std::string& what, const grpc::Status& status) const;
  static void set_deadline(grpc::ClientContext* context, milliseconds patience) {
    context->set_deadline(std::chrono::system_clock::now() + patience);
  }
  Status state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }

  static v1::Update update(v1::Update::Type type, v1::TableEntry entry);
  static v1::Update group_update(v1::Update::Type type, uint32_t group,
                                 const std::vector<std::pair<uint16_t, uint16_t>>& replicas);
  v1::TableEntry job_entry(uint16_t job, const JobEntry& entry) const;
  v1::TableEntry member_entry(uint16_t job, const Member& member) const;
  v1::TableEntry address_entry(uint16_t job, const Member& member) const;
  v1::TableEntry parent_entry(uint16_t job, const JobEntry::Parent& parent) const;
  v1::TableEntry uplink_entry(uint16_t job, uint16_t port, bool waits) const;
  v1::TableEntry parent_address_entry(uint16_t job, const JobEntry::Parent& parent, uint64_t mac) const;
  v1::TableEntry own_address_entry() const;

  const P4RuntimeOptions options_;
  const std::string whose_;
  const std::unique_ptr<v1::P4Runtime::Stub> stub_;
  SwitchLimits limits_;  // set by start()

  std::mutex calls_mutex_;  // one call that changes the switch at a time; locked before mutex_
  std::optional<P4Program> program_;
  std::map<uint16_t, Job> jobs_;  // in the switch

  std::mutex events_mutex_;
  Events events_;

  mutable std::mutex mutex_;  // state_, stop_, context_, stream_
  std::condition_variable changed_;
  Status state_{ErrorCode::kUnreachable, "not connected yet"};
  bool stop_ = false;
  bool was_up_ = false;  // of the thread only
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<Stream> stream_;
  std::thread thread_;
};

// --- Connection --------------------------------------------------------------------------------------------------------

Status P4RuntimeDriver::start() {
  thread_ = std::thread([this] { run(); });
  std::unique_lock lock(mutex_);
  // A switch that is not there yet is waited for; anything else is final.
  const auto connected = Clock::now() + kConnectPatience;
  const auto loaded = Clock::now() + kConnectPatience + kLoadPatience;
  changed_.wait_until(lock, loaded, [&] {
    return state_.code() != ErrorCode::kUnreachable || (Clock::now() >= connected && context_ == nullptr);
  });
  return state_;
}

void P4RuntimeDriver::set_state(Status state) {
  const std::lock_guard lock(mutex_);
  state_ = std::move(state);
  changed_.notify_all();
}

void P4RuntimeDriver::run() {
  for (;;) {
    grpc::ClientContext* context = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      context_ = std::make_unique<grpc::ClientContext>();
      context = context_.get();
    }
    Status why = hold_stream(context);
    std::unique_lock lock(mutex_);
    stream_.reset();
    context_.reset();
    state_ = std::move(why);
    changed_.notify_all();
    changed_.wait_for(lock, kPause, [this] { return stop_; });
  }
}

// Returns when the stream has ended.
Status P4RuntimeDriver::hold_stream(grpc::ClientContext* context) {
  {
    std::unique_ptr<Stream> stream = stub_->StreamChannel(context);
    const std::lock_guard lock(mutex_);
    stream_ = std::move(stream);
  }
  const Arbitration answer = ask_to_be_primary();
  if (answer != Arbitration::kPrimary) {
    if (answer == Arbitration::kBackup) context->TryCancel();
    return not_primary(answer, stream_->Finish());
  }
  Status status = set_up_if_needed();
  if (status.ok()) {
    set_state({});
    was_up_ = true;
    v1::StreamMessageResponse message;
    while (stream_->Read(&message)) on_message(message);
  }
  context->TryCancel();
  const grpc::Status over = stream_->Finish();
  if (!status.ok()) return status;
  return {ErrorCode::kUnreachable,
          "the connection to " + whose_ + " has ended (" + over.error_message() + "); connecting again"};
}

// kBackup: the switch has said that there is another one. kEnded: it has ended the stream, and the stream's status says why.
P4RuntimeDriver::Arbitration P4RuntimeDriver::ask_to_be_primary() {
  v1::StreamMessageRequest request;
  v1::MasterArbitrationUpdate& asked = *request.mutable_arbitration();
  asked.set_device_id(options_.device_id);
  asked.mutable_election_id()->set_low(kElectionId);
  v1::StreamMessageResponse answer;
  if (!stream_->Write(request) || !stream_->Read(&answer)) return Arbitration::kEnded;
  const bool primary = answer.has_arbitration() && answer.arbitration().status().code() == grpc::OK;
  return primary ? Arbitration::kPrimary : Arbitration::kBackup;
}

// Why it is not. `status` is that of the stream: cancelled if this side has ended it, or if the server stops.
Status P4RuntimeDriver::not_primary(Arbitration answer, const grpc::Status& status) const {
  const bool cancelled = status.error_code() == grpc::CANCELLED && answer == Arbitration::kEnded;
  if (status.error_code() == grpc::UNAVAILABLE || cancelled)
    return {ErrorCode::kUnreachable, "no P4Runtime server answers at " + options_.server + " (" +
                                         status.error_message() + "): is the switch running?"};
  if (answer == Arbitration::kBackup || status.error_code() == grpc::INVALID_ARGUMENT ||
      status.error_code() == grpc::ALREADY_EXISTS)
    return {ErrorCode::kAddressInUse,
            "another control plane drives " + whose_ + ": stop it first (" + status.error_message() + ")"};
  return {ErrorCode::kAggregatorLost,
          whose_ + " has refused the control connection: " + status.error_message()};
}

void P4RuntimeDriver::on_message(const v1::StreamMessageResponse& message) {
  if (!message.has_packet()) return;
  const v1::PacketIn& packet = message.packet();
  uint16_t port = 0;
  for (const v1::PacketMetadata& field : packet.metadata()) {
    if (field.metadata_id() == program_->port_field("packet_in"))
      port = static_cast<uint16_t>(number_of(field.value()));
  }
  const std::lock_guard lock(events_mutex_);
  if (!events_.on_packet) return;
  const auto* bytes = reinterpret_cast<const uint8_t*>(packet.payload().data());
  events_.on_packet(port, {bytes, packet.payload().size()});
}

// --- Setting up --------------------------------------------------------------------------------------------------------

Status P4RuntimeDriver::set_up_if_needed() {
  {
    const std::lock_guard calls(calls_mutex_);
    if (was_up_) {
      const Result<bool> kept = has_own_address();
      if (!kept.ok()) return kept.status();
      if (*kept) return {};
    }
    if (Status status = set_up(); !status.ok()) return status;
    jobs_.clear();
  }
  if (!was_up_) return {};
  // Before the state is good again, so that nobody has entered a job since.
  const std::lock_guard lock(events_mutex_);
  if (events_.on_restart)
    events_.on_restart({ErrorCode::kAggregatorLost,
                        whose_ + " has restarted and lost the sums that were under way: join again"});
  return {};
}

Status P4RuntimeDriver::set_up() {
  if (!options_.config.empty()) {
    // BMv2 keeps multicast groups when another program is loaded. There is an error if it has no program.
    if (Status status = clear({}); status.code() == ErrorCode::kUnreachable) return status;
    if (Status status = load_program(); !status.ok()) return status;
  } else {
    Result<P4Program> program = program_of_switch();
    if (!program.ok()) return program.status();
    program_ = std::move(program).value();
    if (Status status = clear(program_->tables()); !status.ok()) return status;
  }
  if (!was_up_) limits_ = program_->limits();
  return enter_own_address();
}

Status P4RuntimeDriver::load_program() {
  Result<P4Program> program = P4Program::read(options_.p4info, "the file given for P4Info");
  if (!program.ok()) return program.status();
  program_ = std::move(program).value();
  v1::SetForwardingPipelineConfigRequest request;
  request.set_device_id(options_.device_id);
  request.mutable_election_id()->set_low(kElectionId);
  request.set_action(v1::SetForwardingPipelineConfigRequest::VERIFY_AND_COMMIT);
  request.mutable_config()->set_p4info(options_.p4info);
  request.mutable_config()->set_p4_device_config(options_.config);
  v1::SetForwardingPipelineConfigResponse response;
  grpc::ClientContext context;
  set_deadline(&context, kLoadPatience);
  const grpc::Status status = stub_->SetForwardingPipelineConfig(&context, request, &response);
  return status.ok() ? Status() : failure("load the program", status);
}

Result<P4Program> P4RuntimeDriver::program_of_switch() {
  v1::GetForwardingPipelineConfigRequest request;
  request.set_device_id(options_.device_id);
  request.set_response_type(v1::GetForwardingPipelineConfigRequest::P4INFO_AND_COOKIE);
  v1::GetForwardingPipelineConfigResponse response;
  grpc::ClientContext context;
  set_deadline(&context, kCallPatience);
  const grpc::Status status = stub_->GetForwardingPipelineConfig(&context, request, &response);
  if (status.error_code() == grpc::FAILED_PRECONDITION || (status.ok() && response.config().p4info().empty()))
    return Status(ErrorCode::kVersionMismatch,
                  whose_ + " has no program: give the files of p4c with --p4info and --p4-config");
  if (!status.ok()) return failure("name its program", status);
  return P4Program::read(response.config().p4info(), whose_);
}

// Whether the tables are still those that this control plane has written.
Result<bool> P4RuntimeDriver::has_own_address() {
  v1::ReadRequest request;
  request.set_device_id(options_.device_id);
  request.add_entities()->mutable_table_entry()->set_table_id(program_->table("own_addresses"));
  v1::ReadResponse response;
  grpc::ClientContext context;
  set_deadline(&context, kCallPatience);
  const auto reader = stub_->Read(&context, request);
  bool found = false;
  while (reader->Read(&response)) found |= !response.entities().empty();
  const grpc::Status status = reader->Finish();
  if (status.ok()) return found;
  if (status.error_code() == grpc::FAILED_PRECONDITION) return false;  // it has no program
  return failure("list its tables", status);
}

// Removes what an earlier control plane has left behind: multicast groups, and the entries of these tables.
Status P4RuntimeDriver::clear(const std::vector<uint32_t>& tables) {
  v1::ReadRequest request;
  request.set_device_id(options_.device_id);
  for (const uint32_t table : tables) request.add_entities()->mutable_table_entry()->set_table_id(table);
  request.add_entities()->mutable_packet_replication_engine_entry()->mutable_multicast_group_entry();
  Result<std::vector<v1::Entity>> found = read(request);
  if (!found.ok()) return found.status();
  std::vector<v1::Update> updates;
  for (v1::Entity& entity : *found) {
    v1::Update& update = updates.emplace_back();
    update.set_type(v1::Update::DELETE);
    *update.mutable_entity() = std::move(entity);
  }
  return write("empty its tables", updates);
}

v1::TableEntry P4RuntimeDriver::own_address_entry() const {
  return program_->entry("own_addresses", {{"h.ipv4.to", options_.own_ip}, {"h.udp.to", NETSUM_P4_DATA_PORT}},
                         "NoAction", {});
}

Status P4RuntimeDriver::enter_own_address() {
  std::vector<std::pair<uint16_t, uint16_t>> everywhere;
  for (const uint16_t port : options_.ports) everywhere.emplace_back(port, 0);
  const v1::TableEntry arp =
      program_->entry("own_arp", {{"h.arp.kind", kArpRequest}, {"h.arp.target_ip", options_.own_ip}},
                      "answer", {{"mac", options_.own_mac}});
  const v1::TableEntry replies =
      program_->entry("own_arp_replies", {{"h.arp.kind", kArpReply}, {"h.arp.target_ip", options_.own_ip}},
                      "arp_to_control", {});
  return write(
      "enter the aggregator's address",
      {group_update(v1::Update::INSERT, NETSUM_P4_FLOOD_GROUP, everywhere), update(v1::Update::INSERT, arp),
       update(v1::Update::INSERT, replies), update(v1::Update::INSERT, own_address_entry())});
}

// --- Calls -------------------------------------------------------------------------------------------------------------

Status P4RuntimeDriver::failure(const std::string& what, const grpc::Status& status) const {
  const int code = code_of(status);
  const std::string said = status.error_message() + details_of(status);
  if (code == grpc::UNAVAILABLE || code == grpc::CANCELLED)
    return {ErrorCode::kUnreachable, whose_ + " does not answer (" + said + ")"};
  if (code == grpc::DEADLINE_EXCEEDED)
    return {ErrorCode::kUnreachable, whose_ + " was to " + what + ", and has not answered in time"};
  const ErrorCode kind =
      code == grpc::RESOURCE_EXHAUSTED ? ErrorCode::kResourceExhausted : ErrorCode::kAggregatorLost;
  return {kind, whose_ + " has refused to " + what + " (code " + std::to_string(code) + "): " + said};
}

Status P4RuntimeDriver::write(const std::string& what, const std::vector<v1::Update>& updates,
                              std::optional<int> harmless) {
  if (updates.empty()) return {};
  v1::WriteRequest request;
  request.set_device_id(options_.device_id);
  request.mutable_election_id()->set_low(kElectionId);
  for (const v1::Update& update : updates) *request.add_updates() = update;
  v1::WriteResponse response;
  grpc::ClientContext context;
  set_deadline(&context, kCallPatience);
  const grpc::Status status = stub_->Write(&context, request, &response);
  if (status.ok() || (harmless && code_of(status) == *harmless)) return {};
  return failure(what, status);
}

Result<std::vector<v1::Entity>> P4RuntimeDriver::read(const v1::ReadRequest& request) {
  v1::ReadResponse response;
  grpc::ClientContext context;
  set_deadline(&context, kCallPatience);
  const auto reader = stub_->Read(&context, request);
  std::vector<v1::Entity> found;
  while (reader->Read(&response))
    found.insert(found.end(), response.entities().begin(), response.entities().end());
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return failure("list its tables", status);
  return found;
}

v1::Update P4RuntimeDriver::update(v1::Update::Type type, v1::TableEntry entry) {
  v1::Update update;
  update.set_type(type);
  if (type == v1::Update::DELETE) entry.clear_action();
  *update.mutable_entity()->mutable_table_entry() = std::move(entry);
  return update;
}

// Replicas: port and replication number.
v1::Update P4RuntimeDriver::group_update(v1::Update::Type type, uint32_t group,
                                         const std::vector<std::pair<uint16_t, uint16_t>>& replicas) {
  v1::Update update;
  update.set_type(type);
  v1::MulticastGroupEntry& entry =
      *update.mutable_entity()->mutable_packet_replication_engine_entry()->mutable_multicast_group_entry();
  entry.set_multicast_group_id(group);
  for (const auto& [port, number] : replicas) {
    v1::Replica& replica = *entry.add_replicas();
    replica.set_egress_port(port);
    replica.set_instance(number);
  }
  return update;
}

v1::TableEntry P4RuntimeDriver::job_entry(uint16_t job, const JobEntry& entry) const {
  const uint64_t everybody = entry.members == 64 ? ~uint64_t{0} : (uint64_t{1} << entry.members) - 1;
  return program_->entry("jobs", {{"h.netsum.job", job}}, "is_job",
                         {{"job_epoch", entry.epoch},
                          {"members", entry.members},
                          {"job_slots", entry.slots},
                          {"payload_bytes", entry.payload_bytes},
                          {"first_slot", entry.first_slot},
                          {"everybody", everybody},
                          {"multicast_group", NETSUM_P4_FIRST_JOB_GROUP + job},
                          {"cookie", entry.cookie}});
}

v1::TableEntry P4RuntimeDriver::member_entry(uint16_t job, const Member& member) const {
  return program_->entry("members", {{"h.netsum.job", job}, {"h.netsum.member", member.number}}, "is_member",
                         {{"member_ip", member.entry.ip},
                          {"member_udp_port", member.entry.udp_port},
                          {"port", member.entry.port},
                          {"member_bit", uint64_t{1} << member.number}});
}

v1::TableEntry P4RuntimeDriver::address_entry(uint16_t job, const Member& member) const {
  return program_->entry(
      "addresses", {{"h.netsum.job", job}, {"m.addressee", member.number}}, "send_to",
      {{"mac", member.entry.mac}, {"ip", member.entry.ip}, {"udp_port", member.entry.udp_port}});
}

v1::TableEntry P4RuntimeDriver::parent_entry(uint16_t job, const JobEntry::Parent& parent) const {
  return program_->entry(
      "parents", {{"h.ipv4.from", parent.ip}, {"h.udp.from", parent.udp_port}, {"h.netsum.job", parent.job}},
      "is_parent", {{"own_job", job}, {"parents_epoch", parent.epoch}, {"parents_cookie", parent.cookie}});
}

v1::TableEntry P4RuntimeDriver::uplink_entry(uint16_t job, uint16_t port, bool waits) const {
  return program_->entry("uplinks", {{"h.netsum.job", job}}, "has_parent",
                         {{"port", port}, {"waits", waits}});
}

v1::TableEntry P4RuntimeDriver::parent_address_entry(uint16_t job, const JobEntry::Parent& parent,
                                                     uint64_t mac) const {
  return program_->entry("parent_addresses", {{"h.netsum.job", job}}, "send_up",
                         {{"mac", mac},
                          {"ip", parent.ip},
                          {"udp_port", parent.udp_port},
                          {"parents_job", parent.job},
                          {"parents_epoch", parent.epoch},
                          {"own_member", parent.member},
                          {"parents_cookie", parent.cookie}});
}

// --- SwitchDriver ------------------------------------------------------------------------------------------------------

Status P4RuntimeDriver::set_job(uint16_t job, const JobEntry& entry) {
  if (Status status = remove_job(job); !status.ok()) return status;
  const std::lock_guard calls(calls_mutex_);
  if (Status now = state(); !now.ok()) return now;
  jobs_[job] = {.members = {}, .parent = entry.parent};
  std::vector<v1::Update> updates{group_update(v1::Update::INSERT, NETSUM_P4_FIRST_JOB_GROUP + job, {})};
  if (entry.parent) {
    updates.push_back(update(v1::Update::INSERT, uplink_entry(job, 0, /*waits=*/true)));
    updates.push_back(update(v1::Update::INSERT, parent_entry(job, *entry.parent)));
  }
  updates.push_back(update(v1::Update::INSERT, job_entry(job, entry)));
  return write("enter job " + std::to_string(job), updates);
}

Status P4RuntimeDriver::remove_job(uint16_t job) {
  const std::lock_guard calls(calls_mutex_);
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return {};
  if (Status now = state(); !now.ok()) return now;
  const std::string what = "remove job " + std::to_string(job);
  // The job first: what comes after that is refused.
  if (Status status =
          write(what, {update(v1::Update::DELETE, job_entry(job, {.members = 1}))}, grpc::NOT_FOUND);
      !status.ok())
    return status;
  std::vector<v1::Update> updates{group_update(v1::Update::DELETE, NETSUM_P4_FIRST_JOB_GROUP + job, {})};
  for (const Member& member : found->second.members) {
    updates.push_back(update(v1::Update::DELETE, member_entry(job, member)));
    updates.push_back(update(v1::Update::DELETE, address_entry(job, member)));
  }
  if (found->second.parent) {
    const JobEntry::Parent& parent = *found->second.parent;
    updates.push_back(update(v1::Update::DELETE, parent_entry(job, parent)));
    updates.push_back(update(v1::Update::DELETE, uplink_entry(job, 0, /*waits=*/true)));
    updates.push_back(update(v1::Update::DELETE, parent_address_entry(job, parent, 0)));
  }
  if (Status status = write(what, updates, grpc::NOT_FOUND); !status.ok()) return status;
  jobs_.erase(found);
  return {};
}

Status P4RuntimeDriver::set_member(uint16_t job, uint16_t member, const MemberEntry& entry) {
  const std::lock_guard calls(calls_mutex_);
  if (Status now = state(); !now.ok()) return now;
  const auto found = jobs_.find(job);
  if (found == jobs_.end())
    return {ErrorCode::kInvalidArgument, "there is no job " + std::to_string(job) + " in " + whose_};
  std::vector<Member>& members = found->second.members;
  members.push_back({member, entry});
  std::vector<std::pair<uint16_t, uint16_t>> replicas;
  for (const Member& one : members) replicas.emplace_back(one.entry.port, one.number);
  const std::string what = "enter member " + std::to_string(member) + " of job " + std::to_string(job);
  // The entry that lets its packets in comes last: a result then goes to all who are in.
  Status status = write(what, {update(v1::Update::INSERT, address_entry(job, members.back())),
                               group_update(v1::Update::MODIFY, NETSUM_P4_FIRST_JOB_GROUP + job, replicas)});
  if (status.ok()) status = write(what, {update(v1::Update::INSERT, member_entry(job, members.back()))});
  if (!status.ok()) {
    static_cast<void>(
        write(what, {update(v1::Update::DELETE, address_entry(job, members.back()))}, grpc::NOT_FOUND));
    members.pop_back();
  }
  return status;
}

Status P4RuntimeDriver::set_parent(uint16_t job, const ParentPlace& place) {
  const std::lock_guard calls(calls_mutex_);
  if (Status now = state(); !now.ok()) return now;
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || !found->second.parent)
    return {ErrorCode::kInvalidArgument,
            "there is no job " + std::to_string(job) + " with a parent in " + whose_};
  const std::string what = "enter the parent of job " + std::to_string(job);
  // Where sums go is known before the first one goes up. An entry can be there since a call whose answer was lost.
  Status status =
      write(what, {update(v1::Update::INSERT, parent_address_entry(job, *found->second.parent, place.mac))},
            grpc::ALREADY_EXISTS);
  if (status.ok())
    status = write(what, {update(v1::Update::MODIFY, uplink_entry(job, place.port, /*waits=*/false))});
  return status;
}

Status P4RuntimeDriver::send(uint16_t port, std::span<const uint8_t> frame) {
  const std::lock_guard lock(mutex_);
  if (!state_.ok()) return state_;
  v1::StreamMessageRequest request;
  v1::PacketOut& packet = *request.mutable_packet();
  packet.set_payload(frame.data(), frame.size());
  v1::PacketMetadata& field = *packet.add_metadata();
  field.set_metadata_id(program_->port_field("packet_out"));
  field.set_value(canonical_bytes(port));
  if (!stream_->Write(request))
    return {ErrorCode::kUnreachable, "the connection to " + whose_ + " has ended"};
  return {};
}

Result<SwitchCounters> P4RuntimeDriver::counters() {
  const std::lock_guard calls(calls_mutex_);
  if (Status now = state(); !now.ok()) return now;
  const uint32_t events = program_->counter("events"), rounds = program_->counter("rounds");
  v1::ReadRequest request;
  request.set_device_id(options_.device_id);
  for (const uint32_t counter : {events, rounds})
    request.add_entities()->mutable_counter_entry()->set_counter_id(counter);
  const Result<std::vector<v1::Entity>> found = read(request);
  if (!found.ok()) return found.status();
  SwitchCounters counters;
  counters.rounds.resize(static_cast<size_t>(limits_.jobs));
  for (const v1::Entity& entity : *found) {
    const v1::CounterEntry& entry = entity.counter_entry();
    const auto index = static_cast<size_t>(entry.index().index());
    const auto count = static_cast<uint64_t>(entry.data().packet_count());
    if (entry.counter_id() == events && index < counters.events.size()) counters.events[index] = count;
    if (entry.counter_id() == rounds && index < counters.rounds.size()) counters.rounds[index] = count;
  }
  return counters;
}

}  // namespace

Result<std::unique_ptr<SwitchDriver>> connect_p4runtime(const P4RuntimeOptions& options) {
  if (options.p4info.empty() != options.config.empty())
    return Status(ErrorCode::kInvalidArgument,
                  "--p4info and --p4-config belong together: the switch needs both to load a program");
  std::string target = options.server;
  if (!target.starts_with("unix:")) {
    const Result<Address> address = Address::resolve(options.server);
    if (!address.ok()) return address.status();
    target = (address->family == 4 ? "ipv4:" : "ipv6:") + address->to_string();
  }
  auto driver = std::make_unique<P4RuntimeDriver>(options, target);
  if (Status status = driver->start(); !status.ok()) return status;
  return std::unique_ptr<SwitchDriver>(std::move(driver));
}

}  // namespace netsum::p4
