// C++ side of the wire: writes frames, and names for people.
#ifndef NETSUM_WIRE_CODEC_H_
#define NETSUM_WIRE_CODEC_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "wire/parse.h"

namespace netsum::wire {

// Writes the header of `fields` (type, format, flags, identity; payload_bytes of payload follow it in memory
// already) to `frame`, check included. `payload_nh` is kernels::nh of the payload with netsum_check_key.
// Returns the datagram's size.
uint32_t write_header(const netsum_fields& fields, uint64_t job_key, uint64_t payload_nh, uint8_t* frame);

// As above, computing NH plainly: for packets with little or no payload, and tests.
uint32_t write_header(const netsum_fields& fields, uint64_t job_key, uint8_t* frame);

// True if the packet's check is right under `job_key`.
bool check_is_right(const uint8_t* frame, const netsum_fields& fields, uint64_t job_key, uint64_t payload_nh);

std::string_view drop_name(int reason);             // "bad_check": counters, logs
std::string_view type_name(int type);               // "contribution"
std::string describe(const netsum_fields& fields);  // one line, for traces

}  // namespace netsum::wire

#endif  // NETSUM_WIRE_CODEC_H_
