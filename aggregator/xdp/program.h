// The loaded XDP program and its maps. Uses no sockets, so that tests can run the program on their own frames.
//
// Thread rule: one thread at a time, except counter() and slots(), which any thread may call.
#ifndef NETSUM_AGGREGATOR_XDP_PROGRAM_H_
#define NETSUM_AGGREGATOR_XDP_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aggregator/dataplane/dataplane.h"
#include "aggregator/xdp/maps.h"
#include "netsum/status.h"
#include "src/net/address.h"
#include "wire/codec.h"

struct bpf_devmap_val;
struct netsum_bpf;

namespace netsum {

class XdpProgram {
 public:
  struct Options {
    Address address;  // IPv4, with the port: what is netsum's
    uint32_t slots = 4096;
    int max_jobs = 64;
    uint32_t payload_bytes = 1440;
    int multicast_ttl = 1;
    uint64_t job_packets_per_s = 0;  // JobQuota::packets_per_s
    // To attach to interfaces whose MTU is above NETSUM_XDP_MAX_MTU, which have frames of several buffers: the program passes
    // them on. Its own packets are in one buffer. Needs Linux 5.18.
    bool multi_buffer = false;
    double inject_loss = 0;  // probability that a packet of netsum's is dropped on purpose
  };
  static Result<std::unique_ptr<XdpProgram>> load(const Options& options);
  ~XdpProgram();  // detaches

  // Memory that a slot takes where the largest payload is `payload_bytes`.
  static uint64_t slot_bytes(uint32_t payload_bytes);

  // In native mode. Detached by the destructor, or when the process ends for any reason.
  Status attach(const std::string& interface);
  // Allows the program to send by the interface. A part of attach(), for tests that run the program without attaching it.
  Status send_by(uint32_t ifindex);
  // How many of the attached interfaces still exist.
  int attached() const;

  // Accepts the job's packets from now on, in slots from `first_slot` on, which are empty.
  Status install(const DataplaneJob& job, uint32_t first_slot);
  // After it returns, no CPU handles a packet of the job.
  void remove(uint16_t job);

  struct Answer {
    uint32_t size = 0;  // 0: none
    Address to;
    bool welcome = false;  // for the sender; otherwise it is a HELLO for the job's parent
  };
  // Answers a HELLO that came up to the loader's socket, by whatever interface: it is refused unless its tag is
  // right and the program has noted `from` as the member's address. Results of the job go to a member that is
  // welcomed from now on; before the job's parent has answered a HELLO of full size, HELLOs go up to it. Writes
  // the answer, as long as the HELLO, to `frame`.
  Answer answer_hello(const DataplaneJob& job, std::span<const uint8_t> datagram, const Address& from,
                      uint8_t* frame);

  uint64_t counter(uint32_t index) const;  // NETSUM_DROP_* or NETSUM_XDP_*, over all CPUs

  int program_fd() const;  // of netsum_aggregate, for BPF_PROG_TEST_RUN
  // The states of `count` slots; each is consistent, but they are not read at the same time. Those that CPUs hold without a
  // pause are empty.
  std::vector<netsum_slot> slots(uint32_t first_slot, uint32_t count) const;
  // Sets a slot to a state, and whether a CPU holds it. For tests.
  Status set_slot(uint32_t slot, const netsum_slot& state, bool held = false);

 private:
  struct SlotValue;
  explicit XdpProgram(const Options& options) : options_(options) {}
  bool read_slots(uint32_t first_slot, uint32_t count, std::vector<SlotValue>* values) const;
  netsum_slot busy_slot(uint32_t slot) const;
  Status open();
  void configure(uint32_t jobs, uint32_t slots);
  bpf_devmap_val target(uint32_t ifindex) const;
  Status make_jobs();
  Status fill(const DataplaneJob& job, uint32_t first_slot);
  void erase(uint32_t job);
  Status set_key(uint32_t index, const netsum_key& key, uint32_t tag);
  Status set_parent(const DataplaneJob& job);
  netsum_xdp_member member(uint16_t job, uint16_t member) const;
  bool parent_welcomed(uint16_t job) const;
  Status reach(const DataplaneJob& job, uint16_t member, const netsum_xdp_member& where);

  struct Port {
    uint32_t ifindex = 0;
    std::vector<uint16_t> members;
  };
  struct Job {
    int entry = -1;      // the map that `jobs` holds while the job is installed
    int broadcast = -1;  // the device map
    wire::PacketKey key;
    std::optional<netsum_xdp_parent_key> parent;  // its key in `parent_jobs`
    std::vector<Port> ports;
  };
  const Options options_;
  netsum_bpf* skeleton_ = nullptr;
  std::vector<int> links_;
  std::vector<uint32_t> ifindexes_;
  std::vector<Job> jobs_;
  int cpus_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_XDP_PROGRAM_H_
