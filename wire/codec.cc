#include "wire/codec.h"

#include <cstdio>
#include <cstring>

namespace netsum::wire {

netsum_key stripe_key(const netsum_key& job_secret, size_t stripe) {
  return netsum_stripe_key(&job_secret, static_cast<uint32_t>(stripe));
}

void wipe(netsum_key* key) {
  explicit_bzero(key, sizeof *key);
}

void PacketKey::set(const netsum_key& key, uint32_t payload_bytes, uint32_t tag) {
  wipe();
  key_ = key;
  if (tag == NETSUM_TAG_COOKIE) cookie_ = netsum_cookie(&key);
  table_.resize(payload_bytes / 4);
  netsum_make_table(&key, table_.data(), payload_bytes / 4);
}

void PacketKey::wipe() {
  wire::wipe(&key_);
  explicit_bzero(&cookie_, sizeof cookie_);
  if (!table_.empty()) explicit_bzero(table_.data(), table_.size() * sizeof(uint32_t));
}

uint32_t write_header(const netsum_fields& fields, const PacketKey& key, uint64_t payload_nh,
                      uint8_t* frame) {
  netsum_header header;
  header.magic = NETSUM_MAGIC;
  header.version_type = static_cast<uint8_t>(NETSUM_VERSION << 4 | fields.type);
  header.format = fields.format;
  header.flags = fields.flags;
  header.job = netsum_put16(fields.job);
  header.epoch = netsum_put16(fields.epoch);
  header.slot = netsum_put16(fields.slot);
  header.member = netsum_put16(fields.member);
  header.round = netsum_put32(fields.round);
  header.chunk = netsum_put32(fields.chunk);
  header.signature = netsum_put32(fields.signature);
  header.check =
      netsum_put64(key.tags(fields.type) ? netsum_check(&header, payload_nh, fields.payload_bytes, &key.key())
                                         : key.cookie());
  std::memcpy(frame, &header, sizeof header);
  return NETSUM_HEADER_BYTES + fields.payload_bytes;
}

uint32_t write_header(const netsum_fields& fields, const PacketKey& key, uint8_t* frame) {
  const uint8_t* payload = frame + NETSUM_HEADER_BYTES;
  const uint64_t nh = key.tags(fields.type) ? netsum_nh(payload, fields.payload_bytes, key.table()) : 0;
  return write_header(fields, key, nh, frame);
}

uint32_t write_header(const netsum_fields& fields, const netsum_key& key, uint8_t* frame) {
  return write_header(fields, PacketKey(key, fields.payload_bytes), frame);
}

bool check_is_right(const uint8_t* frame, const netsum_fields& fields, const PacketKey& key,
                    uint64_t payload_nh) {
  if (!key.tags(fields.type)) return fields.check == key.cookie();
  return netsum_check(frame, payload_nh, fields.payload_bytes, &key.key()) == fields.check;
}

bool check_is_right(const uint8_t* frame, const netsum_fields& fields, const netsum_key& key) {
  const PacketKey ready(key, fields.payload_bytes);
  const uint8_t* payload = frame + NETSUM_HEADER_BYTES;
  return check_is_right(frame, fields, ready, netsum_nh(payload, fields.payload_bytes, ready.table()));
}

std::string_view drop_name(int reason) {
  static constexpr std::string_view kNames[] = {
      "none",       "too_short",   "bad_magic",    "bad_version", "bad_type",     "bad_flags",
      "bad_length", "bad_format",  "unknown_job",  "stale_epoch", "bad_member",   "bad_slot",
      "bad_check",  "stale_round", "future_round", "duplicate",   "unknown_peer", "over_rate"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == NETSUM_DROP_COUNT);
  return reason >= 0 && reason < NETSUM_DROP_COUNT ? kNames[reason] : "unknown";
}

std::string_view type_name(int type) {
  static constexpr std::string_view kNames[] = {"none",   "contribution", "result", "probe",
                                                "status", "error",        "hello",  "welcome"};
  return type >= 0 && type <= NETSUM_TYPE_WELCOME ? kNames[type] : "unknown";
}

std::string describe(const netsum_fields& fields) {
  char text[192];
  std::snprintf(
      text, sizeof text,
      "%s job %u epoch %u member %u slot %u round %u chunk %u signature %08x format %02x flags %02x "
      "payload %u",
      std::string(type_name(fields.type)).c_str(), fields.job, fields.epoch, fields.member, fields.slot,
      fields.round, fields.chunk, fields.signature, fields.format, fields.flags, fields.payload_bytes);
  return text;
}

}  // namespace netsum::wire
