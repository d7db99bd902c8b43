// What a stripe is made with.
#ifndef NETSUM_SRC_WORKER_STRIPE_OPTIONS_H_
#define NETSUM_SRC_WORKER_STRIPE_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "netsum/status.h"
#include "src/encoding/encoding.h"
#include "src/net/address.h"
#include "src/worker/chunk_map.h"
#include "wire/packet.h"

namespace netsum {

struct StripeOptions {
  Address address;
  bool local = false;         // embedded in this process
  int embedded_in = kNoRank;  // the rank whose shard it is; kNoRank: it is an aggregator's
  // The multicast group of packets to all members; not valid: they come by unicast.
  Address multicast_group;
  uint16_t job = 0;
  uint16_t epoch = 0;
  netsum_key key{};                 // the stripe's: wire::stripe_key()
  uint32_t tag = NETSUM_TAG_KEYED;  // NETSUM_TAG_*: what is in the check field of packets
  uint32_t data_slots = 256;
  uint32_t scale_slots = 4;
  bool sums_values = false;  // the aggregator takes inline sums of all types; equal on all ranks
  // It takes inline sums of float32 only: its members, or those of another level of a hierarchy, are not single ranks.
  bool sums_partial_floats = false;
  FloatSums floats = FloatSums::kNo;  // what the aggregator takes in data slots, too; equal on all ranks
  bool takes_empty_packets = false;   // the aggregator takes empty contributions
  bool takes_no_result = false;       // the aggregator can send a member an empty result
  bool predicts_scales = false;       // data need not wait for the agreement on scales; equal on all ranks
  uint32_t payload_bytes = 1440;
  // Sums are verified under this key, verify::sum_key(), which all ranks have. Not with sums_values, floats,
  // takes_empty_packets, takes_no_result or predicts_scales; and the operations are sums, or move bytes.
  std::optional<netsum_key> sum_key;
  // Hierarchy: by rank, the number of its member here, or kMemberElsewhere if it sends to another aggregator. Empty: every
  // rank is the member of the same number.
  std::vector<uint16_t> member_of_rank;
  // Set by the WorkerCore:
  int rank = 0;
  int world_size = 1;
  int summands = 1;                                                           // as WorkerOptions::summands
  uint16_t member = 0;                                                        // of the rank
  uint32_t index = 0;                                                         // of this stripe
  std::shared_ptr<const ChunkMap> chunk_map = std::make_shared<ChunkMap>(1);  // in which `index` counts
  std::vector<int> names;                                                     // what messages call each rank

  uint16_t member_of(int of_rank) const {
    return member_of_rank.empty() ? static_cast<uint16_t>(of_rank)
                                  : member_of_rank[static_cast<size_t>(of_rank)];
  }
  int name_of(int of_rank) const {
    const auto at = static_cast<size_t>(of_rank);
    return at < names.size() ? names[at] : of_rank;
  }
};

inline constexpr uint16_t kMemberElsewhere = NETSUM_MEMBER_ALL;

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_STRIPE_OPTIONS_H_
