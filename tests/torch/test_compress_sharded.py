"""Compressed gradients of fully_shard() (FSDP2): in reduce-scatters, in sums over replicas, and what is refused."""

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from test_compress import SHAPES, Chosen, gradient_of
from test_sharded_training import batch, make_model, parameters_of, sgd, sync_only_last
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

import torch
from torch import nn

STEPS = 5
COMPRESSED = ("wide.weight", "deep.weight", "odd.weight")
# One that no number of ranks divides: FSDP pads it.
ALL_SHAPES = {**SHAPES, "odd.weight": (31, 45)}


class Sharded(Chosen):
    def __init__(self, mesh=None, dtype=torch.float32, **options):
        super().__init__(dtype, ALL_SHAPES)
        fully_shard(self, mesh=mesh or init_device_mesh("cpu", (dist.get_world_size(),)), **options)


def gradients_of(rank, step):
    extra = torch.Generator().manual_seed(77 * step + rank)
    return {**gradient_of(rank, step), "odd.weight": (2 * torch.rand(31, 45, generator=extra) - 1) ** 3}


def backward(model, gradients):
    """Returns the whole averaged gradients, equal on all ranks of a replica."""
    model.zero_grad()
    model(gradients).backward()
    return {name: p.grad.full_tensor() for name, p in model.named_parameters()}


def mean_of(step, world_size):
    everyone = [gradients_of(rank, step) for rank in range(world_size)]
    return {name: sum(g[name] for g in everyone) / world_size for name in ALL_SHAPES}


def residual_of(state, name):
    return state.state_dict()["parameters"][name]["memory"]["residual"].reshape(ALL_SHAPES[name])


def largest_of(values, block):
    """Of each element, the largest magnitude of its block, in the parts that the ranks keep."""
    blocks = values.abs().flatten().split(block)
    return torch.cat([part.max().expand(part.numel()) for part in blocks]).reshape(values.shape)


# How far the average may be from that of the gradients, in largest magnitudes of all that is compressed (docs/compression.md).
BOUNDS = {
    "bf16": ({}, 2**-8),
    "fp16": ({}, 2**-11),
    "int8": ({}, 1 / (2 * 127)),
    "int4": ({}, 1 / (2 * 7)),
    "lanes8": ({"block": 64}, None),
    "qsgd": ({"levels": 64}, 1 / 64),
    "terngrad": ({}, 1),
}


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.soak), 4])
def test_the_average_is_within_the_bound_of_the_method(world_size):
    def check(rank, method, options, bound):
        before = ranks.calls()["reduce_scatter_tensor"] if ranks.calls() else 0
        model = Sharded()
        state = netsum.torch.compress(model, method, **options)
        averaged = backward(model, gradients_of(rank, 0))
        for name, exact in mean_of(0, world_size).items():
            error = (averaged[name] - exact).abs().max()
            if name not in COMPRESSED:
                assert error < 1e-6, (method, name)
                continue
            largest = max(gradients_of(r, 0)[name].abs().max() for r in range(world_size))
            assert 0 < error <= bound * largest * 1.01, (method, name, error, bound * largest)
        counts = state.stats()
        assert counts["buckets"] == 1 and counts["encode_s"] > 0 and counts["decode_s"] > 0
        # Of payloads, and of what is not compressed.
        assert ranks.calls()["reduce_scatter_tensor"] == before + 2, method

    def on_rank(rank):
        for method, (options, bound) in BOUNDS.items():
            check(rank, method, options, bound or 1 / (2 * (127 // world_size)))

    ranks.run(on_rank, world_size=world_size)


METHODS_WITH_RESIDUAL = {
    "int8": {},
    "int4": {"rotated": True},
    "lanes8": {},
    "thc": {},
    "randomk": {"ratio": 0.1},
}


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.soak), 4])
def test_all_that_the_ranks_have_had_arrives_or_remains(world_size):
    def on_rank(rank):
        for method, options in METHODS_WITH_RESIDUAL.items():
            model = Sharded()
            state = netsum.torch.compress(model, method, **options)
            arrived, had = ({name: torch.zeros(ALL_SHAPES[name]) for name in COMPRESSED} for _ in range(2))
            for step in range(STEPS):
                averaged = backward(model, gradients_of(rank, step))
                for name in COMPRESSED:
                    arrived[name] += averaged[name]
                    had[name] += gradients_of(rank, step)[name]
            for name in COMPRESSED:
                assert residual_of(state, name).abs().max() > 0
                mine = had[name] - residual_of(state, name)
                dist.all_reduce(mine, op=dist.ReduceOp.AVG)
                assert torch.allclose(mine, arrived[name], atol=2e-5), (method, name)

    ranks.run(on_rank, world_size=world_size)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_other_types(dtype):
    """float16: FSDP divides by itself, before and after a sum."""

    def on_rank(rank):
        model = Sharded(mp_policy=MixedPrecisionPolicy(reduce_dtype=dtype))
        netsum.torch.compress(model, "int8")
        averaged = backward(model, gradients_of(rank, 0))
        for name, exact in mean_of(0, 2).items():
            assert averaged[name].dtype == torch.float32
            assert (averaged[name] - exact).abs().max() < 0.02

    ranks.run(on_rank, world_size=2)


