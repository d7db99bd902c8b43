// The sparse all-reduces of the C ABI.
#include "api/c_api_support.h"
#include "engine/work_state.h"
#include "netsum/netsum.h"
#include "netsum/sparse.h"

namespace {

using netsum::SparseMode;
using netsum::Status;
using netsum::c_api::guarded;
using netsum::c_api::invalid;

static_assert(NETSUM_SPARSE_OFF == static_cast<int>(SparseMode::kOff));

// `refusal`: for the work of the operation.
Status read_sparse_options(const netsum_sparse_options* given, const std::string& what,
                           netsum::SparseOptions* out, Status* refusal) {
  if (given == nullptr) return {};
  netsum_sparse_options in;
  if (Status status = netsum::c_api::read_struct(given, what, &in); !status.ok()) return status;
  *refusal = netsum::c_api::read_kind(in.type, in.op, what, out);
  if (in.mode < NETSUM_SPARSE_AUTO || in.mode > NETSUM_SPARSE_OFF)
    return invalid(what, "mode is none of netsum_sparse_mode");
  out->mode = static_cast<SparseMode>(in.mode);
  if (in.unit != 0) out->unit = in.unit;
  out->timeout = std::chrono::milliseconds(in.timeout_ms);
  return {};
}

// Calls start(communicator, options) for the arguments of an operation.
template <typename Given, typename Start>
int start_sparse(netsum_comm* comm, const Given* given, const netsum_sparse_options* options,
                 netsum_work** work, const std::string& what, const Start& start) {
  return guarded([&]() -> Status {
    if (comm == nullptr || given == nullptr || work == nullptr)
      return invalid(what, "comm, the tensor or work is NULL");
    for (const uint64_t reserved : given->reserved)
      if (reserved != 0) return invalid(what, "reserved fields of the tensor are not zero");
    netsum::SparseOptions parsed;
    Status refusal;
    if (Status read = read_sparse_options(options, what, &parsed, &refusal); !read.ok()) return read;
    *work = new netsum_work{refusal.ok() ? start(*comm->communicator, parsed) : netsum::ended_work(refusal)};
    return {};
  });
}

}  // namespace

extern "C" {

int netsum_sparse_all_reduce(netsum_comm* comm, const netsum_tensor* tensor,
                             const netsum_sparse_options* options, netsum_work** work) {
  return start_sparse(
      comm, tensor, options, work, "netsum_sparse_all_reduce",
      [&](netsum::Communicator& communicator, const netsum::SparseOptions& parsed) {
        return netsum::sparse_all_reduce(
            communicator,
            netsum::TensorView{
                .input = tensor->input, .output = tensor->output, .count = tensor->count, .id = tensor->id},
            parsed);
      });
}

int netsum_sparse_all_reduce_coo(netsum_comm* comm, const netsum_coo* input, netsum_coo_allocate allocate,
                                 void* user_data, const netsum_sparse_options* options, netsum_work** work) {
  return start_sparse(comm, input, options, work, "netsum_sparse_all_reduce_coo",
                      [&](netsum::Communicator& communicator, const netsum::SparseOptions& parsed) {
                        netsum::CooAllocator allocator;
                        if (allocate != nullptr)
                          allocator = [allocate, user_data](size_t count) {
                            netsum::CooMemory memory;
                            allocate(user_data, count, &memory.indices, &memory.values);
                            return memory;
                          };
                        return netsum::sparse_all_reduce(communicator,
                                                         netsum::CooView{.indices = input->indices,
                                                                         .values = input->values,
                                                                         .count = input->count,
                                                                         .rows = input->rows,
                                                                         .row_elements = input->row_elements,
                                                                         .id = input->id},
                                                         std::move(allocator), parsed);
                      });
}

}  // extern "C"
