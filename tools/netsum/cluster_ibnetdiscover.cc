// The output of ibnetdiscover: switches and channel adapters of an InfiniBand fabric with their links.
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include "src/base/text.h"
#include "tools/netsum/cluster_file.h"
#include "tools/netsum/hostlist.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

// Of one lane, in Mbit/s.
const std::map<std::string, int64_t> kLanes = {{"SDR", 2'500},    {"DDR", 5'000},   {"QDR", 10'000},
                                               {"FDR10", 10'000}, {"FDR", 14'000},  {"EDR", 25'000},
                                               {"HDR", 50'000},   {"NDR", 100'000}, {"XDR", 200'000}};

class FabricReader {
 public:
  explicit FabricReader(const std::string& file) : file_(file) {}

  plan::Graph read(const std::string& text) {
    find_names(text);
    each_line(text, [&](const std::string& line) { add(line); });
    for (const auto& [ends, link] : links_) {
      if (link.rate > plan::kMostRate) {
        line_ = link.line;
        fail("the links to one neighbour have more than 100 Tbit/s in all; check their widths and speeds");
      }
      graph_.arcs.push_back({ends.first, ends.second, link.rate, link.line});
    }
    return std::move(graph_);
  }

 private:
  struct Link {
    int64_t rate = 0;
    int line = 0;
  };

  [[noreturn]] void fail(const std::string& message) const {
    throw UsageError(file_ + ":" + std::to_string(line_) + ": " + printable(message));
  }

  template <typename Each>
  void each_line(const std::string& text, Each each) {
    std::istringstream stream(text);
    std::string line;
    for (line_ = 1; std::getline(stream, line); ++line_) {
      if (!line.empty() && line.back() == '\r') line.pop_back();
      each(line);
    }
  }

  // The quoted text that begins at or after `from`; none if there is none.
  static std::optional<std::string> quoted(const std::string& line, size_t from) {
    const size_t open = line.find('"', from);
    const size_t close = open == std::string::npos ? open : line.find('"', open + 1);
    if (close == std::string::npos) return {};
    return line.substr(open + 1, close - open - 1);
  }

  // Heads of blocks: Switch 65 "S-..." # "name" ..., and Ca 1 "H-..." # "host device".
  void find_names(const std::string& text) {
    each_line(text, [&](const std::string& line) {
      const bool is_switch = line.starts_with("Switch");
      if (!is_switch && !line.starts_with("Ca") && !line.starts_with("Rt")) return;
      const std::optional<std::string> id = quoted(line, 0);
      const size_t comment = line.find('#');
      const auto described = comment == std::string::npos ? std::nullopt : quoted(line, comment);
      if (!id || id->empty())
        fail("the head of a block has no identity in quotes, such as \"S-0002c90300000001\"");
      const auto [known, fresh] = lines_.emplace(*id, line_);
      if (!fresh) fail("'" + *id + "' is given twice, first in line " + std::to_string(known->second));
      add_vertex(*id, described.value_or(""), is_switch);
    });
    line_ = 1;
    if (vertices_.empty()) fail("there is no line that begins with Switch or Ca");
  }

  void add_vertex(const std::string& id, const std::string& described, bool is_switch) {
    if (!is_switch && described.find("Aggregation Node") != std::string::npos) {
      summing_.insert(id);
      return;
    }
    // A host's adapters have its name as the first word. Switches may have equal descriptions.
    std::string name = is_switch ? described : described.substr(0, described.find(' '));
    if (!is_plain_name(name) || (is_switch && named_.contains(name))) name = id;
    const auto known = named_.find(name);
    if (known != named_.end() && !is_switch) {
      if (graph_.vertices[known->second].kind != plan::VertexKind::kRank)
        fail("host '" + name + "' has the name of a switch; rename one");
      vertices_[id] = known->second;
      return;
    }
    const size_t vertex = graph_.add(name, is_switch ? plan::VertexKind::kSwitch : plan::VertexKind::kRank);
    graph_.vertices[vertex].line = line_;
    vertices_[id] = named_[name] = vertex;
  }

  void add(const std::string& line) {
    if (line.starts_with("Switch")) {
      at_ = vertices_.at(*quoted(line, 0));
      return;
    }
    // Links of adapters are those of switches, seen from the other end.
    if (line.starts_with("Ca") || line.starts_with("Rt")) at_ = plan::ClusterSwitch::kNone;
    if (line.empty() || line.front() != '[' || at_ == plan::ClusterSwitch::kNone) return;
    const std::optional<std::string> id = quoted(line, 0);
    if (!id) fail("the port has no neighbour in quotes");
    if (summing_.contains(*id)) {
      if (!sums_.insert(at_).second) return;
      const size_t inside = graph_.add(graph_.vertices[at_].name + " (sums)", plan::VertexKind::kAggregator);
      graph_.vertices[inside].line = line_;
      graph_.link(at_, inside, plan::kUnlimited);
      return;
    }
    const auto other = vertices_.find(*id);
    if (other == vertices_.end()) fail("there is no block of '" + *id + "'");
    if (other->second == at_)
      fail("'" + graph_.vertices[at_].name + "' is linked to itself; leave this link out");
    const int64_t rate = rate_of(line);
    const bool to_host = graph_.vertices[other->second].kind == plan::VertexKind::kRank;
    count(at_, other->second, rate);
    // A link between switches has a line at both.
    if (to_host) count(other->second, at_, rate);
  }

  void count(size_t from, size_t to, int64_t rate) {
    Link& link = links_[{from, to}];
    link.rate += rate;
    if (link.line == 0) link.line = line_;
  }

  // "4xNDR" at the end.
  int64_t rate_of(const std::string& line) const {
    const std::string last = line.substr(line.find_last_of(" \t") + 1);
    const size_t x = last.find('x');
    unsigned width = 0;
    if (x != std::string::npos) {
      const auto [end, error] = std::from_chars(last.data(), last.data() + x, width);
      if (error != std::errc() || end != last.data() + x) width = 0;
    }
    const auto lane = kLanes.find(x == std::string::npos ? "" : last.substr(x + 1));
    if (width < 1 || width > 16 || lane == kLanes.end())
      fail("'" + last + "' is no width and speed; a port's line ends with such as 4xNDR");
    return lane->second * 1'000'000 * width;
  }

  const std::string file_;
  int line_ = 1;
  plan::Graph graph_;
  std::map<std::string, int> lines_;        // of heads
  std::set<std::string> summing_;           // adapters of switches that sum
  std::set<size_t> sums_;                   // these switches
  std::map<std::string, size_t> vertices_;  // by identity
  std::map<std::string, size_t> named_;
  std::map<std::pair<size_t, size_t>, Link> links_;
  size_t at_ = plan::ClusterSwitch::kNone;
};

}  // namespace

plan::Graph parse_ibnetdiscover(const std::string& text, const std::string& file) {
  return FabricReader(file).read(text);
}

}  // namespace netsum::tool
