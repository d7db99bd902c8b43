"""torchrun on two hosts, the namespaces of a rack whose switch has an aggregator, as docs/start.md describes."""

import os
import pathlib
import re
import subprocess
import sys

import pytest
from netsum_bench.rack import Rack

ROOT = pathlib.Path(__file__).resolve().parents[2]
NETSUM = pathlib.Path(os.environ.get("NETSUM_BUILD", ROOT / "build/release")) / "tools/netsum/netsum"
HOSTS, RANKS_OF_HOST = 2, 2
LIMIT_S = 240
# Without DistributedDataParallel, which imports much more of torch, in each rank.
PROGRAM = """
import torch
import torch.distributed as dist
import netsum.torch

torch.set_num_threads(1)
dist.init_process_group("netsum")
rank, ranks = dist.get_rank(), dist.get_world_size()
gradient = torch.arange(5000.0) * (rank + 1)
dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
assert (gradient - torch.arange(5000.0) * (ranks + 1) / 2).abs().max() <= 1e-3
gathered = [None] * ranks
dist.all_gather_object(gathered, gradient)
assert all(torch.equal(other, gathered[0]) for other in gathered)
print(f"rank {rank} of {ranks} is right: {netsum.torch.describe()}\\n", end="", flush=True)  # one write: the pipe is shared
dist.destroy_process_group()
"""


def torchrun(rack, host, program, aggregator):
    """Starts the recipe on a host of the rack, whose addresses no name server knows."""
    address = "10.77.0.{}".format
    recipe = ["--nnodes", HOSTS, "--nproc-per-node", RANKS_OF_HOST, "--rdzv-backend", "c10d", "--rdzv-id", "test"]
    recipe += ["--rdzv-endpoint", f"{address(1)}:29400", "--rdzv-conf", f"is_host={int(host == 0)}"]
    recipe += ["--local-addr", address(host + 1)]
    return subprocess.Popen(
        rack.inside(host, sys.executable, "-m", "torch.distributed.run", *recipe, program),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "NETSUM_AGGREGATOR": aggregator},
    )


@pytest.mark.soak  # six processes import PyTorch; hosts_test.py has groups of two hosts
@pytest.mark.skipif(os.geteuid() != 0, reason="virtual racks need root")
def test_two_hosts(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM, encoding="utf-8")
    with Rack(NETSUM, f"torchrun{os.getpid()}", HOSTS, "none", 1500, "user") as rack:
        aggregator = rack.status()["aggregators"][0]["address"]
        runs = [torchrun(rack, host, program, aggregator) for host in range(HOSTS)]
        try:
            said = [run.communicate(timeout=LIMIT_S)[0] for run in runs]
        finally:
            for run in runs:
                run.terminate()  # it ends its ranks, if they still run
                run.wait(60)
    assert [run.returncode for run in runs] == [0] * HOSTS, "\n".join(said)
    right = re.findall(r"rank (\d) of 4 is right: (.*)", "\n".join(said))
    assert sorted(rank for rank, _ in right) == ["0", "1", "2", "3"], said
    for _, where in right:
        assert f"summed in the network by 1 aggregator ({aggregator}" in where
        assert "the 2 ranks of this host are summed in shared memory" in where
