// Signs that the network counts, of efsign and onebit, whose residual takes back what a zero has sent.
#ifndef NETSUM_SRC_COMPRESS_METHODS_SIGNS_H_
#define NETSUM_SRC_COMPRESS_METHODS_SIGNS_H_

#include <cmath>
#include <span>

#include "netsum/compression.h"
#include "src/compress/methods/fields.h"

namespace netsum::compress {

// A sign is a vote: 1 for +, also for +0, and 0 for -.
class Signs : public Compressor {
 public:
  PayloadShape shape(const CompressionContext& context, size_t count) const override {
    return {.type = DataType::kInt32, .count = fields(context.ranks).lanes(count), .side_values = 1};
  }

 protected:
  static Fields fields(int ranks) { return Fields::of_unsigned(1, ranks); }
  static void pack(std::span<const float> values, int ranks, void* payload) {
    fields(ranks).pack(values.size(), static_cast<int32_t*>(payload),
                       [&](size_t begin, size_t n, int32_t* votes) {
                         for (size_t i = 0; i < n; ++i) votes[i] = std::signbit(values[begin + i]) ? 0 : 1;
                       });
  }
  // take(i, difference): how many more of `contributions` have voted + than -.
  template <class Take>
  static void unpack(size_t count, int ranks, int contributions, const void* payload, const Take& take) {
    fields(ranks).unpack(count, static_cast<const int32_t*>(payload),
                         [&](size_t begin, size_t n, const int32_t* votes) {
                           for (size_t i = 0; i < n; ++i) take(begin + i, 2 * votes[i] - contributions);
                         });
  }
};

}  // namespace netsum::compress

#endif  // NETSUM_SRC_COMPRESS_METHODS_SIGNS_H_
