#include "src/program/json_lines.h"

#include <array>
#include <charconv>
#include <initializer_list>
#include <istream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <utility>

namespace netsum::program {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFormat[] = "netsum-program";
constexpr int kVersion = 1;
constexpr size_t kMostLineBytes = size_t{1} << 28;
constexpr std::array<std::string_view, 3> kInstructions = {"compute", "submit", "wait"};

// Thrown within this file only.
struct Bad {
  std::string what;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

std::string quoted(const std::string& text) {
  constexpr size_t kMostShown = 40;
  return Json(text.substr(0, kMostShown)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

void check_keys(const Json& object, const std::string& what, std::initializer_list<const char*> known) {
  if (!object.is_object()) throw Bad{what + " is no object"};
  for (const auto& [key, value] : object.items()) {
    bool found = false;
    for (const char* const one : known) found |= key == one;
    if (!found) throw Bad{what + " has the unknown key " + quoted(key)};
  }
}

const Json& member(const Json& object, const std::string& what, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) throw Bad{what + " has no " + quoted(key)};
  return *found;
}

int64_t number(const Json& value, const std::string& what, int64_t least, int64_t most) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(most)) ||
      value.get<int64_t>() < least || value.get<int64_t>() > most)
    throw Bad{what + " is no integer from " + std::to_string(least) + " to " + std::to_string(most)};
  return value.get<int64_t>();
}

int64_t number_of(const Json& object, const std::string& what, const char* key, int64_t least, int64_t most) {
  return number(member(object, what, key), what + ", " + quoted(key), least, most);
}

std::string text_of(const Json& object, const std::string& what, const char* key) {
  const Json& value = member(object, what, key);
  if (!value.is_string()) throw Bad{what + ", " + quoted(key) + " is no text"};
  return value.get<std::string>();
}

// Two hexadecimal digits for each.
std::vector<uint8_t> bytes_of(const Json& object, const std::string& what, const char* key) {
  const std::string text = text_of(object, what, key);
  std::vector<uint8_t> bytes(text.size() / 2);
  bool right = text.size() % 2 == 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char* const end = text.data() + 2 * i + 2;
    right &= std::from_chars(end - 2, end, bytes[i], 16).ptr == end;
  }
  if (!right) throw Bad{what + ", " + quoted(key) + " has no two hexadecimal digits for each value"};
  return bytes;
}

