#include "tests/conformance/p4_runtime_server.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "aggregator/p4/driver/p4_program.h"
#include "aggregator/p4/driver/p4runtime.grpc.pb.h"
#include "aggregator/p4/sizes.h"
#include "src/base/assert.h"

namespace netsum::conformance {
namespace {

namespace v1 = ::p4::v1;

void name(v1::Preamble* preamble, const std::string& control, const std::string& alias) {
  preamble->set_name(control + "." + alias);
  preamble->set_alias(alias);
}

template <typename List>
void add_fields(List* list, const std::vector<const char*>& names) {
  for (const char* name : names) {
    v1::NamedField* field = list->Add();
    field->set_id(static_cast<uint32_t>(list->size()));
    field->set_name(name);
  }
}

void add_table(v1::P4Info* info, const std::string& alias, const std::vector<const char*>& keys,
               const std::string& action, const std::vector<const char*>& parameters) {
  v1::TableInfo* table = info->add_tables();
  name(table->mutable_preamble(), "NetsumIngress", alias);
  table->set_size(4096);
  add_fields(table->mutable_match_fields(), keys);
  v1::ActionInfo* one = info->add_actions();
  name(one->mutable_preamble(), "NetsumIngress", action);
  add_fields(one->mutable_params(), parameters);
}

grpc::Status no_program() {
  return {grpc::FAILED_PRECONDITION, "no forwarding pipeline config is set"};
}

// Entries of one table with equal keys are the same.
std::string key_of(const v1::TableEntry& entry) {
  v1::TableEntry key = entry;
  key.clear_action();
  return key.SerializeAsString();
}

}  // namespace

v1::P4Info whole_program() {
  v1::P4Info info;
  info.mutable_pkg_info()->set_name("netsum");
  info.mutable_pkg_info()->set_version(NETSUM_P4_PROGRAM_VERSION);
  add_table(&info, "jobs", {"h.netsum.job"}, "is_job",
            {"job_epoch", "members", "job_slots", "payload_bytes", "first_slot", "everybody",
             "multicast_group", "cookie"});
  add_table(&info, "members", {"h.netsum.job", "h.netsum.member"}, "is_member",
            {"member_ip", "member_udp_port", "port", "member_bit"});
  add_table(&info, "addresses", {"h.netsum.job", "m.addressee"}, "send_to", {"mac", "ip", "udp_port"});
  add_table(&info, "parents", {"h.ipv4.from", "h.udp.from", "h.netsum.job"}, "is_parent",
            {"own_job", "parents_epoch", "parents_cookie"});
  add_table(&info, "uplinks", {"h.netsum.job"}, "has_parent", {"port", "waits"});
  add_table(&info, "parent_addresses", {"h.netsum.job"}, "send_up",
            {"mac", "ip", "udp_port", "parents_job", "parents_epoch", "own_member", "parents_cookie"});
  add_table(&info, "own_arp_replies", {"h.arp.kind", "h.arp.target_ip"}, "arp_to_control", {});
  add_table(&info, "own_addresses", {"h.ipv4.to", "h.udp.to"}, "NoAction", {});
  add_table(&info, "own_arp", {"h.arp.kind", "h.arp.target_ip"}, "answer", {"mac"});
  add_table(&info, "macs", {"h.ethernet.to"}, "to_port", {"port"});
  for (const auto& [counter, size] : {std::pair{"events", NETSUM_P4_COUNTERS}, {"rounds", NETSUM_P4_JOBS}}) {
    v1::CounterInfo* one = info.add_counters();
    name(one->mutable_preamble(), "NetsumIngress", counter);
    one->set_size(size);
  }
  for (const char* header : {"packet_in", "packet_out"}) {
    v1::PacketMetadataInfo* one = info.add_controller_packet_metadata();
    name(one->mutable_preamble(), "", header);
    add_fields(one->mutable_metadata(), {"port"});
  }
  v1::RegisterInfo* over = info.add_registers();
  name(over->mutable_preamble(), "NetsumIngress.round", "over");
  over->set_size(NETSUM_P4_SLOTS);
  for (int word = 0; word < NETSUM_P4_WORDS; ++word) {
    v1::RegisterInfo* sums = info.add_registers();
    name(sums->mutable_preamble(), "NetsumIngress.lanes.w" + std::to_string(word), "sums");
    sums->set_size(NETSUM_P4_LANE_REGISTERS);
  }
  uint32_t id = 0;
  const auto number = [&id](auto* list) {
    for (auto& one : *list) one.mutable_preamble()->set_id(++id);
  };
  number(info.mutable_tables());
  number(info.mutable_actions());
  number(info.mutable_counters());
  number(info.mutable_controller_packet_metadata());
  number(info.mutable_registers());
  return info;
}

class P4RuntimeServer::Service final : public v1::P4Runtime::Service {
 public:
  void serve(const std::string& address) {
    set_released(false);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    NETSUM_ASSERT(server_ != nullptr);
  }
  void stop() {
    if (server_ == nullptr) return;
    set_released(true);
    server_->Shutdown(std::chrono::system_clock::now());  // cancels all calls
    server_->Wait();
    server_.reset();
  }

