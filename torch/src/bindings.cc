// The Python module netsum.torch._C.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <torch/csrc/jit/python/pybind_utils.h>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iomanip>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "netsum/communicator.h"
#include "netsum/late_join.h"
#include "netsum/regroup.h"
#include "netsum/settings.h"
#include "netsum/stack_hint.h"
#include "netsum/version.h"
#include "torch/src/compressed_buckets.h"
#include "torch/src/compression.h"
#include "torch/src/error.h"
#include "torch/src/future.h"
#include "torch/src/host_exchange.h"
#include "torch/src/own_keys_store.h"
#include "torch/src/process_group.h"
#include "torch/src/recorded_values.h"
#include "torch/src/sharded_plan.h"
#include "torch/src/training_pass.h"

namespace netsum::torch_backend {
namespace {

namespace py = pybind11;

// netsum.torch.Error; set when the module is loaded, and kept until the process ends.
PyObject* g_error_class = nullptr;

py::object to_python(const BackendError& error) {
  py::object instance = py::reinterpret_borrow<py::object>(g_error_class)(error.what_without_backtrace());
  instance.attr("code") = std::string(error_name(error.code()));
  instance.attr("rank") =
      error.rank() == kNoRank ? py::object(py::none()) : py::object(py::int_(error.rank()));
  return instance;
}

void bind_error(py::module_& module) {
  const py::object base = py::module_::import("torch.distributed").attr("DistBackendError");
  g_error_class = PyErr_NewExceptionWithDoc(
      "netsum.torch.Error",
      "An operation of the netsum backend failed.\n\n"
      "code: the kind of error, as a stable name such as \"peer_lost\" or \"timeout\"\n"
      "rank: the rank that the error is about, or None",
      base.ptr(), nullptr);
  module.attr("Error") = py::reinterpret_borrow<py::object>(g_error_class);
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (const BackendError& e) {
      PyErr_SetObject(g_error_class, to_python(e).ptr());
    }
  });
}

// What PyTorch's ranks add to the options that the environment sets; all others pass through Settings.
void bind_options(py::module_& module) {
  py::enum_<SparseMode>(module, "SparseMode")
      .value("AUTO", SparseMode::kAuto)
      .value("ON", SparseMode::kOn)
      .value("OFF", SparseMode::kOff);
  py::class_<InjectedFaults>(module, "InjectedFaults").def_readonly("loss", &InjectedFaults::loss);
  py::class_<CommunicatorOptions>(module, "CommunicatorOptions")
      .def_readwrite("rank", &CommunicatorOptions::rank)
      .def_readwrite("world_size", &CommunicatorOptions::world_size)
      .def_readwrite("job", &CommunicatorOptions::job)
      .def_readwrite("token", &CommunicatorOptions::token)
      .def_readwrite("root", &CommunicatorOptions::root)
      .def_readwrite("on_root_bound", &CommunicatorOptions::on_root_bound)
      .def_readwrite("bind_address", &CommunicatorOptions::bind_address)
      .def_readwrite("timeout", &CommunicatorOptions::timeout)
      .def_readonly("connect_timeout", &CommunicatorOptions::connect_timeout)
      .def_readonly("inject", &CommunicatorOptions::inject)
      .def_property_readonly(
          "verifies", [](const CommunicatorOptions& options) { return options.verify != Verify::kPacket; });
  py::class_<Settings>(module, "Settings")
      .def(py::init([](const Settings::Lookup& lookup, int local_rank) {
             auto settings = Settings::read(lookup, local_rank);
             if (!settings.ok()) throw py::value_error(settings.status().message());
             return std::move(settings).value();
           }),
           py::arg("lookup"), py::arg("local_rank") = 0)
      .def_property_readonly("options", [](const Settings& settings) { return settings.options(); })
      .def_property_readonly("hierarchy", &Settings::hierarchy)
      .def_property_readonly("job_prefix", &Settings::job_prefix)
      .def_property_readonly("needs_root", &Settings::needs_root)
      .def("shared", &Settings::shared)
      .def_static("difference", &Settings::difference);
}

py::dict to_dict(const std::map<std::string_view, uint64_t>& counts) {
  py::dict result;
  for (const auto& [name, count] : counts) result[py::str(name.data(), name.size())] = count;
  return result;
}

