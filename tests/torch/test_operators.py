"""Minima, maxima, bitwise reductions and averages of integers in the network: Gloo's bits, NaN and zeros, fractions, and
which types Gloo reduces."""

import math

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from ranks import WORLD_SIZE, calls

import torch

ReduceOp = dist.ReduceOp
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
INTEGERS = [torch.int32, torch.int64]
CASES = [(op, dtype) for op in (ReduceOp.MIN, ReduceOp.MAX) for dtype in FLOATS + INTEGERS] + [
    (op, dtype) for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR) for dtype in INTEGERS
]
COUNT = 3001  # several packets, and no whole number of 64-bit words


def values(rank, dtype, count):
    """All bits of integers; floating-point numbers without NaN and zeros, of which Gloo's result depends on the order."""
    generator = torch.Generator().manual_seed(300 + rank)
    if dtype in INTEGERS:
        return torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator).view(dtype)
    tensor = (torch.randn(count, generator=generator) * 100).to(dtype)
    tensor[tensor == 0] = 1.0
    tensor[7 * rank], tensor[7 * rank + 1] = math.inf, -math.inf
    return tensor


def same_bits(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_gloo_has_the_same_bits():
    def on_rank(rank):
        gloo = dist.new_group(backend="gloo")
        for op, dtype in CASES:
            mine = values(rank, dtype, COUNT)
            ours, theirs = mine.clone(), mine.clone()
            dist.all_reduce(ours, op=op)
            dist.all_reduce(theirs, op=op, group=gloo)
            assert same_bits(ours, theirs), (op, dtype)
            reduced = theirs

            ours = mine.clone()
            dist.reduce(ours, dst=2, op=op)
            assert same_bits(ours, reduced if rank == 2 else mine), (op, dtype)

            parts = mine[: WORLD_SIZE * 750]
            ours = torch.empty(750, dtype=dtype)
            dist.reduce_scatter_single(ours, parts, op=op)
            assert same_bits(ours, reduced[rank * 750 : (rank + 1) * 750]), (op, dtype)
            ours.zero_()
            dist.reduce_scatter(ours, list(parts.clone().split(750)), op=op)
            assert same_bits(ours, reduced[rank * 750 : (rank + 1) * 750]), (op, dtype)

            several = [mine[:1].clone(), mine[1:2000:2].clone(), mine[2000:].clone()]
            dist.all_reduce_coalesced(several, op=op)
            for tensor, expected in zip(several, (reduced[:1], reduced[1:2000:2], reduced[2000:]), strict=True):
                assert same_bits(tensor, expected.contiguous()), (op, dtype)
        names = ("all_reduce", "reduce", "reduce_scatter_tensor", "reduce_scatter", "all_reduce_coalesced")
        assert calls() == dict.fromkeys(names, len(CASES))
        assert calls("gloo") == {}

    ranks.run(on_rank)


def test_nan_infinities_and_zeros():
    def check(rank, dtype):
        tensor = torch.full((1000,), float(rank), dtype=dtype)
        if rank == 1:
            tensor[3], tensor[500] = math.nan, -math.nan
            tensor[999] = math.nan
        tensor[10] = [0.0, -0.0, 0.0, -0.0][rank]
        tensor[11] = -0.0
        tensor[12] = [math.inf, 1.0, -math.inf, -1.0][rank]
        results = {}
        for op in (ReduceOp.MIN, ReduceOp.MAX):
            result = tensor.clone()
            dist.all_reduce(result, op=op)
            results[op] = result
        for result in results.values():
            # Whoever has a NaN, wherever it is in the order of the ranks.
            assert torch.isnan(result).nonzero().flatten().tolist() == [3, 500, 999]
        least, greatest = results[ReduceOp.MIN], results[ReduceOp.MAX]
        assert least[0] == 0 and greatest[0] == WORLD_SIZE - 1
        signs = [math.copysign(1, result[i]) for result in (least, greatest) for i in (10, 11)]
        assert signs == [-1, -1, 1, -1]
        assert least[12] == -math.inf and greatest[12] == math.inf

    ranks.run(lambda rank: [check(rank, dtype) for dtype in FLOATS])


def test_zeros_and_layouts():
    def on_rank(rank):
        tensor = torch.zeros(60, 70, dtype=torch.int64)
        if rank == 2:
            tensor[50, 60] = -5
        reduced = tensor.t().clone(memory_format=torch.preserve_format)
        dist.all_reduce(reduced, op=ReduceOp.MIN)
        assert reduced[60, 50] == -5 and reduced.count_nonzero() == 1
        dist.all_reduce(tensor, op=ReduceOp.MAX)
        assert not tensor.any()
        empty = torch.empty(0, dtype=torch.int32)
        dist.all_reduce(empty, op=ReduceOp.BXOR)

    ranks.run(on_rank)


def test_averages_of_integers_lose_their_fractions():
    """As NCCL's: the exact sum, divided towards zero."""

    def check(rank, dtype, size):
        group = dist.new_group(list(range(size)))
        if rank >= size:
            return
        least, greatest = torch.iinfo(dtype).min // (2 * size), torch.iinfo(dtype).max // (2 * size)
        generator = torch.Generator().manual_seed(7)
        of_ranks = [
            torch.randint(least, greatest, (size * 750,), dtype=dtype, generator=generator) for _ in range(size)
        ]
        for r, values in enumerate(of_ranks):
            values[:20] = torch.arange(-10, 10) * (1 if r == 0 else 0)  # sums of both signs that do not divide
        mine = of_ranks[rank]
        mean = torch.stack(of_ranks).sum(0, dtype=dtype).div(size, rounding_mode="trunc")
        part = slice(rank * 750, (rank + 1) * 750)
        options = {"op": ReduceOp.AVG, "group": group}

        averaged = mine.clone()
        dist.all_reduce(averaged, **options)
        assert torch.equal(averaged, mean)
        every_third = mine.repeat_interleave(3)[::3]
        dist.all_reduce(every_third, **options)
        assert torch.equal(every_third, mean)
        averaged = mine.clone()
        dist.reduce(averaged, dst=2, **options)
        assert torch.equal(averaged, mean if rank == 2 else mine)
        averaged = torch.empty(750, dtype=dtype)
        dist.reduce_scatter_single(averaged, mine, **options)
        assert torch.equal(averaged, mean[part])
        averaged.zero_()
        dist.reduce_scatter(averaged, list(mine.split(750)), **options)
        assert torch.equal(averaged, mean[part])
        memory = mine.clone()
        several = [memory[:1], memory[1:2000], memory[1:2000], memory[2000:]]  # one of them twice
        dist.all_reduce_coalesced(several, **options)
        assert torch.equal(memory, mean)
        averaged = mine.clone()
        netsum.torch.sparse_all_reduce(averaged, **options)
        assert torch.equal(averaged, mean)
        assert torch.equal(mine, of_ranks[rank]), "an input has changed"
        assert calls("gloo", group) == {}

    ranks.run(lambda rank: [check(rank, dtype, size) for size in (WORLD_SIZE, 3) for dtype in INTEGERS])


def test_what_gloo_reduces():
    def on_rank(rank):
        everyone = range(1, WORLD_SIZE + 1)
        for dtype in (torch.float64, torch.int8, torch.uint8):
            tensor = torch.tensor([rank + 1]).to(dtype)
            dist.all_reduce(tensor, op=ReduceOp.MAX)
            assert tensor.item() == WORLD_SIZE, dtype
        for dtype in (torch.float32, torch.int32):
            tensor = torch.tensor([rank + 1]).to(dtype)
            dist.all_reduce(tensor, op=ReduceOp.PRODUCT)
            assert tensor.item() == math.prod(everyone), dtype
        assert calls() == {} and calls("gloo") == {"all_reduce": 5}
        for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
            with pytest.raises((RuntimeError, ValueError)):
                dist.all_reduce(torch.ones(3), op=op)
        assert netsum.torch.stats()["operations_submitted"] == 5  # those that announce the calls

    ranks.run(on_rank)
