"""One rank of the cases that compare the steps of trainings: of the controller of compression, and of the hooks of DDP.

Reads lines of JSON from standard input: {"gate", "system", "settings", "hook", "load", "steps", "model"}. For each, all
ranks train a model so many steps, after a pause of "pause_s" before each if it is there, each system a model of its own that
lives on between lines, and print {"step_s", "controller"}: the seconds of every step on this rank, and the controller's counts, if there is one. `settings`: of
netsum.torch.compress(); null: no hook. `hook`: "C++", or "Python", where DDP calls it through Python. `load`: "busy" while
a thread computes in Python, as a data loader or a logger does; otherwise "quiet". `model`: {"width", "layers", "batch",
"bucket_mb"}.
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
BUSY_AT_MOST_S = 240


class System:
    def __init__(self, rank, settings, hook, width, layers, batch, bucket_mb):
        torch.manual_seed(1)
        modules = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.Tanh())]
        self._model = DistributedDataParallel(nn.Sequential(*modules), bucket_cap_mb=bucket_mb)
        self._state = None
        if settings and hook == "C++":
            self._state = netsum.torch.compress(self._model, **settings)
        elif settings:
            self._state = netsum.torch.Compression(self._model, **settings)
            self._model.register_comm_hook(self._state, netsum.torch.compression_hook)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._inputs = torch.randn(batch, width, generator=torch.Generator().manual_seed(rank))

    def step(self, pause_s):
        """Seconds of one step: from the start, which all ranks have together, to its end on this rank."""
        time.sleep(pause_s)
        dist.barrier()
        start = time.perf_counter()
        self._optimizer.zero_grad()
        nn.functional.mse_loss(self._model(self._inputs), self._inputs.flip(1)).backward()
        self._optimizer.step()
        return time.perf_counter() - start

    def controller(self):
        return self._state.stats().get("controller") if self._state else None


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
        name = asked["system"]
        if name not in systems:
            systems[name] = System(options.rank, asked["settings"], asked["hook"], **asked["model"])
        with under(asked["load"]):
            step_s = [systems[name].step(asked.get("pause_s", 0)) for _ in range(asked["steps"])]
        print(json.dumps({"step_s": step_s, "controller": systems[name].controller()}), flush=True)
    end_worker()


if __name__ == "__main__":
    main()
