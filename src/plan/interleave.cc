#include "src/plan/interleave.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "src/base/assert.h"
#include "src/base/rng.h"

namespace netsum::plan {
namespace {

using Members = std::vector<size_t>;

// Of one evaluation: the changes between sending and computing. Of a search: the changes in all its evaluations.
constexpr int64_t kMostChanges = 1'000'000;
constexpr int64_t kMostWork = 50'000'000;
constexpr size_t kMostCandidates = 1'000'000;
constexpr int64_t kMostCommon = 1'000'000'000'000'000;
constexpr size_t kStarts = 8;

int64_t mod(int64_t value, int64_t period) {
  return ((value % period) + period) % period;
}

// Of the periods; none if it exceeds kMostCommon.
std::optional<int64_t> common_period(std::span<const PeriodicJob> jobs, const Members& members) {
  int64_t common = 1;
  for (const size_t job : members) {
    const Wide next = static_cast<Wide>(common) / std::gcd(common, jobs[job].period) * jobs[job].period;
    if (next > kMostCommon) return std::nullopt;
    common = static_cast<int64_t>(next);
  }
  return common;
}

int64_t changes(std::span<const PeriodicJob> jobs, const Members& members, int64_t common) {
  int64_t all = 0;
  for (const size_t job : members) all += 2 * (common / jobs[job].period);
  return all;
}

Status check_common(std::span<const PeriodicJob> jobs, const Members& members) {
  const std::optional<int64_t> common = common_period(jobs, members);
  if (common.has_value() && changes(jobs, members, *common) <= kMostChanges) return {};
  std::string names = "'" + jobs[members[0]].name + "', '" + jobs[members[1]].name + "'";
  if (members.size() > 2) names += " and " + std::to_string(members.size() - 2) + " more";
  return {ErrorCode::kResourceExhausted,
          "the periods of the jobs " + names +
              " have no common multiple that is small enough; round them, for example "
              "to milliseconds"};
}

// The sum of what members ask of the link above its rate, over `common`.
Wide excess_of(std::span<const PeriodicJob> jobs, const Members& members, std::span<const int64_t> offsets,
               int64_t rate, int64_t common) {
  struct State {
    int64_t busy, idle, rate, left;
    bool on;
  };
  std::vector<State> states;
  Wide demand = 0, excess = 0;
  for (const size_t index : members) {
    const PeriodicJob& job = jobs[index];
    State state{job.busy, job.period - job.busy, std::min(job.rate, rate), 0, false};
    const int64_t phase = mod(-offsets[index], job.period);
    state.on = phase < state.busy;
    state.left = state.on ? state.busy - phase : job.period - phase;
    if (state.on) demand += state.rate;
    states.push_back(state);
  }
  for (int64_t time = 0; time < common;) {
    int64_t step = common - time;
    for (const State& state : states) step = std::min(step, state.left);
    if (demand > rate) excess += (demand - rate) * step;
    time += step;
    for (State& state : states) {
      state.left -= step;
      if (state.left > 0) continue;
      state.on = !state.on;
      state.left = state.on ? state.busy : state.idle;
      demand += state.on ? state.rate : -state.rate;
    }
  }
  return excess;
}

Members members_of(std::span<const PeriodicJob> jobs, size_t link) {
  Members members;
  for (size_t job = 0; job < jobs.size(); ++job) {
    const std::vector<size_t>& links = jobs[job].links;
    if (std::find(links.begin(), links.end(), link) != links.end()) members.push_back(job);
  }
  return members;
}

// Offsets for the members of links with the least sum of excesses, each in parts of its link's rate.
//
// The sum is linear in an offset between two values at which an end of the job's sending coincides with one of another job. So
// only these values can be best, and for several jobs those where coincidences connect all of them.
class Search {
 public:
  struct Found {
    std::vector<int64_t> offsets;  // by job; 0 for others
    bool exact = true;
  };

