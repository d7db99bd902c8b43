// The calls of ProcessGroupNetsum that Gloo runs. All go through run_on_hosts(): Gloo gets contiguous memory whose sizes have
// been checked, and never the caller's tensors if these are not contiguous or overlap.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "torch/src/announcement.h"
#include "torch/src/call_text.h"
#include "torch/src/checks.h"
#include "torch/src/error.h"
#include "torch/src/host_call.h"
#include "torch/src/host_reduction.h"
#include "torch/src/host_work.h"
#include "torch/src/log.h"
#include "torch/src/process_group.h"

namespace netsum::torch_backend {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr Call kAllReduceSparse{c10d::OpType::_ALLREDUCE_SPARSE, "all_reduce_sparse", ""};
constexpr Call kAllToAll{c10d::OpType::ALLTOALL, "all_to_all", ""};
constexpr Call kAllToAllSingle{c10d::OpType::ALLTOALL_BASE, "all_to_all_single", ""};
constexpr Call kSend{c10d::OpType::SEND, "send", ""};
constexpr Call kRecv{c10d::OpType::RECV, "recv", ""};
constexpr Call kRecvAnySource{c10d::OpType::RECVANYSOURCE, "recv_anysource", ""};

// In messages: "float64[3, 4]".
std::string describe(const at::Tensor& tensor) {
  std::ostringstream text;
  text << name_of(tensor.scalar_type()) << tensor.sizes();
  return text.str();
}

Status unsupported(const std::string& why) {
  return {ErrorCode::kUnsupported, why};
}

// Gloo would misread the memory of other tensors.
Status check_memory(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu() && !is_accelerator(tensor.device()))
    return unsupported("the tensor is on " + tensor.device().str() +
                       ", and netsum works on tensors of the CPU and of accelerators: pass tensor.cpu()");
  if (tensor.is_quantized()) return unsupported("the tensor is quantized: pass tensor.int_repr()");
  if (tensor.layout() != at::kStrided)
    return unsupported("the tensor " + describe(tensor) + " is not dense: pass tensor.to_dense()");
  return {};
}

// The bytes of a contiguous tensor, which must stay alive.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(tensor.mutable_data_ptr(), {static_cast<int64_t>(tensor.nbytes())}, at::kByte);
}

// Flat, as types that Gloo can move.
at::Tensor moved(const at::Tensor& plain, bool as_bytes) {
  return as_bytes ? bytes_of(plain) : plain.view({-1});
}
Tensors all_moved(const Buffers& buffers, const std::vector<size_t>& indices, bool as_bytes) {
  Tensors flat;
  for (const size_t index : indices) flat.push_back(moved(buffers.memory(index), as_bytes));
  return flat;
}

bool must_move_as_bytes(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return !gloo_has(tensor.scalar_type()) || tensor.scalar_type() != tensors[0].scalar_type();
  });
}

bool all_empty(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& tensor) { return tensor.numel() == 0; });
}

// "float64[3], int8[2], SUM"
std::string describe(const HostCall& hosted) {
  constexpr size_t kMost = 3;
  const size_t count = hosted.buffers.size();
  std::string text;
  for (size_t i = 0; i < std::min(count, kMost); ++i)
    text += (i > 0 ? ", " : "") + describe(hosted.buffers.tensor(i));
  if (count > kMost) text += ", ... (" + std::to_string(count) + " tensors)";
  if (!hosted.op.empty()) text += (text.empty() ? "" : ", ") + hosted.op;
  return text;
}

// What Gloo reduces: contiguous tensors, and what HostReduction has made of them.
struct Reduced {
  Tensors plain, packed;
};

constexpr const char* kNothingToAdd = "no two ranks send the same data, so the network has nothing to add";

std::vector<size_t> add_all(Buffers* buffers, const Tensors& tensors,
                            size_t (Buffers::*add)(const at::Tensor&)) {
  std::vector<size_t> indices;
  for (const at::Tensor& tensor : tensors) indices.push_back((buffers->*add)(tensor));
  return indices;
}

