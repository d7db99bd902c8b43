"""Calls with tensors of an accelerator besides those of test_accelerator.py: sparse tensors, what is refused, bad input."""

import datetime
import logging
import os
import time

import accelerator
import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from test_accelerator import DEVICE, bits, check, compare_with_cpu, delays, error_of, run, run_all_outcomes, values
from test_sparse import SHAPES, random_sparse
from torch.distributed import ReduceOp

import torch

TYPES = [torch.float32, torch.bfloat16, torch.int64, torch.complex64]


def moved(tensor, device):
    """A sparse tensor of the CPU on the device, where it is not coalesced either."""
    parts = tensor._indices().to(device), tensor._values().to(device)
    return torch.sparse_coo_tensor(*parts, tensor.shape)


def stored(tensor):
    return tensor._indices().cpu().tolist(), bits(
        torch.view_as_real(v) if (v := tensor._values().cpu()).is_complex() else v
    )


def test_sparse_tensors_have_the_sums_of_the_cpu():
    """In the network, and by Gloo (float64); also where a rank has stored nothing, and beside a rank of the CPU."""

    def on_rank(rank):
        device = [DEVICE, "cpu", DEVICE][rank]
        for seed, (sizes, sparse_dim) in enumerate(SHAPES[1:4]):
            for dtype in (*TYPES, torch.float64):
                inputs = random_sparse(rank, seed, sizes, sparse_dim, dtype, 40 * (rank != 2))
                for op in (ReduceOp.SUM, ReduceOp.AVG) if dtype == torch.float32 else (ReduceOp.SUM,):
                    want, got = inputs.clone(), moved(inputs, device)
                    netsum.torch.sparse_all_reduce(want, op)
                    netsum.torch.sparse_all_reduce(got, op)
                    assert got.device == torch.device(device)
                    assert got.is_coalesced()
                    assert stored(got) == stored(want.coalesce()), (sizes, dtype, op)
        # The value of a future, and nothing that anybody has stored.
        empty = moved(random_sparse(rank, 0, (50,), 1, torch.float32, 0), device)
        work = netsum.torch.sparse_all_reduce(empty, async_op=True)
        work.wait()
        assert work.get_future().value()[0]._nnz() == empty._nnz() == 0
        return netsum.torch.stats()["gloo_calls"]

    for calls in run(on_rank, world_size=3):
        assert sum(calls.values()) == 2 * len(SHAPES[1:4])


def sparse_order(rounds):
    """Sparse tensors whose values are still to be computed when the call is made, and whose sums are used at once."""

    def on_rank(rank):
        for index in range(rounds):
            accelerator.load().sleep(0.002)
            indices = torch.arange(20_000, device=DEVICE).unsqueeze(0)
            numbers = torch.empty(20_000, device=DEVICE).fill_(float(rank + index)).mul_(2)
            tensor = torch.sparse_coo_tensor(indices, numbers, (20_000,))
            netsum.torch.sparse_all_reduce(tensor)
            doubled = tensor._values().add(tensor._values())
            check(doubled, 8 * index + 4, "summed")
            del tensor
            torch.empty(20_000, device=DEVICE).fill_(-1)

    return on_rank


@pytest.mark.parametrize("omitted", ["", "pool waits for caller", "host waits for copies in"])
def test_order_of_streams_of_sparse_tensors(omitted):
    outcomes = run_all_outcomes(sparse_order(rounds=20), env=delays(4000, NETSUM_ACCELERATOR_OMIT=omitted))
    if omitted:
        assert any(outcome.error for outcome in outcomes), outcomes
    else:
        assert not any(outcome.error for outcome in outcomes), outcomes


# --- What the suites of other files do not call


def all_to_all(rank, dtype, device):
    inputs = [values(rank + r, dtype, (20 + abs(rank - r),), device) for r in range(dist.get_world_size())]
    outputs = [torch.zeros_like(tensor) for tensor in inputs]
    dist.all_to_all(outputs, inputs)
    return outputs


