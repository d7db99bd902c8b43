"""Tests of the benchmark of verified sums: what it makes of reports, its table, and a small run."""

from bench_harness import run_module
from netsum_bench import records, verify_bench


def report(cpu, packets, aggregator):
    rank = {"packets_sent": packets, "packets_received": packets, "cpu_seconds": cpu, "retransmissions": 3}
    return {
        "ranks": [rank, rank],
        "aggregator_cpu_seconds": aggregator,
        "results_wrong": 0,
        "time_us": {"median": 2500},
    }


def test_a_measurement_counts_the_warm_up_of_the_aggregator_alone():
    found = verify_bench.measurement(report(0.5, 1000, 0.06), iterations=5)
    assert found["ranks_cpu_ms"] == 200
    assert found["packets"] == 800
    assert round(found["aggregator_ns"]) == 12500  # 4000 packets timed, 800 of the warm-up
    assert (found["time_ms"], found["wrong"], found["resent"]) == (2.5, 0, 1.2)


def measured(mode, number, ranks, aggregator):
    place = {"workers": 8, "bytes": 16 << 20, "mode": mode, "round": number}
    return {**place, "ranks_cpu_ms": ranks, "aggregator_ns": aggregator, "packets": 100, "time_ms": 50}


def test_ratios_are_those_of_the_same_round():
    found = [measured("packet", n, 100.0 * (n + 1), 1000.0) for n in range(3)]
    found += [measured("sum", n, 110.0 * (n + 1), 800.0) for n in range(3)]
    found += [{"workers": 8, "bytes": 16 << 20, "mode": "both", "round": 0, "failed": "no end"}]
    packet, by_sum = verify_bench.table(found).splitlines()[2:]
    assert packet.startswith("| 8 ranks, 16 MiB, `packet` | 200 (100 - 300) |  | 1000 ")
    assert "| 220 (110 - 330) | +10 (+10 - +10) % | 800 (800 - 800) | -20 (-20 - -20) % |" in by_sum


def test_a_small_run(tmp_path):
    output = tmp_path / "verify.jsonl"
    small = ("--workers", 2, "--size", "256Ki", "--iterations", 2, "--rounds", 1)
    run = run_module("verify_bench", *small, "--output", output)
    assert run.returncode == 0, run.stdout + run.stderr
    found = records.load(output)
    assert {record["mode"] for record in found} == set(verify_bench.MODES)
    assert all(r["wrong"] == 0 and r["ranks_cpu_ms"] > 0 and r["aggregator_ns"] > 0 for r in found)
