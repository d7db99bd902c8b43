"""The benchmark of compression: its table and plot, and a small real run."""

import argparse

from bench_harness import needs_package, needs_root, run_module
from netsum_bench import compression_bench, compression_report, records


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


def cells(line):
    return [cell.strip() for cell in line.split("|")][1:-1]


def test_losses_after_equal_steps_and_after_equal_time():
    found = [
        record("netsum", 1.0, [3.0, 2.0]),
        record("netsum", 1.0, [3.0, 2.2], seed=2),
        record("netsum-topk-1%", 0.5, [3.5, 2.5, 1.5, 1.0], encode_ms=12.0, decode_ms=3.0),
        record("gloo", 2.0, [3.0, 2.0]),
        {"system": "gloo-powersgd", "model": "digits", "workers": 4, "rate": "100mbit", "seed": 1, "failed": "it hung"},
    ]
    text = compression_report.table(found)
    assert text.startswith("#### digits, 0.00 million parameters, 4 workers, links of 100 Mbit/s, 4 steps")
    rows = {
        row[0]: dict(zip(compression_report.HEADINGS, row, strict=True))
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
    last = [cells(line)[-1] for line in compression_report.table([*base, *slow]).splitlines()[4:]]
    assert last == ["4.00", "8.00 (1 of 2)"]
    last = [cells(line)[-1] for line in compression_report.table([base[0], slow[0]]).splitlines()[4:]]
    assert last == ["4.00", "not reached"]


def test_other_numbers_of_steps_are_another_table():
    longer = {**record("gloo", 1.0, [3.0, 2.0, 1.0]), "steps": 6}
    text = compression_report.table([record("netsum", 1.0, [3.0, 2.0]), longer])
    assert text.count("####") == 2 and ", 6 steps" in text


def test_what_pays_is_advised():
    base = record("netsum", 1.0, [3.0, 2.0])
    gain = record("netsum-lanes8", 0.5, [3.0, 2.0])
    coarse = record("netsum-topk-1%", 0.2, [4.0, 3.0, 2.5, 2.0])
    slow = record("netsum-natural", 1.0, [3.0, 1.999])
    rows = compression_report.choice([base, gain, coarse, record("gloo", 0.1, [3.0, 2.0])]).splitlines()[2:]
    assert [cells(row)[1:] for row in rows] == [
        ["`netsum-topk-1%`", "netsum-topk-1%", "2.50", "netsum-lanes8", "2.00", "netsum-topk-1%", "5.00", "0.10"]
    ]
    [row] = compression_report.choice([base, slow]).splitlines()[2:]
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
    text = compression_report.reductions(found)
    assert text.startswith("#### 4 MiB of generated gradients, 8 workers, links of 100 Mbit/s")
    lanes8 = cells(text.splitlines()[-1])
    assert lanes8 == ["netsum-lanes8", "0.250", "4.00", "3.00", "2.00", "100 (100 - 100)", "4.00", "8.00"]
    assert compression_report.table(found) == "*Nothing to compare yet.*"


def test_what_was_left_out_is_named_until_it_has_been_measured():
    names = lambda system: {"rate": "none", "workers": 8, "model": "digits", "seed": 2, "system": system}
    left_out = {"left_out": [names("netsum-int4"), names("netsum-thc")], "run": {}}
    text = compression_report.table([record("netsum", 1.0, [3.0, 2.0]), left_out])
    assert text.endswith("- digits, 8 workers, unshaped links, seed 2: 2 systems")
    later = {**record("netsum-int4", 1.0, [3.0, 2.0]), **names("netsum-int4")}
    text = compression_report.table([record("netsum", 1.0, [3.0, 2.0]), left_out, later])
    assert text.endswith("seed 2: netsum-thc")


def options(**more):
    default = {
        "steps": None,
        "budget": None,
        "workers": [8, 4],
        "rates": ["100mbit", "none"],
        "models": list(compression_bench.STEPS),
        "systems": list(compression_bench.SYSTEMS),
        "seeds": [1, 2],
    }
    return argparse.Namespace(**{**default, **more})


def test_what_matters_most_is_measured_first():
    cells = compression_bench.cells(options())
    assert len(cells) == len(set(cells))
    first = cells[: len(compression_bench.CORE) - 1]  # without the recommender's own
    assert {(c.workers, c.rate, c.model) for c in first} == {(8, "100mbit", "generated")}
    names = [c.system for c in first]
    assert {"netsum", "gloo", "netsum-lanes8", "netsum-topk-0.1%", "netsum-dgc-1%", "netsum-sidco-1%"} <= set(names)
    in_place = {}
    for cell in cells:
        in_place.setdefault((cell.workers, cell.rate, cell.model, cell.seed), []).append(cell.system)
    assert all(systems[0] == "netsum" for systems in in_place.values()), "the others get its time"
    assert len(in_place) == 2 * 2 * (3 * 2 + 1)
    for (*_, model, _), systems in in_place.items():
        assert set(systems) == {s for s in compression_bench.SYSTEMS if compression_bench.trains(s, model)}


def test_only_what_is_asked_for():
    few = compression_bench.cells(options(workers=[2], models=["lm"], systems=["netsum", "netsum-dgc-1%", "gloo"]))
    assert {(c.workers, c.model, c.system) for c in few} == {(2, "lm", "netsum"), (2, "lm", "gloo")}


def test_a_small_budget_has_fewer_steps():
    assert compression_bench.steps_of(options(), "lm") == compression_bench.STEPS["lm"]
    assert compression_bench.steps_of(options(budget=60.0), "lm") == compression_bench.STEPS["lm"]
    assert compression_bench.steps_of(options(budget=30.0), "lm") == compression_bench.SHORT_STEPS["lm"]
    assert compression_bench.is_short(options(budget=30.0)) and not compression_bench.is_short(options())
    assert compression_bench.steps_of(options(budget=30.0, steps=50), "lm") == 50


def test_the_plot_has_every_system(tmp_path):
    path = tmp_path / "compression.svg"
    compression_report.write_plot([record("netsum", 1.0, [3.0, 2.0]), record("gloo", 2.0, [3.0, 2.0])], path)
    assert "gloo" in path.read_text() and "digits, 4 workers" in path.read_text()


def test_the_time_of_the_others_is_that_of_the_base():
    base = record("netsum", 1.0, [3.0, 2.0, 1.9])
    assert compression_bench.base_seconds([base], {**base, "system": "gloo"}) == 4.0
    assert compression_bench.base_seconds([base], {**base, "seed": 2}) is None


def test_the_base_comes_first():
    done = run_module("compression_bench", "--systems", "gloo,netsum")
    assert done.returncode == 2 and "must begin with netsum" in done.stderr


@needs_root
@needs_package
def test_a_small_run(tmp_path):
    output = tmp_path / "compression.jsonl"
    systems = "netsum,gloo-fp16,netsum-topk-1%,netsum-fp16"
    done = run_module(
        "compression_bench",
        *("--models", "generated,digits", "--workers", 2, "--rates", "none", "--seeds", 1, "--steps", 24),
        *("--systems", systems, "--output", output),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = records.load(output)
    reduced = {r["system"]: r for r in found if r["model"] == "generated"}
    found = {r["system"]: r for r in found if r["model"] == "digits"}
    assert set(found) == set(reduced) == set(systems.split(",")) and next(iter(found)) == "netsum"
    for one in found.values():
        assert {2, 24, one["steps_in_all"]} <= {point["step"] for point in one["curve"]}
        assert 24 <= one["steps_in_all"] <= 96
        losses = [point["loss"] for point in one["curve"]]
        assert losses[-1] < losses[0], "it learns"
        assert one["reduction_ms"]["median"] > 0
    plain, fp16, topk = (found[s]["sent_bytes_per_step"] for s in ("netsum", "netsum-fp16", "netsum-topk-1%"))
    assert topk < fp16 < 0.7 * plain
    plain, fp16, topk = (reduced[s]["reduction_bytes"] for s in ("netsum", "netsum-fp16", "netsum-topk-1%"))
    assert 16 << 20 < plain < 18 << 20 and topk < 0.1 * plain < fp16 < 0.6 * plain
    for one in (reduced["netsum-topk-1%"], found["netsum-topk-1%"]):
        assert one["encode_ms"] > 0 and one["decode_ms"] > 0
    assert "| netsum-topk-1% | 1 |" in done.stdout and "16 MiB of generated gradients" in done.stdout


@needs_root
@needs_package
def test_a_spent_budget(tmp_path):
    output = tmp_path / "compression.jsonl"
    done = run_module(
        "compression_bench",
        *("--models", "recommender", "--workers", 2, "--rates", "none", "--seeds", "1,2", "--steps", 4),
        *("--systems", "netsum,netsum-sparse", "--budget", "0.001", "--output", output),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    first, rest = records.load(output)
    assert (first["system"], first["seed"], first["parameters"]) == ("netsum", 1, 50_000 * 16 + 48 * 64 + 64 + 130)
    assert [(one["system"], one["seed"]) for one in rest["left_out"]] == [
        ("netsum-sparse", 1),
        ("netsum", 2),
        ("netsum-sparse", 2),
    ]
    assert "3 of 4 left out" in done.stdout and "seed 2: 1 systems" in done.stdout
