"""Bugs in compression."""

from bug import Bug

COMPRESSION = "src/compress/compression.cc"
SPARSIFIERS = "src/compress/sparsifiers.cc"
RANDOM_K = "src/compress/random_k.cc"
SIGNS = "src/compress/signs.cc"
SIDCO = "src/compress/sidco.cc"
SIDCO_THRESHOLD = "compress_test SidcoTest.SendsWhatPassesTheThresholdOfTheFittedDistribution"
MEMORY = "src/compress/memory.cc"
TENSOR = "src/compress/tensor.cc"
PROMISES = "src/compress/promises.cc"
PLAIN = "src/kernels/plain_select.cc"
SELECT = "src/kernels/select.cc"
API = "collective/compression_api.cc"
TOP_K = "compress_test MethodsTest.TopKSendsTheLargestElementsAndKeepsTheOthers"
NOT_FINITE = "compress_test MethodsTest.NumbersThatAreNotFiniteArriveAndLeaveNothing"
REFUSED = "compress_test CompressionTest.CombinationsThatWouldGiveWrongResultsAreRefused"
LIES = "compress_test PromisesTest.LiesAreFound"
ALL_RANKS = "compression_collective_test *WhatIsReceivedAndWhatRemains*"

BUGS = [
    Bug("compress", "ties_are_all_sent", "all elements of the k-th magnitude are sent", SPARSIFIERS,
        "kth.above + kth.equal == k", "true", TOP_K),
    Bug("compress", "ties_stay_in_the_residual", "an element that was sent stays in the residual", SPARSIFIERS,
        "      if (residual != nullptr) residual[i] = 0;\n", "", TOP_K),
    Bug("compress", "infinities_are_not_sent", "top-k sends k elements also where more are not finite", SPARSIFIERS,
        "kth.bits >= kernels::kInfinityBits || ", "", NOT_FINITE),
    Bug("compress", "later_stages_pass_as_many", "every stage of sidco passes a quarter", SIDCO,
        "std::pow(share / kFirstShare, 1.0 / (count - 1))", "kFirstShare", SIDCO_THRESHOLD),
    Bug("compress", "pareto_without_variance", "sidco's Pareto distribution is an exponential one", SIDCO,
        "std::fabs(shape) < kNear", "shape < 10", SIDCO_THRESHOLD),
    Bug("compress", "stages_do_not_change", "sidco keeps one stage", SIDCO,
        "std::fabs(average - 1) > kTolerance", "std::fabs(average - 1) > 1e9",
        "compress_test SidcoTest.StagesAreAddedUntilTheNumberIsRight"),
    Bug("compress", "fitted_threshold_above_all", "a fitted threshold may be above all elements", SIDCO,
        "std::clamp(threshold, 0.0, static_cast<double>(largest))", "std::max(threshold, 0.0)",
        "compress_test SidcoTest.AtLeastTheLargestElementIsSent"),
    Bug("compress", "stages_are_not_saved", "what a compressor keeps is not part of the state", TENSOR,
        "    if (!state_.empty()) parts.push_back", "    if (false) parts.push_back",
        "compress_test SidcoTest.StagesAreSavedAndRestored"),
    Bug("compress", "nothing_reaches_the_sample", "sampled top-k sends nothing of equal elements", SPARSIFIERS,
        "sent, residual) > 0) return;", "sent, residual) + 1 > 0) return;",
        "compress_test MethodsTest.SampledTopKSendsEqualElements"),
    Bug("compress", "the_same_columns", "a sample has every 16th line of a matrix", PLAIN,
        "first + ((first + 1) * 0x9E3779B97F4A7C15u >> 32) % std::min(stride, lines - first)", "first",
        "kernels_test SampledMagnitudeTest.PassesAboutAsManyValuesAsWanted"),
    Bug("compress", "random_k_of_the_rank", "each rank chooses random elements of its own", RANDOM_K,
        "random({seed_, context.tensor, context.step});",
        "random({seed_, context.tensor, context.step, static_cast<uint64_t>(context.rank)});",
        "compress_test MethodsTest.RandomKSendsTheSameElementsOnAllRanksAndOthersInEachStep"),
    Bug("compress", "random_k_of_all_steps", "random elements are the same in all steps", RANDOM_K,
        "context.tensor, context.step}", "context.tensor}",
        "compress_test MethodsTest.RandomKSendsTheSameElementsOnAllRanksAndOthersInEachStep"),
    Bug("compress", "nan_not_chosen", "a NaN that is not among the chosen elements is lost", RANDOM_K,
        "    if (!finite) sent[0]", "    if (false) sent[0]", NOT_FINITE),
    Bug("compress", "unbiased_without_its_factor", "random elements without a memory are not scaled", RANDOM_K,
        "unbiased_ ? value * static_cast<float>(stratum) : value", "value", "compress_test PromisesTest.BuiltIn*"),
    Bug("compress", "fields_without_room", "the sum of all ranks carries into the next field", "src/compress/fields.h",
        "std::bit_width(uint64_t{largest} * static_cast<uint64_t>(ranks))",
        "std::bit_width(uint64_t{largest} * static_cast<uint64_t>(ranks) - 1)",
        "compress_test MethodsTest.FieldsHoldTheSumsOfAnyNumberOfRanks"),
    Bug("compress", "always_rounds_up", "values that are levels become the next one", "src/compress/levels.cc",
        "std::min(std::floor(exact + random.unit(i)), levels)", "std::floor(exact + 1)",
        "compress_test MethodsTest.ValuesThatAreLevelsStayExact"),
    Bug("compress", "ranks_round_alike", "all ranks round with the same random numbers", "src/compress/levels.cc",
        "context.step, static_cast<uint64_t>(context.rank)});", "context.step, 0});",
        "compress_test MethodsTest.RanksRoundIndependently"),
    Bug("compress", "scale_of_the_rank", "ranks do not agree on a scale", API,
        "Agreement::kMax ? ReduceOp::kMax", "Agreement::kMax ? ReduceOp::kMin",
        "compression_collective_test *LevelsOfACommonScale*"),
    Bug("compress", "sign_keeps_a_nan", "a step that is not finite poisons the residual", SIGNS,
        "if (!std::isfinite(scale)) {", "if (false) {", "compress_test MethodsTest.EfSignKeepsAllOfAStepThatIsNotFinite"),
    Bug("compress", "residual_without_the_scale", "the residual of a sign lacks the agreed scale", SIGNS,
        "residual[i] -= std::copysign(scale, residual[i])", "residual[i] -= std::copysign(unit, residual[i])",
        "compress_test MethodsTest.EfSignSendsSignsOfOneScale"),
    Bug("compress", "momentum_not_masked", "the momentum of elements that were sent stays", MEMORY,
        "if (payload[i] != 0) velocity_[i] = 0;", "(void)payload[i];", "compress_test MemoryTest.DgcCorrectsMomentumAndMasks"),
    Bug("compress", "clipped_for_one_rank", "the norm of a clipped gradient does not depend on the ranks", MEMORY,
        "clip_norm_ / std::sqrt(static_cast<double>(ranks))", "clip_norm_ / (0.0 * ranks + 1)",
        "compress_test MemoryTest.DgcClipsTheGradientOfARank"),
    Bug("compress", "no_decay", "the residual does not decay", PLAIN,
        "memory[i] = decay * memory[i] + values[i]", "memory[i] += values[i]", "compress_test MemoryTest.TheResidualDecays"),
    Bug("compress", "step_of_the_next", "a payload is decompressed as that of the next step", TENSOR,
        "    --compressed.step;\n", "", "compress_test MethodsTest.RandomKWithAMemoryKeepsWhatItDoesNotSend"),
    Bug("compress", "restored_without_the_step", "a restored tensor begins at its first step again", TENSOR,
        "    context_.step = step;\n", "    (void)step;\n",
        "compress_test MemoryTest.ARestoredStateContinuesWithTheSameBits"),
    Bug("compress", "sizes_not_compared", "a state of another size is restored", TENSOR,
        "if (saved[i].values.size() != mine[i].values.size())", "if (saved[i].values.size() > mine[i].values.size())",
        "compress_test MemoryTest.AStateOfAnotherTensorOrMethodIsRefusedAndChangesNothing"),
    Bug("compress", "top_k_without_memory", "top-k may do without a memory", COMPRESSION,
        "    if (!promise.needs_memory) return {};", "    return {};", REFUSED),
    Bug("compress", "any_path", "sparse payloads may be summed as dense ones", COMPRESSION,
        "      if (is_dense) return {};", "      return {};", REFUSED),
    Bug("compress", "votes_are_gathered", "votes may be counted after they were turned into signs", COMPRESSION,
        "      if (!promise.mean)\n        return invalid(text", "      if (false)\n        return invalid(text", REFUSED),
    Bug("compress", "unread_options", "options that nothing reads are accepted", COMPRESSION,
        "option.value == option.default_value || ", "true || ", "compress_test CompressionTest.OptionsThatNothingReadsAreRefused"),
    Bug("compress", "lies_about_sums", "the check of promises adds nothing up", PROMISES,
        "residuals(inputs, rows), sums(inputs, rows), ", "residuals(inputs, rows), ", LIES),
    Bug("compress", "lies_about_bias", "the check of promises accepts what is biased", PROMISES,
        "return promise_.biased ? Status() : ", "return true ? Status() : ", LIES),
    Bug("compress", "not_finite_stays", "what is not finite stays in the residual", SELECT,
        "hn::Or(is_sent, hn::Gt(magnitude, infinity_or_nan))", "is_sent", "kernels_test *SelectTest*"),
    Bug("compress", "threshold_not_sent", "an element of exactly the threshold is not sent", SELECT,
        "static_cast<int32_t>(bits - 1));", "static_cast<int32_t>(bits));", "kernels_test *SelectTest*"),
    Bug("compress", "lowest_digit_unread", "the k-th magnitude is that of its upper bits", PLAIN,
        "{{{20, 11}, {10, 10}, {0, 10}}}", "{{{20, 11}, {10, 10}, {10, 10}}}", "kernels_test KthMagnitudeTest*"),
    Bug("compress", "side_of_one_rank", "a scale is not averaged", API,
        "  if (status.ok()) status = average_side(", "  if (false) status = average_side(", ALL_RANKS),
    Bug("compress", "gathered_sum", "gathered payloads are added, but not averaged", API,
        "output[i] /= static_cast<float>(ranks)", "output[i] /= 1", ALL_RANKS),
    Bug("compress", "settings_not_compared", "ranks with different settings are not told", API,
        "    if (texts[r] != texts[0])", "    if (false)", "compression_collective_test CompressionSettingsTest*"),
]
