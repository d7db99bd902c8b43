// Test support: aggregators that run slot.h, their ranks, and a network that remembers every packet that was
// ever sent. A state is a value; World lists what may happen in it, and makes it happen.
#ifndef NETSUM_AGGREGATOR_SLOT_SLOT_WORLD_H_
#define NETSUM_AGGREGATOR_SLOT_SLOT_WORLD_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "aggregator/slot/lanes.h"
#include "aggregator/slot/slot.h"

namespace netsum {

inline constexpr size_t kMaxRounds = 6;
inline constexpr size_t kMaxNodes = 4;
inline constexpr size_t kMaxRanks = 8;
inline constexpr uint8_t kDisputed = 1;

struct NodeShape {
  int parent;  // index of a node, or -1
  int ranks;   // its members 0 ... ranks - 1; the nodes below it follow
};

struct Shape {
  const char* name;
  std::vector<NodeShape> nodes;
  uint32_t rounds;
  uint32_t first_round = 1;
  // Rounds differ in chunk, signature, format and PART, or in nothing but their number: then only the number
  // can tell them apart.
  bool rounds_differ = true;
  int disagrees = -1;  // this rank contributes another chunk to the second round
  // One rank has lanes for each round, and none for the third. The others contribute without lanes, or with lanes of zeros.
  bool sparse = false;
  bool lengthens = true;  // the aggregators answer packets without lanes by such with lanes
  bool brief = false;     // one rank needs the lanes of each round, and all need those of the fourth
};

// One aggregator. Lane r of a round's sum counts the contributions to round r, rank by rank, a byte each.
struct Node {
  netsum_slot slot;
  uint64_t lanes[2][kMaxRounds];
};

// Rounds are counted from 0 here. Bit k of `sums_up`, `results_down` and `results` says that the network has
// seen such a packet for round k. A rank has contributed to all rounds up to its own.
struct State {
  Node nodes[kMaxNodes];
  uint8_t sums_up[kMaxNodes];       // a node's contribution to its parent
  uint8_t results_down[kMaxNodes];  // the parent's result, to this node
  uint8_t results[kMaxRanks];       // a node's result, to a rank
  uint8_t round[kMaxRanks];         // the round whose result the rank waits for
  uint8_t errors_down[kMaxNodes];   // 1: the parent's ERROR, to this node
  uint8_t errors[kMaxRanks];        // 1: a node's ERROR, to a rank
  uint8_t failed[kMaxRanks];        // 1: the rank has taken an ERROR, and stops
  uint8_t counted[kMaxRanks];       // 1: a STATUS has told the rank that its contribution is in
  uint8_t padding[4];
};
static_assert(std::has_unique_object_representations_v<State>, "states are compared byte by byte");

// Delivers one packet, or asks.
struct Event {
  enum Kind : uint8_t {
    kContribution,
    kZeros,  // a contribution with lanes of zeros, of a rank that has none
    kResult,
    kError,
    kStatus,
    kSumUp,
    kZerosUp,
    kResultDown,
    kStatusDown,
    kErrorDown
  } kind;
  uint8_t who;  // rank or node
  uint8_t round;
};

inline std::string describe(const Event& event) {
  static constexpr const char* kNames[] = {"contribution of rank",     "zeros of rank",
                                           "result for rank",          "error for rank",
                                           "status for rank",          "sum of node",
                                           "sum of zeros of node",     "parent's result for node",
                                           "parent's status for node", "parent's error for node"};
  return std::string(kNames[event.kind]) + " " + std::to_string(event.who) + ", round " +
         std::to_string(event.round + 1);
}

class World {
 public:
  explicit World(const Shape& shape)
      : shape_(shape), members_(shape.nodes.size()), below_(shape.nodes.size()) {
    for (size_t node = 0; node < shape.nodes.size(); ++node) {
      for (int i = 0; i < shape.nodes[node].ranks; ++i) {
        ranks_.push_back({static_cast<int>(node), static_cast<uint16_t>(members_[node]++)});
      }
    }
    for (size_t node = 0; node < shape.nodes.size(); ++node) {
      const int parent = shape.nodes[node].parent;
      member_of_.push_back(parent < 0 ? uint16_t{0} : members_[static_cast<size_t>(parent)]++);
    }
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      for (int node = ranks_[rank].node; node >= 0; node = shape.nodes[static_cast<size_t>(node)].parent) {
        below_[static_cast<size_t>(node)] |= 1ull << (8 * rank);
      }
    }
  }

