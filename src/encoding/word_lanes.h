// Reductions that are no sums: the elements travel as unsigned words, which an aggregator combines by their maximum, by OR or
// by XOR.
//
//   max       maximum of words in the order of the elements (kernels::to_ordered_words)
//   min       maximum of their complements
//   bit_or    OR of the elements' bits
//   bit_and   OR of their complements
//   bit_xor   XOR of the elements' bits
//
// All results are exact. The word 0 is neutral in each of them. A chunk takes one packet, or none if all elements of all ranks
// are 0 (bit_and: have all bits set). The agreed bytes say only that.
#ifndef NETSUM_SRC_ENCODING_WORD_LANES_H_
#define NETSUM_SRC_ENCODING_WORD_LANES_H_

#include <string>

#include "src/encoding/encoding.h"

namespace netsum {

class WordLanes final : public Encoding {
 public:
  // One of the above, of a type that has it (is_reducible()).
  WordLanes(DataType type, ReduceOp op);

  uint16_t signature() const override;
  std::string describe() const override { return ""; }
  int max_members() const override;
  size_t chunk_elements(uint32_t payload_bytes) const override { return payload_bytes / size_of(type_); }
  uint8_t value_format() const override;
  bool separates_tensors() const override { return false; }
  size_t agreed_bytes(const Elements&) const override { return kMinAgreedBytes; }
  size_t scan(const Elements& chunk, uint8_t* bytes) const override;
  ChunkPlan plan(const Elements& chunk, const uint8_t* agreed, uint32_t payload_bytes) const override;
  void decode_zeros(const Elements& chunk) const override;
  void encode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
              uint8_t* payload) const override;
  bool decode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
              const Payloads& payloads) const override;

 private:
  bool is_zero(const uint8_t* input, size_t count) const;
  void to_words(const uint8_t* input, size_t count, uint8_t* words) const;
  void from_words(const uint8_t* words, size_t count, uint8_t* output) const;

  const DataType type_;
  const bool ordered_;     // max and min
  const bool complement_;  // min and bit_and
  const uint8_t
      skipped_;  // each byte of the elements that are not sent if all elements of all ranks are such
  const uint8_t format_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_ENCODING_WORD_LANES_H_
