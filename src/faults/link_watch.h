// Which link of a job is at fault, from what its aggregator counts for each member. No I/O, no clock.
//
// Losses: each edge and direction has a cumulative sum of log-likelihood ratios, of a bad loss rate p1 against the usual one p0:
//   S = max(0, S + lost ln(p1 / p0) + kept ln((1 - p1) / (1 - p0)))
// p0 is what the other members lose, because losses that all have say nothing about a link.
//
// Slowness: a member that begins an operation late is late with as many contributions as its window holds; from then on the
// results set the pace of all. One that is late with later contributions, too, is slower than the others, unless what it sent at
// the beginning still stands in the queue of its link: then it is not later and later within the first window.
#ifndef NETSUM_SRC_FAULTS_LINK_WATCH_H_
#define NETSUM_SRC_FAULTS_LINK_WATCH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace netsum::faults {

// Lost towards the aggregator; lost on the way back; slower: not known why, by the link, by the host.
enum class Kind : uint8_t { kLossUp, kLossDown, kSlow, kSlowLink, kSlowHost };
inline constexpr size_t kDirections = 2;  // up, down: the first two kinds

// Why a member is slow: by how many packets a receive call of it finds, on average, and one of the others, their median; 0: not known.
// Behind a slow link, packets come one by one, and calls find few or nothing. For a processor that has no time they wait in the
// socket, and a call finds many.
Kind cause_of(double packets_per_call, double others);

// Of contributions to the first window of operations: how late they came, by their place in it. A line through them tells a member
// that begins late (a) from one that is slower (b).
struct Beginnings {
  uint64_t count = 0, x = 0, y_us = 0, xx = 0, xy_us = 0;  // sums
  void add(uint64_t place, uint64_t late_us) {
    ++count;
    x += place;
    y_us += late_us;
    xx += place * place;
    xy_us += place * late_us;
  }
  void operator+=(const Beginnings& other) {
    count += other.count;
    x += other.x;
    y_us += other.y_us;
    xx += other.xx;
    xy_us += other.xy_us;
  }
  Beginnings operator-(const Beginnings& earlier) const {
    return {count - earlier.count, x - earlier.x, y_us - earlier.y_us, xx - earlier.xx,
            xy_us - earlier.xy_us};
  }
};
// Of y = a + b x with the least squares: a, b.
std::pair<double, double> line_through(const Beginnings& sums);

// Since the job's begin.
struct MemberTotals {
  std::array<uint64_t, kDirections> kept{}, lost{};  // packets
  // Of contributions behind the first window of their operations: how long after the first member's they came.
  uint64_t contributions = 0;
  uint64_t late_us = 0;
  Beginnings begin;
  // Of the member's data path, as it says; 0: it does not.
  uint64_t receive_calls = 0;
  uint64_t packets_received = 0;

  void add(const MemberTotals& other) {
    for (size_t i = 0; i < kDirections; ++i) {
      kept[i] += other.kept[i];
      lost[i] += other.lost[i];
    }
    contributions += other.contributions;
    late_us += other.late_us;
    begin += other.begin;
    receive_calls += other.receive_calls;
    packets_received += other.packets_received;
  }
};

struct Fault {
  size_t member = 0;
  Kind kind = Kind::kLossUp;
  double value = 0;   // lately: the share of packets that are lost, or microseconds
  double others = 0;  // the median of the other members'
};

class LinkWatch {
 public:
  // False alarms: less than one in an hour of 1e11 packets, all edges together, where nothing is wrong.
  static constexpr double kAlarm = 25;
  // Where S stops: an edge is cleared after at most this much evidence that it is good.
  static constexpr double kMost = 2 * kAlarm;
  static constexpr double kUsualLoss = 1e-4, kBadLoss = 1e-3;  // the least p0 and p1
  // A member is slow if it is later than so many times the median of the others and this, in thrice as many contributions more
  // than it is not.
  static constexpr double kTimesLater = 4, kLaterUs = 200, kContributions = 2048;

  // Of all members. Totals below the last ones have begun anew: what they lack is not known.
  void observe(std::span<const MemberTotals> totals);
  // A fault is in the list from the alarm until all evidence of it is gone, so one that comes and goes stays in it. By member.
  std::vector<Fault> faults() const;

 private:
  struct Edge {
    double kept = 0, lost = 0;          // lately: halved each kMemory packets
    double new_kept = 0, new_lost = 0;  // in the last observation
    double usual = 0;                   // the other members' loss
    double sum = 0;
    bool bad = false;
  };
  struct Member {
    MemberTotals before;
    std::array<Edge, kDirections> edges;
    double contributions = 0, late_us = 0;  // that have not been compared yet
    double late = 0, usual = 0;  // the last means, in microseconds: of this member, the median of the others
    double sum = 0;
    bool slow = false;
    Beginnings anchor;  // of begin, when the line was last drawn
    double a_us = 0, b_us = 0;
    double calls = 0, packets = 0;  // lately: halved each kCallMemory calls
    double packets_per_call() const { return calls == 0 ? 0 : packets / calls; }
  };

  static constexpr double kMemory = 131'072;  // eight operations of 16 MiB
  static constexpr double kCallMemory = 65'536;

  static void take(const MemberTotals& totals, Member* member);
  static void draw_line(const Beginnings& now, Member* member);
  void test_losses(size_t direction);
  void test_lateness();
  Kind cause(size_t member) const;
  bool only_begins_late(size_t member) const;

  std::vector<Member> members_;
};

}  // namespace netsum::faults

#endif  // NETSUM_SRC_FAULTS_LINK_WATCH_H_
