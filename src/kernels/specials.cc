// NaN and infinities beside 8-bit lanes. Blocks that have any are rare, so an element at a time will do.
#include <cstring>

#include "src/base/assert.h"
#include "src/kernels/half.h"
#include "src/kernels/kernels.h"

namespace netsum::kernels {
namespace {

enum Mark : uint8_t { kFinite = 0, kPlusInfinity = 1, kMinusInfinity = 2, kNaN = 3 };

// Bits of a type: those of +Inf, and those of the canonical NaN.
template <typename Bits>
struct Specials {
  Bits infinity;
  Bits nan;

  static constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));

  Mark mark_of(Bits x) const {
    const auto magnitude = static_cast<Bits>(x & ~kSign);
    if (magnitude < infinity) return kFinite;
    if (magnitude > infinity) return kNaN;
    return x == magnitude ? kPlusInfinity : kMinusInfinity;
  }
  Bits element_of(Mark mark) const {
    return mark == kNaN ? nan : mark == kPlusInfinity ? infinity : static_cast<Bits>(infinity | kSign);
  }
};

template <typename Bits>
void mark(const Specials<Bits>& specials, const void* in, size_t n, size_t first, uint8_t* marks) {
  for (size_t i = 0; i < n; ++i) {
    Bits x;
    std::memcpy(&x, static_cast<const uint8_t*>(in) + i * sizeof x, sizeof x);
    marks[(first + i) / 4] |= static_cast<uint8_t>(specials.mark_of(x) << (first + i) % 4 * 2);
  }
}

template <typename Bits>
void put(const Specials<Bits>& specials, const uint8_t* marks, size_t first, size_t n, void* out) {
  for (size_t i = 0; i < n; ++i) {
    const auto mark = static_cast<Mark>(marks[(first + i) / 4] >> (first + i) % 4 * 2 & 3);
    if (mark == kFinite) continue;
    const Bits x = specials.element_of(mark);
    std::memcpy(static_cast<uint8_t*>(out) + i * sizeof x, &x, sizeof x);
  }
}

constexpr Specials<uint32_t> kOfFloat32{0x7F800000, kNaNBits};
constexpr Specials<uint16_t> kOfBFloat16{0x7F80, 0x7FC0};
constexpr Specials<uint16_t> kOfFloat16{0x7C00, 0x7E00};

}  // namespace

void mark_specials(DataType type, const void* in, size_t n, size_t first, uint8_t* marks) {
  NETSUM_ASSERT(is_floating(type));
  if (type == DataType::kFloat32) return mark(kOfFloat32, in, n, first, marks);
  mark(type == DataType::kBFloat16 ? kOfBFloat16 : kOfFloat16, in, n, first, marks);
}

void put_specials(DataType type, const uint8_t* marks, size_t first, size_t n, void* out) {
  NETSUM_ASSERT(is_floating(type));
  if (type == DataType::kFloat32) return put(kOfFloat32, marks, first, n, out);
  put(type == DataType::kBFloat16 ? kOfBFloat16 : kOfFloat16, marks, first, n, out);
}

}  // namespace netsum::kernels
