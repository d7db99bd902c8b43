// Compression in the C ABI.
#include "netsum/compression.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/c_api_support.h"
#include "netsum/netsum.h"

struct netsum_compression {
  std::shared_ptr<const netsum::Compression> compression;
  std::string description;
};
struct netsum_compressed_tensor {
  std::shared_ptr<const netsum::Compression> compression;
  std::unique_ptr<netsum::CompressedTensor> tensor;
  int rank, ranks;
};

namespace {

using netsum::Status;
using netsum::c_api::guarded;
using netsum::c_api::invalid;

// The size that programs compiled with the first version pass. A new field must come after it.
static_assert(offsetof(netsum_compression_options, count_senders) == 136);

template <typename T>
void read(const char* given, T* out) {
  if (given != nullptr) *out = given;
}
template <typename T>
void read(T given, T* out) {
  if (given != 0) *out = given;
}

Status read_compression_options(const netsum_compression_options* given, netsum::CompressionOptions* out) {
  netsum_compression_options in;
  if (Status status = netsum::c_api::read_struct(given, "netsum_compression_make", &in); !status.ok())
    return status;
  read(in.method, &out->method);
  read(in.memory, &out->memory);
  read(in.path, &out->path);
  read(in.fit, &out->fit);
  read(in.ratio, &out->ratio);
  read(in.threshold, &out->threshold);
  read(in.decay, &out->decay);
  read(in.momentum, &out->momentum);
  read(in.clip_norm, &out->clip_norm);
  read(in.error_bound, &out->error_bound);
  read(in.k, &out->k);
  read(in.warmup_steps, &out->warmup_steps);
  read(in.seed, &out->seed);
  read(in.block, &out->block);
  read(in.rank, &out->rank);
  read(in.levels, &out->levels);
  read(in.buckets, &out->buckets);
  out->sampled = in.sampled != 0;
  out->rotated = in.rotated != 0;
  out->count_senders = in.count_senders != 0;
  return {};
}

}  // namespace

