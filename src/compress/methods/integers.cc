// Methods that round elements to integers of a scale that all ranks share. lanes8, int8, int4, thc: of each block; qsgd,
// terngrad: of the tensor.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "src/compress/accumulating.h"
#include "src/compress/finite.h"
#include "src/compress/method.h"
#include "src/compress/methods/common_options.h"
#include "src/compress/methods/fields.h"
#include "src/compress/random.h"
#include "src/kernels/levels.h"
#include "src/kernels/select.h"

namespace netsum::compress {
namespace {

// thc: where a normal distribution is cut off, in standard deviations: 1/32 of it is beyond.
constexpr double kClipDeviations = 2.1539;

// Of a method whose integers add up in 8 bits, whatever the number of ranks: for more than 127, the fields are wider.
uint32_t levels_in_8_bits(int ranks) {
  return std::max(1u, 127u / static_cast<uint32_t>(ranks));
}

// Integers from -levels to levels of a block's scale. A scale of each rank, as in the papers, could not be added: all ranks agree on the
// largest. thc cuts rotated blocks off at a bound of the block; the paper takes the norm of the whole tensor, and a table of levels, which
// would save bytes only at aggregators that look codes up.
class Integers : public AccumulatingCompressor {
 public:
  struct Form {
    std::string_view name;
    uint32_t levels = 0;  // 0: levels_in_8_bits()
    bool is_clipped = false, is_nearest = false, is_rotated = false;
    size_t block = 0;  // elements; at most kMostBlock if they are rotated
    uint64_t seed = 0;
  };
  explicit Integers(const Form& form) : form_(form) {}

  std::string_view name() const override { return form_.name; }
  CompressorTraits traits() const override {
    const bool is_biased = form_.is_nearest || form_.is_clipped;
    return {.additivity = Additivity::kInteger, .biased = is_biased, .needs_memory = form_.is_clipped};
  }
  PayloadShape shape(const CompressionContext& context, size_t count) const override {
    return {.type = DataType::kInt32, .count = fields(context).lanes(travelling(count))};
  }

  size_t agreed_values(const CompressionContext& /*context*/, size_t count) const override {
    return blocks(count);
  }
  // Of each block, the largest magnitude or, if values beyond a bound are cut off, that bound.
  void agree(const CompressionContext& context, std::span<const float> values, float* mine) const override {
    const Random random = signs(context);
    for (size_t b = 0; b < blocks(values.size()); ++b) mine[b] = scale_of(values, b, random);
  }
  void agree_added(const CompressionContext& context, float decay, std::span<const float> gradient,
                   float* memory, float* copy, float* mine) const override {
    const Random random = signs(context);
    const std::span<const float> values(memory, gradient.size());
    for (size_t b = 0; b < blocks(values.size()); ++b) {
      const size_t begin = b * form_.block;
      const size_t size = std::min(form_.block, values.size() - begin);
      std::copy_n(memory + begin, size, copy + begin);
      kernels::accumulate(decay, gradient.data() + begin, size, memory + begin);
      mine[b] = scale_of(values, b, random);  // while the block is in the cache
    }
  }

  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> agreed, float* residual, void* payload,
                float* /*side*/) const override {
    const Random sign = signs(context);
    const Random random({form_.seed, context.tensor, context.step, static_cast<uint64_t>(context.rank)});
    const uint32_t levels = levels_of(context);
    Block block;
    fields(context).pack(travelling(values.size()), static_cast<int32_t*>(payload),
                         [&](size_t begin, size_t n, int32_t* codes) {
                           for_each_piece(begin, n, values.size(), [&](const Piece& piece) {
                             const float* from = values.data() + piece.begin;
                             if (form_.is_rotated) {
                               if (piece.is_first) load(values, piece.block, sign, block.data());
                               from = block.data() + piece.in_block;
                             }
                             int32_t* const of_piece = codes + (piece.begin - begin);
                             const float scale = agreed[piece.block];
                             round(from, piece, scale, levels, random, of_piece);
                             if (residual == nullptr) return;
                             if (form_.is_rotated) {
                               decode(of_piece, piece.count, levels, scale, block.data() + piece.in_block);
                               if (piece.is_last) keep(values, piece.block, sign, block, scale, residual);
                             } else {
                               keep_rest(from, of_piece, piece, levels, scale, residual + piece.begin);
                             }
                           });
                         });
  }

