"""Every failure ends in a clear error on every rank, within the deadline, and nothing hangs."""

import datetime
import os
import re
import signal
import socket
import time
import types
import warnings

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from netsum.torch import _C, _rendezvous
from ranks import WORLD_SIZE
from torch.nn.parallel import DistributedDataParallel

import torch

# A failure must be noticed by other means than this deadline of an operation: ranks.py kills those that wait for it.
LONG_TIMEOUT_S = 5.0 * ranks.DEADLINE_S


def ping_until_error(rank):
    """Sums until something breaks; the error that it gives."""
    while True:
        dist.all_reduce(torch.ones(1000))


def assert_all_failed(outcomes, *, codes):
    for rank, outcome in enumerate(outcomes):
        assert outcome.error_type == "Error", f"rank {rank}: {outcome.error or outcome.value}"
        assert outcome.code in codes, f"rank {rank}: {outcome.error}"


@pytest.mark.parametrize(
    "tensor_of",
    [
        pytest.param(lambda rank: torch.ones(100 + (rank == 2)), id="size"),
        pytest.param(lambda rank: torch.ones(100, dtype=torch.int32 if rank == 2 else torch.float32), id="type"),
    ],
)
def test_mismatch_is_told_to_every_rank(tensor_of):
    outcomes = ranks.run_all_outcomes(lambda rank: dist.all_reduce(tensor_of(rank)), timeout_s=LONG_TIMEOUT_S)
    assert_all_failed(outcomes, codes={"mismatch"})


def test_mismatch_of_operation():
    def on_rank(rank):
        dist.all_reduce(torch.ones(10), op=dist.ReduceOp.AVG if rank == 1 else dist.ReduceOp.SUM)

    assert_all_failed(ranks.run_all_outcomes(on_rank, timeout_s=LONG_TIMEOUT_S), codes={"mismatch"})


def options_with_root(options, root):
    options.rootRank = root
    return options


# What rank 2 calls differently from the others.
DIFFERENT_CALLS = {
    "root of broadcast": lambda odd: dist.broadcast(torch.ones(100), src=1 if odd else 0),
    "root of reduce": lambda odd: dist.reduce(torch.ones(100), dst=1 if odd else 0),
    "root of gather": lambda odd: dist.group.WORLD.gather(
        [[torch.ones(100) for _ in range(WORLD_SIZE)]] if odd or dist.get_rank() == 0 else [],
        [torch.ones(100)],
        options_with_root(dist.GatherOptions(), 2 if odd else 0),
    ).wait(),
    "size of broadcast": lambda odd: dist.broadcast(torch.ones(100 + odd), src=0),
    "size of all_gather": lambda odd: dist.all_gather_single(
        torch.empty(WORLD_SIZE * (100 + odd)), torch.ones(100 + odd)
    ),
    "uneven sizes of all_gather": lambda odd: dist.all_gather(
        [torch.empty(100 + (odd and r == 0)) for r in range(WORLD_SIZE)], torch.ones(100)
    ),
    "size of reduce_scatter": lambda odd: dist.reduce_scatter_single(
        torch.empty(100 + odd), torch.ones(WORLD_SIZE * (100 + odd))
    ),
    "type of broadcast": lambda odd: dist.broadcast(
        torch.ones(100, dtype=torch.int32 if odd else torch.float32), src=0
    ),
    "type of reduce_scatter": lambda odd: dist.reduce_scatter_single(
        torch.empty(100, dtype=torch.int32 if odd else torch.float32),
        torch.ones(WORLD_SIZE * 100, dtype=torch.int32 if odd else torch.float32),
    ),
    "operator of reduce_scatter": lambda odd: dist.reduce_scatter_single(
        torch.empty(100), torch.ones(WORLD_SIZE * 100), op=dist.ReduceOp.AVG if odd else dist.ReduceOp.SUM
    ),
    "integers summed or averaged": lambda odd: dist.all_reduce(
        torch.ones(100, dtype=torch.int64), op=dist.ReduceOp.AVG if odd else dist.ReduceOp.SUM
    ),
    "a factor or none": lambda odd: dist.all_reduce(
        torch.ones(100), op=dist.ReduceOp.PREMUL_SUM(0.5) if odd else dist.ReduceOp.SUM
    ),
    "minimum or maximum": lambda odd: dist.all_reduce(
        torch.ones(100), op=dist.ReduceOp.MIN if odd else dist.ReduceOp.MAX
    ),
    "OR or sum": lambda odd: dist.all_reduce(
        torch.ones(100, dtype=torch.int32), op=dist.ReduceOp.SUM if odd else dist.ReduceOp.BOR
    ),
    "collective": lambda odd: dist.all_reduce(torch.ones(100)) if odd else dist.broadcast(torch.ones(100), src=0),
    "broadcast or barrier": lambda odd: dist.barrier() if odd else dist.broadcast(torch.ones(100), src=0),
}


