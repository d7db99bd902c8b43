"""One worker of the demo, started as torchrun does: trains one model with one backend and writes what it saw.

Nothing here knows how gradients are summed: the backend's name is the only difference between the runs.
"""

import argparse
import ctypes
import datetime
import json
import math
import os
import pathlib
import signal
import time

import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torch
from netsum_bench.demo import data, models, traffic
from netsum_bench.process_end import end_worker
from torch import nn

ALLREDUCE_PROBES = 5
# DDP makes other buckets after the first step, and PyTorch's PowerSGD waits for them.
REDUCTION_PROBES, REDUCTION_WARM_UP = 8, 3
PARALLEL = ("ddp", "fsdp", "fsdp-overlap")


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
    if options.model == "digits":
        model, examples = models.DigitClassifier(), data.Digits(rank, world_size, options.seed)
        # The memory "dgc" has the momentum already.
        momentum = 0.0 if options.compression and options.compression["method"] == "dgc" else 0.9
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    elif options.model == "recommender":
        model = models.Recommender(sparse=options.sparse)
        examples = data.Clicks(rank, world_size, options.seed)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=0.2)  # takes sparse gradients, too
    else:
        model = models.ByteLanguageModel()
        examples = data.StandardLibraryText(rank, world_size, options.seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    progress = Progress(options, rank)
    parallel = make_parallel(model, options.parallel)
    reduction = compress(parallel, options)
    dist.barrier()

    before = books(options.backend)
    losses, step_s, curve = train(parallel, optimizer, examples, options, progress)
    after = books(options.backend)

    probes = time_allreduce(models.parameter_count(model))
    reduction_probes = time_reduction(model, options) if reduction or options.hook else None
    held_out = evaluate(model, examples)
    return {
        "parameters": models.parameter_count(model),
        "data": examples.description,
        "losses": losses,
        "step_s": step_s,
        "allreduce_s": probes,
        "reduction": reduction_probes,
        "curve": curve,
        "held_out": held_out,
        "tcp": traffic.difference(after["tcp"], before["tcp"]),
        "netsum": after["netsum"] and {"before": before["netsum"], "after": after["netsum"]},
        "describe": after["describe"],
    }


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


def compress(parallel, options):
    """Registers what compresses the gradients, if anything does; returns netsum's Compression."""
    if options.compression:
        import netsum.torch

        return netsum.torch.compress(parallel, **options.compression)
    if options.hook == "fp16":
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif options.hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        # It needs two steps without it, in which DDP makes its buckets.
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return None


class Replay(nn.Module):
    """Has the parameters of a model, and chosen gradients: a backward pass that computes hardly anything."""

    def __init__(self, model):
        super().__init__()
        self._gradients = [torch.randn_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
        self.copies = nn.ParameterList(nn.Parameter(p.detach().clone()) for p in model.parameters())

    def forward(self):
        return sum((p * g).sum() for p, g in zip(self.copies, self._gradients, strict=True))


def time_reduction(model, options):
    """Seconds for the reduction of the last gradients as in a step, on idle workers, and of these for encoding and decoding."""
    parallel = DistributedDataParallel(Replay(model))
    reduction = compress(parallel, options)
    seconds = []
    for probe in range(REDUCTION_PROBES):
        if probe == REDUCTION_WARM_UP and reduction:
            before = reduction.stats()
        parallel.zero_grad()
        loss = parallel()
        dist.barrier()
        start = time.perf_counter()
        loss.backward()
        seconds.append(time.perf_counter() - start)
    found = {"s": seconds[REDUCTION_WARM_UP:]}
    if reduction:
        after = reduction.stats()
        for part in ("encode_s", "decode_s"):
            found[part] = (after[part] - before[part]) / (REDUCTION_PROBES - REDUCTION_WARM_UP)
    return found


def train(parallel, optimizer, examples, options, progress):
    """Returns the losses and seconds of all steps, and where it was evaluated: steps, seconds of training, and what was found."""
    losses, step_s, curve = [], [], []
    batches = examples.train_batches()
    steps, step = options.steps, 0
    while step < steps:
        step += 1
        start = time.perf_counter()
        inputs, targets = next(batches)
        optimizer.zero_grad()
        loss = loss_of(parallel(inputs), targets)
        loss.backward()
        if options.model != "recommender":  # PyTorch cannot clip sparse gradients
            nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
        optimizer.step()
        step_s.append(time.perf_counter() - start)
        losses.append(loss.item())
        progress.report(step, losses[-1])
        if step == options.steps and options.seconds is not None:
            steps += further_steps(step_s, options.seconds, options.most_steps)
        if options.evaluate_every and (step % options.evaluate_every == 0 or step in (options.steps, steps)):
            curve.append({"step": step, "s": sum(step_s), **evaluate(getattr(parallel, "module", parallel), examples)})
    return losses, step_s, curve


def further_steps(step_s, seconds, most):
    """How many more steps fill the time, by the clock of rank 0."""
    median = sorted(step_s)[len(step_s) // 2]
    wanted = math.ceil(max(0.0, seconds - sum(step_s)) / median)
    number = torch.tensor([min(wanted, max(0, most - len(step_s)))])
    dist.broadcast(number, 0)
    return int(number.item())


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
    parser.add_argument("--compression", type=json.loads, help="settings of netsum.torch.compress(), as JSON")
    parser.add_argument("--hook", choices=["fp16", "powersgd"], help="of PyTorch, instead")
    parser.add_argument("--evaluate-every", type=int, default=0, help="steps; the time that it takes does not count")
    parser.add_argument("--seconds", type=float, help="train on after the last step until so many have passed")
    parser.add_argument("--most-steps", type=int, default=1_000_000, help="of training on")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout-s", type=int, default=60)
    parser.add_argument("--run-dir", type=pathlib.Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