  void decompress(const CompressionContext& context, std::span<const float> agreed, const void* payload,
                  const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const Random sign = signs(context);
    const uint64_t divisor = uint64_t{levels_of(context)} * static_cast<uint64_t>(contributions);
    Block block;
    fields(context).unpack(
        travelling(out.size()), static_cast<const int32_t*>(payload),
        [&](size_t begin, size_t n, const int32_t* sums) {
          for_each_piece(begin, n, out.size(), [&](const Piece& piece) {
            float* const to = form_.is_rotated ? block.data() + piece.in_block : out.data() + piece.begin;
            decode(sums + (piece.begin - begin), piece.count, divisor, agreed[piece.block], to);
            if (!form_.is_rotated || !piece.is_last) return;
            unrotate(piece.block, sign, block.data());
            const size_t first = piece.block * form_.block;
            std::copy_n(block.data(), std::min(form_.block, out.size() - first), out.data() + first);
          });
        });
  }

 private:
  using Block = std::array<float, kMostBlock>;
  // Consecutive elements of one block.
  struct Piece {
    size_t begin, count;
    size_t block, in_block;  // the block's number, and the first element's in it
    bool is_first, is_last;  // of the block's pieces
  };

  uint32_t levels_of(const CompressionContext& context) const {
    return form_.levels != 0 ? form_.levels : levels_in_8_bits(context.ranks);
  }
  Fields fields(const CompressionContext& context) const {
    return Fields::of_signed(levels_of(context), context.ranks);
  }
  size_t blocks(size_t count) const { return count == 0 ? 0 : (count - 1) / form_.block + 1; }
  // A rotated block has all of its elements also at the end of the tensor.
  size_t travelling(size_t count) const { return form_.is_rotated ? blocks(count) * form_.block : count; }

  template <class Body>
  void for_each_piece(size_t begin, size_t n, size_t count, const Body& body) const {
    const size_t all = travelling(count);
    for (const size_t end = begin + n; begin < end;) {
      const size_t b = begin / form_.block, first = b * form_.block;
      const size_t size = std::min(form_.block, all - first);
      const size_t here = std::min(end, first + size) - begin;
      body(Piece{begin, here, b, begin - first, begin == first, begin + here == first + size});
      begin += here;
    }
  }

  // NaN, which no maximum hides, if a value is not finite.
  float scale_of(std::span<const float> values, size_t b, const Random& random) const {
    const size_t begin = b * form_.block;
    const size_t size = std::min(form_.block, values.size() - begin);
    if (!form_.is_rotated) return kernels::largest_magnitude(values.data() + begin, size);
    Block block;
    load(values, b, random, block.data());
    const float largest = kernels::largest_magnitude(block.data(), form_.block);
    if (!form_.is_clipped || !std::isfinite(largest)) return largest;
    double squares = 0;
    for (size_t i = 0; i < form_.block; ++i)
      squares += static_cast<double>(block[i]) * static_cast<double>(block[i]);
    const double deviation = std::sqrt(squares / static_cast<double>(form_.block));
    return std::min(largest, static_cast<float>(kClipDeviations * deviation));
  }

  static bool is_usable(float scale) { return std::isfinite(scale) && scale > 0; }
  void round(const float* values, const Piece& piece, float scale, uint32_t levels, const Random& random,
             int32_t* codes) const {
    if (!is_usable(scale)) {
      std::fill_n(codes, piece.count, 0);
    } else if (form_.is_nearest) {
      kernels::to_nearest_levels(values, piece.count, scale, levels, codes);
    } else {
      const uint64_t bits = random.at(piece.begin >> 32);
      const kernels::RandomKey key = {static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32)};
      const auto first = static_cast<uint32_t>(piece.begin);
      kernels::to_random_levels(values, piece.count, scale, levels, key, first, codes);
    }
  }
  // A scale that is not finite makes all of its block so.
  static void decode(const int32_t* sums, size_t n, uint64_t divisor, float scale, float* out) {
    kernels::from_levels(sums, n, static_cast<float>(divisor), scale, out);
  }
  static void keep_rest(const float* values, const int32_t* codes, const Piece& piece, uint32_t levels,
                        float scale, float* rest) {
    if (std::isfinite(scale)) {
      kernels::rest_of_levels(values, codes, piece.count, static_cast<float>(levels), scale, rest);
    } else {  // nothing useful has been sent: all of it remains
      if (rest != values) std::copy_n(values, piece.count, rest);
      clear_not_finite(rest, piece.count);
    }
  }

