#include "torch/src/compression.h"

#include <ATen/ATen.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "netsum/compression.h"
#include "torch/src/python_compressor.h"

namespace netsum::torch_backend {
namespace {

namespace py = pybind11;

void check(const char* what, const at::Tensor& tensor, at::ScalarType type, size_t count) {
  TORCH_CHECK_VALUE(tensor.device().is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == type &&
                        static_cast<size_t>(tensor.numel()) == count,
                    "the ", what, " must be a contiguous CPU tensor of ", count, " elements of ", type,
                    ", not ", tensor.numel(), " of ", tensor.scalar_type());
}

template <typename T>
void set(T& field, const std::string& name, const py::handle& value, const char* type) {
  try {
    field = value.cast<T>();
  } catch (const py::cast_error&) {
    throw py::type_error(name + " must be " + type + ", not " + py::repr(value).cast<std::string>());
  }
}

CompressionOptions options_of(const py::dict& given) {
  CompressionOptions options;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    if (name == "method") {
      set(options.method, name, value, "a name");
    } else if (name == "memory") {
      set(options.memory, name, value, "a name");
    } else if (name == "path") {
      set(options.path, name, value, "a name");
    } else if (name == "ratio") {
      set(options.ratio, name, value, "a number");
    } else if (name == "k") {
      set(options.k, name, value, "a whole number that is not negative");
    } else if (name == "sampled") {
      set(options.sampled, name, value, "a bool");
    } else if (name == "block") {
      set(options.block, name, value, "a whole number that is not negative");
    } else if (name == "rotated") {
      set(options.rotated, name, value, "a bool");
    } else if (name == "rank") {
      set(options.rank, name, value, "a whole number that is not negative");
    } else if (name == "fit") {
      set(options.fit, name, value, "a name");
    } else if (name == "threshold") {
      set(options.threshold, name, value, "a number");
    } else if (name == "decay") {
      set(options.decay, name, value, "a number");
    } else if (name == "momentum") {
      set(options.momentum, name, value, "a number");
    } else if (name == "clip_norm") {
      set(options.clip_norm, name, value, "a number");
    } else if (name == "warmup_steps") {
      set(options.warmup_steps, name, value, "a whole number that is not negative");
    } else if (name == "levels") {
      set(options.levels, name, value, "a whole number that is not negative");
    } else if (name == "error_bound") {
      set(options.error_bound, name, value, "a number");
    } else if (name == "buckets") {
      set(options.buckets, name, value, "a whole number that is not negative");
    } else if (name == "seed") {
      set(options.seed, name, value, "a whole number that is not negative");
    } else {
      throw py::type_error("compression has no option '" + name +
                           "'; it has method, memory, path, ratio, k, sampled, block, rotated, rank, fit, "
                           "threshold, decay, momentum, clip_norm, "
                           "warmup_steps, levels, error_bound, buckets and seed");
    }
  }
  return options;
}

// What a payload that varies says of itself; 0 of one that is too short to say it.
uint64_t used_bytes(const at::Tensor& payload) {
  uint64_t bytes = 0;
  if (static_cast<size_t>(payload.numel()) >= sizeof bytes)
    std::memcpy(&bytes, payload.const_data_ptr(), sizeof bytes);
  return bytes;
}

using CompressionPtr = std::shared_ptr<const Compression>;

// A tensor, and the compression that it needs.
class Tensor {
 public:
  Tensor(CompressionPtr compression, uint64_t id, size_t count, int rank, int ranks, size_t rows)
      : compression_(std::move(compression)), tensor_(compression_->tensor(id, count, rank, ranks, rows)) {}

  py::tuple shape() const {
    const PayloadShape shape = tensor_->shape();
    const auto type = py::reinterpret_borrow<py::object>(
        reinterpret_cast<PyObject*>(::torch::getTHPDtype(scalar_type(shape.type))));
    return py::make_tuple(type, shape.count, shape.side_values, shape.varies);
  }

