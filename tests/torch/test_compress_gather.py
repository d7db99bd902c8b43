"""Payloads that every rank decompresses for itself: methods whose payloads cannot be summed, and others on the path "gather"."""

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from ranks import WORLD_SIZE
from test_compress import (
    COMPRESSED,
    SHAPES,
    STEPS,
    Chosen,
    SlowTopK,
    backward,
    batch,
    gradient_of,
    make_model,
    train,
    wrapped,
)

import torch
from torch import nn


def size_of(name):
    return torch.Size(SHAPES[name]).numel()


def mean_of(parts):
    """In the order of the ranks, as the ranks add them."""
    total = torch.zeros_like(parts[0])
    for part in parts:
        total += part
    return total / len(parts)


def test_elements_travel_with_their_indices():
    def on_rank(rank):
        model = wrapped(Chosen())
        netsum.torch.compress(model, "topk", ratio=0.05, path="gather")
        slow = {
            name: [SlowTopK(SHAPES[name], int(size_of(name) * 0.05)) for _ in range(WORLD_SIZE)] for name in COMPRESSED
        }
        results = []
        for step in range(STEPS):
            everyone = [gradient_of(r, step) for r in range(WORLD_SIZE)]
            averaged = backward(model, everyone[rank])
            for name in COMPRESSED:
                sent = [s.send(g[name]) for s, g in zip(slow[name], everyone, strict=True)]
                assert torch.equal(averaged[name], mean_of(sent)), (name, step)
            for name in SHAPES.keys() - set(COMPRESSED):
                assert torch.allclose(averaged[name], sum(g[name] for g in everyone) / WORLD_SIZE, atol=1e-6)
            results.append(averaged)
        return results

    results = ranks.run(on_rank)
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            assert all(torch.equal(mine[name], theirs[name]) for name in SHAPES)


# The number of elements differs between ranks and steps, and so does what travels; other parameters are summed.
def test_payloads_of_different_lengths():
    def on_rank(rank):
        model = wrapped(Chosen())
        rules = [("deep.*", {"method": "bf16", "memory": "residual", "path": "gather"}), ("small.*", "efsign")]
        netsum.torch.compress(model, "threshold", threshold=0.5, path="gather", rules=rules)
        kept = [torch.zeros(SHAPES["wide.weight"]) for _ in range(WORLD_SIZE)]
        rounded = [torch.zeros(SHAPES["deep.weight"]) for _ in range(WORLD_SIZE)]
        for step in range(STEPS):
            everyone = [gradient_of(r, step) for r in range(WORLD_SIZE)]
            for r, gradient in enumerate(everyone):
                gradient["wide.weight"] *= r + step
            averaged = backward(model, everyone[rank])
            kept = [m + g["wide.weight"] for m, g in zip(kept, everyone, strict=True)]
            sent = [torch.where(m.abs() >= 0.5, m, 0.0) for m in kept]
            assert len({int(s.count_nonzero()) for s in sent}) > 1
            assert torch.equal(averaged["wide.weight"], mean_of(sent))
            kept = [m - s for m, s in zip(kept, sent, strict=True)]
            rounded = [m + g["deep.weight"] for m, g in zip(rounded, everyone, strict=True)]
            sent = [m.bfloat16().float() for m in rounded]
            assert torch.equal(averaged["deep.weight"], mean_of(sent))
            rounded = [m - s for m, s in zip(rounded, sent, strict=True)]

    ranks.run(on_rank)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gathered_half_precision_gradients(dtype):
    def on_rank(rank):
        model = wrapped(Chosen(dtype))
        netsum.torch.compress(model, "topk", ratio=0.05, path="gather")
        slow = {name: [SlowTopK(SHAPES[name], int(size_of(name) * 0.05)) for _ in range(2)] for name in COMPRESSED}
        for step in range(3):
            everyone = [gradient_of(r, step, dtype) for r in range(2)]
            averaged = backward(model, everyone[rank])
            for name in COMPRESSED:
                sent = [s.send(g[name].float()) for s, g in zip(slow[name], everyone, strict=True)]
                assert torch.equal(averaged[name], mean_of(sent).to(dtype))

    ranks.run(on_rank, world_size=2)