// The number of elements for each rank of a tensor that is divided along its first dimension.
std::vector<int64_t> counts_of(const at::Tensor& tensor, const std::vector<int64_t>& splits, int ranks) {
  const char* const name = kAllToAllSingle.name;
  TORCH_CHECK_VALUE(tensor.dim() > 0, "netsum ", name, ": a tensor without dimensions cannot be divided");
  const int64_t rows = tensor.size(0);
  if (splits.empty()) {
    TORCH_CHECK_VALUE(rows % ranks == 0, "netsum ", name, ": the tensor ", describe(tensor),
                      " cannot be divided equally among ", ranks, " ranks: pass the split sizes");
    return std::vector<int64_t>(static_cast<size_t>(ranks), tensor.numel() / ranks);
  }
  TORCH_CHECK_VALUE(splits.size() == static_cast<size_t>(ranks), "netsum ", name, ": ", splits.size(),
                    " split sizes, but the group has ", ranks, " ranks");
  TORCH_CHECK_VALUE(std::all_of(splits.begin(), splits.end(), [](int64_t split) { return split >= 0; }) &&
                        std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows,
                    "netsum ", name, ": the split sizes ", at::IntArrayRef(splits), " do not add up to the ",
                    rows, " rows of the tensor ", describe(tensor));
  std::vector<int64_t> counts;
  for (const int64_t split : splits) counts.push_back(rows == 0 ? 0 : tensor.numel() / rows * split);
  return counts;
}

void check_own_part(const Call& call, int64_t sends, int64_t receives) {
  TORCH_CHECK_VALUE(sends == receives, "netsum ", call.name, ": this rank sends ", sends,
                    " elements to itself, but receives ", receives);
}

// The part of `output` in the reduced concatenation of `inputs`: the numbers of items in Buffers.
struct Piece {
  std::vector<size_t> inputs;
  size_t output = 0;
  int64_t begin = 0, count = 0;
};

}  // namespace

WorkPtr ProcessGroupNetsum::run_on_hosts(const Call& call, HostCall hosted) {
  require_healthy(call.name);
  const std::string tensors = describe(hosted);
  const auto refuse_if = [&](const Status& refusal) {
    if (refusal.ok()) return;
    throw BackendError(std::string(call.name) + " (" + tensors + ") on rank " + std::to_string(getRank()) +
                           " of " + std::to_string(getSize()),
                       refusal);
  };
  for (size_t i = 0; i < hosted.buffers.size(); ++i) refuse_if(check_memory(hosted.buffers.tensor(i)));
  refuse_if(hosted.refusal);
  refuse_if(hosted.buffers.prepare(hosted.factor));
  if (hosted.is_point_to_point && hosted.buffers.device())
    refuse_if(unsupported("Gloo, which runs it, takes no tensors of " + hosted.buffers.device()->str() +
                          ": pass tensor.cpu(), or receive into such a tensor"));
  refuse_if(leave_device(&hosted.buffers));
  count_host_call(call.name);
  const CallId id{.call = call, .sequence = sequence_, .rank = getRank(), .world_size = getSize()};
  note_host_call(call, hosted);
  const CallText text{
      .name = call.name,
      .first = hosted.buffers.size() > 0 && !hosted.is_sparse ? hosted.buffers.tensor(0) : at::Tensor(),
      .equal_sizes = hosted.equal_sizes,
      .operator_name = hosted.op};
  const std::string call_text = text.to_string();
  const uint64_t bytes = hosted.buffers.total_bytes();
  auto work = c10::make_intrusive<HostWork>(id, context_, tensors, std::move(hosted.buffers),
                                            std::move(hosted.results), std::move(hosted.unpack));
  record(*work, call, bytes);
  const auto start = [this, work, call_text, tensors, start = std::move(hosted.start),
                      announced = !hosted.is_point_to_point, id] {
    // First: while the group has not joined, Gloo carries this, too, and pairs the ranks' calls by their order.
    if (announced) announce_host_call(work, call_text);
    try {
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      const WorkPtr started = start(*hosts_, work->buffers());
      if (!started) {
        work->end();
      } else if (announced) {
        work->follow(started);
      } else {
        work->follow_in_wait(started);
      }
    } catch (const std::exception&) {
      throw BackendError(id.to_string(), status_of_gloo(std::current_exception(), tensors));
    }
  };
  // Gloo finds messages by their ranks and tags, not by the order of the calls.
  if (hosted.is_point_to_point) {
    start();
    return work;
  }
  context_->work_began();
  const std::shared_ptr<void> in_flight(nullptr, [context = context_](void*) { context->work_ended(); });
  submissions_.begin({.stage = staging_of(&work->buffers(), options_->timeout),
                      .submit = [start, in_flight]() -> Submissions::Rest {
                        start();
                        return {};
                      },
                      .refuse =
                          [work, context = context_](const Status& status) {
                            work->refuse(status);
                            context->fail(status);
                          }});
  return work;
}