  size_t ranks() const { return ranks_.size(); }
  size_t nodes() const { return members_.size(); }
  const std::string& wrong() const { return wrong_; }

  State start() const {
    State state{};
    for (size_t node = 0; node < nodes() && shape_.first_round != 1; ++node) {
      state.nodes[node].slot.current = shape_.first_round - 1;
      state.nodes[node].slot.rounds[(shape_.first_round - 1) & 1].state = NETSUM_ROUND_COMPLETE;
    }
    return state;
  }

  bool done(const State& state, size_t rank) const {
    return state.failed[rank] || state.round[rank] == shape_.rounds;
  }
  bool all_done(const State& state) const {
    for (size_t rank = 0; rank < ranks(); ++rank) {
      if (!done(state, rank)) return false;
    }
    return true;
  }

  // All packets that the network may deliver now and that somebody would look at.
  std::vector<Event> events(const State& state) const {
    std::vector<Event> all;
    for (uint8_t rank = 0; rank < ranks(); ++rank) {
      const uint8_t last = std::min<uint8_t>(state.round[rank], static_cast<uint8_t>(shape_.rounds - 1));
      for (uint8_t k = 0; k <= last; ++k) {
        all.push_back({Event::kContribution, rank, k});
        if (may_send_zeros(bit_of(rank), k)) all.push_back({Event::kZeros, rank, k});
      }
      if (done(state, rank)) continue;
      if (state.results[rank] >> state.round[rank] & 1)
        all.push_back({Event::kResult, rank, state.round[rank]});
      if (!state.counted[rank]) all.push_back({Event::kStatus, rank, state.round[rank]});
      if (state.errors[rank] && state.round[rank] == kDisputed)
        all.push_back({Event::kError, rank, kDisputed});
    }
    for (uint8_t node = 0; node < nodes(); ++node) {
      for (uint8_t k = 0; k < shape_.rounds; ++k) {
        if (state.sums_up[node] >> k & 1) {
          all.push_back({Event::kSumUp, node, k});
          if (may_send_zeros(below_[node], k)) all.push_back({Event::kZerosUp, node, k});
          all.push_back({Event::kStatusDown, node, k});  // PROBEs go up while the sum is with the parent
        }
        if (state.results_down[node] >> k & 1) all.push_back({Event::kResultDown, node, k});
      }
      if (state.errors_down[node]) all.push_back({Event::kErrorDown, node, kDisputed});
    }
    return all;
  }

  void apply(const Event& event, State* state) {
    switch (event.kind) {
      case Event::kContribution:
      case Event::kZeros:
        contribute(state, ranks_[event.who].node,
                   rank_fields(event.who, event.round, event.kind == Event::kZeros), bit_of(event.who),
                   event.round);
        return;
      case Event::kResult:
        advance(state, event.who);
        return;
      case Event::kStatus:
        state->counted[event.who] =
            probe(state, ranks_[event.who].node, rank_fields(event.who, event.round, /*zeros=*/true)).counted;
        return;
      case Event::kError:
        state->failed[event.who] = 1;
        return;
      case Event::kErrorDown:
        take_error(state, event.who);
        return;
      case Event::kSumUp:
      case Event::kZerosUp:
        contribute(state, shape_.nodes[event.who].parent,
                   node_fields(event.who, event.round, event.kind == Event::kZerosUp), below_[event.who],
                   event.round);
        return;
      case Event::kResultDown:
        take_result(state, event.who, event.round);
        return;
      case Event::kStatusDown: {
        netsum_fields f = node_fields(event.who, event.round, /*zeros=*/true);
        f.type = NETSUM_TYPE_STATUS;
        Node& node = state->nodes[event.who];
        netsum_slot_from_parent(&node.slot, &f, members_[event.who]);
        return;
      }
    }
  }

  // Ranks probe in turn. Each probe and each answer to it arrives; nothing else does, not even what an
  // aggregator sends to others at the same time. Whether that ends with every result at every rank.
  bool finishes_by_asking(State state) {
    while (!all_done(state)) {
      const State before = state;
      for (size_t rank = 0; rank < ranks() && wrong_.empty(); ++rank) {
        if (done(state, rank)) continue;
        const Answer answer = ask(&state, rank);
        if (answer == Answer::kResult) advance(&state, rank);
        if (answer == Answer::kError) state.failed[rank] = 1;
      }
      if (!wrong_.empty() || std::memcmp(&before, &state, sizeof state) == 0) return false;
    }
    return true;
  }

