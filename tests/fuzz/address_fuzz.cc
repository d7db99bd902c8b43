// Addresses as people write them: any text. What is accepted reads the same when it is written and read
// again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "src/net/address.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto split = netsum::split_host_port(text);
  const auto address = netsum::Address::parse(text);
  if (!split.ok() && split.status().message().empty()) std::abort();
  if (!address.ok()) {
    if (address.status().message().empty()) std::abort();
    return 0;
  }
  const auto again = netsum::Address::parse(address->to_string());
  if (!split.ok() || !again.ok() || *again != *address) std::abort();
  return 0;
}