// As long as Gloo's own deadline may be.
constexpr std::chrono::hours kAnnouncementTimeout{24};

void ProcessGroupNetsum::announce_host_call(const c10::intrusive_ptr<HostWork>& work,
                                            const std::string& call) {
  const auto comm = communicator();
  if (!comm || getSize() == 1) return;
  announce(*comm, call, kAnnouncementTimeout,
           [work, call, inbox = completion_.inbox()](const Status& status) {
             inbox->push([work, call, status] { work->fail(status, call); });
           });
}

// Once for each reason, on one rank.
void ProcessGroupNetsum::note_host_call(const Call& call, const HostCall& hosted) {
  {
    const std::lock_guard lock(mutex_);
    calls_.host_bytes += hosted.buffers.total_bytes();
    if (hosted.reason.empty() || !told_.insert(call.name + hosted.reason).second) return;
  }
  if (getRank() != 0 || getSize() == 1) return;
  log(hosted.reduces ? LogLevel::kWarning : LogLevel::kInfo,
      "process group of job " + job_ + ": " + call.name + " (" + describe(hosted) +
          ") runs over Gloo, not in the network: " + hosted.reason);
}

// --- Reductions -------------------------------------------------------------------------------------------------

HostCall ProcessGroupNetsum::host_reduction(const Tensors& tensors, const c10d::ReduceOp& op,
                                            HostReduction* how) {
  HostCall hosted;
  hosted.reduces = true;
  hosted.op = name_of(static_cast<c10d::ReduceOp::RedOpType>(op));
  TORCH_CHECK_VALUE(!tensors.empty(), "netsum: a reduction without tensors");
  const at::ScalarType type = tensors[0].scalar_type();
  for (const at::Tensor& tensor : tensors) {
    if (tensor.scalar_type() != type)
      hosted.refusal = unsupported("tensors of " + name_of(type) + " and " + name_of(tensor.scalar_type()) +
                                   " in one call: pass tensors of one type");
  }
  if (hosted.refusal.ok()) hosted.refusal = HostReduction::make(type, op, how);
  hosted.factor = how->factor();
  if (communicator()) {
    hosted.reason = !network_has(type) ? "the network reduces float32, bfloat16, float16, int32 and int64"
                    : !network_reduction({tensors[0]}, op)
                        ? "the network has no " + hosted.op + " of " + name_of(type)
                    : sums_only_ && !is_sum(op) ? "the ranks can verify sums and means only (NETSUM_VERIFY)"
                                                : "the network reduces one tensor in such a call";
  }
  return hosted;
}

WorkPtr ProcessGroupNetsum::all_reduce_on_hosts(const Call& call, const Tensors& tensors,
                                                const c10d::ReduceOp& op, bool with_each_other,
                                                std::chrono::milliseconds timeout) {
  HostReduction how;
  HostCall hosted = host_reduction(tensors, op, &how);
  add_all(&hosted.buffers, tensors, &Buffers::add_in_place);
  hosted.results = {tensors};
  const auto state = std::make_shared<Reduced>();
  const bool nothing = all_empty(tensors) || (getSize() == 1 && (tensors.size() == 1 || !with_each_other));
  hosted.start = [=](c10d::Backend& gloo, const Buffers& buffers) -> WorkPtr {
    if (nothing) return {};
    for (size_t i = 0; i < buffers.size(); ++i) state->plain.push_back(buffers.memory(i));
    state->packed = how.pack(state->plain);
    if (with_each_other) {
      c10d::AllreduceOptions options;
      options.reduceOp = how.op();
      options.timeout = timeout;
      return gloo.allreduce(state->packed, options);
    }
    c10d::AllreduceCoalescedOptions options;
    options.reduceOp = how.op();
    options.timeout = timeout;
    return gloo.allreduce_coalesced(state->packed, options);
  };
  hosted.unpack = [=](const Buffers&) { how.unpack(state->packed, state->plain); };
  return run_on_hosts(call, std::move(hosted));
}

