"""All-reduces of tensors that are mostly zero."""

import torch.distributed as dist

from netsum.torch import _group
from netsum.torch._C import SparseMode

_MODES = {"auto": SparseMode.AUTO, "on": SparseMode.ON, "off": SparseMode.OFF}


def sparse_all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False, *, mode="auto", unit=1, id=0):
    """As torch.distributed.all_reduce, but what is zero on all ranks does not travel (docs/sparse.md).

    mode: "auto" (if that sends fewer bytes, by what earlier calls with the same `id` or, without one, the same size have
        shown), "on" or "off". Equal on all ranks.
    unit: the granularity of the index, in elements: 1, or the length of a row or block that is zero or not as a whole.
    id: identifies the tensor across calls, equal on all ranks; 0: none.

    Sparse tensors (COO) are summed as torch.distributed.all_reduce does, whatever the mode, and complex64 ones as well.
    """
    if mode not in _MODES:
        raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(_MODES)}")
    options = dist.AllreduceOptions()
    options.reduceOp = op
    work = _group.backend_of(group).sparse_all_reduce(tensor, _MODES[mode], unit, id, options)
    if async_op:
        return work
    work.wait()
    return None
