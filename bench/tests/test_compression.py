"""The case of compression: its turns, its tables and its plot."""

from bench_harness import cells
from netsum_bench.cases import CASES
from netsum_bench.labs import training
from netsum_bench.report import NOTHING
from netsum_bench.tables import compression


def record(system, step_s, losses, seed=1, **more):
    """Evaluated after every other of at least 4 steps."""
    curve = [
        {"step": 2 * i, "s": 2 * i * step_s, "loss": loss, "accuracy_percent": 100 - 10 * loss}
        for i, loss in enumerate(losses, start=1)
    ]
    return {
        "system": system,
        "model": "digits",
        "workers": 4,
        "rate": "100mbit",
        "seed": seed,
        "steps": 4,
        "parameters": 1000,
        "step_ms": {"median": 1000 * step_s, "low": 0, "high": 0},
        "reduction_ms": {"median": 500 * step_s, "low": 0, "high": 0},
        "sent_bytes_per_step": 1000,
        "curve": curve,
        "run": {},
        **more,
    }


def test_losses_after_equal_steps_and_after_equal_time():
    found = [
        record("netsum", 1.0, [3.0, 2.0]),
        record("netsum", 1.0, [3.0, 2.2], seed=2),
        record("netsum-topk-1%", 0.5, [3.5, 2.5, 1.5, 1.0], encode_ms=12.0, decode_ms=3.0),
        record("gloo", 2.0, [3.0, 2.0]),
        {"system": "gloo-powersgd", "model": "digits", "workers": 4, "rate": "100mbit", "seed": 1, "failed": "it hung"},
    ]
    text = compression.table(found)
    assert text.startswith("#### digits, 0.00 million parameters, 4 workers, links of 100 Mbit/s, 4 steps")
    rows = {
        row[0]: dict(zip(compression.HEADINGS, row, strict=True))
        for row in map(cells, text.partition("\n\nFailed")[0].splitlines()[4:])
    }
    assert "digits, 4 workers, links of 100 Mbit/s, seed 1, gloo-powersgd: it hung" in text
    assert set(rows) == {"netsum", "netsum-topk-1%", "gloo"}
    assert rows["netsum"]["loss, equal steps"] == "2.100 (2.000 - 2.200)" == rows["netsum"]["loss, equal time"]
    # In the 4 s that netsum needs, topk has trained 8 steps, and Gloo 2.
    assert rows["netsum-topk-1%"]["loss, equal steps"].startswith("2.500")
    assert rows["netsum-topk-1%"]["loss, equal time"].startswith("1.000")
    assert rows["gloo"]["loss, equal time"].startswith("3.000")
    assert (rows["netsum-topk-1%"]["speed-up"], rows["gloo"]["speed-up"]) == ("2.00", "0.50")
    assert (rows["netsum-topk-1%"]["encode ms"], rows["gloo"]["encode ms"]) == ("12.0", "")
    assert rows["gloo"]["sent B/B"] == "0.250"
    # The base's losses are 0.2 apart.
    verdicts = {system: row["within noise"] for system, row in rows.items()}
    assert verdicts == {"netsum": "yes", "netsum-topk-1%": "NO", "gloo": "yes"}
    # The base has 2.0 after its 4 s, and 2.2 with the other seed.
    to_loss = {system: row["s to the loss of netsum"] for system, row in rows.items()}
    assert to_loss == {"netsum": "4.00", "netsum-topk-1%": "3.00", "gloo": "8.00"}


def test_a_loss_that_not_all_seeds_reach():
    base = [record("netsum", 1.0, [3.0, 2.0]), record("netsum", 1.0, [3.0, 2.5], seed=2)]
    slow = [record("gloo", 2.0, [3.0, 2.4]), record("gloo", 2.0, [3.0, 2.4], seed=2)]
    last = [cells(line)[-1] for line in compression.table([*base, *slow]).splitlines()[4:]]
    assert last == ["4.00", "8.00 (1 of 2)"]
    last = [cells(line)[-1] for line in compression.table([base[0], slow[0]]).splitlines()[4:]]
    assert last == ["4.00", "not reached"]


def test_other_numbers_of_steps_are_another_table():
    longer = {**record("gloo", 1.0, [3.0, 2.0, 1.0]), "steps": 6}
    text = compression.table([record("netsum", 1.0, [3.0, 2.0]), longer])
    assert text.count("####") == 2 and ", 6 steps" in text