WorkPtr ProcessGroupNetsum::reduce_on_hosts(const Call& call, const Tensors& tensors,
                                            const c10d::ReduceOptions& opts) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "netsum ", call.name, ": ", tensors.size(),
                    " tensors, where one is required");
  const int root = checked_root(call, opts.rootRank);
  HostReduction how;
  HostCall hosted = host_reduction(tensors, opts.reduceOp, &how);
  root == getRank() ? hosted.buffers.add_in_place(tensors[0]) : hosted.buffers.add_scratch(tensors[0]);
  hosted.results = {tensors};
  const auto state = std::make_shared<Reduced>();
  const bool nothing = all_empty(tensors) || getSize() == 1;
  hosted.start = [=](c10d::Backend& gloo, const Buffers& buffers) -> WorkPtr {
    if (nothing) return {};
    state->plain = {buffers.memory(0)};
    state->packed = how.pack(state->plain);
    c10d::ReduceOptions options = opts;
    options.reduceOp = how.op();
    options.rootTensor = 0;
    return gloo.reduce(state->packed, options);
  };
  hosted.unpack = [=](const Buffers&) { how.unpack(state->packed, state->plain); };
  return run_on_hosts(call, std::move(hosted));
}

// Gloo reduces everything everywhere, also by its own functions of these names.
WorkPtr ProcessGroupNetsum::reduce_scatter_on_hosts(const Call& call, const Tensors& outputs,
                                                    const std::vector<Tensors>& inputs,
                                                    const c10d::ReduceScatterOptions& opts) {
  check_pairs(call, inputs.size(), outputs.size());
  Tensors tensors = outputs;
  for (const Tensors& list : inputs) tensors.insert(tensors.end(), list.begin(), list.end());
  HostReduction how;
  HostCall hosted = host_reduction(tensors, opts.reduceOp, &how);
  hosted.results = {outputs};
  const auto own = static_cast<size_t>(getRank());
  std::vector<Piece> pieces;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Tensors& parts = inputs[i];
    Piece piece{.inputs = add_all(&hosted.buffers, parts, &Buffers::add_input),
                .output = hosted.buffers.add_output(outputs[i]),
                .count = outputs[i].numel()};
    if (parts.size() == 1) {  // that of all ranks
      piece.begin = getRank() * piece.count;
      check_match(call, parts[0], outputs[i], getSize());
    } else {
      check_lists(call, {parts}, getSize());
      check_match(call, parts[own], outputs[i], 1);
      for (size_t r = 0; r < own; ++r) piece.begin += parts[r].numel();
    }
    pieces.push_back(std::move(piece));
  }
  const auto state = std::make_shared<Reduced>();
  hosted.start = [=, this](c10d::Backend& gloo, const Buffers& buffers) -> WorkPtr {
    for (const Piece& piece : pieces)
      state->plain.push_back(at::cat(all_moved(buffers, piece.inputs, /*as_bytes=*/false)));
    if (getSize() == 1 || all_empty(state->plain)) return {};
    state->packed = how.pack(state->plain);
    c10d::AllreduceCoalescedOptions options;
    options.reduceOp = how.op();
    options.timeout = opts.timeout;
    return gloo.allreduce_coalesced(state->packed, options);
  };
  hosted.unpack = [=](const Buffers& buffers) {
    if (!state->packed.empty()) how.unpack(state->packed, state->plain);
    for (size_t i = 0; i < pieces.size(); ++i)
      buffers.memory(pieces[i].output)
          .view({-1})
          .copy_(state->plain[i].narrow(0, pieces[i].begin, pieces[i].count));
  };
  return run_on_hosts(call, std::move(hosted));
}

