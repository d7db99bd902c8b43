"""What runs over Gloo: random calls with tensors of any layout against a naive model, refusals, and what is told about it."""

import itertools
import logging
import math
import random

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from netsum.torch import _addresses, _rendezvous
from ranks import calls
from torch.distributed import ReduceOp

import torch

ROUNDS = 40
GUARD = 77
ALL = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
NARROW = (torch.int8, torch.uint8, torch.bool)
# Gloo has none of these: their bytes are moved.
FOREIGN = (torch.int16, torch.complex64, torch.complex128, torch.float8_e5m2)


def hosts_only():
    """A group of which Gloo runs everything, as one of more than 64 ranks."""
    meet = _rendezvous.meet
    try:
        _rendezvous.meet = lambda *arguments: (None, _addresses.LOOPBACK)
        return dist.new_group()
    finally:
        _rendezvous.meet = meet


def bits(tensor):
    return tensor.new_empty(tensor.shape).copy_(tensor).view(-1).view(torch.uint8)


class Strided:
    """A tensor of random strides and offset in memory of which every other byte must stay as it is."""

    def __init__(self, rng, values):
        shape = values.shape
        order = rng.sample(range(len(shape)), len(shape))
        strides, span = [0] * len(shape), 1
        for d in order:
            strides[d] = span * rng.randint(1, 3)
            span = strides[d] * max(shape[d], 1)
        offset = rng.randint(0, 5)
        last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if values.numel() else 0
        count = offset + last + 1 + rng.randint(0, 5)
        self.memory = torch.full((count * values.element_size(),), GUARD, dtype=torch.uint8)
        self.tensor = self.memory.view(values.dtype).as_strided(shape, strides, offset)
        self.tensor.copy_(values)
        inside = torch.zeros(count, dtype=torch.bool)
        inside.as_strided(shape, strides, offset).fill_(True)
        self.outside = ~inside.repeat_interleave(values.element_size())

    def check(self, expected, why):
        assert self.tensor.dtype == expected.dtype, why
        assert torch.equal(bits(self.tensor), bits(expected)), (why, self.tensor, expected)
        assert (self.memory[self.outside] == GUARD).all(), f"{why}: memory beside the tensor was overwritten"


def small(seed, shape, dtype):
    """Whole numbers of which every type holds the sums and products of a few ranks."""
    values = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(seed))
    return (values % 2 if dtype == torch.bool else values).to(dtype)


def reduced(values, op):
    dtype = values[0].dtype
    stack = torch.stack([v.to(torch.complex128 if dtype.is_complex else torch.float64) for v in values])
    words = [v.to(torch.int64) for v in values] if not dtype.is_complex else []
    whole = {
        "SUM": lambda: stack.sum(0),
        "AVG": lambda: stack.mean(0),
        "PRODUCT": lambda: stack.prod(0),
        "MIN": lambda: stack.amin(0),
        "MAX": lambda: stack.amax(0),
        "BAND": lambda: words[0] & words[1],
        "BOR": lambda: words[0] | words[1],
        "BXOR": lambda: words[0] ^ words[1],
    }[op]()
    return whole.to(dtype)


def operators(dtype):
    if dtype.is_complex:
        return ["SUM", "AVG"]
    more = ["AVG"] if dtype.is_floating_point else ["BAND", "BOR", "BXOR"]
    return ["SUM", "PRODUCT", "MIN", "MAX", *more]


