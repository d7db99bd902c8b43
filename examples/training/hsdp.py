"""HSDP: gradients and weights are sharded within a host, by NCCL between its GPUs, and the shards of hosts are summed by netsum.

torchrun --nproc-per-node 8 --nnodes ... hsdp.py                 # a host's GPUs shard
torchrun --nproc-per-node 4 hsdp.py --per-host 2 --device cpu    # two "hosts" of two ranks each, Gloo within them
"""

import argparse
import os

import netsum.torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import torch
from torch import nn

WITHIN = {"cuda": "nccl", "xpu": "xccl", "cpu": "gloo"}


def make_mesh(device, per_host):
    """Ranks of a host follow each other. The default group must exist, of any backend that takes tensors of the device."""
    hosts = dist.get_world_size() // per_host
    backends = {"hosts": "netsum", "within": WITHIN.get(device, "netsum")}
    return init_device_mesh(device, (hosts, per_host), mesh_dim_names=("hosts", "within"), backend_override=backends)


def shard(model, mesh):
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


class WithinAndBetweenHosts:
    """The same for DistributedDataParallel: ``model.register_comm_hook(WithinAndBetweenHosts(mesh), WithinAndBetweenHosts.hook)``.

    Reduce-scatter within the host, netsum between hosts, all-gather within the host. The sum of a bucket between hosts overlaps with the
    backward pass up to the next bucket. All calls come from one thread, so that they have one order on all ranks.
    """

    def __init__(self, mesh):
        self._within, self._hosts = mesh.get_group("within"), mesh.get_group("hosts")
        self._pending = None

    def hook(self, bucket):
        flat, ranks = bucket.buffer(), self._within.size()
        padded = nn.functional.pad(flat, (0, -flat.numel() % ranks)).div_(dist.get_world_size())
        part = torch.empty(padded.numel() // ranks, dtype=flat.dtype, device=flat.device)
        dist.reduce_scatter_tensor(part, padded, group=self._within)
        self._finish()
        future = torch.futures.Future(devices=[flat.device] if flat.device.type != "cpu" else [])
        self._pending = future, flat, padded, part, dist.all_reduce(part, group=self._hosts, async_op=True)
        if bucket.is_last():
            self._finish()
        return future

    def _finish(self):
        if self._pending is None:
            return
        (future, flat, padded, part, work), self._pending = self._pending, None
        work.wait()
        dist.all_gather_into_tensor(padded, part, group=self._within)
        future.set_result(flat.copy_(padded[: flat.numel()]))


def train(model, device, steps, seed):
    """Returns the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(steps):
        x = torch.randn(64, 32, generator=generator).to(device)
        loss = nn.functional.mse_loss(model(x), x[:, :8].abs())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 8))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-host", type=int, default=int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    parser.add_argument("--device", default=torch.accelerator.current_accelerator() or "cpu", type=torch.device)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    device = options.device.type
    if device != "cpu":
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("netsum")
    mesh = make_mesh(device, options.per_host)
    losses = train(shard(make_model().to(device), mesh), device, options.steps, seed=dist.get_rank())
    if dist.get_rank() == 0:
        print(f"between hosts: {netsum.torch.describe(mesh.get_group('hosts'))}")
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
