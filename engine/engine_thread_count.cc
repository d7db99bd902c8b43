#include "engine/engine_thread_count.h"

#include <algorithm>
#include <cmath>

namespace netsum {
namespace {

std::string number_of(size_t count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// As many as the rank's part of the link needs, and at most half of its cores: the program computes on the others.
size_t by_link(const EngineThreadCount::Wanted& wanted) {
  const auto ranks = static_cast<double>(wanted.ranks_here);
  const auto for_link = std::ceil(wanted.link_bps / ranks / EngineThreadCount::kRateOfOne);
  return std::clamp<size_t>(static_cast<size_t>(for_link), 1,
                            std::max<size_t>(1, wanted.cores / wanted.ranks_here / 2));
}

}  // namespace

EngineThreadCount EngineThreadCount::choose(const Wanted& wanted) {
  if (wanted.asked == 1) return {};
  const bool automatic = wanted.asked == 0;
  const size_t asked = automatic ? by_link(wanted) : static_cast<size_t>(wanted.asked);
  EngineThreadCount threads;
  threads.count = wanted.one_queue ? 1 : std::min(asked, wanted.stripes);
  threads.note = number_of(threads.count, "engine thread");
  if (automatic) {
    threads.note += " (automatically)";
  } else if (threads.count < asked) {
    threads.note += ", WARNING: " + std::to_string(asked) + " were asked for, and " +
                    (wanted.one_queue ? std::string("AF_XDP has one queue")
                                      : number_of(wanted.stripes, "stripe") + " can be divided");
  }
  if (!automatic && threads.count > wanted.cores)
    threads.note += ", WARNING: they share " + number_of(wanted.cores, "processor core");
  return threads;
}

}  // namespace netsum
