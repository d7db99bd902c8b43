// Files that describe a cluster: netsum's own, and those of schedulers and of ibnetdiscover. docs/placement.md.
#ifndef NETSUM_TOOLS_NETSUM_CLUSTER_FILE_H_
#define NETSUM_TOOLS_NETSUM_CLUSTER_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "src/plan/cluster.h"

namespace netsum::tool {

struct NamedPart {
  std::string name;
  int line = 0;
};

struct NamedSwitch {
  std::string name;
  int line = 0;
  std::vector<NamedPart> switches;  // below it
  std::vector<NamedPart> hosts;
};

// What schedulers know of a cluster: names, but no rates.
struct NamedTree {
  std::vector<NamedSwitch> switches;  // in any order
  std::vector<std::string> levels;    // Kueue's labels of nodes, from the root down to the hosts
};

enum class ClusterFormat : uint8_t {
  kAuto,
  kNetsum,
  kSlurm,
  kSlurmYaml,
  kKueue,
  kVolcano,
  kTopograph,
  kIbnetdiscover
};

struct ClusterFile {
  plan::Cluster cluster;
  std::vector<std::string> levels;
  ClusterFormat format = ClusterFormat::kAuto;
  bool spares = false;  // it has aggregators that are not used: spare hosts, and switches with limits
};

// `rates`: of a host's link, of a rack's uplink, and so on upwards; the last one is that of all uplinks above. Files of
// schedulers need them; the others have rates of their own.
// All functions below throw UsageError (flags.h), whose message starts with "file:line: ".
ClusterFile load_cluster(const std::string& file, ClusterFormat format, const std::vector<int64_t>& rates);

// The readers, by text. Only the tree is read: nothing is checked that build_cluster() checks.
NamedTree parse_slurm(const std::string& text, const std::string& file);
NamedTree parse_slurm_yaml(const std::string& text, const std::string& file);
NamedTree parse_kueue(const std::string& text, const std::string& file);
NamedTree parse_volcano(const std::string& text, const std::string& file);
NamedTree parse_topograph(const std::string& text, const std::string& file);
plan::Graph parse_ibnetdiscover(const std::string& text, const std::string& file);

plan::Cluster build_cluster(const NamedTree& tree, const std::vector<int64_t>& rates,
                            const std::string& file);

// The cluster in the format of a scheduler, in an order that reading and writing does not change.
std::string write_slurm(const plan::Cluster& cluster);
std::string write_slurm_yaml(const plan::Cluster& cluster);
std::string write_kueue(const plan::Cluster& cluster, const std::vector<std::string>& levels);
std::string write_volcano(const plan::Cluster& cluster);
std::string write_topograph(const plan::Cluster& cluster);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_CLUSTER_FILE_H_
