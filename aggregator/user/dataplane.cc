#include "aggregator/user/dataplane.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/dataplane/counters.h"
#include "aggregator/user/queues.h"
#include "aggregator/user/thread.h"
#include "src/base/assert.h"
#include "src/base/processors.h"
#include "src/net/in_process.h"
#include "src/net/lossy.h"
#include "src/net/udp/udp_io.h"
#include "wire/ids.h"

namespace netsum {
namespace {

class UserDataplane final : public Dataplane {
 public:
  struct ServedEndpoint {
    CoreThread* thread = nullptr;
    Endpoint* endpoint = nullptr;
  };
  UserDataplane(const UserDataplaneOptions& options, std::vector<std::unique_ptr<CoreThread>> threads,
                std::vector<ServedEndpoint> endpoints)
      : options_(options), threads_(std::move(threads)), endpoints_(std::move(endpoints)) {}

  // Before anything else. After an error, only destruction may follow.
  Status start() {
    for (const auto& thread : threads_)
      if (Status status = thread->start(); !status.ok()) return status;
    return {};
  }

  // check() has made sure that there are enough processors.
  Status pin(const std::vector<int>& processors) {
    for (size_t i = 0; i < threads_.size(); ++i) {
      if (Status status = threads_[i]->pin(processors[i]); !status.ok()) return status;
    }
    return {};
  }

  std::string_view kind() const override { return "user-space"; }

  DataplaneLimits limits() const override {
    return {.stripes = static_cast<int>(endpoints_.size()),
            .max_jobs = options_.max_jobs,
            .slots_per_stripe = options_.slots_per_stripe,
            .capabilities =
                user_space_capabilities(options_.payload_bytes, options_.multicast_groups.has_value()),
            .multicast_groups = options_.multicast_groups,
            .quota = options_.quota,
            .slot_bytes = AggregatorCore::slot_bytes(options_.payload_bytes),
            .place_bytes = options_.payload_bytes};
  }

  std::vector<Address> endpoints() const override {
    std::vector<Address> addresses;
    for (const auto& [thread, endpoint] : endpoints_) addresses.push_back(endpoint->io->local_address());
    return addresses;
  }

  std::vector<DataplanePort> ports() const override;

  uint32_t free_slots() const override {
    uint32_t least = options_.slots_per_stripe;
    for_each_core([&](AggregatorCore& core) { least = std::min(least, core.free_slots()); });
    return least;
  }

  std::unique_ptr<PacketIo> attach_member(std::unique_ptr<PacketIo> io) override;

  Status install(const DataplaneJob& job) override {
    Status status;
    for (size_t i = 0; i < endpoints_.size() && status.ok(); ++i) {
      endpoints_[i].thread->run([&] { status = endpoints_[i].endpoint->core.install(job, i); });
    }
    if (!status.ok()) remove(job.job, job.epoch);
    return status;
  }

  void remove(uint16_t job, uint16_t epoch) override {
    for_each_core([&](AggregatorCore& core) { core.remove(job, epoch); });
  }

  std::vector<AggregatorCounter> counters() const override;

  JobProgress progress(uint16_t job, uint16_t epoch) const override {
    JobProgress all;
    for_each_core([&](const AggregatorCore& core) {
      const SlotProgress part = core.progress(job, epoch);
      all.rounds += part.rounds;
      all.open_slots += part.open_slots;
      all.missing |= part.missing;
      all.oldest += part.oldest;
      const std::vector<faults::MemberTotals> members = core.members(job, epoch);
      all.members.resize(std::max(all.members.size(), members.size()));
      for (size_t member = 0; member < members.size(); ++member) all.members[member].add(members[member]);
    });
    return all;
  }

  std::vector<int64_t> heard(uint16_t job, uint16_t epoch) const override {
    std::vector<int64_t> latest_us;
    for_each_core([&](const AggregatorCore& core) {
      const std::vector<int64_t> part = core.heard(job, epoch);
      latest_us.resize(std::max(latest_us.size(), part.size()));
      for (size_t member = 0; member < part.size(); ++member)
        latest_us[member] = std::max(latest_us[member], part[member]);
    });
    return latest_us;
  }

 private:
  // In the order of the stripes, each on its thread.
  void for_each_core(const std::function<void(AggregatorCore&)>& command) const {
    for (const auto& served : endpoints_) served.thread->run([&] { command(served.endpoint->core); });
  }

