#include "tools/netsum/graph_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "src/base/text.h"
#include "tools/netsum/plan_yaml.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr size_t kMostOfAKind = 100'000;

class GraphParser : PlanYaml {
 public:
  explicit GraphParser(const std::string& file) : PlanYaml(file) {}

  plan::Graph parse(const YAML::Node& root) {
    check_keys(root, "a topology file with links", {"hosts", "switches", "places", "links", "element_bits"});
    if (root["element_bits"]) element_bits_ = positive(root["element_bits"], "element_bits");
    if (!root["hosts"]) fail(root, "'hosts:' is missing: list the hosts where the ranks run");
    for (const YAML::Node& node : list(root, "hosts")) add_hosts(node);
    members_ = std::max<size_t>(1, graph_.vertices.size());
    for (const YAML::Node& node : list(root, "switches")) add_switches(node);
    for (const YAML::Node& node : list(root, "places")) add_places(node);
    for (const YAML::Node& node : list(root, "links")) add_links(node);
    if (const Status status = check(graph_); !status.ok()) throw UsageError(located(status.message()));
    return std::move(graph_);
  }

 private:
  // "line 7: ..." of the planner becomes "file:7: ...".
  std::string located(const std::string& message) const {
    constexpr std::string_view kLine = "line ";
    if (message.starts_with(kLine)) return file_ + ":" + printable(message.substr(kLine.size()));
    return file_ + ": " + printable(message);
  }

  size_t add(const YAML::Node& node, const std::string& base, const std::string& own, plan::VertexKind kind,
             int64_t sum_rate = plan::kUnlimited) {
    const size_t vertex = graph_.add(own, kind, sum_rate);
    graph_.vertices[vertex].line = node.Mark().line + 1;
    groups_[own].push_back(vertex);
    if (own != base) groups_[base].push_back(vertex);
    return vertex;
  }

  // The vertices of an entry. With a count, its name stands for all of them.
  std::vector<std::string> entry(const YAML::Node& node) {
    if (node["count"]) claim(node, name(node));
    return names(node, kMostOfAKind);
  }

  void add_hosts(const YAML::Node& node) {
    check_keys(node, "a host", {"name", "count", "relay"});
    const bool relay = !node["relay"] || yes_or_no(node["relay"], "relay");
    for (const std::string& own : entry(node)) {
      graph_.vertices[add(node, name(node), own, plan::VertexKind::kRank)].relay = relay;
    }
  }

  int64_t sum_rate(const YAML::Node& node) const {
    const double rate = stream_rate(limits(node), static_cast<double>(members_), element_bits_);
    if (rate >= static_cast<double>(plan::kMostRate)) return plan::kUnlimited;
    if (rate < 1) fail(node, "its limits let it sum less than 1 bit/s; give higher ones, or leave them out");
    return std::llround(rate);
  }

  // One that sums is a switch with an aggregator beside it.
  void add_switches(const YAML::Node& node) {
    check_keys(node, "a switch", {"name", "count", "sums", "stream", "adds", "slots"});
    const bool limited = node["stream"] || node["adds"] || node["slots"];
    const bool sums = node["sums"] ? yes_or_no(node["sums"], "sums") : limited;
    if (limited && !sums)
      fail(node, "a switch with 'sums: false' has no limits of sums; leave one of them out");
    for (const std::string& own : entry(node)) {
      const size_t vertex = add(node, name(node), own, plan::VertexKind::kSwitch);
      if (!sums) continue;
      const size_t inside = graph_.add(own + kInSwitch, plan::VertexKind::kAggregator, sum_rate(node));
      graph_.vertices[inside].line = node.Mark().line + 1;
      graph_.link(vertex, inside, plan::kUnlimited);
    }
  }

  void add_places(const YAML::Node& node) {
    check_keys(node, "a place", {"name", "count", "stream", "adds", "slots"});
    for (const std::string& own : entry(node)) {
      add(node, name(node), own, plan::VertexKind::kAggregator, sum_rate(node));
    }
  }

