"""A small model of the case of ghosts: one rank of its training, or, with --program, its program without a cluster."""

import argparse
import contextlib
import functools
import os
import pathlib
import signal
import sys

import netsum.torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

WORDS, WIDTH, LAYERS, LENGTH, BATCH = 256, 128, 4, 64, 8  # 3.5 MB of gradients


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self._embedding = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True)
        self._layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self._head = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        return self._head(self._layers(self._embedding(words)))

    def shard(self):
        """Each layer is gathered before it is used."""
        for layer in self._layers.layers:
            fully_shard(layer)
        return fully_shard(self)


def prepare(parallel):
    """Returns a function that does one training step."""
    torch.manual_seed(1)
    model = Model().shard() if parallel == "fsdp" else DistributedDataParallel(Model(), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    words = torch.randint(0, WORDS, (BATCH, LENGTH + 1))

    def step():
        optimizer.zero_grad()
        logits = model(words[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()

    return step


PERIOD_US = 10_000
CGROUPS = pathlib.Path("/sys/fs/cgroup")
GROUP = "netsum-ghosts-"


def remove_stale(parent):
    """Removes the groups of processes that were killed."""
    for group in parent.glob(f"{GROUP}*"):
        if not pathlib.Path("/proc", group.name.removeprefix(GROUP)).exists():
            with contextlib.suppress(OSError):  # another one removes it, or a process is in it
                group.rmdir()


@contextlib.contextmanager
def share_of_cores(cores):
    """For the time of a `with`, this process gets that many cores at most, however idle the machine is (as root)."""
    old = CGROUPS / "cpu"  # of version 1
    parent = old if (old / "cpu.cfs_quota_us").exists() else CGROUPS
    remove_stale(parent)
    own = parent / f"{GROUP}{os.getpid()}"
    quota = round(cores * PERIOD_US)
    if parent is CGROUPS:
        (parent / "cgroup.subtree_control").write_text("+cpu", encoding="ascii")
    for number in (signal.SIGTERM, signal.SIGINT):  # `finally` runs
        signal.signal(number, lambda signalled, _: sys.exit(128 + signalled))
    own.mkdir()
    try:
        if parent is old:
            (own / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
            (own / "cpu.cfs_quota_us").write_text(str(quota), encoding="ascii")
        else:
            (own / "cpu.max").write_text(f"{quota} {PERIOD_US}", encoding="ascii")
        (own / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        yield
    finally:
        (parent / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        own.rmdir()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--program", metavar="PREFIX", help="write the program of rank 0 there")
    parser.add_argument("--ranks", type=int, default=1, help="of the job of the program")
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--cores", type=float, default=0, help="that each step may use; 0: all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.program:
        netsum.torch.program_of(
            functools.partial(prepare, options.parallel),
            options.program,
            world_size=options.ranks,
            steps=options.steps,
            model=f"language model, {options.parallel}",
        )
        return
    dist.init_process_group("netsum")
    step = prepare(options.parallel)
    with share_of_cores(options.cores) if options.cores else contextlib.nullcontext():
        for _ in range(options.steps):
            step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
