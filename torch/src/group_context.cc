#include "torch/src/group_context.h"

#include <chrono>
#include <cstddef>
#include <map>
#include <thread>
#include <vector>

namespace netsum::torch_backend {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kExchange{1'000};
constexpr std::chrono::milliseconds kPoll{10};
constexpr size_t kCallsNamed = 4;

std::string key_of(int rank) {
  return "call at the mismatch/" + std::to_string(rank);
}

// "rank 1 called ...; ranks 0, 2, 3 called ..."
std::string listed(const std::map<int, std::string>& calls) {
  std::map<std::string, std::vector<int>> ranks_of;
  for (const auto& [rank, call] : calls) ranks_of[call].push_back(rank);
  std::string text;
  size_t named = 0;
  for (const auto& [call, ranks] : ranks_of) {
    if (++named > kCallsNamed) break;
    text += ranks.size() == 1 ? "; rank " : "; ranks ";
    for (size_t i = 0; i < ranks.size() && i < 8; ++i)
      text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
    text += (ranks.size() > 8 ? ", ... called " : " called ") + call;
  }
  return text;
}

}  // namespace

void GroupContext::work_ended() {
  if (--in_flight_ > 0) return;
  const std::lock_guard lock(flush_mutex_);
  none_in_flight_.notify_all();
}

bool GroupContext::flush(std::chrono::milliseconds limit) {
  std::unique_lock lock(flush_mutex_);
  return none_in_flight_.wait_for(lock, limit, [this] { return in_flight_ == 0; });
}

void GroupContext::fail(const Status& status) {
  if (const auto comm = communicator())
    comm->abort("a call of rank " + std::to_string(rank_) + " could not begin: " + status.message());
}

void GroupContext::interrupted(const std::string& call, const std::string& name) {
  if (const auto comm = communicator())
    comm->abort("rank " + std::to_string(rank_) + " was interrupted in " + call + " (" + name + ")");
}

std::string GroupContext::calls_at_mismatch(const std::string& own_call) {
  const std::lock_guard lock(mutex_);
  if (!calls_) calls_ = exchange_calls(own_call);
  return *calls_;
}

std::string GroupContext::exchange_calls(const std::string& own_call) {
  std::map<int, std::string> calls = {{rank_, own_call}};
  bool differ = false;
  try {
    store_->set(key_of(rank_), own_call);
    const auto end = Clock::now() + kExchange;
    while (true) {
      for (int rank = 0; rank < size_; ++rank) {
        if (calls.contains(rank) || !store_->check({key_of(rank)})) continue;
        const auto bytes = store_->get(key_of(rank));
        calls[rank] = std::string(bytes.begin(), bytes.end());
        differ |= calls[rank] != own_call;
      }
      // The ranks get the error at about the same time; those that come later are left out.
      if (differ || Clock::now() >= end) break;
      std::this_thread::sleep_for(kPoll);
    }
  } catch (const std::exception&) {
    // The store has ended with the rank that serves it. The error without the others' calls is as right.
  }
  return differ ? listed(calls) : "";
}

}  // namespace netsum::torch_backend
