#include <algorithm>
#include <cstring>
#include <utility>

#include "src/base/assert.h"
#include "src/kernels/bits.h"
#include "src/kernels/kernels.h"
#include "src/sparse/tensor.h"

namespace netsum::sparse {
namespace {

// So much is read at a time: the elements stay in the nearest caches until those that are not zero are copied.
constexpr uint64_t kScanUnits = uint64_t{1} << 13;
// The elements found are kept while they are at most this part of those read.
constexpr size_t kKeptPart = 8;

class DenseTensor final : public Tensor {
 public:
  DenseTensor(const TensorView& view, DataType type, size_t unit)
      : view_(view),
        type_(type),
        element_(size_of(type)),
        // A longer unit is the whole tensor as well; its multiples could overflow.
        unit_(std::min(unit, std::max<size_t>(view.count, 1))) {}

  DataType type() const override { return type_; }
  uint64_t positions() const override { return view_.count == 0 ? 0 : (view_.count - 1) / unit_ + 1; }
  size_t unit_elements() const override { return unit_; }
  size_t elements(const Segment& segment, const BitSet& set) const override;
  uint64_t count() override;
  void find(const Segment& segment, BitSet* set) override;
  bool pack(const Segment& segment, const BitSet& set, const BitSet& own, uint8_t* values) const override;
  void unpack(const Segment& segment, BitSet* set, std::vector<uint8_t>* values) override;
  Status finish() override { return {}; }
  const TensorView* dense() const override { return &view_; }
  const Status& status() const override { return status_; }

 private:
  const uint8_t* input() const { return static_cast<const uint8_t*>(view_.input); }
  uint8_t* output() const { return static_cast<uint8_t*>(view_.output); }
  // Elements of unit `position`.
  size_t elements_of(uint64_t position) const { return std::min(unit_, view_.count - position * unit_); }
  // The bitmap of the units that are not zero.
  void scan(const Segment& segment);
  // Adds the elements of the words of `set` from number `first` on.
  void keep(const Segment& segment, size_t first, BitSet* set) const;
  // Writes zeros around the units of `set`.
  void clear_around(const Segment& segment, const BitSet& set);

  const TensorView view_;
  const DataType type_;
  const size_t element_;
  const size_t unit_;
  const Status status_;
  std::vector<uint64_t> bitmap_;
  // Negative zeros count as zeros, and the sum of zeros is +0: they must not stay in a tensor that is summed in place.
  bool negative_zeros_ = false;
};

size_t DenseTensor::elements(const Segment& segment, const BitSet& set) const {
  const uint64_t units = set.count();
  if (units == 0 || segment.end != positions()) return units * unit_;
  const uint64_t last = segment.size() - 1;
  const bool has_last =
      set.numbers.back() == last >> kWordShift && (set.words.back() >> (last & (kWordBits - 1)) & 1) != 0;
  return units * unit_ - (has_last ? unit_ - elements_of(segment.end - 1) : 0);
}

void DenseTensor::scan(const Segment& segment) {
  bitmap_.assign(words_for(segment.size()), 0);
  const uint8_t* const begin = input() + segment.begin * unit_ * element_;
  if (unit_ == 1) {
    negative_zeros_ |= kernels::nonzero_bits(type_, begin, segment.size(), bitmap_.data());
    return;
  }
  for (uint64_t u = 0; u < segment.size(); ++u) {
    const uint8_t* const unit = begin + u * unit_ * element_;
    const size_t n = elements_of(segment.begin + u);
    if (kernels::all_zero(type_, unit, n, &negative_zeros_)) continue;
    bitmap_[u >> kWordShift] |= uint64_t{1} << (u & (kWordBits - 1));
  }
}

uint64_t DenseTensor::count() {
  uint64_t count = 0;
  for (uint64_t begin = 0; begin < positions(); begin += kScanUnits) {
    scan({begin, std::min(begin + kScanUnits, positions())});
    count += kernels::count_bits(bitmap_.data(), bitmap_.size());
  }
  return count;
}

void DenseTensor::find(const Segment& segment, BitSet* set) {
  set->clear();
  bool keeps = unit_ == 1;
  for (uint64_t begin = segment.begin; begin < segment.end; begin += kScanUnits) {
    const uint64_t end = std::min(begin + kScanUnits, segment.end);
    scan({begin, end});
    const size_t first = set->size();
    set->add_bitmap((begin - segment.begin) >> kWordShift, bitmap_);
    if (!keeps) continue;
    keep(segment, first, set);
    keeps = set->values.size() <= (end - segment.begin) * element_ / kKeptPart + kScanUnits;
    if (!keeps) set->values.clear();
  }
}

void DenseTensor::keep(const Segment& segment, size_t first, BitSet* set) const {
  const kernels::SetWords added = set->view(first);
  const size_t kept = set->values.size();
  const size_t bytes = kernels::count_bits(added.words, added.count) * element_;
  set->values.resize(kept + bytes + kSlackBytes);
  const uint8_t* const begin = input() + segment.begin * element_;
  kernels::pack(element_, begin, segment.size(), added, set->values.data() + kept);
  set->values.resize(kept + bytes);
}

bool DenseTensor::pack(const Segment& segment, const BitSet& set, const BitSet& own, uint8_t* values) const {
  if (unit_ == 1 && (own.size() == 0 || !own.values.empty()))
    return kernels::spread(element_, own.values.data(), own.view(), set.view(), values);
  const uint8_t* const begin = input() + segment.begin * unit_ * element_;
  if (unit_ == 1) {
    if (!for_each_word(set, own, [](uint64_t, uint64_t, uint64_t) {})) return false;
    kernels::pack(element_, begin, segment.size(), set.view(), values);
    return true;
  }
  return for_each_word(set, own, [&](uint64_t number, uint64_t word, uint64_t) {
    for_each_bit(word, [&](uint64_t bit) {
      const uint64_t position = (number << kWordShift) + bit;
      const size_t bytes = elements_of(segment.begin + position) * element_;
      std::memcpy(values, begin + position * unit_ * element_, bytes);
      values += bytes;
    });
  });
}

void DenseTensor::clear_around(const Segment& segment, const BitSet& set) {
  uint64_t done = segment.begin;
  const auto clear_until = [&](uint64_t position) {
    const size_t begin = done * unit_, end = std::min(position * unit_, view_.count);
    if (begin < end) std::memset(output() + begin * element_, 0, (end - begin) * element_);
    done = position + 1;
  };
  set.for_each([&](uint64_t position) { clear_until(segment.begin + position); });
  clear_until(segment.end);
}

void DenseTensor::unpack(const Segment& segment, BitSet* sums, std::vector<uint8_t>* values) {
  const BitSet& set = *sums;
  if (view_.input != view_.output || negative_zeros_) clear_around(segment, set);
  const uint8_t* from = values->data();
  uint8_t* const begin = output() + segment.begin * unit_ * element_;
  if (unit_ == 1) return kernels::unpack(element_, from, set.view(), begin);
  set.for_each([&](uint64_t position) {
    const size_t bytes = elements_of(segment.begin + position) * element_;
    std::memcpy(begin + position * unit_ * element_, from, bytes);
    from += bytes;
  });
}

}  // namespace

std::unique_ptr<Tensor> make_dense_tensor(const TensorView& view, DataType type, size_t unit) {
  NETSUM_ASSERT(unit > 0);
  return std::make_unique<DenseTensor>(view, type, unit);
}

}  // namespace netsum::sparse
