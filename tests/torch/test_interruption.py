"""Ctrl-C in a rank that waits: KeyboardInterrupt there, and an error with the reason on the other ranks."""

import os
import pathlib
import signal
import threading
import time

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from netsum_bench.processes import free_port

import torch

CALLS = {
    "barrier": dist.barrier,
    "all_reduce": lambda: dist.all_reduce(torch.ones(1000)),
    "wait": lambda: dist.all_reduce(torch.ones(1000), async_op=True).wait(),
    "all_reduce by Gloo": lambda: dist.all_reduce(torch.ones(1000, dtype=torch.float64)),
    "object": lambda: dist.all_gather_object([None] * 2, 1),
    "recv": lambda: dist.recv(torch.ones(3), 1),
}
SAMPLES = 30


def interrupt_when_asleep():
    """Sends SIGINT to this process when its main thread has been asleep in SAMPLES samples in sequence."""
    main = pathlib.Path(f"/proc/self/task/{os.getpid()}/stat")
    asleep = 0
    while asleep < SAMPLES:
        time.sleep(0.01)
        state = main.read_text().rpartition(")")[2].split()[0]
        asleep = asleep + 1 if state == "S" else 0
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(call):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=interrupt_when_asleep, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        call()


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_wait_aborts_the_group(name):
    def on_rank(rank):
        if rank == 0:
            interrupted(CALLS[name])
        while netsum.torch.error() is None:
            time.sleep(0.01)
        return netsum.torch.error().code, str(netsum.torch.error())

    for code, text in ranks.run(on_rank, world_size=2, timeout_s=30):
        assert code == "aborted"
        assert "rank 0 was interrupted in" in text and "KeyboardInterrupt" in text


def test_a_handler_that_returns_does_not_end_the_wait():
    """Nor does an exception that the program catches break the group: its operation goes on."""

    def on_rank(rank):
        store = dist.distributed_c10d._get_default_store()
        tensor = torch.ones(10)
        if rank == 1:
            store.wait(["rank 0 has been interrupted"])
            dist.all_reduce(tensor)
            return tensor[0].item()
        seen = []

        def handler(_number, _frame):
            seen.append("handled")
            if len(seen) == 2:
                raise TimeoutError("on purpose")
            threading.Thread(target=interrupt_when_asleep, daemon=True).start()

        signal.signal(signal.SIGINT, handler)
        threading.Thread(target=interrupt_when_asleep, daemon=True).start()
        work = dist.all_reduce(tensor, async_op=True)
        with pytest.raises(TimeoutError):
            work.wait()
        store.set("rank 0 has been interrupted", "")
        work.wait()
        return tensor[0].item()

    assert ranks.run(on_rank, world_size=2, timeout_s=60) == [2.0, 2.0]


def test_a_group_whose_other_ranks_do_not_come():
    def on_rank(rank):
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            interrupted(dist.new_group)
            store.set("rank 0 has been interrupted", "")
        else:
            store.wait(["rank 0 has been interrupted"])

    ranks.run(on_rank, world_size=2, timeout_s=30)


def test_an_aggregator_that_does_not_answer():
    address = f"127.0.0.1:{free_port()}"

    def on_rank(rank):
        os.environ["NETSUM_AGGREGATOR"] = address
        group = dist.new_group()
        large = torch.ones(10_000)  # the group joins for it

        def reduce_it():
            dist.all_reduce(large, group=group)

        if rank == 0:
            interrupted(reduce_it)
        else:
            with pytest.raises(netsum.torch.Error):
                reduce_it()

    ranks.run(on_rank, world_size=2, env={"NETSUM_CONNECT_TIMEOUT": "15"})
