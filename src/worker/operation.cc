#include "src/worker/operation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/assert.h"
#include "wire/packet.h"

namespace netsum {
namespace {

// Of two bytes per block the first is the exponent.
uint8_t exponent_of(const uint8_t* scales, size_t block) {
  return scales[2 * block];
}

// Changes with what lanes and scales mean, so that ranks whose releases differ in it do not add: to them,
// these are different operations.
constexpr uint64_t kEncoding = 1;

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
  uint64_t hash = netsum_mix64(number ^ static_cast<uint64_t>(type) << 56 ^ static_cast<uint64_t>(op) << 48 ^
                               static_cast<uint64_t>(narrow_lane_bytes_) << 40 ^ kEncoding << 32);
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

size_t Operation::block_of(size_t begin, size_t element) const {
  if (!is_floating(type_)) return 0;
  size_t block = 0;
  auto end = std::upper_bound(ends_.begin(), ends_.end(), begin);
  for (size_t begins = begin; *end <= element; ++end) {
    if (*end > begins) ++block;  // not an empty tensor
    begins = *end;
  }
  return block;
}

std::vector<size_t> Operation::block_sizes(size_t begin, size_t n) const {
  std::vector<size_t> sizes;
  for_each_piece(begin, n, [&](const Piece& piece) {
    if (piece.block == sizes.size()) sizes.push_back(0);
    sizes.back() += piece.count;
  });
  return sizes;
}

template <typename Visit>
void Operation::for_each_piece(size_t begin, size_t n, Visit visit) const {
  NETSUM_ASSERT(begin + n <= count_);
  size_t tensor = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
  const bool has_exponents = is_floating(type_);
  size_t block = 0;
  for (size_t done = 0; done < n; ++tensor) {
    const TensorView& view = tensors_[tensor];
    const size_t offset = begin + done - (ends_[tensor] - view.count);
    const size_t count = std::min(n - done, view.count - offset);
    if (count == 0) continue;  // an empty tensor
    visit(Piece{view, offset, count, done, block});
    done += count;
    if (has_exponents) ++block;
  }
}

const uint8_t* Operation::input_of(const Piece& piece) const {
  return static_cast<const uint8_t*>(piece.view.input) + piece.offset * size_of(type_);
}

const uint8_t* Operation::input_of(const Piece& piece, const void* more_inputs) const {
  return static_cast<const uint8_t*>(more_inputs) +
         (input_of(piece) - static_cast<const uint8_t*>(tensors_.front().input));
}

uint8_t* Operation::output_of(const Piece& piece) const {
  return static_cast<uint8_t*>(piece.view.output) + piece.offset * size_of(type_);
}

template <int kLaneBits, typename Convert>
void Operation::sum_lanes(const Piece& piece, uint8_t* lanes, Convert convert) const {
  convert(input_of(piece), lanes);
  if (more_inputs_.empty()) return;
  alignas(64) uint8_t more[NETSUM_MAX_PAYLOAD];
  NETSUM_ASSERT(piece.count * (kLaneBits / 8) <= sizeof more);
  for (const void* inputs : more_inputs_) {
    convert(input_of(piece, inputs), more);
    const bool overflow = kLaneBits == 16   ? kernels::add_lanes16(lanes, more, piece.count)
                          : kLaneBits == 32 ? kernels::add_lanes32(lanes, more, piece.count)
                                            : kernels::add_lanes64(lanes, more, piece.count);
    NETSUM_ASSERT(!overflow);  // excluded by the scales, as in the aggregator
  }
}

void Operation::scan(size_t begin, size_t n, uint8_t* scales) const {
  std::fill_n(scales, 2 * blocks(begin, n), uint8_t{0});
  for_each_piece(begin, n, [&](const Piece& piece) {
    uint8_t* scale = scales + 2 * piece.block;
    const auto add = [&](const void* input) {
      const kernels::BlockScale part = kernels::scan(type_, input, piece.count, members_);
      scale[0] = std::max(scale[0], part.exponent);
      scale[1] = std::max(scale[1], part.wide);
    };
    add(input_of(piece));
    for (const void* inputs : more_inputs_) add(input_of(piece, inputs));
  });
}

bool Operation::any_wide(const uint8_t* scales, size_t blocks) {
  uint8_t wide = 0;
  for (size_t block = 0; block < blocks; ++block) wide |= scales[2 * block + 1];
  return wide != 0;
}

void Operation::to_narrow_lanes(size_t begin, size_t n, const uint8_t* scales, uint8_t* lanes) const {
  for_each_piece(begin, n, [&](const Piece& piece) {
    const uint8_t exponent = exponent_of(scales, piece.block);
    if (type_ == DataType::kInt64) {
      sum_lanes<64>(piece, lanes + piece.done * 8,
                    [&](const uint8_t* in, uint8_t* to) { std::copy_n(in, piece.count * 8, to); });
    } else if (narrow_lane_bytes_ == 2) {
      sum_lanes<16>(piece, lanes + piece.done * 2, [&](const uint8_t* in, uint8_t* to) {
        kernels::to_lanes16(type_, in, piece.count, exponent, members_, to);
      });
    } else {
      sum_lanes<32>(piece, lanes + piece.done * 4, [&](const uint8_t* in, uint8_t* to) {
        kernels::to_lanes32(type_, in, piece.count, exponent, members_, to);
      });
    }
  });
}

void Operation::to_wide_lanes(size_t begin, size_t n, const uint8_t* scales, uint8_t* lanes) const {
  for_each_piece(begin, n, [&](const Piece& piece) {
    const uint8_t exponent = exponent_of(scales, piece.block);
    if (wide_lane_bytes() == 4) {
      sum_lanes<32>(piece, lanes + piece.done * 4, [&](const uint8_t* in, uint8_t* to) {
        kernels::to_wide_lanes32(type_, in, piece.count, exponent, members_, to);
      });
    } else {
      sum_lanes<64>(piece, lanes + piece.done * 8, [&](const uint8_t* in, uint8_t* to) {
        kernels::to_lanes64(type_, in, piece.count, exponent, members_, to);
      });
    }
  });
}

void Operation::to_half_lanes(size_t begin, size_t n, int half, uint8_t* lanes) const {
  for_each_piece(begin, n, [&](const Piece& piece) {
    sum_lanes<64>(piece, lanes + piece.done * 8, [&](const uint8_t* in, uint8_t* to) {
      kernels::int64_to_half_lanes(reinterpret_cast<const int64_t*>(in), piece.count, half, to);
    });
  });
}

void Operation::from_narrow_lanes(const uint8_t* lanes, size_t begin, size_t n, const uint8_t* scales) const {
  const bool average = op_ == ReduceOp::kAvg;
  for_each_piece(begin, n, [&](const Piece& piece) {
    const uint8_t exponent = exponent_of(scales, piece.block);
    uint8_t* out = output_of(piece);
    if (type_ == DataType::kInt64) {
      std::copy_n(lanes + piece.done * 8, piece.count * 8, out);
    } else if (narrow_lane_bytes_ == 2) {
      kernels::from_lanes16(type_, lanes + piece.done * 2, piece.count, exponent, members_, average, out);
    } else {
      kernels::from_lanes32(type_, lanes + piece.done * 4, piece.count, exponent, members_, average, out);
    }
  });
}

bool Operation::from_wide_lanes(const uint8_t* lanes, size_t begin, size_t n, const uint8_t* scales) const {
  const bool average = op_ == ReduceOp::kAvg;
  bool fits = true;
  for_each_piece(begin, n, [&](const Piece& piece) {
    const uint8_t exponent = exponent_of(scales, piece.block);
    const uint8_t* from = lanes + piece.done * wide_lane_bytes();
    uint8_t* out = output_of(piece);
    if (wide_lane_bytes() == 4) {
      kernels::from_wide_lanes32(type_, from, piece.count, exponent, members_, average, out);
    } else {
      fits &= kernels::from_lanes64(type_, from, piece.count, exponent, members_, average, out);
    }
  });
  return fits;
}

bool Operation::from_half_lanes(const uint8_t* low, const uint8_t* high, size_t begin, size_t n) const {
  bool fits = true;
  for_each_piece(begin, n, [&](const Piece& piece) {
    fits &= kernels::int64_from_half_lanes(low + piece.done * 8, high + piece.done * 8, piece.count,
                                           reinterpret_cast<int64_t*>(output_of(piece)));
  });
  return fits;
}

void Operation::copy_in(size_t begin, size_t n, uint8_t* to) const {
  for_each_piece(begin, n, [&](const Piece& piece) {
    std::memcpy(to + piece.done * size_of(type_), input_of(piece), piece.count * size_of(type_));
  });
}

void Operation::copy_out(const uint8_t* from, size_t begin, size_t n) const {
  for_each_piece(begin, n, [&](const Piece& piece) {
    kernels::copy_out(output_of(piece), from + piece.done * size_of(type_), piece.count * size_of(type_));
  });
}

}  // namespace netsum
