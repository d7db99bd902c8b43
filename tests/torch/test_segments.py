"""Tensors of an accelerator that are staged by segments: copied to the host, summed and copied back at the same time."""

import gc
import os
import time

import accelerator
import netsum.torch
import pytest
import ranks
import test_accelerator as suites
import torch.distributed as dist
from test_accelerator import DEVICE, OMITTED, check, delays, run, run_all_outcomes, values
from torch.distributed import ReduceOp

import torch

COUNT = 100_003  # elements: no segment ends where a tensor does
SLOW = 2_000_000  # bytes/s: an operation of 16 MB that is to fail half-way would take seconds


def segments(kib, microseconds=1000, **more):
    return delays(microseconds, NETSUM_STAGING_SEGMENT_KIB=str(kib), **more)


def test_collectives_have_the_bits_of_the_cpu():
    suites.compare_with_cpu(["mock:0", "mock:1"], (torch.float32, torch.bfloat16), segments(4, 200))


def test_ranks_on_different_devices():
    suites.compare_with_cpu(["mock:1", "cpu"], (torch.int64,), segments(5, 200))


# --- Large operations


def all_reduce(rank, dtype, device):
    tensor = values(rank, dtype, (COUNT,), device)
    dist.all_reduce(tensor)
    return [tensor]


def mean(rank, dtype, device):
    """Of integers: the results are divided on the host."""
    tensor = values(rank, dtype, (COUNT,), device)
    dist.all_reduce(tensor, ReduceOp.AVG)
    return [tensor]


def multiplied(rank, dtype, device):
    if not dtype.is_floating_point:
        return []
    tensor = values(rank, dtype, (COUNT,), device)
    dist.all_reduce(tensor, ReduceOp.PREMUL_SUM(0.3))
    return [tensor]


def coalesced(rank, dtype, device):
    tensors = [values(rank + i, dtype, (size,), device) for i, size in enumerate((1, 30_001, 0, 7, COUNT))]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    return tensors


def reduce_scatter_in_place(rank, dtype, device):
    """The result is a part of the input: this rank's, and another's."""
    outcomes = []
    for part in (rank, 1 - rank):
        whole = values(rank, dtype, (2 * COUNT,), device)
        output = whole[part * COUNT : (part + 1) * COUNT]
        dist.reduce_scatter_tensor(output, whole)
        outcomes.append(output)
    return outcomes


def all_gather_in_place(rank, dtype, device):
    whole = torch.zeros(2 * COUNT, dtype=dtype, device=device)
    part = whole[rank * COUNT : (rank + 1) * COUNT].copy_(values(rank, dtype, (COUNT,)))
    dist.all_gather_into_tensor(whole, part)
    return [whole]


def lists(rank, dtype, device):
    parts = [values(rank + r, dtype, (COUNT + r,), device) for r in range(2)]
    output = torch.zeros_like(parts[rank])
    dist.reduce_scatter(output, parts)
    gathered = [torch.zeros_like(part) for part in parts]
    dist.all_gather(gathered, output) if device == "cpu" else dist.all_gather(gathered, parts[rank].copy_(output))
    return [output, *gathered]


def moved(rank, dtype, device):
    tensor = values(rank, dtype, (COUNT,), device)
    dist.broadcast(tensor, 1)
    parts = [torch.zeros_like(tensor) for _ in range(2)]
    dist.gather(tensor.mul_(rank + 2), parts if rank == 0 else None, dst=0)
    part = torch.zeros_like(tensor)
    dist.scatter(part, parts if rank == 0 else None, src=0)
    dist.reduce(tensor, 0)
    return [part, *(parts + [tensor] if rank == 0 else [])]


LARGE = (all_reduce, mean, multiplied, coalesced, reduce_scatter_in_place, all_gather_in_place, lists, moved)


@pytest.mark.parametrize(
    "kib", [37, pytest.param(1024, marks=pytest.mark.soak), pytest.param(5, marks=pytest.mark.soak)]
)
def test_large_operations_have_the_bits_of_the_cpu(kib):
    def on_rank(rank):
        for collective in LARGE:
            for dtype in (torch.float32, torch.int32):
                want, got = (collective(rank, dtype, device) for device in ("cpu", DEVICE))
                for index, (one, other) in enumerate(zip(want, got, strict=True)):
                    assert torch.equal(one.view(torch.int32), other.cpu().view(torch.int32)), (collective, dtype, index)

    run(on_rank, env=segments(kib))


# --- Streams and memory


def test_order_of_streams():
    run(suites.stream_order(rounds=5), env=segments(64, 2000))


# Those of other copies than of the input and of the results are found of whole tensors, too (test_accelerator.py).
COPIES = ("host waits for copies in", "host waits for copies out", "caller waits for pool")


