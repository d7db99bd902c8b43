#include "tools/netsum/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace netsum::tool::process_test {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr milliseconds kLong{60'000};

TEST(RunProcess, GivesTheInputAndTakesAllOutput) {
  const std::string megabyte(1 << 20, 'x');
  const auto finished = run_process({"sh", "-c", "cat; echo aside >&2"}, megabyte, kLong);
  ASSERT_TRUE(finished.ok()) << finished.status().message();
  EXPECT_TRUE(finished->status().ok()) << finished->ending;
  EXPECT_EQ(finished->out, megabyte);
  EXPECT_EQ(finished->err, "aside\n");
}

TEST(RunProcess, AFailureSaysHowItEndedAndWhatItPrinted) {
  const auto finished = run_process({"sh", "-c", "echo no such link >&2; exit 3"}, "", kLong);
  ASSERT_TRUE(finished.ok()) << finished.status().message();
  EXPECT_EQ(finished->status("ip link").message(), "`ip link` failed (exit status 3): no such link");
  EXPECT_THAT(finished->status().message(), HasSubstr("`sh -c"));
  const auto killed = run_process({"sh", "-c", "kill -9 $$"}, "", kLong);
  ASSERT_TRUE(killed.ok()) << killed.status().message();
  EXPECT_THAT(killed->status().message(), HasSubstr("signal 9"));
}

TEST(RunProcess, AProgramThatIsNotThereIsNamed) {
  const std::string path = getenv("PATH");
  std::string closed = "/tmp/netsum-process-test-XXXXXX";  // a folder that only root may search
  ASSERT_NE(mkdtemp(closed.data()), nullptr);
  ASSERT_EQ(chmod(closed.c_str(), 0), 0);
  for (const std::string& searched : {path, closed + ":" + path}) {
    setenv("PATH", searched.c_str(), 1);
    const Status status = run_process({"no-such-program", "flag"}, "", kLong).status();
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("'no-such-program'"), HasSubstr("install")));
  }
  setenv("PATH", path.c_str(), 1);
  rmdir(closed.c_str());
}

TEST(RunProcess, OneThatDoesNotEndIsKilled) {
  const Status status = run_process({"sleep", "1000"}, "", milliseconds(20)).status();
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("`sleep 1000`"), HasSubstr("within 20 ms")));
}

}  // namespace
}  // namespace netsum::tool::process_test
