"""Process groups under `netsum emulate`: some of their ranks are ghosts, which are no processes and use no store."""

import collections
import os
import warnings

import torch.distributed as dist

from netsum.torch import _C, _rendezvous, _settings


def enter():
    """Returns the emulation, or None. Gives the script its rank and the size of the emulated job, whatever torchrun has set."""
    emulation = _settings.emulation()
    if emulation:
        _C.set_ghosts_have_values(emulation.have_values)
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(emulation.rank), str(emulation.ranks)
    return emulation


def create_store():
    """Returns the store of a script's process group: no other process uses it."""
    return dist.HashStore()


_made = collections.Counter()  # further groups, by their ranks


def _job_of(emulation, ranks):
    """Returns the job of the next group of these ranks, or None if the profile has no operations of it."""
    before = _made[tuple(ranks)]
    _made[tuple(ranks)] += 1
    if ranks[-1] < emulation.real:
        return f"{emulation.job}-real-{before}-{'.'.join(map(str, ranks))}"
    jobs = [group["job"] for group in emulation.groups if group["ranks"] == list(ranks)]
    return jobs[before] if before < len(jobs) else None


def make_group(emulation, store, rank, size, timeout, ranks=None):
    """Creates the backend of the group of all ranks, or of these. The ranks know its job from the environment, and do not meet.

    A group of which the profile has no operations refuses all calls.
    """
    if not ranks and (rank, size) != (emulation.rank, emulation.ranks):
        raise _rendezvous.new_error(
            f"rank {rank} of {size} makes a process group, but `netsum emulate` emulates rank {emulation.rank} of "
            f"{emulation.ranks}: take the RANK and WORLD_SIZE of the environment",
            "unsupported",
            None,
        )
    job = _job_of(emulation, ranks) if ranks else emulation.job
    if job is None:
        warnings.warn(
            f"netsum emulate: the profile has no operation of the group of ranks {list(ranks)}, so its calls are refused; "
            "record this script, on all ranks",
            stacklevel=2,
        )
    options = _settings.from_environment().options if job else None
    if options:
        options.rank, options.world_size = rank, size
        options.job, options.token, options.timeout = job, emulation.token, timeout
    group = _rendezvous.interruptible(
        _C.ProcessGroupNetsum,
        rank=rank,
        size=size,
        hosts=_C.NoHosts(rank, size),
        options=options,
        timeout=timeout,
        store=store,
        real_ranks=sum(r < emulation.real for r in ranks) if ranks else emulation.real,
    )
    if not ranks and _settings.emulation_times():
        group.write_times(_settings.emulation_times())
    return group
