#include "src/plan/schedule.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace netsum::plan {
namespace {

// One tree at one vertex: the numbers of its thread blocks there.
struct Joint {
  static constexpr size_t kNone = SIZE_MAX;
  size_t parent = kNone;
  std::vector<size_t> children;
};

class TreesToBlocks {
 public:
  TreesToBlocks(const Graph& graph, const TreePlan& plan) : graph_(graph), rank_(graph.vertices.size(), -1) {
    const std::vector<size_t> ranks = graph.ranks();
    for (size_t i = 0; i < ranks.size(); ++i) rank_[ranks[i]] = static_cast<int>(i);
    schedule_.chunks = plan.period;
    schedule_.ranks.resize(ranks.size());
    for (RankSchedule& rank : schedule_.ranks) rank.chunks[0] = plan.period;
  }

  Status add(const Tree& tree) {
    for (const TreeEdge& edge : tree.edges) {
      for (const size_t vertex : {edge.parent, edge.child}) {
        if (rank_[vertex] < 0)
          return {ErrorCode::kUnsupported,
                  "a tree goes through '" + graph_.vertices[vertex].name +
                      "', which is no rank: plan the network without places and switches that sum"};
      }
    }
    std::vector<Joint> joints(schedule_.ranks.size());
    for (const TreeEdge& edge : tree.edges) {
      const int parent = rank_[edge.parent], child = rank_[edge.child];
      const int channel = channels_[std::minmax(parent, child)]++;
      joints[static_cast<size_t>(child)].parent = open(child, parent, channel);
      joints[static_cast<size_t>(parent)].children.push_back(open(parent, child, channel));
    }
    for (size_t rank = 0; rank < joints.size(); ++rank)
      fill(joints[rank], tree.weight, &schedule_.ranks[rank]);
    begin_ += tree.weight;
    return {};
  }

  Result<Schedule> take() {
    for (const RankSchedule& rank : schedule_.ranks) {
      std::map<int, size_t> of_channel;
      for (const ThreadBlock& block : rank.blocks) {
        if (static_cast<size_t>(block.channel) >= kMostChannels ||
            ++of_channel[block.channel] > kMostBlocksOfChannel || block.steps.size() > kMostBlockSteps)
          return Status(ErrorCode::kUnsupported,
                        "these trees need more than " + std::to_string(kMostChannels) + " channels, " +
                            std::to_string(kMostBlocksOfChannel) + " neighbours of a rank or " +
                            std::to_string(kMostBlockSteps) + " steps, which MSCCL does not run");
      }
    }
    return std::move(schedule_);
  }

 private:
  size_t open(int rank, int peer, int channel) {
    std::vector<ThreadBlock>& blocks = schedule_.ranks[static_cast<size_t>(rank)].blocks;
    blocks.push_back({.send = peer, .receive = peer, .channel = channel, .steps = {}});
    return blocks.size() - 1;
  }

  // Contributions come from the children one after the other, because they are added to the same chunks; then sums go up, and
  // results come down.
  void fill(const Joint& joint, uint32_t weight, RankSchedule* rank) const {
    const size_t pieces = (weight + kMostStepChunks - 1) / kMostStepChunks;
    const auto step = [&](BlockStepKind kind, size_t piece, size_t block, size_t after_block,
                          size_t after_step) {
      const auto first = static_cast<uint32_t>(weight * piece / pieces);
      const auto end = static_cast<uint32_t>(weight * (piece + 1) / pieces);
      const BlockStep::Place place{BlockBuffer::kInput, begin_ + first};
      const bool waits = after_block != Joint::kNone && after_block != block;
      rank->blocks[block].steps.push_back({.kind = kind,
                                           .source = place,
                                           .destination = place,
                                           .count = end - first,
                                           .after_block = waits ? static_cast<int>(after_block) : -1,
                                           .after_step = waits ? static_cast<int>(after_step) : -1});
    };
    for (size_t piece = 0; piece < pieces; ++piece) {
      size_t last = Joint::kNone;
      for (const size_t child : joint.children) {
        step(BlockStepKind::kReceiveReduceCopy, piece, child, last, piece);
        last = child;
      }
      if (joint.parent != Joint::kNone) step(BlockStepKind::kSend, piece, joint.parent, last, piece);
    }
    const bool is_root = joint.parent == Joint::kNone;
    for (size_t piece = 0; piece < pieces; ++piece) {
      if (!is_root) step(BlockStepKind::kReceive, piece, joint.parent, Joint::kNone, 0);
      for (const size_t child : joint.children) {
        if (is_root)
          step(BlockStepKind::kSend, piece, child, joint.children.back(), piece);
        else
          step(BlockStepKind::kSend, piece, child, joint.parent, pieces + piece);
      }
    }
  }

