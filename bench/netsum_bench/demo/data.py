"""Real data that needs no download, scikit-learn's digits and the source of Python's standard library; and generated clicks.

All give every rank its own share, drawn from the seed alone, so that two runs with different backends see
the same examples in the same order.
"""

import functools
import pathlib
import sysconfig

import numpy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import torch

TEXT_LIMIT_BYTES = 6_000_000
HELD_OUT_EVERY = 10  # one file in ten is never trained on


class Digits:
    """1797 images of 8x8 pixels, a fifth of them (the same in every run, classes balanced) for testing."""

    def __init__(self, rank, world_size, seed, batch=16):
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        images = torch.tensor(digits.images / 16.0, dtype=torch.float32).unsqueeze(1)
        labels = torch.tensor(digits.target, dtype=torch.long)
        train, test = train_test_split(
            numpy.arange(len(labels)), test_size=0.2, stratify=digits.target, random_state=seed
        )
        train_set = TensorDataset(images[train], labels[train])
        self._sampler = DistributedSampler(train_set, world_size, rank, seed=seed, drop_last=True)
        self._loader = DataLoader(train_set, batch, sampler=self._sampler, drop_last=True)
        # Strided shares without padding: every test image is counted exactly once.
        self._test = (images[test][rank::world_size], labels[test][rank::world_size])
        self.description = f"{len(train)} images for training, {len(test)} for testing"

    def train_batches(self):
        epoch = 0
        while True:
            self._sampler.set_epoch(epoch)
            yield from self._loader
            epoch += 1

    def held_out_batches(self):
        yield self._test


@functools.lru_cache(maxsize=1)
def read_standard_library(root=None, limit_bytes=TEXT_LIMIT_BYTES):
    """Returns (train, held_out) bytes of the library's top-level packages, whole files, in sorted order."""
    root = pathlib.Path(root or sysconfig.get_paths()["stdlib"])
    skipped = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
    train, held_out, total = [], [], 0
    files = sorted(p for p in root.rglob("*.py") if not skipped & set(p.relative_to(root).parts))
    for index, path in enumerate(files):
        text = path.read_bytes()
        if total + len(text) > limit_bytes:
            break
        total += len(text)
        (held_out if index % HELD_OUT_EVERY == 0 else train).append(text)
    if total < 100_000 or not held_out:
        raise RuntimeError(
            f"found only {total} bytes of Python source under {root}; the language model needs the standard "
            "library's .py files (on Debian: apt-get install libpython3-stdlib)"
        )
    return b"\n".join(train), b"\n".join(held_out)


class StandardLibraryText:
    """Windows of `context` bytes at random places; the target is the same window one byte later."""

    def __init__(self, rank, world_size, seed, batch=4, context=64, held_out_windows=32):
        train, held_out = read_standard_library()
        self._train = torch.frombuffer(bytearray(train), dtype=torch.uint8)
        self._held_out = torch.frombuffer(bytearray(held_out), dtype=torch.uint8)
        self._batch, self._context, self._windows = batch, context, held_out_windows
        # Distinct streams per rank, the same ones for every backend.
        self._train_rng = torch.Generator().manual_seed(seed * world_size + rank)
        self._held_out_rng = torch.Generator().manual_seed((seed + 1_000_003) * world_size + rank)
        self.description = f"{len(train) / 1e6:.1f} MB of source for training, {len(held_out) / 1e6:.1f} MB held out"

    def _windows_of(self, text, count, rng):
        starts = torch.randint(len(text) - self._context - 1, (count, 1), generator=rng)
        window = text[starts + torch.arange(self._context + 1)].long()
        return window[:, :-1], window[:, 1:]

    def train_batches(self):
        while True:
            yield self._windows_of(self._train, self._batch, self._train_rng)

    def held_out_batches(self):
        for _ in range(self._windows // 8):
            yield self._windows_of(self._held_out, 8, self._held_out_rng)


class Clicks:
    """Generated: users have seen items, and click on another one the likelier, the better it is and the more it is like these. Each
    item has a hidden vector; how frequent items are follows Zipf's law, and their numbers are in no order."""

    def __init__(self, rank, world_size, seed, items=200_000, batch=128, seen=8, hidden=8, held_out_batches=16):
        self._items, self._batch, self._seen, self._held_out = items, batch, seen, held_out_batches
        everywhere = torch.Generator().manual_seed(seed)
        self._vectors = torch.randn(items, hidden, generator=everywhere)
        self._numbers = torch.randperm(items, generator=everywhere)  # by frequency
        self._train_rng = torch.Generator().manual_seed(seed * world_size + rank)
        self._held_out_rng = torch.Generator().manual_seed((seed + 1_000_003) * world_size + rank)
        self.description = f"generated clicks on {items} items with frequencies by Zipf's law"

    def _batch_of(self, rng):
        uniform = torch.rand(self._batch, 1 + self._seen, generator=rng, dtype=torch.float64)
        frequency_rank = (float(self._items) ** uniform).long() - 1  # 0 is the most frequent item
        items = self._numbers[frequency_rank]
        vectors = self._vectors[items]
        likeness = (vectors[:, 0] * vectors[:, 1:].mean(dim=1)).sum(dim=1)
        quality = vectors[:, 0, 0]
        clicked = torch.rand(self._batch, generator=rng) < torch.sigmoid(2 * likeness + 2 * quality)
        return items, clicked.long()

    def train_batches(self):
        while True:
            yield self._batch_of(self._train_rng)

    def held_out_batches(self):
        for _ in range(self._held_out):
            yield self._batch_of(self._held_out_rng)
