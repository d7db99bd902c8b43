"""An optimizer without a barrier for DistributedDataParallel: parameters are updated when their bucket has arrived."""

import queue
import time

import torch.distributed as dist
from torch.autograd import Variable
from torch.futures import Future

import torch
from netsum.torch._reductions import check_ddp

GRACE_S = 10.0  # after the deadline of the group, so that the operation's own error comes first


class OverlappedOptimizer(torch.optim.Optimizer):
    """Lets the sums of gradients continue after ``backward()`` and ``step()``, into the next forward pass.

    ::

        model = DistributedDataParallel(model)
        optimizer = netsum.torch.OverlappedOptimizer(model, torch.optim.AdamW(model.parameters()))

    DDP waits for all buckets at the end of ``backward()``. With this optimizer, ``backward()`` waits for none. ``step()``
    notes the settings of this step, and updates the parameters whose buckets have arrived. The others are updated when the
    next forward pass calls the module that has them, which waits for their buckets. The weights have the same bits as with
    DDP and `optimizer` alone. It works over every backend that sums tensors of the CPU.

    `optimizer`: an optimizer of torch.optim, except LBFGS. With `separable=True`, another one that updates each parameter by
    its own gradient and state alone. `hook`: (state, hook), a communication hook that sums the buckets, such as
    ``(None, netsum.torch.ddp_hook)``. `timeout_s`: how long to wait for a bucket; None: the timeout of the group and 10 s.

    ``synchronize()`` waits for all buckets, and makes ``p.grad`` the mean. Call it before whatever reads or changes
    gradients or weights outside of the model's modules: ``clip_grad_norm_()``, ``GradScaler``, copies of weights. A step whose
    gradients were changed before they had arrived is refused. ``close()`` removes the hooks from the modules, for
    example before the model gets another DistributedDataParallel. An error of a sum is raised by the next step() or forward
    pass, and by all later ones.
    """

    # The base class is not initialised: its lists are those of `optimizer`, as in torch's PostLocalSGDOptimizer.
    def __init__(self, model, optimizer, *, hook=None, separable=False, timeout_s=None):
        _check(model, optimizer, separable)
        self.optimizer = optimizer
        self._root = model.module
        self._hook_state, self._reduce = hook if hook is not None else (model.process_group, _sum)
        # Plain DDP multiplies gradients by this before it sums them; with a hook, the hook computes the mean.
        self._factor = 1.0 / dist.get_world_size(model.process_group) if hook is None else None
        self._timeout_s = timeout_of(model.process_group) + GRACE_S if timeout_s is None else timeout_s
        # DDP's own sum of which parameters were used comes after the buckets, and backward() waits for it. So there is
        # nothing to gain, and a parameter of a module that is not called may be in use or not.
        self._waits_at_start = model.find_unused_parameters
        self._live = []  # reductions that have not ended, in their order
        self._pending = {}  # by parameter: the live reduction that has its gradient
        self._reductions = {}  # by the ids of their parameters; also those that have ended, for the next pass
        self._arrivals = queue.SimpleQueue()
        self._error = None
        self._called = set()  # modules, in this forward pass
        self._always_called = None  # in all of them
        self._waits = {}  # by module: the parameters for which its forward pass waits, in a dict
        self._handles = self._install()
        model.register_comm_hook(None, self._on_bucket)

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)

    @property
    def _step_supports_amp_scaling(self):
        """GradScaler.step() asks for it first. Its changes of gradients do not change their versions."""
        if any(reduction.settings is None for reduction in self._live):
            raise RuntimeError(
                "OverlappedOptimizer: GradScaler needs the sums of gradients, which have not arrived. Call the optimizer's "
                "synchronize() after backward(), before GradScaler.unscale_() and GradScaler.step()"
            )
        return False

    def __repr__(self):
        return f"OverlappedOptimizer({self.optimizer!r})"

    def step(self, closure=None):
        """Updates what has arrived, and lets the rest follow. Returns the loss of `closure`, which is called once."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._raise_error()
        for reduction in [r for r in self._live if r.settings is not None]:
            self._complete(reduction)  # step() was called twice
        self._update_now()
        settings = [settings_of(group) for group in self.param_groups]
        for reduction in self._live:
            reduction.check_unchanged()
        for reduction in self._live:
            reduction.settings = settings
        while not self._arrivals.empty():
            self._finish(self._arrivals.get())
        if self._waits_at_start:
            self.synchronize()
        return loss

    def synchronize(self):
        """Waits for all sums, and updates the parameters of which step() has been called already."""
        self._raise_error()
        for reduction in list(self._live):
            self._complete(reduction)

    def zero_grad(self, set_to_none=True):
        for reduction in self._live:
            reduction.dropped = reduction.settings is None
        self.optimizer.zero_grad(set_to_none)

    def state_dict(self):
        self.synchronize()
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict):
        self.synchronize()
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group):
        self.synchronize()
        self._reductions.clear()  # they know the groups of their parameters
        self.optimizer.add_param_group(param_group)

    def register_step_pre_hook(self, hook):
        raise TypeError(
            "OverlappedOptimizer has no hooks of steps: the parameters of one step are updated at different times"
        )

    register_step_post_hook = register_step_pre_hook

    def close(self):
        """Waits for all sums, and removes the hooks from the modules. After an error of a sum, it waits for none."""
        try:
            if self._error is None:
                self.synchronize()
        finally:
            for handle in self._handles:
                handle.remove()

    # Modules.

    def _install(self):
        self._waits = {module: {} for module in self._root.modules()}
        self._waits[self._root] = dict.fromkeys(self._root.parameters())
        # First of all hooks, for others compute weights of parameters (weight_norm).
        handles = [
            module.register_forward_pre_hook(self._before_module, prepend=True) for module in self._root.modules()
        ]
        handles.append(self._root.register_forward_hook(self._after_root))
        handles.append(self._root.register_state_dict_pre_hook(lambda *_: self.synchronize()))
        handles.append(self._root.register_load_state_dict_pre_hook(lambda *_: self.synchronize()))
        return handles

    def _before_module(self, module, _arguments):
        if module is self._root:
            self._raise_error()
            self._called.clear()
            if not torch.is_grad_enabled():
                self.synchronize()  # evaluation may use parameters in other ways than training
        self._called.add(module)
        for parameter in self._waits[module] if self._pending else ():
            reduction = self._pending.get(parameter)
            if reduction is not None:
                self._complete(reduction)

    def _after_root(self, *_):
        """A parameter of a module that is not called, such as a ParameterList, is used by the next module above it that is."""
        if self._waits_at_start or not torch.is_grad_enabled():
            return
        always = self._called if self._always_called is None else self._always_called & self._called
        if always == self._always_called:
            return
        self._always_called = set(always)
        modules = dict(self._root.named_modules())
        waits = {module: {} for module in modules.values()}
        for name, module in modules.items():
            owner = module
            while owner not in always:
                name = name.rpartition(".")[0]
                owner = modules[name]
            waits[owner].update(dict.fromkeys(module.parameters(recurse=False)))
        self._waits = waits

    # Buckets.

    def _on_bucket(self, _state, bucket):
        """DDP's communication hook. DDP gets the bucket as it is, and copies it into gradients; nothing uses these."""
        self._raise_error()
        parameters = bucket.parameters()
        if bucket.buffer().is_sparse:
            raise ValueError(
                "OverlappedOptimizer: gradients of sparse=True embeddings are not supported; use sparse=False"
            )
        if any(p in self._pending for p in parameters):
            raise RuntimeError(
                "OverlappedOptimizer: a backward pass has used parameters whose update was pending. The forward pass must use "
                "them by calling the model and its modules, once before each backward pass; otherwise call synchronize() first"
            )
        reduction = self._reduction_of(bucket)
        reduction.take(bucket, self._factor)
        self._live.append(reduction)
        self._pending.update(dict.fromkeys(parameters, reduction))
        reduction.future = self._reduce(self._hook_state, reduction)
        reduction.future.add_done_callback(lambda _: self._arrivals.put(reduction))
        if bucket.is_last():
            # DDP writes to the gradients at the end of this pass, in a callback that it adds after this one.
            Variable._execution_engine.queue_callback(
                lambda: Variable._execution_engine.queue_callback(self._after_backward)
            )
        done = Future()
        done.set_result(bucket.buffer())
        return done

    def _after_backward(self):
        for reduction in self._live:
            reduction.note_gradients(self._waits_at_start)

    def _reduction_of(self, bucket):
        parameters = bucket.parameters()
        ids = tuple(map(id, parameters))
        if ids not in self._reductions:  # DDP makes other buckets after the first pass
            self._reductions = {k: r for k, r in self._reductions.items() if set(k).isdisjoint(ids)}
            self._reductions[ids] = _Reduction(bucket, self._groups_of(parameters))
        return self._reductions[ids]

    def _groups_of(self, parameters):
        """For each group of the optimizer that has some of the parameters: its index, and their indices."""
        positions = {parameter: i for i, parameter in enumerate(parameters)}
        found = [[positions[p] for p in group["params"] if p in positions] for group in self.param_groups]
        return [(index, members) for index, members in enumerate(found) if members]

    def _complete(self, reduction):
        end = time.monotonic() + self._timeout_s
        while reduction.future is not None:
            try:
                self._finish(self._arrivals.get(timeout=max(0.0, end - time.monotonic())))
            except queue.Empty:
                self._error = dist.DistBackendError(
                    f"OverlappedOptimizer: Timed out: the gradients of a bucket have not arrived after {self._timeout_s} s"
                )
                raise self._error from None

    def _finish(self, reduction):
        """The reduction has arrived."""
        try:
            try:
                reduction.take_result()
            except Exception as error:
                self._error = error  # the weights of some parameters have moved, those of others will not
                raise
            with torch.no_grad():
                if reduction.settings is not None:
                    self._update(reduction)
                reduction.write_back()
        finally:
            reduction.future = None
            self._live.remove(reduction)
            for parameter in reduction.parameters():
                del self._pending[parameter]

    def _update(self, reduction):
        parameters, means = reduction.parameters(), reduction.means()
        groups = []
        for index, members in reduction.groups:
            with_gradient = [parameters[i] for i in members if means[i] is not None]
            if with_gradient:
                groups.append({**reduction.settings[index], "params": with_gradient})
        kept = [p.grad for p in parameters]
        try:
            for parameter, mean in zip(parameters, means, strict=True):
                parameter.grad = mean
            self._step_of(groups)
        finally:
            for parameter, gradient in zip(parameters, kept, strict=True):
                parameter.grad = gradient

    def _update_now(self):
        """Updates the parameters whose gradients are not on their way: after synchronize(), and those that DDP does not have."""
        groups = [
            {**group, "params": [p for p in group["params"] if p not in self._pending]} for group in self.param_groups
        ]
        if any(p.grad is not None for group in groups for p in group["params"]):
            self._step_of(groups)

    def _step_of(self, groups):
        """A step of the optimizer for some of its parameters."""
        before = [dict(group) for group in groups]
        whole = self.optimizer.param_groups
        self.optimizer.param_groups = groups
        try:
            self.optimizer.step()
        finally:
            self.optimizer.param_groups = whole
        try:
            check_groups_unchanged(self.optimizer, before, groups, "OverlappedOptimizer")
        except TypeError as error:
            self._error = error
            raise

    def _raise_error(self):
        if self._error is not None:
            raise self._error


