#include <array>
#include <cstring>
#include <limits>

#include "src/base/assert.h"
#include "src/kernels/kernels.h"
#include "wire/ids.h"

namespace netsum::kernels {
namespace {

// The exact sum, if it fits the type.
template <typename Element, typename Wide>
bool sum_integers(const Values& values, uint8_t* out) {
  bool fits = true;
  for (size_t i = 0; i < values.count; ++i) {
    Wide sum = 0;
    for (int member = 0; member < values.members; ++member) {
      Element element;
      std::memcpy(&element, values.of(member) + i * sizeof element, sizeof element);
      sum += element;
    }
    fits &= sum >= std::numeric_limits<Element>::min() && sum <= std::numeric_limits<Element>::max();
    const auto result = static_cast<Element>(sum);
    std::memcpy(out + i * sizeof result, &result, sizeof result);
  }
  return fits;
}

}  // namespace

bool sum_values(DataType type, bool average, const Values& values, void* out) {
  auto* const bytes = static_cast<uint8_t*>(out);
  if (type == DataType::kInt32) return sum_integers<int32_t, int64_t>(values, bytes);
  if (type == DataType::kInt64) return sum_integers<int64_t, __int128>(values, bytes);
  const auto members = static_cast<size_t>(values.members);
  std::array<const uint8_t*, NETSUM_MAX_MEMBERS> inputs;
  NETSUM_ASSERT(members <= inputs.size());
  for (size_t member = 0; member < members; ++member) inputs[member] = values.of(static_cast<int>(member));
  sum_in_order(type, {inputs.data(), members}, values.count, average ? values.members : 1, type, out);
  return true;
}

}  // namespace netsum::kernels