def test_a_divide_factor_and_parts_of_columns():
    def on_rank(rank):
        model = Sharded(shard_placement_fn=lambda p: Shard(1) if p.shape == (40, 40) else None)
        model.set_gradient_divide_factor(8.0)
        state = netsum.torch.compress(model, "int8")
        averaged = backward(model, gradients_of(rank, 0))
        for name, exact in mean_of(0, 2).items():
            assert (averaged[name] - exact * 2 / 8).abs().max() < 2e-3
        # What remains has the place of its element: here of gradients that hardly differ between the ranks' columns.
        exact = gradients_of(rank, 0)["deep.weight"]
        rest = residual_of(state, "deep.weight")
        assert (rest.abs() <= largest_of(exact, 1600) / 254 * 8).all()
        sent = exact - rest
        dist.all_reduce(sent, op=dist.ReduceOp.AVG)
        assert torch.allclose(sent * 2 / 8, averaged["deep.weight"], atol=1e-5)

    ranks.run(on_rank, world_size=2)


def shard_blocks(model):
    for module in (model[1], model[2]):
        fully_shard(module)
    return fully_shard(model)


def train(rank, method, steps, *, overlap=False, accumulate=1, **options):
    model = shard_blocks(make_model())
    if overlap == "before":
        netsum.torch.overlap_fsdp(model)
    state = netsum.torch.compress(model, method, **options) if method else None
    if overlap == "after":
        netsum.torch.overlap_fsdp(model)
    optimizer = sgd(model.parameters())
    losses = []
    for step in range(steps):
        for part in range(accumulate):
            sync_only_last(model, part == accumulate - 1)
            x, y = batch(rank, step * accumulate + part)
            loss = nn.functional.mse_loss(model(x), y).div(accumulate)
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return parameters_of(model), state, losses


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_training_ends_near_the_uncompressed_weights(world_size):
    def on_rank(rank):
        start, _, _ = train(rank, None, 0)
        plain, _, _ = train(rank, None, 6)
        margins = {"bf16": 0.02, "int8": 0.05, "int4": 0.3}
        for method, margin in {"int4": margins["int4"]}.items() if world_size == 2 else margins.items():
            weights, _, _ = train(rank, method, 6)
            assert (weights - plain).norm() < margin * (plain - start).norm(), method
            assert not torch.equal(weights, plain)

    ranks.run(on_rank, world_size=world_size)


@pytest.mark.parametrize("overlap", ["before", pytest.param("after", marks=pytest.mark.soak)])
def test_overlap_changes_no_bit(overlap):
    def on_rank(rank):
        plain, _, _ = train(rank, "int8", 6)
        overlapped, state, _ = train(rank, "int8", 6, overlap=overlap)
        assert torch.equal(plain, overlapped)
        assert state.stats()["buckets"] == 3 * 6  # the blocks, and the rest

    ranks.run(on_rank, world_size=2)


