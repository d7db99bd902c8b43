// Methods by name, and which of them go with which memory and path.
#include "netsum/compression.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "src/compress/memory.h"
#include "src/compress/methods.h"
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

Status invalid(std::string why) {
  return {ErrorCode::kInvalidArgument, std::move(why)};
}

struct Method {
  std::string_view name;
  std::string_view memory;                    // without CompressionOptions::memory
  std::array<std::string_view, 4> options{};  // those that the method itself has
  MadeCompressor (*make)(const CompressionOptions& options, bool has_memory) = nullptr;
};

// The sums of 2^15 - 1 levels on either side of zero, of as many ranks, have 32 bits.
constexpr int kMostRanks = 1 << 16;

// In alphabetical order.
constexpr std::array kMethods = {
    Method{"adaq",
           "residual",
           {"ratio"},
           [](const CompressionOptions& options, bool) { return make_adaptive_levels(options); }},
    Method{
        "bf16", "none", {}, [](const CompressionOptions&, bool) { return make_half(DataType::kBFloat16); }},
    Method{"blocktopk",
           "residual",
           {"ratio", "k", "block"},
           [](const CompressionOptions& options, bool) { return make_block_top_k(options); }},
    Method{"chunktopk",
           "residual",
           {"ratio", "k", "block"},
           [](const CompressionOptions& options, bool) { return make_chunk_top_k(options); }},
    Method{"countsketch",
           "residual",
           {"ratio", "k", "seed"},
           [](const CompressionOptions& options, bool) { return make_count_sketch(options); }},
    Method{"dcttopk",
           "residual",
           {"ratio", "k", "block", "count_senders"},
           [](const CompressionOptions& options, bool) { return make_dct_top_k(options); }},
    Method{"dgc",
           "dgc",
           {"ratio", "k", "sampled", "warmup_steps"},
           [](const CompressionOptions& options, bool) { return make_top_k(options); }},
    Method{"efsign", "residual", {}, [](const CompressionOptions&, bool) { return make_ef_sign(); }},
    Method{"fp16", "none", {}, [](const CompressionOptions&, bool) { return make_half(DataType::kFloat16); }},
    Method{"fp8_e4m3",
           "residual",
           {"block"},
           [](const CompressionOptions& options, bool) { return make_byte_numbers("fp8_e4m3", options); }},
    Method{"fp8_e5m2",
           "residual",
           {"block"},
           [](const CompressionOptions& options, bool) { return make_byte_numbers("fp8_e5m2", options); }},
    Method{"inceptionn",
           "residual",
           {"error_bound"},
           [](const CompressionOptions& options, bool) { return make_inceptionn(options); }},
    Method{"int4",
           "residual",
           {"block", "rotated", "seed"},
           [](const CompressionOptions& options, bool has_memory) {
             return make_integers("int4", options, has_memory);
           }},
    Method{"int8",
           "residual",
           {"block", "rotated", "seed"},
           [](const CompressionOptions& options, bool has_memory) {
             return make_integers("int8", options, has_memory);
           }},
    Method{"lanes8",
           "residual",
           {"block", "rotated", "seed"},
           [](const CompressionOptions& options, bool has_memory) {
             return make_integers("lanes8", options, has_memory);
           }},
    Method{"natural", "none", {"seed"}, &make_natural},
    Method{"none", "none", {}, [](const CompressionOptions&, bool) { return make_identity(); }},
    Method{"onebit", "residual", {}, [](const CompressionOptions&, bool) { return make_one_bit(); }},
    Method{"powersgd",
           "residual",
           {"rank", "seed"},
           [](const CompressionOptions& options, bool) { return make_power_sgd(options); }},
    Method{"qsgd",
           "none",
           {"levels", "seed"},
           [](const CompressionOptions& options, bool) { return make_levels("qsgd", options); }},
    Method{"randomk", "residual", {"ratio", "k", "seed"}, &make_random_k},
    Method{"sidco",
           "residual",
           {"ratio", "k", "fit"},
           [](const CompressionOptions& options, bool) { return make_sidco(options); }},
    Method{"signsgd", "none", {}, [](const CompressionOptions&, bool) { return make_sign_vote(); }},
    Method{"signum", "momentum", {}, [](const CompressionOptions&, bool) { return make_sign_vote(); }},
    Method{"sketch",
           "residual",
           {"buckets", "seed"},
           [](const CompressionOptions& options, bool) { return make_quantile_sketch(options); }},
    Method{"terngrad",
           "none",
           {"seed"},
           [](const CompressionOptions& options, bool) {
             CompressionOptions one_level = options;
             one_level.levels = 1;
             return make_levels("terngrad", one_level);
           }},
    Method{"thc",
           "residual",
           {"block", "seed"},
           [](const CompressionOptions& options, bool has_memory) {
             return make_integers("thc", options, has_memory);
           }},
    Method{"thc_table",
           "residual",
           {"block", "seed"},
           [](const CompressionOptions& options, bool has_memory) {
             return make_integers("thc_table", options, has_memory);
           }},
    Method{"threshold",
           "residual",
           {"threshold"},
           [](const CompressionOptions& options, bool) { return make_threshold(options); }},
    Method{"topk",
           "residual",
           {"ratio", "k", "sampled", "warmup_steps"},
           [](const CompressionOptions& options, bool) { return make_top_k(options); }},
    Method{"u8bit",
           "residual",
           {"block"},
           [](const CompressionOptions& options, bool) { return make_byte_numbers("u8bit", options); }},
};

