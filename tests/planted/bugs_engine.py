"""Bugs in the engine, in what reports failures to it, and in the C ABI."""

from bug import Bug

ENGINE = "engine/engine_thread.cc"
PARTS = "engine/engine.cc"
CHECKS = "session/tensor_check.cc"
C_API = "api/c_api.cc"

# fmt: off
BUGS = [
    Bug("engine", "polls_in_vain", "a thread that polls does not drive the engine", "engine/work.cc",
        "mine->core_lock->lock_or_notify() : mine->core_lock->try_lock();", "mine->core_lock->lock_or_notify() : nullptr;",
        "engine_test CallerDrivesTest.AThreadThatPollsEndsItsOperationsItself"),
    Bug("engine", "engine_used_when_left", "a thread that polls uses the engine after it has unlocked the core", "engine/work.cc",
        "  if (engine != nullptr) mine->core_lock->unlock(engine->drive(*mine, done, deadline_us));\n",
        "  if (engine != nullptr) {\n    const CoreLock::Release how = engine->drive(*mine, done, deadline_us);\n"
        "    mine->core_lock->unlock({.needs_engine = how.needs_engine});\n"
        "    if (how.watched) engine->core_lock()->unlock({.watched = true});\n  }\n",
        "engine_test CallerDrivesTest.TheEngineMayBeFreedAsSoonAsAPollingThreadHasLeft"),
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
        "  core_->submit(id, std::move(spec));\n",
        "  spec.role = {};\n  core_->submit(id, std::move(spec));\n",
        "session_test"),
    Bug("engine", "early_failure_lost", "an engine does not get the failure that was reported before it was made",
        "engine/failure_notifier.cc", "  if (!failure_.ok()) engine_->fail(failure_);\n", "",
        "engine_test EngineTest.AFailureThatTheControlPlaneReportedBeforeThereWasAnEngineReachesIt"),
    Bug("engine", "chunks_wrap", "an operation may have more chunks than a packet can name", CHECKS,
        "  if (elements <= kMostChunks * chunk_elements) return {};\n", "  if (elements + kMostChunks > 0) return {};\n",
        "tensor_check_test TensorCheckTest.AnOperationOfMoreThan2To32PacketsIsRefused"),
    Bug("engine", "newer_options_ignored", "an option that the library does not know is ignored",
        "api/c_api_support.h",
        "    if (bytes[i] == 0) continue;\n", "    if (bytes[i] != 1000) continue;\n",
        "c_abi_test CAbiTest.AProgramOfALaterVersionConnectsIfItUsesNothingNew"),
    Bug("engine", "parts_unordered", "threads that submit at the same time give their operations to the cores in different orders",
        PARTS, "  if (threads_.size() > 1) order.lock();\n", "",
        "engine_threads_test PartsTest.AllCoresGetTheOperationsOfAllThreadsInOneOrder"),
    Bug("engine", "first_part_ends_all", "an operation ends with its first part", "engine/running_operation.cc",
        "  return --left_ == 0;\n", "  return left_-- == all_;\n",
        "engine_threads_test PartsTest.AnOperationEndsWithItsLastPart"),
    Bug("engine", "a_part_failed_alone", "the failure of one core leaves the others to their deadlines", PARTS,
        "    if (other != index) threads_[other]->fail(status);\n", "    if (other == index) threads_[other]->fail(status);\n",
        "engine_threads_test PartsTest.TheFailureOfOneCoreEndsAllAndIsReportedOnce", hangs=True),
    Bug("engine", "parts_reported_each", "every core that fails is reported", PARTS,
        "  if (!reported_.exchange(true)) on_failed_(status);\n", "  on_failed_(status);\n  on_failed_(status);\n",
        "engine_threads_test PartsTest.TheFailureOfOneCoreEndsAllAndIsReportedOnce"),
    Bug("engine", "ended_within_submit", "an operation without parts ends within submit(), whose caller may hold a lock",
        ENGINE, "    ended_.push_back(operation);\n", "    events_.on_ended(*operation);\n",
        "engine_threads_test PartsTest.NothingEndsWithinSubmit", hangs=True),
    Bug("engine", "behind_is_too_far", "a core that is behind another one never starts its operation", "src/worker/worker_core.cc",
        "next_chunk_[stream] < now.lowest_chunk + kAhead * now.window_packets", "next_chunk_[stream] - now.lowest_chunk < kAhead * now.window_packets",
        "worker_core_group_test CoresTest.ACoreStartsWhatAnotherOneIsAheadIn"),
    Bug("engine", "answer_at_one_core", "a core takes corrected weights before they have come", "src/worker/core_group.cc",
        "  latest_->left = cores();\n", "  latest_->left = 1;\n",
        "worker_core_group_test CoreGroup.AllCoresAskWithWhatAllHaveMeasured"),
    Bug("engine", "held_back_for_good", "a core that waits for another one does not look again", "src/worker/worker_core.cc",
        "  int64_t next = recheck_us_;\n", "  int64_t next = INT64_MAX;\n",
        "worker_core_group_test CoresTest.ACoreThatWaitsForAnotherOneLooksAgain"),
    Bug("engine", "results_of_other_threads", "a thread receives the multicast results of all stripes", "src/net/udp/socket.cc",
        "  if (!membership.sources.empty())\n", "  if (membership.sources.size() > 1000)\n",
        "udp_io_test UdpIoTest.AGroupsSocketTakesOnlyWhatItsSourcesSend"),
    Bug("engine", "threads_not_automatic", "the C ABI takes automatic engine threads for one", C_API,
        "in->engine_threads == -1 ? 0 : in->engine_threads", "in->engine_threads == -1 ? 1 : in->engine_threads",
        "c_abi_test CAbiTest.EngineThreadsAreOneUnlessAskedFor"),
]