 private:
  struct Rank {
    int node;
    uint16_t member;
  };
  enum class Answer { kNothing, kAgain, kResult, kSumIsUp, kError };
  struct Told {
    Answer answer;         // kAgain: contribute (again)
    bool counted = false;  // the asker's contribution is in
  };

  static void advance(State* state, size_t rank) {
    ++state->round[rank];
    state->counted[rank] = 0;
  }

  static uint64_t bit_of(size_t rank) { return 1ull << (8 * rank); }
  // The bits of the ranks that have lanes for round k.
  uint64_t with_lanes(uint8_t k) const {
    if (!shape_.sparse) return ~0ull;
    return k == 2 ? 0 : bit_of(k % ranks());
  }
  // Whether some of these ranks need the lanes of round k.
  bool need_lanes(uint64_t some_ranks, uint8_t k) const {
    return !shape_.brief || k == 3 || (some_ranks & bit_of((k + 1u) % ranks())) != 0;
  }
  // Lanes of zeros are room for the result. Who needs none of it does not send them.
  bool may_send_zeros(uint64_t some_ranks, uint8_t k) const {
    return !has_lanes(some_ranks, k) && need_lanes(some_ranks, k);
  }
  bool has_lanes(uint64_t some_ranks, uint8_t k) const { return (some_ranks & with_lanes(k)) != 0; }
  // `f` is of `some_ranks`; `zeros`: with lanes although they have none.
  void leave_out_lanes(uint64_t some_ranks, uint8_t k, bool zeros, netsum_fields* f) const {
    if (!zeros && !has_lanes(some_ranks, k)) remove_lanes(f);
  }
  static void remove_lanes(netsum_fields* f) {
    f->flags |= NETSUM_FLAG_EMPTY;
    f->absent_bytes = f->payload_bytes;
    f->payload_bytes = NETSUM_EMPTY_BYTES;
  }

  netsum_fields fields(uint16_t member, uint8_t k) const {
    netsum_fields f{};
    f.type = NETSUM_TYPE_CONTRIBUTION;
    f.format = shape_.rounds_differ && k % 3 == 1 ? NETSUM_FORMAT_SUM_I32 : NETSUM_FORMAT_SUM_I64;
    f.flags = shape_.rounds_differ && k % 3 == 2 ? NETSUM_FLAG_PART : 0;
    f.member = member;
    f.round = shape_.first_round + k;
    f.chunk = shape_.rounds_differ ? 100u + k : 100u;
    f.signature = shape_.rounds_differ ? 7u + k / 2u : 7u;
    f.payload_bytes = 8 * kMaxRounds;
    return f;
  }
  // The first rank's contribution to the second round has overflowed further down.
  static bool overflows(uint8_t k) { return k == 1; }
  bool disputed(uint8_t k) const { return shape_.disagrees >= 0 && k == kDisputed; }
  netsum_fields rank_fields(size_t rank, uint8_t k, bool zeros) const {
    netsum_fields f = fields(ranks_[rank].member, k);
    leave_out_lanes(bit_of(rank), k, zeros, &f);
    if (!need_lanes(bit_of(rank), k)) f.flags |= NETSUM_FLAG_NO_RESULT;
    if (rank == 0 && overflows(k)) f.flags |= NETSUM_FLAG_OVERFLOW;
    if (disputed(k) && static_cast<int>(rank) == shape_.disagrees) f.chunk ^= 1;
    return f;
  }
  netsum_fields node_fields(size_t node, uint8_t k, bool zeros) const {
    netsum_fields f = fields(member_of_[node], k);
    leave_out_lanes(below_[node], k, zeros, &f);
    if (!need_lanes(below_[node], k)) f.flags |= NETSUM_FLAG_NO_RESULT;
    if (disputed(k) && (below_[node] >> (8 * shape_.disagrees) & 1)) f.chunk ^= 1;
    if ((below_[node] & 1) && overflows(k)) f.flags |= NETSUM_FLAG_OVERFLOW;
    return f;
  }

  bool has_parent(size_t node) const { return shape_.nodes[node].parent >= 0; }
  netsum_job_rules rules(size_t node) const {
    netsum_job_rules rules{};
    rules.members = members_[node];
    rules.has_parent = has_parent(node);
    return rules;
  }

  void fail(const std::string& what) {
    if (wrong_.empty()) wrong_ = what;
  }

