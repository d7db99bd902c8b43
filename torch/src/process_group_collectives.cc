// The collectives of ProcessGroupNetsum that use the network.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "torch/src/checks.h"
#include "torch/src/process_group.h"

namespace netsum::torch_backend {
namespace {

using c10d::OpType;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Works = std::vector<Work>;

constexpr Call kAllReduce{OpType::ALLREDUCE, "all_reduce", "netsum:all_reduce"};
constexpr Call kAllReduceCoalesced{OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced", "netsum:all_reduce"};
constexpr Call kReduce{OpType::REDUCE, "reduce", "netsum:reduce"};
constexpr Call kReduceScatter{OpType::REDUCE_SCATTER, "reduce_scatter", "netsum:reduce_scatter"};
constexpr Call kReduceScatterTensor{OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor",
                                    "netsum:reduce_scatter"};
constexpr Call kReduceScatterTensorCoalesced{OpType::COALESCED, "reduce_scatter_tensor_coalesced",
                                             "netsum:reduce_scatter"};
constexpr Call kBroadcast{OpType::BROADCAST, "broadcast", "netsum:broadcast"};
constexpr Call kAllGather{OpType::ALLGATHER, "all_gather", "netsum:all_gather"};
constexpr Call kAllGatherIntoTensor{OpType::_ALLGATHER_BASE, "all_gather_into_tensor", "netsum:all_gather"};
constexpr Call kAllGatherCoalesced{OpType::ALLGATHER_COALESCED, "all_gather_coalesced", "netsum:all_gather"};
constexpr Call kAllGatherIntoTensorCoalesced{OpType::COALESCED, "all_gather_into_tensor_coalesced",
                                             "netsum:all_gather"};
constexpr Call kGather{OpType::GATHER, "gather", "netsum:gather"};
constexpr Call kScatter{OpType::SCATTER, "scatter", "netsum:scatter"};
constexpr Call kBarrier{OpType::BARRIER, "barrier", "netsum:barrier"};

void check_equal_sizes(const Call& call, const Tensors& tensors, const at::Tensor& expected) {
  for (const at::Tensor& tensor : tensors) check_match(call, tensor, expected, 1);
}

// What moves bytes compares the element type as a tag.
CollectiveOptions move_options(const at::Tensor& tensor, std::chrono::milliseconds timeout,
                               uint32_t tag = 0) {
  return {.timeout = timeout, .tag = tag ^ (static_cast<uint32_t>(tensor.scalar_type()) + 1)};
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return is_plain(a) && is_plain(b) && a.const_data_ptr() == b.const_data_ptr() && a.nbytes() == b.nbytes();
}

// The indices in Buffers of one rank's part of a call. They are the same for a part that is reduced or moved in place.
struct Indices {
  size_t input = 0;
  size_t output = 0;
};

Indices add_pair(Buffers* buffers, const at::Tensor& input, const at::Tensor& output) {
  if (same_memory(input, output)) {
    const size_t both = buffers->add_in_place(output);
    return {both, both};
  }
  const size_t read = buffers->add_input(input);
  return {read, buffers->add_output(output)};
}

// Without a network, every rank counts as having what this one has, and a sum as this rank's summand: memory that nobody has
// written may hold numbers that slow computations down.
void repeat_own_part(const std::vector<BufferView>& views, size_t own) {
  const void* const from = views[own].input;
  for (const BufferView& view : views)
    if (view.output != from && view.bytes == views[own].bytes) std::memcpy(view.output, from, view.bytes);
}

void take_own_part(const TensorView& part, size_t bytes) {
  if (part.output != part.input) std::memcpy(part.output, part.input, bytes);
}

Tensors joined(Tensors first, const Tensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

}  // namespace

// --- Reductions -------------------------------------------------------------------------------------------------

WorkPtr ProcessGroupNetsum::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const auto comm = require_healthy(kAllReduce.name);
  if (is_sparse(tensors)) {
    return comm ? all_reduce_rows(comm, tensors[0], opts)
                : all_reduce_sparse_on_hosts(kAllReduce, tensors, opts);
  }
  // Several tensors mean that they are summed with each other, too, as in old interfaces. Only Gloo supports this.
  const auto reduction = tensors.size() == 1 ? reduction_of(tensors, opts.reduceOp) : std::nullopt;
  if (!reaches_network(comm) || !reduction)
    return all_reduce_on_hosts(kAllReduce, tensors, opts.reduceOp, /*with_each_other=*/true, opts.timeout);
  return all_reduce(comm, kAllReduce, tensors, {}, *reduction, opts.timeout);
}

WorkPtr ProcessGroupNetsum::allreduce_coalesced(Tensors& tensors,
                                                const c10d::AllreduceCoalescedOptions& opts) {
  return allreduce_identified(tensors, {}, opts);
}

WorkPtr ProcessGroupNetsum::allreduce_identified(Tensors& tensors, const std::vector<uint64_t>& ids,
                                                 const c10d::AllreduceCoalescedOptions& opts, uint32_t tag,
                                                 int32_t priority) {
  const auto comm = require_healthy(kAllReduceCoalesced.name);
  TORCH_CHECK_VALUE(ids.empty() || ids.size() == tensors.size(), "all_reduce: ", tensors.size(),
                    " tensors have ", ids.size(), " ids");
  auto reduction = reduction_of(tensors, opts.reduceOp);
  if (!reaches_network(comm) || !reduction)
    return all_reduce_on_hosts(kAllReduceCoalesced, tensors, opts.reduceOp, /*with_each_other=*/false,
                               opts.timeout);
  if (priority != 0 && has_ghosts())
    refuse_beside_ghosts(kAllReduceCoalesced.name, "has a priority, which recorded programs have not");
  reduction->options.tag ^= tag;
  reduction->options.priority = priority;
  return all_reduce(comm, kAllReduceCoalesced, tensors, ids, *reduction, opts.timeout);
}

WorkPtr ProcessGroupNetsum::all_reduce(const CommunicatorPtr& communicator, const Call& call,
                                       const Tensors& tensors, const std::vector<uint64_t>& ids,
                                       NetworkReduction reduction, std::chrono::milliseconds timeout) {
  reduction.options.timeout = timeout_or_default(timeout);
  Buffers buffers;
  for (const at::Tensor& tensor : tensors) buffers.add_in_place(tensor);
  buffers.allow_segments();
  auto work = begin(call, std::move(buffers), {tensors}, tensors, reduction);
  return submit(std::move(work), reduction.options.timeout, [=, this](CollectiveWork& started) {
    const Buffers& memory = started.buffers();
    std::vector<TensorView> views;
    for (size_t i = 0; i < memory.size(); ++i) {
      views.push_back({.input = memory.input(i),
                       .output = memory.output(i),
                       .count = memory.count(i),
                       .id = ids.empty() ? 0 : ids[i]});
    }
    // At once, so that callbacks of its future run in the caller, in the same order on all ranks. A barrier that nobody
    // waits for takes its place: a rank that has elements here gets a mismatch, not a sum with another rank's next call.
    if (std::all_of(views.begin(), views.end(), [](const TensorView& view) { return view.count == 0; })) {
      if (communicator && !has_ghosts()) communicator->start_barrier(reduction.options.timeout);
      return Works();
    }
    record(started, program::Collective::kAllReduce, views, reduction.options);
    return communicator ? Works{communicator->all_reduce(views, staged(started, views, reduction.options))}
                        : Works();
  });
}

WorkPtr ProcessGroupNetsum::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const auto comm = require_healthy(kReduce.name);
  auto reduction = tensors.size() == 1 ? reduction_of(tensors, opts.reduceOp) : std::nullopt;
  if (!reaches_network(comm) || !reduction) return reduce_on_hosts(kReduce, tensors, opts);
  reduction->options.timeout = timeout_or_default(opts.timeout);
  const int root = checked_root(kReduce, opts.rootRank);
  const bool receives = root == getRank();
  Buffers buffers;
  const size_t index = receives ? buffers.add_in_place(tensors[0]) : buffers.add_input(tensors[0]);
  buffers.allow_segments();
  auto work = begin(kReduce, std::move(buffers), {tensors}, tensors, *reduction);
  return submit(std::move(work), reduction->options.timeout,
                [=, this, options = reduction->options](CollectiveWork& call) {
                  const Buffers& memory = call.buffers();
                  const std::vector<TensorView> views{{.input = memory.input(index),
                                                       .output = receives ? memory.output(index) : nullptr,
                                                       .count = memory.count(index)}};
                  record(call, program::Collective::kReduce, views, options, root);
                  return comm ? Works{comm->reduce(views, root, staged(call, views, options))} : Works();
                });
}

WorkPtr ProcessGroupNetsum::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                           const c10d::ReduceScatterOptions& opts) {
  const Call& call = kReduceScatter;
  const auto comm = require_healthy(call.name);
  auto reduction = outputs.size() == 1 && inputs.size() == 1
                       ? reduction_of(joined(inputs[0], outputs), opts.reduceOp)
                       : std::nullopt;
  if (!reaches_network(comm) || !reduction) return reduce_scatter_on_hosts(call, outputs, inputs, opts);
  reduction->options.timeout = timeout_or_default(opts.timeout);
  check_lists(call, inputs, getSize());
  const auto own = static_cast<size_t>(getRank());
  check_match(call, inputs[0][own], outputs[0], 1);
  Buffers buffers;
  std::vector<Indices> parts;
  for (size_t r = 0; r < inputs[0].size(); ++r) {
    parts.push_back(r == own ? add_pair(&buffers, inputs[0][r], outputs[0])
                             : Indices{.input = buffers.add_input(inputs[0][r])});
  }
  buffers.allow_segments();
  auto work = begin(call, std::move(buffers), {outputs}, inputs[0], *reduction);
  return submit(std::move(work), reduction->options.timeout,
                [=, this, options = reduction->options](CollectiveWork& started) {
                  const Buffers& memory = started.buffers();
                  std::vector<TensorView> views;
                  for (size_t r = 0; r < parts.size(); ++r) {
                    views.push_back({.input = memory.input(parts[r].input),
                                     .output = r == own ? memory.output(parts[r].output) : nullptr,
                                     .count = memory.count(parts[r].input)});
                  }
                  record(started, program::Collective::kReduceScatter, views, options);
                  if (!comm) take_own_part(views[own], memory.bytes(parts[own].output));
                  return comm ? Works{comm->reduce_scatter(views, staged(started, views, options))} : Works();
                });
}

