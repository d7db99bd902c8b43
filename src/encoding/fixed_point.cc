#include "src/encoding/fixed_point.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "netsum/options.h"
#include "src/base/assert.h"
#include "src/encoding/sum_lanes.h"
#include "src/kernels/kernels.h"
#include "wire/ids.h"
#include "wire/values.h"

namespace netsum {
namespace {

// Changes with what lanes and bytes mean.
constexpr uint16_t kVersion = 3;

uint8_t format_of_sums(size_t lane_bytes) {
  return lane_bytes == 1   ? NETSUM_FORMAT_SUM_I8
         : lane_bytes == 2 ? NETSUM_FORMAT_SUM_I16
         : lane_bytes == 4 ? NETSUM_FORMAT_SUM_I32
                           : NETSUM_FORMAT_SUM_I64;
}

bool any_wide(const uint8_t* bytes, size_t blocks) {
  uint8_t wide = 0;
  for (size_t block = 0; block < blocks; ++block) wide |= bytes[2 * block + 1];
  return wide != 0;
}

bool all_zero(const uint8_t* bytes, size_t blocks) {
  return std::all_of(bytes, bytes + 2 * blocks, [](uint8_t byte) { return byte == 0; });
}

}  // namespace

FixedPoint::FixedPoint(DataType type, ReduceOp op, int members, int lane_bits, bool one_tensor,
                       bool fixed_floats)
    : type_(type),
      average_(op == ReduceOp::kAvg),
      has_values_(!is_floating(type) ||
                  (!fixed_floats && kernels::narrow_lane_bits(type, members, lane_bits) != 8)),
      separates_tensors_(is_floating(type) && !one_tensor),
      members_(members),
      narrow_bytes_(static_cast<size_t>(kernels::narrow_lane_bits(type, members, lane_bits)) / 8),
      narrow_shift_(std::countr_zero(narrow_bytes_)),
      wide_bytes_(narrow_bytes_ == 2 ? 4 : 8) {}

uint16_t FixedPoint::signature() const {
  return static_cast<uint16_t>(narrow_bytes_ << 8 | kVersion);
}

std::string FixedPoint::describe() const {
  return size_of(type_) == 2 || narrow_bytes_ == 1 ? "in " + std::to_string(8 * narrow_bytes_) + "-bit lanes"
                                                   : "";
}

int FixedPoint::max_members() const {
  return narrow_bytes_ == 1 ? kernels::kMaxMembers8 : narrow_bytes_ == 2 ? kernels::kMaxMembers16 : kMaxRanks;
}

uint8_t FixedPoint::value_format() const {
  return has_values_ ? wire::format_of_values(type_, average_) : uint8_t{NETSUM_FORMAT_NONE};
}

size_t FixedPoint::blocks(const Elements& chunk) const {
  if (!separates_tensors()) return chunk.count > 0 ? 1 : 0;
  return narrow_bytes_ == 1 ? std::min(chunk.runs(), (chunk.count + 1) / 2) : chunk.runs();
}

size_t FixedPoint::scan(const Elements& chunk, uint8_t* bytes) const {
  const size_t size = agreed_bytes(chunk);
  std::memset(bytes, 0, size);
  chunk.for_each_run([&](const Run& run) {
    uint8_t* const block = bytes + 2 * block_of(run);
    const auto add = [&](const uint8_t* input) {
      const kernels::BlockScale scale = kernels::scan(type_, input, run.count, members_);
      block[0] = std::max(block[0], scale.exponent);
      block[1] = std::max(block[1], scale.wide);
    };
    if (run.input == nullptr) return;
    add(run.input);
    chunk.for_each_more_input(run, add);
  });
  return size;
}

PacketPlan FixedPoint::packet_of(Layout layout, size_t begin, size_t count) const {
  const size_t lane_bytes = lane_bytes_of(layout);
  const size_t bytes = layout == kMarks ? (count + 3) / 4 : count * lane_bytes;
  return {.format = layout == kMarks ? uint8_t{NETSUM_FORMAT_OR_U64} : format_of_sums(lane_bytes),
          .layout = layout,
          .begin = begin,
          .count = count,
          .payload_bytes = static_cast<uint32_t>((bytes + 7) / 8 * 8)};
}

ChunkPlan FixedPoint::plan(const Elements& chunk, const uint8_t* agreed, uint32_t payload_bytes) const {
  ChunkPlan plan;
  if (all_zero(agreed, blocks(chunk))) {
    plan.packets = 0;
  } else if (!any_wide(agreed, blocks(chunk))) {
    plan.packet[0] = packet_of(kNarrow, chunk.begin, chunk.count);
  } else if (type_ == DataType::kInt64) {
    plan.packets = 2;
    plan.together = true;
    plan.packet[0] = packet_of(kLowHalves, chunk.begin, chunk.count);
    plan.packet[1] = packet_of(kHighHalves, chunk.begin, chunk.count);
  } else if (narrow_bytes_ == 1) {
    plan.packets = 2;
    plan.together = true;
    plan.packet[0] = packet_of(kFinite, chunk.begin, chunk.count);
    plan.packet[1] = packet_of(kMarks, chunk.begin, chunk.count);
  } else {
    const size_t first = std::min(chunk.count, payload_bytes / wide_bytes_);
    plan.packet[0] = packet_of(kWide, chunk.begin, first);
    if (first < chunk.count) {
      plan.packets = 2;
      plan.packet[1] = packet_of(kWide, chunk.begin + first, chunk.count - first);
    }
  }
  return plan;
}

void FixedPoint::decode_zeros(const Elements& chunk) const {
  chunk.for_each_run([&](const Run& run) {
    if (run.output != nullptr) std::memset(run.output, 0, run.count * size_of(type_));
  });
}

void FixedPoint::encode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
                        uint8_t* payload) const {
  const Elements part{chunk.sequence, packet.begin, packet.count};
  const auto layout = static_cast<Layout>(packet.layout);
  if (type_ == DataType::kInt64) return encode_int64(part, layout, payload);
  if (layout == kMarks) return encode_marks(part, packet, payload);
  const size_t lane_bytes = lane_bytes_of(layout);
  const uint8_t* bytes = bytes_of(chunk, agreed, packet);
  part.for_each_run([&](const Run& run) {
    uint8_t* const to = payload + run.done * lane_bytes;
    if (run.input == nullptr) {
      std::memset(to, 0, run.count * lane_bytes);
      return;
    }
    const uint8_t exponent = bytes[2 * block_of(run)];
    sum_lanes(part, run, lane_bytes, to, [&](const uint8_t* input, uint8_t* lanes) {
      to_lanes(layout, input, run.count, exponent, lanes);
    });
  });
}