  // What leaves a node with lanes: the sum of exactly round k, from everybody in `from` who has lanes for it.
  void check_sum(const State& state, size_t index, uint32_t bank, uint8_t k, uint64_t from, bool overflow) {
    const Node& node = state.nodes[index];
    check_identity(node.slot.rounds[bank], k, overflow);
    for (size_t lane = 0; lane < kMaxRounds; ++lane) {
      if (node.lanes[bank][lane] != (lane == k ? from & with_lanes(k) : 0)) {
        fail("node " + std::to_string(index) + " sends a wrong sum of round " + std::to_string(k + 1));
      }
    }
    if (has_lanes(from, k) && node.slot.rounds[bank].filled == NETSUM_MEMBER_ALL)
      fail("a sum of round " + std::to_string(k + 1) + " without its lanes");
  }
  // With or without lanes.
  void check_identity(const netsum_round& round, uint8_t k, bool overflow) {
    const netsum_fields f = fields(0, k);
    if ((round.overflow != 0) != overflow) fail("a wrong overflow mark in round " + std::to_string(k + 1));
    if (round.chunk != f.chunk || round.signature != f.signature || round.format != f.format ||
        round.flags != f.flags || round.payload_bytes != f.payload_bytes) {
      fail("a sum of round " + std::to_string(k + 1) + " that names another chunk");
    }
  }
  uint64_t everybody() const { return below_[root()]; }
  size_t root() const {
    size_t node = 0;
    while (has_parent(node)) node = static_cast<size_t>(shape_.nodes[node].parent);
    return node;
  }

  // A result of a node's that leaves for one of its members.
  void send_result(State* state, size_t index, uint16_t member, uint32_t bank, uint8_t k) {
    const netsum_round& round = state->nodes[index].slot.rounds[bank];
    if ((netsum_without_lanes(&round) & netsum_member_bit(member)) == 0) {
      check_sum(*state, index, bank, k, everybody(), overflows(k));
    } else {
      check_identity(round, k, overflows(k));
      if (has_lanes(everybody(), k) && need_lanes(below_member(index, member), k))
        fail("a result of round " + std::to_string(k + 1) + " without the lanes that its addressee needs");
    }
    if (disputed(k)) fail("a result of a round on which ranks disagree");
    const auto bit = static_cast<uint8_t>(1u << k);
    mark(index, member, bit, state->results, state->results_down);
  }
  void send_error(State* state, size_t index, uint16_t member, uint8_t k) {
    if (!disputed(k)) fail("an ERROR of a round on which all agree");
    mark(index, member, 1, state->errors, state->errors_down);
  }
  // Notes a packet from a node to one of its members: a rank, or a node below.
  void mark(size_t from, uint16_t member, uint8_t bits, uint8_t* of_rank, uint8_t* of_node) const {
    for (size_t rank = 0; rank < ranks(); ++rank) {
      if (ranks_[rank].node == static_cast<int>(from) && ranks_[rank].member == member) of_rank[rank] |= bits;
    }
    for (size_t node = 0; node < nodes(); ++node) {
      if (shape_.nodes[node].parent == static_cast<int>(from) && member_of_[node] == member)
        of_node[node] |= bits;
    }
  }
  void send_to_all(State* state, size_t index, uint32_t bank, uint8_t k) {
    for (uint16_t member = 0; member < members_[index]; ++member) send_result(state, index, member, bank, k);
  }
  void send_error_to_all(State* state, size_t index, uint8_t k) {
    for (uint16_t member = 0; member < members_[index]; ++member) send_error(state, index, member, k);
  }
  void send_up(State* state, size_t index, uint32_t bank, uint8_t k) {
    if (!disputed(k)) check_sum(*state, index, bank, k, below_[index], (below_[index] & 1) && overflows(k));
    state->sums_up[index] |= static_cast<uint8_t>(1u << k);
  }

  // That a packet with lanes is not sent in the place of one without.
  void check_room(const netsum_fields& f, bool sends_lanes) {
    if (netsum_is_empty(&f) && sends_lanes) fail("a packet with lanes in the place of one without");
  }
  // The ranks that a member of a node stands for.
  uint64_t below_member(size_t index, uint16_t member) const {
    uint64_t found = 0;
    for (size_t rank = 0; rank < ranks(); ++rank)
      if (ranks_[rank].node == static_cast<int>(index) && ranks_[rank].member == member)
        found |= bit_of(rank);
    for (size_t node = 0; node < nodes(); ++node)
      if (shape_.nodes[node].parent == static_cast<int>(index) && member_of_[node] == member)
        found |= below_[node];
    return found;
  }

