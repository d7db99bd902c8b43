"""One rank of PyTorch's Gloo backend for the benchmarks.

Reads lines "GATE DTYPE BYTES ITERATIONS WARMUP HOW" from standard input. For each, all ranks sum tensors of so many bytes,
starting together by the gate; each rank checks its part of every result, and prints one JSON object (start_gate.combine).
"""

import argparse
import datetime
import json
import sys
import time
import zlib

import torch.distributed as dist

import torch
from netsum_bench.start_gate import BUSY_BYTES, StartGate, machine_busy_ticks

TIMEOUT_S = 120
MODULUS = {torch.float32: 1000, torch.bfloat16: 16}


def inputs(index, rank, iteration, dtype):
    """Whole numbers so small that the sum is exact in any order (bfloat16: up to 16 ranks); others in each iteration."""
    return ((index * 7 + rank * 13 + iteration) % MODULUS[dtype]).to(dtype)


def ring(tensor, _parts):
    dist.all_reduce(tensor)


def tree(tensor, _parts):
    dist.reduce(tensor, 0)
    dist.broadcast(tensor, 0)


def gather(tensor, parts):
    dist.all_gather(parts, tensor)
    torch.sum(torch.stack(parts), 0, out=tensor)


HOW = {"all_reduce": ring, "reduce+broadcast": tree, "all_gather+sum": gather}


def measure(rank, ranks, gate_path, dtype, size, iterations, warmup, how):
    dtype, run = getattr(torch, dtype), HOW[how]
    count = size // dtype.itemsize
    first, last = count * rank // ranks, count * (rank + 1) // ranks
    index, part = torch.arange(count), torch.arange(first, last)
    gate = StartGate(gate_path, rank, ranks)
    busy = machine_busy_ticks if size >= BUSY_BYTES else lambda: 0
    parts = [torch.empty(count, dtype=dtype) for _ in range(ranks)] if how == "all_gather+sum" else []
    stamps, sums, wrong = [], [], 0
    for iteration in range(warmup + iterations):
        tensor = inputs(index, rank, iteration, dtype)
        dist.barrier()
        busy_before = busy()
        gate.wait(iteration + 1, TIMEOUT_S)
        start = time.monotonic_ns()
        run(tensor, parts)
        end = time.monotonic_ns()
        if iteration >= warmup:
            stamps.append([start, end, busy_before, busy()])
        expected = sum(inputs(part, r, iteration, dtype) for r in range(ranks))
        wrong += int((tensor[first:last] != expected).sum())
        sums.append(zlib.crc32(tensor.view(torch.uint8).numpy()))
    return {"wrong": wrong, "sums": sums, "stamps": stamps}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rank", type=int)
    parser.add_argument("ranks", type=int)
    parser.add_argument("master", help="host:port of rank 0")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{options.master}",
        rank=options.rank,
        world_size=options.ranks,
        timeout=datetime.timedelta(seconds=TIMEOUT_S),
    )
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        gate, dtype, size, iterations, warmup, how = line.split()
        result = measure(options.rank, options.ranks, gate, dtype, int(size), int(iterations), int(warmup), how)
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