WorkPtr ProcessGroupNetsum::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::ReduceScatterOptions& opts) {
  return reduce_scatter_tagged(output, input, opts, 0);
}

WorkPtr ProcessGroupNetsum::reduce_scatter_tagged(at::Tensor& output, at::Tensor& input,
                                                  const c10d::ReduceScatterOptions& opts, uint32_t tag) {
  const auto comm = require_healthy(kReduceScatterTensor.name);
  auto reduction = reduction_of({input, output}, opts.reduceOp);
  if (!reaches_network(comm) || !reduction)
    return reduce_scatter_on_hosts(kReduceScatterTensor, {output}, {{input}}, opts);
  reduction->options.timeout = timeout_or_default(opts.timeout);
  reduction->options.tag ^= tag;
  return reduce_scatter_flat(comm, kReduceScatterTensor, {output}, {input}, *reduction);
}

WorkPtr ProcessGroupNetsum::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::ReduceScatterOptions& opts) {
  const Call& call = kReduceScatterTensorCoalesced;
  const auto comm = require_healthy(call.name);
  check_pairs(call, inputs.size(), outputs.size());
  auto reduction = reduction_of(joined(inputs, outputs), opts.reduceOp);
  if (!reaches_network(comm) || !reduction) {
    std::vector<Tensors> whole;
    for (const at::Tensor& input : inputs) whole.push_back({input});
    return reduce_scatter_on_hosts(call, outputs, whole, opts);
  }
  reduction->options.timeout = timeout_or_default(opts.timeout);
  return reduce_scatter_flat(comm, call, outputs, inputs, *reduction);
}