py::dict to_dict(const CommunicatorStats& stats, const SparseStats& sparse) {
  py::list stripes;
  for (const auto& stripe : stats.stripes) {
    py::dict item;
    item["address"] = stripe.address;
    item["bytes_sent"] = stripe.bytes_sent;
    item["bytes_received"] = stripe.bytes_received;
    item["local"] = stripe.local;
    item["share"] = stripe.share;
    stripes.append(item);
  }
  py::dict drops;
  for (const auto& drop : stats.drops) drops[py::str(drop.reason)] = drop.packets;
  py::dict result;
  result["drops"] = drops;
  result["operations_submitted"] = stats.operations_submitted;
  result["operations"] = stats.operations;
  result["operations_failed"] = stats.operations_failed;
  result["gradient_bytes"] = stats.gradient_bytes;
  result["bytes_sent"] = stats.bytes_sent;
  result["bytes_received"] = stats.bytes_received;
  result["packets_sent"] = stats.packets_sent;
  result["packets_received"] = stats.packets_received;
  result["retransmissions"] = stats.retransmissions;
  result["sends_refused"] = stats.sends_refused;
  result["probes"] = stats.probes;
  result["share_changes"] = stats.share_changes;
  result["sums_verified"] = stats.sums_verified;
  result["sums_refused"] = stats.sums_refused;
  py::list wrong_sums;
  for (const auto& wrong : stats.wrong_sums) {
    py::dict item;
    item["aggregator"] = wrong.aggregator;
    item["stripe"] = wrong.stripe;
    item["address"] = wrong.address;
    item["results"] = wrong.results;
    wrong_sums.append(item);
  }
  result["wrong_sums"] = wrong_sums;
  result["zero_chunks"] = stats.zero_chunks;
  result["scales_predicted"] = stats.scales_predicted;
  result["scales_mispredicted"] = stats.scales_mispredicted;
  result["packets_dropped"] = stats.packets_dropped;
  result["srtt_us"] = stats.srtt_us;
  result["stripes"] = stripes;
  result["waiting_for"] = stats.waiting_for;
  result["failovers"] = stats.failovers;
  result["metrics_address"] = stats.metrics_address;
  result["shard_bytes_received"] = stats.shard_bytes_received;
  result["shard_bytes_sent"] = stats.shard_bytes_sent;
  result["shared_memory_bytes_written"] = stats.shared_memory_bytes_written;
  result["shared_memory_bytes_read"] = stats.shared_memory_bytes_read;
  result["sparse_operations"] = sparse.operations;
  result["sparse_dense"] = sparse.dense;
  result["sparse_elements"] = sparse.elements;
  result["sparse_sent_elements"] = sparse.sent_elements;
  result["sparse_index_bytes"] = sparse.index_bytes;
  result["sparse_spared_bytes"] = sparse.spared_bytes;
  return result;
}

// Of no elements, so nothing is sent. All ranks get the same answer, for as long as the job does not move to another place.
bool takes_maxima(Communicator& communicator) {
  return communicator.all_reduce(std::span<const TensorView>(), {.op = ReduceOp::kMax}).wait().ok();
}

// Another group of this process, which knows of lost ranks, and the numbers there of the ranks of a group.
struct Beside {
  c10::intrusive_ptr<ProcessGroupNetsum> group;
  std::vector<int> ranks;

  // Returns what finds the losses.
  std::function<Status()> losses() const {
    return [there = std::weak_ptr(group->communicator()), ranks = ranks]() -> Status {
      const auto communicator = there.lock();
      const Status status = communicator ? communicator->status() : Status();
      const auto lost = std::find(ranks.begin(), ranks.end(), status.rank());
      if (status.code() != ErrorCode::kPeerLost || lost == ranks.end()) return {};
      return {status.code(), "found by another group: " + status.message(),
              static_cast<int>(lost - ranks.begin())};
    };
  }
};

Result<std::unique_ptr<Communicator>> connect_or_join_late(const CommunicatorOptions& options,
                                                           const c10::intrusive_ptr<c10d::Backend>& hosts,
                                                           const c10::intrusive_ptr<c10d::Store>& store,
                                                           const std::optional<Beside>& beside) {
  if (!beside) return Communicator::connect(options);
  return join_late(
      options,
      std::make_shared<HostExchange>(hosts.get(), store, options.world_size, beside->losses())->late_join());
}

