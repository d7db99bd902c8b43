"""Creates the backend of a process group, also of one that shrinks, and closes all groups at exit."""

import atexit
import contextlib
import datetime
import functools
import importlib
import logging
import os
import sys
import time

import torch.distributed as dist

import torch
from netsum.torch import _emulation, _record, _rendezvous, _settings
from netsum.torch._C import Beside, OwnKeysStore, ProcessGroupNetsum

_logger = logging.getLogger("netsum")
_emulated = _emulation.enter()
_exit_hook_pid = None
# How long a script that ends waits for operations in flight, of which other ranks may need the results.
FLUSH_S = 30.0


def create(backend_options, _process_group_options):
    """Creates the backend of a new group. torch.distributed calls it on every rank of the group."""
    o = backend_options
    _record.group_is_made(o.group_rank, o.group_size, is_default=not o.global_ranks_in_group)
    ranks = o.global_ranks_in_group
    beside = _default_backend()
    backend = _make(
        o.store, o.group_rank, o.group_size, o.group_id, o.timeout, beside=beside, ranks=ranks, further=bool(ranks)
    )
    if o.global_ranks_in_group:
        backend.global_ranks = o.global_ranks_in_group
    return backend


class Devices(list):
    """The types of the devices whose tensors groups take: those of the CPU and of accelerators.

    PyTorch reads it for each group, and an accelerator's package may have been imported since netsum.torch was.
    """

    def __iter__(self):
        accelerator = torch.accelerator.current_accelerator(check_available=False)
        return iter(dict.fromkeys(["cpu", "cuda", *([accelerator.type] if accelerator else [])]))


def backend_of(group):
    """Returns the netsum backend of a group (None: the default group). Raises ValueError if it has none."""
    group = group if group is not None else dist.distributed_c10d._get_default_group()
    names = {}
    for device in group._device_types:
        backend = group._get_backend(device)
        # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a checking layer around every backend.
        backend = getattr(backend, "wrapped_pg", backend)
        if isinstance(backend, ProcessGroupNetsum):
            return backend
        names[device.type] = backend.name()
    raise ValueError(f"the group's backends are {names}, none of them netsum")


def _default_backend():
    """Returns the backend of the default group, or None if there is no such group, or if it is not one of netsum."""
    try:
        return backend_of(None)
    except (AttributeError, ValueError, RuntimeError):
        return None


def _make(store, rank, size, name, timeout, beside=None, ranks=None, further=True):
    """`beside`: the default group. The new one then joins its job late: when an operation pays for it. `ranks`: of the group in
    the default group, if it is another one. `further`: it is not the default group."""
    if _emulated:
        backend = _emulation.make_group(_emulated, store, rank, size, timeout, ranks)
        _leave_at_exit()
        return backend
    keys = OwnKeysStore("netsum", store)
    store = _rendezvous.fresh_store(keys, rank, size, timeout)
    with _rendezvous.sharing_errors(store, rank, size):
        staging = _settings.staging_limits()
        rank_beside = beside.rank() if beside else None
        agreement, address = _rendezvous.meet(store, rank, size, name, timeout, rank_beside, further)
        hosts = _rendezvous.connect_hosts(store, rank, size, timeout, address)
        options = agreement and _rendezvous.communicator_options(agreement, store, rank, size, timeout, address)
        late = Beside(beside, agreement.ranks_beside) if agreement and agreement.joins_late else None
        backend = _rendezvous.interruptible(
            ProcessGroupNetsum,
            rank=rank,
            size=size,
            hosts=hosts,
            options=options,
            timeout=timeout,
            store=store,
            beside=late,
        )
    backend.set_staging_limits(*staging)
    _rendezvous.delete_keys(keys, hosts)
    _leave_at_exit()
    if rank == 0:
        _logger.info("process group %s: %s", name, backend.describe())
    return backend


