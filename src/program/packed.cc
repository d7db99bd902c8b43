#include "src/program/packed.h"

#include <algorithm>
#include <istream>
#include <ostream>
#include <utility>

#include "src/program/json_lines.h"

namespace netsum::program {
namespace {

constexpr uint64_t kMostBlockBytes = uint64_t{1} << 28;
constexpr size_t kHashBytes = 4;

// Thrown within this file only.
Status bad(std::string what) {
  return {ErrorCode::kInvalidArgument, std::move(what)};
}

uint32_t hash_of(std::string_view bytes) {
  uint32_t hash = 2166136261;
  for (const char byte : bytes) hash = (hash ^ static_cast<uint8_t>(byte)) * 16777619;
  return hash;
}

void put(uint64_t value, std::string* out) {
  for (; value >= 128; value >>= 7) *out += static_cast<char>(value | 128);
  *out += static_cast<char>(value);
}

void put_signed(int64_t value, std::string* out) {
  put(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63), out);
}

void put_text(std::string_view text, std::string* out) {
  put(text.size(), out);
  *out += text;
}

void write(const Header& header, size_t steps, std::string* out) {
  put(static_cast<uint64_t>(header.world_size), out);
  put(static_cast<uint64_t>(header.rank), out);
  for (const std::string* text : {&header.model, &header.netsum, &header.machine, &header.clock})
    put_text(*text, out);
  put(header.groups.size(), out);
  for (const Group& group : header.groups) {
    put(static_cast<uint64_t>(group.id), out);
    put(group.ranks.size(), out);
    for (const int rank : group.ranks) put(static_cast<uint64_t>(rank), out);
  }
  put(steps, out);
}

constexpr uint64_t kHosts = 1, kDone = 2;

void write(const Operation& operation, std::string* out) {
  put(static_cast<uint64_t>(operation.collective), out);
  put(static_cast<uint64_t>(operation.type), out);
  put(static_cast<uint64_t>(operation.op), out);
  put((operation.on_hosts ? kHosts : 0) | (operation.done_ns ? kDone : 0), out);
  put(operation.count, out);
  put(operation.parts.size(), out);
  for (const uint64_t part : operation.parts) put(part, out);
  put_signed(operation.root, out);
  put(static_cast<uint64_t>(operation.group), out);
  put(operation.tag, out);
  put(operation.scales.size(), out);
  for (const uint8_t scale : operation.scales) put(scale, out);
  put_signed(operation.submitted_ns, out);
  if (operation.done_ns) put_signed(*operation.done_ns - operation.submitted_ns, out);
}

void write(const Step& step, std::string* out) {
  put(step.number, out);
  put(step.partial ? 1 : 0, out);
  put_signed(step.duration_ns, out);
  put(step.operations.size(), out);
  for (const Operation& operation : step.operations) write(operation, out);
  put(step.carried.size(), out);
  for (const Carried& carried : step.carried) {
    put(carried.steps_back, out);
    put(carried.operation, out);
    put_signed(carried.done_ns, out);
  }
  put(step.threads.size(), out);
  for (const auto& thread : step.threads) {
    put(thread.size(), out);
    for (const Instruction& instruction : thread) {
      put(static_cast<uint64_t>(instruction.kind), out);
      put(instruction.value, out);
    }
  }
}

// The stream, and where in it the reader is.
class Source {
 public:
  explicit Source(std::istream& in) : in_(in) {}

  uint64_t offset() const { return offset_; }
  bool at_end() { return in_.peek() == std::istream::traits_type::eof() && !in_.bad(); }
  std::string take(uint64_t count) {
    std::string bytes;
    // Not at once: a length may be wrong.
    constexpr uint64_t kPiece = 1 << 16;
    while (bytes.size() < count) {
      const size_t before = bytes.size(), piece = std::min(kPiece, count - before);
      bytes.resize(before + piece);
      in_.read(bytes.data() + before, static_cast<std::streamsize>(piece));
      offset_ += static_cast<uint64_t>(in_.gcount());
      if (in_.bad()) throw bad("the file cannot be read");
      if (static_cast<size_t>(in_.gcount()) < piece)
        throw bad(std::string("the file ends here: it is truncated") + kCure);
    }
    return bytes;
  }
  // The body of a block.
  std::string take_block() {
    uint64_t length = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(1).front());
      if (shift <= 28) length |= uint64_t{byte & 127u} << shift;
      if (byte < 128) break;
      if (shift >= 28) throw bad(std::string("a block is longer than is allowed: it is garbled") + kCure);
    }
    if (length > kMostBlockBytes)
      throw bad("a block has " + std::to_string(length) + " bytes, and at most " +
                std::to_string(kMostBlockBytes) + " are allowed: it is garbled" + kCure);
    begin_ = offset_;
    std::string body = take(length);
    const std::string hash = take(kHashBytes);
    uint32_t wanted = 0;
    for (size_t i = 0; i < kHashBytes; ++i) wanted |= uint32_t{static_cast<uint8_t>(hash[i])} << 8 * i;
    if (wanted != hash_of(body)) {
      offset_ = begin_;
      throw bad(std::string("the block that begins here is garbled") + kCure);
    }
    return body;
  }
  // Where the body of the latest block begins.
  uint64_t begin() const { return begin_; }
  void go_to(uint64_t offset) { offset_ = offset; }  // of messages

 private:
  std::istream& in_;
  uint64_t offset_ = 0, begin_ = 0;
};

