"""Bugs in the controller of compression."""

from bug import Bug

CONTROL = "src/compress/control/control.cc"
ESTIMATES = "src/compress/control/control_estimates.cc"
GUARDS = "src/compress/control/control_guards.cc"
COST_MODEL = "src/compress/control/cost_model.cc"
CONTROL_TEST = "compression_control_test ControlTest."

BUGS = [
    Bug("controller", "never_uncompressed_again", "compression starts whether it pays off or not", COST_MODEL,
        "if (search.ns() > choice.uncompressed_ns / 1000 * (1000 - payoff_permille)) return choice;\n", "",
        "compression_control_test CostModelTest.OffUnlessItPaysOff"),
    Bug("controller", "hidden_buckets_are_compressed", "buckets that are hidden get the fastest level, too", COST_MODEL,
        "  search.relax(search.ns() + search.ns() / 100 * slack_percent);\n", "",
        "compression_control_test CostModelTest.WhatIsHiddenIsNotCompressed"),
    Bug("controller", "network_sums_all_at_once", "buckets are predicted not to wait for each other", COST_MODEL,
        "std::max(summed, computed) + costs", "computed + costs",
        "compression_control_test CostModelTest.StepsAreThoseOfThePipeline"),
    Bug("controller", "computing_counts_as_network", "the time before a bucket is ready counts as time of the network", ESTIMATES,
        ".negative_service = clamped(std::max(r.handed_us, summed) - r.summed_us),",
        ".negative_service = clamped(record.begin_us - r.summed_us),",
        CONTROL_TEST + "ALateRankDoesNotMakeTheNetworkSlow"),
    Bug("controller", "extra_costs_are_not_learned", "what a level's sum takes beyond its bytes is not learned", ESTIMATES,
        "  known.extra_ps.add(", "  Median().add(", CONTROL_TEST + "AnExpectationThatIsWrongIsTriedOnceAndGivenUp"),
    Bug("controller", "no_probes", "the network is not probed while all is compressed", CONTROL,
        "if (!is_due ||", "if (!is_due || is_unknown ||", CONTROL_TEST + "AChangeOfTheRateIsFollowedWithinTwentySteps"),
    Bug("controller", "small_probes_are_believed", "what passes a link's burst tells how fast the link is", ESTIMATES,
        "kBeyondBurstPercent = 250;", "kBeyondBurstPercent = 0;", CONTROL_TEST + "ASlowerNetworkIsFoundThoughProbesPassItsBurst"),
    Bug("controller", "no_hold", "levels may change in every step", CONTROL,
        "return since >= hold_ ||", "return since >= 1 ||", CONTROL_TEST + "BetweenTwoChangesThereAreAtLeastFourSteps"),
    Bug("controller", "digests_are_not_compared", "ranks that have decided differently go on", CONTROL,
        "if (head.digest != -head.negative_digest)", "if (false)", CONTROL_TEST + "RanksThatDecidedDifferentlyAreFound"),
    Bug("controller", "no_warm_up", "gradients are compressed in the first steps", GUARDS,
        "  if (step <= options.warmup_steps) return 0;\n", "", CONTROL_TEST + "NothingIsCompressedInTheWarmUp"),
    Bug("controller", "critical_phases_unnoticed", "gradients that shrink are compressed as before", GUARDS,
        "return change <= kHalved ||", "return", CONTROL_TEST + "GradientsThatChangeAreCompressedGently"),
    Bug("controller", "no_cap_of_residuals", "a residual may grow without limit", GUARDS,
        "if (!above || level", "if (true || level", CONTROL_TEST + "ALargeResidualSendsABucketBackByOneLevel"),
    Bug("controller", "state_without_holds", "a controller that is restored forgets when it has changed its levels", CONTROL,
        "for (Guards& guards : guards_) guards.restore(&from);\n",
        "for (Guards& guards : guards_) guards.restore(&from);\n    last_change_ = 0;\n",
        CONTROL_TEST + "ContinuesFromItsState"),
]
