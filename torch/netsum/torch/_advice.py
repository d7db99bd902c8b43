"""Which schedule of computation and communication pays for a model on its group (docs/pytorch.md)."""

import dataclasses
import statistics
import time

import torch.distributed as dist

import torch
from netsum.torch._reductions import check_ddp

PAYS = 1.05  # times the rate of DDP; less is within what measurements differ by
# DDP's time over that of the schedule, in a virtual rack, the least and the most of all shares of the sums, over netsum and Gloo: the row
# "all" of the table of `make bench CASE=schedules` in docs/results.md. None: not measured.
MEASURED = {
    "accumulation of 2 batches": (1.08, 1.40),
    "steps delayed by one batch": (1.02, 1.25),
    "priorities without barrier": (0.88, 1.06),
    "two waves": (0.92, 1.27),
    "compression": None,
}


def rates(forward_s, backward_s, network_s, bytes_left=1.0, at_once=1.0):
    """Batches per second and rank of each schedule, for a model whose layers are alike.

    forward_s, backward_s: of one batch, without communication. network_s: to sum the gradients of one batch, with nothing else
    to do. bytes_left: what compression leaves of the bytes. at_once: how many passes the device computes in the time of one.
    """
    compute_s = forward_s + backward_s
    ddp_s = forward_s + max(backward_s, network_s)
    return {
        "DDP": 1 / ddp_s,
        "accumulation of 2 batches": 2 / (compute_s + ddp_s),
        "steps delayed by one batch": 1 / max(compute_s, network_s),
        # Of the layers' sums, equal parts are left after the backward pass, and end in the order of the forward pass.
        "priorities without barrier": 1 / max(compute_s, network_s),
        "two waves": 2 / max(2 * compute_s / at_once, 2 * network_s, compute_s + network_s),
        "compression": 1 / (forward_s + max(backward_s, network_s * bytes_left)),
    }


# The time of a batch. F, B: forward and backward pass. A: the sums. u: at_once. q: bytes_left.
FORMULAS = {
    "DDP": "F + max(B, A)",
    "accumulation of 2 batches": "(2 F + B + max(B, A)) / 2",
    "steps delayed by one batch": "max(F + B, A)",
    "priorities without barrier": "max(F + B, A)",
    "two waves": "max((F + B) / u, A, (F + B + A) / 2)",
    "compression": "F + max(B, q A)",
}
NOTES = {
    "DDP": "as it is",
    "accumulation of 2 batches": "no_sync(); a step then has twice the samples",
    "steps delayed by one batch": "gradients of older weights; not a part of netsum",
    "priorities without barrier": "OverlappedOptimizer with Priorities; the same losses; at best",
    "two waves": "Waves; at best; twice the memory, and a step then has twice the samples",
    "compression": "compress(); at best, without its processor time",
}


@dataclasses.dataclass
class Advice:
    """What advise() has measured, in seconds, of the slowest rank, and what follows."""

    forward_s: float
    backward_s: float
    network_s: float
    bytes_left: float
    at_once: float = 1.0

    @property
    def rates(self):
        return rates(self.forward_s, self.backward_s, self.network_s, self.bytes_left, self.at_once)

    @property
    def gains(self):
        """The rate of each schedule, in multiples of that of DDP."""
        return {name: rate / self.rates["DDP"] for name, rate in self.rates.items()}

    @property
    def pays(self):
        """The schedules that are faster than DDP by their formula, and were where they were measured; the fastest first."""
        faster = [name for name, gain in self.gains.items() if gain >= PAYS]
        return sorted((n for n in faster if MEASURED[n] and MEASURED[n][1] >= PAYS), key=lambda n: -self.gains[n])

    def _verdict(self, name):
        if name == "DDP":
            return ""
        if self.gains[name] < PAYS:
            return "does not pay"
        if MEASURED[name] is None:
            return "not measured against DDP"
        found = "measured {:.2f} to {:.2f} x".format(*MEASURED[name])
        return f"may pay: {found}" if name in self.pays else f"does not pay: {found}"

    def __str__(self):
        compute_s = self.forward_s + self.backward_s
        lines = [
            f"forward F = {self.forward_s * 1e3:.3g} ms, backward B = {self.backward_s * 1e3:.3g} ms, sums of gradients "
            f"A = {self.network_s * 1e3:.3g} ms: {self.network_s / compute_s:.2f} of the computation"
        ]
        for name, gain in self.gains.items():
            what = f" to {self.bytes_left:.0%} of the bytes" if name == "compression" else ""
            lines.append(
                f"{gain:5.2f} x  {name}{what}: {FORMULAS[name]} ({NOTES[name]}) {self._verdict(name)}".rstrip()
            )
        return "\n".join(lines)


