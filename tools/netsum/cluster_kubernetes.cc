// Kueue's Topology with the labels of nodes, and Volcano's HyperNodes.
#include <spdlog/fmt/fmt.h>
#include <yaml-cpp/yaml.h>

#include <unordered_map>

#include "tools/netsum/cluster_file.h"
#include "tools/netsum/hostlist.h"
#include "tools/netsum/plan_yaml.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr char kHostLabel[] = "kubernetes.io/hostname";
constexpr char kClusterSwitch[] = "cluster";
constexpr size_t kMostLevels = 16;

class ObjectReader : protected PlanYaml {
 public:
  explicit ObjectReader(const std::string& file) : PlanYaml(file) {}

 protected:
  // The objects of all documents, and of lists in them.
  std::vector<YAML::Node> objects(const std::vector<YAML::Node>& documents) const {
    std::vector<YAML::Node> found;
    for (const YAML::Node& document : documents) {
      if (document.IsNull()) continue;
      if (!document.IsMap()) fail(document, "this is no Kubernetes object; it has 'kind:' and 'metadata:'");
      if (kind(document) != "List") {
        found.push_back(document);
        continue;
      }
      for (const YAML::Node& item : list(document, "items")) found.push_back(item);
    }
    return found;
  }

  std::string kind(const YAML::Node& object) const {
    return scalar(needed(object, "kind", "a Kubernetes object"), "kind");
  }

  YAML::Node needed(const YAML::Node& parent, const char* key, const std::string& what) const {
    if (!parent.IsMap()) fail(parent, what + " is a list of keys with values");
    if (!parent[key]) fail(parent, "'" + std::string(key) + ":' is missing in " + what);
    return parent[key];
  }

  std::string plain(const YAML::Node& node, const std::string& what) const {
    const std::string text = scalar(node, what);
    if (!is_plain_name(text)) fail(node, "'" + text + "' is no name: use letters, digits, '-', '_' and '.'");
    return text;
  }

  std::string object_name(const YAML::Node& object) const {
    return plain(needed(needed(object, "metadata", "the object"), "name", "'metadata:'"), "name");
  }

  static int line(const YAML::Node& node) { return node.Mark().line + 1; }
};

class KueueReader : ObjectReader {
 public:
  explicit KueueReader(const std::string& file) : ObjectReader(file) {}

  NamedTree read(const std::vector<YAML::Node>& documents) {
    std::vector<YAML::Node> nodes;
    int topology = 0;
    for (const YAML::Node& object : objects(documents)) {
      const std::string of = kind(object);
      if (of == "Node") nodes.push_back(object);
      if (of != "Topology") continue;
      if (topology > 0)
        fail(object, "there are two Topologies, one in line " + std::to_string(topology) + "; keep one");
      topology = line(object);
      const YAML::Node spec = needed(object, "spec", "the Topology");
      for (const YAML::Node& level : list(spec, "levels")) {
        check_keys(level, "a level", {"nodeLabel"});
        tree_.levels.push_back(scalar(needed(level, "nodeLabel", "the level"), "nodeLabel"));
      }
      if (tree_.levels.empty() || tree_.levels.size() > kMostLevels)
        fail(spec, "'levels:' takes 1 to " + std::to_string(kMostLevels) + " entries with 'nodeLabel:'");
    }
    if (topology == 0) fail_at(1, "there is no 'kind: Topology'");
    if (nodes.empty()) {
      fail_at(topology,
              "there is no 'kind: Node'; a Topology has only labels, so add the nodes: kubectl get "
              "topologies,nodes -o yaml");
    }
    tree_.switches.push_back({.name = kClusterSwitch, .line = topology});
    for (const YAML::Node& node : nodes) add(node);
    return std::move(tree_);
  }

 private:
  // The values of the labels, joined, name a switch: equal values below different ones are different switches.
  void add(const YAML::Node& node) {
    const YAML::Node labels = needed(needed(node, "metadata", "the node"), "labels", "'metadata:'");
    size_t at = 0;
    std::string path;
    for (const std::string& level : tree_.levels) {
      if (level == kHostLabel) continue;
      const std::string value = plain(needed(labels, level.c_str(), "'labels:'"), level);
      path += (path.empty() ? "" : ":") + value;
      const auto [known, fresh] = number_.emplace(path, tree_.switches.size());
      if (fresh) {
        tree_.switches[at].switches.push_back({path, line(labels)});
        tree_.switches.push_back({.name = path, .line = line(labels)});
      }
      at = known->second;
    }
    tree_.switches[at].hosts.push_back({object_name(node), line(node)});
  }

  NamedTree tree_;
  std::unordered_map<std::string, size_t> number_;
};

class VolcanoReader : ObjectReader {
 public:
  explicit VolcanoReader(const std::string& file) : ObjectReader(file) {}

