#include "src/worker/operation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/assert.h"
#include "wire/packet.h"

namespace netsum {
namespace {

const uint8_t* at(const void* base, size_t index, DataType type) {
  return static_cast<const uint8_t*>(base) + index * size_of(type);
}
uint8_t* at(void* base, size_t index, DataType type) {
  return static_cast<uint8_t*>(base) + index * size_of(type);
}

}  // namespace

Operation::Operation(uint64_t number, DataType type, ReduceOp op, std::vector<TensorView> tensors,
                     int members, int64_t deadline_us, Joint joint, int lane_bits)
    : number_(number),
      type_(type),
      op_(op),
      members_(members),
      narrow_lane_bytes_(static_cast<size_t>(kernels::narrow_lane_bits(type, members, lane_bits)) / 8),
      deadline_us_(deadline_us),
      tensors_(std::move(tensors)),
      more_inputs_(std::move(joint.more_inputs)) {
  NETSUM_ASSERT(more_inputs_.empty() || tensors_.size() == 1);
  uint64_t hash = netsum_mix64(number ^ static_cast<uint64_t>(type) << 56 ^ static_cast<uint64_t>(op) << 48 ^
                               static_cast<uint64_t>(narrow_lane_bytes_) << 40);
  for (const TensorView& tensor : tensors_) {
    count_ += tensor.count;
    ends_.push_back(count_);
    hash = netsum_mix64(hash + tensor.count);
  }
  if (joint.context != 0) hash = netsum_mix64(hash + joint.context);
  signature_ = static_cast<uint32_t>(hash >> 32);
}

std::string Operation::describe() const {
  std::string text = "all_reduce #" + std::to_string(number_) + " (" + std::string(data_type_name(type_)) +
                     "[" + std::to_string(count_) + "]";
  if (size_of(type_) == 2) text += " in " + std::to_string(8 * narrow_lane_bytes_) + "-bit lanes";
  if (tensors_.size() > 1) text += " in " + std::to_string(tensors_.size()) + " tensors";
  return text + ", " + std::string(reduce_op_name(op_)) + ")";
}

template <typename Visit>
void Operation::for_each_piece(size_t begin, size_t n, Visit visit) const {
  NETSUM_ASSERT(begin + n <= count_);
  size_t tensor = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  for (size_t done = 0; done < n; ++tensor) {
    const TensorView& view = tensors_[tensor];
    const size_t offset = begin + done - (ends_[tensor] - view.count);
    const size_t piece = std::min(n - done, view.count - offset);
    if (piece == 0) continue;  // an empty tensor
    visit(view, offset, piece, done);
    done += piece;
  }
}

template <int kLaneBits, typename Convert>
void Operation::sum_lanes(const TensorView& view, size_t offset, size_t lane_count, uint8_t* lanes,
                          Convert convert) const {
  convert(at(view.input, offset, type_), lanes);
  if (more_inputs_.empty()) return;
  alignas(64) uint8_t more[NETSUM_MAX_PAYLOAD];
  NETSUM_ASSERT(lane_count * (kLaneBits / 8) <= sizeof more);
  for (const void* input : more_inputs_) {
    convert(at(input, offset, type_), more);
    const bool overflow = kLaneBits == 16   ? kernels::add_lanes16(lanes, more, lane_count)
                          : kLaneBits == 32 ? kernels::add_lanes32(lanes, more, lane_count)
                                            : kernels::add_lanes64(lanes, more, lane_count);
    NETSUM_ASSERT(!overflow);  // excluded by the scales, as in the aggregator
  }
}

kernels::BlockScale Operation::scan(size_t begin, size_t n) const {
  kernels::BlockScale block;
  const auto add = [&](const void* input, size_t offset, size_t piece) {
    const kernels::BlockScale part = kernels::scan(type_, at(input, offset, type_), piece, members_);
    block.exponent = std::max(block.exponent, part.exponent);
    block.wide = std::max(block.wide, part.wide);
  };
  for_each_piece(begin, n, [&](const TensorView& view, size_t offset, size_t piece, size_t) {
    add(view.input, offset, piece);
    for (const void* input : more_inputs_) add(input, offset, piece);
  });
  return block;
}

void Operation::to_narrow_lanes(size_t begin, size_t n, uint8_t exponent, uint8_t* lanes) const {
  for_each_piece(begin, n, [&](const TensorView& view, size_t offset, size_t piece, size_t done) {
    if (type_ == DataType::kInt64) {
      sum_lanes<64>(view, offset, piece, lanes + done * 8,
                    [&](const uint8_t* in, uint8_t* to) { std::copy_n(in, piece * 8, to); });
    } else if (narrow_lane_bytes_ == 2) {
      sum_lanes<16>(view, offset, piece, lanes + done * 2, [&](const uint8_t* in, uint8_t* to) {
        kernels::to_lanes16(type_, in, piece, exponent, members_, to);
      });
    } else {
      sum_lanes<32>(view, offset, piece, lanes + done * 4, [&](const uint8_t* in, uint8_t* to) {
        kernels::to_lanes32(type_, in, piece, exponent, members_, to);
      });
    }
  });
}

void Operation::to_wide_lanes(size_t begin, size_t n, uint8_t exponent, uint8_t* lanes) const {
  for_each_piece(begin, n, [&](const TensorView& view, size_t offset, size_t piece, size_t done) {
    if (wide_lane_bytes() == 4) {
      sum_lanes<32>(view, offset, piece, lanes + done * 4, [&](const uint8_t* in, uint8_t* to) {
        kernels::to_wide_lanes32(type_, in, piece, exponent, members_, to);
      });
    } else {
      sum_lanes<64>(view, offset, piece, lanes + done * 8, [&](const uint8_t* in, uint8_t* to) {
        kernels::to_lanes64(type_, in, piece, exponent, members_, to);
      });
    }
  });
}

void Operation::to_half_lanes(size_t begin, size_t n, int half, uint8_t* lanes) const {
  for_each_piece(begin, n, [&](const TensorView& view, size_t offset, size_t piece, size_t done) {
    sum_lanes<64>(view, offset, piece, lanes + done * 8, [&](const uint8_t* in, uint8_t* to) {
      kernels::int64_to_half_lanes(reinterpret_cast<const int64_t*>(in), piece, half, to);
    });
  });
}

void Operation::from_narrow_lanes(const uint8_t* lanes, size_t begin, size_t n, uint8_t exponent) const {
  for_each_piece(begin, n, [&](const TensorView& view, size_t offset, size_t piece, size_t done) {
    uint8_t* out = at(view.output, offset, type_);
    if (type_ == DataType::kInt64) {
      std::copy_n(lanes + done * 8, piece * 8, out);
    } else if (narrow_lane_bytes_ == 2) {
      kernels::from_lanes16(type_, lanes + done * 2, piece, exponent, members_, op_ == ReduceOp::kAvg, out);
    } else {
      kernels::from_lanes32(type_, lanes + done * 4, piece, exponent, members_, op_ == ReduceOp::kAvg, out);
    }
  });
}

bool Operation::from_wide_lanes(const uint8_t* lanes, size_t begin, size_t n, uint8_t exponent) const {
  bool fits = true;
  for_each_piece(begin, n, [&](const TensorView& view, size_t offset, size_t piece, size_t done) {
    uint8_t* out = at(view.output, offset, type_);
    if (wide_lane_bytes() == 4) {
      kernels::from_wide_lanes32(type_, lanes + done * 4, piece, exponent, members_, op_ == ReduceOp::kAvg,
                                 out);
    } else {
      fits &= kernels::from_lanes64(type_, lanes + done * 8, piece, exponent, members_, op_ == ReduceOp::kAvg,
                                    out);
    }
  });
  return fits;
}

bool Operation::from_half_lanes(const uint8_t* low, const uint8_t* high, size_t begin, size_t n) const {
  bool fits = true;
  for_each_piece(begin, n, [&](const TensorView& view, size_t offset, size_t piece, size_t done) {
    fits &= kernels::int64_from_half_lanes(low + done * 8, high + done * 8, piece,
                                           static_cast<int64_t*>(view.output) + offset);
  });
  return fits;
}

void Operation::copy_in(size_t begin, size_t n, uint8_t* to) const {
  for_each_piece(begin, n, [&](const TensorView& view, size_t offset, size_t piece, size_t done) {
    std::memcpy(to + done * size_of(type_), at(view.input, offset, type_), piece * size_of(type_));
  });
}

void Operation::copy_out(const uint8_t* from, size_t begin, size_t n) const {
  for_each_piece(begin, n, [&](const TensorView& view, size_t offset, size_t piece, size_t done) {
    kernels::copy_out(at(view.output, offset, type_), from + done * size_of(type_), piece * size_of(type_));
  });
}

}  // namespace netsum