  size_t agreed_values() const { return tensor_->agreed_values(); }
  bool agrees_on_means() const { return compression_->compressor().agreement() == Agreement::kMean; }
  void agree(const at::Tensor& gradient, const at::Tensor& mine) {
    check("gradient", gradient, at::kFloat, tensor_->count());
    check("agreed values", mine, at::kFloat, tensor_->agreed_values());
    const py::gil_scoped_release unlocked;
    tensor_->agree(gradient.const_data_ptr<float>(), mine.mutable_data_ptr<float>());
  }
  void compress(const at::Tensor& gradient, const at::Tensor& agreed, const at::Tensor& payload,
                const at::Tensor& side) {
    check_payload(payload, side);
    check("gradient", gradient, at::kFloat, tensor_->count());
    check("agreed values", agreed, at::kFloat, tensor_->agreed_values());
    const py::gil_scoped_release unlocked;
    tensor_->compress(gradient.const_data_ptr<float>(), agreed.const_data_ptr<float>(),
                      payload.mutable_data_ptr(), side.mutable_data_ptr<float>());
  }
  void decompress(const at::Tensor& payload, const at::Tensor& side, int contributions,
                  const at::Tensor& out) {
    check_received(payload, side);
    check("result", out, at::kFloat, tensor_->count());
    TORCH_CHECK_VALUE(contributions > 0, "contributions is ", contributions);
    TORCH_CHECK_VALUE(tensor_->step() > 0, "nothing has been compressed yet");
    const py::gil_scoped_release unlocked;
    tensor_->decompress(payload.const_data_ptr(), side.const_data_ptr<float>(), contributions,
                        out.mutable_data_ptr<float>());
  }

  uint64_t step() const { return tensor_->step(); }
  std::map<std::string, at::Tensor> state() const {
    std::map<std::string, at::Tensor> copies;
    for (const CompressionState& part : tensor_->state())
      copies.emplace(
          part.name,
          at::from_blob(part.values.data(), {static_cast<int64_t>(part.values.size())}, at::kFloat).clone());
    return copies;
  }
  void restore(uint64_t step, const std::map<std::string, at::Tensor>& saved) {
    std::vector<SavedCompressionState> parts;
    // In the order of the tensor's own parts; what it does not have comes last, and is refused.
    const auto add = [&](const std::string& name, const at::Tensor& values) {
      check(name.c_str(), values, at::kFloat, static_cast<size_t>(values.numel()));
      parts.push_back({name, {values.const_data_ptr<float>(), static_cast<size_t>(values.numel())}});
    };
    std::map<std::string, at::Tensor> others = saved;
    for (const CompressionState& part : tensor_->state()) {
      const auto found = saved.find(std::string(part.name));
      if (found == saved.end()) continue;
      add(found->first, found->second);
      others.erase(found->first);
    }
    for (const auto& [name, values] : others) add(saved.find(name)->first, values);
    const Status status = tensor_->restore(step, parts);
    if (!status.ok()) throw py::value_error(status.message());
  }
  double memory_norm() const {
    const py::gil_scoped_release unlocked;
    double squares = 0;
    for (const CompressionState& part : tensor_->state()) {
      if (!part.is_memory) continue;
      for (const float value : part.values)
        squares += static_cast<double>(value) * static_cast<double>(value);
    }
    return std::sqrt(squares);
  }
  void scale_memory(float factor) { tensor_->scale_memory(factor); }
  void set_ranks(int rank, int ranks) { tensor_->set_ranks(rank, ranks); }

 private:
  void check_payload(const at::Tensor& payload, const at::Tensor& side) const {
    const PayloadShape shape = tensor_->shape();
    check("payload", payload, scalar_type(shape.type), shape.count);
    check("side values", side, at::kFloat, shape.side_values);
  }