def random_shape(rng, rows=None):
    shape = [rng.randint(0, 5) if rng.random() < 0.3 else rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
    return [rows if rows is not None else shape[0], *shape[1:]]


class Calls:
    """One random call of a kind, the same on both ranks."""

    def __init__(self, rank, seed, group):
        self.rank, self.seed, self.group = rank, seed, group
        self.rng = random.Random(seed)
        self.layout = random.Random(seed * 2 + rank)  # ranks may differ in it
        self.dtype, self.op = None, None

    def why(self):
        return f"seed {self.seed}, {self.dtype}, {self.op}"

    def values(self, shape, salt=0):
        return [small(self.seed * 97 + 7 * r + salt, shape, self.dtype) for r in range(2)]

    def strided(self, values):
        return Strided(self.layout, values)

    def choose(self, dtypes):
        self.dtype = self.rng.choice(dtypes)
        self.op = self.rng.choice(operators(self.dtype))
        return getattr(ReduceOp, self.op)

    def all_reduce(self):
        op = self.choose((*ALL, *NARROW, torch.complex128))
        values = self.values(random_shape(self.rng))
        mine = self.strided(values[self.rank])
        dist.all_reduce(mine.tensor, op, group=self.group)
        mine.check(reduced(values, self.op), self.why())

    def all_reduce_coalesced(self):
        op = self.choose((*ALL, *NARROW))
        several = [self.values(random_shape(self.rng), salt=100 * i) for i in range(3)]
        mine = [self.strided(values[self.rank]) for values in several]
        dist.all_reduce_coalesced([m.tensor for m in mine], op, group=self.group)
        for m, values in zip(mine, several, strict=True):
            m.check(reduced(values, self.op), self.why())

    def reduce(self):
        op = self.choose((*ALL, *NARROW))
        root = self.rng.randint(0, 1)
        values = self.values(random_shape(self.rng))
        mine = self.strided(values[self.rank])
        dist.reduce(mine.tensor, root, op, group=self.group)
        mine.check(reduced(values, self.op) if self.rank == root else values[self.rank], self.why())

    def reduce_scatter_single(self):
        op = self.choose((*ALL, *NARROW))
        rows = self.rng.randint(1, 4)
        shape = random_shape(self.rng, 2 * rows)
        values = self.values(shape)
        mine = self.strided(values[self.rank])
        part = self.strided(torch.zeros([rows, *shape[1:]], dtype=self.dtype))
        dist.reduce_scatter_single(part.tensor, mine.tensor, op, group=self.group)
        part.check(reduced(values, self.op)[self.rank * rows : (self.rank + 1) * rows], self.why())
        mine.check(values[self.rank], self.why())

    def reduce_scatter(self):
        op = self.choose((*ALL, *NARROW))
        several = [self.values(random_shape(self.rng), salt=100 * r) for r in range(2)]
        mine = [self.strided(values[self.rank]) for values in several]
        part = self.strided(torch.zeros_like(several[self.rank][0]))
        dist.reduce_scatter(part.tensor, [m.tensor for m in mine], op, group=self.group)
        part.check(reduced(several[self.rank], self.op), self.why())
        for m, values in zip(mine, several, strict=True):
            m.check(values[self.rank], self.why())

    def all_to_all_single(self):
        self.choose((*ALL, *NARROW, *FOREIGN))
        equal = self.rng.random() < 0.5
        rows = self.rng.randint(0, 3)
        splits = [[rows if equal else self.rng.randint(0, 3) for _ in range(2)] for _ in range(2)]  # of rank, for rank
        tail = random_shape(self.rng)[1:]
        values = [small(self.seed + r, [sum(splits[r]), *tail], self.dtype) for r in range(2)]
        sends, receives = splits[self.rank], [splits[r][self.rank] for r in range(2)]
        mine = self.strided(values[self.rank])
        got = self.strided(torch.zeros([sum(receives), *tail], dtype=self.dtype))
        lists = () if equal else (receives, sends)
        dist.all_to_all_single(got.tensor, mine.tensor, *lists, group=self.group)
        got.check(torch.cat([values[r].split(splits[r])[self.rank] for r in range(2)]), self.why())
        mine.check(values[self.rank], self.why())

    def all_to_all(self):
        self.choose((*ALL, *NARROW, *FOREIGN))
        shapes = [[random_shape(self.rng) for _ in range(2)] for _ in range(2)]
        values = [[small(self.seed + 3 * r + t, shapes[r][t], self.dtype) for t in range(2)] for r in range(2)]
        mine = [self.strided(v) for v in values[self.rank]]
        got = [self.strided(torch.zeros(shapes[r][self.rank], dtype=self.dtype)) for r in range(2)]
        dist.all_to_all([g.tensor for g in got], [m.tensor for m in mine], group=self.group)
        for r, g in enumerate(got):
            g.check(values[r][self.rank], self.why())

    def send_and_receive(self):
        self.choose((*ALL, *NARROW, *FOREIGN))
        values = self.values(random_shape(self.rng))
        mine, got = self.strided(values[self.rank]), self.strided(torch.zeros_like(values[0]))
        works = [
            dist.isend(mine.tensor, group_dst=1 - self.rank, group=self.group),
            dist.irecv(got.tensor, group_src=1 - self.rank, group=self.group),
        ]
        for work in works:
            work.wait()
        got.check(values[1 - self.rank], self.why())
        mine.check(values[self.rank], self.why())

    # Those that Gloo runs only in a group that is too large for the network.
    def move(self):
        self.choose((*ALL, *NARROW, *FOREIGN))
        shape = random_shape(self.rng)
        values, root = self.values(shape), self.rng.randint(0, 1)
        zeros = torch.zeros_like(values[0])
        mine = self.strided(values[self.rank])
        dist.broadcast(mine.tensor, root, group=self.group)
        mine.check(values[root], self.why())
        mine, got = self.strided(values[self.rank]), [self.strided(zeros) for _ in range(2)]
        dist.all_gather([g.tensor for g in got], mine.tensor, group=self.group)
        for g, v in zip(got, values, strict=True):
            g.check(v, self.why())
        flat = self.strided(torch.zeros([2 * shape[0], *shape[1:]], dtype=self.dtype))
        dist.all_gather_single(flat.tensor, mine.tensor, group=self.group)
        flat.check(torch.cat(values), self.why())
        got = [self.strided(zeros) for _ in range(2)]
        dist.gather(mine.tensor, [g.tensor for g in got] if self.rank == root else None, root, group=self.group)
        for g, v in zip(got, values, strict=True):
            g.check(v if self.rank == root else zeros, self.why())
        several, part = [self.strided(v) for v in values], self.strided(zeros)
        dist.scatter(part.tensor, [s.tensor for s in several] if self.rank == root else None, root, group=self.group)
        part.check(values[self.rank], self.why())
        mine.check(values[self.rank], self.why())


KINDS = ("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter_single", "reduce_scatter") + (
    "all_to_all_single",
    "all_to_all",
    "send_and_receive",
)


def test_random_calls_are_those_of_a_naive_model():
    base = random.randrange(1_000_000)
    print("seed", base)

    def on_rank(rank):
        alone = hosts_only()
        for i, kind in enumerate([*KINDS, "move"] * ROUNDS):
            group = alone if kind == "move" or i % 2 else None
            getattr(Calls(rank, base + i, group), kind)()
        assert not calls("netsum", alone) and calls("netsum") and calls("gloo")

    ranks.run(on_rank, world_size=2)


def test_a_column_is_reduced_and_its_neighbours_stay():
    """As in a script of a user."""

    def on_rank(rank):
        for dtype, op, one, want in (
            (torch.float64, ReduceOp.SUM, 1, 2),
            (torch.float32, ReduceOp.PRODUCT, 2, 4),
            (torch.int8, ReduceOp.SUM, 1, 2),
            (torch.bool, ReduceOp.SUM, 1, 1),
            (torch.complex128, ReduceOp.SUM, 1, 2),
        ):
            matrix = torch.zeros(4, 3).to(dtype)
            matrix[:, 1] = one
            dist.all_reduce(matrix[:, 1], op)
            right = torch.zeros(4, 3).to(dtype)
            right[:, 1] = want
            assert torch.equal(matrix, right), (dtype, op, matrix)
        matrix, got = torch.zeros(2, 3), torch.zeros(2, 2)
        matrix[:, 1] = torch.arange(2) + 10.0 * rank
        dist.all_to_all_single(got[:, 0], matrix[:, 1])
        assert got.tolist() == [[0.0 + rank, 0.0], [10.0 + rank, 0.0]]

    ranks.run(on_rank, world_size=2)


@pytest.mark.parametrize("alone", [False, True])
def test_one_rank_gets_what_it_gave(alone):
    """Bit for bit, in a group of its own and in a job of one rank."""

    def on_rank(rank):
        group = [dist.new_group([r]) for r in range(2)][rank] if alone else None
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64):
            given = torch.randint(0, 256, (2000 * dtype.itemsize,), dtype=torch.uint8).view(dtype)
            if dtype.is_floating_point:
                given[0], given[1] = 1e-3, math.nan
            for op in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
                if op == "AVG" and not dtype.is_floating_point:
                    continue
                mine, part, whole = given.clone(), torch.empty_like(given), torch.empty_like(given)
                dist.all_reduce(mine, getattr(ReduceOp, op), group=group)
                dist.reduce_scatter_single(part, given, getattr(ReduceOp, op), group=group)
                dist.reduce(whole.copy_(given), group_dst=0, op=getattr(ReduceOp, op), group=group)
                for got in (mine, part, whole):
                    assert torch.equal(bits(got), bits(given)), (dtype, op)

    ranks.run(on_rank, world_size=2 if alone else 1)


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
def test_nan_and_zeros_are_those_of_the_network(op):
    """Whatever the order of the ranks."""

    def on_rank(rank):
        alone = hosts_only()
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            values = torch.tensor([1.0, -1.0, math.nan, -0.0, math.inf, 3e-5]).to(dtype)
            mine = values[torch.randint(0, 6, (300,), generator=torch.Generator().manual_seed(rank))]
            by_gloo, by_network = mine.clone(), mine.to(torch.float32)
            dist.all_reduce(by_gloo, op, group=alone)
            dist.all_reduce(by_network, op)
            # In its own type: PyTorch's casts of NaNs depend on the place in the tensor.
            expected = by_network.to(dtype).masked_fill_(by_network.isnan(), math.nan)
            assert torch.equal(bits(by_gloo), bits(expected)), dtype

    ranks.run(on_rank, world_size=3)


