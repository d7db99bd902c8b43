// netsum plan for a graph.
#ifndef NETSUM_TOOLS_NETSUM_PLAN_GRAPH_H_
#define NETSUM_TOOLS_NETSUM_PLAN_GRAPH_H_

#include <cstdint>
#include <optional>
#include <string>

#include "src/plan/graph.h"

namespace netsum::tool {

struct GraphFlags {
  bool trees = false;
  std::string network;  // the name of the graph's file
  std::string example;
  std::string root;                   // of a broadcast
  bool bound = false;                 // only
  std::string format;                 // as of check_format()
  std::string judged;                 // file
  uint64_t gradient = 1'000'000'000;  // bytes, of Chakra's traces

  // Whether the user asked for what only graphs have.
  bool asked() const {
    return trees || bound || !example.empty() || !root.empty() || !format.empty() || !judged.empty();
  }
};

// "" or why this is no format.
std::string check_format(const std::string& format);

// Judges a program of MSCCL, which needs no graph, if `file` is one: prints the verdict and returns the exit status.
std::optional<int> judge_program(const std::string& file, bool json);

// Plans and prints. Returns the exit status. Throws UsageError (flags.h).
int plan_graph(plan::Graph graph, const GraphFlags& flags, bool json, const std::string& html);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PLAN_GRAPH_H_