class _Reduction:
    """A bucket of one backward pass, in memory of its own: DDP writes to its bucket meanwhile. A GradBucket to hooks."""

    def __init__(self, bucket, groups):
        source = bucket.buffer()
        self._parameters = bucket.parameters()
        self._buffer = torch.empty_like(source)
        start = source.storage_offset()
        self._means = [
            self._buffer.as_strided(g.size(), g.stride(), g.storage_offset() - start) for g in bucket.gradients()
        ]
        self.groups = groups
        self.future = None  # None: it has ended

    def take(self, bucket, factor):
        """Begins anew, with the gradients of `bucket`."""
        if factor is None:
            self._buffer.copy_(bucket.buffer())
        else:
            torch.mul(bucket.buffer(), factor, out=self._buffer)
        self._index, self._is_last = bucket.index(), bucket.is_last()
        self._before = [(p.grad, _version(p.grad)) for p in self._parameters]
        self._after = None  # after the backward pass, when DDP has written to them: gradients, and their versions
        self._unused = frozenset()
        self.settings = None  # of the groups of the optimizer, when step() was called
        self.dropped = False  # by zero_grad()

    def buffer(self):
        return self._buffer

    def gradients(self):
        return self._means

    def parameters(self):
        return self._parameters

    def index(self):
        return self._index

    def is_last(self):
        return self._is_last

    def set_buffer(self, buffer):
        self._buffer.copy_(buffer)

    def take_result(self):
        """The operation has ended. Raises what went wrong."""
        value = self.future.value()
        value = value[0] if isinstance(value, (list, tuple)) else value
        if value.data_ptr() != self._buffer.data_ptr():
            self._buffer.copy_(value.view_as(self._buffer))

    def note_gradients(self, may_be_unused):
        if self._after is not None:
            return
        self._after = [(p.grad, _version(p.grad)) for p in self._parameters]
        if may_be_unused:  # DDP leaves the gradients of parameters as they are that no rank has used
            pairs = enumerate(zip(self._before, self._after, strict=True))
            self._unused = frozenset(i for i, (old, new) in pairs if old[0] is new[0] and old[1] == new[1])

    def means(self):
        """By parameter: what the optimizer uses as its gradient; None: there is none."""
        return [
            self._after[i][0]
            if i in self._unused
            else None
            if self._after[i][0] is None or i in self._removed
            else mean
            for i, mean in enumerate(self._means)
        ]

    def check_unchanged(self):
        """Before the step. Raises RuntimeError if gradients have been changed that were still on their way."""
        if self._after is None:
            raise RuntimeError(
                "OverlappedOptimizer: step() was called during the backward pass, or after one that has failed"
            )
        self._removed = frozenset(i for i, p in enumerate(self._parameters) if p.grad is None or self.dropped)
        changed = [i for i, p in enumerate(self._parameters) if i not in self._removed and not self._is_as_noted(i)]
        if changed:
            raise RuntimeError(
                "OverlappedOptimizer: gradients were changed between backward() and step(), before their sums had arrived "
                "(clip_grad_norm_() and Module.zero_grad() do that). Call the optimizer's synchronize() "
                "before such changes, and its own zero_grad()"
            )

    def write_back(self):
        """Makes the gradients that are still there the mean."""
        if self._after is None or self.dropped:
            return
        if self.settings is None:
            self.check_unchanged()
        for i, (parameter, mean) in enumerate(zip(self._parameters, self._means, strict=True)):
            if parameter.grad is not None and i not in self._unused and self._is_as_noted(i):
                parameter.grad.copy_(mean)

    def _is_as_noted(self, i):
        gradient, version = self._after[i]
        return self._parameters[i].grad is gradient and _version(gradient) == version


