// The order in which the ranks of a job sum operations with priorities: piece by piece, the most urgent first, the same on all
// ranks. Without I/O.
//
//   add()     the caller has submitted an operation
//   next()    the step to start next, if it can start now
//   agreed(), ended()   a step has ended
//
// Why one order. Step q of a stream of operations uses an aggregator's slot q mod S on every rank (slot_layout.h), so ranks
// must start the same steps in the same order. One that overtook by what it alone knows would contribute to the slot in
// which the others sum another operation: a mismatch or, where each holds the slots that the other needs, a deadlock.
//
// How they find it. All ranks submit the same operations in the same order, but at different times. In an agreement each
// reports how many it has submitted, so all know which operations are everywhere, and only these take part. The steps of all ranks
// are the same sequence: an agreement, a batch of pieces, an agreement, and so on. It depends on what the ranks have agreed
// on alone, never on when something ends. Times decide how long a rank waits before its next step: at most two batches are
// in flight.
//
// No deadlock. A rank waits before a step only for the end of earlier ones, or with nothing agreed and nothing submitted. Take the
// first step of the sequence that has not ended everywhere. No rank waits before it, so all start it, unless it is an
// agreement that some rank has no reason for yet: it has submitted less than others. That rank's next operation starts it.
// Otherwise it ends with the deadline of the oldest operation that waits.
//
// Urgency. From the moment when all ranks have submitted an operation, less urgent ones delay it by kCreditBatches batches at
// most, the credit: two batches in flight, that which the agreement in flight selects, and one for the oldest operation. While
// it waits for more urgent ones, the oldest has one of kTurns batches. A batch has batch_bytes() at most, or one piece that
// cannot be smaller, and perhaps the rest of an operation that is too small for a piece.
//
// No starvation. Of kTurns batches, one begins with the oldest operation. In such a batch the oldest ends, or half of a batch
// or more is its own. So of n operations that are everywhere and have B bytes left together, the youngest has begun its last piece
// after starvation_bound(n, B) batches, whatever else is submitted.
//
// The credit follows the network. A rank whose agreement ends when no piece is in flight reports it with its next
// agreement: the network was idle. Batches then double for all ranks; after kCalm agreements without a report they shrink.
//
// Thread rule: one thread at a time.
#ifndef NETSUM_SRC_PRIORITY_ORDER_H_
#define NETSUM_SRC_PRIORITY_ORDER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <utility>

namespace netsum {

class PriorityOrder {
 public:
  static constexpr uint64_t kTurns = 8, kCalm = 16, kCreditBatches = 4;
  static constexpr uint64_t kLeastBatch = 128 << 10, kFirstBatch = 512 << 10, kMostBatch = 4 << 20;
  // Pieces that cannot be smaller count as whole batches. Pieces begin at multiples of less than half of kLeastBatch.
  static constexpr uint64_t starvation_bound(uint64_t operations, uint64_t bytes) {
    return kTurns * (operations + 2 * bytes / kLeastBatch + 2);
  }

  struct Operation {
    int32_t priority = 0;  // the larger, the more urgent
    uint64_t elements = 0;
    uint32_t element_bytes = 1;
    // Pieces begin at multiples of `grain` elements, and have more than `least` of them, so that the result has the bits of an
    // operation in one piece. An operation of fewer elements is one piece.
    uint64_t grain = 1, least = 0;
  };
  // Operations are numbered from 0 in this order.
  void add(const Operation& operation);

  // What a rank contributes to an agreement.
  struct Report {
    uint64_t submitted = 0;
    uint64_t was_idle = 0;  // 0 or 1
  };
  enum class Kind : uint8_t { kAgreement, kPiece };
  struct Step {
    Kind kind = Kind::kAgreement;
    uint32_t signature = 0;  // differs on ranks that differ in operations, priorities or order
    Report report{};         // kAgreement: of this rank
    // kPiece: elements [begin, begin + count) of an operation.
    uint64_t operation = 0, begin = 0, count = 0;
    bool is_last = false;  // of the operation
    uint64_t batch = 0;
  };
  // Null: nothing can start now. Otherwise the caller starts it before its next call.
  std::optional<Step> next();
  // `reports` of all ranks.
  void agreed(std::span<const Report> reports);
  void ended(const Step& piece);
  uint64_t batch_bytes() const { return batch_bytes_; }
  // How many bytes of less urgent operations can delay an operation at present.
  uint64_t credit_bytes() const { return kCreditBatches * batch_bytes_; }

 private:
  struct Known {
    Operation operation;
    uint64_t begin = 0;  // of its next piece
    bool issued = false;
  };
  // The more urgent first, of equals the older.
  using Urgency = std::pair<int64_t, uint64_t>;

  Step agreement();
  void select();
  uint64_t add_piece(uint64_t number, uint64_t room);
  Known& known(uint64_t number) { return operations_[number - first_]; }

  std::deque<Known> operations_;  // from number first_ on
  uint64_t first_ = 0, added_ = 0;
  uint64_t agreed_ = 0;        // operations below this number are on all ranks
  std::set<Urgency> waiting_;  // those of them that are not issued
  std::set<uint64_t> oldest_;  // the same, by age
  bool agreeing_ = false;
  uint64_t batches_ = 0;    // selected
  std::deque<Step> batch_;  // what is left of the last one
  bool batch_begun_ = false;
  // Pieces that have not ended, of the last batches: those of batch b at b % 2.
  std::array<uint64_t, 2> in_flight_{};
  uint64_t batch_bytes_ = kFirstBatch, calm_ = 0;
  bool was_idle_ = false;
  uint64_t signature_ = 0;  // of the operations below agreed_
};

}  // namespace netsum

#endif  // NETSUM_SRC_PRIORITY_ORDER_H_
