#include "aggregator/control/local_jobs.h"

#include <utility>

#include "aggregator/control/request_checks.h"
#include "src/base/clock.h"
#include "src/control/rpc_status.h"

namespace netsum {
namespace {

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
  for (const JobEvent& event : table_.take_events()) {
    const auto stream = streams_.find(event.to);
    if (stream == streams_.end()) continue;
    enqueue(*stream->second, event);
    touched.push_back(stream->second);
  }
  for (const AggregatorEvent& note : table_.take_notes()) {
    if (on_event_) on_event_(note);
  }
  changed_.notify_all();
  lock.unlock();
  for (const auto& stream : touched) stream->pump();
  return result;
}

LocalJobs::LocalJobs(JobTableOptions options, Dataplane* dataplane,
                     std::function<void(const AggregatorEvent&)> on_event)
    : dataplane_(dataplane),
      on_event_(std::move(on_event)),
      table_(std::move(options), dataplane, system_random) {
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

void LocalJobs::join(const control::JoinRequest& request, const Address& peer,
                     const std::shared_ptr<MemberStream>& stream) {
  const MemberRequest member = to_member_request(request, peer);
  const Status status = with_table([&](JobTable& table) -> Status {
    const Result<MemberId> id = table.join(monotonic_us(), member);
    if (!id.ok()) return id.status();
    streams_[*id] = stream;
    stream->set_on_over([self = shared_from_this(), id = *id] { self->stream_over(id); });
    return {};
  });
  if (status.ok()) return;
  stream->enqueue_end(to_rpc_status(status));
  stream->pump();
}

void LocalJobs::stream_over(MemberId id) {
  with_table([&](JobTable& table) {
    table.stream_ended(id);
    return streams_.erase(id);
  });
}

Status LocalJobs::leave(const MemberClaim& claim) {
  return with_table([&](JobTable& table) { return table.leave(claim); });
}

Status LocalJobs::report(const MemberClaim& claim, const Status& failure) {
  return with_table([&](JobTable& table) { return table.report(claim, failure); });
}

Status LocalJobs::alive(const MemberClaim& claim) {
  return with_table([&](JobTable& table) { return table.alive(monotonic_us(), claim); });
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
    {
      std::unique_lock lock(mutex_);
      if (halted_) return;
      const std::optional<int64_t> next_us = table_.next_deadline_us();
      const int64_t now_us = monotonic_us();
      // Every change of the table wakes this thread, so an idle one may sleep for long.
      const int64_t sleep_us = next_us ? *next_us - now_us : 60'000'000;
      if (sleep_us > 0) {
        changed_.wait_for(lock, std::chrono::microseconds(sleep_us));
        continue;
      }
    }
    with_table([](JobTable& table) {
      table.on_tick(monotonic_us());
      return true;
    });
  }
}

void LocalJobs::halt() {
  const std::lock_guard lock(mutex_);
  halted_ = true;
  changed_.notify_all();
}

bool LocalJobs::wait_until_empty(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return table_.empty(); });
}

Status LocalJobs::check_aggregator_token(const std::string& presented) {
  const std::lock_guard lock(mutex_);
  return table_.check_aggregator_token(presented);
}

std::vector<AggregatorJobStatus> LocalJobs::jobs() {
  const std::lock_guard lock(mutex_);
  return table_.jobs(monotonic_us());
}

std::vector<AggregatorCounter> LocalJobs::failures() {
  const std::lock_guard lock(mutex_);
  return table_.failures();
}

Result<control::TopologyReply> LocalJobs::topology(const std::string& job) {
  const std::lock_guard lock(mutex_);
  return table_.topology(job);
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
