"""Bugs in verified sums: tags with which an aggregator could pass off a wrong sum."""

from bug import Bug

SUMS = "src/verify/verified_sums.cc"
WEIGHTED = "src/kernels/weighted.cc"

BUGS = [
    Bug("verify", "tags_of_64_bits", "the tags of 64-bit lanes are numbers modulo 2^64", "src/kernels/weighted.h",
        "  return lane_bytes == 8 ? 96 : 64;", "  return lane_bytes == 8 ? 64 : 64;",
        "verified_sums_test VerifiedSums.Differences*"),
    Bug("verify", "any_round", "a contribution of the slot's round before passes", SUMS,
        "uint64_t{id.round} << 32 | uint64_t{id.slot} << 16", "uint64_t{0 * id.round} | uint64_t{id.slot} << 16",
        "verified_sums_test"),
    Bug("verify", "any_operation", "a contribution of another operation passes", SUMS,
        "    netsum_sip_word(&common, id.operation);\n", "    netsum_sip_word(&common, 0 * id.operation);\n",
        "verified_sums_test"),
    Bug("verify", "any_scales", "a contribution with other scales passes", SUMS,
        "    netsum_sip_word(&common, id.agreed);\n", "    netsum_sip_word(&common, 0 * id.agreed);\n",
        "verified_sums_test"),
    Bug("verify", "large_limbs", "the limbs of many ranks overflow", SUMS,
        "8 * lane_bytes) - 1 - std::bit_width(static_cast<unsigned>(ranks - 1));",
        "8 * lane_bytes) - std::bit_width(static_cast<unsigned>(ranks - 1));", "verified_sums_test"),
    Bug("verify", "pads_without_ranks", "all ranks add the same pads, so the tags tell about the weights", SUMS,
        "pad(kF, rank_) - pad(kF, (rank_ + 1) % ranks_)", "pad(kF, 0) - pad(kF, 0)", "verified_sums_test"),
    Bug("verify", "some_bytes_digested", "the last bytes of what was agreed on are not in its digest", SUMS,
        "  std::memcpy(&rest, bytes + i, size - i);\n", "  std::memcpy(&rest, bytes + i, (size - i) / 8);\n",
        "verified_sums_test VerifiedSums.Digests*"),
    Bug("verify", "odd_lanes_unweighted", "every other lane has no weight", WEIGHTED,
        "    odd = hn::Add(odd, hn::MulEven(odd_to_even(d, lane), odd_to_even(d, weight)));\n",
        "    odd = hn::Add(odd, hn::MulEven(odd_to_even(d, lane), hn::Zero(d)));\n", "kernels_test *Weighted*"),
    Bug("verify", "sign_of_the_low_half", "the low half of a 64-bit lane counts as signed", WEIGHTED,
        "hn::Add(upper, carried)", "hn::Add(upper, hn::Xor(carried, carried))", "kernels_test *Weighted*"),
]