// `beside`: the group joins late.
c10::intrusive_ptr<ProcessGroupNetsum> make_process_group(int rank, int size,
                                                          const c10::intrusive_ptr<c10d::Backend>& hosts,
                                                          const std::optional<CommunicatorOptions>& options,
                                                          std::chrono::milliseconds timeout,
                                                          const c10::intrusive_ptr<c10d::Store>& store,
                                                          const std::optional<Beside>& beside,
                                                          bool without_network, int real_ranks) {
  std::shared_ptr<Communicator> communicator;
  if (options) {
    auto connected = connect_or_join_late(*options, hosts, store, beside);
    if (!connected.ok()) {
      throw BackendError("init_process_group on rank " + std::to_string(rank) + " of " + std::to_string(size),
                         connected.status());
    }
    communicator = std::move(connected).value();
  }
  const bool sums_only = communicator && options->verify != Verify::kPacket &&
                         (options->on_failure == FailurePolicy::kFailover || !takes_maxima(*communicator));
  auto group = c10::make_intrusive<ProcessGroupNetsum>(rank, size, hosts, std::move(communicator), sums_only,
                                                       options ? options->job : std::string(), timeout, store,
                                                       without_network);
  if (real_ranks > 0) group->set_real_ranks(real_ranks);
  return group;
}

uint64_t without_barriers(const std::map<std::string_view, uint64_t>& calls) {
  uint64_t sum = 0;
  for (const auto& [name, count] : calls)
    if (name != "barrier" && name != "monitored_barrier") sum += count;
  return sum;
}

// What takes locks of the library, whose owners may wait for Python's.
auto without_python_lock(const auto& get) {
  const py::gil_scoped_release unlocked;
  return get();
}

// "; by Gloo: 4 of 10 calls (all_reduce 3, send 1), 2.5 % of their bytes", or nothing if the network ran all calls.
std::string describe_hosts(const ProcessGroupNetsum::CallCounts& calls) {
  const uint64_t hosts = without_barriers(calls.hosts), all = hosts + without_barriers(calls.netsum);
  if (hosts == 0) return "";
  std::ostringstream text;
  text << "; by Gloo: " << hosts << " of " << all << (all == 1 ? " call (" : " calls (");
  const char* separator = "";
  for (const auto& [name, count] : calls.hosts) {
    text << separator << name << " " << count;
    separator = ", ";
  }
  const auto bytes = static_cast<double>(calls.host_bytes);
  const double share = bytes / std::max(bytes + static_cast<double>(calls.netsum_bytes), 1.0);
  text << "), " << std::setprecision(3) << 100 * share << " % of their bytes";
  return text.str();
}

// "; tensors staged from cuda:0 in pinned memory, by segments of 1024 KiB", or nothing if there were none.
std::string describe_staging(const ProcessGroupNetsum& group) {
  std::string text;
  for (const auto& [device, pinned] : group.staged_devices())
    text += (text.empty() ? "; tensors staged from " : ", from ") + device +
            (pinned ? " in pinned memory" : " in pageable memory");
  if (const size_t bytes = group.staging_segment_bytes(); !text.empty() && bytes > 0)
    text += ", by segments of " + std::to_string(bytes >> 10) + " KiB";
  return text;
}

std::string describe(const ProcessGroupNetsum& group) {
  const auto communicator = group.communicator();
  return (communicator ? communicator->describe() : "summed by the hosts") + describe_hosts(group.calls()) +
         describe_staging(group);
}

py::object error_of(const ProcessGroupNetsum& group) {
  const Status status = without_python_lock([&] {
    const auto communicator = group.communicator();
    return communicator ? communicator->status() : Status();
  });
  if (status.ok()) return py::none();
  return to_python(BackendError("on rank " + std::to_string(group.getRank()), status));
}

// The error as an object, which Python raises.
py::object regroup_error(int rank, const Status& status) {
  return to_python(BackendError("regroup on rank " + std::to_string(rank), status));
}

// Seconds as Python has them, perhaps infinite; negative ones and NaN are invalid.
RegroupRule::Duration duration_of(double seconds) {
  constexpr double kLongest = 1e9;
  if (!(seconds >= 0)) return RegroupRule::Duration(-1);
  return std::chrono::duration_cast<RegroupRule::Duration>(
      std::chrono::duration<double>(std::min(seconds, kLongest)));
}

