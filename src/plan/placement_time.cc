#include "src/plan/placement_time.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace netsum::plan {
namespace {

// Rates are at most 2^47, there are less than 2^18 hosts and as many switches: all products in Wide are less than 2^127.

// a - b T, as a function of the time T.
struct WideLine {
  Wide a = 0;
  Wide b = 0;

  WideLine operator+(const WideLine& other) const { return {a + other.a, b + other.b}; }
};

// p / q, q > 0.
struct Time {
  Wide p = 0;
  Wide q = 1;
};

WideLine leaving(int64_t rate) {
  return {2, rate};
}

Wide value(const WideLine& line, const Time& time) {
  return line.a * time.q - line.b * time.p;
}

Fraction fraction(const Time& time) {
  return {integer(time.p), integer(time.q)};
}

Wide wide(const Integer& value) {
  const Integer high = value >> 62, low = value - (high << 62);
  return (Wide{high.convert_to<int64_t>()} << 62) + low.convert_to<int64_t>();
}

Time time_of(const Fraction& fraction) {
  return {wide(fraction.over()), wide(fraction.under())};
}

// The least f = 2 (parts) - T (rates of the links that leave) of a subtree, for each number of ranks and aggregators in
// it. `tie` decides between values that are equal at the time: the f of a slightly shorter time is larger by it.
struct Least {
  static constexpr Wide kNever = (Wide{1} << 126);

  Wide f = kNever;
  Wide tie = 0;

  bool possible() const { return f < kNever; }
  bool operator<(const Least& other) const { return f != other.f ? f < other.f : tie < other.tie; }
};

// Where a table's entry comes from: so many ranks and aggregators of the child that was added last.
struct Choice {
  uint32_t ranks = 0;
  uint32_t aggregators = 0;
};

struct Table {
  size_t first = 0, last = 0;  // numbers of ranks
  size_t sums = 0;             // the most aggregators
  std::vector<Least> least;    // [ranks - first][aggregators]

  Table(size_t from, size_t to, size_t most) : first(from), last(to), sums(most) {
    least.resize((to - from + 1) * (most + 1));
  }
  size_t index(size_t ranks, size_t aggregators) const { return (ranks - first) * (sums + 1) + aggregators; }
};

// The tables of all switches for one time. With `shorter`, for a time that is less than it by as little as one likes.
class Pass {
 public:
  Pass(const Cluster& cluster, const std::vector<std::vector<size_t>>& children,
       const std::vector<std::vector<int64_t>>& rates, const std::vector<bool>& tops, const Counts& counts,
       size_t ranks, size_t aggregators, const Time& time, bool shorter)  // kAll: not counted
      : cluster_(cluster),
        children_(children),
        rates_(rates),
        tops_(tops),
        counts_(counts),
        ranks_(ranks),
        all_sum_(aggregators == PlacementTimes::kAll),
        aggregators_(all_sum_ ? 0 : aggregators),
        time_(time),
        shorter_(shorter),
        tables_(cluster.switches.size(), Table(0, 0, 0)),
        choices_(cluster.switches.size()),
        summed_(cluster.switches.size()) {}

  // Whether all ranks can be placed.
  bool run() {
    for (size_t i = cluster_.switches.size(); i-- > 0;) {
      if (!fill(i)) return false;
      const Table& table = tables_[i];
      if (!tops_[i] || table.last < ranks_ || table.first > ranks_) continue;
      for (size_t j = 0; j <= table.sums && top_ == kNone; ++j) {
        if (!table.least[table.index(ranks_, j)].possible()) continue;
        // Other switches must then be able to hold none.
        top_ = i;
        used_ = j;
      }
    }
    return top_ != kNone;
  }

  TimedCounts placement() const {
    TimedCounts found;
    found.counts.resize(cluster_.switches.size());
    follow(top_, ranks_, used_, &found);
    std::sort(found.aggregators.begin(), found.aggregators.end());
    return found;
  }