// The fields of a block.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}

  size_t offset() const { return at_; }
  uint64_t number(const char* what, uint64_t most) {
    const size_t begin = at_;
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      if (at_ == bytes_.size()) throw bad(std::string(what) + " is missing");
      const auto byte = static_cast<uint8_t>(bytes_[at_]);
      if (shift == 63 && byte > 1) throw bad(std::string(what) + " has more than 64 bits");
      ++at_;
      value |= uint64_t{byte & 127u} << shift;
      if (byte < 128) break;
    }
    if (value > most) {
      at_ = begin;
      throw bad(std::string(what) + " is " + std::to_string(value) + ", at most " + std::to_string(most) +
                " is allowed");
    }
    return value;
  }
  int64_t signed_number(const char* what, int64_t least, int64_t most) {
    const uint64_t zigzag = number(what, UINT64_MAX);
    const auto value = static_cast<int64_t>(zigzag >> 1 ^ (~(zigzag & 1) + 1));
    if (value < least || value > most)
      throw bad(std::string(what) + " is " + std::to_string(value) + ", and must be " +
                std::to_string(least) + " to " + std::to_string(most));
    return value;
  }
  // Of items with at least one byte each, so that a wrong one takes no memory.
  size_t size(const char* what) { return static_cast<size_t>(number(what, bytes_.size() - at_)); }
  std::string text(const char* what) {
    const size_t length = size(what);
    if (length > bytes_.size() - at_) throw bad(std::string(what) + " is cut off");
    at_ += length;
    return std::string(bytes_.substr(at_ - length, length));
  }
  void end() const {
    if (at_ != bytes_.size()) throw bad("the block has more than its fields");
  }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
};

Header unpack_header(Fields* in, uint64_t* steps) {
  Header header;
  header.world_size = static_cast<int>(in->number("the world size", kMostRanks));
  header.rank = static_cast<int>(in->number("the rank", kMostRanks));
  header.model = in->text("the model");
  header.netsum = in->text("the version of netsum");
  header.machine = in->text("the machine");
  header.clock = in->text("the clock");
  header.groups.resize(in->size("the number of groups"));
  for (Group& group : header.groups) {
    group.id = static_cast<int>(in->number("a group", INT32_MAX));
    group.ranks.resize(in->size("the size of a group"));
    for (int& rank : group.ranks) rank = static_cast<int>(in->number("a rank of a group", kMostRanks));
  }
  *steps = in->number("the number of steps", kMostSteps);
  return header;
}

Operation unpack_operation(Fields* in) {
  Operation operation;
  operation.collective = static_cast<Collective>(in->number("a collective", kCollectives - 1));
  const uint64_t type = in->number("a type", static_cast<uint64_t>(DataType::kByte));
  const uint64_t op = in->number("a reduction", static_cast<uint64_t>(ReduceOp::kBitXor));
  if (type < static_cast<uint64_t>(DataType::kFloat32) || op < static_cast<uint64_t>(ReduceOp::kSum))
    throw bad("a type or a reduction is 0, which is none");
  operation.type = static_cast<DataType>(type);
  operation.op = static_cast<ReduceOp>(op);
  const uint64_t flags = in->number("the flags of an operation", kHosts | kDone);
  operation.on_hosts = (flags & kHosts) != 0;
  operation.count = in->number("the elements of an operation", kMostElements);
  operation.parts.resize(in->size("the number of parts"));
  for (uint64_t& part : operation.parts) part = in->number("the elements of a part", kMostElements);
  operation.root = static_cast<int>(in->signed_number("a root", -1, kMostRanks));
  operation.group = static_cast<int>(in->number("the group of an operation", INT32_MAX));
  operation.tag = static_cast<uint32_t>(in->number("a tag", UINT32_MAX));
  operation.scales.resize(in->size("the number of scales"));
  for (uint8_t& scale : operation.scales) scale = static_cast<uint8_t>(in->number("a scale", UINT8_MAX));
  operation.submitted_ns = in->signed_number("when an operation was submitted", 0, kMostNs);
  if ((flags & kDone) != 0)
    operation.done_ns = operation.submitted_ns + in->signed_number("when an operation was done", 0, kMostNs);
  return operation;
}

