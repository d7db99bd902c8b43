// The C ABI over the C++ API: no exception crosses it, every failure leaves a message for its thread.
#include "netsum/netsum.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "netsum/communicator.h"

struct netsum_comm {
  std::unique_ptr<netsum::Communicator> communicator;
};
struct netsum_work {
  netsum::Work work;
};

namespace {

using netsum::ErrorCode;
using netsum::Status;

static_assert(NETSUM_INTERNAL == static_cast<int>(ErrorCode::kInternal));
static_assert(NETSUM_INT64 == static_cast<int>(netsum::DataType::kInt64));
static_assert(NETSUM_AVG == static_cast<int>(netsum::ReduceOp::kAvg));

thread_local Status last_error;

int finish(const Status& status) {
  last_error = status;
  return static_cast<int>(status.code());
}

// Runs `body`, turning what it throws (memory, threads: set-up only) into a code.
template <typename Body>
int guarded(Body body) {
  try {
    return finish(body());
  } catch (const std::exception& error) {
    return finish(Status(ErrorCode::kInternal, error.what()));
  }
}

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

Status read_options(const netsum_comm_options* in, netsum::CommunicatorOptions* out) {
  if (in == nullptr || in->struct_size != sizeof(netsum_comm_options)) {
    return Status(ErrorCode::kInvalidArgument,
                  "netsum_comm_connect: set options.struct_size to sizeof(netsum_comm_options)");
  }
  out->rank = in->rank;
  out->world_size = in->world_size;
  out->job = text_or(in->job, "default");
  out->token = text_or(in->token, "");
  out->aggregator_token = text_or(in->aggregator_token, "");
  out->root = text_or(in->root, "");
  out->aggregators = split_list(in->aggregators);
  if (in->connect_timeout_ms != 0) out->connect_timeout = std::chrono::milliseconds(in->connect_timeout_ms);
  if (in->timeout_ms != 0) out->timeout = std::chrono::milliseconds(in->timeout_ms);
  if (in->mtu != 0) out->mtu = in->mtu;
  out->shared_memory = in->no_shared_memory == 0;
  out->lane_bits = in->lane_bits;
  out->metrics_address = text_or(in->metrics_address, "");
  out->trace_path = text_or(in->trace_path, "");
  if (in->liveness_timeout_ms != 0)
    out->liveness_timeout = std::chrono::milliseconds(std::max<int64_t>(in->liveness_timeout_ms, 0));
  if (in->failover != 0) out->on_failure = netsum::FailurePolicy::kFailover;
  out->fallback_aggregators = split_list(in->fallback_aggregators);
  if (in->failover_timeout_ms != 0)
    out->failover_timeout = std::chrono::milliseconds(in->failover_timeout_ms);
  if (in->when_full < NETSUM_FULL_FAIL || in->when_full > NETSUM_FULL_HOSTS)
    return Status(ErrorCode::kInvalidArgument, "netsum_comm_connect: when_full is none of netsum_when_full");
  out->when_full = static_cast<netsum::WhenFull>(in->when_full);
  return Status();
}

Status read_regroup_options(const netsum_regroup_options* in, netsum::RegroupOptions* out) {
  if (in == nullptr) return Status();
  if (in->struct_size != sizeof(netsum_regroup_options)) {
    return Status(ErrorCode::kInvalidArgument,
                  "netsum_comm_regroup: set options.struct_size to sizeof(netsum_regroup_options)");
  }
  if (in->all != 0) out->who = netsum::RegroupOptions::Who::kAll;
  out->min_members = in->min_members;
  if (in->gather_ms != 0) out->gather = std::chrono::milliseconds(in->gather_ms);
  out->timeout = std::chrono::milliseconds(in->timeout_ms);
  out->root = text_or(in->root, "");
  out->hosts_root = in->hosts_root != 0;
  return Status();
}

}  // namespace

extern "C" {

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
  if (comm != nullptr) comm->communicator->abort(text_or(reason, "no reason given"));
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
  return comm->communicator->rank();
}

int netsum_comm_world_size(const netsum_comm* comm) {
  return comm->communicator->world_size();
}

int netsum_comm_status(const netsum_comm* comm) {
  return guarded([&] { return comm->communicator->status(); });
}

int netsum_all_reduce(netsum_comm* comm, const void* input, void* output, size_t count, netsum_dtype type,
                      netsum_redop op, int64_t timeout_ms, netsum_work** work) {
  return guarded([&]() -> Status {
    if (comm == nullptr || work == nullptr) {
      return Status(ErrorCode::kInvalidArgument, "netsum_all_reduce: comm or work is NULL");
    }
    netsum::AllReduceOptions options;
    options.type = static_cast<netsum::DataType>(type);
    options.op = static_cast<netsum::ReduceOp>(op);
    options.timeout = std::chrono::milliseconds(timeout_ms);
    *work =
        new netsum_work{comm->communicator->all_reduce(netsum::TensorView{input, output, count}, options)};
    return Status();
  });
}

int netsum_work_wait(netsum_work* work, int64_t timeout_ms) {
  return guarded([&] {
    return timeout_ms < 0 ? work->work.wait() : work->work.wait(std::chrono::milliseconds(timeout_ms));
  });
}

int netsum_work_done(const netsum_work* work) {
  return work->work.done() ? 1 : 0;
}

void netsum_work_free(netsum_work* work) {
  delete work;
}

int netsum_barrier(netsum_comm* comm, int64_t timeout_ms) {
  return guarded([&] { return comm->communicator->barrier(std::chrono::milliseconds(timeout_ms)); });
}

}  // extern "C"
