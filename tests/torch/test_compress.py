"""Compressed gradients of DistributedDataParallel: against slow references, saved and restored, refused where wrong."""

import contextlib
import pathlib
import runpy

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from ranks import WORLD_SIZE
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

STEPS = 5
SHAPES = {
    "wide.weight": (30, 50),
    "wide.bias": (30,),
    "norm.weight": (30,),
    "deep.weight": (40, 40),
    "small.weight": (3, 4),
}
COMPRESSED = ("wide.weight", "deep.weight")


class Chosen(nn.Module):
    """Its gradients are what gradient_of() says, whatever the parameters are."""

    def __init__(self, dtype=torch.float32, shapes=None):
        super().__init__()
        for name, shape in (shapes or SHAPES).items():
            module, parameter = name.split(".")
            if not hasattr(self, module):
                setattr(self, module, nn.Module())
            setattr(getattr(self, module), parameter, nn.Parameter(torch.zeros(shape, dtype=dtype)))

    def forward(self, gradients):
        return sum((p * gradients[name]).sum() for name, p in self.named_parameters())


def gradient_of(rank, step, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 * step + rank + 1)
    return {name: ((2 * torch.rand(s, generator=generator) - 1) ** 5).to(dtype) for name, s in SHAPES.items()}


def backward(model, gradients):
    """Returns the averaged gradients."""
    model.zero_grad()
    model(gradients).backward()
    return {name: p.grad.clone() for name, p in model.module.named_parameters()}


def wrapped(model, **options):
    # Several buckets, and other ones from the second step on.
    return DistributedDataParallel(model, bucket_cap_mb=0.005, **options)


class SlowTopK:
    """Top-k of one tensor with error feedback, by a sort."""

    def __init__(self, shape, k):
        self.memory, self.k = torch.zeros(shape), k

    def send(self, gradient):
        self.memory = self.memory + gradient
        order = self.memory.flatten().abs().sort(descending=True, stable=True).indices[: self.k]
        sent = torch.zeros(self.memory.numel())
        sent[order] = self.memory.flatten()[order]
        sent = sent.reshape(self.memory.shape)
        self.memory = self.memory - sent
        return sent


class SlowDgc:
    def __init__(self, shape, k, momentum):
        self.u, self.v, self.k, self.momentum = torch.zeros(shape), torch.zeros(shape), k, momentum

    def send(self, gradient):
        self.u = self.momentum * self.u + gradient
        self.v = self.v + self.u
        threshold = self.v.flatten().abs().sort(descending=True).values[self.k - 1]
        chosen = self.v.abs() >= threshold
        sent = torch.where(chosen, self.v, 0.0)
        self.u, self.v = torch.where(chosen, 0.0, self.u), torch.where(chosen, 0.0, self.v)
        return sent


class SlowCast:
    def __init__(self, dtype):
        self.dtype = dtype

    def send(self, gradient):
        return gradient.to(self.dtype).float()


SLOW = {
    "topk": ({"ratio": 0.05}, lambda shape: SlowTopK(shape, int(torch.Size(shape).numel() * 0.05)), 1e-6),
    "dgc": (
        {"ratio": 0.05, "momentum": 0.5},
        lambda shape: SlowDgc(shape, int(torch.Size(shape).numel() * 0.05), 0.5),
        1e-6,
    ),
    # The mean is rounded again.
    "fp16": ({}, lambda shape: SlowCast(torch.float16), 2**-11),
    "bf16": ({}, lambda shape: SlowCast(torch.bfloat16), 2**-8),
}


def test_gradients_are_those_of_the_method():
    def compare(rank, method):
        options, make, tolerance = SLOW[method]
        model = wrapped(Chosen())
        netsum.torch.compress(model, method, **options)
        slow = {name: [make(SHAPES[name]) for _ in range(WORLD_SIZE)] for name in COMPRESSED}
        for step in range(STEPS):
            everyone = [gradient_of(r, step) for r in range(WORLD_SIZE)]
            averaged = backward(model, everyone[rank])
            for name in SHAPES:
                parts = [g[name] for g in everyone]
                if name in slow:
                    parts = [s.send(part) for s, part in zip(slow[name], parts, strict=True)]
                expected = sum(parts) / WORLD_SIZE
                assert (averaged[name] - expected).abs().max() <= tolerance, (method, name, step)
                if name in slow and method in ("topk", "dgc"):
                    assert torch.equal(averaged[name] != 0, expected != 0), (method, name, step)

    def on_rank(rank):
        for method in SLOW:
            compare(rank, method)

    ranks.run(on_rank)


