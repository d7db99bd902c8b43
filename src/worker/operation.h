// One operation on this rank: its tensors, its encoding and its role, and the conversion of a chunk from memory to a
// payload and back. The engine (stripe.h) and the sums in shared memory (src/host) call it.
#ifndef NETSUM_SRC_WORKER_OPERATION_H_
#define NETSUM_SRC_WORKER_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/types.h"
#include "src/encoding/elements.h"
#include "src/encoding/encoding.h"
#include "src/worker/delivery.h"
#include "src/worker/role.h"
#include "src/worker/watermark_state.h"

namespace netsum {

// The most chunks of an operation with inline sums. Larger operations would gain little time: their scales are agreed on
// while data is on its way. And an aggregator needs memory for the elements of all members.
inline constexpr size_t kMostInlineChunks = 16;

// Set when one rank contributes for several ranks of its host, as part of a larger operation.
struct Joint {
  // The input is the sum of theirs in float32, which is added as such. Otherwise there are further inputs.
  bool summed = false;
  // Further inputs. The tensors of the operation are then contiguous in memory, and so are those of each further
  // input; the lanes are the sums over all inputs.
  std::vector<const void*> more_inputs;
  // The signature of the larger operation, which becomes part of this operation's signature.
  uint32_t context = 0;
  // Where in its tensor the first view begins.
  size_t first_offset = 0;
};

// What one rank asks for. It is passed on whole, from the communicator to the core that executes it, so that a new
// field or a new collective needs no change in between.
struct OperationSpec {
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::vector<TensorView> tensors;
  Role role;
  // The tensors are pieces of one: the encoding need not separate them.
  bool one_tensor = false;
  // The memory of the tensors is not there: this rank contributes zeros in full packets, and drops results. Pointers count
  // as if it was.
  bool without_tensors = false;
  int32_t priority = 0;     // as ReduceOptions::priority; only the communicator looks at it
  int64_t deadline_us = 0;  // in the time base of the core
  std::shared_ptr<Watermarks> watermarks = nullptr;  // null: all of the input is there
  Joint joint;
};

// Of tensor `i`, the memory that this rank uses in its role: null for an input to which it does not contribute, and for
// an output that it does not receive. Bytes that it moves in place are there already.
TensorView used_memory(const OperationSpec& spec, size_t i);

// The times of an operation's phases, in the time base of the core; 0: not yet.
struct OperationCourse {
  int64_t first_scale_us = 0;    // the first packet of scales was sent
  int64_t scales_agreed_us = 0;  // the latest packet of scales was answered
  int64_t first_data_us = 0;
  uint64_t packets = 0;  // contributions, including retransmissions
  uint64_t retransmissions = 0;
};

// Elements of an operation, and the agreed bytes of the ranks for them, if known. It is passed on by reference,
// because copying fields that have just been stored stalls the processor.
struct Chunk : Elements {
  const uint8_t* agreed = nullptr;
};

class Operation {
 public:
  // `number` counts the job's operations from 0, alike on every rank. `members`: the number of inputs over all ranks.
  Operation(uint64_t number, OperationSpec spec, int members, const EncodingOptions& encoding = {});

  uint64_t number() const { return number_; }
  DataType type() const { return elements_.type(); }
  ReduceOp op() const { return op_; }
  bool moves_bytes() const { return type() == DataType::kByte; }  // otherwise it sums
  size_t count() const { return elements_.count(); }              // elements of all tensors together
  int64_t deadline_us() const { return deadline_us_; }
  const Encoding& encoding() const { return *encoding_; }
  const Role& role() const { return role_; }
  // Equal on two ranks only if they call the same operation, except with probability 2^-32.
  uint32_t signature() const { return signature_; }
  // Equal for operations that differ in nothing but their numbers, their places among others, and what their tensors hold.
  uint64_t kind() const;
  // "all_reduce #12 (float32[1024], sum)", "broadcast #3 (byte[4096], from rank 0)"
  std::string describe() const;

  // Chunk `index`, for packets of `payload_bytes`.
  Chunk chunk(size_t index, uint32_t payload_bytes) const;
  // Elements [begin, begin + n).
  Chunk chunk_of(size_t begin, size_t n) const { return {{&elements_, begin, n}, nullptr}; }
  size_t chunks(uint32_t payload_bytes) const;

  // The steps of encoding.h, for the role of this rank and over all inputs. Payloads have NETSUM_MAX_PAYLOAD bytes at
  // most.
  size_t agreed_bytes(const Chunk& chunk) const { return encoding_->agreed_bytes(chunk); }
  void scan(const Chunk& chunk, uint8_t* bytes) const;
  ChunkPlan plan(const Chunk& chunk, uint32_t payload_bytes) const {
    return encoding_->plan(chunk, chunk.agreed, payload_bytes);
  }
  void encode(const Chunk& chunk, const PacketPlan& packet, uint8_t* payload) const;
  bool decode(const Chunk& chunk, const PacketPlan& packet, const Payloads& payloads) const;
  // encode() and decode() in one pass, if the inputs are those of all ranks (see Encoding::sum()).
  bool sum(const Chunk& chunk, const PacketPlan& packet) const {
    return encoding_->sum(chunk, chunk.agreed, packet);
  }
  // Of a chunk without packets.
  void decode_zeros(const Chunk& chunk) const;

