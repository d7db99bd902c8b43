"""One rank of PyTorch's Gloo backend for the benchmarks.

Reads lines "GATE DTYPE BYTES ITERATIONS WARMUP HOW" from standard input. For each, all ranks run a collective on tensors of
so many bytes (of all parts together), starting together by the gate; each rank checks its part of every result, and prints
one JSON object (start_gate.combine). The root is rank 0.
"""

import functools
import json
import sys
import time
import zlib

import torch.distributed as dist

import torch
from netsum_bench.start_gate import BUSY_BYTES, StartGate, machine_busy_ticks
from netsum_bench.worker_process import begin_worker, end_worker

TIMEOUT_S = 120
MODULUS = {torch.float32: 1000, torch.bfloat16: 16}


def inputs(index, rank, iteration, dtype):
    """Whole numbers so small that the sum is exact in any order (bfloat16: up to 16 ranks); others in each iteration."""
    return ((index * 7 + rank * 13 + iteration) % MODULUS[dtype]).to(dtype)


class Tensors:
    """Of one iteration: `input` is the whole; `own`, this rank's part of it; `output`, room for the whole; `part`, for
    a part."""

    def __init__(self, rank, ranks, dtype, size):
        self.rank, self.ranks, self.dtype = rank, ranks, dtype
        self.count = size // dtype.itemsize
        self.bounds = [slice(self.count * r // ranks, self.count * (r + 1) // ranks) for r in range(ranks)]
        self.index = torch.arange(self.count)
        self.output = torch.empty(self.count, dtype=dtype)
        self.part = torch.empty_like(self.output[self.bounds[rank]])
        self.input = self.own = None

    def prepare(self, iteration):
        self.input = self.of_rank(self.rank, iteration)
        self.own = self.input[self.bounds[self.rank]]
        self.output.fill_(-1)
        self.part.fill_(-1)

    def of_rank(self, rank, iteration):
        return inputs(self.index, rank, iteration, self.dtype)

    @functools.cached_property
    def wholes(self):
        """Room for the tensors of all ranks."""
        return [torch.empty_like(self.output) for _ in range(self.ranks)]

    def parts(self, whole):
        return [whole[bounds] for bounds in self.bounds]

    def sum_of_own_part(self, iteration):
        index = self.index[self.bounds[self.rank]]
        return sum(inputs(index, r, iteration, self.dtype) for r in range(self.ranks))


# --- What is timed. The result of a reduction of the whole is in `input`, as PyTorch works in place.


def all_reduce(t):
    dist.all_reduce(t.input)


def reduce_and_broadcast(t):
    dist.reduce(t.input, 0)
    dist.broadcast(t.input, 0)


def gather_and_sum(t):
    dist.all_gather(t.wholes, t.input)
    torch.sum(torch.stack(t.wholes), 0, out=t.input)


def broadcast(t):
    dist.broadcast(t.input if t.rank == 0 else t.output, 0)


def all_gather(t):
    dist.all_gather(t.parts(t.output), t.own)


def all_gather_into_tensor(t, async_op=False):
    return dist.all_gather_into_tensor(t.output, t.own, async_op=async_op)


def reduce_scatter(t):
    dist.reduce_scatter(t.part, t.parts(t.input))


def reduce_scatter_tensor(t, async_op=False):
    return dist.reduce_scatter_tensor(t.part, t.input, async_op=async_op)


def all_reduce_for_a_part(t):
    dist.all_reduce(t.input)
    t.part.copy_(t.own)


def both_at_once(t):
    for work in (all_gather_into_tensor(t, True), reduce_scatter_tensor(t, True)):
        work.wait()


def one_after_the_other(t):
    all_gather_into_tensor(t)
    reduce_scatter_tensor(t)


# --- How many elements of the result are wrong on this rank, and what must be equal on all ranks.


def wrong_sums(t, iteration):
    return int((t.own != t.sum_of_own_part(iteration)).sum()), t.input


def wrong_broadcast(t, iteration):
    return 0 if t.rank == 0 else int((t.output != t.of_rank(0, iteration)).sum()), None


def wrong_gathered(t, iteration):
    pairs = zip(t.bounds, range(t.ranks), strict=True)
    return sum(int((t.output[b] != t.of_rank(r, iteration)[b]).sum()) for b, r in pairs), t.output


def wrong_part(t, iteration):
    return int((t.part != t.sum_of_own_part(iteration)).sum()), None


def wrong_of_both(t, iteration):
    return wrong_gathered(t, iteration)[0] + wrong_part(t, iteration)[0], t.output


HOW = {
    "all_reduce": (all_reduce, wrong_sums),
    "reduce+broadcast": (reduce_and_broadcast, wrong_sums),
    "all_gather+sum": (gather_and_sum, wrong_sums),
    "broadcast": (broadcast, wrong_broadcast),
    "all_gather": (all_gather, wrong_gathered),
    "all_gather_into_tensor": (all_gather_into_tensor, wrong_gathered),
    "reduce_scatter": (reduce_scatter, wrong_part),
    "reduce_scatter_tensor": (reduce_scatter_tensor, wrong_part),
    "all_reduce_for_a_part": (all_reduce_for_a_part, wrong_part),
    "barrier": (lambda t: dist.barrier(), lambda t, iteration: (0, None)),
    "both_at_once": (both_at_once, wrong_of_both),
    "one_after_the_other": (one_after_the_other, wrong_of_both),
}


def measure(rank, ranks, gate_path, dtype, size, iterations, warmup, how):
    run, check = HOW[how]
    tensors = Tensors(rank, ranks, getattr(torch, dtype), size)
    gate = StartGate(gate_path, rank, ranks)
    busy = machine_busy_ticks if size >= BUSY_BYTES else lambda: 0
    stamps, sums, wrong, cpu_s = [], [], 0, 0.0
    for iteration in range(warmup + iterations):
        tensors.prepare(iteration)
        dist.barrier()
        busy_before = busy()
        gate.wait(iteration + 1, TIMEOUT_S)
        cpu_before = time.process_time()
        start = time.monotonic_ns()
        run(tensors)
        end = time.monotonic_ns()
        if iteration >= warmup:
            cpu_s += time.process_time() - cpu_before
            stamps.append([start, end, busy_before, busy()])
        dist.barrier()  # no rank checks its result while another still sums
        wrong_here, same = check(tensors, iteration)
        wrong += wrong_here
        sums.append(0 if same is None else zlib.crc32(same.view(torch.uint8).numpy()))
    return {"wrong": wrong, "sums": sums, "stamps": stamps, "cpu_s": cpu_s}


def main():
    options = begin_worker(__doc__, TIMEOUT_S, "gloo")
    for line in sys.stdin:
        gate, dtype, size, iterations, warmup, how = line.split()
        result = measure(options.rank, options.ranks, gate, dtype, int(size), int(iterations), int(warmup), how)
        print(json.dumps(result), flush=True)
    end_worker()


if __name__ == "__main__":
    main()