WorkPtr ProcessGroupNetsum::reduce_scatter_flat(const CommunicatorPtr& communicator, const Call& call,
                                                const Tensors& outputs, const Tensors& inputs,
                                                NetworkReduction reduction) {
  Buffers buffers;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_match(call, inputs[i], outputs[i], getSize());
    buffers.add_input(inputs[i]);
    buffers.add_output(outputs[i]);
  }
  if (inputs.size() == 1) buffers.allow_segments();
  auto work = begin(call, std::move(buffers), {outputs}, inputs, reduction);
  return submit(std::move(work), reduction.options.timeout, [=, this](CollectiveWork& started) {
    const Buffers& memory = started.buffers();
    Works operations;
    std::vector<TensorView> views(static_cast<size_t>(getSize()));
    for (size_t input = 0; input < memory.size(); input += 2) {
      const size_t output = input + 1;
      const size_t bytes = memory.bytes(output);
      for (size_t r = 0; r < views.size(); ++r) {
        const bool own = r == static_cast<size_t>(getRank());
        views[r] = {.input = memory.input(input) + r * bytes,
                    .output = own ? memory.output(output) : nullptr,
                    .count = memory.count(output)};
      }
      record(started, program::Collective::kReduceScatter, views, reduction.options);
      if (communicator)
        operations.push_back(communicator->reduce_scatter(views, staged(started, views, reduction.options)));
      else
        take_own_part(views[static_cast<size_t>(getRank())], bytes);
    }
    return operations;
  });
}

