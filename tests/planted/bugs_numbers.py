"""Bugs in the arithmetic: kernels against their plain reference, lanes as BPF adds them, sums in shared memory."""

from bug import Bug

CONVERT = "src/kernels/convert.cc"
LANES = "src/kernels/lanes.cc"
SCAN = "src/kernels/scan.cc"
PLAIN = "src/kernels/plain.cc"
BPF_LANES = "aggregator/slot/lanes.h"
HOST = "src/host/host_core.cc"
SYNC = "src/host/sync.cc"
SLOWEST = "host_core_test HostCore.ABlockIsUsedAgainOnlyWhenTheSlowestRankHasSummedIt"
SHARED = "host_core_test HostCore.SmallAndLargeOperationsShareTheBlocks"

KERNEL_BUGS = [
    Bug("kernels", "overflow_of_the_last_vector", "an overflow is seen in the last vector only", LANES,
        "    overflow = hn::Or(overflow, hn::And(hn::Xor(a, sum), hn::Xor(b, sum)));",
        "    overflow = hn::And(hn::Xor(a, sum), hn::Xor(b, sum));", "kernels_test"),
    Bug("kernels", "overflow_upwards_only", "only sums above the range overflow", LANES,
        "    overflow = hn::Or(overflow, hn::And(hn::Xor(a, sum), hn::Xor(b, sum)));",
        "    overflow = hn::Or(overflow, hn::AndNot(a, hn::AndNot(b, sum)));", "kernels_test"),
    Bug("kernels", "nh_tail_key", "NH's tail uses one word of the key twice", LANES,
        "    const uint32_t odd = words[1] + key[i / 4 + 1];", "    const uint32_t odd = words[1] + key[i / 4];",
        "kernels_test"),
    Bug("kernels", "int64_loss_unseen", "an int64 sum that does not fit is noticed in the last vector only", LANES,
        "    lost = hn::Or(lost, hn::Xor(hn::ShiftRight<32>(shifted), upper));",
        "    lost = hn::Xor(hn::ShiftRight<32>(shifted), upper);", "kernels_test"),
    Bug("kernels", "copy_skips_a_vector", "copying past the cache drops one vector in four", LANES,
        "    hn::Stream(c, d, to + i + 2 * step);\n", "    (void)c;\n", "kernels_test"),
    Bug("kernels", "plain_ties_away", "the reference rounds ties away from zero", PLAIN,
        "std::nearbyint(std::ldexp(static_cast<double>(x), -quantum_exponent()))",
        "std::round(std::ldexp(static_cast<double>(x), -quantum_exponent()))", "kernels_test"),
    Bug("kernels", "infinity_is_the_largest", "an infinity sets the scale of its block", SCAN,
        "hn::IfThenElseZero(hn::Lt(magnitude, limit), magnitude)",
        "hn::IfThenZeroElse(hn::Gt(magnitude, limit), magnitude)", "kernels_test"),
    Bug("kernels", "averages_by_reciprocal", "averages are multiplied by an inexact reciprocal", CONVERT,
        "exact_(!average || std::has_single_bit(static_cast<unsigned>(members)))", "exact_(true)", "kernels_test"),
    Bug("kernels", "negative_zero", "the sum of zeros is -0", CONVERT,
        "  return step == 0 ? hn::Zero(df) : hn::Mul(", "  return hn::Mul(", "kernels_test"),
    Bug("kernels", "bpf_max_of_neighbours", "BPF's maxima borrow from the neighbouring lane", BPF_LANES,
        "  const uint64_t low_ge = (x | top) - (y & ~top);", "  const uint64_t low_ge = (x | top) - y;", "lanes_test"),
    Bug("kernels", "bpf_overflow_of_the_last_word", "BPF sees an overflow in the last word only", BPF_LANES,
        "  *overflow |= (x ^ sum) & (y ^ sum);", "  *overflow = (x ^ sum) & (y ^ sum);", "lanes_test"),
    Bug("kernels", "bpf_carry_into_neighbour", "BPF's 16-bit lanes carry into their neighbours", BPF_LANES,
        "return 0x8000800080008000ull;", "return 0x8000000080008000ull;", "lanes_test"),
]

