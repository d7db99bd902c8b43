#include "src/control/client.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <climits>
#include <limits>
#include <optional>
#include <thread>

#include "netsum/regroup.h"
#include "src/base/timeout.h"
#include "src/control/channel.h"
#include "src/control/connection_errors.h"
#include "src/control/heartbeat.h"
#include "src/control/join_stream.h"
#include "src/control/membership.h"
#include "src/control/rack_client.h"
#include "src/control/rpc_status.h"
#include "src/job/capabilities.h"
#include "src/job/ranks.h"
#include "wire/ids.h"

namespace netsum {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// A stalled aggregator must learn of a member that leaves before it sees the end of the member's stream: that would be a
// lost member to the others. Of a failure they learn in any case.
constexpr milliseconds kLeaveCall{5000};
constexpr milliseconds kFailCall{1000};
constexpr milliseconds kStreamEnd{300};
// How often it is asked whether joining has been given up.
constexpr milliseconds kGlance{10};
constexpr milliseconds kGivingUp{300};  // until an aggregator that is there has admitted this rank
// The aggregator's deadline is this much earlier than the client's (or by a tenth of the time), so that its answer arrives
// in time.
constexpr int64_t kHeadStartMs = 500;

milliseconds until(Clock::time_point deadline) {
  return std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
}

control::JoinRequest to_request(const JoinParameters& parameters) {
  control::JoinRequest request;
  *request.mutable_job() = parameters.job;
  request.set_rank(static_cast<uint32_t>(parameters.rank));
  request.set_shard_endpoint(parameters.shard_endpoint);
  request.set_shard_payload_bytes(parameters.shard_payload_bytes);
  request.set_shard_slots(parameters.shard_slots);
  *request.mutable_dataplane() = parameters.shard;
  request.set_shard_job(parameters.shard_job);
  if (parameters.sharing) {
    *request.mutable_sharing()->mutable_link() = parameters.sharing->link;
    for (const PlaceInfo& place : parameters.sharing->other_places)
      *request.mutable_sharing()->add_other_places() = place;
    request.mutable_sharing()->mutable_first_place()->set_address(parameters.address);
  }
  request.set_host(parameters.host);
  request.set_multicast(parameters.multicast);
  request.set_completed(parameters.completed);
  request.set_liveness_ms(to_wire(parameters.liveness));
  return request;
}

class Client final : public ControlClient {
 public:
  // `rack`: join_for_rack(); empty: the rank itself is a member.
  Client(JoinParameters parameters, std::string rack, uint32_t rack_stripes,
         std::shared_ptr<grpc::Channel> channel)
      : parameters_(std::move(parameters)),
        rack_(std::move(rack)),
        rack_stripes_(rack_stripes),
        channel_(std::move(channel)),
        rank_(parameters_.rank),
        world_size_(static_cast<int>(parameters_.job.world_size())) {}

  ~Client() override {
    if (stream_ == nullptr) return;
    if (!has_left_) leave(false);
    drop_stream(Clock::now() + kStreamEnd);
  }

  Status connect(const std::function<void(const Status&)>& on_failure);

  const Membership& membership() const override { return membership_; }
  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  void detach() override { stream_->disarm(Clock::now() + kLeaveCall); }
  void leave_and_stay() override { leave(true); }
  bool others_need_nothing(milliseconds patience) override {
    const auto end = Clock::now() + patience;
    if (!has_left_ || stays_) {
      const bool ended = stream_->wait_for_others(static_cast<size_t>(world_size_ - 1), end);
      // The aggregator itself ends the stream so. A connection that breaks tells nothing about the others.
      if (ended && (!stream_->over() || stream_->rpc_status().ok())) return true;
    }
    std::this_thread::sleep_until(end);
    return false;
  }
  void set_witness(std::function<uint64_t()> witness) override {
    if (heartbeat_ != nullptr) heartbeat_->set_witness(std::move(witness));
  }
  void set_beat(std::function<void(control::Beat*)> tell) override {
    if (heartbeat_ != nullptr) heartbeat_->set_beat(std::move(tell));
  }
  std::string hang() const override { return heartbeat_ == nullptr ? "" : heartbeat_->hang(); }

  void report_failure(const Status& status) override {
    stream_->disarm(Clock::now());
    if (is_over()) return;
    control::FailRequest request;
    *request.mutable_member() = claim();
    *request.mutable_failure() = to_failed(status);
    // Without an answer the aggregator is lost, which the other members detect themselves, or slow.
    if (!fail(request, Clock::now() + kFailCall) && !unanswered_) unanswered_ = std::move(request);
  }

 private:
  // nullopt: retry; the reason is in `last_error_`.
  std::optional<Status> attempt(Clock::time_point deadline,
                                const std::function<void(const Status&)>& on_failure);
  JoinStream::Outcome wait(Clock::time_point deadline) const;
  Status given_up() const { return parameters_.given_up ? parameters_.given_up() : Status(); }
  Status timed_out() const;
  // Errors: kInternal (this rank is not among the members), kUnsupported (the dataplanes cannot do what the job needs).
  Status take(Membership membership);

