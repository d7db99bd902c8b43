#include "src/worker/chunk_map.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "src/base/assert.h"
#include "wire/packet.h"

namespace netsum {
namespace {

constexpr size_t kMaxStripes = size_t{1} << 16;

// Positions of each stripe in the period, in the ratio of the weights. Exact if the smallest integers in that ratio have a
// sum of at most kMaxPeriod.
std::vector<uint64_t> places_for(std::span<const uint32_t> weights) {
  uint64_t divisor = 0;
  for (const uint32_t weight : weights) divisor = std::gcd(divisor, uint64_t{weight});
  NETSUM_ASSERT(divisor > 0);
  std::vector<uint64_t> places;
  for (const uint32_t weight : weights) places.push_back(weight / divisor);
  const uint64_t sum = std::accumulate(places.begin(), places.end(), uint64_t{0});
  const auto users =
      static_cast<uint64_t>(std::count_if(places.begin(), places.end(), [](uint64_t p) { return p > 0; }));
  const uint64_t length = std::max<uint64_t>(ChunkMap::kMaxPeriod, users);
  if (sum <= length) return places;

  // One position each, and the rest by the largest remainders; ties go to the lower stripe.
  std::vector<std::pair<uint64_t, size_t>> remainders;
  uint64_t left = length - users;
  const uint64_t shared = left;
  for (size_t stripe = 0; stripe < places.size(); ++stripe) {
    if (places[stripe] == 0) continue;
    remainders.emplace_back(places[stripe] * shared % sum, stripe);
    const uint64_t more = places[stripe] * shared / sum;
    places[stripe] = 1 + more;
    left -= more;
  }
  std::stable_sort(remainders.begin(), remainders.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  for (uint64_t i = 0; i < left; ++i) ++places[remainders[i].second];
  return places;
}

}  // namespace

ChunkMap::ChunkMap(size_t stripes) : ChunkMap(std::vector<uint32_t>(stripes, 1)) {}

ChunkMap::ChunkMap(std::span<const uint32_t> weights) : places_(weights.size()) {
  NETSUM_ASSERT(!weights.empty() && weights.size() <= kMaxStripes);
  const std::vector<uint64_t> wanted = places_for(weights);
  const uint64_t length = std::accumulate(wanted.begin(), wanted.end(), uint64_t{0});
  // The j-th position of a stripe with w of them must lie in [j * length / w, (j + 1) * length / w). Earliest deadline first
  // meets all these deadlines, as on a processor at full load.
  const auto later = [&](uint32_t a, uint32_t b) {
    const uint64_t end_a = (places_[a].size() + 1) * wanted[b];
    const uint64_t end_b = (places_[b].size() + 1) * wanted[a];
    return end_a != end_b ? end_a > end_b : a > b;
  };
  std::priority_queue<uint32_t, std::vector<uint32_t>, decltype(later)> ready(later);
  std::vector<std::vector<uint32_t>> ready_from(length);  // [position]: the stripes that wait for it
  for (size_t stripe = 0; stripe < weights.size(); ++stripe) {
    if (wanted[stripe] > 0) ready_from[0].push_back(static_cast<uint32_t>(stripe));
  }
  for (uint64_t place = 0; place < length; ++place) {
    for (const uint32_t stripe : ready_from[place]) ready.push(stripe);
    NETSUM_ASSERT(!ready.empty());
    const uint32_t next = ready.top();
    ready.pop();
    period_.push_back(static_cast<uint16_t>(next));
    places_[next].push_back(static_cast<uint16_t>(place));
    const uint64_t taken = places_[next].size();
    if (taken == wanted[next]) continue;
    ready_from[std::max(place + 1, taken * length / wanted[next])].push_back(next);
  }
  signature_ = sign();
}

uint64_t ChunkMap::sign() const {
  bool equal = length() == stripes();
  uint64_t hash = netsum_mix64(stripes());
  for (size_t place = 0; place < length(); ++place) {
    equal &= period_[place] == place;
    hash = netsum_mix64(hash + period_[place]);
  }
  return equal ? 0 : hash | 1;
}

size_t ChunkMap::places_before(size_t stripe, size_t end) const {
  const std::vector<uint16_t>& places = places_[stripe];
  const auto part = std::lower_bound(places.begin(), places.end(), end % length()) - places.begin();
  return end / length() * places.size() + static_cast<size_t>(part);
}

size_t ChunkMap::count(uint64_t number, size_t chunks, size_t stripe) const {
  if (length() == 1 && stripes() == 1) return chunks;
  return places_before(stripe, start(number) + chunks) - places_before(stripe, start(number));
}

size_t ChunkMap::chunk(uint64_t number, size_t stripe, size_t index) const {
  if (length() == 1) return index;  // the frequent case: without divisions
  const std::vector<uint16_t>& places = places_[stripe];
  NETSUM_ASSERT(!places.empty());
  const size_t n = places_before(stripe, start(number)) + index;
  return n / places.size() * length() + places[n % places.size()] - start(number);
}

}  // namespace netsum
