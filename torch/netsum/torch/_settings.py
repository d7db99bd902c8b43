"""Reads netsum's environment variables (docs/options.md). No other module reads them."""

import os

from netsum.torch import _C


def from_environment(environ=os.environ):
    """Returns the _C.Settings of `environ`. Raises ValueError, which names the variable, for an invalid value."""
    local_rank = environ.get("LOCAL_RANK", "").strip() or "0"
    if not local_rank.isdigit():
        raise ValueError(f'LOCAL_RANK="{local_rank}": must be a whole number')
    return _C.Settings(lambda name: environ.get(name, ""), int(local_rank))


def record_path(environ=os.environ):
    """Returns the prefix of the files to which NETSUM_RECORD records (docs/emulation.md), or "" if it is not set."""
    return environ.get("NETSUM_RECORD", "")
