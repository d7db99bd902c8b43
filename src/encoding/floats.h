// Floating-point elements as they are: aggregators add them in float32, in the order of the members (wire/PROTOCOL.md, rule 8).
// The ranks need not agree on anything first. Where a member of an aggregator is not a single rank, the elements travel in
// float32, and each rank divides their sum and rounds it to the type.
#ifndef NETSUM_SRC_ENCODING_FLOATS_H_
#define NETSUM_SRC_ENCODING_FLOATS_H_

#include <string>

#include "src/encoding/encoding.h"

namespace netsum {

class Floats final : public Encoding {
 public:
  // `floats` is not kNo.
  Floats(FloatSums floats, DataType type, ReduceOp op, int members);

  uint16_t signature() const override;
  std::string describe() const override { return ""; }
  int max_members() const override;
  size_t chunk_elements(uint32_t payload_bytes) const override { return payload_bytes / size_of(sent_as_); }
  uint8_t value_format() const override;
  bool separates_tensors() const override { return false; }
  bool agrees() const override { return false; }
  size_t agreed_bytes(const Elements&) const override { return 0; }
  size_t scan(const Elements&, uint8_t*) const override { return 0; }
  ChunkPlan plan(const Elements& chunk, const uint8_t* agreed, uint32_t payload_bytes) const override;
  void decode_zeros(const Elements& chunk) const override;
  // Of one input.
  void encode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
              uint8_t* payload) const override;
  bool decode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
              const Payloads& payloads) const override;

 private:
  const FloatSums floats_;
  const DataType type_, sent_as_;
  const uint8_t format_;
  const int divisor_;  // of the sum that arrives
};

}  // namespace netsum

#endif  // NETSUM_SRC_ENCODING_FLOATS_H_