  // The same on all ranks.
  Random signs(const CompressionContext& context) const {
    return Random({~form_.seed, context.tensor, context.step});
  }
  void flip(size_t b, const Random& sign, float* block) const {
    constexpr size_t kWords = kMostBlock / 64;
    std::array<uint64_t, kWords> bits;
    const size_t words = (form_.block + 63) / 64;
    for (size_t w = 0; w < words; ++w) bits[w] = sign.at(b * words + w);
    kernels::flip_signs(block, form_.block, bits.data());
  }
  // y = H D x / sqrt(n): D are random signs, H is Hadamard's matrix. Lengths stay.
  void load(std::span<const float> values, size_t b, const Random& sign, float* block) const {
    const size_t begin = b * form_.block;
    const size_t size = std::min(form_.block, values.size() - begin);
    const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(form_.block)));
    for (size_t i = 0; i < size; ++i) block[i] = values[begin + i] * factor;
    std::fill(block + size, block + form_.block, 0.0f);
    flip(b, sign, block);
    kernels::hadamard(block, form_.block);
  }
  void unrotate(size_t b, const Random& sign, float* block) const {
    const auto factor = static_cast<float>(1 / std::sqrt(static_cast<double>(form_.block)));
    for (size_t i = 0; i < form_.block; ++i) block[i] *= factor;
    kernels::hadamard(block, form_.block);
    flip(b, sign, block);
  }
  // `sent` is a rotated block as it is received.
  void keep(std::span<const float> values, size_t b, const Random& sign, Block& sent, float scale,
            float* residual) const {
    const size_t begin = b * form_.block;
    const size_t size = std::min(form_.block, values.size() - begin);
    float* const rest = residual + begin;
    const float* const from = values.data() + begin;
    if (std::isfinite(scale)) {
      unrotate(b, sign, sent.data());
      for (size_t i = 0; i < size; ++i) rest[i] = from[i] - sent[i];
    } else {
      if (rest != from) std::copy_n(from, size, rest);
      clear_not_finite(rest, size);
    }
  }

  Form form_;
};

}  // namespace

