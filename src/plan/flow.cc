#include "src/plan/flow.h"

#include <boost/graph/push_relabel_max_flow.hpp>

namespace netsum::plan {

size_t FlowNetwork::add(size_t from, size_t to, const Flow& capacity) {
  const size_t index = capacities_.size();
  const Edge arc = boost::add_edge(from, to, index, graph_).first;
  const Edge back = boost::add_edge(to, from, index + 1, graph_).first;
  capacities_.insert(capacities_.end(), {capacity, 0});
  reverse_.insert(reverse_.end(), {back, arc});
  return index / 2;
}

Flow FlowNetwork::max_flow(size_t source, size_t sink) {
  residual_.assign(capacities_.size(), 0);
  const auto index = boost::get(boost::edge_index, graph_);
  return boost::push_relabel_max_flow(
      graph_, source, sink, boost::make_iterator_property_map(capacities_.begin(), index),
      boost::make_iterator_property_map(residual_.begin(), index),
      boost::make_iterator_property_map(reverse_.begin(), index), boost::get(boost::vertex_index, graph_));
}

std::vector<bool> FlowNetwork::source_side(size_t source) const {
  std::vector<bool> side(boost::num_vertices(graph_));
  std::vector<size_t> waiting = {source};
  side[source] = true;
  const auto index = boost::get(boost::edge_index, graph_);
  while (!waiting.empty()) {
    const size_t vertex = waiting.back();
    waiting.pop_back();
    for (auto [edge, end] = boost::out_edges(vertex, graph_); edge != end; ++edge) {
      const size_t other = boost::target(*edge, graph_);
      if (side[other] || residual_[boost::get(index, *edge)] == 0) continue;
      side[other] = true;
      waiting.push_back(other);
    }
  }
  return side;
}

}  // namespace netsum::plan