@pytest.mark.parametrize("name", DIFFERENT_CALLS)
def test_calls_that_differ_are_a_mismatch_on_every_rank(name):
    def on_rank(rank):
        ranks.meet()  # or a slow rank hears of the mismatch while it makes the group
        DIFFERENT_CALLS[name](int(rank == 2))

    outcomes = ranks.run_all_outcomes(on_rank, timeout_s=LONG_TIMEOUT_S)
    assert_all_failed(outcomes, codes={"mismatch"})


COLLECTIVES = {
    "broadcast": lambda n: dist.broadcast(torch.ones(n), src=0),
    "all_gather": lambda n: dist.all_gather_single(torch.empty(WORLD_SIZE * n), torch.ones(n)),
    "reduce_scatter": lambda n: dist.reduce_scatter_single(torch.empty(n), torch.ones(WORLD_SIZE * n)),
    "reduce": lambda n: dist.reduce(torch.ones(n), dst=0),
    "gather": lambda n: dist.gather(
        torch.ones(n), [torch.empty(n) for _ in range(WORLD_SIZE)] if dist.get_rank() == 0 else None, dst=0
    ),
    "scatter": lambda n: dist.scatter(
        torch.ones(n), [torch.ones(n) for _ in range(WORLD_SIZE)] if dist.get_rank() == 0 else None, src=0
    ),
    "barrier": lambda n: dist.barrier(),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_absent_rank_times_out_in(name):
    def on_rank(rank):
        if rank == 3:
            while netsum.torch.error() is None:  # stays until the others have given up
                time.sleep(0.01)
            return "absent"
        with pytest.raises(netsum.torch.Error, match=f"netsum {name}.*Timed out") as caught:
            COLLECTIVES[name](1000)
        return caught.value.code, caught.value.rank

    outcomes = ranks.run_all_outcomes(on_rank, timeout_s=2.0)
    assert [o.value for o in outcomes] == [("timeout", 3)] * 3 + ["absent"], outcomes


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_rank_that_is_killed_in(name):
    def on_rank(rank):
        COLLECTIVES[name](10)
        if rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            COLLECTIVES[name](200_000)

    outcomes = ranks.run_all_outcomes(on_rank, timeout_s=LONG_TIMEOUT_S)
    assert outcomes.pop(2).exit_code == -signal.SIGKILL
    assert_all_failed(outcomes, codes={"peer_lost"})


def test_absent_rank_times_out():
    def on_rank(rank):
        if rank == 3:
            time.sleep(6)
            return "absent"
        with pytest.raises(netsum.torch.Error, match=r"(?s)Timed out.*timeout|timeout.*Timed out") as caught:
            dist.all_reduce(torch.ones(10))
        assert isinstance(caught.value, dist.DistBackendError)
        # Long after the heartbeats that tell it.
        place = r"rank 3 has not submitted operation \d+; its main thread is at test_errors\.py:\d+ in on_rank"
        assert re.search(place, str(caught.value)), caught.value
        return caught.value.code, caught.value.rank

    outcomes = ranks.run_all_outcomes(on_rank, timeout_s=4.0, env={"NETSUM_LIVENESS_TIMEOUT": "0.8"})
    assert [o.value for o in outcomes] == [("timeout", 3)] * 3 + ["absent"], outcomes


def test_wait_with_its_own_timeout():
    def on_rank(rank):
        if rank == 1:
            time.sleep(3)
        tensor = torch.ones(10)
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 0:
            with pytest.raises(RuntimeError, match="timed out"):
                work.wait(datetime.timedelta(seconds=0.2))
        work.wait()  # the operation itself went on
        return tensor[0].item()

    assert ranks.run(on_rank, world_size=2) == [2.0, 2.0]


HOOKS = {
    "ddp": lambda _: (None, netsum.torch.ddp_hook),
    "sparse": lambda _: (None, netsum.torch.sparse_ddp_hook),
    "priority": lambda model: (netsum.torch.Priorities(model), netsum.torch.priority_hook),
    "compression": lambda model: (netsum.torch.Compression(model, "bf16"), netsum.torch.compression_hook),
}


@pytest.mark.parametrize("name", HOOKS)
def test_futures_of_hooks_have_the_errors_of_other_calls(name):
    def on_rank(rank):
        model = DistributedDataParallel(torch.nn.Linear(50, 50))
        state, hook = HOOKS[name](model)
        futures = []

        def keeping(state, bucket):
            futures.append(hook(state, bucket))
            if len(futures) == 3:
                ranks.meet()  # rank 1 is lost when the sum has begun
            return futures[-1]

        model.register_comm_hook(state, keeping)
        for _ in range(2):  # in the second one, DDP makes other buckets
            model(torch.ones(2, 50)).sum().backward()
        if rank == 1:
            ranks.meet()
            os._exit(3)
        with pytest.raises(dist.DistBackendError, match="peer_lost"):
            model(torch.ones(2, 50)).sum().backward()
        with pytest.raises(netsum.torch.Error) as caught:
            futures[-1].wait()
        return caught.value.code, caught.value.rank

    outcomes = ranks.run_all_outcomes(on_rank, world_size=2, timeout_s=LONG_TIMEOUT_S)
    assert outcomes[0].value == ("peer_lost", 1), outcomes[0]


def test_after_an_error_everything_raises_it_at_once():
    def on_rank(rank):
        ranks.meet()  # or a slow rank hears of the mismatch while it makes the group
        with pytest.raises(netsum.torch.Error):
            dist.all_reduce(torch.ones(10 + rank))
        for operation in (
            lambda: dist.all_reduce(torch.ones(10)),
            lambda: dist.broadcast(torch.ones(10), src=0),
            dist.barrier,
        ):
            with pytest.raises(netsum.torch.Error) as caught:
                operation()
            assert caught.value.code == "mismatch"

    ranks.run(on_rank, timeout_s=LONG_TIMEOUT_S)


def test_error_reaches_the_future():
    def on_rank(rank):
        ranks.meet()
        work = dist.all_reduce(torch.ones(10 + rank), async_op=True)
        with pytest.raises(RuntimeError, match="mismatch"):
            work.get_future().wait()
        assert work.is_completed() and not work.is_success()

    ranks.run(on_rank, world_size=2)


@pytest.mark.parametrize("victim", [0, 2])
def test_killed_worker(victim):
    def on_rank(rank):
        dist.all_reduce(torch.ones(10))
        if rank == victim:
            os.kill(os.getpid(), signal.SIGKILL)
        ping_until_error(rank)

    outcomes = ranks.run_all_outcomes(on_rank, timeout_s=LONG_TIMEOUT_S)
    assert outcomes.pop(victim).exit_code == -signal.SIGKILL
    # With embedded shards rank 0 is also where the ranks meet.
    assert_all_failed(outcomes, codes={"peer_lost", "aggregator_lost"})


def test_worker_that_leaves_while_others_go_on():
    def on_rank(rank):
        dist.all_reduce(torch.ones(10))
        if rank == 1:
            raise KeyError("a bug in the script")  # ranks.run then destroys the group, in good order
        ping_until_error(rank)

    outcomes = ranks.run_all_outcomes(on_rank, timeout_s=LONG_TIMEOUT_S)
    assert outcomes.pop(1).error_type == "KeyError"
    assert_all_failed(outcomes, codes={"peer_lost"})


@pytest.mark.network
def test_sums_in_an_aggregator():
    with ranks.aggregator() as process:

        def on_rank(rank):
            tensor = torch.full((100_000,), float(rank))
            dist.all_reduce(tensor)
            assert tensor[0] == sum(range(WORLD_SIZE)) and "aggregator" in netsum.torch.describe()
            stats = netsum.torch.stats()
            assert stats["shard_bytes_received"] == 0 and 400_000 < stats["bytes_sent"] < 500_000
            return process.address in netsum.torch.describe()

        # All of it there, though it is slower than with the ranks' own shards.
        env = {"NETSUM_AGGREGATOR": process.address, "NETSUM_SHARES": "off"}
        assert ranks.run(on_rank, env=env) == [True] * WORLD_SIZE


def test_killed_aggregator():
    with ranks.aggregator() as process:

        def on_rank(rank):
            dist.all_reduce(torch.ones(10))
            if rank == 0:
                os.kill(process.pid, signal.SIGKILL)
            ping_until_error(rank)

        outcomes = ranks.run_all_outcomes(on_rank, timeout_s=LONG_TIMEOUT_S, env={"NETSUM_AGGREGATOR": process.address})
        assert_all_failed(outcomes, codes={"aggregator_lost"})


@pytest.mark.network
def test_an_aggregator_without_room_for_a_second_group():
    with ranks.aggregator("--slots", "512") as process:  # a group takes 272
        env = {"NETSUM_AGGREGATOR": process.address}

        def on_rank(rank):
            second = dist.new_group()
            for group in (None, second):
                tensor = torch.full((2000,), float(rank))  # the second group joins for it
                dist.all_reduce(tensor, group=group)
                assert tensor[0] == sum(range(WORLD_SIZE))
            return netsum.torch.describe(), netsum.torch.describe(second)

        for first, second in ranks.run(on_rank, env={**env, "NETSUM_WHEN_FULL": "hosts"}):
            assert process.address in first
            assert "embedded shards" in second and re.search("are free|no room", second)
        assert_all_failed(ranks.run_all_outcomes(on_rank, env=env), codes={"resource_exhausted"})


@pytest.mark.network
def test_absent_aggregator():
    # A port that nobody listens on: bound, so that nobody else can take it, but not listening.
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        outcomes = ranks.run_all_outcomes(
            lambda rank: None, env={"NETSUM_AGGREGATOR": address, "NETSUM_CONNECT_TIMEOUT": "2"}
        )
    assert_all_failed(outcomes, codes={"unreachable", "timeout"})
    assert all(address in outcome.error for outcome in outcomes)


@pytest.mark.network
def test_wrong_aggregator_token():
    with ranks.aggregator(env={"NETSUM_AGGREGATOR_TOKEN": "right"}) as process:
        settings = {"NETSUM_AGGREGATOR": process.address, "NETSUM_CONNECT_TIMEOUT": "5"}
        good = {**settings, "NETSUM_AGGREGATOR_TOKEN": "right"}
        ranks.run(lambda rank: dist.all_reduce(torch.ones(10)), env=good)

        wrong = {**settings, "NETSUM_AGGREGATOR_TOKEN": "wrong"}
        outcomes = ranks.run_all_outcomes(lambda rank: None, env=wrong)
        assert_all_failed(outcomes, codes={"permission_denied"})

        outcomes = ranks.run_all_outcomes(lambda rank: None, env=[good, good, wrong, good])
        assert_all_failed(outcomes, codes={"permission_denied", "timeout", "peer_lost"})
        assert outcomes[2].code == "permission_denied"


def test_a_ranks_own_reason_comes_before_what_gloo_says_of_it(monkeypatch):
    """Rank 1 fails and closes its connections while rank 0 still waits for Gloo to connect the hosts."""
    store = dist.HashStore()
    with pytest.raises(netsum.torch.Error), _rendezvous.sharing_errors(store, 1, 2):
        raise _rendezvous.new_error("wrong token", "permission_denied", None)

    class ClosedByPeer:
        # A real device has a thread, and the ranks of later tests are forks of this process.
        _Options = types.SimpleNamespace
        create_device = staticmethod(lambda hostname: None)

        def __init__(self, *_args, **_more):
            raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(dist, "ProcessGroupGloo", ClosedByPeer)
    refused = pytest.raises(netsum.torch.Error, match="rank 1 cannot take part: wrong token")
    with refused as raised, _rendezvous.sharing_errors(store, 0, 2):
        _rendezvous.connect_hosts(store, 0, 2, datetime.timedelta(seconds=1))
    assert (raised.value.code, raised.value.rank) == ("permission_denied", 1)
    with pytest.raises(netsum.torch.Error, match="Gloo cannot connect the hosts"):
        _rendezvous.connect_hosts(dist.HashStore(), 0, 2, datetime.timedelta(seconds=1))


@pytest.mark.network
def test_settings_that_differ_between_ranks():
    outcomes = ranks.run_all_outcomes(lambda rank: None, env=[{}, {"NETSUM_MTU": "9000"}, {}, {}])
    assert_all_failed(outcomes, codes={"mismatch"})
    assert all("NETSUM_MTU" in outcome.error and "rank 1" in outcome.error for outcome in outcomes)


@pytest.mark.network
def test_bad_setting_on_one_rank():
    outcomes = ranks.run_all_outcomes(lambda rank: None, env=[{}, {}, {"NETSUM_SLOTS": "many"}, {}])
    assert outcomes.pop(2).error_type == "ValueError"
    assert_all_failed(outcomes, codes={"invalid_argument"})
    assert all("NETSUM_SLOTS" in outcome.error and "rank 2" in outcome.error for outcome in outcomes)


def test_rank_that_never_comes():
    def on_rank(rank):
        if rank == 1:
            time.sleep(4)
        else:
            dist.new_group(timeout=datetime.timedelta(seconds=2))

    outcomes = ranks.run_all_outcomes(on_rank)
    assert not outcomes.pop(1).error
    assert_all_failed(outcomes, codes={"timeout"})
    assert all("[1]" in outcome.error for outcome in outcomes)


def test_abort_ends_waiting_ranks():
    def on_rank(rank):
        dist.all_reduce(torch.ones(10))
        if rank == 1:
            dist.group.WORLD.abort()
        ping_until_error(rank)

    assert_all_failed(ranks.run_all_outcomes(on_rank, timeout_s=LONG_TIMEOUT_S), codes={"aborted"})


@pytest.mark.network
def test_group_that_is_too_large_says_so_and_uses_the_hosts():
    def on_rank(rank):
        _C.MAX_MEMBERS = 2  # 65 ranks are more than a test machine can bear
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            group = dist.new_group()
        told = [str(w.message) for w in caught if "at most 2 ranks" in str(w.message)]
        assert len(told) == (1 if rank == 0 else 0)
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=group)
        assert "hosts" in netsum.torch.describe(group) and netsum.torch.stats(group)["operations"] == 0
        return tensor[0].item()

    assert ranks.run(on_rank, world_size=3) == [3.0] * 3
