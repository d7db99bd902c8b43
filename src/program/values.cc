#include "src/program/values.h"

#include <algorithm>
#include <ostream>
#include <string>

#include "src/base/fnv.h"

namespace netsum::program {
namespace {

constexpr size_t kNumber = 8;

uint64_t number_at(std::span<const uint8_t> file, size_t at) {
  uint64_t number = 0;
  for (size_t i = kNumber; i > 0; --i) number = number << 8 | file[at + i - 1];
  return number;
}

void put_fixed(uint64_t number, std::ostream& out) {
  for (size_t i = 0; i < kNumber; ++i) out.put(static_cast<char>(number >> 8 * i));
}

}  // namespace

uint64_t fingerprint(const Program& program) {
  uint64_t hash = kFnvBasis;
  const auto add = [&hash](auto number) {
    for (size_t i = 0; i < kNumber; ++i) hash = fnv1a(hash, static_cast<uint64_t>(number) >> 8 * i & 0xff);
  };
  add(program.header.world_size);
  add(program.header.rank);
  for (const Step& step : program.steps) {
    add(step.number);
    add(step.duration_ns);
    for (const Operation& operation : step.operations) {
      add(operation.count);
      add(operation.submitted_ns);
    }
    for (const auto& thread : step.threads)
      for (const Instruction& instruction : thread) add(instruction.value);
  }
  return hash;
}

std::vector<int> ranks_of(const Header& header, int group) {
  for (const Group& one : header.groups)
    if (one.id == group) return one.ranks;
  std::vector<int> all;
  for (int rank = 0; rank < header.world_size; ++rank) all.push_back(rank);
  return all;
}

Contributed contributed_by(const Operation& operation, int rank, int size) {
  const std::vector<uint64_t> parts = counts_of_parts(operation, size);
  Contributed own;
  switch (operation.collective) {
    case Collective::kAllGather:
    case Collective::kGather:
      for (int before = 0; before < rank; ++before) own.begin += parts[static_cast<size_t>(before)];
      own.count = parts[static_cast<size_t>(rank)];
      return own;
    case Collective::kBroadcast:
    case Collective::kScatter:
      own.count = rank == operation.root ? operation.count : 0;
      return own;
    default:
      own.count = reduces(operation.collective) && !operation.on_hosts ? operation.count : 0;
      return own;
  }
}

Status write_values(std::ostream& out, const Program& program,
                    std::span<const std::vector<uint8_t>> of_operations) {
  out << kValuesMagic;
  put_fixed(fingerprint(program), out);
  put_fixed(of_operations.size(), out);
  for (const std::vector<uint8_t>& values : of_operations) put_fixed(values.size(), out);
  for (const std::vector<uint8_t>& values : of_operations)
    out.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size()));
  out.flush();
  return out ? Status() : Status(ErrorCode::kResourceExhausted, "its values cannot be written");
}

Result<std::vector<std::span<const uint8_t>>> read_values(std::span<const uint8_t> file,
                                                          const Program& program, std::string_view name) {
  const auto invalid = [&](const std::string& what) {
    return Status(ErrorCode::kInvalidArgument, std::string(name) + ": " + what + ": record again");
  };
  const size_t version = kValuesMagic.size() - 1;
  if (file.size() < kValuesMagic.size() + 2 * kNumber ||
      !std::equal(kValuesMagic.begin(), kValuesMagic.end() - 1, file.begin(),
                  [](char a, uint8_t b) { return static_cast<uint8_t>(a) == b; }))
    return invalid("it has no values of a program");
  if (file[version] != static_cast<uint8_t>(kValuesMagic[version]))
    return Status(ErrorCode::kVersionMismatch, std::string(name) + ": it is of version " +
                                                   std::to_string(file[version]) + ", not 2: record again");
  size_t operations = 0;
  for (const Step& step : program.steps) operations += step.operations.size();
  if (number_at(file, kValuesMagic.size()) != fingerprint(program))
    return invalid("it is of another record than its program");
  size_t length_at = kValuesMagic.size() + 2 * kNumber;
  const uint64_t count = number_at(file, length_at - kNumber);
  if (count != operations || (file.size() - length_at) / kNumber < count)
    return invalid("it is of " + std::to_string(count) + " operations, and its program has " +
                   std::to_string(operations));
  size_t begin = length_at + operations * kNumber;
  std::vector<std::span<const uint8_t>> values;
  for (const Step& step : program.steps) {
    for (const Operation& operation : step.operations) {
      const uint64_t bytes = number_at(file, length_at);
      length_at += kNumber;
      const std::vector<int> ranks = ranks_of(program.header, operation.group);
      const auto rank = std::find(ranks.begin(), ranks.end(), program.header.rank) - ranks.begin();
      const uint64_t whole =
          contributed_by(operation, static_cast<int>(rank), static_cast<int>(ranks.size())).count *
          size_of(operation.type);
      if (bytes != 0 && bytes != whole)
        return invalid("step " + std::to_string(step.number) + " has " + std::to_string(bytes) +
                       " bytes of " + std::string(collective_name(operation.collective)) +
                       ", of which its program has " + std::to_string(whole));
      if (bytes > file.size() - begin) return invalid("it ends within step " + std::to_string(step.number));
      values.push_back(file.subspan(begin, bytes));
      begin += bytes;
    }
  }
  if (begin != file.size()) return invalid("it goes on behind its last operation");
  return values;
}

}  // namespace netsum::program
