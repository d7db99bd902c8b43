"""One rank of the case that compares schedules of computation and communication.

Its arguments end with the backend. Reads lines of JSON from standard input: {"gate", "name", "schedule", "model", "bucket_mb",
"warm_up", "batches"}. For "advise", all ranks print what netsum.torch.advise() measures. For each of SCHEDULES, they train so many
batches, each name a model of its own that lives on between lines, and print {"batch_s", "trained", "losses", "loss"}: seconds for each
batch after `warm_up` of them, while the schedule runs on; batches so far, and a checksum of all their losses; the mean loss of this line.
"""

import json
import struct
import sys
import time
import zlib

import netsum.torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch
from netsum_bench.demo import data, models
from netsum_bench.worker_process import begin_worker, end_worker
from torch import nn

TIMEOUT_S = 240


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


class EqualLayers:
    """Layers that are alike, as the formulas have them. With so many samples, the links are slow beside the processors, which also
    run the sums."""

    WIDTH, LAYERS, SAMPLES = 256, 12, 1792

    def __init__(self, rank):
        self.module = nn.Sequential(*(Layer(self.WIDTH) for _ in range(self.LAYERS)))
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.5, momentum=0.9)
        self._generator = torch.Generator().manual_seed(rank)

    def batch(self):
        return (torch.randn(self.SAMPLES, self.WIDTH, generator=self._generator),)

    @staticmethod
    def loss(model, x):
        return nn.functional.mse_loss(model(x), x.flip(1))


class Language:
    """The demo's language model, which learns from the source of Python's standard library."""

    SAMPLES = 12

    def __init__(self, rank):
        self.module = models.ByteLanguageModel()
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-3, weight_decay=0.01)
        examples = data.StandardLibraryText(rank, dist.get_world_size(), 1, self.SAMPLES)
        self._batches = examples.train_batches()

    def batch(self):
        return next(self._batches)

    @staticmethod
    def loss(model, inputs, targets):
        return nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())


MODELS = {"layers": EqualLayers, "language": Language}


class Ddp:
    def __init__(self, rank, model, bucket_mb):
        torch.manual_seed(1)
        self.task = MODELS[model](rank)
        self.trained = self.losses = 0
        self.begin(bucket_mb)

    def begin(self, bucket_mb):
        self.model = DistributedDataParallel(self.task.module, bucket_cap_mb=bucket_mb)
        self.optimizer = self.make_optimizer(self.task.optimizer)

    def make_optimizer(self, optimizer):
        return optimizer

    def train(self, warm_up, batches):
        """Returns the seconds for each batch after the first ones, and the mean loss of all."""
        inputs = [self.task.batch() for _ in range(warm_up + batches)]
        dist.barrier()
        losses = [self.pass_of(index, batch) for index, batch in enumerate(inputs[:warm_up])]
        start = time.perf_counter()
        losses += [self.pass_of(index, batch) for index, batch in enumerate(inputs[warm_up:])]
        batch_s = (time.perf_counter() - start) / batches
        self.end()
        losses = [loss.item() for loss in map(self.value_of, losses)]
        self.trained += len(losses)
        self.losses = zlib.crc32(struct.pack(f"{len(losses)}d", *losses), self.losses)
        return batch_s, sum(losses) / len(losses)

    def value_of(self, loss):
        return loss

    def backward(self, batch, share=1.0):
        loss = self.task.loss(self.model, *batch)
        loss.mul(share).backward()
        return loss.detach()

    def pass_of(self, _index, batch):
        loss = self.backward(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def end(self):
        """Waits for what is on its way."""


class Accumulation(Ddp):
    def pass_of(self, index, batch):
        if index % 2 == 0:
            with self.model.no_sync():
                return self.backward(batch, 0.5)
        loss = self.backward(batch, 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class Delayed(Ddp):
    """The gradients of a batch are summed during the next one, after which the step has them."""

    pending = None

    def pass_of(self, _index, batch):
        with self.model.no_sync():
            loss = self.backward(batch)
        parameters = list(self.model.parameters())
        own = torch.cat([p.grad.flatten() for p in parameters]).div_(dist.get_world_size())
        self.optimizer.zero_grad()
        self.end()
        self.pending = own, dist.all_reduce(own, async_op=True)
        return loss

    def end(self):
        if self.pending is None:
            return
        mean, work = self.pending
        work.wait()
        parameters = list(self.model.parameters())
        for parameter, part in zip(parameters, mean.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.pending = None


class Overlapped(Ddp):
    def make_optimizer(self, optimizer):
        return netsum.torch.OverlappedOptimizer(self.model, optimizer, hook=self.hook())

    def hook(self):
        return None

    def end(self):
        self.optimizer.synchronize()


class Prioritised(Overlapped):
    def hook(self):
        return netsum.torch.Priorities(self.model), netsum.torch.priority_hook


class Waves(Ddp):
    """Batches are those of two replicas in turn."""

    def begin(self, bucket_mb):
        task = self.task
        self.waves = netsum.torch.Waves(task.module, task.optimizer, task.loss, bucket_cap_mb=bucket_mb)

    def value_of(self, loss):
        return loss.result()

    def pass_of(self, _index, batch):
        return self.waves.step(*batch)

    def end(self):
        self.waves.synchronize()


SCHEDULES = {
    "DDP": Ddp,
    "accumulation": Accumulation,
    "delayed": Delayed,
    "overlapped": Overlapped,
    "prioritised": Prioritised,
    "waves": Waves,
}


def advise(rank, model, bucket_mb):
    one = Ddp(rank, model, bucket_mb)
    loss, batch = one.task.loss, one.task.batch()
    advice = netsum.torch.advise(
        one.model, batch[:1], lambda output: loss(lambda *_: output, *batch), print_to=sys.stderr
    )
    return {
        "compute_s": advice.forward_s + advice.backward_s,
        "network_s": advice.network_s,
        "rates": advice.rates,
    }


def main():
    options = begin_worker(__doc__, TIMEOUT_S)
    trained = {}
    for line in sys.stdin:
        asked = json.loads(line)
        model, bucket_mb = asked["model"], asked["bucket_mb"]
        if asked["schedule"] == "advise":
            answer = advise(options.rank, model, bucket_mb)
        else:
            name = f"{model} {asked['name']}"
            if name not in trained:
                trained[name] = SCHEDULES[asked["schedule"]](options.rank, model, bucket_mb)
            one = trained[name]
            batch_s, loss = one.train(asked["warm_up"], asked["batches"])
            answer = {"batch_s": batch_s, "trained": one.trained, "losses": one.losses, "loss": loss}
        print(json.dumps(answer), flush=True)
    end_worker()


if __name__ == "__main__":
    main()
