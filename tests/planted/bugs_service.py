"""Bugs in the XDP program, in failover, and in the control plane."""

from bug import Bug

PROGRAM = "aggregator/xdp/netsum.bpf.c"
ANSWERS = "aggregator/xdp/answers.bpf.h"
GROUPS = "src/worker/scale_groups.cc"
WORKER = "src/worker/worker_core.cc"
TABLE = "aggregator/control/job_table.cc"
WAITING = "aggregator/control/parent_relay_waiting.cc"
CHECKS = "aggregator/control/job_checks.cc"
GRANTS = "aggregator/control/job_grants.cc"
LIVENESS = "aggregator/control/job_liveness.cc"
RELAY = "aggregator/control/parent_relay_requests.cc"
RELAY_GRANTS = "aggregator/control/parent_relay_grants.cc"
TOPOLOGY = "aggregator/control/job_topology.cc"
RANGES = "aggregator/dataplane/slot_ranges.h"
DRIVER = "aggregator/p4/driver/p4runtime_driver.cc"
P4_PROGRAM = "aggregator/p4/driver/p4_program.cc"

XDP_BUGS = [
    Bug("xdp", "bank_not_switched", "both rounds of a slot have the same lanes", PROGRAM,
        "slot_index * 2 + (f->round & 1);", "slot_index * 2;", "xdp_test"),
    Bug("xdp", "parent_unchecked_in_xdp", "the tag of a parent's packets is not verified", PROGRAM,
        "netsum_xdp_parent_key_of(job_index))) return drop(NETSUM_DROP_BAD_CHECK);",
        "netsum_xdp_parent_key_of(job_index)) && f->type == NETSUM_TYPE_WELCOME) return drop(NETSUM_DROP_BAD_CHECK);",
        "xdp_test"),
    Bug("xdp", "wrong_member_count", "a parent's STATUS may name a member that does not exist", PROGRAM,
        ": netsum_slot_from_parent(slot, f, job->rules.members);",
        ": netsum_slot_from_parent(slot, f, NETSUM_MAX_MEMBERS);", "xdp_test"),
    Bug("xdp", "sum_not_loaded", "a sum that goes up again carries the asker's lanes", PROGRAM,
        " ||\n                     action == NETSUM_ACT_SEND_UP)) {", ")) {", "xdp_test"),
    Bug("xdp", "asks_with_the_chunk", "a STATUS that asks for lanes names a chunk, not the first member", PROGRAM,
        "    frame->header.chunk = netsum_put32(0);\n", "", "xdp_test"),
    Bug("xdp", "lanes_not_cleared", "what is left of an earlier round counts for a member without lanes", PROGRAM,
        "    if (action == NETSUM_ACT_CLEAR) netsum_clear(lanes_index, f->absent_bytes);\n", "", "xdp_test"),
    Bug("xdp", "asks_nobody", "a result without room is sent without its lanes", PROGRAM,
        "    if (o.complete) asked = netsum_slot_asks(slot, f);\n", "", "xdp_test"),
    Bug("xdp", "nobody_is_brief", "a member that needs no lanes gets them", PROGRAM,
        "no_result & netsum_member_bit(member)) != 0;", "no_result & netsum_member_bit(member)) > 255;",
        "attached_test"),
    Bug("xdp", "unknown_peers_in_xdp", "contributions are taken from any address", PROGRAM,
        "  if (!from_its_address) return NETSUM_DROP_UNKNOWN_PEER;\n", "", "xdp_test"),
    Bug("xdp", "overflow_flag_lost", "a result does not say that it overflowed", PROGRAM,
        "  o.flags = round->flags | (round->overflow ? NETSUM_FLAG_OVERFLOW : 0);", "  o.flags = round->flags;",
        "xdp_test"),
    Bug("xdp", "chunk_not_taken_down_in_xdp", "a STATUS keeps the chunk that the PROBE went up with", PROGRAM,
        "netsum_put32(netsum_chunk_down(f->chunk));", "netsum_put32(f->chunk);", "xdp_test"),
    Bug("xdp", "tail_words_not_added", "the words after the last 32 bytes are not added", ANSWERS,
        "FOR_EACH_BLOCK(8, 3, ONE_WORD, STEP)", "FOR_EACH_BLOCK(8, 2, ONE_WORD, STEP)", "xdp_test"),
    Bug("xdp", "slots_held_by_many", "two CPUs work on one slot at once", "aggregator/xdp/state.bpf.h",
        "  return (turn & 1) == 0 && __sync", "  return (turn & 1) == 0 || __sync", "xdp_test"),
    Bug("xdp", "carry_kept", "the carry out of a 32-bit lane stays in the next", "aggregator/slot/lanes.h",
        "  sum -= (x ^ y ^ sum) & carry;\n", "", "lanes_test"),
    Bug("xdp", "ip_checksum_ignored", "frames with a wrong IP checksum are taken", PROGRAM,
        "  if (ip_sum(ip) != 0xFFFF) return drop(NETSUM_XDP_IP_CHECKSUM);\n", "", "xdp_test"),
    Bug("xdp", "fragments_taken", "first fragments are taken for whole datagrams", PROGRAM,
        "  if ((ip->frag_off & bpf_htons(0x2000)) != 0) return drop(NETSUM_XDP_IP_FRAGMENT);\n", "", "xdp_test"),
    Bug("xdp", "maxima_added", "scales are added", ANSWERS,
        "  if (format >> 4 == NETSUM_OP_SUM) return", "  if (format >> 4 <= NETSUM_OP_MAX) return", "xdp_test"),
    Bug("xdp", "or_is_a_maximum", "OR and XOR are combined by their maximum", ANSWERS,
        "  if (format >> 4 == NETSUM_OP_MAX) {", "  if (1) {", "xdp_test"),
]

