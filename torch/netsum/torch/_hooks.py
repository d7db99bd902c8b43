"""Communication hooks for DistributedDataParallel."""

import itertools
import weakref

import torch.distributed as dist
from torch.utils.weak import WeakTensorKeyDictionary

from netsum.torch import _group, _reductions
from netsum.torch._C import SparseMode
from torch import nn

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


def ids_of(group):
    """Returns the numbers of a group's parameters."""
    return _parameter_ids.setdefault(group, _ParameterIds())


def ddp_hook(group, bucket):
    """Averages a bucket of gradients. Register it with ``model.register_comm_hook(None, netsum.torch.ddp_hook)``.

    It does what DDP does without a hook, but passes the gradient of each parameter as a separate tensor, so that each
    has its own scales: small gradients keep their precision beside large ones of another parameter
    (docs/numerics.md). Each tensor has an id that identifies its parameter in all steps. `group` is the process group
    of the model, or None for the default group. Returns a future of the bucket's buffer.
    """
    group = group if group is not None else dist.group.WORLD
    ids = ids_of(group).of(bucket.parameters())
    options = _reductions.coalesced_options_of()
    work = _group.backend_of(group).allreduce_identified(bucket.gradients(), ids, options)
    return _reductions.future_of([work], bucket)


class EmbeddingRows:
    """State of sparse_ddp_hook() for models with embeddings of ``sparse=False``: their gradients travel as rows.

    ``model.register_comm_hook(netsum.torch.EmbeddingRows(model), netsum.torch.sparse_ddp_hook)``. `model` is the model or its
    DistributedDataParallel; `group` its process group, or None for the default group.
    """

    def __init__(self, model, group=None):
        self.group = group
        self._tables = WeakTensorKeyDictionary()
        for module in model.modules():
            if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and not module.sparse:
                self._tables[module.weight] = module.embedding_dim
        if not self._tables:
            raise ValueError(
                "EmbeddingRows: the model has no nn.Embedding or nn.EmbeddingBag with sparse=False. Register sparse_ddp_hook "
                "with None or a process group instead."
            )

    def split(self, bucket):
        """Returns the tables in a bucket, as (parameter, gradient, length of a row), and its other (parameter, gradient)."""
        tables, others = [], []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if parameter in self._tables:
                tables.append((parameter, gradient, self._tables[parameter]))
            else:
                others.append((parameter, gradient))
        return tables, others


def sparse_ddp_hook(state, bucket):
    """Averages a bucket of gradients that may be mostly zero: what is zero on all ranks does not travel (docs/sparse.md).

    Register it with ``model.register_comm_hook(state, netsum.torch.sparse_ddp_hook)``. If `state` is None or a process
    group, a bucket whose elements turn out to be dense is sent as without a hook; this suits models with layers at rest. If
    it is an EmbeddingRows, the gradients of embeddings (``sparse=False``) travel as those of their rows that any rank has
    used, and all other gradients as by ddp_hook(). Gradients of ``sparse=True`` need no hook. Returns a future of the
    bucket's buffer.
    """
    rows = state if isinstance(state, EmbeddingRows) else None
    group = rows.group if rows else state
    group = group if group is not None else dist.group.WORLD
    ids = ids_of(group)
    backend = _group.backend_of(group)
    average = _reductions.options_of()
    if rows is None or bucket.buffer().is_sparse:
        number = ids.of(bucket.parameters())[0]
        work = backend.sparse_all_reduce(bucket.buffer(), SparseMode.AUTO, 1, number, average)
        return _reductions.future_of([work], bucket)
    tables, others = rows.split(bucket)
    works = []
    if others:  # first: operations after a sparse one wait until its index is known
        parameters, gradients = zip(*others, strict=True)
        options = _reductions.coalesced_options_of()
        works.append(backend.allreduce_identified(gradients, ids.of(parameters), options))
    for parameter, gradient, length in tables:
        works.append(backend.sparse_all_reduce(gradient, SparseMode.AUTO, length, ids.of([parameter])[0], average))
    return _reductions.future_of(works, bucket)
