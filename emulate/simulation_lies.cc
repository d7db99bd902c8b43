// Lying aggregators, memory that flips bits, and what the ranks do with what they get.
#include <algorithm>
#include <vector>

#include "emulate/simulation.h"
#include "src/kernels/packet_check.h"
#include "src/verify/verified_sums.h"
#include "wire/codec.h"

namespace netsum::emulate {
namespace {

// In the place of lanes that are left out.
void put_zeros(netsum_fields* fields, uint8_t* payload) {
  fields->flags = static_cast<uint8_t>(fields->flags & ~NETSUM_FLAG_EMPTY);
  fields->payload_bytes = fields->absent_bytes;
  std::fill_n(payload, fields->payload_bytes, uint8_t{0});
}

}  // namespace

uint32_t Simulation::lane_room(const JobPlan& plan) const {
  if (!plan.verifies_sums) return scenario_.payload_bytes;
  return verify::room_for_lanes(scenario_.payload_bytes, plan.ranks);
}

// What a rank sends is the truth.
void Simulation::observe(size_t job, int rank, const OutPacket& packet) {
  netsum_fields fields;
  if (netsum_parse(packet.data, packet.size, &fields) != NETSUM_DROP_NONE) return;
  if (fields.type != NETSUM_TYPE_CONTRIBUTION) return;
  result_checker_.note_contribution(round_of(job, packet.to, fields), rank, fields,
                                    packet.data + NETSUM_HEADER_BYTES);
}

// The sums of the aggregators of a stripe, that of a rack and the stripe's own, are the same.
FaultyAggregator::Round Simulation::round_of(size_t job, const Address& aggregator,
                                             netsum_fields fields) const {
  int stripe = 0;
  while (aggregator_address(stripe) != aggregator) ++stripe;
  fields.job = scenario_.jobs[job].job;
  fields.epoch = scenario_.jobs[job].epoch;
  return FaultyAggregator::round_of(stripe % scenario_.aggregators, fields);
}

void Simulation::send_sum(const AggregatorNode& node, const OutPacket& packet, netsum_fields fields) {
  const int index = index_of(node);
  const auto job = std::find_if(scenario_.jobs.begin(), scenario_.jobs.end(), [&](const JobPlan& plan) {
    return plan.job == fields.job && plan.epoch == fields.epoch;
  });
  if (job == scenario_.jobs.end() || !job->verifies_sums) return send(node.address, packet);
  std::vector<uint8_t> frame(packet.data, packet.data + packet.size);
  frame.resize(NETSUM_HEADER_BYTES + scenario_.payload_bytes);
  uint8_t* const payload = frame.data() + NETSUM_HEADER_BYTES;
  bool altered =
      faulty_aggregator_.alter(FaultyAggregator::round_of(index, fields), packet.to, &fields, payload);
  // A rack that is a P4 switch would refuse a result without lanes, and ask for it again until the deadline.
  const bool to_switch = scenario_.rack_switches && index < scenario_.aggregators;
  if (altered && to_switch && (fields.flags & NETSUM_FLAG_EMPTY) != 0) put_zeros(&fields, payload);
  const bool upwards = fields.type == NETSUM_TYPE_CONTRIBUTION;
  if (alter_ && !upwards) altered |= alter_(&fields, payload);
  const auto job_index = static_cast<size_t>(job - scenario_.jobs.begin());
  if (!upwards && is_checked(job_index) &&
      !result_checker_.is_right(round_of(job_index, node.address, fields), job->ranks, fields, payload))
    ++report_.lies.false_sent;
  if (!altered) return send(node.address, packet);
  const int stripe = index % scenario_.aggregators;
  const int rack = upwards ? -1 : index / scenario_.aggregators - 1;  // whose key the receiver expects
  const DataplaneJob installed = dataplane_job(*job, rack);
  const wire::PacketKey key(wire::stripe_key(installed.key, static_cast<size_t>(stripe)),
                            scenario_.payload_bytes, installed.tag);
  const uint32_t size = wire::write_header(fields, key, frame.data());
  note("aggregator " + std::to_string(index) + " lies in " + wire::describe(fields));
  send(node.address, {frame.data(), size, packet.to});
}

InPacket Simulation::flip_a_bit(const InPacket& packet, const netsum_fields& fields,
                                const wire::PacketKey& key, std::vector<uint8_t>* memory) {
  ++report_.lies.flipped_in_ranks;
  memory->assign(packet.data, packet.data + packet.size);
  const uint64_t bit = flips_.below(8 * uint64_t{fields.payload_bytes});
  uint8_t& byte = (*memory)[NETSUM_HEADER_BYTES + bit / 8];
  byte = static_cast<uint8_t>(byte ^ 1u << bit % 8);
  wire::write_header(fields, key, memory->data());
  InPacket flipped = packet;
  flipped.data = memory->data();
  return flipped;
}

void Simulation::judge(size_t job, int rank, const InPacket& received) {
  WorkerNode& worker = worker_node(job, rank);
  WorkerCore& core = *worker.core;
  const Stripe* stripe = nullptr;
  for (size_t i = 0; i < core.stripe_count(); ++i)
    if (core.stripe(i).options().address == received.from) stripe = &core.stripe(i);
  netsum_fields fields;
  const bool is_result = stripe != nullptr &&
                         netsum_parse(received.data, received.size, &fields) == NETSUM_DROP_NONE &&
                         fields.type == NETSUM_TYPE_RESULT;
  if (!is_result) return core.on_packet(worker.clock.local_us(clock_.now_us()), received);
  std::vector<uint8_t> memory;
  InPacket packet = received;
  if (flips_.chance(scenario_.lies.flipped_in_ranks) && (fields.flags & NETSUM_FLAG_EMPTY) == 0 &&
      kernels::check_is_right(received.data, fields, stripe->key()))
    packet = flip_a_bit(received, fields, stripe->key(), &memory);
  const StripeCounters& counters = stripe->counters();
  const uint64_t taken = counters.results.get(), refused = counters.sums_refused.get();
  const bool waited = core.status().ok() && fields.job == stripe->options().job &&
                      fields.epoch == stripe->options().epoch && stripe->slots().waits_for(fields);
  const bool of_weights = core.signature_of_update() == fields.signature;
  core.on_packet(worker.clock.local_us(clock_.now_us()), packet);
  const std::string wrong = result_checker_.check(
      round_of(job, packet.from, fields), rank, scenario_.jobs[job].ranks, fields,
      packet.data + NETSUM_HEADER_BYTES,
      {.waited = waited && core.status().ok() && kernels::check_is_right(packet.data, fields, stripe->key()),
       .taken = counters.results.get() > taken,
       .refused = counters.sums_refused.get() > refused,
       .of_weights = of_weights});
  if (!wrong.empty()) violate("job " + std::to_string(job) + ": " + wrong);
}

}  // namespace netsum::emulate
