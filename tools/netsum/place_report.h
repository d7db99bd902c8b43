// What netsum place prints: a report for a person, JSON, and the inputs of schedulers.
#ifndef NETSUM_TOOLS_NETSUM_PLACE_REPORT_H_
#define NETSUM_TOOLS_NETSUM_PLACE_REPORT_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "src/plan/placement.h"
#include "tools/netsum/cluster_file.h"

namespace netsum::tool {

struct PlaceReport {
  ClusterFile file;
  plan::PlacementJob job;
  plan::Placement placement;
  // Of an all-reduce of one bit by what netsum can run today: with the aggregators as a hierarchy, or with shards that the
  // ranks embed.
  std::optional<plan::Fraction> hierarchy;
  std::optional<double> shards_s;
};

// Computes what the placement does not have.
PlaceReport place_report(ClusterFile file, plan::PlacementJob job, plan::Placement placement);

std::string place_text(const PlaceReport& report);
nlohmann::json place_json(const PlaceReport& report);
// The commands that start the aggregators, those above others first, and what ranks must set.
std::string aggregator_commands(const PlaceReport& report);
std::string place_hostfile(const PlaceReport& report);
std::string place_nodelist(const PlaceReport& report);
std::string place_slurm(const PlaceReport& report);
std::string place_kueue(const PlaceReport& report);
std::string place_volcano(const PlaceReport& report);
// The chosen hosts and their switches, for netsum plan.
std::string place_graph(const PlaceReport& report);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PLACE_REPORT_H_