def test_a_non_root_keeps_its_tensor():
    def on_rank(rank):
        mine = torch.arange(1000, dtype=torch.float64) + rank
        dist.reduce(mine, dst=1)
        assert rank == 1 or torch.equal(mine, torch.arange(1000, dtype=torch.float64) + rank)

    ranks.run(on_rank, world_size=4)


# Call, its name and type or value, and what helps.
REFUSALS = {
    "int16": (lambda: dist.all_reduce(torch.ones(3, dtype=torch.int16)), "all_reduce.*int16.*tensor.to"),
    "float8": (
        lambda: dist.reduce(torch.ones(3).to(torch.float8_e5m2), 0),
        r"reduce .*float8_e5m2.*to\(torch.float32\)",
    ),
    "bits of floats": (lambda: dist.all_reduce(torch.ones(3), ReduceOp.BAND), "all_reduce.*BAND of float32.*view"),
    "mean of bytes": (
        lambda: dist.all_reduce(torch.ones(3, dtype=torch.uint8), ReduceOp.AVG),
        "all_reduce.*AVG of uint8.*use SUM",
    ),
    "uneven": (lambda: dist.all_to_all_single(torch.empty(3), torch.empty(3)), "all_to_all_single.*float32.*split"),
    "more than rows": (
        lambda: dist.all_to_all_single(torch.empty(4), torch.empty(4), [1, 3], [2, 3]),
        "all_to_all_single.*split sizes.*4 rows",
    ),
    "own part": (
        lambda: dist.all_to_all([torch.empty(1), torch.empty(1)], [torch.empty(2), torch.empty(2)]),
        "all_to_all.*itself",
    ),
    "expanded": (
        lambda: dist.all_reduce(torch.ones(1, dtype=torch.float64).expand(3)),
        r"all_reduce.*float64\[3\].*clone\(\)",
    ),
}


