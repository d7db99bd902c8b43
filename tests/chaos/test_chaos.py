"""A short run of the chaos test, and its judge: what is wrong is told."""

import json
import os
import pathlib
import subprocess
import sys

import chaos
import pytest

HERE = pathlib.Path(__file__).resolve().parent

ERROR = {"of_rank": 1, "phase": "training", "netsum": True, "code": "peer_lost", "rank": 2, "text": "rank 2 is lost"}


def test_errors_that_name_a_party_pass():
    chaos.judge_errors(
        [
            ERROR,
            {**ERROR, "code": "aggregator_lost", "rank": -1, "text": "the aggregator at a:1 ..."},
            {**ERROR, "phase": "starting", "netsum": False, "code": None, "rank": None},
        ]
    )


@pytest.mark.parametrize(
    "change", [{"netsum": False}, {"code": "internal"}, {"rank": -1, "text": "something is lost"}, {"code": "overflow"}]
)
def test_other_errors_do_not(change):
    with pytest.raises(chaos.Broken):
        chaos.judge_errors([{**ERROR, **change}])


def test_other_weights_do_not_pass():
    note = {"generation": 1, "of_rank": 0, "step": 10, "digest": "a"}
    chaos.judge_weights([note], {10: "a"})
    for expected in ({10: "b"}, {}):
        with pytest.raises(chaos.Broken, match="step 10"):
            chaos.judge_weights([note], expected)


def test_bad_arguments():
    for arguments in (["--pause", "3"], ["--pause", "5,2"], ["--workers", "1"], ["--minutes", "0"]):
        refused = subprocess.run([sys.executable, HERE / "chaos.py", *arguments], capture_output=True, check=False)
        assert refused.returncode == 2, arguments


@pytest.mark.skipif(os.geteuid() != 0, reason="virtual racks need root")
@pytest.mark.parametrize(
    ("workers", "minutes", "rest_ms", "seed"),
    [
        # Without a rest, the ranks keep both cores busy, and the steps are computed once more to be compared.
        pytest.param("3", "0.3", "20", "5", id="short"),
        pytest.param(
            "4",
            "10",
            "0",
            os.environ.get("NETSUM_SIM_SEED", "5"),
            id="long",
            marks=[pytest.mark.soak, pytest.mark.timeout(2400)],
        ),
    ],
)
def test_a_run(tmp_path, workers, minutes, rest_ms, seed):
    assert chaos.ROOT.joinpath("build/release/tools/netsum/netsum").exists(), "run make build first"
    output = tmp_path / "run"
    run = subprocess.run(
        [
            sys.executable,
            HERE / "chaos.py",
            "--workers",
            workers,
            "--minutes",
            minutes,
            "--rest-ms",
            rest_ms,
            "--pause",
            "1,3",
            "--least-faults",  # on a slow machine the ranks may not train yet when the minutes have passed
            "5",
            "--seed",
            seed,
            "--output",
            output,
        ],
        capture_output=True,
        text=True,
        timeout=600 + 120 * float(minutes),
        check=False,
    )
    assert run.returncode == 0, (
        f"chaos.py --workers {workers} --minutes {minutes} --rest-ms {rest_ms} --pause 1,3 --least-faults 5 --seed {seed}:\n{run.stdout}{run.stderr}"
    )
    report = json.loads((output / "report.json").read_text(encoding="utf-8"))
    assert report["faults"] >= 5 and report["steps"] > 0 and report["weights_compared"] > 0
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "netsum-chaos" not in left
