"""Reads netsum's environment variables (docs/options.md). No other module reads them."""

import dataclasses
import json
import os

from netsum.torch import _C

_EMULATION = "NETSUM_EMULATION"


def from_environment(environ=os.environ):
    """Returns the _C.Settings of `environ`. Raises ValueError, which names the variable, for an invalid value."""
    local_rank = environ.get("LOCAL_RANK", "").strip() or "0"
    if not local_rank.isdigit():
        raise ValueError(f'LOCAL_RANK="{local_rank}": must be a whole number')
    return _C.Settings(lambda name: environ.get(name, ""), int(local_rank))


def without_plan(size, environ=os.environ):
    """Returns `environ` for a group beside the one that sums along the plan of NETSUM_AGGREGATOR: without it. `size`: of a group
    that may be that one; it takes a plan for so many ranks. None: another one is."""
    kind, _, file = environ.get("NETSUM_AGGREGATOR", "").strip().partition(":")
    if kind != "plan":
        return environ
    if size is not None:
        try:
            with open(file, encoding="utf-8", errors="replace") as plan:
                of_size = any(line.partition("#")[0].split() == ["ranks", str(size)] for line in plan)
        except OSError:  # whoever reads the plan says so
            return environ
        if of_size:
            return environ
    return {name: text for name, text in environ.items() if name != "NETSUM_AGGREGATOR"}


def staging_limits(environ=os.environ):
    """How a group stages an accelerator's tensors: returns NETSUM_STAGING_MIB, how much of them is in the host's memory at a
    time, and NETSUM_STAGING_SEGMENT_KIB, how much is copied at a time (0: a tensor), in bytes."""

    def number(name, otherwise, least):
        text = environ.get(name, "").strip() or str(otherwise)
        if not text.isdigit() or not least <= int(text) <= 1 << 20:
            raise ValueError(f'{name}="{text}": must be a whole number from {least} to {1 << 20}')
        return int(text)

    return number("NETSUM_STAGING_MIB", 256, 1) << 20, number("NETSUM_STAGING_SEGMENT_KIB", 1024, 0) << 10


def record_path(environ=os.environ):
    """Returns the prefix of the files to which NETSUM_RECORD records (docs/emulation.md), or "" if it is not set."""
    return environ.get("NETSUM_RECORD", "")


def emulation_times(environ=os.environ):
    """Returns the file to which this rank writes when it submits operations, or "" if no ghost follows it."""
    return environ.get("NETSUM_EMULATION_TIMES", "")


def records_scales(environ=os.environ):
    """Returns whether NETSUM_RECORD also records the scales of sums of floats."""
    return environ.get("NETSUM_RECORD_SCALES", "0") not in ("", "0")


def recorded_value_mib(environ=os.environ):
    """Returns NETSUM_RECORD_VALUES: up to how many MiB of what this rank contributes NETSUM_RECORD also records."""
    text = environ.get("NETSUM_RECORD_VALUES", "").strip() or "0"
    if not text.isdigit() or int(text) > 1 << 20:
        raise ValueError(f'NETSUM_RECORD_VALUES="{text}": must be a whole number of MiB, from 0 to {1 << 20}')
    return int(text)


@dataclasses.dataclass(frozen=True)
class Emulation:
    """The job of `netsum emulate` that this process is a real rank of."""

    ranks: int
    real: int  # the first ones; the others are ghosts
    rank: int
    job: str
    token: str = dataclasses.field(repr=False)
    # [{"ranks": ..., "job": ...}]: further groups of this rank, in whose jobs ghosts take part; of equal ranks in their order
    groups: list = dataclasses.field(default_factory=list)
    have_values: bool = False  # ghosts send what was recorded


def emulation(environ=os.environ):
    """Returns the Emulation that `netsum emulate` has put into `environ`, or None. Raises ValueError for anything else there."""
    text = environ.get(_EMULATION, "")
    if not text:
        return None
    try:
        return Emulation(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{_EMULATION} is for `netsum emulate` alone, which has not written this: unset it") from error
