"""Broadcast, gathers, scatters and reductions in the network: values, types, sizes, layouts, and what Gloo still reduces."""

import contextlib
import itertools
import warnings

import ranks
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from ranks import WORLD_SIZE, calls

import torch

REDUCED_TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64]
MOVED_TYPES = [
    *REDUCED_TYPES,
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2),
]
SUM_OF_RANKS = sum(range(1, WORLD_SIZE + 1))


@contextlib.contextmanager
def all_in_the_network(**expected):
    """Within it, netsum runs exactly these calls, and Gloo none."""
    before, hosts = calls(), calls("gloo")
    yield
    after = calls()
    assert {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)} == expected
    assert calls("gloo") == hosts


def any_bits(rank, dtype, count):
    """Elements of all bit patterns, also those of NaNs and subnormal numbers; different on each rank."""
    generator = torch.Generator().manual_seed(100 + rank)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    data = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return data.view(dtype)


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(bits(a), bits(b))


# --- Byte transfers ------------------------------------------------------------------------------------------------


def test_bytes_of_every_type_arrive():
    def on_rank(rank):
        for count, dtype in itertools.product((1, 5, 3001), MOVED_TYPES):
            of_rank = [any_bits(r, dtype, count) for r in range(WORLD_SIZE)]
            mine = of_rank[rank]
            expected = {
                "broadcast": WORLD_SIZE,
                "all_gather": 1,
                "all_gather_into_tensor": 1,
                "gather": 1,
                "scatter": 1,
            }
            with all_in_the_network(**expected):
                for root in range(WORLD_SIZE):
                    tensor = mine.clone()
                    dist.broadcast(tensor, src=root)
                    assert same_bits(tensor, of_rank[root]), (dtype, root)
                gathered = [torch.empty_like(mine) for _ in range(WORLD_SIZE)]
                dist.all_gather(gathered, mine)
                assert all(map(same_bits, gathered, of_rank)), dtype
                flat = torch.empty(WORLD_SIZE * count, dtype=dtype)
                dist.all_gather_single(flat, mine)
                assert torch.equal(bits(flat), torch.cat([bits(t) for t in of_rank])), dtype
                at_root = [torch.empty_like(mine) for _ in range(WORLD_SIZE)] if rank == 1 else None
                dist.gather(mine, at_root, dst=1)
                assert rank != 1 or all(map(same_bits, at_root, of_rank)), dtype
                tensor = torch.empty_like(mine)
                dist.scatter(tensor, of_rank if rank == 2 else None, src=2)
                assert same_bits(tensor, mine), dtype

    ranks.run(on_rank)


def test_the_same_large_tensors_as_gloo():
    def on_rank(rank):
        generator = torch.Generator().manual_seed(rank)
        mine = torch.randn(300_007, generator=generator)
        broadcast = mine.clone()
        dist.broadcast(broadcast, src=3)
        flat = torch.empty(WORLD_SIZE * len(mine))
        dist.all_gather_single(flat, mine)
        scattered = torch.empty(75_001)
        parts = [torch.randn(75_001, generator=generator) for _ in range(WORLD_SIZE)]
        dist.scatter(scattered, parts if rank == 0 else None, src=0)
        return broadcast, flat, scattered

    ours, gloo = (ranks.run(on_rank, backend=backend) for backend in ("netsum", "gloo"))
    for mine, theirs in zip(ours, gloo, strict=True):
        assert all(map(torch.equal, mine, theirs))


def test_uneven_parts():
    sizes = [5, 0, 4000, 1]

    def on_rank(rank):
        with all_in_the_network(all_gather=1, reduce_scatter=1):
            gathered = [torch.full((size,), -1.0) for size in sizes]
            dist.all_gather(gathered, torch.full((sizes[rank],), float(rank)))
            assert [t.tolist() for t in gathered] == [[float(r)] * size for r, size in enumerate(sizes)]
            part = torch.empty(sizes[rank])
            dist.reduce_scatter(part, [torch.full((size,), float(rank + r)) for r, size in enumerate(sizes)])
            assert part.tolist() == [sum(range(WORLD_SIZE)) + float(WORLD_SIZE * rank)] * sizes[rank]

    ranks.run(on_rank)


def test_empty_tensors():
    def on_rank(rank):
        empty = torch.empty(0, 3)
        dist.broadcast(empty, src=1)
        dist.all_gather([torch.empty(0, 3) for _ in range(WORLD_SIZE)], empty)
        dist.all_gather_single(torch.empty(0), torch.empty(0))
        dist.gather(empty, [torch.empty(0, 3) for _ in range(WORLD_SIZE)] if rank == 0 else None, dst=0)
        dist.scatter(empty, [torch.empty(0, 3) for _ in range(WORLD_SIZE)] if rank == 0 else None, src=0)
        dist.reduce(empty, dst=0)
        dist.reduce_scatter_single(torch.empty(0), torch.empty(0))
        tensor = torch.full((1,), float(rank))
        dist.broadcast(tensor, src=2)  # all are still in step
        assert tensor.item() == 2.0

    ranks.run(on_rank)


