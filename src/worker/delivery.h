// Which results of an operation with watermarks lie in the outputs, as seen by one core. Results come in any order. Each costs a
// byte here; the prefix moves on once in a burst. Thread rule: one thread.
#ifndef NETSUM_SRC_WORKER_DELIVERY_H_
#define NETSUM_SRC_WORKER_DELIVERY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace netsum {

class Delivery {
 public:
  // Of chunks of `per_chunk` elements each, but for the last. `before`: elements that had been delivered when the operation began.
  Delivery(size_t elements, size_t per_chunk, size_t before)
      : elements_(elements),
        per_chunk_(per_chunk),
        before_(before),
        results_((elements + per_chunk - 1) / per_chunk) {}

  // A result of the chunk that begins with this element, which has so many.
  void note(size_t begin, uint8_t results) {
    uint8_t& of_chunk = results_[begin / per_chunk_];
    if (++of_chunk == results) of_chunk = kAll;
  }
  bool had(size_t end) const { return end <= before_; }

  // Goes on over chunks that are delivered, or of which passes(chunk) says that nothing has to be. Returns the end of the prefix,
  // in elements.
  template <typename Passes>
  size_t advance(const Passes& passes) {
    while (next_ < results_.size() && (results_[next_] == kAll || passes(next_))) ++next_;
    return std::min(elements_, next_ * per_chunk_);
  }

 private:
  static constexpr uint8_t kAll = UINT8_MAX;

  const size_t elements_, per_chunk_, before_;
  std::vector<uint8_t> results_;  // by chunk: how many are in the outputs
  size_t next_ = 0;               // the first chunk of which not all are
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_DELIVERY_H_
