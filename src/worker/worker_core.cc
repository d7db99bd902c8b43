#include "src/worker/worker_core.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "netsum/options.h"
#include "src/base/assert.h"
#include "src/kernels/packet_check.h"
#include "wire/codec.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

// "rank 3", "ranks 3, 5", "ranks 0, 8 to 15"
std::string rank_list(const std::set<int>& ranks) {
  std::string text;
  for (auto it = ranks.begin(); it != ranks.end(); ++it) {
    auto last = it;
    while (std::next(last) != ranks.end() && *std::next(last) == *last + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(*it);
    if (*last - *it < 2) continue;
    text += " to " + std::to_string(*last);
    it = last;
  }
  return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

WorkerOptions with_defaults(WorkerOptions options) {
  if (options.summands == 0) options.summands = options.world_size;
  for (int rank = static_cast<int>(options.names.size()); rank < options.world_size; ++rank)
    options.names.push_back(rank);
  if (options.group == nullptr)
    options.group = std::make_shared<CoreGroup>(std::vector<size_t>(options.stripes.size(), 0));
  for (StripeOptions& stripe : options.stripes)
    if (stripe.embedded_in >= options.world_size) stripe.embedded_in = kNoRank;
  // What all stripes can.
  options.encoding.floats = FloatSums::kAsTheyAre;
  for (const StripeOptions& stripe : options.stripes)
    options.encoding.floats =
        std::min(options.encoding.floats, stripe.sum_key.has_value() ? FloatSums::kNo : stripe.floats);
  return options;
}

std::string seconds(int64_t us) {
  const int64_t tenths = (us + 50'000) / 100'000;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace

Status check_verifiable(const OperationSpec& spec, int lane_bits) {
  if (lane_bits == 8 && is_floating(spec.type))
    return Status(ErrorCode::kUnsupported,
                  std::string(collective_name(spec.role.collective)) +
                      ": 8-bit lanes have marks of what is not finite, which are no sums, and this job "
                      "verifies all results: set lane_bits to 0, 16 or 32, or join without verified sums");
  if (!travels_as_words(spec.op)) return Status();
  return Status(ErrorCode::kUnsupported, std::string(collective_name(spec.role.collective)) + ": " +
                                             std::string(reduce_op_name(spec.op)) +
                                             " is no sum, and this job verifies all results: use sum or "
                                             "avg, or join without verified sums");
}

Status check_words(const OperationSpec& spec, const std::string& lacks_words) {
  if (lacks_words.empty() || !travels_as_words(spec.op)) return Status();
  return Status(ErrorCode::kUnsupported, std::string(collective_name(spec.role.collective)) + ": " +
                                             lacks_words + " cannot combine lanes by " +
                                             std::string(reduce_op_name(spec.op)) +
                                             ": update it, or use sum or avg");
}

WorkerCore::WorkerCore(const WorkerOptions& options)
    : options_(with_defaults(options)), group_(*options_.group) {
  NETSUM_ASSERT(!options.stripes.empty() && options.stripes.size() == group_.stripes());
  NETSUM_ASSERT(options.world_size >= 1 && options.world_size <= kMaxRanks);
  NETSUM_ASSERT(options.rank >= 0 && options.rank < options.world_size);
  NETSUM_ASSERT(options.stripe_weights.empty() || options.stripe_weights.size() == options.stripes.size());
  chunk_map_ = options.stripe_weights.empty() ? std::make_shared<ChunkMap>(options.stripes.size())
                                              : std::make_shared<ChunkMap>(options.stripe_weights);
  uint32_t payload_bytes = 0;
  for (size_t i = 0; i < options.stripes.size(); ++i) {
    StripeOptions stripe = options.stripes[i];
    stripe.rank = options.rank;
    stripe.world_size = options.world_size;
    stripe.member = stripe.member_of(options.rank);
    stripe.index = static_cast<uint32_t>(i);
    stripe.chunk_map = chunk_map_;
    stripe.names = options_.names;
    stripe.summands = options_.summands;
    if (stripe.sum_key.has_value())
      stripe.sums_values = stripe.sums_partial_floats = stripe.takes_empty_packets = stripe.takes_no_result =
          stripe.predicts_scales = false;
    // Chunks have the same size on all stripes.
    NETSUM_ASSERT(payload_bytes == 0 || payload_bytes == stripe.payload_bytes);
    payload_bytes = stripe.payload_bytes;
    if (group_.core_of(i) == options.core) stripes_.push_back(std::make_unique<Stripe>(stripe));
  }
  NETSUM_ASSERT(!stripes_.empty());
  const std::vector<uint32_t>& weights = options.stripe_weights;
  if (options.balance_period > 0 && weights.size() > 1 &&
      std::count(weights.begin(), weights.end(), 0u) == 0) {
    bool trees = false;
    for (const StripeOptions& stripe : options_.stripes)
      for (int rank = 0; rank < options_.world_size; ++rank) trees |= stripe.member_of(rank) != rank;
    balancer_.emplace(weights, trees);
    losses_.emplace(weights.size());
    looked_at_us_.resize(weights.size());
    const bool shards = std::any_of(options_.stripes.begin(), options_.stripes.end(),
                                    [](const auto& stripe) { return stripe.embedded_in != kNoRank; });
    const auto ranks = static_cast<size_t>(options.world_size);
    if (shards && ranks >= LinkBalancer::kFewestRanks) links_.emplace(ranks);
    begin_period();
  }
  note_shares();
  frame_stride_ = NETSUM_HEADER_BYTES + payload_bytes;  // full packets are adjacent: one piece for the kernel
  frames_.resize(kBurst * frame_stride_);
  if (options.pace_bytes_per_s > 0) {
    const uint64_t cores = group_.cores();
    const auto packet = frame_stride_ + static_cast<uint64_t>(wire::overhead_bytes(6));
    pacer_.emplace(std::max<uint64_t>(1, options.pace_bytes_per_s / cores),
                   packet * std::max<uint64_t>(1, kPaceBurst / 2 / cores));
  }
  if (options.phase_period_us > 0) {
    bool has_turns = false;
    for (size_t i = 0; i < options.stripes.size(); ++i)
      has_turns |= options_.stripes[i].embedded_in == kNoRank && (weights.empty() || weights[i] > 0);
    gate_.emplace(options.phase_period_us, options.phase_offset_us, has_turns);
  }
  outbox_.reserve(kBurst);
}

bool WorkerCore::connected() const {
  return std::all_of(stripes_.begin(), stripes_.end(),
                     [](const auto& stripe) { return stripe->connection().welcomed(); });
}

std::string WorkerCore::not_connected_reason() const {
  std::string text;
  for (const auto& stripe : stripes_) {
    if (stripe->connection().welcomed()) continue;
    if (!text.empty()) text += "; ";
    text += "the data port at " + stripe->options().address.to_string();
    if (stripe->connection().only_small_packets_pass()) {
      text += " answers small packets but not those of " +
              std::to_string(NETSUM_HEADER_BYTES + stripe->options().payload_bytes) +
              " bytes: the path's MTU is smaller than configured, lower it (NETSUM_MTU, --mtu)";
    } else if (stripe->connection().multicast_is_silent()) {
      text +=
          " answers, but what it sends to multicast group " + stripe->options().multicast_group.to_string() +
          " does not arrive: is multicast filtered on the way (IGMP snooping without a querier, a switch, "
          "this host's firewall)? Without --multicast the aggregator sends a copy to each rank";
    } else {
      text += " does not answer UDP packets: is a firewall in between?";
    }
  }
  return text;
}

void WorkerCore::submit(uint64_t id, OperationSpec spec) {
  if (!status_.ok()) {
    completions_.push_back({id, status_, next_number_});
  } else if (const Status unverifiable = check_verifiable(spec, options_.encoding.lane_bits);
             verifies_sums() && !unverifiable.ok()) {
    completions_.push_back({id, unverifiable, next_number_});
  } else if (const Status unsupported = check_words(spec, options_.lacks_words); !unsupported.ok()) {
    completions_.push_back({id, unsupported, next_number_});
  } else if (const bool first = gate_.has_value() && idle(); first || !waiting_.empty() || !may_start(spec)) {
    at_gate_ |= first;
    const int64_t deadline_us = spec.deadline_us;
    waiting_.add({id, std::move(spec)}, deadline_us);
  } else {
    start(id, std::move(spec));
  }
}

bool WorkerCore::may_start(const OperationSpec& spec) const {
  if (updates_weights() && next_number_ == pending_update_->effective) return false;
  if (!balancer_.has_value()) return true;
  const size_t stream = stripes_.front()->stream_of(spec.type == DataType::kByte);
  const Progress now = progress(stream);
  // Other cores may have started operations that this one has not, and be further.
  return now.lowest_chunk == UINT64_MAX ||
         next_chunk_[stream] < now.lowest_chunk + kAhead * now.window_packets;
}

void WorkerCore::for_shared_stripes(const std::function<void(Stripe&)>& act) {
  const std::vector<uint32_t>& weights = options_.stripe_weights;
  for (auto& stripe : stripes_) {
    const bool used = weights.empty() || weights[stripe->options().index] > 0;
    if (used && stripe->options().embedded_in == kNoRank) act(*stripe);
  }
}

bool WorkerCore::waits_at_gate(int64_t now_us) {
  if (!at_gate_ || waiting_.empty()) return false;
  const int64_t deadline_us = waiting_.next_deadline_us();
  if (phase_us_ == INT64_MAX) {
    phase_us_ = gate_->ready_us(now_us, idle_since_us_ == 0 ? now_us : idle_since_us_);
    if (phase_us_ - now_us > deadline_us / 2 - now_us / 2) phase_us_ = now_us;
  }
  if (!asks_for_turn_ && now_us < std::min(phase_us_, deadline_us)) return true;
  if (waits_for_turn(now_us, deadline_us)) return true;
  at_gate_ = false;
  phase_us_ = INT64_MAX;
  return false;
}

bool WorkerCore::waits_for_turn(int64_t now_us, int64_t deadline_us) {
  if (!asks_for_turn_) {
    phase_us_ = std::min(gate_->turn_us(now_us), now_us + std::max<int64_t>(0, deadline_us / 2 - now_us / 2));
    asks_for_turn_ = phase_us_ > now_us;
    if (asks_for_turn_) for_shared_stripes([](Stripe& stripe) { stripe.ask_for_turn(); });
  }
  bool all = true;
  for_shared_stripes([&](const Stripe& stripe) { all &= !stripe.connection().asks_for_turn(); });
  if (asks_for_turn_ && !all && now_us < phase_us_) return true;
  for_shared_stripes([](Stripe& stripe) { stripe.give_up_turn(); });
  asks_for_turn_ = false;
  return false;
}

void WorkerCore::start_waiting(int64_t now_us) {
  if (waits_at_gate(now_us)) return;
  while (!waiting_.empty() && may_start(waiting_.front().spec)) {
    Submission next = waiting_.end_front();
    start(next.id, std::move(next.spec));
  }
}

void WorkerCore::start(uint64_t id, OperationSpec spec) {
  if (pending_update_.has_value() && next_number_ == pending_update_->effective) take_update();
  if (spec.role.chunk_map == nullptr) spec.role.chunk_map = chunk_map_;
  EncodingOptions encoding = options_.encoding;
  // An aggregator adds one value of each of its members.
  if (options_.summands > options_.world_size && !spec.joint.summed) encoding.floats = FloatSums::kNo;
  enqueue(id, std::make_unique<Operation>(next_number_++, std::move(spec), options_.summands, encoding));
  ++period_.operations;
  const bool tries = (links_.has_value() && links_->tries()) || (losses_.has_value() && losses_->tries()) ||
                     (balancer_.has_value() && balancer_->tries());
  const uint64_t operations = tries ? kShortPeriodOperations : kPeriodOperations;
  // The operation that begins is not measured: it may be the only long one.
  const uint64_t chunks = links_.has_value() ? period_.chunks_before : period_.chunks;
  const bool long_enough =
      period_.operations >= operations &&
      chunks >= options_.balance_period * group_.stripes() * operations / kPeriodOperations;
  if (balancer_.has_value() && !pending_update_.has_value() && long_enough) begin_update();
}

void WorkerCore::enqueue(uint64_t id, std::unique_ptr<Operation> operation) {
  // Ranks that began with the same stripe would all send to one place at once, while the links of the others are idle.
  if (operations_.empty()) next_stripe_ = static_cast<size_t>(options_.rank) % stripes_.size();
  NETSUM_ASSERT(operation->role().chunk_map->stripes() == group_.stripes());
  const size_t chunks = operation->chunks(stripes_.front()->lane_room());
  uint64_t& next_chunk = next_chunk_[stripes_.front()->stream_of(operation->moves_bytes())];
  operation->first_chunk = next_chunk;
  next_chunk += chunks;
  period_.chunks_before = period_.chunks;
  period_.chunks += chunks;
  if (operation->has_watermarks()) {
    const size_t per_chunk = operation->encoding().chunk_elements(stripes_.front()->lane_room());
    operation->delivery = std::make_unique<Delivery>(
        operation->count(), per_chunk, operation->watermarks().delivered() / size_of(operation->type()));
    watermarked_.push_back(operation.get());
  }
  for (auto& stripe : stripes_) stripe->enqueue(operation.get());
  operation->place = operations_.next_place();
  Operation* const begun = operation.get();
  operations_.add({id, std::move(operation)}, begun->deadline_us());
  if (begun->chunks_left == 0) complete(begun);  // it has no elements, or none for this core's stripes
}

void WorkerCore::begin_update() {
  pending_update_ = PendingUpdate{.effective = next_number_ + kLead,
                                  .update = group_.weight_update(updates_begun_++, measured()),
                                  .chunks = period_.chunks_before};
  std::vector<int32_t>& measured = pending_update_->update->measured;
  OperationSpec spec;
  spec.type = DataType::kInt32;
  spec.tensors = {{measured.data(), measured.data(), measured.size()}};
  spec.role.collective = Collective::kShares;
  spec.role.chunk_map = chunk_map_;
  spec.deadline_us = INT64_MAX;  // operations that wait for it have theirs
  auto operation =
      std::make_unique<Operation>(next_number_, std::move(spec), options_.summands, options_.encoding);
  pending_update_->signature = operation->signature();
  enqueue(kNoId, std::move(operation));
}

void WorkerCore::take_update() {
  NETSUM_ASSERT(pending_update_->update->answered());
  const std::span<const int32_t> measured = pending_update_->update->measured;
  const auto of_stripes = measured.first(group_.stripes() + 1);
  const auto lost = measured.subspan(of_stripes.size(), group_.stripes());
  const auto of_ranks = measured.subspan(of_stripes.size() + lost.size());
  const auto ns = of_ranks.first(static_cast<size_t>(options_.world_size));
  // One change at a time, or none is judged by its own effect.
  const std::vector<int32_t> held = held_of_shares(of_stripes);
  if (take_losses(held, lost, ns) ||
      (!losses_->tries() &&
       (take_links(of_stripes, ns, of_ranks.subspan(ns.size())) || balancer_->take(held)))) {
    chunk_map_ = std::make_shared<ChunkMap>(weights());
    share_changes_.add();
    note_shares();
  }
  pending_update_.reset();
  begin_period();
  for (const auto& stripe : stripes_) group_.held_us(stripe->options().index).set(0);
  group_.active_us(options_.core).set(0);
  group_.busy_us(options_.core).set(0);
}

void WorkerCore::begin_period() {
  period_ = {};
  period_.sent = chunks_sent();
  for (size_t i = 0; i < group_.stripes(); ++i) period_.losses.push_back(group_.losses(i).get());
  if (!links_.has_value() || options_.last == nullptr) return;
  for (const Counter& sums : options_.last->sums) period_.last.push_back(sums.get());
}

// By stripe: what was lost. By rank: the time for a chunk, of which each rank knows its own; if there are shards, in how many sums
// of this rank's shard it was the last.
std::vector<int32_t> WorkerCore::measured() const {
  constexpr int64_t kMost = 1'000'000;  // of each of at most kMaxRanks
  const auto ranks = static_cast<size_t>(options_.world_size);
  std::vector<int32_t> measured;
  for (size_t i = 0; i < group_.stripes(); ++i)
    measured.push_back(static_cast<int32_t>(std::clamp<int64_t>(
        static_cast<int64_t>(group_.losses(i).get()) - static_cast<int64_t>(period_.losses[i]), 0, kMost)));
  uint64_t busy_us = 0;
  for (size_t core = 0; core < group_.cores(); ++core)
    busy_us = std::max(busy_us, group_.busy_us(core).get());
  // Of chunks that were sent: operations start ahead of them, the first ones at once.
  const uint64_t sent = chunks_sent() - period_.sent;
  const uint64_t ns = sent == 0 ? 0 : busy_us * 1000 / sent;
  measured.resize(measured.size() + ranks);
  measured[group_.stripes() + static_cast<size_t>(options_.rank)] =
      static_cast<int32_t>(std::min<uint64_t>(ns, 1'000'000'000));
  if (!links_.has_value()) return measured;
  const size_t of_last = measured.size();
  measured.resize(of_last + ranks);
  const StripeOptions& any = stripes_.front()->options();
  for (size_t rank = 0; rank < ranks && !period_.last.empty(); ++rank) {
    const uint16_t member = any.member_of(static_cast<int>(rank));
    if (member >= period_.last.size()) continue;  // it sends to another aggregator
    const uint64_t sums = options_.last->sums[member].get() - period_.last[member];
    measured[of_last + rank] = static_cast<int32_t>(std::min<uint64_t>(sums, kMost));
  }
  return measured;
}

// Without those of stripes whose share is elsewhere.
std::vector<int32_t> WorkerCore::held_of_shares(std::span<const int32_t> of_stripes) const {
  std::vector<int32_t> held(of_stripes.begin(), of_stripes.end());
  for (size_t i = 0; i < group_.stripes(); ++i)
    if (losses_->part(i) < LossBalancer::kWhole) held[i] = ShareBalancer::kNotMeasured;
  return held;
}

bool WorkerCore::take_losses(std::span<const int32_t> held, std::span<const int32_t> lost,
                             std::span<const int32_t> ns) {
  const size_t length = chunk_map_->period().size();
  // A stripe with too large a share, which holds back others, loses what its full queue has no room for.
  const std::vector<bool> full = balancer_->holding_back(held);
  std::vector<int64_t> losses(lost.size()), sent(lost.size());
  for (size_t i = 0; i < group_.stripes(); ++i) {
    if (full[i]) continue;
    const uint64_t chunks = pending_update_->chunks * chunk_map_->count(0, length, i) / length;
    losses[i] = lost[i];
    sent[i] = static_cast<int64_t>(chunks) * options_.world_size;
  }
  const bool may = !links_.has_value() || !links_->tries();
  return losses_->take(losses, sent, *std::min_element(ns.begin(), ns.end()), may);
}

bool WorkerCore::take_links(std::span<const int32_t> of_stripes, std::span<const int32_t> ns,
                            std::span<const int32_t> last) {
  if (!links_.has_value()) return false;
  const auto ranks = static_cast<size_t>(options_.world_size);
  std::vector<int32_t> own_share(ranks), held(ranks, ShareBalancer::kThousand);
  const size_t length = chunk_map_->period().size();
  for (size_t i = 0; i < options_.stripes.size(); ++i) {
    if (options_.stripes[i].embedded_in == kNoRank) continue;
    const auto rank = static_cast<size_t>(options_.stripes[i].embedded_in);
    own_share[rank] = static_cast<int32_t>(chunk_map_->count(0, length, i) * 1000 / length);
    // Nothing passes a link between a rank and its own shard, so it holds that stripe back almost always.
    const int32_t others = of_stripes.back() - 1;
    if (others > 0) held[rank] = std::max(0, of_stripes[i] - ShareBalancer::kThousand) / others;
  }
  return links_->take(last, own_share, ns, held);
}

std::vector<uint32_t> WorkerCore::weights() const {
  std::vector<uint32_t> weights(balancer_->weights().begin(), balancer_->weights().end());
  for (size_t i = 0; i < weights.size(); ++i)
    weights[i] = std::max(1u, weights[i] * losses_->part(i) / LossBalancer::kWhole);
  if (!links_.has_value()) return weights;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int rank = options_.stripes[i].embedded_in;
    if (rank == kNoRank) continue;
    const uint32_t part = links_->part(static_cast<size_t>(rank));
    weights[i] = std::max(1u, weights[i] * part / LinkBalancer::kWhole);
  }
  return weights;
}

void WorkerCore::note_shares() {
  const size_t length = chunk_map_->period().size();
  for (const auto& stripe : stripes_)
    stripe->counters().share.set(chunk_map_->count(0, length, stripe->options().index) * kWholeShare /
                                 length);
}

// An operation ends with its last stripe, so a stripe that runs ahead only takes bandwidth from those behind it, on the
// links that they share. Half of the packets that may be in flight is enough room for stripes whose results come in bursts.
Stripe::Limits WorkerCore::send_limits() const {
  Stripe::Limits limits = Stripe::kNoLimits;
  if (group_.stripes() == 1) return limits;
  for (size_t stream = 0; stream < limits.size(); ++stream) {
    const Progress now = progress(stream);
    limits[stream] =
        now.lowest_chunk == UINT64_MAX ? now.lowest_chunk : now.lowest_chunk + now.window_packets / 2;
  }
  return limits;
}

Progress WorkerCore::progress(size_t stream) const {
  group_.note(options_.core, stream, own_progress(stream));
  return group_.progress(stream);
}

Progress WorkerCore::own_progress(size_t stream) const {
  Progress now;
  for (const auto& stripe : stripes_) {
    now.lowest_chunk = std::min(now.lowest_chunk, stripe->next_chunk(stream));
    now.window_packets += stripe->slots().window_packets(stream);
  }
  return now;
}

uint64_t WorkerCore::chunks_sent() const {
  uint64_t sent = 0;
  for (size_t stream = 0; stream < next_chunk_.size(); ++stream)
    sent += std::min(next_chunk_[stream], progress(stream).lowest_chunk);
  return sent;
}

uint64_t WorkerCore::finished_everywhere() const {
  uint64_t first = next_number_;
  for (const auto& stripe : stripes_) first = std::min(first, stripe->first_unproven());
  return first;
}

std::span<const OutPacket> WorkerCore::collect(int64_t now_us) {
  outbox_.clear();
  if (!status_.ok()) return {};
  start_waiting(now_us);
  if (!idle()) idle_since_us_ = 0;
  if (idle() && idle_since_us_ == 0) idle_since_us_ = now_us;
  if (!watermarked_.empty() && fail_by_caller()) return {};
  const Stripe::Limits limits = send_limits();
  paced_us_ = INT64_MAX;
  if (balancer_.has_value()) {
    if (active_since_us_ != 0)
      group_.active_us(options_.core).add(static_cast<uint64_t>(now_us - active_since_us_));
    active_since_us_ = has_data_to_send() ? now_us : 0;
    if (busy_since_us_ != 0)
      group_.busy_us(options_.core).add(static_cast<uint64_t>(now_us - busy_since_us_));
    busy_since_us_ = operations_.empty() ? 0 : now_us;
  }
  for (size_t tried = 0; tried < stripes_.size() && outbox_.size() < kBurst; ++tried) {
    const size_t index = next_stripe_;
    Stripe& stripe = *stripes_[index];
    next_stripe_ = (next_stripe_ + 1) % stripes_.size();
    collect_from(&stripe, now_us, limits);
    if (balancer_.has_value()) measure(stripe, now_us);
    complete_finished(&stripe);  // of zeros alone, behind what was sent last
  }
  recheck_us_ = outbox_.empty() && waits_for_other_cores() ? now_us + kRecheckUs : INT64_MAX;
  return outbox_;
}

void WorkerCore::collect_from(Stripe* stripe, int64_t now_us, const Stripe::Limits& limits) {
  const Address& address = stripe->options().address;
  const bool paced = pacer_.has_value() && !stripe->options().local;
  const auto overhead = static_cast<uint64_t>(wire::overhead_bytes(address.family));
  while (outbox_.size() < kBurst) {
    if (paced) {
      // The next packet's size is not known until it is written.
      const int64_t ready_us = pacer_->ready_us(now_us, frame_stride_ + overhead);
      if (ready_us > now_us) {
        paced_us_ = std::min(paced_us_, ready_us);
        return;
      }
    }
    uint8_t* frame = &frames_[outbox_.size() * frame_stride_];
    const uint32_t size = stripe->next_packet(now_us, frame, limits);
    if (size == 0) return;
    if (paced) pacer_->sent(now_us, size + overhead);
    outbox_.push_back({frame, size, address});
  }
}

bool WorkerCore::has_data_to_send() const {
  return own_progress(SlotLayout::kSums).lowest_chunk != UINT64_MAX ||
         own_progress(SlotLayout::kMoves).lowest_chunk != UINT64_MAX;
}

// Or perhaps for the slowest of its own stripes.
bool WorkerCore::waits_for_other_cores() const {
  if (group_.cores() == 1) return false;
  return !waiting_.empty() || std::any_of(stripes_.begin(), stripes_.end(),
                                          [](const auto& stripe) { return stripe->held_back(); });
}

void WorkerCore::measure(const Stripe& stripe, int64_t now_us) {
  const size_t index = stripe.options().index;
  int64_t& looked_at_us = looked_at_us_[index];
  if (looked_at_us != 0) group_.held_us(index).add(static_cast<uint64_t>(now_us - looked_at_us));
  looked_at_us = stripe.held_back() ? now_us : 0;
  group_.losses(index).set(stripe.counters().losses.get());
}

Stripe* WorkerCore::stripe_from(const Address& from) {
  if (stripes_[last_from_]->options().address == from) return stripes_[last_from_].get();
  for (size_t i = 0; i < stripes_.size(); ++i) {
    if (stripes_[i]->options().address == from) {
      last_from_ = i;
      return stripes_[i].get();
    }
  }
  return nullptr;
}

void WorkerCore::on_packet(int64_t now_us, const InPacket& packet) {
  if (!status_.ok()) return;
  Stripe* stripe = stripe_from(packet.from);
  if (stripe == nullptr) return;  // from an unknown address; PacketIo has counted it
  stripe->counters().packets_received.add();
  stripe->counters().bytes_received.add(packet.size);
  const StripeOptions& options = stripe->options();
  const uint8_t* payload = packet.data + NETSUM_HEADER_BYTES;
  netsum_fields fields;
  const int reason = netsum_parse(packet.data, packet.size, &fields);
  if (reason != NETSUM_DROP_NONE) return stripe->counters().drop(reason);
  if (fields.job != options.job) return stripe->counters().drop(NETSUM_DROP_UNKNOWN_JOB);
  if (fields.epoch != options.epoch) return stripe->counters().drop(NETSUM_DROP_STALE_EPOCH);
  if (fields.payload_bytes > options.payload_bytes) return stripe->counters().drop(NETSUM_DROP_BAD_LENGTH);
  if (!packet.in_memory && !kernels::check_is_right(packet.data, fields, stripe->key()))
    return stripe->counters().drop(NETSUM_DROP_BAD_CHECK);
  const Status status = stripe->on_packet(now_us, fields, payload);
  if (!status.ok()) return fail(status);
  if (complete_finished(stripe)) start_waiting(now_us);
}

void WorkerCore::on_tick(int64_t now_us) {
  if (!status_.ok()) return;
  if (const Pending* late = operations_.due(now_us)) return fail(timeout_status(now_us, *late->operation));
  if (const Submission* late = waiting_.due(now_us)) {
    const Operation operation(next_number_, late->spec, options_.summands, options_.encoding);
    return fail(timeout_status(now_us, operation));
  }
  for (auto& stripe : stripes_) {
    stripe->on_tick(now_us);
    if (stripe->connection().multicast_is_lost(now_us))
      return fail(Status(ErrorCode::kUnreachable, not_connected_reason()));
  }
}

int64_t WorkerCore::next_tick_us() const {
  if (!status_.ok()) return INT64_MAX;
  int64_t next = std::min(recheck_us_, phase_us_);
  if (!operations_.empty() || !connected() || asks_for_turn_) {
    next = std::min(next, paced_us_);
    for (const auto& stripe : stripes_) next = std::min(next, stripe->next_tick_us());
  }
  return std::min({next, operations_.next_deadline_us(), waiting_.next_deadline_us()});
}

// Operations may finish out of order, because their chunks are on different stripes, or of different streams.
void WorkerCore::complete(Operation* operation) {
  if (operation->has_watermarks()) end_watermarks(*operation);
  const Pending ended = operations_.end(operation->place);
  if (ended.id != kNoId) {
    completions_.push_back(
        {ended.id, Status(), operation->number(), operation->course, finished_everywhere()});
  } else {
    pending_update_->here = false;
    pending_update_->update->end();
  }
}

bool WorkerCore::complete_finished(Stripe* stripe) {
  bool any = false;
  for (; Operation* const finished = stripe->take_finished(); any = true) complete(finished);
  return any;
}

void WorkerCore::take_completions(std::vector<Completion>* out) {
  std::move(completions_.begin(), completions_.end(), std::back_inserter(*out));
  completions_.clear();
}

void WorkerCore::fail(const Status& status) {
  if (!status_.ok()) return;
  NETSUM_ASSERT(!status.ok());
  status_ = status;
  operations_.for_each([&](const Pending& pending) {
    if (pending.id == kNoId) return;
    completions_.push_back({pending.id, status, pending.operation->number(), pending.operation->course});
  });
  while (!waiting_.empty()) completions_.push_back({waiting_.end_front().id, status, next_number_++});
  // The operations are not destroyed, because stripes still refer to them.
}

bool WorkerCore::fail_by_caller() {
  for (const Operation* const operation : watermarked_) {
    if (!operation->watermarks().failed()) continue;
    fail(operation->watermarks().failure());
    return true;
  }
  return false;
}

void WorkerCore::report_delivered() {
  if (!status_.ok()) return;
  for (const Operation* const operation : watermarked_) {
    note_delivered(*operation);
    operation->watermarks().report_delivered();
  }
}

// What other cores handle they note themselves. What this rank does not receive is delivered; bytes that it moves in place are
// there once they are available.
void WorkerCore::note_delivered(const Operation& operation) const {
  const auto passes = [&](size_t chunk) {
    const size_t stripe = operation.role().chunk_map->stripe_of(operation.number(), chunk);
    if (group_.core_of(stripe) != options_.core) return true;
    const Chunk elements = operation.chunk(chunk, stripes_.front()->lane_room());
    return !operation.writes(elements) && operation.is_available(elements);
  };
  operation.watermarks().note_delivered(options_.core,
                                        operation.delivery->advance(passes) * size_of(operation.type()));
}

void WorkerCore::end_watermarks(const Operation& operation) {
  operation.watermarks().note_delivered(options_.core, operation.count() * size_of(operation.type()));
  std::erase(watermarked_, &operation);
}

// Of the first operation up to number `until` that waits for it: those after it wait for that one.
std::string WorkerCore::missing_input(uint64_t until) const {
  std::string missing;
  for (const Operation* const operation : watermarked_)
    if (missing.empty() && operation->number() <= until) missing = operation->missing_input();
  return missing;
}

Status WorkerCore::timeout_status(int64_t now_us, const Operation& operation) const {
  const std::string what = operation.describe() + " is not finished by its deadline: ";
  if (const std::string missing = missing_input(operation.number()); !missing.empty()) {
    const int self = options_.names[static_cast<size_t>(options_.rank)];
    return Status(ErrorCode::kTimeout, what + missing, self);
  }
  if (!connected()) return Status(ErrorCode::kTimeout, what + not_connected_reason());
  constexpr int64_t kSilenceUs = 1'000'000;  // four probes
  std::set<int> missing;
  std::set<int> elsewhere;  // ranks below other aggregators, if all below this one have contributed
  for (const auto& stripe : stripes_) {
    const Stripe::Waiting waiting = stripe->waiting(now_us);
    if (waiting.operation == nullptr) continue;
    if (waiting.silent_us > kSilenceUs || !waiting.answered) {
      return Status(ErrorCode::kTimeout, what + "the aggregator's data port at " +
                                             stripe->options().address.to_string() +
                                             " has not answered for " + seconds(waiting.silent_us));
    }
    for (int rank = 0; rank < options_.world_size; ++rank) {
      const uint16_t member = stripe->options().member_of(rank);
      if (member == kMemberElsewhere) {
        elsewhere.insert(stripe->options().name_of(rank));
      } else if ((waiting.contributed >> member & 1) == 0) {
        missing.insert(stripe->options().name_of(rank));
      }
    }
  }
  const std::string reasons = " (stopped, unreachable, or not in this operation)";
  if (!missing.empty()) {
    return Status(ErrorCode::kTimeout, what + "waiting for " + rank_list(missing) + reasons,
                  *missing.begin());
  }
  if (!elsewhere.empty()) {
    return Status(ErrorCode::kTimeout, what +
                                           "all ranks of this rack take part; waiting for one or more of " +
                                           rank_list(elsewhere) + ", below other aggregators" + reasons);
  }
  return Status(ErrorCode::kTimeout, what + "all ranks take part, but the network or a rank is too slow");
}

}  // namespace netsum
