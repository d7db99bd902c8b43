// Options of communicators and aggregators. The comment of each field states its meaning, unit, default and, where it
// is not obvious, the reason for the default. Default-constructed options are valid except where noted.
#ifndef NETSUM_OPTIONS_H_
#define NETSUM_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "netsum/status.h"

namespace netsum {

// TLS for the control connection. The strings contain PEM text, not paths, because only the command and the Python
// package read files. All empty: plaintext.
struct TlsOptions {
  std::string ca_cert;               // verifies the other end
  std::string cert;                  // this end's certificate; a client may need none
  std::string private_key;           // of `cert`
  bool require_client_cert = false;  // server only: refuse clients without a valid certificate (mTLS)
  bool enabled() const { return !ca_cert.empty() || !cert.empty(); }
};

// How a worker sends and receives packets.
enum class PacketIoKind {
  kUdp,  // UDP sockets with segmentation offload
  // Ethernet frames through rings shared with the kernel, bypassing its network stack (AF_XDP). Requires IPv4,
  // Ethernet, Linux 5.15 or later, and root or CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW. One communicator per
  // interface.
  kAfXdp,
};

// What a communicator does when it loses its aggregator.
enum class FailurePolicy {
  kFail,  // it breaks, as after any other failure; Communicator::regroup() can repair it
  // It continues at another aggregator, transparently to the caller. Costs a copy of every operation's inputs, and
  // ranks on one host do not sum in shared memory.
  kFailover,
};

// What a job does if an aggregator has no room for it: too few free slots, or already its maximum of jobs.
enum class WhenFull {
  kFail,  // connecting fails with kResourceExhausted
  kWait,  // it waits in a first-come, first-served queue, up to connect_timeout
  // The ranks sum with embedded shards until the job ends; `root` must be set. (In-network aggregation as best
  // effort, as in ATP, Lao et al., NSDI 2021, but for a whole job.)
  kHosts,
};

// How the chunks of a job are divided between its aggregators and the ranks' embedded shards.
enum class Shares {
  kOff,  // equal shares for all cores of the aggregators; without an aggregator, for all shards
  // A plan, made when the job is joined, in proportion to what each link can carry (docs/placement.md). Ranks embed
  // shards beside the aggregators where that is faster, but none beside a hierarchy of aggregators.
  // While the job runs, the ranks correct the shares of a plan whose rates prove to be wrong.
  kAuto,
  kPlanned,  // as kAuto, but the plan holds until the job ends
};

// What protects the sums of a job.
enum class Verify {
  kPacket,  // every packet carries a keyed tag, which aggregators verify and make: they are trusted to add right
  // Besides, every sum carries a tag that only the ranks make and verify: a wrong sum is never delivered, whether an aggregator,
  // its memory or a device on the way is to blame (docs/security.md#verified-sums). Only sums, means and collectives that move
  // bytes; others are refused with kUnsupported. Scales take a second round trip, and payloads have 16 to 24 bytes less room. Not
  // with lane_bits 8.
  kBoth,
  // The tag of sums alone. Packets carry a secret number of the job instead of a tag, which saves time and lets aggregators take
  // part that cannot compute tags. Wrong sums are found as with kBoth, but what is altered on the way to the aggregator spoils the
  // sum and fails the job (kWrongSum), and whoever can read packets can do that. An aggregator must announce it (kUnsupported).
  kSum,
};

// How floating-point tensors are summed (docs/numerics.md).
enum class Numerics {
  // As floats, in the order of the ranks, wherever processors sum: small elements beside large ones keep their digits. Elsewhere in
  // block fixed point.
  kAuto,
  // All in block fixed point: the same bits on every dataplane, in every placement of the ranks, and also after a failover from
  // one kind of dataplane to another. Each operation takes a second round trip.
  kFixed,
};

// Fault injection, for tests only.
struct InjectedFaults {
  // Probability, 0 to 1, with which a received packet is dropped before parsing. 0 has no cost.
  double loss = 0;
  // With the same seed and the same packets, the same packets are dropped. Ignored by DataplaneKind::kXdp, because
  // the kernel's random numbers cannot be seeded.
  uint64_t seed = 1;
  // Probability, 0 to 1, with which one bit flips in memory. Of a rank: of a received packet, before it is verified. Of an
  // aggregator: of a sum's lanes in the slot, before the sum is tagged; kUnsupported except with DataplaneKind::kUser.
  double flipped_bits = 0;
};

struct CommunicatorOptions {
  // --- Membership -----------------------------------------------------------------------------------------
  int rank = 0;                 // 0 to world_size - 1
  int world_size = 1;           // 1 to kMaxRanks; more than kMaxMembers require a hierarchy of aggregators
  std::string job = "default";  // the job's name, the same on every rank; unique per aggregator and token
  // Shared secret of the job's ranks, at most 256 bytes. At an aggregator, ranks with another token form another job,
  // even under the same name. With embedded shards, rank 0's control service refuses clients without it.
  std::string token;
  // Required by aggregators that were started with a token (AggregatorOptions::token).
  std::string aggregator_token;

