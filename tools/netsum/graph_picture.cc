// Drawings of a graph: for Graphviz, and a page without scripts or files from elsewhere. Names in a topology have no
// characters that HTML or Graphviz treat specially (plan_yaml.cc), apart from " (sums)", which is quoted.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tools/netsum/graph_report.h"
#include "tools/netsum/html.h"

namespace netsum::tool {
namespace {

constexpr const char* kTreeColours[] = {"#4878a8", "#b85450", "#2e8b57", "#9b59b6", "#e08a1e",
                                        "#16808a", "#c0398b", "#6b6b1e", "#3c3cc8", "#7a4a1e"};
constexpr size_t kMostDrawn = 120;      // vertices
constexpr size_t kMostDrawnTrees = 10;  // drawn, one colour each
constexpr double kPi = 3.14159265358979;

struct Point {
  double x = 0;
  double y = 0;
};

const char* colour(size_t tree) {
  return kTreeColours[tree % std::size(kTreeColours)];
}

// Distance from the nearest rank; vertices of one distance are drawn in one row, ranks in the lowest.
std::vector<size_t> rows_of(const plan::Graph& graph) {
  std::vector<size_t> row(graph.vertices.size(), 0), order = graph.ranks();
  std::vector<bool> seen(graph.vertices.size());
  for (const size_t rank : order) seen[rank] = true;
  for (size_t i = 0; i < order.size(); ++i) {
    for (const plan::Arc& arc : graph.arcs) {
      if (arc.from != order[i] || seen[arc.to]) continue;
      seen[arc.to] = true;
      row[arc.to] = row[arc.from] + 1;
      order.push_back(arc.to);
    }
  }
  return row;
}

// Without switches, ranks are drawn in a circle.
std::vector<Point> layout(const plan::Graph& graph, double width, double* height) {
  const std::vector<size_t> row = rows_of(graph);
  const size_t top = *std::max_element(row.begin(), row.end());
  std::vector<Point> points;
  if (top == 0) {
    *height = width * 0.6;
    for (size_t i = 0; i < row.size(); ++i) {
      const double angle = 2 * kPi * static_cast<double>(i) / static_cast<double>(row.size());
      points.push_back(
          {width / 2 + *height * 0.42 * std::sin(angle), *height / 2 - *height * 0.42 * std::cos(angle)});
    }
    return points;
  }
  *height = 80 + 130 * static_cast<double>(top);
  std::map<size_t, size_t> count, placed;
  for (const size_t each : row) ++count[each];
  for (const size_t each : row) {
    const double step = width / static_cast<double>(count[each]);
    points.push_back(
        {step * (0.5 + static_cast<double>(placed[each]++)), *height - 40 - 130 * static_cast<double>(each)});
  }
  return points;
}

std::string vertex_svg(const plan::Vertex& vertex, const Point& at) {
  const bool rank = vertex.kind == plan::VertexKind::kRank;
  const char* fill = rank ? "#ffffff" : vertex.kind == plan::VertexKind::kSwitch ? "#dddddd" : "#ffe9a8";
  return fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"64\" height=\"22\" rx=\"{}\" fill=\"{}\" stroke=\"#333333\"/>"
      "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n",
      at.x - 32, at.y - 11, rank ? 11 : 2, fill, at.x, at.y + 4, vertex.name);
}

// Links in grey, wider and darker the busier they are; a tree's ways beside them in its colour.
std::string drawing(const GraphReport& report) {
  double height = 0;
  const double width = std::clamp(90.0 * static_cast<double>(report.graph.ranks().size()), 600.0, 2400.0);
  const std::vector<Point> at = layout(report.graph, width, &height);
  std::string svg =
      fmt::format("<svg width=\"{:.0f}\" height=\"{:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n",
                  width, height);
  const auto line = [&](const plan::Arc& arc, double offset, const char* stroke, double wide,
                        const std::string& title) {
    const Point &a = at[arc.from], &b = at[arc.to];
    const double length = std::max(1.0, std::hypot(b.x - a.x, b.y - a.y));
    const double dx = (b.y - a.y) / length * offset, dy = -(b.x - a.x) / length * offset;
    svg += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"{:.1f}\">"
        "<title>{}</title></line>\n",
        a.x + dx, a.y + dy, b.x + dx, b.y + dy, stroke, wide, title);
  };
  for (size_t i = 0; i < report.graph.arcs.size(); ++i) {
    const double use = link_use(report, i);
    line(report.graph.arcs[i], 0, use > 0.99 ? "#999999" : "#dddddd", 2 + 6 * use,
         fmt::format("{}: {:.0f} % busy", way_text(report.graph, {i}, " to "), 100 * use));
  }
  for (size_t t = 0; t < std::min(report.plan.trees.size(), kMostDrawnTrees); ++t) {
    for (const plan::TreeEdge& edge : report.plan.trees[t].edges) {
      for (const size_t arc : edge.down) {
        line(report.graph.arcs[arc], 1.5 * (static_cast<double>(t) - 2), colour(t), 1.2,
             fmt::format("tree {}", t + 1));
      }
    }
  }
  for (size_t i = 0; i < at.size(); ++i) svg += vertex_svg(report.graph.vertices[i], at[i]);
  return svg + "</svg>\n";
}

}  // namespace

