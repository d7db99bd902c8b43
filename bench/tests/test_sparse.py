"""The sparse case: its tensors, and the arithmetic of its models and tables."""

import itertools
import math

import numpy
import pytest
from bench_harness import rows_of
from netsum_bench import report, sparse_inputs
from netsum_bench.sparse_inputs import Case, index_bits
from netsum_bench.tables import sparse as tables

RANKS, COUNT = 4, 1 << 18


def masks(case, iteration=0):
    return [case.mask(rank, RANKS, iteration) for rank in range(RANKS)]


@pytest.mark.parametrize("pattern", list(sparse_inputs.UNITS))
@pytest.mark.parametrize("density", [0.2, 0.02])
def test_every_rank_has_the_density(pattern, density):
    case = Case(pattern, "random", density, COUNT)
    for mask in masks(case):
        spread = 5 * math.sqrt(density / case.units)
        assert mask.mean() == pytest.approx(density, abs=spread)
    assert not numpy.array_equal(case.mask(0, RANKS, 0), case.mask(0, RANKS, 1)), "each iteration has other tensors"


def test_overlaps():
    full, random, none = (masks(Case("element", overlap, 0.1, COUNT)) for overlap in ("full", "random", "none"))
    assert all(numpy.array_equal(mask, full[0]) for mask in full)
    assert max(sum(mask.astype(int) for mask in none)) == 1
    assert numpy.logical_or.reduce(random).mean() == pytest.approx(1 - 0.9**RANKS, rel=0.05)
    # Frequent rows are common to all ranks, rare ones are not.
    zipf = sum(mask.astype(int) for mask in masks(Case("zipf", "random", 0.05, COUNT)))
    assert (zipf == RANKS).sum() > 5 and (zipf == 1).sum() > (zipf == RANKS).sum()
    assert not Case("element", "none", 0.4, COUNT).possible(RANKS)


@pytest.mark.parametrize("case", [Case("element", "random", 0.1, 4096), Case("zipf", "random", 0.1, 1 << 14)])
def test_the_expected_sum_of_a_part_is_that_of_the_whole_tensors(case):
    total = numpy.zeros((case.units, case.unit), numpy.float32)
    for rank in range(RANKS):
        units, values = case.rows_of(rank, RANKS, 3)
        assert (values > 0).all() and values.max() < 1000
        total[units] += values
    begin, end = case.units // 4, case.units // 2
    part = case.expected(RANKS, 3, begin, end)
    assert numpy.array_equal(part, total[begin:end].reshape(-1))


def bits_by_trial(union):
    """The fewest bits over all sequences of levels."""
    shifts = range(math.ceil(math.log2(len(union))) + 1)
    blocks = lambda shift: -(-len(union) // 2**shift)
    set_blocks = [sum(union[b << s : (b + 1) << s].any() for b in range(blocks(s))) for s in shifts]
    least = math.inf
    for length in range(len(shifts)):
        for above in itertools.combinations(range(1, len(shifts)), length):
            levels = [*reversed(above), 0]
            bits = blocks(levels[0])
            for upper, lower in itertools.pairwise(levels):
                bits += set_blocks[upper] * 2 ** (upper - lower)
            least = min(least, bits)
    return least


@pytest.mark.parametrize("density", [0, 0.01, 0.2, 1])
def test_the_index_has_the_fewest_bits(density):
    union = numpy.random.default_rng(1).random(200) < density
    assert index_bits(union) == bits_by_trial(union)


def test_sizes_and_models():
    case = Case("row", "full", 0.25, COUNT)
    sizes = case.sizes(RANKS)
    assert sizes["own"] == sizes["union"] == int(case.mask(0, RANKS, 0).sum()) * 64
    assert sizes["unit_index_bits"] <= case.units < sizes["index_bits"] <= COUNT
    model = sparse_inputs.model_bytes(case, sizes, RANKS)
    assert model["netsum"] == 4 * sizes["union"] + sizes["index_bits"] / 8 < model["dense"] == 4 * COUNT
    assert model["coo"] == (RANKS - 1) * (sizes["own"] * 4 + sizes["own"] / 64 * 8)
    assert sizes["union"] <= sizes["blocks"] * 256 <= 4 * sizes["union"]


@pytest.mark.parametrize("selection", list(sparse_inputs.SELECTIONS))
def test_selections_have_no_case_twice(selection):
    for ranks in (4, 8):
        found = sparse_inputs.SELECTIONS[selection](ranks)
        assert len(set(found)) == len(found)
        assert all(case.count % max(sparse_inputs.UNITS.values()) == 0 for case in found)


def record(system, times, case, **more):
    sizes = case.sizes(8)
    return {
        "rate": "100mbit",
        "workers": 8,
        "system": system,
        "times_ms": times,
        "first_ms": [9.0],
        "wrong": 0,
        "count": case.count,
        "pattern": case.pattern,
        "overlap": case.overlap,
        "density": case.density,
        **sizes,
        "model": sparse_inputs.model_bytes(case, sizes, 8),
        "run": {},
        "sparse_sent_elements": sizes["union"],
        "sparse_index_bytes": sizes["index_bits"] / 4,
        **more,
    }


def test_the_tables():
    dense, sparse = Case("element", "random", 1, COUNT), Case("zipf", "random", 0.01, COUNT)
    found = [
        record("gloo-dense", [200.0, 220.0, 210.0], dense),
        record("netsum-auto", [100.0], dense),
        record("netsum-auto", [10.0, 12.0, 11.0], sparse),
        record("netsum-on", [5.0], sparse, cpu_ms=7.0, cores=2),
        record("netsum-dense", [100.0], sparse),
        record("gloo-coo", [55.0], sparse, wrong=3),
        {"rate": "100mbit", "workers": 8, "left_out": "openmpi", "failed": "no mpicc", "run": {}},
    ]
    first, second = rows_of(tables.table(found))
    assert first["Gloo dense, ms"] == "210 [202 - 218]" and first["x Gloo dense"] == "2.1"
    # What does not depend on the tensor's contents is in every row.
    assert second["Gloo dense, ms"] == "210 [202 - 218]" and second["x Gloo dense"] == "19.1"
    assert second["Gloo COO, ms"] == "55.0 [55.0 - 55.0] WRONG" and second["Open MPI dense, ms"] == ""
    bound = found[2]["model"]["netsum"] * 8e3 / 1e8 * report.NETSUM_FRAME
    assert float(second["bound, ms"]) == pytest.approx(bound, rel=0.01)
    assert float(second["over the bound"]) == pytest.approx(11 / bound, abs=0.01)
    [line] = [line for line in tables.index_table(found).splitlines() if "zipf" in line]
    assert "0.050" in line and "0.110" in line, "the modes beside the dense all-reduce"
    assert line.endswith("| 3.50 |"), "the processor time, divided by the cores"
    [plot] = tables.plots(found)
    assert [plot] == list(tables.plots(found)) and "Gloo, COO" in plot
