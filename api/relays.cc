#include "api/relays.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "api/aggregator_of_rank.h"
#include "api/invalid.h"
#include "src/base/quiet.h"
#include "src/base/text.h"
#include "src/base/timeout.h"
#include "src/job/plan_token.h"
#include "src/plan/relay_plan.h"

namespace netsum {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::string_view kPlan = "plan:";

Result<plan::RelayPlan> read_plan(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(plan::kMostRelayPlanBytes + 1, '\0');
  if (!stream || (!stream.read(text.data(), static_cast<std::streamsize>(text.size())) && stream.bad()))
    return invalid("aggregators: the plan '" + printable(file) + "' cannot be read");
  text.resize(static_cast<size_t>(stream.gcount()));
  return plan::parse_relay_plan(text, file);
}

Status check_plan(const plan::RelayPlan& plan, const std::string& file, const CommunicatorOptions& options) {
  const std::string of = "aggregators: the plan '" + printable(file) + "' is for ";
  if (plan.ranks != options.world_size)
    return invalid(of + std::to_string(plan.ranks) + " ranks, and job '" + options.job + "' has " +
                   std::to_string(options.world_size) +
                   ": set NETSUM_AGGREGATOR to nothing, or to aggregators, before other groups are made");
  if (!options.job.starts_with(plan.job))
    return invalid(of + "job '" + plan.job + "', and this one is '" + options.job + "'");
  if (options.packet_io != PacketIoKind::kUdp)
    return invalid("aggregators: AF_XDP reaches no aggregator in this process: set packet_io to UDP");
  return {};
}

}  // namespace

Result<std::unique_ptr<Relays>> Relays::start(CommunicatorOptions* options) {
  const auto names_plan = [](const std::string& one) { return one.starts_with(kPlan); };
  if (std::none_of(options->aggregators.begin(), options->aggregators.end(), names_plan))
    return std::unique_ptr<Relays>();
  if (options->aggregators.size() != 1)
    return invalid("aggregators: a plan has all aggregators; name no other beside it");
  const std::string file = options->aggregators.front().substr(kPlan.size());
  const Result<plan::RelayPlan> plan = read_plan(file);
  if (!plan.ok()) return plan.status();
  if (Status status = check_plan(*plan, file, *options); !status.ok()) return status;
  options->aggregators.clear();
  options->aggregator_token = with_plan(options->aggregator_token, plan->name());
  auto relays = std::make_unique<Relays>();
  for (const plan::RelayTree& tree : plan->trees) {
    options->aggregators.push_back(tree.aggregators[tree.joins[static_cast<size_t>(options->rank)]].address);
    for (const plan::RelayTree::Aggregator& one : tree.aggregators) {
      if (one.rank != options->rank) continue;
      AggregatorOptions relay;
      relay.listen = one.address;
      relay.mtu = options->mtu;
      relay.spin = options->spin;
      relay.tls = options->tls;
      relay.token = relay.parent_token = options->aggregator_token;
      if (one.above) relay.parent = tree.aggregators[*one.above].address;
      // The plan knows the links. The job's planner is to give each tree what the plan gives it.
      relay.in_switch = true;
      relay.sum_rate_bps = static_cast<double>(tree.rate_bps);
      auto started = start_aggregator_of_rank(relay, options->rank);
      if (!started.ok())
        return Status(started.status().code(),
                      "aggregators: the plan '" + printable(file) + "' has an aggregator at " + one.address +
                          " inside rank " + std::to_string(one.rank) + ": " + started.status().message() +
                          (started.status().code() == ErrorCode::kAddressInUse
                               ? " (a plan is for one communicator at a time)"
                               : ""));
      relays->aggregators_.push_back(std::move(started).value());
    }
  }
  return relays;
}

uint64_t Relays::packets_received() const {
  uint64_t packets = 0;
  for (const auto& aggregator : aggregators_)
    for (const AggregatorCounter& one : aggregator->status().counters)
      if (one.name == "packets_received") packets += one.value;
  return packets;
}

void Relays::linger(Deadline deadline) const {
  const auto sleep = [](milliseconds step) {
    std::this_thread::sleep_for(step);
    return false;
  };
  if (!aggregators_.empty())
    serve_until_quiet(
        kQuiet, [this] { return packets_received(); }, sleep, deadline);
}

void Relays::drain(Deadline deadline) {
  for (const auto& aggregator : aggregators_) {
    const auto drained = [&](milliseconds step) { return aggregator->drain(step); };
    serve_until_quiet(
        kQuietOfAll, [this] { return packets_received(); }, drained, deadline);
  }
}

}  // namespace netsum
