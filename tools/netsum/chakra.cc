#include "tools/netsum/chakra.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <spdlog/fmt/fmt.h>

#include <vector>

#include "src/base/text.h"
#include "tools/netsum/chakra.pb.h"
#include "tools/netsum/exit_codes.h"
#include "tools/netsum/usage.h"

namespace netsum::tool {
namespace {

constexpr int kElementBytes = 4;

class Trace {
 public:
  Trace(const plan::Schedule& schedule, size_t rank, uint64_t bytes)
      : schedule_(schedule), rank_(static_cast<int>(rank)), bytes_(bytes) {}

  std::string text() {
    chakra::GlobalMetadata metadata;
    metadata.set_version(kChakraVersion);
    append(metadata);
    const std::vector<plan::ThreadBlock>& blocks = schedule_.ranks[static_cast<size_t>(rank_)].blocks;
    // The node that ends each step, numbered before they are written: blocks wait for later ones.
    uint64_t id = 0;
    last_.resize(blocks.size());
    for (size_t b = 0; b < blocks.size(); ++b)
      for (const plan::BlockStep& step : blocks[b].steps) last_[b].push_back(id += nodes_of(step));
    for (size_t b = 0; b < blocks.size(); ++b)
      for (size_t s = 0; s < blocks[b].steps.size(); ++s) add(blocks[b], b, s);
    return std::move(text_);
  }

 private:
  static bool adds(const plan::BlockStep& step) {
    return step.kind == plan::BlockStepKind::kReceiveReduceCopy ||
           step.kind == plan::BlockStepKind::kReceiveReduceSend ||
           step.kind == plan::BlockStepKind::kReceiveReduceCopySend ||
           step.kind == plan::BlockStepKind::kReduce;
  }
  static uint64_t nodes_of(const plan::BlockStep& step) {
    return uint64_t{receives(step.kind)} + adds(step) + sends(step.kind);
  }

  void add(const plan::ThreadBlock& block, size_t b, size_t s) {
    const plan::BlockStep& step = block.steps[s];
    uint64_t id = last_[b][s] - nodes_of(step);
    uint64_t before = s > 0 ? last_[b][s - 1] : 0;
    uint64_t also = step.after_block >= 0
                        ? last_[static_cast<size_t>(step.after_block)][static_cast<size_t>(step.after_step)]
                        : 0;
    const auto bytes_before = [&](uint32_t chunk) {
      return static_cast<uint64_t>(static_cast<unsigned __int128>(bytes_) * chunk / schedule_.chunks);
    };
    const auto bytes =
        static_cast<int64_t>(bytes_before(step.source.chunk + step.count) - bytes_before(step.source.chunk));
    const auto begin = [&](chakra::NodeType type, std::string name) {
      chakra::Node node;
      node.set_id(++id);
      node.set_name(std::move(name));
      node.set_type(type);
      for (const uint64_t dependency : {before, also})
        if (dependency != 0) node.add_data_deps(dependency);
      before = id;
      also = 0;
      attribute(&node, "is_cpu_op")->set_bool_value(false);
      return node;
    };
    const auto message = [&](chakra::NodeType type, const char* what, int from, int to, uint32_t* number) {
      chakra::Node node = begin(type, fmt::format("{} {} > {}, chunk {}", what, from, to, step.source.chunk));
      attribute(&node, "comm_size")->set_int64_value(bytes);
      attribute(&node, "comm_src")->set_int32_value(from);
      attribute(&node, "comm_dst")->set_int32_value(to);
      // The same at both ends: messages of a connection are received in the order in which they are sent.
      attribute(&node, "comm_tag")
          ->set_int32_value(
              static_cast<int32_t>(static_cast<uint32_t>(block.channel) * kMostMessages + (*number)++));
      append(node);
    };
    sent_.resize(last_.size());
    received_.resize(last_.size());
    if (receives(step.kind)) message(chakra::COMM_RECV_NODE, "receive", block.receive, rank_, &received_[b]);
    if (adds(step)) {
      chakra::Node node = begin(chakra::COMP_NODE, fmt::format("add chunk {}", step.source.chunk));
      attribute(&node, "num_ops")->set_int64_value(bytes / kElementBytes);
      attribute(&node, "tensor_size")->set_uint64_value(static_cast<uint64_t>(bytes));
      append(node);
    }
    if (sends(step.kind)) message(chakra::COMM_SEND_NODE, "send", rank_, block.send, &sent_[b]);
  }

  static chakra::Attribute* attribute(chakra::Node* node, const char* name) {
    chakra::Attribute* added = node->add_attr();
    added->set_name(name);
    return added;
  }
  void append(const google::protobuf::MessageLite& message) {
    google::protobuf::io::StringOutputStream stream(&text_);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.WriteVarint32(static_cast<uint32_t>(message.ByteSizeLong()));
    message.SerializeWithCachedSizes(&coded);
  }

  static constexpr uint32_t kMostMessages = 2 * plan::kMostBlockSteps;  // of a block, in one direction

  const plan::Schedule& schedule_;
  const int rank_;
  const uint64_t bytes_;
  std::vector<std::vector<uint64_t>> last_;  // [block][step]: a node's number
  std::vector<uint32_t> sent_, received_;    // [block]: messages
  std::string text_;
};

}  // namespace

int write_chakra(const plan::Schedule& schedule, const std::string& prefix, uint64_t bytes) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const std::string file = fmt::format("{}.{}.et", prefix, rank);
    if (const int status = write_file(file, Trace(schedule, rank, bytes).text()); status != kExitOk)
      return status;
  }
  return kExitOk;
}

}  // namespace netsum::tool