void FixedPoint::encode_marks(const Elements& chunk, const PacketPlan& packet, uint8_t* payload) const {
  std::memset(payload, 0, packet.payload_bytes);
  chunk.for_each_run([&](const Run& run) {
    const auto mark = [&](const uint8_t* input) {
      kernels::mark_specials(type_, input, run.count, run.done, payload);
    };
    if (run.input == nullptr) return;
    mark(run.input);
    chunk.for_each_more_input(run, mark);
  });
}

// Direct calls: a pointer to the kernel would cost a second indirect call per block.
void FixedPoint::to_lanes(Layout layout, const uint8_t* input, size_t count, uint8_t exponent,
                          uint8_t* lanes) const {
  if (narrow_bytes_ == 1)
    kernels::to_lanes8(type_, input, count, exponent, members_, lanes);
  else if (layout == kNarrow && narrow_bytes_ == 4)
    kernels::to_lanes32(type_, input, count, exponent, members_, lanes);
  else if (layout == kNarrow)
    kernels::to_lanes16(type_, input, count, exponent, members_, lanes);
  else if (wide_bytes_ == 4)
    kernels::to_wide_lanes32(type_, input, count, exponent, members_, lanes);
  else
    kernels::to_lanes64(type_, input, count, exponent, members_, lanes);
}

