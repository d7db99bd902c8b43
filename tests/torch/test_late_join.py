"""Groups beside the default one: what they cost while they have not joined the network, and that they compute and fail as if they had."""

import os
import pathlib
import signal
import time

import netsum.torch
import pytest
import ranks
import torch.distributed as dist

import torch

GROUPS = 20
LARGE = 5000  # elements; 4096 bytes do not make a group join
TIMEOUT_S = 60


def has_joined(group):
    return "not joined" not in netsum.torch.describe(group)


def resources():
    """(descriptors, threads, KiB) of this process."""
    rollup = pathlib.Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    own = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Private_"))
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), own


def make_groups(count):
    groups = []
    for _ in range(count):
        group = dist.new_group()
        ones = torch.ones(10)
        dist.all_reduce(ones, group=group)
        assert ones[0] == 2 and not has_joined(group)
        groups.append(group)
    return groups


def test_living_groups_cost_little():
    def on_rank(rank):
        kept = make_groups(1)
        before = resources()
        kept += make_groups(GROUPS)
        costs = [now - then for now, then in zip(resources(), before, strict=True)]
        ranks.meet()
        return costs

    for descriptors, threads, kib in ranks.run(on_rank, world_size=2):
        # A few threads may come and go that belong to no group.
        assert descriptors <= 6 * GROUPS, descriptors
        assert threads <= 4 * GROUPS + 4, threads
        assert kib <= 2048 * GROUPS, kib


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64])
def test_results_have_the_same_bits_before_and_after(dtype):
    def on_rank(rank):
        group = dist.new_group()

        def results():
            torch.manual_seed(rank)
            given = (torch.randn(100) * 10 ** (5 * torch.rand(100))).to(dtype)
            found = []
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
                found.append(given.clone())
                dist.all_reduce(found[-1], op, group=group)
            found.append(torch.empty(50, dtype=dtype))
            dist.reduce_scatter_single(found[-1], given, group=group)
            found.append(torch.empty(200, dtype=dtype))
            dist.all_gather_single(found[-1], given, group=group)
            found.append(given.clone())
            dist.broadcast(found[-1], group_src=1, group=group)
            dist.barrier(group=group)
            return torch.cat(found)

        before = results()
        assert not has_joined(group)
        large = torch.ones(LARGE)
        dist.all_reduce(large, group=group)
        assert large.tolist() == [2.0] * LARGE and has_joined(group)
        after = results()
        assert torch.equal(before.view(torch.uint8), after.view(torch.uint8))
        stats = netsum.torch.stats(group)
        assert stats["operations"] == stats["operations_submitted"] == 11 and stats["operations_failed"] == 0
        ranks.meet()

    ranks.run(on_rank, world_size=2)


def test_what_gloo_runs_and_objects():
    def on_rank(rank):
        group = dist.new_group()
        double = torch.full((10,), 0.5, dtype=torch.float64)
        dist.all_reduce(double, group=group)
        objects = [None, None]
        dist.all_gather_object(objects, {"rank": rank}, group=group)
        (dist.send if rank == 0 else dist.recv)(
            double, group=group, **({"group_dst": 1} if rank == 0 else {"group_src": 0})
        )
        assert double.tolist() == [1.0] * 10 and objects == [{"rank": 0}, {"rank": 1}]
        assert not has_joined(group)
        for _ in range(40):
            dist.all_reduce(torch.ones(1), group=group)
        assert has_joined(group)
        ranks.meet()

    ranks.run(on_rank, world_size=2)


def reduce_in(group, count=10, op=dist.ReduceOp.SUM, dtype=torch.float32):
    dist.all_reduce(torch.ones(count, dtype=dtype), op, group=group)


# What rank 1 calls, while rank 0 reduces ten numbers, and what the error says of it.
DIFFERENT = {
    "size": (lambda group: reduce_in(group, 11), "all_reduce(float32[11], SUM)"),
    "makes it join": (lambda group: reduce_in(group, LARGE), f"all_reduce(float32[{LARGE}], SUM)"),
    "by Gloo": (lambda group: reduce_in(group, dtype=torch.float64), "all_reduce(float64[10], SUM)"),
    "collective": (lambda group: dist.barrier(group=group), "barrier()"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_calls_that_differ(name):
    call, text = DIFFERENT[name]

    def on_rank(rank):
        group = dist.new_group()
        ranks.meet()
        with pytest.raises(netsum.torch.Error) as caught:
            (call if rank == 1 else reduce_in)(group)
        with pytest.raises(netsum.torch.Error):
            reduce_in(group)
        dist.all_reduce(torch.ones(1))  # the default group works
        ranks.meet("all have failed")
        return caught.value.code, str(caught.value), netsum.torch.error(group).code

    for code, message, broken in ranks.run(on_rank, world_size=2, timeout_s=25):
        assert code == broken == "mismatch"
        assert "rank 0 called all_reduce(float32[10], SUM)" in message and f"rank 1 called {text}" in message, message


@pytest.mark.parametrize("count", [1, LARGE])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_lost(store_port, how, count):
    def on_rank(rank):
        store = ranks.tcp_group(rank, store_port, world_size=3)
        group = dist.new_group([0, 2])
        store.set(f"pid of {rank}", str(os.getpid()))
        if rank == 0:
            victim = int(store.get("pid of 2"))
            os.kill(victim, how)
            with pytest.raises(netsum.torch.Error) as caught:
                reduce_in(group, count)
            os.kill(victim, signal.SIGKILL)
            return caught.value.code, str(caught.value)
        if rank == 2:
            time.sleep(ranks.DEADLINE_S)
        return None

    outcomes = ranks.run_all_outcomes(on_rank, world_size=3, timeout_s=TIMEOUT_S, env={"NETSUM_LIVENESS_TIMEOUT": "2"})
    assert outcomes[0].value and outcomes[0].value[0] == "peer_lost", outcomes[0]


def test_an_abort_ends_waiting_ranks():
    def on_rank(rank):
        group = dist.new_group()
        ranks.meet()
        if rank == 1:
            group.abort()
        with pytest.raises(netsum.torch.Error) as caught:
            reduce_in(group, 1 if rank == 0 else LARGE)
        ranks.meet("all have failed")
        return caught.value.code

    assert ranks.run(on_rank, world_size=3, timeout_s=TIMEOUT_S) == ["aborted"] * 3


def test_an_aggregator_that_is_lost_before_the_group_joins():
    def on_rank(rank):
        group = dist.new_group()
        reduce_in(group)
        ranks.meet()
        if rank == 0:
            os.kill(aggregator.pid, signal.SIGKILL)
        ranks.meet("it is killed")
        with pytest.raises(netsum.torch.Error) as caught:
            reduce_in(group, LARGE)
        ranks.meet("all have failed")
        return caught.value.code

    with ranks.aggregator() as aggregator:
        env = {"NETSUM_AGGREGATOR": aggregator.address, "NETSUM_CONNECT_TIMEOUT": "2"}
        codes = ranks.run(on_rank, world_size=2, timeout_s=TIMEOUT_S, env=env)
    assert codes == ["unreachable"] * 2


def test_groups_that_are_destroyed_while_ranks_differ_in_pace():
    def on_rank(rank):
        for i in range(10):
            group = dist.new_group()
            work = dist.all_reduce(torch.ones(LARGE if i % 3 == 0 else 1), group=group, async_op=True)
            if rank == 1:
                time.sleep(0.02)
            work.wait()
            dist.destroy_process_group(group)

    ranks.run(on_rank, world_size=2)