def advise(model, batch, loss=None, *, bytes_left=0.25, at_once=1.0, steps=5, print_to=None):
    """Measures a DistributedDataParallel and its group, and prints on rank 0 which schedules pay. Returns the Advice.

    Only what was faster than DDP in a virtual rack, too, is said to pay; its `pays` has these schedules.

    Call it on every rank. `batch`: the arguments of model(), in a tuple. `loss`: a function of its output, by default its sum.
    `bytes_left`: what compression would leave of the bytes, equal on all ranks. `at_once`: how many passes the processors compute in
    the time of one, for two waves. `print_to`: a file; None: standard output. It makes `steps` + 1 passes, of which the first does not
    count, and sums as many copies of the gradients. Weights, gradients, buffers and the state of random numbers are then what they
    were. Measure on otherwise idle hosts.
    """
    check_ddp(model, "advise")
    if steps < 1 or at_once < 1 or not 0 < bytes_left <= 1:
        raise ValueError(
            f"advise: steps is {steps}, at_once is {at_once} and bytes_left is {bytes_left}; steps and at_once must be at least 1, "
            "bytes_left in (0, 1]"
        )
    parameters = [p for p in model.parameters() if p.requires_grad]
    kept = [p.grad for p in parameters], [b.clone() for b in model.buffers()]
    times = []
    try:
        with torch.random.fork_rng(devices=[]):
            for _ in range(steps + 1):
                times.append(_measure(model, batch, loss, parameters))
    finally:
        for parameter, gradient in zip(parameters, kept[0], strict=True):
            parameter.grad = gradient
        for buffer, value in zip(model.buffers(), kept[1], strict=True):
            buffer.copy_(value)
    medians = torch.tensor([statistics.median(column) for column in zip(*times[1:], strict=True)])
    dist.all_reduce(
        medians, dist.ReduceOp.MAX, group=model.process_group
    )  # a step lasts as long as that of the slowest
    advice = Advice(*medians.tolist(), bytes_left, at_once)
    if dist.get_rank(model.process_group) == 0:
        print(advice, file=print_to)
    return advice


def _measure(model, batch, loss, parameters):
    for parameter in parameters:
        parameter.grad = None
    start = time.perf_counter()
    with model.no_sync():
        output = model(*batch)
        value = loss(output) if loss is not None else output.sum()
        forward = time.perf_counter()
        value.backward()
    backward = time.perf_counter()
    # The gradients themselves: zeros and numbers of one size would travel in fewer packets.
    buckets = _buckets([p.grad for p in parameters if p.grad is not None], model.bucket_bytes_cap)
    dist.barrier(group=model.process_group)
    begin = time.perf_counter()
    for work in [dist.all_reduce(b, group=model.process_group, async_op=True) for b in buckets]:
        work.wait()
    return forward - start, backward - forward, time.perf_counter() - begin


def _buckets(gradients, cap_bytes):
    """Copies of the gradients in pieces of DDP's size."""
    by_type = {}
    for gradient in gradients:
        by_type.setdefault(gradient.dtype, []).append(gradient.flatten())
    flat = [torch.cat(of_type) for of_type in by_type.values()]
    return [bucket for one in flat for bucket in one.split(max(1, cap_bytes // one.element_size()))]
