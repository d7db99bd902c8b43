"""The bytes that autograd keeps during a pass, over time, and where in the pass of one wave the other wave begins."""

import contextlib
import dataclasses
import time

import torch

_BINS = 400  # of a pass
_SAME = 0.01  # times of a turn that differ by less count as equal


class Activations:
    """The bytes of the tensors that autograd keeps for a backward pass, over the time of this pass.

    A storage counts once, however many nodes keep it, and until the last of them is freed. Storages of `lasting` tensors, such as
    parameters, do not count.
    """

    def __init__(self, lasting=()):
        self._lasting = {t.untyped_storage().data_ptr() for t in lasting}
        self._nodes = {}  # by storage: how many keep it
        self._bytes = 0
        self._changes = [(time.perf_counter(), 0)]
        self._marks = []
        self._end = None

    def hooks(self):
        """A context in which a forward pass, and its backward pass, are measured."""
        return torch.autograd.graph.saved_tensors_hooks(self._keep, lambda kept: kept.tensor)

    def mark(self, what):
        self._marks.append((what, time.perf_counter()))

    def end(self):
        self._end = time.perf_counter()

    @property
    def peak_bytes(self):
        return max(size for _, size in self._changes)

    def marks(self):
        """By mark: its time, 1 at the end of the pass."""
        start = self._changes[0][0]
        return {what: (at - start) / (self._end - start) for what, at in self._marks}

    def bins(self):
        """The most bytes in each of _BINS equal parts of the pass."""
        start, bins = self._changes[0][0], [0] * _BINS
        scale = _BINS / (self._end - start)
        ends = [at for at, _ in self._changes[1:]] + [self._end]
        for (begin, size), end in zip(self._changes, ends, strict=True):
            first, last = int((begin - start) * scale), int((end - start) * scale)
            for i in range(min(first, _BINS - 1), min(last, _BINS - 1) + 1):
                bins[i] = max(bins[i], size)
        return bins

    def _keep(self, tensor):
        return _Kept(self, tensor)

    def _add(self, storage, sign):
        key = storage.data_ptr()
        if key in self._lasting:
            return
        before = self._nodes.get(key, 0)
        self._nodes[key] = before + sign
        if before == (0 if sign > 0 else 1):
            self._bytes += sign * storage.nbytes()
            self._changes.append((time.perf_counter(), self._bytes))


class _Kept:
    """A tensor as long as a node of the graph keeps it."""

    def __init__(self, activations, tensor):
        self.tensor = tensor.detach()  # with its graph, an output would keep the node that keeps it
        self._activations = activations
        self._storage = tensor.untyped_storage() if tensor.layout is torch.strided else None
        if self._storage is not None:
            activations._add(self._storage, 1)

    def __del__(self):
        with contextlib.suppress(AttributeError):  # __init__() has failed
            if self._storage is not None:
                self._activations._add(self._storage, -1)


@dataclasses.dataclass(frozen=True)
class WavesPlan:
    """When a wave begins, and the memory of both."""

    offset: float  # where in its pass a wave is when the other one begins; 1: at its end, so they compute in turn
    start: str | None  # the parameter whose gradient is then complete; None: the last one
    fixed_bytes: int  # weights, buffers, gradients and optimizer states
    activation_bytes: int  # of both waves together, if both compute as fast as the one that was measured
    most_bytes: int  # of both waves together, however fast each of them computes


def peak_of_two(bins, offset):
    """The most bytes of two passes of which one begins at `offset` of the other."""
    shift = round(offset * len(bins))
    return max(size + (bins[i - shift] if i >= shift else 0) for i, size in enumerate(bins))


def most_of_two(bins, offset):
    """As peak_of_two(), if the pass that is ahead may stand still at the offset until the other one has its peak."""
    return max(bins) + (max(bins[int(offset * len(bins)) :]) if offset < 1 else 0)


def turn_s(offset, at_once, pass_s=1.0):
    """The time from the beginning of a wave to that of the next, if `at_once` passes are computed in the time of one.

    From the offset on, two passes share the processors; before, the wave is alone. `offset`: 1/2 or more.
    """
    return pass_s * (2 * (1 - offset) / at_once + 2 * offset - 1)


def plan(bins, marks, fixed_bytes, memory_bytes=None, at_once=1.0):
    """The offset with the least peak, among the fastest that fit into `memory_bytes` however fast each wave computes.

    marks: by name of a parameter, where in the pass its gradient is complete. Raises ValueError if nothing fits.
    """
    starts = {1.0: None, **{at: name for name, at in marks.items() if 0.5 <= at < 1}}
    peaks = {at: peak_of_two(bins, at) for at in starts}
    most = {at: most_of_two(bins, at) for at in starts}
    fitting = [at for at in starts if memory_bytes is None or fixed_bytes + most[at] <= memory_bytes]
    if not fitting:
        raise ValueError(too_small(fixed_bytes, max(bins), memory_bytes))
    fastest = min(turn_s(at, at_once) for at in fitting)
    best = min((at for at in fitting if turn_s(at, at_once) <= fastest + _SAME), key=lambda at: (peaks[at], -at))
    return WavesPlan(best, starts[best], fixed_bytes, peaks[best], most[best])


def too_small(fixed_bytes, pass_bytes, memory_bytes):
    return (
        f"Waves: memory_bytes={memory_bytes} is too small for one wave at a time: the weights, gradients and optimizer states of two "
        f"replicas have {fixed_bytes} bytes, and the activations of a pass {pass_bytes}. Use smaller batches, activation "
        "checkpointing, or DistributedDataParallel alone"
    )
