// One operation's memory on every rank, its expected result, and the comparison. The expectation is computed independently,
// element by element, from the definition of the numerics: floats are added in the order of the ranks,
// where aggregators can; otherwise the elements of one tensor in a chunk are a block, quantised by the largest exponent in it
// over all ranks.
#ifndef NETSUM_EMULATE_CHECKER_H_
#define NETSUM_EMULATE_CHECKER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "emulate/scenario.h"
#include "netsum/communicator.h"

namespace netsum::emulate {

class OperationMemory {
 public:
  // How floats are added: those of each group of ranks in their order, and then these sums in the order
  // of the groups. No groups: not at all.
  struct Additions {
    std::vector<std::vector<int>> groups;
    bool travel_in_float32 = false;  // whatever their type
    bool of_any_size = false;        // not only of small operations
  };
  // `lane_bits` as in CommunicatorOptions.
  OperationMemory(const OperationPlan& plan, int ranks, int lane_bits, uint32_t payload_bytes, uint64_t seed,
                  Additions additions);

  // The tensors of `rank`, filled with its input.
  std::vector<TensorView> views(int rank);
  // Overwrites the input of `rank`, as far as it contributes, and puts bytes [begin, end) of it back, of all tensors together.
  void poison(int rank);
  void arrive(int rank, size_t begin, size_t end);
  size_t bytes() const { return count_ * element_bytes(); }  // of all tensors
  // Checks what `rank` has received of the first `bytes` of the result. Returns what is wrong, or "".
  std::string check_delivered(int rank, size_t bytes) const;
  // Checks the memory of `rank`: its result if the operation has `ended` there (ok) and it receives one, its inputs if they are
  // separate, and the bytes around them. Returns what is wrong, or "".
  std::string check(int rank, bool ended) const;
  // Checks the expectation itself, if check() has used it, against the true sum and the documented error bound.
  std::string check_bound() const;

  // Element `i` of all tensors together: for tests that choose their own values, before views() is used.
  void set_input(int rank, size_t i, const void* value);
  // The result's element `i` in the memory of `rank`; floating-point types only.
  double result(int rank, size_t i) const;

 private:
  static constexpr size_t kGuardBytes = 64;
  static constexpr uint8_t kGuardByte = 0xA7;
  struct Piece {  // guard, input, guard, and if out of place output and guard
    std::vector<uint8_t> bytes;
    size_t output = 0;  // offset
  };

  size_t element_bytes() const { return size_of(plan_.type); }
  uint8_t* input_of(int rank, size_t i);
  size_t tensor_of(size_t i) const;
  bool contributes(int rank, size_t i) const {
    return roles_[static_cast<size_t>(rank)].contributes(tensor_of(i));
  }
  void fill_element(size_t i);
  void fill_float(size_t i, uint64_t seed);
  void fill_integer(size_t i, uint64_t seed);
  void fill_byte(size_t i, uint64_t seed);
  void load_inputs(size_t begin, size_t end, std::vector<double>* values) const;
  int64_t input_integer(int rank, size_t i) const;
  std::vector<std::pair<size_t, size_t>> blocks() const;  // elements [first, second)
  int quantum_bits() const;
  void expect_floats(size_t begin, size_t end, const std::vector<double>& inputs) const;
  void expect_additions() const;
  std::string check_bound_of_additions() const;
  void expect() const;

  const OperationPlan plan_;
  const int ranks_;
  const int lane_bits_;  // of narrow lanes, as chosen
  const size_t chunk_;   // elements
  const uint64_t seed_;
  std::vector<Role> roles_;  // [rank]
  size_t count_ = 0;
  Additions additions_;                       // of this operation
  std::vector<size_t> ends_;                  // [tensor]: elements up to its end
  std::vector<std::vector<uint8_t>> inputs_;  // [rank]: all tensors, contiguous
  std::vector<std::vector<Piece>> memory_;    // [rank][tensor]
  mutable std::vector<uint8_t> expected_;     // all tensors, contiguous; computed when needed
};

}  // namespace netsum::emulate

#endif  // NETSUM_EMULATE_CHECKER_H_
