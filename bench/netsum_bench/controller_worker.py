"""One rank of the benchmark of the controller of compression.

Reads lines of JSON from standard input: {"gate", "system", "settings", "steps"}. For each, all ranks train a model so many steps,
each system a model of its own that lives on between lines, and print {"step_s", "controller"}: the seconds of every step on
this rank, and the controller's counts, if there is one. `settings`: of netsum.torch.compress(); null: no hook.
"""

import json
import sys
import time

import netsum.torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch
from netsum_bench.worker_process import begin_worker, end_worker
from torch import nn

TIMEOUT_S = 240
WIDTH, LAYERS, BATCH = 1024, 4, 64  # 16 MiB of gradients


class System:
    def __init__(self, rank, settings):
        torch.manual_seed(1)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
        self._model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=4)
        self._state = netsum.torch.compress(self._model, **settings) if settings else None
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self._inputs = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))

    def step(self):
        """Seconds of one step: from the start, which all ranks have together, to the end of the slowest rank."""
        dist.barrier()
        start = time.perf_counter()
        self._optimizer.zero_grad()
        nn.functional.mse_loss(self._model(self._inputs), self._inputs.flip(1)).backward()
        self._optimizer.step()
        return time.perf_counter() - start

    def controller(self):
        return self._state.stats().get("controller") if self._state else None


def main():
    options = begin_worker(__doc__, TIMEOUT_S, "netsum")
    systems = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["system"] not in systems:
            systems[asked["system"]] = System(options.rank, asked["settings"])
        system = systems[asked["system"]]
        step_s = [system.step() for _ in range(asked["steps"])]
        print(json.dumps({"step_s": step_s, "controller": system.controller()}), flush=True)
    end_worker()


if __name__ == "__main__":
    main()
