// Which links between plain switches lose packets, from what is lost on the paths over them. No I/O.
//
// A packet of a path is lost with 1 - (1 - usual) (1 - q) ..., over the bad links of the path, of loss rate q each. Links are blamed one
// after the other: the one that makes the counts most likely, given those before it. Links of which the counts can tell none from
// the others are blamed together, as a group: of links on the same paths, no count ever can.
//
// Where switches choose one of several equal routes by a packet's addresses, it is not known which: a path then is over a link with
// the probability `share`, for all its packets.
#ifndef NETSUM_SRC_FAULTS_PATH_FAULTS_H_
#define NETSUM_SRC_FAULTS_PATH_FAULTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace netsum::faults {

// One direction between a rank and one that sums.
struct PathCount {
  std::vector<std::pair<size_t, double>> links;  // number, share; none twice
  uint64_t kept = 0, lost = 0;
};

struct BadLink {
  std::vector<size_t> links;  // one, or a group of which one is bad; ascending
  double loss = 0;            // of the most likely one
  double evidence = 0;        // the logarithm of how many times as likely the counts are
};

// Needed to blame a link: in an hour, one false alarm of 1e11 packets, as LinkWatch::kAlarm.
inline constexpr double kBlame = 25;
// By which a link leads those that are blamed with it.
inline constexpr double kLead = 10;

// What a path without a bad link loses, for bad_links(): the lower quartile of the paths, because losses that all have say nothing
// about a link, with a margin for chance.
double usual_loss(std::span<const PathCount> paths);

// At most `most`, by evidence. `links`: how many there are. `usual`: what a path loses without a bad link; above 0, below 1.
std::vector<BadLink> bad_links(std::span<const PathCount> paths, size_t links, double usual, size_t most = 4);

// For people who look for one of a group: a path over exactly one of the two links tells them apart. Returns the number of such a
// path of `candidates`, or their count if there is none.
size_t path_that_tells(std::span<const PathCount> candidates, size_t one, size_t other);

}  // namespace netsum::faults

#endif  // NETSUM_SRC_FAULTS_PATH_FAULTS_H_
