"""The benchmark of thresholds: a small real run, and its table."""

from bench_harness import needs_package, run_module
from netsum_bench import compression_report, records


@needs_package
def test_exact_and_sampled_thresholds_pass_what_is_wanted(tmp_path):
    output = tmp_path / "thresholds.jsonl"
    flags = ("--models", "digits", "--steps", 16, "--ratios", "0.1,0.001", "--output", output)
    done = run_module("thresholds_bench", *flags, limit_s=300)
    assert done.returncode == 0, done.stderr
    found = {(r["method"], r["ratio"]): r for r in records.load(output)}
    assert len(found) == 10
    for ratio in (0.1, 0.001):
        for method in ("topk", "topk, sampled"):
            record = found[method, ratio]
            assert record["measured"] == 6 * record["layers"]
            assert record["near"] == 1 and record["least"] >= 0.95 and record["most"] <= 1.05
        # What is fitted is not what is wanted in every layer, but something is sent.
        assert found["sidco, pareto", ratio]["least"] > 0
        assert found["sidco, pareto", ratio]["least"] < found["topk", ratio]["least"]
    text = compression_report.thresholds_table(records.load(output))
    assert "| digits | 0.1 % | topk, sampled | 1.000 | 1.00 - 1.00 | 1.00 - 1.00 | 100.0 % |" in text
    assert text.index("| 10 % |") < text.index("| 0.1 % |")


def test_steps_that_do_not_count_are_refused():
    done = run_module("thresholds_bench", "--steps", 10, limit_s=300)
    assert done.returncode == 2 and "--steps must be more than 10" in done.stderr
