// Which methods go with which options, memory and path.
#include "netsum/compression.h"

#include <algorithm>
#include <array>
#include <utility>

#include "src/compress/memory.h"
#include "src/compress/method.h"
#include "src/compress/tensor.h"

namespace netsum {

std::string_view additivity_name(Additivity additivity) {
  switch (additivity) {
    case Additivity::kInteger:
      return "integer";
    case Additivity::kLinear:
      return "linear";
    case Additivity::kSparse:
      return "sparse";
    case Additivity::kNone:
      break;
  }
  return "none";
}

std::string_view compression_path_name(CompressionPath path) {
  switch (path) {
    case CompressionPath::kDense:
      return "dense";
    case CompressionPath::kUnion:
      return "union";
    case CompressionPath::kGather:
      break;
  }
  return "gather";
}

namespace compress {
namespace {

// The sums of 2^15 - 1 levels on either side of zero, of as many ranks, have 32 bits.
constexpr int kMostRanks = 1 << 16;

// method, memory and path, which begin compression_fields().
constexpr size_t kNamingFields = 3;

constexpr std::array kPaths = {CompressionPath::kDense, CompressionPath::kUnion, CompressionPath::kGather};

std::string quoted(std::string_view text) {
  std::string result = "'";
  result += text;
  result += "'";
  return result;
}

std::string list_of_methods() {
  std::string list;
  for (const Method* const method : all_methods()) {
    if (!list.empty()) list += ", ";
    list += method->name;
  }
  return list;
}

const MemoryForm* find_memory(std::string_view name) {
  const auto all = memories();
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
  return found != all.end() ? &*found : nullptr;
}

template <class Options>
bool has(const Options& options, std::string_view name) {
  return std::any_of(options.begin(), options.end(),
                     [&](const Option* option) { return option != nullptr && option->name == name; });
}
// Whether the method, which may be null, or the memory reads the option.
bool is_read(const Method* method, const MemoryForm& memory, std::string_view name) {
  return has(memory.options, name) || (method != nullptr && has(method->options, name));
}

// Options that nothing would read were meant for something else.
Status check_unused(const Method* method, const MemoryForm& memory, const CompressionOptions& options) {
  for (const CompressionField& field : compression_fields().subspan(kNamingFields)) {
    const std::string value = value_of(field, options);
    if (value == value_of(field, CompressionOptions()) || is_read(method, memory, field.name)) continue;
    const auto all = memories();
    const bool is_of_memories = std::any_of(
        all.begin(), all.end(), [&](const MemoryForm& one) { return has(one.options, field.name); });
    return invalid(
        std::string(field.name) + " is " + value + ", but " +
        (is_of_memories ? "the memory " + quoted(memory.name) + " of the method " : "the method ") +
        quoted(options.method) + " has no such option; leave it out");
  }
  return {};
}

template <class Options>
Status check_ranges(const Options& own, const CompressionOptions& options) {
  for (const Option* const option : own) {
    if (option == nullptr) break;
    if (Status status = check_range(*option, options); !status.ok()) return status;
  }
  return {};
}

// Combinations that would give wrong results.
Status check_memory(const Method* made_of, const Compressor& compressor, std::string_view memory) {
  const CompressorTraits traits = compressor.traits();
  const std::string method = quoted(compressor.name());
  if (memory == "none") {
    if (!traits.needs_memory) return {};
    return invalid("the method " + method +
                   " needs a memory: without one, what it leaves out is lost for ever, and training "
                   "does not converge; use memory 'residual'");
  }
  // What it keeps is not what was not sent.
  if (memory == "momentum") {
    if (made_of != nullptr && made_of->takes_momentum) return {};
    return invalid(
        "the method " + method +
        " cannot use the memory 'momentum': only signs of a momentum are a method, 'signum'; let the "
        "optimizer have the momentum");
  }
  if (!traits.mean && !traits.late_residual && !traits.needs_memory)
    return invalid("the method " + method + " cannot use the memory " + quoted(memory) +
                   ": its result is not a mean of what the ranks send, so nothing defines what remains; use "
                   "memory 'none'");
  if (!traits.biased)
    return invalid(
        "the method " + method + " cannot use the memory " + quoted(memory) +
        ": it is unbiased, so its errors cancel out by themselves, and fed back they may grow; use "
        "memory 'none'");
  const bool sends_elements = traits.additivity == Additivity::kSparse && traits.mean && traits.in_place;
  if (memory == "dgc" && !sends_elements)
    return invalid("the method " + method +
                   " cannot use the memory 'dgc', which clears the momentum of elements that were sent: its "
                   "payload does not say which these are; use topk or threshold, or memory 'residual'");
  return {};
}

Status check_path(const Compressor& compressor, CompressionPath path) {
  const CompressorTraits traits = compressor.traits();
  const std::string text = "the payloads of the method " + quoted(compressor.name()) +
                           " (additivity: " + std::string(additivity_name(traits.additivity)) +
                           ") cannot take the path " + quoted(compression_path_name(path)) + ": ";
  const bool is_sparse = traits.additivity == Additivity::kSparse;
  const bool is_dense = traits.additivity == Additivity::kInteger || traits.additivity == Additivity::kLinear;
  switch (path) {
    case CompressionPath::kDense:
      if (is_dense) return {};
      return invalid(text +
                     (is_sparse
                          ? "as long as the tensor and mostly zero, they would save nothing; use path 'union'"
                          : "their sum means nothing; use path 'gather'"));
    case CompressionPath::kUnion:
      if (is_sparse) return {};
      return invalid(text + "they have no zeros to leave out; use path " +
                     (is_dense ? "'dense'" : "'gather'"));
    case CompressionPath::kGather:
      if (traits.late_residual)
        return invalid(text + "what remains of a tensor follows from the sum of all; use path 'dense'");
      if (!traits.mean)
        return invalid(text + "its result is not the mean of what single payloads mean" +
                       (is_sparse ? "; use path 'union'" : "; use path 'dense'"));
      return {};
  }
  return invalid("path is none of CompressionPath");
}

CompressionPath default_path(Additivity additivity) {
  switch (additivity) {
    case Additivity::kInteger:
    case Additivity::kLinear:
      return CompressionPath::kDense;
    case Additivity::kSparse:
      return CompressionPath::kUnion;
    case Additivity::kNone:
      break;
  }
  return CompressionPath::kGather;
}

// The same for all options that compute the same.
CompressionOptions canonical(const Method* method, CompressionOptions options) {
  if (method == nullptr) return options;
  if (method->canonical != nullptr) method->canonical(options);
  if (options.k > 0) options.ratio = CompressionOptions().ratio;
  return options;
}

class MadeCompression : public Compression, public std::enable_shared_from_this<MadeCompression> {
 public:
  MadeCompression(std::shared_ptr<const Compressor> compressor, const Method* method,
                  const MemoryForm& memory, CompressionPath path, CompressionOptions options)
      : compressor_(std::move(compressor)),
        method_(method),
        memory_(memory),
        path_(path),
        options_(std::move(options)) {}