std::string graph_dot(const GraphReport& report) {
  const plan::Graph& graph = report.graph;
  std::string dot = "digraph plan {\n  rankdir=BT;\n  node [fontname=\"sans-serif\", fontsize=10];\n";
  for (const plan::Vertex& vertex : graph.vertices) {
    const char* shape = vertex.kind == plan::VertexKind::kRank ? "ellipse"
                        : vertex.kind == plan::VertexKind::kSwitch
                            ? "box, style=filled, fillcolor=\"#dddddd\""
                            : "box, style=filled, fillcolor=\"#ffe9a8\"";
    dot += fmt::format("  \"{}\" [shape={}];\n", vertex.name, shape);
  }
  for (size_t i = 0; i < graph.arcs.size(); ++i) {
    dot += fmt::format("  \"{}\" -> \"{}\" [color=\"#bbbbbb\", label=\"{:.0f} %\", fontsize=8];\n",
                       graph.vertices[graph.arcs[i].from].name, graph.vertices[graph.arcs[i].to].name,
                       100 * link_use(report, i));
  }
  for (size_t t = 0; t < report.plan.trees.size(); ++t) {
    for (const plan::TreeEdge& edge : report.plan.trees[t].edges) {
      dot += fmt::format("  \"{}\" -> \"{}\" [color=\"{}\", constraint=false, tooltip=\"tree {}\"];\n",
                         graph.vertices[edge.child].name, graph.vertices[edge.parent].name, colour(t), t + 1);
    }
  }
  return dot + "}\n";
}

std::string graph_html(const GraphReport& report) {
  std::string page =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>netsum plan</title></head>\n"
      "<body style=\"font-family: sans-serif\">\n<h1>Trees for this network</h1>\n"
      "<p>Computed from the rates of the links, without headers, latency and processor time. Grey links: the "
      "wider, the "
      "busier. Colours: the first trees.</p>\n";
  if (report.graph.vertices.size() <= kMostDrawn) {
    page += drawing(report) + "<p>";
    for (size_t t = 0; t < std::min(report.plan.trees.size(), kMostDrawnTrees); ++t) {
      page += fmt::format("<span style=\"color: {}\">&#9632;</span> tree {}: {:.1f} % &nbsp; ", colour(t),
                          t + 1, 100.0 * report.plan.trees[t].weight / report.plan.period);
    }
    page += "</p>\n";
  } else {
    page += fmt::format("<p>The graph has more than {} vertices and is not drawn.</p>\n", kMostDrawn);
  }
  return page + "<pre>" + html_escaped(graph_text(report)) + "</pre>\n</body></html>\n";
}

}  // namespace netsum::tool
