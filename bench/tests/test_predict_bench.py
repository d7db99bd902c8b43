"""Tests of the benchmark of predicted scales: its table, and a small run."""

from bench_harness import run_module
from netsum_bench import predict_bench, records


def measured(data, predict, number, time_us, cpu_ms):
    place = {"workers": 4, "bytes": 64 << 10, "data": data, "predict": predict, "round": number}
    return {**place, "time_us": time_us, "cpu_ms": cpu_ms, "predicted": 46.0, "mispredicted": 1.0}


def test_ratios_are_those_of_the_same_round():
    found = [measured("steady", False, n, 1000.0 * (n + 1), 10.0) for n in range(3)]
    found += [measured("steady", True, n, 800.0 * (n + 1), 11.0) for n in range(3)]
    found += [measured("normal", True, 0, 500.0, 1.0)]  # alone: nothing to compare with
    (row,) = predict_bench.table(found).splitlines()[2:]
    assert row.startswith("| 4 ranks, 64 KiB, steady | 46.0, 1.00 | 2 (1 - 3) | 1.6 (0.8 - 2.4) |")
    assert row.endswith("| -20 (-20 - -20) % | +10 (+10 - +10) % |")


def test_a_small_run(tmp_path):
    output = tmp_path / "predict.jsonl"
    small = ("--workers", 2, "--sizes", "64Ki", "--rounds", 1)
    run = run_module("predict_bench", *small, "--output", output)
    assert run.returncode == 0, run.stdout + run.stderr
    found = {(record["data"], record["predict"]): record for record in records.load(output)}
    assert len(found) == 6
    assert all(record["wrong"] == 0 and record["time_us"] > 0 for record in found.values())
    assert all((record["predicted"] > 0) == (predict and data != "varied") for (data, predict), record in found.items())
    steady, normal = found["steady", True], found["normal", True]
    assert steady["mispredicted"] == 0 < steady["predicted"]
    assert normal["predicted"] < steady["predicted"]
