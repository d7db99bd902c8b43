#include "tests/attack/xdp_memory.h"

#include <bpf/bpf.h>

#include <charconv>
#include <filesystem>
#include <string>
#include <string_view>

namespace netsum::attack {

// The loader keeps its maps to itself, but they are among the descriptors of the process.
Result<XdpMemory> XdpMemory::find() {
  XdpMemory found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const std::string number = entry.path().filename();
    int fd = -1;
    std::from_chars(number.data(), number.data() + number.size(), fd);
    bpf_map_info info{};
    uint32_t bytes = sizeof info;
    if (bpf_obj_get_info_by_fd(fd, &info, &bytes) != 0 || std::string_view(info.name) != "lanes") continue;
    found.map_ = fd;
    found.sum_.resize((info.value_size + 7) / 8 * 8);
  }
  if (found.map_ < 0)
    return Status(ErrorCode::kUnsupported, "the XDP program's map `lanes` is not to be found");
  return found;
}

bool XdpMemory::flip(Rng* rng, uint32_t slots) {
  const auto round = static_cast<uint32_t>(rng->below(2 * uint64_t{slots}));
  if (bpf_map_lookup_elem(map_, &round, sum_.data()) != 0) return false;
  const uint64_t bit = rng->below(8 * sum_.size());
  sum_[bit / 8] = static_cast<uint8_t>(sum_[bit / 8] ^ 1u << bit % 8);
  return bpf_map_update_elem(map_, &round, sum_.data(), BPF_ANY) == 0;
}

}  // namespace netsum::attack
