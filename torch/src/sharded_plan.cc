#include "torch/src/sharded_plan.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "torch/src/python_compressor.h"

namespace netsum::torch_backend {
namespace {

at::Tensor zeros(size_t count, at::ScalarType type = at::kFloat) {
  return at::zeros({static_cast<int64_t>(count)}, type);
}

at::Tensor narrowed(const at::Tensor& tensor, size_t at, size_t count) {
  return tensor.narrow(0, static_cast<int64_t>(at), static_cast<int64_t>(count));
}

}  // namespace

std::string why_not_in_parts(const Compression& compression) {
  const Compressor& compressor = compression.compressor();
  const CompressorTraits traits = compressor.traits();
  if (compression.path() != CompressionPath::kDense)
    return "it takes the path '" + std::string(compression_path_name(compression.path())) +
           "', and a reduce-scatter takes only payloads of the path 'dense'";
  if (traits.late_residual)
    return "what remains of a tensor follows from the sum of all of it, and a rank receives that of one part "
           "only";
  if (!traits.mean)
    return "its result is not the mean of what the ranks send, and FSDP scales what it gets as a mean";
  // Of any matrix: whether it keeps numbers is a matter of the method.
  constexpr size_t kRows = 32;
  const CompressionContext context{.ranks = 2, .rows = kRows};
  if (compressor.state_values(context, kRows * kRows) > 0)
    return "it keeps from step to step what it has found out about a whole tensor, of which a rank receives "
           "one part "
           "only";
  if (compressor.shape(context, kRows * kRows).side_values > 0)
    return "numbers of the whole tensor travel beside its payload, and a rank receives one part only";
  return {};
}

ShardedPlan::ShardedPlan(std::vector<Item> items, at::ScalarType type, int rank, int ranks)
    : type_(type), rank_(rank), ranks_(ranks) {
  const auto parts = static_cast<size_t>(ranks);
  for (Item& item : items) {
    Placed placed{.item = std::move(item), .at = count_, .type = type};
    const Item& mine = placed.item;
    count_ += mine.count;
    placed.payload_count = mine.count;
    if (!mine.parts.empty()) {
      TORCH_CHECK_VALUE(mine.parts.size() == parts && mine.used.size() == parts, "an item has ",
                        mine.parts.size(), " parts for ", ranks, " ranks");
      const PayloadShape shape = mine.parts.front()->get().shape();
      placed.type = scalar_type(shape.type);
      placed.payload_count = shape.count;
      placed.agreed = zeros(parts * mine.parts.front()->agreed_values());
      if (type != at::kFloat) placed.values = zeros(parts * mine.count);
      if (placed.agreed.numel() > 0)
        (mine.parts.front()->agrees_on_means() ? means_ : maxima_).push_back(placed.agreed);
    }
    Payloads& payloads = payloads_[placed.type];
    placed.payload_at = payloads.count;
    payloads.count += placed.payload_count;
    items_.push_back(std::move(placed));
  }
  for (auto& [payload_type, payloads] : payloads_) {
    payloads.sent = zeros(parts * payloads.count, payload_type);
    payloads.received = zeros(payloads.count, payload_type);
  }
}

BucketPlan::Works ShardedPlan::start(ProcessGroupNetsum& group, const at::Tensor& input, TrainingPass& pass,
                                     BucketStats& stats) {
  const at::NoGradGuard no_grad;
  TORCH_CHECK_VALUE(input.scalar_type() == type_ &&
                        static_cast<size_t>(input.numel()) == count_ * static_cast<size_t>(ranks_),
                    "gradients of ", input.numel(), " elements of ", input.scalar_type(), ", where ",
                    count_ * static_cast<size_t>(ranks_), " of ", type_, " were expected");
  ++stats.buckets;
  tag_ = 0;
  for (const Placed& placed : items_) {
    for (const auto& part : placed.item.parts) {
      pass.add(part);
      tag_ = joined_tag(tag_, part->get().tag());
    }
  }
  try {
    return start_operations(group, input, stats);
  } catch (...) {
    pass.fail();
    throw;
  }
}

BucketPlan::Works ShardedPlan::start_operations(ProcessGroupNetsum& group, const at::Tensor& input,
                                                BucketStats& stats) {
  {
    const Timed timed(stats.encode_s);
    for (const Placed& placed : items_) {
      if (placed.item.parts.empty()) continue;
      for (int r = 0; r < ranks_; ++r) {
        const at::Tensor gradient = gradient_of(placed, input, r);
        if (placed.values.defined()) gradient.copy_(part_of(placed, input, r));
        if (placed.agreed.numel() == 0) continue;
        placed.item.parts[static_cast<size_t>(r)]->agree(gradient, agreed_of(placed, r));
      }
    }
  }
  wait_for_agreement(group, maxima_, means_, tag_);
  {
    const Timed timed(stats.encode_s);
    for (const Placed& placed : items_) compress(placed, input);
  }
  BucketPlan::Works works;
  for (auto& [type, payloads] : payloads_) {
    c10d::ReduceScatterOptions options;
    options.reduceOp = at::isFloatingType(type) ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
    works.push_back(group.reduce_scatter_tagged(payloads.received, payloads.sent, options, tag_));
  }
  return works;
}

void ShardedPlan::compress(const Placed& placed, const at::Tensor& input) {
  for (int r = 0; r < ranks_; ++r) {
    const at::Tensor payload = payload_of(placed, r);
    if (placed.item.parts.empty()) {
      payload.copy_(part_of(placed, input, r));
      continue;
    }
    const auto part = static_cast<size_t>(r);
    Tensor& tensor = *placed.item.parts[part];
    tensor.compress(gradient_of(placed, input, r), agreed_of(placed, r), payload, zeros(0));
    // Rotated blocks have errors there as well, which would travel with the next gradient for nothing.
    if (placed.item.used[part] < placed.item.count) tensor.clear_memory_from(placed.item.used[part]);
  }
}

void ShardedPlan::finish(const at::Tensor& output, BucketStats& stats) {
  const at::NoGradGuard no_grad;
  const Timed timed(stats.decode_s);
  for (const Placed& placed : items_) {
    const at::Tensor received =
        narrowed(payloads_.at(placed.type).received, placed.payload_at, placed.payload_count);
    const at::Tensor out = narrowed(output, placed.at, placed.item.count);
    if (placed.item.parts.empty()) {
      out.copy_(received);
      continue;
    }
    const at::Tensor values = placed.values.defined() ? narrowed(placed.values, 0, placed.item.count) : out;
    placed.item.parts[static_cast<size_t>(rank_)]->decompress(
        received, zeros(0), at::isFloatingType(placed.type) ? 1 : ranks_, values);
    if (placed.values.defined()) out.copy_(values);
  }
}

// Of the gradients as they are.
at::Tensor ShardedPlan::part_of(const Placed& placed, const at::Tensor& input, int rank) const {
  return narrowed(input, static_cast<size_t>(rank) * count_ + placed.at, placed.item.count);
}

// As float32.
at::Tensor ShardedPlan::gradient_of(const Placed& placed, const at::Tensor& input, int rank) const {
  if (!placed.values.defined()) return part_of(placed, input, rank);
  return narrowed(placed.values, static_cast<size_t>(rank) * placed.item.count, placed.item.count);
}

at::Tensor ShardedPlan::payload_of(const Placed& placed, int rank) const {
  const Payloads& payloads = payloads_.at(placed.type);
  return narrowed(payloads.sent, static_cast<size_t>(rank) * payloads.count + placed.payload_at,
                  placed.payload_count);
}

at::Tensor ShardedPlan::agreed_of(const Placed& placed, int rank) const {
  const auto count = static_cast<size_t>(placed.agreed.numel()) / static_cast<size_t>(ranks_);
  return narrowed(placed.agreed, static_cast<size_t>(rank) * count, count);
}

void bind_sharded_plan(pybind11::module_& module) {
  namespace py = pybind11;
  // (a tensor for each rank or none, elements of each part, of these used)
  using Item = std::tuple<std::vector<std::shared_ptr<Tensor>>, size_t, std::vector<size_t>>;
  constexpr const char* kWhat = "compressed gradients";
  py::class_<Buffers, std::shared_ptr<Buffers>>(
      module, "Staged", "What is compressed on the host of tensors of an accelerator, and their results.")
      .def(py::init([](ProcessGroupNetsum& group, const at::Tensor& input, const at::Tensor& output) {
             auto staged = std::make_shared<Buffers>();
             input.is_same(output) ? staged->add_in_place(input) : staged->add_input(input);
             if (!input.is_same(output)) staged->add_output(output);
             group.stage(kWhat, staged.get());
             return staged;
           }),
           py::arg("group"), py::arg("input"), py::arg("output"), py::call_guard<py::gil_scoped_release>(),
           "Waits until the input is on the host. Input and output may be one tensor.")
      .def_property_readonly("input", [](const Buffers& staged) { return staged.memory(0); })
      .def_property_readonly("output", [](const Buffers& staged) { return staged.memory(staged.size() - 1); })
      .def(
          "copy_back",
          [](Buffers& staged) {
            ProcessGroupNetsum::return_staged(kWhat, &staged);
            staged.arrival().block_current_stream();
          },
          py::call_guard<py::gil_scoped_release>(),
          "Copies the output to the accelerator, where the current stream waits for it.");
  py::class_<ShardedPlan, std::shared_ptr<ShardedPlan>>(module, "ShardedPlan")
      .def(py::init([](const std::vector<Item>& given, at::ScalarType type, int rank, int ranks) {
             std::vector<ShardedPlan::Item> items;
             for (const auto& [parts, count, used] : given)
               items.push_back({.parts = parts, .count = count, .used = used});
             return std::make_shared<ShardedPlan>(std::move(items), type, rank, ranks);
           }),
           py::arg("items"), py::arg("type"), py::arg("rank"), py::arg("ranks"))
      .def("start", &ShardedPlan::start, py::arg("group"), py::arg("input"), py::arg("pass_"),
           py::arg("stats"), py::call_guard<py::gil_scoped_release>())
      .def("finish", &ShardedPlan::finish, py::arg("output"), py::arg("stats"),
           py::call_guard<py::gil_scoped_release>());
}

}  // namespace netsum::torch_backend
