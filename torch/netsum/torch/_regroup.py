"""Continues without lost ranks."""

import contextlib
import json
import time

import torch.distributed as dist

from netsum.torch import _C
from netsum.torch._group import backend_of
from netsum.torch._rendezvous import new_error

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
    rule = _C.RegroupRule(size, min_members or 0, gather_s)
    group.abort()  # ends the sums that others still wait for
    members = _gather(store, rank, rule, timeout_s)
    new_rank = _C.RegroupRule.new_rank(members, rank)
    if new_rank is None:
        raise _C.RegroupRule.came_too_late(rank, members)
    dist.destroy_process_group()
    dist.init_process_group(
        name,
        store=dist.PrefixStore("group", store),
        rank=new_rank,
        world_size=len(members),
        timeout=backend.timeout,
    )
    # All members have read the list. The list itself stays, for a rank that comes too late.
    with contextlib.suppress(RuntimeError):  # a store that cannot delete
        store.delete_key(f"here/{rank}")
    return members


def _gather(store, rank, rule, timeout_s):
    """Returns the list of old ranks on which all agree: the first one that any rank writes to the store."""
    store.set(f"here/{rank}", "")
    ranks = range(rule.world_size)
    began = changed = time.monotonic()
    here = []
    while not store.check(["members"]):
        now = time.monotonic()
        found = [r for r in ranks if store.check([f"here/{r}"])]
        if found != here:
            here, changed = found, now
        closes_after_s = rule.closes_after_s(len(here))
        if closes_after_s is not None and now >= changed + closes_after_s:
            store.compare_set("members", "", json.dumps(here))
            break
        if now >= began + timeout_s:
            raise rule.timed_out(rank, [r for r in ranks if r not in here], timeout_s)
        time.sleep(_POLL_S)
    text = store.get("members")
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, list) or not members or not set(members) <= set(ranks):
        raise new_error(
            f'the store holds {text[:100]!r} under "members", which no rank of this group writes: let no other program '
            "write to this store",
            "version_mismatch",
            None,
        )
    return members
