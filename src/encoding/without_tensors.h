// The encoding of a rank that takes part in an operation without tensors (OperationSpec::without_tensors): its packets are those
// of the encoding of the other ranks, its contributions are zeros, and it drops the results.
#ifndef NETSUM_SRC_ENCODING_WITHOUT_TENSORS_H_
#define NETSUM_SRC_ENCODING_WITHOUT_TENSORS_H_

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "src/encoding/encoding.h"

namespace netsum {

class WithoutTensors final : public Encoding {
 public:
  // `encoding`: of the other ranks.
  explicit WithoutTensors(std::unique_ptr<const Encoding> encoding) : encoding_(std::move(encoding)) {}

  uint16_t signature() const override { return encoding_->signature(); }
  std::string describe() const override { return encoding_->describe(); }
  int max_members() const override { return encoding_->max_members(); }
  size_t chunk_elements(uint32_t payload_bytes) const override {
    return encoding_->chunk_elements(payload_bytes);
  }
  uint8_t value_format() const override { return encoding_->value_format(); }
  bool separates_tensors() const override { return encoding_->separates_tensors(); }
  bool agrees() const override { return encoding_->agrees(); }
  size_t agreed_bytes(const Elements& chunk) const override { return encoding_->agreed_bytes(chunk); }
  // Nothing is required, so the ranks agree on what those with tensors require.
  size_t scan(const Elements& chunk, uint8_t* bytes) const override {
    const size_t size = agreed_bytes(chunk);
    std::memset(bytes, 0, size);
    return size;
  }
  ChunkPlan plan(const Elements& chunk, const uint8_t* agreed, uint32_t payload_bytes) const override {
    return encoding_->plan(chunk, agreed, payload_bytes);
  }
  void decode_zeros(const Elements& /*chunk*/) const override {}
  void encode(const Elements& /*chunk*/, const uint8_t* /*agreed*/, const PacketPlan& packet,
              uint8_t* payload) const override {
    std::memset(payload, 0, packet.payload_bytes);
  }
  bool decode(const Elements& /*chunk*/, const uint8_t* /*agreed*/, const PacketPlan& /*packet*/,
              const Payloads& /*payloads*/) const override {
    return true;
  }

 private:
  const std::unique_ptr<const Encoding> encoding_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_ENCODING_WITHOUT_TENSORS_H_
