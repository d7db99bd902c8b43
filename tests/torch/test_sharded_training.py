"""Unmodified FSDP2 (fully_shard), FSDP1 and ZeRO on netsum: the same training as on Gloo, and no call left to Gloo."""

import contextlib

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

STEPS = 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


def make_model(dtype=torch.float32):
    torch.manual_seed(1)
    width = 37  # not divisible by the number of ranks: FSDP pads
    return nn.Sequential(nn.Linear(20, width), Block(width), Block(width), nn.Linear(width, 3)).to(dtype)


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 20, generator=generator)
    return x, torch.stack([x.sum(1), x[:, 0], -x[:, 1]], dim=1)


def train(model, optimizer, rank, *, accumulate=1, syncing=None, clip=None, dtype=torch.float32):
    """Trains for STEPS steps; returns the losses. `syncing(model, last)` precedes each part of an accumulated step."""
    losses = []
    for step in range(STEPS):
        for part in range(accumulate):
            last = part == accumulate - 1
            with syncing(model, last) if syncing else contextlib.nullcontext():
                x, y = batch(rank, step * accumulate + part)
                loss = nn.functional.mse_loss(model(x.to(dtype)).float(), y).div(accumulate)
                loss.backward()
            losses.append(loss.item())
        if clip is not None:
            clip(model)
        optimizer.step()
        optimizer.zero_grad()
    return torch.tensor(losses)


def whole(parameter):
    value = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return value.detach().float().flatten()


def parameters_of(model):
    return torch.cat([whole(p) for p in model.parameters()])


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


_gloo = {}  # what Gloo gives, by the name of the training


def assert_same_trainings(trainings, world_size=4):
    """Runs them on both backends, each in one group: DTensor finds its plans only once there.

    {name: (on_rank, tolerance, calls)}: on_rank() returns the losses and the final parameters, equal on all ranks; netsum has carried
    out at least the calls of these names.
    """

    def on_netsum(rank):
        results = []
        for name, (on_rank, _, expected) in trainings.items():
            before = ranks.calls()
            results.append(on_rank(rank))
            stats = netsum.torch.stats()
            assert stats["gloo_calls"] == {}, (name, stats["gloo_calls"])
            done = {call for call, count in stats["netsum_calls"].items() if count > before.get(call, 0)}
            assert expected <= done, (name, done)
        return results

    def on_gloo(rank):
        return {name: trainings[name][0](rank) for name in trainings if name not in _gloo}, parameters_of(make_model())

    of_ranks = ranks.run(on_netsum, world_size=world_size)
    of_gloo = ranks.run(on_gloo, world_size=world_size, backend="gloo")
    start = of_gloo[0][1]
    for name in of_gloo[0][0]:
        _gloo[name] = [results[name] for results, _ in of_gloo]
    for index, (name, (_, tolerance, _)) in enumerate(trainings.items()):
        ours = [results[index] for results in of_ranks]
        for rank, ((losses, weights), (gloo_losses, gloo_weights)) in enumerate(zip(ours, _gloo[name], strict=True)):
            assert torch.equal(weights, ours[0][1]), f"{name}: rank {rank} has other weights than rank 0"
            moved = (gloo_weights - start).norm()
            assert moved > 0.05, name
            assert (weights - gloo_weights).norm() < tolerance * moved, name
            assert torch.allclose(losses, gloo_losses, rtol=max(tolerance, 1e-4)), (name, losses, gloo_losses)


def assert_same_training(name, on_rank, tolerance, world_size, calls):
    assert_same_trainings({name: (on_rank, tolerance, calls)}, world_size)


# --- FSDP2 ------------------------------------------------------------------------------------------------------


def shard(model, **options):
    for module in model:
        if isinstance(module, Block):
            fully_shard(module, **options)
    return fully_shard(model, **options)


def sync_only_last(model, last):
    model.set_requires_gradient_sync(last)
    return contextlib.nullcontext()


def prefetch(model):
    first, second = model[1], model[2]
    first.set_modules_to_forward_prefetch([second])
    second.set_modules_to_backward_prefetch([first])
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module._set_unshard_async_op(True)


def divide_by(factor):
    def change(model):
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(factor)

    return change


def separate_group(model):
    model.set_separate_reduce_scatter_group()


def gloo_can(model, reduce_dtype):
    """Gloo neither averages nor multiplies: FSDP divides by itself there."""
    if dist.get_backend() == "gloo" and reduce_dtype in (None, torch.float32, torch.bfloat16):
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)


