"""The benchmark of the controller of compression: its table and plot, and a small real run."""

from bench_harness import needs_package, needs_root, run_module
from netsum_bench import controller_bench, controller_report, records


def record(system, phase, rate, step_ms):
    return {"system": system, "phase": phase, "rate": rate, "workers": 4, "steps": len(step_ms), "step_ms": step_ms}


FOUND = [
    record("none", 0, "1gbit", [10.0] * 30),
    record("topk 1 %", 0, "1gbit", [15.0] * 30),
    record("auto", 0, "1gbit", [10.0] * 30),
    record("none", 1, "100mbit", [100.0] * 30),
    record("topk 1 %", 1, "100mbit", [20.0] * 30),
    record("auto", 1, "100mbit", [100.0] * 3 + [20.0] * 27),
    {"system": "int8", "failed": "it hung"},
]


def test_the_best_level_of_each_phase_is_that_of_hindsight():
    of_two = [{**found, "workers": 2} for found in FOUND[:3]]
    two, four = controller_report.table(FOUND + of_two).split("#### ")[1:]
    assert two.startswith("2 workers") and "100 Mbit/s" not in two
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in four.splitlines() if line.startswith("|")]
    assert rows[2][4:] == ["none", "1.00", "1.00"]
    assert rows[3][4:] == ["topk 1 %", "1.40", "0.20"]
    # 300 + 840 ms, where 300 + 600 are possible.
    assert rows[4][0] == "all phases" and rows[4][5] == "1.27"


def test_the_plot_has_every_system(tmp_path):
    path = tmp_path / "controller.svg"
    controller_report.write_plot(FOUND, path)
    assert "topk 1 %" in path.read_text() and "100mbit" in path.read_text()


@needs_root
@needs_package
def test_a_quick_run(tmp_path):
    output = tmp_path / "controller.jsonl"
    done = run_module("controller_bench", "--quick", "--output", output)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {(r["phase"], r["system"]): r for r in records.load(output)}
    assert set(found) == {(phase, system) for phase in (0, 1) for system in controller_bench.SYSTEMS}
    for (_, system), one in found.items():
        assert len(one["step_ms"]) == controller_bench.QUICK["steps"] and min(one["step_ms"]) > 0
        assert (one["controller"] is not None) == (system == "auto")
    assert found[1, "auto"]["controller"]["steps"] >= 50
    assert "| all phases |" in done.stdout