  const Compressor& compressor() const override { return *compressor_; }
  CompressionPath path() const override { return path_; }
  const CompressionOptions& options() const override { return options_; }
  std::string describe() const override {
    const CompressionOptions options = canonical(method_, options_);
    const Method* const method = method_ != nullptr ? find_method(options.method) : nullptr;
    std::string text = options.method;
    for (const CompressionField& field : compression_fields().subspan(kNamingFields)) {
      if (!is_read(method, memory_, field.name)) continue;
      text += ' ';
      text += field.name;
      text += '=';
      text += value_of(field, options);
    }
    return text + ", memory " + options_.memory + ", path " + options_.path;
  }
  std::unique_ptr<CompressedTensor> tensor(uint64_t id, size_t count, int rank, int ranks,
                                           size_t rows) const override {
    if (rows == 0 || count % rows != 0 || ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks)
      return nullptr;
    const CompressionContext context{.tensor = id, .step = 0, .rank = rank, .ranks = ranks, .rows = rows};
    const bool is_coded =
        path_ == CompressionPath::kGather && compressor_->traits().additivity == Additivity::kSparse;
    return make_tensor(compressor_, memory_.make(options_, count), count, context, is_coded);
  }

 private:
  std::shared_ptr<const Compressor> compressor_;
  const Method* method_;  // null: a compressor of the program
  const MemoryForm& memory_;
  CompressionPath path_;
  CompressionOptions options_;
};

std::string memory_of(const Method* method, const Compressor* compressor) {
  if (method != nullptr) return std::string(method->memory);
  return compressor->traits().needs_memory ? "residual" : "none";
}

// Resolves an empty path, too.
Result<CompressionPath> path_of(const Compressor& compressor, std::string_view name) {
  CompressionPath path = default_path(compressor.traits().additivity);
  if (!name.empty()) {
    const auto* const named = std::find_if(kPaths.begin(), kPaths.end(), [&](CompressionPath candidate) {
      return compression_path_name(candidate) == name;
    });
    if (named == kPaths.end())
      return invalid("path is " + quoted(name) + "; it must be 'dense', 'union' or 'gather'");
    path = *named;
  }
  if (Status status = check_path(compressor, path); !status.ok()) return status;
  return path;
}

// What is known of a method's options before a compressor is made of them.
Status check_options(const Method& method, const MemoryForm& memory, const CompressionOptions& options) {
  if (method.memory_is_fixed && memory.name != method.memory) {
    const CompressionOptions same = canonical(&method, options);
    return invalid("the method " + quoted(method.name) + " is " + same.method + " with the memory " +
                   quoted(method.memory) + ", and memory is " + quoted(memory.name) +
                   "; leave memory out, or use the method " + quoted(same.method));
  }
  if (Status status = check_ranges(method.options, options); !status.ok()) return status;
  if (method.conflict == nullptr) return {};
  const std::string_view why = method.conflict(options);
  return why.empty() ? Status() : invalid(std::string(why));
}

// `method` is null, or the compressor is made of it.
Result<std::shared_ptr<const Compression>> make(const Method* method, CompressorPtr compressor,
                                                CompressionOptions options) {
  if (options.memory.empty()) options.memory = memory_of(method, compressor.get());
  const MemoryForm* const memory = find_memory(options.memory);
  if (memory == nullptr)
    return invalid("memory is " + quoted(options.memory) +
                   "; it must be 'none', 'residual', 'dgc' or 'momentum'");
  options.method = method != nullptr ? method->name : compressor->name();
  if (Status status = check_ranges(memory->options, options); !status.ok()) return status;
  if (method != nullptr) {
    if (Status status = check_options(*method, *memory, options); !status.ok()) return status;
    compressor = method->make(options, memory->name != "none");
  }
  if (Status status = check_unused(method, *memory, options); !status.ok()) return status;
  if (Status status = check_memory(method, *compressor, options.memory); !status.ok()) return status;
  const auto path = path_of(*compressor, options.path);
  if (!path.ok()) return path.status();
  options.path = compression_path_name(*path);
  return std::shared_ptr<const Compression>(
      std::make_shared<MadeCompression>(std::move(compressor), method, *memory, *path, std::move(options)));
}

}  // namespace
}  // namespace compress

std::vector<std::string_view> compression_methods() {
  std::vector<std::string_view> names;
  for (const auto* const method : compress::all_methods()) names.push_back(method->name);
  return names;
}

Result<std::shared_ptr<const Compression>> Compression::make(const CompressionOptions& options) {
  const auto* const method = compress::find_method(options.method);
  if (method == nullptr)
    return compress::invalid("there is no compression method " + compress::quoted(options.method) +
                             "; it must be one of " + compress::list_of_methods());
  return compress::make(method, nullptr, options);
}

Result<std::shared_ptr<const Compression>> Compression::make(std::shared_ptr<const Compressor> compressor,
                                                             const CompressionOptions& options) {
  if (compressor == nullptr) return compress::invalid("the compressor is a null pointer");
  return compress::make(nullptr, std::move(compressor), options);
}

}  // namespace netsum