def test_layouts_that_are_not_contiguous():
    base = torch.arange(24.0).reshape(4, 6)
    other = torch.full((4, 12), -1.0)

    def of(rank):
        return base * (rank + 1)

    def on_rank(rank):
        tensor = of(rank).t()
        dist.broadcast(tensor, src=1)
        assert torch.equal(tensor, of(1).t())
        tensor = other.clone()[:, ::2]  # the gaps stay as they are
        whole = tensor._base
        if rank == 2:
            tensor.copy_(of(2))
        dist.broadcast(tensor, src=2)
        assert torch.equal(whole[:, ::2], of(2)) and torch.all(whole[:, 1::2] == -1.0)

        expanded = torch.full((1,), float(rank)).expand(10)  # may be read, though not written
        gathered = [torch.empty(10, 2)[:, 0] for _ in range(WORLD_SIZE)]
        dist.all_gather(gathered, expanded)
        assert [t.tolist() for t in gathered] == [[float(r)] * 10 for r in range(WORLD_SIZE)]
        flat = torch.empty(WORLD_SIZE * 24, 2)[:, 0]
        dist.all_gather_single(flat, of(rank).t())
        assert torch.equal(flat, torch.cat([of(r).t().reshape(-1) for r in range(WORLD_SIZE)]))

        part = torch.empty(6, 4).t()
        dist.scatter(part, [of(r).t().reshape(4, 6) for r in range(WORLD_SIZE)] if rank == 3 else None, src=3)
        assert torch.equal(part, of(rank).t().reshape(4, 6))
        dist.reduce_scatter(part, [of(rank + r).t().contiguous().t() for r in range(WORLD_SIZE)])
        assert torch.equal(part, base * (SUM_OF_RANKS + WORLD_SIZE * rank))
        tensor = of(rank).t()
        dist.reduce(tensor, dst=0)
        assert torch.equal(tensor, base.t() * SUM_OF_RANKS if rank == 0 else of(rank).t())

    ranks.run(on_rank)


def test_the_input_may_be_the_ranks_part_of_the_output():
    def on_rank(rank):
        flat = torch.full((WORLD_SIZE * 1000,), -1.0)  # as FSDP calls it
        own = flat[rank * 1000 : (rank + 1) * 1000]
        own.fill_(float(rank))
        dist.all_gather_single(flat, own)
        assert torch.equal(flat, torch.arange(float(WORLD_SIZE)).repeat_interleave(1000))

        flat.fill_(-1.0)
        own.fill_(float(rank))
        dist.all_gather(list(flat.chunk(WORLD_SIZE)), own)
        assert torch.equal(flat, torch.arange(float(WORLD_SIZE)).repeat_interleave(1000))

        flat.copy_(torch.arange(float(WORLD_SIZE)).repeat_interleave(1000))
        dist.reduce_scatter_single(own, flat)
        assert torch.all(own == WORLD_SIZE * rank)
        others = torch.cat([flat[: rank * 1000], flat[(rank + 1) * 1000 :]])
        expected = [float(r) for r in range(WORLD_SIZE) if r != rank]
        assert torch.equal(others, torch.tensor(expected).repeat_interleave(1000))

    ranks.run(on_rank)


def test_tensors_that_overlap():
    def on_rank(rank):
        # Moved by one element: what is written would be read again.
        flat = torch.full((WORLD_SIZE * 1000 + 1,), float(rank))
        dist.all_gather_single(flat[1:], flat[:1000])
        assert torch.equal(flat[1:], torch.arange(float(WORLD_SIZE)).repeat_interleave(1000))
        # One tensor several times: the last of the list is what stays.
        tensor = torch.empty(1000)
        dist.all_gather([tensor] * WORLD_SIZE, torch.full((1000,), float(rank)))
        assert torch.all(tensor == WORLD_SIZE - 1)
        flat = torch.arange(WORLD_SIZE * 1000.0)
        dist.reduce_scatter_single(flat[500:1500], flat)
        assert torch.equal(flat[500:1500], WORLD_SIZE * torch.arange(rank * 1000.0, (rank + 1) * 1000.0))
        dist.scatter(tensor, [tensor.fill_(7.0)] * WORLD_SIZE if rank == 0 else None, src=0)
        assert torch.all(tensor == 7.0)

    ranks.run(on_rank)


