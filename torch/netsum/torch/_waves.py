"""Two replicas of a model that compute in turn: the gradients of one are summed while the other computes."""

import atexit
import concurrent.futures
import contextlib
import copy
import datetime
import queue
import threading
import types
import zlib

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch
from netsum.torch import _activations, _group, _overlap, _reductions

_MEASURED = (0, 2)  # batches; the first one shows what fits, the second one has DDP's final buckets, and its times
_EXIT_S = 10.0
_OF_CALLBACK = "error when running the callback"  # in PyTorch's message, if a communication hook's future has an error


class Waves:
    """Trains two replicas of a model in turn: one computes while the gradients of the other are on their way.

    ::

        waves = netsum.torch.Waves(model, torch.optim.AdamW(model.parameters()), loss)   # on every rank; loss(model, x, y)
        for x, y in batches:
            waves.step(x, y)            # a future of the loss
        with waves.mean():              # evaluation and checkpoints: `model` has the mean of both replicas
            evaluate(model)
        waves.close()                   # `model` keeps the mean

    The schedule for data parallelism of "Wavelet: Efficient DNN Training with Tick-Tock Scheduling" (MLSys 2021), simplified.
    Each replica has a thread, a process group and a DistributedDataParallel. Batch m is that of replica m mod 2, a wave, which
    begins when the wave before has computed its gradients. The ranks sum the raw gradients R_m. The replica then takes a step with
    (R_m + R_(m-1)) / 2, which has the samples of two batches, like accumulation of 2. The first step has R_0 / 2: the
    difference of the replicas never decays by itself, and with R_0 it would remain half of the first step.

    Every `broadcast_every` batches, the other replica gets the weights, buffers and optimizer state of the replica that is
    ahead, and the next step is again at half weight (None: never). Random numbers and the buffers of layers such as batch
    norm belong to each replica.

    model: on the CPU. Load a checkpoint into it and into the optimizer before.
    optimizer: of torch.optim, for parameters of `model`, except LBFGS; with `separable=True`, another one whose state belongs to
        single parameters. A scheduler may change its settings: a batch has those of its call of step(). Its own step() is refused, as is
        GradScaler's.
    hook: hook(ddp) returns (state, communication hook) for each replica.
    before_step: called with each replica when its gradients are the mean, for example to clip them.
    ddp_options: of DistributedDataParallel.
    timeout_s: how long to wait for the other wave; None: the timeout of the group, and 10 s.
    at_once: how many passes the processors compute in the time of one. If it is above 1, a wave begins before the other one has
        ended, where the activations of both together are least if both are equally fast.
    memory_bytes: the limit of memory: two replicas with optimizer states, three gradients, and the activations of one pass,
        however fast they are. A limit that is too small for one pass at a time is a ValueError on all ranks, of the first batch.
        Later batches must not be larger. `plan`, after the first batch, has the offset and the bytes.

    An error in one replica's thread ends both, and the sums of both on all ranks. step(), synchronize() and mean() raise it; that of
    a sum is a netsum.torch.Error over netsum, and a RuntimeError over Gloo.
    """

    def __init__(
        self,
        model,
        optimizer,
        loss,
        *,
        group=None,
        hook=None,
        before_step=None,
        broadcast_every=500,
        at_once=1.0,
        memory_bytes=None,
        separable=False,
        timeout_s=None,
        **ddp_options,
    ):
        _check(model, optimizer, separable, ddp_options)
        if at_once < 1 or (broadcast_every is not None and broadcast_every < 2):
            raise ValueError(
                f"Waves: at_once is {at_once} and broadcast_every is {broadcast_every}; they must be at least 1 and 2"
            )
        shapes = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
        settings = {"at_once": at_once, "memory_bytes": memory_bytes, "broadcast_every": broadcast_every}
        _agree(group, {**settings, "optimizer": type(optimizer).__name__, "parameters": shapes})
        self.plan = None
        self._loss, self._before_step, self._broadcast_every = loss, before_step, broadcast_every
        self._at_once, self._memory_bytes = at_once, memory_bytes
        self._optimizer = optimizer
        timeout = _overlap.timeout_of(group if group is not None else dist.group.WORLD)
        self._timeout_s = timeout + _overlap.GRACE_S if timeout_s is None else timeout_s
        members = dist.get_process_group_ranks(group)
        self.groups = [dist.new_group(members, timeout=datetime.timedelta(seconds=timeout)) for _ in range(2)]
        # Without what a scheduler has put around step(), which is bound to the caller's optimizer.
        first = model, {name: value for name, value in vars(optimizer).items() if name != "step"}
        pairs = [(module, _with(type(optimizer), attributes)) for module, attributes in (first, copy.deepcopy(first))]
        self._give_back = _refuse_steps(optimizer)
        self._changed = threading.Condition()
        self._released = 0  # batches below this number and this one may be computed
        self._updated = 0  # batches below this number have moved their replica
        self._error = None
        self._previous = None  # by index of a parameter: R_(m-1), or None
        self._batches = 0
        self._pending = [None, None]  # of each replica, the future of its latest batch
        self._is_closed = self._has_mean = False
        self._replicas = [
            _Replica(*pair, own, hook, self._on_end_of_pass, self._on_gradient if at_once > 1 else None, ddp_options)
            for pair, own in zip(pairs, self.groups, strict=True)
        ]
        for index, replica in enumerate(self._replicas):
            replica.thread = threading.Thread(target=self._run, args=(replica,), name=f"wave {index}", daemon=True)
            replica.thread.start()
        atexit.register(self._leave)

    def step(self, *batch):
        """Begins a batch in the next wave. Returns a concurrent.futures.Future of its loss, which has the error if it fails.

        It waits until the replica has ended its previous batch. The tensors must stay as they are until the future has its result.
        """
        self._raise_error()
        if self._is_closed or self._has_mean:
            raise RuntimeError("Waves: step() was called " + ("after close()" if self._is_closed else "inside mean()"))
        if self._broadcast_every and self._batches and self._batches % self._broadcast_every == 0:
            self.broadcast()
        index = self._batches % 2
        self._wait_for_replica(index)
        settings = [_overlap.settings_of(group) for group in self._optimizer.param_groups]
        future = self._pending[index] = concurrent.futures.Future()
        self._replicas[index].batches.put((future, self._batches, batch, settings))
        self._batches += 1
        self._optimizer._opt_called = True  # otherwise schedulers warn that no step was taken before theirs
        return future

    def synchronize(self):
        """Waits for all batches, whose steps are then done."""
        for index in range(2):
            self._wait_for_replica(index)
        self._raise_error()

    def broadcast(self):
        """Makes the replicas equal: the other one gets the weights, buffers and optimizer state of the one that is ahead."""
        self.synchronize()
        ahead = self._replicas[(self._batches - 1) % 2]
        self._replicas[self._batches % 2].become(ahead)
        self._previous = None

    @contextlib.contextmanager
    def mean(self):
        """A context in which `model` has the mean of both replicas. Save optimizer.state_dict() in it, too."""
        self.synchronize()
        if self._has_mean:
            raise RuntimeError("Waves: mean() was called inside mean()")
        first, second = (replica.values() for replica in self._replicas)
        kept = [value.detach().clone() for value in first]
        self._has_mean = True
        try:
            _average(first, second)
            yield
        finally:
            with torch.no_grad():
                for value, old in zip(first, kept, strict=True):
                    value.copy_(old)
            self._has_mean = False

    def close(self):
        """Waits for all batches, leaves the mean in `model`, and ends the threads and groups. After an error, it waits for none."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._error is None:
                self.synchronize()
                _average(*(replica.values() for replica in self._replicas))
        finally:
            self._give_back()
            self._end_threads()
            for group in self.groups:
                with contextlib.suppress(RuntimeError, ValueError):  # it is broken, or destroyed already
                    dist.destroy_process_group(group)

    def _end_threads(self):
        atexit.unregister(self._leave)
        for replica in self._replicas:
            replica.batches.put(None)
        for replica in self._replicas:
            replica.thread.join(_EXIT_S)
            replica.remove_hooks()

    def _leave(self):
        """At exit: a thread must not need Python's lock when the interpreter is gone."""
        is_done = all(future is None or future.done() for future in self._pending)
        if not is_done and not _group.ended_by_an_error():
            done, _ = concurrent.futures.wait([f for f in self._pending if f is not None], timeout=_group.FLUSH_S)
            is_done = all(future is None or future in done for future in self._pending)
        if not is_done:
            self._fail(RuntimeError("Waves: the script has ended"))
        self._end_threads()

    def _wait_for_replica(self, index):
        future = self._pending[index]
        if future is None:
            return
        # The batch itself waits for the wave before, for its sums, and for the update before, each with a deadline.
        if not concurrent.futures.wait([future], timeout=4 * self._timeout_s).done:
            self._fail(self._timed_out(f"the batch of replica {index}"))
        self._raise_error()

    def _timed_out(self, what):
        return dist.DistBackendError(f"Waves: Timed out: {what} had not ended after {self._timeout_s} s")

    def _raise_error(self):
        if self._error is not None:
            raise self._error

    def _fail(self, error, number=None):
        with self._changed:
            is_first = self._error is None
            if is_first:
                self._error = error
                if number is not None and hasattr(error, "add_note"):  # Python 3.11
                    error.add_note(
                        f"In batch {number} of netsum.torch.Waves, replica {number % 2}. Both replicas have ended."
                    )
                self._changed.notify_all()
        if is_first:
            for group in self.groups:  # the other wave, and those of other ranks, may wait for sums
                with contextlib.suppress(RuntimeError):
                    group.abort()

    # In the replicas' threads.

    def _run(self, replica):
        while self._run_next(replica):
            pass

    def _run_next(self, replica):
        """In a function, so that the batch is freed before the next one arrives."""
        task = replica.batches.get()
        if task is None:
            return False
        future, number, batch, settings = task
        try:
            loss = self._train(replica, number, batch, settings)
        except BaseException as error:
            self._fail(_typed(error, replica.group), number)
            future.set_exception(self._error)
        else:
            future.set_result(loss)
        return True

    def _train(self, replica, number, batch, settings):
        self._wait(lambda: self._released >= number, f"the backward pass of batch {number - 1}")
        replica.begin(number, _activations.Activations(replica.values()) if number in _MEASURED else None)
        with replica.activations.hooks() if replica.activations else contextlib.nullcontext():
            loss = self._loss(replica.ddp, *batch)
            loss.backward()  # DDP waits for its sums
        replica.check_all_used()
        self._wait(lambda: self._updated == number, f"the update of batch {number - 1}")
        if self._previous is None:
            self._previous = [None] * len(replica.parameters)
        with torch.no_grad():
            raw = replica.mix_gradients(self._previous)
            if self._before_step is not None:
                self._before_step(replica.module)
            replica.step(settings)
            for i, gradient in enumerate(raw):
                if gradient is None:
                    self._previous[i] = None
                elif self._previous[i] is None:
                    self._previous[i] = gradient.clone()
                else:
                    self._previous[i].copy_(gradient)
        if replica.activations:
            self._make_plan(replica, number)
        with self._changed:
            self._updated = number + 1
            self._changed.notify_all()
        return loss.detach()

    def _wait(self, is_met, what):
        with self._changed:
            if not self._changed.wait_for(lambda: self._error is not None or is_met(), self._timeout_s):
                raise self._timed_out(what)
            self._raise_error()

    def _on_end_of_pass(self, replica):
        self._release(replica.number + 1)

    def _on_gradient(self, replica, name):
        if replica.activations:
            replica.activations.mark(name)
        elif self.plan is not None and name == self.plan.start:
            self._release(replica.number + 1)

    def _release(self, number):
        with self._changed:
            self._released = max(self._released, number)
            self._changed.notify_all()

    def _make_plan(self, replica, number):
        activations, replica.activations = replica.activations, None
        fixed = replica.fixed_bytes()
        if number == 0 and self._memory_bytes is not None:
            # A rank that ends alone would leave the others to their deadline.
            needs = torch.tensor([fixed, activations.peak_bytes])
            dist.all_reduce(needs, dist.ReduceOp.MAX, group=replica.group)
            if needs.sum().item() > self._memory_bytes:
                with contextlib.suppress(
                    RuntimeError
                ):  # the first rank to leave it aborts the group; all have `needs` then
                    dist.barrier(group=replica.group)
                raise ValueError(_activations.too_small(*needs.tolist(), self._memory_bytes))
        marks = activations.marks() if number else {}
        self.plan = _activations.plan(activations.bins(), marks, fixed, self._memory_bytes, self._at_once)


