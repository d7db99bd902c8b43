// The built-in compressors. Each function checks the options that its method has; the message of an error begins with the
// name of the option. `has_memory`: the residual is kept, so a method that has a biased and an unbiased form takes the biased
// one, which is a contraction: |x - C(x)|^2 <= (1 - d) |x|^2 with d > 0, the condition under which error feedback converges
// (Karimireddy et al., ICML 2019). docs/compression.md has the formulas.
#ifndef NETSUM_SRC_COMPRESS_METHODS_H_
#define NETSUM_SRC_COMPRESS_METHODS_H_

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "netsum/compression.h"
#include "src/kernels/kernels.h"

namespace netsum::compress {

using MadeCompressor = Result<std::shared_ptr<const Compressor>>;

// "none": float32 as it is. "fp16", "bf16": rounded to nearest even; the relative error is at most 2^-11 and 2^-8. float16 has
// values up to 65504 only, and loses relative precision below 2^-14; what is beyond becomes infinite.
MadeCompressor make_identity();
MadeCompressor make_half(DataType type);

// "topk": the k elements with the largest magnitudes. Aji and Heafield, EMNLP 2017; Stich, Cordonnier and Jaggi, NeurIPS 2018:
// a contraction with d = k / n. Of equal magnitudes, the elements in front are sent. Elements that are not finite are always
// sent. With `sampled`, the number of elements is approximate where a sample is large enough, and otherwise exact.
MadeCompressor make_top_k(const CompressionOptions& options);
// "threshold": the elements of at least a given magnitude t. Strom, Interspeech 2015; Sahu et al., NeurIPS 2021: not a
// contraction, but the error is absolutely bounded, |x - C(x)|^2 < n t^2.
MadeCompressor make_threshold(const CompressionOptions& options);

// "sidco": the elements of at least a threshold, which follows from the moments of the magnitudes. Abdelmoniem et al., MLSys 2021. A
// stage takes the magnitudes above the threshold of the stage before as distributed exponentially, or by a generalised Pareto or a gamma
// distribution, and finds the threshold that a share of them exceeds. The first of M stages passes 25 %, and each other one
// (4 k / n)^(1 / (M - 1)). M is log10(n / k) at first, rounded, and changes every 5 steps if on average more or less than k elements were sent, by more than 20 %.
// The number of elements is approximate: no contraction is promised, but at least the largest element is sent, so d >= 1 / n. Zeros are not part of the sample.
MadeCompressor make_sidco(const CompressionOptions& options);

// "randomk": k random elements, the same on all ranks, so that their values alone travel and can be added. Stich et al. as
// above. One element is chosen in each of k consecutive strata, whose sizes are n / k rounded down or up. With a memory: a
// contraction in expectation with d = 1 / ceil(n / k). Without one, each value is multiplied by the size of its stratum,
// which makes it unbiased: E C(x) = x, E |x - C(x)|^2 <= (ceil(n / k) - 1) |x|^2.
MadeCompressor make_random_k(const CompressionOptions& options, bool has_memory);

// "countsketch": 5 rows of 10 k sums of elements with random signs, each element in one random cell of every row, the same on all ranks.
// Charikar, Chen and Farach-Colton, ICALP 2002; for gradients FetchSGD, Rothchild et al., ICML 2020. Sketches add up. Of the sum, the median of an
// element's five cells estimates it, and the k largest estimates are taken. Every rank keeps its tensor less what was taken, so that nothing is
// lost; FetchSGD keeps the same in sketched form. The estimate of one row is unbiased, with a variance of at most |x|^2 / (10 k).
MadeCompressor make_count_sketch(const CompressionOptions& options);

// "efsign": the signs, and one scale, the mean magnitude: C(x) = sign(x) |x|_1 / n. Karimireddy et al., ICML 2019: a contraction
// with d = |x|_1^2 / (n |x|_2^2). A scale of each rank could not be added; so the ranks average their scales s_r to s, and
// each takes s for its residual. Summed over N ranks, the residuals still contract:
// sum_r |x_r - s sign(x_r)|^2 = sum_r |x_r|^2 - N n s^2.
MadeCompressor make_ef_sign();
// "onebit": the signs, and two scales, the mean of the elements that are not negative and that of the others. Seide et al., Interspeech
// 2014, where every column has two of its own. As above, the scales s+ and s- are those of all ranks together, so the residuals
// contract: sum_r |x_r - s|^2 = sum_r |x_r|^2 - N n (p s+^2 + (1 - p) s-^2), where p is the share of +.
MadeCompressor make_one_bit();
// "signsgd": the sign of the sum of signs: +1, -1, or 0 where the votes are equal. Bernstein et al., ICML 2018.
MadeCompressor make_sign_vote();

// "qsgd": levels of a scale s that the ranks agree on, the largest magnitude on any rank; rounded up or down at random, so that
// the expected value is x. Alistarh et al., NeurIPS 2017, with the maximum for the norm, and one scale instead of one for each
// rank, whose levels could not be added. E C(x) = x; every element is off by less than s / levels, with a variance of at most
// s^2 / (4 levels^2). "terngrad": one level: -s, 0 and s (Wen et al., NeurIPS 2017, without clipping).
inline constexpr uint32_t kMostLevels = 32767;
MadeCompressor make_levels(std::string_view name, const CompressionOptions& options);

// "blocktopk": the blocks whose norms have the largest means over the ranks: all ranks send the same. ARC-top-k (arXiv 2510.26709) and others
// choose them in this way. On one rank a contraction with d = k / n.
MadeCompressor make_block_top_k(const CompressionOptions& options);

// "powersgd": a matrix P Q^T of low rank. Vogels, Karimireddy and Jaggi, NeurIPS 2019. The ranks average P = M Q, with the Q
// of the step before (a warm start), make its columns orthonormal, and average Q = M^T P. What remains, (I - P P^T) M, is never
// longer than M. Tensors of one row are sent as they are.
inline constexpr uint32_t kMostRank = 1024;
MadeCompressor make_power_sgd(const CompressionOptions& options);

// "lanes8", "int8", "int4": integers of up to L on either side of zero, for each block of a scale of its own, the largest magnitude s on
// any rank. L is 127 for "int8" and 7 for "int4", whose fields grow with the number of ranks; for "lanes8" it is 127 / N (at least 1), so
// that sums of up to 127 ranks have 8 bits. With a memory, rounded to nearest: no element is off by more than s / (2 L). Without one,
// rounded at random (stochastic rounding): E C(x) = x, and no element is off by s / L or more. With `rotated`, Hadamard's matrix and random signs spread every
// element over its block first (Suresh et al., ICML 2017), which makes blocks with outliers more even.
// "thc": THC with uniform levels (Li et al., NSDI 2024): rotated blocks, whose elements are then near a normal distribution, cut
// off at 2.15 standard deviations, and rounded at random to 4 bits. The scale is the largest on any rank. The paper takes the
// norm of the tensor; here every block has its own.
// "thc_table": THC with its table: 16 of the integers from -15 to 15, denser around zero, and no other. Each element becomes one of the two beside it, at random. The sums
// have as many bits as those of all 31 integers, whose error is less; the table saves bytes only towards aggregators that look codes up.
inline constexpr size_t kMostBlock = 4096;
Status check_block(const CompressionOptions& options);
MadeCompressor make_integers(std::string_view name, const CompressionOptions& options, bool has_memory);

// "natural": powers of two, rounded up or down at random: E C(x) = x, and E |x - C(x)|^2 <= |x|^2 / 8 (Horvath et al., 2019). With a
// memory, rounded to the nearest: no element is off by more than a third of itself, so d = 8 / 9. The paper's exponent has 8 bits; here
// it has 7 below that of the largest element of a rank, so that an element takes a byte. What is below the least of these 126 powers becomes
// it or 0 in the same way; what is beyond 2^127 becomes 2^127.
MadeCompressor make_natural(const CompressionOptions& options, bool has_memory);

// "u8bit": 8 bits for each element: a sign, a decimal exponent of 0 to -6 by the position of the first 1, and a linear fraction in the bits
// behind it. Dettmers, ICLR 2016 (dynamic tree); with a scale for each block, as in Dettmers et al., ICLR 2022 (block-wise). No element is off by more than 0.71 % of
// the largest magnitude of its block, nor by more than itself; the largest one is exact.
// "fp8_e4m3", "fp8_e5m2": floating-point numbers of 8 bits (Micikevicius et al., arXiv 2209.05433), with 3 or 2 bits behind the 1, and a scale for each block, whose
// largest magnitude becomes the largest number. Rounded to the nearest, halves towards zero. No element is off by more than 2^-4 (2^-3) of itself
// or, where numbers are subnormal, by more than half the smallest one: 2^-10 / 448 (2^-17 / 57344) of the largest magnitude. They cannot be added: codes are not evenly spaced, and as
// multiples of the smallest number they have 18 (32) bits without their sign.
MadeCompressor make_byte_numbers(std::string_view name, const CompressionOptions& options);

// "inceptionn": 0, 8, 16 or 32 bits for each element, so that none is off by more than an error bound. Li et al., MICRO 2018,
// where 16 bits are 2^-15 and more is only for numbers from 1. Here the integers of 8 and 16 bits are multiples of twice the bound.
MadeCompressor make_inceptionn(const CompressionOptions& options);

// "sketch": the numbers of quantile buckets, and their means. Jiang et al., SIGMOD 2018 (SketchML). Quantiles are those of a sample
// of at most 4096 elements, means those of all: |x - C(x)|^2 = |x|^2 - sum of n_b m_b^2 over the buckets.
MadeCompressor make_quantile_sketch(const CompressionOptions& options);

// "adaq": of the positive elements a share of the largest ones, as their mean, and of the negative ones as well. Dryden et al., MLHPC
// 2016. |x - C(x)|^2 = |x|^2 - k+ m+^2 - k- m-^2. Equal magnitudes are sent all or not at all.
MadeCompressor make_adaptive_levels(const CompressionOptions& options);

// "chunktopk": the k largest elements of every chunk, as a sign and one of two magnitudes: the mean of those up to the mean of the k, and
// that of the others. SparseLoCo (Sarfi et al., 2025) sends 64 of 4096 elements in 2 bits each in this way, as the changes of weights between
// local steps. Indices within chunks take log2(n / k) + 2 bits. |x - C(x)|^2 = |x|^2 - sum of count * mean^2 over all magnitudes.
MadeCompressor make_chunk_top_k(const CompressionOptions& options);

// "dcttopk": the k largest coefficients of the discrete cosine transform of every chunk. DeMo (Peng et al., 2024), whose residual decays,
// divides a sum by the number of ranks that sent the coefficient, as `count_senders` does; otherwise it is divided by that of all, so the result is a mean. The
// transform is orthonormal: a contraction with d = k / n.
inline constexpr size_t kMostDctBlock = 256;
MadeCompressor make_dct_top_k(const CompressionOptions& options);

// How many of n elements k or a share are; 1 to n. 0 of 0.
size_t elements_to_send(size_t n, uint64_t k, double ratio);
// ratio and k of CompressionOptions.
Status check_share(const CompressionOptions& options);

inline bool all_finite(std::span<const float> values) {
  return kernels::scan(DataType::kFloat32, values.data(), values.size(), 1).wide == 0;
}
// Clears what is not finite; returns whether there was any such element.
inline bool clear_not_finite(float* values, size_t n) {
  if (all_finite({values, n})) return false;
  for (size_t i = 0; i < n; ++i)
    if (!std::isfinite(values[i])) values[i] = 0;
  return true;
}

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_METHODS_H_
