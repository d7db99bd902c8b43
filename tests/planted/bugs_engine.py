"""Bugs in the engine, in what reports failures to it, and in the C ABI."""

from bug import Bug

ENGINE = "collective/engine.cc"
CHECKS = "collective/tensor_check.cc"
C_API = "collective/c_api.cc"

# fmt: off
BUGS = [
    Bug("engine", "failure_before_the_last_sum", "another rank's failure ends operations whose results have arrived", ENGINE,
        "  if (mail) take_mail(!advanced);\n", "  if (mail) take_mail(true);\n",
        "engine_test EngineTest.AFailureFromOutsideWaitsForWhatHasArrived"),
    Bug("engine", "no_tick_under_load", "no deadline holds while packets keep arriving", ENGINE,
        "(advanced ? kTickPatienceUs : 0)", "(advanced ? INT64_MAX : 0)",
        "engine_test EngineTest.ADeadlineHoldsThoughPacketsNeverStopArriving"),
    Bug("engine", "awake_after_a_failure", "a failed engine keeps its processor busy", ENGINE,
        "  if (!core_->idle() && core_->status().ok())\n", "  if (!core_->idle())\n",
        "engine_test EngineTest.OperationsThatNeedARankThatHasLeftEndAndTheEngineSleeps"),
    Bug("engine", "role_lost", "every operation is an all-reduce when it reaches the core", ENGINE,
        "  core_->submit(id, std::move(submission.spec));\n",
        "  submission.spec.role = {};\n  core_->submit(id, std::move(submission.spec));\n",
        "session_test"),
    Bug("engine", "early_failure_lost", "an engine does not get the failure that was reported before it was made",
        "collective/failure_notifier.cc", "  if (!failure_.ok()) engine_->fail(failure_);\n", "",
        "engine_test EngineTest.AFailureThatTheControlPlaneReportedBeforeThereWasAnEngineReachesIt"),
    Bug("engine", "chunks_wrap", "an operation may have more chunks than a packet can name", CHECKS,
        "  if (elements <= kMostChunks * chunk_elements) return {};\n", "  if (elements + kMostChunks > 0) return {};\n",
        "tensor_check_test TensorCheckTest.AnOperationOfMoreThan2To32PacketsIsRefused"),
    Bug("engine", "newer_options_ignored", "an option that the library does not know is ignored",
        "collective/c_api_support.h",
        "    if (bytes[i] == 0) continue;\n", "    if (bytes[i] != 1000) continue;\n",
        "c_abi_test CAbiTest.AProgramOfALaterVersionConnectsIfItUsesNothingNew"),
]