def test_refusals_name_call_type_and_cure():
    def on_rank(rank):
        for name, (call, pattern) in REFUSALS.items():
            with pytest.raises((ValueError, RuntimeError), match=pattern):
                call()
            ones = torch.ones(3, dtype=torch.float64)
            dist.all_reduce(ones)
            assert ones.tolist() == [2.0] * 3, f"the group has not survived: {name}"

    ranks.run(on_rank, world_size=2)


def test_what_gloo_runs_is_told_once():
    def on_rank(rank):
        assert "Gloo" not in netsum.torch.describe()
        lines = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append((record.levelname, record.getMessage()))
        logger = logging.getLogger("netsum")
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        for _ in range(3):
            dist.all_reduce(torch.ones(3, dtype=torch.float64))
            dist.all_reduce(torch.ones(4), ReduceOp.PRODUCT)
            dist.all_reduce(torch.ones(1000))
            dist.all_to_all_single(torch.empty(2), torch.ones(2))
        dist.barrier()
        return lines, netsum.torch.describe(), netsum.torch.stats()

    (lines, text, stats), (others, _, _) = ranks.run(on_rank, world_size=2)
    assert not others, "one rank tells"
    assert [level for level, _ in lines] == ["WARNING", "WARNING", "INFO"]
    for (_, line), words in zip(
        lines, (["all_reduce", "float64[3], SUM"], ["float32[4], PRODUCT"], ["all_to_all_single"]), strict=True
    ):
        assert "runs over Gloo, not in the network" in line
        assert all(word in line for word in words), line
    assert "by Gloo: 9 of 12 calls (all_reduce 6, all_to_all_single 3)" in text, text
    gloo, network = stats["gloo_call_bytes"], stats["netsum_call_bytes"]
    assert (gloo, network) == (3 * (24 + 16 + 16), 3 * 4000)
    assert f"{100 * gloo / (gloo + network):.3g} % of their bytes" in text, text


