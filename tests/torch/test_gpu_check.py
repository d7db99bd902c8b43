"""scripts/gpu_check.py, which is for a machine with a GPU, with the tests' accelerator."""

import json
import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/gpu_check.py"


@pytest.mark.parametrize("collectives", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_part_of_it(tmp_path, collectives):
    out = tmp_path / "gpu.json"
    whole = (
        ("collectives", "sparse and compressed", "sums: netsum, 4 hosts", "losses: netsum, 2 hosts")
        if collectives
        else ()
    )
    sections = (*whole, "rates: netsum, segments", "rates: Gloo", "losses: NCCL, sockets, 2 hosts")
    only = [part for section in sections for part in ("--only", section)]
    command = [sys.executable, SCRIPT, "--device", "mock", "--out", out, "--seconds", "200", *only]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert figures["failed"] == {}
    assert done.returncode == 0
    if collectives:
        assert figures["measured"]["collectives"]["compared"] == 5 * 2 * 8
        assert figures["measured"]["sums: netsum, 4 hosts"]["compared"] == (5 * 5 + 1) * 2
        first, *_, last = figures["measured"]["losses: netsum, 2 hosts"]["losses"]
        assert last < first
        assert figures["measured"]["sparse and compressed"]["compared"] == 4
    assert figures["measured"]["rates: netsum, segments"].keys() == {"1 MiB", "4 MiB"}
    assert "not measured: rates: Gloo: Gloo takes no tensors of mock" in done.stderr
    assert "not measured: losses: NCCL, sockets, 2 hosts: there is no CUDA here" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "missing/gpu.json"], "missing/gpu.json"),
        (["--seconds", "-1"], "must be positive"),
        (["--only", "rates"], "there is no section 'rates'; choose from: collectives; "),
        (["--device", "cuda:1"], "a type without a number"),
    ],
)
def test_wrong_options_are_refused_before_anything_runs(options, words, tmp_path):
    command = [sys.executable, SCRIPT, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""
