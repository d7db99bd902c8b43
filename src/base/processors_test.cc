#include "src/base/processors.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace netsum::processors_test {
namespace {

TEST(ProcessorsTest, APinnedThreadMayUseItsCoreOnly) {
  const int last = usable_processors().back();
  std::vector<int> pinned;
  std::thread([&] {
    ASSERT_TRUE(pin_thread(pthread_self(), last).ok());
    pinned = usable_processors();
    EXPECT_EQ(sched_getcpu(), last);
  }).join();
  EXPECT_EQ(pinned, std::vector<int>{last});
}

TEST(ProcessorsTest, ACoreThatDoesNotExistIsRefused) {
  const Status status = pin_thread(pthread_self(), CPU_SETSIZE - 1);
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(status.message().find("processor core " + std::to_string(CPU_SETSIZE - 1)), std::string::npos);
}

}  // namespace
}  // namespace netsum::processors_test