bool FixedPoint::from_lanes(Layout layout, const uint8_t* lanes, size_t count, uint8_t exponent,
                            uint8_t* output) const {
  if (narrow_bytes_ == 1)
    kernels::from_lanes8(type_, lanes, count, exponent, members_, average_, output);
  else if (layout == kWide && wide_bytes_ == 8)
    return kernels::from_lanes64(type_, lanes, count, exponent, members_, average_, output);
  else if (layout == kWide)
    kernels::from_wide_lanes32(type_, lanes, count, exponent, members_, average_, output);
  else if (narrow_bytes_ == 4)
    kernels::from_lanes32(type_, lanes, count, exponent, members_, average_, output);
  else
    kernels::from_lanes16(type_, lanes, count, exponent, members_, average_, output);
  return true;
}

void FixedPoint::encode_int64(const Elements& part, Layout layout, uint8_t* payload) {
  part.for_each_run([&](const Run& run) {
    if (run.input == nullptr) {
      std::memset(payload + run.done * 8, 0, run.count * 8);
      return;
    }
    sum_lanes(part, run, 8, payload + run.done * 8, [&](const uint8_t* input, uint8_t* lanes) {
      if (layout == kNarrow)
        std::copy_n(input, run.count * 8, lanes);
      else
        kernels::int64_to_half_lanes(reinterpret_cast<const int64_t*>(input), run.count,
                                     layout == kHighHalves, lanes);
    });
  });
}

bool FixedPoint::decode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
                        const Payloads& payloads) const {
  const Elements part{chunk.sequence, packet.begin, packet.count};
  const auto layout = static_cast<Layout>(packet.layout);
  if (type_ == DataType::kInt64) return decode_int64(part, layout, payloads);
  const uint8_t* bytes = bytes_of(chunk, agreed, packet);
  const size_t lane_bytes = lane_bytes_of(layout);
  bool fits = true;
  part.for_each_run([&](const Run& run) {
    if (run.output == nullptr) return;
    fits &= from_lanes(layout, payloads[0] + run.done * lane_bytes, run.count, bytes[2 * block_of(run)],
                       run.output);
    if (layout == kFinite) kernels::put_specials(type_, payloads[1], run.done, run.count, run.output);
  });
  return fits;
}

bool FixedPoint::sum(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet) const {
  if (packet.layout != kNarrow) return false;
  const Elements part{chunk.sequence, packet.begin, packet.count};
  const uint8_t* bytes = bytes_of(chunk, agreed, packet);
  const int lane_bits = static_cast<int>(8 * narrow_bytes_);
  bool can = true;
  part.for_each_run([&](const Run& run) {
    can &= kernels::can_sum_narrow(type_, lane_bits, bytes[2 * block_of(run)], members_);
  });
  if (!can) return false;
  std::array<const uint8_t*, kMaxRanks> inputs;
  part.for_each_run([&](const Run& run) {
    size_t n = 0;
    inputs[n++] = run.input;
    part.for_each_more_input(run, [&](const uint8_t* input) { inputs[n++] = input; });
    kernels::sum_narrow(type_, lane_bits, {inputs.data(), n}, run.count, bytes[2 * block_of(run)], members_,
                        average_, run.output);
  });
  return true;
}

bool FixedPoint::decode_int64(const Elements& part, Layout layout, const Payloads& payloads) {
  bool fits = true;
  part.for_each_run([&](const Run& run) {
    if (run.output == nullptr) return;
    const uint8_t* lanes = payloads[0] + run.done * 8;
    if (layout == kNarrow)
      std::copy_n(lanes, run.count * 8, run.output);
    else
      fits &= kernels::int64_from_half_lanes(lanes, payloads[1] + run.done * 8, run.count,
                                             reinterpret_cast<int64_t*>(run.output));
  });
  return fits;
}

}  // namespace netsum
