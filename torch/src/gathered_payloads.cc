#include "torch/src/gathered_payloads.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

namespace netsum::torch_backend {
namespace {

constexpr size_t kAlignment = 8;  // of all element types

size_t rounded_up(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t sent_bytes_of(const GatheredPayloads::Part& part) {
  return part.tensor->get().shape().varies ? used_bytes(part.payload.const_data_ptr(), part.payload.nbytes())
                                           : part.payload.nbytes();
}

}  // namespace

GatheredPayloads::GatheredPayloads(std::vector<Part> parts, int ranks)
    : parts_(std::move(parts)), ranks_(ranks) {
  size_t longest = 0;
  for (Part& part : parts_) {
    part.received.resize(static_cast<size_t>(ranks));
    varies_ = varies_ || part.tensor->get().shape().varies;
    longest = std::max(longest, part.tensor->get().count());
  }
  scratch_ = at::empty({static_cast<int64_t>(longest)}, at::kFloat);
  size_ = at::zeros({1}, at::kLong);
  sizes_ = at::zeros({ranks}, at::kLong);
  grow(0);
}

size_t GatheredPayloads::packed_bytes() const {
  size_t bytes = 0;
  for (const Part& part : parts_) bytes += rounded_up(part.side.nbytes()) + rounded_up(sent_bytes_of(part));
  return bytes;
}

void GatheredPayloads::grow(size_t bytes) {
  if (sent_.defined() && sent_.nbytes() >= bytes) return;
  sent_ = at::zeros({static_cast<int64_t>(bytes)}, at::kByte);
  received_ = at::empty({ranks_ * static_cast<int64_t>(bytes)}, at::kByte);
}

c10::intrusive_ptr<c10d::Work> GatheredPayloads::start(ProcessGroupNetsum& group, uint32_t tag) {
  bytes_ = packed_bytes();
  if (varies_) {
    size_.fill_(static_cast<int64_t>(bytes_));
    group.all_gather_tagged(sizes_, size_, {}, tag)->wait();
    bytes_ = static_cast<size_t>(sizes_.max().item<int64_t>());
  }
  grow(bytes_);
  auto* at = sent_.mutable_data_ptr<uint8_t>();
  const auto pack = [&](const at::Tensor& values, size_t bytes) {
    if (bytes > 0) std::memcpy(at, values.const_data_ptr(), bytes);
    at += rounded_up(bytes);
  };
  for (const Part& part : parts_) {
    pack(part.side, part.side.nbytes());
    pack(part.payload, sent_bytes_of(part));
  }
  at::Tensor all = received_.narrow(0, 0, ranks_ * static_cast<int64_t>(bytes_));
  at::Tensor mine = sent_.narrow(0, 0, static_cast<int64_t>(bytes_));
  return group.all_gather_tagged(all, mine, {}, tag);
}

void GatheredPayloads::arrived() {
  const auto* const all = static_cast<const std::byte*>(received_.const_data_ptr());
  for (size_t rank = 0; rank < static_cast<size_t>(ranks_); ++rank) {
    const std::byte* at = all + rank * bytes_;
    const std::byte* const end = at + bytes_;
    for (Part& part : parts_) {
      const auto* const side = reinterpret_cast<const float*>(at);
      at += rounded_up(part.side.nbytes());
      const bool varies = part.tensor->get().shape().varies;
      const auto left = static_cast<size_t>(std::max<std::ptrdiff_t>(end - at, 0));
      const size_t length = varies ? used_bytes(at, left) : part.payload.nbytes();
      TORCH_CHECK((!varies || length >= sizeof(uint64_t)) && length <= std::min(part.payload.nbytes(), left),
                  "compression: rank ", rank, " sent a payload of ", length, " bytes for ", part.name,
                  ", where there are ", left, " left; its settings or its version of netsum differ");
      part.received[rank] = {.payload = at, .side = side};
      at += rounded_up(length);
    }
  }
}

void GatheredPayloads::average(size_t item, const at::Tensor& out) {
  const auto part =
      std::find_if(parts_.begin(), parts_.end(), [item](const Part& one) { return one.item == item; });
  TORCH_INTERNAL_ASSERT(part != parts_.end());
  const at::Tensor of_rank = scratch_.narrow(0, 0, out.numel());
  out.zero_();
  for (const Part::Received& received : part->received) {
    part->tensor->get().decompress(received.payload, received.side, 1, of_rank.mutable_data_ptr<float>());
    out.add_(of_rank);
  }
  out.div_(ranks_);
}

}  // namespace netsum::torch_backend
