"""How a process that trains or measures with PyTorch begins and ends."""

import argparse
import datetime
import json
import os
import sys

import torch.distributed as dist

import torch


def begin_worker(description, timeout_s, backend=None):
    """Begins a process that is one rank: reads its arguments, joins the process group, and says that it is ready, as a
    line of JSON.

    Its arguments are its rank, the number of ranks, and host:port of rank 0. If `backend` is None, the backend's name
    follows them. timeout_s: of the operations of the group. Returns the arguments, with `backend`.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("rank", type=int)
    parser.add_argument("ranks", type=int)
    parser.add_argument("master", help="host:port of rank 0")
    if backend is None:
        parser.add_argument("backend", choices=["gloo", "netsum"])
    parser.set_defaults(backend=backend)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.backend == "netsum":
        import netsum.torch  # noqa: F401  registers the backend
    dist.init_process_group(
        options.backend,
        init_method=f"tcp://{options.master}",
        rank=options.rank,
        world_size=options.ranks,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    print(json.dumps({"ready": True}), flush=True)
    return options


def end_worker():
    """Leaves the process group and ends the process, which has written its results, with status 0.

    With Gloo, Python's shutdown rarely ends in an abort ("terminate called without an active exception"), so it is left out.
    """
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
