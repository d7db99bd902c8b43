"""The rack benchmark itself: its arithmetic, and one small real run."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import loss_bench  # noqa: E402  (beside this file)
import rack_report  # noqa: E402
import training_bench  # noqa: E402

NETSUM = HERE.parents[1] / "build/release/tools/netsum/netsum"


def record(system, median_s, number=0, **more):
    return {"system": system, "workers": 8, "rate": "100mbit", "bytes": 1 << 20, "round": number, "median_s": median_s,
            "p99_s": 2 * median_s, "cpu_seconds_per_rank": 0.001, "switch_cpu_seconds": 0.002, "wrong": 0,
            "link_bytes_up": 2 << 20, "link_bytes_down": 1 << 20, **more}


def test_rows_are_medians_and_ratios():
    records = [{"machine": "m", "date": "d", "command": "c"}]
    records += [record("netsum-user", t, n) for n, t in enumerate((0.1, 0.5, 0.2))]
    records += [record("gloo", t, n) for n, t in enumerate((0.4, 0.3, 0.5))]
    ours, gloo = rack_report.rows(records)
    assert (ours["median_s"], ours["low_s"], ours["high_s"]) == (0.2, 0.1, 0.5)
    assert ours["over_gloo"] == pytest.approx(2) and gloo["over_gloo"] == 1 and ours["over_openmpi"] is None
    assert ours["bandwidth"] == pytest.approx((8 << 20) / 0.2)
    assert ours["share"] == pytest.approx((8 << 20) / 0.2 / 1e8)
    line = rack_report.table(records).splitlines()[1].split()
    assert line[0:2] == ["100mbit", "8"] and "2.000" in line


def test_page_holds_everything(tmp_path):
    records = [{"machine": "<machine>", "date": "d", "command": "c"}, record("netsum-xdp", 0.1), record("gloo", 0.2),
               {"system": "openmpi", "workers": 8, "rate": "100mbit", "bytes": 1, "round": 0, "failed": "why"}]
    page = rack_report.write_html(records, tmp_path / "report.html").read_text(encoding="utf-8")
    assert "&lt;machine&gt;" in page and "netsum-xdp" in page and "why" in page and page.count("<img") == 2
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_bad_arguments():
    refused = subprocess.run([sys.executable, HERE / "bench.py", "--systems", "nccl"], capture_output=True, text=True,
                             check=False)
    assert refused.returncode == 2 and "unknown system nccl" in refused.stderr
    refused = subprocess.run([sys.executable, HERE / "bench.py", "--netsum", "/nonexistent"], capture_output=True,
                             text=True, check=False)
    assert refused.returncode == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="virtual racks need root")
def test_a_small_run(tmp_path):
    assert NETSUM.exists()
    run = subprocess.run([sys.executable, HERE / "bench.py", "--workers", "2", "--rates", "1gbit", "--sizes", "4Ki",
                          "--rounds", "1", "--output", tmp_path], capture_output=True, text=True, timeout=240,
                         check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {r["system"] for r in records[1:]} == {"netsum-user", "netsum-xdp", "netsum-user-bfloat16", "gloo", "openmpi"}
    assert all(r["wrong"] == 0 and r["median_s"] > 0 and r["link_bytes_up"] > 4096 for r in records[1:]
               if r["system"] != "netsum-user-bfloat16")
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "netsum-bench" not in left


def training(system, median_ms, **more):
    return {"system": system, "model": "digits", "place": "rack", "workers": 4, "rate": "100mbit", "losses": [2.0, 1.0] * 5,
            "step_ms": {"median": median_ms, "low": median_ms - 1, "high": median_ms + 1}, "held_out_loss": 0.5,
            "allreduce_ms": {"median": median_ms / 2, "low": 0, "high": 0}, "accuracy_percent": 90.0,
            "sent_per_gradient_byte": 1.05, **more}


def test_training_rows_are_medians_and_ratios():
    records = [{"machine": "m"}, training("gloo", 30), training("netsum-xdp", 10), training("gloo", 40),
               training("netsum-xdp", 20), training("netsum-xdp", 30)]
    gloo, ours = training_bench.rows(records)
    assert (gloo["step_ms"], gloo["low_ms"], gloo["high_ms"]) == (35, 29, 41)
    assert ours["speed_up"] == pytest.approx(1.75) and ours["allreduce_ms"] == 10 and gloo["speed_up"] == 1
    assert gloo["agrees"] and ours["agrees"]
    assert "| digits | 4 | 100mbit | netsum-xdp | 20.0 | 9.0 - 31.0 | 1.75 |" in training_bench.table(records)


@pytest.mark.parametrize("field, value", [("losses", [3.0, 2.0] * 5), ("held_out_loss", 0.6), ("accuracy_percent", 88)])
def test_trainings_that_differ_are_told(field, value):
    records = [training("gloo", 30), training("netsum-xdp", 10, **{field: value})]
    assert [row["agrees"] for row in training_bench.rows(records)] == [True, False]
    assert "NO" in training_bench.table(records)


@pytest.mark.skipif(os.geteuid() != 0, reason="virtual racks need root")
def test_a_small_run_of_trainings(tmp_path):
    run = subprocess.run([sys.executable, HERE / "training_bench.py", "--workers", "2", "--rates", "1gbit", "--models",
                          "digits", "--steps", "6", "--rounds", "1", "--systems", "gloo,netsum-xdp", "--output", tmp_path],
                         capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [r["system"] for r in records[1:]] == ["gloo", "netsum-xdp"] and "cores" in records[0]["machine"]
    assert "xdp" in records[2]["where"] and all(r["step_ms"]["median"] > 0 for r in records[1:])
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "netsum-train" not in left


def lossy(system, loss, median_s, number=0, **more):
    return {"system": system, "loss": loss, "round": number, "median_s": median_s, "wrong": 0, "packets_passed": 990,
            "packets_lost": 10, **more}


def test_goodput_with_loss_is_relative_to_the_same_round(tmp_path):
    records = [{"machine": "m", "date": "d", "command": "c"}]
    records += [lossy("gloo", 0.0, t, n) for n, t in enumerate((1.0, 2.0, 4.0))]
    records += [lossy("gloo", 0.01, t, n) for n, t in enumerate((2.0, 8.0, 8.0))]
    records += [{"system": "gloo", "loss": 0.05, "round": 0, "failed": "no end"}]
    none, one, five = loss_bench.rows(records)
    assert none["relative"] == 1 and (one["relative"], one["relative_low"], one["relative_high"]) == (0.5, 0.25, 0.5)
    assert one["lost_share"] == 0.01 and (five["rounds"], five["failed"], five["median_s"]) == (0, 1, None)
    assert "| 1 % | gloo | 8000 [2000 - 8000] | 0.500 [0.250 - 0.500] | 30 (1.000%) | 0 | 0 |" in loss_bench.table(records)
    page = loss_bench.write_html(records, tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<img") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="virtual racks need root")
def test_a_small_run_with_loss(tmp_path):
    run = subprocess.run([sys.executable, HERE / "loss_bench.py", "--workers", "2", "--rate", "200mbit", "--size", "2Mi",
                          "--losses", "0,1%", "--rounds", "1", "--output", tmp_path], capture_output=True, text=True,
                         timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text(encoding="utf-8").splitlines()][1:]
    assert {(r["system"], r["loss"]) for r in records} == {(s, l) for s in loss_bench.SYSTEMS for l in (0.0, 0.01)}
    assert all((r["packets_lost"] > 0) == (r["loss"] > 0) and r["wrong"] == 0 for r in records)
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "netsum-loss" not in left


def test_ranks_on_one_host(tmp_path):
    assert NETSUM.exists()
    output = tmp_path / "one_host.jsonl"
    run = subprocess.run([sys.executable, HERE / "one_host.py", "--workers", "2", "--sizes", "4Ki,1Mi", "--rounds", "1",
                          "--output", output], capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "times as fast" in run.stdout and len(run.stdout.splitlines()) == 6
    records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [(r["system"], r["bytes"]) for r in records] == [("netsum", 4096), ("gloo", 4096), ("netsum", 1 << 20),
                                                            ("gloo", 1 << 20)]
    assert all(r["median_s"] > 0 and r["workers"] == 2 for r in records)
    refused = subprocess.run([sys.executable, HERE / "one_host.py", "--netsum", "/nonexistent"], capture_output=True,
                             text=True, check=False)
    assert refused.returncode == 3 and "make build" in refused.stderr
