// Slurm's topology.conf and topology.yaml. Written from Slurm's manual pages.
#include <spdlog/fmt/fmt.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "src/base/text.h"
#include "tools/netsum/cluster_file.h"
#include "tools/netsum/hostlist.h"
#include "tools/netsum/plan_yaml.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr char kBlocks[] = "blocks";  // the switch above all blocks

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

std::vector<NamedPart> parts_of(const std::vector<std::string>& names, int line) {
  std::vector<NamedPart> parts;
  for (const std::string& name : names) parts.push_back({name, line});
  return parts;
}

// Blocks are racks below one switch.
void join_blocks(NamedTree* tree) {
  NamedSwitch all{.name = kBlocks, .line = tree->switches.front().line};
  for (const NamedSwitch& block : tree->switches) all.switches.push_back({block.name, block.line});
  tree->switches.insert(tree->switches.begin(), std::move(all));
}

class ConfReader {
 public:
  explicit ConfReader(const std::string& file) : file_(file) {}

  NamedTree read(const std::string& text) {
    std::istringstream stream(text);
    std::string line, whole;
    int first = 1;
    for (int number = 1; std::getline(stream, line); ++number) {
      line = line.substr(0, line.find('#'));
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ' || line.back() == '\t'))
        line.pop_back();
      if (whole.empty()) first = number;
      const bool continues = !line.empty() && line.back() == '\\';
      if (continues) line.pop_back();
      whole += line;
      if (continues) continue;
      line_ = first;
      add(whole);
      whole.clear();
    }
    if (!whole.empty()) fail("the file ends inside of an entry; add its last line");
    if (blocks_) join_blocks(&tree_);
    return std::move(tree_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw UsageError(file_ + ":" + std::to_string(line_) + ": " + printable(message));
  }

  std::vector<std::string> names(const std::string& key, const std::string& text) const {
    Result<std::vector<std::string>> found = parse_hostlist(text);
    if (!found.ok()) fail(key + ": " + found.status().message());
    return std::move(found).value();
  }

  void add(const std::string& line) {
    std::istringstream words(line);
    std::map<std::string, std::string> values;  // by the key in lower case
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos)
        fail("'" + word + "' is no 'Key=Value'; see the manual page topology.conf");
      const std::string key = lower(word.substr(0, equals));
      static constexpr std::string_view kKeys[] = {"switchname", "switches",  "nodes",
                                                   "linkspeed",  "blockname", "blocksizes"};
      if (std::find(std::begin(kKeys), std::end(kKeys), key) == std::end(kKeys)) {
        fail("unknown key '" + word.substr(0, equals) +
             "'; a line has SwitchName with Switches, Nodes and LinkSpeed, BlockName with Nodes, or "
             "BlockSizes");
      }
      if (!values.emplace(key, word.substr(equals + 1)).second) fail("the key '" + key + "' is given twice");
    }
    if (values.empty()) return;
    if (values.contains("blocksizes")) {
      if (values.size() > 1) fail("BlockSizes is the only key of its line");
      return;  // sizes of groups of blocks, which have no switch of their own
    }
    const bool block = values.contains("blockname");
    if (block == values.contains("switchname")) fail("the line has either SwitchName= or BlockName=");
    if (block && values.contains("switches")) fail("a block has Nodes=, and no Switches=");
    if (!tree_.switches.empty() && block != blocks_)
      fail("the file has switches and blocks; use one of them");
    blocks_ = block;
    const std::string key = block ? "blockname" : "switchname";
    const std::vector<std::string> own = names(key, values[key]);
    if (own.size() != 1) fail("'" + values[key] + "' names several; give each a line");
    if (!values.contains("switches") && !values.contains("nodes"))
      fail("'" + own.front() + "' has neither Switches= nor Nodes=");
    NamedSwitch each{.name = own.front(), .line = line_};
    if (values.contains("switches")) each.switches = parts_of(names("Switches", values["switches"]), line_);
    if (values.contains("nodes")) each.hosts = parts_of(names("Nodes", values["nodes"]), line_);
    tree_.switches.push_back(std::move(each));
  }

  const std::string file_;
  int line_ = 1;
  bool blocks_ = false;
  NamedTree tree_;
};

class YamlReader : PlanYaml {
 public:
  explicit YamlReader(const std::string& file) : PlanYaml(file) {}

