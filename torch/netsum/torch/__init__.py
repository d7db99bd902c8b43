"""The PyTorch backend of netsum.

Use it with ``import netsum.torch; torch.distributed.init_process_group("netsum")``. The network computes sums and
averages; Gloo runs every other collective between the hosts. Settings come from the environment: see docs/pytorch.md.
"""

import torch.distributed as dist

import torch  # noqa: F401  its libraries must be in the process before ours
from netsum.torch import _group
from netsum.torch._C import Error
from netsum.torch._hooks import ddp_hook
from netsum.torch._regroup import regroup

__all__ = ["Error", "ddp_hook", "describe", "error", "regroup", "stats"]


def stats(group=None):
    """Returns this rank's counts since the group was created, as a dict. `group` None: the default group."""
    return _group.backend_of(group).stats()


def error(group=None):
    """Returns the error that broke the group, a netsum.torch.Error with `code` and `rank`, or None.

    Use it after an error in backward(), which PyTorch turns into a plain torch.distributed.DistBackendError.
    """
    return _group.backend_of(group).error()


def describe(group=None):
    """Returns one line for humans that says where the group's sums are made, and why."""
    return _group.backend_of(group).describe()


dist.Backend.register_backend("netsum", _group.create, extended_api=True, devices=["cpu"])