  using Stream = grpc::ServerReaderWriter<v1::StreamMessageResponse, v1::StreamMessageRequest>;

  grpc::Status StreamChannel(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::StreamMessageResponse, v1::StreamMessageRequest>* stream) override {
    v1::StreamMessageRequest request;
    if (!stream->Read(&request) || !request.has_arbitration())
      return {grpc::INVALID_ARGUMENT, "the first message is no arbitration"};
    v1::StreamMessageResponse response;
    *response.mutable_arbitration() = request.arbitration();
    response.mutable_arbitration()->mutable_status();
    bool primary = false;
    {
      std::unique_lock lock(mutex_);
      wait_while(&lock, frozen_);
      if (context->IsCancelled()) return grpc::Status::CANCELLED;
      primary = !has_primary_ && !has_other_;
      if (!primary && !keeps_backups_)
        return {grpc::INVALID_ARGUMENT, "Election id already exists"};  // as PI does
      if (!primary) response.mutable_arbitration()->mutable_status()->set_code(grpc::ALREADY_EXISTS);
      if (primary) election_id_ = request.arbitration().election_id().low();
      if (primary) stream_ = stream;
      has_primary_ |= primary;
      stream->Write(response);  // under the mutex, as tell() does: one at a time
    }
    while (stream->Read(&request)) {
      std::unique_lock lock(mutex_);
      if (request.has_packet())
        frames_.push_back({static_cast<uint16_t>(p4::number_of(request.packet().metadata(0).value())),
                           {request.packet().payload().begin(), request.packet().payload().end()}});
      wait_while(&lock, frozen_);
    }
    const std::lock_guard lock(mutex_);
    if (primary) {
      has_primary_ = false;
      stream_ = nullptr;
    }
    return grpc::Status::OK;
  }

  grpc::Status SetForwardingPipelineConfig(grpc::ServerContext*,
                                           const v1::SetForwardingPipelineConfigRequest* request,
                                           v1::SetForwardingPipelineConfigResponse*) override {
    std::unique_lock lock(mutex_);
    wait_while(&lock, frozen_);
    if (request->election_id().low() != election_id_) return {grpc::PERMISSION_DENIED, "not primary"};
    v1::P4Info info;
    if (!info.ParseFromString(request->config().p4info())) return {grpc::INVALID_ARGUMENT, "no P4Info"};
    program_ = info;
    config_ = request->config().p4_device_config();
    tables_.clear();  // multicast groups stay, as in BMv2
    ++programs_loaded_;
    return grpc::Status::OK;
  }

  grpc::Status GetForwardingPipelineConfig(grpc::ServerContext*,
                                           const v1::GetForwardingPipelineConfigRequest*,
                                           v1::GetForwardingPipelineConfigResponse* response) override {
    std::unique_lock lock(mutex_);
    wait_while(&lock, frozen_);
    if (!program_) return no_program();
    response->mutable_config()->set_p4info(program_->SerializeAsString());
    response->mutable_config()->set_p4_device_config(config_);
    return grpc::Status::OK;
  }

  grpc::Status Read(grpc::ServerContext*, const v1::ReadRequest* request,
                    grpc::ServerWriter<v1::ReadResponse>* writer) override {
    v1::ReadResponse response;
    {
      std::unique_lock lock(mutex_);
      wait_while(&lock, frozen_);
      if (!program_) return no_program();
      for (const v1::Entity& asked : request->entities()) {
        if (asked.has_table_entry()) {
          for (const auto& [key, entry] : tables_[asked.table_entry().table_id()])
            *response.add_entities()->mutable_table_entry() = entry;
        } else if (asked.has_packet_replication_engine_entry()) {
          for (const auto& [id, group] : groups_)
            *response.add_entities()
                 ->mutable_packet_replication_engine_entry()
                 ->mutable_multicast_group_entry() = group;
        }
      }
    }
    writer->Write(response);
    return grpc::Status::OK;
  }

