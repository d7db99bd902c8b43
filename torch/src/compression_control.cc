// netsum::CompressionControl and netsum::CompressionMetrics for Python (netsum.torch._control).
#include "netsum/compression_control.h"

#include <ATen/ATen.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "netsum/compression_metrics.h"
#include "torch/src/compression.h"

namespace netsum::torch_backend {
namespace {

namespace py = pybind11;

void require(const Status& status) {
  if (!status.ok()) throw py::value_error(status.message());
}

std::span<int32_t> numbers_of(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.device().is_cpu() && tensor.is_contiguous() && tensor.scalar_type() == at::kInt,
                    "agreed numbers must be a contiguous CPU tensor of int32");
  return {tensor.mutable_data_ptr<int32_t>(), static_cast<size_t>(tensor.numel())};
}

// A bucket of a step: ready, handed, summed and done in microseconds, bytes sent, and norms.
using Bucket = std::tuple<int64_t, int64_t, int64_t, int64_t, uint64_t, double, double>;

class Control {
 public:
  explicit Control(const CompressionControlOptions& options) {
    auto made = compression_control(options);
    require(made.status());
    control_ = std::move(made).value();
  }

  CompressionControl& operator*() const { return *control_; }

  void set_buckets(const std::vector<std::pair<uint64_t, uint64_t>>& sizes) {
    std::vector<ControlledBucket> buckets;
    for (const auto& [elements, other_bytes] : sizes)
      buckets.push_back({.elements = elements, .other_bytes = other_bytes});
    require(control_->set_buckets(buckets));
  }
  void begin_step(const std::optional<at::Tensor>& agreed) {
    require(control_->begin_step(agreed ? numbers_of(*agreed) : std::span<int32_t>()));
  }
  py::tuple decision() const {
    const CompressionDecision decision = control_->decision();
    return py::make_tuple(std::vector<int>(decision.levels.begin(), decision.levels.end()),
                          decision.agreement_values, decision.wants_norms);
  }
  // `times`: begin, agree, agreed.
  void measurement(const std::tuple<int64_t, int64_t, int64_t>& times, uint64_t packets,
                   uint64_t retransmissions, const std::vector<Bucket>& buckets,
                   const at::Tensor& mine) const {
    StepRecord record{.begin_us = std::get<0>(times),
                      .agree_us = std::get<1>(times),
                      .agreed_us = std::get<2>(times),
                      .packets = packets,
                      .retransmissions = retransmissions,
                      .buckets = {}};
    for (const auto& [ready, handed, summed, done, bytes, gradient, residual] : buckets)
      record.buckets.push_back({.ready_us = ready,
                                .handed_us = handed,
                                .summed_us = summed,
                                .done_us = done,
                                .sent_bytes = bytes,
                                .gradient_norm = gradient,
                                .residual_norm = residual});
    require(control_->measurement(record, numbers_of(mine)));
  }
  at::Tensor state() const {
    std::vector<int64_t> numbers = control_->state();
    return at::from_blob(numbers.data(), {static_cast<int64_t>(numbers.size())}, at::kLong).clone();
  }
  void restore(const at::Tensor& state) {
    TORCH_CHECK_VALUE(state.device().is_cpu() && state.is_contiguous() && state.scalar_type() == at::kLong,
                      "the state of a controller must be a contiguous CPU tensor of int64");
    require(control_->restore({state.const_data_ptr<int64_t>(), static_cast<size_t>(state.numel())}));
  }

 private:
  std::unique_ptr<CompressionControl> control_;
};

// Levels: (name, bytes, encode ns, decode ns), each by element.
Control make(const std::vector<std::tuple<std::string, double, double, double>>& levels,
             uint32_t warmup_steps, double payoff, uint32_t critical_level, double residual_cap) {
  CompressionControlOptions options{.levels = {},
                                    .warmup_steps = warmup_steps,
                                    .payoff = payoff,
                                    .critical_level = critical_level,
                                    .residual_cap = residual_cap};
  for (const auto& [name, bytes, encode, decode] : levels)
    options.levels.push_back({.name = name,
                              .bytes_per_element = bytes,
                              .encode_ns_per_element = encode,
                              .decode_ns_per_element = decode});
  return Control(options);
}

std::unique_ptr<CompressionMetrics> open_metrics(const std::string& address, const std::string& job, int rank,
                                                 int controller) {
  auto metrics = CompressionMetrics::open(address, job, rank, controller);
  require(metrics.status());
  return std::move(metrics).value();
}

// Levels: (name, buckets, bucket steps). Seconds: predicted, uncompressed, measured.
void publish(CompressionMetrics& metrics,
             const std::vector<std::tuple<std::string, uint64_t, uint64_t>>& levels, uint64_t steps,
             uint64_t changes, uint64_t gradient_bytes, uint64_t sent_bytes,
             const std::tuple<double, double, double>& seconds, double bits_per_second) {
  CompressionSnapshot snapshot{.levels = {},
                               .steps = steps,
                               .changes = changes,
                               .gradient_bytes = gradient_bytes,
                               .sent_bytes = sent_bytes,
                               .predicted_step_s = std::get<0>(seconds),
                               .uncompressed_step_s = std::get<1>(seconds),
                               .measured_step_s = std::get<2>(seconds),
                               .bits_per_second = bits_per_second};
  for (const auto& [name, buckets, bucket_steps] : levels)
    snapshot.levels.push_back({.name = name, .buckets = buckets, .bucket_steps = bucket_steps});
  metrics.publish(snapshot);
}

}  // namespace

void bind_compression_control(py::module_& module) {
  py::class_<Control>(module, "CompressionControl")
      .def(py::init(&make), py::arg("levels"), py::arg("warmup_steps"), py::arg("payoff"),
           py::arg("critical_level"), py::arg("residual_cap"))
      .def("set_buckets", &Control::set_buckets, py::arg("sizes"))
      .def("begin_step", &Control::begin_step, py::arg("agreed"))
      .def("decision", &Control::decision)
      .def("measurement", &Control::measurement, py::arg("times"), py::arg("packets"),
           py::arg("retransmissions"), py::arg("buckets"), py::arg("mine"))
      .def("state", &Control::state)
      .def("restore", &Control::restore, py::arg("state"))
      .def_property_readonly("step", [](const Control& self) { return (*self).step(); })
      .def_property_readonly("changes", [](const Control& self) { return (*self).changes(); })
      .def_property_readonly("predicted_step_ns",
                             [](const Control& self) { return (*self).predicted_step_ns(); })
      .def_property_readonly("uncompressed_step_ns",
                             [](const Control& self) { return (*self).uncompressed_step_ns(); })
      .def_property_readonly("bits_per_second", [](const Control& self) { return (*self).bits_per_second(); })
      .def_property_readonly("change", [](const Control& self) { return std::string((*self).change()); })
      .def("trace_head", [](const Control& self) { return (*self).trace_head(); })
      .def("trace_buckets", [](const Control& self) { return (*self).trace_buckets(); })
      .def("trace_step", [](const Control& self) { return (*self).trace_step(); });
  py::class_<CompressionMetrics>(module, "CompressionMetrics")
      .def(py::init(&open_metrics), py::arg("address"), py::arg("job"), py::arg("rank"),
           py::arg("controller"))
      .def("publish", &publish, py::arg("levels"), py::arg("steps"), py::arg("changes"),
           py::arg("gradient_bytes"), py::arg("sent_bytes"), py::arg("seconds"), py::arg("bits_per_second"),
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace netsum::torch_backend