 private:
  Least at(const WideLine& line) const { return {value(line, time_), shorter_ ? line.b : 0}; }

  // A link that carries a part of the gradient of all others takes at least 1 / rate.
  bool fast_enough(int64_t rate) const {
    const Wide slack = time_.p * rate - time_.q;
    return shorter_ ? slack > 0 : slack >= 0;
  }

  bool joins(const Least& sum) const {
    const Wide limit = 2 * time_.q;
    return sum.f < limit || (sum.f == limit && sum.tie <= 0);
  }

  Table own_hosts(size_t at_switch) const {
    const size_t most = std::min(counts_.most[at_switch], ranks_);
    Table table(counts_.least[at_switch], std::max(most, counts_.least[at_switch]), 0);
    WideLine all;
    for (size_t n = 0; n <= most; ++n) {
      if (n > 0) {
        const int64_t rate = rates_[at_switch][n - 1];
        if (!fast_enough(rate)) break;
        all = all + leaving(rate);
      }
      if (n >= table.first) table.least[table.index(n, 0)] = at(all);
    }
    return table;
  }

  bool fill(size_t i) {
    Table table = own_hosts(i);
    for (const size_t child : children_[i]) {
      choices_[i].emplace_back();
      table = joined(table, tables_[child], &choices_[i].back());
    }
    if (table.first > ranks_) return false;
    finish(i, &table);
    tables_[i] = std::move(table);
    return true;
  }

  Table joined(const Table& a, const Table& b, std::vector<Choice>* choices) const {
    Table table(a.first + b.first, std::max(a.first + b.first, std::min(a.last + b.last, ranks_)),
                std::min(a.sums + b.sums, aggregators_));
    choices->resize(table.least.size());
    for (size_t n = a.first; n <= a.last; ++n) {
      for (size_t j = 0; j <= a.sums; ++j) {
        const Least& one = a.least[a.index(n, j)];
        if (!one.possible()) continue;
        for (size_t m = b.first; m <= b.last && n + m <= table.last; ++m) {
          for (size_t k = 0; k <= b.sums && j + k <= table.sums; ++k) {
            const Least& other = b.least[b.index(m, k)];
            if (!other.possible()) continue;
            const Least sum{one.f + other.f, one.tie + other.tie};
            const size_t where = table.index(n + m, j + k);
            if (!(sum < table.least[where])) continue;
            table.least[where] = sum;
            (*choices)[where] = {static_cast<uint32_t>(m), static_cast<uint32_t>(k)};
          }
        }
      }
    }
    return table;
  }

  // From the sum over the parts to the f of the switch with its uplink.
  void finish(size_t i, Table* table) {
    const bool may_sum = cluster_.switches[i].sums && (all_sum_ || aggregators_ > 0);
    const size_t own = all_sum_ ? 0 : 1;  // aggregators that count
    const size_t sums = may_sum ? std::min(aggregators_, table->sums + own) : table->sums;
    Table done(table->first, table->last, sums);
    summed_[i].assign(done.least.size(), false);
    const bool has_uplink = i > 0;
    for (size_t n = table->first; n <= table->last; ++n) {
      const bool out = n < ranks_;
      if (out && n > 0 && (!has_uplink || !fast_enough(cluster_.switches[i].up))) continue;
      const Least closed = out && n > 0 ? at(leaving(cluster_.switches[i].up)) : Least{0, 0};
      for (size_t j = 0; j <= sums; ++j) {
        Least& best = done.least[done.index(n, j)];
        if (j <= table->sums) {
          const Least& parts = table->least[table->index(n, j)];
          if (n == 0) {
            best = parts;
          } else if (parts.possible() && joins({parts.f + closed.f, parts.tie + closed.tie})) {
            best = out ? std::max(parts, closed) : parts;
          }
        }
        if (!may_sum || j < own || n == 0 || j - own > table->sums) continue;
        if (table->least[table->index(n, j - own)].possible() && closed < best) {
          best = closed;
          summed_[i][done.index(n, j)] = true;
        }
      }
      // What is no better than with fewer aggregators is left out.
      Least with_fewer;
      for (size_t j = 0; j <= sums; ++j) {
        Least& best = done.least[done.index(n, j)];
        if (!(best < with_fewer)) {
          best = Least{};
        } else {
          with_fewer = best;
        }
      }
    }
    *table = std::move(done);
  }

