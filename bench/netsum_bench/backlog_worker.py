"""One rank of a job whose steps compute, by a pause of random length, and sum, for the case `backlog`.

Reads lines of JSON from standard input. {"backend", "aggregator", "pace_bps"}: makes a group of its own, Gloo's or netsum's at
this aggregator, paced if there is a rate, and answers {"made"}. Then {"bytes", "steps", "pause_s", "barrier", "seed"}: all
ranks make so many steps, with a barrier before each sum if "barrier", end the group, and print {"ends_s", "wrong"}: when each
step ended, by the clock of the machine, and how many elements were wrong.
"""

import contextlib
import json
import os
import random
import socket
import sys
import time

import netsum.torch  # noqa: F401  registers the backend
import torch.distributed as dist

import torch
from netsum_bench.gloo_worker import inputs
from netsum_bench.worker_process import begin_worker, end_worker

TIMEOUT_S = 60


def sockets():
    """The file descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
    return found


def pace_connections(descriptors, bits_per_s):
    """The kernel's pacing of TCP, of each connection."""
    for descriptor in descriptors:
        with socket.socket(fileno=os.dup(descriptor)) as one:
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                one.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_MAX_PACING_RATE", 47), bits_per_s // 8)


def make_group(asked):
    os.environ["NETSUM_AGGREGATOR"] = asked["aggregator"]
    os.environ["NETSUM_PACE"] = f"{asked['pace_bps'] // 1000}kbit" if asked["pace_bps"] else ""
    before = sockets()
    group = dist.new_group(backend=asked["backend"])
    dist.barrier(group)  # so that it has all its connections, and has joined its job
    if asked["backend"] == "gloo" and asked["pace_bps"]:
        pace_connections(sockets() - before, asked["pace_bps"])
    return group


def run_steps(group, rank, ranks, asked):
    pauses = random.Random(asked["seed"] * ranks + rank)
    index = torch.arange(asked["bytes"] // 4)
    ends_s, wrong = [], 0
    dist.barrier(group)
    for step in range(asked["steps"]):
        tensor = inputs(index, rank, step, torch.float32)
        time.sleep(asked["pause_s"] * pauses.uniform(0.5, 1.5))
        if asked["barrier"]:
            dist.barrier(group)
        dist.all_reduce(tensor, group=group)
        ends_s.append(time.monotonic())
        wrong += int((tensor != sum(inputs(index, r, step, torch.float32) for r in range(ranks))).sum())
    dist.barrier(group)
    return {"ends_s": ends_s, "wrong": wrong}


def main():
    options = begin_worker(__doc__, TIMEOUT_S, "gloo")
    group = None
    for line in sys.stdin:
        asked = json.loads(line)
        if "backend" in asked:
            group = make_group(asked)
            answer = {"made": True}
        else:
            answer = run_steps(group, options.rank, options.ranks, asked)
            dist.destroy_process_group(group)
            group = None
        print(json.dumps(answer), flush=True)
    end_worker()


if __name__ == "__main__":
    main()
