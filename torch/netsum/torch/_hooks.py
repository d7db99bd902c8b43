"""Communication hooks for DistributedDataParallel."""

import itertools
import weakref

import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary

from netsum.torch import _group
from netsum.torch._C import SparseMode

_parameter_ids = weakref.WeakKeyDictionary()  # of each process group


class _ParameterIds:
    """Numbers the parameters of a group from 1, by their first appearance, which has the same order on all ranks."""

    def __init__(self):
        self._numbers = itertools.count(1)
        self._known = WeakTensorKeyDictionary()

    def of(self, parameters):
        for parameter in parameters:
            if parameter not in self._known:
                self._known[parameter] = next(self._numbers)
        return [self._known[parameter] for parameter in parameters]


def ddp_hook(group, bucket):
    """Averages a bucket of gradients. Register it with ``model.register_comm_hook(None, netsum.torch.ddp_hook)``.

    It does what DDP does without a hook, but passes the gradient of each parameter as a separate tensor, so that each
    has its own scales: small gradients keep their precision beside large ones of another parameter
    (docs/numerics.md). Each tensor has an id that identifies its parameter in all steps. `group` is the process group
    of the model, or None for the default group. Returns a future of the bucket's buffer.
    """
    group = group if group is not None else dist.group.WORLD
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.AVG
    ids = _parameter_ids.setdefault(group, _ParameterIds()).of(bucket.parameters())
    work = _group.backend_of(group).allreduce_identified(bucket.gradients(), ids, options)
    return work.get_future().then(lambda done: _sum_in(done, bucket))


def sparse_ddp_hook(group, bucket):
    """Averages a bucket of gradients that may be mostly zero: what is zero on all ranks does not travel (docs/sparse.md).

    Register it with ``model.register_comm_hook(None, netsum.torch.sparse_ddp_hook)``. A bucket whose gradients turn out to
    be dense is sent as without a hook. It suits models with embeddings (``sparse=False``) and with layers at rest;
    gradients of ``sparse=True`` need no hook. Returns a future of the bucket's buffer.
    """
    group = group if group is not None else dist.group.WORLD
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.AVG
    ids = _parameter_ids.setdefault(group, _ParameterIds()).of(bucket.parameters())
    work = _group.backend_of(group).sparse_all_reduce(bucket.buffer(), SparseMode.AUTO, 1, ids[0], options)
    return work.get_future().then(lambda done: _sum_in(done, bucket))


def _sum_in(done, bucket):
    done.value()  # raises what went wrong
    return bucket.buffer()
