"""The benchmark of DDP hooks: its table, and a small real run."""

from bench_harness import needs_package, run_module
from netsum_bench import hooks_bench, records


def record(load, method, hook, step_ms):
    return {"workers": 4, "load": load, "method": method, "hook": hook, "step_ms": step_ms}


FOUND = [
    record("quiet", "bf16", "Python", [30.0] * 8 + [300.0] * 2),
    record("quiet", "bf16", "C++", [20.0] * 10),
    record("busy", "bf16", "Python", [100.0] * 10),
    record("busy", "bf16", "C++", [40.0] * 10),
    record("busy", "int8", "C++", [40.0] * 10),  # the other hook has failed
    {"workers": 4, "failed": "it hung"},
]


def test_both_hooks_are_beside_each_other():
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in hooks_bench.table(FOUND).splitlines()[2:]]
    assert rows == [
        ["nothing", "bf16", "30.0 (30.0 - 300)", "20.0 (20.0 - 20.0)", "1.50"],
        ["Python", "bf16", "100 (100 - 100)", "40.0 (40.0 - 40.0)", "2.50"],
    ]
    assert "Nothing to compare" in hooks_bench.table(FOUND[-1:])


@needs_package
def test_a_small_run(tmp_path):
    output = tmp_path / "hooks.jsonl"
    done = run_module("hooks_bench", "--workers", 2, "--steps", 5, "--methods", "bf16", "--output", output)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {(r["load"], r["hook"]): r["step_ms"] for r in records.load(output)}
    assert set(found) == {(load, hook) for load in hooks_bench.LOADS for hook in hooks_bench.HOOKS}
    assert all(len(times) == 5 and min(times) > 0 for times in found.values())
