// The operations of a core that are in progress, in the order in which they began. They may end in any order. There may be
// very many, so nothing goes through all of them but for_each().
#ifndef NETSUM_SRC_WORKER_IN_FLIGHT_H_
#define NETSUM_SRC_WORKER_IN_FLIGHT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "src/base/deadline_heap.h"

namespace netsum {

// `Item`: what the core knows of an operation. It stays where it is in memory.
template <typename Item>
class InFlight {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  // Items have places, counted from 0 in the order of add(). The next one's:
  uint64_t next_place() const { return first_place_ + entries_.size(); }
  void add(Item item, int64_t deadline_us) {
    entries_.push_back({.item = std::move(item), .deadline = deadline_us});
    deadlines_.add(&entries_.back());
    ++size_;
  }
  // Of an item that has not ended.
  Item& at(uint64_t place) { return entries_[place - first_place_].item; }
  const Item& front() const { return entries_.front().item; }
  const Item& back() const { return entries_.back().item; }
  Item end(uint64_t place) {
    Entry& entry = entries_[place - first_place_];
    Item item = std::move(entry.item);
    deadlines_.remove(&entry);
    entry.ended = true;
    --size_;
    for (; !entries_.empty() && entries_.front().ended; ++visited_, ++first_place_) entries_.pop_front();
    return item;
  }
  Item end_front() { return end(first_place_); }

  // INT64_MAX: there are none.
  int64_t next_deadline_us() const {
    return deadlines_.first() == nullptr ? INT64_MAX : deadlines_.first()->deadline;
  }
  // The one with the nearest deadline, if that has come; otherwise null.
  const Item* due(int64_t now_us) const {
    return next_deadline_us() <= now_us ? &deadlines_.first()->item : nullptr;
  }
  template <typename Visit>
  void for_each(const Visit& visit) const {
    for (const Entry& entry : entries_) {
      ++visited_;
      if (!entry.ended) visit(entry.item);
    }
  }

  // How many items the calls so far have looked at: a measure of what they cost.
  uint64_t visited() const { return visited_ + deadlines_.visited(); }

 private:
  struct Entry {
    Item item;
    int64_t deadline = 0;
    size_t heap_place = kInNoHeap;
    bool ended = false;
  };

  std::deque<Entry> entries_;  // the first has not ended
  uint64_t first_place_ = 0;
  size_t size_ = 0;
  DeadlineHeap<Entry> deadlines_;
  mutable uint64_t visited_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_IN_FLIGHT_H_
