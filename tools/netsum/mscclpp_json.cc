#include "tools/netsum/mscclpp_json.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <utility>

#include "src/base/text.h"
#include "tools/netsum/msccl_xml.h"
#include "tools/netsum/plan_yaml.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

using plan::BlockBuffer;
using plan::BlockStep;
using plan::BlockStepKind;
using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 2> kChannels = {"memory", "port"};
constexpr size_t kMostPlanBytes = 4 << 20;

// --- Writing

// The steps of a rank's blocks as those of fewer blocks, none of which waits for another: in each, the steps in an order in which
// none comes before what it waits for. Each is a block and the number of a step in it.
std::vector<std::vector<std::pair<size_t, size_t>>> merged(const plan::RankSchedule& rank) {
  const size_t count = rank.blocks.size();
  std::vector<size_t> group(count);
  for (size_t b = 0; b < count; ++b) group[b] = b;
  for (size_t b = 0; b < count; ++b) {
    for (const BlockStep& step : rank.blocks[b].steps) {
      if (step.after_block < 0) continue;
      const size_t from = group[static_cast<size_t>(step.after_block)], to = group[b];
      std::replace(group.begin(), group.end(), std::max(from, to), std::min(from, to));
    }
  }
  std::vector<std::vector<std::pair<size_t, size_t>>> all;
  for (size_t first = 0; first < count; ++first) {
    if (group[first] != first) continue;
    std::vector<std::pair<size_t, size_t>> steps;
    std::vector<size_t> next(count);
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (size_t b = first; b < count && !goes_on; ++b) {
        if (group[b] != first || next[b] == rank.blocks[b].steps.size()) continue;
        const BlockStep& step = rank.blocks[b].steps[next[b]];
        if (step.after_block >= 0 &&
            next[static_cast<size_t>(step.after_block)] <= static_cast<size_t>(step.after_step))
          continue;
        steps.emplace_back(b, next[b]++);
        goes_on = true;
      }
    }
    all.push_back(std::move(steps));
  }
  return all;
}

Json place_json(const BlockStep::Place& place, uint32_t count) {
  return {
      {"type", kScheduleBuffers[static_cast<size_t>(place.buffer)]}, {"index", place.chunk}, {"size", count}};
}

template <typename T>
size_t index_in(std::vector<T>* all, const T& wanted) {
  const auto found = std::find(all->begin(), all->end(), wanted);
  if (found != all->end()) return static_cast<size_t>(found - all->begin());
  all->push_back(wanted);
  return all->size() - 1;
}

// Of a rank: the channels to each other rank in the order of their numbers, which both ends then count alike.
std::vector<std::pair<int, int>> channels_of(const plan::RankSchedule& rank) {
  std::vector<std::pair<int, int>> channels;
  for (const plan::ThreadBlock& block : rank.blocks) channels.emplace_back(block.send, block.channel);
  std::sort(channels.begin(), channels.end());
  return channels;
}