// --- Sparse tensors: Gloo reads their indices and values in copies -----------------------------------------------

WorkPtr ProcessGroupNetsum::all_reduce_sparse_on_hosts(const Call& call, const Tensors& tensors,
                                                       const c10d::AllreduceOptions& opts) {
  HostCall hosted;
  hosted.reduces = true;
  hosted.op = name_of(static_cast<c10d::ReduceOp::RedOpType>(opts.reduceOp));
  const at::ScalarType type = tensors.at(0).scalar_type();
  hosted.op = "sparse " + name_of(type) + ", " + hosted.op;
  if (opts.reduceOp != c10d::ReduceOp::SUM || !gloo_has(type) || type == at::kBool || type == at::kHalf)
    hosted.refusal = unsupported(
        "Gloo, which runs it, has only SUM of sparse tensors, of types such as float64 and int8: pass "
        "tensor.to_dense(), or a tensor of another type");
  if (communicator()) hosted.reason = "the network does not reduce such sparse tensors";
  hosted.results = {tensors};
  hosted.is_sparse = true;
  const at::Tensor& tensor = tensors[0];
  if (tensor.device().is_cpu()) {
    hosted.start = [tensors, opts](c10d::Backend& gloo, const Buffers&) -> WorkPtr {
      Tensors sparse = tensors;
      return gloo.allreduce(sparse, opts);
    };
    return run_on_hosts(call, std::move(hosted));
  }
  add_parts(tensor, &hosted.buffers);
  hosted.buffers.add_first_step([] {});  // what unpack() copies must have come
  const auto on_host = std::make_shared<Tensors>();
  hosted.start = [tensor, opts, on_host](c10d::Backend& gloo, const Buffers& buffers) -> WorkPtr {
    const auto options = at::TensorOptions(tensor.scalar_type());
    // Copies: what Gloo returns may share their memory.
    *on_host = {at::_sparse_coo_tensor_unsafe(buffers.memory(0).clone(), buffers.memory(1).clone(),
                                              tensor.sizes(), options)};
    return gloo.allreduce(*on_host, opts);
  };
  hosted.unpack = [tensor, on_host](const Buffers& buffers) {
    const at::Tensor sum = on_host->front().coalesce();
    buffers.return_sparse(tensor, sum._indices(), sum._values());
  };
  return run_on_hosts(call, std::move(hosted));
}

WorkPtr ProcessGroupNetsum::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  TORCH_CHECK_VALUE(is_sparse(tensors), "netsum ", kAllReduceSparse.name, ": one sparse tensor is required");
  // PyTorch calls this of sparse tensors of an accelerator.
  if (!tensors[0].device().is_cpu()) return allreduce(tensors, opts);
  return all_reduce_sparse_on_hosts(kAllReduceSparse, tensors, opts);
}

// --- Collectives that move bytes ---------------------------------------------------------------------------------

WorkPtr ProcessGroupNetsum::broadcast_on_hosts(const Call& call, const Tensors& tensors,
                                               const c10d::BroadcastOptions& opts) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "netsum ", call.name, ": ", tensors.size(),
                    " tensors, where one is required");
  HostCall hosted;
  hosted.results = {tensors};
  const bool sends = checked_root(call, opts.rootRank) == getRank();
  sends ? hosted.buffers.add_input(tensors[0]) : hosted.buffers.add_output(tensors[0]);
  const bool as_bytes = must_move_as_bytes(tensors), nothing = all_empty(tensors);
  hosted.start = [=](c10d::Backend& gloo, const Buffers& buffers) -> WorkPtr {
    if (nothing) return {};
    Tensors flat = all_moved(buffers, {0}, as_bytes);
    c10d::BroadcastOptions options = opts;
    options.rootTensor = 0;
    return gloo.broadcast(flat, options);
  };
  return run_on_hosts(call, std::move(hosted));
}

