#include "aggregator/p4/driver/p4runtime_driver.h"

#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <system_error>
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

constexpr milliseconds kLoadPatience{60'000};  // of a program
constexpr milliseconds kConnectPatience{10'000};
constexpr milliseconds kPause{200};  // before connecting again
// The same for all control planes: the switch then refuses a second one while the first is connected.
constexpr uint64_t kElectionId = 1;
constexpr int kMaxMessageBytes = 256 << 20;  // a program for BMv2 has tens of megabytes
// Frames that wait for the stream. More are lost, as in a full queue of a switch: HELLOs and ARP requests are repeated.
constexpr size_t kMostFrames = 256;

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
      : options_(options), target_(target), whose_("the switch at " + options.server) {}

  ~P4RuntimeDriver() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      if (context_) context_->TryCancel();
      for (grpc::ClientContext* call : calls_) call->TryCancel();
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
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
  SwitchCounters last_counters() override {
    const std::lock_guard lock(mutex_);
    return last_counters_;
  }

 private:
  using Stub = v1::P4Runtime::Stub;
  using Stream = grpc::ClientReaderWriter<v1::StreamMessageRequest, v1::StreamMessageResponse>;
  struct Member {
    uint16_t number = 0;
    MemberEntry entry;
  };
  struct Job {
    std::vector<Member> members;
    std::optional<JobEntry::Parent> parent;
  };

  // A call over the connection that there is when it begins.
  class Call {
   public:
    Call(P4RuntimeDriver* driver, milliseconds patience);
    ~Call();
    Stub& stub() { return *stub_; }
    grpc::ClientContext* context() { return &context_; }
    // To be called when it has ended.
    void note(const grpc::Status& status);

   private:
    P4RuntimeDriver* const driver_;
    const milliseconds patience_;
    std::shared_ptr<Stub> stub_;
    grpc::ClientContext context_;
  };

  // --- The thread that writes to the stream, because a write may wait for the switch
  void write_frames();
  // --- The thread that looks after the switch
  void look();
  void report_silence(std::unique_lock<std::mutex>* lock);
  // --- The thread that holds the stream
  void run();
  Status hold_stream(grpc::ClientContext* context);
  void let_go_of_stream(grpc::ClientContext* context);
  enum class Arbitration { kPrimary, kBackup, kEnded };
  Arbitration ask_to_be_primary(Stream* stream);
  Status not_primary(Arbitration answer, const grpc::Status& status) const;
  Status set_up_if_needed();
  Status set_up_anew();
  Status set_up();
  Status load_program(const std::string& p4info, const std::string& config);
  Result<v1::ForwardingPipelineConfig> program_of_switch();
  Result<bool> has_own_address();
  Status clear(const std::vector<uint32_t>& tables);
  Status enter_own_address();
  Status on_message(const v1::StreamMessageResponse& message);
  void set_state(Status state);

  // --- Calls, with calls_mutex_ held but for read()
  Status write(const std::string& what, const std::vector<v1::Update>& updates,
               std::optional<int> harmless = std::nullopt);
  grpc::Status try_to_write(const std::vector<v1::Update>& updates);
  // An entry that may be there already, since a call whose answer was lost.
  Status put(const std::string& what, const v1::TableEntry& entry);
  Result<std::vector<v1::Entity>> read(const v1::ReadRequest& request);
  v1::ReadRequest counter_request() const;
  Status failure(const std::string& what, const grpc::Status& status) const;
  // While the switch is set up, nobody waits for an answer.
  milliseconds patience() const { return state().ok() ? options_.patience : 3 * options_.patience; }
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
  const std::string target_, whose_;
  SwitchLimits limits_;  // set by start()

  std::mutex calls_mutex_;  // one call that changes the switch at a time; locked before mutex_
  std::optional<P4Program> program_;
  std::map<uint16_t, Job> jobs_;  // that the switch has, or may have

  std::mutex events_mutex_;
  Events events_;

  // Of the thread that holds the stream.
  bool was_up_ = false;
  bool is_empty_ = false;  // the switch has lost its tables, and may be set up in part

  mutable std::mutex mutex_;  // all below; never held during a call
  std::condition_variable changed_;
  Status state_{ErrorCode::kUnreachable, "not connected yet"};
  bool stop_ = false;
  std::shared_ptr<Stub> stub_;  // a new one for each connection: an old one may be dead without notice
  std::set<grpc::ClientContext*> calls_;
  std::unique_ptr<grpc::ClientContext> context_;  // of the stream
  std::optional<Clock::time_point> answer_by_;    // until when the stream's first answer is waited for
  Stream* stream_ = nullptr;                      // once frames may be written to it
  bool is_writing_ = false;
  std::deque<v1::StreamMessageRequest> outgoing_;
  Clock::time_point answered_ = Clock::now();  // when the switch has last answered anything
  bool silence_reported_ = false;
  uint32_t packet_out_port_ = 0;  // number of the field
  v1::ReadRequest counter_request_;
  SwitchCounters last_counters_;
  std::vector<std::thread> threads_;  // of start() and the destructor
};

P4RuntimeDriver::Call::Call(P4RuntimeDriver* driver, milliseconds patience)
    : driver_(driver), patience_(patience) {
  context_.set_deadline(std::chrono::system_clock::now() + patience);
  const std::lock_guard lock(driver_->mutex_);
  stub_ = driver_->stub_;
  driver_->calls_.insert(&context_);
  if (driver_->stop_) context_.TryCancel();
}

P4RuntimeDriver::Call::~Call() {
  const std::lock_guard lock(driver_->mutex_);
  driver_->calls_.erase(&context_);
}

void P4RuntimeDriver::Call::note(const grpc::Status& status) {
  const std::lock_guard lock(driver_->mutex_);
  if (driver_->stub_ != stub_) return;  // of an earlier connection
  const int code = status.error_code();
  if (code != grpc::DEADLINE_EXCEEDED && code != grpc::UNAVAILABLE && code != grpc::CANCELLED) {
    driver_->answered_ = Clock::now();
  } else if (code == grpc::DEADLINE_EXCEEDED && driver_->state_.ok()) {
    driver_->state_ = {ErrorCode::kUnreachable, driver_->whose_ + " has not answered a call for " +
                                                    std::to_string(patience_.count()) +
                                                    " ms; connecting again"};
    driver_->context_->TryCancel();
    driver_->changed_.notify_all();
  }
}

// --- Connection --------------------------------------------------------------------------------------------------------

Status P4RuntimeDriver::start() {
  try {
    threads_.emplace_back([this] { run(); });
    threads_.emplace_back([this] { look(); });
    threads_.emplace_back([this] { write_frames(); });
  } catch (const std::system_error& error) {
    return {ErrorCode::kResourceExhausted, "no thread for the connection to " + whose_ + ": " + error.what()};
  }
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
  answered_ = Clock::now();
  silence_reported_ = false;
  changed_.notify_all();
}

void P4RuntimeDriver::run() {
  for (;;) {
    grpc::ClientContext* context = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      stub_ = v1::P4Runtime::NewStub(channel_to(target_));
      context_ = std::make_unique<grpc::ClientContext>();
      answer_by_ = Clock::now() + options_.patience;
      context = context_.get();
    }
    Status why = hold_stream(context);
    std::unique_lock lock(mutex_);
    context_.reset();
    state_ = std::move(why);
    changed_.notify_all();
    changed_.wait_for(lock, kPause, [this] { return stop_; });
  }
}