  void follow(size_t i, size_t n, size_t j, TimedCounts* found) const {
    if (n == 0) return;
    const Table& table = tables_[i];
    if (summed_[i][table.index(n, j)]) {
      found->aggregators.push_back(i);
      j -= all_sum_ ? 0 : 1;
    }
    // The tables before the last child have the same first number, step by step.
    std::vector<std::pair<size_t, size_t>> spans(
        children_[i].size());  // first number of ranks, most aggregators
    size_t first = counts_.least[i], sums = 0;
    for (size_t c = 0; c < children_[i].size(); ++c) {
      first += tables_[children_[i][c]].first;
      sums = std::min(sums + tables_[children_[i][c]].sums, aggregators_);
      spans[c] = {first, sums};
    }
    for (size_t c = children_[i].size(); c-- > 0;) {
      const Choice& choice = choices_[i][c][(n - spans[c].first) * (spans[c].second + 1) + j];
      follow(children_[i][c], choice.ranks, choice.aggregators, found);
      n -= choice.ranks;
      j -= choice.aggregators;
    }
    found->counts[i] = n;
  }

  const Cluster& cluster_;
  const std::vector<std::vector<size_t>>& children_;
  const std::vector<std::vector<int64_t>>& rates_;
  const std::vector<bool>& tops_;
  const Counts& counts_;
  const size_t ranks_;
  const bool all_sum_;
  const size_t aggregators_;
  const Time time_;
  const bool shorter_;
  std::vector<Table> tables_;
  std::vector<std::vector<std::vector<Choice>>>
      choices_;                            // [switch][child][entry of the table joined so far]
  std::vector<std::vector<bool>> summed_;  // [switch][entry]
  size_t top_ = kNone, used_ = 0;
};

}  // namespace

PlacementTimes::PlacementTimes(const Cluster& cluster, std::vector<bool> tops)
    : cluster_(cluster),
      tops_(std::move(tops)),
      children_(cluster.children()),
      rates_(cluster.switches.size()) {
  for (const ClusterHost& host : cluster.hosts) {
    if (host.free) rates_[host.at].push_back(host.rate);
  }
  for (auto& rates : rates_) std::stable_sort(rates.begin(), rates.end(), std::greater<>());
}

std::optional<TimedCounts> PlacementTimes::least(const Counts& counts, size_t ranks,
                                                 size_t aggregators) const {
  // For the first time every link is fast enough, and every condition holds.
  const Time long_time{static_cast<Wide>(4 * (ranks + cluster_.switches.size() + 2)), 1};
  Pass any(cluster_, children_, rates_, tops_, counts, ranks, aggregators, long_time, false);
  if (!any.run()) return {};
  TimedCounts best = any.placement();
  best.time = of(best.counts, best.aggregators);
  if (auto found = less(counts, ranks, aggregators, best.time)) best = std::move(*found);
  Pass fewest(cluster_, children_, rates_, tops_, counts, ranks, aggregators, time_of(best.time), false);
  if (!fewest.run()) return best;
  TimedCounts found = fewest.placement();
  found.time = best.time;
  return found;
}

std::optional<TimedCounts> PlacementTimes::less(const Counts& counts, size_t ranks, size_t aggregators,
                                                const Fraction& time) const {
  std::optional<TimedCounts> best;
  while (true) {
    Pass pass(cluster_, children_, rates_, tops_, counts, ranks, aggregators,
              time_of(best ? best->time : time), true);
    if (!pass.run()) return best;
    TimedCounts found = pass.placement();
    found.time = of(found.counts, found.aggregators);
    best = std::move(found);
  }
}

