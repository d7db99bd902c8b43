// Where BPF cannot be compiled.
#include "tools/netsum/rack_loss.h"

namespace netsum::tool {
namespace {

Status missing() {
  return Status(
      ErrorCode::kUnsupported,
      "this netsum was built without lossy links: building them needs clang, bpftool and libbpf-dev");
}

}  // namespace

Status attach_lossy_links(const std::string&, const std::vector<std::string>&) {
  return missing();
}
Status set_link_loss(const std::string&, const std::string&, double) {
  return missing();
}
Result<LinkLossCounts> link_loss_counts(const std::string&, const std::string&) {
  return missing();
}
Result<uint64_t> capture_frames(const std::map<std::string, std::vector<std::string>>&,
                                const std::function<bool()>&, const std::function<void(const LinkFrame&)>&) {
  return missing();
}

}  // namespace netsum::tool
