#include "src/plan/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "src/plan/planner.h"
#include "src/plan/testing.h"

namespace netsum::plan::topology_test {
namespace {

using ::testing::AllOf;
using testing::equal_ranks;
using ::testing::HasSubstr;
using testing::link;
using testing::with_spare_hosts;

struct Bad {
  const char* what;
  std::function<void(Topology&)> spoil;
  ErrorCode code;
  std::vector<const char*> words;  // which part, and what to do
};

TEST(Topology, BadInputIsNamedWithWhatToDo) {
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  const std::vector<Bad> all = {
      {"zero",
       [](Topology& t) { t.ranks[2].link.in_bps = 0; },
       kInvalid,
       {"'worker2'", "in,", "give the link's rate"}},
      {"negative",
       [](Topology& t) { t.places[1].ports[0].out_bps = -5; },
       kInvalid,
       {"port 0 of place 'spare1'", "out,", "-5 bit/s", "give the link's rate"}},
      {"NaN", [](Topology& t) { t.ranks[0].link.out_bps = NAN; }, kInvalid, {"'worker0'", "nan", "give"}},
      {"infinite", [](Topology& t) { t.ranks[0].link.out_bps = INFINITY; }, kInvalid, {"'worker0'", "inf"}},
      {"absurd",
       [](Topology& t) { t.ranks[1].link.out_bps = 1e15; },
       kInvalid,
       {"'worker1'", "1e+15", "100 Tbit/s"}},
      {"bytes for bits",
       [](Topology& t) { t.ranks[1].link.out_bps = 100; },
       kInvalid,
       {"'worker1'", "from 1 kbit/s"}},
      {"no way in",
       [](Topology& t) { t.places[0].ports.clear(); },
       ErrorCode::kUnreachable,
       {"'spare0'", "no rank can reach", "give its link"}},
      {"switch with a link",
       [](Topology& t) { t.places[0].kind = PlaceKind::kSwitch; },
       kInvalid,
       {"'spare0'", "make it a spare host"}},
      {"no place",
       [](Topology& t) {
         t.places.clear();
         for (Rank& rank : t.ranks) rank.shard = false;
       },
       kInvalid,
       {"no place can sum", "allow shards"}},
      {"no rank", [](Topology& t) { t.ranks.clear(); }, kInvalid, {"no rank", "hosts of the job"}},
      {"no core", [](Topology& t) { t.places[0].cores = 0; }, kInvalid, {"'spare0'", "at least one core"}},
      {"twice", [](Topology& t) { t.places[0].name = "worker1"; }, kInvalid, {"'worker1'", "given twice"}},
      {"half of the slots",
       [](Topology& t) { t.places[0].limits.slots = 12; },
       kInvalid,
       {"'spare0'", "all three or none"}},
      {"negative limit",
       [](Topology& t) { t.places[0].limits.adds_per_second = -1; },
       kInvalid,
       {"'spare0'", "additions per second is -1", "0 for no limit"}},
      {"NaN limit",
       [](Topology& t) { t.ranks[3].limits.stream_bps = NAN; },
       kInvalid,
       {"'worker3'", "stream rate"}},
      {"unknown rack",
       [](Topology& t) { t.ranks[0].rack = 3; },
       kInvalid,
       {"'worker0'", "rack number 3", "use one"}},
      {"racks in a cycle",
       [](Topology& t) {
         t.racks = {{"a", link(1), 1}, {"b", link(1), 0}};
       },
       kInvalid,
       {"rack 'a' is inside itself", "leave out"}},
      {"uplink without a rate",
       [](Topology& t) {
         t.racks = {{"a", Link{}, kNoRack}};
       },
       kInvalid,
       {"uplink of rack 'a'"}},
      {"below another one without members",
       [](Topology& t) { t.places[0].below = {t.places[1]}; },
       kInvalid,
       {"'spare1' is below 'spare0' and no rank sends to it", "leave it out"}},
      {"racks around a hierarchy",
       [](Topology& t) {
         t.racks = {{"a", link(1), kNoRack}};
         t.places[0].below = {t.places[1]};
         t.places[0].below[0].members = 4;
       },
       kInvalid,
       {"'spare0' has others below it", "leave out the racks"}},
      {"absurd uplink",
       [](Topology& t) {
         t.places[0].below = {t.places[1]};
         t.places[0].below[0].members = 4;
         t.places[0].below[0].uplink = Link{1e9, 1};
       },
       kInvalid,
       {"uplink of place 'spare1', out,", "1 bit/s"}},
      {"absurd link below another one",
       [](Topology& t) {
         t.places[0].below = {t.places[1]};
         t.places[0].below[0].members = 4;
         t.places[0].below[0].ports[0].in_bps = 1e15;
       },
       kInvalid,
       {"port 0 of place 'spare1', in,", "1e+15"}},
      {"element", [](Topology& t) { t.element_bits = 0; }, kInvalid, {"0 bits"}},
      {"ranks",
       [](Topology& t) { t = equal_ranks(513); },
       ErrorCode::kResourceExhausted,
       {"513 ranks", "512"}},
      {"places",
       [](Topology& t) { t = with_spare_hosts(2, 65); },
       ErrorCode::kResourceExhausted,
       {"65 places", "64"}},
  };
  for (const Bad& bad : all) {
    Topology topology = with_spare_hosts(4, 2);
    ASSERT_TRUE(check(topology).ok());
    bad.spoil(topology);
    for (const Status& status :
         {check(topology), make_plan(topology).status(), evaluate(topology, {1}).status()}) {
      EXPECT_EQ(status.code(), bad.code) << bad.what << ": " << status.to_string();
      for (const char* word : bad.words) EXPECT_THAT(status.message(), HasSubstr(word)) << bad.what;
    }
  }
}

}  // namespace
}  // namespace netsum::plan::topology_test