def with_many_zeros(rank, dtype, device):
    tensor = torch.zeros(4096, dtype=dtype, device=device)
    tensor[100 * rank : 100 * rank + 50].copy_(values(rank, dtype, (50,)))
    netsum.torch.sparse_all_reduce(tensor, mode="on")
    return [tensor]


def several_tensors(rank, dtype, device):
    options = dist.AllreduceOptions()
    tensors = [values(rank + i, dtype, (70,), device) for i in range(2)]
    dist.group.WORLD.allreduce(tensors, options).wait()
    return tensors


def product(rank, dtype, device):
    tensor = values(rank, dtype, (70,), device)
    dist.reduce(tensor, 0, ReduceOp.PRODUCT)
    return [tensor] if rank == 0 else []


def test_other_calls_have_the_bits_of_the_cpu(monkeypatch):
    calls = (all_to_all, with_many_zeros, several_tensors, product)
    monkeypatch.setattr("test_accelerator.COLLECTIVES", calls)
    monkeypatch.setattr("test_accelerator.FACTORS", ())
    compare_with_cpu(["mock:0", "cpu", "mock:1"], (torch.float32, torch.int64))


def test_objects():
    def on_rank(rank):
        tensor = torch.full((3,), float(rank), device=DEVICE)
        everyone = [None, None]
        dist.all_gather_object(everyone, {"rank": rank})
        assert everyone == [{"rank": 0}, {"rank": 1}]
        sent = [rank]
        dist.broadcast_object_list(sent, src=1)
        assert sent == [1]
        dist.all_reduce(tensor)
        check(tensor, 1, "afterwards")

    run(on_rank, backend="mock:netsum")


def test_messages_are_refused():
    """Each error says what to do, and the group goes on."""

    def on_rank(rank):
        tensor = torch.zeros(3, device=DEVICE)
        peer = 1 - rank
        for call in (
            lambda: dist.send(tensor, peer),
            lambda: dist.recv(tensor, peer),
            lambda: dist.recv(tensor),
            lambda: dist.isend(tensor, peer),
            lambda: dist.irecv(tensor, peer),
            lambda: dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, peer)]),
        ):
            code, text = error_of(call)
            assert code == "unsupported"
            assert "pass tensor.cpu(), or receive into such a tensor" in text
        tensor.fill_(1)
        dist.all_reduce(tensor)
        check(tensor, 2, "afterwards")

    run(on_rank)


# --- Bad input


@pytest.mark.parametrize(
    "call",
    [
        lambda here, there: dist.all_gather([here, there], here.clone()),
        lambda here, there: dist.reduce_scatter(here, [here.clone(), there]),
        lambda here, there: dist.all_gather_into_tensor(there.new_zeros(6), here),
        lambda here, there: dist.all_to_all([here, here.clone()], [here.clone(), there]),
        lambda here, there: dist.group.WORLD.allreduce_coalesced([here, there]).wait(),
        lambda here, _: dist.all_gather([here, torch.zeros(3)], here.clone()),
    ],
)
def test_tensors_on_different_devices(call):
    def on_rank(rank):
        here, there = torch.ones(3, device="mock:0"), torch.ones(3, device="mock:1")
        code, text = error_of(lambda: call(here, there))
        assert code == "invalid_argument"
        assert "in one call: move them to one device, such as with tensor.to(" in text
        dist.all_reduce(here)
        check(here, 2, "afterwards")

    run(on_rank)


def test_input_that_is_freed_after_the_call():
    """Its memory is not used again before it has been read."""

    def on_rank(rank):
        for index in range(10):
            accelerator.load().sleep(0.002)
            part = torch.full((40_000,), float(rank + index), device=DEVICE)
            whole = torch.empty(80_000, device=DEVICE)
            work = dist.all_gather_into_tensor(whole, part, async_op=True)
            del part
            torch.full((40_000,), -1.0, device=DEVICE)
            work.wait()
            check(whole[:40_000], index, "of rank 0")
            check(whole[40_000:], index + 1, "of rank 1")

    run(on_rank, env=delays(2000))


