"""HF Accelerate from PyPI trains with netsum, by the script of examples/training, in ranks that are forked: torchrun's import
torch anew (tests/deploy/test_frameworks.py, soak tests)."""

import contextlib
import io
import os
import pathlib
import re
import runpy
import sys

import ranks
import torch.distributed as dist
from netsum_bench import processes

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples/training/with_accelerate.py"


def test_accelerate_trains():
    port = processes.free_port()

    def on_rank(rank):
        """What the script prints on this rank."""
        dist.destroy_process_group()  # the script makes its own
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        os.environ.update({**where, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"})
        sys.argv = [str(SCRIPT), "netsum"]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            runpy.run_path(str(SCRIPT), run_name="__main__")
        return said.getvalue()

    said = ranks.run(on_rank, world_size=2)[0]
    assert "summed" in said, said
    assert float(re.search(r"\bloss (\d+\.\d+)", said).group(1)) < 0.5, "nothing was learned"
