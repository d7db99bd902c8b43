#include "emulate/scenario.h"

#include <cstdio>

namespace netsum::emulate {

Role role_of(const OperationPlan& plan, int rank) {
  Role role = make_role(plan.collective, plan.root, rank);
  if ((plan.contributors & plan.receivers) == UINT64_MAX) return role;
  role.collective = Collective::kReduce;
  if ((plan.contributors >> rank & 1) == 0) role.contributors = Ranks::none();
  if ((plan.receivers >> rank & 1) == 0) role.receivers = Ranks::none();
  return role;
}

Scenario quiet_scenario(int ranks, DataType type, size_t count, int operations) {
  Scenario scenario;
  scenario.seed = 1;
  LinkOptions link;
  link.delay_us = 25;
  scenario.worker_up = scenario.worker_down = scenario.aggregator_up = scenario.aggregator_down = link;
  JobPlan job;
  job.key = {0x1234567890ABCDEF, 0xFEDCBA0987654321};
  job.ranks = ranks;
  OperationPlan operation;
  operation.type = type;
  operation.tensors.push_back({count, false});
  operation.submit_at_us.assign(static_cast<size_t>(ranks), 0);
  job.operations.assign(static_cast<size_t>(operations), operation);
  scenario.jobs.push_back(job);
  return scenario;
}

namespace {

std::string describe(const FaultEvent& event) {
  std::string text;
  switch (event.kind) {
    case FaultEvent::Kind::kPartition:
      text = !event.inbound ? "partition (outbound)" : !event.outbound ? "partition (inbound)" : "partition";
      break;
    case FaultEvent::Kind::kSlowLink:
      text = "slow link";
      break;
    case FaultEvent::Kind::kPause:
      text = "pause";
      break;
    case FaultEvent::Kind::kCrash:
      text = "crash";
      break;
  }
  text += event.rank == kNoRank
              ? " of aggregator " + std::to_string(event.aggregator)
              : " of job " + std::to_string(event.job) + " rank " + std::to_string(event.rank);
  text += " at event " + std::to_string(event.at_event);
  const bool crash = event.kind == FaultEvent::Kind::kCrash;
  if (!crash) text += " for " + std::to_string(event.duration_us) + " us";
  if (crash && event.rank == kNoRank && event.duration_us != kNever) {
    text += ", back after " + std::to_string(event.duration_us) + " us";
  }
  if (crash && event.reported_after_us != kNever) {
    text += ", told after " + std::to_string(event.reported_after_us) + " us";
  }
  return text;
}

}  // namespace

std::string describe(const Scenario& scenario) {
  char text[256];
  const LinkOptions& up = scenario.worker_up;
  std::snprintf(
      text, sizeof text,
      "payload %u, %d stripe(s), delay %lld + %lld us, loss %g/%g, duplicates %g, damage %g/%g, late %g",
      scenario.payload_bytes, scenario.aggregators, static_cast<long long>(up.delay_us),
      static_cast<long long>(up.jitter_us), up.loss, scenario.worker_down.loss, up.duplicate, up.corrupt,
      up.truncate, up.late);
  std::string result = text;
  if (scenario.shards > 0) result += ", the last " + std::to_string(scenario.shards) + " embedded in hosts";
  for (size_t i = 0; i < scenario.stripe_weights.size(); ++i) {
    result += (i == 0 ? ", weights " : ":") + std::to_string(scenario.stripe_weights[i]);
  }
  if (scenario.balance_period > 0)
    result += ", corrected every " + std::to_string(scenario.balance_period) + " chunks";
  if (scenario.lies.probability > 0)
    result += ", lies about " + std::to_string(scenario.lies.probability) + " of the sums";
  if (scenario.lies.upwards > 0)
    result += ", racks lie to their parents about " + std::to_string(scenario.lies.upwards) + " of theirs";
  if (scenario.lies.flipped_in_slots > 0 || scenario.lies.flipped_in_ranks > 0)
    result += ", bits flip in " + std::to_string(scenario.lies.flipped_in_slots) +
              " of the slots' sums and " + std::to_string(scenario.lies.flipped_in_ranks) +
              " of the results that ranks have received";
  if (scenario.racks > 0) result += ", " + std::to_string(scenario.racks) + " racks below each";
  if (scenario.switches) result += ", P4 switches";
  if (scenario.rack_switches) result += ", racks of P4 switches";
  for (const JobPlan& job : scenario.jobs) {
    size_t elements = 0;
    for (const OperationPlan& operation : job.operations) {
      for (const TensorPlan& tensor : operation.tensors) elements += tensor.count;
    }
    std::snprintf(
        text, sizeof text,
        "; job %u epoch %u: %d rank(s), lanes of %d bits, slots %u + %u, %zu operation(s), %zu elements",
        job.job, job.epoch, job.ranks, job.lane_bits, job.data_slots, job.scale_slots, job.operations.size(),
        elements);
    result += text;
    if (job.verifies_sums) result += ", verified";
    if (job.tag == NETSUM_TAG_COOKIE) result += ", packets without tags";
    if (job.sums_values) result += ", values";
    if (job.adds_floats) result += ", floats";
    if (!job.takes_empty_packets) result += ", contributions always with lanes";
    if (job.predicts_scales != 0) result += ", predicted scales";
    if (job.phase_period_us > 0) result += ", phases of " + std::to_string(job.phase_period_us) + " us";
    if (!job.takes_no_result) result += ", results always with lanes";
    for (const OperationPlan& operation : job.operations)
      result += std::string(", ") + collective_name(role_of(operation, 0).collective);
  }
  for (const FaultEvent& event : scenario.events) result += "; " + describe(event);
  return result;
}

}  // namespace netsum::emulate
