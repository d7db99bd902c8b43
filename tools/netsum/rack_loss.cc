#include "tools/netsum/rack_loss.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <net/if.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "src/base/file_descriptor.h"
#include "tools/netsum/rack_loss.skel.h"
#include "tools/netsum/rack_loss_maps.h"
#include "tools/netsum/rack_system.h"

namespace netsum::tool {
namespace {

Status failure(const std::string& what, int error) {
  const std::string message = what + ": " + std::strerror(error);
  if (error == EPERM || error == EACCES) {
    return Status(ErrorCode::kPermissionDenied, message + "; lossy links need root, or CAP_BPF");
  }
  return Status(ErrorCode::kUnsupported,
                message + "; lossy links need Linux 5.18 or later with CONFIG_BPF_JIT");
}

struct Ends {
  uint32_t a = 0, b = 0;
};

// In the namespace.
Result<Ends> ends_of(const std::string& port) {
  const Ends ends{if_nametoindex(stretch_end(port, 'a').c_str()),
                  if_nametoindex(stretch_end(port, 'b').c_str())};
  if (ends.a != 0 && ends.b != 0) return ends;
  return Status(ErrorCode::kInvalidArgument,
                "link " + port + " has no lossy stretch: was the rack made with --loss?");
}

// The map called `name` of the program at `interface`, in the namespace.
Result<FileDescriptor> map_at(uint32_t interface, const std::string& name) {
  uint32_t id = 0;
  if (const int error = bpf_xdp_query_id(static_cast<int>(interface), 0, &id); error != 0 || id == 0) {
    return failure("a lossy link has lost its XDP program", error != 0 ? -error : ENOENT);
  }
  const FileDescriptor program(bpf_prog_get_fd_by_id(id));
  uint32_t maps[16] = {};
  bpf_prog_info info{};
  info.nr_map_ids = std::size(maps);
  info.map_ids = reinterpret_cast<uint64_t>(maps);
  uint32_t size = sizeof info;
  if (program.get() < 0 || bpf_obj_get_info_by_fd(program.get(), &info, &size) != 0) {
    return failure("cannot look at a lossy link's XDP program", errno);
  }
  for (uint32_t i = 0; i < info.nr_map_ids && i < std::size(maps); ++i) {
    FileDescriptor map(bpf_map_get_fd_by_id(maps[i]));
    bpf_map_info about{};
    size = sizeof about;
    if (map.get() >= 0 && bpf_obj_get_info_by_fd(map.get(), &about, &size) == 0 && name == about.name)
      return map;
  }
  return failure("a lossy link's XDP program has no map " + name, ENOENT);
}

Status set_stretch(int map, uint32_t from, uint32_t to, double probability) {
  const netsum_stretch stretch{.to = to,
                               .threshold = static_cast<uint64_t>(std::llround(probability * 0x1p32))};
  if (bpf_map_update_elem(map, &from, &stretch, BPF_ANY) == 0) return Status();
  return failure("cannot set a link's loss", errno);
}

// The program of one namespace while its frames are captured.
struct CapturedNamespace {
  FileDescriptor frames, switch_map;
  std::map<uint32_t, std::pair<std::string, bool>> ends;  // port and direction, by interface
  const std::function<void(const LinkFrame&)>* take = nullptr;

