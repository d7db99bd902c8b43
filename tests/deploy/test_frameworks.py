"""HF Accelerate and PyTorch Lightning from PyPI train with netsum as with Gloo, by torchrun and the scripts of examples/training.
tests/torch/test_frameworks.py has a short form of it."""

import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples/training"
LIMIT_S = 300


def train(name, backend):
    """Runs an example with two ranks; returns what it printed."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            EXAMPLES / name,
            backend,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    return run.stdout


def loss_in(text):
    return float(re.search(r"\bloss (\d+\.\d+)", text).group(1))


# Each is six interpreters that import torch and a framework: 40 s of processor time.
@pytest.mark.soak
@pytest.mark.parametrize("name", ["with_accelerate.py", "with_lightning.py"])
def test_trains_as_with_gloo(name):
    said = train(name, "netsum")
    assert "summed" in said, said
    assert loss_in(said) < 0.5, "nothing was learned"
    assert loss_in(said) == pytest.approx(loss_in(train(name, "gloo")), rel=0.02, abs=0.001)
