"""Chooses while a model trains how strongly its gradients are compressed: ``compress(model, "auto")`` (docs/compression.md)."""

import itertools
import logging
import time
import weakref

import torch.distributed as dist

import torch
from netsum.torch import _C, _group, _reductions

_logger = logging.getLogger("netsum")

DEFAULT_LEVELS = ("none", "bf16", "int8", {"method": "topk", "ratio": 0.01, "sampled": True})
_MOST_CALIBRATED = 1 << 18  # elements
_CALIBRATIONS = 4
_ROWS = 512  # of the matrix that is compressed to find out what it costs


class Settings:
    """Of "auto": those that Compression documents."""

    def __init__(
        self, *, levels=DEFAULT_LEVELS, trace=None, warmup_steps=20, payoff=0.05, critical_level=1, residual_cap=50.0
    ):
        self.levels = list(levels)
        self.trace = trace
        self.control = {
            "warmup_steps": warmup_steps,
            "payoff": payoff,
            "critical_level": critical_level,
            "residual_cap": residual_cap,
        }


class Levels:
    """What the controller chooses from, the least lossy first. Level 0 sends gradients as they are."""

    def __init__(self, settings, compressions):
        if not compressions or compressions[0] is not None or None in compressions[1:]:
            raise ValueError("the first level of 'auto' must be 'none', and no other one")
        for compression in compressions[1:]:
            self._check(compression)
        self.compressions = compressions  # None: uncompressed
        self.names = [_name_of(setting) for setting in settings]
        self.description = "auto: " + "; ".join("none" if c is None else c.describe() for c in compressions)

    @staticmethod
    def _check(compression):
        if not compression.is_mean or compression.memory not in ("none", "residual"):
            raise ValueError(
                f"'{compression.describe()}' cannot be a level of 'auto': only methods whose result is the mean of the gradients, with the memory "
                "'none' or 'residual', can take turns"
            )

    def costs(self, count, ranks):
        """Measures on `count` random numbers what a level costs an element: bytes, and ns of encoding and decoding."""
        count = max(_ROWS, min(count, _MOST_CALIBRATED) // _ROWS * _ROWS)
        values = (2 * torch.rand(count, generator=torch.Generator().manual_seed(1)) - 1) ** 5
        return [(4.0, 0.0, 0.0) if c is None else _costs(c, values, ranks) for c in self.compressions]


def _name_of(setting):
    """As the user has written it."""
    if not isinstance(setting, dict):
        return getattr(setting, "name", setting)
    options = "".join(f" {name}={value}" for name, value in setting.items() if name != "method")
    return f"{_name_of(setting['method'])}{options}"


def _costs(compression, values, ranks):
    count = values.numel()
    tensor = compression.tensor(0, count, 0, ranks, _ROWS)
    dtype, size, sides, varies = tensor.shape()
    payload, side = torch.zeros(size, dtype=dtype), torch.zeros(sides)
    agreed, out = torch.zeros(tensor.agreed_values), torch.empty(count)
    encode_s, decode_s = [], []
    for _ in range(_CALIBRATIONS):
        began = time.perf_counter()
        if agreed.numel() > 0:
            tensor.agree(values, agreed)
        tensor.compress(values, agreed, payload, side)
        encoded = time.perf_counter()
        sent = payload.nbytes
        if compression.path == "union":
            sent = 5 * min(count, ranks * int(payload.count_nonzero()))  # about a byte of index for each element
        elif compression.path == "gather":
            sent = ranks * (_length_of(payload.view(torch.uint8)) if varies else sent)
        counted = time.perf_counter()
        contributions = 1 if dtype.is_floating_point or compression.path == "gather" else ranks
        tensor.decompress(payload, side, contributions, out)
        encode_s.append(encoded - began)
        decode_s.append(time.perf_counter() - counted)
    # The first time allocates memory, and another process may take a processor: the shortest time is right.
    decodes = ranks if compression.path == "gather" else 1
    return (sent + 4 * sides) / count, 1e9 * min(encode_s) / count, 1e9 * decodes * min(decode_s) / count


def _length_of(payload):
    """Which a payload that varies begins with."""
    return int(payload[:8].view(torch.int64))


class Controller:
    """Decides in every step on the level of each bucket, together with the controllers of all other ranks.

    Which buckets there are it knows from the step before, if that began with the same one. Otherwise all of them have level 0 in
    this step: DistributedDataParallel makes other buckets after its first step.
    """

    def __init__(self, levels, count, group, settings):
        self.levels = levels
        self._group = group
        everyone = [None] * dist.get_world_size(group)
        dist.all_gather_object(everyone, levels.costs(count, len(everyone)), group=group)
        # All must expect the same: that of the slowest rank.
        costs = [tuple(map(max, zip(*of_level, strict=True))) for of_level in zip(*everyone, strict=True)]
        self._control = _C.CompressionControl(
            [(name, *cost) for name, cost in zip(levels.names, costs, strict=True)], **settings.control
        )
        self._trace = _Trace(settings.trace, dist.get_rank(group)) if settings.trace else None
        self._write(self._control.trace_head)
        self._layout = {}  # the size of every bucket by the names of its parameters, in the order of the backward pass
        self._step = {}  # the same, of the buckets of this step so far
        self._names = set()  # of their parameters
        self._is_active = False  # in this step
        self._saved = None  # a state that waits for its buckets
        self._records = []  # of the buckets of this step
        self._agreement = None
        self._begin_us = _now_us()
        self._packets = (0, 0)
        self._counts = [0] * len(levels.names)  # of buckets, by their level
        self._bytes = [0, 0]  # of the buckets: as they are, and as they have travelled
        self._metrics = _metrics_of(group)

    def enter(self, entries, dtype):
        """Begins a bucket, and with the first one a step. Returns the bucket's record."""
        ready_us = _now_us()
        key = tuple(entry.name for entry in entries)
        if not self._names.isdisjoint(key):
            self._start(key)
        self._step[key] = _size_of(entries, dtype)
        self._names.update(key)
        index = len(self._step) - 1
        self._is_active = self._is_active and key == self._order[index]
        if not self._is_active:
            return Record()
        levels, _, wants_norms = self._decision
        record = Record(levels[index], wants_norms, ready_us)
        self._records.append(record)
        self._counts[record.level] += 1
        return record

    def stats(self):
        control = self._control
        return {
            "steps": control.step,
            "changes": control.changes,
            "levels": [self.levels.names[level] for level in control.decision()[0]],
            "bucket_steps": dict(zip(self.levels.names, self._counts, strict=True)),
            "gradient_bytes": self._bytes[0],
            "sent_bytes": self._bytes[1],
            "predicted_step_s": control.predicted_step_ns / 1e9,
            "uncompressed_step_s": control.uncompressed_step_ns / 1e9,
            "network_bits_per_second": control.bits_per_second,
        }

    def state_dict(self):
        return {"layout": list(self._layout.items()), "state": self._control.state()}

    def load_state_dict(self, state):
        self._saved = state
        self._layout = {}

    def _start(self, key):
        """Of a step that begins with this bucket."""
        last, self._step, self._names = self._step, {}, set()
        same = self._is_active and list(last.items()) == list(self._layout.items())
        self._is_active = next(iter(last)) == key
        if not self._is_active:
            return
        if not same:
            self._begin_layout(last)
        self._begin_step()

    def _begin_layout(self, layout):
        self._layout, self._order = layout, list(layout)
        self._metrics = self._metrics or _metrics_of(self._group)  # a group may have joined with the first step
        self._agreement, self._records = None, []
        self._control.set_buckets(list(self._layout.values()))
        if self._saved is not None and self._saved["layout"] == list(self._layout.items()):
            self._control.restore(self._saved["state"])
            self._saved = None
        # A rank may have another past than the others, such as another state, or one step more before a rank was lost.
        state = self._control.state()
        dist.broadcast(state, group_src=0, group=self._group)
        self._control.restore(state)
        self._write(self._control.trace_buckets)

    def _begin_step(self):
        last, agreed = self._records, None
        if self._agreement is not None:
            agreed = self._agreement.wait()
        self._control.begin_step(agreed)
        if self._control.change and dist.get_rank(self._group) == 0:
            _logger.info("compression: %s", self._control.change)
        self._write(self._control.trace_step)
        self._decision = self._control.decision()
        began_us = self._begin_us
        mine = torch.zeros(self._decision[1], dtype=torch.int32)
        backend = _group.backend_of(self._group)
        packets = backend.packet_counts()
        if last:
            self._measure(last, packets, mine)
        self._begin_us = max((max(record.handed_us, record.done_us) for record in last), default=_now_us())
        self._packets = packets
        self._count_bytes(last)
        self._publish((self._begin_us - began_us) / 1e6 if last else 0.0)
        self._records = []
        self._agreement = _Agreement(backend, mine)

    def _count_bytes(self, records):
        for record in records:
            self._bytes[0] += record.gradient_bytes
            self._bytes[1] += record.sent_bytes

    def _publish(self, measured_s):
        if self._metrics is None:
            return
        control = self._control
        now = self._decision[0]
        self._metrics.publish(
            [(name, now.count(i), self._counts[i]) for i, name in enumerate(self.levels.names)],
            control.step,
            control.changes,
            *self._bytes,
            (control.predicted_step_ns / 1e9, control.uncompressed_step_ns / 1e9, measured_s),
            control.bits_per_second,
        )

    def _measure(self, records, packets, mine):
        if not all(record.done_us for record in records):
            raise RuntimeError(
                "compression: a step begins before the gradients of the last one have been reduced: 'auto' needs them to be waited for"
            )
        agreement = self._agreement
        self._control.measurement(
            (self._begin_us, agreement.began_us, agreement.agreed_us),
            packets[0] - self._packets[0],
            packets[1] - self._packets[1],
            [record.numbers() for record in records],
            mine,
        )

    def _write(self, line):
        if self._trace is not None:
            self._trace.write(line())


class Record:
    """What this rank sees of a bucket in a step."""

    def __init__(self, level=0, wants_norms=False, ready_us=0):
        self.level = level
        self.wants_norms = wants_norms
        self.ready_us = ready_us
        self.handed_us = self.summed_us = self.done_us = 0
        self.gradient_bytes = self.sent_bytes = 0  # not of sparse embeddings
        self.gradient_norm = self.residual_norm = -1.0

    def measure_norms(self, controlled, slices):
        """`controlled`: (index, parameter) of those that levels apply to."""
        squares = [slices[index].float().norm().item() ** 2 for index, _ in controlled]
        self.gradient_norm = sum(squares) ** 0.5
        self.residual_norm = sum(entry.residual_norm() ** 2 for _, entry in controlled) ** 0.5

    def handed(self):
        self.handed_us = _now_us()

    def summed(self):
        self.summed_us = _now_us()

    def done(self, gradient_bytes, sent_bytes):
        self.gradient_bytes, self.sent_bytes = gradient_bytes, sent_bytes
        self.done_us = _now_us()
        self.summed_us = self.summed_us or self.done_us

    def numbers(self):
        times = (self.ready_us, self.handed_us, self.summed_us, self.done_us)
        return (*times, self.sent_bytes, self.gradient_norm, self.residual_norm)


_numbers = itertools.count(1)  # of the controllers of this process


def _metrics_of(group):
    """What the controller shows where the group's communicator serves its metrics, if it does."""
    backend = _group.backend_of(group)
    if not backend.metrics_address:
        return None
    return _C.CompressionMetrics(backend.metrics_address, backend.job, backend.rank(), next(_numbers))


class _Agreement:
    """The maximum over all ranks of what they have measured, and how long it took."""

    def __init__(self, backend, numbers):
        self._numbers = numbers
        self.agreed_us = 0
        self.began_us = _now_us()
        self._work = backend.allreduce([numbers], _reductions.options_of(dist.ReduceOp.MAX))
        self._end = self._work.get_future().then(self._arrived)

    def wait(self):
        self._work.wait()
        self._end.wait()
        return self._numbers

    def _arrived(self, _future):
        self.agreed_us = _now_us()


class _Trace:
    """A file of lines. Where "{rank}" is part of its path, every rank has one, otherwise only rank 0."""

    def __init__(self, path, rank):
        self._file = None
        if rank == 0 or "{rank}" in path:
            self._file = open(path.replace("{rank}", str(rank)), "w", encoding="utf-8", buffering=1)  # noqa: SIM115
            weakref.finalize(self, self._file.close)

    def write(self, line):
        if self._file is not None:
            self._file.write(line + "\n")


def _size_of(entries, dtype):
    """(elements that levels apply to, bytes of all others)."""
    if entries and dtype is None:
        return 0, 0  # the gradients of a sparse embedding
    elements = sum(entry.count for entry in entries if entry.is_controlled)
    return elements, sum(entry.count for entry in entries if not entry.is_controlled) * dtype.itemsize


def _now_us():
    return time.monotonic_ns() // 1000
