"""FSDP2 (fully_shard) on the CPU: communication beside computation, which netsum.torch.overlap_fsdp() describes; and the
reduce-scatter of a module's gradients, in which compression takes part (_sharded.py)."""

import itertools

from torch.autograd import Variable
from torch.distributed import ReduceOp
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter

import torch


def sharded_modules(model):
    """Those to which fully_shard() has been applied."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def param_groups(module):
    """FSDP's groups of parameters of one such module, of which each is reduced at once."""
    return module._get_fsdp_state()._fsdp_param_groups


def overlap(model):
    sharded = sharded_modules(model)
    if not sharded:
        raise ValueError("overlap_fsdp: the model has no module to which fully_shard() has been applied")
    pending = _Pending()
    own = [(group, reduce_scatter_of(group)) for module in sharded for group in param_groups(module)]
    for group, reduce_scatter in own:
        group.unshard_async_op = True
        reduce_scatter.pending = pending
    inner = [module for module in sharded if module is not model]
    for module, following in itertools.pairwise(inner):
        if not module._get_fsdp_state()._states_to_forward_prefetch:
            module.set_modules_to_forward_prefetch([following])


def reduce_scatter_of(param_group):
    """Netsum's reduce-scatter of a group of parameters, put in the place of FSDP's own if it is not there yet."""
    present = param_group._reduce_scatter_comm
    if isinstance(present, ReduceScatter):
        return present
    if type(present) is not DefaultReduceScatter:
        raise ValueError(
            f"the model has a reduce-scatter of its own already, {type(present).__name__} "
            "(set_custom_reduce_scatter()); netsum cannot put its own in that place"
        )
    # set_custom_reduce_scatter() would refuse modules of several groups; here each group gets an object of its own.
    param_group._reduce_scatter_comm = ReduceScatter(param_group)
    return param_group._reduce_scatter_comm


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


class ReduceScatter(DefaultReduceScatter):
    """The reduce-scatter of one group of parameters.

    pending: who waits for it at the end of the backward pass; None: it is waited for at once.
    compression: start(output, input, group, op) returns what to wait for, whose wait() may be called again; None: not compressed.
    """

    def __init__(self, param_group):
        super().__init__()
        self.pending = None
        self.compression = None
        self._param_group = param_group
        self._last = None

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        if self.compression is not None:
            if self._last is not None:
                self._last.wait()  # of a backward pass that has failed: there is one plan for all
            work = self._last = self.compression.start(output_tensor, input_tensor, group, op)
        else:
            work = super().__call__(output_tensor, input_tensor, group, op, async_op=True)
        if self.pending is None or self._is_used_at_once(output_tensor, op) or not self.pending.add(work):
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
