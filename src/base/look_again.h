// Whether a thread that has received packets looks for more before it waits. Where packets come one by one, such a look is in vain
// and costs a system call; where they stream, it saves the wait, which would end at once.
#ifndef NETSUM_SRC_BASE_LOOK_AGAIN_H_
#define NETSUM_SRC_BASE_LOOK_AGAIN_H_

#include <algorithm>

namespace netsum {

class LookAgain {
 public:
  // Those in vain are left out, but one of kTried: what packets do can change.
  bool pays() { return score_ >= 0 || ++left_out_ % kTried == 0; }
  void note(bool found) { score_ = std::clamp(score_ + (found ? 1 : -1), -kMost, kMost); }

 private:
  static constexpr int kMost = 8, kTried = 8;
  int score_ = 0;
  unsigned left_out_ = 0;
};

}  // namespace netsum

#endif  // NETSUM_SRC_BASE_LOOK_AGAIN_H_