// Returns when the stream has ended.
Status P4RuntimeDriver::hold_stream(grpc::ClientContext* context) {
  const std::unique_ptr<Stream> stream = stub_->StreamChannel(context);  // only this thread sets stub_
  const Arbitration answer = ask_to_be_primary(stream.get());
  bool late = false;
  {
    const std::lock_guard lock(mutex_);
    late = !answer_by_;
    answer_by_.reset();
    if (answer != Arbitration::kEnded) answered_ = Clock::now();
  }
  if (answer != Arbitration::kPrimary) {
    if (answer == Arbitration::kBackup) context->TryCancel();
    const grpc::Status over = stream->Finish();
    if (late)
      return {ErrorCode::kUnreachable, whose_ + " takes connections, and does not answer: is it stopped?"};
    return not_primary(answer, over);
  }
  Status status = set_up_if_needed();
  if (status.ok()) {
    {
      const std::lock_guard lock(mutex_);
      stream_ = stream.get();
      packet_out_port_ = program_->port_field("packet_out");
      counter_request_ = counter_request();
    }
    set_state({});
    was_up_ = true;
    v1::StreamMessageResponse message;
    while (status.ok() && stream->Read(&message)) status = on_message(message);
  }
  let_go_of_stream(context);
  const grpc::Status over = stream->Finish();
  if (!status.ok()) return status;
  const Status so_far = state();
  if (!so_far.ok()) return so_far;
  return {ErrorCode::kUnreachable,
          "the connection to " + whose_ + " has ended (" + over.error_message() + "); connecting again"};
}

