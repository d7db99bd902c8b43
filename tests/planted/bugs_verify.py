"""Bugs in verified sums: tags with which an aggregator could pass off a wrong sum."""

from bug import Bug

SUMS = "src/verify/verified_sums.cc"
WEIGHTED = "src/kernels/weighted.cc"
STRIPE = "src/worker/stripe_verify.cc"
SEND = "src/worker/stripe_send.cc"
RECEIVE = "src/worker/stripe_receive.cc"
CORE = "src/worker/worker_core.cc"
LIES = "sim_lies_test Lies.NoneIsBelieved"

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
    Bug("verify", "tags_ignored", "results with a wrong tag are taken", RECEIVE,
        "|| !is_right(fields.slot, lanes))\n", "|| (!is_right(fields.slot, lanes) && step.kind == StepKind::kAgree))\n",
        LIES),
    Bug("verify", "overflow_believed", "an overflow that is none is not asked for again", RECEIVE,
        "    if ((fields.flags & NETSUM_FLAG_OVERFLOW) != 0 || !is_right", "    if (!is_right", LIES),
    Bug("verify", "low_scales_taken", "a rank takes scales below its own", STRIPE,
        "own.begin(), std::greater_equal<>());", "own.begin(), [](int, int) { return true; });", "sim_lies_test Lies.ScalesBelow*"),
    Bug("verify", "high_scales_taken", "scales that no rank has are taken", STRIPE,
        "    if (count > 0) continue;\n", "    if (count >= 0) continue;\n",
        "sim_lies_test Lies.ScalesThatAreTooLarge*"),
    Bug("verify", "first_scales_confirmed", "only the first scales of a group are confirmed", STRIPE,
        "  if (group.confirmed_bytes < group.agreed_bytes) {", "  if (group.confirmed_bytes == 0) {",
        "sim_lies_test Lies.AllScales*"),
    Bug("verify", "scales_not_bound", "ranks with different scales add their lanes", STRIPE,
        "          .agreed = group_in(step.scale_slot).digest};", "          .agreed = 0 * group_in(step.scale_slot).digest};",
        "sim_lies_test"),
    Bug("verify", "asks_too_often", "a result that stays wrong is asked for again without end", STRIPE,
        "  if (slot.history.refused++ == kMostRefusals)", "  if (slot.history.refused++ == 1000 * kMostRefusals)",
        "sim_lies_test Lies.WhatStaysWrong*"),
    Bug("verify", "fails_at_once", "a fault that does not repeat itself ends the job", STRIPE,
        "  if (slot.history.refused++ == kMostRefusals)", "  if (slot.history.refused++ == 0 * kMostRefusals)",
        "sim_lies_test Lies.WhatIsRight*"),
    Bug("verify", "values_sent", "small operations travel as values, which nobody can verify", CORE,
        "stripe.sums_values = stripe.takes_no_lanes = stripe.takes_brief = false;",
        "stripe.takes_no_lanes = stripe.takes_brief = false;", "worker_core_test"),
    Bug("verify", "maxima_unverified", "a job that verifies its sums takes maxima as they come", CORE,
        "  } else if (verifies_sums() && travels_as_words(spec.op)) {",
        "  } else if (verifies_sums() && spec.op == ReduceOp::kBitXor) {", "worker_core_test"),
    Bug("verify", "marks_unverified", "a job that verifies its sums begins operations in 8-bit lanes", CORE,
        "options_.encoding.lane_bits == 8 && is_floating(spec.type)", "options_.encoding.lane_bits == 80",
        "worker_core_test"),
]
