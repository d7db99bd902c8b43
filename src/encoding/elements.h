// The tensors of an operation as one sequence of elements, and ranges of it.
//
// Thread rule: immutable.
#ifndef NETSUM_SRC_ENCODING_ELEMENTS_H_
#define NETSUM_SRC_ENCODING_ELEMENTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/types.h"
#include "src/base/assert.h"

namespace netsum {

// What a range of elements has of one tensor; not empty.
struct Run {
  const uint8_t* input;  // the values in the first input
  uint8_t* output;
  size_t count;        // elements
  size_t done;         // elements of the range before these
  size_t index;        // of this run among those of the range
  uint64_t tensor_id;  // TensorView::id
  size_t offset;       // of the first element in its tensor
  size_t tensor;       // its index in the operation
};

class TensorSequence {
 public:
  // `more_inputs`: further inputs of the same elements. The tensors then lie one behind the other in memory, as these
  // do. `first_offset`: where in its tensor the first view begins, if it is a part of one.
  TensorSequence(DataType type, std::vector<TensorView> tensors, std::vector<const void*> more_inputs = {},
                 size_t first_offset = 0)
      : type_(type),
        tensors_(std::move(tensors)),
        more_inputs_(std::move(more_inputs)),
        first_offset_(first_offset) {
    if (tensors_.size() != 1) ends_.reserve(tensors_.size());
    for (const TensorView& tensor : tensors_) {
      count_ += tensor.count;
      if (tensors_.size() != 1) ends_.push_back(count_);
    }
  }

  DataType type() const { return type_; }
  size_t count() const { return count_; }  // elements of all tensors together
  size_t inputs() const { return 1 + more_inputs_.size(); }
  const std::vector<TensorView>& tensors() const { return tensors_; }

  // Which run of a range that starts at `begin` holds `element`.
  size_t run_of(size_t begin, size_t element) const {
    if (tensors_.size() == 1) return 0;
    size_t run = 0;
    auto end = std::upper_bound(ends_.begin(), ends_.end(), begin);
    for (size_t begins = begin; *end <= element; ++end) {
      if (*end > begins) ++run;  // not an empty tensor
      begins = *end;
    }
    return run;
  }

  // Calls visit(Run) for each run of elements [begin, begin + n).
  template <typename Visit>
  void for_each_run(size_t begin, size_t n, const Visit& visit) const {
    NETSUM_ASSERT(begin + n <= count_);
    if (tensors_.size() == 1) {  // the frequent case: without a search
      if (n > 0) visit(run_in(0, begin, n, 0, 0));
      return;
    }
    size_t tensor = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
    size_t index = 0;
    for (size_t done = 0; done < n; ++tensor) {
      const TensorView& view = tensors_[tensor];
      const size_t offset = begin + done - (ends_[tensor] - view.count);
      const size_t count = std::min(n - done, view.count - offset);
      if (count == 0) continue;  // an empty tensor
      visit(run_in(tensor, offset, count, done, index++));
      done += count;
    }
  }

  // Calls visit(values) for the run's values in each further input.
  template <typename Visit>
  void for_each_more_input(const Run& run, const Visit& visit) const {
    for (const void* more : more_inputs_)
      visit(static_cast<const uint8_t*>(more) +
            (run.input - static_cast<const uint8_t*>(tensors_.front().input)));
  }

 private:
  // Elements [offset, offset + count) of tensor number `tensor`.
  Run run_in(size_t tensor, size_t offset, size_t count, size_t done, size_t index) const {
    const TensorView& view = tensors_[tensor];
    const auto* from = static_cast<const uint8_t*>(view.input);
    // Null stays null: a rank may have no inputs, or no outputs.
    auto* to = static_cast<uint8_t*>(view.output);
    const size_t bytes = offset * size_of(type_);
    return {from == nullptr ? nullptr : from + bytes,
            to == nullptr ? nullptr : to + bytes,
            count,
            done,
            index,
            view.id,
            offset + (tensor == 0 ? first_offset_ : 0),
            tensor};
  }

  DataType type_;
  std::vector<TensorView> tensors_;
  std::vector<const void*> more_inputs_;
  size_t first_offset_;
  std::vector<size_t> ends_;  // running element count after each tensor; empty if there is one
  size_t count_ = 0;
};

// Elements [begin, begin + count) of a sequence, with their values in all of its inputs.
struct Elements {
  const TensorSequence* sequence = nullptr;
  size_t begin = 0;
  size_t count = 0;

  DataType type() const { return sequence->type(); }
  size_t inputs() const { return sequence->inputs(); }
  size_t runs() const { return count == 0 ? 0 : sequence->run_of(begin, begin + count - 1) + 1; }
  template <typename Visit>
  void for_each_run(const Visit& visit) const {
    sequence->for_each_run(begin, count, visit);
  }
  template <typename Visit>
  void for_each_more_input(const Run& run, const Visit& visit) const {
    sequence->for_each_more_input(run, visit);
  }
};

}  // namespace netsum

#endif  // NETSUM_SRC_ENCODING_ELEMENTS_H_
