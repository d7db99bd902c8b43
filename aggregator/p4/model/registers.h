// Registers of a match-action pipeline: in each pass of a packet, an array is accessed at most once, at one index, by a
// read-modify-write. Arrays lie in stages, and a pass goes through the stages in one direction. Both rules are asserted.
#ifndef NETSUM_AGGREGATOR_P4_MODEL_REGISTERS_H_
#define NETSUM_AGGREGATOR_P4_MODEL_REGISTERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/assert.h"

namespace netsum::p4 {

// A value that holds for one epoch of one job (`owner`).
constexpr uint64_t owned(uint32_t owner, uint32_t value) {
  return uint64_t{owner} << 32 | value;
}
constexpr bool is_owned(uint32_t owner, uint64_t value) {
  return value >> 32 == owner;
}

// One trip of a packet through the pipeline.
class Pass {
 public:
  explicit Pass(uint64_t number) : number_(number) {}
  uint64_t number() const { return number_; }
  // The pass is in `stage` now.
  void enter(int stage) {
    NETSUM_ASSERT(stage >= stage_);
    stage_ = stage;
  }

 private:
  const uint64_t number_;  // from 1
  int stage_ = 0;
};

template <typename T>
class Register {
 public:
  Register(int stage, size_t size) : stage_(stage), values_(size) {}

  // `alu(T& value)` may change the value; its result is what the pass gets to know.
  template <typename Alu>
  auto access(Pass* pass, size_t index, Alu alu) {
    pass->enter(stage_);
    NETSUM_ASSERT(pass->number() != last_pass_);
    NETSUM_ASSERT(index < values_.size());
    last_pass_ = pass->number();
    ++accesses_;
    return alu(values_[index]);
  }
  uint64_t accesses() const { return accesses_; }
  int stage() const { return stage_; }

  // Of the control plane, between packets.
  void write(size_t index, T value) { values_.at(index) = value; }
  // Of faulty memory, between packets.
  void flip(size_t index, uint32_t bit) { values_.at(index) ^= T{1} << bit; }

 private:
  const int stage_;
  std::vector<T> values_;
  uint64_t last_pass_ = 0;
  uint64_t accesses_ = 0;
};

}  // namespace netsum::p4

#endif  // NETSUM_AGGREGATOR_P4_MODEL_REGISTERS_H_
