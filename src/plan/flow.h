// Maximum flows in whole numbers, by Boost.Graph.
#ifndef NETSUM_SRC_PLAN_FLOW_H_
#define NETSUM_SRC_PLAN_FLOW_H_

#include <boost/graph/adjacency_list.hpp>
#include <boost/multiprecision/cpp_int.hpp>
#include <cstddef>
#include <vector>

namespace netsum::plan {

// Rates are below 2^47 and graphs have less than 2^22 arcs (graph.h), so a rate times the number of ranks, and any sum of
// such products, is far below 2^127.
using Flow = boost::multiprecision::int128_t;

class FlowNetwork {
 public:
  explicit FlowNetwork(size_t vertices) : graph_(vertices) {}

  // Returns the arc's number.
  size_t add(size_t from, size_t to, const Flow& capacity);
  void set(size_t arc, const Flow& capacity) { capacities_[2 * arc] = capacity; }

  Flow max_flow(size_t source, size_t sink);
  // After max_flow(): [vertex], the source's side of a minimum cut.
  std::vector<bool> source_side(size_t source) const;

 private:
  using Net = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, boost::no_property,
                                    boost::property<boost::edge_index_t, size_t>>;
  using Edge = boost::graph_traits<Net>::edge_descriptor;

  Net graph_;
  // [edge index]: an arc has the index 2 * number, its reverse the next one.
  std::vector<Flow> capacities_;
  std::vector<Flow> residual_;
  std::vector<Edge> reverse_;
};

}  // namespace netsum::plan

#endif  // NETSUM_SRC_PLAN_FLOW_H_