  // A name; that of an entry with a count, for all of them; or "gpu[0-3,7]".
  std::vector<size_t> ends(const YAML::Node& node) const {
    const std::string text = scalar(node, "between");
    const auto known = groups_.find(text);
    if (known != groups_.end()) return known->second;
    const size_t open = text.find('[');
    if (open == std::string::npos || text.back() != ']') {
      fail(node, "there is no '" + text + "'; add it under 'hosts:', 'switches:' or 'places:'");
    }
    std::vector<size_t> found;
    std::string ranges = text.substr(open + 1, text.size() - open - 2) + ",";
    for (size_t comma = ranges.find(','); comma != std::string::npos; comma = ranges.find(',')) {
      add_range(node, text.substr(0, open), ranges.substr(0, comma), &found);
      ranges.erase(0, comma + 1);
    }
    return found;
  }

  void add_range(const YAML::Node& node, const std::string& base, const std::string& range,
                 std::vector<size_t>* found) const {
    const size_t dash = range.find('-');
    const auto number = [&](const std::string& text) {
      size_t value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size()) {
        fail(node, "'" + range + "' is no range of numbers; use e.g. " + base + "[0-3,7]");
      }
      return value;
    };
    const size_t first = number(range.substr(0, dash));
    const size_t last = dash == std::string::npos ? first : number(range.substr(dash + 1));
    if (last < first) fail(node, "the range " + range + " goes backwards; give the lower number first");
    for (size_t i = first; i <= last; ++i) {
      const auto known = groups_.find(base + std::to_string(i));
      if (known == groups_.end())
        fail(node, "there is no '" + base + std::to_string(i) + "'; shorten the range");
      found->push_back(known->second.front());
    }
  }

  void add_links(const YAML::Node& node) {
    check_keys(node, "a link", {"between", "from", "to", "rate"});
    if (!node["rate"]) fail(node, "the link has no 'rate:'; give it, such as 25G");
    const int64_t bps = std::llround(rate(node["rate"], "rate"));
    if (static_cast<bool>(node["between"]) == (node["from"] || node["to"])) {
      fail(node, "a link has either 'between: [a, b]' or 'from: a' and 'to: b'");
    }
    if (!node["between"]) {
      if (!node["from"] || !node["to"]) fail(node, "a link in one direction needs both 'from:' and 'to:'");
      connect(node, ends(node["from"]), ends(node["to"]), bps, false);
      return;
    }
    if (!node["between"].IsSequence() || node["between"].size() != 2) {
      fail(node["between"], "'between:' takes two names: [gpu0, leaf0]");
    }
    connect(node, ends(node["between"][0]), ends(node["between"][1]), bps, true);
  }

  // Each of `a` with each of `b`; of a group with itself, every pair.
  void connect(const YAML::Node& node, const std::vector<size_t>& a, const std::vector<size_t>& b,
               int64_t bps, bool both) {
    const bool same = a == b && a.size() > 1;
    if (a.size() * b.size() > plan::kMostArcs)
      fail(node, "these are too many links; plan a part of the network");
    for (const size_t from : a) {
      for (const size_t to : b) {
        if (same && (both ? from >= to : from == to)) continue;
        graph_.arcs.push_back({from, to, bps, node.Mark().line + 1});
        if (both && from != to) graph_.arcs.push_back({to, from, bps, node.Mark().line + 1});
      }
    }
    if (graph_.arcs.size() > plan::kMostArcs)
      fail(node, "these are too many links; plan a part of the network");
  }

  plan::Graph graph_;
  std::unordered_map<std::string, std::vector<size_t>> groups_;  // by name
  double element_bits_ = 32;
  size_t members_ = 1;
};

constexpr int64_t kExampleRate = 100'000'000'000;

std::vector<size_t> add_many(plan::Graph* graph, const char* name, size_t count, plan::VertexKind kind) {
  std::vector<size_t> added;
  for (size_t i = 0; i < count; ++i) added.push_back(graph->add(name + std::to_string(i), kind));
  return added;
}

