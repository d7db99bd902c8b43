"""What `netsum doctor --devices` tells (torch/netsum/_doctor.py), without an accelerator and with the one of the tests."""

import json
import os
import subprocess

import accelerator
import pytest
import ranks
from netsum import _doctor


def findings(load=None, env=None, **later):
    """`later`: the environment when there is a group."""

    def on_rank(_):
        os.environ.update(later)
        return {one["subject"]: one for one in _doctor.findings()}

    (outcome,) = ranks.run_all_outcomes(on_rank, world_size=1, before=load, env=env)
    assert not outcome.error, outcome.error
    return outcome.value


def test_without_an_accelerator():
    """By the installed command, which finds the interpreter beside it."""
    command = [ranks.command(), "doctor", "--devices", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    found = {one["subject"]: one for one in json.loads(done.stdout)["findings"]}
    assert found["PyTorch"]["grade"] == "ok"
    assert "accelerators" in found
    assert "locked memory" in found
    assert not {"NCCL", "staging", "pinned memory"} & found.keys()
    assert done.returncode == 0


def test_with_an_accelerator():
    found = findings(accelerator.load, NETSUM_STAGING_MIB="3", NETSUM_STAGING_SEGMENT_KIB="64")
    assert {one["grade"] for one in found.values()} == {"ok"}
    assert {"mock:0", "mock:1"} <= found.keys()
    assert found["pinned memory"]["found"].startswith("3 MiB can be pinned")
    assert "3 MiB per group and device, and are copied by segments of 64 KiB" in found["staging"]["found"]
    assert "as a whole" in findings(accelerator.load, NETSUM_STAGING_SEGMENT_KIB="0")["staging"]["found"]
    assert "NCCL" in found


def test_memory_that_cannot_be_pinned():
    found = findings(accelerator.load, env={"NETSUM_ACCELERATOR_PINNED": "0"})["pinned memory"]
    assert found["grade"] == "warn"
    assert "256 MiB cannot be pinned" in found["found"]
    assert "ulimit -l" in found["advice"]


@pytest.mark.parametrize("load", [None, accelerator.load])
def test_a_setting_that_is_wrong(load):
    found = findings(load, NETSUM_STAGING_MIB="many")["staging"]
    assert found["grade"] == "fail"
    assert 'NETSUM_STAGING_MIB="many"' in found["found"]
