"""The PyTorch backend of netsum.

Use it with ``import netsum.torch; torch.distributed.init_process_group("netsum")``. Collectives run in the network; Gloo
runs what cannot gain from it, such as send and receive, between the hosts. Settings come from the environment: see
docs/pytorch.md.
"""

import torch.distributed as dist

import torch  # noqa: F401  its libraries must be in the process before ours
from netsum.torch import _check_torch, _group, _stack_hint  # noqa: F401  the check comes first
from netsum.torch._advice import advise
from netsum.torch._C import Error, check_compressor, compression_methods
from netsum.torch._compress import Compression, compress, compression_hook, reshard_compression_states
from netsum.torch._compressor import Compressor
from netsum.torch._hooks import EmbeddingRows, ddp_hook, sparse_ddp_hook
from netsum.torch._overlap import OverlappedOptimizer
from netsum.torch._priority import Priorities, prioritise, priority_hook
from netsum.torch._record import Recording, program_of, record
from netsum.torch._regroup import regroup
from netsum.torch._sparse import sparse_all_reduce
from netsum.torch._waves import Waves

__all__ = [
    "Compression",
    "Compressor",
    "EmbeddingRows",
    "Error",
    "OverlappedOptimizer",
    "Priorities",
    "Recording",
    "Waves",
    "advise",
    "check_compressor",
    "compress",
    "compression_hook",
    "compression_methods",
    "ddp_hook",
    "describe",
    "error",
    "overlap_fsdp",
    "prioritise",
    "priority_hook",
    "program_of",
    "record",
    "regroup",
    "reshard_compression_states",
    "sparse_all_reduce",
    "sparse_ddp_hook",
    "stats",
]


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


def overlap_fsdp(model):
    """Makes a model of ``fully_shard`` (FSDP2) compute while its parameters and gradients are on their way.

    FSDP2 orders communication and computation by streams. The CPU has none, so there FSDP2 waits for every collective. After
    this call, modules gather their parameters while the module before them computes (in the forward pass in the order of
    ``model.modules()``, unless ``set_modules_to_forward_prefetch()`` has chosen another one), and the gradients'
    reduce-scatters are waited for at the end of the backward pass. The results have the same bits. All gradients of a
    backward pass may be in memory, unsharded, at the same time.

    Call it on every rank, after fully_shard() and before the first forward pass. FSDP still waits for a reduce-scatter
    whose result it uses at once: to divide after a sum (float16), to convert it to another type, to add it to the
    gradients of an earlier backward pass, or to sum it over replicas (HSDP).
    """
    from netsum.torch import _fsdp  # importing FSDP takes a while

    _fsdp.overlap(model)


dist.Backend.register_backend("netsum", _group.create, extended_api=True, devices=_group.Devices())
