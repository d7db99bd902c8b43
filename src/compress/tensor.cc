#include "src/compress/tensor.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "src/compress/accumulating.h"
#include "src/compress/index_coding.h"
#include "src/compress/random.h"
#include "src/compress/sparsifier.h"

namespace netsum::compress {
namespace {

class Tensor : public CompressedTensor {
 public:
  Tensor(std::shared_ptr<const Compressor> compressor, std::unique_ptr<Memory> memory, size_t count,
         const CompressionContext& context, bool is_coded)
      : compressor_(std::move(compressor)),
        sparsifier_(dynamic_cast<const Sparsifier*>(compressor_.get())),
        accumulating_(dynamic_cast<const AccumulatingCompressor*>(compressor_.get())),
        memory_(std::move(memory)),
        count_(count),
        state_(compressor_->state_values(context, count), 0.0f),
        state_copy_(state_),
        context_(context),
        is_union_(compressor_->traits().additivity == Additivity::kSparse),
        late_(compressor_->traits().late_residual),
        is_coded_(is_coded),
        uncoded_(is_coded ? count : 0),
        agreed_(compressor_->agreed_values(context, count), 0.0f) {
    context_.state = state_;
  }

  size_t count() const override { return count_; }
  PayloadShape shape() const override {
    PayloadShape shape = compressor_->shape(context_, count_);
    if (is_coded_)
      shape = {.type = DataType::kByte,
               .count = most_coded_bytes(count_),
               .side_values = shape.side_values,
               .varies = true};
    return shape;
  }
  size_t agreed_values() const override { return agreed_.size(); }

  uint32_t tag() const override {
    return static_cast<uint32_t>(Random({context_.tensor, context_.step}).at(0) >> 32) | 1;
  }

  void agree(const float* gradient, float* mine) override {
    if (has_agreed_) give_up();
    begin();
    has_agreed_ = true;
    if (accumulating_ != nullptr && memory_->decay() != nullptr) {
      values_ = memory_->residual();
      accumulating_->agree_added(context_, *memory_->decay(), {gradient, count_}, memory_->residual(),
                                 memory_->copy(), mine);
      return;
    }
    values_ = memory_->compensate(gradient, context_.ranks);
    compressor_->agree(context_, {values_, count_}, mine);
  }

  void compress(const float* gradient, const float* agreed, void* payload, float* side) override {
    compress_as_it_is(gradient, agreed, is_coded_ ? uncoded_.data() : payload, side);
    if (is_coded_) encode_indices(uncoded_, static_cast<std::byte*>(payload));
  }

  void decompress(const void* payload, const float* side, int contributions, float* out) override {
    CompressionContext compressed = context_;
    if (compressed.step > 0) --compressed.step;
    if (is_coded_) {
      // What is no code must not look like a gradient.
      if (!decode_indices(static_cast<const std::byte*>(payload), uncoded_))
        std::fill(uncoded_.begin(), uncoded_.end(), std::numeric_limits<float>::quiet_NaN());
      payload = uncoded_.data();
    }
    compressor_->decompress(compressed, agreed_, payload, side, contributions, {out, count_},
                            late_ ? memory_->residual() : nullptr);
  }

  uint64_t step() const override { return context_.step; }
  std::vector<CompressionState> state() override {
    std::vector<CompressionState> parts = memory_->state();
    if (!state_.empty()) parts.push_back({"compressor", state_, false});
    return parts;
  }

  Status restore(uint64_t step, std::span<const SavedCompressionState> saved) override {
    const std::vector<CompressionState> mine = state();
    if (saved.size() != mine.size())
      return refused("has " + names_of(saved) + ", and this compression keeps " + names_of(mine));
    for (size_t i = 0; i < mine.size(); ++i) {
      if (saved[i].name != mine[i].name)
        return refused("has " + names_of(saved) + ", and this compression keeps " + names_of(mine));
      if (saved[i].values.size() != mine[i].values.size())
        return refused("has a " + std::string(saved[i].name) + " of " +
                       std::to_string(saved[i].values.size()) + " numbers, and the tensor has " +
                       std::to_string(mine[i].values.size()));
    }
    for (size_t i = 0; i < mine.size(); ++i)
      std::copy(saved[i].values.begin(), saved[i].values.end(), mine[i].values.begin());
    context_.step = step;
    began_ = has_agreed_ = false;
    return {};
  }

