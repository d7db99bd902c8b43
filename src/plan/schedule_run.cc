// The symbolic run of a schedule.
#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "src/plan/schedule.h"

namespace netsum::plan {
namespace {

constexpr size_t kConnectionMessages = 8;
constexpr size_t kMostRanks = 4096;
constexpr size_t kMostCells = 1 << 22;
constexpr size_t kMostTimes = 64 << 20;  // steps of all blocks, times blocks

// The inputs in a sum: rank << 32 | chunk, in order. Null: nothing was written.
using Inputs = std::shared_ptr<const std::vector<uint64_t>>;
// By thread block: how many of its steps have ended for certain when something happens.
using Times = std::vector<uint32_t>;

uint64_t input(size_t rank, size_t chunk) {
  return uint64_t{rank} << 32 | chunk;
}
std::string name_of_input(uint64_t input) {
  return "chunk " + std::to_string(input & 0xFFFF'FFFF) + " of rank " + std::to_string(input >> 32);
}

struct Access {
  size_t block = 0;
  uint32_t step = 0;  // + 1
};

struct Cell {
  Inputs inputs;
  std::optional<Access> written;
  std::vector<Access> read;  // since then
};

struct Message {
  std::vector<Inputs> chunks;
  Times times;
};

struct Connection {
  std::deque<Message> messages;
  std::optional<size_t> sender, receiver;  // blocks
};

struct Block {
  size_t rank = 0;
  size_t number = 0;  // of the rank
  const ThreadBlock* program = nullptr;
  size_t next = 0;
  Connection* to = nullptr;
  Connection* from = nullptr;
  Times times;
  std::vector<Times> after;  // [step], for those that others wait for
};

class Run {
 public:
  Run(const Schedule& schedule, bool in_place) : schedule_(schedule), in_place_(in_place) {}

  Status run() {
    if (Status status = prepare(); !status.ok()) return status;
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (Block& block : blocks_) {
        while (status_.ok() && may_go_on(block)) {
          step(&block);
          goes_on = true;
        }
        if (!status_.ok()) return status_;
      }
    }
    if (Status status = check_ends(); !status.ok()) return status;
    return check_outputs();
  }

 private:
  size_t ranks() const { return schedule_.ranks.size(); }

  Status prepare() {
    if (ranks() == 0 || ranks() > kMostRanks) return invalid("there are no ranks, or more than 4096");
    if (schedule_.chunks == 0) return invalid("there are no chunks");
    if (schedule_.collective != ScheduleCollective::kAllReduce && schedule_.chunks % ranks() != 0)
      return invalid(std::to_string(schedule_.chunks) + " chunks cannot be divided among " +
                     std::to_string(ranks()) + " ranks");
    if (Status status = prepare_cells(); !status.ok()) return status;
    size_t steps = 0;
    for (size_t rank = 0; rank < ranks(); ++rank) {
      first_block_.push_back(blocks_.size());
      const auto& programs = schedule_.ranks[rank].blocks;
      for (size_t i = 0; i < programs.size(); ++i) {
        blocks_.push_back({.rank = rank, .number = i, .program = &programs[i], .times = {}, .after = {}});
        steps += programs[i].steps.size() + 1;
      }
    }
    if (blocks_.size() > 0 && steps > kMostTimes / blocks_.size())
      return {ErrorCode::kResourceExhausted, "the schedule has too many thread blocks and steps to be run"};
    for (size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i].times.resize(blocks_.size());
      if (Status status = connect(i); !status.ok()) return status;
      if (Status status = check_steps(&blocks_[i]); !status.ok()) return status;
    }
    return {};
  }

  // The inputs of a rank: `part` chunks from `first` of all.
  Status prepare_cells() {
    const auto total = size_t{schedule_.chunks};
    const size_t part = total / ranks();
    const bool gathers = schedule_.collective == ScheduleCollective::kAllGather;
    const bool scatters = schedule_.collective == ScheduleCollective::kReduceScatter;
    inputs_ = gathers ? part : total;
    outputs_ = scatters ? part : total;
    cells_.resize(ranks());
    size_t cells = 0;
    for (size_t rank = 0; rank < ranks(); ++rank) {
      const size_t scratch = schedule_.ranks[rank].chunks[2];
      cells += inputs_ + outputs_ + scratch;
      if (scratch > kMostCells || cells > kMostCells)
        return {ErrorCode::kResourceExhausted, "the schedule has too many chunks to be run"};
      cells_[rank].resize(inputs_ + outputs_ + scratch);
      for (size_t chunk = 0; chunk < inputs_; ++chunk) {
        cell(rank, BlockBuffer::kInput, chunk)->inputs =
            std::make_shared<std::vector<uint64_t>>(1, input(rank, chunk));
      }
    }
    return {};
  }

