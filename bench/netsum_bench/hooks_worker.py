"""One rank of the benchmark of DDP hooks.

Reads lines of JSON from standard input: {"gate", "settings", "hook", "load", "steps"}. For each, all ranks train a model so many steps,
each pair of settings (of netsum.torch.compress()) and hook ("C++" or "Python") a model of its own that lives on between lines, and print
{"step_s"}: the seconds of every step on this rank. `load`: "busy" while a thread computes in Python, as a data loader or a logger does;
otherwise "quiet".
"""

import contextlib
import json
import sys
import threading
import time

import netsum.torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch
from netsum_bench.worker_process import begin_worker, end_worker
from torch import nn

TIMEOUT_S = 240
WIDTH, LAYERS, BATCH = 192, 48, 16  # 6.75 MiB of gradients
BUCKET_MB = 0.15  # a bucket for each layer
BUSY_AT_MOST_S = 240


class System:
    def __init__(self, rank, settings, hook):
        torch.manual_seed(1)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self._model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=BUCKET_MB)
        if hook == "C++":
            netsum.torch.compress(self._model, **settings)
        else:
            state = netsum.torch.Compression(self._model, **settings)
            self._model.register_comm_hook(state, netsum.torch.compression_hook)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))

    def step(self):
        """Seconds of one step: from the start, which all ranks have together, to its end on this rank."""
        dist.barrier()
        start = time.perf_counter()
        self._optimizer.zero_grad()
        nn.functional.mse_loss(self._model(self._inputs), self._inputs).backward()
        self._optimizer.step()
        return time.perf_counter() - start


@contextlib.contextmanager
def under(load):
    """A thread that computes in Python, for the time of a `with`, if the load is "busy"."""
    ended = threading.Event()

    def compute():
        last, number = time.monotonic() + BUSY_AT_MOST_S, 0
        while not ended.is_set() and time.monotonic() < last:
            for i in range(1000):
                number = (number * 31 + i) % 1_000_003

    thread = threading.Thread(target=compute)
    if load == "busy":
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if load == "busy":
            thread.join()


def main():
    options = begin_worker(__doc__, TIMEOUT_S, "netsum")
    systems = {}
    for line in sys.stdin:
        asked = json.loads(line)
        key = json.dumps([asked["settings"], asked["hook"]])
        if key not in systems:
            systems[key] = System(options.rank, asked["settings"], asked["hook"])
        with under(asked["load"]):
            step_s = [systems[key].step() for _ in range(asked["steps"])]
        print(json.dumps({"step_s": step_s}), flush=True)
    end_worker()


if __name__ == "__main__":
    main()
