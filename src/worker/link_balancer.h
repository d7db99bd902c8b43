// Moves shares away from the embedded shards of ranks whose own link has become slow, and back.
//
// Every sum needs the contribution of such a rank, so no stripe is clearly the slowest, and ShareBalancer sees nothing. But this
// rank is the last in the sums of the other ranks' shards, or its shard is late: then the others wait for its results before
// they send to other shards, and one of them is the last there. Which of the two is more frequent depends on the windows,
// which stop growing when a queue forms, and differ. So both count. Where all are equal, one may often be the last, too, so
// this is only a reason to try: the share stays away if operations become faster, as the rank measures it that begins last.
// No share at all is close to the best one (for 8 ranks, 6 % slower at most), so a trial takes all of it; a share comes back
// by halves of what is missing.
//
// Of several slow links, one may hide the others: they show when its share is away, while operations are as slow as before. So
// whoever is found then joins the trial, which is judged with all of them.
//
// A trial that fails is repeated after a pause, which doubles with each failure: shares must not follow a link that flaps.
// All ranks pass the same sums to take(), so all have the same shares. Only integers are used. Thread rule: one thread.
#ifndef NETSUM_SRC_WORKER_LINK_BALANCER_H_
#define NETSUM_SRC_WORKER_LINK_BALANCER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace netsum {

class LinkBalancer {
 public:
  static constexpr uint32_t kWhole = 256;
  // With fewer ranks, the load of a link does not depend on its rank's share.
  static constexpr size_t kFewestRanks = 3;

  explicit LinkBalancer(size_t ranks) : ranks_(ranks) {}

  // What all ranks have measured in a period. By rank: in how many sums of all shards it was the last; the part of all sums that
  // its own shard made, in thousandths; how long it took for a chunk, in ns; for which part of the time the other ranks held
  // back the stripe of its shard, in thousandths, on average. 0 ns of a rank: it has measured nothing. Returns true if parts
  // have changed.
  bool take(std::span<const int32_t> last, std::span<const int32_t> own_share, std::span<const int32_t> ns,
            std::span<const int32_t> held);

  // Which part of its planned share the shard of a rank has, of kWhole.
  uint32_t part(size_t rank) const { return ranks_[rank].part; }
  // What was changed last is not judged yet: the next period can be short.
  bool tries() const { return trial_ != 0; }

 private:
  struct Rank {
    uint32_t part = kWhole;
    uint32_t before = kWhole;  // the trial
    bool tried = false;        // in this trial
    bool slow = false;         // by what was measured in this period
    // In periods.
    uint32_t pause = 0;  // after the last failure
    uint32_t wait = 0;   // until the next trial
    uint32_t calm = 0;   // since the last trial
    uint32_t seen = 0;   // in a row: almost all sums waited for it
  };

  void find_slow(std::span<const int32_t> last, std::span<const int32_t> own_share,
                 std::span<const int32_t> held);
  int64_t others_wait(std::span<const int32_t> held) const;
  bool joins(int64_t ns);
  void judge(int64_t ns);
  void try_less(int64_t ns);
  void try_more(int64_t ns);
  void take_all(Rank* rank);
  void change(Rank* rank, uint32_t part);
  size_t most_slow() const { return std::max<size_t>(1, ranks_.size() / 3); }
  size_t away() const;
  bool is_whole() const;
  static void lengthen_pause(Rank* rank);

  std::vector<Rank> ranks_;
  int trial_ = 0;          // -1: of smaller parts, 1: of larger ones; 0: none
  int64_t before_ns_ = 0;  // the trial
  int64_t usual_ns_ = 0;   // with whole parts; 0: not known
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_LINK_BALANCER_H_
