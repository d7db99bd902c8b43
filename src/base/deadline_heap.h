// Finds what has the nearest deadline without going through all that have one.
#ifndef NETSUM_SRC_BASE_DEADLINE_HEAP_H_
#define NETSUM_SRC_BASE_DEADLINE_HEAP_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace netsum {

// What an item of a heap has, besides its deadline: `size_t heap_place = kInNoHeap`, for the heap.
inline constexpr size_t kInNoHeap = SIZE_MAX;

// A binary heap of pointers to items, which know their places in it, so that any of them can be removed. An item stays where it
// is in memory, and keeps its `deadline`, while it is in the heap.
template <typename Item>
class DeadlineHeap {
 public:
  // Null: there is none.
  Item* first() const { return items_.empty() ? nullptr : items_.front(); }

  void add(Item* item) {
    items_.push_back(item);
    rise(items_.size() - 1);
  }
  // Does nothing if it is not there.
  void remove(Item* item) {
    const size_t place = std::exchange(item->heap_place, kInNoHeap);
    if (place == kInNoHeap) return;
    Item* const last = items_.back();
    items_.pop_back();
    if (last == item) return;
    put(last, place);
    rise(place);
    sink(last->heap_place);
  }
  // How many items add() and remove() have looked at: a measure of what they cost.
  uint64_t visited() const { return visited_; }

 private:
  bool is_before(const Item& a, const Item& b) {
    ++visited_;
    return a.deadline < b.deadline;
  }
  void put(Item* item, size_t place) {
    items_[place] = item;
    item->heap_place = place;
  }
  void rise(size_t place) {
    Item* const item = items_[place];
    for (size_t parent = (place - 1) / 2; place > 0 && is_before(*item, *items_[parent]);
         parent = (place - 1) / 2) {
      put(items_[parent], place);
      place = parent;
    }
    put(item, place);
  }
  void sink(size_t place) {
    Item* const item = items_[place];
    for (size_t child = 2 * place + 1; child < items_.size(); child = 2 * place + 1) {
      if (child + 1 < items_.size() && is_before(*items_[child + 1], *items_[child])) ++child;
      if (!is_before(*items_[child], *item)) break;
      put(items_[child], place);
      place = child;
    }
    put(item, place);
  }

  std::vector<Item*> items_;
  uint64_t visited_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_DEADLINE_HEAP_H_