  Search(std::span<const PeriodicJob> jobs, std::span<const int64_t> rates, Members members,
         const std::vector<size_t>& links)
      : jobs_(jobs), rates_(rates), members_(std::move(members)), offsets_(jobs.size()) {
    common_ = *common_period(jobs, members_);
    for (const size_t link : links) links_.emplace_back(link, members_of(jobs, link));
  }

  Found run() {
    if (members_.size() == 1) return {offsets_, true};
    const bool exact = enumerate();
    if (!exact) descend();
    for (const size_t job : members_) centre(job);
    return {offsets_, exact};
  }

 private:
  Fraction excess(std::span<const int64_t> offsets) const {
    Fraction sum = 0;
    for (const auto& [link, members] : links_)
      sum = sum + Fraction(integer(excess_of(jobs_, members, offsets, rates_[link], common_)),
                           Integer(rates_[link]));
    return sum;
  }

  // At which values of the job's offset an end of its sending coincides with one of `others`. A shift of all of them by a common
  // period changes nothing, so that values below `*turn` represent all.
  std::vector<int64_t> coincidences(size_t job, const Members& others, const std::vector<int64_t>& offsets,
                                    int64_t* turn) const {
    const PeriodicJob& own = jobs_[job];
    *turn = std::gcd(own.period, *common_period(jobs_, others));
    std::set<int64_t> values;
    for (const size_t index : others) {
      const PeriodicJob& other = jobs_[index];
      const int64_t step = std::gcd(own.period, other.period);
      for (const int64_t end : {int64_t{0}, other.busy}) {
        for (const int64_t own_end : {int64_t{0}, own.busy}) {
          for (int64_t value = mod(offsets[index] + end - own_end, step); value < *turn; value += step) {
            if (values.size() >= kMostCandidates) return {values.begin(), values.end()};
            values.insert(value);
          }
        }
      }
    }
    return {values.begin(), values.end()};
  }

  int64_t work() const {
    int64_t all = 0;
    for (const auto& [link, members] : links_)
      all += changes(jobs_, members, common_) * static_cast<int64_t>(members.size());
    return all;
  }

  // Tries every candidate for two or three jobs; false: there are more, or too many candidates.
  bool enumerate() {
    if (members_.size() > 3) return false;
    std::optional<Fraction> least;
    std::vector<int64_t> offsets(jobs_.size());
    const auto take = [&] {
      const Fraction now = excess(offsets);
      if (least.has_value() && now >= *least) return;
      least = now;
      offsets_ = offsets;
    };
    int64_t left = kMostWork / work();
    int64_t turn = 0;
    const size_t first = members_[0];
    if (members_.size() == 2) {
      for (const int64_t value : coincidences(members_[1], {first}, offsets, &turn)) {
        offsets[members_[1]] = value;
        take();
      }
      return true;
    }
    for (const auto& [second, third] :
         {std::pair(members_[1], members_[2]), std::pair(members_[2], members_[1])}) {
      for (const int64_t value : coincidences(second, {first}, offsets, &turn)) {
        offsets[second] = value;
        const std::vector<int64_t> candidates = coincidences(third, {first, second}, offsets, &turn);
        left -= static_cast<int64_t>(candidates.size());
        if (left < 0 || candidates.size() == kMostCandidates) return false;
        for (const int64_t candidate : candidates) {
          offsets[third] = candidate;
          take();
        }
      }
      offsets.assign(jobs_.size(), 0);
    }
    return true;
  }

  // Moves one job after the other to its best place, from several starts, until none improves.
  void descend() {
    std::optional<Fraction> least;
    Rng rng(1);
    int64_t left = 4 * kMostWork;
    for (size_t start = 0; start < kStarts && left > 0; ++start) {
      std::vector<int64_t> offsets(jobs_.size());
      for (const size_t job : members_) {
        if (start > 0)
          offsets[job] = static_cast<int64_t>(rng.below(static_cast<uint64_t>(jobs_[job].period)));
      }
      Fraction now = excess(offsets);
      for (bool improved = true; improved && left > 0;) {
        improved = false;
        for (const size_t job : members_) improved |= improve(job, &offsets, &now, &left);
      }
      if (least.has_value() && now >= *least) continue;
      least = now;
      offsets_ = offsets;
    }
  }

