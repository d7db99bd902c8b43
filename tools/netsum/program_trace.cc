#include "tools/netsum/program_trace.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/gzip_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "src/base/text.h"
#include "tools/netsum/chakra.h"
#include "tools/netsum/chakra.pb.h"

namespace netsum::tool {
namespace {

using program::Collective;
using program::Instruction;

constexpr char kGroups[] = "## process_group:init ##";
constexpr char kEndOfStep[] = "end of step";
constexpr size_t kMostBytes = size_t{1} << 32;  // of a trace
constexpr size_t kMostNodeBytes = size_t{1} << 28;

// Chakra's numbers of collectives. -1: of messages, which are nodes of other types.
constexpr std::array<int64_t, program::kCollectives> kCollectiveNumbers = {0, 1, 7, 5, 2,  3,
                                                                           4, 9, 0, 6, -1, -1};

chakra::Attribute* attribute(google::protobuf::RepeatedPtrField<chakra::Attribute>* attributes,
                             const char* name) {
  chakra::Attribute* const added = attributes->Add();
  added->set_name(name);
  return added;
}

uint64_t micros(int64_t ns) {
  return static_cast<uint64_t>((std::max<int64_t>(ns, 0) + 500) / 1000);
}

class Writer {
 public:
  explicit Writer(const program::Program& program) : program_(program) {}

  std::string text() {
    const program::Header& header = program_.header;
    chakra::GlobalMetadata metadata;
    metadata.set_version(kChakraVersion);
    auto* const attributes = metadata.mutable_attr();
    attribute(attributes, "netsum.world_size")->set_int64_value(header.world_size);
    attribute(attributes, "netsum.rank")->set_int64_value(header.rank);
    attribute(attributes, "netsum.model")->set_string_value(header.model);
    attribute(attributes, "netsum.netsum")->set_string_value(header.netsum);
    attribute(attributes, "netsum.machine")->set_string_value(header.machine);
    attribute(attributes, "netsum.clock")->set_string_value(header.clock);
    append(metadata);
    if (!header.groups.empty()) add_groups();
    // Threads may wait for operations with later numbers.
    uint64_t id = next_id_;
    for (const program::Step& step : program_.steps) {
      operations_.emplace_back(step.operations.size());
      for (const auto& thread : step.threads) {
        for (const Instruction& instruction : thread) {
          if (instruction.kind == Instruction::Kind::kSubmit) operations_.back()[instruction.value] = id;
          if (instruction.kind != Instruction::Kind::kWait) ++id;
        }
        ++id;  // the end
      }
    }
    for (size_t k = 0; k < program_.steps.size(); ++k) add_step(k);
    return std::move(text_);
  }

 private:
  void add_groups() {
    nlohmann::ordered_json groups = nlohmann::ordered_json::array();
    for (const program::Group& group : program_.header.groups)
      groups.push_back({{"pg_name", std::to_string(group.id)},
                        {"pg_desc", ""},
                        {"backend_config", "cpu:netsum"},
                        {"ranks", group.ranks},
                        {"group_size", group.ranks.size()},
                        {"group_count", program_.header.groups.size()}});
    chakra::Node node;
    node.set_id(next_id_++);
    node.set_name(kGroups);
    node.set_type(chakra::METADATA_NODE);
    node.mutable_inputs()->set_values("['" + groups.dump() + "']");
    chakra::Numbers* const ids = attribute(node.mutable_attr(), "netsum.ids")->mutable_uint64_list();
    for (const program::Group& group : program_.header.groups)
      ids->add_values(static_cast<uint64_t>(group.id));
    append(node);
  }

  void add_step(size_t k) {
    const program::Step& step = program_.steps[k];
    std::optional<uint64_t> first_end;
    for (size_t t = 0; t < step.threads.size(); ++t) {
      before_.clear();
      if (last_end_) before_.push_back(*last_end_);
      for (const Instruction& instruction : step.threads[t]) add(k, t, instruction);
      chakra::Node end = begin(chakra::COMP_NODE, kEndOfStep, k, t, 0);
      if (t == 0) {
        first_end = end.id();
        attribute(end.mutable_attr(), "netsum.duration_ns")->set_int64_value(step.duration_ns);
        attribute(end.mutable_attr(), "netsum.number")->set_uint64_value(step.number);
        attribute(end.mutable_attr(), "netsum.partial")->set_bool_value(step.partial);
      }
      append(end);
    }
    last_end_ = first_end;
    begin_ns_ += step.duration_ns;
  }

