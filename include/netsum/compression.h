// Compression of tensors before they are summed: what a rank sends instead of a tensor, what it keeps for later, and what
// may be done with the payloads of all ranks. No I/O: compressed_all_reduce() below sums over a communicator, and programs
// with their own transport call the parts. Methods: docs/compression.md; formulas: netsum compression --markdown.
#ifndef NETSUM_COMPRESSION_H_
#define NETSUM_COMPRESSION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/export.h"
#include "netsum/status.h"
#include "netsum/types.h"

namespace netsum {

// How payloads may be added. A payload is what a rank sends for one tensor in one step.
enum class Additivity : uint8_t {
  kInteger = 0,  // payloads are integers; decompress() takes their sum
  kLinear = 1,   // payloads are floating-point numbers; decompress() takes their sum
  // Payloads are float32 and mostly zero, at places that differ between ranks. With CompressorTraits::mean, they are as long as the tensor.
  kSparse = 2,
  kNone = 3,  // a payload has to be decompressed before anything is added
};
NETSUM_EXPORT std::string_view additivity_name(Additivity additivity);

// How payloads get from all ranks to all ranks.
enum class CompressionPath : uint8_t {
  kDense = 0,  // an ordinary all-reduce: kInteger and kLinear
  kUnion = 1,  // a sparse all-reduce: kSparse
  kGather =
      2,  // an all-gather; every rank decompresses all payloads: any additivity. Of kSparse, indices and values travel
};
NETSUM_EXPORT std::string_view compression_path_name(CompressionPath path);

struct CompressorTraits {
  Additivity additivity = Additivity::kNone;
  // The expected value of what arrives is not what was compressed.
  bool biased = true;
  // Training does not converge unless what was not sent is kept for later steps.
  bool needs_memory = true;
  // What remains of a tensor is known only when all payloads have been summed, so decompress() computes it.
  bool late_residual = false;
  // decompress() of a sum is the mean of what the payloads decompress to. A vote, for example, is not a mean. If false, the path
  // kGather is refused, and a residual is kept only with needs_memory or late_residual.
  bool mean = true;
  // Of kSparse: what is sent stands at the places of the elements. If false, for example of coefficients, the memory "dgc" is refused.
  bool in_place = true;
};

struct CompressionContext {
  uint64_t tensor = 0;  // identifies the tensor; equal on all ranks
  uint64_t step = 0;    // counts the compressions of this tensor; equal on all ranks
  int rank = 0;
  int ranks = 1;
  // Of a tensor that is a matrix, row by row: its rows, which divide the number of its elements.
  size_t rows = 1;
  // What the compressor keeps of this tensor from step to step: Compressor::state_values() numbers, 0 at first.
  std::span<float> state = {};
};

// How the numbers of all ranks become those that they agree on.
enum class Agreement : uint8_t {
  kMax = 0,
  kMean = 1,
};

struct PayloadShape {
  DataType type = DataType::kFloat32;
  size_t count = 0;  // elements of `type`
  // Float32 numbers that travel beside the payload, such as a scale. Each is averaged over the ranks as a tensor of its own.
  size_t side_values = 0;
  // The payload is bytes (kByte), of which only a part may be used: its first 8 bytes say how many, these included, as a
  // uint64_t of at least 8 and at most `count`. Only with Additivity::kNone.
  bool varies = false;
};

// A method. Objects have no state and may be shared by tensors and threads: all that lasts is in a CompressedTensor, which
// passes it in the context, and random numbers are functions of the context. Programs may derive their own. check_compressor() tests one.
class NETSUM_EXPORT Compressor {
 public:
  virtual ~Compressor() = default;

  virtual std::string_view name() const = 0;
  virtual CompressorTraits traits() const = 0;
  // Of a tensor of `count` elements. Must depend on nothing of the context but `ranks` and `rows`.
  virtual PayloadShape shape(const CompressionContext& context, size_t count) const = 0;

  // How many numbers the compressor keeps of a tensor, such as what it has found out about it. Everything else is a function of
  // the arguments. The numbers are saved and restored, but not scaled with a memory.
  virtual size_t state_values(const CompressionContext& /*context*/, size_t /*count*/) const { return 0; }

  // How many numbers the ranks agree on before they compress, such as a common scale. 0: none.
  virtual size_t agreed_values(const CompressionContext& /*context*/, size_t /*count*/) const { return 0; }
  virtual Agreement agreement() const { return Agreement::kMax; }
  // This rank's agreed_values() numbers.
  virtual void agree(const CompressionContext& /*context*/, std::span<const float> /*values*/,
                     float* /*mine*/) const {}