  grpc::Status Write(grpc::ServerContext*, const v1::WriteRequest* request, v1::WriteResponse*) override {
    std::unique_lock lock(mutex_);
    wait_while(&lock, held_);
    wait_while(&lock, frozen_);
    if (request->election_id().low() != election_id_) return {grpc::PERMISSION_DENIED, "not primary"};
    if (!program_) return no_program();
    std::vector<Refusal> results;
    for (const v1::Update& update : request->updates()) results.push_back(apply(update));
    if (refusal_) results.back() = *refusal_;
    if (writes_to_lost_answer_ >= 0 && writes_to_lost_answer_-- == 0) {
      bool for_ever = true;
      wait_while(&lock, for_ever);
    }
    return status_of(results);
  }

  // Of the test's thread.
  template <typename Function>
  auto locked(Function function) {
    const std::lock_guard lock(mutex_);
    return function();
  }
  void set(bool Service::*what, bool value) {
    const std::lock_guard lock(mutex_);
    this->*what = value;
    changed_.notify_all();
  }
  // To the primary control plane; false if there is none. With the mutex: the call takes it before its stream ends. Messages are so
  // small that writing them does not wait for the receiver.
  bool tell(const v1::StreamMessageResponse& response) {
    return stream_ != nullptr && stream_->Write(response);
  }
  uint32_t table_id(const std::string& alias) const {
    for (const v1::TableInfo& table : program_->tables())
      if (table.preamble().alias() == alias) return table.preamble().id();
    NETSUM_ASSERT(false && "no such table");
    return 0;
  }
  static Refusal apply(v1::Update::Type type, bool exists) {
    if (type == v1::Update::INSERT && exists) return {grpc::ALREADY_EXISTS, "it exists"};
    if (type != v1::Update::INSERT && !exists) return {grpc::NOT_FOUND, "there is none"};
    return {};
  }
  Refusal apply(const v1::Update& update) {
    if (refusal_) return {};
    if (update.entity().has_table_entry()) {
      const v1::TableEntry& entry = update.entity().table_entry();
      std::map<std::string, v1::TableEntry>& table = tables_[entry.table_id()];
      const std::string key = key_of(entry);
      const Refusal result = apply(update.type(), table.contains(key));
      if (result.code != 0) return result;
      if (update.type() == v1::Update::DELETE) {
        table.erase(key);
      } else {
        table[key] = entry;
      }
      return {};
    }
    const v1::MulticastGroupEntry& group =
        update.entity().packet_replication_engine_entry().multicast_group_entry();
    const Refusal result = apply(update.type(), groups_.contains(group.multicast_group_id()));
    if (result.code != 0) return result;
    if (update.type() == v1::Update::DELETE) {
      groups_.erase(group.multicast_group_id());
    } else {
      groups_[group.multicast_group_id()] = group;
    }
    return {};
  }
  // The errors of the updates stand behind the status of the call.
  static grpc::Status status_of(const std::vector<Refusal>& results) {
    v1::RpcStatus details;
    bool failed = false;
    for (const Refusal& result : results) {
      v1::AnyError* one = details.add_details();
      one->set_type_url("type.googleapis.com/p4.v1.Error");
      one->mutable_value()->set_canonical_code(result.code);
      one->mutable_value()->set_message(result.message);
      failed |= result.code != 0;
    }
    if (!failed) return grpc::Status::OK;
    details.set_code(grpc::UNKNOWN);
    return {grpc::UNKNOWN, "some updates have failed", details.SerializeAsString()};
  }

  std::optional<v1::P4Info> program_;  // all below: under mutex_, by locked()
  std::string config_;
  std::vector<Frame> frames_;
  bool held_ = false;
  bool frozen_ = false;
  int waiting_ = 0;
  int writes_to_lost_answer_ = -1;
  std::map<uint32_t, std::map<std::string, v1::TableEntry>> tables_;
  std::map<uint32_t, v1::MulticastGroupEntry> groups_;
  std::optional<Refusal> refusal_;
  int programs_loaded_ = 0;
  bool has_primary_ = false;
  bool has_other_ = false;
  bool keeps_backups_ = false;

 private:
  void set_released(bool released) {
    const std::lock_guard lock(mutex_);
    released_ = released;
    changed_.notify_all();
  }