  control::MemberRequest claim() const {
    control::MemberRequest request;
    request.set_job(parameters_.job.name());
    request.set_token(parameters_.job.token());
    request.set_aggregator_token(parameters_.job.aggregator_token());
    request.set_rank(static_cast<uint32_t>(rank_));
    request.set_member(stream_->member().value_or(0));
    return request;
  }

  // Returns whether it was answered.
  bool fail(const control::FailRequest& request, Clock::time_point deadline) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + until(deadline));
    control::Empty reply;
    return control::Aggregator::NewStub(channel_)->Fail(&context, request, &reply).ok();
  }

  void drop_stream(Clock::time_point deadline) {
    if (stream_ == nullptr) return;
    stream_->disarm(deadline);
    // A cancelled call ends at once. If gRPC does not end it in time, a leak is better than a hang.
    if (!stream_->close(deadline)) (void)stream_.release();
    stream_.reset();
  }

  // The aggregator knows that the job has failed, or is lost.
  bool is_over() const { return stream_->over() || !stream_->failure().ok(); }

  // `stay`: the stream is to last until all have left.
  void leave(bool stay) {
    const auto deadline = Clock::now() + kLeaveCall;
    stream_->disarm(deadline);
    if (heartbeat_ != nullptr) heartbeat_->stop();
    has_left_ = true;
    stays_ = stay && is_over();
    if (is_over() || !stream_->member()) return;
    // An aggregator that was slow to answer may not have seen the report. To the others, this member would have left in order.
    if (unanswered_) {
      (void)fail(*unanswered_, deadline);
      return;
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + until(deadline));
    control::MemberRequest request = claim();
    request.set_until_all_left(stay);
    control::LeaveReply reply;
    // Otherwise the stream is closed next.
    const bool answered = control::Aggregator::NewStub(channel_)->Leave(&context, request, &reply).ok();
    stays_ = answered && reply.until_all_left();
  }

  const JoinParameters parameters_;
  const std::string rack_;
  const uint32_t rack_stripes_;
  const std::shared_ptr<grpc::Channel> channel_;
  int rank_;
  int world_size_;
  std::unique_ptr<JoinStream> stream_;  // the latest attempt's
  std::unique_ptr<Heartbeat> heartbeat_;
  std::optional<control::FailRequest> unanswered_;  // the first report that was not answered
  bool has_left_ = false;
  bool stays_ = false;  // has left, and the stream ends when no other member needs anything
  Status last_error_;
  int brief_retries_ = 0;
  Membership membership_;
};

Status Client::connect(const std::function<void(const Status&)>& on_failure) {
  const auto deadline = Clock::now() + bounded(parameters_.timeout);
  while (until(deadline).count() > 0) {
    if (const auto end = attempt(deadline, on_failure)) return *end;
    std::this_thread::sleep_for(std::min(kRetryPause, until(deadline)));
  }
  return timed_out();
}

JoinStream::Outcome Client::wait(Clock::time_point deadline) const {
  if (!parameters_.given_up) return stream_->wait(deadline);
  auto outcome = JoinStream::Outcome::kWaiting;
  while (outcome == JoinStream::Outcome::kWaiting && Clock::now() < deadline && given_up().ok())
    outcome = stream_->wait(std::min(deadline, Clock::now() + kGlance));
  return outcome;
}

std::optional<Status> Client::attempt(Clock::time_point deadline,
                                      const std::function<void(const Status&)>& on_failure) {
  if (const Status why = given_up(); !why.ok()) return why;
  const int64_t left_ms = until(deadline).count();
  control::JoinRequest request = to_request(parameters_);
  if (!rack_.empty()) {
    request.set_rack(rack_);
    request.set_rack_payload_bytes(parameters_.shard.payload_bytes());
    request.set_rack_slots(std::numeric_limits<uint32_t>::max());
    request.set_rack_stripes(rack_stripes_);
  }
  request.set_deadline_ms(
      to_wire(milliseconds(std::max<int64_t>(1, left_ms - std::min(left_ms / 10, kHeadStartMs)))));
  drop_stream(deadline);
  stream_ = JoinStream::start(channel_, parameters_.address, request, parameters_.on_missing);
  switch (wait(deadline)) {
    case JoinStream::Outcome::kReady: {
      Result<Membership> membership = to_membership(stream_->ready(), stream_->peer());
      if (!membership.ok()) return membership.status();
      if (Status status = take(std::move(membership).value()); !status.ok()) return status;
      Status armed = stream_->arm(on_failure, parameters_.on_left);
      if (!armed.ok() || parameters_.liveness.count() == 0) return armed;
      heartbeat_ = std::make_unique<Heartbeat>(channel_, parameters_.address, claim(), parameters_.liveness,
                                               [this](const Status& lost) { stream_->lose(lost); });
      return heartbeat_->start();
    }
    case JoinStream::Outcome::kFailed:
      return stream_->failure();
    case JoinStream::Outcome::kWaiting:
      if (const Status why = given_up(); !why.ok()) {
        // Only a member can leave: where the aggregator has just admitted this rank, the others would take it for lost.
        stream_->wait_for_member(std::min(deadline, Clock::now() + kGivingUp));
        return why;
      }
      return timed_out();
    case JoinStream::Outcome::kEnded:
      break;
  }
  const grpc::Status ended = stream_->rpc_status();
  if (!ended.ok())
    if (const auto answer = from_rpc_status(ended)) return *answer;
  const ConnectionError error = explain(parameters_.address, parameters_.tls, ended);
  last_error_ = error.status;
  if (error.retry == Retry::kYes) brief_retries_ = 0;
  if (error.retry == Retry::kBriefly) ++brief_retries_;
  if (error.retry == Retry::kNo || brief_retries_ > kBriefRetries) return last_error_;
  return std::nullopt;
}

