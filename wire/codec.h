// C++ side of the wire: writes frames, and names for people.
#ifndef NETSUM_WIRE_CODEC_H_
#define NETSUM_WIRE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "wire/parse.h"

namespace netsum::wire {

// The key of the job's stripe of that number: what its packets are tagged under.
netsum_key stripe_key(const netsum_key& job_secret, size_t stripe);

// Overwrites the key, in a way that the compiler does not leave out.
void wipe(netsum_key* key);

// A stripe's key, ready for use: NH's key table and the cookie are derived from it once. Nothing of it stays in memory.
class PacketKey {
 public:
  PacketKey() = default;
  PacketKey(const netsum_key& key, uint32_t payload_bytes, uint32_t tag = NETSUM_TAG_KEYED) {
    set(key, payload_bytes, tag);
  }
  ~PacketKey() { wipe(); }
  PacketKey(const PacketKey&) = default;
  PacketKey& operator=(const PacketKey&) = default;
  // Memory for payloads of up to `payload_bytes`: set() then allocates nothing.
  void reserve(uint32_t payload_bytes) { table_.reserve(payload_bytes / 4); }
  // `payload_bytes`: the largest payload, a multiple of 8. `tag`: NETSUM_TAG_*.
  void set(const netsum_key& key, uint32_t payload_bytes, uint32_t tag = NETSUM_TAG_KEYED);
  // Zeros in the place of key and table; the memory stays reserved.
  void wipe();

  // Whether packets of this type have a tag, and not the cookie.
  bool tags(uint8_t type) const { return cookie_ == 0 || type == NETSUM_TYPE_HELLO; }
  uint64_t cookie() const { return cookie_; }
  const netsum_key& key() const { return key_; }
  const uint32_t* table() const { return table_.data(); }  // payload_bytes / 4 words

 private:
  netsum_key key_{};
  uint64_t cookie_ = 0;  // 0: none, all packets have tags
  std::vector<uint32_t> table_;
};

// Writes the header of `fields` (type, format, flags, identity; payload_bytes of payload follow it in memory
// already) to `frame`, check included. `payload_nh` is kernels::nh of the payload with the key's table, or anything if packets
// of this type have no tag (src/kernels/packet_check.h). Returns the datagram's size.
uint32_t write_header(const netsum_fields& fields, const PacketKey& key, uint64_t payload_nh, uint8_t* frame);

// As above, computing NH plainly: for packets with little or no payload.
uint32_t write_header(const netsum_fields& fields, const PacketKey& key, uint8_t* frame);

// As above, deriving the table each time: for rare packets, and tests.
uint32_t write_header(const netsum_fields& fields, const netsum_key& key, uint8_t* frame);

// True if the packet's check is right under `key`.
bool check_is_right(const uint8_t* frame, const netsum_fields& fields, const PacketKey& key,
                    uint64_t payload_nh);

// As above, deriving the table each time: for tests.
bool check_is_right(const uint8_t* frame, const netsum_fields& fields, const netsum_key& key);

std::string_view drop_name(int reason);             // "bad_check": counters, logs
std::string_view type_name(int type);               // "contribution"
std::string describe(const netsum_fields& fields);  // one line, for traces

}  // namespace netsum::wire

#endif  // NETSUM_WIRE_CODEC_H_