FAILOVER_BUGS = [
    Bug("failover", "turn_of_scales_early", "a result in a scale slot proves a group too much", GROUPS,
        "group.operation == nullptr ? 0 : group.number + 1}", "group.operation == nullptr ? 0 : group.number + 2}",
        "worker_stripe_streams_test"),
    Bug("failover", "proof_for_the_other_stream", "a result in a scale slot proves something of the other stream", GROUPS,
        "Stream& stream = streams_[proof.stream];", "Stream& stream = streams_[1 - proof.stream];",
        "worker_stripe_streams_test"),
    Bug("failover", "groups_retire_early", "a scale slot is used again while groups before its own are unfinished", "src/worker/scale_groups.h",
        "return at(slot).state == ScaleGroupState::kFree; }",
        "return at(slot).state == ScaleGroupState::kFree || at(slot).state == ScaleGroupState::kFinished; }",
        "worker_stripe_streams_test"),
    Bug("failover", "first_stripe_only", "an operation is finished everywhere once it is on its first stripe", WORKER,
        "  for (const auto& stripe : stripes_) first = std::min(first, stripe->first_unproven());\n",
        "  first = std::min(first, stripes_.front()->first_unproven());\n", "sim_test *NothingIsWrong*"),
    Bug("failover", "furthest_rank_decides", "the rank that is furthest says where all go on", GRANTS,
        "grant.completed = std::min(grant.completed, member->completed);",
        "grant.completed = grant.completed + 1 == 0 ? member->completed : std::max(grant.completed, member->completed);",
        "job_succession_test"),
]