  // --- Aggregators ----------------------------------------------------------------------------------------
  // Control addresses "host:port" of the aggregators ("[::1]:5151" for IPv6); chunks are striped over all of
  // them. Empty: every rank embeds a shard of an aggregator, and `root` must be set.
  std::vector<std::string> aggregators;
  // Embedded shards only: "host:port" of rank 0's control service. Rank 0 listens there, the others connect.
  // With port 0, rank 0 chooses a free port and passes its address to `on_root_bound` before it waits for the
  // other ranks.
  std::string root;
  std::function<void(const std::string& address)> on_root_bound;
  // The address at which this rank's embedded shard listens and the other ranks can reach it. Empty: the local address
  // of the route to the first of `aggregators` or, without any, to `root`.
  std::string bind_address;
  TlsOptions tls;
  WhenFull when_full = WhenFull::kFail;  // the same on every rank
  Shares shares = Shares::kAuto;         // the same on every rank
  Verify verify = Verify::kPacket;       // the same on every rank
  Numerics numerics = Numerics::kAuto;   // the same on every rank
  // Operations that recur, as in training, send data in the same round trip in which the ranks agree on scales, with the scales of
  // the time before. Results have the same bits; what was predicted wrong is sent twice. Not with Verify::kBoth. The same on
  // every rank.
  bool predict_scales = true;
  // Rate of this host's link in bits per second, in each direction: 1e3 to 1e14. 0: the speed that its interface reports
  // or, if it reports none, that of the slowest other rank.
  double link_rate_bps = 0;

  // --- Ranks on one host ----------------------------------------------------------------------------------
  // Ranks on one host sum in shared memory first, and only the host's sum enters the network. The result has the
  // same bits either way, except of floating-point tensors, of which the ranks of each host are then added first (Numerics::kAuto).
  bool shared_memory = true;
  // Identifies the ranks that share memory: those with equal values. Empty: the kernel's boot id, the network
  // namespace, its first Ethernet address and the user. Ranks with an equal explicit value must be able to share memory.
  std::string host;

