#include "tools/netsum/forest_xml.h"

#include <spdlog/fmt/fmt.h>

#include <pugixml.hpp>
#include <unordered_map>

#include "src/base/text.h"
#include "tools/netsum/graph_report.h"
#include "tools/netsum/usage.h"
#include "tools/netsum/xml_file.h"

namespace netsum::tool {
namespace {

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
    const pugi::xml_node top = file_.root();
    for (const pugi::xml_node node : top.children("tree")) add(node);
    if (plan_.trees.empty()) file_.fail(top, "there is no <tree>; give trees as ForestColl writes them");
    if (const Status status = measure(graph_, &plan_); !status.ok()) {
      throw UsageError(file_.name() + ": " + printable(status.message()));
    }
    return std::move(plan_);
  }

 private:
  size_t key(size_t from, size_t to) const { return from * graph_.vertices.size() + to; }

  size_t vertex(const pugi::xml_node& node, const std::string& text) const {
    const auto known = vertices_.find(vertex_name(text));
    if (known == vertices_.end()) file_.fail(node, "the topology has no '" + vertex_name(text) + "'");
    return known->second;
  }

  size_t arc(const pugi::xml_node& node, size_t from, size_t to) const {
    const auto known = arcs_.find(key(from, to));
    if (known != arcs_.end()) return known->second;
    file_.fail(node, "the topology has no link from '" + graph_.vertices[from].name + "' to '" +
                         graph_.vertices[to].name + "'");
  }

  void add(const pugi::xml_node& node) {
    plan::Tree tree;
    tree.root = vertex(node, node.attribute("root").value());
    const unsigned weight = node.attribute("nchunks").as_uint(0);
    if (weight == 0 || weight > 1'000'000) file_.fail(node, "'nchunks' is no whole number from 1 to 1000000");
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

  const XmlFile file_;
  const plan::Graph& graph_;
  const bool reduces_;
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