def test_all_that_the_ranks_have_had_arrives_or_remains():
    def on_rank(rank):
        for method in (
            "topk",
            "randomk",
            "efsign",
            "sidco",
            "powersgd",
            "lanes8",
            "int8",
            "thc",
            "blocktopk",
            "countsketch",
            "onebit",
        ):
            model = wrapped(Chosen())
            state = netsum.torch.compress(model, method)
            arrived, had = ({name: torch.zeros(SHAPES[name]) for name in COMPRESSED} for _ in range(2))
            for step in range(STEPS):
                averaged = backward(model, gradient_of(rank, step))
                for name in COMPRESSED:
                    arrived[name] += averaged[name]
                    had[name] += gradient_of(rank, step)[name]
            for name in COMPRESSED:
                mine = had[name] - state.state_dict()["parameters"][name]["memory"]["residual"].reshape(SHAPES[name])
                dist.all_reduce(mine, op=dist.ReduceOp.AVG)
                assert torch.allclose(mine, arrived[name], atol=1e-5), (method, name)

    ranks.run(on_rank)


def test_levels_of_a_common_scale():
    def on_rank(rank):
        model = wrapped(Chosen())
        netsum.torch.compress(model, "qsgd", levels=8)
        for step in range(3):
            everyone = [gradient_of(r, step) for r in range(WORLD_SIZE)]
            averaged = backward(model, everyone[rank])
            for name in COMPRESSED:
                unit = max(g[name].abs().max() for g in everyone) / 8
                levels = averaged[name] * WORLD_SIZE / unit
                assert (levels - levels.round()).abs().max() < 1e-3
                exact = sum(g[name] for g in everyone) / WORLD_SIZE
                assert (averaged[name] - exact).abs().max() < unit
        for one in everyone:
            one["deep.weight"].zero_()
        assert backward(model, everyone[rank])["deep.weight"].count_nonzero() == 0

    ranks.run(on_rank)


