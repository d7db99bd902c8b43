// C++ side of the wire: writes frames, and names for people.
#ifndef NETSUM_WIRE_CODEC_H_
#define NETSUM_WIRE_CODEC_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/parse.h"

namespace netsum::wire {

// A job's secret, ready for use: NH's key table is derived from it once.
class PacketKey {
 public:
  PacketKey() = default;
  PacketKey(const netsum_key& secret, uint32_t payload_bytes) { set(secret, payload_bytes); }
  // Memory for payloads of up to `payload_bytes`: set() then allocates nothing.
  void reserve(uint32_t payload_bytes) { table_.reserve(payload_bytes / 4); }
  // `payload_bytes`: the largest payload, a multiple of 8.
  void set(const netsum_key& secret, uint32_t payload_bytes);

  const netsum_key& secret() const { return secret_; }
  const uint32_t* table() const { return table_.data(); }  // payload_bytes / 4 words

 private:
  netsum_key secret_{};
  std::vector<uint32_t> table_;
};

// Writes the header of `fields` (type, format, flags, identity; payload_bytes of payload follow it in memory
// already) to `frame`, check included. `payload_nh` is kernels::nh of the payload with the key's table.
// Returns the datagram's size.
uint32_t write_header(const netsum_fields& fields, const PacketKey& key, uint64_t payload_nh, uint8_t* frame);

// As above, computing NH plainly: for packets with little or no payload.
uint32_t write_header(const netsum_fields& fields, const PacketKey& key, uint8_t* frame);

// As above, deriving the table each time: for rare packets, and tests.
uint32_t write_header(const netsum_fields& fields, const netsum_key& secret, uint8_t* frame);

// True if the packet's check is right under `key`.
bool check_is_right(const uint8_t* frame, const netsum_fields& fields, const PacketKey& key,
                    uint64_t payload_nh);

// As above, deriving the table each time: for tests.
bool check_is_right(const uint8_t* frame, const netsum_fields& fields, const netsum_key& secret);

std::string_view drop_name(int reason);             // "bad_check": counters, logs
std::string_view type_name(int type);               // "contribution"
std::string describe(const netsum_fields& fields);  // one line, for traces

}  // namespace netsum::wire

#endif  // NETSUM_WIRE_CODEC_H_
