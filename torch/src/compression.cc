#include "torch/src/compression.h"

#include <ATen/ATen.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "netsum/compression.h"
#include "torch/src/compressed_tensor.h"
#include "torch/src/python_compressor.h"
#include "torch/src/sharded_plan.h"

namespace netsum::torch_backend {
namespace {

namespace py = pybind11;

template <typename T>
constexpr const char* kTypeName = "a whole number that is not negative";
template <>
constexpr const char* kTypeName<std::string> = "a name";
template <>
constexpr const char* kTypeName<double> = "a number";
template <>
constexpr const char* kTypeName<bool> = "a bool";

template <typename T>
void set(T& field, const std::string& name, const py::handle& value) {
  try {
    field = value.cast<T>();
  } catch (const py::cast_error&) {
    throw py::type_error(name + " must be " + kTypeName<T> + ", not " + py::repr(value).cast<std::string>());
  }
}

CompressionOptions options_of(const py::dict& given) {
  CompressionOptions options;
  const auto fields = compression_fields();
  for (const auto& item : given) {
    const auto name = item.first.cast<std::string>();
    const auto field =
        std::find_if(fields.begin(), fields.end(), [&](const auto& one) { return one.name == name; });
    if (field == fields.end()) {
      std::string known;
      for (const CompressionField& one : fields) known += (known.empty() ? "" : ", ") + std::string(one.name);
      throw py::type_error("compression has no option '" + name + "'; it has " + known);
    }
    std::visit([&](auto member) { set(options.*member, name, item.second); }, field->member);
  }
  return options;
}

// Python's handle of a compression, which is const.
struct Handle {
  CompressionPtr compression;
  bool is_python = false;  // its compressor is written in Python
};

// `compressor`: netsum.torch.Compressor, or None for a method.
Handle make_handle(const py::dict& options, const py::object& compressor) {
  auto made = compressor.is_none()
                  ? Compression::make(options_of(options))
                  : Compression::make(make_python_compressor(compressor), options_of(options));
  if (!made.ok()) throw py::value_error(made.status().message());
  return {.compression = std::move(made).value(), .is_python = !compressor.is_none()};
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
        const Status status = check_compressor(*make_python_compressor(compressor), seed);
        if (!status.ok()) throw py::value_error(status.message());
      },
      py::arg("compressor"), py::arg("seed") = 1,
      "Tests on random numbers whether a compressor has the traits that it declares; raises ValueError with "
      "the one that it lacks.");
  py::class_<Handle>(module, "Compression")
      .def(py::init(&make_handle), py::arg("options"), py::arg("compressor") = py::none())
      .def_property_readonly(
          "path",
          [](const Handle& handle) { return std::string(compression_path_name(handle.compression->path())); })
      .def_property_readonly("memory",
                             [](const Handle& handle) { return handle.compression->options().memory; })
      .def_readonly("is_python", &Handle::is_python)
      // Whether the result is the mean of what the ranks send, so that methods may take turns.
      .def_property_readonly(
          "is_mean", [](const Handle& handle) { return handle.compression->compressor().traits().mean; })
      // Whether the ranks agree on maxima before they compress.
      .def_property_readonly("needs_maxima",
                             [](const Handle& handle) {
                               constexpr size_t kRows = 32;  // of any matrix
                               const Compressor& compressor = handle.compression->compressor();
                               return compressor.agreement() == Agreement::kMax &&
                                      compressor.agreed_values({.ranks = 2, .rows = kRows}, kRows * kRows) >
                                          0;
                             })
      // "": every part of a tensor can be compressed by itself.
      .def_property_readonly("why_not_in_parts",
                             [](const Handle& handle) { return why_not_in_parts(*handle.compression); })
      .def("describe", [](const Handle& handle) { return handle.compression->describe(); })
      .def(
          "tensor",
          [](const Handle& handle, uint64_t id, size_t count, int rank, int ranks, size_t rows) {
            TORCH_CHECK_VALUE(rows > 0 && count % rows == 0, "a tensor of ", count, " elements has no ", rows,
                              " rows");
            TORCH_CHECK_VALUE(ranks >= 1 && ranks <= 1 << 16 && rank >= 0 && rank < ranks,
                              "there is no rank ", rank, " of ", ranks);
            return std::make_shared<Tensor>(handle.compression, !handle.is_python, id, count, rank, ranks,
                                            rows);
          },
          py::arg("id"), py::arg("count"), py::arg("rank"), py::arg("ranks"), py::arg("rows") = 1);
  py::class_<Tensor, std::shared_ptr<Tensor>>(module, "CompressedTensor")
      .def("shape",
           [](Tensor& tensor) {
             const PayloadShape shape = tensor.get().shape();
             const auto type = py::reinterpret_borrow<py::object>(
                 reinterpret_cast<PyObject*>(::torch::getTHPDtype(scalar_type(shape.type))));
             return py::make_tuple(type, shape.count, shape.side_values, shape.varies);
           })
      .def_property_readonly("agreed_values", &Tensor::agreed_values)
      .def_property_readonly(
          "encoded_on_device",
          [](const Tensor& tensor) { return tensor.on_device() != Tensor::OnDevice::kNo; },
          "Whether gradients of an accelerator are encoded there, by DistributedDataParallel's hook.")
      .def_property_readonly("agrees_on_means", &Tensor::agrees_on_means)
      .def("agree", &Tensor::agree, py::arg("gradient"), py::arg("mine"),
           py::call_guard<py::gil_scoped_release>())
      .def("compress", &Tensor::compress, py::arg("gradient"), py::arg("agreed"), py::arg("payload"),
           py::arg("side"), py::call_guard<py::gil_scoped_release>())
      .def("decompress", &Tensor::decompress, py::arg("payload"), py::arg("side"), py::arg("contributions"),
           py::arg("out"), py::call_guard<py::gil_scoped_release>())
      .def_property("step", &Tensor::step, &Tensor::set_step)
      .def("give_up", &Tensor::give_up)
      .def_property("scale", &Tensor::scale, &Tensor::set_scale)
      .def("follow_scale", &Tensor::follow_scale, py::arg("scale"))
      .def("state", &Tensor::state)
      .def("restore", &Tensor::restore, py::arg("step"), py::arg("saved"))
      .def("memory_norm", &Tensor::memory_norm, py::call_guard<py::gil_scoped_release>());
}

}  // namespace netsum::torch_backend
