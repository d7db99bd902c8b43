// A liar on the path of an aggregator: it has the aggregator's keys, so what it alters looks as if the aggregator had added
// wrong. It also judges each result that reaches a host, whoever has altered it.
#ifndef NETSUM_TESTS_ATTACK_PATH_LIAR_H_
#define NETSUM_TESTS_ATTACK_PATH_LIAR_H_

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "emulate/faulty_aggregator.h"
#include "emulate/result_checker.h"
#include "src/net/address.h"
#include "tests/attack/frame_path.h"
#include "tests/attack/known_jobs.h"
#include "wire/codec.h"

namespace netsum::attack {

class PathLiar {
 public:
  enum class About { kSums, kAllResults, kContributions };
  struct Options {
    uint64_t seed = 1;
    double probability = 0;  // of a round, in the direction that `about` says
    uint32_t times = 0;      // emulate::Lies::times
    About about = About::kSums;
    std::optional<emulate::Lie> kind;  // otherwise job i is lied to in the way i, modulo all ways
  };
  struct Report {
    std::array<uint64_t, static_cast<size_t>(emulate::Lie::kCount)> injected{};  // packets altered, by kind
    // Results on their last way to a rank.
    uint64_t right = 0;
    uint64_t wrong = 0;
    uint64_t wrong_in_time = 0;  // the rank has not had the right one yet
    uint64_t wrong_tag = 0;      // of those, only their tag is wrong, of which not all bits count
  };

  PathLiar(const Options& options, const KnownJobs& jobs);
  // `silent`: it listens, but does not lie.
  std::optional<conformance::Bytes> operator()(const FramePath::Passing& passing, bool silent);
  const Report& report() const { return report_; }

 private:
  void note(const KnownJobs::Job& job, int host, const netsum_fields& fields, const uint8_t* payload);
  void note_early();
  std::optional<conformance::Bytes> contribution(const FramePath::Passing& passing, const KnownJobs::Job& job,
                                                 netsum_fields fields, bool silent);
  std::optional<conformance::Bytes> result(const FramePath::Passing& passing, const KnownJobs::Job& job,
                                           netsum_fields fields, bool silent);
  // Returns the number of bytes in `datagram` if it has been altered, or 0.
  size_t lie(const KnownJobs::Job& job, const Address& member, netsum_fields* fields,
             conformance::Bytes* datagram);
  void check(const KnownJobs::Job& job, int host, const netsum_fields& fields, const uint8_t* payload);
  emulate::Lie kind_for(const KnownJobs::Job& job) const;
  static emulate::FaultyAggregator::Round round_of(const KnownJobs::Job& job, const netsum_fields& fields);

  const Options options_;
  const KnownJobs& jobs_;
  std::vector<emulate::FaultyAggregator> faulty_;  // by kind
  emulate::ResultChecker result_checker_;
  // Contributions to the parent, before its rack knows the job.
  struct Early {
    int host = 0;
    Address aggregator;
    netsum_fields fields{};
    std::vector<uint8_t> payload;
  };
  std::vector<Early> early_;
  std::set<std::pair<emulate::FaultyAggregator::Round, int>>
      served_;                              // and the host: it has had the right result
  std::map<size_t, wire::PacketKey> keys_;  // by job
  Report report_;
};

}  // namespace netsum::attack

#endif  // NETSUM_TESTS_ATTACK_PATH_LIAR_H_
