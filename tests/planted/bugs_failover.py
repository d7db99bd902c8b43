"""Bugs in the communicator that outlives its aggregator."""

from bug import Bug

COMMUNICATOR = "collective/failover_communicator.cc"
ORDER = "failover_order_test FailoverOrderTest."
REPEATED = ORDER + "WhatHasEndedOnOneRankIsRepeatedForTheOther"
TRAINING = "failover_test FailoverTest.To*"

# fmt: off
BUGS = [
    Bug("failover", "told_twice", "a result that is repeated for another rank is given to the caller again", COMMUNICATOR,
        "    if (ended_before) return;\n", "    (void)ended_before;\n", REPEATED),
    Bug("failover", "later_reports_count", "a lost session's further reports are taken for the loss of the next one",
        COMMUNICATOR, "  if (session_number != session_number_ || session_ == nullptr || !failure_.ok() || lost_) return;",
        "  if (!failure_.ok() || lost_) return;", ORDER + "ALaterReportIsNoLossOfTheNextSession"),
    Bug("failover", "reports_blame_rank_0", "a rank that cannot move to the hosts is taken for the loss of rank 0",
        "collective/session.cc", " && status.rank() == kNoRank;", ";", "session_test MovingSessionTest.*"),
    Bug("failover", "inputs_not_kept", "an operation is repeated with what its first attempt has left of its inputs",
        COMMUNICATOR, "      view.input = inputs.get() + input_offset;\n", "", REPEATED),
    Bug("failover", "callers_tensor_overwritten", "an operation that has ended is repeated to the caller's tensor",
        COMMUNICATOR, "    if (used.output != nullptr && ended) view.output = outputs.get() + output_offset;\n", "", REPEATED),
    Bug("failover", "deadline_restarted", "a failover gives operations their whole timeout again", COMMUNICATOR,
        "operation->time_left()", "operation->timeout", ORDER + "TheDeadlineCountsFromSubmissionThroughAFailover"),
    Bug("failover", "deadline_waits_for_the_search", "no operation ends by its deadline while a place is sought",
        COMMUNICATOR, "    if (due != nullptr && Clock::now() >= due->deadline && failure_.ok())",
        "    if (due != nullptr && stop_ && failure_.ok())",
        ORDER + "TheDeadlineEndsAnOperationWhileAnotherPlaceIsSought"),
    Bug("failover", "latest_deadline_counts", "while a place is sought, only the latest deadline counts", COMMUNICATOR,
        "operation->deadline < first->deadline", "operation->deadline > first->deadline",
        ORDER + "TheDeadlineEndsAnOperationWhileAnotherPlaceIsSought"),
    Bug("failover", "abort_waits_for_the_search", "operations end only with the search when somebody aborts", COMMUNICATOR,
        "    changed_.notify_all();  // the supervisor ends all\n", "",
        ORDER + "AbortEndsOperationsWhileAnotherPlaceIsSoughtOnAllRanks"),
    Bug("failover", "search_outlives_abort", "after an abort the search for another place goes on", COMMUNICATOR,
        "        if (stop_ || !failure_.ok()) return", "        if (stop_) return",
        ORDER + "AbortEndsTheSearchForAnotherPlace"),
    Bug("failover", "others_not_told_of_abort", "ranks that wait at another place do not hear of an abort", COMMUNICATOR,
        "  if (found->ok()) opener_.end(std::move(*found).value(), failure);\n", "",
        ORDER + "AbortEndsOperationsWhileAnotherPlaceIsSoughtOnAllRanks"),
    Bug("failover", "forgotten_early", "an operation is forgotten before all ranks are known to have finished it",
        COMMUNICATOR, "first_of_session_ + everywhere - std::min<uint64_t>(everywhere, 1);", "next_number_;", REPEATED),
    Bug("failover", "one_too_many_dropped", "the first operation that a rank has not finished is not repeated", COMMUNICATOR,
        "kept_.front()->number < session_->completed())", "kept_.front()->number <= session_->completed())", REPEATED, hangs=True),
    Bug("failover", "further_than_it_is", "a rank says that it has finished what it has begun", COMMUNICATOR,
        "      if (!(*operation)->ended) completed = (*operation)->number;",
        "      if (!(*operation)->ended && (*operation)->is_barrier()) completed = (*operation)->number;", REPEATED, hangs=True),
    Bug("failover", "last_gap_counts", "a rank counts its last unfinished operation, not the first one", COMMUNICATOR,
        "    for (auto operation = kept_.rbegin(); operation != kept_.rend(); ++operation)",
        "    for (auto operation = kept_.begin(); operation != kept_.end(); ++operation)", REPEATED, hangs=True),
    Bug("failover", "other_packet_sizes", "a place is taken whose packets have another size", COMMUNICATOR,
        "  if (session.payload_bytes() != payload_bytes_)", "  if (session.payload_bytes() == 0)",
        "failover_test FailoverTest.AnAggregatorWithOtherPacketsIsRefused"),
    Bug("failover", "numbers_go_on", "after a regroup, operations are counted from where each rank was", COMMUNICATOR,
        "  next_number_ = 0;\n", "", "failover_test FailoverTest.ALostRankIsStillAnErrorAndTheOthersCanRegroup"),
    Bug("failover", "repetitions_counted", "an operation that is repeated counts as another one", COMMUNICATOR,
        "void FailoverCommunicator::start(const OperationPtr& operation, OperationSpec spec) {\n",
        "void FailoverCommunicator::start(const OperationPtr& operation, OperationSpec spec) {\n"
        "  if (session_number_ > 1) ++submitted_;\n",
        ORDER + "OperationsAreCountedWhenTheyEndAndOnceHoweverOftenTheyAreRepeated"),
    Bug("failover", "minority_regroups", "fewer than half of the ranks can continue", "src/job/regroup.cc",
        "(world_size + 1) / 2", "1", "job_spec_test RegroupRuleTest.*"),
    Bug("failover", "too_few_regroup", "ranks continue before as many have come as are needed", "src/job/regroup.cc",
        "  if (arrived < min_members_) return std::nullopt;\n", "", "job_spec_test RegroupRuleTest.*"),
    Bug("failover", "children_use_it", "a forked child uses the communicator of its parent",
        "collective/process_communicator.cc", "  return forked_children::process_id() != process_;", "  return process_ == 0;",
        "forked_communicator_test ForkedCommunicator.*", hangs=True),
    Bug("failover", "children_wait", "a forked child waits for an operation of its parent",
        "collective/work_state.h", "  bool is_forked() const { return forked_children::process_id() != process; }",
        "  bool is_forked() const { return process == 0; }", "forked_communicator_test ForkedCommunicator.*", hangs=True),
]
# fmt: on