// outputs[i][r] becomes what rank r has as inputs[i]. The parts of one input are of one size on all ranks.
WorkPtr ProcessGroupNetsum::all_gather_on_hosts(const Call& call, const std::vector<Tensors>& outputs,
                                                const Tensors& inputs, std::vector<Tensors> results,
                                                const c10d::AllgatherOptions& opts) {
  check_pairs(call, inputs.size(), outputs.size());
  check_lists(call, outputs, getSize());
  HostCall hosted;
  hosted.results = std::move(results);
  const std::vector<size_t> from = add_all(&hosted.buffers, inputs, &Buffers::add_input);
  std::vector<std::vector<size_t>> to(static_cast<size_t>(getSize()));  // by rank
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (size_t r = 0; r < outputs[i].size(); ++r) {
      check_match(call, outputs[i][r], inputs[i], 1);
      to[r].push_back(hosted.buffers.add_output(outputs[i][r]));
    }
  }
  const bool as_bytes = must_move_as_bytes(inputs), nothing = all_empty(inputs);
  hosted.start = [=](c10d::Backend& gloo, const Buffers& buffers) -> WorkPtr {
    if (nothing) return {};
    std::vector<Tensors> lists;
    for (const auto& of_rank : to) lists.push_back(all_moved(buffers, of_rank, as_bytes));
    Tensors flat = all_moved(buffers, from, as_bytes);
    return gloo.allgather_coalesced(lists, flat, opts);
  };
  return run_on_hosts(call, std::move(hosted));
}

// outputs[i] becomes what the ranks have as inputs[i], one after the other.
WorkPtr ProcessGroupNetsum::all_gather_flat_on_hosts(const Call& call, const Tensors& outputs,
                                                     const Tensors& inputs,
                                                     const c10d::AllgatherOptions& opts) {
  check_pairs(call, inputs.size(), outputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) check_match(call, outputs[i], inputs[i], getSize());
  HostCall hosted;
  hosted.results = {outputs};
  const std::vector<size_t> from = add_all(&hosted.buffers, inputs, &Buffers::add_input);
  const std::vector<size_t> to = add_all(&hosted.buffers, outputs, &Buffers::add_output);
  const bool as_bytes = must_move_as_bytes(inputs), nothing = all_empty(inputs);
  hosted.start = [=, ranks = getSize()](c10d::Backend& gloo, const Buffers& buffers) -> WorkPtr {
    if (nothing) return {};
    Tensors flat = all_moved(buffers, from, as_bytes), whole = all_moved(buffers, to, as_bytes);
    std::vector<Tensors> lists(static_cast<size_t>(ranks));
    for (int64_t r = 0; r < ranks; ++r)
      for (size_t i = 0; i < flat.size(); ++i)
        lists[static_cast<size_t>(r)].push_back(whole[i].narrow(0, r * flat[i].numel(), flat[i].numel()));
    return gloo.allgather_coalesced(lists, flat, opts);
  };
  return run_on_hosts(call, std::move(hosted));
}

WorkPtr ProcessGroupNetsum::gather_on_hosts(const Call& call, const std::vector<Tensors>& outputs,
                                            const Tensors& inputs, const c10d::GatherOptions& opts) {
  const bool receives = checked_root(call, opts.rootRank) == getRank();
  TORCH_CHECK_VALUE(inputs.size() == 1 && outputs.size() == (receives ? 1 : 0), "netsum ", call.name, ": ",
                    inputs.size(), " inputs and ", outputs.size(), " lists of outputs");
  HostCall hosted;
  hosted.results = outputs;
  hosted.buffers.add_input(inputs[0]);
  std::vector<size_t> to;
  if (receives) {
    check_lists(call, outputs, getSize());
    for (const at::Tensor& output : outputs[0]) check_match(call, output, inputs[0], 1);
    to = add_all(&hosted.buffers, outputs[0], &Buffers::add_output);
  }
  const bool as_bytes = must_move_as_bytes(inputs), nothing = all_empty(inputs);
  hosted.start = [=](c10d::Backend& gloo, const Buffers& buffers) -> WorkPtr {
    if (nothing) return {};
    std::vector<Tensors> lists;
    if (receives) lists.push_back(all_moved(buffers, to, as_bytes));
    Tensors flat = all_moved(buffers, {0}, as_bytes);
    return gloo.gather(lists, flat, opts);
  };
  return run_on_hosts(call, std::move(hosted));
}

