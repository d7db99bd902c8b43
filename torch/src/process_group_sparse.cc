// The sparse all-reduces of ProcessGroupNetsum.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "torch/src/process_group.h"

namespace netsum::torch_backend {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr Call kSparseAllReduce{c10d::OpType::ALLREDUCE, "all_reduce", "netsum:sparse_all_reduce"};
constexpr Call kDenseAllReduce{c10d::OpType::ALLREDUCE, "sparse_all_reduce", "netsum:sparse_all_reduce"};

constexpr const char* kDependsOnData = "sends packets that depend on the data of all ranks";

// The type in which values are reduced. Complex numbers are pairs of float32; bools are 0 and 1.
at::ScalarType reduced_type(at::ScalarType type) {
  if (type == at::kComplexFloat) return at::kFloat;
  return type == at::kBool ? at::kInt : type;
}

// nullopt: the hosts must reduce the tensor, or refuse to. Depends on type and operator alone, which are equal on all ranks.
std::optional<NetworkReduction> rows_reduction(at::ScalarType type, const c10d::ReduceOp& op) {
  const bool is_linear = op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG;
  if (type == at::kComplexFloat && !is_linear) return std::nullopt;
  auto reduction = network_reduction({at::empty({0}, reduced_type(type))}, op);
  if (reduction && reduction->divides)
    reduction.reset();  // the library makes the result, which Buffers would divide
  return reduction;
}

// Of every device: PyTorch's functions are not there for all.
at::Tensor indices_of(const at::Tensor& tensor) {
  return at::sparse::get_sparse_impl(tensor)->indices();
}
at::Tensor values_of(const at::Tensor& tensor) {
  return at::sparse::get_sparse_impl(tensor)->values().detach();
}

// A sparse tensor as the rows of a table, and what becomes of the result.
class Rows {
 public:
  explicit Rows(const at::Tensor& tensor)
      : tensor_(tensor), dimensions_(at::sparse::get_sparse_impl(tensor)->sparse_dim()) {
    const auto sizes = tensor.sizes();
    for (int64_t d = 0; d < dimensions_; ++d) rows_ = product(rows_, sizes[d]);
    row_sizes_.assign(sizes.begin() + dimensions_, sizes.end());
    for (const int64_t size : row_sizes_) row_elements_ = product(row_elements_, size);
    if (tensor.scalar_type() == at::kComplexFloat) row_elements_ *= 2;
  }

  // Whether a table can hold them. Depends on the shape alone.
  bool fit() const { return rows_ <= kMost && row_elements_ > 0 && row_elements_ <= kMost; }

  // fit(). Numbers the rows through all sparse dimensions. `indices` and `values` are those of the tensor, on the host. The values are
  // multiplied by `factor`, if there is one.
  CooView view(const at::Tensor& indices, at::Tensor values, std::optional<double> factor) {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    if (tensor_.scalar_type() == at::kComplexFloat) values = at::view_as_real(values.resolve_conj());
    values = values.to(reduced_type(tensor_.scalar_type()));
    if (factor) values = values.mul(*factor);
    values_ = values.contiguous();
    indices_ = indices.contiguous();
    const auto count = static_cast<size_t>(indices_.size(1));
    if (dimensions_ != 1) flatten(count);
    return {.indices = indices_.const_data_ptr<int64_t>(),
            .values = values_.const_data_ptr(),
            .count = count,
            .rows = static_cast<uint64_t>(rows_),
            .row_elements = static_cast<size_t>(row_elements_)};
  }

  CooMemory allocate(size_t count) {
    const auto rows = static_cast<int64_t>(count);
    result_indices_ = at::empty({rows}, at::kLong);
    result_values_ = at::empty({rows, row_elements_}, values_.options());
    return {.indices = result_indices_.mutable_data_ptr<int64_t>(),
            .values = result_values_.mutable_data_ptr()};
  }

  // Replaces the tensor's indices and values. `buffers`: of the call.
  void store_result(const Buffers& buffers) {
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    const int64_t count = result_indices_.size(0);
    std::vector<int64_t> sizes = {count};
    sizes.insert(sizes.end(), row_sizes_.begin(), row_sizes_.end());
    const bool is_complex = tensor_.scalar_type() == at::kComplexFloat;
    if (is_complex) sizes.push_back(2);
    at::Tensor values = result_values_.view(sizes);
    values = is_complex ? at::view_as_complex(values) : values.to(tensor_.scalar_type());
    if (buffers.device()) return buffers.return_sparse(tensor_, unflatten(count), values);
    tensor_.copy_(at::_sparse_coo_tensor_unsafe(unflatten(count), values, tensor_.sizes(), tensor_.options(),
                                                /*is_coalesced=*/true));
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 40;

  // More than kMost if the product is; `a` is at most kMost + 1.
  static int64_t product(int64_t a, int64_t b) {
    const auto exact = static_cast<__int128>(a) * b;
    return exact > kMost ? kMost + 1 : static_cast<int64_t>(exact);
  }

  void flatten(size_t count) {
    const auto* const from = indices_.const_data_ptr<int64_t>();
    at::Tensor flat = at::empty({static_cast<int64_t>(count)}, at::kLong);
    auto* const to = flat.mutable_data_ptr<int64_t>();
    for (size_t i = 0; i < count; ++i) {
      int64_t index = 0;
      for (int64_t d = 0; d < dimensions_; ++d) {
        const int64_t coordinate = from[static_cast<size_t>(d) * count + i];
        const bool exists = coordinate >= 0 && coordinate < tensor_.size(d) && index >= 0;
        index = exists ? index * tensor_.size(d) + coordinate : -1;  // which the library refuses
      }
      to[i] = index;
    }
    indices_ = flat;
  }

  at::Tensor unflatten(int64_t count) const {
    if (dimensions_ == 1) return result_indices_.unsqueeze(0);
    at::Tensor indices = at::empty({dimensions_, count}, at::kLong);
    auto* const to = indices.mutable_data_ptr<int64_t>();
    const auto* const from = result_indices_.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = from[i];
      for (int64_t d = dimensions_ - 1; d >= 0; --d) {
        to[d * count + i] = rest % tensor_.size(d);
        rest /= tensor_.size(d);
      }
    }
    return indices;
  }

