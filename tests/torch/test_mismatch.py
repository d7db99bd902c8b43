"""Ranks that make different calls, also where the network runs one of them and Gloo the other: all get `mismatch`."""

import netsum.torch
import pytest
import ranks
import torch.distributed as dist

import torch


def all_reduce(dtype=torch.float32, op=dist.ReduceOp.SUM, count=10):
    return lambda: dist.all_reduce(torch.ones(count, dtype=dtype), op)


def all_to_all():
    dist.all_to_all_single(torch.ones(10), torch.ones(10))


# The calls of rank 0 and of rank 1, and what the error says of each.
PAIRS = {
    "type": (all_reduce(), all_reduce(torch.float64), "all_reduce(float32[10], SUM)", "all_reduce(float64[10], SUM)"),
    "operator": (
        all_reduce(),
        all_reduce(op=dist.ReduceOp.PRODUCT),
        "all_reduce(float32[10], SUM)",
        "all_reduce(float32[10], PRODUCT)",
    ),
    "collective": (all_reduce(), all_to_all, "all_reduce(float32[10], SUM)", "all_to_all_single(float32)"),
    "barrier": (dist.barrier, all_to_all, "barrier()", "all_to_all_single(float32)"),
    "both by Gloo": (
        all_reduce(torch.float64),
        all_to_all,
        "all_reduce(float64[10], SUM)",
        "all_to_all_single(float32)",
    ),
    "both in the network": (
        all_reduce(),
        lambda: dist.broadcast(torch.ones(10), src=0),
        "all_reduce(float32[10], SUM)",
        "broadcast(float32[10])",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_all_ranks_get_mismatch(name):
    *calls, first, second = PAIRS[name]

    def on_rank(rank):
        ranks.meet()
        with pytest.raises(netsum.torch.Error) as caught:
            calls[rank]()
        with pytest.raises(netsum.torch.Error):
            dist.all_reduce(torch.ones(1))
        return caught.value.code, str(caught.value)

    for code, text in ranks.run(on_rank, world_size=2, timeout_s=25):
        assert code == "mismatch"
        assert f"rank 0 called {first}" in text and f"rank 1 called {second}" in text, text


@pytest.mark.parametrize("late", [False, True])
def test_a_call_without_elements_takes_part(late):
    """Otherwise the next call of its rank would be summed with another call of the others."""

    def on_rank(rank):
        group = dist.new_group() if late else None
        ranks.meet()
        if rank == 1:
            dist.all_reduce(torch.ones(0), group=group)
        with pytest.raises(netsum.torch.Error) as caught:
            dist.all_reduce(torch.ones(10), group=group)
        return caught.value.code

    assert ranks.run(on_rank, world_size=2, timeout_s=25) == ["mismatch"] * 2