Status Client::take(Membership membership) {
  membership_ = std::move(membership);
  // An aggregator of another release may ignore the job's needs.
  if (Status status =
          check_needs(parameters_.job, membership_.capabilities,
                      "the aggregator at " + parameters_.address + " (" + membership_.dataplane + ")");
      !status.ok())
    return status;
  if (Status status = check_sum_secret(membership_, parameters_.job, parameters_.address); !status.ok())
    return status;
  membership_.spec = without_tokens(parameters_.job);
  const std::vector<int>& former = membership_.former_ranks;
  if (former.empty()) return {};
  rank_ = RegroupRule::new_rank(former, parameters_.rank);
  if (rank_ == kNoRank)
    return {ErrorCode::kInternal, "the aggregator at " + parameters_.address + " granted a job without us"};
  world_size_ = static_cast<int>(former.size());
  membership_.spec.set_world_size(static_cast<uint32_t>(world_size_));
  return {};
}

Status Client::timed_out() const {
  if (stream_ != nullptr && stream_->member() && !stream_->missing().empty())
    return ranks_missing(parameters_.job, stream_->missing(), parameters_.timeout.count());
  if (!last_error_.ok()) return last_error_;
  return {ErrorCode::kUnreachable, "nothing answered at " + parameters_.address + " within " +
                                       describe_ms(parameters_.timeout.count()) + kStartWhatAnswers};
}

// The heartbeat decides for how long the aggregator can be stopped.
Result<std::shared_ptr<grpc::Channel>> channel_for(const JoinParameters& parameters) {
  const int64_t liveness_ms = parameters.liveness.count();
  const int64_t silence_ms =
      liveness_ms == 0 ? INT_MAX : std::clamp<int64_t>(liveness_ms, kKeepaliveTimeoutMs, INT_MAX);
  return make_channel(parameters.address, parameters.tls, static_cast<int>(silence_ms));
}

Result<std::unique_ptr<ControlClient>> join_at(const JoinParameters& parameters, const std::string& rack,
                                               uint32_t rack_stripes,
                                               const std::shared_ptr<grpc::Channel>& channel,
                                               std::function<void(const Status&)> on_failure) {
  if (parameters.timeout.count() <= 0)
    return Status(ErrorCode::kInvalidArgument, "the timeout of joining must be positive");
  auto client = std::make_unique<Client>(parameters, rack, rack_stripes, channel);
  if (Status status = client->connect(on_failure); !status.ok()) return status;
  return std::unique_ptr<ControlClient>(std::move(client));
}

}  // namespace

uint32_t to_wire(milliseconds time) {
  return static_cast<uint32_t>(std::clamp<int64_t>(time.count(), 0, std::numeric_limits<uint32_t>::max()));
}

Result<std::unique_ptr<ControlClient>> ControlClient::join(const JoinParameters& parameters,
                                                           std::function<void(const Status&)> on_failure) {
  const auto channel = channel_for(parameters);
  if (!channel.ok()) return channel.status();
  return join_at(parameters, "", 0, *channel, std::move(on_failure));
}

std::vector<Result<std::unique_ptr<ControlClient>>> join_for_rack(
    const JoinParameters& parameters, int ranks, const std::string& rack, uint32_t stripes,
    const std::function<void(const Status&)>& on_failure) {
  std::vector<Result<std::unique_ptr<ControlClient>>> joined;
  const auto channel = channel_for(parameters);
  for (int i = 0; i < ranks; ++i)
    joined.emplace_back(channel.ok() ? Status(ErrorCode::kInternal, "not joined") : channel.status());
  if (!channel.ok()) return joined;
  // Each waits for all ranks of the job.
  std::vector<std::thread> threads;
  for (int i = 0; i < ranks; ++i) {
    threads.emplace_back([&, i] {
      JoinParameters of_rank = parameters;
      of_rank.rank += i;
      if (i > 0) of_rank.liveness = milliseconds(0);
      joined[static_cast<size_t>(i)] = join_at(of_rank, rack, stripes, *channel, on_failure);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return joined;
}

}  // namespace netsum