@pytest.mark.parametrize(("method", "levels"), [("lanes8", 127 // WORLD_SIZE), ("int8", 127), ("int4", 7)])
def test_blocks_of_a_common_scale(method, levels):
    """The same bits as the slow reference: every operation is one of IEEE 754."""
    block = 64

    def on_rank(rank):
        model = wrapped(Chosen())
        netsum.torch.compress(model, method, block=block)
        memory = {name: [torch.zeros(SHAPES[name]).flatten() for _ in range(WORLD_SIZE)] for name in COMPRESSED}
        for step in range(STEPS):
            everyone = [gradient_of(r, step) for r in range(WORLD_SIZE)]
            averaged = backward(model, everyone[rank])
            for name in COMPRESSED:
                values = [m + g[name].flatten() for m, g in zip(memory[name], everyone, strict=True)]
                largest = torch.stack([value.abs() for value in values]).max(dim=0).values
                scale = torch.cat([part.max().expand(part.numel()) for part in largest.split(block)])
                codes = [(value / scale * levels).round() for value in values]
                memory[name] = [value - code / levels * scale for value, code in zip(values, codes, strict=True)]
                expected = sum(codes) / (levels * WORLD_SIZE) * scale
                assert torch.equal(averaged[name].flatten(), expected), (name, step)

    ranks.run(on_rank)


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(20, 300), nn.LayerNorm(300), nn.Tanh(), nn.Linear(300, 100), nn.Tanh(), nn.Linear(100, 3)
    )


def batch(rank, step):
    x = torch.randn(16, 20, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, torch.stack([x.sum(1), x[:, 0], -x[:, 1]], dim=1)


def train(rank, method, steps, /, *, momentum=0.9, accumulate=1, **options):
    model = DistributedDataParallel(make_model(), bucket_cap_mb=0.05)
    if method is not None:
        netsum.torch.compress(model, method, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=momentum)
    for step in range(steps):
        for part in range(accumulate):
            with contextlib.nullcontext() if part == accumulate - 1 else model.no_sync():
                x, y = batch(rank, step * accumulate + part)
                nn.functional.mse_loss(model(x), y).div(accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        losses = [nn.functional.mse_loss(model(x), y).item() for x, y in (batch(99, step) for step in range(20))]
    return torch.cat([p.detach().flatten() for p in model.parameters()]), sum(losses) / len(losses)


SOAK = pytest.mark.soak
# By method: options, and the share by which the loss may be above the uncompressed one, of a loss that training divides by more
# than ten.
MARGINS = {
    "bf16": ({}, 0.1),
    "topk": ({"ratio": 0.1}, 0.5),
    "dgc": ({"ratio": 0.1, "warmup_steps": 20}, 0.5),
    "efsign": ({}, 0.5),
    "qsgd": ({"levels": 7}, 0.5),
    "int4": ({"rotated": True}, 0.5),
    "powersgd": ({"rank": 2}, 0.5),
    "blocktopk": ({"ratio": 0.1, "block": 20}, 0.5),
}


@pytest.mark.parametrize("methods", [["dgc"], pytest.param(list(MARGINS), marks=SOAK)], ids=["some", "all"])
def test_training_ends_near_the_uncompressed_loss(methods):
    def on_rank(rank):
        def trained(method):
            return train(rank, method, 150, momentum=0.0 if method == "dgc" else 0.9, **MARGINS[method][0])

        return train(rank, None, 0)[1], train(rank, None, 150)[1], [trained(method) for method in methods]

    (untrained, plain, results), (_, _, others) = ranks.run(on_rank, world_size=2)
    assert plain < 0.1 * untrained
    for method, (weights, loss), (other_weights, _) in zip(methods, results, others, strict=True):
        assert torch.equal(weights, other_weights), method
        assert loss < plain + MARGINS[method][1] * 0.1 * untrained, method


def test_accumulated_gradients_are_compressed_once():
    def on_rank(rank):
        model = wrapped(Chosen())
        state = netsum.torch.compress(model, "topk", ratio=0.05)
        reference = wrapped(Chosen())
        netsum.torch.compress(reference, "topk", ratio=0.05)
        for step in range(3):
            parts = [gradient_of(rank, 10 * step + part) for part in range(3)]
            model.zero_grad()
            for part in parts[:-1]:
                with model.no_sync():
                    model(part).backward()
            model(parts[-1]).backward()
            backward(reference, {name: parts[0][name] + parts[1][name] + parts[2][name] for name in SHAPES})
            for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
                assert torch.equal(mine.grad, theirs.grad)
        assert {saved["step"] for saved in state.state_dict()["parameters"].values()} == {3}

    ranks.run(on_rank, world_size=2)


def test_power_sgd_sees_the_matrix():
    def on_rank(rank):
        model = wrapped(Chosen())
        state = netsum.torch.compress(model, "powersgd", rank=1)
        weight = torch.outer(torch.arange(1.0, 31.0), torch.arange(1.0, 51.0).cos())
        gradients = {**gradient_of(rank, 0), "wide.weight": weight * (rank + 1)}
        averaged = backward(model, gradients)["wide.weight"]
        assert torch.allclose(averaged, weight * 1.5, rtol=1e-4, atol=1e-3)
        saved = state.state_dict()["parameters"]["wide.weight"]["memory"]
        assert saved["compressor"].numel() == 30 + 50
        assert saved["residual"].abs().max() < 1e-2

    ranks.run(on_rank, world_size=2)


def test_times_and_buckets_are_counted():
    def on_rank(rank):
        model = DistributedDataParallel(Chosen())
        state = netsum.torch.compress(model, "topk")
        assert state.stats() == {"buckets": 0, "encode_s": 0.0, "decode_s": 0.0}
        for step in range(3):
            backward(model, gradient_of(rank, step))
        counts = state.stats()
        assert counts["buckets"] == 3 and counts["encode_s"] > 0 and counts["decode_s"] > 0

    ranks.run(on_rank, world_size=2)


def test_state_is_that_of_the_parameter_whatever_its_bucket():
    """DDP makes other buckets after the first step; here they differ besides between two models of the same parameters."""

    def on_rank(rank):
        results = []
        for cap in (0.001, 100.0):
            model = DistributedDataParallel(Chosen(), bucket_cap_mb=cap)
            state = netsum.torch.compress(model, "topk", ratio=0.05)
            for step in range(STEPS):
                averaged = backward(model, gradient_of(rank, step))
            results.append((averaged, state.state_dict()["parameters"]))
        for name in COMPRESSED:
            first, second = (state[name]["memory"]["residual"] for _, state in results)
            assert torch.equal(first, second)
            assert torch.allclose(results[0][0][name], results[1][0][name], atol=1e-6)

    ranks.run(on_rank, world_size=2)


def test_grad_scaler_skips_the_step_on_every_rank():
    ranks.check_infinity_skips_the_step(
        lambda: DistributedDataParallel(make_model()),
        batch,
        nn.functional.mse_loss,
        lambda model, scaler, method: netsum.torch.compress(model, method, grad_scaler=scaler, min_elements=0),
        methods=[
            "topk",
            "efsign",
            "randomk",
            "fp16",
            "signsgd",
            "qsgd",
            "powersgd",
            "lanes8",
            "int8",
            "blocktopk",
            "onebit",
            "signum",
        ],
    )


def test_memories_follow_the_scale_of_the_loss():
    def on_rank(rank):
        class Scaler:
            scale = 8.0

            def get_scale(self):
                return self.scale

        model, scaler = wrapped(Chosen()), Scaler()
        state = netsum.torch.compress(model, "topk", ratio=0.05, grad_scaler=scaler)
        plain = wrapped(Chosen())
        netsum.torch.compress(plain, "topk", ratio=0.05)
        for step in range(STEPS):
            scaler.scale = 8.0 if step < 2 else 2.0
            gradients = gradient_of(rank, step)
            averaged = backward(model, {name: scaler.scale * g for name, g in gradients.items()})
            expected = backward(plain, gradients)
            for name in SHAPES:
                assert torch.allclose(averaged[name] / scaler.scale, expected[name], atol=1e-6)
        assert state.state_dict()["parameters"]["wide.weight"]["scale"] == 2.0

    ranks.run(on_rank, world_size=2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_gradients(dtype):
    def on_rank(rank):
        model = wrapped(Chosen(dtype))
        netsum.torch.compress(model, "topk", ratio=0.05)
        slow = {
            name: [SlowTopK(SHAPES[name], int(torch.Size(SHAPES[name]).numel() * 0.05)) for _ in range(2)]
            for name in COMPRESSED
        }
        for step in range(STEPS):
            everyone = [gradient_of(r, step, dtype) for r in range(2)]
            averaged = backward(model, everyone[rank])
            for name in COMPRESSED:
                expected = sum(s.send(g[name].float()) for s, g in zip(slow[name], everyone, strict=True)) / 2
                assert (averaged[name].float() - expected).abs().max() < 2**-7 * expected.abs().max()
            assert averaged["wide.bias"].dtype == dtype

    ranks.run(on_rank, world_size=2)


@pytest.mark.parametrize(
    ("wrapper", "relative"),
    [(default_hooks.fp16_compress_wrapper, 2**-9), (default_hooks.bf16_compress_wrapper, 2**-6)],
)
def test_wrappers_of_pytorch(wrapper, relative):
    def on_rank(rank):
        model = wrapped(Chosen())
        state = netsum.torch.Compression(model, "topk", ratio=0.05)
        hook = wrapper(netsum.torch.compression_hook)

        def named_otherwise(state, bucket):  # DDP refuses the bf16 wrapper by its name where there is no NCCL
            return hook(state, bucket)

        model.register_comm_hook(state, named_otherwise)
        for step in range(3):
            averaged = backward(model, gradient_of(rank, step))
        exact = sum(gradient_of(r, 2)["wide.bias"] for r in range(2)) / 2
        assert torch.allclose(averaged["wide.bias"], exact, rtol=relative, atol=relative)
        assert 0 < averaged["wide.weight"].count_nonzero() <= 2 * 75

    ranks.run(on_rank, world_size=2)


def test_rules_choose_by_name_and_size():
    def on_rank(rank):
        model = wrapped(Chosen())
        state = netsum.torch.compress(
            model,
            "topk",
            rules=[
                ("deep.*", "none"),
                (lambda name, parameter: parameter.dim() == 1, {"method": "fp16"}),
                ("small.weight", {"method": "efsign"}),
            ],
        )
        described = dict(line.split(": ", 1) for line in state.describe().splitlines())
        assert described["wide.weight [30, 50]"].startswith("topk ratio=0.01")
        assert described["deep.weight [40, 40]"] == "uncompressed"
        assert described["wide.bias [30]"].startswith("fp16")
        assert described["norm.weight [30]"].startswith("fp16")
        assert described["small.weight [3, 4]"].startswith("efsign")
        averaged = backward(model, gradient_of(rank, 0))
        exact = sum(gradient_of(r, 0)["deep.weight"] for r in range(2)) / 2
        assert torch.allclose(averaged["deep.weight"], exact, atol=1e-6)
        # By default, what has one dimension or few elements stays uncompressed.
        state = netsum.torch.Compression(model, "topk")
        assert [line for line in state.describe().splitlines() if "topk" in line] == [
            line for line in state.describe().splitlines() if line.split()[0] in COMPRESSED
        ]

    ranks.run(on_rank, world_size=2)


def test_rules_choose_by_the_kind_of_module():
    def on_rank(rank):
        model = nn.Sequential(nn.Embedding(100, 20), nn.Conv1d(20, 20, 3), nn.Linear(20, 100), nn.LayerNorm(100))
        state = netsum.torch.Compression(
            model, "topk", rules=[(nn.Embedding, "bf16"), (nn.Conv1d, "none")], min_elements=0
        )
        described = dict(line.split(": ", 1) for line in state.describe().splitlines())
        assert described["0.weight [100, 20]"].startswith("bf16")
        assert described["1.weight [20, 20, 3]"] == described["1.bias [20]"] == "uncompressed"
        assert described["2.weight [100, 20]"].startswith("topk")
        assert described["3.weight [100]"] == "uncompressed"

    ranks.run(on_rank, world_size=2)


def example_of_the_tutorial():
    """The class of docs/tutorial/alternate.py."""
    return runpy.run_path(str(pathlib.Path(__file__).parents[2] / "docs/tutorial/alternate.py"))["Alternate"]


def test_a_compressor_in_python():
    alternate = example_of_the_tutorial()()
    netsum.torch.check_compressor(alternate)

    def on_rank(rank):
        model = wrapped(Chosen())
        state = netsum.torch.compress(model, alternate, decay=0.5)
        assert "Alternate decay=0.5, memory residual, path dense" in state.describe()
        kept = {name: torch.zeros(2, torch.Size(SHAPES[name]).numel()) for name in COMPRESSED}
        for step in range(4):
            everyone = [gradient_of(r, step) for r in range(2)]
            averaged = backward(model, everyone[rank])
            for name in COMPRESSED:
                kept[name] = 0.5 * kept[name] + torch.stack([g[name].flatten() for g in everyone])
                expected = torch.zeros_like(kept[name][0])
                expected[step % 2 :: 2] = kept[name][:, step % 2 :: 2].mean(0)
                kept[name][:, step % 2 :: 2] = 0
                assert torch.allclose(averaged[name].flatten(), expected, atol=1e-6), (name, step)
        saved = state.state_dict()["parameters"]["wide.weight"]["memory"]["residual"]
        assert torch.allclose(saved, kept["wide.weight"][rank], atol=1e-6)

    ranks.run(on_rank, world_size=2)


def test_compressors_in_python_that_are_wrong_are_refused():
    alternate = example_of_the_tutorial()

    class Square(alternate):
        def compress(self, values, payload, context):
            super().compress(values * values.abs(), payload, context)

        def decompress(self, payload, contributions, out, context):
            super().decompress(payload.sign() * payload.abs().sqrt(), contributions, out, context)

    class Halves(alternate):
        def shape(self, count, context):
            return torch.float64, count

    class Unknown(alternate):
        additivity = "any"

    class Failing(alternate):
        def compress(self, values, payload, context):
            raise RuntimeError("out of ideas")

    with pytest.raises(ValueError, match="'Square' does not have its traits: additivity is linear"):
        netsum.torch.check_compressor(Square())
    with pytest.raises(ValueError, match="Halves has payloads of a type"):
        netsum.torch.check_compressor(Halves())
    with pytest.raises(ValueError, match="'linear', 'integer', 'sparse' or 'none'"):
        netsum.torch.check_compressor(Unknown())
    with pytest.raises(TypeError, match=r"an object of a class derived from .*this is <class .*Square"):
        netsum.torch.check_compressor(Square)
    with pytest.raises(NotImplementedError, match=r"Compressor must define compress\(self, values, payload, context\)"):
        netsum.torch.check_compressor(netsum.torch.Compressor())

    def on_rank(rank):
        with pytest.raises(ValueError, match="cannot take the path 'union'"):
            netsum.torch.Compression(Chosen(), alternate(), path="union")
        with pytest.raises(TypeError, match=r"an object of a class derived from .*this is <class .*Failing"):
            netsum.torch.Compression(Chosen(), Failing)
        model = wrapped(Chosen())
        netsum.torch.compress(model, Failing())
        with pytest.raises(RuntimeError, match="out of ideas"):
            backward(model, gradient_of(rank, 0))

    ranks.run(on_rank, world_size=2)


def test_sparse_embeddings_are_averaged():
    def on_rank(rank):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(500, 8, sparse=True), nn.Linear(8, 200))
        model = DistributedDataParallel(model)
        netsum.torch.compress(model, "topk", ratio=0.1)
        model(torch.tensor([rank, 7])).sum().backward()
        gradient = model.module[0].weight.grad
        assert gradient.is_sparse
        used = gradient.to_dense().abs().sum(1).nonzero().flatten().tolist()
        assert used == [0, 1, 7]

    ranks.run(on_rank, world_size=2)


def test_a_restored_state_continues_with_the_same_bits():
    def on_rank(rank):
        for method in ("topk", "randomk", "efsign", "dgc", "sidco", "powersgd"):
            model, restored = wrapped(Chosen()), wrapped(Chosen())
            state = netsum.torch.compress(model, method)
            for step in range(3):
                backward(model, gradient_of(rank, step))
            saved = state.state_dict()
            # Parameters of a group are numbered in order, and random elements depend on the number.
            if method in ("randomk", "powersgd"):
                restored = model
                for step in range(3, STEPS):
                    expected = backward(model, gradient_of(rank, step))
                state.load_state_dict(saved)
            else:
                netsum.torch.compress(restored, method).load_state_dict(saved)
                for step in range(3, STEPS):
                    expected = backward(model, gradient_of(rank, step))
            for step in range(3, STEPS):
                averaged = backward(restored, gradient_of(rank, step))
            for name in COMPRESSED:
                assert torch.allclose(averaged[name], expected[name], atol=1e-6), (method, name)
                assert torch.equal(averaged[name] != 0, expected[name] != 0), (method, name)

    ranks.run(on_rank, world_size=2)


def test_a_state_of_another_model_is_refused_by_name_and_shape():
    def on_rank(rank):
        state = netsum.torch.Compression(Chosen(), "topk")
        other = {"wide.weight": (30, 50), "deep.weight": (40, 41)}
        saved = netsum.torch.Compression(Chosen(shapes=other), "topk").state_dict()
        with pytest.raises(ValueError, match=r"deep.weight with the shape \[40, 41\], and the model with \[40, 40\]"):
            state.load_state_dict(saved)
        saved = netsum.torch.Compression(
            Chosen(shapes={"wide.weight": (30, 50), "x.weight": (50, 50)}), "topk"
        ).state_dict()
        with pytest.raises(ValueError, match=r"lacks deep.weight, and has x.weight besides"):
            state.load_state_dict(saved)
        saved = netsum.torch.Compression(Chosen(), "dgc").state_dict()
        with pytest.raises(
            ValueError, match=r"is one of 'topk .*, memory dgc, .*, and this is 'topk .*, memory residual, "
        ):
            state.load_state_dict(saved)
        with pytest.raises(ValueError, match="version None"):
            state.load_state_dict({})

    ranks.run(on_rank, world_size=2)


def test_states_of_other_ranks_keep_the_sum():
    def on_rank(rank):
        model = wrapped(Chosen())
        state = netsum.torch.compress(model, "topk")
        backward(model, gradient_of(rank, 0))
        states = [None] * 4
        dist.all_gather_object(states, state.state_dict())
        for size in (1, 3, 4, 6):
            resharded = netsum.torch.reshard_compression_states(states, size)
            assert len(resharded) == size
            for name in COMPRESSED:
                before = sum(s["parameters"][name]["memory"]["residual"] for s in states) / 4
                after = sum(s["parameters"][name]["memory"]["residual"] for s in resharded) / size
                assert torch.allclose(before, after, atol=1e-6)
        if rank == 0:
            state.load_state_dict(netsum.torch.reshard_compression_states(states, 1)[0])
        # What the compressor has found out is not added up.
        stages = torch.tensor([3.0, -1.0, 0.5, 0.25])
        for one in states:
            one["parameters"]["deep.weight"]["memory"]["compressor"] = stages
        for one in netsum.torch.reshard_compression_states(states, 6):
            assert torch.equal(one["parameters"]["deep.weight"]["memory"]["compressor"], stages)

    ranks.run(on_rank)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "topp"}, "there is no compression method 'topp'"),
        ({"method": "topk", "ratio": 0}, "ratio is 0; it must be above 0"),
        ({"method": "topk", "path": "dense"}, "use path 'union'"),
        ({"method": "topk", "memory": "none"}, "needs a memory"),
        ({"method": "efsign", "path": "gather"}, "use path 'dense'"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    def on_rank(rank):
        with pytest.raises(ValueError, match=message.replace("*", ".*")):
            netsum.torch.Compression(Chosen(), **options)

    ranks.run(on_rank, world_size=2)


def test_wrong_types_are_refused():
    def on_rank(rank):
        with pytest.raises(TypeError, match="no option 'rati'"):
            netsum.torch.Compression(Chosen(), "topk", rati=0.1)
        with pytest.raises(TypeError, match="ratio must be a number"):
            netsum.torch.Compression(Chosen(), "topk", ratio="much")
        with pytest.raises(TypeError, match="DistributedDataParallel"):
            netsum.torch.compress(Chosen(), "topk")
        with pytest.raises(ValueError, match="float64"):
            netsum.torch.Compression(Chosen(torch.float64), "topk", rules=[("deep.*", "topk")])

    ranks.run(on_rank, world_size=2)


def test_ranks_with_different_settings_are_told_on_all_ranks():
    def on_rank(rank):
        with pytest.raises(ValueError, match=r"rank 2 has .*ratio=0.5.* and rank 0 has .*ratio=0.25"):
            netsum.torch.Compression(Chosen(), "topk", ratio=0.5 if rank == 2 else 0.25)
        shapes = {"a.weight": (40, 40 + (rank == 3))}
        with pytest.raises(ValueError, match=r"rank 3 has 'a.weight \[40, 41\]"):
            netsum.torch.Compression(Chosen(shapes=shapes), "topk")
        # A rank that refuses its settings tells the others, which would wait otherwise.
        expected = "ratio is" if rank == 1 else "rank 1 refused its settings: ValueError: ratio is"
        with pytest.raises(ValueError, match=expected):
            netsum.torch.Compression(Chosen(), "topk", ratio=7.0 if rank == 1 else 0.5)
        # All of them can try again.
        netsum.torch.Compression(Chosen(), "topk", ratio=0.5)

    ranks.run(on_rank)
