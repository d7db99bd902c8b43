// Data in lanes: a packet of a chunk, as the operation's encoding (src/encoding/encoding.h) plans, writes and reads it.
#ifndef NETSUM_SRC_WORKER_MODES_LANES_H_
#define NETSUM_SRC_WORKER_MODES_LANES_H_

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "netsum/status.h"
#include "src/worker/step.h"
#include "src/worker/stripe_chunks.h"

namespace netsum {

class Lanes {
 public:
  Lanes(const StripeChunks& chunks, uint32_t payload_bytes);

  // A chunk whose packets are decoded together (ChunkPlan) begins. False: another one is in flight.
  bool begin_together() { return !std::exchange(held_.busy, true); }
  void write(const Step& step, uint8_t* lanes) const {
    step.operation->encode(step.chunk, step.packet, lanes);
  }
  Status take(const Step& step, const uint8_t* lanes);

 private:
  // The results of a chunk whose packets are decoded together. They are rare: one such chunk at a time.
  struct Held {
    bool busy = false;
    uint8_t arrived = 0;  // packets
    std::array<std::vector<uint8_t>, kMaxPackets> payloads;
  };

  void note_delivered(const Step& step) const;

  const StripeChunks& chunks_;
  Held held_;
};

}  // namespace netsum

#endif  // NETSUM_SRC_WORKER_MODES_LANES_H_
