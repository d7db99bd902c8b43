// The sparse all-reduces of a communicator.
#include <cinttypes>
#include <cstdio>
#include <utility>

#include "api/communicator_base.h"
#include "api/invalid.h"
#include "session/tensor_check.h"
#include "src/base/rng.h"
#include "src/sparse/tensor.h"
#include "wire/ids.h"

namespace netsum {
namespace {

Status invalid_sparse(const std::string& why) {
  return invalid("sparse_all_reduce: " + why);
}

uint64_t key_of(std::initializer_list<uint64_t> parts) {
  uint64_t key = 0;
  for (const uint64_t part : parts) key = Rng(key ^ Rng(part).next()).next();
  return key;
}

// Type, operator and memory, as of one dense operation.
Status check_sparse_options(const SparseOptions& options, std::vector<TensorView> tensors) {
  if (options.mode > SparseMode::kOff) return invalid_sparse("mode is none of SparseMode");
  if (options.type == DataType::kByte)
    return {ErrorCode::kUnsupported, "sparse_all_reduce: bytes are not numbers"};
  OperationSpec spec;
  spec.type = options.type;
  spec.op = options.op;
  spec.tensors = std::move(tensors);
  const Status status = check_operation(spec, NETSUM_MAX_PAYLOAD);
  return status.ok() ? status : Status(status.code(), "sparse_" + status.message());
}

}  // namespace

Work CommunicatorBase::sparse_all_reduce(const TensorView& tensor, const SparseOptions& options) {
  if (is_forked()) return ended_work(refusal_in_child());
  if (Status refusal = check_sparse_options(options, {tensor}); !refusal.ok()) return ended_work(refusal);
  if (options.unit == 0) return ended_work(invalid_sparse("unit is 0; it must be at least one element"));
  SparseOperations::Request request;
  request.make_tensor = [tensor, options] {
    return sparse::make_dense_tensor(tensor, options.type, options.unit);
  };
  return start_sparse(std::move(request), options, key_of({1, tensor.id, tensor.count, options.unit}));
}

Work CommunicatorBase::sparse_all_reduce(const CooView& input, CooAllocator allocate,
                                         const SparseOptions& options) {
  if (is_forked()) return ended_work(refusal_in_child());
  if (Status refusal = check_sparse_options(options, {}); !refusal.ok()) return ended_work(refusal);
  if (options.mode == SparseMode::kOff)
    return ended_work(invalid_sparse("mode is kOff, which is for dense tensors only"));
  if (!allocate) return ended_work(invalid_sparse("there is no allocator for the result"));
  if (const Status refusal = sparse::check_coo(input, options.type); !refusal.ok())
    return ended_work({refusal.code(), "sparse_all_reduce: " + refusal.message()});
  SparseOperations::Request request;
  request.make_tensor = [input, allocate = std::move(allocate), type = options.type] {
    return sparse::make_coo_tensor(input, type, allocate);
  };
  return start_sparse(std::move(request), options, key_of({2, input.id, input.rows, input.row_elements}));
}

Work CommunicatorBase::start_sparse(SparseOperations::Request request, const SparseOptions& options,
                                    uint64_t key) {
  request.settings.op = options.op;
  request.settings.mode = options.mode;
  request.settings.tag = options.tag;
  request.key = key_of({key, static_cast<uint64_t>(options.type), static_cast<uint64_t>(options.mode)});
  request.timeout = options.timeout;
  request.on_sent = options.on_sent;
  if (Status status = begin_sparse(); !status.ok()) {
    abort(status.message());  // the other ranks have begun the operation
    return ended_work(status);
  }
  return sparse_->start(std::move(request));
}

Status CommunicatorBase::begin_sparse() {
  const std::lock_guard lock(sparse_mutex_);
  if (sparse_ != nullptr) return {};
  auto sparse = std::make_unique<SparseOperations>(
      SparseOperations::Owner{
          .submit = [this](OperationSpec spec,
                           std::chrono::milliseconds timeout) { return submit(std::move(spec), timeout); },
          .abort = [this](const std::string& reason) { abort(reason); },
          .rank = [this] { return rank(); },
          .world_size = [this] { return world_size(); }},
      timeout_);
  if (Status status = sparse->begin(); !status.ok()) return status;
  sparse_ = std::move(sparse);
  running_sparse_.store(sparse_.get(), std::memory_order_release);
  return {};
}

void CommunicatorBase::flush(Deadline deadline) {
  if (SparseOperations* const sparse = this->sparse()) sparse->flush(deadline);
  flush_submitted(deadline);
}

void CommunicatorBase::stop() {
  flush(std::chrono::steady_clock::now() + std::chrono::seconds(1));
  if (SparseOperations* const sparse = this->sparse()) sparse->stop();
}

void CommunicatorBase::reset_sparse() {
  if (SparseOperations* const sparse = this->sparse()) sparse->reset();
}

SparseStats CommunicatorBase::sparse_stats() const {
  if (is_forked()) return {};
  const SparseOperations* const sparse = this->sparse();
  return sparse != nullptr ? sparse->stats() : SparseStats{};
}

std::string CommunicatorBase::describe_sparse() const {
  const SparseStats sparse = sparse_stats();
  if (sparse.operations == 0) return "";
  const double elements = sparse.elements > 0 ? static_cast<double>(sparse.elements) : 1;
  char text[160];
  std::snprintf(text, sizeof text,
                "; %" PRIu64 " sparse all-reduces (%" PRIu64
                " as dense) sent %.3g %% of their elements and %" PRIu64 " bytes of indices",
                sparse.operations, sparse.dense, 100 * static_cast<double>(sparse.sent_elements) / elements,
                sparse.index_bytes);
  return text;
}

// All communicators are of this class: Communicator::connect() is the only way to one.
Work sparse_all_reduce(Communicator& communicator, const TensorView& tensor, const SparseOptions& options) {
  return dynamic_cast<CommunicatorBase&>(communicator).sparse_all_reduce(tensor, options);
}

Work sparse_all_reduce(Communicator& communicator, const CooView& input, CooAllocator allocate,
                       const SparseOptions& options) {
  return dynamic_cast<CommunicatorBase&>(communicator).sparse_all_reduce(input, std::move(allocate), options);
}

SparseStats sparse_stats(const Communicator& communicator) {
  return dynamic_cast<const CommunicatorBase&>(communicator).sparse_stats();
}

}  // namespace netsum
