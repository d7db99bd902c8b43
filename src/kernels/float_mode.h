// Gives the kernels IEEE arithmetic whatever the calling thread has asked for. PyTorch's
// set_flush_denormal(True), -ffast-math start-up code and fesetround() all change a per-thread register, and
// a sum that depends on it would differ between ranks.
#ifndef NETSUM_SRC_KERNELS_FLOAT_MODE_H_
#define NETSUM_SRC_KERNELS_FLOAT_MODE_H_

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace netsum::kernels {

// While it lives: round to nearest even, subnormals kept. Must be in another function than the arithmetic,
// called through a pointer, since the compiler may move arithmetic across a write of that register.
class FloatMode {
 public:
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

#if defined(__x86_64__)
  // Reading the register is cheap and writing it is not, so write only where there is something to change.
  FloatMode() : saved_(_mm_getcsr()) {
    if ((saved_ & kMask) != kWanted) _mm_setcsr((saved_ & ~kMask) | kWanted);
  }
  ~FloatMode() {
    if ((saved_ & kMask) != kWanted) _mm_setcsr(saved_);
  }

 private:
  // Flush-to-zero (bit 15), rounding mode (13-14), exception masks (7-12), denormals-are-zero (6).
  static constexpr unsigned kMask = 0xFFC0;
  static constexpr unsigned kWanted = 0x1F80;  // all exceptions masked, the rest zero
  unsigned saved_;
#else
  FloatMode() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatMode() {
    std::fesetenv(&saved_);
  }

 private:
  std::fenv_t saved_;
#endif
};

}  // namespace netsum::kernels

#endif  // NETSUM_SRC_KERNELS_FLOAT_MODE_H_