// --- Collectives that move bytes ----------------------------------------------------------------------------------

WorkPtr ProcessGroupNetsum::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const auto comm = require_healthy(kBroadcast.name);
  if (!reaches_network(comm) || tensors.size() != 1 || !can_move(tensors))
    return broadcast_on_hosts(kBroadcast, tensors, opts);
  const int root = checked_root(kBroadcast, opts.rootRank);
  const bool sends = root == getRank();
  Buffers buffers;
  const size_t index = sends ? buffers.add_input(tensors[0]) : buffers.add_output(tensors[0]);
  buffers.allow_segments();
  auto work = begin(kBroadcast, std::move(buffers), {tensors}, tensors);
  const CollectiveOptions options = move_options(tensors[0], timeout_or_default(opts.timeout));
  return submit(std::move(work), options.timeout, [=, this](CollectiveWork& call) {
    const Buffers& memory = call.buffers();
    const std::vector<BufferView> views{{.input = sends ? memory.input(index) : nullptr,
                                         .output = sends ? nullptr : memory.output(index),
                                         .bytes = memory.bytes(index)}};
    record(call, program::Collective::kBroadcast, views, options.tag, root);
    return comm ? Works{comm->broadcast(views, root, staged(call, views, options))} : Works();
  });
}

WorkPtr ProcessGroupNetsum::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                      const c10d::AllgatherOptions& opts) {
  const auto comm = require_healthy(kAllGather.name);
  if (!reaches_network(comm) || outputs.size() != 1 || inputs.size() != 1 || !can_move(outputs[0]) ||
      !can_move(inputs))
    return all_gather_on_hosts(kAllGather, outputs, inputs, outputs, opts);
  return all_gather_lists(comm, kAllGather, outputs, inputs, outputs, opts.timeout);
}

WorkPtr ProcessGroupNetsum::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions& opts) {
  const Call& call = kAllGatherCoalesced;
  const auto comm = require_healthy(call.name);
  TORCH_CHECK_VALUE(outputs.size() == static_cast<size_t>(getSize()), "netsum ", call.name, ": ",
                    outputs.size(), " lists of outputs, but the group has ", getSize(), " ranks");
  for (const Tensors& of_rank : outputs) check_pairs(call, inputs.size(), of_rank.size());
  // outputs[r][i] is what rank r has as inputs[i].
  std::vector<Tensors> by_input(inputs.size());
  for (const Tensors& of_rank : outputs)
    for (size_t i = 0; i < inputs.size(); ++i) by_input[i].push_back(of_rank[i]);
  if (!reaches_network(comm) || !can_move(inputs))
    return all_gather_on_hosts(call, by_input, inputs, outputs, opts);
  return all_gather_lists(comm, call, by_input, inputs, outputs, opts.timeout);
}

WorkPtr ProcessGroupNetsum::all_gather_lists(const CommunicatorPtr& communicator, const Call& call,
                                             const std::vector<Tensors>& outputs, const Tensors& inputs,
                                             std::vector<Tensors> results,
                                             std::chrono::milliseconds timeout) {
  check_lists(call, outputs, getSize());
  const auto own = static_cast<size_t>(getRank());
  Buffers buffers;
  std::vector<std::vector<Indices>> parts(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_match(call, outputs[i][own], inputs[i], 1);
    for (size_t r = 0; r < outputs[i].size(); ++r) {
      parts[i].push_back(r == own ? add_pair(&buffers, inputs[i], outputs[i][r])
                                  : Indices{.output = buffers.add_output(outputs[i][r])});
    }
  }
  if (inputs.size() == 1) buffers.allow_segments();
  auto work = begin(call, std::move(buffers), std::move(results), inputs);
  timeout = timeout_or_default(timeout);
  return submit(std::move(work), timeout, [=, this](CollectiveWork& started) {
    Works operations;
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::vector<BufferView> views;
      for (size_t r = 0; r < parts[i].size(); ++r) {
        views.push_back({.input = r == own ? started.buffers().input(parts[i][r].input) : nullptr,
                         .output = started.buffers().output(parts[i][r].output),
                         .bytes = started.buffers().bytes(parts[i][r].output)});
      }
      fill_parts_of_ghosts(&started, views);
      const CollectiveOptions options = move_options(inputs[i], timeout);
      record(started, program::Collective::kAllGather, views, options.tag);
      if (communicator)
        operations.push_back(communicator->all_gather(views, staged(started, views, options)));
      else
        repeat_own_part(views, own);
    }
    return operations;
  });
}