  ~CapturedNamespace() {
    if (switch_map.valid()) turn(false);
  }
  bool turn(bool on) const {
    const uint32_t only = 0;
    const netsum_capture wanted = {.on = on ? 1u : 0u, .left_out = 0};
    return bpf_map_update_elem(switch_map.get(), &only, &wanted, BPF_ANY) == 0;
  }
  uint64_t left_out() const {
    const uint32_t only = 0;
    netsum_capture found{};
    return bpf_map_lookup_elem(switch_map.get(), &only, &found) == 0 ? found.left_out : 0;
  }
};

int take_frame(void* context, void* data, size_t) {
  const auto* of = static_cast<const CapturedNamespace*>(context);
  const auto* frame = static_cast<const netsum_frame*>(data);
  if (const auto end = of->ends.find(frame->from); end != of->ends.end())
    (*of->take)({static_cast<int64_t>(frame->at_ns), end->second.first, end->second.second, frame->bytes});
  return 0;
}

Status begin_capture(const std::string& network_namespace, const std::vector<std::string>& ports,
                     CapturedNamespace* of) {
  const InNetworkNamespace inside(network_namespace);
  if (!inside.status().ok()) return inside.status();
  for (const std::string& port : ports) {
    const Result<Ends> ends = ends_of(port);
    if (!ends.ok()) return ends.status();
    of->ends[ends->a] = {port, true};
    of->ends[ends->b] = {port, false};
    if (of->frames.valid()) continue;  // one program for all links of the namespace
    Result<FileDescriptor> frames = map_at(ends->a, "frames");
    if (!frames.ok()) return frames.status();
    Result<FileDescriptor> switch_map = map_at(ends->a, "capture");
    if (!switch_map.ok()) return switch_map.status();
    of->frames = std::move(frames).value();
    of->switch_map = std::move(switch_map).value();
  }
  return Status();
}

}  // namespace

Status attach_lossy_links(const std::string& network_namespace, const std::vector<std::string>& ports) {
  const InNetworkNamespace inside(network_namespace);
  if (!inside.status().ok()) return inside.status();
  const libbpf_print_fn_t print_before = libbpf_set_print(nullptr);  // what it would print is in the Status
  const std::unique_ptr<rack_loss_bpf, decltype(&rack_loss_bpf__destroy)> program(
      rack_loss_bpf__open_and_load(), rack_loss_bpf__destroy);
  const int error = errno;
  libbpf_set_print(print_before);
  if (program == nullptr) return failure("the kernel refuses the program of lossy links", error);
  const std::vector<netsum_stretch_counts> zeros(static_cast<size_t>(libbpf_num_possible_cpus()));
  for (const std::string& port : ports) {
    const Result<Ends> ends = ends_of(port);
    if (!ends.ok()) return ends.status();
    for (const auto& [from, to] : {std::pair(ends->a, ends->b), std::pair(ends->b, ends->a)}) {
      const Status status = set_stretch(bpf_map__fd(program->maps.stretches), from, to, 0);
      if (!status.ok()) return status;
      if (bpf_map_update_elem(bpf_map__fd(program->maps.stretch_counts), &from, zeros.data(), BPF_ANY) != 0) {
        return failure("cannot count a link's losses", errno);
      }
      const int attached =
          bpf_xdp_attach(static_cast<int>(from), bpf_program__fd(program->progs.netsum_lossy_link),
                         XDP_FLAGS_DRV_MODE, nullptr);
      if (attached != 0) return failure("cannot attach the program of lossy links to " + port, -attached);
    }
  }
  return Status();
}

Status set_link_loss(const std::string& network_namespace, const std::string& port, double probability) {
  const InNetworkNamespace inside(network_namespace);
  if (!inside.status().ok()) return inside.status();
  const Result<Ends> ends = ends_of(port);
  if (!ends.ok()) return ends.status();
  const Result<FileDescriptor> map = map_at(ends->a, "stretches");
  if (!map.ok()) return map.status();
  const Status status = set_stretch(map->get(), ends->a, ends->b, probability);
  return status.ok() ? set_stretch(map->get(), ends->b, ends->a, probability) : status;
}

Result<LinkLossCounts> link_loss_counts(const std::string& network_namespace, const std::string& port) {
  const InNetworkNamespace inside(network_namespace);
  if (!inside.status().ok()) return inside.status();
  const Result<Ends> ends = ends_of(port);
  if (!ends.ok()) return ends.status();
  const Result<FileDescriptor> map = map_at(ends->a, "stretch_counts");
  if (!map.ok()) return map.status();
  std::vector<netsum_stretch_counts> values(static_cast<size_t>(libbpf_num_possible_cpus()));
  LinkLossCounts sum;
  for (const uint32_t from : {ends->a, ends->b}) {
    if (bpf_map_lookup_elem(map->get(), &from, values.data()) != 0)
      return failure("cannot read losses", errno);
    for (const netsum_stretch_counts& value : values) {
      sum.passed += value.passed;
      sum.lost += value.lost;
    }
  }
  return sum;
}

Result<uint64_t> capture_frames(const std::map<std::string, std::vector<std::string>>& ports,
                                const std::function<bool()>& goes_on,
                                const std::function<void(const LinkFrame&)>& take) {
  std::vector<std::unique_ptr<CapturedNamespace>> captured;
  std::unique_ptr<ring_buffer, decltype(&ring_buffer__free)> rings(nullptr, ring_buffer__free);
  for (const auto& [network_namespace, names] : ports) {
    captured.push_back(std::make_unique<CapturedNamespace>());
    CapturedNamespace* const of = captured.back().get();
    of->take = &take;
    if (const Status status = begin_capture(network_namespace, names, of); !status.ok()) return status;
    if (rings == nullptr) {
      rings.reset(ring_buffer__new(of->frames.get(), take_frame, of, nullptr));
      if (rings == nullptr) return failure("cannot read the frames of a rack", errno);
    } else if (const int error = ring_buffer__add(rings.get(), of->frames.get(), take_frame, of);
               error != 0) {
      return failure("cannot read the frames of a rack", -error);
    }
  }
  if (rings == nullptr) return Status(ErrorCode::kInvalidArgument, "the rack has no links");
  const std::function<void(const LinkFrame&)> ignore = [](const LinkFrame&) {};
  for (const auto& of : captured) of->take = &ignore;
  ring_buffer__consume(rings.get());  // what an earlier capture has left
  for (const auto& of : captured) {
    of->take = &take;
    if (!of->turn(true)) return failure("cannot capture the frames of a rack", errno);
  }
  while (goes_on()) {
    constexpr int kPollMs = 5;
    if (const int got = ring_buffer__poll(rings.get(), kPollMs); got < 0 && got != -EINTR)
      return failure("cannot read the frames of a rack", -got);
  }
  uint64_t left_out = 0;
  for (const auto& of : captured) {
    left_out += of->left_out();
    of->turn(false);
  }
  ring_buffer__consume(rings.get());
  return left_out;
}

}  // namespace netsum::tool
