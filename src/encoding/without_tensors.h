// The encoding of a rank that takes part in an operation without tensors (OperationSpec::without_tensors): its packets are those
// of the encoding of the other ranks, it contributes zeros, noise or recorded values, and it drops the results.
#ifndef NETSUM_SRC_ENCODING_WITHOUT_TENSORS_H_
#define NETSUM_SRC_ENCODING_WITHOUT_TENSORS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "src/encoding/encoding.h"

namespace netsum {

// Where TensorView::input of such an operation points, of each tensor to which the rank contributes.
struct Contribution {
  static constexpr size_t kScaleElements = 360;

  // Of each kScaleElements elements of the operation, the exponent of the largest magnitude as float32 stores it: what the rank
  // requires of block fixed point, and how large its noise is. Empty: it requires nothing, and contributes zeros.
  std::span<const uint8_t> scales;
  // Seeded noise up to these magnitudes, finite and not subnormal. Otherwise zeros.
  bool noise = false;
  uint64_t seed = 0;
  // In place of both: elements of the operation from number `values_begin` on, as in the memory of a rank.
  std::span<const uint8_t> values;
  size_t values_begin = 0;

  // Elements [begin, begin + count) of it; those without a value are zero.
  void copy_values(DataType type, size_t begin, size_t count, uint8_t* to) const;
};

class WithoutTensors final : public Encoding {
 public:
  // `encoding`: of the other ranks. `type`: of the elements.
  WithoutTensors(std::unique_ptr<const Encoding> encoding, DataType type)
      : encoding_(std::move(encoding)), type_(type) {}

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
  size_t scan(const Elements& chunk, uint8_t* bytes) const override;
  ChunkPlan plan(const Elements& chunk, const uint8_t* agreed, uint32_t payload_bytes) const override {
    return encoding_->plan(chunk, agreed, payload_bytes);
  }
  void decode_zeros(const Elements& /*chunk*/) const override {}
  void encode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
              uint8_t* payload) const override;
  bool decode(const Elements& /*chunk*/, const uint8_t* /*agreed*/, const PacketPlan& /*packet*/,
              const Payloads& /*payloads*/) const override {
    return true;
  }

 private:
  // What the rank has scales or values for in an operation; null: nothing, so that it contributes zeros of no scale.
  const Contribution* contribution_to(const Elements& chunk) const;

  const std::unique_ptr<const Encoding> encoding_;
  const DataType type_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_ENCODING_WITHOUT_TENSORS_H_
