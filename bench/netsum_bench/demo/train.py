"""One worker of the demo, started as torchrun does: trains one model with one backend and writes what it saw.

Nothing here knows how gradients are summed: the backend's name is the only difference between the runs.
"""

import argparse
import ctypes
import datetime
import json
import os
import pathlib
import signal
import time

import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torch
from netsum_bench.demo import data, models, traffic
from netsum_bench.worker_process import end_worker
from torch import nn

ALLREDUCE_PROBES = 5
PARALLEL = ("ddp", "fsdp", "fsdp-overlap")
ITEMS, SMALL_ITEMS = 200_000, 50_000
SMALL_LANGUAGE_MODEL = {"width": 128, "depth": 2, "heads": 4}


def main():
    options = parse_arguments()
    die_with_parent()
    rank = int(os.environ["RANK"])
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    if options.backend == "netsum":
        import netsum.torch  # noqa: F401  (registers the backend)
    dist.init_process_group(options.backend, timeout=datetime.timedelta(seconds=options.timeout_s))
    result = run(options, rank, dist.get_world_size())
    (options.run_dir / f"rank{rank}.json").write_text(json.dumps(result))
    end_worker()


def run(options, rank, world_size):
    model, examples, optimizer = make_training(options.model, options.seed, rank, world_size, options.sparse)
    progress = Progress(options, rank)
    parallel = make_parallel(model, options.parallel)
    dist.barrier()

    before = books(options.backend)
    losses, step_s = train(parallel, optimizer, examples, options, progress)
    after = books(options.backend)

    probes = time_allreduce(models.parameter_count(model))
    held_out = evaluate(model, examples)
    return {
        "parameters": models.parameter_count(model),
        "data": examples.description,
        "losses": losses,
        "step_s": step_s,
        "allreduce_s": probes,
        "held_out": held_out,
        **change_of_books(before, after),
    }


def make_training(model, seed, rank, world_size, sparse=False, small=False, momentum=0.9):
    """The model, this rank's examples, and the optimizer. `small`: fewer parameters. `momentum`: of the classifier's optimizer."""
    if model == "digits":
        network, examples = models.DigitClassifier(), data.Digits(rank, world_size, seed)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=momentum)
    elif model == "recommender":
        items = SMALL_ITEMS if small else ITEMS
        network = models.Recommender(items, sparse=sparse)
        examples = data.Clicks(rank, world_size, seed, items)
        optimizer = torch.optim.Adagrad(network.parameters(), lr=0.2)  # takes sparse gradients, too
    else:
        network = models.ByteLanguageModel(**SMALL_LANGUAGE_MODEL if small else {})
        examples = data.StandardLibraryText(rank, world_size, seed, batch=2 if small else 4)
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.01)
    return network, examples, optimizer


def make_parallel(model, how):
    """The model for data-parallel training: by DDP, or by FSDP2 with one unit for each of its blocks. With "fsdp-overlap",
    FSDP2 communicates while it computes, and reduce-scatters have a group of their own, so that they do not wait for
    all-gathers; this works with any backend."""
    if how == "ddp":
        return DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    if how == "fsdp-overlap":
        import netsum.torch

        netsum.torch.overlap_fsdp(model)
        model.set_separate_reduce_scatter_group()
    return model


def train(parallel, optimizer, examples, options, progress):
    """Returns the losses and seconds of all steps."""
    losses, step_s = [], []
    batches = examples.train_batches()
    for step in range(1, options.steps + 1):
        loss, seconds = train_step(parallel, optimizer, batches, options.model)
        losses.append(loss)
        step_s.append(seconds)
        progress.report(step, loss)
    return losses, step_s


def train_step(parallel, optimizer, batches, model):
    """One step: its loss, and its seconds."""
    start = time.perf_counter()
    inputs, targets = next(batches)
    optimizer.zero_grad()
    loss = loss_of(parallel(inputs), targets)
    loss.backward()
    if model != "recommender":  # PyTorch cannot clip sparse gradients
        nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
    optimizer.step()
    seconds = time.perf_counter() - start
    return loss.item(), seconds


def loss_of(logits, targets):
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


@torch.no_grad()
def evaluate(model, examples):
    """Sums over this rank's share of the held-out data; whoever reads all ranks' results divides."""
    loss, right, count = 0.0, 0, 0
    for inputs, targets in examples.held_out_batches():
        logits = model(inputs)
        loss += loss_of(logits, targets).item() * targets.numel()
        right += (logits.argmax(-1) == targets).sum().item()
        count += targets.numel()
    return {"loss_sum": loss, "right": right, "count": count}


def time_allreduce(elements):
    """Seconds for one all-reduce as large as all gradients, with no training at the same time."""
    tensor = torch.ones(elements)
    seconds = []
    for _ in range(ALLREDUCE_PROBES):
        tensor.fill_(1.0)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        seconds.append(time.perf_counter() - start)
        if not torch.equal(tensor, torch.full_like(tensor, dist.get_world_size())):
            raise RuntimeError("the all-reduce of a tensor of ones did not give the world size everywhere")
    return seconds[1:]  # the first one warms up


def books(backend):
    """The counters as they stand now: the kernel's for TCP, netsum's own for its packets."""
    stats = describe = None
    if backend == "netsum":
        import netsum.torch

        stats, describe = netsum.torch.stats(), netsum.torch.describe()
    return {"tcp": traffic.tcp_sockets(), "netsum": stats, "describe": describe}


def change_of_books(before, after):
    return {
        "tcp": traffic.difference(after["tcp"], before["tcp"]),
        "netsum": after["netsum"] and {"before": before["netsum"], "after": after["netsum"]},
        "describe": after["describe"],
    }


class Progress:
    """Rank 0's notes for whoever watches, one JSON line per step."""

    def __init__(self, options, rank):
        self._file = (options.run_dir / "progress.jsonl").open("w", buffering=1) if rank == 0 else None

    def report(self, step, loss):
        if self._file:
            self._file.write(json.dumps({"step": step, "loss": loss}) + "\n")


def die_with_parent():
    """Asks Linux to end this worker should its parent be killed: a demo must not leave workers behind."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["digits", "lm", "recommender"], required=True)
    parser.add_argument("--sparse", action="store_true", help="the recommender's gradients are sparse tensors")
    parser.add_argument("--parallel", choices=PARALLEL, default="ddp", help="fsdp: only for lm")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout-s", type=int, default=60)
    parser.add_argument("--run-dir", type=pathlib.Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
