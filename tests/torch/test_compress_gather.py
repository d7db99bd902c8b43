"""Payloads that every rank decompresses for itself: methods whose payloads cannot be summed, and others on the path "gather"."""

import functools

import netsum.torch
import pytest
import ranks
from ranks import WORLD_SIZE
from test_compress import COMPRESSED, SHAPES, STEPS, Chosen, SlowTopK, backward, gradient_of, wrapped

import torch


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


class Bytes(netsum.torch.Compressor):
    """Signs, four to a byte, with a scale of each rank: adding such bytes means nothing."""

    summability = "none"

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
            ValueError, match=r"'Bytes' \(summability: none\) cannot take the path 'dense'.*use path 'gather'"
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
        summability = "linear"

    with pytest.raises(ValueError, match=r"torch\.uint8 for 'none'"):
        netsum.torch.check_compressor(Float())
    with pytest.raises(ValueError, match="not one of the summability 'linear'"):
        netsum.torch.check_compressor(Linear())


def test_a_rank_that_sends_nonsense_is_named():
    """As by another version of netsum: settings that differ are refused before."""

    def on_rank(rank):
        model = wrapped(Chosen())
        state = netsum.torch.compress(model, "topk", ratio=0.05, path="gather")
        for step in range(2):
            backward(model, gradient_of(rank, step))

        def too_long(part, compress):
            compress()
            part.payload[:8].view(torch.int64).fill_(part.count + 1)

        if rank == 1:
            for plan in state._plans.values():
                for part in plan.parts:
                    part.compress = functools.partial(too_long, part, part.compress)
        with pytest.raises(RuntimeError, match=r"rank 1 sent a payload of \d+ bytes for (wide|deep).weight"):
            backward(model, gradient_of(rank, 2))

    ranks.run(on_rank, world_size=2)
