"""Unmodified DistributedDataParallel on netsum: the same training as on Gloo, the same weights on every rank."""

import contextlib
import json

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from ranks import WORLD_SIZE
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

STEPS = 8


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 100), nn.Tanh(), nn.Linear(100, 3))


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 20, generator=generator)
    return x, torch.stack([x.sum(1), x[:, 0], -x[:, 1]], dim=1)


def train(rank, *, accumulate=1, dtype=torch.float32, hook=None, autocast=False, **ddp_options):
    """Trains for STEPS steps; returns the weights as one flat float32 tensor."""
    model = DistributedDataParallel(make_model().to(dtype), bucket_cap_mb=0.05, **ddp_options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        for part in range(accumulate):
            last = part == accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                x, y = batch(rank, step * accumulate + part)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                    output = model(x.to(dtype))
                nn.functional.mse_loss(output.float(), y).div(accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().float().flatten() for p in model.parameters()])


def netsum_or_plain_hook(state, bucket):
    """netsum's hook, or on Gloo, which has no AVG, what DDP does without one."""
    if dist.get_backend() == "netsum":
        return netsum.torch.ddp_hook(state, bucket)
    return default_hooks.allreduce_hook(state, bucket)


# Options of a training, and how far its weights may be from Gloo's, as a share of the way that the weights have gone.
TRAININGS = {
    "plain": ({}, 1e-4),
    "no_sync": ({"accumulate": 3}, 1e-4),
    "static_graph": ({"gradient_as_bucket_view": True, "static_graph": True}, 1e-4),
    "find_unused": ({"find_unused_parameters": True}, 1e-4),
    "bfloat16": ({"dtype": torch.bfloat16}, 5e-2),
    "float16": ({"dtype": torch.float16}, 1e-2),
    "autocast": ({"autocast": True}, 1e-2),
    "netsum_hook": ({"hook": netsum_or_plain_hook}, 1e-4),
    "fp16_hook": ({"hook": default_hooks.fp16_compress_hook}, 1e-2),
}


def train_all(rank):
    return {name: train(rank, **options) for name, (options, _) in TRAININGS.items()}


@pytest.fixture(scope="module")
def gloo():
    return ranks.run(train_all, backend="gloo")


@pytest.mark.all_ways
def test_same_training_as_gloo(gloo):
    ours = ranks.run(train_all)
    start = torch.cat([p.detach().flatten() for p in make_model().parameters()])
    for name, (_, tolerance) in TRAININGS.items():
        for rank in range(1, WORLD_SIZE):
            assert torch.equal(ours[rank][name], ours[0][name]), f"{name}: rank {rank} has other weights than rank 0"
        moved = (gloo[0][name] - start).norm()
        assert moved > 0.1, name
        assert (ours[0][name] - gloo[0][name]).norm() < tolerance * moved, name


class TwoScales(nn.Module):
    """Two parameters in one bucket, whose gradients are 1e30 and 1."""

    def __init__(self):
        super().__init__()
        self.large = nn.Parameter(torch.zeros(10))
        self.small = nn.Parameter(torch.zeros(10))

    def forward(self):
        return 1e30 * self.large.sum() + self.small.sum()


def test_the_hook_keeps_small_gradients_beside_large_ones():
    def on_rank(rank, hook):
        model = DistributedDataParallel(TwoScales())
        if hook:
            model.register_comm_hook(None, netsum.torch.ddp_hook)
        model().backward()
        assert torch.equal(model.module.large.grad, torch.full((10,), 1e30))
        return model.module.small.grad

    fixed = {"NETSUM_NUMERICS": "fixed"}  # as are tensors of more than 16 packets
    for small in ranks.run(lambda rank: on_rank(rank, True), env=fixed):
        assert torch.equal(small, torch.ones(10))
    # What the documentation says of a bucket without the hook.
    for small in ranks.run(lambda rank: on_rank(rank, False), env=fixed):
        assert torch.equal(small, torch.zeros(10))


def test_the_hook_identifies_parameters_in_all_steps(tmp_path):
    ranks.run(lambda rank: train(rank, hook=netsum.torch.ddp_hook), env={"NETSUM_TRACE": str(tmp_path / "trace.json")})
    first_ids = []  # of each rank: of the first tensor of each bucket, in order
    for path in tmp_path.glob("*.json"):
        begun = [event for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "b"]
        first_ids.append([event["args"]["tensor"] for event in begun if "tensor" in event.get("args", ())])
    assert len(first_ids) == WORLD_SIZE
    assert all(ids == first_ids[0] for ids in first_ids)
    ids = first_ids[0]
    assert set(ids) <= set(range(1, 7)), "the model has six parameters"
    # After the first step DDP makes new buckets, and keeps them.
    buckets = len(set(ids[len(ids) // 2 :]))
    assert buckets > 1
    assert ids[-buckets:] == ids[-2 * buckets : -buckets]


def test_two_runs_give_the_same_bits():
    first, second = (ranks.run(train) for _ in range(2))
    assert torch.equal(first[0], second[0])


def bf16_hook(state, bucket):
    """The bf16 hook of torch, which DDP refuses by its name when there is no CUDA and no XPU."""
    return default_hooks.bf16_compress_hook(state, bucket)


@pytest.mark.parametrize("hook", [None, default_hooks.fp16_compress_hook, bf16_hook])
def test_grad_scaler_skips_the_step_on_every_rank(hook):
    def on_rank(rank):
        model = DistributedDataParallel(make_model())
        if hook is not None:
            model.register_comm_hook(None, hook)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        # One rank's gradients overflow; the sum must tell all of them.
        batches = (batch(rank, step) for step in range(3))
        if rank == 2:
            batches = ranks.with_infinity(batches, 1)
        return ranks.scaled_steps(scaler, model, optimizer, batches, nn.functional.mse_loss)

    expected = [(True, 1024.0), (False, 512.0), (True, 512.0)]
    assert ranks.run(on_rank) == [expected] * WORLD_SIZE


def test_data_loader_workers_do_not_disturb_the_group():
    def on_rank(rank):
        data = torch.utils.data.TensorDataset(torch.arange(12.0))
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
        total = torch.zeros(1)
        for (values,) in loader:
            part = values.sum().reshape(1)
            dist.all_reduce(part)
            total += part
        return total.item()

    assert ranks.run(on_rank, world_size=2) == [2 * sum(range(12))] * 2


def test_training_in_a_sub_group():
    def on_rank(rank):
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        return train(rank, process_group=groups[rank // 2])

    weights = ranks.run(on_rank)
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[2], weights[3])
    assert not torch.equal(weights[0], weights[2])