std::string text_of(const std::vector<uint8_t>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool flag_of(const Json& object, const std::string& what, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return false;
  if (!found->is_boolean()) throw Bad{what + ", " + quoted(key) + " is neither true nor false"};
  return found->get<bool>();
}

const Json& list(const Json& value, const std::string& what) {
  if (!value.is_array()) throw Bad{what + " is no list"};
  return value;
}

// The enumerator among `first` to `last` that `name_of` calls so.
template <typename Enum, typename NameOf>
Enum named(const Json& object, const std::string& what, const char* key, Enum first, Enum last,
           NameOf name_of) {
  const std::string text = text_of(object, what, key);
  for (int i = static_cast<int>(first); i <= static_cast<int>(last); ++i)
    if (name_of(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
  throw Bad{what + ", " + quoted(key) + ": " + quoted(text) + " is unknown"};
}

Group group_from(const Json& json) {
  check_keys(json, "a group", {"id", "ranks"});
  Group group;
  group.id = static_cast<int>(number_of(json, "a group", "id", 0, INT32_MAX));
  for (const Json& rank : list(member(json, "a group", "ranks"), "'ranks'"))
    group.ranks.push_back(static_cast<int>(number(rank, "a rank of a group", 0, kMostRanks)));
  return group;
}

Header header_from(const Json& json, uint64_t* steps) {
  const std::string what = "the header";
  if (!json.is_object() || !json.contains("format") || json["format"] != kFormat)
    throw Bad{std::string("this is no program: the first line has no \"format\":\"") + kFormat + "\""};
  const int64_t version = number_of(json, what, "version", 0, INT32_MAX);
  if (version != kVersion)
    throw Bad{"the file has version " + std::to_string(version) +
                  " of the format, and this netsum reads version " + std::to_string(kVersion) +
                  ": record again, or use the netsum that wrote it",
              ErrorCode::kVersionMismatch};
  check_keys(
      json, what,
      {"format", "version", "world_size", "rank", "model", "netsum", "machine", "clock", "groups", "steps"});
  Header header;
  header.world_size = static_cast<int>(number_of(json, what, "world_size", 1, kMostRanks));
  header.rank = static_cast<int>(number_of(json, what, "rank", 0, kMostRanks));
  header.model = text_of(json, what, "model");
  header.netsum = text_of(json, what, "netsum");
  header.machine = text_of(json, what, "machine");
  header.clock = text_of(json, what, "clock");
  if (json.contains("groups"))
    for (const Json& group : list(json["groups"], "'groups'")) header.groups.push_back(group_from(group));
  *steps = static_cast<uint64_t>(number_of(json, what, "steps", 1, static_cast<int64_t>(kMostSteps)));
  return header;
}

Operation operation_from(const Json& json, size_t id) {
  const std::string what = "operation " + std::to_string(id);
  check_keys(json, what,
             {"id", "collective", "type", "count", "parts", "operation", "root", "group", "tag", "scales",
              "hosts", "submitted_ns", "done_ns"});
  if (number_of(json, what, "id", 0, INT64_MAX) != static_cast<int64_t>(id))
    throw Bad{what + ": operations are numbered from 0, in order"};
  constexpr auto kMost = static_cast<int64_t>(kMostElements);
  Operation operation;
  operation.collective = named(json, what, "collective", Collective{},
                               static_cast<Collective>(kCollectives - 1), collective_name);
  operation.type = named(json, what, "type", DataType::kFloat32, DataType::kByte, data_type_name);
  operation.count = static_cast<uint64_t>(number_of(json, what, "count", 0, kMost));
  if (json.contains("parts"))
    for (const Json& part : list(json["parts"], what + ", \"parts\""))
      operation.parts.push_back(static_cast<uint64_t>(number(part, what + ", a part", 0, kMost)));
  if (reduces(operation.collective))
    operation.op = named(json, what, "operation", ReduceOp::kSum, ReduceOp::kBitXor, reduce_op_name);
  else if (json.contains("operation"))
    throw Bad{what + " has an \"operation\", but its collective reduces nothing"};
  operation.root = static_cast<int>(number_of(json, what, "root", -1, kMostRanks));
  operation.group = static_cast<int>(number_of(json, what, "group", 0, INT32_MAX));
  operation.tag = static_cast<uint32_t>(number_of(json, what, "tag", 0, UINT32_MAX));
  if (json.contains("scales")) operation.scales = bytes_of(json, what, "scales");
  operation.on_hosts = flag_of(json, what, "hosts");
  operation.submitted_ns = number_of(json, what, "submitted_ns", 0, kMostNs);
  if (json.contains("done_ns")) operation.done_ns = number_of(json, what, "done_ns", 0, kMostNs);
  return operation;
}

Carried carried_from(const Json& json, size_t id) {
  const std::string what = "carried operation " + std::to_string(id);
  check_keys(json, what, {"id", "steps_back", "operation", "done_ns"});
  if (number_of(json, what, "id", 0, INT64_MAX) != static_cast<int64_t>(id))
    throw Bad{what + ": carried operations are numbered after the others, in order"};
  constexpr auto kMost = static_cast<int64_t>(kMostSteps);
  Carried carried;
  carried.steps_back = static_cast<uint64_t>(number_of(json, what, "steps_back", 1, kMost));
  carried.operation = static_cast<uint64_t>(number_of(json, what, "operation", 0, INT64_MAX));
  carried.done_ns = number_of(json, what, "done_ns", -kMostNs, kMostNs);
  return carried;
}

Instruction instruction_from(const Json& json) {
  if (!json.is_array() || json.size() != 2 || !json[0].is_string())
    throw Bad{"an instruction is no list of a name and a number"};
  const auto name = json[0].get<std::string>();
  for (size_t i = 0; i < kInstructions.size(); ++i) {
    if (kInstructions[i] != name) continue;
    return {static_cast<Instruction::Kind>(i),
            static_cast<uint64_t>(number(json[1], "the number of a " + name, 0, kMostNs))};
  }
  throw Bad{"the instruction " + quoted(name) +
            " is unknown: this netsum knows compute, submit and wait. Record again with it"};
}

Step step_from(const Json& json) {
  const std::string what = "the step";
  check_keys(json, what, {"step", "partial", "operations", "carried", "threads", "duration_ns"});
  Step step;
  step.number = static_cast<uint64_t>(number_of(json, what, "step", 0, static_cast<int64_t>(kMostSteps)));
  step.partial = flag_of(json, what, "partial");
  for (const Json& operation : list(member(json, what, "operations"), "\"operations\""))
    step.operations.push_back(operation_from(operation, step.operations.size()));
  if (json.contains("carried"))
    for (const Json& carried : list(json["carried"], "\"carried\""))
      step.carried.push_back(carried_from(carried, step.operations.size() + step.carried.size()));
  for (const Json& thread : list(member(json, what, "threads"), "\"threads\"")) {
    step.threads.emplace_back();
    for (const Json& instruction : list(thread, "a thread"))
      step.threads.back().push_back(instruction_from(instruction));
  }
  step.duration_ns = number_of(json, what, "duration_ns", 0, kMostNs);
  return step;
}

Json parsed(const std::string& line) {
  try {
    return Json::parse(line);
  } catch (const Json::parse_error& error) {
    throw Bad{"this is no JSON at byte " + std::to_string(error.byte)};
  } catch (const Json::exception& error) {  // a number out of range
    throw Bad{std::string("this is no JSON that can be read: ") + error.what()};
  }
}

void require(const Status& status) {
  if (!status.ok()) throw Bad{status.message(), status.code()};
}

// A whole line. False at the end of the file.
bool next_line(std::istream& in, std::string* line) {
  line->clear();
  char c = 0;
  while (in.get(c)) {
    if (c == '\n') return true;
    if (line->size() == kMostLineBytes)
      throw Bad{"the line has more than " + std::to_string(kMostLineBytes) + " bytes"};
    line->push_back(c);
  }
  if (in.bad()) throw Bad{"the file cannot be read"};
  if (!line->empty()) throw Bad{std::string("the file ends within this line: it is truncated") + kCure};
  return false;
}

Json json_of(const Header& header, size_t steps) {
  Json json = {{"format", kFormat},         {"version", kVersion},   {"world_size", header.world_size},
               {"rank", header.rank},       {"model", header.model}, {"netsum", header.netsum},
               {"machine", header.machine}, {"clock", header.clock}};
  for (const Group& group : header.groups)
    json["groups"].push_back({{"id", group.id}, {"ranks", group.ranks}});
  json["steps"] = steps;
  return json;
}

Json json_of(const Operation& operation, size_t id) {
  Json json = {{"id", id},
               {"collective", collective_name(operation.collective)},
               {"type", data_type_name(operation.type)},
               {"count", operation.count}};
  if (!operation.parts.empty()) json["parts"] = operation.parts;
  if (reduces(operation.collective)) json["operation"] = reduce_op_name(operation.op);
  json["root"] = operation.root;
  json["group"] = operation.group;
  json["tag"] = operation.tag;
  if (!operation.scales.empty()) json["scales"] = text_of(operation.scales);
  if (operation.on_hosts) json["hosts"] = true;
  json["submitted_ns"] = operation.submitted_ns;
  if (operation.done_ns) json["done_ns"] = *operation.done_ns;
  return json;
}

Json json_of(const Step& step) {
  Json json = {{"step", step.number}};
  if (step.partial) json["partial"] = true;
  json["operations"] = Json::array();
  for (size_t i = 0; i < step.operations.size(); ++i)
    json["operations"].push_back(json_of(step.operations[i], i));
  for (size_t i = 0; i < step.carried.size(); ++i)
    json["carried"].push_back({{"id", step.operations.size() + i},
                               {"steps_back", step.carried[i].steps_back},
                               {"operation", step.carried[i].operation},
                               {"done_ns", step.carried[i].done_ns}});
  json["threads"] = Json::array();
  for (const auto& thread : step.threads) {
    Json instructions = Json::array();
    for (const Instruction& instruction : thread)
      instructions.push_back(
          Json::array({kInstructions[static_cast<size_t>(instruction.kind)], instruction.value}));
    json["threads"].push_back(std::move(instructions));
  }
  json["duration_ns"] = step.duration_ns;
  return json;
}

// Text of users may be anything but UTF-8.
void write_line(std::ostream& out, const Json& json) {
  out << json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) << '\n';
}

}  // namespace

Result<Program> read_program(std::istream& in, std::string_view name) {
  Program program;
  uint64_t line_number = 1;
  try {
    std::string line;
    if (!next_line(in, &line)) throw Bad{std::string("the file is empty") + kCure};
    uint64_t steps = 0;
    program.header = header_from(parsed(line), &steps);
    require(check_header(program.header));
    while (++line_number, next_line(in, &line)) {
      if (program.steps.size() == steps)
        throw Bad{"the header announces " + std::to_string(steps) + " steps, and this is one more"};
      program.steps.push_back(step_from(parsed(line)));
      require(check_step(program, program.steps.size() - 1));
    }
    if (program.steps.size() < steps)
      throw Bad{"the file ends after " + std::to_string(program.steps.size()) + " of " +
                std::to_string(steps) + " steps: it is truncated" + kCure};
  } catch (const Bad& bad) {
    return Status(bad.code, std::string(name) + ":" + std::to_string(line_number) + ": " + bad.what);
  }
  return program;
}

Status write_program(std::ostream& out, const Program& program) {
  if (const Status status = check(program); !status.ok()) return status;
  write_line(out, json_of(program.header, program.steps.size()));
  for (const Step& step : program.steps) write_line(out, json_of(step));
  out.flush();
  if (!out) return {ErrorCode::kResourceExhausted, "the program cannot be written: check the disk's space"};
  return {};
}

}  // namespace netsum::program
