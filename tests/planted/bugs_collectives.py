"""Bugs in the collectives other than all-reduce."""

from bug import Bug

ROLE = "src/worker/role.cc"
OPERATION = "src/worker/operation.cc"
BYTES = "src/encoding/bytes.cc"
CHECK = "session/tensor_check.cc"
BASE = "api/communicator_base.cc"
RIGHT = "sim_collectives_test Collectives.EachIsRightInEverySizeOnEveryPathUnderLoss"
DISAGREE = "sim_collectives_test Collectives.RanksThatDisagreeAreAllTold"
BAD = "collectives_test CollectivesArgumentsTest.BadOnesAreRefusedByName"

BUGS = [
    Bug(
        "collectives",
        "root_not_compared",
        "ranks do not compare roots",
        ROLE,
        "  if (has_root(collective)) role.parameter = static_cast<uint32_t>(root);\n",
        "",
        DISAGREE,
    ),
    Bug(
        "collectives",
        "tags_of_sums_not_compared",
        "ranks do not compare what is done with a sum",
        BASE,
        "  spec.role.tag = options.tag;\n  spec.one_tensor",
        "  spec.one_tensor",
        "collectives_test Places/CollectivesTest.TagsAndBarriersAreCompared/Aggregator",
    ),
    Bug(
        "collectives",
        "everybody_broadcasts",
        "all ranks contribute to a broadcast",
        ROLE,
        "  if (collective == Collective::kBroadcast || collective == Collective::kScatter)\n    role.contributors",
        "  if (collective == Collective::kScatter)\n    role.contributors",
        RIGHT,
    ),
    Bug(
        "collectives",
        "everybody_gets_parts",
        "all ranks get all sums of a reduce-scatter",
        ROLE,
        "  if (collective == Collective::kScatter || collective == Collective::kReduceScatter)\n    role.receivers",
        "  if (collective == Collective::kScatter)\n    role.receivers",
        "collectives_test Places/CollectivesTest.AllOfThemInEverySize/Aggregator",
    ),
    Bug(
        "collectives",
        "foreign_outputs_written",
        "a rank writes results that it does not receive",
        OPERATION,
        "  if (!spec.role.receives(i) || there_already) view.output",
        "  if (there_already) view.output",
        RIGHT,
    ),
    Bug(
        "collectives",
        "foreign_inputs_sent",
        "a rank contributes to the parts of others",
        OPERATION,
        "  if (!spec.role.contributes(i)) view.input = nullptr;\n",
        "",
        RIGHT,
    ),
    Bug(
        "collectives",
        "blocks_end_with_parts",
        "the parts of a reduce-scatter have scales of their own",
        OPERATION,
        "  options.one_tensor = spec.one_tensor;\n",
        "",
        "worker_operation_test",
    ),
    Bug(
        "collectives",
        "first_chunk_twice",
        "the first chunk of a group of bytes is sent in a data slot, too",
        "src/worker/data_cursor.cc",
        "    chunk_ = std::max(chunk_, group_->in_scale_slot);\n",
        "",
        "worker_stripe_test",
    ),
    Bug(
        "collectives",
        "large_groups_of_bytes",
        "groups of bytes are larger than the protocol says",
        "src/worker/modes/byte_transfers.h",
        "most_chunks_(payload_bytes / kMinAgreedBytes)",
        "most_chunks_(payload_bytes)",
        "worker_stripe_test",
    ),
    Bug(
        "collectives",
        "zeros_not_sent",
        "a rank sends what is in its packet where it has no bytes",
        BYTES,
        "      std::memset(lanes, 0, run.count);\n      return;",
        "      return;",
        RIGHT,
    ),
    Bug(
        "collectives",
        "bytes_of_one_input",
        "a rank contributes the bytes of one of its host's ranks only",
        BYTES,
        "lanes[i] |= input[i];",
        "(void)input;",
        "bytes_test",
    ),
    Bug(
        "collectives",
        "any_root",
        "a root that is no rank is accepted",
        CHECK,
        "has_root(collective) && (root < 0 || root >= world_size)",
        "has_root(collective) && root < 0",
        BAD,
    ),
    Bug(
        "collectives",
        "any_number_of_parts",
        "a number of parts that is not that of the ranks is accepted",
        CHECK,
        "has_parts(collective) && spec.tensors.size() != static_cast<size_t>(world_size)",
        "has_parts(collective) && spec.tensors.size() > static_cast<size_t>(world_size)",
        BAD,
    ),
    Bug(
        "collectives",
        "parts_repeated_from_the_first",
        "a failover repeats all parts with the bytes of the first",
        "api/kept_operation.cc",
        "      input_offset += tensor_bytes;\n",
        "",
        "collectives_test CollectivesFailoverTest.*",
    ),
]
