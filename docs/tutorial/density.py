"""Sums tensors of which a given share is not zero, as one rank of a job, and prints a row of bytes and milliseconds for each share."""

import argparse
import contextlib
import os
import time

import netsum.torch
import torch.distributed as dist

import torch

ROUNDS = 3


def main():
    options = parse_arguments()
    torch.set_num_threads(1)
    dist.init_process_group("netsum")
    places = torch.Generator().manual_seed(dist.get_rank())
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, {options.elements} elements, mode {options.mode}")
        print(f"{'density':>8}{'union':>8}{'MB sent':>9}{'ms':>8}")
    for number, density in enumerate(options.density):
        measure(options, density, number, places)
    dist.barrier()
    dist.destroy_process_group()


def measure(options, density, number, places):
    bytes_sent, seconds = [], []
    for _ in range(ROUNDS):
        values = (torch.rand(options.elements, generator=places) < density).float()
        right = values.clone()
        dist.all_reduce(right)
        dist.barrier()
        before, began = netsum.torch.stats()["bytes_sent"], time.perf_counter()
        netsum.torch.sparse_all_reduce(values, mode=options.mode, id=number + 1)
        seconds.append(time.perf_counter() - began)
        bytes_sent.append(netsum.torch.stats()["bytes_sent"] - before)
        if not torch.allclose(values, right, atol=1e-4):
            raise RuntimeError("the sparse sum is not the dense one")
    if dist.get_rank() == 0:
        union = (right != 0).float().mean().item()
        print(f"{density:8.3f}{union:8.3f}{median(bytes_sent) / 1e6:9.3f}{1e3 * median(seconds):8.1f}", flush=True)


def median(values):
    return sorted(values)[len(values) // 2]


def share(text):
    with contextlib.suppress(ValueError):
        if 0 <= float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is no share from 0 to 1, such as 0.01")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "density", nargs="*", type=share, default=[1, 0.3, 0.1, 0.03, 0.01], help="the shares, from 0 to 1"
    )
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument(
        "--mode", choices=["auto", "on", "off"], default="auto", help="of netsum.torch.sparse_all_reduce()"
    )
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(
            "RANK is not set: start a rank on each worker, by docs/tutorial/on_workers.sh tutorial python " + __file__
        )
    return options


if __name__ == "__main__":
    main()
