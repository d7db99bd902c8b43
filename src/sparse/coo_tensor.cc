#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "src/kernels/half.h"
#include "src/sparse/levels.h"
#include "src/sparse/tensor.h"

namespace netsum::sparse {
namespace {

Status invalid(const std::string& why) {
  return {ErrorCode::kInvalidArgument, why};
}

// acc[i] += values[i]. Returns false if an integer sum does not fit.
bool add_row(DataType type, const uint8_t* values, size_t n, uint8_t* acc) {
  const auto for_each = [&]<typename T>(T, const auto& sum) {
    bool fits = true;
    for (size_t i = 0; i < n; ++i) {
      T a, b;
      std::memcpy(&a, acc + i * sizeof a, sizeof a);
      std::memcpy(&b, values + i * sizeof b, sizeof b);
      fits &= sum(a, b, &a);
      std::memcpy(acc + i * sizeof a, &a, sizeof a);
    }
    return fits;
  };
  const auto exactly = [](auto a, auto b, auto* out) { return !__builtin_add_overflow(a, b, out); };
  switch (type) {
    case DataType::kFloat32:
      return for_each(float{}, [](float a, float b, float* out) { return *out = a + b, true; });
    case DataType::kBFloat16:
      return for_each(uint16_t{}, [](uint16_t a, uint16_t b, uint16_t* out) {
        *out = kernels::float_to_bfloat16(kernels::bfloat16_to_float(a) + kernels::bfloat16_to_float(b));
        return true;
      });
    case DataType::kFloat16:
      return for_each(uint16_t{}, [](uint16_t a, uint16_t b, uint16_t* out) {
        *out = kernels::float_to_float16(kernels::float16_to_float(a) + kernels::float16_to_float(b));
        return true;
      });
    case DataType::kInt32:
      return for_each(int32_t{}, exactly);
    case DataType::kInt64:
      return for_each(int64_t{}, exactly);
    default:
      break;
  }
  return true;
}

class CooTensor final : public Tensor {
 public:
  CooTensor(const CooView& view, DataType type, CooAllocator allocate)
      : view_(view),
        type_(type),
        row_bytes_(view.row_elements * size_of(type)),
        allocate_(std::move(allocate)) {
    sort();
    if (status_.ok()) return;
    sorted_.clear();
    places_.clear();
  }

  DataType type() const override { return type_; }
  uint64_t positions() const override { return view_.rows; }
  size_t unit_elements() const override { return view_.row_elements; }
  size_t elements(const Segment&, const BitSet& set) const override {
    return set.count() * view_.row_elements;
  }
  uint64_t count() override { return sorted_.size(); }
  void find(const Segment& segment, BitSet* set) override;
  bool pack(const Segment& segment, const BitSet& set, const BitSet& own, uint8_t* values) const override;
  void unpack(const Segment& segment, BitSet* set, std::vector<uint8_t>* values) override;
  Status finish() override;
  const TensorView* dense() const override { return nullptr; }
  const Status& status() const override { return status_; }

 private:
  struct Part {
    uint64_t begin;
    BitSet set;
    std::vector<uint8_t> values;
  };

  void sort();
  Status add_duplicates(const std::vector<size_t>& order);
  // The first stored row at `position` or above.
  size_t first_at(uint64_t position) const {
    return static_cast<size_t>(
        std::lower_bound(sorted_.begin(), sorted_.end(), static_cast<int64_t>(position)) - sorted_.begin());
  }
  const uint8_t* row(size_t i) const { return values_ + (places_.empty() ? i : places_[i]) * row_bytes_; }