  const UserDataplaneOptions options_;
  const std::vector<std::unique_ptr<CoreThread>> threads_;
  const std::vector<ServedEndpoint> endpoints_;
};

std::unique_ptr<PacketIo> UserDataplane::attach_member(std::unique_ptr<PacketIo> io) {
  const auto [thread, endpoint] = endpoints_.front();
  InProcessHub* const hub = endpoint->hub;
  if (hub == nullptr || hub->local_address().is_wildcard()) return io;
  auto link = std::make_unique<InProcessLink>(NETSUM_HEADER_BYTES + options_.payload_bytes);
  link->hub = hub->local_address();
  link->member = io->local_address();
  if (link->member.is_wildcard()) {  // then the system chooses, for each destination
    const Result<Address> local = local_address_towards(link->hub);
    if (!local.ok()) return io;
    link->member = *local;
    link->member.port = io->local_address().port;
  }
  link->member_io = io.get();
  link->wake_hub = [thread = thread](size_t packets) { thread->take_from_lanes(packets); };
  InProcessLink* const attached = link.get();
  thread->run([&] { hub->attach(attached); });
  return std::make_unique<InProcessMember>(std::move(io), std::move(link), [thread = thread, hub, attached] {
    thread->run([&] { hub->detach(attached); });
  });
}

std::vector<DataplanePort> UserDataplane::ports() const {
  std::vector<DataplanePort> ports;
  for (const UdpPort& port : options_.ports) {
    ports.push_back({.address = port.address, .rate_bps = port.rate_bps});
    ports.back().address.port = 0;
  }
  for (const auto& [thread, endpoint] : endpoints_) {
    DataplanePort& port = ports[endpoint->port];
    port.packets_received += endpoint->count(&AggregatorCoreCounters::packets_received);
    port.bytes_received += endpoint->count(&AggregatorCoreCounters::bytes_received);
    port.packets_sent += endpoint->count(&AggregatorCoreCounters::packets_sent);
    port.bytes_sent += endpoint->count(&AggregatorCoreCounters::bytes_sent);
    endpoint->received.add_to(&port.received);
    endpoint->sent.add_to(&port.sent);
  }
  return ports;
}

std::vector<AggregatorCounter> UserDataplane::counters() const {
  std::vector<AggregatorCounter> counters;
  const auto add = [&](std::string name, Counter AggregatorCoreCounters::*of) {
    uint64_t sum = 0;
    for (const auto& served : endpoints_) sum += served.endpoint->count(of);
    counters.push_back({std::move(name), sum});
  };
#define NETSUM_ADD(NAME, name) add(#name, &AggregatorCoreCounters::name);
  NETSUM_DATAPLANE_COUNTERS(NETSUM_ADD)
#undef NETSUM_ADD
  append_drops(
      [&](int reason) {
        uint64_t sum = 0;
        for (const auto& served : endpoints_)
          sum += served.endpoint->core.counters().drops[static_cast<size_t>(reason)].get();
        return sum;
      },
      &counters);
  uint64_t injected = 0, flips = 0, overflowed = 0, refused = 0;
  for (const auto& served : endpoints_) {
    injected += served.endpoint->injected();
    flips += served.endpoint->core.injected_flips();
    overflowed += served.endpoint->io->overflowed();
    refused += served.endpoint->io->counters().send_refused.get();
  }
  counters.push_back({"sends_refused", refused});
  counters.push_back({"drop_queue_full", overflowed});
  counters.push_back({"drop_injected", injected});
  counters.push_back({"injected_flips", flips});
  return counters;
}

size_t cores_of(const UserDataplaneOptions& options) {
  size_t last = 0;
  for (const UdpStripe& stripe : options.stripes) last = std::max(last, stripe.core);
  return last + 1;
}

Status check(const UserDataplaneOptions& options) {
  const auto invalid = [](const std::string& message) {
    return Status(ErrorCode::kInvalidArgument, message);
  };
  const size_t stripes = options.stripes.size();
  if (stripes < 1 || stripes > UserDataplaneOptions::kMaxStripes) {
    return invalid("an aggregator has 1 to " + std::to_string(UserDataplaneOptions::kMaxStripes) +
                   " stripes, not " + std::to_string(stripes) + ": give fewer ports or cores");
  }
  if (options.ports.empty()) return invalid("an aggregator needs the address of a port");
  for (size_t i = 0; i < options.ports.size() && options.ports.size() > 1; ++i) {
    const Address& address = options.ports[i].address;
    if (address.is_wildcard())
      return invalid(address.to_string() +
                     " means all addresses of this host: give it alone, or the address of each port");
    if (address.family != options.ports[0].address.family)
      return invalid("ports must be all IPv4 or all IPv6, because each member sends to all of them");
    for (size_t j = 0; j < i; ++j) {
      if (address.ip == options.ports[j].address.ip && address.scope == options.ports[j].address.scope)
        return invalid(address.to_string() + " is given as a port twice: give each address once");
    }
  }
  if (const size_t cores = cores_of(options), usable = usable_processors().size();
      options.pin && cores > usable) {
    return invalid("cannot pin " + std::to_string(cores) + " data-path threads: this process may use " +
                   std::to_string(usable) + " processor core" + (usable == 1 ? "" : "s") +
                   "; give fewer cores, or do not pin");
  }
  if (options.first_udp_port != 0 && options.first_udp_port + stripes - 1 > UINT16_MAX)
    return invalid("there are fewer than " + std::to_string(stripes) + " UDP ports from " +
                   std::to_string(options.first_udp_port) +
                   " on: choose a lower first port, or 0 for free ones");
  return {};
}

Result<std::unique_ptr<Endpoint>> open_endpoint(const UserDataplaneOptions& options, size_t index,
                                                int epoll) {
  const size_t port = options.stripes[index].port;
  UdpIoOptions io;
  io.bind = options.ports[port].address;
  io.bind.port = static_cast<uint16_t>(options.first_udp_port == 0 ? 0 : options.first_udp_port + index);
  io.answer_from_address_asked = true;
  io.max_packet = NETSUM_HEADER_BYTES + options.payload_bytes;
  io.epoll = epoll;
  if (options.multicast_groups) io.multicast_ttl = options.multicast_ttl;
  if (options.queue_for_each_job) {
    JobQueues queues = queues_for_jobs(static_cast<uint32_t>(options.max_jobs));
    io.queues = queues.count;
    io.queue_selector = std::move(queues.selector);
  }
  auto socket = open_udp(io);
  if (!socket.ok()) return socket.status();
  InProcessHub* hub = nullptr;
  std::unique_ptr<PacketIo> packets = std::move(socket).value();
  if (options.members_in_process) {
    auto with_members = std::make_unique<InProcessHub>(std::move(packets));
    hub = with_members.get();
    packets = std::move(with_members);
  }
  InjectedFaults faults = options.inject;
  faults.seed += index;
  // Bits flip in slots, not in what has been received.
  auto faulty = inject_faults(std::move(packets), {.loss = faults.loss, .seed = faults.seed});
  if (!faulty.ok()) return faulty.status();
  const AggregatorCore::Limits limits{.max_jobs = options.max_jobs,
                                      .slots = options.slots_per_stripe,
                                      .payload_bytes = options.payload_bytes,
                                      .job_packets_per_s = options.quota.packets_per_s,
                                      .flipped_bits = faults.flipped_bits,
                                      .seed = faults.seed};
  const auto stripes = std::count_if(options.stripes.begin(), options.stripes.end(),
                                     [&](const UdpStripe& stripe) { return stripe.port == port; });
  const double bytes_per_s = options.ports[port].rate_bps / 8 / static_cast<double>(stripes);
  return std::make_unique<Endpoint>(port, static_cast<uint64_t>(bytes_per_s), std::move(faulty).value(), hub,
                                    limits);
}

}  // namespace

Result<std::unique_ptr<Dataplane>> start_user_dataplane(const UserDataplaneOptions& options) {
  if (Status status = check(options); !status.ok()) return status;
  std::vector<std::unique_ptr<CoreThread>> threads;
  std::vector<UserDataplane::ServedEndpoint> endpoints;
  for (size_t i = 0; i < options.stripes.size(); ++i) {
    const auto [port, core] = options.stripes[i];
    NETSUM_ASSERT(port < options.ports.size() && core < options.stripes.size());
    while (threads.size() <= core) {
      auto thread = CoreThread::open(options.spin);
      if (!thread.ok()) return thread.status();
      threads.push_back(std::move(thread).value());
    }
    auto endpoint = open_endpoint(options, i, threads[core]->epoll());
    if (!endpoint.ok()) return endpoint.status();
    endpoints.push_back({threads[core].get(), threads[core]->add(std::move(endpoint).value())});
  }
  if (options.drop_privileges) {
    if (const Status status = options.drop_privileges(); !status.ok()) return status;
  }
  auto dataplane = std::make_unique<UserDataplane>(options, std::move(threads), std::move(endpoints));
  if (Status status = dataplane->start(); !status.ok()) return status;
  if (options.pin) {
    if (const Status status = dataplane->pin(usable_processors()); !status.ok()) return status;
  }
  return std::unique_ptr<Dataplane>(std::move(dataplane));
}

}  // namespace netsum
