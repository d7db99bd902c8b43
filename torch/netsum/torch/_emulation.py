"""The group of all ranks under `netsum emulate`: some of its ranks are ghosts, which are no processes and use no store."""

import os

import torch.distributed as dist

from netsum.torch import _C, _rendezvous, _settings


def enter():
    """Returns the emulation, or None. Gives the script its rank and the size of the emulated job, whatever torchrun has set."""
    emulation = _settings.emulation()
    if emulation:
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(emulation.rank), str(emulation.ranks)
    return emulation


def create_store():
    """Returns the store of a script's process group: no other process uses it."""
    return dist.HashStore()


def make_group(emulation, store, rank, size, timeout):
    """Creates the backend of the group of all ranks. They know the job's name from the environment, and do not meet."""
    if (rank, size) != (emulation.rank, emulation.ranks):
        raise _rendezvous.new_error(
            f"rank {rank} of {size} makes a process group, but `netsum emulate` emulates rank {emulation.rank} of "
            f"{emulation.ranks}: make one group of all ranks, with the RANK and WORLD_SIZE of the environment. Ghosts "
            "take part in no other group",
            "unsupported",
            None,
        )
    options = _settings.from_environment().options
    options.rank, options.world_size = rank, size
    options.job, options.token, options.timeout = emulation.job, emulation.token, timeout
    return _rendezvous.interruptible(
        _C.ProcessGroupNetsum,
        rank=rank,
        size=size,
        hosts=_C.NoHosts(rank, size),
        options=options,
        timeout=timeout,
        store=store,
        real_ranks=emulation.real,
    )
