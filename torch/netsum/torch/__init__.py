"""The PyTorch backend: ``import netsum.torch; torch.distributed.init_process_group("netsum")``.

Sums and averages run in the network; every other collective runs over the hosts, by Gloo. Settings come from
the environment, see docs/pytorch.md.
"""

import torch.distributed as dist

import torch  # noqa: F401  its libraries must be in the process before ours
from netsum.torch import _group
from netsum.torch._C import Error
from netsum.torch._hooks import ddp_hook
from netsum.torch._regroup import regroup

__all__ = ["Error", "ddp_hook", "describe", "error", "regroup", "stats"]


def stats(group=None):
    """Counts of this rank since the group was made, as a dict (group: the default group)."""
    return _group.backend_of(group).stats()


def error(group=None):
    """What broke the group, as a netsum.torch.Error with its code and rank, or None.

    For what comes out of backward(): there PyTorch makes a plain torch.distributed.DistBackendError of it.
    """
    return _group.backend_of(group).error()


def describe(group=None):
    """One line for people: where the sums of the group happen, and why there."""
    return _group.backend_of(group).describe()


dist.Backend.register_backend("netsum", _group.create, extended_api=True, devices=["cpu"])
