"""Trains a classifier of handwritten digits with DistributedDataParallel, as one rank of a job.

torchrun starts it; or start one process for each rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

import argparse
import importlib
import os
import pathlib
import sys
import time

import netsum.torch  # registers the backend "netsum"
import torch.distributed as dist
from netsum_bench.demo.data import Digits
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

WINDOW = 10  # steps whose mean loss is compared with --until
LEFT_OUT = 3  # first steps, whose times are not those of the others


def main():
    options = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group(options.backend)
    digits = Digits(dist.get_rank(), dist.get_world_size(), seed=1)
    model = DistributedDataParallel(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    )
    if options.compress:
        netsum.torch.compress(model, compressor(options.compress))
    losses, step_s = train(model, digits, options)
    if dist.get_rank() == 0:
        report(options, losses, step_s, accuracy(model, digits))
    dist.barrier()
    dist.destroy_process_group()


def train(model, digits, options):
    """Returns the losses of all steps, each the mean over the ranks, and the seconds that the steps took."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, step_s = [], []
    for images, labels in digits.train_batches():
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()  # sums the gradients of all ranks
        optimizer.step()
        step_s.append(time.perf_counter() - began)
        loss = loss.detach()
        dist.all_reduce(loss)
        losses.append(loss.item() / dist.get_world_size())
        arrived = options.until and sum(losses[-WINDOW:]) / WINDOW <= options.until and len(losses) >= WINDOW
        if arrived or len(losses) == options.steps:
            return losses, step_s
    raise AssertionError("the batches do not end")


@torch.no_grad()
def accuracy(model, digits):
    """Of rank 0's share of the held-out images."""
    images, labels = next(digits.held_out_batches())
    return (model.module(images).argmax(1) == labels).float().mean().item()


def report(options, losses, step_s, share):
    timed = sorted(step_s[LEFT_OUT:])
    print(f"{options.backend}: {dist.get_world_size()} ranks, {len(losses)} steps, {sum(step_s):.2f} s in all")
    print(f"loss {losses[0]:.4f} at first, {sum(losses[-WINDOW:]) / WINDOW:.4f} at the end; accuracy {share:.3f}")
    print(f"a step takes {1e3 * timed[len(timed) // 2]:.1f} ms")
    if options.backend == "netsum":
        print(f"{netsum.torch.describe()}")
        print(f"rank 0 sent {netsum.torch.stats()['bytes_sent'] / len(losses) / 1e6:.3f} MB in each step")
    if options.curve:
        options.curve.write_text("".join(f"{loss:.6f}\n" for loss in losses), encoding="utf-8")


def compressor(name):
    """A method's name, or an object of the class that FILE:CLASS names."""
    file, is_class, wanted = name.partition(":")
    if not is_class:
        return name
    sys.path.insert(0, str(pathlib.Path(file).resolve().parent))
    module = importlib.import_module(pathlib.Path(file).stem)
    if not hasattr(module, wanted):
        sys.exit(f"train.py: --compress {name}: {file} has no class {wanted}; write FILE:CLASS")
    return getattr(module, wanted)()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["gloo", "netsum"], default="netsum")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--until", type=float, metavar="LOSS", help="end sooner, when the mean of ten losses is at most LOSS"
    )
    parser.add_argument("--curve", type=pathlib.Path, metavar="FILE", help="write the loss of each step there")
    parser.add_argument(
        "--compress", metavar="METHOD|FILE:CLASS", help="a method of docs/compression.md, or a class of your own"
    )
    options = parser.parse_args()
    if options.steps <= LEFT_OUT:
        parser.error(f"--steps {options.steps}: at least {LEFT_OUT + 1}, because the first {LEFT_OUT} are not timed")
    file, is_class, _ = (options.compress or "").partition(":")
    if is_class and not pathlib.Path(file).is_file():
        parser.error(f"--compress {options.compress}: there is no {file}; FILE is a path from {pathlib.Path.cwd()}")
    if options.curve and not options.curve.parent.is_dir():
        parser.error(
            f"--curve {options.curve}: there is no folder {options.curve.parent}: mkdir -p {options.curve.parent}"
        )
    if "RANK" not in os.environ:
        parser.error(
            "RANK is not set: start a process for each rank, by torchrun --standalone --nproc-per-node 2 " + __file__
        )
    return options


if __name__ == "__main__":
    main()
