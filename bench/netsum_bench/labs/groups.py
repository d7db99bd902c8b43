"""What process groups of PyTorch and communicators of MPI cost: two ranks, processes of this machine."""

import contextlib
import datetime
import itertools
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time

from netsum_bench.processes import finish, start
from netsum_bench.systems import OpenMpi, component_flags

TIMEOUT_S = 60
WARM_UP = 2
STEPS = ("new_group", "all_reduce", "destroy")


@contextlib.contextmanager
def groups(run, place, turns):
    """Two ranks make a group, reduce a small tensor in it, and destroy it, again and again; then they make groups that
    stay, of which descriptors, threads and memory (proportional set size) are counted. MPI: MPI_Comm_split,
    MPI_Allreduce and MPI_Comm_free of ranks that yield, by Open MPI with and without netsum's component."""

    def measure(turn):
        if "mpi" not in turn["system"]:
            return _measure(turn["system"], turn["groups"], turn["elements"])
        component = component_flags(run.netsum) if turn["system"] == "netsum-mpi" else []
        return _measure_mpi(component, turn["groups"], turn["elements"])

    yield measure


def _measure_mpi(component, count, elements):
    flags = ["--allow-run-as-root", "--oversubscribe", "-np", "2", *OpenMpi.YIELD, *component]
    command = ["mpirun", *flags, sys.executable, "-m", "netsum_bench.labs.groups"]
    output = finish([start([*command, str(count), str(elements)])], TIMEOUT_S)[0]
    return json.loads(next(line for line in output.splitlines() if line.startswith("{")))


def _run_mpi(count, elements):
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    mine, total = np.ones(elements, dtype=np.float32), np.empty(elements, dtype=np.float32)

    record, kept = _costs(
        make=lambda: world.Split(0, world.rank),
        use=lambda made: made.Allreduce(mine, total),
        free=lambda made: made.Free(),
        count=count,
    )
    if world.rank == 0:
        print(json.dumps(record), flush=True)
    for made in kept:
        made.Free()


def _measure(backend, count, elements):
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, receiver:
        arguments = (backend, f"{folder}/store", count, elements)
        ranks = [context.Process(target=_on_rank, args=(rank, sender, *arguments)) for rank in range(2)]
        for rank in ranks:
            rank.start()
        sender.close()
        try:
            return receiver.recv()
        except EOFError:
            raise RuntimeError(f"{backend}: rank 0 died before it had measured") from None
        finally:
            for rank in ranks:
                rank.join(TIMEOUT_S)
                rank.kill()
                rank.join()


def _on_rank(rank, sender, backend, store, count, elements):
    import torch.distributed as dist

    import torch

    torch.set_num_threads(1)
    if backend == "netsum":
        import netsum.torch  # noqa: F401  registers the backend
    timeout = datetime.timedelta(seconds=TIMEOUT_S)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2, timeout=timeout)

    record, _ = _costs(
        make=dist.new_group,
        use=lambda group: dist.all_reduce(torch.ones(elements), group=group),
        free=dist.destroy_process_group,
        count=count,
    )
    if rank == 0:
        sender.send(record)
    dist.destroy_process_group()


def _costs(make, use, free, count):
    """The record: the times of `count` groups, one after the other, and what each of so many groups costs that live.
    Also returns these."""

    def times_of_one():
        times = [time.perf_counter()]
        group = make()
        times.append(time.perf_counter())
        use(group)
        times.append(time.perf_counter())
        free(group)
        times.append(time.perf_counter())
        return [1e3 * (end - begin) for begin, end in itertools.pairwise(times)]

    def living():
        group = make()
        use(group)
        return group

    steps = [times_of_one() for _ in range(WARM_UP + count)][WARM_UP:]
    kept = [living()]
    before = _resources()
    kept += [living() for _ in range(count)]
    of_one = [(now - then) / count for now, then in zip(_resources(), before, strict=True)]
    record = {
        "times_ms": [sum(times) for times in steps],
        **{f"{name}_ms": list(times) for name, times in zip(STEPS, zip(*steps, strict=True), strict=True)},
        **dict(zip(("descriptors", "threads", "mib"), of_one, strict=True)),
    }
    return record, kept


def _resources():
    """(descriptors, threads, MiB) of this process."""
    rollup = pathlib.Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    pss_kib = next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), pss_kib / 1024


if __name__ == "__main__":  # a rank of MPI
    _run_mpi(*map(int, sys.argv[1:]))