  NamedTree read(const YAML::Node& root) {
    if (!root.IsSequence() || root.size() == 0)
      fail(root, "topology.yaml is a list of topologies: '- topology: NAME' with 'tree:' or 'block:'");
    // The default of the cluster, or the first one.
    YAML::Node chosen = root[0];
    for (const YAML::Node& each : root) {
      check_keys(each, "a topology",
                 {"topology", "cluster_default", "tree", "block", "flat", "ring", "torus3d"});
      if (each["cluster_default"] && yes_or_no(each["cluster_default"], "cluster_default")) {
        chosen.reset(each);
        break;
      }
    }
    for (const char* other : {"flat", "ring", "torus3d"}) {
      if (chosen[other])
        fail(chosen[other],
             std::string("a topology '") + other + "' is no tree of switches; use tree or block");
    }
    if (static_cast<bool>(chosen["tree"]) == static_cast<bool>(chosen["block"]))
      fail(chosen, "the topology has either 'tree:' or 'block:'");
    return chosen["tree"] ? tree(chosen["tree"]) : blocks(chosen["block"]);
  }

 private:
  std::vector<NamedPart> parts(const YAML::Node& node, const char* key) const {
    if (!node[key]) return {};
    Result<std::vector<std::string>> found = parse_hostlist(scalar(node[key], key));
    if (!found.ok()) fail(node[key], std::string(key) + ": " + found.status().message());
    return parts_of(*found, node[key].Mark().line + 1);
  }

  std::string own_name(const YAML::Node& node, const char* key) const {
    if (!node[key]) fail(node, std::string("'") + key + ":' is missing: the name");
    const std::string name = scalar(node[key], key);
    if (!is_plain_name(name))
      fail(node[key], "'" + name + "' is no name: use letters, digits, '-', '_', '.' and ':'");
    return name;
  }

  NamedTree tree(const YAML::Node& node) const {
    check_keys(node, "a tree", {"switches"});
    NamedTree found;
    for (const YAML::Node& each : list(node, "switches")) {
      check_keys(each, "a switch", {"switch", "children", "nodes"});
      NamedSwitch one{.name = own_name(each, "switch"), .line = each.Mark().line + 1};
      one.switches = parts(each, "children");
      one.hosts = parts(each, "nodes");
      if (one.switches.empty() && one.hosts.empty())
        fail(each, "the switch has neither 'children:' nor 'nodes:'");
      found.switches.push_back(std::move(one));
    }
    return found;
  }

  NamedTree blocks(const YAML::Node& node) const {
    check_keys(node, "a block topology", {"block_sizes", "blocks"});
    NamedTree found;
    for (const YAML::Node& each : list(node, "blocks")) {
      check_keys(each, "a block", {"block", "nodes"});
      NamedSwitch one{.name = own_name(each, "block"), .line = each.Mark().line + 1};
      one.hosts = parts(each, "nodes");
      found.switches.push_back(std::move(one));
    }
    if (!found.switches.empty()) join_blocks(&found);
    return found;
  }
};

struct Written {
  std::string name, switches, hosts;
};

// Switches of lower tiers first, those of one tier in the order of the cluster.
std::vector<Written> written(const plan::Cluster& cluster) {
  const std::vector<size_t> tiers = cluster.tiers();
  std::vector<size_t> order(tiers.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tiers[a] < tiers[b]; });
  std::vector<std::vector<std::string>> hosts(order.size());
  for (const plan::ClusterHost& host : cluster.hosts) hosts[host.at].push_back(host.name);
  const auto children = cluster.children();
  std::vector<Written> all;
  for (const size_t i : order) {
    std::vector<std::string> below;
    for (const size_t child : children[i]) below.push_back(cluster.switches[child].name);
    all.push_back({cluster.switches[i].name, format_hostlist(below), format_hostlist(hosts[i])});
  }
  return all;
}

}  // namespace

NamedTree parse_slurm(const std::string& text, const std::string& file) {
  return ConfReader(file).read(text);
}

NamedTree parse_slurm_yaml(const std::string& text, const std::string& file) {
  return with_yaml(text, file, [&](const YAML::Node& root) { return YamlReader(file).read(root); });
}

std::string write_slurm(const plan::Cluster& cluster) {
  std::string text;
  for (const Written& each : written(cluster)) {
    text += "SwitchName=" + each.name;
    if (!each.switches.empty()) text += " Switches=" + each.switches;
    if (!each.hosts.empty()) text += " Nodes=" + each.hosts;
    text += "\n";
  }
  return text;
}

std::string write_slurm_yaml(const plan::Cluster& cluster) {
  std::string text = "- topology: netsum\n  cluster_default: true\n  tree:\n    switches:\n";
  for (const Written& each : written(cluster)) {
    text += "      - switch: " + each.name + "\n";
    if (!each.switches.empty()) text += "        children: " + each.switches + "\n";
    if (!each.hosts.empty()) text += "        nodes: " + each.hosts + "\n";
  }
  return text;
}

}  // namespace netsum::tool