  // Writes the payload and the side values. `residual`, if it is not null, gets what the payload lacks: values minus what
  // decompress() makes of this payload alone. It may be the memory of `values`. It must be finite: elements that are not
  // finite leave 0. With late_residual, it gets the values.
  // If any value is not finite, the result that the ranks decompress must not be finite somewhere.
  virtual void compress(const CompressionContext& context, std::span<const float> values,
                        std::span<const float> agreed, float* residual, void* payload, float* side) const = 0;
  // Writes the mean that the ranks have sent; on the path kGather called once for each rank in a step. `payload` is the sum of those of `contributions` ranks; or one payload, or the
  // mean of several, with `contributions` 1. `side` is the mean of the side values. `residual` is null, unless the traits
  // have late_residual and there is a memory.
  virtual void decompress(const CompressionContext& context, std::span<const float> agreed,
                          const void* payload, const float* side, int contributions, std::span<float> out,
                          float* residual) const = 0;
};

// docs/compression.md has ranges and defaults, and which methods and memories read which options.
struct CompressionOptions {
  // compression_methods() lists them.
  std::string method = "none";
  // What is kept of what was not sent: "none"; "residual", which is added to the next tensor (error feedback); "dgc", the
  // residual with momentum correction of Deep Gradient Compression; "momentum", which is sent instead of the gradient. Empty: the method's own.
  std::string memory;
  // "dense", "union" or "gather". Empty: the method's own.
  std::string path;
  // The share of the elements that is sent.
  double ratio = 0.01;
  // Elements that are sent, or elements of every chunk. 0: `ratio` decides.
  uint64_t k = 0;
  // The threshold is estimated from a sample of large tensors, which is faster; the share is then approximate.
  bool sampled = false;
  // Elements that share a scale, are sent together, or are a chunk.
  uint32_t block = 256;
  // Every block is rotated before it is rounded, which evens out outliers.
  bool rotated = false;
  // Sums are divided by the number of ranks that have sent something, instead of by that of all ranks.
  bool count_senders = false;
  // The rank of the matrix that is sent.
  uint32_t rank = 4;
  // The distribution of magnitudes that is assumed.
  std::string fit = "exponential";
  // Elements of at least this magnitude are sent.
  double threshold = 0;
  // By what the residual is multiplied in every step.
  double decay = 1;
  // The optimizer must then have none.
  double momentum = 0.9;
  // The gradient of a tensor is scaled down to this L2 norm, divided by the square root of the number of ranks. 0: not at all.
  double clip_norm = 0;
  // Steps in which the share falls from 25 % to `ratio`, exponentially.
  uint64_t warmup_steps = 0;
  // Levels on either side of zero, before they are summed.
  uint32_t levels = 7;
  // No element is off by more than this.
  double error_bound = 0x1p-12;
  // Quantile buckets among which elements are divided.
  uint32_t buckets = 16;
  // Of random numbers; equal on all ranks.
  uint64_t seed = 1;
};

// A field of CompressionOptions by its name, for programs that read options from text or from another language.
struct CompressionField {
  std::string_view name;
  std::variant<std::string CompressionOptions::*, double CompressionOptions::*,
               uint64_t CompressionOptions::*, uint32_t CompressionOptions::*, bool CompressionOptions::*>
      member;
};
NETSUM_EXPORT std::span<const CompressionField> compression_fields();

// The names for CompressionOptions::method, in alphabetical order.
NETSUM_EXPORT std::vector<std::string_view> compression_methods();

// A part of the state of a tensor, such as its residual.
struct CompressionState {
  std::string_view name;
  std::span<float> values;
  // A memory has a number for each element, in the unit of the gradients. Otherwise it is the compressor's (name "compressor").
  bool is_memory = true;
};
struct SavedCompressionState {
  std::string_view name;
  std::span<const float> values;
};

// One tensor of one rank under a Compression: its memory and its count of steps. In each step: agree(), if the method has
// agreed values; compress(); decompress(), on the path kGather once for each rank. Nothing is allocated after the first step. Not for
// several threads at a time.
//
// Ranks must be in the same step, because random numbers that they share depend on it: tag() compares it, agree_on_steps() repairs it.
class NETSUM_EXPORT CompressedTensor {
 public:
  virtual ~CompressedTensor() = default;

  virtual size_t count() const = 0;
  // Of what travels: on the path kGather, the payloads of a kSparse method are indices and values.
  virtual PayloadShape shape() const = 0;
  virtual size_t agreed_values() const = 0;

  // The first part of a step for methods with agreed values: adds the memory, and writes this rank's numbers. The caller combines
  // them as Compressor::agreement() says. Called again instead of compress(), it first drops what it has added.
  virtual void agree(const float* gradient, float* mine) = 0;
  // Takes count() numbers. `agreed` may be null if there are no agreed values, `side` if there are no side values.
  virtual void compress(const float* gradient, const float* agreed, void* payload, float* side) = 0;
  // Writes the mean over all ranks, count() numbers. Arguments as in Compressor::decompress().
  virtual void decompress(const void* payload, const float* side, int contributions, float* out) = 0;

