"""Compressed gradients of models of fully_shard() (FSDP2; docs/pytorch.md): in the reduce-scatters, or in sums over replicas."""

import weakref

import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo
from torch.utils.weak import WeakTensorKeyDictionary

import torch
from netsum.torch import _C, _compress, _control, _fsdp, _group


def compress(model, method, replicas=None, **settings):
    """compress() of netsum.torch, for a model of fully_shard()."""
    if "group" in settings:
        raise TypeError(
            "compress() of a model of fully_shard() takes no group: it is that of the model's mesh, or `replicas`"
        )
    kind = _ShardedCompression if replicas is None else _ReplicatedCompression
    state = kind(model, method, group=replicas, **settings)
    state._install()
    return state


class _OfFsdp(_compress.Compression):
    """What both ways have in common."""

    def __init__(self, model, method, *, group, **settings):
        modules = _fsdp.sharded_modules(model)
        self._groups = [(module, group) for module in modules for group in _fsdp.param_groups(module)]
        self._params = {id(p.sharded_param): p for _, group in self._groups for p in group.fsdp_params}
        self._shard_group = _shard_group_of(self._groups)
        self._known = WeakTensorKeyDictionary()
        self._plans = {}
        self._ending = None  # the number of the pass that ends with the present backward pass
        group = group if group is not None else self._shard_group
        _group.backend_of(group)  # refuses other backends
        super().__init__(model, method, group=group, **settings)

    def _is_encoded_on_device(self, _entry):
        return False

    def _entry(self, number, name, parameter, compression):
        param = self._params.get(id(parameter))
        if param is None:
            if any(parameter is getattr(p, "_unsharded_param", None) for p in self._params.values()):
                raise ValueError(f"{name} is not sharded at present: call compress() before the first forward pass")
            return None  # fully_shard() has not been applied to it, so FSDP does not reduce it
        if isinstance(compression, _control.Levels):
            raise ValueError("the method 'auto' chooses for the buckets of DistributedDataParallel; FSDP2 has none")
        if compression is not None:
            if param.is_dtensor:
                raise ValueError(
                    f"{name} was a DTensor before fully_shard(); only parameters that were not are compressed"
                )
            why = self._why_not(compression)
            if why:
                raise ValueError(f"{self._where} cannot be compressed by '{compression.describe()}' ({name}): {why}")
        entry = self._known[parameter] = self._kind(number, name, parameter, compression, self._group, param)
        return entry

    def _reduced(self, param_group, count, divisor):
        """The entries of the gradients that FSDP has put one behind the other."""
        params = [p for p in param_group.fsdp_params if p.sharded_param.requires_grad]
        entries = [self._known_entry(p.sharded_param) for p in params]
        expected = sum(entry.padded_count for entry in entries)
        if count != expected * divisor:
            names = ", ".join(entry.name for entry in entries)
            raise RuntimeError(
                f"compression: in this step FSDP reduces only some of the parameters {names}, and does not tell which: some had "
                "no gradient. Call model.set_reduce_scatter_unused_params(True), or freeze what is not used (requires_grad)"
            )
        self._pass.begin([entry.id for entry in entries])
        if not self._pass.has_agreed:
            _compress._agree_on_steps(self._parameters, self._group)
            self._pass.set_agreed()
        self._end_with_backward()
        scale = self._scaler.get_scale() if self._scaler is not None else None
        for entry in entries:
            entry.follow_scale(scale)
        return entries

    def _staged(self, input, output):
        """Returns `input` and `output` as tensors of the host, and a function that copies the output back."""
        if input.device.type == "cpu":
            return input, output, lambda: None
        try:
            staged = _C.Staged(_group.backend_of(self._group), input, output)
        except BaseException:
            self._pass.fail()
            raise
        return staged.input, staged.output, staged.copy_back

    def _known_entry(self, parameter):
        entry = self._known.get(parameter)
        if entry is None:
            raise RuntimeError(
                f"a parameter of shape {list(parameter.shape)} is not one of those that the compression was created for: "
                "call netsum.torch.compress() after the model has all its parameters"
            )
        return entry

    def _plan(self, entries, dtype):
        key = (dtype, *(entry.id for entry in entries))
        if key not in self._plans:
            # The parameters that require gradients may change; the older plans are then those of no group.
            self._plans = {k: p for k, p in self._plans.items() if set(key[1:]).isdisjoint(k[1:])}
            self._plans[key] = self._make_plan([entry.item for entry in entries], dtype)
        return self._plans[key]

    def _end_with_backward(self):
        """The next backward pass may begin with other parameters."""
        if self._ending != self._pass.number and torch._C._current_graph_task_id() != -1:
            self._ending = self._pass.number
            torch.autograd.Variable._execution_engine.queue_callback(self._pass.end)