bool PlacementTimes::feasible(const Counts& counts, size_t ranks, size_t aggregators,
                              const Fraction& time) const {
  return Pass(cluster_, children_, rates_, tops_, counts, ranks, aggregators, time_of(time), false).run();
}

Fraction PlacementTimes::of(const std::vector<size_t>& counts, const std::vector<size_t>& aggregators) const {
  std::vector<size_t> below = counts;
  for (size_t i = below.size(); i-- > 1;) below[cluster_.switches[i].parent] += below[i];
  const size_t ranks = below.front();
  if (ranks < 2) return {};
  std::vector<bool> sums(below.size());
  for (const size_t at : aggregators) sums[at] = true;
  Time time;
  const auto demand = [&](Wide p, Wide q) {
    if (p * time.q > time.p * q) time = {p, q};
  };
  std::vector<WideLine> hosts(below.size());
  for (size_t i = 0; i < below.size(); ++i) {
    if (counts[i] > 0) demand(1, rates_[i][counts[i] - 1]);
    if (below[i] > 0 && below[i] < ranks) demand(1, cluster_.switches[i].up);
    for (size_t n = 0; n < counts[i]; ++n) hosts[i] = hosts[i] + leaving(rates_[i][n]);
  }
  // Each pass starts from a time at which a condition just holds, and ends at the largest that one demands.
  for (bool again = true; again;) {
    const Time now = time;
    again = false;
    std::vector<WideLine> parts = hosts;
    for (size_t i = below.size(); i-- > 0;) {
      if (below[i] == 0) continue;
      const bool out = below[i] < ranks;
      const WideLine closed = out ? leaving(cluster_.switches[i].up) : WideLine{};
      WideLine f = parts[i];
      if (sums[i]) {
        f = closed;
      } else {
        const WideLine joined = parts[i] + closed;
        if (value(joined, now) > 2 * now.q) {
          demand(joined.a - 2, joined.b);
          again = true;
        }
        if (out && value(f, now) < value(closed, now)) f = closed;
      }
      if (i > 0) parts[cluster_.switches[i].parent] = parts[cluster_.switches[i].parent] + f;
    }
  }
  return fraction(time);
}

Fraction PlacementTimes::ring(const std::vector<size_t>& counts) const {
  std::vector<size_t> below = counts;
  for (size_t i = below.size(); i-- > 1;) below[cluster_.switches[i].parent] += below[i];
  const size_t ranks = below.front();
  if (ranks < 2) return {};
  int64_t slowest = kMostRate;
  for (size_t i = 0; i < below.size(); ++i) {
    if (counts[i] > 0) slowest = std::min(slowest, rates_[i][counts[i] - 1]);
    if (below[i] > 0 && below[i] < ranks) slowest = std::min(slowest, cluster_.switches[i].up);
  }
  return Fraction(static_cast<int64_t>(2 * (ranks - 1)), static_cast<int64_t>(ranks)) / Fraction(slowest);
}

double PlacementTimes::work(const Counts& counts, size_t ranks, size_t aggregators) const {
  if (aggregators == kAll) aggregators = 0;
  std::vector<double> entries(cluster_.switches.size()), sums(cluster_.switches.size());
  double work = 0;
  for (size_t i = entries.size(); i-- > 0;) {
    const auto most = static_cast<double>(ranks);
    double width = 1 + static_cast<double>(std::min(counts.most[i], ranks) - counts.least[i]);
    double used = 0;
    for (const size_t child : children_[i]) {
      work += width * entries[child] * (used + 1) * (sums[child] + 1);
      width = std::min(width + entries[child], most + 1);
      used = std::min(used + sums[child], static_cast<double>(aggregators));
    }
    entries[i] = width;
    sums[i] = std::min(used + (cluster_.switches[i].sums ? 1 : 0), static_cast<double>(aggregators));
  }
  return work;
}

}  // namespace netsum::plan
