#include "api/job_communicator.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "engine/work_state.h"
#include "session/tensor_check.h"
#include "src/base/quiet.h"
#include "src/base/thread.h"
#include "src/base/timeout.h"
#include "src/worker/worker_core.h"

namespace netsum {
namespace {

using std::chrono::milliseconds;

// How long the ranks wait for each other at one place. They detect a loss within the liveness timeout of each other, and the wait
// doubles with every round over all places, so that they meet eventually.
constexpr milliseconds kFirstDwell{400}, kLongestDwell{3'200};
// Where they have met and are at different places, all begin again with the first. A rank that an aggregator refuses tries again.
// Both at most so many times.
constexpr int kMostRestarts = 8;
constexpr milliseconds kRestartPause{20};
// For all data paths to answer, once all ranks have joined.
constexpr milliseconds kPathPatience{5'000};

// An aggregator whose sums are wrong is of no more use than one that is gone.
bool is_loss(const Status& status) {
  return status.code() == ErrorCode::kAggregatorLost || status.code() == ErrorCode::kWrongSum;
}

}  // namespace

JobCommunicator::JobCommunicator(const CommunicatorOptions& options, FailoverHooks hooks)
    : CommunicatorBase(options.timeout),
      options_(options),
      hooks_(std::move(hooks)),
      factory_([&] {
        CommunicatorOptions used = options;
        used.shared_memory &= !moves();
        return used;
      }()),
      prioritised_({.submit = [this](OperationSpec spec,
                                     milliseconds timeout) { return submit_now(std::move(spec), timeout); },
                    .check = [this](const OperationSpec& spec) { return check(spec); },
                    .chunk_elements = [this](const OperationSpec& spec) { return chunk_elements(spec); },
                    .rank = [this] { return rank(); },
                    .world_size = [this] { return world_size(); }},
                   options.timeout) {}

Result<std::unique_ptr<CommunicatorBase>> JobCommunicator::connect(const CommunicatorOptions& options,
                                                                   FailoverHooks hooks,
                                                                   std::unique_ptr<Relays> relays) {
  std::unique_ptr<JobCommunicator> communicator(new JobCommunicator(options, std::move(hooks)));
  communicator->relays_ = std::move(relays);
  if (Status status = communicator->factory_.prepare(); !status.ok()) return status;
  auto session = communicator->factory_.connect(communicator->failure_callback());
  if (!session.ok()) return session.status();
  if (communicator->moves()) {
    if (Status status = communicator->start_threads(); !status.ok()) {
      session.value()->report(status);
      return status;
    }
  }
  {
    const std::lock_guard lock(communicator->mutex_);
    communicator->lacks_words_ = session.value()->lacks_words();
    communicator->begin_with(std::move(session).value());
    communicator->began_fixed_ = communicator->order_of_floats_.empty();
  }
  return std::unique_ptr<CommunicatorBase>(std::move(communicator));
}

Status JobCommunicator::start_threads() {
  const char* const purpose = "to move to another aggregator";
  Status status = start_thread(
      purpose, [this] { search(); }, &searcher_);
  if (status.ok())
    status = start_thread(
        purpose, [this] { supervise(); }, &supervisor_);
  return status;
}

JobCommunicator::~JobCommunicator() {
  stop();
  prioritised_.stop();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    if (failure_.ok()) failure_ = Status(ErrorCode::kAborted, "the communicator was closed");
  }
  changed_.notify_all();
  if (supervisor_.joinable()) supervisor_.join();
  {
    const std::lock_guard lock(mutex_);
    supervised_ = false;
  }
  changed_.notify_all();
  if (searcher_.joinable()) searcher_.join();
  std::unique_ptr<Session> last;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return uses_ == 0; });
    last = std::move(session_);
  }
  last.reset();  // nothing writes to the callers' tensors from here on
  end_all();
  if (relays_ != nullptr) relays_->drain(Clock::now() + kLongestService);
}