Json rank_json(const plan::Schedule& schedule, size_t r) {
  const plan::RankSchedule& rank = schedule.ranks[r];
  std::vector<std::pair<int, int>> channels = channels_of(rank);
  std::vector<std::pair<int, BlockBuffer>> remotes;
  Json blocks = Json::array();
  for (const auto& steps : merged(rank)) {
    std::vector<size_t> used, buffers;
    Json ops = Json::array();
    for (const auto& [number, index] : steps) {
      const plan::ThreadBlock& block = rank.blocks[number];
      const BlockStep& step = block.steps[index];
      const size_t channel = index_in(&used, index_in(&channels, std::pair(block.send, block.channel)));
      const Json source = place_json(step.source, step.count);
      const Json destination = place_json(step.destination, step.count);
      switch (step.kind) {
        case BlockStepKind::kPut: {
          const size_t buffer =
              index_in(&buffers, index_in(&remotes, std::pair(block.send, step.destination.buffer)));
          ops.push_back({{"name", "put"},
                         {"src_buff", {source}},
                         {"dst_buff",
                          {{{"buffer_id", buffer}, {"index", step.destination.chunk}, {"size", step.count}}}},
                         {"channel_ids", {channel}},
                         {"channel_type", "port"}});
          break;
        }
        case BlockStepKind::kSignal:
        case BlockStepKind::kWait:
          ops.push_back({{"name", step.kind == BlockStepKind::kWait ? "wait" : "signal"},
                         {"channel_ids", {channel}},
                         {"channel_type", "port"}});
          break;
        case BlockStepKind::kReduce:
          ops.push_back({{"name", "re"},
                         {"src_buff", {destination, source}},
                         {"dst_buff", {destination}},
                         {"reduce_op", "sum"}});
          break;
        case BlockStepKind::kCopy:
          ops.push_back({{"name", "copy"}, {"src_buff", {source}}, {"dst_buff", {destination}}});
          break;
        default:
          ops.push_back({{"name", "nop"}});
      }
      // The threads of a block do not wait for each other otherwise.
      if (step.kind != BlockStepKind::kNop) ops.push_back({{"name", "nop"}});
    }
    blocks.push_back(
        {{"id", blocks.size()},
         {"ops", ops},
         {"channels", {{{"channel_type", "port"}, {"channel_ids", used}}}},
         {"remote_buffer_refs", {{{"access_channel_type", "port"}, {"remote_buffer_ids", buffers}}}}});
  }
  Json connected = Json::array(), remote_buffers = Json::array();
  for (const auto& [peer, number] : channels) connected.push_back(peer);
  for (const auto& [peer, buffer] : remotes)
    remote_buffers.push_back({{"rank", peer},
                              {"type", kScheduleBuffers[static_cast<size_t>(buffer)]},
                              {"access_channel_types", {"port"}}});
  return {{"id", r},
          {"input_chunks", schedule.chunks},
          {"output_chunks", schedule.chunks},
          {"scratch_chunks", rank.chunks[2]},
          {"threadblocks", blocks},
          {"channels", {{{"channel_type", "port"}, {"connected_to", connected}}}},
          {"remote_buffers", remote_buffers},
          {"semaphores", Json::array()}};
}

// --- Reading

class MscclppReader : PlanYaml {
 public:
  explicit MscclppReader(const std::string& file) : PlanYaml(file) {}

  plan::Schedule read(const YAML::Node& root) {
    check_keys(
        root, "an execution plan",
        {"name", "collective", "protocol", "inplace", "reuse_resources", "gpus", "num_threads_per_block",
         "use_double_scratch_buffer", "buffer_alignment", "min_message_size", "max_message_size"});
    schedule_.collective =
        static_cast<plan::ScheduleCollective>(one_of(root, "collective", kScheduleCollectives));
    if (text(root, "protocol") != "Simple")
      fail(root["protocol"], "netsum judges the protocol Simple alone, not '" + text(root, "protocol") + "'");
    schedule_.in_place = yes_or_no(needed(root, "inplace"), "inplace");
    schedule_.out_of_place = !schedule_.in_place;
    const std::vector<YAML::Node> gpus = list(root, "gpus");
    if (gpus.empty()) fail(root, "'gpus' is missing");
    schedule_.ranks.resize(gpus.size());
    for (size_t rank = 0; rank < gpus.size(); ++rank) read_tables(gpus[rank], rank);
    for (size_t rank = 0; rank < gpus.size(); ++rank) {
      const std::vector<YAML::Node> blocks = list(gpus[rank], "threadblocks");
      for (size_t b = 0; b < blocks.size(); ++b) read_block(blocks[b], rank, b);
    }
    return std::move(schedule_);
  }

 private:
  struct Channel {
    int peer = 0;
    int number = 0;  // among those to this peer: that of the other end
  };
  // Of a rank.
  struct Tables {
    std::array<std::vector<Channel>, kChannels.size()> channels;
    std::vector<std::pair<int, BlockBuffer>> remotes;
  };

