#include "torch/src/python_compressor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

namespace netsum::torch_backend {
namespace {

namespace py = pybind11;

constexpr std::array kAdditivities = {Additivity::kInteger, Additivity::kLinear, Additivity::kSparse,
                                      Additivity::kNone};
constexpr std::array kTypes = {DataType::kFloat32, DataType::kBFloat16, DataType::kFloat16, DataType::kInt32,
                               DataType::kByte};

// Whether payloads of the type can be what the compressor says that they are.
bool fits(DataType type, Additivity additivity) {
  if (additivity == Additivity::kNone) return type == DataType::kByte;
  return additivity == Additivity::kInteger ? type == DataType::kInt32 : is_floating(type);
}

// Classes written for version 0.1 have `summability` instead, which called sparse payloads "union".
std::string additivity_of(const py::object& object) {
  if (!py::hasattr(object, "summability")) return object.attr("additivity").cast<std::string>();
  auto summability = object.attr("summability").cast<std::string>();
  return summability == "union" ? "sparse" : summability;
}

class PythonCompressor : public Compressor {
 public:
  explicit PythonCompressor(const py::object& object)
      : object_(object), name_(object.attr("name").cast<std::string>()) {
    const auto additivity = additivity_of(object);
    const auto* const known = std::find_if(kAdditivities.begin(), kAdditivities.end(), [&](Additivity one) {
      return additivity == additivity_name(one);
    });
    if (known == kAdditivities.end())
      throw py::value_error("the compressor " + name_ + " has the additivity '" + additivity +
                            "'; it must be 'linear', 'integer', 'sparse' or 'none'");
    traits_.additivity = *known;
    traits_.biased = object.attr("biased").cast<bool>();
    traits_.needs_memory = object.attr("needs_memory").cast<bool>();
    context_type_ = py::module_::import("types").attr("SimpleNamespace");
  }
  ~PythonCompressor() override {
    const py::gil_scoped_acquire locked;
    object_ = py::object();
    context_type_ = py::object();
  }
  PythonCompressor(const PythonCompressor&) = delete;
  PythonCompressor& operator=(const PythonCompressor&) = delete;

  std::string_view name() const override { return name_; }
  CompressorTraits traits() const override { return traits_; }
  PayloadShape shape(const CompressionContext& context, size_t count) const override {
    const py::gil_scoped_acquire locked;
    const auto shape = object_.attr("shape")(count, python_of(context)).cast<py::tuple>();
    const auto wanted = shape[0].cast<at::ScalarType>();
    const auto elements = shape[1].cast<size_t>();
    if (traits_.additivity == Additivity::kSparse && elements != count)
      throw py::value_error("the compressor " + name_ + " has payloads of " + std::to_string(elements) +
                            " elements for tensors of " + std::to_string(count) +
                            "; those of the additivity 'sparse' are as long as the tensor");
    for (const DataType type : kTypes) {
      if (scalar_type(type) == wanted && fits(type, traits_.additivity))
        return {.type = type, .count = elements};
    }
    throw py::value_error(
        "the compressor " + name_ + " has payloads of a type that is not one of the additivity '" +
        std::string(additivity_name(traits_.additivity)) +
        "': use torch.int32 for 'integer', torch.uint8 for 'none', otherwise torch.float32, "
        "bfloat16 or float16");
  }

  void compress(const CompressionContext& context, std::span<const float> values,
                std::span<const float> agreed, float* residual, void* payload, float* side) const override {
    const py::gil_scoped_acquire locked;
    const PayloadShape of_payload = shape(context, values.size());
    object_.attr("compress")(tensor_of(values.data(), values.size()), tensor_of(payload, of_payload),
                             python_of(context));
    if (residual == nullptr || !traits_.biased) return;
    const at::Tensor sent = at::empty({static_cast<int64_t>(values.size())});
    decompress(context, agreed, payload, side, 1, {sent.mutable_data_ptr<float>(), values.size()}, nullptr);
    const float* const part = sent.const_data_ptr<float>();
    for (size_t i = 0; i < values.size(); ++i) {
      const float rest = values[i] - part[i];
      residual[i] = std::isfinite(rest) ? rest : 0;
    }
  }
  void decompress(const CompressionContext& context, std::span<const float> /*agreed*/, const void* payload,
                  const float* /*side*/, int contributions, std::span<float> out,
                  float* /*residual*/) const override {
    const py::gil_scoped_acquire locked;
    object_.attr("decompress")(tensor_of(payload, shape(context, out.size())), contributions,
                               tensor_of(out.data(), out.size()), python_of(context));
  }

 private:
  py::object python_of(const CompressionContext& context) const {
    return context_type_(py::arg("tensor") = context.tensor, py::arg("step") = context.step,
                         py::arg("rank") = context.rank, py::arg("ranks") = context.ranks,
                         py::arg("rows") = context.rows);
  }
  static at::Tensor tensor_of(const void* data, const PayloadShape& shape) {
    return at::from_blob(const_cast<void*>(data), {static_cast<int64_t>(shape.count)},
                         scalar_type(shape.type));
  }
  static at::Tensor tensor_of(const float* data, size_t count) { return tensor_of(data, {.count = count}); }

  py::object object_;
  std::string name_;
  CompressorTraits traits_;
  py::object context_type_;
};

}  // namespace

at::ScalarType scalar_type(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return at::kFloat;
    case DataType::kBFloat16:
      return at::kBFloat16;
    case DataType::kFloat16:
      return at::kHalf;
    case DataType::kInt32:
      return at::kInt;
    case DataType::kInt64:
      return at::kLong;
    case DataType::kByte:
      break;
  }
  return at::kByte;
}

std::shared_ptr<const Compressor> make_python_compressor(const py::object& object) {
  const py::object base = py::module_::import("netsum.torch._compressor").attr("Compressor");
  if (!py::isinstance(object, base))
    throw py::type_error(
        "a method of compression is a name or an object of a class derived from netsum.torch.Compressor, "
        "such "
        "as Mine(); this is " +
        py::repr(object).cast<std::string>());
  return std::make_shared<PythonCompressor>(object);
}

}  // namespace netsum::torch_backend
