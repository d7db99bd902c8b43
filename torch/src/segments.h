// Tensors of an accelerator that are staged by segments: while the network sums the first ones, the next are copied to the
// host, and results are copied back.
#ifndef NETSUM_TORCH_SRC_SEGMENTS_H_
#define NETSUM_TORCH_SRC_SEGMENTS_H_

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/status.h"
#include "netsum/watermarks.h"
#include "torch/src/staging.h"

namespace netsum::torch_backend {

// The copies of one operation. `available` is the input that has been copied to the host, in the order of the tensors;
// `delivered` is what can be copied back.
//
// Threads: one brings the input, another the results. Both may go on after the operation has failed: the tensors and the
// memory live as long as this object.
class Segments : public std::enable_shared_from_this<Segments> {
 public:
  // A tensor and its memory of the host, both of one dimension and one type.
  struct Staged {
    at::Tensor there, here;
    bool reads = false;
  };

  // `tensors`: in the order of their addresses in `block`. Their input is there after `ready`, and is multiplied by `factor`.
  // `reads_first`: results overwrite input, so none are copied back before all input has been read.
  Segments(LanePtr lane, std::shared_ptr<StagingPool::Block> block, EventPtr ready,
           std::vector<Staged> tensors, std::optional<double> factor, bool reads_first);
  ~Segments();
  Segments(const Segments&) = delete;
  Segments& operator=(const Segments&) = delete;

  // Copies the first segment and waits until it is there. Throws what the device reports, as do all methods that copy.
  Status bring_first(const Patience& patience) { return bring(patience); }
  // For the operation on `parts`, in the host's memory, which must be submitted at once. on_delivered() is called, and what it
  // refers to kept, as long as this object lives, not as long as the operation.
  std::shared_ptr<Watermarks> begin(std::vector<BufferView> parts, Watermarks::OnDelivered on_delivered);
  // Copies all segments. Ends the operation if that is impossible.
  void bring_rest(const Patience& patience);

  // Copies results to the device, without waiting: those of the parts below `delivered`.
  void return_results(size_t delivered);
  // The operation has succeeded.
  void return_all() {
    all_read_ = true;
    return_results(total_);
  }

 private:
  // An event after copies to the host, and where they end.
  struct Copied {
    EventPtr event;
    const std::byte* end;
  };

  Status bring(const Patience& patience);
  void enqueue_segment();
  void scale(const std::byte* end);
  void raise_available();
  void return_memory(const std::byte* from, size_t bytes);

  const LanePtr lane_;
  const std::shared_ptr<StagingPool::Block> block_;
  const EventPtr ready_;
  const std::vector<Staged> tensors_;
  const std::optional<double> factor_;
  std::atomic<bool> all_read_;  // results may be copied back

  // Set by begin().
  std::shared_ptr<Watermarks> watermarks_;
  std::vector<BufferView> parts_;
  Watermarks::OnDelivered on_delivered_;
  size_t total_ = 0;

  // Of the thread that brings the input.
  size_t tensor_ = 0, element_ = 0;          // the next to be copied
  std::deque<Copied> in_flight_;             // at most kAhead
  size_t scaled_tensor_ = 0, scaled_ = 0;    // the next to be multiplied
  const std::byte* there_until_ = nullptr;   // the input below is in the host's memory
  size_t input_part_ = 0, input_begin_ = 0;  // the first part whose input is not all there

  // Of the thread that returns the results: the place up to which they have been.
  size_t output_part_ = 0, output_begin_ = 0, output_offset_ = 0;
};

}  // namespace netsum::torch_backend

#endif  // NETSUM_TORCH_SRC_SEGMENTS_H_
