// What a switch says of its program (P4Info): the numbers of tables, actions and counters, by name, and their sizes.
#ifndef NETSUM_AGGREGATOR_P4_DRIVER_P4_PROGRAM_H_
#define NETSUM_AGGREGATOR_P4_DRIVER_P4_PROGRAM_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/p4/driver/p4runtime.pb.h"
#include "aggregator/p4/driver/switch_driver.h"
#include "netsum/status.h"

namespace netsum::p4 {

class P4Program {
 public:
  // By name.
  using Values = std::vector<std::pair<std::string, uint64_t>>;

  // `p4info`: a serialised P4Info. `whose` names its owner in errors, such as "the switch at 10.0.0.1:9559". Errors:
  // kInvalidArgument (no P4Info), kVersionMismatch (another program, or another version of it: names both).
  static Result<P4Program> read(const std::string& p4info, const std::string& whose);

  const SwitchLimits& limits() const { return limits_; }
  // An entry of a table of exact matches. Names are those of the program, and read() has found them all.
  ::p4::v1::TableEntry entry(const std::string& table, const Values& keys, const std::string& action,
                             const Values& parameters) const;
  uint32_t table(const std::string& name) const;
  uint32_t counter(const std::string& name) const;
  // Of the metadata field `port` of the header `packet_in` or `packet_out`.
  uint32_t port_field(const std::string& header) const;
  // All tables that a control plane fills.
  std::vector<uint32_t> tables() const;

 private:
  explicit P4Program(::p4::v1::P4Info info) : info_(std::move(info)) {}
  Status check(const std::string& whose) const;
  void set_limits();

  ::p4::v1::P4Info info_;
  SwitchLimits limits_;
};

// The shortest big-endian bytes, at least one, which P4Runtime calls canonical.
std::string canonical_bytes(uint64_t value);
uint64_t number_of(const std::string& bytes);

}  // namespace netsum::p4

#endif  // NETSUM_AGGREGATOR_P4_DRIVER_P4_PROGRAM_H_
