#include "session/wrong_sum_record.h"

#include <algorithm>
#include <utility>

namespace netsum {
namespace {

void add(const WrongSumRecord::List& more, WrongSumRecord::List* sum) {
  for (const CommunicatorStats::WrongSums& one : more) {
    const auto known = std::find_if(sum->begin(), sum->end(), [&](const CommunicatorStats::WrongSums& other) {
      return other.aggregator == one.aggregator && other.stripe == one.stripe && other.address == one.address;
    });
    if (known == sum->end())
      sum->push_back(one);
    else
      known->results += one.results;
  }
}

}  // namespace

WrongSumRecord::List WrongSumRecord::sum() const {
  List sum = ended_;
  for (const auto& [session, found] : sessions_) add(found, &sum);
  return sum;
}

WrongSumRecord::List WrongSumRecord::update(const void* session, List found) {
  const std::lock_guard lock(mutex_);
  sessions_[session] = std::move(found);
  return sum();
}

void WrongSumRecord::end(const void* session) {
  const std::lock_guard lock(mutex_);
  const auto ending = sessions_.find(session);
  if (ending == sessions_.end()) return;
  add(ending->second, &ended_);
  sessions_.erase(ending);
}

WrongSumRecord::List WrongSumRecord::all() const {
  const std::lock_guard lock(mutex_);
  return sum();
}

}  // namespace netsum
