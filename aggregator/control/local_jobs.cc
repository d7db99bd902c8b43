#include "aggregator/control/local_jobs.h"

#include <algorithm>
#include <utility>

#include "aggregator/control/request_checks.h"
#include "src/base/clock.h"
#include "src/control/rpc_status.h"

namespace netsum {
namespace {

constexpr std::chrono::seconds kRemovalPatience{10};
constexpr std::chrono::milliseconds kFlushPatience{1000};

void enqueue(MemberStream& stream, const JobEvent& told) {
  control::Event event;
  switch (told.kind) {
    case JobEvent::Kind::kJoined:
      event.mutable_joined()->set_member(told.to);
      for (const int rank : told.missing)
        event.mutable_joined()->add_missing_ranks(static_cast<uint32_t>(rank));
      return stream.enqueue(std::move(event));
    case JobEvent::Kind::kReady:
      *event.mutable_ready() = to_ready(*told.grant);
      return stream.enqueue(std::move(event));
    case JobEvent::Kind::kDraining:
      event.mutable_draining();
      return stream.enqueue(std::move(event));
    case JobEvent::Kind::kFailed:
      *event.mutable_failed() = to_failed(told.failure);
      stream.enqueue(std::move(event));
      return stream.enqueue_end(grpc::Status::OK);
    case JobEvent::Kind::kEnd:
      return stream.enqueue_end(grpc::Status::OK);
  }
}

}  // namespace

// Events are queued with the lock held, so that every stream gets them in the table's order. They are sent without it,
// because gRPC may call back from within the call that sends.
template <typename Function>
auto LocalJobs::with_table(Function function) {
  std::vector<std::shared_ptr<MemberStream>> touched;
  std::unique_lock lock(mutex_);
  auto result = function(table_);
  retry_joins(&touched);
  for (const JobEvent& event : table_.take_events()) {
    const auto stream = streams_.find(event.to);
    if (stream == streams_.end()) continue;
    enqueue(*stream->second, event);
    touched.push_back(stream->second);
  }
  for (AggregatorEvent& note : table_.take_notes()) events_.push(std::move(note));
  changed_.notify_all();
  lock.unlock();
  for (const auto& stream : touched) stream->pump();
  return result;
}

LocalJobs::LocalJobs(JobTableOptions options, Dataplane* dataplane,
                     std::function<void(const AggregatorEvent&)> on_event)
    : dataplane_(dataplane),
      tasks_do_not_block_(dataplane->limits().members_bring_shards),
      events_(std::move(on_event)),
      table_(
          [&] {
            options.defer_tasks = true;
            return std::move(options);
          }(),
          dataplane, system_random) {
  dataplane_->set_on_lost([this](const Status& reason) {
    with_table([&](JobTable& table) {
      table.dataplane_lost(reason);
      return true;
    });
  });
}

LocalJobs::~LocalJobs() {
  dataplane_->set_on_lost({});
}

Status LocalJobs::try_join(WaitingJoin join) {
  const Result<MemberId> id = table_.join(monotonic_us(), join.request);
  if (id.ok()) {
    streams_[*id] = join.to;
    member_of_stream_[join.stream] = *id;
    return {};
  }
  if (!table_.must_wait(id.status())) {
    member_of_stream_.erase(join.stream);
    return id.status();
  }
  waiting_joins_.push_back(std::move(join));
  return {};
}

void LocalJobs::retry_joins(std::vector<std::shared_ptr<MemberStream>>* touched) {
  if (table_.frees_room() && !table_.draining()) return;
  for (WaitingJoin& join : std::exchange(waiting_joins_, {})) {
    const std::shared_ptr<MemberStream> stream = join.to;
    const Status status = try_join(std::move(join));
    if (status.ok()) continue;
    stream->enqueue_end(to_rpc_status(status));
    touched->push_back(stream);
  }
}

void LocalJobs::join(const control::JoinRequest& request, const Address& peer,
                     const std::shared_ptr<MemberStream>& stream) {
  WaitingJoin join{.stream = 0, .request = to_member_request(request, peer), .to = stream};
  const Status status = with_table([&](JobTable&) -> Status {
    join.stream = next_stream_++;
    member_of_stream_[join.stream] = 0;
    stream->set_on_over([self = shared_from_this(), over = join.stream] { self->stream_over(over); });
    return try_join(std::move(join));
  });
  if (status.ok()) return;
  stream->enqueue_end(to_rpc_status(status));
  stream->pump();
}

void LocalJobs::stream_over(uint64_t stream) {
  with_table([&](JobTable& table) {
    const auto found = member_of_stream_.find(stream);
    if (found == member_of_stream_.end()) return false;
    const MemberId id = found->second;
    member_of_stream_.erase(found);
    std::erase_if(waiting_joins_, [&](const WaitingJoin& join) { return join.stream == stream; });
    if (id == 0) return false;
    table.stream_ended(id);
    return streams_.erase(id) > 0;
  });
}

Result<control::LeaveReply> LocalJobs::leave(const MemberClaim& claim) {
  if (Status status = with_table([&](JobTable& table) { return table.leave(claim); }); !status.ok())
    return status;
  control::LeaveReply reply;
  reply.set_until_all_left(claim.until_all_left);
  return reply;
}

Status LocalJobs::report(const MemberClaim& claim, const Status& failure) {
  return with_table([&](JobTable& table) { return table.report(claim, failure); });
}

Result<control::AliveReply> LocalJobs::alive(const MemberClaim& claim, const control::Beat* beat) {
  return with_table([&](JobTable& table) { return table.alive(monotonic_us(), claim, beat); });
}

void LocalJobs::drain() {
  with_table([](JobTable& table) {
    table.drain();
    return true;
  });
}

void LocalJobs::stop(const Status& reason) {
  with_table([&](JobTable& table) {
    table.stop(reason);
    return true;
  });
}

void LocalJobs::watch_deadlines() {
  while (true) {
    while (tasks_do_not_block_ && run_task()) {
    }
    std::vector<JobKey> silent;
    {
      std::unique_lock lock(mutex_);
      if (halted_) return;
      if (tasks_do_not_block_ && table_.has_task()) continue;
      const std::optional<int64_t> next_us = table_.next_deadline_us();
      const int64_t now_us = monotonic_us();
      // Every change of the table wakes this thread, so an idle one may sleep for long.
      const int64_t sleep_us = next_us ? *next_us - now_us : 60'000'000;
      if (sleep_us > 0) {
        changed_.wait_for(lock, std::chrono::microseconds(sleep_us));
        continue;
      }
      silent = table_.silent_jobs(now_us);
    }
    const JobLooks looks = look_for_members(*dataplane_, silent);
    with_table([&](JobTable& table) {
      table.on_tick(monotonic_us(), looks);
      return true;
    });
  }
}

bool LocalJobs::run_task() {
  std::optional<JobTask> task;
  {
    const std::lock_guard lock(mutex_);
    task = table_.take_task();
  }
  if (!task) return false;
  task->run(dataplane_);
  return with_table([&](JobTable& table) {
    table.finish(monotonic_us(), std::move(*task));
    return true;
  });
}

// After halt(), what is installed is still removed, unless the dataplane does not answer.
void LocalJobs::run_tasks() {
  while (true) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return table_.has_task() || halted_; });
      if (halted_ && std::chrono::steady_clock::now() > halted_at_ + kRemovalPatience) return;
      if (!table_.has_task()) return;
    }
    run_task();
  }
}