  void scale_memory(float factor) override {
    if (has_agreed_) give_up();
    for (const CompressionState& part : memory_->state())
      for (float& value : part.values) value *= factor;
    began_ = false;
  }
  void set_ranks(int rank, int ranks) override {
    if (has_agreed_) give_up();
    context_.rank = rank;
    context_.ranks = ranks;
    agreed_.resize(compressor_->agreed_values(context_, count_));
  }

  void give_up() override {
    if (!began_) return;
    memory_->take_back();
    std::copy(state_copy_.begin(), state_copy_.end(), state_.begin());
    context_.step = step_copy_;
    began_ = has_agreed_ = false;
  }
  void set_step(uint64_t step) override {
    if (has_agreed_) give_up();
    context_.step = step;
    began_ = false;
  }

 private:
  // Keeps what give_up() returns to; the memory does so by itself when the gradient is added.
  void begin() {
    std::copy(state_.begin(), state_.end(), state_copy_.begin());
    step_copy_ = context_.step;
    began_ = true;
  }

  void compress_as_it_is(const float* gradient, const float* agreed, void* payload, float* side) {
    if (!has_agreed_) begin();
    if (sparsifier_ != nullptr && memory_->decay() != nullptr &&
        sparsifier_->compress_added(*memory_->decay(), {gradient, count_}, memory_->residual(),
                                    memory_->copy(), context_, static_cast<float*>(payload))) {
      ++context_.step;
      return;
    }
    // With agreed values, agree() has added the memory. Without a memory, what agree() has seen is the caller's, and may be gone.
    if (!has_agreed_ || memory_->residual() == nullptr)
      values_ = memory_->compensate(gradient, context_.ranks);
    std::copy_n(agreed, agreed_.size(), agreed_.begin());
    compressor_->compress(context_, {values_, count_}, agreed_, memory_->residual(), payload, side);
    memory_->compressed(is_union_ ? static_cast<const float*>(payload) : nullptr);
    has_agreed_ = false;
    ++context_.step;
  }

  static Status refused(const std::string& why) {
    return {ErrorCode::kInvalidArgument, "the saved state " + why};
  }
  template <class Parts>
  static std::string names_of(const Parts& parts) {
    std::string names;
    for (const auto& part : parts) {
      if (!names.empty()) names += ", ";
      names += part.name;
    }
    return names.empty() ? "no memory" : names;
  }

  std::shared_ptr<const Compressor> compressor_;
  const Sparsifier* sparsifier_;                // the compressor, or null
  const AccumulatingCompressor* accumulating_;  // likewise
  std::unique_ptr<Memory> memory_;
  size_t count_;
  std::vector<float> state_, state_copy_;
  uint64_t step_copy_ = 0;
  bool began_ = false;  // give_up() can take a step back
  CompressionContext context_;
  bool is_union_, late_, is_coded_;
  std::vector<float> uncoded_;  // if it is coded: the payload, as long as the tensor
  std::vector<float> agreed_;
  const float* values_ = nullptr;  // that are compressed: with the memory
  bool has_agreed_ = false;        // agree() has been called, and compress() not yet
};

}  // namespace

std::unique_ptr<CompressedTensor> make_tensor(std::shared_ptr<const Compressor> compressor,
                                              std::unique_ptr<Memory> memory, size_t count,
                                              const CompressionContext& context, bool is_coded) {
  return std::make_unique<Tensor>(std::move(compressor), std::move(memory), count, context, is_coded);
}

}  // namespace netsum::compress
