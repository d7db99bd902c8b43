#include "tools/netsum/privileges.h"

#include <cap-ng.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace netsum::tool {

Status drop_capabilities(const std::vector<unsigned>& kept) {
  const auto failed = [](const std::string& what) {
    return Status(ErrorCode::kPermissionDenied, "cannot drop capabilities: " + what);
  };
  if (capng_get_caps_process() != 0) return failed("they cannot be read");
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return failed(std::strerror(errno));
  // A service without capabilities may also be denied the system call that sets them.
  if (capng_have_permitted_capabilities() == CAPNG_NONE) return Status();
  std::vector<unsigned> held;
  for (const unsigned capability : kept) {
    if (capng_have_capability(CAPNG_PERMITTED, capability) != 0) held.push_back(capability);
  }
  // Without it the bounding set does not change, which with no_new_privs gives no program any privilege.
  const bool may_bound = capng_have_capability(CAPNG_EFFECTIVE, CAP_SETPCAP) != 0;
  const capng_select_t sets = may_bound ? CAPNG_SELECT_BOTH : CAPNG_SELECT_CAPS;
  capng_clear(sets);
  for (const unsigned capability : held) {
    capng_update(CAPNG_ADD, static_cast<capng_type_t>(CAPNG_EFFECTIVE | CAPNG_PERMITTED), capability);
  }
  if (const int error = capng_apply(sets); error != 0) {
    return failed("libcap-ng gives error " + std::to_string(error));
  }
  return Status();
}

}  // namespace netsum::tool