WorkPtr ProcessGroupNetsum::_allgather_base(at::Tensor& output, at::Tensor& input,
                                            const c10d::AllgatherOptions& opts) {
  return all_gather_tagged(output, input, opts, 0);
}

WorkPtr ProcessGroupNetsum::all_gather_tagged(at::Tensor& output, at::Tensor& input,
                                              const c10d::AllgatherOptions& opts, uint32_t tag) {
  const auto comm = require_healthy(kAllGatherIntoTensor.name);
  if (!reaches_network(comm) || !can_move({output, input}))
    return all_gather_flat_on_hosts(kAllGatherIntoTensor, {output}, {input}, opts);
  return all_gather_flat(comm, kAllGatherIntoTensor, {output}, {input}, opts.timeout, tag);
}

WorkPtr ProcessGroupNetsum::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& opts) {
  const Call& call = kAllGatherIntoTensorCoalesced;
  const auto comm = require_healthy(call.name);
  check_pairs(call, inputs.size(), outputs.size());
  if (!reaches_network(comm) || !can_move(joined(inputs, outputs)))
    return all_gather_flat_on_hosts(call, outputs, inputs, opts);
  return all_gather_flat(comm, call, outputs, inputs, opts.timeout);
}

WorkPtr ProcessGroupNetsum::all_gather_flat(const CommunicatorPtr& communicator, const Call& call,
                                            const Tensors& outputs, const Tensors& inputs,
                                            std::chrono::milliseconds timeout, uint32_t tag) {
  const auto own = static_cast<size_t>(getRank());
  Buffers buffers;
  // FSDP passes as the input this rank's part of the output.
  std::vector<Indices> pairs;
  std::vector<bool> in_place;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor &input = inputs[i], &output = outputs[i];
    check_match(call, output, input, getSize());
    // What is staged has memory of its own, and of the output only this rank's part would have to be copied to the host.
    in_place.push_back(input.device().is_cpu() && is_plain(input) && is_plain(output) &&
                       input.const_data_ptr() ==
                           static_cast<const std::byte*>(output.const_data_ptr()) + own * input.nbytes());
    if (in_place.back()) {
      const size_t both = buffers.add_in_place(output);
      pairs.push_back({both, both});
    } else {
      const size_t read = buffers.add_input(input);
      pairs.push_back({read, buffers.add_output(output)});
    }
  }
  if (inputs.size() == 1) buffers.allow_segments();
  auto work = begin(call, std::move(buffers), {outputs}, inputs);
  timeout = timeout_or_default(timeout);
  return submit(std::move(work), timeout, [=, this](CollectiveWork& started) {
    Works operations;
    std::vector<BufferView> views(static_cast<size_t>(getSize()));
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::byte* const output = started.buffers().output(pairs[i].output);
      const size_t bytes = inputs[i].nbytes();
      for (size_t r = 0; r < views.size(); ++r)
        views[r] = {.input = nullptr, .output = output + r * bytes, .bytes = bytes};
      views[own].input = in_place[i] ? views[own].output : started.buffers().input(pairs[i].input);
      fill_parts_of_ghosts(&started, views);
      const CollectiveOptions options = move_options(inputs[i], timeout, tag);
      record(started, program::Collective::kAllGather, views, options.tag);
      if (communicator)
        operations.push_back(communicator->all_gather(views, staged(started, views, options)));
      else
        repeat_own_part(views, own);
    }
    return operations;
  });
}