plan::Graph fat_tree(size_t k) {
  plan::Graph graph;
  const size_t half = k / 2;
  const auto hosts = add_many(&graph, "host", k * half * half, plan::VertexKind::kRank);
  const auto leaves = add_many(&graph, "leaf", k * half, plan::VertexKind::kSwitch);
  const auto spines = add_many(&graph, "spine", k * half, plan::VertexKind::kSwitch);
  const auto cores = add_many(&graph, "core", half * half, plan::VertexKind::kSwitch);
  for (size_t i = 0; i < hosts.size(); ++i) graph.link(hosts[i], leaves[i / half], kExampleRate);
  for (size_t i = 0; i < k * half; ++i) {
    const size_t pod = i / half;
    for (size_t j = 0; j < half; ++j) {
      graph.link(leaves[i], spines[pod * half + j], kExampleRate);
      graph.link(spines[i], cores[i % half * half + j], kExampleRate);
    }
  }
  return graph;
}

// Pods of racks of hosts; the uplinks of racks and pods carry half of what is below them.
plan::Graph tiers(size_t pods, size_t racks, size_t each) {
  plan::Graph graph;
  const auto hosts = add_many(&graph, "host", pods * racks * each, plan::VertexKind::kRank);
  const auto leaves = add_many(&graph, "leaf", pods * racks, plan::VertexKind::kSwitch);
  const auto spines = add_many(&graph, "spine", pods, plan::VertexKind::kSwitch);
  const size_t core = graph.add("core", plan::VertexKind::kSwitch);
  const auto half_of = [](size_t count) { return kExampleRate / 2 * static_cast<int64_t>(count); };
  for (size_t i = 0; i < hosts.size(); ++i) graph.link(hosts[i], leaves[i / each], kExampleRate);
  for (size_t i = 0; i < leaves.size(); ++i) graph.link(leaves[i], spines[i / racks], half_of(each));
  for (const size_t spine : spines) graph.link(spine, core, half_of(racks * each) / 2);
  return graph;
}

plan::Graph torus(size_t rows, size_t columns) {
  plan::Graph graph;
  const auto hosts = add_many(&graph, "host", rows * columns, plan::VertexKind::kRank);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      graph.link(hosts[row * columns + column], hosts[row * columns + (column + 1) % columns], kExampleRate);
      graph.link(hosts[row * columns + column], hosts[(row + 1) % rows * columns + column], kExampleRate);
    }
  }
  return graph;
}

// The numbers of "4x4", each from 1 to `most`.
std::optional<std::vector<size_t>> sizes(const std::string& text, size_t count, size_t most) {
  std::vector<size_t> all;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    size_t value = 0;
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || value < 1 || value > most) return {};
    all.push_back(value);
    if (next == end) break;
    if (*next != 'x') return {};
    at = next + 1;
  }
  if (all.size() != count) return {};
  return all;
}

}  // namespace

plan::Graph parse_graph(const YAML::Node& root, const std::string& file) {
  return GraphParser(file).parse(root);
}

Result<plan::Graph> example_graph(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string name = text.substr(0, colon), rest = colon < text.size() ? text.substr(colon + 1) : "";
  if (const auto size = sizes(rest, 1, 80); name == "fat-tree" && size && size->front() % 2 == 0) {
    return fat_tree(size->front());
  }
  if (const auto size = sizes(rest, 3, 64); name == "tiers" && size)
    return tiers((*size)[0], (*size)[1], (*size)[2]);
  if (const auto size = sizes(rest, 2, 32);
      name == "torus" && size && std::min((*size)[0], (*size)[1]) >= 3) {
    return torus((*size)[0], (*size)[1]);
  }
  return Status(
      ErrorCode::kInvalidArgument,
      "'" + text +
          "' is no example; use fat-tree:K (K even, up to 80), tiers:PODSxRACKSxHOSTS (up to 64 each) "
          "or torus:ROWSxCOLUMNS (3 to 32 each)");
}

}  // namespace netsum::tool
