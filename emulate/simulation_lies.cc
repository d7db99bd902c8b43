// Lying aggregators, and what the ranks do with their results.
#include <algorithm>
#include <vector>

#include "emulate/simulation.h"
#include "src/verify/verified_sums.h"
#include "wire/codec.h"

namespace netsum::emulate {

uint32_t Simulation::lane_room(const JobPlan& plan) const {
  if (!plan.verifies_sums) return scenario_.payload_bytes;
  return verify::room_for_lanes(scenario_.payload_bytes, plan.ranks);
}

void Simulation::send_result(const AggregatorNode& node, const OutPacket& packet, netsum_fields fields) {
  const int index = index_of(node);
  const auto round = Liar::round_of(index, fields);
  const uint8_t* payload = packet.data + NETSUM_HEADER_BYTES;
  // Those of racks repeat what the stripe's own has summed.
  const bool topmost = index < scenario_.aggregators;
  const auto job = std::find_if(scenario_.jobs.begin(), scenario_.jobs.end(), [&](const JobPlan& plan) {
    return plan.job == fields.job && plan.epoch == fields.epoch;
  });
  if (job == scenario_.jobs.end() || !job->verifies_sums) return send(node.address, packet);
  if (topmost || scenario_.racks_of(*job) == 0) judge_.note_truth(round, fields, payload);
  std::vector<uint8_t> frame(packet.data, packet.data + packet.size);
  frame.resize(NETSUM_HEADER_BYTES + scenario_.payload_bytes);
  bool altered = liar_.alter(round, packet.to, &fields, frame.data() + NETSUM_HEADER_BYTES);
  if (alter_) altered |= alter_(&fields, frame.data() + NETSUM_HEADER_BYTES);
  if (!altered) return send(node.address, packet);
  const int stripe = index % scenario_.aggregators;
  const int rack = index / scenario_.aggregators - 1;
  const DataplaneJob installed = dataplane_job(*job, rack);
  const wire::PacketKey key(wire::stripe_key(installed.key, static_cast<size_t>(stripe)),
                            scenario_.payload_bytes, installed.tag);
  const uint32_t size = wire::write_header(fields, key, frame.data());
  note("aggregator " + std::to_string(index) + " lies in " + wire::describe(fields));
  send(node.address, {frame.data(), size, packet.to});
}

void Simulation::judge(size_t job, int rank, const InPacket& packet) {
  WorkerNode& worker = worker_node(job, rank);
  WorkerCore& core = *worker.core;
  const StripeCounters* counters = nullptr;
  for (size_t i = 0; i < core.stripe_count(); ++i)
    if (core.stripe(i).options().address == packet.from) counters = &core.stripe(i).counters();
  const uint64_t taken = counters == nullptr ? 0 : counters->results.get();
  const uint64_t refused = counters == nullptr ? 0 : counters->sums_refused.get();
  core.on_packet(worker.clock.local_us(clock_.now_us()), packet);
  netsum_fields fields;
  if (counters == nullptr || netsum_parse(packet.data, packet.size, &fields) != NETSUM_DROP_NONE) return;
  if (fields.type != NETSUM_TYPE_RESULT) return;
  // Address of the aggregator in the rack, or of the stripe's own.
  int stripe = 0;
  while (aggregator_address(stripe) != packet.from) ++stripe;
  const std::string wrong =
      judge_.check(Liar::round_of(stripe % scenario_.aggregators, fields), rank, scenario_.jobs[job].ranks,
                   fields, packet.data + NETSUM_HEADER_BYTES, counters->results.get() > taken,
                   counters->sums_refused.get() > refused);
  if (!wrong.empty()) violate("job " + std::to_string(job) + ": " + wrong);
}

}  // namespace netsum::emulate
