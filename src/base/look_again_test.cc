#include "src/base/look_again.h"

#include <gtest/gtest.h>

namespace netsum::look_again_test {
namespace {

// Of `looks` occasions, how many are taken, where a look finds something or not.
int taken(LookAgain* look, int looks, bool found) {
  int count = 0;
  for (int i = 0; i < looks; ++i) {
    if (!look->pays()) continue;
    look->note(found);
    ++count;
  }
  return count;
}

TEST(LookAgainTest, LooksInVainAreLeftOutUntilThereIsAStream) {
  LookAgain look;
  EXPECT_EQ(taken(&look, 100, true), 100);
  EXPECT_LE(taken(&look, 800, false), 110);  // some until the stream is forgotten, and then one of eight
  EXPECT_GE(taken(&look, 800, false), 100);
  EXPECT_GE(taken(&look, 1000, true), 900);
}

}  // namespace
}  // namespace netsum::look_again_test