  Members without(size_t job) const {
    Members others;
    std::copy_if(members_.begin(), members_.end(), std::back_inserter(others),
                 [&](size_t i) { return i != job; });
    return others;
  }

  // Tries the candidates, or as many of them as there is time for, evenly.
  bool improve(size_t job, std::vector<int64_t>* offsets, Fraction* now, int64_t* left) const {
    int64_t turn = 0;
    const std::vector<int64_t> candidates = coincidences(job, without(job), *offsets, &turn);
    const auto most = static_cast<size_t>(std::max<int64_t>(8, kMostWork / 100 / work()));
    const size_t stride = (candidates.size() + most - 1) / most;
    int64_t best = (*offsets)[job];
    const Fraction before = *now;
    for (size_t i = 0; i < candidates.size(); i += stride) {
      *left -= work();
      (*offsets)[job] = candidates[i];
      const Fraction tried = excess(*offsets);
      if (tried >= *now) continue;
      *now = tried;
      best = candidates[i];
    }
    (*offsets)[job] = best;
    return *now < before;
  }

  // Moves the job to the middle of the longest range of offsets around its own that are as good.
  void centre(size_t job) {
    int64_t turn = 0;
    const std::vector<int64_t> candidates = coincidences(job, without(job), offsets_, &turn);
    if (static_cast<int64_t>(candidates.size()) > kMostWork / work()) return;
    const Fraction least = excess(offsets_);
    std::vector<int64_t> tried = offsets_;
    const auto as_good = [&](int64_t value) {
      tried[job] = mod(value, jobs_[job].period);
      return excess(tried) == least;
    };
    // Twice around, for a range that contains 0.
    int64_t from = 0, longest = -1, begin = -1;
    for (size_t i = 0; i < 2 * candidates.size(); ++i) {
      const int64_t value = candidates[i % candidates.size()] + (i < candidates.size() ? 0 : turn);
      if (!as_good(value)) {
        begin = -1;
        continue;
      }
      if (begin < 0) begin = value;
      if (value - begin <= longest || value - begin >= turn) continue;
      longest = value - begin;
      from = begin;
    }
    if (longest > 0 && as_good(from + longest / 2)) offsets_[job] = tried[job];
  }

  const std::span<const PeriodicJob> jobs_;
  const std::span<const int64_t> rates_;
  const Members members_;
  std::vector<std::pair<size_t, Members>> links_;
  int64_t common_ = 1;
  std::vector<int64_t> offsets_;
};

// Jobs and links that are connected. Without a cycle, each link gets its own best offsets: they are relative to each other, so a
// link is shifted as a whole to agree with the job by which the walk reaches it.
class Walk {
 public:
  Walk(std::span<const PeriodicJob> jobs, std::span<const int64_t> rates)
      : jobs_(jobs), rates_(rates), seen_(jobs.size()), visited_(rates.size()) {
    result_.offsets.resize(jobs.size());
    result_.scores.resize(rates.size());
  }

  Result<Interleaving> run() {
    for (size_t job = 0; job < jobs_.size(); ++job) {
      if (seen_[job]) continue;
      if (const Status s = component(job); !s.ok()) return s;
    }
    const std::vector<int64_t> zeros(jobs_.size());
    for (size_t link = 0; link < rates_.size(); ++link) {
      Interleaving::Score& score = result_.scores[link];
      score.before = link_score(jobs_, zeros, link, rates_[link]);
      score.after = link_score(jobs_, result_.offsets, link, rates_[link]);
    }
    return std::move(result_);
  }