void bind_regroup(py::module_& module) {
  py::class_<RegroupRule>(module, "RegroupRule")
      .def(py::init([](int world_size, int min_members, double gather_s) {
             const auto rule = RegroupRule::make(world_size, min_members, duration_of(gather_s));
             if (!rule.ok()) throw py::value_error(rule.status().message());
             return *rule;
           }),
           py::arg("world_size"), py::arg("min_members"), py::arg("gather_s"))
      .def_property_readonly("world_size", &RegroupRule::world_size)
      .def("closes_after_s",
           [](const RegroupRule& rule, int arrived) -> std::optional<double> {
             const auto after = rule.closes_after(arrived);
             if (!after) return std::nullopt;
             return std::chrono::duration<double>(*after).count();
           })
      .def("timed_out",
           [](const RegroupRule& rule, int rank, const std::vector<int>& missing, double waited_s) {
             return regroup_error(rank, rule.timed_out(missing, duration_of(waited_s)));
           })
      .def_static("came_too_late",
                  [](int rank, const std::vector<int>& members) {
                    return regroup_error(rank, RegroupRule::came_too_late(rank, members));
                  })
      .def_static("new_rank", [](const std::vector<int>& members, int old_rank) -> std::optional<int> {
        const int rank = RegroupRule::new_rank(members, old_rank);
        return rank == kNoRank ? std::nullopt : std::optional(rank);
      });
}

void bind_store(py::module_& module) {
  py::class_<OwnKeysStore, c10::intrusive_ptr<OwnKeysStore>, c10d::PrefixStore>(module, "OwnKeysStore")
      .def(py::init<std::string, c10::intrusive_ptr<c10d::Store>>(), py::arg("prefix"), py::arg("store"))
      .def("delete_own_keys", &OwnKeysStore::deleteOwnKeys, py::call_guard<py::gil_scoped_release>());
}

}  // namespace

// In Python, because it makes groups.
c10::intrusive_ptr<c10d::Backend> ProcessGroupNetsum::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                            const std::vector<int>& ranks,
                                                            const c10::intrusive_ptr<Options>& opts) {
  const auto own = std::find(ranks.begin(), ranks.end(), getRank());
  if (own == ranks.end()) return nullptr;
  const py::gil_scoped_acquire locked;
  const py::object made =
      py::module_::import("netsum.torch._group")
          .attr("_split")(store, own - ranks.begin(), ranks.size(), opts ? opts->group_name : getGroupUid(),
                          opts ? opts->timeout : timeout());
  const auto group = made.cast<c10::intrusive_ptr<ProcessGroupNetsum>>();
  std::vector<int> in_job;
  for (const int rank : ranks) in_job.push_back(global_ranks().at(static_cast<size_t>(rank)));
  group->set_global_ranks(std::move(in_job));
  return group;
}

