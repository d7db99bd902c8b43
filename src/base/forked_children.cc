#include "src/base/forked_children.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>

namespace netsum::forked_children {
namespace {

std::array<std::atomic<uint64_t>, kDescriptors / 64> descriptors;  // a bit each, by number
std::atomic<pid_t> process;

void after_fork_in_child() {
  process.store(getpid(), std::memory_order_relaxed);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (size_t word = 0; word < descriptors.size(); ++word) {
    for (uint64_t bits = descriptors[word].load(std::memory_order_relaxed); bits != 0; bits &= bits - 1)
      replace(static_cast<int>(word * 64) + __builtin_ctzll(bits), nothing);
  }
  if (nothing >= 0) close(nothing);
}

void handle_forks() {
  [[maybe_unused]] static const int once = [] {
    process.store(getpid(), std::memory_order_relaxed);
    return pthread_atfork(nullptr, nullptr, after_fork_in_child);
  }();
}

std::atomic<uint64_t>* word_of(int fd) {
  const auto index = static_cast<size_t>(fd);
  return fd < 0 || index >= kDescriptors ? nullptr : &descriptors[index / 64];
}
uint64_t bit_of(int fd) {
  return uint64_t{1} << (fd % 64);
}

}  // namespace

void drop(int fd) {
  handle_forks();
  if (std::atomic<uint64_t>* word = word_of(fd)) word->fetch_or(bit_of(fd), std::memory_order_relaxed);
}

void keep(int fd) {
  if (std::atomic<uint64_t>* word = word_of(fd)) word->fetch_and(~bit_of(fd), std::memory_order_relaxed);
}

pid_t process_id() {
  handle_forks();
  return process.load(std::memory_order_relaxed);
}

void replace(int fd, int nothing) {
  if (nothing < 0 || dup3(nothing, fd, O_CLOEXEC) < 0) close(fd);
}

}  // namespace netsum::forked_children