// No other thread uses it any more when this returns.
void P4RuntimeDriver::let_go_of_stream(grpc::ClientContext* context) {
  context->TryCancel();  // ends a write
  std::unique_lock lock(mutex_);
  stream_ = nullptr;
  outgoing_.clear();
  changed_.wait(lock, [this] { return !is_writing_; });
}

void P4RuntimeDriver::write_frames() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || (stream_ != nullptr && !outgoing_.empty()); });
    if (stop_) return;
    const v1::StreamMessageRequest request = std::move(outgoing_.front());
    outgoing_.pop_front();
    Stream* const stream = stream_;
    is_writing_ = true;
    lock.unlock();
    stream->Write(request);  // if it fails, the stream has ended, which its own thread notices
    lock.lock();
    is_writing_ = false;
    changed_.notify_all();
  }
}

void P4RuntimeDriver::look() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, options_.look_every, [this] { return stop_; })) {
    if (answer_by_ && Clock::now() > *answer_by_ && context_ != nullptr) {
      answer_by_.reset();
      context_->TryCancel();
    }
    if (state_.ok()) {
      lock.unlock();
      static_cast<void>(counters());
      lock.lock();
    }
    report_silence(&lock);
  }
}

void P4RuntimeDriver::report_silence(std::unique_lock<std::mutex>* lock) {
  if (state_.ok() || silence_reported_ || Clock::now() - answered_ < options_.silence) return;
  silence_reported_ = true;
  const Status reason(ErrorCode::kAggregatorLost, whose_ + " has not answered the aggregator for " +
                                                      std::to_string(options_.silence.count()) +
                                                      " ms: " + state_.message());
  lock->unlock();
  {
    const std::lock_guard events(events_mutex_);
    if (events_.on_silence) events_.on_silence(reason);
  }
  lock->lock();
}