# --- Reductions -------------------------------------------------------------------------------------------------

PREMUL = dist.ReduceOp.PREMUL_SUM


# Operators, the types that have them, and by what a sum is multiplied.
REDUCTIONS = {
    "sum": (lambda: dist.ReduceOp.SUM, REDUCED_TYPES, 1.0),
    "avg": (lambda: dist.ReduceOp.AVG, REDUCED_TYPES[:3], 1.0 / WORLD_SIZE),
    "premul_sum": (lambda: PREMUL(0.25), REDUCED_TYPES[:3], 0.25),
    "premul_sum_tensor": (lambda: PREMUL(torch.tensor([0.5])), REDUCED_TYPES[:3], 0.5),
}


def test_reductions():
    count = 1003

    def check(rank, name, dtype):
        op, _, factor = REDUCTIONS[name]
        mine = torch.full((count,), float(4 * (rank + 1))).to(dtype)
        total = torch.full((count,), 4 * SUM_OF_RANKS * factor).to(dtype)
        with all_in_the_network(all_reduce=1, reduce=1, reduce_scatter=1, reduce_scatter_tensor=1):
            tensor = mine.clone()
            dist.all_reduce(tensor, op=op())
            assert torch.equal(tensor, total), (name, dtype)
            tensor = mine.clone()
            dist.reduce(tensor, dst=2, op=op())
            assert torch.equal(tensor, total if rank == 2 else mine), (name, dtype)
            inputs = [mine * (r + 1) for r in range(WORLD_SIZE)]
            kept = [t.clone() for t in inputs]
            part = torch.empty_like(mine)
            dist.reduce_scatter(part, inputs, op=op())
            assert torch.equal(part, total * (rank + 1)), (name, dtype)
            part.zero_()
            dist.reduce_scatter_single(part, torch.cat(inputs), op=op())
            assert torch.equal(part, total * (rank + 1)), (name, dtype)
        assert all(map(torch.equal, inputs, kept)), f"{name}, {dtype}: the inputs have changed"

    def on_rank(rank):
        for name, (_, types, _) in REDUCTIONS.items():
            for dtype in types:
                check(rank, name, dtype)

    ranks.run(on_rank)


def test_random_reduce_scatter_against_exact_sums():
    count = 20_011

    def on_rank(rank):
        values = [
            torch.randn(WORLD_SIZE * count, generator=torch.Generator().manual_seed(r)) for r in range(WORLD_SIZE)
        ]
        part = torch.empty(count)
        dist.reduce_scatter_single(part, values[rank])
        inputs = torch.stack(values).double()[:, rank * count : (rank + 1) * count]
        bound = (WORLD_SIZE - 1) * 2.0**-24 * inputs.abs().sum(0)  # docs/numerics.md#floats
        assert ((part.double() - inputs.sum(0)).abs() <= bound).all()
        reduced = values[rank].clone()
        dist.all_reduce(reduced)
        return torch.equal(part, reduced[rank * count : (rank + 1) * count]), part

    results = ranks.run(on_rank)
    assert all(same for same, _ in results), "a reduce-scatter has other bits than an all-reduce"
    assert not torch.equal(results[0][1], results[1][1])


def test_what_gloo_still_reduces():
    def on_rank(rank):
        before = calls()
        ones = torch.ones(3, dtype=torch.float64)
        dist.reduce(ones, dst=0)
        assert rank != 0 or ones.tolist() == [WORLD_SIZE] * 3
        part = torch.empty(1, dtype=torch.float64)
        dist.reduce_scatter_single(part, torch.ones(WORLD_SIZE, dtype=torch.float64))
        assert part.item() == WORLD_SIZE
        tensor = torch.tensor([float(rank)])
        dist.reduce(tensor, dst=1, op=dist.ReduceOp.PRODUCT)
        assert calls() == before
        assert calls("gloo") == {"reduce": 2, "reduce_scatter_tensor": 1}

    ranks.run(on_rank)


# --- Several tensors in one call ------------------------------------------------------------------------------------