Step unpack_step(Fields* in) {
  Step step;
  step.number = in->number("the number of a step", kMostSteps);
  step.partial = in->number("whether a step is partial", 1) != 0;
  step.duration_ns = in->signed_number("the duration of a step", 0, kMostNs);
  const size_t operations = in->size("the number of operations");
  for (size_t i = 0; i < operations; ++i) step.operations.push_back(unpack_operation(in));
  step.carried.resize(in->size("the number of carried operations"));
  for (Carried& carried : step.carried) {
    carried.steps_back = in->number("the steps back of a carried operation", kMostSteps);
    carried.operation = in->number("a carried operation", INT64_MAX);
    carried.done_ns = in->signed_number("when a carried operation was done", -kMostNs, kMostNs);
  }
  step.threads.resize(in->size("the number of threads"));
  for (auto& thread : step.threads) {
    thread.resize(in->size("the number of instructions"));
    for (Instruction& instruction : thread) {
      instruction.kind = static_cast<Instruction::Kind>(
          in->number("the kind of an instruction: this netsum knows compute, submit and wait, and it", 2));
      instruction.value = in->number("the number of an instruction", kMostNs);
    }
  }
  return step;
}

void require_valid(const Status& status) {
  if (!status.ok()) throw status;
}

// What `from` makes of the next block.
template <typename From>
auto block_of(Source* in, const From& from) {
  const std::string body = in->take_block();
  Fields fields(body);
  try {
    auto made = from(&fields);
    fields.end();
    return made;
  } catch (const Status&) {
    in->go_to(in->begin() + fields.offset());
    throw;
  }
}

Program program_from(Source* in) {
  const std::string magic = in->take(kPackedMagic.size());
  if (!magic.starts_with(kPackedMagic.substr(0, kPackedMagic.size() - 1))) {
    in->go_to(0);
    throw bad("this is no packed program");
  }
  if (magic != kPackedMagic)
    throw Status(ErrorCode::kVersionMismatch,
                 "the file has version " + std::to_string(static_cast<uint8_t>(magic.back())) +
                     " of the packed format, and this netsum reads version " +
                     std::to_string(kPackedMagic.back()) + ": record again, or use the netsum that wrote it");
  Program program;
  uint64_t steps = 0;
  program.header = block_of(in, [&](Fields* fields) { return unpack_header(fields, &steps); });
  require_valid(check_header(program.header));
  if (steps == 0) throw bad("the program has no step");
  while (program.steps.size() < steps) {
    program.steps.push_back(block_of(in, unpack_step));
    if (const Status status = check_step(program, program.steps.size() - 1); !status.ok()) {
      in->go_to(in->begin());
      require_valid(status);
    }
  }
  if (!in->at_end())
    throw bad("the header announces " + std::to_string(steps) + " steps, and the file has more" + kCure);
  return program;
}

}  // namespace

std::string packed_block(std::string_view body) {
  std::string block;
  put(body.size(), &block);
  block += body;
  const uint32_t hash = hash_of(body);
  for (size_t i = 0; i < kHashBytes; ++i) block += static_cast<char>(hash >> 8 * i);
  return block;
}

Result<Program> read_packed(std::istream& in, std::string_view name) {
  Source source(in);
  try {
    return program_from(&source);
  } catch (const Status& wrong) {
    return Status(wrong.code(),
                  std::string(name) + ", byte " + std::to_string(source.offset()) + ": " + wrong.message());
  }
}

Status write_packed(std::ostream& out, const Program& program) {
  if (const Status status = check(program); !status.ok()) return status;
  out << kPackedMagic;
  std::string body;
  write(program.header, program.steps.size(), &body);
  out << packed_block(body);
  for (const Step& step : program.steps) {
    body.clear();
    write(step, &body);
    out << packed_block(body);
  }
  out.flush();
  if (!out) return {ErrorCode::kResourceExhausted, "the program cannot be written: check the disk's space"};
  return {};
}

Result<Program> read_any_program(std::istream& in, std::string_view name) {
  return in.peek() == static_cast<uint8_t>(kPackedMagic.front()) ? read_packed(in, name)
                                                                 : read_program(in, name);
}

}  // namespace netsum::program
