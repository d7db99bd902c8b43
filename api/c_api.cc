// The C ABI over the C++ API: no exception crosses it, every failure leaves a message for its thread.
#include "netsum/netsum.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/c_api_support.h"
#include "engine/work_state.h"
#include "netsum/communicator.h"
#include "netsum/sparse.h"
#include "src/base/stack_hint.h"

namespace {

using netsum::ErrorCode;
using netsum::Status;
using netsum::c_api::check_size;
using netsum::c_api::finish;
using netsum::c_api::guarded;
using netsum::c_api::invalid;
using netsum::c_api::last_error;
using netsum::c_api::read_kind;
using netsum::c_api::read_struct;
using netsum::c_api::succeeds;

static_assert(NETSUM_INTERNAL == static_cast<int>(ErrorCode::kInternal));
static_assert(NETSUM_WRONG_SUM == static_cast<int>(ErrorCode::kWrongSum));
static_assert(NETSUM_INT64 == static_cast<int>(netsum::DataType::kInt64));
static_assert(NETSUM_AVG == static_cast<int>(netsum::ReduceOp::kAvg));
static_assert(NETSUM_MIN == static_cast<int>(netsum::ReduceOp::kMin));
static_assert(NETSUM_BIT_XOR == static_cast<int>(netsum::ReduceOp::kBitXor));
static_assert(NETSUM_IO_AF_XDP == static_cast<int>(netsum::PacketIoKind::kAfXdp));
// The sizes that programs compiled with the first version pass. A new field must come after them, including padding.
static_assert(offsetof(netsum_comm_options, bind_address) == 144);
static_assert(sizeof(netsum_regroup_options) == 48);

std::string text_or(const char* text, const char* fallback) {
  return text != nullptr ? text : fallback;
}

std::vector<std::string> split_list(const char* text) {
  std::vector<std::string> parts;
  std::string_view list = text != nullptr ? text : "";
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    parts.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return parts;
}

void read_timeout(int64_t milliseconds, std::chrono::milliseconds* out) {
  if (milliseconds != 0) *out = std::chrono::milliseconds(milliseconds);
}

Status read_options(const netsum_comm_options* given, netsum::CommunicatorOptions* out) {
  netsum_comm_options options;
  if (Status status = read_struct(given, "netsum_comm_connect", &options); !status.ok()) return status;
  const netsum_comm_options* const in = &options;
  out->rank = in->rank;
  out->world_size = in->world_size;
  out->job = text_or(in->job, "default");
  out->token = text_or(in->token, "");
  out->aggregator_token = text_or(in->aggregator_token, "");
  out->root = text_or(in->root, "");
  out->aggregators = split_list(in->aggregators);
  read_timeout(in->connect_timeout_ms, &out->connect_timeout);
  read_timeout(in->timeout_ms, &out->timeout);
  if (in->mtu != 0) out->mtu = in->mtu;
  out->shared_memory = in->no_shared_memory == 0;
  out->lane_bits = in->lane_bits;
  out->metrics_address = text_or(in->metrics_address, "");
  out->trace_path = text_or(in->trace_path, "");
  if (in->liveness_timeout_ms != 0)
    out->liveness_timeout = std::chrono::milliseconds(std::max<int64_t>(in->liveness_timeout_ms, 0));
  if (in->failover != 0) out->on_failure = netsum::FailurePolicy::kFailover;
  out->fallback_aggregators = split_list(in->fallback_aggregators);
  read_timeout(in->failover_timeout_ms, &out->failover_timeout);
  if (in->when_full < NETSUM_FULL_FAIL || in->when_full > NETSUM_FULL_HOSTS)
    return Status(ErrorCode::kInvalidArgument, "netsum_comm_connect: when_full is none of netsum_when_full");
  out->when_full = static_cast<netsum::WhenFull>(in->when_full);
  out->bind_address = text_or(in->bind_address, "");
  out->host = text_or(in->host, "");
  out->tls.ca_cert = text_or(in->tls_ca_cert, "");
  out->tls.cert = text_or(in->tls_cert, "");
  out->tls.private_key = text_or(in->tls_private_key, "");
  if (in->on_root_bound != nullptr)
    out->on_root_bound = [call = in->on_root_bound, data = in->on_root_bound_data](
                             const std::string& address) { call(data, address.c_str()); };
  if (in->slots != 0) out->slots = in->slots;
  if (in->packet_io < NETSUM_IO_UDP || in->packet_io > NETSUM_IO_AF_XDP)
    return Status(ErrorCode::kInvalidArgument, "netsum_comm_connect: packet_io is none of netsum_packet_io");
  out->packet_io = static_cast<netsum::PacketIoKind>(in->packet_io);
  if (in->no_spin != 0 && in->spin_us != 0)
    return Status(ErrorCode::kInvalidArgument, "netsum_comm_connect: no_spin is set, and spin_us is " +
                                                   std::to_string(in->spin_us) + ": set one of them");
  if (in->no_spin != 0) out->spin = std::chrono::microseconds(0);
  if (in->spin_us != 0) out->spin = std::chrono::microseconds(in->spin_us);
  out->predict_scales = in->no_predict_scales == 0;
  if (in->engine_threads < -1)
    return Status(ErrorCode::kInvalidArgument, "netsum_comm_connect: engine_threads is " +
                                                   std::to_string(in->engine_threads) +
                                                   "; it must be -1 to 64");
  if (in->engine_threads != 0) out->engine_threads = in->engine_threads == -1 ? 0 : in->engine_threads;
  out->inject = {.loss = in->inject_loss, .seed = in->inject_seed};
  out->link_rate_bps = in->link_rate_bps;
  out->pace_bps = in->pace_bps;
  if (in->shares < NETSUM_SHARES_DEFAULT || in->shares > NETSUM_SHARES_PLANNED)
    return Status(ErrorCode::kInvalidArgument, "netsum_comm_connect: shares is none of netsum_shares");
  if (in->shares != NETSUM_SHARES_DEFAULT)
    out->shares = static_cast<netsum::Shares>(in->shares - NETSUM_SHARES_OFF);
  if (in->verify < NETSUM_VERIFY_PACKET || in->verify > NETSUM_VERIFY_SUM)
    return Status(ErrorCode::kInvalidArgument, "netsum_comm_connect: verify is none of netsum_verify");
  out->verify = static_cast<netsum::Verify>(in->verify);
  if (in->numerics < NETSUM_NUMERICS_AUTO || in->numerics > NETSUM_NUMERICS_FIXED)
    return Status(ErrorCode::kInvalidArgument, "netsum_comm_connect: numerics is none of netsum_numerics");
  out->numerics = static_cast<netsum::Numerics>(in->numerics);
  return Status();
}

Status read_regroup_options(const netsum_regroup_options* given, netsum::RegroupOptions* out) {
  if (given == nullptr) return Status();
  netsum_regroup_options options;
  if (Status status = read_struct(given, "netsum_comm_regroup", &options); !status.ok()) return status;
  const netsum_regroup_options* const in = &options;
  if (in->all != 0) out->who = netsum::RegroupOptions::Who::kAll;
  out->min_members = in->min_members;
  read_timeout(in->gather_ms, &out->gather);
  out->timeout = std::chrono::milliseconds(in->timeout_ms);
  out->root = text_or(in->root, "");
  out->hosts_root = in->hosts_root != 0;
  return Status();
}

// `refusal`: for the work of the operation.
Status read_reduce_options(const netsum_all_reduce_options* given, const std::string& what,
                           netsum::ReduceOptions* out, Status* refusal) {
  if (given == nullptr) return Status();
  netsum_all_reduce_options in;
  if (Status status = read_struct(given, what, &in); !status.ok()) return status;
  if (in.reserved != 0) return invalid(what, "reserved is not zero");
  *refusal = read_kind(in.type, in.op, what, out);
  out->priority = in.priority;
  out->timeout = std::chrono::milliseconds(in.timeout_ms);
  if (in.watermarks != nullptr) out->watermarks = in.watermarks->watermarks;
  return Status();
}

Status read_move_options(const netsum_move_options* given, netsum::CollectiveOptions* out) {
  if (given == nullptr) return Status();
  netsum_move_options in;
  if (Status status = read_struct(given, "netsum_move", &in); !status.ok()) return status;
  out->timeout = std::chrono::milliseconds(in.timeout_ms);
  if (in.watermarks != nullptr) out->watermarks = in.watermarks->watermarks;
  return Status();
}

netsum::TensorView view_of(const netsum_tensor& tensor) {
  return {.input = tensor.input, .output = tensor.output, .count = tensor.count, .id = tensor.id};
}
netsum::BufferView view_of(const netsum_buffer& buffer) {
  return {.input = buffer.input, .output = buffer.output, .bytes = buffer.bytes};
}

// Of netsum_tensor or netsum_buffer, whose fields must be read one by one. `one`: what messages call an element.
template <typename Given, typename View>
Status read_array(const Given* given, size_t count, const std::string& what, const std::string& one,
                  std::vector<View>* out) {
  if (given == nullptr && count > 0) return invalid(what, one + "s is NULL, and their number is above zero");
  out->reserve(count);
  for (size_t i = 0; i < count; ++i) {
    for (const uint64_t reserved : given[i].reserved) {
      if (reserved != 0)
        return invalid(what, "reserved fields of " + one + " " + std::to_string(i) + " are not zero");
    }
    out->push_back(view_of(given[i]));
  }
  return Status();
}

// Calls start(communicator, views) for the arguments of a collective.
template <typename View, typename Given, typename Start>
int start_with(netsum_comm* comm, const Given* given, size_t count, const std::string& what,
               const std::string& one, netsum_work** work, const Start& start) {
  return guarded([&]() -> Status {
    if (comm == nullptr || work == nullptr) return invalid(what, "comm or work is NULL");
    std::vector<View> views;
    if (Status read = read_array(given, count, what, one, &views); !read.ok()) return read;
    *work = new netsum_work{start(*comm->communicator, views)};
    return Status();
  });
}

template <typename Start>
int start_reduction(netsum_comm* comm, const netsum_tensor* tensors, size_t count, const std::string& what,
                    const netsum_all_reduce_options* options, netsum_work** work, const Start& start) {
  netsum::ReduceOptions parsed;
  Status refusal;
  if (Status read = read_reduce_options(options, what, &parsed, &refusal); !read.ok()) return finish(read);
  return start_with<netsum::TensorView>(
      comm, tensors, count, what, "tensor", work, [&](netsum::Communicator& communicator, const auto& views) {
        return refusal.ok() ? start(communicator, views, parsed) : netsum::ended_work(refusal);
      });
}

netsum::CollectiveOptions options_of(int64_t timeout_ms) {
  return {.timeout = std::chrono::milliseconds(timeout_ms)};
}

netsum_stats to_c(const netsum::CommunicatorStats& stats, const netsum::SparseStats& sparse) {
  netsum_stats out = {};
  out.struct_size = sizeof(out);
  out.operations_submitted = stats.operations_submitted;
  out.operations = stats.operations;
  out.operations_failed = stats.operations_failed;
  out.gradient_bytes = stats.gradient_bytes;
  out.bytes_sent = stats.bytes_sent;
  out.bytes_received = stats.bytes_received;
  out.packets_sent = stats.packets_sent;
  out.packets_received = stats.packets_received;
  out.retransmissions = stats.retransmissions;
  out.probes = stats.probes;
  out.share_changes = stats.share_changes;
  out.sums_verified = stats.sums_verified;
  out.sums_refused = stats.sums_refused;
  out.zero_chunks = stats.zero_chunks;
  out.scales_predicted = stats.scales_predicted;
  out.scales_mispredicted = stats.scales_mispredicted;
  out.packets_dropped = stats.packets_dropped;
  out.stripes = stats.stripes.size();
  out.failovers = stats.failovers;
  out.shard_bytes_received = stats.shard_bytes_received;
  out.shard_bytes_sent = stats.shard_bytes_sent;
  out.shared_memory_bytes_written = stats.shared_memory_bytes_written;
  out.shared_memory_bytes_read = stats.shared_memory_bytes_read;
  out.sends_refused = stats.sends_refused;
  out.srtt_us = stats.srtt_us;
  out.sparse_operations = sparse.operations;
  out.sparse_dense = sparse.dense;
  out.sparse_elements = sparse.elements;
  out.sparse_sent_elements = sparse.sent_elements;
  out.sparse_index_bytes = sparse.index_bytes;
  out.sparse_spared_bytes = sparse.spared_bytes;
  return out;
}

}  // namespace

