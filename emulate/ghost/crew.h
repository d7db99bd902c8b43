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
#include <string>
#include <vector>

#include "emulate/ghost/player.h"
#include "netsum/options.h"
#include "netsum/status.h"
#include "session/job_membership.h"
#include "src/base/file_descriptor.h"
#include "src/net/packet_io.h"
#include "src/worker/worker_core.h"

namespace netsum::ghost {

// The clock of players: monotonic.
int64_t now_ns();

struct Ghost {
  int rank = 0;
  std::vector<const program::Step*> steps;
  Knobs knobs;
  std::chrono::milliseconds joins_after{0};
};

struct CrewOptions {
  // As the real ranks have them, with the job, its token and its size.
  CommunicatorOptions communicator;
  std::vector<Ghost> ghosts;  // at least one
  // Calls `open`, which opens the sockets of that rank, in the network namespace where they belong.
  std::function<Status(int rank, const std::function<Status()>& open)> in_place_of;
  // A step of the first ghost has ended, or that of the others before their crash.
  std::function<void(uint64_t step)> on_step;
  // The ghost is about to begin the step in which it crashes. Must not return.
  std::function<void(int rank)> on_crash;
};

class Crew {
 public:
  // Joins the job for all ghosts, and waits for the other ranks until the connect timeout. Errors: as Communicator::connect;
  // kUnsupported: an option of the job, or an operation of a program, that ghosts do not have.
  static Result<std::unique_ptr<Crew>> join(CrewOptions options);
  ~Crew();  // leaves the job

  // Until all programs have ended, the job has failed, or stop() was called. Ok: they have ended.
  Status run();
  void stop() { stopped_.store(true); }  // any thread

  const std::vector<Ghost>& ghosts() const { return options_.ghosts; }
  const Player& player(size_t ghost) const { return members_[ghost]->player; }
  const PacketIoCounters& packets(size_t ghost) const { return members_[ghost]->io->counters(); }

 private:
  struct Member {
    explicit Member(Player&& of) : player(std::move(of)) {}

    Player player;
    Memberships memberships;
    FileDescriptor epoll;  // of its sockets
    std::unique_ptr<PacketIo> io;
    std::unique_ptr<WorkerCore> core;
    // When it has something to do without a packet, and when the thread must be awake for that.
    int64_t due_us = 0, awake_us = 0;
  };

  explicit Crew(CrewOptions options);
  Status join_all();
  Status open(size_t ghost);
  // Drives all until `done` or a failure.
  Status drive(const std::function<bool()>& done);
  void wait(int64_t until_us, std::vector<bool>* ready);
  // Submits what is due by the programs of all ghosts: before and between the bursts of one, so that no other is late.
  void play_due();
  void play(size_t ghost);
  // Handles what has arrived and what is due for one ghost, and sends.
  Status drive_one(size_t ghost, bool ready);
  Status take_completions(Member* member);
  void on_failure(const Status& status);
  void on_left(int rank);
  Status failure();

  CrewOptions options_;
  std::vector<std::unique_ptr<Member>> members_;
  FileDescriptor epoll_;
  std::atomic<bool> stopped_ = false;
  bool plays_ = false;  // the programs have begun
  uint64_t told_ = 0;   // steps
  std::vector<InPacket> burst_;
  std::vector<Player::Submission> submissions_;
  std::vector<WorkerCore::Completion> completions_;
  std::mutex mutex_;  // guards the following members
  Status failure_;
  Status left_;  // the first rank that has left in good order
  std::chrono::steady_clock::time_point left_at_;
};

}  // namespace netsum::ghost

#endif  // NETSUM_EMULATE_GHOST_CREW_H_
