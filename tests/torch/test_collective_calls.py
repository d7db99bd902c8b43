"""Collectives in the network: order, overlap with what Gloo runs, sub-groups, PyTorch's layers above, and invalid calls."""

import datetime
import time

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from ranks import WORLD_SIZE, calls

import torch


def test_many_in_flight_of_both_kinds():
    """Also calls that Gloo runs, which have an order of their own, with the ranks out of step."""

    def on_rank(rank):
        generator = torch.Generator().manual_seed(11)
        sizes = torch.randint(1, 9000, (24,), generator=generator).tolist()
        works, checks = [], []

        def expect(tensor, value):
            checks.append((tensor, torch.full_like(tensor, value)))

        for i, size in enumerate(sizes):
            if i % 5 == rank:
                time.sleep(0.02)
            root = i % WORLD_SIZE
            tensor = torch.full((size,), float(rank))
            works.append(dist.broadcast(tensor, src=root, async_op=True))
            expect(tensor, root)
            biggest = torch.full((7,), float(rank), dtype=torch.float64)
            works.append(dist.all_reduce(biggest, op=dist.ReduceOp.MAX, async_op=True))
            expect(biggest, WORLD_SIZE - 1)
            flat = torch.empty(WORLD_SIZE * size)
            works.append(dist.all_gather_single(flat, torch.full((size,), float(rank)), async_op=True))
            for r, part in enumerate(flat.chunk(WORLD_SIZE)):
                expect(part, r)
            exchanged = torch.empty(WORLD_SIZE)
            works.append(dist.all_to_all_single(exchanged, torch.full((WORLD_SIZE,), float(i)), async_op=True))
            expect(exchanged, i)
            part = torch.empty(size)
            works.append(dist.reduce_scatter_single(part, torch.ones(WORLD_SIZE * size), async_op=True))
            expect(part, WORLD_SIZE)
            received = torch.empty(3)
            works.append(dist.isend(torch.full((3,), float(i)), (rank + 1) % WORLD_SIZE))
            works.append(dist.irecv(received, (rank - 1) % WORLD_SIZE))
            expect(received, i)
            total = torch.ones(size)
            works.append(dist.all_reduce(total, async_op=True))
            expect(total, WORLD_SIZE)
            works.append(dist.barrier(async_op=True))
        for work in reversed(works):
            work.wait()
        for tensor, expected in checks:
            assert torch.equal(tensor, expected)
        counts = calls("gloo")
        assert set(counts) == {"all_reduce", "all_to_all_single", "send", "recv"}
        assert set(counts.values()) == {len(sizes)}

    ranks.run(on_rank)


def test_a_barrier_waits_for_every_rank():
    def on_rank(rank):
        store = dist.distributed_c10d._get_default_store()
        for name, run in {
            "blocking": dist.barrier,
            "asynchronous": lambda: dist.barrier(async_op=True).wait(),
        }.items():
            time.sleep(0.1 * rank)
            store.set(f"{name}/{rank}", "here")
            run()
            assert store.check([f"{name}/{r}" for r in range(WORLD_SIZE)])
        before = netsum.torch.stats()["operations"]
        dist.barrier()
        assert netsum.torch.stats()["operations"] == before and calls()["barrier"] == 3 and not calls("gloo")

    ranks.run(on_rank)


def test_sub_groups():
    def on_rank(rank):
        halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        mine, members = halves[rank % 2], [rank % 2, rank % 2 + 2]
        tensor, everywhere = torch.full((5000,), float(rank)), torch.full((5000,), float(rank))
        works = [
            dist.broadcast(tensor, src=members[1], group=mine, async_op=True),
            dist.broadcast(everywhere, src=1, async_op=True),
        ]
        flat = torch.empty(10_000)
        works.append(dist.all_gather_single(flat, torch.full((5000,), float(rank)), group=mine, async_op=True))
        part = torch.empty(5000)
        both = torch.ones(10_000) * (rank + 1)
        works.append(dist.reduce_scatter_single(part, both, op=dist.ReduceOp.AVG, group=mine, async_op=True))
        at_root = [torch.empty(2) for _ in members] if rank == members[1] else None
        works.append(dist.gather(torch.full((2,), float(rank)), at_root, dst=members[1], group=mine, async_op=True))
        for work in works:
            work.wait()
        assert torch.all(tensor == members[1]) and torch.all(everywhere == 1)
        assert torch.equal(flat, torch.tensor(members, dtype=torch.float32).repeat_interleave(5000))
        assert torch.all(part == sum(members) / 2 + 1)
        assert at_root is None or [t[0].item() for t in at_root] == members
        assert sum(calls("netsum", mine).values()) == 4 and not calls("gloo", mine)

    ranks.run(on_rank)


def test_group_of_one():
    def on_rank(_rank):
        tensor = torch.arange(10.0)
        output = torch.empty(10)
        dist.broadcast(tensor, src=0)
        dist.all_gather_single(output, tensor)
        assert torch.equal(output, tensor)
        dist.reduce_scatter_single(output, tensor * 2, op=dist.ReduceOp.PREMUL_SUM(0.5))
        assert torch.equal(output, tensor)
        dist.scatter(output, [tensor], src=0)
        dist.gather(tensor, [output], dst=0)
        dist.reduce(tensor, dst=0)
        assert torch.equal(tensor, output) and tensor.tolist() == list(range(10))

    ranks.run(on_rank, world_size=1)