class _Replica:
    """A model with its optimizer, DDP and group. Its batches run in one thread."""

    def __init__(self, module, optimizer, group, hook, on_end_of_pass, on_gradient, ddp_options):
        self.module, self.optimizer, self.group = module, optimizer, group
        optimizer.param_groups = [dict(one) for one in optimizer.param_groups]  # settings of its own
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.batches = queue.SimpleQueue()  # at most one, and None for the end
        self.activations = None  # of a batch that is measured
        self._on_end_of_pass = on_end_of_pass
        self.ddp = DistributedDataParallel(module, process_group=group, gradient_as_bucket_view=True, **ddp_options)
        self._hook = hook(self.ddp) if hook is not None else (1.0 / dist.get_world_size(group), self._sum)
        self.ddp.register_comm_hook(None, self._on_bucket)
        self._handles = []
        if on_gradient is not None:
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    handle = parameter.register_post_accumulate_grad_hook(lambda _, name=name: on_gradient(self, name))
                    self._handles.append(handle)

    def remove_hooks(self):
        for handle in self._handles:
            handle.remove()

    def begin(self, number, activations):
        self.number, self.activations = number, activations
        self._is_complete = False
        for parameter in self.parameters:
            parameter.grad = None

    def _sum(self, factor, bucket):
        buffer = bucket.buffer().mul_(factor)  # as DDP without a hook
        return _reductions.future_of([dist.all_reduce(buffer, group=self.group, async_op=True)], bucket)

    def _on_bucket(self, _state, bucket):
        """DDP's communication hook; the last bucket begins when all gradients are computed."""
        if bucket.buffer().is_sparse:
            raise ValueError("Waves: gradients of sparse=True embeddings are not supported; use sparse=False")
        state, hook = self._hook
        future = hook(state, bucket)
        if bucket.is_last():
            self._is_complete = True
            if self.activations:
                self.activations.end()
            self._on_end_of_pass(self)
        return future

    def check_all_used(self):
        if self._is_complete:
            return
        unused = [n for n, p in self.module.named_parameters() if p.requires_grad and p.grad is None]
        raise RuntimeError(
            f"Waves: the loss of batch {self.number} does not depend on {', '.join(unused)}. If some batches use some parameters only, "
            "pass find_unused_parameters=True"
        )

    def mix_gradients(self, previous):
        """Makes gradients the mean of the raw ones and `previous`, in whose memory it then is. Returns the raw gradients."""
        raw = [p.grad for p in self.parameters]
        for i, (parameter, gradient) in enumerate(zip(self.parameters, raw, strict=True)):
            before = previous[i]
            if gradient is None:  # this batch has not used it on any rank
                parameter.grad = None if before is None else before.mul_(0.5)
            elif before is None:
                parameter.grad = gradient * 0.5
            else:
                parameter.grad = before.add_(gradient).mul_(0.5)
        return raw

    def step(self, settings):
        for group, now in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(now)
        before = [dict(group) for group in self.optimizer.param_groups]
        self.optimizer.step()
        _overlap.check_groups_unchanged(self.optimizer, before, self.optimizer.param_groups, "Waves")

    def values(self):
        return [*self.module.parameters(), *self.module.buffers()]

    def become(self, other):
        with torch.no_grad():
            for own, theirs in zip(self.values(), other.values(), strict=True):
                own.copy_(theirs)
        self.optimizer.state.clear()  # the same dict: the optimizer of the caller has it, too
        pairs = zip(self.optimizer.param_groups, other.optimizer.param_groups, strict=True)
        for own, theirs in ((o, t) for a, b in pairs for o, t in zip(a["params"], b["params"], strict=True)):
            if theirs in other.optimizer.state:
                self.optimizer.state[own] = copy.deepcopy(other.optimizer.state[theirs])

    def fixed_bytes(self):
        """Of both replicas."""
        states = [t for s in self.optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
        return 2 * sum(t.nbytes for t in [*self.values(), *states]) + 3 * sum(p.nbytes for p in self.parameters)


def _typed(error, group):
    """Autograd makes a DistBackendError of a failed sum, a hook in Python a RuntimeError: returns netsum's error, if there is one."""
    if type(error) is dist.DistBackendError or (type(error) is RuntimeError and _OF_CALLBACK in str(error)):
        with contextlib.suppress(AttributeError, ValueError, RuntimeError):  # another backend
            of_group = _group.backend_of(group).error()
            if of_group is not None:
                of_group.__cause__ = error
                return of_group
    return error


def _refuse_steps(optimizer):
    """Makes step() of the caller's optimizer raise until the function that is returned is called: it would move one replica, at any time."""
    before = {name: vars(optimizer)[name] for name in ("step", "_step_supports_amp_scaling") if name in vars(optimizer)}

    def step(self, closure=None):
        for name in ("grad_scale", "found_inf"):  # of GradScaler, for an optimizer that scales gradients
            vars(self).pop(name, None)
        raise RuntimeError(
            "Waves: step() of its optimizer was called. Waves takes the steps: call its own step(batch), and change gradients in "
            "before_step. GradScaler does not work: it decides about a step between backward() and step(); use bfloat16 without it"
        )

    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        step._wrapped_by_lr_sched = True  # otherwise the scheduler warns
    optimizer.step = types.MethodType(step, optimizer)
    # GradScaler.step() then neither changes gradients nor leaves out step().
    optimizer._step_supports_amp_scaling = True

    def give_back():
        for name in ("step", "_step_supports_amp_scaling"):
            vars(optimizer).pop(name, None)
        vars(optimizer).update(before)

    return give_back


def _with(kind, attributes):
    """An object of this class; copies of optimizers have no attributes but those of their base class."""
    made = object.__new__(kind)
    made.__dict__.update(attributes)
    return made


@torch.no_grad()
def _average(values, others):
    """Makes `values` the mean; of integers, such as counts of batches, they stay."""
    for value, other in zip(values, others, strict=True):
        if value.is_floating_point() or value.is_complex():
            value.add_(other).mul_(0.5)


def _agree(group, settings):
    """Raises ValueError on all ranks if they differ. A rank that has no waves makes another call."""
    checksum = zlib.crc32(repr(settings).encode())
    extremes = torch.tensor([checksum, -checksum])
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group=group)
    if extremes[0] == -extremes[1]:
        return
    of_ranks = [None] * dist.get_world_size(group)
    dist.all_gather_object(of_ranks, settings, group=group)
    rank = next(r for r, other in enumerate(of_ranks) if other != of_ranks[0])
    differing = {
        name: (of_ranks[0][name], other) for name, other in of_ranks[rank].items() if other != of_ranks[0][name]
    }
    found = "; ".join(f"{name} is {a} on rank 0 and {b} on rank {rank}" for name, (a, b) in differing.items())
    raise ValueError(f"Waves: the ranks differ: {found}")


def _check(model, optimizer, separable, ddp_options):
    if isinstance(model, DistributedDataParallel):
        raise TypeError("Waves: pass the module itself; Waves makes a DistributedDataParallel of each replica")
    _overlap.check_optimizer(optimizer, separable, "Waves")
    known = set(model.parameters())
    if any(p not in known for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("Waves: the optimizer has parameters that are not of the model")
    if any(p.device.type != "cpu" for p in known):
        raise ValueError("Waves: the model must be on the CPU; sums of other devices have streams to wait for")
    for option in ("process_group", "static_graph", "mixed_precision", "gradient_as_bucket_view"):
        if option in ddp_options:
            raise ValueError(f"Waves: {option} cannot be an option of its DistributedDataParallel")