@pytest.mark.parametrize(
    "omitted", [one if one in COPIES else pytest.param(one, marks=pytest.mark.soak) for one in OMITTED]
)
def test_a_missing_synchronisation_is_found(omitted):
    environment = segments(64, 4000, NETSUM_ACCELERATOR_OMIT=omitted)
    # Ends with the first round in which it shows.
    outcomes = run_all_outcomes(suites.stream_order(rounds=400), env=environment)
    assert any(outcome.error_type == "AssertionError" for outcome in outcomes), outcomes


def test_input_may_be_overwritten_after_wait():
    def on_rank(rank):
        for index in range(5):
            whole = torch.full((2 * COUNT,), float(rank + index), device=DEVICE)
            part = torch.empty(COUNT, device=DEVICE)
            work = dist.reduce_scatter_tensor(part, whole, async_op=True)
            work.wait()
            whole.fill_(-1)
            check(part, 2 * index + 1, "summed before the input was overwritten")

    run(on_rank, env=segments(64, 2000))


def test_staging_memory_is_bounded():
    """An operation is larger than the memory that calls in flight have, and others wait for each other's."""

    def on_rank(rank):
        tensors = [
            torch.full((megabytes << 18,), float(index), device=DEVICE) for index, megabytes in enumerate((3, 12, 3, 6))
        ]
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            work.wait()
        for index, tensor in enumerate(tensors):
            check(tensor, 2 * index, "staged")
        del tensors
        assert f"staged from {DEVICE} in pinned memory, by segments of 512 KiB" in netsum.torch.describe()
        return accelerator.load().allocated()[1]

    assert max(run(on_rank, env=segments(512, 0, NETSUM_STAGING_MIB="8"))) <= 12 << 20


# --- Failures half-way


HALF_WAY = segments(64, 0, NETSUM_SHARED_MEMORY="0")  # ranks of a host would sum larger blocks


def begin_slowly(rank, count=4_000_000):
    """An operation that has begun on all ranks, and some of whose results are there."""
    extension = accelerator.load()
    tensor = torch.full((count,), float(rank + 1), device=DEVICE)
    torch.accelerator.synchronize()
    extension.set_copy_rate(SLOW)
    work = dist.all_reduce(tensor, async_op=True)
    deadline = time.monotonic() + 30
    first = torch.zeros(1, pin_memory=True)
    while first.item() != 3:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        first.copy_(tensor[:1])
    return tensor, work


def assert_all_is_freed(extension, device_bytes, pinned_bytes):
    deadline = time.monotonic() + 30
    while True:
        gc.collect()
        on_device, pinned = extension.allocated()
        if on_device <= device_bytes and pinned <= pinned_bytes:
            return
        assert time.monotonic() < deadline, (on_device, pinned)
        time.sleep(0.05)


def test_a_fault_of_the_device_half_way():
    def on_rank(rank):
        _, work = begin_slowly(rank)
        ranks.meet()
        if rank == 1:
            accelerator.load().fault("an illegal memory access was encountered")
        with pytest.raises(netsum.torch.Error) as caught:
            work.wait()
        ranks.meet()
        return caught.value.code, str(caught.value)

    (code, text), (faulty_code, faulty_text) = run(on_rank, env=HALF_WAY)
    assert code == faulty_code == "aborted"
    assert "mock:0 reports: test accelerator: an illegal memory access was encountered" in faulty_text
    assert "illegal memory access" in text


def test_a_rank_that_is_lost_half_way():
    """All that the operation had is freed, also what was still to be copied."""

    def on_rank(rank):
        extension = accelerator.load()
        before, _ = extension.allocated()
        tensor, work = begin_slowly(rank)
        ranks.meet()
        if rank == 1:
            os._exit(0)
        with pytest.raises(netsum.torch.Error) as caught:
            work.wait()
        tensor.fill_(5)  # after the results that are on their way
        extension.set_copy_rate(0)
        check(tensor, 5, "overwritten after the error")
        del tensor, work
        dist.destroy_process_group()
        assert_all_is_freed(extension, before, 0)
        return caught.value.code

    outcomes = run_all_outcomes(on_rank, env=HALF_WAY)
    assert outcomes[0].value == "peer_lost", outcomes


def test_a_group_that_is_destroyed_half_way():
    def on_rank(rank):
        extension = accelerator.load()
        before, _ = extension.allocated()
        tensor, work = begin_slowly(rank)
        ranks.meet()
        dist.destroy_process_group()
        with pytest.raises(netsum.torch.Error):
            work.wait()
        extension.set_copy_rate(0)
        del tensor, work
        assert_all_is_freed(extension, before, 0)

    run(on_rank, env=HALF_WAY)