  // A payload that varies may end where its length says.
  void check_received(const at::Tensor& payload, const at::Tensor& side) const {
    if (!tensor_->shape().varies) return check_payload(payload, side);
    check("payload", payload, at::kByte, static_cast<size_t>(payload.numel()));
    TORCH_CHECK_VALUE(used_bytes(payload) == static_cast<uint64_t>(payload.numel()), "a payload of ",
                      payload.numel(), " bytes says that it has ", used_bytes(payload));
    check("side values", side, at::kFloat, tensor_->shape().side_values);
  }

  CompressionPtr compression_;
  std::unique_ptr<CompressedTensor> tensor_;
};

// Python's handle of a compression, which is const.
struct Handle {
  CompressionPtr compression;
};

// `compressor`: netsum.torch.Compressor, or None for a method.
Handle make_handle(const py::dict& options, const py::object& compressor) {
  auto made = compressor.is_none()
                  ? Compression::make(options_of(options))
                  : Compression::make(make_python_compressor(compressor), options_of(options));
  if (!made.ok()) throw py::value_error(made.status().message());
  return {std::move(made).value()};
}

}  // namespace

void bind_compression(py::module_& module) {
  module.def("compression_methods", [] {
    std::vector<std::string> names;
    for (const std::string_view name : compression_methods()) names.emplace_back(name);
    return names;
  });
  module.def(
      "check_compressor",
      [](const py::object& compressor, uint64_t seed) {
        const Status status = check_promises(*make_python_compressor(compressor), seed);
        if (!status.ok()) throw py::value_error(status.message());
      },
      py::arg("compressor"), py::arg("seed") = 1,
      "Tests on random numbers whether a compressor keeps what it promises; raises ValueError with the "
      "promise that it breaks.");
  py::class_<Handle>(module, "Compression")
      .def(py::init(&make_handle), py::arg("options"), py::arg("compressor") = py::none())
      .def_property_readonly(
          "path",
          [](const Handle& handle) { return std::string(compression_path_name(handle.compression->path())); })
      .def_property_readonly("memory",
                             [](const Handle& handle) { return handle.compression->options().memory; })
      // Whether the result is the mean of what the ranks send, so that methods may take turns.
      .def_property_readonly(
          "is_mean", [](const Handle& handle) { return handle.compression->compressor().promise().mean; })
      .def("describe", [](const Handle& handle) { return handle.compression->describe(); })
      .def(
          "tensor",
          [](const Handle& handle, uint64_t id, size_t count, int rank, int ranks, size_t rows) {
            TORCH_CHECK_VALUE(rows > 0 && count % rows == 0, "a tensor of ", count, " elements has no ", rows,
                              " rows");
            return std::make_unique<Tensor>(handle.compression, id, count, rank, ranks, rows);
          },
          py::arg("id"), py::arg("count"), py::arg("rank"), py::arg("ranks"), py::arg("rows") = 1);
  py::class_<Tensor>(module, "CompressedTensor")
      .def("shape", &Tensor::shape)
      .def_property_readonly("agreed_values", &Tensor::agreed_values)
      .def_property_readonly("agrees_on_means", &Tensor::agrees_on_means)
      .def("agree", &Tensor::agree, py::arg("gradient"), py::arg("mine"))
      .def("compress", &Tensor::compress, py::arg("gradient"), py::arg("agreed"), py::arg("payload"),
           py::arg("side"))
      .def("decompress", &Tensor::decompress, py::arg("payload"), py::arg("side"), py::arg("contributions"),
           py::arg("out"))
      .def_property_readonly("step", &Tensor::step)
      .def("state", &Tensor::state)
      .def("restore", &Tensor::restore, py::arg("step"), py::arg("saved"))
      .def("memory_norm", &Tensor::memory_norm)
      .def("scale_memory", &Tensor::scale_memory, py::arg("factor"))
      .def("set_ranks", &Tensor::set_ranks, py::arg("rank"), py::arg("ranks"));
}

}  // namespace netsum::torch_backend
