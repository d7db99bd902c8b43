"""A small model of the case of ghosts: one rank of its training, or, with --program, its program without a cluster."""

import argparse
import functools
import pathlib
import time

import netsum.torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

WORDS, WIDTH, LAYERS, LENGTH, BATCH = 256, 128, 3, 64, 4  # 2.6 MB of gradients


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self._embedding = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0, batch_first=True)
        self._layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self._head = nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        return self._head(self._layers(self._embedding(words)))

    def shard(self):
        """Each layer is gathered before it is used."""
        from torch.distributed.fsdp import fully_shard  # which takes a third of the time to start

        for layer in self._layers.layers:
            fully_shard(layer)
        return fully_shard(self)


class Processor:
    """A core of which this thread has a share, whatever else runs on the machine: it sleeps after its computing until that has taken
    as long as there. A cgroup's quota is checked by ticks of milliseconds, and covers the threads of the network, which ghosts
    have no part of."""

    LEAST_SLEEP_S = 0.0002
    FIXED_S = 0.005  # more than any piece of the model needs

    def __init__(self, share, fixed):
        """`fixed`: what is computed until catch_up() takes as long as FIXED_S on this share, whatever it needs."""
        self._share, self._fixed = share, fixed
        self.begin()

    @staticmethod
    def _times():
        """How long this thread has computed, and how long it was to run while others did, in seconds."""
        waited = int(pathlib.Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1])
        return time.thread_time_ns() * 1e-9, waited * 1e-9

    def begin(self):
        """What is computed from here on counts."""
        self._computed_s, self._waited_s = self._times()
        self._owed_s = 0

    def catch_up(self, *_):
        computed, waited = self._times()
        own = computed - self._computed_s
        self._owed_s += (self.FIXED_S if self._fixed else own) / self._share - own - (waited - self._waited_s)
        self._computed_s, self._waited_s = computed, waited
        if self._owed_s < self.LEAST_SLEEP_S:
            return
        begin = time.monotonic()
        time.sleep(self._owed_s)
        self._owed_s -= time.monotonic() - begin
        self._waited_s = self._times()[1]  # the time until it ran again is in that of the sleep

    def pace(self, layer):
        """Catches up behind the forward pass of a layer, and before its backward pass."""

        def behind(_layer, _inputs, output):
            self.catch_up()
            if output.requires_grad:
                output.register_hook(self.catch_up)

        layer.register_forward_hook(behind)


def prepare(parallel, share=1, fixed=False):
    """Returns a function that does one training step, on a share of a core."""
    torch.manual_seed(1)
    model = Model()
    processor = Processor(share, fixed)
    if share < 1:
        for layer in (*model._layers.layers, model._head):
            processor.pace(layer)
    model = model.shard() if parallel == "fsdp" else DistributedDataParallel(model, bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    words = torch.randint(0, WORDS, (BATCH, LENGTH + 1))

    def step():
        processor.begin()
        optimizer.zero_grad()
        logits = model(words[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()
        processor.catch_up()

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--program", metavar="PREFIX", help="write the program of rank 0 there")
    parser.add_argument("--ranks", type=int, default=1, help="of the job of the program")
    parser.add_argument("--parallel", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--share", type=float, default=1, help="of a core, on which each step computes")
    parser.add_argument("--fixed", action="store_true", help="each piece of a step takes the same time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.program:
        netsum.torch.program_of(
            functools.partial(prepare, options.parallel, options.share, options.fixed),
            options.program,
            world_size=options.ranks,
            steps=options.steps,
            model=f"language model, {options.parallel}",
        )
        return
    dist.init_process_group("netsum")
    step = prepare(options.parallel, options.share, options.fixed)
    for _ in range(options.steps):
        step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