  at::Tensor tensor_;
  int64_t dimensions_;  // the sparse ones
  int64_t rows_ = 1;
  int64_t row_elements_ = 1;
  std::vector<int64_t> row_sizes_;
  at::Tensor indices_, values_;
  at::Tensor result_indices_, result_values_;
};

}  // namespace

bool is_sparse(const std::vector<at::Tensor>& tensors) {
  return tensors.size() == 1 && tensors[0].layout() == at::kSparse &&
         (tensors[0].device().is_cpu() || is_accelerator(tensors[0].device()));
}

void add_parts(const at::Tensor& tensor, Buffers* buffers) {
  buffers->add_input(indices_of(tensor));
  buffers->add_input(values_of(tensor));
}

WorkPtr ProcessGroupNetsum::all_reduce_rows(const CommunicatorPtr& communicator, at::Tensor& tensor,
                                            const c10d::AllreduceOptions& opts) {
  if (has_ghosts()) refuse_beside_ghosts(kSparseAllReduce.name, kDependsOnData);
  TORCH_CHECK_VALUE(
      tensor.scalar_type() != at::kComplexDouble,
      "netsum all_reduce: sparse tensors of complex128 are not supported (Gloo would leave them as they "
      "are, without an error): use complex64, or all_reduce torch.view_as_real(tensor.to_dense())");
  const bool is_refused = sums_only_ && !is_sum(opts.reduceOp);
  const auto reduction = is_refused ? std::nullopt : rows_reduction(tensor.scalar_type(), opts.reduceOp);
  auto rows = std::make_shared<Rows>(tensor);
  if (!reduction || !rows->fit()) {
    return all_reduce_sparse_on_hosts(kSparseAllReduce, {tensor}, opts);
  }
  const at::Tensor indices = indices_of(tensor), values = values_of(tensor);
  const bool is_staged = !tensor.device().is_cpu();
  Buffers prepared;
  if (is_staged) add_parts(tensor, &prepared);
  auto work = begin(kSparseAllReduce, std::move(prepared), {{tensor}}, {tensor});
  Buffers& buffers = work->buffers();
  const auto store_result = [rows, &buffers] { rows->store_result(buffers); };
  is_staged ? buffers.add_first_step(store_result) : buffers.set_last_step(store_result);
  const SparseOptions options{.type = reduction->options.type,
                              .op = reduction->options.op,
                              .timeout = timeout_or_default(opts.timeout)};
  // Before the caller goes on: it may write to a tensor of the CPU.
  CooView on_host;
  if (!is_staged) on_host = rows->view(indices, values, reduction->factor);
  return submit(std::move(work), options.timeout,
                [=, this, recorded = reduction->options, factor = reduction->factor](CollectiveWork& call) {
                  const CooView view =
                      is_staged ? rows->view(call.buffers().memory(0), call.buffers().memory(1), factor)
                                : on_host;
                  const TensorView own{.count = view.count * view.row_elements};
                  record(call, program::Collective::kSparseAllReduce, {&own, 1}, recorded);
                  return std::vector<Work>{netsum::sparse_all_reduce(
                      *communicator, view, [rows](size_t count) { return rows->allocate(count); }, options)};
                });
}

WorkPtr ProcessGroupNetsum::sparse_all_reduce(const at::Tensor& tensor, SparseMode mode, int64_t unit,
                                              uint64_t id, const c10d::AllreduceOptions& opts,
                                              std::function<void(const SparseStats&)> on_sent, uint32_t tag) {
  const auto comm = require_healthy(kDenseAllReduce.name);
  if (has_ghosts()) refuse_beside_ghosts(kDenseAllReduce.name, kDependsOnData);
  TORCH_CHECK_VALUE(unit > 0, "netsum sparse_all_reduce: unit is ", unit,
                    "; it must be at least one element");
  Tensors tensors = {tensor};
  const auto reduction = reduction_of(tensors, opts.reduceOp);
  if (!reaches_network(comm) || !reduction || reduction->divides) return allreduce(tensors, opts);
  Buffers buffers;
  buffers.add_in_place(tensor);
  auto work = begin(kDenseAllReduce, std::move(buffers), {tensors}, tensors, *reduction);
  const SparseOptions options{.type = reduction->options.type,
                              .op = reduction->options.op,
                              .mode = mode,
                              .unit = static_cast<size_t>(unit),
                              .timeout = timeout_or_default(opts.timeout),
                              .on_sent = std::move(on_sent),
                              .tag = tag};
  return submit(std::move(work), options.timeout, [=, this](CollectiveWork& call) {
    const TensorView view{.input = call.buffers().input(0),
                          .output = call.buffers().output(0),
                          .count = call.buffers().count(0),
                          .id = id};
    record(call, program::Collective::kSparseAllReduce, {&view, 1},
           {.type = options.type, .op = options.op, .tag = options.tag});
    return comm ? std::vector<Work>{netsum::sparse_all_reduce(*comm, view, options)} : std::vector<Work>();
  });
}

}  // namespace netsum::torch_backend
