#include "src/job/capabilities.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "netsum/options.h"
#include "src/job/encoded_fields.h"
#include "src/job/job_spec.h"
#include "wire/ids.h"
#include "wire/parse.h"
#include "wire/values.h"

namespace netsum {
namespace {

using List = google::protobuf::RepeatedField<uint32_t>;
// The only element of a list that has none, because an empty list stands for the standard one.
constexpr uint32_t kNone = 0;
constexpr uint32_t kPartialFloats = wire::format_of_values(DataType::kFloat32, false);

List or_standard(const List& list, std::initializer_list<uint32_t> standard) {
  return list.empty() ? List(standard.begin(), standard.end()) : list;
}
List formats_of(const Capabilities& who) {
  return or_standard(who.formats(), {NETSUM_FORMAT_SUM_I16, NETSUM_FORMAT_SUM_I32, NETSUM_FORMAT_SUM_I64,
                                     NETSUM_FORMAT_MAX_U8});
}
List byte_orders_of(const Capabilities& who) {
  return or_standard(who.byte_orders(), {NETSUM_LANES_LITTLE_ENDIAN});
}
List tags_of(const Capabilities& who) {
  return or_standard(who.tags(), {NETSUM_TAG_KEYED});
}

bool contains(const List& list, uint32_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

List common_of(const List& a, const List& b) {
  List both;
  for (const uint32_t value : a)
    if (contains(b, value)) both.Add(value);
  if (both.empty()) both.Add(kNone);
  return both;
}

std::string describe_format(uint32_t format) {
  if (format < 256 && netsum_is_values(static_cast<uint8_t>(format)))
    return "sums of values (format " + std::to_string(format) + ")";
  const auto name = [](uint32_t number, std::initializer_list<std::pair<uint32_t, const char*>> known,
                       const char* what) {
    for (const auto& [value, text] : known)
      if (value == number) return std::string(text);
    return what + (" " + std::to_string(number));
  };
  return name(format >> 4,
              {{NETSUM_OP_SUM, "SUM"}, {NETSUM_OP_MAX, "MAX"}, {NETSUM_OP_OR, "OR"}, {NETSUM_OP_XOR, "XOR"}},
              "operation") +
         " of " +
         name(format & 15,
              {{NETSUM_LANE_U8, "unsigned 8-bit"},
               {NETSUM_LANE_I8, "8-bit"},
               {NETSUM_LANE_I16, "16-bit"},
               {NETSUM_LANE_I32, "32-bit"},
               {NETSUM_LANE_I64, "64-bit"},
               {NETSUM_LANE_U16, "unsigned 16-bit"},
               {NETSUM_LANE_U32, "unsigned 32-bit"},
               {NETSUM_LANE_U64, "unsigned 64-bit"}},
              "kind") +
         " lanes";
}
std::string describe_byte_order(uint32_t order) {
  return order == NETSUM_LANES_LITTLE_ENDIAN ? "little-endian lanes"
         : order == NETSUM_LANES_BIG_ENDIAN  ? "big-endian lanes"
                                             : "lanes of byte order " + std::to_string(order);
}
std::string describe_tag(uint32_t tag) {
  return tag == NETSUM_TAG_KEYED    ? "packets with keyed tags (verify: packet or both)"
         : tag == NETSUM_TAG_COOKIE ? "packets without keyed tags (verify: sum)"
                                    : "packet tags of kind " + std::to_string(tag);
}

template <typename Describe>
std::string first_missing(const List& needed, const List& has, Describe describe) {
  for (const uint32_t value : needed)
    if (!contains(has, value)) return describe(value);
  return {};
}

// Describes the first capability that is missing; empty if none is.
std::string missing(const Capabilities& needs, const Capabilities& can) {
  if (auto what = first_missing(formats_of(needs), formats_of(can), describe_format); !what.empty())
    return what;
  if (auto what = first_missing(byte_orders_of(needs), byte_orders_of(can), describe_byte_order);
      !what.empty())
    return what;
  if (auto what = first_missing(tags_of(needs), tags_of(can), describe_tag); !what.empty()) return what;
  if (can.payload_bytes() != 0 && needs.payload_bytes() > can.payload_bytes())
    return "payloads of " + std::to_string(needs.payload_bytes()) + " bytes (the largest is " +
           std::to_string(can.payload_bytes()) + ")";
  if (needs.max_members() > most_members_of(can))
    return std::to_string(needs.max_members()) + " members (the most is " +
           std::to_string(most_members_of(can)) + ")";
  if (needs.multicast() && !can.multicast()) return "results by multicast";
  if (needs.empty_packets() && !can.empty_packets()) return "contributions without lanes";
  if (needs.no_result() && !can.no_result()) return "results without lanes";
  if (needs.adds_floats() && !can.adds_floats()) return "sums of floats of any size";
  for (const auto& [number, value] : encoded_fields(needs))
    if (number > Capabilities::kAddsFloatsFieldNumber)
      return "capability " + std::to_string(number) + ", which is of a later release";
  return {};
}

// All formats of a kind.
std::vector<uint32_t> formats_that(int (*are_of_kind)(uint8_t format)) {
  std::vector<uint32_t> formats;
  for (uint32_t format = 0; format < 256; ++format)
    if (are_of_kind(static_cast<uint8_t>(format))) formats.push_back(format);
  return formats;
}

void add_formats(const std::vector<uint32_t>& formats, Capabilities* can) {
  for (const uint32_t format : formats) can->add_formats(format);
}

bool has_formats(const std::vector<uint32_t>& formats, const Capabilities& can) {
  return std::all_of(formats.begin(), formats.end(),
                     [&](uint32_t format) { return contains(can.formats(), format); });
}

}  // namespace

void add_words(Capabilities* can) {
  add_formats(formats_that(netsum_is_words), can);
}

bool combines_words(const Capabilities& can) {
  return has_formats(formats_that(netsum_is_words), can);
}

void add_lanes8(Capabilities* needs) {
  *needs->mutable_formats() = formats_of(*needs);
  needs->add_formats(NETSUM_FORMAT_SUM_I8);
  needs->add_formats(NETSUM_FORMAT_OR_U64);
}

void add_cookies(Capabilities* can) {
  *can->mutable_tags() = tags_of(*can);
  can->add_tags(NETSUM_TAG_COOKIE);
}

void need_cookies(Capabilities* needs) {
  needs->clear_tags();
  needs->add_tags(NETSUM_TAG_COOKIE);
}

std::vector<std::string> verify_modes_of(const Capabilities& can) {
  std::vector<std::string> modes;
  Capabilities with_cookies;
  need_cookies(&with_cookies);
  if (missing({}, can).empty()) modes = {verify_name(Verify::kPacket), verify_name(Verify::kBoth)};
  if (missing(with_cookies, can).empty()) modes.push_back(verify_name(Verify::kSum));
  return modes;
}

uint32_t packet_tag_of(const JobSpec& job) {
  return contains(job.needs().tags(), NETSUM_TAG_COOKIE) ? NETSUM_TAG_COOKIE : NETSUM_TAG_KEYED;
}

void add_values(Capabilities* can) {
  add_formats(formats_that(netsum_is_values), can);
}

bool sums_values(const Capabilities& can) {
  return has_formats(formats_that(netsum_is_values), can);
}

bool sums_partial_floats(const Capabilities& can) {
  return contains(can.formats(), kPartialFloats);
}

bool adds_floats(const Capabilities& can) {
  return can.adds_floats() && sums_partial_floats(can);
}

bool adds_floats(const Capabilities& can, const JobSpec& job) {
  return adds_floats(can) && job.numerics() == static_cast<uint32_t>(Numerics::kAuto) &&
         job.verify() == static_cast<uint32_t>(Verify::kPacket);
}

Capabilities below_parent(Capabilities can) {
  List kept;
  for (const uint32_t format : can.formats())
    if (format == kPartialFloats || !netsum_is_values(static_cast<uint8_t>(format))) kept.Add(format);
  *can.mutable_formats() = kept;
  return can;
}

uint32_t most_members_of(const Capabilities& who) {
  return who.max_members() == 0 ? NETSUM_MAX_MEMBERS : who.max_members();
}

Capabilities standard_capabilities(uint32_t payload_bytes) {
  Capabilities standard;
  *standard.mutable_formats() = formats_of(standard);
  *standard.mutable_byte_orders() = byte_orders_of(standard);
  *standard.mutable_tags() = tags_of(standard);
  standard.set_payload_bytes(payload_bytes);
  standard.set_max_members(NETSUM_MAX_MEMBERS);
  return standard;
}

Capabilities common(const Capabilities& a, const Capabilities& b) {
  Capabilities both;
  *both.mutable_formats() = common_of(formats_of(a), formats_of(b));
  *both.mutable_byte_orders() = common_of(byte_orders_of(a), byte_orders_of(b));
  *both.mutable_tags() = common_of(tags_of(a), tags_of(b));
  const bool said = a.payload_bytes() != 0 && b.payload_bytes() != 0;
  both.set_payload_bytes(said ? std::min(a.payload_bytes(), b.payload_bytes())
                              : std::max(a.payload_bytes(), b.payload_bytes()));
  both.set_max_members(std::min(most_members_of(a), most_members_of(b)));
  both.set_multicast(a.multicast() && b.multicast());
  both.set_empty_packets(a.empty_packets() && b.empty_packets());
  both.set_no_result(a.no_result() && b.no_result());
  both.set_adds_floats(a.adds_floats() && b.adds_floats());
  return both;
}

Status check_lists(const Capabilities& who, const std::string& what) {
  constexpr int kMost = 256;  // formats and the others are numbers of 8 bits
  const int longest = std::max({who.formats_size(), who.byte_orders_size(), who.tags_size()});
  if (longest <= kMost) return {};
  return {ErrorCode::kInvalidArgument, what + ": a list of " + std::to_string(longest) +
                                           " formats, byte orders or tags; at most " + std::to_string(kMost) +
                                           " are possible"};
}

Status check_needs(const JobSpec& job, const Capabilities& can, const std::string& who) {
  const std::string what = missing(job.needs(), can);
  if (what.empty()) return {};
  return {ErrorCode::kUnsupported,
          "job '" + job.name() + "' needs " + what + ", which " + who +
              " cannot do: use an aggregator whose dataplane can (--dataplane), or start the "
              "job without what needs it"};
}

}  // namespace netsum
