#include "src/base/stack_hint.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <string>
#include <utility>

namespace netsum::stack_hint_test {
namespace {

constexpr std::chrono::seconds kPatience{20};

TEST(StackHintTest, SaysWhatItWasGivenUntilItIsTakenBack) {
  EXPECT_EQ(stack_hint(kPatience), "");
  set_stack_hint([] { return std::string("train.py:41\nin forward"); });
  EXPECT_EQ(stack_hint(kPatience), "train.py:41\\nin forward");
  set_stack_hint([] { return std::string(kMostHintBytes + 1, 'x'); });
  EXPECT_EQ(stack_hint(kPatience), std::string(kMostHintBytes - 3, 'x') + "...");
  set_stack_hint(nullptr);
  EXPECT_EQ(stack_hint(kPatience), "");
}

// To copy a function of an interpreter waits for its lock, too, and who asks sends heartbeats.
TEST(StackHintTest, ItIsNotCopiedByWhoeverAsks) {
  struct Hint {
    explicit Hint(std::atomic<int>* counter) : copies(counter) {}
    Hint(const Hint& other) : copies(other.copies) { ++*copies; }
    Hint(Hint&&) = default;
    std::string operator()() const { return "there"; }
    std::atomic<int>* copies;
  };
  std::atomic<int> copies{0};
  std::function<std::string()> hint = Hint(&copies);
  set_stack_hint(std::move(hint));
  const int before = copies;
  EXPECT_EQ(stack_hint(kPatience), "there");
  EXPECT_EQ(copies, before);
  set_stack_hint(nullptr);
}

// As an interpreter whose lock the main thread holds.
TEST(StackHintTest, OneThatDoesNotAnswerIsNotWaitedForAndNotCalledTwice) {
  std::promise<void> goes_on;
  std::shared_future<void> waits = goes_on.get_future();
  std::atomic<int> calls{0};
  set_stack_hint([&] {
    ++calls;
    waits.wait();
    return std::string("there");
  });
  EXPECT_EQ(stack_hint(std::chrono::milliseconds(1)), "");
  EXPECT_EQ(stack_hint(std::chrono::milliseconds(1)), "");
  auto taken_back = std::async(std::launch::async, [&] { return stack_hint(kPatience); });
  goes_on.set_value();
  EXPECT_EQ(taken_back.get(), "there");
  set_stack_hint(nullptr);  // waits for the call: what it refers to ends here
  EXPECT_GE(calls, 1);
  EXPECT_LE(calls, 2);
}

}  // namespace
}  // namespace netsum::stack_hint_test