  // A contribution that counts `from` for round k. What its sender is answered.
  Answer contribute(State* state, int to, const netsum_fields& f, uint64_t from, uint8_t k) {
    const auto index = static_cast<size_t>(to);
    Node& node = state->nodes[index];
    uint64_t payload[kMaxRounds] = {};
    payload[k] = from & with_lanes(k);
    const netsum_verdict v = netsum_slot_contribute(&node.slot, &f);
    int overflow = 0;
    switch (v.action) {
      case NETSUM_ACT_STORE:
        netsum_lanes_store(node.lanes[v.bank], payload, f.payload_bytes);
        break;
      case NETSUM_ACT_ADD:
        overflow = netsum_lanes_add(f.format, node.lanes[v.bank], payload, f.payload_bytes);
        break;
      case NETSUM_ACT_CLEAR:
        std::fill_n(node.lanes[v.bank], kMaxRounds, uint64_t{0});
        break;
      case NETSUM_ACT_COUNT:
        break;
      case NETSUM_ACT_REPLY_RESULT:
        check_room(f, (netsum_without_lanes(&node.slot.rounds[v.bank]) & netsum_member_bit(f.member)) == 0);
        send_result(state, index, f.member, v.bank, k);
        return Answer::kResult;
      case NETSUM_ACT_RESULT_ALL:
        check_room(f, true);
        send_to_all(state, index, v.bank, k);
        return Answer::kResult;
      case NETSUM_ACT_SEND_UP:
        check_room(f, node.slot.rounds[v.bank].filled != NETSUM_MEMBER_ALL);
        send_up(state, index, v.bank, k);
        return Answer::kSumIsUp;
      case NETSUM_ACT_ERROR_ALL:
        send_error_to_all(state, index, k);
        return Answer::kError;
      case NETSUM_ACT_REPLY_ERROR:
        send_error(state, index, f.member, k);
        return Answer::kError;
      case NETSUM_ACT_DROP:
        if (v.drop != NETSUM_DROP_STALE_ROUND && v.drop != NETSUM_DROP_DUPLICATE) {
          fail("a packet of an honest member is refused as " + std::to_string(v.drop));
        }
        return Answer::kNothing;
      default:
        fail("action " + std::to_string(v.action) + " where all members agree");
        return Answer::kNothing;
    }
    const netsum_job_rules own = rules(index);
    if (!netsum_slot_added(&node.slot, v.bank, overflow, &own)) return Answer::kNothing;
    // Whoever is asked may contribute again at any time, and need not.
    if (!shape_.lengthens && netsum_slot_asks(&node.slot, &f) != NETSUM_MEMBER_ALL) return Answer::kNothing;
    const netsum_round& round = node.slot.rounds[v.bank];
    const uint64_t all = netsum_all_members(own.members);
    const bool sends_lanes =
        own.has_parent ? round.filled != NETSUM_MEMBER_ALL : (all & ~netsum_without_lanes(&round)) != 0;
    if (!shape_.lengthens) check_room(f, sends_lanes);
    if (own.has_parent) {
      send_up(state, index, v.bank, k);
      return Answer::kSumIsUp;
    }
    send_to_all(state, index, v.bank, k);
    return Answer::kResult;
  }

  // The parent's result of round k; whether it is taken.
  bool take_result(State* state, size_t index, uint8_t k) {
    netsum_fields f = fields(NETSUM_MEMBER_ALL, k);
    if (disputed(k) && (below_[index] >> (8 * shape_.disagrees) & 1)) f.chunk ^= 1;
    if (!need_lanes(below_[index], k) || !has_lanes(everybody(), k)) remove_lanes(&f);
    f.type = NETSUM_TYPE_RESULT;
    if (overflows(k)) f.flags |= NETSUM_FLAG_OVERFLOW;
    uint64_t payload[kMaxRounds] = {};
    payload[k] = everybody() & with_lanes(k);
    Node& node = state->nodes[index];
    const netsum_verdict v = netsum_slot_from_parent(&node.slot, &f, members_[index]);
    if (v.action == NETSUM_ACT_TAKE_RESULT) {
      if (!netsum_is_empty(&f)) netsum_lanes_store(node.lanes[v.bank], payload, f.payload_bytes);
      send_to_all(state, index, v.bank, k);
      return true;
    }
    if (v.action != NETSUM_ACT_DROP) fail("action " + std::to_string(v.action) + " on a parent's result");
    return false;
  }

