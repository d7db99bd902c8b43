// The graph that topograph prints: JSON with the switches above each instance, the nearest one first. JSON is YAML, and
// the YAML parser knows lines.
#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "tools/netsum/cluster_file.h"
#include "tools/netsum/hostlist.h"
#include "tools/netsum/plan_yaml.h"

namespace netsum::tool {
namespace {

constexpr size_t kMostLayers = 16;

class TopographReader : PlanYaml {
 public:
  explicit TopographReader(const std::string& file) : PlanYaml(file) {}

  NamedTree read(const YAML::Node& root) {
    check_keys(root, "a graph of topograph", {"instances"});
    for (const YAML::Node& instance : list(root, "instances")) add(instance);
    return std::move(tree_);
  }

 private:
  std::string plain(const YAML::Node& node, const char* what) const {
    const std::string text = scalar(node, what);
    if (!is_plain_name(text))
      fail(node, "'" + text + "' is no name: use letters, digits, '-', '_', '.' and ':'");
    return text;
  }

  void add(const YAML::Node& instance) {
    check_keys(instance, "an instance",
               {"id", "network_layers", "labels", "region", "provider", "instance_type"});
    if (!instance["id"]) fail(instance, "'id' is missing: the name of the instance");
    const std::vector<YAML::Node> layers = list(instance, "network_layers");
    if (layers.empty() || layers.size() > kMostLayers)
      fail(instance,
           "'network_layers' takes 1 to " + std::to_string(kMostLayers) + " switches, the nearest one first");
    size_t above = SIZE_MAX;
    for (size_t i = layers.size(); i-- > 0;) {
      const std::string name = plain(layers[i], "network_layers");
      const auto [known, fresh] = number_.emplace(name, tree_.switches.size());
      if (fresh) tree_.switches.push_back({.name = name, .line = layers[i].Mark().line + 1});
      if (above != SIZE_MAX && links_.insert(tree_.switches[above].name + " " + name).second)
        tree_.switches[above].switches.push_back({name, layers[i].Mark().line + 1});
      above = known->second;
    }
    tree_.switches[above].hosts.push_back({plain(instance["id"], "id"), instance.Mark().line + 1});
  }

  NamedTree tree_;
  std::unordered_map<std::string, size_t> number_;
  std::unordered_set<std::string> links_;
};

}  // namespace

NamedTree parse_topograph(const std::string& text, const std::string& file) {
  return with_yaml(text, file, [&](const YAML::Node& root) { return TopographReader(file).read(root); });
}

std::string write_topograph(const plan::Cluster& cluster) {
  nlohmann::ordered_json instances = nlohmann::ordered_json::array();
  for (const plan::ClusterHost& host : cluster.hosts) {
    nlohmann::ordered_json layers = nlohmann::ordered_json::array();
    for (size_t at = host.at; at != plan::ClusterSwitch::kNone; at = cluster.switches[at].parent)
      layers.push_back(cluster.switches[at].name);
    instances.push_back({{"id", host.name}, {"network_layers", layers}});
  }
  return nlohmann::ordered_json{{"instances", instances}}.dump(2) + "\n";
}

}  // namespace netsum::tool