namespace methods {

namespace {

constexpr Option kBlockOfScale = {.name = "block",
                                  .range = "between 1 and 4096, a power of two if blocks are rotated",
                                  .help = kBlock.help,
                                  .allows = [](const CompressionOptions& o) {
                                    return is_block(o.block) && (!o.rotated || std::has_single_bit(o.block));
                                  }};
constexpr Option kRotatedBlock = {
    .name = "block",
    .range = kBlockOfScale.range,
    .help = kBlock.help,
    .allows = [](const CompressionOptions& o) { return is_block(o.block) && std::has_single_bit(o.block); }};
constexpr Option kRotated = {.name = "rotated",
                             .help =
                                 "every block is multiplied by random signs and Hadamard's matrix first, "
                                 "which evens out outliers (Suresh et al., ICML 2017)"};
constexpr Option kLevels = {
    .name = "levels",
    .range = "between 1 and 32767",
    .help = "levels on either side of zero, before they are summed: 7 are 4 bits, 127 are 8",
    .allows = [](const CompressionOptions& o) { return o.levels >= 1 && o.levels <= 32767; }};

// lanes8, int8, int4: with a memory rounded to nearest.
CompressorPtr of_blocks(std::string_view name, uint32_t levels, const CompressionOptions& options,
                        bool has_memory) {
  return std::make_shared<Integers>(Integers::Form{.name = name,
                                                   .levels = levels,
                                                   .is_nearest = has_memory,
                                                   .is_rotated = options.rotated,
                                                   .block = options.block,
                                                   .seed = options.seed});
}
CompressorPtr of_the_tensor(std::string_view name, uint32_t levels, const CompressionOptions& options) {
  return std::make_shared<Integers>(Integers::Form{
      .name = name, .levels = levels, .block = std::numeric_limits<size_t>::max(), .seed = options.seed});
}
// What is rounded to nearest without a rotation has no random numbers.
void forget_seed(CompressionOptions& options) {
  if (options.memory != "none" && !options.rotated) options.seed = CompressionOptions().seed;
}

}  // namespace

extern constexpr Method kLanes8 = {
    .name = "lanes8",
    .memory = "residual",
    .options = {&kBlockOfScale, &kRotated, &kSeed},
    .make = [](const CompressionOptions& o,
               bool has_memory) { return of_blocks("lanes8", 0, o, has_memory); },
    .canonical = forget_seed,
    .examples = {"", "memory=none"},
    .sends = "127 / N levels on either side of zero, per block",
    .bytes = "n + 4 n / block, for up to 127 ranks",
    .when = "a quarter of the bytes of float32, both ways",
    .formula = "s / L · (L x / s to nearest), L = max(1, ⌊127 / N⌋); without memory rounded at random",
    .bound =
        "off by at most s / (2 L); without memory unbiased, variance at most s² / (4 L²), off by less than s "
        "/ L, and "
        "levels stay exact"};

extern constexpr Method kInt8 = {
    .name = "int8",
    .memory = "residual",
    .options = kLanes8.options,
    .make = [](const CompressionOptions& o,
               bool has_memory) { return of_blocks("int8", 127, o, has_memory); },
    .canonical = forget_seed,
    .sends = "as `lanes8`, L = 127",
    .bytes = "10.7 n / 8 at N = 4, 16 n / 8 at 8; + 4 n / block",
    .when = "more exact than `lanes8`"};

extern constexpr Method kInt4 = {
    .name = "int4",
    .memory = "residual",
    .options = kLanes8.options,
    .make = [](const CompressionOptions& o, bool has_memory) { return of_blocks("int4", 7, o, has_memory); },
    .canonical = forget_seed,
    .examples = {"", "rotated=true"},
    .sends = "as `lanes8`, L = 7",
    .bytes = "6.4 n / 8 at N = 4, 8 n / 8 at 8, up to N = 18; + 4 n / block",
    .when = "16 bits are too many; `rotated` for outliers"};

extern constexpr Method kThc = {
    .name = "thc",
    .memory = "residual",
    .options = {&kRotatedBlock, &kSeed},
    .make = [](const CompressionOptions& o, bool) -> CompressorPtr {
      return std::make_shared<Integers>(Integers::Form{.name = "thc",
                                                       .levels = 7,
                                                       .is_clipped = true,
                                                       .is_rotated = true,
                                                       .block = o.block,
                                                       .seed = o.seed});
    },
    .examples = {"block=1024"},
    .sends = "rotated blocks, cut off, rounded at random to 7 levels",
    .bytes = "as `int4`",
    .when = "as `int4` with `rotated`",
    .formula =
        "R⁻¹ of `lanes8` with L = 7, at random, of y = R x cut off at s: 2.15 times the largest root mean "
        "square of the "
        "block "
        "(Li et al., NSDI 2024)",
    .bound = "each element of y within s is off by less than s / L"};

extern constexpr Method kQsgd = {
    .name = "qsgd",
    .options = {&kLevels, &kSeed},
    .make = [](const CompressionOptions& o, bool) { return of_the_tensor("qsgd", o.levels, o); },
    .sends = "rounded at random to `levels`",
    .bytes = "6.4 n / 8 at N = 4; 8 n / 8 at 8",
    .when = "no memory is wanted; tensors have no outliers",
    .formula =
        "s / L · (L x / s, rounded at random), s of the tensor (Alistarh et al., NeurIPS 2017: a norm)",
    .bound = "unbiased; off by less than s / L; variance at most s² / (4 L²)"};

extern constexpr Method kTernGrad = {
    .name = "terngrad",
    .options = {&kSeed},
    .make = [](const CompressionOptions& o, bool) { return of_the_tensor("terngrad", 1, o); },
    .canonical =
        [](CompressionOptions& o) {
          o.method = "qsgd";
          o.levels = 1;
        },
    .sends = "as `qsgd`, L = 1 (Wen et al., NeurIPS 2017)",
    .bytes = "4 n / 8 at N = 4; 5.3 n / 8 at 8",
    .when = "a baseline: noisy"};

}  // namespace methods

}  // namespace netsum::compress
