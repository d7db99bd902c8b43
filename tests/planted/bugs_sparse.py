"""Bugs in sparse all-reduces."""

from bug import Bug

LEVELS = "src/sparse/levels.cc"
DENSE = "src/sparse/dense_tensor.cc"
COO = "src/sparse/coo_tensor.cc"
REDUCTION = "src/sparse/reduction.cc"
PROFILE = "src/sparse/profile.cc"
BITS = "src/kernels/bits.cc"
OPERATIONS = "api/sparse_operations.cc"
ANY = "sparse_test ReductionTest.DenseTensorsOfAnyKind"
ANY_COO = "sparse_test ReductionTest.SparseTensorsOfAnyKind"
UNION = "sparse_test LevelsTest.AnyLevelsGiveTheUnion"
SIMULATED = "sim_sparse_test SparseSimulation.SumsAndIndicesAreRightUnderAllFaults"
ORDER = "sparse_collective_test *OtherOperationsMayBeInFlight*"

BUGS = [
    Bug("sparse", "second_parent_of_a_word", "a word's later blocks are skipped", LEVELS,
        "i += set.numbers[i] < number ? 1 : 0;", "i += k > 0 && set.numbers[i] <= number ? 1 : 0;", UNION),
    Bug("sparse", "neighbours_in_the_word", "a block's bits contain those of its neighbours", LEVELS,
        "const uint64_t mask = low_bits(uint64_t{1} << parent_shift_);", "const uint64_t mask = ~uint64_t{0};", UNION),
    Bug("sparse", "positions_not_checked", "an index may name a position behind the last", LEVELS,
        "  return last < positions_;", "  return true;", "sparse_test *ReadRefusesPositionsThatDoNotExist"),
    Bug("sparse", "negative_zeros_stay", "a tensor that is summed in place keeps its negative zeros", DENSE,
        "view_.input != view_.output || negative_zeros_", "view_.input != view_.output",
        "sparse_test DenseTensorTest.WritesZerosWhereNothingTravelled"),
    Bug("sparse", "outputs_not_cleared", "another output keeps what was there before where nothing travelled", DENSE,
        "view_.input != view_.output || negative_zeros_", "negative_zeros_", ANY),
    Bug("sparse", "lost_values_unnoticed", "a union that lacks what a rank has is accepted", REDUCTION,
        "  if (!tensor_->pack(part->segment, part->united, part->own, part->values.data())) {",
        "  if (!tensor_->pack(part->segment, part->united, part->own, part->values.data()) && false) {",
        "sparse_test ReductionTest.ADamagedIndexIsAnError"),
    Bug("sparse", "overflow_of_duplicates", "a sum of duplicates that overflows is not noticed", COO,
        "        return {ErrorCode::kOverflow,", "        return {};\n      if (false) return {ErrorCode::kOverflow,",
        "sparse_test CooTensorTest.AddsDuplicatesOfHalfTypesAndIntegers"),
    Bug("sparse", "absent_rows_keep_the_packet", "a row that a rank lacks contains what was in memory", COO,
        "        std::memset(values, 0, row_bytes_);\n", "        std::memset(values, 1, row_bytes_);\n", ANY_COO),
    Bug("sparse", "invalid_indices_unnoticed", "invalid indices of a rank stay unknown to the others", REDUCTION,
        "    count_[1] = 1;\n", "", "sparse_test ReductionTest.InvalidIndicesOfOneRankAreAnErrorOnAll"),
    Bug("sparse", "modes_not_compared", "ranks do not compare modes", REDUCTION,
        "static_cast<uint64_t>(settings_.mode), ", "", "sparse_test ReductionTest.RanksThatDifferHaveOtherParameters"),
    Bug("sparse", "turns_do_not_wait", "the order of operations depends on which index comes back first", REDUCTION,
        "    if (!has_ended(part.index_operation)) return false;\n", "    (void)part;\n", ANY),
    Bug("sparse", "any_number_in_flight", "the values of all segments may be in memory", REDUCTION,
        "kSegmentsInFlight + first_part_;", "1000;", "sparse_test ReductionTest.SegmentsOverlap"),
    Bug("sparse", "full_means_any", "a rank that has something counts as one that has everything", REDUCTION,
        "units == shape_.positions ? 1 : 0", "units > 0 ? 1 : 0",
        "sparse_test ReductionTest.WhereARankHasEverythingNoIndexTravels"),
    Bug("sparse", "counted_each_time", "a tensor that was dense when first counted is counted at each operation", PROFILE,
        "    dense_ = true;\n", "", "sparse_test ReductionTest.AutoLeavesDenseTensorsAloneAndComesBack"),
    Bug("sparse", "one_large_segment", "a small tensor travels in one segment", REDUCTION,
        "std::min(bytes / kLeastSegmentBytes, kFineSegments)", "1.0",
        "sparse_test ReductionTest.SegmentsOfSmallTensorsAreSmall"),
    Bug("sparse", "segments_inherit_more_than_memory", "a segment in the memory of another counts as issued", REDUCTION,
        "  values_issued = false;\n", "", ANY),
    Bug("sparse", "values_taken_early", "results are stored before the values have been summed", REDUCTION,
        "         has_ended(parts_.front().value_operation)) {", "         true) {", SIMULATED),
    Bug("sparse", "done_with_operations_in_flight", "a reduction counts as done while a part of it is in flight", REDUCTION,
        "phase_ != Phase::kIssued || in_flight_ > 0) return;", "phase_ != Phase::kIssued) return;", SIMULATED),
    Bug("sparse", "last_field_of_a_lane", "where ranks only add, the last bit of each lane is lost", "src/sparse/or_by_sum.h",
        "for (uint64_t field = 0; field < fields_; ++field) {", "for (uint64_t field = 0; field + 1 < fields_; ++field) {",
        SIMULATED),
    Bug("sparse", "goes_on_after_a_loss", "a reduction goes on after the loss of a rank", REDUCTION,
        "  if (status_.ok()) status_ = status;\n  phase_ = Phase::kIssued;\n", "  if (status_.ok()) status_ = status;\n",
        "sim_sparse_test SparseSimulation.ADeathEndsTheCallsOfAllRanks"),
    Bug("sparse", "dense_for_ever", "a tensor that has been dense is never tried again", PROFILE,
        "  return !sparser && !due;", "  return true;", "sparse_test ReductionTest.AutoLeavesDenseTensorsAloneAndComesBack"),
    Bug("sparse", "never_dense", "dense tensors are sent by index", PROFILE,
        "constexpr double kWorthwhile = 0.95;", "constexpr double kWorthwhile = 2;",
        "sparse_test ReductionTest.AutoLeavesDenseTensorsAloneAndComesBack"),
    Bug("sparse", "signs_count", "a negative zero counts as a value", BITS,
        "hn::Set(d, static_cast<T>(~sign))", "hn::Set(d, static_cast<T>(~T{0}))", "kernels_test *BitsTest*"),
    Bug("sparse", "later_operations_overtake", "operations behind a sparse one are submitted before its last part", OPERATIONS,
        "    can_start = !is_busy_ || stop_;", "    can_start = true;", ORDER),
    Bug("sparse", "tags_not_compared", "ranks do not compare the caller's tag", REDUCTION,
        "if (settings_.tag != 0) signature_", "if (false) signature_", "sparse_collective_test *TagsAreCompared*"),
    Bug("sparse", "any_index_begins_anew", "a later index that is refused begins the reduction anew", REDUCTION,
        "if (operation_.number > 1 || in_flight_ != 1) return false;", "",
        "sparse_test ReductionRefusalTest.ALaterIndexThatIsRefusedFailsTheReduction"),
    Bug("sparse", "profiles_survive_a_regroup", "ranks keep what a new one cannot know", OPERATIONS,
        "  profiles_.clear();\n  combines_bits_", "  combines_bits_",
        "sparse_collective_test SparseLifeTest.ARegroupForgetsWhatTheRanksKnew"),
]
