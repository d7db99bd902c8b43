"""One rank of the benchmark of compression.

Reads lines of JSON from standard input: tasks, as compression_bench.Cell.task() makes them. For each, all ranks train a
model, or reduce generated gradients, with one system, and print what they have seen. The processes live on between
tasks, since importing torch takes seconds.
"""

import gc
import json
import math
import sys
import time

import netsum.torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import torch
from netsum_bench.demo import models, train
from netsum_bench.worker_process import begin_worker, end_worker
from torch import nn

TIMEOUT_S = 240
GENERATED_WIDTH, GENERATED_LAYERS = 1024, 4  # 16 MiB of gradients
# DDP makes other buckets after the first step, and PyTorch's PowerSGD waits for them.
WARM_UP, PROBED_S, LEAST_PROBES, MOST_PROBES = 3, 2, 3, 10


def compress(parallel, task):
    """Registers what compresses the gradients, if anything does; returns netsum's Compression."""
    if task["compression"]:
        return netsum.torch.compress(parallel, **task["compression"])
    if task["hook"] == "fp16":
        parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif task["hook"] == "powersgd":
        # It needs two steps without it, in which DDP makes its buckets.
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return None


class Generated(nn.Module):
    """Matrices whose gradients are normally distributed, with other numbers on every rank."""

    def __init__(self, rank, seed):
        super().__init__()
        shape = (GENERATED_WIDTH, GENERATED_WIDTH)
        self.layers = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for _ in range(GENERATED_LAYERS))
        random = torch.Generator().manual_seed(1000 * seed + rank)
        for layer in self.layers:
            layer.grad = torch.randn(shape, generator=random)


class Replay(nn.Module):
    """Has the parameters of a model, and its gradients: a backward pass that computes hardly anything."""

    def __init__(self, model):
        super().__init__()
        self._gradients = [p.grad.clone() for p in model.parameters()]
        self.copies = nn.ParameterList(nn.Parameter(p.detach().clone()) for p in model.parameters())

    def forward(self):
        return sum((p * g).sum() for p, g in zip(self.copies, self._gradients, strict=True))


def time_reduction(model, task, backend):
    """Seconds for the reduction of the last gradients as in a step, on idle workers; of these for encoding and
    decoding, if netsum compresses; and what was sent."""
    parallel = parallel_of(Replay(model), task)
    reduction = compress(parallel, task)
    for _ in range(WARM_UP):
        last_s = reduce_once(parallel)
    probes = agreed(min(MOST_PROBES, max(LEAST_PROBES, math.ceil(PROBED_S / last_s))))
    before, stats = train.books(backend), reduction.stats() if reduction else None
    seconds = [reduce_once(parallel) for _ in range(probes)]
    found = {"s": seconds, "steps": probes, **train.change_of_books(before, train.books(backend))}
    if reduction:
        after = reduction.stats()
        for part in ("encode_s", "decode_s"):
            found[part] = (after[part] - stats[part]) / probes
    return found


def reduce_once(parallel):
    parallel.zero_grad()
    loss = parallel()
    dist.barrier()
    start = time.perf_counter()
    loss.backward()
    return time.perf_counter() - start


def parallel_of(model, task):
    """All ranks have made the same parameters, which need not be sent. PyTorch's PowerSGD waits for collectives on
    Gloo's threads, of which there are two, so with two buckets at once it would wait for ever: it gets one bucket."""
    one_bucket = {"bucket_cap_mb": 1024} if task["hook"] == "powersgd" else {}
    return DistributedDataParallel(model, init_sync=False, **one_bucket)


def agreed(number):
    """That of rank 0."""
    found = torch.tensor([number])
    dist.broadcast(found, 0)
    return int(found.item())


def further_steps(step_s, seconds, most):
    """How many more steps fill the time, by the clock of rank 0."""
    median = sorted(step_s)[len(step_s) // 2]
    wanted = math.ceil(max(0.0, seconds - sum(step_s)) / median)
    return agreed(min(wanted, max(0, most - len(step_s))))


def train_on(parallel, optimizer, examples, task):
    """Trains the steps of the task, and on while there is time. Returns the seconds of all steps, and where it was
    evaluated: steps, seconds of training, and what was found."""
    step_s, curve = [], []
    batches = examples.train_batches()
    steps, step = task["steps"], 0
    while step < steps:
        step += 1
        step_s.append(train.train_step(parallel, optimizer, batches, task["model"])[1])
        if step == task["steps"] and task["seconds"] is not None:
            steps += further_steps(step_s, task["seconds"], task["most_steps"])
        if step % task["evaluate_every"] == 0 or step in (task["steps"], steps):
            curve.append({"step": step, "s": sum(step_s), **train.evaluate(parallel.module, examples)})
    return step_s, curve


def run_generated(task, rank, backend):
    model = Generated(rank, task["seed"])
    return {"parameters": models.parameter_count(model), "reduction": time_reduction(model, task, backend)}


def run_training(task, rank, ranks, backend):
    # The memory "dgc" has the momentum already.
    momentum = 0.0 if task["compression"] and task["compression"]["method"] == "dgc" else 0.9
    model, examples, optimizer = train.make_training(
        task["model"], task["seed"], rank, ranks, task["sparse"], task["small"], momentum
    )
    parallel = parallel_of(model, task)
    compress(parallel, task)
    dist.barrier()
    before = train.books(backend)
    step_s, curve = train_on(parallel, optimizer, examples, task)
    change = train.change_of_books(before, train.books(backend))
    # Gradients that are sparse tensors are sent as they are in any case.
    reduction = None if task["sparse"] else time_reduction(model, task, backend)
    found = {"parameters": models.parameter_count(model), "step_s": step_s, "curve": curve, "reduction": reduction}
    return {**found, **change}


def main():
    options = begin_worker(__doc__, TIMEOUT_S)
    for line in sys.stdin:
        task = json.loads(line)
        torch.manual_seed(task["seed"])
        if task["model"] == "generated":
            result = run_generated(task, options.rank, options.backend)
        else:
            result = run_training(task, options.rank, options.ranks, options.backend)
        print(json.dumps(result), flush=True)
        del result
        gc.collect()  # the model and its buckets, before the next task makes its own
    end_worker()


if __name__ == "__main__":
    main()