  YAML::Node needed(const YAML::Node& node, const char* key) const {
    if (!node[key]) fail(node, fmt::format("'{}' is missing", key));
    return node[key];
  }
  std::string text(const YAML::Node& node, const char* key) const { return scalar(needed(node, key), key); }
  template <size_t kCount>
  size_t one_of(const YAML::Node& node, const char* key,
                const std::array<std::string_view, kCount>& known) const {
    const std::string found = text(node, key);
    const auto at = std::find(known.begin(), known.end(), found);
    if (at == known.end())
      fail(node[key], fmt::format("'{}' is '{}', and not one of {}", key, found, fmt::join(known, ", ")));
    return static_cast<size_t>(at - known.begin());
  }
  size_t number(const YAML::Node& node, const char* what, size_t least, size_t below) const {
    const std::string found = scalar(node, what);
    const bool digits = !found.empty() && found.size() <= 7 &&
                        std::all_of(found.begin(), found.end(), [](char c) { return c >= '0' && c <= '9'; });
    const size_t value = digits ? std::stoul(found) : 0;
    if (below == 0) fail(node, fmt::format("'{}' is '{}', and there are none", what, found));
    if (!digits || value < least || value >= below)
      fail(node, fmt::format("'{}' is '{}', no whole number from {} to {}", what, found, least, below - 1));
    return value;
  }

  void read_tables(const YAML::Node& gpu, size_t rank) {
    check_keys(gpu, "a gpu",
               {"id", "input_chunks", "output_chunks", "scratch_chunks", "threadblocks", "channels",
                "remote_buffers", "semaphores"});
    if (number(needed(gpu, "id"), "id", 0, kMostScheduleNumber) != rank)
      fail(gpu["id"], fmt::format("gpu {} is expected here", rank));
    std::array<uint32_t, 3>& chunks = schedule_.ranks[rank].chunks;
    constexpr std::array kKeys = {"input_chunks", "output_chunks", "scratch_chunks"};
    for (size_t i = 0; i < chunks.size(); ++i)
      chunks[i] = static_cast<uint32_t>(number(needed(gpu, kKeys[i]), kKeys[i], 0, kMostScheduleNumber));
    const uint32_t larger = std::max(chunks[0], chunks[1]);
    if (rank > 0 && larger != schedule_.chunks)
      fail(gpu, fmt::format("gpu {} has {} chunks, and those before it {}", rank, larger, schedule_.chunks));
    schedule_.chunks = larger;
    Tables& tables = tables_.emplace_back();
    const size_t ranks = schedule_.ranks.size();
    const auto peer_of = [&](const YAML::Node& node, const char* what) {
      const size_t peer = number(node, what, 0, ranks);
      if (peer == rank) fail(node, fmt::format("'{}' is the gpu itself", what));
      return static_cast<int>(peer);
    };
    for (const YAML::Node& node : list(gpu, "channels")) {
      check_keys(node, "a channel", {"channel_type", "connected_to"});
      std::vector<Channel>& channels = tables.channels[one_of(node, "channel_type", kChannels)];
      for (const YAML::Node& each : list(node, "connected_to")) {
        const int peer = peer_of(each, "connected_to");
        const auto before = std::count_if(channels.begin(), channels.end(),
                                          [&](const Channel& other) { return other.peer == peer; });
        channels.push_back({peer, static_cast<int>(before)});
      }
    }
    for (const YAML::Node& node : list(gpu, "remote_buffers")) {
      check_keys(node, "a remote buffer", {"rank", "type", "access_channel_types"});
      tables.remotes.emplace_back(peer_of(needed(node, "rank"), "rank"),
                                  static_cast<BlockBuffer>(one_of(node, "type", kScheduleBuffers)));
    }
  }