  // In place, a smaller input or output is the rank's part of the larger one.
  Cell* cell(size_t rank, BlockBuffer buffer, size_t chunk) {
    if (buffer == BlockBuffer::kScratch) return &cells_[rank][inputs_ + outputs_ + chunk];
    const bool is_output = buffer == BlockBuffer::kOutput;
    if (!in_place_) return &cells_[rank][is_output ? inputs_ + chunk : chunk];
    const size_t own = is_output ? outputs_ : inputs_;
    return &cells_[rank][own < std::max(inputs_, outputs_) ? rank * own + chunk : chunk];
  }

  Status connect(size_t index) {
    Block& block = blocks_[index];
    const ThreadBlock& program = *block.program;
    const auto rank = static_cast<int>(block.rank);
    for (const int peer : {program.send, program.receive}) {
      if (peer < -1 || peer >= static_cast<int>(ranks()) || peer == rank)
        return invalid(name(block) + ": its peer is rank " + std::to_string(peer));
    }
    const auto join = [&](int from, int to, std::optional<size_t> Connection::*end, const char* what,
                          Connection** connection) -> Status {
      *connection = &connections_[{from, to, program.channel}];
      std::optional<size_t>& user = (*connection)->*end;
      if (user)
        return invalid(name(block) + " " + what + " on channel " + std::to_string(program.channel) +
                       ", and so does " + name(blocks_[*user]));
      user = index;
      return {};
    };
    if (program.send >= 0) {
      const std::string what = "sends to rank " + std::to_string(program.send);
      if (Status status = join(rank, program.send, &Connection::sender, what.c_str(), &block.to);
          !status.ok())
        return status;
    }
    if (program.receive < 0) return {};
    const std::string what = "receives from rank " + std::to_string(program.receive);
    return join(program.receive, rank, &Connection::receiver, what.c_str(), &block.from);
  }

  Status check_steps(Block* block) {
    const auto& programs = schedule_.ranks[block->rank].blocks;
    for (size_t i = 0; i < block->program->steps.size(); ++i) {
      const BlockStep& step = block->program->steps[i];
      const auto wrong = [&](const std::string& what) { return invalid(name(*block, i) + ": " + what); };
      const bool puts = step.kind == BlockStepKind::kPut;
      if ((sends(step.kind) || puts || step.kind == BlockStepKind::kSignal) && block->to == nullptr)
        return wrong("sends, but its block has nobody to send to");
      if ((receives(step.kind) || step.kind == BlockStepKind::kWait) && block->from == nullptr)
        return wrong("receives, but its block has nobody to receive from");
      const size_t target = puts ? static_cast<size_t>(block->program->send) : block->rank;
      for (const auto& [place, used, rank] : {std::tuple(step.source, reads_source(step.kind), block->rank),
                                              {step.destination, writes(step.kind), target}}) {
        const size_t chunks = place.buffer == BlockBuffer::kScratch ? schedule_.ranks[rank].chunks[2]
                              : place.buffer == BlockBuffer::kInput ? inputs_
                                                                    : outputs_;
        if (used && (step.count == 0 || step.count > chunks || place.chunk > chunks - step.count))
          return wrong("uses " + std::to_string(step.count) + " chunks from " +
                       text(place.buffer, place.chunk) + ", of " + std::to_string(chunks));
      }
      if (step.after_block < 0) continue;
      if (static_cast<size_t>(step.after_block) >= programs.size() || step.after_step < 0 ||
          static_cast<size_t>(step.after_step) >=
              programs[static_cast<size_t>(step.after_block)].steps.size())
        return wrong("waits for step " + std::to_string(step.after_step) + " of block " +
                     std::to_string(step.after_block) + ", which the rank does not have");
      Block& other = blocks_[first_block_[block->rank] + static_cast<size_t>(step.after_block)];
      other.after.resize(other.program->steps.size());
    }
    return {};
  }

  static bool reads_source(BlockStepKind kind) {
    return kind == BlockStepKind::kSend ||
           (kind >= BlockStepKind::kReceiveReduceSend && kind <= BlockStepKind::kPut);
  }
  static bool writes(BlockStepKind kind) {
    return kind != BlockStepKind::kNop && kind != BlockStepKind::kSend &&
           kind != BlockStepKind::kReceiveReduceSend && kind <= BlockStepKind::kPut;
  }

