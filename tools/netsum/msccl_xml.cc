#include "tools/netsum/msccl_xml.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <optional>
#include <pugixml.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "src/base/text.h"
#include "tools/netsum/xml_file.h"

namespace netsum::tool {
namespace {

using plan::BlockBuffer;
using plan::BlockStepKind;
using plan::ScheduleCollective;

// By their numbers.
constexpr std::array<std::string_view, 9> kKinds = {"nop", "s",    "r",   "rcs", "rrs",
                                                    "rrc", "rrcs", "cpy", "re"};

class MscclReader {
 public:
  explicit MscclReader(const std::string& file) : file_(file) {}

  std::optional<plan::Schedule> read() {
    const pugi::xml_node algo = file_.root();
    if (std::string_view(algo.name()) != "algo") return std::nullopt;
    schedule_.collective = static_cast<ScheduleCollective>(one_of(algo, "coll", kScheduleCollectives));
    schedule_.chunks = number(algo, "nchunksperloop", 1);
    schedule_.in_place = number(algo, "inplace", 0, 0) != 0;
    schedule_.out_of_place = number(algo, "outofplace", 0, schedule_.in_place ? 0 : 1) != 0;
    if (!schedule_.in_place && !schedule_.out_of_place)
      file_.fail(algo, "'inplace' and 'outofplace' are both 0");
    const unsigned ranks = number(algo, "ngpus", 1);
    std::set<unsigned> known;
    for (const pugi::xml_node gpu : algo.children("gpu")) {
      const unsigned id = number(gpu, "id", 0);
      if (id >= ranks) file_.fail(gpu, fmt::format("gpu {} of {}", id, ranks));
      if (!known.insert(id).second) file_.fail(gpu, fmt::format("gpu {} is given twice", id));
      schedule_.ranks.resize(std::max<size_t>(schedule_.ranks.size(), id + 1));
      read_rank(gpu, &schedule_.ranks[id]);
    }
    if (known.size() != ranks)
      file_.fail(algo, fmt::format("'ngpus' is {}, and {} are given", ranks, known.size()));
    return std::move(schedule_);
  }

 private:
  void read_rank(const pugi::xml_node& gpu, plan::RankSchedule* rank) const {
    rank->chunks = {number(gpu, "i_chunks", 0), number(gpu, "o_chunks", 0), number(gpu, "s_chunks", 0)};
    for (const pugi::xml_node tb : gpu.children("tb")) {
      if (number(tb, "id", 0) != rank->blocks.size())
        file_.fail(tb, fmt::format("thread block {} is expected here", rank->blocks.size()));
      plan::ThreadBlock block{.send = number_or_none(tb, "send"),
                              .receive = number_or_none(tb, "recv"),
                              .channel = number_or_none(tb, "chan"),
                              .steps = {}};
      for (const pugi::xml_node step : tb.children("step")) {
        if (number(step, "s", 0) != block.steps.size())
          file_.fail(step, fmt::format("step {} is expected here", block.steps.size()));
        block.steps.push_back(read_step(step));
      }
      rank->blocks.push_back(std::move(block));
    }
  }

  plan::BlockStep read_step(const pugi::xml_node& step) const {
    plan::BlockStep read{.kind = static_cast<BlockStepKind>(one_of(step, "type", kKinds)),
                         .after_block = number_or_none(step, "depid"),
                         .after_step = number_or_none(step, "deps")};
    if (read.kind == BlockStepKind::kNop) return read;
    read.source = {static_cast<BlockBuffer>(one_of(step, "srcbuf", kScheduleBuffers)),
                   number(step, "srcoff", 0)};
    read.destination = {static_cast<BlockBuffer>(one_of(step, "dstbuf", kScheduleBuffers)),
                        number(step, "dstoff", 0)};
    read.count = number(step, "cnt", 1);
    if (read.count > plan::kMostStepChunks)
      file_.fail(step, fmt::format("'cnt' is {}; MSCCL takes at most {}", read.count, plan::kMostStepChunks));
    return read;
  }

