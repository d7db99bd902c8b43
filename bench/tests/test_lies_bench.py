"""Tests of the benchmark of lies: how it adds up, its table, a small run, and one that fails."""

import pathlib

from bench_harness import run_module
from netsum_bench import lies_bench, records


def test_counts_are_added_by_name():
    one = {"told": {"zeros": 1, "noise": 2}, "runs": 10}
    assert lies_bench.add({}, one) == one
    assert lies_bench.add(one, one) == {"told": {"zeros": 2, "noise": 4}, "runs": 20}


def test_a_small_run_and_its_table(tmp_path):
    output = tmp_path / "lies.jsonl"
    run = run_module("lies_bench", "--runs", 300, "--piece", 200, "--seed", 5, "--jobs", 2, "--output", output)
    assert run.returncode == 0, run.stdout + run.stderr
    first, last = records.load(output)
    assert (first["runs"], last["runs"]) == (200, 300)
    assert last["runs_reached"] + last["runs_without"] == 300
    assert last["refused"] > 100
    assert last["told_upwards"] > 50
    assert last["runs_upwards"] > 10
    assert last["runs_switches"] > 10
    assert (last["wrong_delivered"], last["false_alarms"]) == (0, 0)
    lines = lies_bench.table([first, last]).splitlines()
    assert "| runs | 300 |" in lines
    assert "| **wrong sums delivered** | 0 |" in lines
    assert any(line.startswith("| - zeros |") for line in lines)
    assert f"| runs in which a rack lied to its parent | {last['runs_upwards']} |" in lines


def test_a_run_that_fails_says_so_and_leaves_no_record(tmp_path):
    wrong = pathlib.Path(tmp_path / "netsum")
    wrong.write_text("#!/bin/sh\necho '{}'\necho 'WRONG, with seed 7'\nexit 1\n", encoding="utf-8")
    wrong.chmod(0o755)
    output = tmp_path / "lies.jsonl"
    run = run_module("lies_bench", "--netsum", wrong, "--runs", 10, "--output", output)
    assert run.returncode == 1
    assert "WRONG, with seed 7" in run.stdout
    assert not output.exists()