def test_coalesced_calls():
    sizes = [1, 700, 33]

    def on_rank(rank):
        inputs = [torch.full((size,), float(rank + size)) for size in sizes]
        with all_in_the_network(
            all_gather_into_tensor_coalesced=1, reduce_scatter_tensor_coalesced=1, all_gather_coalesced=2
        ):
            outputs = [torch.empty(WORLD_SIZE * size) for size in sizes]
            with dist._coalescing_manager():
                for output, tensor in zip(outputs, inputs, strict=True):
                    dist.all_gather_single(output, tensor)
            for output, size in zip(outputs, sizes, strict=True):
                expected = torch.tensor([float(r + size) for r in range(WORLD_SIZE)]).repeat_interleave(size)
                assert torch.equal(output, expected)
            parts = [torch.empty(size) for size in sizes]
            with dist._coalescing_manager(async_ops=True) as manager:
                for part, size in zip(parts, sizes, strict=True):
                    dist.reduce_scatter_single(part, torch.arange(float(WORLD_SIZE)).repeat_interleave(size))
            manager.wait()
            assert [part.tolist() for part in parts] == [[float(WORLD_SIZE * rank)] * size for size in sizes]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # all_gather_coalesced() is deprecated
                lists = [[torch.empty(size) for size in sizes] for _ in range(WORLD_SIZE)]
                dist.all_gather_coalesced(lists, inputs)
                again = [[torch.empty(size) for size in sizes] for _ in range(WORLD_SIZE)]
                value = dist.all_gather_coalesced(again, inputs, async_op=True).wait()
        for r, of_rank in enumerate(lists):
            assert [t.tolist() for t in of_rank] == [[float(r + size)] * size for size in sizes]
            assert all(map(torch.equal, value[r], of_rank))

    ranks.run(on_rank)


def test_futures_and_results():
    def on_rank(rank):
        mine = torch.full((10,), float(rank))
        gathered = [torch.empty(10) for _ in range(WORLD_SIZE)]
        works = [
            dist.broadcast(mine.clone(), src=1, async_op=True),
            dist.all_gather(gathered, mine, async_op=True),
            dist.reduce_scatter_single(torch.empty(10), torch.ones(10 * WORLD_SIZE), async_op=True),
            dist.gather(mine, gathered if rank == 0 else None, dst=0, async_op=True),
            dist.barrier(async_op=True),
        ]
        values = [work.get_future().then(lambda future: [t.tolist() for t in future.value()]).wait() for work in works]
        assert values[0] == [[1.0] * 10]
        assert values[1] == [[float(r)] * 10 for r in range(WORLD_SIZE)]
        assert values[2] == [[float(WORLD_SIZE)] * 10]
        assert values[3] == (values[1] if rank == 0 else [])
        assert values[4] == []
        for work, value in zip(works, values, strict=True):
            work.wait()
            assert work.is_completed() and work.is_success()
            assert [t.tolist() for t in work.result()] == value

    ranks.run(on_rank)


def test_objects():
    def on_rank(rank):
        mine = {"rank": rank, "text": "x" * (100 * rank)}
        everyone = [{"rank": r, "text": "x" * (100 * r)} for r in range(WORLD_SIZE)]
        gathered = [None] * WORLD_SIZE
        dist.all_gather_object(gathered, mine)
        assert gathered == everyone
        gathered = [None] * WORLD_SIZE if rank == 2 else None
        dist.gather_object(mine, gathered, dst=2)
        assert rank != 2 or gathered == everyone
        holder = [mine]
        dist.broadcast_object_list(holder, src=3)
        assert holder == [everyone[3]]
        holder = [None]
        dist.scatter_object_list(holder, everyone if rank == 1 else None, src=1)
        assert holder == [mine]
        assert calls("gloo") == {}

    ranks.run(on_rank)


def test_functional_collectives():
    def on_rank(rank):
        group = dist.group.WORLD
        mine = torch.full((6, 2), float(rank + 1))
        expected = {"all_gather_into_tensor_coalesced": 1, "reduce_scatter_tensor_coalesced": 1}
        with all_in_the_network(**expected, broadcast=1, all_reduce=1):
            gathered = functional.all_gather_single(mine, 0, group)
            reduced = functional.reduce_scatter_single(torch.ones(WORLD_SIZE * 3), "avg", 0, group)
            sent = functional.broadcast(mine, 2, group)
            total = functional.all_reduce(mine, "sum", group)
            assert torch.equal(gathered[:, 0], torch.arange(1.0, WORLD_SIZE + 1).repeat_interleave(6))
            assert reduced.tolist() == [1.0] * 3
            assert torch.all(sent == 3.0) and torch.all(total == SUM_OF_RANKS)

    ranks.run(on_rank)


def test_all_sizes_around_a_packet():
    """Parts that end at, before and after the end of a packet and of a 64-bit word."""
    sizes = [*range(1, 18), *(payload + d for payload, d in itertools.product((1440, 2880), (-9, -1, 0, 1, 7, 8)))]

    def on_rank(rank):
        for size in sizes:
            mine = any_bits(rank, torch.uint8, size)
            flat = torch.empty(2 * size, dtype=torch.uint8)
            dist.all_gather_single(flat, mine)
            assert torch.equal(flat, torch.cat([any_bits(r, torch.uint8, size) for r in range(2)])), size

    ranks.run(on_rank, world_size=2)
