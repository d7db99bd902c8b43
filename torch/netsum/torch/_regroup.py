"""Continues without lost ranks."""

import contextlib
import json
import time

import torch.distributed as dist

from netsum.torch import _C
from netsum.torch._group import backend_of

_POLL_S = 0.02


def regroup(*, min_members=None, gather_s=1.0, timeout_s=30.0):
    """Replaces the default group by one of the ranks that call this function. Returns their old ranks in order.

    Call it after an error, such as the loss of a rank, on every rank that continues. It renumbers the ranks from 0;
    torch.distributed.get_rank() and get_world_size() return the new values. All other groups are destroyed. The caller
    must create a new DistributedDataParallel, which also gives all ranks the parameters of rank 0, and must broadcast
    optimizer state and step counters.

    The ranks meet at the store with which the group was created, so the store must have survived the failure
    (torchrun's does). When `min_members` ranks (default: half of the group) have arrived and no other rank has arrived
    for `gather_s` seconds, the group closes. A rank that arrives later gets netsum.torch.Error with the code
    "peer_lost" and its own rank. If fewer than `min_members` arrive within `timeout_s` seconds, the code is "timeout".
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.distributed_c10d._get_default_group()
    name, backend = dist.get_backend(group), backend_of(group)
    store = dist.PrefixStore("regroup", backend.store)
    if min_members is None:
        min_members = (size + 1) // 2
    if not 1 <= min_members <= size:
        raise ValueError(f"min_members is {min_members}; it must be 1 to {size}, the size of the group")
    group.abort()  # ends the sums that others still wait for
    members = _gather(store, rank, size, min_members, gather_s, time.monotonic() + timeout_s)
    if rank not in members:
        raise _error(f"rank {rank} came too late: ranks {members} go on without it", "peer_lost", rank)
    dist.destroy_process_group()
    dist.init_process_group(
        name,
        store=dist.PrefixStore("group", store),
        rank=members.index(rank),
        world_size=len(members),
        timeout=backend.timeout,
    )
    # All members have read the list. The list itself stays, for a rank that comes too late.
    with contextlib.suppress(RuntimeError):  # a store that cannot delete
        store.delete_key(f"here/{rank}")
    return members


def _gather(store, rank, size, min_members, gather_s, deadline):
    """Returns the list of old ranks on which all agree: the first one that any rank writes to the store."""
    store.set(f"here/{rank}", "")
    here, changed = [], time.monotonic()
    while not store.check(["members"]):
        now = time.monotonic()
        found = [r for r in range(size) if store.check([f"here/{r}"])]
        if found != here:
            here, changed = found, now
        if len(here) == size or (len(here) >= min_members and now >= changed + gather_s):
            store.compare_set("members", "", json.dumps(here))
            break
        if now >= deadline:
            missing = [r for r in range(size) if r not in here]
            raise _error(
                f"Timed out: {len(here)} ranks of {size} came to regroup, and {min_members} are needed; "
                f"missing: {missing}",
                "timeout",
                missing[0],
            )
        time.sleep(_POLL_S)
    text = store.get("members")
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, list) or not members or not set(members) <= set(range(size)):
        raise _error(
            f'the store holds {text[:100]!r} under "members", which no rank of this group writes: let no other program '
            "write to this store",
            "version_mismatch",
            None,
        )
    return members


def _error(message, code, rank):
    error = _C.Error(message)
    error.code = code
    error.rank = rank
    return error