  void add(size_t k, size_t t, const Instruction& instruction) {
    const program::Step& step = program_.steps[k];
    switch (instruction.kind) {
      case Instruction::Kind::kCompute: {
        const auto ns = static_cast<int64_t>(instruction.value);
        chakra::Node node = begin(chakra::COMP_NODE, "compute", k, t, ns);
        attribute(node.mutable_attr(), "netsum.ns")->set_int64_value(ns);
        append(node);
        before_ = {node.id()};
        break;
      }
      case Instruction::Kind::kSubmit:
        append(operation(k, t, instruction.value));
        break;
      case Instruction::Kind::kWait: {
        const size_t own = step.operations.size();
        uint64_t id = 0;
        if (instruction.value < own) {
          id = operations_[k][instruction.value];
        } else {
          const program::Carried& carried = step.carried[instruction.value - own];
          id = operations_[k - carried.steps_back][carried.operation];
        }
        if (std::find(before_.begin(), before_.end(), id) == before_.end()) before_.push_back(id);
        break;
      }
    }
  }

  chakra::Node operation(size_t k, size_t t, uint64_t number) {
    const program::Operation& of = program_.steps[k].operations[number];
    const int type = of.collective == Collective::kSend      ? chakra::COMM_SEND_NODE
                     : of.collective == Collective::kReceive ? chakra::COMM_RECV_NODE
                                                             : chakra::COMM_COLL_NODE;
    const int64_t ns = of.done_ns ? *of.done_ns - of.submitted_ns : 0;
    chakra::Node node = begin(static_cast<chakra::NodeType>(type),
                              std::string(program::collective_name(of.collective)), k, t, ns);
    node.set_start_time_micros(micros(begin_ns_ + of.submitted_ns));
    auto* const attributes = node.mutable_attr();
    attribute(attributes, "comm_size")->set_int64_value(static_cast<int64_t>(of.count * size_of(of.type)));
    // A simulator looks a group up in its own configuration, which has none of all ranks.
    if (program::group_size(program_.header, of.group) < program_.header.world_size)
      attribute(attributes, "pg_name")->set_string_value(std::to_string(of.group));
    if (type == chakra::COMM_COLL_NODE) {
      attribute(attributes, "comm_type")
          ->set_int64_value(kCollectiveNumbers[static_cast<size_t>(of.collective)]);
    } else {
      const bool sends = type == chakra::COMM_SEND_NODE;
      attribute(attributes, "comm_src")->set_int32_value(sends ? program_.header.rank : of.root);
      attribute(attributes, "comm_dst")->set_int32_value(sends ? of.root : program_.header.rank);
      attribute(attributes, "comm_tag")->set_int32_value(static_cast<int32_t>(of.tag));
    }
    attribute(attributes, "netsum.operation")->set_uint64_value(number);
    attribute(attributes, "netsum.collective")->set_string_value(std::string(collective_name(of.collective)));
    attribute(attributes, "netsum.type")->set_string_value(std::string(data_type_name(of.type)));
    attribute(attributes, "netsum.count")->set_uint64_value(of.count);
    if (!of.parts.empty()) {
      chakra::Numbers* const parts = attribute(attributes, "netsum.parts")->mutable_uint64_list();
      for (const uint64_t part : of.parts) parts->add_values(part);
    }
    attribute(attributes, "netsum.op")->set_string_value(std::string(reduce_op_name(of.op)));
    attribute(attributes, "netsum.root")->set_int64_value(of.root);
    attribute(attributes, "netsum.group")->set_int64_value(of.group);
    attribute(attributes, "netsum.tag")->set_int64_value(of.tag);
    if (!of.scales.empty()) {
      chakra::Numbers* const scales = attribute(attributes, "netsum.scales")->mutable_uint64_list();
      for (const uint8_t scale : of.scales) scales->add_values(scale);
    }
    attribute(attributes, "netsum.hosts")->set_bool_value(of.on_hosts);
    attribute(attributes, "netsum.submitted_ns")->set_int64_value(of.submitted_ns);
    if (of.done_ns) attribute(attributes, "netsum.done_ns")->set_int64_value(*of.done_ns);
    return node;
  }

