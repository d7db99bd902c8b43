// Requests of members, and tables with a dataplane that keeps books, for the tests of JobTable.
#ifndef NETSUM_AGGREGATOR_CONTROL_JOB_TABLE_FIXTURE_H_
#define NETSUM_AGGREGATOR_CONTROL_JOB_TABLE_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "aggregator/control/job_table.h"
#include "aggregator/dataplane/fake_dataplane.h"
#include "aggregator/dataplane/member_shards.h"
#include "src/base/rng.h"
#include "wire/ids.h"

namespace netsum {
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = JobEvent::Kind;

inline constexpr int64_t kSecondUs = 1'000'000;

inline JobSpec job_request(uint32_t world_size, const std::string& name = "train") {
  JobSpec request;
  request.set_protocol_version(NETSUM_VERSION);
  request.set_name(name);
  request.set_token("secret");
  request.set_world_size(world_size);
  request.set_mtu(1500);
  request.set_slots(256);
  return request;
}

inline MemberRequest member_request(uint32_t rank, uint32_t world_size, const std::string& name = "train") {
  MemberRequest request;
  request.job = job_request(world_size, name);
  request.rank = rank;
  request.peer = *Address::parse("10.0.0." + std::to_string(rank) + ":4000");
  return request;
}

// The same, of a rank that joins by an aggregator below.
inline MemberRequest through_rack(MemberRequest request, const std::string& rack) {
  request.rack = rack;
  request.rack_payload_bytes = 1408;
  request.rack_slots = 100;
  request.rack_stripes = 1;
  request.origin = "192.168.7." + std::to_string(request.rank) + ":99";
  return request;
}

inline MemberClaim claim_of(const MemberRequest& request, MemberId id) {
  return {request.job.name(), request.job.token(), request.job.aggregator_token(), request.rank, id};
}

class JobTableTest : public ::testing::Test {
 protected:
  JobTable table(JobTableOptions options = {}) { return table(std::move(options), &dataplane_); }
  JobTable table(JobTableOptions options, Dataplane* dataplane) {
    return JobTable(std::move(options), dataplane, [this] { return rng_.next(); });
  }

  static MemberId join(JobTable& table, const MemberRequest& request, int64_t now_us = 0) {
    const Result<MemberId> id = table.join(now_us, request);
    EXPECT_TRUE(id.ok()) << id.status().to_string();
    return id.ok() ? *id : 0;
  }

  static std::vector<MemberId> join_all(JobTable& table, uint32_t world_size,
                                        const std::string& name = "train") {
    std::vector<MemberId> ids;
    for (uint32_t rank = 0; rank < world_size; ++rank)
      ids.push_back(join(table, member_request(rank, world_size, name)));
    return ids;
  }

  static std::vector<JobEvent> of_kind(const std::vector<JobEvent>& events, Kind kind) {
    std::vector<JobEvent> found;
    std::copy_if(events.begin(), events.end(), std::back_inserter(found),
                 [&](const JobEvent& event) { return event.kind == kind; });
    return found;
  }

  Status refusal(const MemberRequest& request, JobTableOptions options = {}) {
    return refusal(request, std::move(options), &dataplane_);
  }
  Status refusal(const MemberRequest& request, JobTableOptions options, Dataplane* dataplane) {
    JobTable fresh = table(std::move(options), dataplane);
    const Result<MemberId> id = fresh.join(0, request);
    EXPECT_FALSE(id.ok());
    EXPECT_TRUE(fresh.empty()) << "a refused join must leave nothing behind";
    return id.status();
  }

  Rng rng_{1};
  FakeDataplane dataplane_;
  MemberShards shards_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_CONTROL_JOB_TABLE_FIXTURE_H_
