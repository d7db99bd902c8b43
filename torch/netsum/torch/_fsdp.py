"""FSDP2 (fully_shard) on the CPU: communication beside computation. netsum.torch.overlap_fsdp() describes it."""

import itertools

from torch.autograd import Variable
from torch.distributed import ReduceOp
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

import torch


def overlap(model):
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not sharded:
        raise ValueError("overlap_fsdp: the model has no module to which fully_shard() has been applied")
    pending = _Pending()
    for module in sharded:
        for group in module._get_fsdp_state()._fsdp_param_groups:
            group.unshard_async_op = True
            group._reduce_scatter_comm = _ReduceScatter(group, pending)
    inner = [module for module in sharded if module is not model]
    for module, following in itertools.pairwise(inner):
        if not module._get_fsdp_state()._states_to_forward_prefetch:
            module.set_modules_to_forward_prefetch([following])


class _Pending:
    """The reduce-scatters of a backward pass that have not been waited for."""

    def __init__(self):
        self._works = []
        self._backward = None

    def __len__(self):
        return len(self._works)

    def add(self, work):
        """Returns whether somebody will wait for the work at the end of the backward pass."""
        backward = torch._C._current_graph_task_id()
        if backward == -1:
            return False
        if backward != self._backward:
            self.wait()  # for what is left of a backward pass that has failed
            Variable._execution_engine.queue_callback(self.wait)
            self._backward = backward
        self._works.append(work)
        return True

    def wait(self):
        works, self._works, self._backward = self._works, [], None
        for work in works:
            work.wait()


class _ReduceScatter(DefaultReduceScatter):
    """The reduce-scatter of one group of parameters."""

    def __init__(self, param_group, pending):
        super().__init__()
        self._param_group = param_group
        self._pending = pending

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        work = super().__call__(output_tensor, input_tensor, group, op, async_op=True)
        if self._is_used_at_once(output_tensor, op) or not self._pending.add(work):
            work.wait()

    def _is_used_at_once(self, output, op):
        """Whether FSDP reads the result before the backward pass ends."""
        group = self._param_group
        divided_next = op == ReduceOp.SUM
        converted_next = output.dtype != group._orig_dtype
        reduced_next = group._is_hsdp or group._all_reduce_hook is not None
        return divided_next or converted_next or reduced_next or any(map(_adds_at_once, group.fsdp_params))


def _adds_at_once(parameter):
    """Whether FSDP or a hook does something with the gradient of the parameter as soon as it has it."""
    sharded = parameter.sharded_param
    has_hooks = bool(getattr(sharded, "_post_accumulate_grad_hooks", None))
    return sharded.grad is not None or has_hooks or parameter.offload_to_cpu
