// What is on the path between the hosts of a VethLab with cut links and their switch: carries every frame, and can replace
// the datagrams in them.
#ifndef NETSUM_TESTS_ATTACK_FRAME_PATH_H_
#define NETSUM_TESTS_ATTACK_FRAME_PATH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "netsum/status.h"
#include "src/base/file_descriptor.h"
#include "src/net/address.h"
#include "tests/conformance/veth_lab.h"

namespace netsum::attack {

class FramePath {
 public:
  // A UDP datagram over IPv4 on its way.
  struct Passing {
    int host = 0;  // whose link
    bool to_switch = false;
    Address from, to;
    std::span<const uint8_t> datagram;
  };
  // Returns the datagram that takes its place, if any.
  using Editor = std::function<std::optional<conformance::Bytes>(const Passing&)>;

  // Error: kUnsupported.
  static Result<std::unique_ptr<FramePath>> open(const conformance::VethLab& lab, int hosts);

  // Carries frames, in order on each link, until `stop`. Calls `edit` on this thread.
  void carry(const Editor& edit, const std::atomic<bool>& stop);
  uint64_t lost() const { return lost_; }  // frames that the kernel did not take

 private:
  FramePath() = default;
  void pass(int host, bool to_switch, const Editor& edit);

  struct Link {
    FileDescriptor to_host, to_switch;
  };
  std::vector<Link> links_;
  std::vector<uint8_t> buffer_;
  uint64_t lost_ = 0;
};

}  // namespace netsum::attack

#endif  // NETSUM_TESTS_ATTACK_FRAME_PATH_H_
