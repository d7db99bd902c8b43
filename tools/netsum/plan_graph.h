// netsum plan for a graph.
#ifndef NETSUM_TOOLS_NETSUM_PLAN_GRAPH_H_
#define NETSUM_TOOLS_NETSUM_PLAN_GRAPH_H_

#include <string>

#include "src/plan/graph.h"

namespace netsum::tool {

struct GraphFlags {
  bool trees = false;
  std::string example;
  std::string root;    // of a broadcast
  bool bound = false;  // only
  std::string format;  // "dot", "forestcoll"
  std::string judged;  // file

  // Whether the user asked for what only graphs have.
  bool asked() const {
    return trees || bound || !example.empty() || !root.empty() || !format.empty() || !judged.empty();
  }
};

// Plans and prints. Returns the exit status. Throws UsageError (flags.h).
int plan_graph(plan::Graph graph, const GraphFlags& flags, bool json, const std::string& html);

// Returns the exit status, and reports a failure on standard error.
int write_picture(const std::string& file, const std::string& page);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_PLAN_GRAPH_H_
