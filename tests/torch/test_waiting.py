"""Who carries out an operation: a thread that waits for it at once does so itself."""

import contextlib
import datetime
import pathlib
import threading
import time

import ranks
import torch.distributed as dist

import torch

OPERATIONS = 10
# What a thread runs for OPERATIONS small operations if it carries them out: far above this.
BUSY_NS = 50_000


def run_time_ns():
    """Returns by thread how long it has run."""
    times = {}
    for task in pathlib.Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            times[int(task.name)] = int((task / "schedstat").read_text().split()[0])
    return times


def busy_threads(before, after):
    return {thread for thread, ran in after.items() if ran - before.get(thread, 0) > BUSY_NS}


def test_a_thread_that_waits_needs_no_engine_thread():
    def on_rank(rank):
        caller = threading.get_native_id()
        tensor = torch.ones(1024)
        fewest = None
        end = time.monotonic() + 60
        enough = torch.zeros(1)
        # On a busy machine a wait may begin late, and the engine's thread goes on then; but not always.
        while time.monotonic() < end:
            before = run_time_ns()
            for _ in range(OPERATIONS):
                dist.all_reduce(tensor.fill_(1.0))
            others = busy_threads(before, run_time_ns()) - {caller}
            assert tensor[0].item() == 2.0
            fewest = len(others) if fewest is None else min(fewest, len(others))
            # Until it has been so on both ranks. Callbacks of futures have a thread of their own.
            enough.fill_(float(fewest <= 1))
            dist.all_reduce(enough)
            if enough.item() == 2.0:
                break
        return fewest

    with ranks.aggregator("--in-switch") as aggregator:
        env = {"NETSUM_AGGREGATOR": aggregator.address, "NETSUM_SHARES": "off", "NETSUM_SHARED_MEMORY": "0"}
        fewest = ranks.run(on_rank, world_size=2, env=env | {"OMP_NUM_THREADS": "1"}, timeout_s=120)
    assert max(fewest) <= 1


def test_a_wait_with_a_timeout_ends_in_time():
    """A rank that comes late: the other's wait ends with an error, and the operation goes on."""

    def on_rank(rank):
        store = dist.distributed_c10d._get_default_store()
        tensor = torch.full((1000,), float(rank))
        ended = True
        if rank == 0:
            work = dist.all_reduce(tensor, async_op=True)
            try:
                work.wait(timeout=datetime.timedelta(milliseconds=50))
            except RuntimeError:
                ended = False
            store.set("rank 0 has waited", "1")
        else:
            store.wait(["rank 0 has waited"], datetime.timedelta(seconds=60))
            work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        return ended, tensor[0].item()

    assert ranks.run(on_rank, world_size=2) == [(False, 1.0), (True, 1.0)]


def test_a_forked_child_does_not_wait_for_its_parents_operation():
    """Nothing would end it there: the child has none of the parent's threads."""

    def in_child(work, ended, sender):
        try:
            ended.wait()
            completed = work.is_completed()
            work.wait()
            sender.send("it has waited")
        except Exception as error:
            sender.send((completed, str(error)))

    def on_rank(rank):
        ended = dist.all_reduce(torch.ones(10), async_op=True)
        ended.wait()
        answer = None
        if rank == 0:
            tensor = torch.ones(10)
            work = dist.all_reduce(tensor, async_op=True)
            receiver, sender = ranks.CONTEXT.Pipe(duplex=False)
            child = ranks.CONTEXT.Process(target=in_child, args=(work, ended, sender))
            child.start()
            if receiver.poll(60):
                answer = receiver.recv()
            child.kill()
            child.join()
            ranks.meet()
            work.wait()
        else:
            tensor = torch.ones(10)
            ranks.meet()
            dist.all_reduce(tensor)
        assert tensor[0].item() == 2.0
        return answer

    completed, error = ranks.run(on_rank, world_size=2, timeout_s=120)[0]
    assert completed
    assert "aborted" in error and "was forked since: wait for it there" in error