def _shrink(backend, ranks_to_exclude, shrink_flags=0, _options=None):
    """Creates a backend without `ranks_to_exclude`. torch.distributed.shrink_group calls it on every other rank."""
    if shrink_flags & dist.distributed_c10d.SHRINK_ABORT:
        backend.abort()
    members = [rank for rank in range(backend.size()) if rank not in ranks_to_exclude]
    store = dist.PrefixStore(f"shrink/{','.join(map(str, members))}", backend.store)
    shrunk = _make(store, members.index(backend.rank()), len(members), "shrunk", backend.timeout)
    shrunk.global_ranks = [backend.global_ranks[member] for member in members]
    return shrunk


def _split(store, rank, size, name, timeout):
    """Creates the backend of a part of a group. The C++ class calls it on every rank of that part."""
    if _emulated:
        raise _rendezvous.new_error("`netsum emulate` has no split groups: use new_group", "unsupported", None)
    return _make(store, rank, size, name or "split", timeout, beside=_default_backend())


# The hooks of torch.distributed.shrink_group, which looks for them from Python.
ProcessGroupNetsum.supports_shrinking = True
ProcessGroupNetsum.shrink = _shrink


def _leave_at_exit():
    """Makes a script that ends without destroy_process_group() leave its groups before the interpreter shuts down.

    Later, threads that try to take Python's global lock would be ended in the middle of their work.
    """
    global _exit_hook_pid
    if _exit_hook_pid != os.getpid():  # a forked child has its own groups, and must leave its parent's alone
        _exit_hook_pid = os.getpid()
        atexit.register(_leave_all_groups, _exit_hook_pid)


def _leave_all_groups(pid):
    if pid != os.getpid():
        return
    backends = []
    for group in list(dist.distributed_c10d._world.pg_map):
        try:
            backends.append(backend_of(group))
        except (AttributeError, ValueError, RuntimeError):  # not a group of ours
            continue
    if ended_by_an_error():
        for backend in backends:
            with contextlib.suppress(RuntimeError):
                backend.abort()  # the other ranks must not wait for this one
    _flush(backends)
    for backend in backends:
        with contextlib.suppress(RuntimeError):
            backend.shutdown()


def ended_by_an_error():
    """Whether an exception that nobody has handled ends the script. An interactive session goes on after one."""
    return getattr(sys, "last_type", None) is not None and not hasattr(sys, "ps1")


def _flush(backends):
    deadline = time.monotonic() + FLUSH_S
    for backend in backends:
        # In slices, between which Ctrl-C ends the wait. What has failed is not waited for.
        while backend.error() is None and not backend.flush(datetime.timedelta(seconds=0.1)):
            if time.monotonic() > deadline:
                _logger.warning("operations are still in flight %g s after the script has ended", FLUSH_S)
                return


# --- What torch.distributed does not ask the backend for

_set_timeout_of_others = dist.distributed_c10d._set_pg_timeout
_rendezvous_of_pytorch = importlib.import_module("torch.distributed.rendezvous")  # dist.rendezvous is a function
_create_store = _rendezvous_of_pytorch._create_c10d_store


@functools.wraps(_set_timeout_of_others)
def _set_pg_timeout(timeout, group=None):
    """Without this, backends have a timeout only if they are those of PyTorch."""
    try:
        backend = backend_of(group)
    except (AttributeError, ValueError, RuntimeError):
        _set_timeout_of_others(timeout, group)
    else:
        backend.set_timeout(timeout)


@functools.wraps(_create_store)
def _create_c10d_store(*args, **kwargs):
    """Without this, signals do not interrupt init_process_group() while it waits for the other ranks."""
    if _emulated:
        return _emulation.create_store()
    return _rendezvous.interruptible(_create_store, *args, **kwargs)


dist.distributed_c10d._set_pg_timeout = _set_pg_timeout
_rendezvous_of_pytorch._create_c10d_store = _create_c10d_store