def test_overlap_leaves_reduce_scatters_in_flight():
    def on_rank(rank):
        model = shard_blocks(make_model())
        netsum.torch.compress(model, "int8")
        netsum.torch.overlap_fsdp(model)
        pending = model._get_fsdp_state()._fsdp_param_groups[0]._reduce_scatter_comm.pending
        in_flight = []
        model[1].register_full_backward_hook(lambda *_: in_flight.append(len(pending)))
        x, y = batch(rank, 0)
        nn.functional.mse_loss(model(x), y).backward()
        assert max(in_flight) > 0 and len(pending) == 0

    ranks.run(on_rank, world_size=2)


class Twice(nn.Module):
    """Uses one sharded module twice in a step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Linear(40, 40)

    def forward(self, x):
        return self.inner(torch.tanh(self.inner(x)))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_module_that_is_used_twice(overlap):
    def on_rank(rank):
        gradients = []
        for method in (None, "fp16"):
            model = Twice()
            fully_shard(model.inner)
            fully_shard(model)
            if method:
                netsum.torch.compress(model, method)
                if overlap:
                    netsum.torch.overlap_fsdp(model)
            x = torch.randn(8, 40, generator=torch.Generator().manual_seed(rank)).requires_grad_()
            model(x).square().mean().backward()
            gradients.append(model.inner.weight.grad.full_tensor())
        assert (gradients[0] - gradients[1]).abs().max() < 2**-9 * gradients[0].abs().max()

    ranks.run(on_rank, world_size=2)


def test_overlap_outlives_a_backward_pass_that_fails():
    def on_rank(rank, overlap):
        model = shard_blocks(make_model())
        netsum.torch.compress(model, "bf16")
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
        nn.functional.mse_loss(model(x), y).backward()
        return torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])

    waiting, overlapping = (ranks.run(lambda rank, o=o: on_rank(rank, o), world_size=2) for o in (False, True))
    assert all(map(torch.equal, waiting, overlapping))


def test_accumulated_gradients_are_compressed_once():
    def on_rank(rank):
        weights, state, _ = train(rank, "int8", 3, accumulate=3)
        assert {saved["step"] for saved in state.state_dict()["parameters"].values()} == {3}
        plain, _, _ = train(rank, None, 3, accumulate=3)
        start, _, _ = train(rank, None, 0)
        assert (weights - plain).norm() < 0.05 * (plain - start).norm()

    ranks.run(on_rank, world_size=2)


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.soak)])
def test_an_infinity_on_one_rank_skips_the_step_on_all(world_size):
    def history_of(rank, method):
        model = shard_blocks(make_model())
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        state = netsum.torch.compress(model, method, grad_scaler=scaler)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        history = []
        for step in range(4):
            before = parameters_of(model)
            x, y = batch(rank, step)
            loss = nn.functional.mse_loss(model(x), y * torch.inf if (rank, step) == (1, 1) else y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            history.append((not torch.equal(before, parameters_of(model)), scaler.get_scale()))
        for saved in state.state_dict()["parameters"].values():
            assert all(values.isfinite().all() for values in saved["memory"].values())
            assert saved["scale"] == 512.0
        return history

    expected = [(True, 1024.0), (False, 512.0), (True, 512.0), (True, 512.0)]
    methods = ("int8",) if world_size == 2 else ("bf16", "int8", "int4")
    results = ranks.run(lambda rank: [history_of(rank, method) for method in methods], world_size=world_size)
    assert results == [[expected] * len(methods)] * world_size


@pytest.mark.parametrize(
    ("method", "options"), [("int8", {}), ("int4", {"rotated": True}), ("randomk", {"ratio": 0.1})]
)
def test_state_continues_where_it_was_saved(method, options):
    def on_rank(rank):
        model = Sharded()
        state = netsum.torch.compress(model, method, **options)
        for step in range(3):
            backward(model, gradients_of(rank, step))
        saved = state.state_dict()
        next_ones = backward(model, gradients_of(rank, 3))
        state.load_state_dict(saved)
        again = backward(model, gradients_of(rank, 3))
        assert all(torch.equal(next_ones[name], again[name]) for name in ALL_SHAPES)
        restored = netsum.torch.compress(Sharded(), method, **options)
        restored.load_state_dict(saved)
        for name in COMPRESSED:
            mine, theirs = (s["parameters"][name] for s in (saved, restored.state_dict()))
            assert theirs["step"] == 3 and torch.equal(mine["memory"]["residual"], theirs["memory"]["residual"])
        saved["parameters"]["odd.weight"]["shape"] = [3, 465]
        with pytest.raises(ValueError, match=r"odd\.weight with the shape"):
            restored.load_state_dict(saved)
        del saved["parameters"]["odd.weight"]
        with pytest.raises(ValueError, match=r"lacks odd\.weight"):
            restored.load_state_dict(saved)

    ranks.run(on_rank, world_size=2)


def test_ranks_of_another_past_are_in_the_same_step():
    """Rank 0 is new, and rank 1 is a step ahead."""

    def on_rank(rank):
        for method, options in (("int8", {"rotated": True}), ("thc", {}), ("randomk", {"ratio": 0.1})):
            model = Sharded()
            state = netsum.torch.compress(model, method, **options)
            backward(model, gradients_of(rank, 0))
            saved = state.state_dict()
            for parameter in saved["parameters"].values():
                parameter["step"] += rank
            model = Sharded()
            state = netsum.torch.compress(model, method, **options)
            if rank != 0:
                state.load_state_dict(saved)
            before = {name: residual_of(state, name) for name in COMPRESSED}
            averaged = backward(model, gradients_of(rank, 1))
            for name in COMPRESSED:
                sent = gradients_of(rank, 1)[name] + before[name] - residual_of(state, name)
                dist.all_reduce(sent, dist.ReduceOp.AVG)
                assert (averaged[name] - sent).abs().max() < 1e-4, (method, name)
            assert {p["step"] for p in state.state_dict()["parameters"].values()} == {3}
        for entry in state._parameters:
            if entry.compression is not None:
                entry.set_step(5 + rank)
        with pytest.raises((netsum.torch.Error, RuntimeError)):
            backward(model, gradients_of(rank, 2))
        assert netsum.torch.error().code == "mismatch"

    ranks.run(on_rank, world_size=2)


@pytest.mark.parametrize("method", ["int8", "bf16"])
def test_a_backward_pass_that_fails_is_taken_back(method):
    def on_rank(rank):
        model = Sharded()
        options = {"memory": "residual"} if method == "bf16" else {}
        state = netsum.torch.compress(model, method, **options)
        backward(model, gradients_of(rank, 0))
        saved = state.state_dict()
        model.zero_grad()
        loss = model(gradients_of(rank, 1))
        ranks.meet()  # no barrier, which an abort ends on slow ranks
        dist.distributed_c10d._get_default_group().abort()
        with pytest.raises((netsum.torch.Error, RuntimeError)):
            loss.backward()
        found = state.state_dict()
        for name, parameter in saved["parameters"].items():
            assert found["parameters"][name]["step"] == parameter["step"]
            for part, values in parameter["memory"].items():
                assert torch.equal(found["parameters"][name]["memory"][part], values)

    ranks.run(on_rank, world_size=2)


def test_state_of_another_number_of_ranks():
    """What four ranks have not sent, two ranks send."""

    def on_four(rank):
        model = Sharded()
        state = netsum.torch.compress(model, "int4")
        backward(model, gradients_of(rank, 0))
        return state.state_dict()

    states = ranks.run(on_four, world_size=4)

    def on_two(rank):
        mine = netsum.torch.reshard_compression_states(states, 2)[rank]
        model = Sharded()
        state = netsum.torch.compress(model, "int4")
        state.load_state_dict(mine)
        left = sum(s["parameters"]["odd.weight"]["memory"]["residual"] for s in states) / 4
        kept = residual_of(state, "odd.weight")
        dist.all_reduce(kept, op=dist.ReduceOp.AVG)
        assert torch.allclose(kept.flatten(), left, atol=1e-6)

    ranks.run(on_two, world_size=2)


class Halved(netsum.torch.Compressor):
    biased = needs_memory = False

    def compress(self, values, payload, context):
        torch.div(values, 2, out=payload)

    def decompress(self, payload, contributions, out, context):
        torch.mul(payload, 2 / contributions, out=out)


def test_a_compressor_in_python():
    def on_rank(rank):
        model = Sharded()
        netsum.torch.compress(model, Halved())
        averaged = backward(model, gradients_of(rank, 0))
        assert all((averaged[name] - exact).abs().max() < 1e-6 for name, exact in mean_of(0, 2).items())

    ranks.run(on_rank, world_size=2)


REFUSED = {
    "topk": "path 'union'",
    "dgc": "path 'union'",
    "u8bit": "path 'gather'",
    "natural": "path 'gather'",
    "efsign": "what remains of a tensor follows from the sum of all of it",
    "onebit": "what remains of a tensor follows from the sum of all of it",
    "countsketch": "what remains of a tensor follows from the sum of all of it",
    "powersgd": "keeps from step to step",
    "blocktopk": "keeps from step to step",
    "signsgd": "not the mean",
    "signum": "not the mean",
    "auto": "buckets of DistributedDataParallel",
}


def test_methods_that_need_the_whole_tensor_are_refused():
    def on_rank(rank):
        model = Sharded()
        for method, why in REFUSED.items():
            with pytest.raises(ValueError, match=why):
                netsum.torch.compress(model, method)
        with pytest.raises(ValueError, match=r"deep\.weight.*path 'union'"):
            netsum.torch.compress(model, "int8", rules=[("deep.*", "topk")])
        with pytest.raises(TypeError, match="takes no group"):
            netsum.torch.compress(model, "int8", group=dist.group.WORLD)
        backward(model, gradients_of(rank, 0))  # nothing has been installed
        assert netsum.torch.stats()["netsum_calls"]["reduce_scatter_tensor"] == 1

    ranks.run(on_rank, world_size=2)


def test_combinations_that_would_go_wrong_are_refused():
    class Own:
        pass

    def on_rank(rank):
        model = Sharded()
        netsum.torch.compress(model, "int8")
        with pytest.raises(RuntimeError, match="compressed already"):
            netsum.torch.compress(model, "bf16")
        other = Sharded()
        other.set_custom_reduce_scatter(Own())
        with pytest.raises(ValueError, match="a reduce-scatter of its own already, Own"):
            netsum.torch.compress(other, "int8")
        with pytest.raises(ValueError, match="a reduce-scatter of its own already, Own"):
            netsum.torch.overlap_fsdp(other)
        with pytest.raises(TypeError, match="DistributedDataParallel or fully_shard"):
            netsum.torch.compress(nn.Linear(40, 40), "int8")

    ranks.run(on_rank, world_size=2)


def test_settings_that_differ_are_refused_on_all_ranks():
    def on_rank(rank):
        with pytest.raises(ValueError, match="all ranks must have the same settings"):
            netsum.torch.compress(Sharded(), "int8" if rank == 0 else "int4")

    ranks.run(on_rank, world_size=2)


def test_parameters_without_a_gradient():
    def on_rank(rank):
        def loss(model):
            return sum((p * 2).sum() for name, p in model.named_parameters() if name != "odd.weight")

        class Partly(Sharded):
            def forward(self, _):
                return loss(self)

        model = Partly()
        netsum.torch.compress(model, "int8")
        with pytest.raises(RuntimeError, match="set_reduce_scatter_unused_params"):
            model({}).backward()
        model = Partly()
        model.set_reduce_scatter_unused_params(True)
        netsum.torch.compress(model, "int8")
        model({}).backward()
        assert model.odd.weight.grad.full_tensor().count_nonzero() == 0
        assert torch.allclose(model.deep.weight.grad.full_tensor(), torch.tensor(2.0))
        model = Partly()
        model.odd.weight.requires_grad_(False)
        netsum.torch.compress(model, "int8")
        model({}).backward()
        assert torch.allclose(model.deep.weight.grad.full_tensor(), torch.tensor(2.0))

    ranks.run(on_rank, world_size=2)


# --- Sums over replicas -------------------------------------------------------------------------------------------


def replicated():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return Sharded(mesh["shard"]), mesh.get_group("replicate")


METHODS_OF_MEANS = ("bf16", "topk", "int8", "powersgd", "efsign", "u8bit", "blocktopk", "dgc", "natural")


@pytest.mark.parametrize(
    "methods",
    [("topk", "natural"), pytest.param(METHODS_OF_MEANS, marks=pytest.mark.soak)],
    ids=["some", "all"],
)
def test_sums_over_replicas_take_methods_of_means(methods):
    """Reduce-scatters within a replica, and compressed sums between the two."""

    def on_rank(rank):
        for method in methods:
            model, replicas = replicated()
            options = {"momentum": 0.0} if method == "dgc" else {}
            state = netsum.torch.compress(model, method, replicas=replicas, **options)
            arrived = {name: torch.zeros(ALL_SHAPES[name]) for name in COMPRESSED}
            had = {name: torch.zeros(ALL_SHAPES[name]) for name in COMPRESSED}
            for step in range(STEPS):
                averaged = backward(model, gradients_of(rank, step))
                exact = mean_of(step, 4)
                for name in ALL_SHAPES:
                    if name in COMPRESSED:
                        arrived[name] += averaged[name]
                        had[name] += exact[name]
                    else:
                        assert (averaged[name] - exact[name]).abs().max() < 1e-6
            everyone = [None] * 4
            dist.all_gather_object(everyone, (dist.get_rank(replicas), state.state_dict()["parameters"]))
            for name in COMPRESSED:
                saved = everyone[rank][1][name]
                assert saved["step"] == STEPS
                if "residual" not in saved["memory"]:
                    error = (arrived[name] - had[name]).norm() / had[name].norm()
                    assert error < (0.4 if method == "natural" else 0.02), (method, name)
                    continue
                # What has not arrived is kept: of each replica, the parts of its two ranks one behind the other.
                parts = [s[name]["memory"]["residual"].view(s[name]["shape"]) for _, s in everyone]
                kept = (torch.cat(parts[:2]) + torch.cat(parts[2:]))[: ALL_SHAPES[name][0]] / 2
                assert torch.allclose(arrived[name] + kept, had[name], atol=5e-5), (method, name)

    ranks.run(on_rank, world_size=4)


def test_reduce_scatters_and_sums_over_replicas_are_compressed_together():
    def on_rank(rank):
        model, replicas = replicated()
        netsum.torch.compress(model, "int8")
        netsum.torch.compress(model, "bf16", replicas=replicas)
        netsum.torch.overlap_fsdp(model)
        for name, average in backward(model, gradients_of(rank, 0)).items():
            assert (average - mean_of(0, 4)[name]).abs().max() < 0.01

    ranks.run(on_rank, world_size=4)


def test_compressed_reduce_scatters_of_a_mesh_with_replicas():
    """FSDP sums over the replicas by itself."""

    def on_rank(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        model = Sharded(mesh)
        netsum.torch.compress(model, "int8")
        for name, average in backward(model, gradients_of(rank, 0)).items():
            assert (average - mean_of(0, 4)[name]).abs().max() < 0.01
        with pytest.raises(ValueError, match="FSDP sums by itself"):
            netsum.torch.compress(model, "topk", replicas=mesh.get_group("replicate"))

    ranks.run(on_rank, world_size=4)


def test_replicas_that_cannot_be_summed_are_refused():
    def on_rank(rank):
        model, replicas = replicated()
        with pytest.raises(ValueError, match="these are of one replica"):
            netsum.torch.compress(model, "topk", replicas=dist.group.WORLD)
        with pytest.raises(ValueError, match="not a mean"):
            netsum.torch.compress(model, "signsgd", replicas=replicas)
        with pytest.raises(ValueError, match="buckets of DistributedDataParallel"):
            netsum.torch.compress(model, "auto", replicas=replicas)
        netsum.torch.compress(model, "topk", replicas=replicas)
        with pytest.raises(RuntimeError, match="an all-reduce hook already"):
            netsum.torch.compress(model, "topk", replicas=replicas)
        model.set_requires_all_reduce(False)
        with pytest.raises(RuntimeError, match=r"set_requires_gradient_sync\(False\)"):
            backward(model, gradients_of(rank, 0))
        assert isinstance(model, FSDPModule)

    ranks.run(on_rank, world_size=4)