WorkPtr ProcessGroupNetsum::scatter_on_hosts(const Call& call, const Tensors& outputs,
                                             const std::vector<Tensors>& inputs,
                                             const c10d::ScatterOptions& opts) {
  const bool sends = checked_root(call, opts.rootRank) == getRank();
  TORCH_CHECK_VALUE(outputs.size() == 1 && inputs.size() == (sends ? 1 : 0), "netsum ", call.name, ": ",
                    inputs.size(), " lists of inputs and ", outputs.size(), " outputs");
  HostCall hosted;
  hosted.results = {outputs};
  hosted.buffers.add_output(outputs[0]);
  std::vector<size_t> from;
  if (sends) {
    check_lists(call, inputs, getSize());
    for (const at::Tensor& input : inputs[0]) check_match(call, input, outputs[0], 1);
    from = add_all(&hosted.buffers, inputs[0], &Buffers::add_input);
  }
  const bool as_bytes = must_move_as_bytes(outputs), nothing = all_empty(outputs);
  hosted.start = [=](c10d::Backend& gloo, const Buffers& buffers) -> WorkPtr {
    if (nothing) return {};
    std::vector<Tensors> lists;
    if (sends) lists.push_back(all_moved(buffers, from, as_bytes));
    Tensors flat = all_moved(buffers, {0}, as_bytes);
    return gloo.scatter(flat, lists, opts);
  };
  return run_on_hosts(call, std::move(hosted));
}

WorkPtr ProcessGroupNetsum::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  const Call& call = kAllToAll;
  check_lists(call, {outputs, inputs}, getSize());
  Tensors all = inputs;
  all.insert(all.end(), outputs.begin(), outputs.end());
  for (const at::Tensor& tensor : all)
    TORCH_CHECK_VALUE(tensor.scalar_type() == all[0].scalar_type(), "netsum ", call.name,
                      ": tensors of type ", all[0].scalar_type(), " and ", tensor.scalar_type(),
                      " in one call");
  const auto own = static_cast<size_t>(getRank());
  check_own_part(call, inputs[own].numel(), outputs[own].numel());
  HostCall hosted;
  hosted.equal_sizes = false;
  hosted.reason = kNothingToAdd;
  hosted.results = {outputs};
  const std::vector<size_t> from = add_all(&hosted.buffers, inputs, &Buffers::add_input);
  const std::vector<size_t> to = add_all(&hosted.buffers, outputs, &Buffers::add_output);
  const bool as_bytes = must_move_as_bytes(all);
  const auto received = std::make_shared<at::Tensor>();
  hosted.start = [=](c10d::Backend& gloo, const Buffers& buffers) -> WorkPtr {
    std::vector<int64_t> sends, receives;
    for (const at::Tensor& part : all_moved(buffers, from, as_bytes)) sends.push_back(part.numel());
    const Tensors parts = all_moved(buffers, to, as_bytes);
    for (const at::Tensor& part : parts) receives.push_back(part.numel());
    at::Tensor sent = at::cat(all_moved(buffers, from, as_bytes));
    *received = at::empty({std::accumulate(receives.begin(), receives.end(), int64_t{0})}, sent.options());
    return gloo.alltoall_base(*received, sent, receives, sends, opts);
  };
  hosted.unpack = [=](const Buffers& buffers) {
    int64_t begin = 0;
    for (at::Tensor& part : all_moved(buffers, to, as_bytes)) {
      part.copy_(received->narrow(0, begin, part.numel()));
      begin += part.numel();
    }
  };
  return run_on_hosts(call, std::move(hosted));
}

