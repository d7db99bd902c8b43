// Compressed all-reduces as sequences of ordinary collectives.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "netsum/compression.h"
#include "netsum/sparse.h"

namespace netsum {
namespace {

constexpr size_t rounded_up(size_t bytes) {
  // Parts begin where any element type may.
  return (bytes + 7) / 8 * 8;
}

// How many bytes each rank sends, of which this rank sends `mine`. In `sizes`, one for each rank.
Status gather_sizes(Communicator& communicator, uint64_t mine, std::vector<uint64_t>& sizes,
                    const CollectiveOptions& options) {
  const auto ranks = static_cast<size_t>(communicator.world_size());
  const auto rank = static_cast<size_t>(communicator.rank());
  sizes.resize(ranks);
  sizes[rank] = mine;
  std::vector<BufferView> parts(ranks);
  for (size_t r = 0; r < ranks; ++r)
    parts[r] = {.input = r == rank ? &sizes[r] : nullptr, .output = &sizes[r], .bytes = sizeof(uint64_t)};
  return communicator.all_gather(parts, options).wait();
}

Status no_payload(size_t rank) {
  return {ErrorCode::kMismatch,
          "compressed_all_reduce: rank " + std::to_string(rank) +
              " has sent what is no payload of the tensor: its compression or its version of netsum differs",
          static_cast<int>(rank)};
}

// The side values of each rank, and behind them its payload.
Status gather(Communicator& communicator, CompressedTensor& tensor, const PayloadShape& shape, float* output,
              CompressionBuffers& buffers, const CollectiveOptions& options) {
  const size_t side_bytes = shape.side_values * sizeof(float);
  const size_t payload_at = rounded_up(side_bytes);
  const auto ranks = static_cast<size_t>(communicator.world_size());
  const auto rank = static_cast<size_t>(communicator.rank());
  size_t payload_bytes = shape.count * size_of(shape.type);
  if (shape.varies) std::memcpy(&payload_bytes, buffers.payloads.data(), sizeof payload_bytes);
  std::vector<uint64_t>& sizes = buffers.sizes;
  const size_t mine = payload_at + rounded_up(payload_bytes);
  sizes.assign(ranks, mine);
  if (shape.varies) {
    const Status status = gather_sizes(communicator, mine, sizes, options);
    if (!status.ok()) return status;
    for (size_t r = 0; r < ranks; ++r)
      if (sizes[r] < payload_at + sizeof(uint64_t) || sizes[r] > payload_at + rounded_up(shape.count))
        return no_payload(r);
  }
  // This rank's part is behind those that arrive.
  const size_t all = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  if (buffers.payloads.size() < all + mine) buffers.payloads.resize(all + mine);
  std::byte* const from = buffers.payloads.data() + all;
  std::memmove(from + payload_at, buffers.payloads.data(), payload_bytes);
  if (side_bytes > 0) std::memcpy(from, buffers.numbers.data(), side_bytes);
  std::vector<BufferView> parts(ranks);
  std::byte* to = buffers.payloads.data();
  for (size_t r = 0; r < ranks; ++r) {
    parts[r] = {.input = r == rank ? from : nullptr, .output = to, .bytes = sizes[r]};
    to += sizes[r];
  }
  const Status status = communicator.all_gather(parts, options).wait();
  if (!status.ok()) return status;
  const std::byte* at = buffers.payloads.data();
  for (size_t r = 0; r < ranks && shape.varies; ++r) {
    uint64_t used = 0;
    std::memcpy(&used, at + payload_at, sizeof used);
    if (used < sizeof used || used > sizes[r] - payload_at) return no_payload(r);
    at += sizes[r];
  }
  // Added in the order of the ranks, so that all have the same bits.
  const size_t count = tensor.count();
  if (buffers.numbers.size() < shape.side_values + count) buffers.numbers.resize(shape.side_values + count);
  float* const part_side = buffers.numbers.data();
  float* const part = part_side + shape.side_values;
  std::fill_n(output, count, 0.0f);
  at = buffers.payloads.data();
  for (size_t r = 0; r < ranks; ++r) {
    if (side_bytes > 0) std::memcpy(part_side, at, side_bytes);
    tensor.decompress(at + payload_at, part_side, 1, part);
    for (size_t i = 0; i < count; ++i) output[i] += part[i];
    at += sizes[r];
  }
  for (size_t i = 0; i < count; ++i) output[i] /= static_cast<float>(ranks);
  return {};
}

// Averages the side values, each with a scale of its own.
Status average_side(Communicator& communicator, std::span<float> side, const ReduceOptions& options) {
  if (side.empty()) return {};
  std::vector<TensorView> views;
  for (float& value : side) views.push_back({.input = &value, .output = &value, .count = 1});
  return communicator.all_reduce(views, options).wait();
}

Status all_reduce_once(Communicator& communicator, const Compression& compression, CompressedTensor& tensor,
                       const float* input, float* output, CompressionBuffers& buffers,
                       std::chrono::milliseconds timeout) {
  const uint32_t tag = tensor.tag();
  const PayloadShape shape = tensor.shape();
  const size_t agreed_values = tensor.agreed_values();
  const size_t payload_bytes = shape.count * size_of(shape.type);
  if (buffers.payloads.size() < payload_bytes) buffers.payloads.resize(payload_bytes);
  if (buffers.numbers.size() < std::max(agreed_values, shape.side_values))
    buffers.numbers.resize(std::max(agreed_values, shape.side_values));
  float* const numbers = buffers.numbers.data();
  if (agreed_values > 0) {
    tensor.agree(input, numbers);
    const ReduceOp op =
        compression.compressor().agreement() == Agreement::kMax ? ReduceOp::kMax : ReduceOp::kAvg;
    const Status status = communicator
                              .all_reduce({.input = numbers, .output = numbers, .count = agreed_values},
                                          {.op = op, .timeout = timeout, .tag = tag})
                              .wait();
    if (!status.ok()) return status;
  }
  void* const payload = buffers.payloads.data();
  tensor.compress(input, numbers, payload, numbers);
  const TensorView view{.input = payload, .output = payload, .count = shape.count};
  Status status;
  int contributions = 1;
  switch (compression.path()) {
    case CompressionPath::kGather:
      return gather(communicator, tensor, shape, output, buffers, {.timeout = timeout, .tag = tag});
    case CompressionPath::kUnion:
      status =
          sparse_all_reduce(communicator, view,
                            {.op = ReduceOp::kAvg, .mode = SparseMode::kOn, .timeout = timeout, .tag = tag})
              .wait();
      break;
    case CompressionPath::kDense: {
      const bool is_float = is_floating(shape.type);
      if (!is_float) contributions = communicator.world_size();
      const ReduceOptions options{.type = shape.type,
                                  .op = is_float ? ReduceOp::kAvg : ReduceOp::kSum,
                                  .timeout = timeout,
                                  .tag = tag};
      status = communicator.all_reduce(view, options).wait();
      break;
    }
  }
  if (status.ok())
    status = average_side(communicator, {numbers, shape.side_values},
                          {.op = ReduceOp::kAvg, .timeout = timeout, .tag = tag});
  if (status.ok()) tensor.decompress(payload, numbers, contributions, output);
  return status;
}

}  // namespace

Status compressed_all_reduce(Communicator& communicator, const Compression& compression,
                             CompressedTensor& tensor, const float* input, float* output,
                             CompressionBuffers& buffers, std::chrono::milliseconds timeout) {
  const Status status = all_reduce_once(communicator, compression, tensor, input, output, buffers, timeout);
  if (!status.ok()) tensor.give_up();
  return status;
}

// The steps are gathered, because verified jobs have no maxima.
Status agree_on_steps(Communicator& communicator, std::span<CompressedTensor* const> tensors,
                      std::chrono::milliseconds timeout) {
  const auto ranks = static_cast<size_t>(communicator.world_size());
  const auto rank = static_cast<size_t>(communicator.rank());
  const size_t count = tensors.size();
  std::vector<uint64_t> steps(ranks * count);
  for (size_t i = 0; i < count; ++i) steps[rank * count + i] = tensors[i]->step();
  std::vector<BufferView> parts(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    uint64_t* const part = steps.data() + r * count;
    parts[r] = {.input = r == rank ? part : nullptr, .output = part, .bytes = count * sizeof(uint64_t)};
  }
  const Status status = communicator.all_gather(parts, {.timeout = timeout}).wait();
  if (!status.ok()) return status;
  for (size_t i = 0; i < count; ++i) {
    uint64_t largest = 0;
    for (size_t r = 0; r < ranks; ++r) largest = std::max(largest, steps[r * count + i]);
    tensors[i]->set_ranks(static_cast<int>(rank), static_cast<int>(ranks));
    if (largest != tensors[i]->step()) tensors[i]->set_step(largest);
  }
  return status;
}

Status check_same_on_all_ranks(Communicator& communicator, std::string_view text,
                               std::chrono::milliseconds timeout) {
  const auto ranks = static_cast<size_t>(communicator.world_size());
  const auto rank = static_cast<size_t>(communicator.rank());
  std::vector<uint64_t> sizes;
  Status status = gather_sizes(communicator, text.size(), sizes, {.timeout = timeout});
  if (!status.ok()) return status;
  std::vector<BufferView> parts(ranks);
  std::vector<std::string> texts(ranks);
  texts[rank] = text;
  for (size_t r = 0; r < ranks; ++r) {
    texts[r].resize(sizes[r]);
    parts[r] = {.input = texts[r].data(), .output = texts[r].data(), .bytes = sizes[r]};
  }
  status = communicator.all_gather(parts, {.timeout = timeout}).wait();
  if (!status.ok()) return status;
  for (size_t r = 1; r < ranks; ++r)
    if (texts[r] != texts[0])
      return {ErrorCode::kMismatch,
              "rank " + std::to_string(r) + " has '" + texts[r] + "', and rank 0 has '" + texts[0] +
                  "'; all ranks must have the same settings",
              static_cast<int>(r)};
  return {};
}

}  // namespace netsum