  // A block of MSCCL++ uses several channels, and becomes a block for each, whose steps wait for each other.
  void read_block(const YAML::Node& node, size_t rank, size_t number_of_block) {
    check_keys(node, "a thread block", {"id", "ops", "channels", "remote_buffer_refs"});
    if (number(needed(node, "id"), "id", 0, kMostScheduleNumber) != number_of_block)
      fail(node["id"], fmt::format("thread block {} is expected here", number_of_block));
    rank_ = rank;
    first_ = schedule_.ranks[rank].blocks.size();
    for (auto& of_type : channels_) of_type.clear();
    for (auto& of_type : buffers_) of_type.clear();
    for (const YAML::Node& each : list(node, "channels")) {
      check_keys(each, "channels of a block", {"channel_type", "channel_ids"});
      const size_t type = one_of(each, "channel_type", kChannels);
      const std::vector<Channel>& known = tables_[rank].channels[type];
      for (const YAML::Node& id : list(each, "channel_ids")) {
        const Channel& channel = known[number(id, "channel_ids", 0, known.size())];
        channels_[type].push_back(schedule_.ranks[rank].blocks.size());
        schedule_.ranks[rank].blocks.push_back(
            {.send = channel.peer,
             .receive = channel.peer,
             .channel = static_cast<int>(kChannels.size()) * channel.number + static_cast<int>(type),
             .steps = {}});
      }
    }
    if (schedule_.ranks[rank].blocks.size() == first_) schedule_.ranks[rank].blocks.push_back({.steps = {}});
    for (const YAML::Node& each : list(node, "remote_buffer_refs")) {
      check_keys(each, "buffers of a block", {"access_channel_type", "remote_buffer_ids"});
      const std::vector<std::pair<int, BlockBuffer>>& known = tables_[rank].remotes;
      for (const YAML::Node& id : list(each, "remote_buffer_ids"))
        buffers_[one_of(each, "access_channel_type", kChannels)].push_back(
            known[number(id, "remote_buffer_ids", 0, known.size())]);
    }
    last_ = first_;
    for (const YAML::Node& op : list(node, "ops")) read_op(op);
  }

  void add(size_t block, BlockStep step) {
    std::vector<plan::ThreadBlock>& blocks = schedule_.ranks[rank_].blocks;
    if (block != last_ && !blocks[last_].steps.empty()) {
      step.after_block = static_cast<int>(last_);
      step.after_step = static_cast<int>(blocks[last_].steps.size()) - 1;
    }
    blocks[block].steps.push_back(step);
    last_ = block;
  }

  std::pair<BlockStep::Place, uint32_t> local(const YAML::Node& node) const {
    check_keys(node, "a buffer", {"type", "index", "size"});
    return {{static_cast<BlockBuffer>(one_of(node, "type", kScheduleBuffers)),
             static_cast<uint32_t>(number(needed(node, "index"), "index", 0, kMostScheduleNumber))},
            static_cast<uint32_t>(number(needed(node, "size"), "size", 1, kMostScheduleNumber))};
  }
  YAML::Node buffer(const YAML::Node& op, const char* key, size_t i) const {
    const std::vector<YAML::Node> all = list(op, key);
    if (i >= all.size()) fail(op, fmt::format("'{}' has {} entries", key, all.size()));
    return all[i];
  }

  // The block for the channel of this name, of an operation that uses one channel or several.
  std::vector<size_t> channels(const YAML::Node& op) const {
    const std::vector<size_t>& known = channels_[one_of(op, "channel_type", kChannels)];
    std::vector<size_t> found;
    for (const YAML::Node& id : list(op, "channel_ids"))
      found.push_back(known[number(id, "channel_ids", 0, known.size())]);
    return found;
  }

  void put(const YAML::Node& op, const YAML::Node& source_node, const YAML::Node& node) {
    check_keys(node, "a buffer of another gpu", {"buffer_id", "index", "size"});
    const auto [source, count] = local(source_node);
    const size_t type = one_of(op, "channel_type", kChannels);
    const auto& [peer, buffer] =
        buffers_[type][number(needed(node, "buffer_id"), "buffer_id", 0, buffers_[type].size())];
    const std::vector<size_t>& known = channels_[type];
    const auto block = std::find_if(known.begin(), known.end(), [&, to = peer](size_t each) {
      return schedule_.ranks[rank_].blocks[each].send == to;
    });
    if (block == known.end()) fail(node, fmt::format("the thread block has no channel to gpu {}", peer));
    if (number(needed(node, "size"), "size", 1, kMostScheduleNumber) != count)
      fail(node["size"], "source and destination have unequal sizes");
    const auto index = static_cast<uint32_t>(number(needed(node, "index"), "index", 0, kMostScheduleNumber));
    add(*block,
        {.kind = BlockStepKind::kPut, .source = source, .destination = {buffer, index}, .count = count});
  }