  void wait_while(std::unique_lock<std::mutex>* lock, const bool& condition) {
    ++waiting_;
    changed_.wait(*lock, [&] { return !condition || released_; });
    --waiting_;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Stream* stream_ = nullptr;
  bool released_ = false;
  uint64_t election_id_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

P4RuntimeServer::P4RuntimeServer() : service_(std::make_unique<Service>()) {
  char folder[] = "/tmp/netsum-p4runtime-XXXXXX";
  NETSUM_ASSERT(mkdtemp(folder) != nullptr);
  folder_ = folder;
  serve();
}

P4RuntimeServer::~P4RuntimeServer() {
  service_->stop();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string P4RuntimeServer::address() const {
  return "unix:" + (folder_ / "grpc").string();
}

void P4RuntimeServer::stop_serving() {
  service_->stop();
}

void P4RuntimeServer::serve() {
  service_->serve(address());
}

void P4RuntimeServer::forget_all() {
  service_->locked([&] {
    service_->program_.reset();
    service_->config_.clear();
    service_->tables_.clear();
    service_->groups_.clear();
  });
}

void P4RuntimeServer::set_program(const v1::P4Info& info, const std::string& config) {
  service_->locked([&] {
    service_->program_ = info;
    service_->config_ = config;
  });
}

void P4RuntimeServer::add_entry(const std::string& table, const Entry& entry) {
  service_->locked([&] {
    Entry own = entry;
    own.set_table_id(service_->table_id(table));
    service_->tables_[own.table_id()][key_of(own)] = own;
  });
}

void P4RuntimeServer::add_group(uint32_t group) {
  service_->locked([&] { service_->groups_[group].set_multicast_group_id(group); });
}

void P4RuntimeServer::refuse_writes(std::optional<Refusal> refusal) {
  service_->locked([&] { service_->refusal_ = std::move(refusal); });
}

void P4RuntimeServer::keep_backups() {
  service_->locked([&] { service_->keeps_backups_ = true; });
}

void P4RuntimeServer::hold_writes(bool hold) {
  service_->set(&Service::held_, hold);
}

void P4RuntimeServer::freeze(bool freeze) {
  service_->set(&Service::frozen_, freeze);
}

int P4RuntimeServer::calls_waiting() const {
  return service_->locked([&] { return service_->waiting_; });
}

void P4RuntimeServer::lose_answer_after(int writes) {
  service_->locked([&] { service_->writes_to_lost_answer_ = writes; });
}

void P4RuntimeServer::demote(bool demote) {
  v1::StreamMessageResponse response;
  response.mutable_arbitration()->mutable_status()->set_code(grpc::ALREADY_EXISTS);
  response.mutable_arbitration()->mutable_status()->set_message("another one is primary now");
  service_->locked([&] {
    service_->has_other_ = demote;
    if (demote) service_->tell(response);
  });
}

void P4RuntimeServer::send(const Frame& frame) {
  v1::StreamMessageResponse response;
  response.mutable_packet()->set_payload(frame.bytes.data(), frame.bytes.size());
  v1::PacketMetadata& port = *response.mutable_packet()->add_metadata();
  port.set_metadata_id(1);
  port.set_value(p4::canonical_bytes(frame.port));
  const bool sent = service_->locked([&] { return service_->tell(response); });
  NETSUM_ASSERT(sent);
}

std::vector<P4RuntimeServer::Frame> P4RuntimeServer::frames() const {
  return service_->locked([&] { return service_->frames_; });
}

bool P4RuntimeServer::has_primary() const {
  return service_->locked([&] { return service_->has_primary_; });
}

int P4RuntimeServer::programs_loaded() const {
  return service_->locked([&] { return service_->programs_loaded_; });
}

std::vector<P4RuntimeServer::Entry> P4RuntimeServer::entries(const std::string& table) const {
  return service_->locked([&] {
    std::vector<Entry> found;
    for (const auto& [key, entry] : service_->tables_[service_->table_id(table)]) found.push_back(entry);
    return found;
  });
}

std::vector<uint32_t> P4RuntimeServer::groups() const {
  return service_->locked([&] {
    std::vector<uint32_t> ids;
    for (const auto& [id, group] : service_->groups_) ids.push_back(id);
    return ids;
  });
}

uint64_t P4RuntimeServer::parameter(const Entry& entry, const std::string& action, const std::string& name) {
  const v1::P4Info info = whole_program();
  for (const v1::ActionInfo& one : info.actions()) {
    if (one.preamble().alias() != action) continue;
    for (const v1::NamedField& field : one.params()) {
      for (const v1::Action::Param& given : entry.action().action().params())
        if (field.name() == name && given.param_id() == field.id()) return p4::number_of(given.value());
    }
  }
  NETSUM_ASSERT(false && "no such parameter");
  return 0;
}

}  // namespace netsum::conformance