  chakra::Node begin(chakra::NodeType type, std::string name, size_t k, size_t t, int64_t ns) {
    chakra::Node node;
    node.set_id(next_id_++);
    node.set_name(std::move(name));
    node.set_type(type);
    for (const uint64_t id : before_) node.add_data_deps(id);
    node.set_duration_micros(micros(ns));
    auto* const attributes = node.mutable_attr();
    attribute(attributes, "is_cpu_op")->set_bool_value(false);
    attribute(attributes, "netsum.step")->set_uint64_value(k);
    attribute(attributes, "netsum.thread")->set_uint64_value(t);
    return node;
  }

  void append(const google::protobuf::MessageLite& message) {
    google::protobuf::io::StringOutputStream stream(&text_);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.WriteVarint32(static_cast<uint32_t>(message.ByteSizeLong()));
    message.SerializeWithCachedSizes(&coded);
  }

  const program::Program& program_;
  std::string text_;
  uint64_t next_id_ = 1;                           // 0 is absent on the wire
  std::vector<std::vector<uint64_t>> operations_;  // [step][operation]: its node
  std::vector<uint64_t> before_;                   // the nodes on which the next one of the thread depends
  std::optional<uint64_t> last_end_;               // of the first thread of the step before
  int64_t begin_ns_ = 0;                           // of the step
};

// Thrown within this file only.
struct Bad {
  std::string what;
};

// The attributes of a node or of the metadata.
class Attributes {
 public:
  explicit Attributes(const google::protobuf::RepeatedPtrField<chakra::Attribute>& attributes) {
    for (const chakra::Attribute& one : attributes) by_name_.emplace(one.name(), &one);
  }

  bool has(const char* name) const { return by_name_.contains(name); }

  // Of any integer type: writers differ.
  int64_t number(const char* name, int64_t otherwise, int64_t least, int64_t most) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return otherwise;
    const std::optional<int64_t> value = integer(*found->second);
    if (!value || *value < least || *value > most)
      throw Bad{fmt::format("the attribute {} is no integer from {} to {}", name, least, most)};
    return *value;
  }
  std::string text(const char* name, const std::string& otherwise) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return otherwise;
    if (found->second->value_case() != chakra::Attribute::kStringValue)
      throw Bad{fmt::format("the attribute {} is no text", name)};
    return found->second->string_value();
  }
  std::vector<uint64_t> numbers(const char* name) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return {};
    const auto& values = found->second->uint64_list().values();
    return {values.begin(), values.end()};
  }

 private:
  static std::optional<int64_t> integer(const chakra::Attribute& one) {
    const auto from_unsigned = [](uint64_t value) {
      return value <= INT64_MAX ? std::optional(static_cast<int64_t>(value)) : std::nullopt;
    };
    switch (one.value_case()) {
      case chakra::Attribute::kInt32Value:
        return one.int32_value();
      case chakra::Attribute::kInt64Value:
        return one.int64_value();
      case chakra::Attribute::kUint32Value:
        return one.uint32_value();
      case chakra::Attribute::kUint64Value:
        return from_unsigned(one.uint64_value());
      case chakra::Attribute::kSint32Value:
        return one.sint32_value();
      case chakra::Attribute::kSint64Value:
        return one.sint64_value();
      case chakra::Attribute::kFixed32Value:
        return one.fixed32_value();
      case chakra::Attribute::kFixed64Value:
        return from_unsigned(one.fixed64_value());
      case chakra::Attribute::kSfixed32Value:
        return one.sfixed32_value();
      case chakra::Attribute::kSfixed64Value:
        return one.sfixed64_value();
      case chakra::Attribute::kBoolValue:
        return one.bool_value() ? 1 : 0;
      default:
        return std::nullopt;
    }
  }

  std::map<std::string, const chakra::Attribute*> by_name_;
};

