// Which bytes of a frame reach each member that a device map sends it to: frames_probe BYTES...
// Only in the machine of run.py: of a frame in several buffers, the kernel's copies refer to memory that nobody has written.
// guest_frames.sh makes the links in-a to in-b, and for each member mN-a to mN-b.
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/kernel/frames.skel.h"

namespace netsum {
namespace {

constexpr int kMembers = 3, kWaitMs = 2000;
constexpr uint16_t kProtocol = 0x88B5;  // for experiments

[[noreturn]] void give_up(const std::string& what) {
  std::printf("frames_probe: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

int open_link(const std::string& name) {
  const int opened = socket(AF_PACKET, SOCK_RAW, htons(kProtocol));
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(kProtocol);
  address.sll_ifindex = static_cast<int>(if_nametoindex(name.c_str()));
  if (opened < 0 || bind(opened, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) give_up(name);
  return opened;
}

void attach(const std::string& name, const bpf_program* program) {
  const int index = static_cast<int>(if_nametoindex(name.c_str()));
  if (bpf_xdp_attach(index, bpf_program__fd(program), XDP_FLAGS_DRV_MODE, nullptr) != 0)
    give_up("XDP on " + name);
}

std::vector<uint8_t> frame_of(size_t bytes) {
  std::vector<uint8_t> frame(bytes, 0xFF);
  for (size_t i = 12; i < bytes; ++i) frame[i] = static_cast<uint8_t>(i * 7 + (i >> 8));
  frame[12] = kProtocol >> 8;
  frame[13] = kProtocol & 0xFF;
  return frame;
}

// How many bytes of the next frame are those of `sent`, if it has no other; -1: it has. 0: none comes.
int received(int link, const std::vector<uint8_t>& sent) {
  pollfd wait{.fd = link, .events = POLLIN, .revents = 0};
  if (poll(&wait, 1, kWaitMs) <= 0) return 0;
  std::vector<uint8_t> frame(2 * sent.size());
  const ssize_t size = recv(link, frame.data(), frame.size(), 0);
  const bool same = size > 0 && static_cast<size_t>(size) <= sent.size() &&
                    std::memcmp(frame.data(), sent.data(), static_cast<size_t>(size)) == 0;
  return same ? static_cast<int>(size) : -1;
}

int run(const std::vector<std::string>& sizes) {
  if (access("/checks", F_OK) != 0) give_up("this is not the machine of tests/kernel/run.py");
  frames_bpf* const programs = frames_bpf__open_and_load();
  if (programs == nullptr) give_up("the programs cannot be loaded");
  const int in = open_link("in-a");
  std::vector<int> members;
  for (uint32_t m = 0; m < kMembers; ++m) {
    const std::string name = "m" + std::to_string(m);
    const uint32_t target = if_nametoindex((name + "-a").c_str());
    attach(name + "-a", programs->progs.pass);
    attach(name + "-b", programs->progs.pass);
    if (bpf_map_update_elem(bpf_map__fd(programs->maps.targets), &m, &target, BPF_ANY) != 0)
      give_up("targets");
    members.push_back(open_link(name + "-b"));
  }
  attach("in-b", programs->progs.broadcast);
  for (const std::string& size : sizes) {
    const std::vector<uint8_t> frame = frame_of(static_cast<size_t>(std::atoi(size.c_str())));
    if (send(in, frame.data(), frame.size(), 0) < 0) give_up("send " + size);
    std::printf("%s bytes to %d members:", size.c_str(), kMembers);
    for (const int member : members) std::printf(" %d", received(member, frame));
    std::printf("\n");
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace netsum

int main(int argc, char** argv) {
  return netsum::run({argv + 1, argv + argc});
}