  // The tensors of elements [begin, begin + n), without memory. Neighbours that the encoding does not separate are joined.
  std::vector<TensorView> tensors_of(size_t begin, size_t n) const;
  // Where in its tensor element `begin` is.
  size_t offset_of(size_t begin) const;

  // Whether this rank contributes to some of the elements, or to any at all.
  bool contributes_to(const Elements& elements) const;
  bool contributes() const { return has_inputs_; }
  // Whether all of the elements go to this rank and to no other.
  bool is_for_this_rank_alone(const Elements& elements) const;
  // Whether the result of some of the elements is written to an output.
  bool writes(const Elements& elements) const;
  // Whether this rank has an output for the result of some of the elements. Bytes that it moves to itself it can copy instead.
  bool needs_result(const Elements& elements) const;
  void copy_own(const Elements& elements) const;

  // Whether its elements are added as floats, by what sums.
  bool travels_as_floats() const { return is_floating(type()) && !encoding_->agrees(); }
  // Whether the operation is small enough for inline sums, where all aggregators can make them. Equal on all ranks.
  bool may_be_inline(uint32_t payload_bytes) const;
  // Whether a packet has room for the elements of a chunk as float32. Floating-point types only.
  bool fits_floats(uint32_t payload_bytes) const {
    return is_floating(type()) && encoding_->chunk_elements(payload_bytes) * sizeof(float) <= payload_bytes;
  }
  // Joint::summed
  bool is_of_partial_sums() const { return partial_sums_; }

  // Watermarks (netsum/watermarks.h). Without any, all input is available, and nobody asks what is delivered.
  bool has_watermarks() const { return watermarks_ != nullptr; }
  Watermarks::State& watermarks() const { return watermarks_->state(); }
  // The bytes of input that must be available for this rank's contribution to the elements; 0 if it contributes nothing.
  size_t input_end(const Elements& elements) const;
  bool is_available(size_t end) const { return watermarks_ == nullptr || watermarks().available() >= end; }
  bool is_available(const Elements& elements) const {
    return watermarks_ == nullptr || is_available(input_end(elements));
  }
  // "this rank has made available 1024 of 4096 bytes of the input of ..."; empty: all of its input is available.
  std::string missing_input() const;
  // A result of a chunk is in the outputs, of as many as the chunk has.
  void note_delivered(const Elements& chunk, uint8_t results) const {
    if (delivery != nullptr) delivery->note(chunk.begin, results);
  }
  // They were when the operation began, at another aggregator, and the caller may read them.
  bool was_delivered(const Elements& chunk) const {
    return delivery != nullptr && delivery->had(chunk.begin + chunk.count);
  }

  // Copies elements without encoding: from the inputs to `to` (zeros where this rank does not contribute), and from `from`
  // to the outputs (where it receives).
  void copy_in(size_t begin, size_t n, uint8_t* to) const;
  void copy_out(const uint8_t* from, size_t begin, size_t n) const;
  // The same with the elements as float32, which are sums over `summands` inputs when they come out. Floating-point types only.
  void copy_in_floats(const Elements& elements, uint8_t* to) const;
  void copy_out_floats(const uint8_t* from, const Elements& elements, int summands) const;

  // Chunks of scale groups (see stripe.h) that are not finished, over all stripes. The operation ends at 0.
  size_t chunks_left = 0;
  uint64_t first_chunk =
      0;               // its first chunk's number among those of all operations of its stream (slot_layout.h)
  uint64_t place = 0;  // where its core keeps it (in_flight.h)
  OperationCourse course;
  std::unique_ptr<Delivery> delivery;  // of the chunks that its core handles; null: without watermarks

 private:
  bool is_own_copy(const Run& run) const;
  uint64_t hash_of(uint64_t number) const;

  const uint64_t number_;
  const ReduceOp op_;
  const int64_t deadline_us_;
  const TensorSequence elements_;        // null where this rank does not contribute or receive
  const bool has_inputs_, has_outputs_;  // of some tensors
  const bool all_inputs_, all_outputs_;  // of all tensors: then no runs have to be looked at
  const std::shared_ptr<const Encoding> encoding_;
  const Role role_;
  const std::shared_ptr<Watermarks> watermarks_;
  const bool partial_sums_;
  const bool without_tensors_;
  const bool none_alone_;  // no tensor goes to this rank alone
  uint32_t signature_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_OPERATION_H_