template <typename Enum, typename NameOf>
Enum named(const std::string& text, Enum first, Enum last, NameOf name_of) {
  for (int i = static_cast<int>(first); i <= static_cast<int>(last); ++i)
    if (name_of(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
  throw Bad{"'" + printable(text, 40) + "' is unknown"};
}

class Reader {
 public:
  Reader(int rank, int world_size) {
    program_.header.rank = rank;
    program_.header.world_size = world_size;
  }

  program::Program read(std::istream& in) {
    parse(in);
    for (const size_t index : sorted()) {
      try {
        add(nodes_[index]);
      } catch (const Bad& bad) {
        throw Bad{fmt::format("node {}: {}", nodes_[index].id(), bad.what)};
      }
    }
    for (size_t k = 0; k < program_.steps.size(); ++k) {
      program::Step& step = program_.steps[k];
      if (step.threads.empty()) throw Bad{fmt::format("step {} has no node", k)};
      if (!ended_.contains(k)) {
        step.number = k;
        step.duration_ns = now_[{k, 0}];
      }
    }
    return std::move(program_);
  }

 private:
  struct Place {
    size_t step = 0;
    uint64_t number = 0;
  };

  void parse(std::istream& in) {
    namespace io = google::protobuf::io;
    std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (bytes.size() > kMostBytes) throw Bad{"the file has more than 4 GiB"};
    if (bytes.starts_with("\x1f\x8b")) bytes = unzipped(bytes);
    size_t at = 0;
    chakra::GlobalMetadata metadata;
    next(bytes, &at, &metadata);
    const Attributes attributes(metadata.attr());
    program::Header& header = program_.header;
    header.world_size =
        static_cast<int>(attributes.number("netsum.world_size", header.world_size, 1, program::kMostRanks));
    header.rank = static_cast<int>(attributes.number("netsum.rank", header.rank, 0, program::kMostRanks));
    header.model = attributes.text("netsum.model", "");
    header.netsum = attributes.text("netsum.netsum", "");
    header.machine = attributes.text("netsum.machine", "");
    header.clock = attributes.text("netsum.clock", "us");
    while (at < bytes.size()) {
      nodes_.emplace_back();
      next(bytes, &at, &nodes_.back());
      if (!index_.emplace(nodes_.back().id(), nodes_.size() - 1).second)
        throw Bad{fmt::format("byte {}: node {} occurs twice", at, nodes_.back().id())};
    }
  }

  static std::string unzipped(const std::string& bytes) {
    namespace io = google::protobuf::io;
    io::ArrayInputStream raw(bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX)));
    io::GzipInputStream stream(&raw);
    std::string text;
    const void* data = nullptr;
    int size = 0;
    while (stream.Next(&data, &size)) {
      text.append(static_cast<const char*>(data), static_cast<size_t>(size));
      if (text.size() > kMostBytes) throw Bad{"the file has more than 4 GiB"};
    }
    if (stream.ZlibErrorCode() < 0) throw Bad{"the file is no whole gzip file: it is damaged or truncated"};
    return text;
  }

  // The message behind its length.
  static void next(const std::string& bytes, size_t* at, google::protobuf::MessageLite* message) {
    uint64_t size = 0;
    const size_t begin = *at;
    for (int shift = 0;; shift += 7) {
      if (*at == bytes.size() || shift > 28) throw Bad{fmt::format("byte {}: no length of a message", begin)};
      const auto byte = static_cast<uint8_t>(bytes[(*at)++]);
      size |= uint64_t{byte & 0x7FU} << shift;
      if ((byte & 0x80) == 0) break;
    }
    if (size > kMostNodeBytes || size > bytes.size() - *at)
      throw Bad{
          fmt::format("byte {}: a message of {} bytes, but {} are left: the file is truncated or no trace",
                      begin, size, bytes.size() - *at)};
    if (!message->ParseFromArray(bytes.data() + *at, static_cast<int>(size)))
      throw Bad{fmt::format("byte {}: no message of Chakra", begin)};
    *at += size;
  }

  // By dependencies, otherwise as in the file.
  std::vector<size_t> sorted() const {
    std::vector<size_t> left(nodes_.size());
    std::vector<std::vector<size_t>> after(nodes_.size());
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const uint64_t id : nodes_[i].data_deps()) {
        const auto found = index_.find(id);
        if (found == index_.end())
          throw Bad{
              fmt::format("node {} depends on node {}, which the trace does not have", nodes_[i].id(), id)};
        after[found->second].push_back(i);
        ++left[i];
      }
    }
    std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (left[i] == 0) ready.push(i);
    std::vector<size_t> order;
    while (!ready.empty()) {
      const size_t i = ready.top();
      ready.pop();
      order.push_back(i);
      for (const size_t j : after[i])
        if (--left[j] == 0) ready.push(j);
    }
    if (order.size() == nodes_.size()) return order;
    const auto in_cycle = std::find_if(left.begin(), left.end(), [](size_t count) { return count > 0; });
    throw Bad{fmt::format("node {} depends on itself through others",
                          nodes_[static_cast<size_t>(in_cycle - left.begin())].id())};
  }

  void add(const chakra::Node& node) {
    if (node.type() == chakra::METADATA_NODE) {
      if (node.name() == kGroups)
        add_groups(node.inputs().values(), Attributes(node.attr()).numbers("netsum.ids"));
      return;
    }
    const Attributes attributes(node.attr());
    constexpr int64_t kMostThreads = 1024;
    const auto k =
        static_cast<size_t>(attributes.number("netsum.step", 0, 0, static_cast<int64_t>(nodes_.size())));
    const auto t = static_cast<size_t>(attributes.number("netsum.thread", 0, 0, kMostThreads));
    if (program_.steps.size() <= k) program_.steps.resize(k + 1);
    program::Step& step = program_.steps[k];
    if (step.threads.size() <= t) step.threads.resize(t + 1);
    for (const uint64_t id : node.data_deps()) wait(k, t, id);
    switch (node.type()) {
      case chakra::COMM_COLL_NODE:
      case chakra::COMM_SEND_NODE:
      case chakra::COMM_RECV_NODE:
        submit(k, t, node, attributes);
        break;
      default:  // whatever else takes time
        compute(k, t, node, attributes);
        break;
    }
  }

  void compute(size_t k, size_t t, const chakra::Node& node, const Attributes& attributes) {
    program::Step& step = program_.steps[k];
    const int64_t ns = attributes.number("netsum.ns", nanoseconds(node), 0, program::kMostNs);
    if (ns > 0) step.threads[t].push_back({Instruction::Kind::kCompute, static_cast<uint64_t>(ns)});
    now_[{k, t}] = std::min(now_[{k, t}] + ns, program::kMostNs);
    if (!attributes.has("netsum.duration_ns")) return;
    ended_.insert(k);
    step.duration_ns = attributes.number("netsum.duration_ns", 0, 0, program::kMostNs);
    step.number = static_cast<uint64_t>(attributes.number("netsum.number", static_cast<int64_t>(k), 0,
                                                          static_cast<int64_t>(program::kMostSteps)));
    step.partial = attributes.number("netsum.partial", 0, 0, 1) != 0;
  }

  void wait(size_t k, size_t t, uint64_t id) {
    const auto found = places_.find(id);
    if (found == places_.end() || !waited_.insert({t, id}).second) return;
    const Place place = found->second;
    if (place.step > k) throw Bad{fmt::format("it depends on node {} of a later step", id)};
    program::Step& step = program_.steps[k];
    const program::Operation& operation = program_.steps[place.step].operations[place.number];
    if (!operation.done_ns) throw Bad{fmt::format("it depends on node {}, which has no end", id)};
    int64_t done = *operation.done_ns;
    if (place.step == k) {
      step.threads[t].push_back({Instruction::Kind::kWait, place.number});
    } else {
      for (size_t s = place.step; s < k; ++s) done -= program_.steps[s].duration_ns;
      const auto known =
          std::find_if(step.carried.begin(), step.carried.end(), [&](const program::Carried& one) {
            return one.steps_back == k - place.step && one.operation == place.number;
          });
      // Numbered when all operations of the step are known.
      carried_waits_.push_back(
          {k, t, step.threads[t].size(), static_cast<size_t>(known - step.carried.begin())});
      step.threads[t].push_back({Instruction::Kind::kWait, 0});
      if (known == step.carried.end())
        step.carried.push_back({.steps_back = k - place.step, .operation = place.number, .done_ns = done});
    }
    now_[{k, t}] = std::max(now_[{k, t}], done);
  }

  void submit(size_t k, size_t t, const chakra::Node& node, const Attributes& attributes) {
    program::Step& step = program_.steps[k];
    const auto number = static_cast<uint64_t>(attributes.number("netsum.operation",
                                                                static_cast<int64_t>(step.operations.size()),
                                                                0, static_cast<int64_t>(nodes_.size())));
    program::Operation operation = operation_of(node, attributes);
    operation.submitted_ns = attributes.number("netsum.submitted_ns", now_[{k, t}], 0, program::kMostNs);
    if (attributes.has("netsum.done_ns"))
      operation.done_ns = attributes.number("netsum.done_ns", 0, 0, program::kMostNs);
    else if (!attributes.has("netsum.submitted_ns"))
      operation.done_ns = std::min(operation.submitted_ns + nanoseconds(node), program::kMostNs);
    places_[node.id()] = {k, number};
    if (step.operations.size() <= number) step.operations.resize(number + 1);
    step.operations[number] = std::move(operation);
    step.threads[t].push_back({Instruction::Kind::kSubmit, number});
  }

  program::Operation operation_of(const chakra::Node& node, const Attributes& attributes) const {
    program::Operation operation;
    const auto group = attributes.text("pg_name", "0");
    const auto known = groups_.find(group);
    operation.group = static_cast<int>(
        attributes.number("netsum.group", known == groups_.end() ? 0 : known->second, 0, INT32_MAX));
    operation.tag = static_cast<uint32_t>(
        attributes.number("netsum.tag", attributes.number("comm_tag", 0, 0, UINT32_MAX), 0, UINT32_MAX));
    if (attributes.has("netsum.collective")) {
      operation.collective =
          named(attributes.text("netsum.collective", ""), Collective{},
                static_cast<Collective>(program::kCollectives - 1), program::collective_name);
      operation.type =
          named(attributes.text("netsum.type", ""), DataType::kFloat32, DataType::kByte, data_type_name);
      operation.op =
          named(attributes.text("netsum.op", ""), ReduceOp::kSum, ReduceOp::kBitXor, reduce_op_name);
      operation.count = static_cast<uint64_t>(attributes.number("netsum.count", 0, 0, INT64_MAX));
      operation.parts = attributes.numbers("netsum.parts");
      operation.root = static_cast<int>(attributes.number("netsum.root", -1, -1, program::kMostRanks));
      for (const uint64_t scale : attributes.numbers("netsum.scales")) {
        if (scale > UINT8_MAX) throw Bad{fmt::format("the scale {} is above {}", scale, UINT8_MAX)};
        operation.scales.push_back(static_cast<uint8_t>(scale));
      }
      operation.on_hosts = attributes.number("netsum.hosts", 0, 0, 1) != 0;
      return operation;
    }
    const bool sends = node.type() == chakra::COMM_SEND_NODE;
    if (sends || node.type() == chakra::COMM_RECV_NODE) {
      operation.collective = sends ? Collective::kSend : Collective::kReceive;
      operation.root =
          static_cast<int>(attributes.number(sends ? "comm_dst" : "comm_src", 0, 0, program::kMostRanks));
    } else {
      const int64_t type = attributes.number("comm_type", 0, 0, 9);
      constexpr int64_t kReduceScatterBlock = 8;
      const auto found = std::find(kCollectiveNumbers.begin(), kCollectiveNumbers.end(),
                                   type == kReduceScatterBlock ? 7 : type);
      operation.collective = static_cast<Collective>(found - kCollectiveNumbers.begin());
      if (program::has_root(operation.collective)) operation.root = 0;
    }
    constexpr auto kMost = static_cast<int64_t>(program::kMostElements);
    const auto bytes = static_cast<uint64_t>(attributes.number("comm_size", 0, 0, kMost));
    operation.type = program::reduces(operation.collective) ? DataType::kFloat32 : DataType::kByte;
    operation.count = (bytes + size_of(operation.type) - 1) / size_of(operation.type);
    if (const auto size = static_cast<uint64_t>(program::group_size(program_.header, operation.group));
        program::has_parts(operation.collective) && size > 0 && operation.count % size != 0) {
      for (uint64_t r = 0; r < size; ++r)
        operation.parts.push_back(operation.count / size + (r < operation.count % size ? 1 : 0));
    }
    return operation;
  }

  static int64_t nanoseconds(const chakra::Node& node) {
    constexpr uint64_t kMostMicros = program::kMostNs / 1000;
    if (node.duration_micros() > kMostMicros) throw Bad{"it takes more than 2^53 ns"};
    return static_cast<int64_t>(node.duration_micros() * 1000);
  }

  // A list with one text, as Python writes it, which is JSON.
  void add_groups(const std::string& values, const std::vector<uint64_t>& ids) {
    const size_t begin = values.find("['"), end = values.rfind("']");
    const auto json = begin == std::string::npos || end == std::string::npos || end < begin + 2
                          ? nlohmann::json()
                          : nlohmann::json::parse(values.substr(begin + 2, end - begin - 2), nullptr, false);
    if (!json.is_array()) throw Bad{"the groups are no list"};
    for (const nlohmann::json& one : json) {
      if (!one.is_object() || !one.contains("pg_name") || !one["pg_name"].is_string() ||
          !one.contains("ranks") || !one["ranks"].is_array())
        throw Bad{"a group has no pg_name or no ranks"};
      const size_t index = program_.header.groups.size();
      program::Group group{.id = static_cast<int>(index < ids.size() ? ids[index] & INT32_MAX : index),
                           .ranks = {}};
      for (const nlohmann::json& rank : one["ranks"]) {
        if (!rank.is_number_unsigned() || rank.get<uint64_t>() > program::kMostRanks)
          throw Bad{"a group has a rank that is no whole number"};
        group.ranks.push_back(rank.get<int>());
      }
      if (group.ranks.empty())  // all
        for (int rank = 0; rank < program_.header.world_size; ++rank) group.ranks.push_back(rank);
      groups_[one["pg_name"].get<std::string>()] = group.id;
      program_.header.groups.push_back(std::move(group));
    }
  }

 public:
  // The numbers of carried operations follow those of the step's own.
  struct CarriedWait {
    size_t step, thread, instruction, carried;
  };
  const std::vector<CarriedWait>& carried_waits() const { return carried_waits_; }

 private:
  program::Program program_;
  std::vector<chakra::Node> nodes_;
  std::map<uint64_t, size_t> index_;                  // [id]
  std::map<std::string, int> groups_;                 // [pg_name]: Group::id
  std::map<uint64_t, Place> places_;                  // [id]: of operations
  std::set<std::pair<size_t, uint64_t>> waited_;      // threads and ids
  std::map<std::pair<size_t, size_t>, int64_t> now_;  // [step, thread]
  std::set<size_t> ended_;                            // steps whose durations the trace has
  std::vector<CarriedWait> carried_waits_;
};

}  // namespace

std::string program_trace(const program::Program& program) {
  return Writer(program).text();
}

Result<program::Program> trace_program(std::istream& in, const std::string& name, int rank, int world_size) {
  try {
    Reader reader(rank, world_size);
    program::Program program = reader.read(in);
    for (const auto& [step, thread, instruction, carried] : reader.carried_waits())
      program.steps[step].threads[thread][instruction].value =
          program.steps[step].operations.size() + carried;
    if (const Status status = program::check(program); !status.ok())
      return Status(status.code(), name + ": " + status.message());
    return program;
  } catch (const Bad& bad) {
    return Status(ErrorCode::kInvalidArgument, name + ": " + bad.what);
  }
}

}  // namespace netsum::tool