WorkPtr ProcessGroupNetsum::alltoall_base(at::Tensor& output, at::Tensor& input,
                                          std::vector<int64_t>& output_splits,
                                          std::vector<int64_t>& input_splits,
                                          const c10d::AllToAllOptions& opts) {
  const Call& call = kAllToAllSingle;
  TORCH_CHECK_VALUE(output.scalar_type() == input.scalar_type(), "netsum ", call.name, ": an output of type ",
                    output.scalar_type(), " and an input of type ", input.scalar_type());
  const std::vector<int64_t> receives = counts_of(output, output_splits, getSize());
  const std::vector<int64_t> sends = counts_of(input, input_splits, getSize());
  const auto own = static_cast<size_t>(getRank());
  check_own_part(call, sends[own], receives[own]);
  HostCall hosted;
  hosted.equal_sizes = false;
  hosted.reason = kNothingToAdd;
  hosted.results = {{output}};
  hosted.buffers.add_input(input);
  hosted.buffers.add_output(output);
  const bool as_bytes = must_move_as_bytes({input, output});
  const int64_t factor = as_bytes ? static_cast<int64_t>(input.element_size()) : 1;
  hosted.start = [=](c10d::Backend& gloo, const Buffers& buffers) -> WorkPtr {
    at::Tensor sent = moved(buffers.memory(0), as_bytes), received = moved(buffers.memory(1), as_bytes);
    std::vector<int64_t> to = receives, from = sends;
    for (int64_t& count : to) count *= factor;
    for (int64_t& count : from) count *= factor;
    return gloo.alltoall_base(received, sent, to, from, opts);
  };
  return run_on_hosts(call, std::move(hosted));
}

// --- Send and receive --------------------------------------------------------------------------------------------

HostCall ProcessGroupNetsum::point_to_point(const Call& call, const Tensors& tensors, int peer) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "netsum ", call.name, ": ", tensors.size(),
                    " tensors, where one is required");
  TORCH_CHECK_VALUE(peer >= 0 && peer < getSize(), "netsum ", call.name, ": there is no rank ", peer,
                    " in a group of ", getSize(), " ranks");
  HostCall hosted;
  hosted.reason = kNothingToAdd;
  hosted.results = {tensors};
  hosted.is_point_to_point = true;
  return hosted;
}

WorkPtr ProcessGroupNetsum::send(Tensors& tensors, int destination, int tag) {
  HostCall hosted = point_to_point(kSend, tensors, destination);
  hosted.buffers.add_input(tensors[0]);
  hosted.start = [=](c10d::Backend& gloo, const Buffers& buffers) {
    Tensors plain = {buffers.memory(0)};
    return gloo.send(plain, destination, tag);
  };
  return run_on_hosts(kSend, std::move(hosted));
}

WorkPtr ProcessGroupNetsum::recv(Tensors& tensors, int source, int tag) {
  HostCall hosted = point_to_point(kRecv, tensors, source);
  hosted.buffers.add_output(tensors[0]);
  hosted.start = [=](c10d::Backend& gloo, const Buffers& buffers) {
    Tensors plain = {buffers.memory(0)};
    return gloo.recv(plain, source, tag);
  };
  return run_on_hosts(kRecv, std::move(hosted));
}

WorkPtr ProcessGroupNetsum::recvAnysource(Tensors& tensors, int tag) {
  HostCall hosted = point_to_point(kRecvAnySource, tensors, /*peer=*/0);
  hosted.buffers.add_output(tensors[0]);
  hosted.start = [=](c10d::Backend& gloo, const Buffers& buffers) {
    Tensors plain = {buffers.memory(0)};
    return gloo.recvAnysource(plain, tag);
  };
  return run_on_hosts(kRecvAnySource, std::move(hosted));
}

// --- Barriers ----------------------------------------------------------------------------------------------------

WorkPtr ProcessGroupNetsum::barrier_on_hosts(const Call& call, const c10d::BarrierOptions& opts) {
  HostCall hosted;
  hosted.start = [opts](c10d::Backend& gloo, const Buffers&) { return gloo.barrier(opts); };
  return run_on_hosts(call, std::move(hosted));
}

void ProcessGroupNetsum::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  count_host_call("monitored_barrier");
  hosts_->monitoredBarrier(opts, wait_all_ranks);
}

}  // namespace netsum::torch_backend
