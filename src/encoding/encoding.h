// How elements travel as lanes that an aggregator can combine: the interface between numerics and the protocol.
//
// An operation's elements are cut into chunks, and each chunk goes through these steps on every rank:
//
//   scan    what this rank's values of the chunk require, in a few bytes; the maximum over its inputs
//   agree   the aggregator combines the bytes of all ranks by their maximum, so every rank has the same agreed bytes.
//           Not if the encoding requires nothing (agrees())
//   plan    which packets the chunk needs, in which lane formats; a function of the agreed bytes, so equal on all ranks.
//           None, if it is zero on all ranks
//   encode  values to a packet's lanes; the sum over its inputs
//           the aggregator adds the lanes of all ranks
//   decode  summed lanes to values
//
// Bytes of zeros must say "nothing is required", and lanes of zeros must be neutral in the sum: a rank that contributes
// nothing sends them. A run of elements has no input where this rank contributes nothing, and no output where it does not
// receive the sum. The engine (src/worker) and the sums in shared memory (src/host) know no more of numbers than this.
//
// A rank has several inputs if it contributes for other ranks of its host.
//
// Virtual calls are made per packet, never per element or per input. Thread rule: immutable.
#ifndef NETSUM_SRC_ENCODING_ENCODING_H_
#define NETSUM_SRC_ENCODING_ENCODING_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "netsum/types.h"
#include "src/encoding/elements.h"

namespace netsum {

// The wire can tell two packets of one chunk apart (PART).
inline constexpr size_t kMaxPackets = 2;
// Scale groups hold so many chunks that their bytes fit a packet. Not less than this for a chunk. Groups without agreement
// hold as many as with it.
inline constexpr size_t kMinAgreedBytes = 2;

// One packet of a chunk.
struct PacketPlan {
  uint8_t format = 0;  // NETSUM_FORMAT_*: the lanes, and how they are combined
  uint8_t layout = 0;  // how the encoding fills them; nobody else looks at it
  size_t begin = 0;  // the elements [begin, begin + count) of the operation that it carries, or parts of them
  size_t count = 0;
  uint32_t payload_bytes = 0;  // a multiple of 8
};

struct ChunkPlan {
  uint8_t packets = 1;  // 0: the chunk is zero on all ranks
  // Decoded when the sums of both packets have arrived; otherwise each packet by itself. Decoding overwrites the input
  // if the operation is in place, so a packet that needs it again must not be outstanding.
  bool together = false;
  std::array<PacketPlan, kMaxPackets> packet;
};

// Summed payloads: of all packets of a chunk that is decoded together; otherwise the first is that of the one packet.
using Payloads = std::array<const uint8_t*, kMaxPackets>;

class Encoding {
 public:
  virtual ~Encoding() = default;

  // Part of the operation's signature, in 16 bits: differs from that of every other encoding, and between settings and
  // releases with which lanes or agreed bytes mean something else.
  virtual uint16_t signature() const = 0;
  // For messages, behind the element type: "in 16-bit lanes". Empty if the type says all.
  virtual std::string describe() const = 0;
  // Headroom: sums of up to so many members are in the range of the lanes.
  virtual int max_members() const = 0;

  // Elements of a chunk. One packet of `payload_bytes` carries them, if the agreed bytes do not require more.
  virtual size_t chunk_elements(uint32_t payload_bytes) const = 0;
  // The format of values (wire/values.h) in which aggregators sum the elements of small operations, and in whose way the
  // ranks of a host sum them in memory; NETSUM_FORMAT_NONE: there is none. Integer sums are the same as by lanes,
  // floating-point ones have the rounding errors of additions instead of those of lanes.
  virtual uint8_t value_format() const = 0;
  // Whether elements of different tensors are treated differently. Otherwise neighbours may be joined to one.
  virtual bool separates_tensors() const = 0;

  // Whether the ranks must agree on bytes before they can send. If not, the plan of every chunk is one packet.
  virtual bool agrees() const { return true; }
  // How many bytes the chunk's scan writes: kMinAgreedBytes or more, and never more than a payload. 0 without agreement.
  virtual size_t agreed_bytes(const Elements& chunk) const = 0;
  // Returns agreed_bytes().
  virtual size_t scan(const Elements& chunk, uint8_t* bytes) const = 0;
  virtual ChunkPlan plan(const Elements& chunk, const uint8_t* agreed, uint32_t payload_bytes) const = 0;
  // Writes the outputs of a chunk without packets.
  virtual void decode_zeros(const Elements& chunk) const = 0;
  // Writes the lanes of one packet of the chunk's plan (sum_lanes.h). What they leave of the last 8 bytes is 0 already.
  virtual void encode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
                      uint8_t* payload) const = 0;
  // Writes the outputs of one packet of the plan or, if they are decoded together, of the chunk; `packet` is then the
  // first one. Returns false if an exact sum does not fit the type.
  virtual bool decode(const Elements& chunk, const uint8_t* agreed, const PacketPlan& packet,
                      const Payloads& payloads) const = 0;
  // Writes the outputs of one packet of the plan as if its lanes were the sums over all ranks, which are the inputs here:
  // encode() and decode() in one pass. False, and nothing is written: there is no such pass.
  virtual bool sum(const Elements& /*chunk*/, const uint8_t* /*agreed*/, const PacketPlan& /*packet*/) const {
    return false;
  }
};

// Whether aggregators add floating-point elements as such (floats.h), in the order of increasing ability.
enum class FloatSums : uint8_t {
  kNo,         // not in operations of any size
  kInFloat32,  // float32, because what they add are sums of float32
  kAsTheyAre,  // all types, divided by the number of members for means
};

enum class EncodingKind : uint8_t {
  kFixedPoint,  // fixed_point.h; the default for all types. Sums and means: others are of word_lanes.h
};

struct EncodingOptions {
  EncodingKind kind = EncodingKind::kFixedPoint;
  int lane_bits = 0;                  // as in CommunicatorOptions
  bool fixed_floats = false;          // Numerics::kFixed
  FloatSums floats = FloatSums::kNo;  // of what sums; not where fixed_floats
  bool one_tensor =
      false;  // the tensors of an operation are pieces of one: elements are treated as those of one
  bool without_tensors = false;  // this rank has no memory (without_tensors.h)

  auto operator<=>(const EncodingOptions&) const = default;
};

// Whether `type` has that reduction: bits are those of integers, means those of floating-point numbers.
bool is_reducible(DataType type, ReduceOp op);
// Whether its packets are of the formats of words (netsum_is_words() of wire/parse.h), which not all aggregators combine.
bool travels_as_words(ReduceOp op);

// The encoding of an operation that sums `members` inputs: the only place where it is chosen. is_reducible(). Bytes (kByte)
// are moved as they are (bytes.h), whatever the options say.
std::unique_ptr<const Encoding> make_encoding(const EncodingOptions& options, DataType type, ReduceOp op,
                                              int members);
// The same without an allocation, if this thread has had it before.
std::shared_ptr<const Encoding> shared_encoding(const EncodingOptions& options, DataType type, ReduceOp op,
                                                int members);

}  // namespace netsum

#endif  // NETSUM_SRC_ENCODING_ENCODING_H_