class Slow:
    """A method with error feedback, of which `send` is what a rank sends of a tensor."""

    def __init__(self, send):
        self.send, self.memory = send, 0.0

    def step(self, gradient):
        self.memory = self.memory + gradient
        sent = self.send(self.memory)
        self.memory = self.memory - sent
        return sent


def natural(x):
    below = 2.0 ** x.abs().log2().floor()
    return torch.where(x.abs() - below <= 2 * below - x.abs(), below, 2 * below) * x.sign()


def dynamic_tree(x):
    magnitudes = [10.0 ** (p - 6) * (0.1 + 0.9 * (f + 1) / 2**p) for p in range(7) for f in range(2**p)]
    code = torch.tensor([0.0, *magnitudes])
    sent = []
    for block in x.flatten().split(256):
        nearest = (block.abs()[:, None] - code * block.abs().max()).abs().argmin(1)
        sent.append(code[nearest] * block.abs().max() * block.sign())
    return torch.cat(sent).reshape(x.shape)


def inceptionn(x):
    steps = (x / 2**-11).round()
    return torch.where(steps.abs() <= 32767, steps * 2**-11, x)


def sketch(x):
    n = x.numel()
    ascending = x.flatten().sort().values
    edges = torch.stack([ascending[b * n // 16 - 1] for b in range(1, 16)])
    buckets = torch.bucketize(x, edges)
    return torch.stack([x[buckets == b].double().mean() for b in range(16)]).float()[buckets]


def adaq(x):
    sent = torch.zeros_like(x)
    for sign in (1, -1):
        side = (x[x * sign > 0] * sign).sort(descending=True).values
        chosen = x * sign >= side[max(1, int(side.numel() * 0.05)) - 1]
        sent[chosen] = x[chosen].double().mean().float()
    return sent


def chunk_top_k(x, block=256, k=8):
    sent = []
    for chunk in x.flatten().split(block):
        order = chunk.abs().sort(descending=True, stable=True).indices[:k]
        values, part = chunk[order].double(), torch.zeros_like(chunk)
        is_large = values.abs() > values.abs().mean()
        for of_level in (is_large, ~is_large):
            if of_level.any():
                level = values[of_level].abs().mean().float()
                part[order[of_level]] = level * values[of_level].sign().float()
        sent.append(part)
    return torch.cat(sent).reshape(x.shape)


def cosines_of(block):
    i = torch.arange(block, dtype=torch.float64)
    cosines = torch.cos(torch.pi * (i + 0.5) * i[:, None] / block) * (2 / block) ** 0.5
    cosines[0] /= 2**0.5
    return cosines


def coefficients_of(x, block=4):
    return x.double().reshape(-1, block) @ cosines_of(block).T


def dct_top_k(x, block=4, k=1):
    """Of a tensor whose size is a multiple of the block. With k = 2, an element that is alone in its block has equal coefficients."""
    cosines = cosines_of(block)
    coefficients = coefficients_of(x, block)
    order = coefficients.abs().sort(descending=True, stable=True).indices[:, k:]
    return (coefficients.scatter(1, order, 0.0) @ cosines).float().reshape(x.shape)


# Where numbers are computed in another order here, the last bit may differ, and with it what is nearest.
CODES = {
    "natural": (natural, {"memory": "residual"}, 0),
    "u8bit": (dynamic_tree, {}, 1e-6),
    "inceptionn": (inceptionn, {"error_bound": 2**-12}, 0),
    "sketch": (sketch, {"buckets": 16}, 1e-6),
    "adaq": (adaq, {"ratio": 0.05}, 1e-6),
    "chunktopk": (chunk_top_k, {"k": 8}, 1e-6),
    "dcttopk": (dct_top_k, {"k": 1, "block": 4}, 1e-6),
}


SPARSE = ("adaq", "chunktopk", "dcttopk")
PATHS = {"adaq": "union", "dcttopk": "union"}  # those that the network sums


def test_sums_of_coefficients_are_divided_by_the_number_of_senders():
    def on_rank(rank):
        model = wrapped(Chosen())
        netsum.torch.compress(model, "dcttopk", k=1, block=4, count_senders=True)
        everyone = [gradient_of(r, 0) for r in range(WORLD_SIZE)]
        averaged = backward(model, everyone[rank])
        for name in COMPRESSED:
            sent = [coefficients_of(dct_top_k(g[name])) for g in everyone]
            counts = sum((s.abs() > 1e-6).float() for s in sent)
            expected = sum(sent) / counts.clamp(min=1)
            assert (coefficients_of(averaged[name]) - expected).abs().max() <= 1e-5, name

    ranks.run(on_rank)


def test_gradients_are_those_of_the_code():
    def compare(rank, method):
        send, options, tolerance = CODES[method]
        model = wrapped(Chosen())
        netsum.torch.compress(model, method, **options)
        slow = {name: [Slow(send) for _ in range(WORLD_SIZE)] for name in COMPRESSED}
        for step in range(STEPS):
            everyone = [gradient_of(r, step) for r in range(WORLD_SIZE)]
            averaged = backward(model, everyone[rank])
            for name in COMPRESSED:
                expected = mean_of([s.step(g[name]) for s, g in zip(slow[name], everyone, strict=True)])
                difference = (averaged[name] - expected).abs()
                assert difference.max() <= tolerance, (method, name, step, difference.max())

    def on_rank(rank):
        for method in CODES:
            compare(rank, method)

    ranks.run(on_rank)


@pytest.mark.soak  # NaturalTest in C++ has the variance, and the test above each step
def test_natural_compression_is_right_on_average():
    def on_rank(rank):
        model = wrapped(Chosen())
        netsum.torch.compress(model, "natural")
        total, steps = torch.zeros(SHAPES["wide.weight"]), 200
        for _ in range(steps):
            total += backward(model, gradient_of(rank, 0))["wide.weight"]
        everyone = [gradient_of(r, 0)["wide.weight"] for r in range(WORLD_SIZE)]
        # Six standard deviations: E |x - C(x)|^2 <= x^2 / 8 for each rank.
        deviation = sum(g**2 for g in everyone).sqrt() / WORLD_SIZE / (8 * steps) ** 0.5
        assert ((total / steps - sum(everyone) / WORLD_SIZE).abs() <= 6 * deviation + 1e-7).all()

    ranks.run(on_rank)


def test_the_step_is_skipped_on_every_rank():
    ranks.check_infinity_skips_the_step(
        lambda: wrapped(make_model()),
        batch,
        nn.functional.mse_loss,
        lambda model, scaler, method: netsum.torch.compress(
            model, method, path=PATHS.get(method, "gather"), grad_scaler=scaler
        ),
        methods=[*CODES, "topk"],
    )


@pytest.mark.soak  # test_gradients_are_those_of_the_code has each step
@pytest.mark.parametrize("methods", [list(CODES)], ids=["all"])
def test_training_with_codes_ends_near_the_uncompressed_loss(methods):
    def on_rank(rank):
        def trained(method):
            return train(rank, method, 150, **({"ratio": 0.1} if method in SPARSE else {}))

        return train(rank, None, 0)[1], train(rank, None, 150)[1], [trained(method) for method in methods]

    (untrained, plain, results), (_, _, others) = ranks.run(on_rank, world_size=2)
    assert plain < 0.1 * untrained
    for method, (weights, loss), (other_weights, _) in zip(methods, results, others, strict=True):
        assert torch.equal(weights, other_weights), method
        assert loss < plain + 0.05 * untrained, method


def test_a_restored_state_of_codes_continues_with_the_same_bits():
    def compare(rank, method):
        options = {**CODES[method][1], "memory": "residual"}
        model, restored = wrapped(Chosen()), wrapped(Chosen())
        state = netsum.torch.compress(model, method, **options)
        for step in range(3):
            backward(model, gradient_of(rank, step))
        netsum.torch.compress(restored, method, **options).load_state_dict(state.state_dict())
        for step in range(3, STEPS):
            expected, averaged = (backward(m, gradient_of(rank, step)) for m in (model, restored))
            assert all(torch.allclose(averaged[name], expected[name], atol=1e-6) for name in COMPRESSED), method

        other = netsum.torch.Compression(
            Chosen(shapes={"wide.weight": (30, 50), "deep.weight": (40, 41)}), method, **options
        )
        with pytest.raises(ValueError, match=r"deep.weight with the shape \[40, 40\], and the model with \[40, 41\]"):
            other.load_state_dict(state.state_dict())

    def on_rank(rank):
        for method in CODES:
            compare(rank, method)

    ranks.run(on_rank, world_size=2)


class Bytes(netsum.torch.Compressor):
    """Signs, four to a byte, with a scale of each rank: adding such bytes means nothing."""

    additivity = "none"

    def shape(self, count, context):
        return torch.uint8, 4 + count

    def compress(self, values, payload, context):
        payload[:4] = values.abs().mean().reshape(1).view(torch.uint8)
        payload[4:] = values >= 0

    def decompress(self, payload, contributions, out, context):
        scale = payload[:4].clone().view(torch.float32)
        torch.mul(2 * payload[4:].float() - 1, scale, out=out)


def test_a_compressor_in_python_whose_payloads_are_bytes():
    netsum.torch.check_compressor(Bytes())

    def on_rank(rank):
        with pytest.raises(
            ValueError, match=r"'Bytes' \(additivity: none\) cannot take the path 'dense'.*use path 'gather'"
        ):
            netsum.torch.Compression(Chosen(), Bytes(), path="dense")
        with pytest.raises(ValueError, match=r"cannot take the path 'union'.*use path 'gather'"):
            netsum.torch.Compression(Chosen(), Bytes(), path="union")
        model = wrapped(Chosen())
        netsum.torch.compress(model, Bytes())
        kept = {name: torch.zeros(2, *SHAPES[name]) for name in COMPRESSED}
        for step in range(3):
            everyone = [gradient_of(r, step) for r in range(2)]
            averaged = backward(model, everyone[rank])
            for name in COMPRESSED:
                kept[name] += torch.stack([g[name] for g in everyone])
                sent = torch.stack([torch.where(m >= 0, m.abs().mean(), -m.abs().mean()) for m in kept[name]])
                kept[name] -= sent
                assert torch.allclose(averaged[name], sent.mean(0), atol=1e-6), (name, step)

    ranks.run(on_rank, world_size=2)


def test_a_compressor_that_adds_bytes_is_refused():
    class Float(Bytes):
        def shape(self, count, context):
            return torch.float32, count + 4

    class Linear(Bytes):
        summability = "linear"  # as in version 0.1

    with pytest.raises(ValueError, match=r"torch\.uint8 for 'none'"):
        netsum.torch.check_compressor(Float())
    with pytest.raises(ValueError, match="not one of the additivity 'linear'"):
        netsum.torch.check_compressor(Linear())


def send_nonsense(_state, bucket):
    """Gathers as a rank does whose payload varies, but the payload begins with a length that it cannot have."""
    sizes = torch.zeros(2, dtype=torch.int64)
    dist.all_gather_into_tensor(sizes, torch.tensor([8]))
    size = int(sizes.max())
    dist.all_gather_into_tensor(torch.empty(2 * size, dtype=torch.uint8), torch.full((size,), 0x7F, dtype=torch.uint8))
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def test_a_rank_that_sends_what_is_no_payload_of_the_step_is_told():
    """As by another version of netsum, or in another step: payloads have a tag."""

    def on_rank(rank):
        model = wrapped(Chosen(shapes={"wide.weight": SHAPES["wide.weight"]}))
        state = netsum.torch.Compression(model, "topk", ratio=0.05, path="gather")
        if rank == 1:
            model.register_comm_hook(None, send_nonsense)
            with pytest.raises(netsum.torch.Error, match="mismatch"):
                backward(model, gradient_of(rank, 0))
            return
        model.register_comm_hook(state, netsum.torch.compression_hook)
        with pytest.raises(RuntimeError, match="mismatch"):
            backward(model, gradient_of(rank, 0))

    ranks.run(on_rank, world_size=2)
