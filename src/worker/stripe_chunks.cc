#include "src/worker/stripe_chunks.h"

namespace netsum {

size_t StripeChunks::index(const Operation& operation, size_t local) const {
  if (has_parts(operation.role().collective)) local = take_turns(local, count(operation), world_size_);
  return map_of(operation).chunk(operation.number(), stripe_, local);
}

}  // namespace netsum