CONTROL_BUGS = [
    Bug("control", "leaves_after_a_report", "a member whose report was not answered leaves in order", "src/control/client.cc",
        "    if (unanswered_) {\n", "    if (false) {\n",
        "control_test ControlTest.AReportThatWasNotAnsweredIsMadeAgainInsteadOfLeaving"),
    Bug("control", "slot_granted_twice", "the last slot of a range is granted again", RANGES,
        "    std::fill_n(taken_.begin() + *first, wanted, true);",
        "    std::fill_n(taken_.begin() + *first, wanted - 1, true);", "user_core_test"),
    Bug("control", "epoch_again", "an index is granted again with the same epoch", TABLE,
        "static_cast<uint16_t>(grant.epoch + 1)", "static_cast<uint16_t>(grant.epoch)", "job_table_test"),
    Bug("control", "token_prefix", "the beginning of a token is enough", "src/base/text.cc",
        "  if (a.size() != b.size()) return false;\n", "  if (a.size() > b.size()) return false;\n",
        "base_test TextTest.*"),
    Bug("control", "dataplane_keeps_the_job", "a failed job stays installed", TABLE,
        "  if (!job.installed) return give_back", "  if (true) return give_back", "job_table_test"),
    Bug("control", "racks_by_rank", "each rank of a rack is a member", GRANTS,
        "    if (is_new) ++members;", "    ++members;", "job_table_test"),
    Bug("control", "silent_leaver", "a member that dies while the job runs is not told to the others", TABLE,
        "  if (job.waits_for_ranks() && job.may_start_without_all()) {", "  if (job.state != State::kFailed) {",
        "job_table_test"),
    Bug("control", "last_come_first_served", "of the jobs that wait for room, the latest is let in first", TABLE,
        "    queue_.push_back(number);", "    queue_.push_front(number);", "job_table_test"),
    Bug("control", "last_waiting_first_served", "when there is room, the latest job that waits gets it", TABLE,
        "    const JobNumber number = queue_.front();\n    Job& job = jobs_.at(number);\n    queue_.pop_front();",
        "    const JobNumber number = queue_.back();\n    Job& job = jobs_.at(number);\n    queue_.pop_back();",
        "job_table_test"),
    Bug("control", "small_jobs_overtake", "a job that comes while others wait is let in before them", CHECKS,
        "  if (!queue_.empty() && !succeeds_a_job_of_here(now_us, spec))", "  if (false)", "job_table_test"),
    Bug("control", "blames_when_stopped", "an aggregator that was stopped itself takes members for dead", LIVENESS,
        "  if (overdue_us > member.liveness_us / 4 || (has_others && !others_are_heard)) {",
        "  if (has_others && !others_are_heard) {",
        "job_succession_test LivenessTest.*"),
    Bug("control", "blames_while_deaf", "an aggregator that hears of nobody takes members for dead", LIVENESS,
        "  if (overdue_us > member.liveness_us / 4 || (has_others && !others_are_heard)) {",
        "  if (overdue_us > member.liveness_us / 4) {", "job_succession_test LivenessTest.*"),
    Bug("control", "forgives_for_ever", "members that are silent together are never lost", LIVENESS,
        "    if (member.forgiven < kMostForgiven) {", "    if (true) {", "job_table_test JobLimitsTest.SilenceOfAll*"),
    Bug("control", "succession_unchecked", "any number passes for that of a job that has ended here", TABLE,
        "  if (spec.succeeds() == 0) return false;", "  return spec.succeeds() != 0;",
        "job_table_test JobQueueTest.*"),
    Bug("control", "tenant_unlimited", "one tenant gets all jobs", CHECKS,
        "jobs >= options_.tenant.jobs)", "jobs < 0)", "job_table_test JobLimitsTest.OneTenant*"),
    Bug("control", "rack_does_not_wait", "a job that may wait is refused by a rack that is full", WAITING,
        "  return when_full_of(spec) == WhenFull::kWait &&", "  return when_full_of(spec) == WhenFull::kHosts &&",
        "hierarchy_test FullRackTest.*"),
    Bug("control", "rack_forgets_its_queue", "a rack does not look at its queue when there is room again", WAITING,
        "  room_changed_ = true;\n", "", "hierarchy_test FullRackTest.*"),
    Bug("control", "rack_waits_forever", "a job waits for room at a rack beyond its deadline", WAITING,
        "    if (session.deadline_us > now_us) continue;", "    if (session.deadline_us > 0) continue;",
        "hierarchy_test FullRackTest.*"),
    Bug("control", "relay_loses_later_fields", "an aggregator passes on only the fields of a job that it knows", RELAY,
        "  control::JoinRequest above = message;",
        "  control::JoinRequest above = message;\n  above.clear_job();\n  above.mutable_job()->set_name(request.job.name());\n"
        "  above.mutable_job()->set_protocol_version(request.job.protocol_version());\n"
        "  above.mutable_job()->set_world_size(request.job.world_size());\n"
        "  above.mutable_job()->set_mtu(1500);\n  above.mutable_job()->set_slots(256);", "parent_relay_test"),
    Bug("control", "relay_keeps_the_plan", "ranks below another aggregator get no weights", RELAY_GRANTS,
        "  own.plan = ready.plan();", "", "parent_relay_test"),
    Bug("control", "rack_not_in_the_plan", "an aggregator does not say that it is below its parent", RELAY,
        "    *first.add_below() = own;", "", "parent_relay_test"),
    Bug("control", "topology_of_any_job", "the plan of another job is told than the one that was asked for", TOPOLOGY,
        "    if (!name.empty() && job.spec.name() != name) continue;", "", "job_table_test"),
    Bug("control", "when_full_not_compared", "members of one job may differ in an option",
        "src/job/job_spec.cc", '"when_full"},', '"when_full", false},', "job_spec_test"),
    Bug("control", "rack_not_asked", "a job is let in that a rack's dataplane cannot sum", CHECKS,
        "  if (request.rack.empty()) return {};\n  return check_needs", "  if (true) return {};\n  return check_needs",
        "job_table_test"),
    Bug("control", "reporter_told_too", "the member that reports a failure is told of it, too", TABLE,
        "    if (rank == except_rank)", "    if (false && rank == except_rank)", "job_table_test"),
    Bug("control", "leave_overtaken", "a member's call to the parent ends before the parent has answered its Leave",
        "aggregator/control/parent_relay.cc", "  if (!expect_answer(up->first, false)) return {};\n", "",
        "parent_relay_test"),
]

