#include "engine/failure_notifier.h"

namespace netsum {

void FailureNotifier::job_failed(const Status& status) {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = status;
  if (engine_ != nullptr) engine_->fail(status);
}

void FailureNotifier::rank_left(int rank) {
  const std::lock_guard lock(mutex_);
  left_rank_ = rank;
  if (engine_ != nullptr) engine_->peer_left(rank);
}

void FailureNotifier::ranks_missing(const std::vector<int>& ranks) {
  const std::lock_guard lock(mutex_);
  missing_ = ranks;
}

void FailureNotifier::attach(Engine* engine) {
  const std::lock_guard lock(mutex_);
  engine_ = engine;
  if (engine_ == nullptr) return;
  if (!failure_.ok()) engine_->fail(failure_);
  if (left_rank_ != kNoRank) engine_->peer_left(left_rank_);
}

Status FailureNotifier::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<int> FailureNotifier::missing() const {
  const std::lock_guard lock(mutex_);
  return missing_;
}

}  // namespace netsum