FSDP2 = {
    "plain": ({}, {}, None, 1e-4),
    "no_reshard": ({"reshard_after_forward": False}, {}, None, 1e-4),
    "accumulate": ({}, {"accumulate": 3, "syncing": sync_only_last}, None, 1e-4),
    "clip": ({}, {"clip": lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.5)}, None, 1e-4),
    "prefetch": ({}, {}, prefetch, 1e-4),
    "divide_factor": ({}, {}, divide_by(3.0), 1e-4),  # PREMUL_SUM
    "divide_by_size": ({}, {}, divide_by(4.0), 1e-4),
    "separate_group": ({}, {}, separate_group, 1e-4),
    "bfloat16": ({"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}, {}, None, 2e-2),
    "reduce_bfloat16": ({"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)}, {}, None, 2e-2),
    "reduce_float16": ({"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float16)}, {}, None, 1e-2),
}


def fsdp2(rank, name, mesh=None):
    options, training, change, _ = FSDP2[name]
    model = shard(make_model(), mesh=mesh or init_device_mesh("cpu", (dist.get_world_size(),)), **options)
    if change is not None:
        change(model)
    gloo_can(model, options.get("mp_policy", MixedPrecisionPolicy()).reduce_dtype)
    losses = train(model, sgd(model.parameters()), rank, **training)
    return losses, parameters_of(model)


FSDP2_CALLS = {"all_gather_into_tensor", "reduce_scatter_tensor"}
# The others differ in what FSDP does, not in what the data path does: test_collectives.py has their types and operators on all
# data paths.
BOTH_WAYS = ("plain", "separate_group")
ONE_WAY = tuple(name for name in FSDP2 if name not in BOTH_WAYS)


def assert_same_fsdp2(names):
    def training(name):
        calls = FSDP2_CALLS if name != "separate_group" else {"all_gather_into_tensor"}
        return lambda rank: fsdp2(rank, name), FSDP2[name][-1], calls

    assert_same_trainings({f"fsdp2 {name}": training(name) for name in names})


def test_fully_shard(way):
    assert_same_fsdp2((*BOTH_WAYS, *(("divide_factor", "bfloat16") if way == "shared_memory" else ())))


@pytest.mark.soak
@pytest.mark.shared_memory
def test_fully_shard_with_options():
    assert_same_fsdp2(ONE_WAY)


@pytest.mark.soak
@pytest.mark.shared_memory
def test_fully_shard_on_two_ranks():
    assert_same_training("fsdp2 on two ranks", lambda rank: fsdp2(rank, "plain"), 1e-4, 2, FSDP2_CALLS)


@pytest.mark.network
def test_fully_shard_at_an_aggregator(monkeypatch):
    with ranks.aggregator() as daemon:
        monkeypatch.setenv("NETSUM_AGGREGATOR", daemon.address)
        assert_same_training("fsdp2 plain", lambda rank: fsdp2(rank, "plain"), 1e-4, 4, FSDP2_CALLS)


def test_hybrid_sharding():
    """Two groups of two that shard, and sums between them."""

    def training(name):
        def on_rank(rank):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
            losses, weights = fsdp2(rank, name, mesh)
            if dist.get_backend() == "netsum":
                for dimension, call in {"shard": "reduce_scatter_tensor", "replicate": "all_reduce"}.items():
                    stats = netsum.torch.stats(mesh.get_group(dimension))
                    assert stats["netsum_calls"][call] > 0 and not stats["gloo_calls"]
            return losses, weights

        return on_rank, 1e-4, set()

    assert_same_trainings({f"hybrid {name}": training(name) for name in ("plain", "divide_factor")})


def test_a_checkpoint_of_fully_shard():
    """Gathered on rank 0 and given back to another sharded model."""
    from torch.distributed.checkpoint import state_dict as states

    def on_rank(rank):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = shard(make_model(), mesh=mesh)
        optimizer = sgd(model.parameters())
        train(model, optimizer, rank)
        options = states.StateDictOptions(full_state_dict=True, cpu_offload=True, broadcast_from_rank0=True)
        full = states.get_model_state_dict(model, options=options)
        assert (rank == 0) == bool(full)
        other = shard(make_model(), mesh=mesh)
        states.set_model_state_dict(other, full, options=options)
        assert torch.equal(parameters_of(other), parameters_of(model))
        assert not torch.equal(parameters_of(other)[:10], make_model()[0].weight.detach().flatten()[:10])
        assert not netsum.torch.stats()["gloo_calls"]

    ranks.run(on_rank)


@pytest.mark.soak  # overlap changes no bit of what is trained again
def test_fully_shard_gives_the_same_bits_twice():
    first, second = (ranks.run(lambda rank: fsdp2(rank, "plain")) for _ in range(2))
    for ours, again in zip(first, second, strict=True):
        assert all(map(torch.equal, ours, again))


# --- FSDP2 with communication beside computation -------------------------------------------------------------------


def overlapped(rank, name, in_flight=None):
    """As fsdp2(), with netsum.torch.overlap_fsdp(); appends how many reduce-scatters were in flight."""
    options, training, change, _ = FSDP2[name]
    model = shard(make_model(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)), **options)
    if change is not None:
        change(model)
    netsum.torch.overlap_fsdp(model)
    pending = model._get_fsdp_state()._fsdp_param_groups[0]._reduce_scatter_comm.pending
    if in_flight is not None:
        # The parameters of the first block get their gradients after those of the second.
        model[1].register_full_backward_hook(lambda *_: in_flight.append(len(pending)))
    losses = train(model, sgd(model.parameters()), rank, **training)
    assert len(pending) == 0
    return losses, parameters_of(model)


def assert_overlap_changes_no_bit(names, world_size=2):
    def on_rank(rank):
        results = []
        for name in names:
            in_flight = []
            results.append((fsdp2(rank, name), overlapped(rank, name, in_flight), max(in_flight)))
        return results

    for results in ranks.run(on_rank, world_size=world_size):
        for name, (plain, other, in_flight) in zip(names, results, strict=True):
            assert all(map(torch.equal, plain, other)), name
            uses_at_once = name in ("reduce_bfloat16", "reduce_float16")
            assert (in_flight > 0) != uses_at_once, (name, in_flight)


def test_overlap_changes_no_bit(way):
    some = ("accumulate", "prefetch", "divide_by_size", "reduce_bfloat16")
    assert_overlap_changes_no_bit(some if way == "shared_memory" else BOTH_WAYS)


@pytest.mark.soak
@pytest.mark.shared_memory
def test_overlap_changes_no_bit_with_options():
    assert_overlap_changes_no_bit(tuple(FSDP2), 4)


def test_overlap_outlives_a_backward_pass_that_fails():
    def on_rank(rank, overlap):
        model = shard(make_model(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        if overlap:
            netsum.torch.overlap_fsdp(model)

        def fail(*_):
            raise KeyError("in the backward pass")

        handle = model[1].register_full_backward_hook(fail)
        x, y = batch(rank, 0)
        with pytest.raises(KeyError):
            nn.functional.mse_loss(model(x), y).backward()
        handle.remove()
        model.reset_iter_state()
        model.zero_grad()
        losses = train(model, sgd(model.parameters()), rank)
        return losses, parameters_of(model)

    for waiting, overlapping in ranks.run(lambda rank: [on_rank(rank, overlap) for overlap in (False, True)]):
        assert all(map(torch.equal, waiting, overlapping))


def test_overlap_needs_a_sharded_model():
    with pytest.raises(ValueError, match="fully_shard"):
        netsum.torch.overlap_fsdp(nn.Linear(2, 2))


# --- FSDP1 ------------------------------------------------------------------------------------------------------

FSDP1 = {
    "full": {},
    "grad_op": {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
    "no_shard": {"sharding_strategy": ShardingStrategy.NO_SHARD},
    "flat": {"use_orig_params": False, "backward_prefetch": BackwardPrefetch.BACKWARD_POST},
    "bfloat16": {"mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
}


def assert_same_fsdp1(names, world_size):
    def training(name):
        def on_rank(rank):
            options = {"use_orig_params": True, **FSDP1[name]}
            model = FullyShardedDataParallel(
                make_model(),
                auto_wrap_policy=ModuleWrapPolicy({Block}),
                device_id=torch.device("cpu"),
                **options,
            )
            losses = train(model, sgd(model.parameters()), rank, clip=lambda m: m.clip_grad_norm_(0.5))
            with FullyShardedDataParallel.summon_full_params(model):
                return losses, parameters_of(model)

        sharding = {"all_reduce"} if name == "no_shard" else {"all_gather", "reduce_scatter_tensor"}
        return on_rank, 2e-2 if name == "bfloat16" else 1e-4, sharding

    assert_same_trainings({f"fsdp1 {name} {world_size}": training(name) for name in names}, world_size)


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.filterwarnings("ignore")
def test_fsdp1(world_size):
    assert_same_fsdp1(["full"], world_size)


@pytest.mark.shared_memory
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_fsdp1_with_options(world_size):
    assert_same_fsdp1([name for name in FSDP1 if name != "full"], world_size)


# --- ZeRO -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("world_size", "as_bucket_view"), [(2, False), (4, True)])
def test_zero(world_size, as_bucket_view):
    def on_rank(rank):
        model = DistributedDataParallel(make_model(), gradient_as_bucket_view=as_bucket_view)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(),
            optimizer_class=torch.optim.SGD,
            parameters_as_bucket_view=as_bucket_view,
            lr=0.05,
            momentum=0.9,
        )
        losses = train(model, optimizer, rank)
        optimizer.consolidate_state_dict(to=0)
        if rank == 0:  # the momentum of all parameters, whoever updated them
            assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))
        return losses, parameters_of(model)

    name = f"zero {world_size} {as_bucket_view}"
    assert_same_training(name, on_rank, 1e-4, world_size, {"all_reduce", "broadcast"})
