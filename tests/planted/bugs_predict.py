"""Bugs in predicted scales: data that is sent before its scales are agreed on."""

from bug import Bug

HISTORY = "src/worker/scale_history.cc"
PREDICTED = "src/worker/modes/predicted_scales.cc"
EMPTY = "src/worker/modes/empty_packets.cc"
UNIT = "worker_stripe_predict_test"
SIMULATION = "sim_predict_test"

BUGS = [
    Bug("predict", "wrong_is_right", "a wrong prediction counts as right", PREDICTED,
        "&group->agreed[agreed], bytes) == 0;", "&group->agreed[agreed], bytes) <= 0;", SIMULATION),
    Bug("predict", "first_byte_decides", "only the exponent is compared, not whether lanes are to be wide", PREDICTED,
        "&group->agreed[agreed], bytes) == 0;", "&group->agreed[agreed], 1) == 0;", UNIT),
    Bug("predict", "right_is_sent_again", "what was predicted right is expected a second time", "src/worker/modes/agreement.cc",
        "    steps += group.prediction.is_right(i) ? 0 : packets;", "    steps += packets;", UNIT),
    Bug("predict", "same_signature", "lanes by predicted scales may be added to those by agreed ones", PREDICTED,
        "  if (!step.predicted) return step.operation->signature();",
        "  if (!step.predicted || step.chunk.agreed != nullptr) return step.operation->signature();", UNIT),
    Bug("predict", "scales_not_signed", "lanes by different predictions may be added", PREDICTED,
        "(hash ^ step.chunk.agreed[i]) *", "(hash ^ 0 * step.chunk.agreed[i]) *", UNIT),
    Bug("predict", "sum_before_agreement", "a sum is delivered before it is known to be right", "src/worker/stripe_receive.cc",
        "  const bool early = PredictedScales", "  const bool early = step.no_result && PredictedScales", UNIT),
    Bug("predict", "too_large_is_sent", "a rank sends elements that do not fit into the predicted lanes", PREDICTED,
        "                     std::greater_equal<>());", "                     [](uint8_t, uint8_t) { return true; });", UNIT),
    Bug("predict", "repeated_without_lanes", "a contribution that had lanes is repeated without", EMPTY,
        "  const bool absent = step.own != OwnLanes::kSent;",
        "  const bool absent = step.own != OwnLanes::kSent || discarded;", UNIT),
    Bug("predict", "repeated_after_its_result", "a worthless contribution is repeated from a tensor with the result", EMPTY,
        "  if (!absent && !discarded) return false;", "  if (!absent) return discarded && false;", UNIT),
    Bug("predict", "any_stripes_chunks", "a stripe predicts from an operation of which it had other chunks", PREDICTED,
        "netsum_mix64(operation.kind() + place)", "netsum_mix64(operation.kind() + 0 * place)", SIMULATION),
    Bug("predict", "trusted_at_once", "what has been seen once is expected again",
        "src/worker/scale_history.h", "kTrusted = 2,", "kTrusted = 0,", "worker_scale_history_test"),
    Bug("predict", "noise_trusted", "what is right by chance is expected again", HISTORY,
        "  now.reliable = 32 * wrong <= trusted;", "  now.reliable = wrong <= trusted;", "worker_scale_history_test"),
    Bug("predict", "place_forgotten", "an operation between two iterations makes all of the next one unpredictable", HISTORY,
        "  if (follows && followed_equal_ >= equal_[best]) {", "  if (follows && followed_equal_ > 1'000'000'000) {",
        "worker_scale_history_test"),
    Bug("predict", "prediction_not_switched_on", "a job that predicts scales does not", "session/network_path.cc",
        "  stripe.predicts_scales = options.predict_scales;\n", "", "predict_collective_test PredictedScales.AtAnAggregator"),
    Bug("predict", "prediction_not_agreed_on", "ranks that predict meet ranks that do not", "session/job_membership.cc",
        "  job.set_predict_scales(options.predict_scales);\n", "",
        "predict_collective_test PredictedScales.RanksThatDifferInItAreTold"),
    Bug("predict", "steps_back", "other stripes wait for chunks that are sent again", "src/worker/data_cursor.cc",
        "group.first_chunk + (again ? group.chunks - 1 : chunk_));",
        "group.first_chunk + (again ? 0 : chunk_));", UNIT),
]