class _ShardedCompression(_OfFsdp):
    """Of reduce-scatters: part r of each parameter is a tensor of its own, which all ranks compress for rank r."""

    _where = "the reduce-scatter of a sharded parameter"

    @property
    def _kind(self):
        return _InParts

    def _why_not(self, compression):
        why = compression.why_not_in_parts
        return (
            why
            and why + ". Use another method, such as 'bf16', 'int8' or 'lanes8', or compress sums over replicas only"
        )

    def _make_plan(self, items, dtype):
        return _C.ShardedPlan(items, dtype, dist.get_rank(self._group), dist.get_world_size(self._group))

    def _install(self):
        own = [(group, _fsdp.reduce_scatter_of(group)) for _, group in self._groups]
        if any(reduce_scatter.compression is not None for _, reduce_scatter in own):
            raise RuntimeError("the reduce-scatters of this model are compressed already")
        for group, reduce_scatter in own:
            reduce_scatter.compression = _ReduceScatter(self, group)


class _ReduceScatter:
    """The compression of the reduce-scatters of one group of parameters."""

    def __init__(self, state, param_group):
        self._state, self._param_group = state, weakref.ref(param_group)

    def start(self, output, gradients, group, op):
        state, param_group = self._state, self._param_group()
        ranks = group.size()
        entries = state._reduced(param_group, gradients.numel(), ranks)
        plan = state._plan(entries, gradients.dtype)
        gradients, output, copy_back = state._staged(gradients, output)
        works = plan.start(_group.backend_of(group), gradients, state._pass, state._stats)
        factor = _factor(op, ranks, param_group)
        return _Reduction(works, state._pass, lambda: self._finish(plan, output, factor, copy_back))

    def _finish(self, plan, output, factor, copy_back):
        plan.finish(output, self._state._stats)
        if factor != 1:
            output.mul_(factor)
        copy_back()


def _factor(op, ranks, param_group):
    """By what the mean is multiplied."""
    if op == dist.ReduceOp.AVG:
        return 1
    return ranks if op == dist.ReduceOp.SUM else ranks / param_group.gradient_divide_factor


class _Reduction:
    """Operations, and what follows when they have ended."""

    def __init__(self, works, of_pass, finish):
        self._works, self._pass, self._finish = works, of_pass, finish

    def wait(self):
        works, self._works = self._works, None
        if works is None:
            return
        try:
            for work in works:
                work.wait()
            self._finish()
        except BaseException:
            self._pass.fail()
            raise


class _ReplicatedCompression(_OfFsdp):
    """Of sums over the replicas of a model that is sharded in each of them: what a rank has of a parameter is one tensor."""

    _where = "the sum over replicas of a sharded parameter"

    def __init__(self, model, method, *, group, **settings):
        super().__init__(model, method, group=group, **settings)
        mine = set(dist.get_process_group_ranks(self._shard_group))
        if mine & (set(dist.get_process_group_ranks(group)) - {dist.get_rank()}):
            raise ValueError(
                "replicas must be the ranks that have the same parts of the parameters; these are of one replica"
            )

    @property
    def _kind(self):
        return _OneShard

    def _why_not(self, compression):
        return "" if compression.is_mean else "its result is not a mean, and FSDP may still divide it"

    def _make_plan(self, items, dtype):
        return _C.BucketPlan(items, dtype, dist.get_world_size(self._group))

    def _install(self):
        for module, group in self._groups:
            if group._is_hsdp:
                raise ValueError(
                    "the model's mesh has replicas, over which FSDP sums by itself. Give fully_shard() the part of the mesh "
                    "that shards, for example mesh['shard'], and compress() the group of the other one as replicas"
                )
            if group._all_reduce_hook is not None:
                raise RuntimeError("the model has an all-reduce hook already (set_all_reduce_hook())")
            module.set_all_reduce_hook(_AllReduce(self, group))


