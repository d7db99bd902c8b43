// Inputs that every rank can recompute, and the check of the sums made from them.
#ifndef NETSUM_TOOLS_NETSUM_BENCH_DATA_H_
#define NETSUM_TOOLS_NETSUM_BENCH_DATA_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "netsum/types.h"

namespace netsum::tool {

// Which tensor of the run: each has other contents.
struct TensorId {
  int iteration = 0;
  int index = 0;  // among those in flight
};

// How the magnitudes of floating-point elements change from one iteration to the next. Predicted scales depend on it.
enum class BenchPattern {
  kVaried,  // all by powers of two: no scale recurs
  kSteady,  // not at all: all scales recur
  kNormal,  // normally distributed elements, whose deviation grows by an eighth: like gradients. float32 only
};

struct Verdict {
  uint64_t wrong = 0;           // elements outside the bound, of those checked
  double worst_error = 0;       // largest |result - expected|, floating point only
  double squared_error = 0;     // the sum of |result - expected|^2, of what is lossy only
  double squared_expected = 0;  // the sum of |expected|^2
  std::string first_wrong;      // "element 17: got 1.5, expected 2"
  uint64_t checksum = 0;        // of all of the result's bytes: equal on all ranks
};

class BenchData {
 public:
  // `lane_bits` as CommunicatorOptions::lane_bits. Integers know kVaried only.
  BenchData(DataType type, ReduceOp op, int world_size, uint64_t seed, int lane_bits = 0,
            BenchPattern pattern = BenchPattern::kVaried)
      : type_(type),
        op_(op),
        world_size_(world_size),
        seed_(seed),
        lane_bits_(lane_bits),
        pattern_(pattern),
        dropped_bits_(dropped_bits()) {}

  // What `rank` contributes to tensor `id`.
  void fill(int rank, TensorId id, void* out, size_t count) const;
  // Recomputes every rank's contribution to the elements from `first` to before `last`, sums them exactly and
  // compares: integers must be equal, floating point within the bound of docs/numerics.md.
  Verdict verify(TensorId id, const void* result, size_t count, size_t first, size_t last) const;
  Verdict verify(TensorId id, const void* result, size_t count) const {
    return verify(id, result, count, 0, count);
  }

  // What a compressed mean of elements [first, last) has lost; what is not finite is wrong.
  Verdict verify_lossy(TensorId id, const float* result, size_t count, size_t first, size_t last) const;

  // Compares elements [first, last) of `result` with the bytes that `from` contributes to them.
  Verdict verify_moved(int from, TensorId id, const void* result, size_t first, size_t last) const;

 private:
  int dropped_bits() const;
  uint64_t stream(int rank, TensorId id) const;
  // `stream` is that of the rank and `id`.
  int64_t steps(uint64_t stream, TensorId id, size_t element) const;
  int scale_of(TensorId id) const;
  // The sums over all ranks of the elements from `first` on, as steps.
  void sum_steps(TensorId id, size_t first, std::span<int64_t> sums) const;
  double step_size(TensorId id) const;
  // Of a sum: `absolute` + |expected| x `relative`.
  struct Tolerance {
    double absolute = 0;
    double relative = 0;
  };
  Tolerance tolerance(TensorId id) const;

  DataType type_;
  ReduceOp op_;
  int world_size_;
  uint64_t seed_;
  int lane_bits_;
  BenchPattern pattern_;
  int dropped_bits_;  // of 64 random ones, so that the rest is an element's number of steps
};

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_BENCH_DATA_H_
