// Block fixed point for floating-point types, and integers as they are: docs/numerics.md.
//
// A block is what a chunk has of one tensor, so that small numbers of one tensor do not suffer from large ones of its
// neighbour; integers have no exponents, so for them the whole chunk is one block. The bytes of a block are its exponent
// and a flag that asks for lanes of twice the width (kernels::BlockScale). Chunks without the flag travel as one packet
// of narrow lanes. The others travel in wide lanes, as two packets with half of the elements each, or one if they fit;
// int64, which has no wider lanes, as two packets with the low and the high halves of all elements. Beside 8-bit lanes, a
// second packet has the marks of the elements that are not finite.
#ifndef NETSUM_SRC_ENCODING_FIXED_POINT_H_
#define NETSUM_SRC_ENCODING_FIXED_POINT_H_

#include <algorithm>
#include <string>

#include "src/encoding/encoding.h"

namespace netsum {

class FixedPoint final : public Encoding {
 public:
  // `lane_bits` as in CommunicatorOptions, the rest as in EncodingOptions.
  FixedPoint(DataType type, ReduceOp op, int members, int lane_bits, bool one_tensor = false,
             bool fixed_floats = false);

  size_t narrow_lane_bytes() const { return narrow_bytes_; }
  size_t wide_lane_bytes() const { return wide_bytes_; }

  uint16_t signature() const override;
  std::string describe() const override;
  int max_members() const override;
  size_t chunk_elements(uint32_t payload_bytes) const override { return payload_bytes >> narrow_shift_; }
  uint8_t value_format() const override;
  bool separates_tensors() const override { return separates_tensors_; }
  size_t agreed_bytes(const Elements& chunk) const override { return 2 * blocks(chunk); }
  size_t scan(const Elements& chunk, uint8_t* bytes) const override;
  void decode_zeros(const Elements& chunk) const override;
  ChunkPlan plan(const Elements& chunk, const uint8_t* agreed, uint32_t payload_bytes) const override;
  void encode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
              uint8_t* payload) const override;
  bool decode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
              const Payloads& payloads) const override;
  bool sum(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet) const override;

 private:
  // What a packet has of the elements.
  enum Layout : uint8_t { kNarrow, kWide, kLowHalves, kHighHalves, kFinite, kMarks };

  size_t blocks(const Elements& chunk) const;
  size_t block_of(const Run& run) const {
    if (!separates_tensors()) return 0;
    // The bytes of one element in each 8-bit lane would be more than a payload, so tensors of one element share.
    return narrow_bytes_ == 1 ? std::min(run.index, run.done / 2) : run.index;
  }
  // The agreed bytes of the packet's first block.
  const uint8_t* bytes_of(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet) const {
    if (!separates_tensors() || packet.begin == chunk.begin) return agreed;
    return agreed + 2 * chunk.sequence->run_of(chunk.begin, packet.begin);
  }
  size_t lane_bytes_of(Layout layout) const { return layout == kWide ? wide_bytes_ : narrow_bytes_; }
  PacketPlan packet_of(Layout layout, size_t begin, size_t count) const;
  // Of all types but int64. from_lanes() returns false if an exact sum does not fit the type.
  void to_lanes(Layout layout, const uint8_t* input, size_t count, uint8_t exponent, uint8_t* lanes) const;
  bool from_lanes(Layout layout, const uint8_t* lanes, size_t count, uint8_t exponent, uint8_t* output) const;
  void encode_marks(const Elements& chunk, const PacketPlan& packet, uint8_t* payload) const;
  static void encode_int64(const Elements& part, Layout layout, uint8_t* payload);
  static bool decode_int64(const Elements& part, Layout layout, const Payloads& payloads);

  const DataType type_;
  const bool average_;
  const bool has_values_;
  const bool separates_tensors_;
  const int members_;
  const size_t narrow_bytes_;  // of a lane
  const int narrow_shift_;     // their base-2 logarithm: chunks are cut for every packet
  const size_t wide_bytes_;    // not beside 8-bit lanes
};

}  // namespace netsum

#endif  // NETSUM_SRC_ENCODING_FIXED_POINT_H_
