#include "aggregator/xdp/program.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <utility>

#include "aggregator/slot/rate.h"
#include "aggregator/xdp/netsum.skel.h"
#include "wire/codec.h"

namespace netsum {
namespace {

constexpr size_t kVerifierLogBytes = 1 << 20;
constexpr size_t kVerifierTailBytes = 2000;  // about the last 25 lines

// libbpf's messages about the current failure, which become part of the Status instead of going to standard error.
thread_local std::string* libbpf_words = nullptr;

int keep_words(libbpf_print_level level, const char* format, va_list arguments) {
  if (level == LIBBPF_DEBUG || libbpf_words == nullptr) return 0;
  char line[512];
  std::vsnprintf(line, sizeof line, format, arguments);
  *libbpf_words += line;
  return 0;
}

class LibbpfWords {
 public:
  LibbpfWords() : before_(libbpf_set_print(keep_words)) { libbpf_words = &text_; }
  ~LibbpfWords() {
    libbpf_words = nullptr;
    libbpf_set_print(before_);
  }
  std::string last_line() const {
    std::string text = text_;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text.substr(text.find_last_of('\n') + 1);
  }

 private:
  std::string text_;
  libbpf_print_fn_t before_;
};

std::string kernel_release() {
  utsname name{};
  uname(&name);
  return name.release;
}

std::string tail_of(const std::string& log) {
  const std::string text = log.substr(0, log.find('\0'));
  return text.size() > kVerifierTailBytes ? "..." + text.substr(text.size() - kVerifierTailBytes) : text;
}

Status failure(const std::string& what, int error) {
  const std::string reason = what + ": " + std::strerror(error);
  if (error == EPERM || error == EACCES) {
    return Status(ErrorCode::kPermissionDenied,
                  reason + "; the XDP dataplane needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON");
  }
  return Status(ErrorCode::kUnsupported,
                reason + " (kernel " + kernel_release() +
                    "; the XDP dataplane needs 5.15 or later with CONFIG_BPF_SYSCALL "
                    "and CONFIG_BPF_JIT)");
}

// Size of a value of the map `keys`.
uint32_t key_bytes(uint32_t payload_bytes) {
  return offsetof(netsum_xdp_key, table) + payload_bytes;
}

// The dataplane is one stripe.
netsum_key key_of(const DataplaneJob& job) {
  return wire::stripe_key(job.key, job.first_stripe);
}
netsum_key key_of_parent(const DataplaneJob& job) {
  return wire::stripe_key(job.parent->key, 0);
}

uint64_t peer_of(const Address& address) {
  uint32_t ip = 0;
  std::memcpy(&ip, address.ip.data(), sizeof ip);
  return netsum_xdp_peer(ip, htons(address.port));
}

}  // namespace

Result<std::unique_ptr<XdpProgram>> XdpProgram::load(const Options& options) {
  std::unique_ptr<XdpProgram> program(new XdpProgram(options));
  const Status status = program->open();
  if (!status.ok()) return status;
  return program;
}

// Before loading: sets the program's constants, which let the verifier remove unused code, and the sizes of its maps.
void XdpProgram::configure(uint32_t jobs, uint32_t slots) {
  std::memcpy(const_cast<uint32_t*>(&skeleton_->rodata->aggregator_ip), options_.address.ip.data(), 4);
  *const_cast<uint16_t*>(&skeleton_->rodata->data_port) = htons(options_.address.port);
  *const_cast<uint32_t*>(&skeleton_->rodata->payload_limit) = options_.payload_bytes;
  *const_cast<uint8_t*>(&skeleton_->rodata->multicast_ttl) = static_cast<uint8_t>(options_.multicast_ttl);
  const netsum_rate rate = netsum_rate_of(options_.job_packets_per_s);
  *const_cast<uint64_t*>(&skeleton_->rodata->rate_interval_ns) = rate.interval_ns;
  *const_cast<uint64_t*>(&skeleton_->rodata->rate_burst_ns) = rate.burst_ns;
  *const_cast<uint64_t*>(&skeleton_->rodata->inject_threshold) =
      static_cast<uint64_t>(std::llround(options_.inject_loss * 0x1p32));
  if (options_.multi_buffer) {
    for (bpf_program* program : {skeleton_->progs.netsum_aggregate, skeleton_->progs.netsum_address})
      bpf_program__set_flags(program, BPF_F_XDP_HAS_FRAGS);
  }
  bpf_map__set_max_entries(skeleton_->maps.jobs, jobs);
  bpf_map__set_max_entries(skeleton_->maps.rates, jobs);
  bpf_map__set_max_entries(skeleton_->maps.members, jobs * NETSUM_MAX_MEMBERS);
  bpf_map__set_max_entries(skeleton_->maps.parents, jobs);
  bpf_map__set_max_entries(skeleton_->maps.parent_jobs, 2 * jobs);  // an old job may not be removed yet
  bpf_map__set_max_entries(skeleton_->maps.slots, slots);
  bpf_map__set_max_entries(skeleton_->maps.lanes, slots * 2);
  bpf_map__set_value_size(skeleton_->maps.lanes, options_.payload_bytes);
  bpf_map__set_max_entries(skeleton_->maps.keys, jobs * 2);
  bpf_map__set_value_size(skeleton_->maps.keys, key_bytes(options_.payload_bytes));
  bpf_map__set_max_entries(skeleton_->maps.ports, jobs * NETSUM_MAX_MEMBERS);
  bpf_map__set_max_entries(skeleton_->maps.broadcasts, jobs);
}

Status XdpProgram::open() {
  const LibbpfWords words;
  cpus_ = libbpf_num_possible_cpus();
  skeleton_ = netsum_bpf__open();
  if (skeleton_ == nullptr) return failure("cannot open the XDP program", errno);
  configure(static_cast<uint32_t>(options_.max_jobs), options_.slots);

  // The verifier's log is requested only after a failure, because it costs memory and time.
  int error = netsum_bpf__load(skeleton_);
  if (error != 0 && error != -EPERM && error != -EACCES) {
    const std::string why = words.last_line();
    std::string log(kVerifierLogBytes, '\0');
    netsum_bpf__destroy(skeleton_);
    skeleton_ = netsum_bpf__open();
    if (skeleton_ == nullptr) return failure("cannot open the XDP program", errno);
    bpf_program__set_log_buf(skeleton_->progs.netsum_aggregate, log.data(), log.size());
    bpf_program__set_log_level(skeleton_->progs.netsum_aggregate, 1);
    configure(1, 1);
    const int again = netsum_bpf__load(skeleton_);
    const std::string tail = again != 0 ? tail_of(log) : "";
    return failure(
        "the kernel refuses the XDP program (" + why + ")" +
            (options_.multi_buffer ? "; for interfaces with an MTU above " +
                                         std::to_string(NETSUM_XDP_MAX_MTU) + " it needs Linux 5.18"
                                   : "") +
            (tail.empty() ? "" : "; the end of the verifier's log:\n" + tail + "\n"),
        -error);
  }
  if (error != 0) return failure("cannot load the XDP program", -error);

  return make_jobs();
}

// Does everything that needs privileges for all jobs that are possible, because the process drops them before jobs join.
Status XdpProgram::make_jobs() {
  jobs_.resize(static_cast<size_t>(options_.max_jobs));
  for (uint32_t index = 0; index < jobs_.size(); ++index) {
    Job& job = jobs_[index];
    job.key.reserve(options_.payload_bytes);
    job.entry = bpf_map_create(BPF_MAP_TYPE_ARRAY, "netsum_job", sizeof(uint32_t), sizeof(netsum_xdp_job), 1,
                               nullptr);
    job.broadcast = bpf_map_create(BPF_MAP_TYPE_DEVMAP, "netsum_ports", sizeof(uint32_t),
                                   sizeof(bpf_devmap_val), NETSUM_MAX_MEMBERS, nullptr);
    if (job.entry < 0 || job.broadcast < 0) return failure("cannot create the maps of a job", errno);
    if (bpf_map_update_elem(bpf_map__fd(skeleton_->maps.broadcasts), &index, &job.broadcast, BPF_ANY) != 0) {
      return failure("cannot set a device map", errno);
    }
  }
  return Status();
}

XdpProgram::~XdpProgram() {
  for (const int link : links_) close(link);
  for (const Job& job : jobs_) {
    for (const int map : {job.entry, job.broadcast}) {
      if (map >= 0) close(map);
    }
  }
  if (skeleton_ != nullptr) netsum_bpf__destroy(skeleton_);
}

Status XdpProgram::attach(const std::string& interface) {
  const uint32_t ifindex = if_nametoindex(interface.c_str());
  if (ifindex == 0) {
    return Status(ErrorCode::kInvalidArgument,
                  "there is no interface '" + interface + "' in this network namespace: see `ip link`");
  }
  if (const Status status = send_by(ifindex); !status.ok()) return status;
  LIBBPF_OPTS(bpf_link_create_opts, options, .flags = XDP_FLAGS_DRV_MODE);
  const int link = bpf_link_create(bpf_program__fd(skeleton_->progs.netsum_aggregate),
                                   static_cast<int>(ifindex), BPF_XDP, &options);
  if (link < 0) {
    const int error = errno;
    if (error == EBUSY) {
      return Status(ErrorCode::kAddressInUse,
                    "interface '" + interface +
                        "' has an XDP program already: `ip link` names it, `ip link set "
                        "dev " +
                        interface + " xdp off` removes it");
    }
    if (error == EOPNOTSUPP || error == EINVAL || error == ERANGE) {
      return Status(ErrorCode::kUnsupported,
                    "interface '" + interface + "' takes no native XDP program (" + std::strerror(error) +
                        "): its driver has none, or none for its MTU; use --dataplane user, or an MTU of " +
                        std::to_string(NETSUM_XDP_MAX_MTU) + " at most");
    }
    return failure("cannot attach to interface '" + interface + "'", error);
  }
  links_.push_back(link);
  ifindexes_.push_back(ifindex);
  return Status();
}

bpf_devmap_val XdpProgram::target(uint32_t ifindex) const {
  bpf_devmap_val target{};
  target.ifindex = ifindex;
  target.bpf_prog.fd = bpf_program__fd(skeleton_->progs.netsum_address);
  return target;
}

Status XdpProgram::send_by(uint32_t ifindex) {
  const bpf_devmap_val value = target(ifindex);
  if (bpf_map_update_elem(bpf_map__fd(skeleton_->maps.interfaces), &ifindex, &value, BPF_ANY) != 0) {
    if (errno == E2BIG) {
      return Status(ErrorCode::kResourceExhausted, "the XDP program can be attached to " +
                                                       std::to_string(NETSUM_XDP_MAX_PORTS) +
                                                       " interfaces at most");
    }
    return failure("cannot send to interface " + std::to_string(ifindex), errno);
  }
  return Status();
}

int XdpProgram::attached() const {
  return static_cast<int>(std::count_if(ifindexes_.begin(), ifindexes_.end(), [](uint32_t ifindex) {
    char name[IF_NAMESIZE];
    return if_indextoname(ifindex, name) != nullptr;
  }));
}

struct XdpProgram::SlotValue {  // as the map holds it
  uint32_t turn = 0, reserved = 0;
  netsum_slot slot{};
};

namespace {

constexpr int kSlotLooks = 100;
constexpr uint32_t kSlotsAtOnce = 256;

}  // namespace

uint64_t XdpProgram::slot_bytes(uint32_t payload_bytes) {
  return sizeof(SlotValue) + 2 * uint64_t{payload_bytes};
}

// By system calls of many slots each. The copy between two others with the same even turn is consistent.
std::vector<netsum_slot> XdpProgram::slots(uint32_t first_slot, uint32_t count) const {
  std::vector<netsum_slot> all(count);
  std::vector<SlotValue> before, values, after;
  for (uint32_t done = 0; done < count;) {
    const uint32_t some = std::min(count - done, kSlotsAtOnce);
    if (!read_slots(first_slot + done, some, &before) || !read_slots(first_slot + done, some, &values) ||
        !read_slots(first_slot + done, some, &after))
      break;
    for (uint32_t i = 0; i < some; ++i) {
      if (before[i].turn == after[i].turn && before[i].turn % 2 == 0)
        all[done + i] = values[i].slot;
      else
        all[done + i] = busy_slot(first_slot + done + i);
    }
    done += some;
  }
  return all;
}

bool XdpProgram::read_slots(uint32_t first_slot, uint32_t count, std::vector<SlotValue>* values) const {
  values->resize(count);
  uint32_t keys[kSlotsAtOnce];
  // A batch begins after the key that it is given.
  uint32_t before = first_slot - 1, last = 0, got = count;
  const int result =
      bpf_map_lookup_batch(bpf_map__fd(skeleton_->maps.slots), first_slot == 0 ? nullptr : &before, &last,
                           keys, values->data(), &got, nullptr);
  return (result == 0 || errno == ENOENT) && got == count;  // ENOENT: these were the last ones
}

// One that CPUs work on, alone: nothing of it if they hold it without a pause.
netsum_slot XdpProgram::busy_slot(uint32_t slot) const {
  const auto look = [&](SlotValue* value) {
    return bpf_map_lookup_elem(bpf_map__fd(skeleton_->maps.slots), &slot, value) == 0;
  };
  SlotValue before, value, after;
  for (int look_of = 0; look_of < kSlotLooks; ++look_of) {
    if (!look(&before) || !look(&value) || !look(&after)) break;
    if (before.turn == after.turn && before.turn % 2 == 0) return value.slot;
  }
  return {};
}

Status XdpProgram::set_slot(uint32_t slot, const netsum_slot& state, bool held) {
  SlotValue value;
  value.turn = held;
  value.slot = state;
  if (bpf_map_update_elem(bpf_map__fd(skeleton_->maps.slots), &slot, &value, BPF_ANY) != 0) {
    return failure("cannot write slot " + std::to_string(slot), errno);
  }
  return Status();
}

Status XdpProgram::install(const DataplaneJob& job, uint32_t first_slot) {
  const uint32_t index = job.job;
  Status status = fill(job, first_slot);
  // The last step: from here on the program finds the job, and nothing of it changes until remove().
  if (status.ok() &&
      bpf_map_update_elem(bpf_map__fd(skeleton_->maps.jobs), &index, &jobs_[index].entry, BPF_ANY) != 0) {
    status = failure("cannot install job " + std::to_string(index), errno);
  }
  if (!status.ok()) erase(index);
  return status;
}

// Requires that the program does not find the job.
Status XdpProgram::fill(const DataplaneJob& job, uint32_t first_slot) {
  const uint32_t index = job.job;
  const uint32_t slots = job.data_slots + job.scale_slots;
  for (uint32_t slot = first_slot; slot < first_slot + slots; ++slot) {
    if (const Status status = set_slot(slot, netsum_slot{}); !status.ok()) return status;
  }
  if (const Status status = set_key(netsum_xdp_key_of(index), key_of(job), job.tag); !status.ok())
    return status;
  jobs_[index].key.set(key_of(job), job.payload_bytes, job.tag);
  netsum_xdp_job value{};
  value.rules.epoch = job.epoch;
  value.rules.members = job.members;
  value.rules.slots = slots;
  value.rules.payload_bytes = job.payload_bytes;
  value.rules.has_parent = job.parent.has_value();
  value.first_slot = first_slot;
  if (job.parent) {
    value.parent_peer = peer_of(job.parent->stripes.front());
    value.parent.job = job.parent->job;
    value.parent.epoch = job.parent->epoch;
    value.parent.member = job.parent->member;
    if (const Status status = set_parent(job); !status.ok()) return status;
  }
  const netsum_job_rate nothing_spent{};
  const uint32_t only = 0;
  if (bpf_map_update_elem(bpf_map__fd(skeleton_->maps.rates), &index, &nothing_spent, BPF_ANY) != 0 ||
      bpf_map_update_elem(jobs_[index].entry, &only, &value, BPF_ANY) != 0) {
    return failure("cannot write job " + std::to_string(index), errno);
  }
  return Status();
}

void XdpProgram::remove(uint16_t job) {
  const uint32_t index = job;
  // The kernel returns from a change of a map of maps after all programs that may use the old map have ended. Only then may
  // the job's maps change and its slots be reused.
  bpf_map_delete_elem(bpf_map__fd(skeleton_->maps.jobs), &index);
  erase(index);
}

// Requires that the program does not find the job.
void XdpProgram::erase(uint32_t index) {
  Job& job = jobs_[index];
  for (uint32_t member = 0; member < NETSUM_MAX_MEMBERS; ++member) {
    bpf_map_delete_elem(job.broadcast, &member);
  }
  for (const Port& port : job.ports) {
    const netsum_xdp_port_key key{.job = index, .ifindex = port.ifindex};
    bpf_map_delete_elem(bpf_map__fd(skeleton_->maps.ports), &key);
  }
  job.ports.clear();
  job.key.wipe();
  const netsum_xdp_key none{};
  for (const uint32_t key : {netsum_xdp_key_of(index), netsum_xdp_parent_key_of(index)}) {
    bpf_map_update_elem(bpf_map__fd(skeleton_->maps.keys), &key, &none, BPF_ANY);
  }
  const netsum_xdp_member nobody{};
  for (uint32_t m = index * NETSUM_MAX_MEMBERS; m < (index + 1) * NETSUM_MAX_MEMBERS; ++m) {
    bpf_map_update_elem(bpf_map__fd(skeleton_->maps.members), &m, &nobody, BPF_ANY);
  }
  if (!job.parent) return;
  uint32_t holder = 0;
  // The parent may already have granted the same index to a later job, which has another index here.
  if (bpf_map_lookup_elem(bpf_map__fd(skeleton_->maps.parent_jobs), &*job.parent, &holder) == 0 &&
      holder == index) {
    bpf_map_delete_elem(bpf_map__fd(skeleton_->maps.parent_jobs), &*job.parent);
  }
  job.parent.reset();
}

Status XdpProgram::set_key(uint32_t index, const netsum_key& key, uint32_t tag) {
  netsum_xdp_key value{};
  value.key = key;
  if (tag == NETSUM_TAG_COOKIE) value.cookie = netsum_cookie(&key);
  netsum_make_table(&key, value.table, options_.payload_bytes / 4);
  const bool done = bpf_map_update_elem(bpf_map__fd(skeleton_->maps.keys), &index, &value, BPF_ANY) == 0;
  const int error = errno;
  explicit_bzero(&value, sizeof value);
  if (!done) return failure("cannot set key " + std::to_string(index), error);
  return Status();
}

Status XdpProgram::set_parent(const DataplaneJob& job) {
  const uint32_t index = job.job;
  const Status keyed = set_key(netsum_xdp_parent_key_of(index), key_of_parent(job), job.tag);
  if (!keyed.ok()) return keyed;
  netsum_xdp_member parent{};
  parent.peer = peer_of(job.parent->stripes.front());
  const netsum_xdp_parent_key key{.peer = parent.peer, .job = job.parent->job, .reserved = 0};
  jobs_[index].parent = key;
  if (bpf_map_update_elem(bpf_map__fd(skeleton_->maps.parents), &index, &parent, BPF_ANY) != 0 ||
      bpf_map_update_elem(bpf_map__fd(skeleton_->maps.parent_jobs), &key, &index, BPF_ANY) != 0) {
    return failure("cannot set the parent of job " + std::to_string(index), errno);
  }
  return Status();
}

// Whether the job's parent has answered a HELLO of full size, by a port that the program is attached to.
bool XdpProgram::parent_welcomed(uint16_t job) const {
  const uint32_t index = job;
  netsum_xdp_member parent{};
  bpf_map_lookup_elem(bpf_map__fd(skeleton_->maps.parents), &index, &parent);
  return parent.ifindex != 0;
}

netsum_xdp_member XdpProgram::member(uint16_t job, uint16_t member) const {
  netsum_xdp_member value{};
  const uint32_t index = uint32_t{job} * NETSUM_MAX_MEMBERS + member;
  bpf_map_lookup_elem(bpf_map__fd(skeleton_->maps.members), &index, &value);
  return value;
}

XdpProgram::Answer XdpProgram::answer_hello(const DataplaneJob& job, std::span<const uint8_t> datagram,
                                            const Address& from, uint8_t* frame) {
  netsum_fields fields;
  if (netsum_parse(datagram.data(), static_cast<uint32_t>(datagram.size()), &fields) != NETSUM_DROP_NONE ||
      fields.type != NETSUM_TYPE_HELLO || fields.job != job.job || fields.epoch != job.epoch ||
      fields.member >= job.members || fields.payload_bytes > job.payload_bytes) {
    return {};
  }
  const netsum_xdp_member noted = member(job.job, fields.member);
  if (noted.ifindex == 0 || noted.peer != peer_of(from)) return {};
  // A packet that arrived by an interface without the program has not been checked yet.
  const wire::PacketKey& key = jobs_[job.job].key;
  const uint64_t nh = netsum_nh(datagram.data() + NETSUM_HEADER_BYTES, fields.payload_bytes, key.table());
  if (!wire::check_is_right(datagram.data(), fields, key, nh)) return {};

  std::memset(frame + NETSUM_HEADER_BYTES, 0, fields.payload_bytes);
  fields.flags = 0;
  if (job.parent && !parent_welcomed(job.job)) {
    fields.job = job.parent->job;
    fields.epoch = job.parent->epoch;
    fields.member = job.parent->member;
    return {wire::write_header(fields, key_of_parent(job), frame), job.parent->stripes.front(), false};
  }
  if (!reach(job, fields.member, noted).ok()) return {};
  fields.type = NETSUM_TYPE_WELCOME;
  return {wire::write_header(fields, key, frame), from, true};
}

namespace {

// How to reach the multicast group through the port where `member` was heard. Its Ethernet address follows from its IP
// address.
netsum_xdp_member multicast_group_behind(const Address& group, const netsum_xdp_member& member) {
  netsum_xdp_member value{};
  value.peer = peer_of(group);
  value.ifindex = member.ifindex;
  const uint8_t mac[] = {0x01,        0x00,       0x5e, static_cast<uint8_t>(group.ip[1] & 0x7f),
                         group.ip[2], group.ip[3]};
  std::copy(std::begin(mac), std::end(mac), value.mac);
  std::copy(std::begin(member.our_mac), std::end(member.our_mac), value.our_mac);
  return value;
}

}  // namespace

// Idempotent, also after a failure.
Status XdpProgram::reach(const DataplaneJob& spec, uint16_t member, const netsum_xdp_member& where) {
  const uint16_t job = spec.job;
  const uint32_t ifindex = where.ifindex;
  std::vector<Port>& ports = jobs_[job].ports;
  auto port = std::find_if(ports.begin(), ports.end(), [&](const Port& p) { return p.ifindex == ifindex; });
  if (port == ports.end()) port = ports.insert(ports.end(), Port{.ifindex = ifindex, .members = {}});
  if (std::find(port->members.begin(), port->members.end(), member) != port->members.end()) return Status();
  std::vector<uint16_t> members = port->members;
  members.push_back(member);

  // First the members behind the port, then one more copy for it.
  const netsum_xdp_port_key key{.job = job, .ifindex = ifindex};
  netsum_xdp_port value{};
  value.count = static_cast<uint32_t>(members.size());
  if (spec.multicast_group.valid())
    value.multicast_group = multicast_group_behind(spec.multicast_group, where);
  std::copy(members.begin(), members.end(), value.members);
  static_assert(sizeof value % 8 == 0, "per-CPU values lie in steps of 8 bytes");
  const std::vector<netsum_xdp_port> values(static_cast<size_t>(cpus_), value);
  if (bpf_map_update_elem(bpf_map__fd(skeleton_->maps.ports), &key, values.data(), BPF_ANY) != 0) {
    return failure("cannot set up a port", errno);
  }
  // One copy for each member; to a multicast group one copy for the port, at the index of its first member.
  const uint32_t index = spec.multicast_group.valid() ? members.front() : member;
  const bpf_devmap_val copy = target(ifindex);
  if (bpf_map_update_elem(jobs_[job].broadcast, &index, &copy, BPF_ANY) != 0) {
    return failure("cannot send to interface " + std::to_string(ifindex), errno);
  }
  port->members = std::move(members);
  return Status();
}

uint64_t XdpProgram::counter(uint32_t index) const {
  const uint32_t zero = 0;
  std::vector<netsum_xdp_counters> values(static_cast<size_t>(cpus_));
  if (bpf_map_lookup_elem(bpf_map__fd(skeleton_->maps.counters), &zero, values.data()) != 0) return 0;
  uint64_t sum = 0;
  for (const netsum_xdp_counters& value : values) sum += value.values[index];
  return sum;
}

int XdpProgram::program_fd() const {
  return bpf_program__fd(skeleton_->progs.netsum_aggregate);
}

}  // namespace netsum
