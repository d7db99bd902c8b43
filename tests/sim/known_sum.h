// A sum of whole numbers whose result is known, for programs of simulated ranks.
#ifndef NETSUM_TESTS_SIM_KNOWN_SUM_H_
#define NETSUM_TESTS_SIM_KNOWN_SUM_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/worker/operation.h"

namespace netsum {

class KnownSum {
 public:
  KnownSum(size_t elements, int rank) : rank_(rank), input_(elements), output_(elements) {
    for (size_t i = 0; i < elements; ++i) input_[i] = static_cast<int32_t>(i % 1000) * (rank + 1);
  }

  // Of the first elements.
  OperationSpec spec(size_t elements) {
    OperationSpec spec;
    spec.type = DataType::kInt32;
    spec.tensors = {{input_.data(), output_.data(), elements}};
    spec.role.rank = rank_;
    return spec;
  }
  // Whether the result of all elements is there, of so many ranks; looks at one element of 97.
  bool is_right(int ranks) const {
    for (size_t i = 0; i < output_.size(); i += 97)
      if (output_[i] != static_cast<int32_t>(i % 1000) * ranks * (ranks + 1) / 2) return false;
    return true;
  }

 private:
  const int rank_;
  std::vector<int32_t> input_, output_;
};

}  // namespace netsum

#endif  // NETSUM_TESTS_SIM_KNOWN_SUM_H_
