"""The PyTorch backend: ``import netsum.torch; torch.distributed.init_process_group("netsum")``.

Sums and averages run in the network; every other collective runs over the hosts, by Gloo. Settings come from
the environment, see docs/pytorch.md.
"""

import atexit
import logging
import os
import sys

import torch
import torch.distributed as dist

from netsum.torch import _rendezvous
from netsum.torch._C import Error, ProcessGroupNetsum
from netsum.torch._regroup import regroup

__all__ = ["Error", "describe", "regroup", "stats"]

_logger = logging.getLogger("netsum")
_exit_hook_pid = None


def stats(group=None):
    """Counts of this rank since the group was made, as a dict (group: the default group)."""
    return _backend_of(group).stats()


def describe(group=None):
    """One line for people: where the sums of the group happen, and why there."""
    return _backend_of(group).describe()


def _backend_of(group):
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    backend = group._get_backend(torch.device("cpu"))
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checking layer around every backend.
    backend = getattr(backend, "wrapped_pg", backend)
    if not isinstance(backend, ProcessGroupNetsum):
        raise ValueError(f"the group's CPU backend is {backend.name()!r}, not netsum: no netsum statistics")
    return backend


def _create(backend_options, _process_group_options):
    """What torch.distributed calls, on every rank of a new group, to make the group's backend."""
    store, timeout = backend_options.store, backend_options.timeout
    rank, size = backend_options.group_rank, backend_options.group_size
    agreement = _rendezvous.meet(store, rank, size, backend_options.group_id, timeout)
    hosts = dist.ProcessGroupGloo(dist.PrefixStore("hosts", store), rank, size, timeout=timeout)
    with _rendezvous.sharing_errors(store, rank, size):
        options = agreement and _rendezvous.communicator_options(agreement, store, rank, size, timeout)
        backend = ProcessGroupNetsum(rank=rank, size=size, hosts=hosts, options=options, timeout=timeout)
    _leave_at_exit()
    if rank == 0:
        _logger.info("process group %s: %s", backend_options.group_id, backend.describe())
    return backend


def _leave_at_exit():
    """A script that ends without destroy_process_group() leaves its groups while Python still runs.

    Later, threads that want Python's lock would die in the middle of their work.
    """
    global _exit_hook_pid
    if _exit_hook_pid != os.getpid():  # a forked child has its own groups, and must leave its parent's alone
        _exit_hook_pid = os.getpid()
        atexit.register(_leave_all_groups, _exit_hook_pid)


def _leave_all_groups(pid):
    if pid != os.getpid():
        return
    failed = getattr(sys, "last_type", None)  # the exception that ended the script, if one did
    for group in list(dist.distributed_c10d._world.pg_map):
        try:
            backend = _backend_of(group)
            if failed is not None:
                backend.abort()  # the other ranks must not wait for this one
            backend.shutdown()
        except (AttributeError, ValueError, RuntimeError):  # not a group of ours
            continue


dist.Backend.register_backend("netsum", _create, extended_api=True, devices=["cpu"])
