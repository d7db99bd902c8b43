#include "tools/netsum/plan_yaml.h"

#include <algorithm>
#include <charconv>

#include "src/base/text.h"
#include "tools/netsum/plan_file.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

std::string join(std::initializer_list<const char*> words) {
  std::string list;
  for (const char* word : words) list += (list.empty() ? "" : ", ") + std::string(word);
  return list;
}

}  // namespace

void PlanYaml::fail_at(int line, const std::string& message) const {
  throw UsageError(file_ + ":" + std::to_string(line) + ": " + printable(message));
}

void PlanYaml::fail(const YAML::Node& node, const std::string& message) const {
  fail_at(std::max(0, node.Mark().line) + 1, message);
}

std::string PlanYaml::scalar(const YAML::Node& node, const std::string& what) const {
  if (!node.IsScalar()) fail(node, "'" + what + "' takes one value");
  return node.Scalar();
}

void PlanYaml::check_keys(const YAML::Node& node, const std::string& what,
                          std::initializer_list<const char*> known) const {
  if (!node.IsMap()) fail(node, what + " is a list of keys with values: " + join(known));
  std::map<std::string, int> seen;
  for (const auto& entry : node) {
    const std::string key = scalar(entry.first, "key");
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      fail(entry.first, "unknown key '" + key + "' of " + what + "; it has " + join(known));
    }
    const auto [at, fresh] = seen.emplace(key, entry.first.Mark().line + 1);
    if (!fresh) {
      fail(entry.first,
           "'" + key + "' is given twice, first in line " + std::to_string(at->second) + "; leave out one");
    }
  }
}

std::vector<YAML::Node> PlanYaml::list(const YAML::Node& parent, const std::string& key) const {
  std::vector<YAML::Node> entries;
  const YAML::Node node = parent[key];
  if (!node || node.IsNull()) return entries;
  if (!node.IsSequence()) fail(node, "'" + key + ":' takes a list: one '- name: ...' for each entry");
  for (const YAML::Node& entry : node) entries.push_back(entry);
  return entries;
}

double PlanYaml::positive(const YAML::Node& node, const std::string& what) const {
  const std::string text = scalar(node, what);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value > 0 && value < 1e18)) {
    fail(node, "'" + what + ": " + text + "' is no number above 0");
  }
  return value;
}

size_t PlanYaml::whole(const YAML::Node& node, const std::string& what, size_t most) const {
  const double value = positive(node, what);
  if (value > static_cast<double>(most) || value != static_cast<double>(static_cast<size_t>(value))) {
    fail(node,
         "'" + what + ": " + node.Scalar() + "' is not a whole number from 1 to " + std::to_string(most));
  }
  return static_cast<size_t>(value);
}

bool PlanYaml::yes_or_no(const YAML::Node& node, const std::string& what) const {
  const std::string text = scalar(node, what);
  if (text != "true" && text != "false") fail(node, "'" + what + ": " + text + "': use true or false");
  return text == "true";
}

double PlanYaml::rate(const YAML::Node& node, const std::string& what) const {
  const Result<double> rate = parse_link_rate(scalar(node, what));
  if (!rate.ok()) fail(node, "'" + what + ":' " + rate.status().message());
  return *rate;
}

plan::Link PlanYaml::link(const YAML::Node& node, const std::string& what) const {
  if (!node.IsMap()) {
    const double both = rate(node, what);
    return {both, both};
  }
  check_keys(node, "a link", {"in", "out"});
  if (!node["in"] || !node["out"]) fail(node, "'" + what + "' needs the rates of both 'in' and 'out'");
  return {rate(node["in"], what + ".in"), rate(node["out"], what + ".out")};
}

std::string PlanYaml::name(const YAML::Node& node) const {
  if (!node["name"]) fail(node, "'name:' is missing");
  const std::string text = scalar(node["name"], "name");
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  };
  if (text.empty() || text.size() > 64 || !std::all_of(text.begin(), text.end(), allowed)) {
    fail(node["name"], "'" + text + "' is no name: use up to 64 letters, digits, '-', '_' and '.'");
  }
  return text;
}

std::vector<std::string> PlanYaml::names(const YAML::Node& node, size_t most) {
  const std::string base = name(node);
  std::vector<std::string> all;
  if (!node["count"]) {
    all.push_back(base);
  } else {
    const size_t count = whole(node["count"], "count", most);
    for (size_t i = 0; i < count; ++i) all.push_back(base + std::to_string(i));
  }
  for (const std::string& each : all) claim(node, each);
  return all;
}

void PlanYaml::claim(const YAML::Node& node, const std::string& each) {
  const auto [at, fresh] = lines_.emplace(each, node.Mark().line + 1);
  if (!fresh) {
    fail(node, "the name '" + each + "' is given twice, first in line " + std::to_string(at->second) +
                   "; rename one");
  }
}

plan::SumLimits PlanYaml::limits(const YAML::Node& node) const {
  plan::SumLimits limits;
  if (node["stream"]) limits.stream_bps = rate(node["stream"], "stream");
  if (node["adds"]) limits.adds_per_second = positive(node["adds"], "adds");
  if (const YAML::Node slots = node["slots"]) {
    check_keys(slots, "slots", {"count", "bytes", "round_trip_us"});
    for (const char* key : {"count", "bytes", "round_trip_us"}) {
      if (!slots[key]) fail(slots, std::string("'slots:' needs '") + key + ":'");
    }
    limits.slots = positive(slots["count"], "count");
    limits.slot_bytes = positive(slots["bytes"], "bytes");
    limits.round_trip_s = positive(slots["round_trip_us"], "round_trip_us") * 1e-6;
  }
  return limits;
}

void yaml_failed(const std::string& file, const YAML::Exception& error) {
  const bool syntax = dynamic_cast<const YAML::ParserException*>(&error) != nullptr;
  throw UsageError(file + ":" + std::to_string(std::max(0, error.mark.line) + 1) + ": " +
                   printable((syntax ? "this is not YAML: " : "") + error.msg));
}

}  // namespace netsum::tool