  NamedTree read(const std::vector<YAML::Node>& documents) const {
    NamedTree tree;
    for (const YAML::Node& object : objects(documents)) {
      if (kind(object) != "HyperNode") continue;
      NamedSwitch each{.name = object_name(object), .line = line(object)};
      const YAML::Node spec = needed(object, "spec", "the HyperNode");
      check_keys(spec, "a HyperNode's spec", {"tier", "tierName", "members"});
      whole(needed(spec, "tier", "'spec:'"), "tier", kMostLevels);
      for (const YAML::Node& member : list(spec, "members")) add(member, &each);
      if (each.switches.empty() && each.hosts.empty())
        fail(spec, "HyperNode '" + each.name + "' has no members");
      tree.switches.push_back(std::move(each));
    }
    if (tree.switches.empty()) fail_at(1, "there is no 'kind: HyperNode'");
    return tree;
  }

 private:
  void add(const YAML::Node& member, NamedSwitch* to) const {
    check_keys(member, "a member", {"type", "selector"});
    const std::string type = scalar(needed(member, "type", "the member"), "type");
    if (type != "Node" && type != "HyperNode") fail(member, "'type: " + type + "': use Node or HyperNode");
    const YAML::Node selector = needed(member, "selector", "the member");
    if (!selector.IsMap() || !selector["exactMatch"]) {
      fail(selector,
           "only 'exactMatch:' names a member without the list of all nodes; replace the pattern or label "
           "by the names");
    }
    check_keys(selector, "a selector", {"exactMatch"});
    const std::string name = plain(needed(selector["exactMatch"], "name", "'exactMatch:'"), "name");
    (type == "Node" ? to->hosts : to->switches).push_back({name, line(member)});
  }
};

std::string leaf_name(const std::string& name) {
  return name.substr(name.rfind(':') + 1);
}

}  // namespace

NamedTree parse_kueue(const std::string& text, const std::string& file) {
  return with_yaml_documents(text, file,
                             [&](const std::vector<YAML::Node>& all) { return KueueReader(file).read(all); });
}

NamedTree parse_volcano(const std::string& text, const std::string& file) {
  return with_yaml_documents(
      text, file, [&](const std::vector<YAML::Node>& all) { return VolcanoReader(file).read(all); });
}

std::string write_kueue(const plan::Cluster& cluster, const std::vector<std::string>& levels) {
  // [host]: the switches above it, from the first one below the root.
  std::vector<std::vector<std::string>> ways;
  for (const plan::ClusterHost& host : cluster.hosts) {
    ways.emplace_back();
    for (size_t at = host.at; at > 0; at = cluster.switches[at].parent)
      ways.back().insert(ways.back().begin(), leaf_name(cluster.switches[at].name));
    if (ways.back().size() != ways.front().size()) {
      throw UsageError("host '" + host.name + "' has " + std::to_string(ways.back().size()) +
                       " switches above it below the root, and '" + cluster.hosts.front().name + "' has " +
                       std::to_string(ways.front().size()) + "; Kueue needs as many levels for all");
    }
  }
  std::vector<std::string> labels = levels;
  if (labels.empty()) {
    for (size_t i = ways.front().size(); i-- > 0;)
      labels.push_back(fmt::format("fabric.topograph.run/tier-{}", i));
    labels.emplace_back(kHostLabel);
  }
  std::string text =
      "apiVersion: kueue.x-k8s.io/v1beta1\nkind: Topology\nmetadata:\n  name: netsum\nspec:\n  levels:\n";
  for (const std::string& label : labels) text += "    - nodeLabel: " + label + "\n";
  for (size_t i = 0; i < ways.size(); ++i) {
    text += fmt::format("---\napiVersion: v1\nkind: Node\nmetadata:\n  name: {}\n  labels:\n",
                        cluster.hosts[i].name);
    size_t level = 0;
    for (const std::string& label : labels)
      text +=
          fmt::format("    {}: {}\n", label, label == kHostLabel ? cluster.hosts[i].name : ways[i][level++]);
  }
  return text;
}

std::string write_volcano(const plan::Cluster& cluster) {
  const std::vector<size_t> tiers = cluster.tiers();
  const auto children = cluster.children();
  std::vector<std::vector<std::string>> hosts(tiers.size());
  for (const plan::ClusterHost& host : cluster.hosts) hosts[host.at].push_back(host.name);
  std::string text;
  for (size_t i = 0; i < tiers.size(); ++i) {
    text += fmt::format(
        "{}apiVersion: topology.volcano.sh/v1alpha1\nkind: HyperNode\nmetadata:\n  name: {}\nspec:\n  tier: "
        "{}\n"
        "  members:\n",
        i == 0 ? "" : "---\n", cluster.switches[i].name, tiers[i]);
    const auto member = [&](const char* type, const std::string& name) {
      text += fmt::format("    - type: {}\n      selector:\n        exactMatch:\n          name: {}\n", type,
                          name);
    };
    for (const size_t child : children[i]) member("HyperNode", cluster.switches[child].name);
    for (const std::string& host : hosts[i]) member("Node", host);
  }
  return text;
}

}  // namespace netsum::tool