Status JobCommunicator::check(const OperationSpec& spec) const {
  uint32_t payload_bytes = 0;
  std::string lacks_words;
  {
    const std::lock_guard lock(mutex_);
    if (!moves()) return session_ != nullptr ? session_->check(spec) : failure_;
    payload_bytes = payload_bytes_;
    if (travels_as_words(spec.op)) lacks_words = lacks_words_;
  }
  if (Status status = check_operation(spec, payload_bytes); !status.ok() || world_size() == 1) return status;
  if (Status status = check_words(spec, lacks_words); !status.ok()) return status;
  return options_.verify != Verify::kPacket ? check_verifiable(spec, options_.lane_bits) : Status();
}

size_t JobCommunicator::chunk_elements(const OperationSpec& spec) const {
  const auto encoding = shared_encoding({.lane_bits = options_.lane_bits, .fixed_floats = true}, spec.type,
                                        spec.op, world_size());
  const std::lock_guard lock(mutex_);
  return encoding->chunk_elements(payload_bytes_);
}

Work JobCommunicator::submit(OperationSpec&& spec, milliseconds timeout) {
  if (prioritised_.takes(spec) && world_size() > 1) [[unlikely]]
    return prioritised_.submit(std::move(spec), timeout);
  return submit_now(std::move(spec), timeout);
}

Work JobCommunicator::submit_now(OperationSpec&& spec, milliseconds timeout) {
  if (!moves()) {
    const std::lock_guard lock(mutex_);
    const Status refusal = session_ != nullptr ? session_->check(spec) : failure_;
    return refusal.ok() ? session_->submit(std::move(spec), timeout) : ended_work(refusal);
  }
  if (Status refusal = check(spec); !refusal.ok()) return ended_work(refusal);
  return submit_kept(
      std::make_shared<KeptOperation>(std::move(spec), timeout.count() > 0 ? timeout : options_.timeout));
}

Work JobCommunicator::submit_kept(OperationPtr operation) {
  {
    const std::lock_guard lock(mutex_);
    submitted_ += operation->is_barrier() ? 0 : 1;
    if (!failure_.ok()) {
      count_end(*operation, failure_);
      return ended_work(failure_);
    }
    operation->number = next_number_++;
    kept_.push_back(operation);
    in_flight_.add(operation.get());
    if (session_ != nullptr) {
      start(operation, operation->spec);
    } else {
      // The next session starts all kept operations, if it opens before their deadlines.
      changed_.notify_all();
    }
  }
  if (hooks_.submitted) hooks_.submitted();
  return Work(operation->outer);
}

// The session reports the end of an operation later, on a thread that drives it, and has reported all of them when it is closed, so a
// completed operation is never repeated into the caller's tensors.
void JobCommunicator::start(const OperationPtr& operation, OperationSpec spec) {
  const Work work = session_->submit(
      std::move(spec), operation->time_left(),
      [this, operation, session_number = session_number_](const Status& status, uint64_t everywhere) {
        on_ended(operation, session_number, status, everywhere);
      });
  operation->outer->wait_by(work);
}

void JobCommunicator::count_end(const KeptOperation& operation, const Status& status) {
  if (!operation.is_barrier()) ++(status.ok() ? completed_ : failed_);
}

void JobCommunicator::note_end(KeptOperation* operation) {
  operation->ended = true;
  in_flight_.remove(operation);
  if (in_flight_.first() == nullptr) quiet_.notify_all();
}

void JobCommunicator::forget_first() {
  in_flight_.remove(kept_.front().get());
  kept_.pop_front();
}

// On the thread that drives the session's engine.
void JobCommunicator::on_ended(const OperationPtr& operation, uint64_t session_number, const Status& status,
                               uint64_t everywhere) {
  if (!status.ok() && hooks_.failing) hooks_.failing();
  Status result = status;
  {
    const std::lock_guard lock(mutex_);
    const bool of_this_session = session_number == session_number_ && session_ != nullptr;
    const bool ended_before = operation->ended;
    if (status.ok()) {
      note_end(operation.get());
      operation->ended_in_session = session_number;
      if (of_this_session) release_finished(everywhere);
    } else {
      note_failure(session_number, status);
      // It is repeated in the next session, or ended when this one is closed.
      if (failure_.ok() || !of_this_session) return;
      note_end(operation.get());
      result = failure_;
    }
    if (ended_before) return;
    count_end(*operation, result);
  }
  operation->outer->finish(result);
}