 private:
  Status component(size_t first) {
    Members members = {first};
    std::vector<size_t> links;
    size_t edges = 0;
    seen_[first] = true;
    for (size_t next = 0; next < members.size(); ++next) {
      for (const size_t link : jobs_[members[next]].links) {
        ++edges;
        if (visited_[link]) continue;
        visited_[link] = true;
        links.push_back(link);
        for (const size_t other : members_of(jobs_, link)) {
          if (!seen_[other]) members.push_back(other);
          seen_[other] = true;
        }
      }
    }
    if (edges + 1 == members.size() + links.size()) return walk_tree(members, links);
    if (const Status s = check_common(jobs_, members); !s.ok()) return s;
    const Search::Found found = Search(jobs_, rates_, members, links).run();
    for (const size_t job : members)
      result_.offsets[job] = mod(found.offsets[job] - found.offsets[first], jobs_[job].period);
    for (const size_t link : links) result_.scores[link].exact = found.exact;
    return {};
  }

  // `links` in the order in which the walk finds them: each has one job that is placed.
  Status walk_tree(const Members& members, const std::vector<size_t>& links) {
    std::set<size_t> placed = {members.front()};
    for (const size_t link : links) {
      const Members of_link = members_of(jobs_, link);
      if (const Status s = check_common(jobs_, of_link); !s.ok()) return s;
      const Search::Found found = Search(jobs_, rates_, of_link, {link}).run();
      result_.scores[link].exact = found.exact;
      const size_t known =
          *std::find_if(of_link.begin(), of_link.end(), [&](size_t job) { return placed.contains(job); });
      const int64_t shift = result_.offsets[known] - found.offsets[known];
      for (const size_t job : of_link) {
        if (placed.insert(job).second)
          result_.offsets[job] = mod(found.offsets[job] + shift, jobs_[job].period);
      }
    }
    return {};
  }

  const std::span<const PeriodicJob> jobs_;
  const std::span<const int64_t> rates_;
  std::vector<bool> seen_;
  std::vector<bool> visited_;
  Interleaving result_;
};

Status invalid_job(const PeriodicJob& job, const std::string& message) {
  return invalid_at(job.line, "job '" + job.name + "' " + message);
}

Status check(std::span<const PeriodicJob> jobs, std::span<const int64_t> rates) {
  if (jobs.size() > kMostJobs)
    return {ErrorCode::kResourceExhausted,
            std::to_string(jobs.size()) + " jobs: plan at most " + std::to_string(kMostJobs) + " at once"};
  for (const PeriodicJob& job : jobs) {
    if (job.period < 1 || job.period > kMostPeriod)
      return invalid_job(job, "has no period from 1 us to 1000000 s");
    if (job.busy < 1 || job.busy > job.period)
      return invalid_job(job, "is busy for a time that is not above 0 and at most its period");
    for (const size_t link : job.links) {
      if (job.rate < 1 || (job.rate != kUnlimited && job.rate > rates[link]))
        return invalid_job(
            job, "sends faster than one of its links, or not at all: give a rate from 1 bit/s to the link's");
    }
  }
  return {};
}

}  // namespace

Fraction link_score(std::span<const PeriodicJob> jobs, std::span<const int64_t> offsets, size_t link,
                    int64_t rate) {
  const Members members = members_of(jobs, link);
  const int64_t common = *common_period(jobs, members);
  return Fraction(1) -
         Fraction(integer(excess_of(jobs, members, offsets, rate, common)), Integer(rate) * Integer(common));
}

Result<Interleaving> interleave(std::span<const PeriodicJob> jobs, std::span<const int64_t> rates) {
  if (const Status s = check(jobs, rates); !s.ok()) return s;
  return Walk(jobs, rates).run();
}

bool can_avoid(const PeriodicJob& a, const PeriodicJob& b) {
  return a.busy + b.busy <= std::gcd(a.period, b.period);
}

Fraction intensity(const PeriodicJob& job) {
  return job.work / Fraction(job.busy);
}

std::vector<size_t> by_intensity(std::span<const PeriodicJob> jobs) {
  std::vector<size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intensity(jobs[a]) > intensity(jobs[b]); });
  return order;
}

}  // namespace netsum::plan
