// A worker's side of the control plane: joins a job and hears of its fate.
#ifndef NETSUM_SRC_CONTROL_CLIENT_H_
#define NETSUM_SRC_CONTROL_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "netsum/aggregator.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "src/control/membership.h"

namespace netsum {

struct JoinParameters {
  std::string address;  // control address of the aggregator, "host:port"
  std::string job;
  std::string token;             // of the job
  std::string aggregator_token;  // of the aggregator, when it has one
  int rank = 0;
  int world_size = 1;
  int mtu = 1500;
  uint32_t slots = 256;
  std::string shard_endpoint;  // embedded shards only
  uint32_t shard_payload_bytes = 0;
  uint32_t shard_slots = 0;
  std::string host;        // ranks of equal names share memory; empty: with nobody
  bool multicast = false;  // results may come by multicast: Membership::group
  TlsOptions tls;
  WhenFull when_full = WhenFull::kFail;
  std::chrono::milliseconds timeout{30'000};
  // Going on after a failure: Membership::succession_id of the job that failed, and how many operations of it
  // this rank has finished without a gap. With `min_members` above 0 the job starts without those who do not
  // come, `gather` after the last one that came: Membership::former_ranks. Such a job's own members alone can
  // join.
  uint64_t succeeds = 0;
  uint64_t completed = 0;
  int min_members = 0;
  std::chrono::milliseconds gather{0};
  // Silence after which the aggregator takes this rank for dead, or this rank the aggregator; 0: only when a
  // connection breaks.
  std::chrono::milliseconds liveness{0};
  // Called when another rank has left the running job in good order: what needs it cannot end any more. On a
  // thread of the client; must not block, nor destroy the client.
  std::function<void(int rank)> on_left;
  // Called with the ranks that are not here yet, at first and whenever that changes, until all are (then with
  // none). As on_left otherwise.
  std::function<void(const std::vector<int>&)> on_missing;
};

class ControlClient {
 public:
  // Joins and waits for the other ranks; retries a refused or absent connection until the timeout.
  // `on_failure` is called at most once, on a thread of the client, when the job fails or the aggregator is
  // lost after a successful join; it must not block, nor destroy the client.
  // Errors: kUnreachable, kPermissionDenied, kVersionMismatch, kInvalidArgument (world size, rank taken,
  // ...), kResourceExhausted, kTimeout (names the ranks missing; Status::rank() is the lowest), kPeerLost
  // (the job has been regrouped without this rank).
  static Result<std::unique_ptr<ControlClient>> join(const JoinParameters& parameters,
                                                     std::function<void(const Status&)> on_failure);
  virtual ~ControlClient() = default;  // leaves, in good order, waiting at most a second

  virtual const Membership& membership() const = 0;
  // In the job: the one asked for, unless ranks were renumbered.
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Tells the aggregator, and through it all members, that the job has failed. Waits at most a second.
  virtual void report_failure(const Status& status) = 0;
  // Counts what has come from the aggregator on the data path: while it grows, the aggregator is alive, even if
  // calls do not get through. Null: no more; it is not called after that.
  virtual void set_witness(std::function<uint64_t()> witness) = 0;
};

struct RemoteStatus {
  AggregatorStatus status;
  uint32_t protocol_version = 0;
  std::string dataplane;
  uint32_t payload_bytes = 0;
  double round_trip_us = 0;
};

// One status call. Errors: kUnreachable, kPermissionDenied, kTimeout.
Result<RemoteStatus> query_status(const std::string& address, const std::string& aggregator_token,
                                  const TlsOptions& tls, std::chrono::milliseconds timeout);

}  // namespace netsum

#endif  // NETSUM_SRC_CONTROL_CLIENT_H_
