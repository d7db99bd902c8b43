// What a caller can choose. Every field states its meaning, unit, default and the reason for it.
#ifndef NETSUM_OPTIONS_H_
#define NETSUM_OPTIONS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "netsum/status.h"

namespace netsum {

// Transport security for the control connection. Empty strings mean plaintext. Contents are PEM text, not
// paths: only the command and the Python package read files.
struct TlsOptions {
  std::string ca_cert;      // verifies the other end
  std::string cert;         // this end's certificate; a client needs one where the server asks for it (mTLS)
  std::string private_key;  // of `cert`
  bool require_client_cert = false;  // server only
  bool enabled() const { return !ca_cert.empty() || !cert.empty(); }
};

// How a worker's packets come and go.
enum class PacketIoKind {
  kUdp,    // UDP sockets, with segmentation offloads
  kAfXdp,  // frames by rings shared with the kernel, past its network stack: IPv4, Ethernet, Linux 5.15 or
           // later; root, or CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW. One communicator per interface.
};

// What becomes of a communicator whose aggregator is lost.
enum class FailurePolicy {
  kFail,      // it breaks, as by any other failure; Communicator::regroup() can mend it
  kFailover,  // it goes on at another aggregator, and nobody notices. Costs a copy of every operation's
              // inputs, and shared memory between ranks of a host is not used.
};

// What a job does that finds an aggregator full: no free slots, or as many jobs as it serves.
enum class WhenFull {
  kFail,   // connecting fails: kResourceExhausted
  kWait,   // it waits for its turn, first come, first served, up to connect_timeout
  kHosts,  // it is summed by shards embedded in the ranks, to its end; `root` must be set. In-network sums as
           // best effort: after ATP (Lao et al., NSDI 2021), but for a whole job.
};

// Faults made on purpose, to see what losses cost and that nothing goes wrong: for tests, never in
// production.
struct InjectedFaults {
  // Probability, 0 to 1, that a packet received is dropped, unlooked at. 0: none, at no cost.
  double loss = 0;
  // The same seed and the same packets lose the same ones. Without effect with kXdp: the kernel's randomness
  // has none.
  uint64_t seed = 1;
};

struct CommunicatorOptions {
  // --- Who takes part -------------------------------------------------------------------------------------
  int rank = 0;
  int world_size = 1;           // 1 to kMaxRanks; above kMaxMembers a hierarchy of aggregators is needed
  std::string job = "default";  // the job's name, the same on every rank; unique per aggregator
  // Shared secret of the job's ranks, at most 256 bytes. Ranks with another token cannot join: to an aggregator theirs
  // is another job, even under the same name. With embedded shards nobody without it can use rank 0's control service.
  std::string token;
  // What an aggregator that was started with a token (AggregatorOptions::token) wants to see before anything.
  std::string aggregator_token;

  // --- Where the sums happen ------------------------------------------------------------------------------
  // Control addresses "host:port" of aggregators ("[::1]:5151" for IPv6); chunks are striped over all of
  // them. Empty: every rank embeds a shard of an aggregator, and `root` must be set.
  std::vector<std::string> aggregators;
  // Embedded shards only: "host:port" of rank 0's control service. Rank 0 listens there, the others connect.
  // With port 0 rank 0 picks a free port and reports it through `on_root_bound`, before it waits for the
  // rest.
  std::string root;
  std::function<void(const std::string& address)> on_root_bound;
  // Embedded shards only: the address that this rank's shard listens on and that the other ranks can reach.
  // Empty: the address of the route to `root`.
  std::string bind_address;
  TlsOptions tls;
  WhenFull when_full = WhenFull::kFail;  // the same on every rank

  // --- Ranks on one host ----------------------------------------------------------------------------------
  // Ranks on one host are summed in shared memory, and enter the network as one; the sums are the same bits.
  bool shared_memory = true;
  // What ranks that share memory have in common. Empty: recognised by the kernel's boot id, the network
  // namespace and the user. Ranks that are told otherwise must in fact be able to share it.
  std::string host;

