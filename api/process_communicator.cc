#include "api/process_communicator.h"

#include "api/exit_flush.h"
#include "engine/work_state.h"
#include "src/base/forked_children.h"

namespace netsum {

ProcessCommunicator::ProcessCommunicator(std::unique_ptr<CommunicatorBase> communicator)
    : process_(forked_children::process_id()), communicator_(std::move(communicator)) {
  exit_flush::add(communicator_.get());
}

// In a child, joining the threads would never end.
ProcessCommunicator::~ProcessCommunicator() {
  if (is_forked()) {
    [[maybe_unused]] auto* const left = communicator_.release();
  } else {
    exit_flush::remove(communicator_.get());
  }
}

SparseStats ProcessCommunicator::sparse_stats() const {
  return is_forked() ? SparseStats{} : communicator_->sparse_stats();
}

void ProcessCommunicator::abort(const std::string& reason) {
  if (!is_forked()) communicator_->abort(reason);
}

Result<Regrouped> ProcessCommunicator::regroup(const RegroupOptions& options) {
  if (is_forked()) return refusal();
  return communicator_->regroup(options);
}

Status ProcessCommunicator::status() const {
  return is_forked() ? refusal() : communicator_->status();
}

CommunicatorStats ProcessCommunicator::stats() const {
  return is_forked() ? CommunicatorStats{} : communicator_->stats();
}

std::string ProcessCommunicator::describe() const {
  return is_forked() ? "not connected: " + refusal().to_string() : communicator_->describe();
}

bool ProcessCommunicator::is_forked() const {
  return forked_children::process_id() != process_;
}

Status ProcessCommunicator::refusal() const {
  return refusal_in_child("communicator", process_, "connect in the process that calls, or start it by exec");
}

Work ProcessCommunicator::ended(const Status& status) {
  return ended_work(status);
}

}  // namespace netsum