  const CooView view_;
  const DataType type_;
  const size_t row_bytes_;
  const CooAllocator allocate_;
  Status status_;
  std::vector<int64_t> sorted_;    // ascending, without duplicates
  std::vector<size_t> places_;     // where their rows are in values_; empty: in this order
  std::vector<uint8_t> added_up_;  // the rows, if there are duplicates
  const uint8_t* values_ = nullptr;
  std::vector<Part> parts_;
};

void CooTensor::sort() {
  values_ = static_cast<const uint8_t*>(view_.values);
  if (view_.count > 0 && (view_.indices == nullptr || view_.values == nullptr)) {
    status_ = invalid("indices or values of " + std::to_string(view_.count) + " rows are null");
    return;
  }
  bool ascending = true;
  for (size_t i = 0; i < view_.count; ++i) {
    const int64_t index = view_.indices[i];
    if (index < 0 || static_cast<uint64_t>(index) >= view_.rows) {
      status_ = invalid("index " + std::to_string(index) + ", number " + std::to_string(i) + " of " +
                        std::to_string(view_.count) + ", is not in a table of " + std::to_string(view_.rows) +
                        " rows");
      return;
    }
    ascending &= i == 0 || view_.indices[i - 1] < index;
  }
  sorted_.assign(view_.indices, view_.indices + view_.count);
  if (ascending) return;
  places_.resize(view_.count);
  std::iota(places_.begin(), places_.end(), size_t{0});
  std::stable_sort(places_.begin(), places_.end(),
                   [&](size_t a, size_t b) { return view_.indices[a] < view_.indices[b]; });
  for (size_t i = 0; i < places_.size(); ++i) sorted_[i] = view_.indices[places_[i]];
  if (std::adjacent_find(sorted_.begin(), sorted_.end()) != sorted_.end())
    status_ = add_duplicates(std::exchange(places_, {}));
}

// Rows are added in the order in which they are stored, so that the result depends on nothing else.
Status CooTensor::add_duplicates(const std::vector<size_t>& order) {
  added_up_.resize(view_.count * row_bytes_);
  size_t rows = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const uint8_t* const from = values_ + order[i] * row_bytes_;
    if (rows > 0 && sorted_[rows - 1] == sorted_[i]) {
      if (!add_row(type_, from, view_.row_elements, &added_up_[(rows - 1) * row_bytes_]))
        return {ErrorCode::kOverflow, "the sum of the rows with index " + std::to_string(sorted_[i]) +
                                          " does not fit " + std::string(data_type_name(type_))};
    } else {
      sorted_[rows] = sorted_[i];
      std::memcpy(&added_up_[rows++ * row_bytes_], from, row_bytes_);
    }
  }
  sorted_.resize(rows);
  values_ = added_up_.data();
  return {};
}

void CooTensor::find(const Segment& segment, BitSet* set) {
  set->clear();
  for (size_t i = first_at(segment.begin); i < sorted_.size(); ++i) {
    const auto position = static_cast<uint64_t>(sorted_[i]);
    if (position >= segment.end) break;
    set->add(position - segment.begin);
  }
}

bool CooTensor::pack(const Segment& segment, const BitSet& set, const BitSet& own, uint8_t* values) const {
  size_t next = first_at(segment.begin);
  if (places_.empty() && (row_bytes_ == 2 || row_bytes_ == 4 || row_bytes_ == 8))
    return kernels::spread(row_bytes_, own.size() > 0 ? row(next) : nullptr, own.view(), set.view(), values);
  return for_each_word(set, own, [&](uint64_t, uint64_t word, uint64_t own_word) {
    for_each_bit(word, [&](uint64_t bit) {
      if ((own_word >> bit & 1) != 0) {
        std::memcpy(values, row(next++), row_bytes_);
      } else {
        std::memset(values, 0, row_bytes_);
      }
      values += row_bytes_;
    });
  });
}

void CooTensor::unpack(const Segment& segment, BitSet* set, std::vector<uint8_t>* values) {
  parts_.push_back({segment.begin, std::exchange(*set, {}), std::exchange(*values, {})});
}

Status CooTensor::finish() {
  size_t count = 0;
  for (const Part& part : parts_) count += part.set.count();
  const CooMemory memory = allocate_(count);
  if (count == 0) return {};
  if (memory.indices == nullptr || memory.values == nullptr)
    return {ErrorCode::kResourceExhausted,
            "the allocator has no memory for the " + std::to_string(count) + " rows of the result"};
  int64_t* index = memory.indices;
  auto* to = static_cast<uint8_t*>(memory.values);
  for (Part& part : parts_) {
    part.set.for_each([&](uint64_t position) { *index++ = static_cast<int64_t>(part.begin + position); });
    const size_t bytes = part.set.count() * row_bytes_;
    if (bytes > 0) std::memcpy(to, part.values.data(), bytes);
    to += bytes;
    part = {};
  }
  return {};
}

}  // namespace

std::unique_ptr<Tensor> make_coo_tensor(const CooView& view, DataType type, CooAllocator allocate) {
  return std::make_unique<CooTensor>(view, type, std::move(allocate));
}

Status check_coo(const CooView& view, DataType type) {
  if (size_of(type) == 0) return {ErrorCode::kUnsupported, "unknown data type"};
  if (view.rows > uint64_t{1} << kMaxShift)
    return invalid("a table of " + std::to_string(view.rows) + " rows is too large: indices have at most " +
                   std::to_string(kMaxShift) + " bits");
  if (view.row_elements == 0 ||
      view.row_elements > PTRDIFF_MAX / size_of(type) / std::max<uint64_t>(view.rows, 1))
    return invalid("rows of " + std::to_string(view.row_elements) + " elements, " +
                   std::to_string(view.rows) +
                   " of them: the size must be above zero, and that of the table at most " +
                   std::to_string(PTRDIFF_MAX / size_of(type)) + " elements");
  return {};
}

}  // namespace netsum::sparse