def test_what_pays_is_advised():
    base = record("netsum", 1.0, [3.0, 2.0])
    gain = record("netsum-lanes8", 0.5, [3.0, 2.0])
    coarse = record("netsum-topk-1%", 0.2, [4.0, 3.0, 2.5, 2.0])
    slow = record("netsum-natural", 1.0, [3.0, 1.999])
    rows = compression.choice([base, gain, coarse, record("gloo", 0.1, [3.0, 2.0])]).splitlines()[2:]
    assert [cells(row)[1:] for row in rows] == [
        ["`netsum-topk-1%`", "netsum-topk-1%", "2.50", "netsum-lanes8", "2.00", "netsum-topk-1%", "5.00", "0.10"]
    ]
    [row] = compression.choice([base, slow]).splitlines()[2:]
    assert cells(row)[1] == "none", "that is no sooner"


def test_reductions_against_uncompressed_ones():
    def of(system, ms, sent, **more):
        spread = {"median": ms, "low": ms, "high": ms}
        place = {"model": "generated", "workers": 8, "rate": "100mbit", "seed": 1, "parameters": 1 << 20}
        return {**place, "system": system, "reduction_ms": spread, "reduction_bytes": sent, **more}

    plain = {"encode_ms": None, "decode_ms": None}
    found = [
        of("netsum", 400.0, 4 << 20, **plain),
        of("gloo", 800.0, 7 << 20, **plain),
        of("netsum-lanes8", 100.0, 1 << 20, encode_ms=3.0, decode_ms=2.0),
    ]
    text = compression.reductions(found)
    assert text.startswith("#### 4 MiB of generated gradients, 8 workers, links of 100 Mbit/s")
    lanes8 = cells(text.splitlines()[-1])
    assert lanes8 == ["netsum-lanes8", "0.250", "4.00", "3.00", "2.00", "100 (100 - 100)", "4.00", "8.00"]
    assert compression.table(found) == NOTHING


def test_what_was_left_out_is_named_until_it_has_been_measured():
    names = lambda system: {"rate": "none", "workers": 8, "model": "digits", "seed": 2, "system": system}
    left_out = {"left_out": [names("netsum-int4"), names("netsum-thc")], "run": {}}
    text = compression.table([record("netsum", 1.0, [3.0, 2.0]), left_out])
    assert text.endswith("- digits, 8 workers, unshaped links, seed 2: 2 systems")
    later = {**record("netsum-int4", 1.0, [3.0, 2.0]), **names("netsum-int4")}
    text = compression.table([record("netsum", 1.0, [3.0, 2.0]), left_out, later])
    assert text.endswith("seed 2: netsum-thc")


def turns(**more):
    return training.compression_turns(
        {**CASES["compression"].axes, "rate": ["100mbit", "none"], "seed": [1, 2], **more}
    )


def test_what_matters_most_is_measured_first():
    found = turns()
    names = [tuple(turn.values()) for turn in found]
    assert len(names) == len(set(names))
    first = found[: len(training.CORE) - 1]  # without the recommender's own
    assert {(t["workers"], t["rate"], t["model"]) for t in first} == {(8, "100mbit", "generated")}
    systems = {t["system"] for t in first}
    assert {"netsum", "gloo", "netsum-lanes8", "netsum-topk-0.1%", "netsum-dgc-1%", "netsum-sidco-1%"} <= systems
    in_place = {}
    for t in found:
        in_place.setdefault((t["workers"], t["rate"], t["model"], t["seed"]), []).append(t["system"])
    assert all(systems[0] == "netsum" for systems in in_place.values()), "the others get its time"
    assert len(in_place) == 2 * 2 * (3 * 2 + 1)
    for (*_, model, _), systems in in_place.items():
        assert set(systems) == {s for s in training.COMPRESSED if training.compresses(s, model)}


def test_only_what_is_asked_for():
    few = turns(workers=[2], model=["lm"], system=["netsum", "netsum-dgc-1%", "gloo"])
    assert {(t["workers"], t["model"], t["system"]) for t in few} == {(2, "lm", "netsum"), (2, "lm", "gloo")}


def test_a_small_budget_has_fewer_steps():
    def steps(budget, of=0):
        turn = {"system": "netsum", "model": "lm", "seed": 1, "steps": of}
        return training.compressed_task(turn, budget, None)["steps"]

    assert steps(None) == steps(60.0) == training.COMPRESSED_STEPS["lm"]
    assert steps(30.0) == training.SHORT_STEPS["lm"] and steps(30.0, 50) == 50
    assert training.is_short(30.0) and not training.is_short(None)


def test_the_plot_has_every_system():
    [plot] = compression.plots([record("netsum", 1.0, [3.0, 2.0]), record("gloo", 2.0, [3.0, 2.0])])
    assert "gloo" in plot and "digits, 4 workers" in plot


def test_the_time_of_the_others_is_that_of_the_base():
    base = record("netsum", 1.0, [3.0, 2.0, 1.9])
    assert training.base_seconds([base], {**base, "system": "gloo"}) == 4.0
    assert training.base_seconds([base], {**base, "seed": 2}) is None