// kBackup: the switch has said that there is another one. kEnded: it has ended the stream, and the stream's status says why.
P4RuntimeDriver::Arbitration P4RuntimeDriver::ask_to_be_primary(Stream* stream) {
  v1::StreamMessageRequest request;
  v1::MasterArbitrationUpdate& asked = *request.mutable_arbitration();
  asked.set_device_id(options_.device_id);
  asked.mutable_election_id()->set_low(kElectionId);
  v1::StreamMessageResponse answer;
  if (!stream->Write(request) || !stream->Read(&answer)) return Arbitration::kEnded;
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

// An error: this is no longer the control plane of the switch.
Status P4RuntimeDriver::on_message(const v1::StreamMessageResponse& message) {
  if (message.has_arbitration() && message.arbitration().status().code() != grpc::OK)
    return not_primary(Arbitration::kBackup,
                       {grpc::ALREADY_EXISTS, message.arbitration().status().message()});
  if (!message.has_packet()) return {};
  const v1::PacketIn& packet = message.packet();
  uint16_t port = 0;
  for (const v1::PacketMetadata& field : packet.metadata()) {
    if (field.metadata_id() == program_->port_field("packet_in"))
      port = static_cast<uint16_t>(number_of(field.value()));
  }
  const std::lock_guard lock(events_mutex_);
  const auto* bytes = reinterpret_cast<const uint8_t*>(packet.payload().data());
  if (events_.on_packet) events_.on_packet(port, {bytes, packet.payload().size()});
  return {};
}

// --- Setting up --------------------------------------------------------------------------------------------------------

Status P4RuntimeDriver::set_up_if_needed() {
  if (!was_up_) return set_up_anew();
  if (!is_empty_) {
    const Result<bool> kept = has_own_address();
    if (!kept.ok()) return kept.status();
    if (*kept) return {};
  }
  is_empty_ =
      true;  // until all of it has succeeded: the address may be entered by a call whose answer is lost
  if (Status status = set_up_anew(); !status.ok()) return status;
  is_empty_ = false;
  // Before the state is good again, so that nobody has entered a job since.
  const std::lock_guard lock(events_mutex_);
  if (events_.on_restart)
    events_.on_restart({ErrorCode::kAggregatorLost,
                        whose_ + " has restarted and lost the sums that were under way: join again"});
  return {};
}

Status P4RuntimeDriver::set_up_anew() {
  const std::lock_guard calls(calls_mutex_);
  if (Status status = set_up(); !status.ok()) return status;
  jobs_.clear();
  const std::lock_guard lock(mutex_);
  last_counters_ = {};
  last_counters_.rounds.resize(static_cast<size_t>(limits_.jobs));
  return {};
}

Status P4RuntimeDriver::set_up() {
  if (!options_.config.empty()) {
    // BMv2 keeps multicast groups when another program is loaded. There is an error if it has no program.
    if (Status status = clear({}); status.code() == ErrorCode::kUnreachable) return status;
    Result<P4Program> program = P4Program::read(options_.p4info, "the file given for P4Info");
    if (!program.ok()) return program.status();
    program_ = std::move(program).value();
    if (Status status = load_program(options_.p4info, options_.config); !status.ok()) return status;
  } else {
    const Result<v1::ForwardingPipelineConfig> kept = program_of_switch();
    if (!kept.ok()) return kept.status();
    Result<P4Program> program = P4Program::read(kept->p4info(), whose_);
    if (!program.ok()) return program.status();
    program_ = std::move(program).value();
    if (Status status = clear(program_->tables()); !status.ok()) return status;
    // Loaded again, it has empty registers. A slot of an earlier control plane's job could have the index and epoch of a new one.
    if (!kept->p4_device_config().empty()) {
      if (Status status = load_program(kept->p4info(), kept->p4_device_config()); !status.ok()) return status;
    }
  }
  if (!was_up_) limits_ = program_->limits();
  return enter_own_address();
}

Status P4RuntimeDriver::load_program(const std::string& p4info, const std::string& config) {
  v1::SetForwardingPipelineConfigRequest request;
  request.set_device_id(options_.device_id);
  request.mutable_election_id()->set_low(kElectionId);
  request.set_action(v1::SetForwardingPipelineConfigRequest::VERIFY_AND_COMMIT);
  request.mutable_config()->set_p4info(p4info);
  request.mutable_config()->set_p4_device_config(config);
  v1::SetForwardingPipelineConfigResponse response;
  Call call(this, kLoadPatience);
  const grpc::Status status = call.stub().SetForwardingPipelineConfig(call.context(), request, &response);
  call.note(status);
  return status.ok() ? Status() : failure("load the program", status);
}

Result<v1::ForwardingPipelineConfig> P4RuntimeDriver::program_of_switch() {
  v1::GetForwardingPipelineConfigRequest request;
  request.set_device_id(options_.device_id);
  request.set_response_type(v1::GetForwardingPipelineConfigRequest::ALL);
  v1::GetForwardingPipelineConfigResponse response;
  Call call(this, patience());
  const grpc::Status status = call.stub().GetForwardingPipelineConfig(call.context(), request, &response);
  call.note(status);
  if (status.error_code() == grpc::FAILED_PRECONDITION || (status.ok() && response.config().p4info().empty()))
    return Status(ErrorCode::kVersionMismatch,
                  whose_ + " has no program: give the files of p4c with --p4info and --p4-config");
  if (!status.ok()) return failure("name its program", status);
  return response.config();
}

// Whether the tables are still those that this control plane has written.
Result<bool> P4RuntimeDriver::has_own_address() {
  v1::ReadRequest request;
  request.set_device_id(options_.device_id);
  request.add_entities()->mutable_table_entry()->set_table_id(program_->table("own_addresses"));
  v1::ReadResponse response;
  Call call(this, patience());
  const auto reader = call.stub().Read(call.context(), request);
  bool found = false;
  while (reader->Read(&response)) found |= !response.entities().empty();
  const grpc::Status status = reader->Finish();
  call.note(status);
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
  const grpc::Status status = try_to_write(updates);
  if (status.ok() || (harmless && code_of(status) == *harmless)) return {};
  return failure(what, status);
}

grpc::Status P4RuntimeDriver::try_to_write(const std::vector<v1::Update>& updates) {
  v1::WriteRequest request;
  request.set_device_id(options_.device_id);
  request.mutable_election_id()->set_low(kElectionId);
  for (const v1::Update& update : updates) *request.add_updates() = update;
  v1::WriteResponse response;
  Call call(this, patience());
  const grpc::Status status = call.stub().Write(call.context(), request, &response);
  call.note(status);
  return status;
}

Status P4RuntimeDriver::put(const std::string& what, const v1::TableEntry& entry) {
  const grpc::Status status = try_to_write({update(v1::Update::INSERT, entry)});
  if (status.ok()) return {};
  if (code_of(status) != grpc::ALREADY_EXISTS) return failure(what, status);
  return write(what, {update(v1::Update::MODIFY, entry)});
}

Result<std::vector<v1::Entity>> P4RuntimeDriver::read(const v1::ReadRequest& request) {
  v1::ReadResponse response;
  Call call(this, patience());
  const auto reader = call.stub().Read(call.context(), request);
  std::vector<v1::Entity> found;
  while (reader->Read(&response))
    found.insert(found.end(), response.entities().begin(), response.entities().end());
  const grpc::Status status = reader->Finish();
  call.note(status);
  if (!status.ok()) return failure("list its tables or counters", status);
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
  // After an error it stays in the list, because the switch may have it: it is replaced by the next call, or removed with the job.
  std::vector<Member>& members = found->second.members;
  std::erase_if(members, [&](const Member& one) { return one.number == member; });
  members.push_back({member, entry});
  std::vector<std::pair<uint16_t, uint16_t>> replicas;
  for (const Member& one : members) replicas.emplace_back(one.entry.port, one.number);
  const std::string what = "enter member " + std::to_string(member) + " of job " + std::to_string(job);
  // The entry that lets its packets in comes last: a result then goes to all who are in.
  Status status = put(what, address_entry(job, members.back()));
  if (status.ok())
    status = write(what, {group_update(v1::Update::MODIFY, NETSUM_P4_FIRST_JOB_GROUP + job, replicas)});
  return status.ok() ? put(what, member_entry(job, members.back())) : status;
}

Status P4RuntimeDriver::set_parent(uint16_t job, const ParentPlace& place) {
  const std::lock_guard calls(calls_mutex_);
  if (Status now = state(); !now.ok()) return now;
  const auto found = jobs_.find(job);
  if (found == jobs_.end() || !found->second.parent)
    return {ErrorCode::kInvalidArgument,
            "there is no job " + std::to_string(job) + " with a parent in " + whose_};
  const std::string what = "enter the parent of job " + std::to_string(job);
  // Where sums go is known before the first one goes up.
  Status status = put(what, parent_address_entry(job, *found->second.parent, place.mac));
  if (status.ok())
    status = write(what, {update(v1::Update::MODIFY, uplink_entry(job, place.port, /*waits=*/false))});
  return status;
}

Status P4RuntimeDriver::send(uint16_t port, std::span<const uint8_t> frame) {
  const std::lock_guard lock(mutex_);
  if (!state_.ok()) return state_;
  if (outgoing_.size() >= kMostFrames)
    return {ErrorCode::kResourceExhausted,
            std::to_string(kMostFrames) + " frames wait for " + whose_ + " already"};
  v1::PacketOut& packet = *outgoing_.emplace_back().mutable_packet();
  packet.set_payload(frame.data(), frame.size());
  v1::PacketMetadata& field = *packet.add_metadata();
  field.set_metadata_id(packet_out_port_);
  field.set_value(canonical_bytes(port));
  changed_.notify_all();
  return {};
}

v1::ReadRequest P4RuntimeDriver::counter_request() const {
  v1::ReadRequest request;
  request.set_device_id(options_.device_id);
  for (const char* counter : {"events", "rounds"})
    request.add_entities()->mutable_counter_entry()->set_counter_id(program_->counter(counter));
  return request;
}

Result<SwitchCounters> P4RuntimeDriver::counters() {
  v1::ReadRequest request;
  {
    const std::lock_guard lock(mutex_);
    if (!state_.ok()) return state_;
    request = counter_request_;
  }
  const Result<std::vector<v1::Entity>> found = read(request);
  if (!found.ok()) return found.status();
  const uint32_t events = request.entities(0).counter_entry().counter_id();
  SwitchCounters counters;
  counters.rounds.resize(static_cast<size_t>(limits_.jobs));
  for (const v1::Entity& entity : *found) {
    const v1::CounterEntry& entry = entity.counter_entry();
    const auto index = static_cast<size_t>(entry.index().index());
    const auto count = static_cast<uint64_t>(entry.data().packet_count());
    const bool is_event = entry.counter_id() == events;
    if (is_event && index < counters.events.size()) counters.events[index] = count;
    if (!is_event && index < counters.rounds.size()) counters.rounds[index] = count;
  }
  const std::lock_guard lock(mutex_);
  if (state_.ok()) last_counters_ = counters;
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