@pytest.mark.parametrize("shared_memory", ["0", "1"])
def test_maxima_with_verified_sums(shared_memory):
    """The ranks compute what they cannot verify, and the group goes on."""

    def on_rank(rank):
        for dtype, op in itertools.product((torch.float32, torch.bfloat16, torch.int32), (ReduceOp.MAX, ReduceOp.MIN)):
            mine = torch.tensor([1.0, -2.0, 3.0]).to(dtype) * (rank + 1)
            dist.all_reduce(mine, op)
            both = torch.tensor([[1, -2, 3], [2, -4, 6]])
            want = both.amax(0) if op == ReduceOp.MAX else both.amin(0)
            assert mine.tolist() == want.tolist(), (dtype, op)
        total = torch.ones(1000)
        dist.all_reduce(total)
        assert torch.all(total == 2)
        in_network = shared_memory == "1"
        assert calls("gloo") == ({} if in_network else {"all_reduce": 6})
        return netsum.torch.stats()["sums_verified"]

    verified = ranks.run(on_rank, world_size=2, env={"NETSUM_VERIFY": "both", "NETSUM_SHARED_MEMORY": shared_memory})
    assert shared_memory == "1" or min(verified) > 0


def test_beside_another_backend_for_a_device():
    """Of which netsum knows nothing."""

    def on_rank(rank):
        total = torch.ones(3)
        dist.all_reduce(total)
        assert total.tolist() == [2.0] * 3

    ranks.run(on_rank, world_size=2, backend="cpu:netsum,cuda:gloo")