// Forgets what all ranks have finished: of the session, the operations below number `everywhere` that have ended here.
void JobCommunicator::release_finished(uint64_t everywhere) {
  // The first operation of every session is its own.
  const uint64_t known = first_of_session_ + everywhere - std::min<uint64_t>(everywhere, 1);
  while (!kept_.empty() && kept_.front()->number < known &&
         kept_.front()->ended_in_session == session_number_) {
    forget_first();
  }
}

std::function<void(const Status&)> JobCommunicator::failure_callback() {
  // Of the next session, as begin_with() will number it.
  uint64_t session_number = 0;
  {
    const std::lock_guard lock(mutex_);
    session_number = session_number_ + 1;
  }
  return [this, session_number](const Status& status) {
    const std::lock_guard lock(mutex_);
    note_failure(session_number, status);
  };
}

void JobCommunicator::note_failure(uint64_t session_number, const Status& status) {
  if (!moves()) return;  // the session's status counts
  if (session_number != session_number_ || session_ == nullptr || !failure_.ok() || lost_) return;
  if (is_loss(status)) {
    lost_ = status;
    changed_.notify_all();
  } else {
    failure_ = status;
  }
}

// Repeats the kept operations in the new session, from the first that some rank has not finished.
void JobCommunicator::begin_with(std::unique_ptr<Session> session) {
  session_ = std::move(session);
  ++session_number_;
  payload_bytes_ = session_->payload_bytes();
  order_of_floats_ = session_->order_of_floats();
  while (!kept_.empty() && kept_.front()->number < session_->completed()) forget_first();
  first_of_session_ = kept_.empty() ? next_number_ : kept_.front()->number;
  for (const OperationPtr& operation : kept_) start(operation, operation->spec_again());
  // It may have failed before note_failure() accepted reports about it.
  if (const Status status = session_->status(); !status.ok()) note_failure(session_number_, status);
}

void JobCommunicator::supervise() {
  while (true) {
    Status why;
    std::unique_ptr<Session> lost_session;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return stop_ || lost_.has_value(); });
      if (hooks_.lost && !stop_) {
        lock.unlock();
        hooks_.lost();
        lock.lock();
      }
      changed_.wait(lock, [this] { return stop_ || uses_ == 0; });
      if (stop_) return;
      if (!lost_) continue;  // a regroup has been faster
      why = *std::exchange(lost_, std::nullopt);
      if (session_ == nullptr) continue;
      moving_ = true;
      // Taken together with lost_: a session reports its loss once for each operation, and a later report
      // must not count as the loss of the next session. Also if the communicator has failed meanwhile: those that the loss has
      // ended in the session wait for the next one.
      lost_session = std::move(session_);
    }
    move_on(std::move(lost_session), why);
    {
      const std::lock_guard lock(mutex_);
      moving_ = false;
    }
    changed_.notify_all();
  }
}

// Closes the lost session and opens one at another aggregator. Meanwhile operations end at their deadlines, and all end
// when abort() is called, even if the search is in the middle of an attempt.
void JobCommunicator::move_on(std::unique_ptr<Session> lost_session, const Status& why) {
  factory_.end(std::move(lost_session), why);  // nothing writes to the callers' tensors from here on
  std::unique_lock lock(mutex_);
  if (failure_.ok()) {
    sought_because_ = why;
    changed_.notify_all();
  } else {
    found_ = failure_;
  }
  while (!found_) {
    const KeptOperation* const due = in_flight_.first();
    if (due != nullptr && Clock::now() >= due->deadline && failure_.ok())
      failure_ = Status(ErrorCode::kTimeout, due->describe() + " is not finished by its deadline, " +
                                                 std::to_string(due->timeout.count()) +
                                                 " ms after its submission: " + why.message() +
                                                 "; no other aggregator has been found yet");
    if (!failure_.ok()) {
      lock.unlock();
      end_all();
      lock.lock();
      if (!found_) changed_.wait(lock);
    } else if (due != nullptr) {
      changed_.wait_until(lock, Clock::time_point(due->deadline));  // a copy: the operation may end meanwhile
    } else {
      changed_.wait(lock);
    }
  }
  SessionResult found = *std::exchange(found_, std::nullopt);
  if (failure_.ok() && found.ok()) {
    begin_with(std::move(found).value());
    ++failovers_;
    return;
  }
  if (failure_.ok()) failure_ = found.status();
  const Status failure = failure_;
  lock.unlock();
  // The other ranks have started in the new session, so they need a report.
  if (found.ok()) factory_.end(std::move(found).value(), failure);
  end_all();
}

