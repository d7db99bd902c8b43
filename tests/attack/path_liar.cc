#include "tests/attack/path_liar.h"

#include "wire/packet.h"
#include "wire/parse.h"

namespace netsum::attack {
namespace {

using conformance::Bytes;
using emulate::FaultyAggregator;
using emulate::Lie;

constexpr auto kKinds = static_cast<size_t>(Lie::kCount);

bool is_sum(const netsum_fields& fields) {
  return fields.format >> 4 == NETSUM_OP_SUM;
}

}  // namespace

PathLiar::PathLiar(const Options& options, const KnownJobs& jobs) : options_(options), jobs_(jobs) {
  for (size_t kind = 0; kind < kKinds; ++kind)
    faulty_.emplace_back(options.seed + kind, emulate::Lies{.probability = options.probability,
                                                            .upwards = options.probability,
                                                            .kind = static_cast<Lie>(kind),
                                                            .times = options.times});
}

FaultyAggregator::Round PathLiar::round_of(const KnownJobs::Job& job, const netsum_fields& fields) {
  // Above and below the aggregator, slots and rounds have the same numbers.
  return {0, job.job.job, job.job.epoch, fields.slot, fields.round};
}

Lie PathLiar::kind_for(const KnownJobs::Job& job) const {
  return options_.kind.value_or(static_cast<Lie>(job.number % kKinds));
}

std::optional<Bytes> PathLiar::operator()(const FramePath::Passing& passing, bool silent) {
  netsum_fields fields;
  const auto size = static_cast<uint32_t>(passing.datagram.size());
  if (netsum_parse(passing.datagram.data(), size, &fields) != NETSUM_DROP_NONE) return std::nullopt;
  const bool contributes = fields.type == NETSUM_TYPE_CONTRIBUTION && passing.to_switch;
  const bool answers = fields.type == NETSUM_TYPE_RESULT && !passing.to_switch;
  if (!contributes && !answers) return std::nullopt;
  const auto job = jobs_.find(contributes ? passing.to : passing.from, fields.job, fields.epoch);
  if (!job) {
    const uint8_t* const payload = passing.datagram.data() + NETSUM_HEADER_BYTES;
    if (contributes)
      early_.push_back({passing.host, passing.to, fields, {payload, payload + fields.payload_bytes}});
    return std::nullopt;
  }
  note_early();
  return contributes ? contribution(passing, *job, fields, silent) : result(passing, *job, fields, silent);
}

void PathLiar::note(const KnownJobs::Job& job, int host, const netsum_fields& fields,
                    const uint8_t* payload) {
  result_checker_.note_contribution(round_of(job, fields), host, fields, payload);
  faulty_[static_cast<size_t>(kind_for(job))].observe(round_of(job, fields), fields, payload);
  if (kind_for(job) != Lie::kOtherJob)
    faulty_[static_cast<size_t>(Lie::kOtherJob)].observe(round_of(job, fields), fields, payload);
}

void PathLiar::note_early() {
  std::erase_if(early_, [&](const Early& early) {
    const auto job = jobs_.find(early.aggregator, early.fields.job, early.fields.epoch);
    if (job) note(*job, early.host, early.fields, early.payload.data());
    return job.has_value();
  });
}

std::optional<Bytes> PathLiar::contribution(const FramePath::Passing& passing, const KnownJobs::Job& job,
                                            netsum_fields fields, bool silent) {
  const uint8_t* const payload = passing.datagram.data() + NETSUM_HEADER_BYTES;
  note(job, passing.host, fields, payload);
  if (silent || options_.about != About::kContributions) return std::nullopt;
  Bytes datagram(passing.datagram.begin(), passing.datagram.end());
  const size_t altered = lie(job, passing.from, &fields, &datagram);
  if (altered == 0) return std::nullopt;
  datagram.resize(altered);
  return datagram;
}

std::optional<Bytes> PathLiar::result(const FramePath::Passing& passing, const KnownJobs::Job& job,
                                      netsum_fields fields, bool silent) {
  Bytes datagram(passing.datagram.begin(), passing.datagram.end());
  const bool lies =
      !silent && (options_.about == About::kAllResults || (options_.about == About::kSums && is_sum(fields)));
  const size_t altered = lies ? lie(job, passing.to, &fields, &datagram) : 0;
  check(job, passing.host, fields, datagram.data() + NETSUM_HEADER_BYTES);
  if (altered == 0) return std::nullopt;
  datagram.resize(altered);
  return datagram;
}

size_t PathLiar::lie(const KnownJobs::Job& job, const Address& member, netsum_fields* fields,
                     Bytes* datagram) {
  const Lie kind = kind_for(job);
  FaultyAggregator& liar = faulty_[static_cast<size_t>(kind)];
  if (!liar.alter(round_of(job, *fields), member, fields, datagram->data() + NETSUM_HEADER_BYTES)) return 0;
  ++report_.injected[static_cast<size_t>(kind)];
  const auto [key, made] = keys_.try_emplace(job.number);
  if (made)
    key->second.set(wire::stripe_key(job.job.key, job.job.first_stripe), job.job.payload_bytes, job.job.tag);
  return wire::write_header(*fields, key->second, datagram->data());
}

void PathLiar::check(const KnownJobs::Job& job, int host, const netsum_fields& fields,
                     const uint8_t* payload) {
  const FaultyAggregator::Round round = round_of(job, fields);
  const auto ranks = static_cast<int>(job.job.spec.world_size());
  if (result_checker_.is_right(round, ranks, fields, payload)) {
    ++report_.right;
    served_.emplace(round, host);
    return;
  }
  ++report_.wrong;
  if (served_.contains({round, host})) return;
  ++report_.wrong_in_time;
  report_.wrong_tag += result_checker_.has_right_lanes(round, ranks, fields, payload) ? 1 : 0;
}

}  // namespace netsum::attack
