// A network of any shape, for plans and bounds: ranks, switches that forward, aggregators, and the directed arcs between
// them. docs/placement.md describes the model.
#ifndef NETSUM_SRC_PLAN_GRAPH_H_
#define NETSUM_SRC_PLAN_GRAPH_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "netsum/status.h"
#include "src/plan/topology.h"

namespace netsum::plan {

// Of a rate: no limit.
inline constexpr int64_t kUnlimited = INT64_MAX;
inline constexpr int64_t kMostRate = 100'000'000'000'000;  // 100 Tbit/s
// Of an index: there is none.
inline constexpr size_t kNone = SIZE_MAX;
inline constexpr size_t kMostVertices = 500'000;
inline constexpr size_t kMostArcs = 4'000'000;

enum class VertexKind : uint8_t {
  kRank,        // has a gradient; can also sum and replicate for others, unless it must not relay
  kSwitch,      // forwards, and neither sums nor replicates
  kAggregator,  // has no gradient; sums and replicates
};

struct Vertex {
  std::string name;
  VertexKind kind = VertexKind::kRank;
  int64_t sum_rate = kUnlimited;  // of an aggregator: how fast it can sum, from each member
  bool relay = true;              // of a rank
  int line = 0;                   // in the file; 0: none
  bool operator==(const Vertex&) const = default;
};

// Rates are whole numbers in one unit, such as bit/s. An arc without limit leads to or from an aggregator inside a switch.
struct Arc {
  size_t from = 0;
  size_t to = 0;
  int64_t rate = 0;
  int line = 0;
  bool operator==(const Arc&) const = default;
};

struct Graph {
  std::vector<Vertex> vertices;
  std::vector<Arc> arcs;

  size_t add(std::string name, VertexKind kind, int64_t sum_rate = kUnlimited);
  void link(size_t a, size_t b, int64_t rate);  // both directions
  std::vector<size_t> ranks() const;
  bool operator==(const Graph&) const = default;
};

// "line 7: ", or "" without a line.
std::string at_line(int line);
// kInvalidArgument, with the line.
Status invalid_at(int line, const std::string& message);

// Errors: kInvalidArgument with the vertex or arc and, if there is one, its line ("line 7: "); kUnreachable if a rank
// cannot reach another one; kResourceExhausted beyond the limits above.
Status check(const Graph& graph);

// Whether each arc has a reverse one with the same rate.
bool symmetric(const Graph& graph);

// The ranks and racks of a topology, its spare hosts, and its switches that sum. The rates of both directions may
// differ. Hierarchies are not part of it: their tree is fixed.
// Errors: those of check(Topology); kUnsupported for a place with others below it.
Result<Graph> graph_of(const Topology& topology);

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_GRAPH_H_