void LocalJobs::halt() {
  {
    const std::lock_guard lock(mutex_);
    halted_ = true;
    halted_at_ = std::chrono::steady_clock::now();
    changed_.notify_all();
  }
  events_.halt();
}

bool LocalJobs::wait_until_empty(std::chrono::steady_clock::time_point deadline) {
  bool empty = false;
  {
    std::unique_lock lock(mutex_);
    empty = changed_.wait_until(lock, deadline, [&] { return table_.empty(); });
    // Their slots become free a little later; a dataplane that does not answer keeps them.
    const auto patience = std::min(deadline, std::chrono::steady_clock::now() + kRemovalPatience);
    changed_.wait_until(lock, patience, [&] { return !table_.frees_room(); });
  }
  events_.flush(kFlushPatience);
  return empty;
}

Status LocalJobs::check_aggregator_token(const std::string& presented) {
  const std::lock_guard lock(mutex_);
  return table_.check_aggregator_token(presented);
}

std::vector<JobKey> LocalJobs::running_jobs() {
  const std::lock_guard lock(mutex_);
  return table_.running_jobs();
}

std::vector<AggregatorJobStatus> LocalJobs::jobs(const JobLooks& looks) {
  const std::lock_guard lock(mutex_);
  return table_.jobs(monotonic_us(), looks);
}

std::vector<AggregatorCounter> LocalJobs::failures() {
  const std::lock_guard lock(mutex_);
  return table_.failures();
}

Result<control::TopologyReply> LocalJobs::topology(const std::string& job) {
  const auto input = [&] {
    const std::lock_guard lock(mutex_);
    return table_.topology_input(job);
  }();
  return input.ok() ? JobTable::topology_reply(*input) : input.status();
}

uint32_t LocalJobs::payload_limit() {
  const std::lock_guard lock(mutex_);
  return table_.payload_limit();
}

bool LocalJobs::draining() {
  const std::lock_guard lock(mutex_);
  return table_.draining();
}

}  // namespace netsum