// The searcher's thread: the supervisor ends operations at their deadlines meanwhile.
void JobCommunicator::search() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return sought_because_.has_value() || !supervised_; });
    if (!sought_because_) return;
    const Status why = *std::exchange(sought_because_, std::nullopt);
    lock.unlock();
    SessionResult result = meet(why);
    if (result.ok() && hooks_.met) hooks_.met();
    lock.lock();
    found_ = std::move(result);
    changed_.notify_all();
  }
}

// Ends all operations in flight and forgets all kept ones. Requires that no session uses them.
void JobCommunicator::end_all() {
  std::deque<OperationPtr> ending;
  Status failure;
  {
    const std::lock_guard lock(mutex_);
    ending.swap(kept_);
    failure = failure_;
    std::erase_if(ending, [](const OperationPtr& operation) { return operation->ended; });
    for (const OperationPtr& operation : ending) {
      note_end(operation.get());
      count_end(*operation, failure);
    }
  }
  for (const OperationPtr& operation : ending) operation->outer->finish(failure);
}

// All ranks list the same places in the same order. In a hierarchy they have other names for them.
std::vector<JobCommunicator::Place> JobCommunicator::places() const {
  std::vector<Place> places = {options_.aggregators};
  const auto add_all_but_one = [&places](const Place& whole) {
    for (size_t lost = 0; whole.size() > 1 && lost < whole.size(); ++lost) {
      Place rest = whole;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(lost));
      places.push_back(std::move(rest));
    }
  };
  // Of what is used now, another one may have been lost.
  if (place_ != options_.aggregators) add_all_but_one(place_);
  add_all_but_one(options_.aggregators);
  for (const std::string& fallback : options_.fallback_aggregators)
    places.push_back(fallback == kHosts ? Place{} : Place{fallback});
  return places;
}

