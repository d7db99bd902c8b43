"""One rank of PyTorch's Gloo all-reduce for the rack benchmark.

Reads lines "BYTES ITERATIONS WARMUP" from standard input; for each, all ranks time the all-reduce of float32 and check
every element of every result, and rank 0 prints one JSON object.
"""
import argparse
import datetime
import json
import sys
import time

import torch
import torch.distributed as dist


def inputs(index, rank, iteration):
    """Small whole numbers, so that the sum is exact in any order; other numbers in each iteration."""
    return ((index * 7 + rank * 13 + iteration) % 1000).to(torch.float32)


def measure(rank, ranks, size, iterations, warmup):
    index = torch.arange(size // 4)
    times, wrong, cpu = [], 0, 0.0
    for iteration in range(warmup + iterations):
        tensor = inputs(index, rank, iteration)
        dist.barrier()
        cpu_before, before = time.process_time(), time.perf_counter()
        dist.all_reduce(tensor)
        took = torch.tensor(time.perf_counter() - before)
        if iteration >= warmup:
            cpu += time.process_time() - cpu_before
        dist.all_reduce(took, dist.ReduceOp.MAX)  # the slowest rank's time is the operation's
        if iteration >= warmup:
            times.append(took.item())
        wrong += int((tensor != sum(inputs(index, r, iteration) for r in range(ranks))).sum())
    totals = torch.tensor([wrong, cpu], dtype=torch.float64)
    dist.all_reduce(totals)
    return {"wrong": int(totals[0]), "cpu_seconds": totals[1].item(), "times_s": times}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rank", type=int)
    parser.add_argument("ranks", type=int)
    parser.add_argument("master", help="host:port of rank 0")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{options.master}", rank=options.rank, world_size=options.ranks,
                            timeout=datetime.timedelta(seconds=120))
    if options.rank == 0:
        print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        result = measure(options.rank, options.ranks, *map(int, line.split()))
        if options.rank == 0:
            print(json.dumps(result), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
