#include "tools/netsum/forest_xml.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <fstream>
#include <pugixml.hpp>
#include <unordered_map>

#include "src/base/text.h"
#include "tools/netsum/flags.h"
#include "tools/netsum/graph_report.h"

namespace netsum::tool {
namespace {

constexpr size_t kMostFileBytes = 64 << 20;

// "(0, 'GPU', 1)" becomes "0-GPU-1"; other names stay as they are.
std::string vertex_name(const std::string& text) {
  if (text.empty() || text.front() != '(') return text;
  std::string name;
  bool gap = false;
  for (size_t i = 1; i + 1 < text.size(); ++i) {
    const char c = text[i];
    if (c == ',' || c == ' ' || c == '\'' || c == '"') {
      gap = !name.empty();
      continue;
    }
    if (gap) name += '-';
    gap = false;
    name += c;
  }
  return name;
}

// Parts of "a,(0, 'GPU', 1),b", divided by the commas outside of parentheses.
std::vector<std::string> parts(const std::string& text) {
  std::vector<std::string> found(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '(' ? 1 : c == ')' ? -1 : 0;
    if (c == ',' && depth == 0) {
      found.emplace_back();
    } else {
      found.back() += c;
    }
  }
  return found;
}

class ForestReader {
 public:
  ForestReader(const std::string& file, const plan::Graph& graph, plan::TreeCollective collective)
      : file_(file), graph_(graph), reduces_(collective == plan::TreeCollective::kAllReduce) {
    for (size_t i = 0; i < graph.vertices.size(); ++i) vertices_[graph.vertices[i].name] = i;
    for (size_t i = 0; i < graph.arcs.size(); ++i) arcs_[key(graph.arcs[i].from, graph.arcs[i].to)] = i;
    plan_.collective = collective;
  }

  plan::TreePlan read() {
    std::ifstream stream(file_, std::ios::binary);
    if (!stream) throw UsageError(file_ + ": cannot be opened; give the path of a file of trees");
    text_.resize(kMostFileBytes + 1);
    stream.read(text_.data(), static_cast<std::streamsize>(text_.size()));
    text_.resize(static_cast<size_t>(stream.gcount()));
    if (text_.size() > kMostFileBytes)
      throw UsageError(file_ + ": is larger than 64 MiB; this is no file of trees");
    pugi::xml_document document;
    const pugi::xml_parse_result parsed = document.load_buffer(text_.data(), text_.size());
    if (!parsed) fail(parsed.offset, std::string("this is not XML: ") + parsed.description());
    const pugi::xml_node top = document.document_element();
    for (const pugi::xml_node node : top.children("tree")) add(node);
    if (plan_.trees.empty())
      fail(top.offset_debug(), "there is no <tree>; give trees as ForestColl writes them");
    if (const Status status = measure(graph_, &plan_); !status.ok()) {
      throw UsageError(file_ + ": " + printable(status.message()));
    }
    return std::move(plan_);
  }

 private:
  [[noreturn]] void fail(std::ptrdiff_t offset, const std::string& message) const {
    const auto end =
        text_.begin() + std::clamp<std::ptrdiff_t>(offset, 0, static_cast<std::ptrdiff_t>(text_.size()));
    throw UsageError(file_ + ":" + std::to_string(1 + std::count(text_.begin(), end, '\n')) + ": " +
                     printable(message));
  }

  size_t key(size_t from, size_t to) const { return from * graph_.vertices.size() + to; }

  size_t vertex(const pugi::xml_node& node, const std::string& text) const {
    const auto known = vertices_.find(vertex_name(text));
    if (known == vertices_.end())
      fail(node.offset_debug(), "the topology has no '" + vertex_name(text) + "'");
    return known->second;
  }

  size_t arc(const pugi::xml_node& node, size_t from, size_t to) const {
    const auto known = arcs_.find(key(from, to));
    if (known != arcs_.end()) return known->second;
    fail(node.offset_debug(), "the topology has no link from '" + graph_.vertices[from].name + "' to '" +
                                  graph_.vertices[to].name + "'");
  }

  void add(const pugi::xml_node& node) {
    plan::Tree tree;
    tree.root = vertex(node, node.attribute("root").value());
    const unsigned weight = node.attribute("nchunks").as_uint(0);
    if (weight == 0 || weight > 1'000'000)
      fail(node.offset_debug(), "'nchunks' is no whole number from 1 to 1000000");
    tree.weight = weight;
    for (const pugi::xml_node send : node.children("send")) add_edge(send, &tree);
    plan_.trees.push_back(std::move(tree));
  }

  void add_edge(const pugi::xml_node& node, plan::Tree* tree) const {
    plan::TreeEdge edge;
    edge.parent = vertex(node, node.attribute("src").value());
    edge.child = vertex(node, node.attribute("dst").value());
    std::vector<size_t> way;
    for (const std::string& part : parts(node.attribute("path").value())) way.push_back(vertex(node, part));
    for (size_t i = 0; i + 1 < way.size(); ++i) edge.down.push_back(arc(node, way[i], way[i + 1]));
    for (size_t i = way.size(); reduces_ && i-- > 1;) edge.up.push_back(arc(node, way[i], way[i - 1]));
    tree->edges.push_back(std::move(edge));
  }

  const std::string file_;
  const plan::Graph& graph_;
  const bool reduces_;
  std::string text_;
  std::unordered_map<std::string, size_t> vertices_;
  std::unordered_map<size_t, size_t> arcs_;
  plan::TreePlan plan_;
};

}  // namespace

std::string forest_xml(const plan::Graph& graph, const plan::TreePlan& plan) {
  std::string xml = fmt::format("<Algo nchunkspernode=\"{}\">\n", plan.period);
  std::unordered_map<size_t, size_t> index;  // by root
  for (const plan::Tree& tree : plan.trees) {
    xml += fmt::format("  <tree root=\"{}\" index=\"{}\" nchunks=\"{}\" height=\"{}\">\n",
                       graph.vertices[tree.root].name, index[tree.root]++, tree.weight, height(tree));
    for (const plan::TreeEdge& edge : tree.edges) {
      xml += fmt::format("    <send src=\"{}\" dst=\"{}\" path=\"{}\"/>\n", graph.vertices[edge.parent].name,
                         graph.vertices[edge.child].name, way_text(graph, edge.down, ","));
    }
    xml += "  </tree>\n";
  }
  return xml + "</Algo>\n";
}

plan::TreePlan load_forest(const std::string& file, const plan::Graph& graph,
                           plan::TreeCollective collective) {
  return ForestReader(file, graph, collective).read();
}

}  // namespace netsum::tool