  virtual uint64_t step() const = 0;  // compressions so far
  // The memory itself, which the caller may read, and write between steps.
  virtual std::vector<CompressionState> state() = 0;
  // Continues from a saved state. kInvalidArgument, and nothing changes, if names or sizes are not those of state().
  virtual Status restore(uint64_t step, std::span<const SavedCompressionState> saved) = 0;
  // Multiplies the memory, for example when the scale of a loss has changed.
  virtual void scale_memory(float factor) = 0;
  // Other ranks, for example after Communicator::regroup(). The memory stays. PayloadShape may change.
  virtual void set_ranks(int rank, int ranks) = 0;

  // Takes the last step back, for example because its sum has failed: memory, numbers of the compressor and step() have the bits that
  // they had before agree() or compress() began it, so a repetition counts each gradient once. Does nothing if no step has begun since
  // the last give_up(), set_step(), restore() or scale_memory().
  virtual void give_up() = 0;
  // Continues with another step; the memory stays.
  virtual void set_step(uint64_t step) = 0;
  // A hash of the tensor's id and of step(), not 0. The caller's operations of a step have it as their tag (ReduceOptions::tag), taken
  // before the step, so that ranks in different steps get kMismatch instead of wrong sums.
  virtual uint32_t tag() const = 0;
};

// A method together with its memory and its path: what all ranks must have in common. Immutable.
class NETSUM_EXPORT Compression {
 public:
  // kInvalidArgument for values out of range, for options that the method does not have, and for combinations that would
  // give wrong results: a path that cannot sum the payloads, or a memory that the method cannot use or cannot do without.
  static Result<std::shared_ptr<const Compression>> make(const CompressionOptions& options);
  // The same for a compressor of the program; `options.method` is ignored.
  static Result<std::shared_ptr<const Compression>> make(std::shared_ptr<const Compressor> compressor,
                                                         const CompressionOptions& options);
  virtual ~Compression() = default;

  virtual const Compressor& compressor() const = 0;
  virtual CompressionPath path() const = 0;
  virtual const CompressionOptions& options() const = 0;
  // Equal if and only if two built-in compressions have the same method, memory and path, and the same values of the options that they
  // then read: other names of a method ("dgc" is topk with the memory "dgc") do not count. Ranks compare it.
  virtual std::string describe() const = 0;

  // `id` identifies the tensor, equal on all ranks and different for each tensor. `rows`: of a tensor that is a matrix, for the
  // methods that see one in it. Null if `rows` does not divide `count`, or `rank` is none of 1 to 65536 `ranks`.
  virtual std::unique_ptr<CompressedTensor> tensor(uint64_t id, size_t count, int rank, int ranks,
                                                   size_t rows = 1) const = 0;
};

// Tests on random numbers, and on numbers that are not finite, whether a compressor has its traits(): that sums of payloads
// decompress to the mean, that residuals are what is missing, that what is unbiased is so, and that the same context gives
// the same payload. kInvalidArgument names the trait that it lacks.
NETSUM_EXPORT Status check_compressor(const Compressor& compressor, uint64_t seed);

// Memory that compressed_all_reduce() keeps between calls. Tensors that are summed one after the other may share it.
struct CompressionBuffers {
  std::vector<std::byte> payloads;
  std::vector<float> numbers;
  std::vector<uint64_t> sizes;
};

// Compresses `input`, sums over all ranks along the path of `compression`, and writes the mean to `output`, which may be `input`;
// tensor.count() numbers each. Blocks until the operations have ended. All ranks call it for the same tensors in the same order.
// `tensor` is one of compression.tensor(), with the rank and the number of ranks of the communicator. After an error, `tensor` and
// `output` are as before the call (CompressedTensor::give_up()), so the call can be repeated. Errors as Communicator::all_reduce();
// kMismatch also if the ranks are in different steps of the tensor.
NETSUM_EXPORT Status compressed_all_reduce(Communicator& communicator, const Compression& compression,
                                           CompressedTensor& tensor, const float* input, float* output,
                                           CompressionBuffers& buffers,
                                           std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

// After regroup() or a readmission: tells the tensors the communicator's rank and number of ranks, and sets the step of each to the largest of
// all ranks. Blocks. All ranks pass the same tensors in the same order; a rank that is new passes new ones. After an error, nothing has changed.
NETSUM_EXPORT Status agree_on_steps(Communicator& communicator, std::span<CompressedTensor* const> tensors,
                                    std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

// Whether all ranks have passed the same text, such as the descriptions of their compressions: kMismatch on all ranks if not, with
// both texts and the rank that differs from rank 0. Blocks. Different settings could otherwise give wrong sums.
NETSUM_EXPORT Status
check_same_on_all_ranks(Communicator& communicator, std::string_view text,
                        std::chrono::milliseconds timeout = std::chrono::milliseconds(0));

}  // namespace netsum

#endif  // NETSUM_COMPRESSION_H_