extern "C" {

const char* netsum_compression_methods(void) {
  static const std::string names = [] {
    std::string list;
    for (const std::string_view method : netsum::compression_methods()) {
      if (!list.empty()) list += ", ";
      list += method;
    }
    return list;
  }();
  return names.c_str();
}

int netsum_compression_make(const netsum_compression_options* options, netsum_compression** compression) {
  return guarded([&]() -> Status {
    if (compression == nullptr) return invalid("netsum_compression_make", "compression is NULL");
    netsum::CompressionOptions parsed;
    if (Status status = read_compression_options(options, &parsed); !status.ok()) return status;
    auto made = netsum::Compression::make(parsed);
    if (!made.ok()) return made.status();
    std::string description = (*made)->describe();
    *compression = new netsum_compression{std::move(made).value(), std::move(description)};
    return {};
  });
}

void netsum_compression_free(netsum_compression* compression) {
  delete compression;
}

const char* netsum_compression_describe(const netsum_compression* compression) {
  return compression != nullptr ? compression->description.c_str() : "";
}

int netsum_check_same_on_all_ranks(netsum_comm* comm, const char* text, int64_t timeout_ms) {
  return guarded([&]() -> Status {
    if (comm == nullptr || text == nullptr)
      return invalid("netsum_check_same_on_all_ranks", "comm or text is NULL");
    return netsum::check_same_on_all_ranks(*comm->communicator, text, std::chrono::milliseconds(timeout_ms));
  });
}

int netsum_compressed_tensor_make(const netsum_compression* compression, const netsum_comm* comm, uint64_t id,
                                  size_t count, size_t rows, netsum_compressed_tensor** tensor) {
  return guarded([&]() -> Status {
    const std::string what = "netsum_compressed_tensor_make";
    if (compression == nullptr || comm == nullptr || tensor == nullptr)
      return invalid(what, "compression, comm or tensor is NULL");
    const size_t of_rows = std::max<size_t>(rows, 1);
    if (count % of_rows != 0)
      return invalid(what, "rows is " + std::to_string(rows) + ", which does not divide count, " +
                               std::to_string(count));
    const int rank = comm->communicator->rank(), ranks = comm->communicator->world_size();
    auto made = compression->compression->tensor(id, count, rank, ranks, of_rows);  // not null
    *tensor = new netsum_compressed_tensor{compression->compression, std::move(made), rank, ranks};
    return {};
  });
}

void netsum_compressed_tensor_free(netsum_compressed_tensor* tensor) {
  delete tensor;
}

int netsum_compressed_all_reduce(netsum_comm* comm, netsum_compressed_tensor* tensor, const float* input,
                                 float* output, int64_t timeout_ms) {
  return guarded([&]() -> Status {
    const std::string what = "netsum_compressed_all_reduce";
    if (comm == nullptr || tensor == nullptr) return invalid(what, "comm or tensor is NULL");
    if ((input == nullptr || output == nullptr) && tensor->tensor->count() > 0)
      return invalid(what, "input or output is NULL");
    netsum::Communicator& communicator = *comm->communicator;
    if (communicator.rank() != tensor->rank || communicator.world_size() != tensor->ranks)
      return invalid(what, "the tensor is one of rank " + std::to_string(tensor->rank) + " of " +
                               std::to_string(tensor->ranks) + ", and this is rank " +
                               std::to_string(communicator.rank()) + " of " +
                               std::to_string(communicator.world_size()) +
                               ": call netsum_compressed_tensor_set_ranks() after netsum_comm_regroup()");
    return netsum::compressed_all_reduce(communicator, *tensor->compression, *tensor->tensor, input, output,
                                         comm->compression_buffers, std::chrono::milliseconds(timeout_ms));
  });
}

uint64_t netsum_compressed_tensor_step(const netsum_compressed_tensor* tensor) {
  return tensor != nullptr ? tensor->tensor->step() : 0;
}

size_t netsum_compressed_tensor_state(netsum_compressed_tensor* tensor, netsum_compression_state* parts,
                                      size_t most) {
  if (tensor == nullptr) return 0;
  const std::vector<netsum::CompressionState> state = tensor->tensor->state();
  if (parts == nullptr) most = 0;
  for (size_t i = 0; i < std::min(most, state.size()); ++i)
    parts[i] = {.name = state[i].name.data(),  // a literal, so a NUL is behind it
                .values = state[i].values.data(),
                .count = state[i].values.size()};
  return state.size();
}

int netsum_compressed_tensor_restore(netsum_compressed_tensor* tensor, uint64_t step,
                                     const netsum_compression_state* parts, size_t count) {
  return guarded([&]() -> Status {
    const std::string what = "netsum_compressed_tensor_restore";
    if (tensor == nullptr || (parts == nullptr && count > 0)) return invalid(what, "tensor or parts is NULL");
    std::vector<netsum::SavedCompressionState> saved;
    for (size_t i = 0; i < count; ++i) {
      if (parts[i].name == nullptr || (parts[i].values == nullptr && parts[i].count > 0))
        return invalid(what, "name or values of part " + std::to_string(i) + " is NULL");
      saved.push_back({.name = parts[i].name, .values = {parts[i].values, parts[i].count}});
    }
    return tensor->tensor->restore(step, saved);
  });
}

int netsum_compressed_tensor_scale_memory(netsum_compressed_tensor* tensor, float factor) {
  return guarded([&]() -> Status {
    if (tensor == nullptr) return invalid("netsum_compressed_tensor_scale_memory", "tensor is NULL");
    tensor->tensor->scale_memory(factor);
    return {};
  });
}

int netsum_compressed_tensor_set_ranks(netsum_compressed_tensor* tensor, const netsum_comm* comm) {
  return guarded([&]() -> Status {
    if (tensor == nullptr || comm == nullptr)
      return invalid("netsum_compressed_tensor_set_ranks", "tensor or comm is NULL");
    tensor->rank = comm->communicator->rank();
    tensor->ranks = comm->communicator->world_size();
    tensor->tensor->set_ranks(tensor->rank, tensor->ranks);
    return {};
  });
}

int netsum_compressed_tensor_give_up(netsum_compressed_tensor* tensor) {
  return guarded([&]() -> Status {
    if (tensor == nullptr) return invalid("netsum_compressed_tensor_give_up", "tensor is NULL");
    tensor->tensor->give_up();
    return {};
  });
}

int netsum_agree_on_steps(netsum_comm* comm, netsum_compressed_tensor* const* tensors, size_t count,
                          int64_t timeout_ms) {
  return guarded([&]() -> Status {
    const std::string what = "netsum_agree_on_steps";
    if (comm == nullptr || (tensors == nullptr && count > 0)) return invalid(what, "comm or tensors is NULL");
    std::vector<netsum::CompressedTensor*> parts;
    for (size_t i = 0; i < count; ++i) {
      if (tensors[i] == nullptr) return invalid(what, "tensor " + std::to_string(i) + " is NULL");
      parts.push_back(tensors[i]->tensor.get());
    }
    netsum::Communicator& communicator = *comm->communicator;
    if (Status status = netsum::agree_on_steps(communicator, parts, std::chrono::milliseconds(timeout_ms));
        !status.ok())
      return status;
    for (size_t i = 0; i < count; ++i) {
      tensors[i]->rank = communicator.rank();
      tensors[i]->ranks = communicator.world_size();
    }
    return {};
  });
}

}  // extern "C"
