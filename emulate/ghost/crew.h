// Ghosts: ranks of a job that send and receive its real packets at the times that their programs say, without tensors, models
// or processes. One thread drives all of them.
#ifndef NETSUM_EMULATE_GHOST_CREW_H_
#define NETSUM_EMULATE_GHOST_CREW_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "emulate/ghost/cast.h"
#include "emulate/ghost/player.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "session/job_membership.h"
#include "src/base/file_descriptor.h"
#include "src/encoding/without_tensors.h"
#include "src/net/packet_io.h"
#include "src/worker/worker_core.h"

namespace netsum::ghost {

// The clock of players: monotonic.
int64_t now_ns();

// Of one member: its packets that were not answered yet, and its round trip.
struct Flight {
  int64_t packets = 0, round_trip_us = 0;
};
// For how long results may wait, so that several are handled at once: the wake-ups of one thread for single results of many members
// would cost more than a link gives it time for, and what else runs on this machine would wait. 0: a member waits for its last packets,
// or round trips are short.
int64_t pause_us(std::span<const Flight> members);

struct Ghost {
  int rank = 0;
  std::vector<GroupJob> groups =
      {};  // as of Cast::groups(). Empty: that of all ranks, to which all operations belong
  std::vector<const program::Step*> steps;
  Knobs knobs;
  std::chrono::milliseconds joins_after{0};
};

struct CrewOptions {
  // As the real ranks have them, with the job, its token and its size.
  CommunicatorOptions communicator;
  std::vector<Ghost> ghosts;  // at least one, in the order of their ranks
  // Above 1: up to so many ghosts of consecutive ranks take part as an aggregator of theirs would: one member, whose contribution
  // leaves when the last of them has submitted. The job's aggregator is then the parent.
  int rack_size = 1;
  Contributions contributions =
      Contributions::kZeros;  // check_contributions(). A rack has those of its first ghost
  uint64_t seed = 1;          // of noise
  // Of operations of the steps: what is contributed to them (kRecorded). Must outlive the crew.
  std::unordered_map<const program::Operation*, std::span<const uint8_t>> values = {};
  // Whose computing that of all ghosts follows, and when it has submitted an operation of the group of all ranks, which are counted
  // from 0; 0: not yet. None: nobody's.
  std::optional<Pace> pace;
  std::function<int64_t(uint64_t operation)> leader_submitted_ns;
  // Calls `open`, which opens the sockets of that rank, or of the rack with that rank as its first, in the network namespace where
  // they belong.
  std::function<Status(int rank, const std::function<Status()>& open)> in_place_of;
  // A step of the first ghost has ended, or that of the others before their crash.
  std::function<void(uint64_t step)> on_step;
  // The ghost is about to begin the step in which it crashes. Must not return.
  std::function<void(int rank)> on_crash;
};

class Crew {
 public:
  // Joins the job of all ranks for all ghosts, and waits for the other ranks until the connect timeout. The ghosts join the jobs of
  // further groups while they play: real ranks make a group when they get there. Errors: as Communicator::connect;
  // kUnsupported: an option of the job, or an operation of a program, that ghosts do not have.
  static Result<std::unique_ptr<Crew>> join(CrewOptions options);
  // Leaves the jobs. Waits for the real ranks of groups that they have not made, as long as an operation may take.
  ~Crew();

  // Until all programs have ended, the job has failed, or stop() was called. Ok: they have ended.
  Status run();
  void stop() { stopped_.store(true); }  // any thread

  // Whether all groups have been made, so that leaving waits for nobody.
  bool has_all_groups() const { return all_open_; }
  const std::vector<Ghost>& ghosts() const { return options_.ghosts; }
  const Player& player(size_t ghost) const { return players_[ghost]; }
  // In all groups; those of a rack count as its first ghost's.
  uint64_t bytes_sent(size_t ghost) const;
  uint64_t bytes_received(size_t ghost) const;

 private:
  // A ghost, or a rack of ghosts, as one member of the job of a group.
  struct Member {
    std::vector<size_t> ghosts;  // of consecutive ranks
    const GroupJob* group = nullptr;
    std::vector<Memberships> memberships;  // of each ghost
    std::thread joining;                   // only of a further group
    std::atomic<bool> joined = false;
    FileDescriptor epoll;  // of its sockets
    std::unique_ptr<PacketIo> io;
    std::unique_ptr<WorkerCore> core;  // null: not joined yet
    bool ready = false;                // connected
    int64_t unanswered = 0;            // packets of operations that have ended
    // Operations that not all of the ghosts have submitted yet: how many have.
    std::unordered_map<uint64_t, size_t> submitted;
    std::vector<std::pair<uint64_t, OperationSpec>> waiting;  // until it is ready
    std::chrono::steady_clock::time_point waiting_since;      // where there are any
    int64_t due_us = 0;                                       // when it has something to do without a packet
  };

  explicit Crew(CrewOptions options);
  void add_members();
  Status join_all();
  Status join(Member* member, std::chrono::steady_clock::time_point deadline);
  void join_further_groups();
  // Opens what has been joined meanwhile, and begins to play in what is connected.
  Status open_joined();
  Status open(size_t member);
  void connect(Member* member, int64_t deadline_us);
  // Drives all until `done` or a failure.
  Status drive(const std::function<bool()>& done);
  void wait(int64_t until_us, std::vector<bool>* ready);
  static Flight flight_of(Member* member);
  // Submits what is due by the programs of all ghosts: before and between the bursts of one, so that no other is late.
  void play_due();
  void follow_leader();
  void play(size_t ghost);
  void submit(size_t ghost, const Player::Submission& one);
  // Handles what has arrived and what is due for one member, and sends.
  Status drive_one(Member* member, bool ready);
  void send(Member* member, std::span<const OutPacket> packets);
  Status take_completions(Member* member);
  void on_failure(const Status& status);
  void on_left(int rank);
  Status failure();
  // Of a further group in which operations wait: that the real ranks have not made it. Ok: there is none, or not for long.
  Status missing_group(bool others_left);

  CrewOptions options_;
  std::vector<Player> players_;   // of each ghost
  std::vector<uint64_t> of_all_;  // of the first ghost: the ids of these operations
  // [ghost][operation]; none: zeros.
  std::vector<std::vector<Contribution>> contributions_;
  int64_t soonest_ns_ = 0;  // no player has anything to do before
  // Those of the group of all ranks come first.
  std::vector<std::unique_ptr<Member>> members_;
  size_t main_members_ = 0;
  std::vector<std::vector<std::pair<int, Member*>>> member_of_;  // [ghost]: by the number of the group
  FileDescriptor epoll_;
  std::atomic<bool> stopped_ = false;
  bool plays_ = false;  // the programs have begun
  bool all_open_ = false;
  uint64_t told_ = 0;  // steps
  std::vector<InPacket> burst_;
  std::vector<Flight> flights_;
  std::vector<Player::Submission> submissions_;
  std::vector<WorkerCore::Completion> completions_;
  std::mutex mutex_;  // guards the following members
  Status failure_;
  Status left_;  // the first rank that has left in good order
  std::chrono::steady_clock::time_point left_at_;
};

}  // namespace netsum::ghost

#endif  // NETSUM_EMULATE_GHOST_CREW_H_