extern "C" {

void netsum_set_stack_hint(netsum_stack_hint hint, void* user_data) {
  if (hint == nullptr) return netsum::set_stack_hint(nullptr);
  netsum::set_stack_hint([hint, user_data] {
    std::string text(netsum::kMostHintBytes, '\0');
    text.resize(std::min(hint(text.data(), text.size(), user_data), text.size()));
    return text;
  });
}

const char* netsum_version(void) {
  return NETSUM_VERSION_STRING;
}

const char* netsum_code_name(int code) {
  return netsum::error_name(static_cast<ErrorCode>(code)).data();
}

const char* netsum_last_error(void) {
  return last_error.message().c_str();
}

int netsum_last_error_rank(void) {
  return last_error.rank();
}

int netsum_comm_connect(const netsum_comm_options* options, netsum_comm** comm) {
  return guarded([&]() -> Status {
    netsum::CommunicatorOptions parsed;
    const Status read = read_options(options, &parsed);
    if (!read.ok()) return read;
    if (comm == nullptr) return Status(ErrorCode::kInvalidArgument, "netsum_comm_connect: comm is NULL");
    auto connected = netsum::Communicator::connect(parsed);
    if (!connected.ok()) return connected.status();
    *comm = new netsum_comm{std::move(connected).value()};
    return Status();
  });
}

void netsum_comm_close(netsum_comm* comm) {
  delete comm;
}

void netsum_comm_abort(netsum_comm* comm, const char* reason) {
  if (comm == nullptr) return;
  (void)succeeds([&]() -> Status {
    comm->communicator->abort(text_or(reason, "no reason given"));
    return Status();
  });
}

int netsum_comm_regroup(netsum_comm* comm, const netsum_regroup_options* options, int* former_ranks) {
  return guarded([&]() -> Status {
    if (comm == nullptr) return Status(ErrorCode::kInvalidArgument, "netsum_comm_regroup: comm is NULL");
    netsum::RegroupOptions parsed;
    if (Status read = read_regroup_options(options, &parsed); !read.ok()) return read;
    const auto regrouped = comm->communicator->regroup(parsed);
    if (!regrouped.ok()) return regrouped.status();
    if (former_ranks != nullptr)
      std::copy(regrouped->former_ranks.begin(), regrouped->former_ranks.end(), former_ranks);
    return Status();
  });
}

int netsum_comm_rank(const netsum_comm* comm) {
  return comm != nullptr ? comm->communicator->rank() : netsum::kNoRank;
}

int netsum_comm_world_size(const netsum_comm* comm) {
  return comm != nullptr ? comm->communicator->world_size() : 0;
}

int netsum_comm_status(const netsum_comm* comm) {
  return guarded([&] {
    return comm != nullptr ? comm->communicator->status() : invalid("netsum_comm_status", "comm is NULL");
  });
}

int netsum_comm_stats(const netsum_comm* comm, netsum_stats* stats) {
  return guarded([&]() -> Status {
    if (comm == nullptr) return Status(ErrorCode::kInvalidArgument, "netsum_comm_stats: comm is NULL");
    if (stats == nullptr) return invalid("netsum_comm_stats", "stats is NULL");
    const size_t size = stats->struct_size;
    if (Status status = check_size<netsum_stats>(size, "netsum_comm_stats"); !status.ok()) return status;
    const netsum_stats filled = to_c(comm->communicator->stats(), netsum::sparse_stats(*comm->communicator));
    std::memset(static_cast<void*>(stats), 0, size);
    std::memcpy(static_cast<void*>(stats), &filled, std::min(size, sizeof(filled)));
    stats->struct_size = size;
    return Status();
  });
}

size_t netsum_comm_wrong_sums(const netsum_comm* comm, netsum_wrong_sums* stripes, size_t most) {
  thread_local std::vector<netsum::CommunicatorStats::WrongSums> found;
  found.clear();
  const bool ok = succeeds([&]() -> Status {
    if (comm == nullptr) return invalid("netsum_comm_wrong_sums", "comm is NULL");
    if (stripes == nullptr && most > 0) return invalid("netsum_comm_wrong_sums", "stripes is NULL");
    found = comm->communicator->stats().wrong_sums;
    return Status();
  });
  if (!ok) return 0;
  for (size_t i = 0; i < std::min(most, found.size()); ++i)
    stripes[i] = {found[i].aggregator.c_str(), found[i].address.c_str(), found[i].stripe, found[i].results};
  return found.size();
}

const char* netsum_comm_describe(const netsum_comm* comm) {
  thread_local std::string text;
  if (!succeeds([&]() -> Status {
        if (comm == nullptr) return invalid("netsum_comm_describe", "comm is NULL");
        text = comm->communicator->describe();
        return Status();
      }))
    text = "";
  return text.c_str();
}

int netsum_all_reduce(netsum_comm* comm, const void* input, void* output, size_t count, netsum_dtype type,
                      netsum_redop op, int64_t timeout_ms, netsum_work** work) {
  return guarded([&]() -> Status {
    if (comm == nullptr || work == nullptr) {
      return Status(ErrorCode::kInvalidArgument, "netsum_all_reduce: comm or work is NULL");
    }
    netsum::AllReduceOptions options{.type = {}, .op = {}};  // 0 is no default here
    const Status refusal = read_kind(type, op, "netsum_all_reduce", &options);
    options.timeout = std::chrono::milliseconds(timeout_ms);
    netsum::TensorView view;
    view.input = input;
    view.output = output;
    view.count = count;
    *work = new netsum_work{refusal.ok() ? comm->communicator->all_reduce(view, options)
                                         : netsum::ended_work(refusal)};
    return Status();
  });
}

int netsum_all_reduce_tensors(netsum_comm* comm, const netsum_tensor* tensors, size_t tensor_count,
                              const netsum_all_reduce_options* options, netsum_work** work) {
  return start_reduction(comm, tensors, tensor_count, "netsum_all_reduce_tensors", options, work,
                         [](auto& communicator, const auto& views, const auto& parsed) {
                           return communicator.all_reduce(views, parsed);
                         });
}

int netsum_broadcast(netsum_comm* comm, const netsum_buffer* buffers, size_t count, int root,
                     int64_t timeout_ms, netsum_work** work) {
  return start_with<netsum::BufferView>(comm, buffers, count, "netsum_broadcast", "buffer", work,
                                        [&](auto& communicator, const auto& views) {
                                          return communicator.broadcast(views, root, options_of(timeout_ms));
                                        });
}

int netsum_all_gather(netsum_comm* comm, const netsum_buffer* parts, size_t count, int64_t timeout_ms,
                      netsum_work** work) {
  return start_with<netsum::BufferView>(comm, parts, count, "netsum_all_gather", "part", work,
                                        [&](auto& communicator, const auto& views) {
                                          return communicator.all_gather(views, options_of(timeout_ms));
                                        });
}

int netsum_gather(netsum_comm* comm, const netsum_buffer* parts, size_t count, int root, int64_t timeout_ms,
                  netsum_work** work) {
  return start_with<netsum::BufferView>(comm, parts, count, "netsum_gather", "part", work,
                                        [&](auto& communicator, const auto& views) {
                                          return communicator.gather(views, root, options_of(timeout_ms));
                                        });
}

int netsum_scatter(netsum_comm* comm, const netsum_buffer* parts, size_t count, int root, int64_t timeout_ms,
                   netsum_work** work) {
  return start_with<netsum::BufferView>(comm, parts, count, "netsum_scatter", "part", work,
                                        [&](auto& communicator, const auto& views) {
                                          return communicator.scatter(views, root, options_of(timeout_ms));
                                        });
}

int netsum_move(netsum_comm* comm, netsum_move_kind kind, const netsum_buffer* buffers, size_t count,
                int root, const netsum_move_options* options, netsum_work** work) {
  netsum::CollectiveOptions parsed;
  if (Status read = read_move_options(options, &parsed); !read.ok()) return finish(read);
  return start_with<netsum::BufferView>(
      comm, buffers, count, "netsum_move", "buffer", work,
      [&](netsum::Communicator& communicator, const auto& views) {
        switch (kind) {
          case NETSUM_BROADCAST:
            return communicator.broadcast(views, root, parsed);
          case NETSUM_ALL_GATHER:
            return communicator.all_gather(views, parsed);
          case NETSUM_GATHER:
            return communicator.gather(views, root, parsed);
          case NETSUM_SCATTER:
            return communicator.scatter(views, root, parsed);
        }
        return netsum::ended_work({ErrorCode::kUnsupported,
                                   "netsum_move: " + std::to_string(kind) + " is none of netsum_move_kind"});
      });
}

int netsum_reduce(netsum_comm* comm, const netsum_tensor* tensors, size_t tensor_count, int root,
                  const netsum_all_reduce_options* options, netsum_work** work) {
  return start_reduction(comm, tensors, tensor_count, "netsum_reduce", options, work,
                         [&](auto& communicator, const auto& views, const auto& parsed) {
                           return communicator.reduce(views, root, parsed);
                         });
}

int netsum_reduce_scatter(netsum_comm* comm, const netsum_tensor* parts, size_t count,
                          const netsum_all_reduce_options* options, netsum_work** work) {
  return start_reduction(comm, parts, count, "netsum_reduce_scatter", options, work,
                         [](auto& communicator, const auto& views, const auto& parsed) {
                           return communicator.reduce_scatter(views, parsed);
                         });
}

int netsum_work_on_done(netsum_work* work, netsum_callback callback, void* user_data) {
  return guarded([&]() -> Status {
    if (work == nullptr || callback == nullptr)
      return Status(ErrorCode::kInvalidArgument, "netsum_work_on_done: work or callback is NULL");
    if (work->has_callback.exchange(true))
      return Status(ErrorCode::kInvalidArgument, "netsum_work_on_done: the work has a callback already");
    const netsum::Work operation = work->work;  // the callback may free `work`
    operation.on_done([callback, user_data](const Status& status) {
      callback(user_data, static_cast<int>(status.code()), status.message().c_str(), status.rank());
    });
    return Status();
  });
}

int netsum_work_wait(netsum_work* work, int64_t timeout_ms) {
  return guarded([&] {
    if (work == nullptr) return invalid("netsum_work_wait", "work is NULL");
    return timeout_ms < 0 ? work->work.wait() : work->work.wait(std::chrono::milliseconds(timeout_ms));
  });
}

int netsum_work_wait_us(netsum_work* work, int64_t timeout_us) {
  return guarded([&] {
    if (work == nullptr) return invalid("netsum_work_wait_us", "work is NULL");
    return timeout_us < 0 ? work->work.wait() : wait_us(work->work, timeout_us);
  });
}

int netsum_work_done(const netsum_work* work) {
  return work == nullptr || work->work.done() ? 1 : 0;
}

void netsum_work_free(netsum_work* work) {
  delete work;
}

int netsum_barrier(netsum_comm* comm, int64_t timeout_ms) {
  return guarded([&] {
    if (comm == nullptr) return invalid("netsum_barrier", "comm is NULL");
    return comm->communicator->barrier(std::chrono::milliseconds(timeout_ms));
  });
}

}  // extern "C"
