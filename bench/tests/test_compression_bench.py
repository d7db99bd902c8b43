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
    assert text.startswith("#### digits, 4 workers, links of 100 Mbit/s")
    rows = {
        row[0]: dict(zip(compression_report.HEADINGS, row, strict=True)) for row in map(cells, text.splitlines()[4:])
    }
    assert set(rows) == {"netsum", "netsum-topk-1%", "gloo"}
    assert rows["netsum"]["loss, equal steps"] == "2.100 (2.000 - 2.200)" == rows["netsum"]["loss, equal time"]
    # In the 4 s that netsum needs, topk has trained 8 steps, and Gloo 2.
    assert rows["netsum-topk-1%"]["loss, equal steps"].startswith("2.500")
    assert rows["netsum-topk-1%"]["loss, equal time"].startswith("1.000")
    assert rows["gloo"]["loss, equal time"].startswith("3.000")
    assert (rows["netsum-topk-1%"]["speed-up"], rows["gloo"]["speed-up"]) == ("2.00", "0.50")
    assert (rows["netsum-topk-1%"]["encode ms"], rows["gloo"]["encode ms"]) == ("12.0", "")
    assert rows["gloo"]["sent B/B"] == "0.250"
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


class Clock:
    """A run of which so many seconds are left."""

    def __init__(self, left):
        self.left = left

    def fits(self, seconds):
        return seconds <= self.left


def test_rounds_that_do_not_fit_are_left_out():
    clock = Clock(100)
    plan = compression_bench.Plan(clock)
    assert plan.admits("lm"), "nothing is known of it"
    plan.took("lm", 60)
    plan.took("digits", 20)
    clock.left = 40
    assert not plan.admits("lm") and plan.admits("digits")
    clock.left = -1
    assert not plan.admits("recommender")


def test_a_small_budget_has_fewer_steps():
    options = lambda **more: argparse.Namespace(**{"steps": None, "budget": None, **more})
    assert compression_bench.steps_of(options(), "lm") == compression_bench.STEPS["lm"]
    assert compression_bench.steps_of(options(budget=60.0), "lm") == compression_bench.STEPS["lm"]
    assert compression_bench.steps_of(options(budget=30.0), "lm") < compression_bench.STEPS["lm"]
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
        *("--models", "digits", "--workers", 2, "--rates", "none", "--seeds", 1, "--steps", 24),
        *("--systems", systems, "--output", output),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {r["system"]: r for r in records.load(output)}
    assert list(found) == systems.split(",")
    for one in found.values():
        assert {2, 24, one["steps_in_all"]} <= {point["step"] for point in one["curve"]}
        assert 24 <= one["steps_in_all"] <= 96
        losses = [point["loss"] for point in one["curve"]]
        assert losses[-1] < losses[0], "it learns"
        assert one["reduction_ms"]["median"] > 0
    plain, fp16, topk = (found[s]["sent_bytes_per_step"] for s in ("netsum", "netsum-fp16", "netsum-topk-1%"))
    assert topk < fp16 < 0.7 * plain
    assert found["netsum-topk-1%"]["encode_ms"] > 0 and found["netsum-topk-1%"]["decode_ms"] > 0
    assert "| netsum-topk-1% | 1 |" in done.stdout
    assert output.with_suffix(".svg").exists()