  const Block* waits_for(const Block& block, const BlockStep& step) const {
    if (step.after_block < 0) return nullptr;
    const Block& other = blocks_[first_block_[block.rank] + static_cast<size_t>(step.after_block)];
    return other.next > static_cast<size_t>(step.after_step) ? nullptr : &other;
  }
  bool may_go_on(const Block& block) const {
    if (block.next == block.program->steps.size()) return false;
    const BlockStep& step = block.program->steps[block.next];
    return waits_for(block, step) == nullptr && (!receives(step.kind) || !block.from->messages.empty()) &&
           (step.kind != BlockStepKind::kWait || !block.from->messages.empty()) &&
           (!sends(step.kind) || block.to->messages.size() < kConnectionMessages);
  }

  void learn(Block* block, const Times& times) {
    for (size_t i = 0; i < times.size(); ++i) block->times[i] = std::max(block->times[i], times[i]);
  }

  void step(Block* block) {
    const BlockStep& step = block->program->steps[block->next];
    if (step.after_block >= 0)
      learn(block, blocks_[first_block_[block->rank] + static_cast<size_t>(step.after_block)]
                       .after[static_cast<size_t>(step.after_step)]);
    std::vector<Inputs> values(step.count);
    if (receives(step.kind)) {
      Message message = std::move(block->from->messages.front());
      block->from->messages.pop_front();
      learn(block, message.times);
      if (message.chunks.size() != step.count)
        return fail(*block, "receives " + std::to_string(step.count) + " chunks where rank " +
                                std::to_string(block->program->receive) + " sends " +
                                std::to_string(message.chunks.size()));
      values = std::move(message.chunks);
    }
    if (reads_source(step.kind)) {
      for (size_t i = 0; i < step.count && status_.ok(); ++i)
        values[i] = sum(*block, values[i], read(block, step.source, i));
    }
    if (step.kind == BlockStepKind::kReduce) {
      for (size_t i = 0; i < step.count && status_.ok(); ++i)
        values[i] = sum(*block, values[i], read(block, step.destination, i));
    }
    if (writes(step.kind)) {
      const bool puts = step.kind == BlockStepKind::kPut;
      const size_t rank = puts ? static_cast<size_t>(block->program->send) : block->rank;
      for (size_t i = 0; i < step.count && status_.ok(); ++i)
        write(block, rank, step.destination, i, values[i]);
    }
    if (step.kind == BlockStepKind::kWait) {
      learn(block, block->from->messages.front().times);
      block->from->messages.pop_front();
    }
    const size_t index = static_cast<size_t>(block - blocks_.data());
    ++block->next;
    block->times[index] = static_cast<uint32_t>(block->next);
    if (sends(step.kind)) block->to->messages.push_back({std::move(values), block->times});
    if (step.kind == BlockStepKind::kSignal) block->to->messages.push_back({{}, block->times});
    if (!block->after.empty()) block->after[block->next - 1] = block->times;
  }

  bool before(const Access& access, const Block& block) const {
    return access.step <= block.times[access.block] || &blocks_[access.block] == &block;
  }

  Inputs read(Block* block, BlockStep::Place place, size_t i) {
    Cell* used = cell(block->rank, place.buffer, place.chunk + i);
    const std::string what = text(place.buffer, place.chunk + i);
    if (used->inputs == nullptr) {
      fail(*block, "reads " + what + ", which nothing has written");
    } else if (used->written && !before(*used->written, *block)) {
      fail(*block, "reads " + what + ", and does not wait for " + name(*used->written) + ", which writes it");
    }
    used->read.push_back(access(*block));
    return used->inputs;
  }
  void write(Block* block, size_t rank, BlockStep::Place place, size_t i, Inputs inputs) {
    Cell* used = cell(rank, place.buffer, place.chunk + i);
    const std::string what = "writes " + text(place.buffer, place.chunk + i) +
                             (rank == block->rank ? "" : " of rank " + std::to_string(rank)) +
                             ", and does not wait for ";
    if (used->written && !before(*used->written, *block))
      return fail(*block, what + name(*used->written) + ", which writes it, too");
    for (const Access& reader : used->read) {
      if (!before(reader, *block)) return fail(*block, what + name(reader) + ", which reads it");
    }
    *used = {std::move(inputs), access(*block), {}};
  }
  Access access(const Block& block) const {
    return {static_cast<size_t>(&block - blocks_.data()), static_cast<uint32_t>(block.next + 1)};
  }

  Inputs sum(const Block& block, const Inputs& a, const Inputs& b) {
    if (a == nullptr || b == nullptr) return a == nullptr ? b : a;
    std::vector<uint64_t> both;
    both.reserve(a->size() + b->size());
    std::merge(a->begin(), a->end(), b->begin(), b->end(), std::back_inserter(both));
    const auto twice = std::adjacent_find(both.begin(), both.end());
    if (twice != both.end()) fail(block, "adds " + name_of_input(*twice) + " a second time");
    return std::make_shared<const std::vector<uint64_t>>(std::move(both));
  }