  // -1 means none.
  int number_or_none(const pugi::xml_node& node, const char* key) const {
    if (std::string_view(node.attribute(key).value()) == "-1") return -1;
    return static_cast<int>(number(node, key, 0));
  }
  unsigned number(const pugi::xml_node& node, const char* key, unsigned least,
                  std::optional<unsigned> otherwise = std::nullopt) const {
    const pugi::xml_attribute attribute = node.attribute(key);
    if (!attribute && otherwise) return *otherwise;
    const std::string_view text = attribute.value();
    const bool is_number = !text.empty() && text.size() <= 7 &&
                           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
    const unsigned value = is_number ? attribute.as_uint() : 0;
    if (!is_number || value < least || value > kMostScheduleNumber)
      file_.fail(node, fmt::format("<{}>: '{}' is '{}', no whole number from {} to {}", node.name(), key,
                                   text, least, kMostScheduleNumber));
    return value;
  }
  template <size_t kCount>
  size_t one_of(const pugi::xml_node& node, const char* key,
                const std::array<std::string_view, kCount>& known) const {
    const std::string_view text = node.attribute(key).value();
    const auto found = std::find(known.begin(), known.end(), text);
    if (found == known.end())
      file_.fail(node, fmt::format("<{}>: '{}' is '{}', and not one of {}", node.name(), key, text,
                                   fmt::join(known, ", ")));
    return static_cast<size_t>(found - known.begin());
  }

  const XmlFile file_;
  plan::Schedule schedule_;
};

}  // namespace

std::string msccl_xml(const plan::Schedule& schedule, const std::string& name) {
  int channels = 0;
  for (const plan::RankSchedule& rank : schedule.ranks)
    for (const plan::ThreadBlock& block : rank.blocks) channels = std::max(channels, block.channel + 1);
  std::string xml = fmt::format(
      "<algo name=\"{}\" proto=\"Simple\" nchannels=\"{}\" nchunksperloop=\"{}\" ngpus=\"{}\" coll=\"{}\" "
      "inplace=\"1\" outofplace=\"0\" minBytes=\"0\" maxBytes=\"0\">\n",
      name, channels, schedule.chunks, schedule.ranks.size(),
      kScheduleCollectives[static_cast<size_t>(schedule.collective)]);
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    const plan::RankSchedule& rank = schedule.ranks[r];
    std::set<std::pair<int, int>> waited_for;
    for (const plan::ThreadBlock& block : rank.blocks)
      for (const plan::BlockStep& step : block.steps) waited_for.emplace(step.after_block, step.after_step);
    xml += fmt::format("  <gpu id=\"{}\" i_chunks=\"{}\" o_chunks=\"{}\" s_chunks=\"{}\">\n", r,
                       rank.chunks[0], rank.chunks[1], rank.chunks[2]);
    for (size_t b = 0; b < rank.blocks.size(); ++b) {
      const plan::ThreadBlock& block = rank.blocks[b];
      xml += fmt::format("    <tb id=\"{}\" send=\"{}\" recv=\"{}\" chan=\"{}\">\n", b, block.send,
                         block.receive, block.channel);
      for (size_t s = 0; s < block.steps.size(); ++s) {
        const plan::BlockStep& step = block.steps[s];
        xml += fmt::format(
            "      <step s=\"{}\" type=\"{}\" srcbuf=\"{}\" srcoff=\"{}\" dstbuf=\"{}\" dstoff=\"{}\" "
            "cnt=\"{}\" "
            "depid=\"{}\" deps=\"{}\" hasdep=\"{}\"/>\n",
            s, kKinds[static_cast<size_t>(step.kind)],
            kScheduleBuffers[static_cast<size_t>(step.source.buffer)], step.source.chunk,
            kScheduleBuffers[static_cast<size_t>(step.destination.buffer)], step.destination.chunk,
            step.count, step.after_block, step.after_step,
            waited_for.contains({static_cast<int>(b), static_cast<int>(s)}) ? 1 : 0);
      }
      xml += "    </tb>\n";
    }
    xml += "  </gpu>\n";
  }
  return xml + "</algo>\n";
}

std::optional<plan::Schedule> load_msccl(const std::string& file) {
  return MscclReader(file).read();
}

}  // namespace netsum::tool