def _version(gradient):
    return None if gradient is None else gradient._version


def settings_of(group):
    """A copy of a group's settings, which a scheduler may change before they are used."""
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def _sum(group, bucket):
    return dist.all_reduce(bucket.buffer(), group=group, async_op=True).get_future()


def timeout_of(group):
    """The timeout of a process group, in seconds."""
    backend = group._get_backend(torch.device("cpu"))
    backend = getattr(backend, "wrapped_pg", backend)
    timeout = getattr(backend, "timeout", None) or backend.options._timeout
    return timeout.total_seconds()


def _check(model, optimizer, separable):
    check_ddp(model, "OverlappedOptimizer")
    check_optimizer(optimizer, separable, "OverlappedOptimizer")
    if any(p.device.type != "cpu" for p in model.parameters()):
        raise ValueError(
            "OverlappedOptimizer: the model must be on the CPU; sums of other devices have streams to wait for"
        )
    if model._comm_hooks:
        raise ValueError(
            "OverlappedOptimizer: the model has a communication hook; pass it as hook=(state, hook) instead"
        )
    unsupported = {
        "static_graph": model.static_graph,
        "gradient_as_bucket_view": model.gradient_as_bucket_view,
        "mixed_precision": model.mixed_precision is not None,
    }
    for option, is_set in unsupported.items():
        if is_set:
            raise ValueError(
                f"OverlappedOptimizer: create the DistributedDataParallel without {option}: it changes when and where DDP "
                "writes gradients"
            )


def check_optimizer(optimizer, separable, user):
    """Raises an error of the class `user` unless each parameter is updated by its own gradient and state alone."""
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, OverlappedOptimizer):
        raise TypeError(f"{user}: {type(optimizer).__name__} is not an optimizer that it can split")
    name = type(optimizer).__name__
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            f"{user}: LBFGS keeps one state for all parameters and evaluates the loss several times in a step, so it "
            "cannot be split by parameter"
        )
    if not type(optimizer).step.__module__.startswith("torch.optim.") and not separable:
        raise ValueError(
            f"{user}: {name} is not of torch.optim. If it updates each parameter by its own gradient and state "
            "alone, pass separable=True"
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise ValueError(f"{user}: {name} has hooks of its steps, which would not run once for each step")


def check_groups_unchanged(optimizer, before, after, user):
    """After a step: raises TypeError if it has changed more of its groups than the parameters in them."""
    for old, new in zip(before, after, strict=True):
        changed = [name for name in new if new[name] is not old.get(name)]
        if changed:
            raise TypeError(
                f"{type(optimizer).__name__} cannot be split by parameter: its step changes {', '.join(changed)} of a "
                f"group of parameters. Use it without {user}"
            )