def test_calls_end_while_another_frees_staging_memory():
    """Unpinning may wait for the device: who gives memory back does not wait for it."""

    def on_rank(rank):
        extension = accelerator.load()
        first, *others = (torch.full((kib << 8,), float(rank), device=DEVICE) for kib in (256, 64, 64, 768))
        dist.all_reduce(first)
        if rank == 0:
            extension.hold_unpinning(True)
            works = [dist.all_reduce(tensor, async_op=True) for tensor in others]
            deadline = time.monotonic() + ranks.DEADLINE_S / 2
            while extension.waiting_to_unpin() == 0:  # the last call frees the first one's memory
                assert time.monotonic() < deadline
                time.sleep(0.001)
        ranks.meet()
        if rank == 1:
            works = [dist.all_reduce(tensor, async_op=True) for tensor in others]
        try:
            for work in works[:2]:
                work.wait(datetime.timedelta(seconds=20))
            held = extension.waiting_to_unpin()
        finally:
            extension.hold_unpinning(False)
        works[2].wait()
        for tensor in others:
            check(tensor, 1, "summed")
        return held

    assert run(on_rank, env=delays(0, NETSUM_STAGING_MIB="1"))[0] == 1


@pytest.mark.parametrize("call", ["broadcast", "sparse", "compressed"])
def test_calls_while_a_stream_is_captured(call):
    def on_rank(rank):
        extension = accelerator.load()
        tensor = torch.ones(3, device=DEVICE)
        sparse = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.int64, device=DEVICE), tensor[:1], (3,))
        weights = torch.ones(64, 64, device=DEVICE)
        state = netsum.torch.Compression(model := torch.nn.Linear(64, 64, bias=False).to(DEVICE), "bf16")
        calls = {
            "broadcast": lambda: dist.broadcast(tensor, 0),
            "sparse": lambda: netsum.torch.sparse_all_reduce(sparse),
            "compressed": lambda: state._buckets.reduce(weights.view(-1), [weights], [model.weight]),
        }
        extension.set_capturing(True)
        code, text = error_of(calls[call])
        extension.set_capturing(False)
        assert code == "unsupported"
        assert "leave the call out of the capture" in text
        dist.all_reduce(tensor)
        check(tensor, 2, "afterwards")

    run(on_rank)


def test_compression_without_pinned_memory(tmp_path):
    """Said once, of all memory."""

    def on_rank(rank):
        logging.getLogger("netsum").addHandler(logging.FileHandler(tmp_path / f"log-{rank}"))
        tensor = torch.ones(100_000, device=DEVICE)
        dist.all_reduce(tensor)
        check(tensor, 2, "staged in pageable memory")
        state = netsum.torch.Compression(model := torch.nn.Linear(64, 64, bias=False).to(DEVICE), "bf16")
        weights = torch.full((64, 64), float(rank), device=DEVICE)
        state._buckets.reduce(weights.view(-1), [weights], [model.weight]).wait()
        check(weights, 0.5, "compressed in pageable memory")

    run(on_rank, env=delays(NETSUM_ACCELERATOR_PINNED="0"))
    for rank in range(2):
        assert (tmp_path / f"log-{rank}").read_text().count("pageable") == 1


def test_compression_in_a_process_that_was_forked_since():
    def on_rank(rank):
        state = netsum.torch.Compression(model := torch.nn.Linear(64, 64, bias=False).to(DEVICE), "bf16")
        weights = torch.full((64, 64), float(rank), device=DEVICE)
        state._buckets.reduce(weights.view(-1), [weights], [model.weight]).wait()
        receiver, sender = ranks.CONTEXT.Pipe(duplex=False)

        def child():
            try:
                state._buckets.reduce(weights.view(-1), [weights], [model.weight])
                sender.send("no error")
            except Exception as error:
                sender.send(str(error))
            os._exit(0)

        process = ranks.CONTEXT.Process(target=child)
        process.start()
        assert receiver.poll(30)
        assert "forked" in receiver.recv()
        process.join()

    run(on_rank)
