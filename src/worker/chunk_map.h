// Which stripe sums which chunk of an operation, the same on every rank.
//
// Stripes take chunks in a fixed order, the period, that repeats: chunk i of operation n goes to stripe
// period[(i + n) mod length]. In the period each stripe has a number of positions in proportion to its weight, spread
// evenly: among the first p positions, for every p, its number differs from its share of p by less than one.
// Operations begin at different positions, so that small operations also use all stripes. With equal weights the
// period is 0, 1, ..., stripes - 1.
//
// All lookups take O(1) or O(log(length)). Thread rule: immutable.
#ifndef NETSUM_SRC_WORKER_CHUNK_MAP_H_
#define NETSUM_SRC_WORKER_CHUNK_MAP_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace netsum {

class ChunkMap {
 public:
  // Longer periods, from weights without a small ratio, are rounded to this length (or to the number of stripes with
  // chunks, if that is larger); a weight above 0 keeps at least one position.
  static constexpr size_t kMaxPeriod = 16384;

  // All weights equal. `stripes` > 0.
  explicit ChunkMap(size_t stripes);
  // One weight per stripe, at least one of them not 0. A stripe of weight 0 gets no chunks.
  explicit ChunkMap(std::span<const uint32_t> weights);

  size_t stripes() const { return places_.size(); }

  // Of operation `number`: the stripe of chunk `chunk`.
  size_t stripe_of(uint64_t number, size_t chunk) const {
    return period_[(chunk + start(number)) % length()];
  }
  // How many of its first `chunks` chunks `stripe` has.
  size_t count(uint64_t number, size_t chunks, size_t stripe) const;
  // The chunk number `index` of those that `stripe` has. The stripe's weight is not 0.
  size_t chunk(uint64_t number, size_t stripe, size_t index) const;

  // 0 if all weights are equal; otherwise different for different maps.
  uint64_t signature() const { return signature_; }
  // For tests and reports.
  std::span<const uint16_t> period() const { return period_; }

 private:
  size_t length() const { return period_.size(); }
  size_t start(uint64_t number) const { return static_cast<size_t>(number % length()); }
  // How many of the first `end` positions of the repeated period are the stripe's.
  size_t places_before(size_t stripe, size_t end) const;
  uint64_t sign() const;

  std::vector<uint16_t> period_;               // [position]: stripe
  std::vector<std::vector<uint16_t>> places_;  // [stripe]: its positions in the period, ascending
  uint64_t signature_ = 0;
};

// An order of `count` chunks in which those of `parts` equal parts take turns, as a permutation: the chunk at place `n`.
// Were parts sent one after the other, the link of one rank after the other would be loaded, of the rank that owns the part,
// and an operation in the other direction would find one of them busy at any time.
constexpr size_t take_turns(size_t n, size_t count, size_t parts) {
  const size_t rows = count / parts, longer = count % parts;
  const size_t part = n < rows * parts ? n % parts : n - rows * parts;
  return part * rows + std::min(part, longer) + (n < rows * parts ? n / parts : rows);
}

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_CHUNK_MAP_H_