  void reduce(const YAML::Node& op) {
    const std::vector<YAML::Node> sources = list(op, "src_buff");
    const auto [target, count] = local(buffer(op, "dst_buff", 0));
    for (size_t i = 0; i < sources.size(); ++i) {
      const auto [source, size] = local(sources[i]);
      if (size != count) fail(sources[i], "source and destination have unequal sizes");
      const bool is_target = source.buffer == target.buffer && source.chunk == target.chunk;
      if (i == 0 && is_target) continue;
      if (is_target)
        fail(sources[i], "netsum does not judge a sum whose destination is not its first source");
      add(last_, {.kind = i == 0 ? BlockStepKind::kCopy : BlockStepKind::kReduce,
                  .source = source,
                  .destination = target,
                  .count = count});
    }
  }

  void read_op(const YAML::Node& op) {
    const std::string name = text(op, "name");
    check_keys(op, "an operation",
               {"name", "src_buff", "dst_buff", "channel_ids", "channel_type", "reduce_op"});
    if (op["reduce_op"] && scalar(op["reduce_op"], "reduce_op") != "sum")
      fail(op["reduce_op"], "netsum judges sums alone");
    if (name == "nop" || name == "flush") return;
    const bool with_signal = name == "pws" || name == "pwsf";
    if (name == "put" || with_signal) {
      put(op, buffer(op, "src_buff", 0), buffer(op, "dst_buff", 0));
      if (with_signal) add(last_, {.kind = BlockStepKind::kSignal});
    } else if (name == "signal" || name == "rlxsignal") {
      for (const size_t block : channels(op)) add(block, {.kind = BlockStepKind::kSignal});
    } else if (name == "wait" || name == "rlxwait") {
      for (const size_t block : channels(op)) add(block, {.kind = BlockStepKind::kWait});
    } else if (name == "copy") {
      const auto [source, count] = local(buffer(op, "src_buff", 0));
      add(last_, {.kind = BlockStepKind::kCopy,
                  .source = source,
                  .destination = local(buffer(op, "dst_buff", 0)).first,
                  .count = count});
    } else if (name == "re" || name == "res") {
      reduce(op);
      for (size_t i = 1; i < list(op, "dst_buff").size(); ++i)
        put(op, buffer(op, "dst_buff", 0), buffer(op, "dst_buff", i));
    } else {
      fail(op["name"], "netsum does not judge the operation '" + name + "'");
    }
  }

  plan::Schedule schedule_;
  std::vector<Tables> tables_;  // by rank
  // Of the block that is read: its rank, the first of its blocks and the one of the last step, and by type of channel the
  // blocks of its channels and the buffers of others.
  size_t rank_ = 0, first_ = 0, last_ = 0;
  std::array<std::vector<size_t>, kChannels.size()> channels_;
  std::array<std::vector<std::pair<int, BlockBuffer>>, kChannels.size()> buffers_;
};

}  // namespace

std::string mscclpp_json(const plan::Schedule& schedule, const std::string& name) {
  Json gpus = Json::array();
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) gpus.push_back(rank_json(schedule, rank));
  const Json json = {{"name", name},
                     {"collective", kScheduleCollectives[static_cast<size_t>(schedule.collective)]},
                     {"protocol", "Simple"},
                     {"inplace", true},
                     {"reuse_resources", false},
                     {"gpus", gpus},
                     {"num_threads_per_block", 1024},
                     {"use_double_scratch_buffer", false},
                     {"buffer_alignment", 16},
                     {"min_message_size", 0},
                     {"max_message_size", UINT64_MAX}};
  return json.dump(1) + "\n";
}

std::optional<plan::Schedule> load_mscclpp(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return std::nullopt;
  if (const int first = (stream >> std::ws).peek(); first != '{' && first != '[') return std::nullopt;
  stream.seekg(0);
  std::string text(kMostPlanBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > kMostPlanBytes) throw UsageError(printable(file) + ": is larger than 4 MiB");
  return with_yaml(text, file, [&](const YAML::Node& root) { return MscclppReader(file).read(root); });
}

}  // namespace netsum::tool
