#include "torch/src/host_exchange.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "torch/src/host_work.h"

namespace netsum::torch_backend {
namespace {

constexpr const char* kAborted = "aborted before the group joined";

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Calls watch() of the exchanges that are in progress, of all groups. Not on a thread of a group: the store may be in use by a
// thread that waits for another rank.
class Watcher {
 public:
  // In a child that was forked there is no thread. Never destroyed, because the thread may outlive main().
  static Watcher& of_this_process() {
    static std::mutex mutex;
    static Watcher* watcher = nullptr;
    static pid_t process = 0;
    const std::lock_guard lock(mutex);
    if (process != getpid()) watcher = new Watcher;
    process = getpid();
    return *watcher;
  }

  void add(std::weak_ptr<HostExchange> exchange) {
    const std::lock_guard lock(mutex_);
    watched_.insert(std::move(exchange));
    if (!running_) start();
    changed_.notify_all();
  }

 private:
  static constexpr std::chrono::seconds kIdle{5};

  // Without a thread, exchanges end by their deadlines.
  void start() {
    try {
      std::thread([this] { run(); }).detach();
      running_ = true;
    } catch (const std::system_error&) {
      running_ = false;
    }
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (changed_.wait_for(lock, kIdle, [this] { return !watched_.empty(); })) {
      lock.unlock();
      std::this_thread::sleep_for(HostExchange::kWatchPeriod);
      lock.lock();
      const auto watched = std::exchange(watched_, {});
      lock.unlock();
      for (const auto& one : watched) {
        const auto exchange = one.lock();
        if (exchange && exchange->watch()) add(exchange);
      }
      lock.lock();
    }
    running_ = false;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::weak_ptr<HostExchange>, std::owner_less<>> watched_;
  bool running_ = false;
};

}  // namespace

struct HostExchange::Pending {
  at::Tensor all;
  Exchanged done;
};

LateJoin HostExchange::late_join() {
  const auto self = shared_from_this();
  return {.exchange = [self](std::span<const std::byte> own, std::chrono::milliseconds timeout,
                             Exchanged done) { self->exchange(own, timeout, std::move(done)); },
          .abort = [self](const std::string& reason) { self->abort(reason); }};
}

void HostExchange::exchange(std::span<const std::byte> own, std::chrono::milliseconds timeout,
                            Exchanged done) {
  const auto bytes = static_cast<int64_t>(own.size());
  const auto pending = std::make_shared<Pending>();
  pending->done = std::move(done);
  {
    const std::lock_guard lock(mutex_);
    pending_.insert(pending);
  }
  Watcher::of_this_process().add(weak_from_this());
  try {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    std::vector<at::Tensor> inputs = {at::empty({bytes}, at::kByte)};
    std::memcpy(inputs[0].mutable_data_ptr(), own.data(), own.size());
    pending->all = at::empty({size_ * bytes}, at::kByte);
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int64_t rank = 0; rank < size_; ++rank)
      outputs[0].push_back(pending->all.narrow(0, rank * bytes, bytes));
    c10d::AllgatherOptions options;
    options.timeout = timeout;
    gloo_->allgather(outputs, inputs, options)
        ->getFuture()
        ->addCallback([weak = weak_from_this(), pending](c10::ivalue::Future& ended) {
          const auto self = weak.lock();
          if (self)
            self->end(pending, ended.hasError() ? status_of_gloo(ended.exception_ptr(), "") : Status());
        });
  } catch (const std::exception&) {
    end(pending, status_of_gloo(std::current_exception(), ""));
  }
}

void HostExchange::end(const PendingPtr& pending, const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (pending_.erase(pending) == 0) return;
  }
  if (status.ok()) return pending->done(status, bytes_of(pending->all));
  // A rank that has aborted may have closed its connections since.
  const Status aborted = this->aborted();
  pending->done(aborted.ok() ? status : aborted, {});
}

bool HostExchange::watch() {
  std::set<PendingPtr> pending;
  {
    const std::lock_guard lock(mutex_);
    pending = pending_;
  }
  if (pending.empty()) return false;
  Status status = lost_ ? lost_() : Status();
  if (status.ok()) status = aborted();
  if (status.ok()) return true;
  for (const PendingPtr& one : pending) end(one, status);
  return false;
}

void HostExchange::abort(const std::string& reason) {
  try {
    store_->set(kAborted, reason);
  } catch (const std::exception&) {
    // The store has ended with the rank that serves it; the others find that out.
  }
}

Status HostExchange::aborted() const {
  try {
    if (!store_->check({kAborted})) return {};
    const auto reason = store_->get(kAborted);
    return {ErrorCode::kAborted, "the group was aborted: " + std::string(reason.begin(), reason.end())};
  } catch (const std::exception&) {
    return {};  // the store has ended with the rank that serves it
  }
}

}  // namespace netsum::torch_backend