WorkPtr ProcessGroupNetsum::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::GatherOptions& opts) {
  const auto comm = require_healthy(kGather.name);
  if (!reaches_network(comm) || inputs.size() != 1 || !can_move(inputs))
    return gather_on_hosts(kGather, outputs, inputs, opts);
  const int root = checked_root(kGather, opts.rootRank);
  const bool receives = root == getRank();
  const auto own = static_cast<size_t>(getRank());
  Buffers buffers;
  std::vector<Indices> parts(static_cast<size_t>(getSize()));
  if (receives) {
    TORCH_CHECK_VALUE(outputs.size() == 1, "netsum gather: ", outputs.size(),
                      " lists of outputs at the root, where one is required");
    check_lists(kGather, outputs, getSize());
    check_equal_sizes(kGather, outputs[0], inputs[0]);
    for (size_t r = 0; r < parts.size(); ++r) {
      parts[r] = r == own ? add_pair(&buffers, inputs[0], outputs[0][r])
                          : Indices{.output = buffers.add_output(outputs[0][r])};
    }
  } else {
    parts[own].input = buffers.add_input(inputs[0]);
  }
  buffers.allow_segments();
  auto work = begin(kGather, std::move(buffers), receives ? outputs : std::vector<Tensors>(), inputs);
  const CollectiveOptions options = move_options(inputs[0], timeout_or_default(opts.timeout));
  return submit(std::move(work), options.timeout,
                [=, this, bytes = inputs[0].nbytes()](CollectiveWork& call) {
                  const Buffers& memory = call.buffers();
                  std::vector<BufferView> views;
                  for (size_t r = 0; r < parts.size(); ++r) {
                    views.push_back({.input = r == own ? memory.input(parts[r].input) : nullptr,
                                     .output = receives ? memory.output(parts[r].output) : nullptr,
                                     .bytes = bytes});
                  }
                  fill_parts_of_ghosts(&call, views);
                  record(call, program::Collective::kGather, views, options.tag, root);
                  if (!comm && receives) repeat_own_part(views, own);
                  return comm ? Works{comm->gather(views, root, staged(call, views, options))} : Works();
                });
}

WorkPtr ProcessGroupNetsum::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                    const c10d::ScatterOptions& opts) {
  const auto comm = require_healthy(kScatter.name);
  if (!reaches_network(comm) || outputs.size() != 1 || !can_move(outputs))
    return scatter_on_hosts(kScatter, outputs, inputs, opts);
  const int root = checked_root(kScatter, opts.rootRank);
  const bool sends = root == getRank();
  const auto own = static_cast<size_t>(getRank());
  Buffers buffers;
  std::vector<Indices> parts(static_cast<size_t>(getSize()));
  if (sends) {
    TORCH_CHECK_VALUE(inputs.size() == 1, "netsum scatter: ", inputs.size(),
                      " lists of inputs at the root, where one is required");
    check_lists(kScatter, inputs, getSize());
    check_equal_sizes(kScatter, inputs[0], outputs[0]);
    for (size_t r = 0; r < parts.size(); ++r) {
      parts[r] = r == own ? add_pair(&buffers, inputs[0][r], outputs[0])
                          : Indices{.input = buffers.add_input(inputs[0][r])};
    }
  } else {
    parts[own].output = buffers.add_output(outputs[0]);
  }
  buffers.allow_segments();
  auto work = begin(kScatter, std::move(buffers), {outputs}, sends ? inputs[0] : Tensors());
  const CollectiveOptions options = move_options(outputs[0], timeout_or_default(opts.timeout));
  return submit(std::move(work), options.timeout,
                [=, this, bytes = outputs[0].nbytes()](CollectiveWork& call) {
                  const Buffers& memory = call.buffers();
                  std::vector<BufferView> views;
                  for (size_t r = 0; r < parts.size(); ++r) {
                    views.push_back({.input = sends ? memory.input(parts[r].input) : nullptr,
                                     .output = r == own ? memory.output(parts[r].output) : nullptr,
                                     .bytes = bytes});
                  }
                  record(call, program::Collective::kScatter, views, options.tag, root);
                  return comm ? Works{comm->scatter(views, root, staged(call, views, options))} : Works();
                });
}

WorkPtr ProcessGroupNetsum::barrier(const c10d::BarrierOptions& opts) {
  const auto comm = require_healthy(kBarrier.name);
  if (!reaches_network(comm)) return barrier_on_hosts(kBarrier, opts);
  auto work = begin(kBarrier, {}, {}, {});
  const auto timeout = timeout_or_default(opts.timeout);
  return submit(std::move(work), timeout, [=, this](CollectiveWork& call) {
    record(call, program::Collective::kBarrier, std::span<const BufferView>(), 0);
    return comm ? Works{comm->start_barrier(timeout)} : Works();
  });
}

}  // namespace netsum::torch_backend
