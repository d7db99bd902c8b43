// INCEPTIONN: each element in 0, 8, 16 or 32 bits, as few as an error bound permits.
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "src/compress/bit_stream.h"
#include "src/compress/methods.h"

namespace netsum::compress {
namespace {

constexpr size_t kLengthBytes = sizeof(uint64_t);
constexpr uint32_t kTagBits = 2;
enum Tag : uint32_t { kZero = 0, kByteTag = 1, kWord = 2, kWhole = 3 };
constexpr float kMostInByte = 127;
constexpr float kMostInWord = 32767;

// The payload: its length, the tags of all elements, and behind them what each tag says: nothing, an integer of 8 or 16 bits times twice
// the bound, or the float32 number.
class Inceptionn : public Compressor {
 public:
  explicit Inceptionn(float bound) : step_(2 * bound) {}

  std::string_view name() const override { return "inceptionn"; }
  CompressionPromise promise() const override {
    return {.summability = Summability::kNone, .biased = true, .needs_memory = true};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.type = DataType::kByte, .count = data_at(count) + count * sizeof(float), .varies = true};
  }

  void compress(const CompressionContext& /*context*/, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    auto* const begin = static_cast<std::byte*>(payload);
    BitWriter tags(begin + kLengthBytes);
    std::byte* data = begin + data_at(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = values[i];
      const float steps = std::nearbyint(value / step_);
      const float magnitude = std::fabs(steps);
      float sent = steps * step_;
      if (magnitude == 0) {
        tags.put(kZero, kTagBits);
        sent = 0;
      } else if (magnitude <= kMostInByte) {
        tags.put(kByteTag, kTagBits);
        data = put(data, static_cast<int8_t>(steps));
      } else if (magnitude <= kMostInWord) {
        tags.put(kWord, kTagBits);
        data = put(data, static_cast<int16_t>(steps));
      } else {  // also what is not finite
        tags.put(kWhole, kTagBits);
        data = put(data, value);
        sent = value;
      }
      if (residual != nullptr) residual[i] = std::isfinite(value) ? value - sent : 0;
    }
    tags.finish();
    const auto length = static_cast<uint64_t>(data - begin);
    std::memcpy(begin, &length, sizeof length);
  }

  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const begin = static_cast<const std::byte*>(payload);
    uint64_t length = 0;
    std::memcpy(&length, begin, sizeof length);
    const size_t n = out.size();
    // Bytes of another tensor must not look like a gradient, nor be read beyond their end.
    size_t left = length >= data_at(n) ? length - data_at(n) : 0;
    bool fits = length >= data_at(n);
    BitReader tags(begin + kLengthBytes);
    const std::byte* data = begin + data_at(n);
    for (size_t i = 0; i < n; ++i) {
      const uint32_t tag = fits ? tags.get(kTagBits) : kZero;
      const size_t bytes = tag == kZero ? 0 : size_t{1} << (tag - 1);
      fits = fits && bytes <= left;
      out[i] = fits ? get(data, tag) / static_cast<float>(contributions) : NAN;
      if (!fits) continue;
      data += bytes;
      left -= bytes;
    }
  }

 private:
  static size_t data_at(size_t count) { return kLengthBytes + bytes_of_bits(kTagBits * count); }

  template <class T>
  static std::byte* put(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof value);
    return to + sizeof value;
  }
  float get(const std::byte* from, uint32_t tag) const {
    switch (tag) {
      case kZero:
        return 0;
      case kByteTag:
        return static_cast<float>(taken<int8_t>(from)) * step_;
      case kWord:
        return static_cast<float>(taken<int16_t>(from)) * step_;
      default:
        return taken<float>(from);
    }
  }
  template <class T>
  static T taken(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }

  float step_;
};

}  // namespace

MadeCompressor make_inceptionn(const CompressionOptions& options) {
  const auto bound = static_cast<float>(options.error_bound);
  if (!(bound >= std::numeric_limits<float>::min()) || !std::isfinite(kMostInWord * 2 * bound))
    return Status(ErrorCode::kInvalidArgument,
                  "error_bound is " + std::to_string(options.error_bound) +
                      "; it must be between 2^-126 and 2^111: no element is off by more");
  return std::shared_ptr<const Compressor>(std::make_shared<Inceptionn>(bound));
}

}  // namespace netsum::compress
