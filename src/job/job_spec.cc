#include "src/job/job_spec.h"

#include <algorithm>
#include <bit>
#include <map>
#include <span>

#include "src/base/text.h"
#include "src/job/capabilities.h"
#include "src/job/encoded_fields.h"
#include "wire/ids.h"
#include "wire/mtu.h"

namespace netsum {
namespace {

constexpr uint64_t kLongestPhaseUs = 60'000'000;
constexpr int kMaxOptions = 64;
constexpr size_t kMaxOptionBytes = 256;

std::string number(uint64_t value) {
  return std::to_string(value);
}

Status invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

struct Field {
  int number;
  const char* name;                          // in messages
  bool compared = true;                      // all members must give the same value
  std::span<const char* const> values = {};  // their names; none: numbers are shown
};
constexpr const char* kVerifyNames[] = {"packet", "both", "sum"};  // netsum::Verify
constexpr const char* kNumericsNames[] = {"auto", "fixed"};        // netsum::Numerics

std::string text_of(const std::string& value, std::span<const char* const> names) {
  for (size_t i = 0; i < names.size(); ++i)
    if (value == std::to_string(i)) return names[i];
  return value;
}

// In the order in which they are compared: those that follow from others come last. job_spec_test compares it with job.proto.
constexpr Field kFields[] = {
    {JobSpec::kProtocolVersionFieldNumber, "protocol version", false},
    {JobSpec::kNameFieldNumber, "name", false},
    {JobSpec::kTokenFieldNumber, "token", false},
    {JobSpec::kWorldSizeFieldNumber, "world size"},
    {JobSpec::kMtuFieldNumber, "mtu"},
    {JobSpec::kSlotsFieldNumber, "slots"},
    {JobSpec::kAggregatorTokenFieldNumber, "aggregator token", false},
    {JobSpec::kSucceedsFieldNumber, "succeeds", false},
    {JobSpec::kMinMembersFieldNumber, "min_members"},
    {JobSpec::kGatherMsFieldNumber, "gather_ms"},
    {JobSpec::kWhenFullFieldNumber, "when_full"},
    {JobSpec::kSharesFieldNumber, "shares"},
    {JobSpec::kVerifyFieldNumber, "verify", true, kVerifyNames},
    {JobSpec::kNumericsFieldNumber, "numerics", true, kNumericsNames},
    {JobSpec::kPhasePeriodUsFieldNumber, "phase_period (us)"},
    {JobSpec::kPhaseOffsetUsFieldNumber, "phase_offset (us)"},
    {JobSpec::kOptionsFieldNumber, "options", false},  // one by one, below
    {JobSpec::kNeedsFieldNumber, "needs (lane_bits)"},
};

const Field* find_field(int number) {
  for (const Field& field : kFields)
    if (field.number == number) return &field;
  return nullptr;
}

Status check_options(const JobSpec& spec) {
  if (spec.options().size() > kMaxOptions)
    return invalid("the job has " + number(static_cast<uint64_t>(spec.options().size())) +
                   " options; at most " + number(kMaxOptions) + " are allowed");
  for (const JobOption& option : spec.options()) {
    if (Status status = check_text("an option's name", option.name(), kMaxOptionBytes); !status.ok())
      return status;
    if (Status status = check_text("option " + option.name(), option.value(), kMaxOptionBytes); !status.ok())
      return status;
  }
  return {};
}

std::map<std::string, std::string> options_of(const JobSpec& spec) {
  std::map<std::string, std::string> options;
  for (const JobOption& option : spec.options()) options[option.name()] = option.value();
  return options;
}

}  // namespace

JobSpec new_job_spec() {
  JobSpec spec;
  spec.set_protocol_version(NETSUM_VERSION);
  spec.set_world_size(1);
  spec.set_mtu(1500);
  spec.set_slots(256);
  return spec;
}

JobSpec without_tokens(JobSpec spec) {
  spec.clear_token();
  spec.clear_aggregator_token();
  return spec;
}

std::string name_of_job_field(int number) {
  const Field* field = find_field(number);
  return field != nullptr ? field->name : "";
}

std::string verify_name(const JobSpec& spec) {
  return text_of(std::to_string(spec.verify()), kVerifyNames);
}

std::string verify_name(Verify verify) {
  return kVerifyNames[static_cast<size_t>(verify)];
}

WhenFull when_full_of(const JobSpec& spec) {
  const uint32_t value = spec.when_full();
  return value <= static_cast<uint32_t>(WhenFull::kHosts) ? static_cast<WhenFull>(value) : WhenFull::kFail;
}

RegroupRule regroup_rule(const JobSpec& spec) {
  return RegroupRule::make(static_cast<int>(spec.world_size()), static_cast<int>(spec.min_members()),
                           std::chrono::milliseconds(spec.gather_ms()))
      .value();
}

Status check_version(const JobSpec& spec) {
  if (spec.protocol_version() == NETSUM_VERSION) return {};
  return {ErrorCode::kVersionMismatch, "the worker speaks protocol version " +
                                           number(spec.protocol_version()) + ", this aggregator version " +
                                           number(NETSUM_VERSION) +
                                           ": install the same release of netsum on both"};
}

Status check_spec(const JobSpec& spec) {
  if (spec.name().empty())
    return invalid("the job name has 0 bytes; 1 to " + number(kMaxJobNameBytes) + " are allowed");
  if (Status status = check_text("the job name", spec.name(), kMaxJobNameBytes); !status.ok()) return status;
  const std::string of_job = " of job '" + spec.name() + "'";
  if (spec.token().size() > kMaxTokenBytes)
    return invalid("the token" + of_job + " has " + number(spec.token().size()) + " bytes; at most " +
                   number(kMaxTokenBytes) + " are allowed");
  if (spec.world_size() < 1 || spec.world_size() > kMaxRanks)
    return invalid("world size " + number(spec.world_size()) + of_job + " is out of range: a job has 1 to " +
                   number(kMaxRanks) + " ranks");
  if (spec.mtu() < wire::kMinMtu || spec.mtu() > wire::kMaxMtu)
    return invalid("mtu " + number(spec.mtu()) + " is out of range: " + number(wire::kMinMtu) + " to " +
                   number(wire::kMaxMtu) + " are possible, 1500 is usual");
  if (spec.min_members() > spec.world_size() || (spec.min_members() > 0 && spec.succeeds() == 0))
    return invalid("min_members " + number(spec.min_members()) + of_job +
                   " is out of range: at most its world size, and only for a job that succeeds another");
  if (!std::has_single_bit(spec.slots()))
    return invalid("slots must be a power of two, and " + number(spec.slots()) + " is not; 256 is usual");
  if (spec.phase_period_us() > kLongestPhaseUs ||
      spec.phase_offset_us() >= std::max<uint64_t>(1, spec.phase_period_us()))
    return invalid("phase_offset " + number(spec.phase_offset_us()) + " us of phase_period " +
                   number(spec.phase_period_us()) + " us" + of_job +
                   " is out of range: a period is at most " + number(kLongestPhaseUs) +
                   " us, and an offset shorter");
  if (spec.shares() > static_cast<uint32_t>(Shares::kPlanned))
    return {ErrorCode::kUnsupported,
            "shares " + number(spec.shares()) + of_job +
                " are unknown here: install the same release of netsum on all hosts"};
  if (Status status = check_options(spec); !status.ok()) return status;
  return check_lists(spec.needs(), "what the job needs");
}

Status check_same(const JobSpec& first, const JobSpec& asked) {
  const auto differs = [&](const std::string& what, const std::string& expected, const std::string& given) {
    return invalid("job '" + asked.name() + "' was created with " + what + " " + expected +
                   ", and this rank asks for " + given + ": all ranks must agree");
  };
  std::map<int, EncodedField> expected = encoded_fields(first), given = encoded_fields(asked);
  const auto compare = [&](int number, const std::string& what,
                           std::span<const char* const> values) -> Status {
    if (given[number].bytes == expected[number].bytes) return {};
    return differs(what, text_of(expected[number].text, values), text_of(given[number].text, values));
  };
  for (const Field& field : kFields) {
    if (!field.compared) continue;
    if (Status status = compare(field.number, field.name, field.values); !status.ok()) return status;
  }
  std::map<std::string, std::string> set = options_of(first), wanted = options_of(asked), either = set;
  either.insert(wanted.begin(), wanted.end());
  for (const auto& [name, value] : either)
    if (set[name] != wanted[name])
      return differs(name, set[name].empty() ? "none" : set[name],
                     wanted[name].empty() ? "none" : wanted[name]);
  std::map<int, EncodedField> of_either = expected;
  of_either.insert(given.begin(), given.end());
  for (const auto& [number, value] : of_either) {
    if (find_field(number) != nullptr) continue;
    const std::string what = "field " + std::to_string(number) + " (of a later release)";
    if (Status status = compare(number, what, {}); !status.ok()) return status;
  }
  return {};
}

}  // namespace netsum
