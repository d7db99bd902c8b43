"""Compressed gradients: of DistributedDataParallel, and what FSDP2 has in common with it (docs/compression.md)."""

import fnmatch
import functools
import itertools
import math
import sys
import weakref

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch
from netsum.torch import _C, _control, _group, _hooks
from netsum.torch._buckets import Bucket
from netsum.torch._compressor import Compressor

_VERSION = 1
_OF_THE_COMPRESSOR = "compressor"  # the part of a state that is no memory
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Compression:
    """How the gradients of a model are compressed, and what each rank keeps of them. The state of ``compression_hook``.

    model: the model, perhaps in DistributedDataParallel. Only parameters that require gradients are looked at.
    method: one of ``compression_methods()``, a Compressor, or "auto", for all parameters that no rule excludes. "auto" chooses a level
        for each bucket in each step, and compresses nothing unless that is predicted to make the steps shorter.
    rules: pairs of a pattern and a setting, of which the first that matches a parameter counts. A pattern is a glob of names
        ("*.bias"), a class of modules (nn.Embedding) whose own parameters it matches, or a function of name and parameter. A
        setting is a method or a dict of options; "none" leaves the parameter uncompressed.
    min_elements: parameters that no rule matches stay uncompressed if they have fewer elements, or fewer than two dimensions,
        as biases and norms have.
    group: the process group of the model; None: the default group.
    grad_scaler: a GradScaler that scales the loss. When its scale changes, memories are scaled as well.
    control: a dict of settings of "auto", if only rules use it; otherwise they are options.
        levels: methods or dicts of options, the least lossy first, which must be "none"; by default "none", "bf16", "int8", and
            "topk" with a ratio of 1 %.
        warmup_steps: without compression (20). payoff: the part by which the predicted step must be shorter (0.05). critical_level: the index
            of the most lossy level while gradients change fast (1). residual_cap: the largest norm of what was not sent, in norms of the gradient (50).
        trace: a file for all that decisions depend on, as lines of JSON; with "{rank}" in its path, one of each rank.
    options: of the method and its memory (docs/compression.md), and `memory` and `path`.

    All ranks must create it alike. Settings or parameters that differ are a ValueError on all ranks.
    """

    def __init__(
        self, model, method, *, rules=(), min_elements=1024, group=None, grad_scaler=None, control=None, **options
    ):
        self._group = group if group is not None else dist.group.WORLD
        self._scaler = grad_scaler
        self._parameters = []
        self._stats = _C.BucketStats()
        self._pass = _C.TrainingPass()
        ids = _hooks.ids_of(self._group)
        module = model.module if isinstance(model, DistributedDataParallel) else model
        with _agreeing_on_errors(self._group) as agreement:
            made = {}  # one compression for each setting
            auto = None
            if any(setting in ("auto", {"method": "auto"}) for setting in (method, *(setting for _, setting in rules))):
                if method == "auto":
                    control, options = {**(control or {}), **options}, {}
                auto = _control.Settings(**(control or {}))
                made[_key({"method": "auto"})] = _control.Levels(
                    auto.levels, [_make(level, made) for level in auto.levels]
                )
            elif control is not None:
                raise ValueError("control is for the method 'auto', which neither the method nor a rule is")
            default = _make({"method": method, **options}, made)
            modules = dict(module.named_modules())
            for name, parameter in module.named_parameters():
                if not parameter.requires_grad:
                    continue
                owner = modules[name.rpartition(".")[0]]
                compression = _choose(name, parameter, owner, rules, default, made, min_elements)
                entry = self._entry(ids.of([parameter])[0], name, parameter, compression)
                if entry is not None:
                    self._parameters.append(entry)
            agreement.append([(entry.name, tuple(entry.shape), entry.description) for entry in self._parameters])
            if auto is not None:
                agreement[0].append(("the controller", (), str(auto.control)))
        self._has_python_compressors = any(
            own is not None and own.is_python for own in made.values() if not isinstance(own, _control.Levels)
        )
        if auto is not None or any(c is not None and c.needs_maxima for c in {e.compression for e in self._parameters}):
            self._check_maxima()
        self._controller = self._levels = None
        controlled = [entry for entry in self._parameters if entry.is_controlled]
        if controlled:
            most = max(entry.count for entry in controlled)
            self._controller = _control.Controller(controlled[0].levels, most, self._group, auto)
            self._levels = _LevelsOfSteps(self._controller, self._parameters)

    def describe(self):
        """Returns a line for each parameter: name, shape, compression; of a parameter of an accelerator, where gradients are encoded."""
        return "\n".join(f"{p.name} {list(p.shape)}: {p.description}{self._place(p)}" for p in self._parameters)

    def _place(self, entry):
        parameter = entry.parameter()
        if parameter is None or parameter.device.type == "cpu" or not entry.keeps_state:
            return ""
        return f", encoded on {parameter.device if self._is_encoded_on_device(entry) else 'the host'}"

    def _is_encoded_on_device(self, entry):
        return self._controller is None and entry.tensor.encoded_on_device

    def stats(self):
        """Returns this rank's counts since the start, as a dict.

        buckets: that were reduced.
        encode_s, decode_s: seconds of processor time of the backward pass's thread, and of the thread that decompresses.
        controller: with "auto": steps, changes of levels, the present levels of the buckets, bucket_steps (how often each level
            was used), gradient_bytes and sent_bytes (of the buckets, as they are and as they have travelled), predicted_step_s,
            uncompressed_step_s, network_bits_per_second. The metrics netsum_worker_compression_* have the same.
        """
        controller = {} if self._controller is None else {"controller": self._controller.stats()}
        return {**self._stats.to_dict(), **controller}

    def state_dict(self):
        """Returns what this rank keeps, as copies. Save it on every rank: each has its own.

        After a backward pass that has failed, this is the state before it: repeated, it counts each gradient once.
        """
        number = self._pass.number
        if self._pass.take_back_if_failed() and self._levels is not None:
            self._levels.taken_back(number)
        state = {
            "version": _VERSION,
            "parameters": {entry.name: entry.saved() for entry in self._parameters if entry.keeps_state},
        }
        if self._controller is not None:
            state["controller"] = self._controller.state_dict()
        return state

    def load_state_dict(self, state):
        """Continues from a state_dict(). Raises ValueError, before anything changes, if it is not of such a model.

        In the next backward pass, the ranks agree on the number of steps, which is the largest of all: those without a state join
        in. After its first pass, all ranks must load a state, or none.
        """
        if state.get("version") != _VERSION:
            raise ValueError(f"the compression state has version {state.get('version')}; this is version {_VERSION}")
        mine = {entry.name: entry for entry in self._parameters if entry.keeps_state}
        saved = state["parameters"]
        missing, unknown = mine.keys() - saved.keys(), saved.keys() - mine.keys()
        if missing or unknown:
            raise ValueError(
                "the compression state is of another model or has other rules: it lacks "
                f"{', '.join(sorted(missing)) or 'nothing'}, and has {', '.join(sorted(unknown)) or 'nothing'} besides"
            )
        for name, entry in mine.items():
            entry.check_saved(saved[name])
        for name, entry in mine.items():
            entry.restore(saved[name])
        if self._controller is not None:
            self._controller.load_state_dict(state["controller"])
        self._pass.forget()

    @torch.no_grad()
    def average(self, tensors):
        """Averages tensors over the ranks in place, each compressed as the gradient of its parameter. Blocks.

        Each call is a pass: one that fails leaves what this rank keeps as it was before.

        tensors: pairs of a parameter and a tensor of its shape and type. All ranks pass the same parameters in the same order.
        """
        started = []
        for dtype in dict.fromkeys(parameter.dtype for parameter, _ in tensors):
            some = [(parameter, values) for parameter, values in tensors if parameter.dtype == dtype]
            bucket = Bucket([parameter for parameter, _ in some])
            for part, (_, values) in zip(bucket.gradients(), some, strict=True):
                part.copy_(values)
            started.append((self._reduce(bucket), bucket, some))
        for future, bucket, some in started:
            future.wait()
            for part, (_, values) in zip(bucket.gradients(), some, strict=True):
                values.copy_(part)
        self._pass.end()

    def _reduce(self, bucket):
        buffer = bucket.buffer()
        gradients = bucket.gradients() if buffer.layout == torch.strided else []
        return self._buckets.reduce(buffer, gradients, bucket.parameters())

    @functools.cached_property
    def _buckets(self):
        """Of DistributedDataParallel."""
        buckets = _C.CompressedBuckets(
            _group.backend_of(self._group),
            self._pass,
            self._stats,
            self._scaler,
            functools.partial(_agree_on_steps, self._parameters, self._group),
            self._levels,
            self._has_python_compressors,
        )
        for entry in self._parameters:
            parameter = entry.parameter()
            if parameter is not None:
                buckets.add(parameter, entry.item)
        return buckets

    def _check_maxima(self):
        """Told here, on all ranks, not in the backward pass."""
        if _group.backend_of(self._group).sums_only:
            raise ValueError(
                "compression: the ranks must agree on maxima, such as common scales, which a job that verifies its sums does not "
                "compute in the network. Use a method without them, such as 'bf16' or 'topk', or set NETSUM_VERIFY=packet"
            )

    def _entry(self, number, name, parameter, compression):
        """What is known of a parameter; None: its gradients are not reduced."""
        kind = _ControlledParameter if isinstance(compression, _control.Levels) else _Parameter
        return kind(number, name, parameter, compression, self._group)

    def _register(self, model):
        if not hasattr(model, "reducer"):
            raise ValueError(
                "compress(): the DistributedDataParallel has no reducer, so there is nothing to compress: "
                "delay_all_reduce_named_params delays the sums of all its parameters. Leave out those that are to be compressed"
            )
        self._buckets.register(model.reducer)