P4_BUGS = [
    Bug("p4", "restart_unseen", "a switch that comes back empty is taken for one that has kept its tables", DRIVER,
        "    if (*kept) return {};", "    return {};", "p4_runtime_test *ComesBackEmpty*", hangs=True),
    Bug("p4", "drop_is_a_restart", "a control connection that comes back ends all jobs", DRIVER,
        "    if (*kept) return {};", "", "p4_runtime_test *Drops*"),
    Bug("p4", "backup_takes_over", "a second control plane goes on as if it were the only one", DRIVER,
        "return primary ? Arbitration::kPrimary", "return answer.has_arbitration() ? Arbitration::kPrimary",
        "p4_runtime_test *SecondControlPlane*"),
    Bug("p4", "old_entries_kept", "entries of an earlier control plane stay in the tables", DRIVER,
        "    if (Status status = clear(program_->tables()); !status.ok()) return status;\n", "",
        "p4_runtime_test *IsKept*"),
    Bug("p4", "jobs_kept_after_restart", "members can be entered in jobs that the switch has lost", DRIVER,
        "  jobs_.clear();\n", "", "p4_runtime_test *ComesBackEmpty*"),
    Bug("p4", "errors_of_updates_unread", "a full table is reported as a lost switch", DRIVER,
        "    const int own = one.value().canonical_code();", "    const int own = grpc::OK;",
        "p4_runtime_test *AFullTable*"),
    Bug("p4", "version_unchecked", "a program of another version is driven", P4_PROGRAM,
        "  if (info_.pkg_info().version() != NETSUM_P4_PROGRAM_VERSION)", "  if (info_.pkg_info().version().empty())",
        "p4_runtime_test *NameOrVersion*"),
    Bug("p4", "parameters_unchecked", "a program whose actions lack a parameter is driven", P4_PROGRAM,
        "      if (field(action->params(), parameter) == nullptr)", "      if (false)",
        "p4_runtime_test *EachMissingPart*"),
]

BUGS = [*XDP_BUGS, *FAILOVER_BUGS, *CONTROL_BUGS, *P4_BUGS]