  const Graph& graph_;
  std::vector<int> rank_;  // by vertex; -1: none
  std::map<std::pair<int, int>, int> channels_;
  uint32_t begin_ = 0;
  Schedule schedule_;
};

}  // namespace

bool receives(BlockStepKind kind) {
  return kind >= BlockStepKind::kReceive && kind <= BlockStepKind::kReceiveReduceCopySend;
}
bool sends(BlockStepKind kind) {
  return kind == BlockStepKind::kSend || kind == BlockStepKind::kReceiveCopySend ||
         kind == BlockStepKind::kReceiveReduceSend || kind == BlockStepKind::kReceiveReduceCopySend;
}

Result<Schedule> one_sided(const Schedule& schedule) {
  const auto unsupported = [](const std::string& what) {
    return Status(ErrorCode::kUnsupported, what + " cannot be written with puts and signals");
  };
  // Of each connection, where its messages go: in scratch, if they are added to something.
  std::map<std::tuple<int, int, int>, std::vector<BlockStep::Place>> arrivals;
  Schedule made = schedule;
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    for (const ThreadBlock& block : schedule.ranks[r].blocks) {
      for (const BlockStep& step : block.steps) {
        if (!receives(step.kind)) continue;
        BlockStep::Place place = step.destination;
        if (step.kind == BlockStepKind::kReceiveReduceCopy) {
          place = {BlockBuffer::kScratch, made.ranks[r].chunks[2]};
          made.ranks[r].chunks[2] += step.count;
        } else if (step.kind != BlockStepKind::kReceive) {
          return unsupported("a step that receives and sends");
        }
        arrivals[{block.receive, static_cast<int>(r), block.channel}].push_back(place);
      }
    }
  }
  std::map<std::tuple<int, int, int>, size_t> sent, received;
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    const auto rank = static_cast<int>(r);
    std::vector<std::vector<int>> last(schedule.ranks[r].blocks.size());  // [block][step]: the new one
    for (size_t b = 0; b < last.size(); ++b) {
      const ThreadBlock& block = schedule.ranks[r].blocks[b];
      std::vector<BlockStep>& steps = made.ranks[r].blocks[b].steps;
      steps.clear();
      for (const BlockStep& step : block.steps) {
        const BlockStep first{
            .kind = BlockStepKind::kWait, .after_block = step.after_block, .after_step = step.after_step};
        if (step.kind == BlockStepKind::kSend) {
          const std::tuple connection(rank, block.send, block.channel);
          const size_t number = sent[connection]++;
          if (number >= arrivals[connection].size()) return unsupported("a message that nobody receives");
          steps.push_back(step);
          steps.back().kind = BlockStepKind::kPut;
          steps.back().destination = arrivals[connection][number];
          steps.push_back({.kind = BlockStepKind::kSignal});
        } else if (receives(step.kind)) {
          const std::tuple connection(block.receive, rank, block.channel);
          const BlockStep::Place place = arrivals[connection][received[connection]++];
          steps.push_back(first);
          if (step.kind == BlockStepKind::kReceiveReduceCopy)
            steps.push_back({.kind = BlockStepKind::kReduce,
                             .source = place,
                             .destination = step.destination,
                             .count = step.count});
        } else {
          steps.push_back(step);
        }
        last[b].push_back(static_cast<int>(steps.size()) - 1);
      }
    }
    for (ThreadBlock& block : made.ranks[r].blocks) {
      for (BlockStep& step : block.steps) {
        if (step.after_block >= 0)
          step.after_step = last[static_cast<size_t>(step.after_block)][static_cast<size_t>(step.after_step)];
      }
    }
  }
  return made;
}

Result<Schedule> schedule_of(const Graph& graph, const TreePlan& plan) {
  if (plan.collective != TreeCollective::kAllReduce)
    return Status(ErrorCode::kUnsupported, "only the trees of an all-reduce can be written as thread blocks");
  TreesToBlocks blocks(graph, plan);
  for (const Tree& tree : plan.trees) {
    if (Status status = blocks.add(tree); !status.ok()) return status;
  }
  return blocks.take();
}

}  // namespace netsum::plan