constexpr std::array<std::pair<std::string_view, MemoryKind>, 4> kMemories = {
    {{"none", MemoryKind::kNone},
     {"residual", MemoryKind::kResidual},
     {"dgc", MemoryKind::kDgc},
     {"momentum", MemoryKind::kMomentum}}};
constexpr std::array kPaths = {CompressionPath::kDense, CompressionPath::kUnion, CompressionPath::kGather};

std::string quoted(std::string_view text) {
  std::string result = "'";
  result += text;
  result += "'";
  return result;
}

std::string list_of_methods() {
  std::string list;
  for (const Method& method : kMethods) {
    if (!list.empty()) list += ", ";
    list += method.name;
  }
  return list;
}

// Options with their values as text. `memory`: the memory that has the option; empty: methods have it.
struct Option {
  std::string_view name;
  std::string_view memory;
  std::string value;
  std::string default_value;
};

std::string text_of(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

std::vector<Option> list_options(const CompressionOptions& o) {
  const CompressionOptions standard;
  return {{"ratio", "", text_of(o.ratio), text_of(standard.ratio)},
          {"k", "", std::to_string(o.k), std::to_string(standard.k)},
          {"sampled", "", o.sampled ? "true" : "false", "false"},
          {"block", "", std::to_string(o.block), std::to_string(standard.block)},
          {"rotated", "", o.rotated ? "true" : "false", "false"},
          {"count_senders", "", o.count_senders ? "true" : "false", "false"},
          {"rank", "", std::to_string(o.rank), std::to_string(standard.rank)},
          {"fit", "", o.fit, standard.fit},
          {"threshold", "", text_of(o.threshold), text_of(standard.threshold)},
          {"warmup_steps", "", std::to_string(o.warmup_steps), std::to_string(standard.warmup_steps)},
          {"levels", "", std::to_string(o.levels), std::to_string(standard.levels)},
          {"error_bound", "", text_of(o.error_bound), text_of(standard.error_bound)},
          {"buckets", "", std::to_string(o.buckets), std::to_string(standard.buckets)},
          {"seed", "", std::to_string(o.seed), std::to_string(standard.seed)},
          {"decay", "residual", text_of(o.decay), text_of(standard.decay)},
          {"momentum", "dgc", text_of(o.momentum), text_of(standard.momentum)},
          {"momentum", "momentum", text_of(o.momentum), text_of(standard.momentum)},
          {"clip_norm", "dgc", text_of(o.clip_norm), text_of(standard.clip_norm)}};
}

bool has_option(const Method* method, std::string_view memory, const Option& option) {
  if (!option.memory.empty()) return option.memory == memory;
  return method != nullptr &&
         std::find(method->options.begin(), method->options.end(), option.name) != method->options.end();
}

// Options that nothing would read were meant for something else.
Status check_unused(const Method* method, std::string_view name, std::string_view memory,
                    const CompressionOptions& options) {
  const std::vector<Option> all = list_options(options);
  for (const Option& option : all) {
    // Two memories may have an option of the same name.
    const bool is_read = std::any_of(all.begin(), all.end(), [&](const Option& other) {
      return other.name == option.name && has_option(method, memory, other);
    });
    if (option.value == option.default_value || is_read) continue;
    return invalid(std::string(option.name) + " is " + option.value + ", but " +
                   (option.memory.empty()
                        ? "the method " + quoted(name)
                        : "the memory " + quoted(memory) + " of the method " + quoted(name)) +
                   " has no such option; leave it out");
  }
  return {};
}

Status check_ranges(const CompressionOptions& options) {
  if (!(options.decay >= 0 && options.decay <= 1))
    return invalid("decay is " + text_of(options.decay) + "; it must be between 0 and 1");
  if (!(options.momentum >= 0 && options.momentum < 1))
    return invalid("momentum is " + text_of(options.momentum) + "; it must be at least 0 and below 1");
  if (!(options.clip_norm >= 0) || !std::isfinite(options.clip_norm))
    return invalid("clip_norm is " + text_of(options.clip_norm) +
                   "; it must be a positive number, or 0 for none");
  if (options.k > 0 && options.warmup_steps > 0)
    return invalid("k and warmup_steps are both set, but a warm-up lowers a share: use ratio instead of k");
  return {};
}

// Combinations that would give wrong results.
Status check_memory(const Compressor& compressor, std::string_view memory) {
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
    if (compressor.name() == "signsgd") return {};
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
  const bool sends_elements =
      traits.additivity == Additivity::kSparse && traits.mean && compressor.name() != "dcttopk";
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

// One name for each method, and default values of the options that nothing reads because of others.
CompressionOptions canonical(CompressionOptions options) {
  if (options.method == "dgc") options.method = "topk";
  if (options.method == "signum") options.method = "signsgd";
  if (options.method == "terngrad") {
    options.method = "qsgd";
    options.levels = 1;
  }
  const bool is_rounded_to_nearest = options.memory != "none" && !options.rotated &&
                                     (options.method == "lanes8" || options.method == "int8" ||
                                      options.method == "int4" || options.method == "natural");
  if (is_rounded_to_nearest) options.seed = CompressionOptions().seed;
  if (options.k > 0) options.ratio = CompressionOptions().ratio;
  return options;
}

const Method* find_method(std::string_view name) {
  const auto* const method = std::find_if(kMethods.begin(), kMethods.end(),
                                          [&](const Method& candidate) { return candidate.name == name; });
  return method != kMethods.end() ? method : nullptr;
}

class MadeCompression : public Compression, public std::enable_shared_from_this<MadeCompression> {
 public:
  MadeCompression(std::shared_ptr<const Compressor> compressor, const Method* method, MemoryKind memory,
                  CompressionPath path, CompressionOptions options)
      : compressor_(std::move(compressor)),
        method_(method),
        memory_(memory),
        path_(path),
        options_(std::move(options)) {}

  const Compressor& compressor() const override { return *compressor_; }
  CompressionPath path() const override { return path_; }
  const CompressionOptions& options() const override { return options_; }
  std::string describe() const override {
    const CompressionOptions options = method_ != nullptr ? canonical(options_) : options_;
    const Method* const method = method_ != nullptr ? find_method(options.method) : nullptr;
    std::string text = options.method;
    for (const Option& option : list_options(options)) {
      if (!has_option(method, options.memory, option)) continue;
      text += ' ';
      text += option.name;
      text += '=';
      text += option.value;
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
    return make_tensor(compressor_, make_memory(memory_, options_, count), count, context, is_coded);
  }

 private:
  std::shared_ptr<const Compressor> compressor_;
  const Method* method_;  // null: a compressor of the program
  MemoryKind memory_;
  CompressionPath path_;
  CompressionOptions options_;
};

// `method` is null, or the compressor is made of it.
Result<std::shared_ptr<const Compression>> make(const Method* method,
                                                std::shared_ptr<const Compressor> compressor,
                                                CompressionOptions options) {
  if (options.memory.empty()) {
    options.memory = method != nullptr                   ? method->memory
                     : compressor->traits().needs_memory ? "residual"
                                                         : "none";
  }
  const auto* const memory = std::find_if(kMemories.begin(), kMemories.end(),
                                          [&](const auto& entry) { return entry.first == options.memory; });
  if (memory == kMemories.end())
    return invalid("memory is " + quoted(options.memory) +
                   "; it must be 'none', 'residual', 'dgc' or 'momentum'");
  if (method != nullptr && method->name == "dgc" && options.memory != "dgc")
    return invalid("the method 'dgc' is topk with the memory 'dgc', and memory is " + quoted(options.memory) +
                   "; leave memory out, or use the method 'topk'");
  if (Status status = check_ranges(options); !status.ok()) return status;
  if (compressor == nullptr) {
    auto made = method->make(options, memory->second != MemoryKind::kNone);
    if (!made.ok()) return made.status();
    compressor = std::move(made).value();
  }
  options.method = method != nullptr ? method->name : compressor->name();
  if (Status status = check_unused(method, options.method, options.memory, options); !status.ok())
    return status;
  if (Status status = check_memory(*compressor, options.memory); !status.ok()) return status;
  CompressionPath path = default_path(compressor->traits().additivity);
  if (!options.path.empty()) {
    const auto* const named = std::find_if(kPaths.begin(), kPaths.end(), [&](CompressionPath candidate) {
      return compression_path_name(candidate) == options.path;
    });
    if (named == kPaths.end())
      return invalid("path is " + quoted(options.path) + "; it must be 'dense', 'union' or 'gather'");
    path = *named;
  }
  if (options.count_senders && path == CompressionPath::kGather)
    return invalid(
        "count_senders is true, but the path 'gather' decompresses single payloads, in which the senders "
        "cannot be counted; use path 'union', or leave count_senders out");
  if (Status status = check_path(*compressor, path); !status.ok()) return status;
  options.path = compression_path_name(path);
  return std::shared_ptr<const Compression>(std::make_shared<MadeCompression>(
      std::move(compressor), method, memory->second, path, std::move(options)));
}

}  // namespace
}  // namespace compress

std::vector<std::string_view> compression_methods() {
  std::vector<std::string_view> names;
  for (const auto& method : compress::kMethods) names.push_back(method.name);
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