  // The parent's ERROR; whether it is taken.
  bool take_error(State* state, size_t index) {
    netsum_fields f = node_fields(index, kDisputed, /*zeros=*/true);
    f.type = NETSUM_TYPE_ERROR;
    f.format = NETSUM_FORMAT_NONE;
    f.flags = 0;
    const netsum_verdict v = netsum_slot_from_parent(&state->nodes[index].slot, &f, members_[index]);
    if (v.action == NETSUM_ACT_ERROR_ALL) send_error_to_all(state, index, kDisputed);
    return v.action == NETSUM_ACT_ERROR_ALL;
  }

  static Told read_status(const netsum_verdict& v, uint16_t member) {
    const bool again = (v.flags & NETSUM_FLAG_AGAIN) != 0;
    return {again ? Answer::kAgain : Answer::kNothing, (v.seen & netsum_member_bit(member)) != 0};
  }

  // A probe of a node's member, and the answer.
  Told probe(State* state, int to, netsum_fields f) {
    const auto index = static_cast<size_t>(to);
    f.type = NETSUM_TYPE_PROBE;
    f.format = NETSUM_FORMAT_NONE;
    f.flags = 0;
    f.payload_bytes = NETSUM_PROBE_BYTES;
    Node& node = state->nodes[index];
    const netsum_verdict v = netsum_slot_probe(&node.slot, &f);
    if (v.action == NETSUM_ACT_REPLY_ERROR) return {Answer::kError};
    if (v.action == NETSUM_ACT_REPLY_STATUS) return read_status(v, f.member);
    if (v.action != NETSUM_ACT_PROBE_UP) return {Answer::kNothing};
    netsum_fields up = f;
    up.member = member_of_[index];
    up.chunk = netsum_chunk_up(f.chunk, f.member);
    const Answer answer = probe(state, shape_.nodes[index].parent, up).answer;
    if (answer == Answer::kError) return {take_error(state, index) ? Answer::kError : Answer::kNothing};
    up.type = NETSUM_TYPE_STATUS;
    up.flags = answer == Answer::kAgain ? NETSUM_FLAG_AGAIN : 0;
    const netsum_verdict down = netsum_slot_from_parent(&node.slot, &up, members_[index]);
    if (down.action == NETSUM_ACT_PASS_STATUS && down.addressee != f.member)
      fail("a status for somebody else");
    if (down.action != NETSUM_ACT_PASS_STATUS) return {Answer::kNothing};
    return read_status(down, f.member);
  }

  // The node's contribution goes up undisturbed: what comes back of its parent, and is taken.
  Answer pass_up(State* state, size_t index, uint8_t k) {
    const int parent = shape_.nodes[index].parent;
    const bool zeros = need_lanes(below_[index], k);
    Answer answer = contribute(state, parent, node_fields(index, k, zeros), below_[index], k);
    if (answer == Answer::kSumIsUp) answer = pass_up(state, static_cast<size_t>(parent), k);
    if (answer == Answer::kResult && take_result(state, index, k)) return answer;
    if (answer == Answer::kError && take_error(state, index)) return answer;
    return Answer::kNothing;
  }

  // What a rank gets for its probe: kResult, kError or neither.
  Answer ask(State* state, size_t rank) {
    const uint8_t k = state->round[rank];
    // As section 7, rule 10: lanes of zeros have room for the result, if its lanes are needed.
    const netsum_fields f = rank_fields(rank, k, /*zeros=*/need_lanes(bit_of(rank), k));
    const Told told = probe(state, ranks_[rank].node, f);
    if (told.answer != Answer::kAgain) return told.answer;
    if (state->counted[rank] && !told.counted)
      return Answer::kNothing;  // the earlier STATUS has overtaken this
    Answer answer = contribute(state, ranks_[rank].node, f, bit_of(rank), k);
    if (answer == Answer::kSumIsUp) answer = pass_up(state, static_cast<size_t>(ranks_[rank].node), k);
    return answer;
  }

  const Shape& shape_;
  std::vector<Rank> ranks_;
  std::vector<uint16_t> members_;    // of each node
  std::vector<uint16_t> member_of_;  // a node's number at its parent
  std::vector<uint64_t> below_;      // what a node's whole sum counts
  std::string wrong_;
};

}  // namespace netsum

#endif  // NETSUM_AGGREGATOR_SLOT_SLOT_WORLD_H_