class _AllReduce:
    """The hook for one group of parameters. FSDP calls it with the result of the reduce-scatter."""

    def __init__(self, state, param_group):
        self._state, self._param_group = state, weakref.ref(param_group)

    def __call__(self, gradients):
        state, param_group = self._state, self._param_group()
        if not param_group.all_reduce_grads:
            raise RuntimeError(
                "set_requires_all_reduce(False) has no effect on compressed sums over replicas: accumulate gradients with "
                "set_requires_gradient_sync(False)"
            )
        entries = state._reduced(param_group, gradients.numel(), 1)
        plan = state._plan(entries, gradients.dtype)
        gradients, _, copy_back = state._staged(gradients, gradients)
        slices = gradients.split([entry.padded_count for entry in entries])
        works = plan.start(_group.backend_of(state._group), slices, state._pass, state._stats)

        def finish():
            plan.finish(slices, state._stats)
            copy_back()

        _Reduction(works, state._pass, finish).wait()


class _OneShard(_compress._Parameter):
    """What this rank has of a parameter, with its padding."""

    def __init__(self, number, name, parameter, compression, group, param):
        super().__init__(number, name, parameter, compression, group)
        self.shape = param.padded_sharded_param_size
        self.count = self.padded_count = self.shape.numel()


class _InParts(_compress._Parameter):
    """A parameter whose parts are compressed, each for the rank that keeps it.

    What a rank keeps of it has the shape of the whole parameter, whatever the number of ranks, where it is saved.
    """

    def __init__(self, number, name, parameter, compression, group, param):
        super().__init__(number, name, parameter, compression, group)
        self._dim = param.fsdp_placement.dim
        self._part_shape = param.padded_sharded_param_size
        self.padded_count = self._part_shape.numel()
        self._parts = None

    @property
    def parts(self):
        if self._parts is None:
            rank, ranks = dist.get_rank(self._group), dist.get_world_size(self._group)
            self._parts = [
                self.compression.tensor(self.id * ranks + part, self.padded_count, rank, ranks, 1)
                for part in range(ranks)
            ]
        return self._parts

    @property
    def item(self):
        if self.compression is None:
            return ([], self.padded_count, [])
        length, step = self.shape[self._dim], self._part_shape[self._dim]
        one = self.padded_count // step
        used = [one * min(step, max(0, length - part * step)) for part in range(len(self.parts))]
        return (self.parts, self.padded_count, used)

    def follow_scale(self, scale):
        if self.compression is not None:
            for part in self.parts:
                part.follow_scale(scale)

    def step(self):
        return self.parts[0].step

    def set_step(self, step):
        for part in self.parts:
            part.step = step

    def scale(self):
        return self.parts[0].scale

    def memory(self):
        states = [part.state() for part in self.parts]
        return {name: self._joined([state[name] for state in states]) for name in states[0]}

    def restore(self, saved):
        memories = {name: self._cut(values) for name, values in saved["memory"].items()}
        for index, part in enumerate(self.parts):
            part.restore(saved["step"], {name: cut[index] for name, cut in memories.items()})
            part.scale = saved["scale"]

    def _joined(self, parts):
        whole = torch.cat([part.view(self._part_shape) for part in parts], dim=self._dim)
        return whole.narrow(self._dim, 0, self.shape[self._dim]).flatten()

    def _cut(self, values):
        ranks, step = len(self.parts), self._part_shape[self._dim]
        padded = list(self.shape)
        padded[self._dim] = ranks * step
        whole = values.new_zeros(padded)
        whole.narrow(self._dim, 0, self.shape[self._dim]).copy_(values.view(self.shape))
        return [part.flatten().contiguous() for part in whole.split(step, dim=self._dim)]


def _shard_group_of(groups):
    """The process group over which all of the model is sharded."""
    found = {}
    for _, group in groups:
        if not isinstance(group.mesh_info, FSDPMeshInfo):
            raise ValueError(
                "the model is replicated, not sharded: wrap it in DistributedDataParallel to compress its gradients"
            )
        process_group = group.mesh_info.shard_process_group
        found[tuple(dist.get_process_group_ranks(process_group))] = process_group
    if len(found) != 1:
        raise ValueError(
            f"the modules of the model are sharded over different ranks: {sorted(found)}; they must be the same"
        )
    return next(iter(found.values()))
