#include "aggregator/p4/driver/p4_program.h"

#include <algorithm>
#include <string_view>

#include "src/base/assert.h"

namespace netsum::p4 {
namespace {

namespace v1 = ::p4::v1;

constexpr char kName[] = "netsum";

// What the program must have: a table, the fields of its key, and the action that a control plane enters there.
struct TableShape {
  const char* table;
  std::vector<const char*> keys;
  const char* action;
  std::vector<const char*> parameters;
};
const std::vector<TableShape>& shapes() {
  static const std::vector<TableShape> kShapes = {
      {"jobs",
       {"h.netsum.job"},
       "is_job",
       {"job_epoch", "members", "job_slots", "payload_bytes", "first_slot", "everybody", "multicast_group",
        "cookie"}},
      {"members",
       {"h.netsum.job", "h.netsum.member"},
       "is_member",
       {"member_ip", "member_udp_port", "port", "member_bit"}},
      {"addresses", {"h.netsum.job", "m.addressee"}, "send_to", {"mac", "ip", "udp_port"}},
      {"parents",
       {"h.ipv4.from", "h.udp.from", "h.netsum.job"},
       "is_parent",
       {"own_job", "parents_epoch", "parents_cookie"}},
      {"uplinks", {"h.netsum.job"}, "has_parent", {"port", "waits"}},
      {"parent_addresses",
       {"h.netsum.job"},
       "send_up",
       {"mac", "ip", "udp_port", "parents_job", "parents_epoch", "own_member", "parents_cookie"}},
      {"own_addresses", {"h.ipv4.to", "h.udp.to"}, "NoAction", {}},
      {"own_arp", {"h.arp.kind", "h.arp.target_ip"}, "answer", {"mac"}},
      {"own_arp_replies", {"h.arp.kind", "h.arp.target_ip"}, "arp_to_control", {}},
      {"macs", {"h.ethernet.to"}, "to_port", {"port"}}};
  return kShapes;
}

// The element of that name or alias; null: there is none.
template <typename List>
auto find(const List& list, std::string_view name) -> decltype(&list[0]) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const auto& one) {
    return one.preamble().alias() == name || one.preamble().name() == name;
  });
  return found == list.end() ? nullptr : &*found;
}
template <typename List>
const v1::NamedField* field(const List& list, std::string_view name) {
  const auto found =
      std::find_if(list.begin(), list.end(), [&](const auto& one) { return one.name() == name; });
  return found == list.end() ? nullptr : &*found;
}

}  // namespace

std::string canonical_bytes(uint64_t value) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) {
    const auto byte = static_cast<char>(value >> shift);
    if (!bytes.empty() || byte != 0 || shift == 0) bytes += byte;
  }
  return bytes;
}

uint64_t number_of(const std::string& bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

Result<P4Program> P4Program::read(const std::string& p4info, const std::string& whose) {
  v1::P4Info info;
  if (!info.ParseFromString(p4info) || info.tables().empty())
    return Status(ErrorCode::kInvalidArgument,
                  whose + " has no P4Info in binary form, as p4c writes it with --p4runtime-files NAME.bin");
  P4Program program(std::move(info));
  if (Status status = program.check(whose); !status.ok()) return status;
  program.set_limits();
  return program;
}

Status P4Program::check(const std::string& whose) const {
  const auto other = [&](const std::string& what) {
    return Status(ErrorCode::kVersionMismatch,
                  whose + " " + what + ": this netsum needs aggregator/p4 of its own release, version " +
                      NETSUM_P4_PROGRAM_VERSION);
  };
  const std::string& name = info_.pkg_info().name();
  if (name != kName) return other(name.empty() ? "runs a program without a name" : "runs '" + name + "'");
  if (info_.pkg_info().version() != NETSUM_P4_PROGRAM_VERSION)
    return other("runs version '" + info_.pkg_info().version() + "' of the program");
  for (const TableShape& shape : shapes()) {
    const v1::TableInfo* table = find(info_.tables(), shape.table);
    if (table == nullptr) return other("has no table '" + std::string(shape.table) + "'");
    for (const char* key : shape.keys) {
      if (field(table->match_fields(), key) == nullptr)
        return other("has no key " + std::string(key) + " in table '" + shape.table + "'");
    }
    const v1::ActionInfo* action = find(info_.actions(), shape.action);
    if (action == nullptr) return other("has no action '" + std::string(shape.action) + "'");
    for (const char* parameter : shape.parameters) {
      if (field(action->params(), parameter) == nullptr)
        return other("has no parameter " + std::string(parameter) + " of action '" + shape.action + "'");
    }
  }
  for (const char* counter : {"events", "rounds"}) {
    if (find(info_.counters(), counter) == nullptr)
      return other("has no counter '" + std::string(counter) + "'");
  }
  for (const char* header : {"packet_in", "packet_out"}) {
    const v1::PacketMetadataInfo* found = find(info_.controller_packet_metadata(), header);
    if (found == nullptr || field(found->metadata(), "port") == nullptr)
      return other("has no header '" + std::string(header) + "' with a port");
  }
  if (find(info_.registers(), "over") == nullptr) return other("has no register 'over'");
  return {};
}

void P4Program::set_limits() {
  const auto size = [&](const char* table) { return find(info_.tables(), table)->size(); };
  limits_.jobs = static_cast<int>(std::min(size("jobs"), find(info_.counters(), "rounds")->size()));
  limits_.members = static_cast<uint32_t>(std::min(size("members"), size("addresses")));
  limits_.slots = static_cast<uint32_t>(find(info_.registers(), "over")->size());
  // A register for each word of a pass, with an element for each slot, bank and group of words.
  uint32_t words = 0, elements = 0;
  for (const v1::RegisterInfo& one : info_.registers()) {
    if (!one.preamble().name().ends_with(".sums")) continue;
    ++words;
    elements = static_cast<uint32_t>(one.size());
  }
  limits_.payload_bytes = limits_.slots == 0 ? 0 : elements / (2 * limits_.slots) * words * 8;
}

v1::TableEntry P4Program::entry(const std::string& table, const Values& keys, const std::string& action,
                                const Values& parameters) const {
  const v1::TableInfo* info = find(info_.tables(), table);
  const v1::ActionInfo* action_info = find(info_.actions(), action);
  NETSUM_ASSERT(info != nullptr && action_info != nullptr);
  v1::TableEntry entry;
  entry.set_table_id(info->preamble().id());
  for (const auto& [name, value] : keys) {
    v1::FieldMatch& match = *entry.add_match();
    match.set_field_id(field(info->match_fields(), name)->id());
    match.mutable_exact()->set_value(canonical_bytes(value));
  }
  v1::Action& chosen = *entry.mutable_action()->mutable_action();
  chosen.set_action_id(action_info->preamble().id());
  for (const auto& [name, value] : parameters) {
    v1::Action::Param& parameter = *chosen.add_params();
    parameter.set_param_id(field(action_info->params(), name)->id());
    parameter.set_value(canonical_bytes(value));
  }
  return entry;
}

uint32_t P4Program::table(const std::string& name) const {
  return find(info_.tables(), name)->preamble().id();
}

uint32_t P4Program::counter(const std::string& name) const {
  return find(info_.counters(), name)->preamble().id();
}

uint32_t P4Program::port_field(const std::string& header) const {
  return field(find(info_.controller_packet_metadata(), header)->metadata(), "port")->id();
}

std::vector<uint32_t> P4Program::tables() const {
  std::vector<uint32_t> ids;
  for (const TableShape& shape : shapes()) ids.push_back(table(shape.table));
  return ids;
}

}  // namespace netsum::p4