  Status check_ends() const {
    std::string waits;
    size_t count = 0;
    for (const Block& block : blocks_) {
      if (block.next == block.program->steps.size() || ++count > 3) continue;
      const BlockStep& step = block.program->steps[block.next];
      const Block* other = waits_for(block, step);
      waits += "; " + name(block, block.next) + " waits for ";
      if (other != nullptr)
        waits += "step " + std::to_string(step.after_step) + " of block " + std::to_string(other->number);
      else if (step.kind == BlockStepKind::kWait)
        waits += "a signal of rank " + std::to_string(block.program->receive);
      else if (receives(step.kind) && block.from->messages.empty())
        waits += "rank " + std::to_string(block.program->receive) + " to send";
      else
        waits += "rank " + std::to_string(block.program->send) + " to receive";
    }
    if (count > 3) waits += "; and " + std::to_string(count - 3) + " more blocks wait";
    if (count > 0) return invalid("deadlock" + waits);
    for (const auto& [ends, connection] : connections_) {
      if (!connection.messages.empty())
        return invalid("rank " + std::to_string(std::get<0>(ends)) + " sends to rank " +
                       std::to_string(std::get<1>(ends)) + " on channel " +
                       std::to_string(std::get<2>(ends)) + " what that one does not receive");
    }
    return {};
  }

  Status check_outputs() {
    const auto total = size_t{schedule_.chunks};
    const size_t part = total / ranks();
    for (size_t rank = 0; rank < ranks(); ++rank) {
      for (size_t chunk = 0; chunk < outputs_; ++chunk) {
        std::vector<uint64_t> expected;
        if (schedule_.collective == ScheduleCollective::kAllGather) {
          expected = {input(chunk / part, chunk % part)};
        } else {
          const size_t of =
              schedule_.collective == ScheduleCollective::kAllReduce ? chunk : rank * part + chunk;
          for (size_t other = 0; other < ranks(); ++other) expected.push_back(input(other, of));
        }
        const Inputs& found = cell(rank, BlockBuffer::kOutput, chunk)->inputs;
        if (found != nullptr && *found == expected) continue;
        std::vector<uint64_t> missing, surplus, none;
        const std::vector<uint64_t>& has = found == nullptr ? none : *found;
        std::set_difference(expected.begin(), expected.end(), has.begin(), has.end(),
                            std::back_inserter(missing));
        std::set_difference(has.begin(), has.end(), expected.begin(), expected.end(),
                            std::back_inserter(surplus));
        return invalid("rank " + std::to_string(rank) + " ends with a wrong output chunk " +
                       std::to_string(chunk) + ": " +
                       (missing.empty() ? "it has " + name_of_input(surplus[0])
                                        : "it lacks " + name_of_input(missing[0])));
      }
    }
    return {};
  }

  static Status invalid(std::string what) { return {ErrorCode::kInvalidArgument, std::move(what)}; }
  void fail(const Block& block, const std::string& what) {
    if (status_.ok()) status_ = invalid(name(block, block.next) + ": " + what);
  }
  static std::string text(BlockBuffer buffer, size_t chunk) {
    static constexpr const char* kNames[] = {"input", "output", "scratch"};
    return kNames[static_cast<size_t>(buffer)] + (" chunk " + std::to_string(chunk));
  }
  static std::string name(const Block& block) {
    return "rank " + std::to_string(block.rank) + ", block " + std::to_string(block.number);
  }
  static std::string name(const Block& block, size_t step) {
    return name(block) + ", step " + std::to_string(step);
  }
  std::string name(const Access& access) const { return name(blocks_[access.block], access.step - 1); }

  const Schedule& schedule_;
  const bool in_place_;
  size_t inputs_ = 0, outputs_ = 0;                              // chunks of a rank
  std::vector<std::vector<Cell>> cells_;                         // [rank]: input, output, scratch
  std::vector<Block> blocks_;                                    // of all ranks
  std::vector<size_t> first_block_;                              // [rank]
  std::map<std::tuple<int, int, int>, Connection> connections_;  // from, to, channel
  Status status_;
};

}  // namespace

Status verify(const Schedule& schedule) {
  for (const bool in_place : {true, false}) {
    if (!(in_place ? schedule.in_place : schedule.out_of_place)) continue;
    if (Status status = Run(schedule, in_place).run(); !status.ok()) return status;
  }
  return {};
}

}  // namespace netsum::plan