  // --- Deadlines ------------------------------------------------------------------------------------------
  std::chrono::milliseconds connect_timeout{30'000};  // for all ranks to join and all data paths to answer
  std::chrono::milliseconds timeout{30'000};          // default deadline of an operation

  // --- Failures (docs/operations.md) ----------------------------------------------------------------------
  // Time without heartbeats or data after which a rank or an aggregator counts as lost; at least 20 ms. 0: never.
  // (A process that dies is detected at once, by the end of its connection.) A dedicated thread sends heartbeats,
  // so a rank may compute for any length of time. The default is long because a machine with a dozen processes per
  // core can delay a thread by seconds, and a false alarm ends the job. 800 ms, or even 80 ms, are safe if every
  // rank has its own cores.
  std::chrono::milliseconds liveness_timeout{5'000};
  FailurePolicy on_failure = FailurePolicy::kFail;
  // kFailover only: control addresses of further aggregators, tried in this order after `aggregators` themselves,
  // which may have restarted. "hosts" stands for shards embedded in the ranks, and requires `root`. All must grant
  // the same payload size, because results would otherwise differ in bits.
  std::vector<std::string> fallback_aggregators;
  // kFailover only: how long to search for an aggregator at which all ranks meet.
  std::chrono::milliseconds failover_timeout{30'000};

  // --- Tuning (the defaults suit most jobs) ---------------------------------------------------------------
  // Largest IP packet on the path, in bytes, 144 to 9000. Set 9000 if every hop supports jumbo frames. Connecting
  // sends packets of the full size, so it fails at once if the value is too large.
  int mtu = 1500;
  // Slots (chunks in flight) to request per stripe: a power of two, 1 to 1024. 256 slots of 1440 bytes cover
  // 10 Gbit/s x 290 us.
  int slots = 256;
  // If kAfXdp is not available, packets use UDP, and Communicator::describe() gives the reason. UDP is the default
  // because it needs no privileges and shares interfaces.
  PacketIoKind packet_io = PacketIoKind::kUdp;
  // For how long a thread that waits for packets or for ranks of its host polls before it sleeps, at most a minute. It yields
  // its core meanwhile, and sleeps if another thread needs it. Up to the default of 50 us: while that has paid lately. Longer:
  // always, from the last thing that came, while operations are in progress; for ranks that have a core each, whose small
  // operations it makes faster. 0: it sleeps at once, which saves energy; small operations take longer. Ranks may differ.
  std::chrono::microseconds spin{50};
  // Threads that send and receive, 0 to 64. The stripes (cores of aggregators, embedded shards) are divided among them, and
  // each has a socket of its own. One thread carries 7 to 10 Gbit/s. More than there are stripes are not started, and
  // Communicator::describe() warns of that, and of more than there are processor cores. 0: as many as the link's rate needs
  // at 8 Gbit/s each, at most half of the processor cores that this process may use (of which the ranks of one host that
  // share memory each have a part); one if the rate is unknown. One is the default, because the program needs the other cores.
  // Ranks may differ.
  int engine_threads = 1;
  // Bits per element on the wire; the same on every rank. For bfloat16 and float16, 16: half the bytes; fixed point
  // with 11 to 15 bits below the largest magnitude of a block, for at most 16 ranks. 32: 21 to 31 bits, for
  // tensors whose small elements matter beside large ones. 0: 16 for at most 16 ranks, otherwise 32. float32 has 32
  // bits with all of these. 8, for all three types: a quarter of float32's bytes, with 1 to 7 bits below the largest
  // magnitude (4 with 8 ranks), for at most 64 ranks and gradients whose error is fed back; only with aggregators that
  // add such lanes. int32 always has 32 bits, int64 64. Error bounds: docs/numerics.md.
  int lane_bits = 0;

  // The most that leaves this rank, in bits per second with all headers, 1e3 to 1e14: in any window of length t at most 16 full
  // packets and this rate x t. It keeps the queues on the way short. Packets to an embedded shard of this process do not count,
  // and what an embedded shard sends is not paced. 0: no limit. Ranks may differ, but all wait for the slowest.
  double pace_bps = 0;

  // With a period, this job takes turns with others that share links (`netsum plan --jobs`). The first operation waits for the next
  // of the times phase_offset + n phase_period since 1970, by the host's clock (CLOCK_REALTIME, read when the job starts). Later,
  // the first operation of a step, which comes after a pause, waits until aggregators in user space give the job its turn; with
  // embedded shards alone it waits for its phase, if it is early by up to half a period. No wait is longer than a period, or than
  // half the time to the deadline. The period is 1 ms to 60 s, about that of a step; the offset is shorter. 0: none waits.
  std::chrono::microseconds phase_period{0};
  std::chrono::microseconds phase_offset{0};

  // Every rank drops different packets. CommunicatorStats::drops counts them as "injected".
  InjectedFaults inject;

  // --- Monitoring (docs/operations.md) --------------------------------------------------------------------
  // "host:port" at which to serve /metrics, /healthz and /readyz over HTTP from the start of connect(). Port 0
  // chooses a free one (CommunicatorStats::metrics_address). Communicators of one process can share an address.
  // Empty: none.
  std::string metrics_address;
  // File to which the communicator writes a trace of its newest 65 536 operations when it ends, for
  // ui.perfetto.dev. "{rank}" and "{job}" in it are replaced. Empty: no trace.
  std::string trace_path;
};

// Which dataplane sums.
enum class DataplaneKind {
  kUser,  // threads of this process, with UDP sockets; needs no privileges
  // An XDP program in the kernel, at the network driver. Requires Linux 5.15 or later, and root or CAP_BPF,
  // CAP_NET_ADMIN and CAP_PERFMON.
  kXdp,
  // A switch that runs the P4 program of aggregator/p4, driven by P4Runtime. Its jobs need Verify::kSum.
  kP4,
};

// An event in an aggregator's control plane, for logs.
struct AggregatorEvent {
  enum class Kind {
    kJobBegan,       // the job exists; its first member is about to join
    kMemberJoined,   // sets rank, host
    kJobRunning,     // every rank has joined
    kMemberLeft,     // sets rank, host: the member left by request
    kMemberLost,     // sets rank, host: the member's connection ended without a request
    kJobFailed,      // sets reason
    kJobEnded,       // no member remains
    kJoinRefused,    // sets rank, host, reason
    kDraining,       // the aggregator accepts no more jobs
    kEventsLeftOut,  // sets reason: on_event was too slow for the events before this one
  };
  Kind kind = Kind::kDraining;
  std::string job;
  int rank = -1;
  std::string host;
  int joined = 0;      // members of the job after the event
  int world_size = 0;  // members of the complete job
  std::string reason;
  std::string plan;  // kJobRunning: AggregatorJobStatus::plan
};

// The switch of DataplaneKind::kP4.
struct P4SwitchOptions {
  // Of its P4Runtime server: "host:port", or "unix:PATH" of a socket. The connection is not encrypted. Required.
  std::string server;
  uint64_t device_id = 0;
  // Files that p4c has made of aggregator/p4: the P4Info in binary form, and the program in the form of the switch.
  // It is loaded at start, and after a restart of the switch. Both empty: the switch has the program already.
  std::string p4info_path;
  std::string config_path;
  // IPv4 address that the switch answers for, to which workers send. It must be no host's. Required.
  std::string address;
  // Of the switch: where frames to unknown addresses are sent. Required.
  std::vector<uint16_t> ports;
};

// An address of the aggregator's host at which contributions arrive, usually that of one interface.
struct AggregatorPort {
  std::string address;  // a host without a port number: "10.0.0.9", "fd00::9"
  // Of its link in bits per second, in each direction: 1e3 to 1e14. 0: what its interface reports. Give it for all ports
  // or for none.
  double link_rate_bps = 0;
};

struct AggregatorOptions {
  // "host:port" of the control service; port 0 chooses a free one.
  std::string listen = "0.0.0.0:5151";
  // kUser only: where contributions arrive, at most 64 addresses. Every port has stripes of its own, so members use all
  // of them. Empty: the host of `listen`.
  std::vector<AggregatorPort> ports;
  int data_port = 0;  // first UDP data port, followed by one per further stripe; 0: free ports
  // Data-path threads, 1 to 256. With at least as many cores as ports, each core is one stripe, and ports with a higher
  // rate have more of them; otherwise each port is one stripe, and cores serve several. Stripes share nothing, so they
  // need no locks.
  int cores = 1;
  // Of these threads, as CommunicatorOptions::spin; longer than 50 us: while there are jobs.
  std::chrono::microseconds spin{50};
  // kUser only. Each of these threads stays on one of the cores that the process may use, in ascending order, so there
  // must be at least as many. Keep other work off these cores (isolcpus, cpusets).
  bool pin = false;
  // Bounds the memory: slots x 2 rounds x (mtu - headers) bytes per stripe, allocated at start. 8 to 65 536.
  int slots_per_core = 4096;
  int max_jobs = 64;  // at the same time, 1 to 4096
  // Quota: slots that one job may have on each core, more than 16 (which carry block scales). Jobs that request more
  // are refused. 0: no limit.
  int job_slots = 0;
  int64_t job_memory_bytes = 0;  // the same quota in bytes; the size of a slot depends on mtu and dataplane
  // Quota: packets per second and core that all members of a job may send together, at most 100 million. It applies
  // separately to contributions, to packets that request an answer, and to repeated or outdated packets. A job may
  // send in one burst what it left unused during the last 0.1 s. Further packets are dropped (drop_over_rate); the
  // members treat this as loss and slow down. 0: no limit.
  int64_t job_packets_per_second = 0;
  // Quotas of one tenant: the address that the first rank of a job joins from (of IPv6, its first 64 bits; below an
  // aggregator, that aggregator's). Jobs that it may have at the same time, and their slots on each core. Further jobs are
  // refused. 0: no limit.
  int tenant_jobs = 0;
  int tenant_slots = 0;
  int mtu = 1500;  // largest IP packet accepted, in bytes
  DataplaneKind dataplane = DataplaneKind::kUser;
  // kXdp only, and required there: the interfaces at which workers' packets arrive. `listen` must then name the
  // IPv4 address to which they are sent. `cores` is ignored, because packets are summed on the CPU that receives
  // them.
  std::vector<std::string> interfaces;
  // kP4 only. The limits of the switch bound slots, jobs and payload. `cores`, `data_port` and `interfaces` are
  // ignored.
  P4SwitchOptions p4;
  // IPv4 multicast prefix, such as "239.1.2.0/24", from which every job gets an address. Each result then leaves as
  // one IP multicast packet instead of one copy per member. `listen` must name an IPv4 address of this host, whose
  // interface sends the results. Jobs with a member that cannot receive multicast use unicast. Empty: unicast.
  std::string multicast;
  int multicast_ttl = 1;  // of these packets; 1: the local network
  std::string token;      // if set, only clients that present it may create jobs
  TlsOptions tls;
  // Control address "host:port" of the parent in a hierarchy: the aggregator that sums the sums of this aggregator
  // and its siblings, for example a spine above racks. The ranks of a job that join here are one member there.
  // Empty: none.
  std::string parent;
  std::string parent_token;  // the parent's `token`
  // What the share planner of a job needs to know (Shares::kAuto). Rates are in bits per second, 1e3 to 1e14.
  // Of this host's link, in each direction, if there are no `ports`. 0: what its interface reports or, if it reports
  // none, that of the slowest member. In a switch with a parent: of the link to the parent; 0: no limit.
  double link_rate_bps = 0;
  double sum_rate_bps = 0;  // the most that it can sum, from each member; 0: no limit
  // Every member has a link of its own to this aggregator, as in a switch: only the members' links count. Always the
  // case with kXdp on several interfaces.
  bool in_switch = false;
  // start() calls it once, on the caller's thread, after it has opened everything that may need privileges (data
  // sockets, the XDP program on its interfaces) and before it starts a thread. A daemon drops its capabilities here,
  // so no thread ever has them. (The sockets of the control service and of metrics are opened later.) If it returns
  // an error, start() fails with it.
  std::function<Status()> drop_privileges;
  // Counted as "drop_injected" and "injected_flips". With kXdp, loss applies to netsum's packets only.
  InjectedFaults inject;
  // Called for every event, in order, on a thread of its own. It must return at some time, and not call the aggregator. If it
  // is so slow that thousands of events wait for it, further ones are left out and counted. Of refused joins, no more than a
  // few per second are events.
  std::function<void(const AggregatorEvent&)> on_event;
  // How long an incomplete job may wait for its members. (A job whose members have all left ends at once.)
  std::chrono::milliseconds join_timeout{60'000};
};

inline constexpr int kMaxMembers = 64;  // per aggregator: the width of the bitmap in a slot
inline constexpr int kMaxRanks = 512;   // per job, in a hierarchy of aggregators

}  // namespace netsum

#endif  // NETSUM_OPTIONS_H_