def test_profiler_names_the_operations():
    def on_rank(_rank):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            dist.broadcast(torch.ones(10), src=0)
            dist.all_gather_single(torch.ones(20), torch.ones(10))
            dist.reduce_scatter_single(torch.ones(10), torch.ones(20))
            dist.barrier()
        names = {event.key for event in profile.key_averages()}
        assert {f"netsum:{name}" for name in ("broadcast", "all_gather", "reduce_scatter", "barrier")} <= names

    ranks.run(on_rank, world_size=2)


def with_checking_layer():
    def on_rank(rank):
        assert dist.get_debug_level() == dist.DebugLevel.DETAIL
        assert dist.group.WORLD._get_backend(torch.device("cpu")).wrapped_pg is netsum.torch._group.backend_of(None)
        total = torch.full((100,), float(rank))
        dist.all_reduce(total)
        assert total[0] == sum(range(WORLD_SIZE)) and netsum.torch.stats()["operations"] == 1
        tensor = torch.full((100,), float(rank))
        dist.broadcast(tensor, src=1)
        gathered = [torch.empty(100) for _ in range(WORLD_SIZE)]
        dist.all_gather(gathered, torch.full((100,), float(rank)))
        part = torch.empty(25)
        dist.reduce_scatter_single(part, tensor)
        dist.barrier()
        assert tensor[0] == 1.0 and [t[0].item() for t in gathered] == list(range(WORLD_SIZE))
        assert torch.all(part == WORLD_SIZE)
        assert set(calls()) == {"all_reduce", "broadcast", "all_gather", "reduce_scatter_tensor", "barrier"}

    ranks.run(on_rank)


@pytest.mark.network
def test_checking_layer_of_pytorch():
    """TORCH_DISTRIBUTED_DEBUG=DETAIL, which PyTorch reads when it is imported."""
    level = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        with_checking_layer()
    finally:
        dist.set_debug_level(level)


# --- Invalid calls ------------------------------------------------------------------------------------------------

INVALID = {
    "no such root": lambda: dist.group.WORLD.broadcast([torch.ones(3)], root_of(WORLD_SIZE, dist.BroadcastOptions())),
    "negative root": lambda: dist.group.WORLD.reduce([torch.ones(3)], root_of(-1, dist.ReduceOptions())),
    "lists of the wrong length": lambda: dist.all_gather([torch.ones(3)], torch.ones(3)),
    "wrong total": lambda: dist.all_gather_single(torch.empty(3 * WORLD_SIZE + 1), torch.ones(3)),
    "another size of its own part": lambda: dist.all_gather([torch.ones(3)] * WORLD_SIZE, torch.ones(4)),
    "does not divide": lambda: dist.reduce_scatter_single(torch.empty(3), torch.ones(3 * WORLD_SIZE + 1)),
    "two types": lambda: dist.all_gather_single(torch.empty(3 * WORLD_SIZE, dtype=torch.int32), torch.ones(3)),
    "two lists": lambda: dist.group.WORLD.scatter(
        [torch.ones(3)], [[torch.ones(3)] * WORLD_SIZE] * 2, root_of(dist.get_rank(), dist.ScatterOptions())
    ),
    "uneven scatter": lambda: dist.group.WORLD.scatter(
        [torch.ones(3)],
        [[torch.ones(3 + r) for r in range(WORLD_SIZE)]],
        root_of(dist.get_rank(), dist.ScatterOptions()),
    ),
}


def root_of(root, options):
    options.rootRank = root
    return options


def test_invalid_calls_are_refused_before_anything_is_sent():
    def on_rank(_rank):
        for name, call in INVALID.items():
            with pytest.raises(ValueError, match=r"netsum \w+: ") as caught:
                call()
            assert any(char.isdigit() for char in str(caught.value)) or "type" in str(caught.value), name
        expanded = torch.ones(1).expand(100)
        for call in (
            lambda: dist.broadcast(expanded, src=(dist.get_rank() + 1) % WORLD_SIZE),
            lambda: dist.all_gather_single(torch.ones(1).expand(4 * WORLD_SIZE), torch.ones(4)),
        ):
            with pytest.raises(netsum.torch.Error, match=r"clone\(\)"):
                call()
        assert netsum.torch.stats()["operations_submitted"] == 0 and calls() == {}
        ones = torch.ones(10)  # nobody is out of step
        dist.all_reduce(ones)
        assert ones[0] == WORLD_SIZE

    ranks.run(on_rank)


def test_the_timeout_of_a_call():
    def on_rank(rank):
        if rank == 1:
            while netsum.torch.error() is None:
                time.sleep(0.01)
            return None
        options = dist.BroadcastOptions()
        options.rootRank, options.timeout = 0, datetime.timedelta(seconds=1)
        with pytest.raises(netsum.torch.Error, match="Timed out") as caught:
            dist.group.WORLD.broadcast([torch.ones(10)], options).wait()
        return caught.value.code, caught.value.rank

    results = ranks.run(on_rank, timeout_s=5.0 * ranks.DEADLINE_S)
    assert results.pop(1) is None
    assert results == [("timeout", 1)] * (WORLD_SIZE - 1)
