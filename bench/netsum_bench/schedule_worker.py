"""One rank of the case that compares schedules of computation and communication.

Its arguments end with the backend. Reads lines of JSON from standard input: {"gate", "schedule", "batches", "model"}. For "advise",
all ranks print what netsum.torch.advise() measures. For each of SCHEDULES, they train so many batches, each schedule a model of its
own that lives on between lines, and print {"batch_s", "losses"}: seconds for each batch on this rank, to the end of the last
update, and the losses. `model`: {"width", "layers", "batch", "bucket_mb"}.
"""

import json
import sys
import time

import netsum.torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch
from netsum_bench.worker_process import begin_worker, end_worker
from torch import nn

TIMEOUT_S = 240


class Ddp:
    def __init__(self, rank, width, layers, batch, bucket_mb):
        torch.manual_seed(1)
        modules = [layer for _ in range(layers) for layer in (nn.Linear(width, width), nn.Tanh())]
        module = nn.Sequential(*modules)
        self.begin(module, torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9), bucket_mb)
        self.generator = torch.Generator().manual_seed(rank)
        self.shape = (batch, width)

    def begin(self, module, optimizer, bucket_mb):
        self.model = DistributedDataParallel(module, bucket_cap_mb=bucket_mb)
        self.optimizer = self.make_optimizer(optimizer)

    def make_optimizer(self, optimizer):
        return optimizer

    def train(self, batches):
        """Returns the seconds for each batch, and the losses."""
        inputs = [torch.randn(self.shape, generator=self.generator) for _ in range(batches)]
        dist.barrier()
        start = time.perf_counter()
        losses = [self.pass_of(index, x) for index, x in enumerate(inputs)]
        self.end()
        return (time.perf_counter() - start) / batches, losses

    def loss(self, model, x):
        return nn.functional.mse_loss(model(x), x.flip(1))

    def backward(self, x, share=1.0):
        loss = self.loss(self.model, x)
        loss.mul(share).backward()
        return loss.item()

    def pass_of(self, _index, x):
        loss = self.backward(x)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def end(self):
        pass


class Accumulation(Ddp):
    def pass_of(self, index, x):
        if index % 2 == 0:
            with self.model.no_sync():
                return self.backward(x, 0.5)
        loss = self.backward(x, 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class Delayed(Ddp):
    """The gradients of a batch are summed during the next one, after which the step has them."""

    pending = None

    def pass_of(self, _index, x):
        with self.model.no_sync():
            loss = self.backward(x)
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

    def begin(self, module, optimizer, bucket_mb):
        self.waves = netsum.torch.Waves(module, optimizer, self.loss, bucket_cap_mb=bucket_mb)

    def train(self, batches):
        batch_s, losses = super().train(batches)
        return batch_s, [loss.result().item() for loss in losses]

    def pass_of(self, _index, x):
        return self.waves.step(x)

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


def main():
    options = begin_worker(__doc__, TIMEOUT_S)
    trained = {}
    for line in sys.stdin:
        asked = json.loads(line)
        name, model = asked["schedule"], asked["model"]
        if name == "advise":
            one = Ddp(options.rank, **model)
            inputs = torch.randn(one.shape)
            with torch.random.fork_rng(devices=[]):
                advice = netsum.torch.advise(one.model, (inputs,), print_to=sys.stderr)
            answer = {
                "compute_s": advice.forward_s + advice.backward_s,
                "network_s": advice.network_s,
                "rates": advice.rates,
            }
        else:
            if name not in trained:
                trained[name] = SCHEDULES[name](options.rank, **model)
            batch_s, losses = trained[name].train(asked["batches"])
            answer = {"batch_s": batch_s, "losses": losses}
        print(json.dumps(answer), flush=True)
    end_worker()


if __name__ == "__main__":
    main()