// Opens a session at the first place where all ranks meet.
JobCommunicator::SessionResult JobCommunicator::meet(const Status& why) {
  const std::vector<Place> places = this->places();
  // One whose sums were wrong is not used again, unless there is no other.
  if (why.code() == ErrorCode::kWrongSum) distrusted_.insert(place_);
  const auto is_distrusted = [this](const Place& place) { return distrusted_.contains(place); };
  const bool any_trusted = !std::all_of(places.begin(), places.end(), is_distrusted);
  uint64_t completed = 0, oldest_kept = 0;
  bool began_fixed = false;
  {
    const std::lock_guard lock(mutex_);
    began_fixed = began_fixed_;
    completed = next_number_;
    oldest_kept = kept_.empty() ? next_number_ : kept_.front()->number;
    for (auto operation = kept_.rbegin(); operation != kept_.rend(); ++operation)
      if (!(*operation)->ended) completed = (*operation)->number;
  }
  const Clock::time_point deadline = deadline_after(options_.failover_timeout);
  Status last = why;
  bool any_answer = false;
  int restarts = 0;
  size_t meetings = 0;
  for (milliseconds dwell = kFirstDwell;; dwell = std::min(2 * dwell, kLongestDwell)) {
    for (size_t i = 0; i < places.size();) {
      const Place& place = places[i++];
      if (any_trusted && is_distrusted(place)) continue;
      {
        const std::lock_guard lock(mutex_);
        if (stop_ || !failure_.ok()) return Status(ErrorCode::kAborted, "the communicator was closed");
      }
      if (Clock::now() >= deadline)
        return Status(ErrorCode::kAggregatorLost,
                      why.message() + "; no other aggregator was found within " +
                          std::to_string(options_.failover_timeout.count()) + " ms; the last attempt" +
                          (any_answer ? " that was answered" : "") + " ended with: " + last.to_string(),
                      last.rank());
      const Clock::time_point join_deadline = std::min(Clock::now() + dwell, deadline);
      Meeting meeting;
      auto session =
          factory_.move({place, completed, join_deadline, std::min(join_deadline + kPathPatience, deadline),
                         failure_callback(), began_fixed, &meeting});
      const Status ended = session.ok() ? check_moved(**session, oldest_kept, completed) : session.status();
      if (ended.ok()) {
        place_ = place;
        return session;
      }
      // Ranks that have no objection have begun there, and must search on, too.
      if (session.ok()) (*session)->report({ErrorCode::kAggregatorLost, ended.message()});
      // That nothing answers, as at the lost aggregator or at the end of the time, tells less than why an answer was of no use.
      const bool answered = ended.code() != ErrorCode::kUnreachable;
      if (answered || !any_answer) last = ended;
      any_answer |= answered;
      // All ranks are to be at the same place at the same time, or else they pass each other by. A meeting ends for all of them, so
      // where they go from there may depend only on what all know of it.
      const bool refused = !session.ok() && ended.code() == ErrorCode::kInvalidArgument;
      if (meeting.whole) {
        if (refused && restarts++ < kMostRestarts) {  // they have been at different places
          std::tie(i, meetings, dwell) = std::tuple(size_t{0}, size_t{0}, kFirstDwell);
          continue;
        }
        if (++meetings % places.size() == 0) dwell = std::min(2 * dwell, kLongestDwell);
        const bool draw = meetings > places.size() && meeting.succession_id != 0;
        i = (draw ? meeting.succession_id : meetings) % places.size();
        continue;
      }
      const bool again =
          refused && restarts++ < kMostRestarts;  // such as while it counts as a member of the last one
      if (again) --i;
      std::unique_lock lock(mutex_);
      changed_.wait_until(lock, again ? Clock::now() + kRestartPause : join_deadline,
                          [this] { return stop_ || !failure_.ok(); });
    }
  }
}

Status JobCommunicator::check_moved(const Session& session, uint64_t oldest_kept, uint64_t completed) const {
  if (session.payload_bytes() != payload_bytes_)
    return {ErrorCode::kInvalidArgument,
            session.describe() + " grants packets of " + std::to_string(session.payload_bytes()) +
                " bytes, and the job began with " + std::to_string(payload_bytes_) +
                ": results would differ in bits; start all aggregators with the same --mtu"};
  if (lacks_words_.empty() && !session.lacks_words().empty())
    return {ErrorCode::kUnsupported, session.lacks_words() +
                                         " cannot combine lanes by min, max or bits, and the job began where "
                                         "that can be done: update it"};
  // This is the minimum over all ranks' reports. A number out of this range means that a rank is a different process.
  if (session.completed() < oldest_kept || session.completed() > completed)
    return {ErrorCode::kInternal, "the ranks disagree on the number of completed operations"};
  return check_bits(session);
}

// What has ended here is repeated for ranks where it has not. They must get the bits that the caller has here.
Status JobCommunicator::check_bits(const Session& session) const {
  const std::lock_guard lock(mutex_);
  if (session.order_of_floats() == order_of_floats_) return {};
  for (const OperationPtr& operation : kept_) {
    if (operation->number < session.completed() || !operation->has_given_results() ||
        !operation->adds_floats())
      continue;
    return {
        ErrorCode::kInvalidArgument,
        operation->describe() + " has ended here and not on all ranks, and " + session.describe() +
            " adds its elements in another way than before: results would differ in bits; name aggregators "
            "of one kind and in one hierarchy, or set numerics to fixed"};
  }
  return {};
}

