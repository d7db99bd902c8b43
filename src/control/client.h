// A worker's side of the control plane: joins a job and is notified of its failure.
#ifndef NETSUM_SRC_CONTROL_CLIENT_H_
#define NETSUM_SRC_CONTROL_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "src/control/membership.h"
#include "src/job/job_spec.h"

namespace netsum {
namespace control {
class Beat;
}

// What a rank says for the plan of its job.
struct Sharing {
  LinkRate link;                        // of this rank
  std::vector<PlaceInfo> other_places;  // the further aggregators, in the order of all ranks
};

struct JoinParameters {
  std::string address;  // control address of the aggregator, "host:port"
  // Equal on all members. If it succeeds another job (`succeeds` is the succession_id of the failed one) and
  // `min_members` is above 0, the job starts `gather_ms` after the last arrival, without the missing ranks:
  // Membership::former_ranks.
  JobSpec job = new_job_spec();
  int rank = 0;
  std::string shard_endpoint;  // embedded shards only
  uint32_t shard_payload_bytes = 0;
  uint32_t shard_slots = 0;
  Capabilities shard;
  uint32_t shard_job = 0;  // what the shard calls the job, beside an aggregator
  // What the aggregator is to plan with, if it is the first of the job's.
  std::optional<Sharing> sharing;
  std::string host;        // ranks of equal names share memory; empty: with nobody
  bool multicast = false;  // results may come by multicast: Membership::multicast_group
  TlsOptions tls;
  std::chrono::milliseconds timeout{30'000};
  uint64_t completed = 0;  // operations of the succeeded job that this rank has finished without a gap
  // Silence after which the aggregator counts this rank as lost, and this rank the aggregator; 0: only when a
  // connection breaks.
  std::chrono::milliseconds liveness{0};
  // Why joining is of no use any more, or ok; asked while this waits for the other ranks. May be null.
  std::function<Status()> given_up;
  // Called when another rank has left the running job in good order: operations that need it cannot finish. On a thread
  // of the client; must not block or destroy the client.
  std::function<void(int rank)> on_left;
  // Called with the ranks that have not joined yet: at first, whenever this changes, and with none when all have
  // joined. Otherwise as on_left.
  std::function<void(const std::vector<int>&)> on_missing;
};

// Times are sent as 32 bits of milliseconds; longer ones become 49 days.
uint32_t to_wire(std::chrono::milliseconds time);

class ControlClient {
 public:
  // Joins and waits for the other ranks; retries a refused or absent connection until the timeout.
  // `on_failure` is called at most once, on a thread of the client, when the job fails or the aggregator is
  // lost after a successful join; it must not block or destroy the client.
  // Errors: kUnreachable, kPermissionDenied, kVersionMismatch, kInvalidArgument (world size, rank taken,
  // ...), kResourceExhausted, kTimeout (names the ranks missing; Status::rank() is the lowest), kPeerLost
  // (the job has been regrouped without this rank).
  static Result<std::unique_ptr<ControlClient>> join(const JoinParameters& parameters,
                                                     std::function<void(const Status&)> on_failure);
  virtual ~ControlClient() = default;  // leaves in good order; waits at most 5 s for a stalled aggregator

  virtual const Membership& membership() const = 0;
  // The rank in the job: as requested, unless ranks were renumbered.
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Reports to the aggregator, and through it to all members, that the job has failed. Waits at most a second.
  virtual void report_failure(const Status& status) = 0;
  // No callback starts from now on, and on return none is in progress.
  virtual void detach() = 0;
  // Leaves in good order, before destruction, and learns of the others as long as they may need this rank's shard.
  virtual void leave_and_stay() = 0;
  // Waits for `patience`, or until the other members need nothing from this one: they have left, or the job has failed. Returns
  // whether they need nothing; always false if the aggregator, of an older release, does not tell one that has left.
  virtual bool others_need_nothing(std::chrono::milliseconds patience) = 0;
  // As Heartbeat::set_witness().
  virtual void set_witness(std::function<uint64_t()> witness) = 0;
  // As the same of Heartbeat. Without heartbeats they do nothing, and say nothing.
  virtual void set_beat(std::function<void(control::Beat*)> tell) = 0;
  virtual std::string hang() const = 0;
};

// What the aggregator at `address` is to the share planner. Tries again while nothing answers there, until `timeout`.
// Errors: kUnreachable, kPermissionDenied, kVersionMismatch (an older release, without plans), kTimeout.
Result<PlaceInfo> query_place(const std::string& address, const std::string& aggregator_token,
                              const TlsOptions& tls, std::chrono::milliseconds timeout);

// What the plan of a running job is made from.
struct RemoteTopology {
  std::string job;
  std::vector<LinkRate> links;  // by rank
  bool shards = false;          // every rank has offered one
  std::vector<PlaceInfo> places;
  std::string plan;  // in one line, for people
};

// That of the job `job` at this aggregator; "": of its only one. One call, without further tries. Errors:
// kInvalidArgument (no such job, or several), kUnsupported (it has made no plan), kUnreachable, kPermissionDenied,
// kVersionMismatch (an older release), kTimeout.
Result<RemoteTopology> query_topology(const std::string& address, const std::string& job,
                                      const std::string& aggregator_token, const TlsOptions& tls,
                                      std::chrono::milliseconds timeout);

struct RemoteStatus {
  AggregatorStatus status;
  uint32_t protocol_version = 0;
  std::string dataplane;
  uint32_t payload_bytes = 0;
  double round_trip_us = 0;  // the shortest of all but the first, which connects
  // How far the aggregator's wall clock is ahead of this one, in microseconds.
  int64_t least_ahead_us = INT64_MIN, most_ahead_us = INT64_MAX;

  // It read `unix_ms`, with the rest cut off, while this end's wall clock went from `begin_us` to `end_us`. Narrows the bounds
  // to what all calls allow; if a clock was set between them, to what the shortest one allows.
  void note_clock(uint64_t unix_ms, int64_t begin_us, int64_t end_us);
};

// Several calls on one connection, and the last answer. Errors: kUnreachable, kPermissionDenied, kTimeout.
Result<RemoteStatus> query_status(const std::string& address, const std::string& aggregator_token,
                                  const TlsOptions& tls, std::chrono::milliseconds timeout, int calls = 2);

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_CLIENT_H_