  // --- Deadlines ------------------------------------------------------------------------------------------
  std::chrono::milliseconds connect_timeout{30'000};  // for all ranks to join and every data path to answer
  std::chrono::milliseconds timeout{30'000};          // default deadline of an operation

  // --- Failures (docs/failures.md) ------------------------------------------------------------------------
  // Silence after which a rank, or an aggregator, is taken for stopped or unreachable; a process that dies is
  // noticed by the end of its connection. Signs of life come from a thread of their own, so a rank may compute for as long as it
  // likes. 5 s: a machine with a dozen processes per core keeps a thread waiting for whole seconds, and a
  // false alarm costs the job. Where each rank has its cores, 800 ms (known in less than a second) or even 80
  // ms do. 0: never.
  std::chrono::milliseconds liveness_timeout{5'000};
  FailurePolicy on_failure = FailurePolicy::kFail;
  // kFailover only: control addresses of aggregators to go on at, tried in this order after `aggregators`
  // themselves, which may have been restarted. "hosts" stands for shards embedded in the ranks: `root` must
  // be set, too. All must grant the same payload: results would differ in bits.
  std::vector<std::string> fallback_aggregators;
  // kFailover only: how long to look for an aggregator at which all ranks meet.
  std::chrono::milliseconds failover_timeout{30'000};

  // --- Tuning (defaults are right for most) ---------------------------------------------------------------
  // Largest IP packet on the path, bytes. 1500 is Ethernet's; set 9000 where every hop has jumbo frames.
  // The connection handshake sends packets of the full size, so a wrong value is found at once.
  int mtu = 1500;
  // Slots (chunks in flight) asked for per stripe, a power of two. 256 x 1440 bytes cover 10 Gbit/s x 290 us.
  int slots = 256;
  // Where kAfXdp cannot be had, packets go by UDP, and Communicator::describe() says why. UDP is the default
  // because it asks for no privilege and shares interfaces.
  PacketIoKind packet_io = PacketIoKind::kUdp;
  // Bits per element on the wire for bfloat16 and float16; the same on every rank. 16: half the bytes, each
  // block of elements in fixed point with 11 to 15 bits below its largest magnitude, for at most 16 ranks.
  // 32: 25 to 31 bits, for tensors whose small elements matter beside large ones. 0: 16 where the number of
  // ranks allows it, else 32. Other types always have 32 bits (int64: 64). Error bounds: docs/numerics.md.
  int lane_bits = 0;

  // Every rank draws losses of its own. Counted in CommunicatorStats::drops as "injected".
  InjectedFaults inject;

  // --- Being watched (docs/operations.md) -----------------------------------------------------------------
  // Serve /metrics, /healthz and /readyz over HTTP at this "host:port", from the moment of connecting on;
  // port 0 takes a free one (CommunicatorStats::metrics_address). Communicators of one process share an
  // address. Empty: nowhere.
  std::string metrics_address;
  // Write a trace of the newest 65 536 operations to this file when the communicator ends, for
  // ui.perfetto.dev; "{rank}" and "{job}" in it are replaced. Empty: no trace.
  std::string trace_path;
};

// Who adds.
enum class DataplaneKind {
  kUser,  // threads of this process, over UDP sockets: no privilege needed
  kXdp,   // an XDP program in the kernel, at the driver: Linux 5.15 or later; root, or CAP_BPF and
          // CAP_NET_ADMIN
};

// What happened in an aggregator's control plane: for logs.
struct AggregatorEvent {
  enum class Kind {
    kJobBegan,      // its first member is about to join, or it was created ahead
    kMemberJoined,  // rank, host
    kJobRunning,    // every rank has joined
    kMemberLeft,    // rank, host: in good order
    kMemberLost,    // rank, host: without a goodbye
    kJobFailed,     // reason
    kJobEnded,      // nobody is left
    kJoinRefused,   // rank, host, reason
    kDraining,      // no job is accepted any more
  };
  Kind kind = Kind::kDraining;
  std::string job;
  int rank = -1;
  std::string host;
  int joined = 0;  // members of the job now
  int world_size = 0;
  std::string reason;
};

struct AggregatorOptions {
  // Control service, "host:port"; port 0 picks a free one. Data ports follow on the same host.
  std::string listen = "0.0.0.0:5151";
  int data_port = 0;  // first UDP data port, one per core in a row; 0: any free ones
  int cores = 1;      // data-path threads, each with its own socket and slots: no locks between them
  // Memory bound: slots x 2 rounds x (mtu - headers) bytes per core, allocated at start.
  int slots_per_core = 4096;
  int max_jobs = 64;
  // What one job may have on each core, so that it leaves the others theirs. 0: no limit.
  int job_slots = 0;  // more than 16, which carry block scales; a job that asks for more is refused
  int64_t job_memory_bytes = 0;  // the same in bytes: what slots cost depends on mtu and dataplane
  // Packets per second from all members together, to 100 million; contributions, packets that ask, and
  // repeated or outdated ones count separately. What a job has not used for 0.1 s it may send at once; the
  // rest is refused (drop_over_rate), which its members take for loss, and slow down.
  int64_t job_packets_per_second = 0;
  int mtu = 1500;  // largest packet accepted, bytes
  DataplaneKind dataplane = DataplaneKind::kUser;
  // kXdp only: the interfaces by which workers' packets come in. `listen` must then name the IPv4 address
  // that they are sent to; `cores` has no meaning (packets are added on whichever CPU they arrive).
  std::vector<std::string> interfaces;
  // Results leave as one IP multicast packet, which the network replicates, instead of one copy per member:
  // the IPv4 multicast prefix, e.g. "239.1.2.0/24", of which every job gets an address. `listen` must then
  // name an IPv4 address of this host, whose interface they leave by. Jobs with a member that cannot receive
  // them get copies. Empty: copies for all.
  std::string multicast;
  int multicast_ttl = 1;  // hops that such packets live: 1 stays in the local network
  std::string token;      // when set, only joins that present it may create jobs
  TlsOptions tls;
  // Hierarchy: control address "host:port" of the aggregator that sums the sums of this one and its like (a
  // spine above racks). All ranks of a job that join here become one member there. Empty: none.
  std::string parent;
  std::string parent_token;  // what the parent's `token` is
  // Called once, by start(), on its own thread, when all that may need privilege is open (data sockets, the
  // XDP program on its interfaces) and before there is any thread: a daemon drops its capabilities here, and
  // all threads are without them. (Sockets of the control service and of metrics are opened later.) An error
  // ends start().
  std::function<Status()> drop_privileges;
  // Counted as "drop_injected". With kXdp only of netsum's packets.
  InjectedFaults inject;
  // Called for every event in order, on the control plane's threads. It must not block, nor call the
  // aggregator.
  std::function<void(const AggregatorEvent&)> on_event;
  // A job whose members have all gone is forgotten at once; one whose members never all came, after this.
  std::chrono::milliseconds join_timeout{60'000};
};

inline constexpr int kMaxMembers = 64;  // per aggregator: one bit each in a slot's seen-bitmap
inline constexpr int kMaxRanks = 512;   // per job: members of a hierarchy of aggregators

}  // namespace netsum

#endif  // NETSUM_OPTIONS_H_