HOST_BUGS = [
    Bug("host", "block_reused_early", "a block is written while one rank still reads its sum", HOST,
        "  return round == 0 || segment_->taken(slot_of(staged_)).complete(round - 1, ranks());",
        "  return round == 0 || segment_->taken(slot_of(staged_)).complete(round - 1, ranks() - 1);", SLOWEST),
    Bug("host", "sum_before_all_are_in", "a block is summed before the last rank has staged it", HOST,
        "  if (!segment_->staged(slot).complete(round_of(reduced_), ranks())) return false;",
        "  if (!segment_->staged(slot).complete(round_of(reduced_), ranks() - 1)) return false;", SLOWEST),
    Bug("host", "taken_before_all_parts", "a sum is taken before the last owner has summed its part", HOST,
        "    if (!segment_->reduced(slot).complete(round_of(taken_), owners())) return false;",
        "    if (!segment_->reduced(slot).complete(round_of(taken_), owners() - 1)) return false;", SHARED),
    Bug("host", "direct_sum_skips_the_gate", "small operations do not count as rounds of the block", HOST,
        "  segment_->reduced(slot).arrive(owners());\n", "", SHARED),
    Bug("host", "part_without_owner", "of three or more owners nobody sums the last part", HOST,
        "  const size_t end = std::min(chunks * (local + 1) / owners() * chunk, step.count);",
        "  const size_t end = std::min(chunks * (local + 1) / (owners() + (owners() > 2)) * chunk, step.count);",
        "host_core_test"),
    Bug("host", "parts_not_by_chunks", "parts begin within a chunk, so that scales differ from the network's", HOST,
        "  const size_t chunks = (step.count + chunk - 1) / chunk;", "  const size_t chunks = step.count / chunk;",
        "host_core_test"),
    Bug("host", "overflow_of_others", "an overflow is seen only by the rank that owns the part", HOST,
        "      if (segment_->note(slot, owner).overflow == 0) continue;",
        "      if (segment_->note(slot, owner).overflow == 0 || owner != options_.placement.local) continue;",
        "host_core_test"),
    Bug("host", "barrier_opens_early", "a barrier opens at the first arrival of a round", "src/host/sync.h",
        ">= expected * (round + 1);", "> expected * round;", "host_memory_test"),
    Bug("host", "sleeper_not_woken", "whoever sleeps for some causes only is not woken", SYNC,
        "if ((causes & kAsleep) != 0 && (causes & cause) != 0)",
        "if ((causes & kAsleep) != 0 && (~causes & cause) == 0)", "host_memory_test FutexEvent.*"),
    Bug("host", "woken_for_anything", "a sleeper is woken whatever it sleeps for", SYNC,
        "if ((causes & kAsleep) != 0 && (causes & cause) != 0)",
        "if ((causes & kAsleep) != 0 && (causes | cause) != 0)", "host_memory_test FutexEvent.*"),
    Bug("host", "early_ring_missed", "a ring between the look for work and the sleep is missed", SYNC,
        "  futex(&notifications_, FUTEX_WAIT, seen, &timeout);",
        "  futex(&notifications_, FUTEX_WAIT, notifications_.load() + 0 * seen, &timeout);", "host_memory_test FutexEvent.*"),
    Bug("host", "nobody_is_rung", "the last rank to arrive wakes nobody", HOST,
        "    if (rank != options_.placement.local) segment_->event(rank).notify(cause);", "    (void)rank, (void)cause;",
        "host_core_test HostCore.TensorsOfOneOperationKeepTheirOwnPrecision"),
    Bug("host", "free_slot_not_awaited", "a rank that waits for a slot is not woken when one is free", HOST,
        "causes |= FutexEvent::kTaken;", "causes |= 0;", "host_core_test HostCore.ManyTensorsAndManyOperationsInFlight"),
    Bug("host", "odd_rank_unnoticed", "the last rank's operation is not compared with the others'", HOST,
        "  for (size_t rank = 0; rank < ranks(); ++rank)\n    same &=",
        "  for (size_t rank = 0; rank + 1 < ranks(); ++rank)\n    same &=",
        "host_core_test HostCore.DifferentOperationsAreAMismatchThatNamesTheOddRank"),
    Bug("host", "nameless_ranks_share", "ranks without a host's name share memory", "src/host/placement.cc",
        "    if (!names[r].empty()) host =", "    host =", "host_memory_test"),
    Bug("host", "most_ranks_own", "the largest host decides how many ranks own parts", "src/host/placement.cc",
        "placement.owners = std::min(placement.owners, ranks.size());",
        "placement.owners = std::max(placement.owners, ranks.size());", "host_memory_test"),
    Bug("host", "any_layout", "memory of another layout is mapped", "src/host/segment.cc",
        "  if (size != static_cast<off_t>(bytes_))", "  if (size < 0)", "host_memory_test"),
]

BUGS = [*KERNEL_BUGS, *HOST_BUGS]
