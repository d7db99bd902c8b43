// INCEPTIONN: each element in 0, 8, 16 or 32 bits, as few as an error bound permits.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "src/compress/bit_stream.h"
#include "src/compress/method.h"
#include "src/kernels/codes.h"

namespace netsum::compress {
namespace {

constexpr size_t kLengthBytes = sizeof(uint64_t);
constexpr uint32_t kTagBits = 2;
constexpr float kMostInWord = 32767;
// Of the tags 0 to 3, which are the lengths of to_short_numbers() (src/kernels/codes.h).
constexpr std::array<uint8_t, 4> kBytesOfTag = {0, 1, 2, 4};
static_assert(kPiece % 4 == 0);
static_assert(std::endian::native == std::endian::little);  // the lowest byte of a word comes first

// The paper has 16 bits of 2^-15, and more only for numbers from 1; here the integers are multiples of twice the bound.
// The payload: its length, the tags of all elements, and behind them what each tag says: nothing, an integer of 8 or 16 bits times twice
// the bound, or the float32 number.
class Inceptionn : public Compressor {
 public:
  explicit Inceptionn(const CompressionOptions& options)
      : step_(2 * static_cast<float>(options.error_bound)) {}

  std::string_view name() const override { return "inceptionn"; }
  CompressorTraits traits() const override {
    return {.additivity = Additivity::kNone, .biased = true, .needs_memory = true};
  }
  PayloadShape shape(const CompressionContext& /*context*/, size_t count) const override {
    return {.type = DataType::kByte, .count = data_at(count) + count * sizeof(float), .varies = true};
  }

  void compress(const CompressionContext& /*context*/, std::span<const float> values,
                std::span<const float> /*agreed*/, float* residual, void* payload,
                float* /*side*/) const override {
    auto* const begin = static_cast<std::byte*>(payload);
    std::byte* tag_bytes = begin + kLengthBytes;
    std::byte* data = begin + data_at(values.size());
    std::array<uint8_t, kPiece> tags;
    std::array<uint32_t, kPiece> words;
    for (size_t at = 0; at < values.size(); at += kPiece) {
      const size_t n = std::min(kPiece, values.size() - at);
      kernels::to_short_numbers(values.data() + at, n, step_, tags.data(), words.data(),
                                residual == nullptr ? nullptr : residual + at);
      tag_bytes = pack_bits(tags.data(), n, kTagBits, tag_bytes);
      // Every element may have 4 bytes, so there is room for those that the next one overwrites.
      for (size_t i = 0; i < n; ++i) {
        std::memcpy(data, &words[i], sizeof words[i]);
        data += kBytesOfTag[tags[i]];
      }
    }
    const auto length = static_cast<uint64_t>(data - begin);
    std::memcpy(begin, &length, sizeof length);
  }

  void decompress(const CompressionContext& /*context*/, std::span<const float> /*agreed*/,
                  const void* payload, const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const auto* const begin = static_cast<const std::byte*>(payload);
    uint64_t length = 0;
    std::memcpy(&length, begin, sizeof length);
    const size_t count = out.size();
    if (length < data_at(count)) {  // bytes of another tensor
      std::fill(out.begin(), out.end(), std::numeric_limits<float>::quiet_NaN());
      return;
    }
    const std::byte* tag_bytes = begin + kLengthBytes;
    Numbers numbers{begin + data_at(count), length - data_at(count)};
    std::array<uint8_t, kPiece> tags;
    std::array<uint32_t, kPiece> words;
    for (size_t at = 0; at < count; at += kPiece) {
      const size_t n = std::min(kPiece, count - at);
      tag_bytes = unpack_bits(tag_bytes, n, kTagBits, tags.data());
      numbers.take(n, tags.data(), words.data());
      kernels::from_short_numbers(tags.data(), words.data(), n, step_, static_cast<float>(contributions),
                                  out.data() + at);
    }
  }

 private:
  static size_t data_at(size_t count) { return kLengthBytes + bytes_of_bits(kTagBits * count); }

  // What is behind the tags. Bytes of another tensor must not look like a gradient, nor be read beyond their end: a number that is not
  // there is NaN, and so are all behind it.
  struct Numbers {
    const std::byte* from;
    size_t left;
    bool fits = true;

    void take(size_t n, uint8_t* tags, uint32_t* words) {
      size_t i = 0;
      for (; i < n && fits && left >= sizeof *words; ++i) {
        std::memcpy(&words[i], from, sizeof words[i]);
        from += kBytesOfTag[tags[i]];
        left -= kBytesOfTag[tags[i]];
      }
      for (; i < n; ++i) {
        const size_t bytes = kBytesOfTag[tags[i]];
        fits = fits && bytes <= left;
        words[i] = 0;
        if (fits) {
          std::memcpy(&words[i], from, bytes);
          from += bytes;
          left -= bytes;
        } else {
          tags[i] = kernels::kWholeNumber;
          words[i] = std::bit_cast<uint32_t>(std::numeric_limits<float>::quiet_NaN());
        }
      }
    }
  };

  float step_;
};

}  // namespace

namespace methods {

constexpr Option kErrorBound = {.name = "error_bound",
                                .range = "between 2^-126 and 2^111",
                                .help = "no element is off by more",
                                .allows = [](const CompressionOptions& o) {
                                  const auto bound = static_cast<float>(o.error_bound);
                                  return bound >= std::numeric_limits<float>::min() &&
                                         std::isfinite(kMostInWord * 2 * bound);
                                }};

extern constexpr Method kInceptionn = {
    .name = "inceptionn",
    .memory = "residual",
    .options = {&kErrorBound},
    .make = make_compressor<Inceptionn>,
    .sends = "0, 8, 16 or 32 bits per element",
    .bytes = "n / 4 to 4.25 n",
    .when = "a known absolute error does not matter",
    .formula = "2 e · round(x / (2 e)) in 16 bits, otherwise x; e = `error_bound` (Li et al., MICRO 2018)",
    .bound = "off by at most e"};

}  // namespace methods

}  // namespace netsum::compress
