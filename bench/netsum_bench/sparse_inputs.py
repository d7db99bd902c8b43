"""Tensors with many zeros for the sparse benchmark, and the bytes that each scheme needs for them.

Which units of a tensor are not zero follows from a hash of their number, so each rank computes its own tensor, and the sum of
all tensors in a part of them, without the rest.
"""

import dataclasses
import functools
import math

import numpy

BLOCK = 256  # elements, of OmniReduce
# Pattern: elements that are zero or not together.
UNITS = {"element": 1, "row": 64, "block": BLOCK, "zipf": 64}
OVERLAPS = ("none", "random", "full")
ZIPF_EXPONENT = 1.0
DENSITIES = (1, 0.8, 0.4, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)


def hashed(numbers, seed):
    """32 random bits for each number (the finaliser of MurmurHash3)."""
    mixed = numbers.astype(numpy.uint32) ^ numpy.uint32((0x9E3779B9 * (seed + 1)) & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed ^= mixed >> numpy.uint32(shift)
        mixed *= numpy.uint32(factor)
    return mixed ^ (mixed >> numpy.uint32(16))


@functools.cache
def zipf_shares(units, density):
    """How probable it is that a rank has each unit: units are drawn with frequencies as of words, so often that a rank has
    `density` of them on average. Units are not in the order of their frequencies."""
    order = (numpy.arange(units, dtype=numpy.int64) * 0x9E3779B1 + 1) % units  # a permutation, as both are coprime
    frequency = 1.0 / (order + 1) ** ZIPF_EXPONENT
    low, high = 0.0, 1e12
    for _ in range(200):
        draws = math.sqrt((low + 1e-9) * high)
        found = -numpy.expm1(-draws * frequency)
        if found.mean() < density:
            low = draws
        else:
            high = draws
    return found


@dataclasses.dataclass(frozen=True)
class Case:
    """`density`: of the units of a rank that are not zero. `overlap`: whether they are at the same places on all ranks
    ("full"), at places of its own for each rank ("none"), or at random ones. The pattern "zipf" is rows of an embedding
    whose frequencies are those of words, so ranks have the frequent ones in common."""

    pattern: str
    overlap: str
    density: float
    count: int

    @property
    def unit(self):
        return UNITS[self.pattern]

    @property
    def units(self):
        return self.count // self.unit

    def possible(self, ranks):
        return self.overlap != "none" or self.density * ranks <= 1

    def mask(self, rank, ranks, iteration, begin=0, end=None):
        """Which of the units [begin, end) are not zero on the rank."""
        numbers = numpy.arange(begin, self.units if end is None else end)
        if self.density >= 1:
            return numpy.ones(len(numbers), bool)
        if self.overlap == "full":
            return hashed(numbers, 1000 * iteration) < self.density * 2**32
        own = hashed(numbers, 1000 * iteration + 1 + rank)
        if self.pattern == "zipf":
            return own < zipf_shares(self.units, self.density)[numbers] * 2**32
        if self.overlap == "none":
            shared = hashed(numbers, 1000 * iteration)
            return (numbers % ranks == rank) & (shared < self.density * ranks * 2**32)
        return own < self.density * 2**32

    def rows_of(self, rank, ranks, iteration, begin=0, end=None):
        """The rank's units among [begin, end) that are not zero, counted from `begin`, and their elements: whole
        numbers, so that sums are exact in any order."""
        units = numpy.flatnonzero(self.mask(rank, ranks, iteration, begin, end))
        values = ((units + begin) * 7 + rank * 13 + iteration) % 999 + 1
        return units, numpy.repeat(values.astype(numpy.float32)[:, None], self.unit, axis=1)

    def expected(self, ranks, iteration, begin, end):
        """The sum of all ranks' units [begin, end)."""
        total = numpy.zeros((end - begin, self.unit), numpy.float32)
        for rank in range(ranks):
            units, values = self.rows_of(rank, ranks, iteration, begin, end)
            total[units] += values
        return total.reshape(-1)

    def sizes(self, ranks, iteration=0):
        """Elements of a rank (the average), elements of the union, blocks in which the union is, and the bits of the
        smallest index of the union's elements and of its units."""
        masks = [self.mask(rank, ranks, iteration) for rank in range(ranks)]
        union = numpy.logical_or.reduce(masks)
        elements = numpy.repeat(union, self.unit)
        return {
            "own": int(sum(int(mask.sum()) for mask in masks) * self.unit / ranks),
            "union": int(union.sum()) * self.unit,
            "blocks": int(numpy.logical_or.reduceat(elements, numpy.arange(0, self.count, BLOCK)).sum()),
            "index_bits": index_bits(elements),
            "unit_index_bits": index_bits(union),
        }


def index_bits(union):
    """The fewest bits of an index of the set, by any choice of levels (docs/sparse.md): a level has a bit for each block of
    2^shift positions that lies in a set block of the level above."""
    positions, occupied, blocks = len(union), [], union
    while True:
        occupied.append(int(blocks.sum()))
        if len(blocks) == 1:
            break
        if len(blocks) % 2:
            blocks = numpy.append(blocks, False)
        blocks = blocks.reshape(-1, 2).any(axis=1)
    below = [0]  # bits of the levels below one with blocks of 2^shift
    for shift in range(1, len(occupied)):
        below.append(min(occupied[shift] * 2 ** (shift - s) + below[s] for s in range(shift)))
    return min(math.ceil(positions / 2**s) + bits for s, bits in enumerate(below))


def model_bytes(case, sizes, ranks):
    """Payload that a rank receives by each scheme."""
    dense, values = 4 * case.count, 4 * sizes["union"]
    return {
        "dense": dense,
        "netsum": min(dense, values + sizes["index_bits"] / 8),
        "netsum-rows": min(dense, values + sizes["unit_index_bits"] / 8),
        "omnireduce": sizes["blocks"] * (4 * BLOCK + 4),
        "coo": (ranks - 1) * (sizes["own"] * 4 + sizes["own"] // case.unit * 8),
    }


def product(densities, patterns, overlaps, count):
    """Every combination that makes a difference: a tensor of density 1 has neither pattern nor overlap, and the pattern "zipf"
    has an overlap of its own."""
    for pattern in patterns:
        for overlap in overlaps:
            for density in densities:
                if density >= 1:
                    if (pattern, overlap) == ("element", "random"):
                        yield Case(pattern, overlap, density, count)
                elif pattern != "zipf" or overlap == "random":
                    yield Case(pattern, overlap, density, count)


SMALL, LARGE = 4 << 20, 24 << 20  # elements


def essential(ranks, eight=8):
    """The cases of the documents, the most important ones first."""
    if ranks != eight:
        return [
            *product((0.01, 0.1, 0.001), ["element"], ["random"], SMALL),
            *product((0.01,), ["zipf"], ["random"], SMALL),
        ]
    return [
        *product((0.01, 0.05, 0.001, 0.1), ["element"], ["full"], SMALL),
        *product((1, 0.1, 0.01, 0.4, 0.05), ["element"], ["random"], SMALL),
        *product((0.01, 0.1), ["zipf"], ["random"], SMALL),
        *product((0.01, 0.05), ["element"], ["full"], LARGE),
        *product((0.01, 0.1), ["row", "block"], ["random"], SMALL),
        *product((0.01, 0.1), ["element"], ["none"], SMALL),
        *product((0.8, 0.2, 0.02, 0.001), ["element"], ["random"], SMALL),
        *product((0.02, 0.2, 0.4), ["element"], ["full"], SMALL),
        *product((0.01, 0.1), ["row"], ["full", "none"], SMALL),
        *product((0.05, 0.001), ["zipf"], ["random"], SMALL),
        *product((0.01,), ["element"], ["random"], LARGE),
    ]


def everything(ranks):
    """The essential cases first."""
    first = essential(ranks)
    rest = product(DENSITIES, UNITS, OVERLAPS, SMALL)
    return list(dict.fromkeys([*first, *rest]))


SELECTIONS = {"essential": essential, "full": everything}