def compression_hook(state, bucket):
    """Averages a bucket of gradients, compressed: ``model.register_comm_hook(state, netsum.torch.compression_hook)``.

    `state` is a Compression. Returns a future of the bucket's buffer.
    """
    # Of a hook in Python, DDP takes only a future whose value is an object of Python.
    return _C.when_all_end([state._reduce(bucket)], bucket.buffer())


def compress(model, method, **settings):
    """Compresses the gradients of a DistributedDataParallel model, or of one of fully_shard() (FSDP2); returns the Compression.

    For example ``compress(model, "topk", ratio=0.01)``. Call it on every rank, before the first forward pass. Settings are
    those of Compression. With FSDP2, the reduce-scatters are compressed, and there is no `group`. With ``replicas=group``, sums over
    the ranks of this group are instead, which have the same parts of the parameters as this rank: copies of the sharded model.
    """
    if _is_sharded(model):
        from netsum.torch import _sharded  # importing FSDP takes a while

        return _sharded.compress(model, method, **settings)
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"compress() takes a model of DistributedDataParallel or fully_shard(), not {type(model).__name__}: wrap the model first"
        )
    state = Compression(model, method, group=settings.pop("group", model.process_group), **settings)
    state._register(model)
    return state


def _is_sharded(model):
    """Whether fully_shard() has been applied to the model or a part of it; then FSDP has been imported."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(module, fsdp.FSDPModule) for module in model.modules())


def reshard_compression_states(states, world_size):
    """Returns the states of `world_size` ranks that keep together what those of other ranks have kept.

    states: the state_dict() of every old rank, in their order. What old rank r keeps goes to new rank r modulo `world_size`,
        multiplied by the change of the number of ranks, because what a rank sends is divided by that number. What a compressor
        has found out about a tensor, such as its number of stages, all new ranks have from the first old one.
    """
    if not states or world_size < 1:
        raise ValueError("there must be at least one state and one rank")
    factor = world_size / len(states)
    result = []
    for rank in range(world_size):
        own = states[rank::world_size]
        parameters = {}
        for name, first in states[0]["parameters"].items():
            memory = {}
            for part, values in first["memory"].items():
                if part == _OF_THE_COMPRESSOR:
                    memory[part] = values.clone()
                    continue
                total = torch.zeros_like(values)
                for state in own:
                    total += state["parameters"][name]["memory"][part]
                memory[part] = total * factor
            parameters[name] = {**first, "memory": memory}
        result.append({**states[0], "parameters": parameters})
    return result


class _Parameter:
    """A parameter, and what this rank keeps of its gradients."""

    is_controlled = False

    def __init__(self, number, name, parameter, compression, group):
        self.id = number
        self.name = name
        self.shape = parameter.shape
        self.count = parameter.numel()
        self.compression = compression
        self.description = compression.describe() if compression is not None else "uncompressed"
        self.parameter = weakref.ref(parameter)
        self._group = group
        self._tensor = None

    @property
    def keeps_state(self):
        return self.compression is not None

    @property
    def tensor(self):
        """Its memory is made when it is first used: a sparse gradient never needs it."""
        if self._tensor is None:
            rank, ranks = dist.get_rank(self._group), dist.get_world_size(self._group)
            rows = self.shape[0] if len(self.shape) > 1 and self.count > 0 else 1
            self._tensor = self.compression.tensor(self.id, self.count, rank, ranks, rows)
        return self._tensor

    @property
    def item(self):
        """For a plan of a bucket."""
        return (None if self.compression is None else self.tensor, self.id, self.name, self.count)

    def follow_scale(self, scale):
        if self.compression is not None:
            self.tensor.follow_scale(scale)

    def step(self):
        return self.tensor.step

    def set_step(self, step):
        self.tensor.step = step

    def scale(self):
        """Of the loss, when the memory was written."""
        return self.tensor.scale

    def memory(self):
        """Copies, by their names."""
        return self.tensor.state()

    def saved(self):
        return {
            "compression": self.description,
            "shape": list(self.shape),
            "step": self.step(),
            "scale": self.scale(),
            "memory": self.memory(),
        }

    def check_saved(self, saved):
        if list(saved["shape"]) != list(self.shape):
            raise ValueError(
                f"the compression state has {self.name} with the shape {list(saved['shape'])}, and the model "
                f"with {list(self.shape)}"
            )
        mine = self.memory()
        if {part: v.numel() for part, v in saved["memory"].items()} != {part: v.numel() for part, v in mine.items()}:
            raise ValueError(
                f"the compression state of {self.name} is one of '{saved['compression']}', and this is '{self.description}'"
            )

    def restore(self, saved):
        self.tensor.restore(saved["step"], {name: v.contiguous() for name, v in saved["memory"].items()})
        self.tensor.scale = saved["scale"]


class _ControlledParameter(_Parameter):
    """A parameter whose compression changes. `levels`: _control.Levels.

    A level that keeps a residual takes over that of the level before it. One that keeps none sends it with its first gradient.
    """

    is_controlled = True
    keeps_state = True

    def __init__(self, number, name, parameter, levels, group):
        super().__init__(number, name, parameter, None, group)
        self.levels = levels
        self.level = 0
        self.description = levels.description
        self._steps = 0  # when it was compressed last
        self._before = None  # the last change: the number of the pass; level, tensor and steps before it
        self._scale = None  # of the loss

    def follow_scale(self, scale):
        super().follow_scale(scale)
        if scale is not None:
            self._scale = scale

    def step(self):
        return self._steps if self._tensor is None else self._tensor.step

    def set_step(self, step):
        self._steps = step
        if self._tensor is not None:
            self._tensor.step = step

    def take_back(self, number):
        """Of the pass of this number, besides the step of its tensor."""
        if self._before is None or self._before[0] != number:
            return
        _, self.level, self._tensor, self._steps = self._before
        self.compression = self.levels.compressions[self.level]
        self._before = None

    def set_level(self, level, gradient, number=None):
        """Of the next step, which is one of the pass of this number."""
        if level == self.level:
            return
        self._before = (number, self.level, self._tensor, self._steps)
        residual = self.memory().get("residual")
        self._move_to(level)
        state = self.memory()
        if residual is not None and "residual" in state:
            state["residual"] = residual
        elif residual is not None:
            gradient.add_(residual)
        if self.compression is not None:
            self.tensor.restore(self._steps, state)

    def residual_norm(self):
        return 0.0 if self._tensor is None else self._tensor.memory_norm()

    def saved(self):
        return {
            "compression": self.description,
            "shape": list(self.shape),
            "level": self.level,
            "step": self.step(),
            "scale": self._scale,
            "memory": self.memory(),
        }

    def check_saved(self, saved):
        if saved["compression"] != self.description:
            raise ValueError(
                f"the compression state of {self.name} is one of '{saved['compression']}', and this is '{self.description}'"
            )
        if saved["level"] not in range(len(self.levels.compressions)):
            raise ValueError(
                f"the compression state of {self.name} has the level {saved['level']}, which does not exist"
            )
        other = _ControlledParameter.__new__(_ControlledParameter)
        other.__dict__.update(self.__dict__)  # so that nothing changes here
        other._move_to(saved["level"])
        if other.compression is not None:
            _Parameter.check_saved(other, saved)

    def restore(self, saved):
        self._move_to(saved["level"])
        self._steps, self._scale = saved["step"], saved["scale"]
        if self.compression is not None:
            super().restore(saved)

    def memory(self):
        return {} if self.compression is None else self.tensor.state()

    def _move_to(self, level):
        if self._tensor is not None:
            self._steps = self._tensor.step
        self.level, self._tensor = level, None
        self.compression = self.levels.compressions[level]
        if self.compression is not None:
            self.tensor.scale = self._scale


class _LevelsOfSteps:
    """What the buckets in C++ (torch/src/compressed_buckets.h) call in each step where there is "auto"."""

    def __init__(self, controller, entries):
        self._controller = controller
        self._entries = {entry.id: entry for entry in entries}

    def enter(self, ids, gradients, scale, number):
        """Begins a bucket in the pass of this number. Returns its items and its record.

        gradients: flat; none of those of a sparse embedding. scale: of the loss.
        """
        entries = [self._entries[i] for i in ids]
        record = self._controller.enter(entries, gradients[0].dtype if gradients else None)
        if not gradients:
            return [], record
        controlled = [(index, entry) for index, entry in enumerate(entries) if entry.is_controlled]
        for index, entry in controlled:
            entry.follow_scale(scale)
            entry.set_level(record.level, gradients[index], number)
        if record.wants_norms:
            record.measure_norms(controlled, gradients)
        return [entry.item for entry in entries], record

    def taken_back(self, number):
        """The pass of this number has failed, and the tensors are as before it."""
        for entry in self._entries.values():
            if entry.is_controlled:
                entry.take_back(number)


@torch.no_grad()
def _agree_on_steps(entries, group):
    """A rank may have another past than the others, such as none, or one step more before a rank was lost."""
    entries = [entry for entry in entries if entry.keeps_state]
    if not entries:
        return
    mine = torch.tensor([entry.step() for entry in entries], dtype=torch.int64)
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, mine, group=group)
    for entry, step in zip(entries, torch.stack(everyone).amax(0).tolist(), strict=True):
        if step != entry.step():
            entry.set_step(step)


def _make(settings, made):
    """The compression of a setting, or None if nothing is compressed."""
    if isinstance(settings, str | Compressor):
        settings = {"method": settings}
    if not isinstance(settings, dict):
        raise TypeError(f"the setting of a rule must be a method or a dict of options, not {settings!r}")
    key = _key(settings)
    if key not in made:
        options = dict(settings)
        own = None if isinstance(options.get("method"), str) else options.pop("method", None)
        compression = _C.Compression(options, own)
        made[key] = None if settings.get("method") == "none" else compression
    return made[key]


def _key(settings):
    return repr(sorted(settings.items()))


def _matches(pattern, name, parameter, owner):
    if isinstance(pattern, type):
        return isinstance(owner, pattern)
    return pattern(name, parameter) if callable(pattern) else fnmatch.fnmatchcase(name, pattern)


def _choose(name, parameter, owner, rules, default, made, min_elements):
    for pattern, settings in rules:
        if _matches(pattern, name, parameter, owner):
            compression = _make(settings, made)
            if compression is not None and parameter.dtype not in _TYPES:
                raise ValueError(
                    f"a rule compresses {name}, which is {parameter.dtype}; only float32, bfloat16 and float16 can be"
                )
            return compression
    if parameter.dtype not in _TYPES or parameter.dim() < 2 or math.prod(parameter.shape) < min_elements:
        return None
    return default


class _agreeing_on_errors:
    """Runs a block on all ranks. If it raises on any of them, or leaves different lists, all ranks raise."""

    def __init__(self, group):
        self._group = group
        self._list = []

    def __enter__(self):
        return self._list

    def __exit__(self, kind, error, _traceback):
        if error is not None and not isinstance(error, Exception):
            return False
        mine = (None if error is None else f"{kind.__name__}: {error}", self._list)
        everyone = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(everyone, mine, group=self._group)
        if error is not None:
            return False  # raised here as it is
        for rank, (text, _) in enumerate(everyone):
            if text is not None:
                raise ValueError(f"compression: rank {rank} refused its settings: {text}")
        for rank, (_, theirs) in enumerate(everyone):
            if theirs != everyone[0][1]:
                raise ValueError(f"compression: {_difference(rank, theirs[0], everyone[0][1][0])}")
        return False


def _difference(rank, theirs, first):
    for a, b in itertools.zip_longest(theirs, first):
        if a != b:
            text = [f"{x[0]} {list(x[1])}: {x[2]}" if x is not None else "nothing more" for x in (a, b)]
            return f"rank {rank} has '{text[0]}', and rank 0 has '{text[1]}'; all ranks must have the same settings"
    return f"rank {rank} differs from rank 0"
