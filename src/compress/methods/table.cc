// The built-in methods. A new one is declared here and listed.
#include <algorithm>
#include <array>

#include "src/compress/method.h"

namespace netsum::compress {
namespace methods {

extern const Method kAdaq, kBf16, kBlockTopK, kChunkTopK, kCountSketch, kDctTopK, kDgc, kEfSign, kFp16,
    kFp8E4M3, kFp8E5M2, kInceptionn, kInt4, kInt8, kLanes8, kNatural, kNone, kOneBit, kPowerSgd, kQsgd,
    kRandomK, kSidco, kSignSgd, kSignum, kSketch, kTernGrad, kThc, kThreshold, kTopK, kU8Bit;

constexpr std::array kTable = {&kAdaq,     &kBf16,     &kBlockTopK, &kChunkTopK, &kCountSketch, &kDctTopK,
                               &kDgc,      &kEfSign,   &kFp16,      &kFp8E4M3,   &kFp8E5M2,     &kInceptionn,
                               &kInt4,     &kInt8,     &kLanes8,    &kNatural,   &kNone,        &kOneBit,
                               &kPowerSgd, &kQsgd,     &kRandomK,   &kSidco,     &kSignSgd,     &kSignum,
                               &kSketch,   &kTernGrad, &kThc,       &kThreshold, &kTopK,        &kU8Bit};

}  // namespace methods

std::span<const Method* const> all_methods() {
  return methods::kTable;
}

const Method* find_method(std::string_view name) {
  const auto& table = methods::kTable;
  const auto* const found =
      std::find_if(table.begin(), table.end(), [&](const Method* one) { return one->name == name; });
  return found != table.end() ? *found : nullptr;
}

}  // namespace netsum::compress