template <typename Use>
void JobCommunicator::with_session(std::unique_lock<std::mutex>& lock, const Use& use) {
  Session& session = *session_;
  ++uses_;
  lock.unlock();
  use(session);
  lock.lock();
  --uses_;
  changed_.notify_all();
}

// Reports to the other ranks without the lock: that may take a second per aggregator.
void JobCommunicator::abort_job(const std::string& reason) {
  const Status status(ErrorCode::kAborted, "rank " + std::to_string(rank()) + " aborted: " + reason, rank());
  std::unique_lock lock(mutex_);
  if (failure_.ok() && moves()) failure_ = status;
  if (session_ == nullptr) {
    changed_.notify_all();  // the supervisor ends all
    return;
  }
  session_->fail(status);
  with_session(lock, [&](Session& session) {
    if (hooks_.aborting) hooks_.aborting();
    session.report(status);
  });
}

void JobCommunicator::flush_submitted(Deadline deadline) {
  prioritised_.flush(deadline);
  std::unique_lock lock(mutex_);
  if (moves())
    quiet_.wait_until(lock, deadline, [this] { return in_flight_.first() == nullptr; });
  else if (session_ != nullptr)
    with_session(lock, [&](Session& session) { session.flush(deadline); });
}

void JobCommunicator::linger(Deadline deadline) {
  {
    std::unique_lock lock(mutex_);
    if (session_ != nullptr) with_session(lock, [&](const Session& session) { session.linger(deadline); });
  }
  if (relays_ != nullptr) relays_->linger(deadline);
}

Result<Regrouped> JobCommunicator::regroup_job(const RegroupOptions& options) {
  const std::lock_guard one_at_a_time(regroup_mutex_);
  std::unique_ptr<Session> old;
  Status why;
  {
    std::unique_lock lock(mutex_);
    if (failure_.ok() && !moves() && session_ != nullptr) failure_ = session_->status();
    if (failure_.ok())
      failure_ =
          Status(ErrorCode::kAborted, "rank " + std::to_string(rank()) + " asks for a regroup", rank());
    why = failure_;
    // The supervisor looks at failure_.
    changed_.wait(lock, [this] { return !moving_ && uses_ == 0; });
    old = std::move(session_);
  }
  if (old != nullptr) factory_.end(std::move(old), why);
  end_all();
  reset_sparse();
  prioritised_.reset();
  auto session = factory_.regroup(options, failure_callback());
  if (!session.ok()) {
    const std::lock_guard lock(mutex_);
    failure_ = session.status();
    return session.status();
  }
  const std::lock_guard lock(mutex_);
  failure_ = Status();
  lost_.reset();
  next_number_ = 0;
  submitted_ = completed_ = failed_ = 0;
  lacks_words_ = session.value()->lacks_words();
  begin_with(std::move(session).value());
  began_fixed_ = order_of_floats_.empty();
  return factory_.regrouped();
}

Status JobCommunicator::job_status() const {
  const std::lock_guard lock(mutex_);
  // Without failover nothing notes the failure of the session.
  return failure_.ok() && !moves() && session_ != nullptr ? session_->status() : failure_;
}

CommunicatorStats JobCommunicator::job_stats() const {
  const std::lock_guard lock(mutex_);
  CommunicatorStats stats;
  if (session_ != nullptr)
    stats = session_->stats();
  else
    stats.wrong_sums = factory_.wrong_sums();
  if (!moves()) return stats;
  stats.failovers = failovers_;
  stats.operations_submitted = submitted_;
  stats.operations = completed_;
  stats.operations_failed = failed_;
  return stats;
}

std::string JobCommunicator::describe_job() const {
  const std::lock_guard lock(mutex_);
  if (!moves() && session_ != nullptr)
    return session_->describe() + describe_sparse() + prioritised_.describe();
  if (!failure_.ok()) return "not connected: " + failure_.to_string();
  if (session_ == nullptr) return "the aggregator is lost: looking for another";
  return session_->describe() + "; moves if the aggregator is lost (" + std::to_string(failovers_) +
         " times so far); shared memory is off" + describe_sparse() + prioritised_.describe();
}

}  // namespace netsum