namespace {

// In place of Gloo in a group with ghosts, which refuses what would use it.
class NoHosts : public c10d::Backend {
 public:
  using Backend::Backend;
  const std::string getBackendName() const override { return "none"; }
  void setTimeout(std::chrono::milliseconds) override {}
  void setSequenceNumberForGroup() override {}
  void abort() override {}
  void shutdown() override {}
};

void bind_process_group(py::module_& module) {
  py::class_<NoHosts, c10::intrusive_ptr<NoHosts>, c10d::Backend>(module, "NoHosts")
      .def(py::init<int, int>(), py::arg("rank"), py::arg("size"));
  py::class_<Beside>(module, "Beside")
      .def(py::init([](c10::intrusive_ptr<ProcessGroupNetsum> group, std::vector<int> ranks) {
             return Beside{std::move(group), std::move(ranks)};
           }),
           py::arg("group"), py::arg("ranks"));
  module.def(
      "start_recording",
      [](bool with_scales, size_t value_bytes) {
        record_values(value_bytes);
        start_recording(with_scales);
      },
      py::arg("with_scales"), py::arg("value_bytes"));
  module.def("set_ghosts_have_values", &set_ghosts_have_values);
  module.def("end_recorded_step", &end_recorded_step);
  module.def(
      "stop_recording",
      [](int rank, int world_size, const std::string& model, const std::string& machine,
         const std::string& path, bool without_network) {
        const Status status = stop_recording({.world_size = world_size,
                                              .rank = rank,
                                              .model = model,
                                              .netsum = NETSUM_VERSION_STRING,
                                              .machine = machine},
                                             path, without_network);
        if (!status.ok()) throw BackendError("record", status);
      },
      py::arg("rank"), py::arg("world_size"), py::arg("model"), py::arg("machine"), py::arg("path"),
      py::arg("without_network"), py::call_guard<py::gil_scoped_release>());
  py::class_<ProcessGroupNetsum, c10::intrusive_ptr<ProcessGroupNetsum>, c10d::Backend>(module,
                                                                                        "ProcessGroupNetsum")
      .def("write_times", &ProcessGroupNetsum::write_times)
      .def(py::init(&make_process_group), py::arg("rank"), py::arg("size"), py::arg("hosts"),
           py::arg("options"), py::arg("timeout"), py::arg("store"), py::arg("beside") = std::nullopt,
           py::arg("without_network") = false, py::arg("real_ranks") = 0,
           py::call_guard<py::gil_scoped_release>())
      .def("allreduce_identified", &ProcessGroupNetsum::allreduce_identified, py::arg("tensors"),
           py::arg("ids"), py::arg("opts"), py::arg("tag") = 0, py::arg("priority") = 0,
           py::call_guard<py::gil_scoped_release>())
      .def(
          "sparse_all_reduce",
          [](ProcessGroupNetsum& group, const at::Tensor& tensor, SparseMode mode, int64_t unit, uint64_t id,
             const c10d::AllreduceOptions& opts) {
            return group.sparse_all_reduce(tensor, mode, unit, id, opts);
          },
          py::arg("tensor"), py::arg("mode"), py::arg("unit"), py::arg("id"), py::arg("opts"),
          py::call_guard<py::gil_scoped_release>())
      .def("stats",
           [](const ProcessGroupNetsum& group) {
             const auto [stats, sparse_stats, calls] = without_python_lock(
                 [&] { return std::tuple(group.stats(), group.sparse_stats(), group.calls()); });
             py::dict result = to_dict(stats, sparse_stats);
             result["netsum_calls"] = to_dict(calls.netsum);
             result["gloo_calls"] = to_dict(calls.hosts);
             result["netsum_call_bytes"] = calls.netsum_bytes;
             result["gloo_call_bytes"] = calls.host_bytes;
             return result;
           })
      .def(
          "packet_counts",
          [](const ProcessGroupNetsum& group) {
            const CommunicatorStats stats = group.stats();
            return std::pair(stats.packets_sent, stats.retransmissions);
          },
          py::call_guard<py::gil_scoped_release>())
      .def("error", &error_of)
      .def_property("global_ranks", &ProcessGroupNetsum::global_ranks, &ProcessGroupNetsum::set_global_ranks)
      .def(
          "set_staging_limits",
          [](ProcessGroupNetsum& group, size_t pool, size_t segment) {
            group.set_staging_limits({.pool = pool, .segment = segment});
          },
          py::arg("pool"), py::arg("segment"))
      .def_property_readonly("job", &ProcessGroupNetsum::job)
      .def_property_readonly("sums_only", &ProcessGroupNetsum::sums_only)
      .def_property_readonly("metrics_address",
                             [](const ProcessGroupNetsum& group) {
                               return without_python_lock([&] { return group.stats().metrics_address; });
                             })
      .def_property_readonly("store", &ProcessGroupNetsum::store)
      .def_property_readonly("timeout", &ProcessGroupNetsum::timeout)
      .def_property_readonly("options", &ProcessGroupNetsum::getBackendOptions)
      .def("flush", &ProcessGroupNetsum::flush, py::arg("limit"), py::call_guard<py::gil_scoped_release>())
      .def("describe", &describe, py::call_guard<py::gil_scoped_release>());
}

void bind_futures(py::module_& module) {
  using PythonFuture = torch::jit::PythonFutureWrapper;
  module.def(
      "when_all_end",
      [](const std::vector<std::shared_ptr<PythonFuture>>& given, const at::Tensor& tensor) {
        std::vector<FuturePtr> futures;
        for (const auto& one : given) futures.push_back(one->fut);
        auto value = torch::jit::toIValue(py::cast(tensor), c10::PyObjectType::get());
        const py::gil_scoped_release unlocked;
        return std::make_shared<PythonFuture>(when_all_end(futures, std::move(value), tensor));
      },
      py::arg("futures"), py::arg("tensor"),
      "A future of the tensor: when all of these have ended, or with what went wrong.");
}

}  // namespace
}  // namespace netsum::torch_backend

PYBIND11_MODULE(_C, module) {
  namespace tb = netsum::torch_backend;
  pybind11::module_::import("torch.distributed");  // registers the base classes
  module.attr("MAX_MEMBERS") = netsum::kMaxMembers;
  module.attr("MAX_RANKS") = netsum::kMaxRanks;
  // Waits for a call of the one before, which needs the interpreter.
  module.def("set_stack_hint", &netsum::set_stack_hint, pybind11::call_guard<pybind11::gil_scoped_release>());
  tb::bind_error(module);
  tb::bind_options(module);
  tb::bind_regroup(module);
  tb::bind_store(module);
  tb::bind_process_group(module);
  tb::bind_futures(module);
  tb::bind_compression(module);
  tb::bind_compression_control(module);
  tb::bind_training_pass(module);
  tb::bind_compressed_buckets(module);
  tb::bind_sharded_plan(module);
}
