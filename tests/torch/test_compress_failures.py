"""A rank that is lost in the middle: the survivors keep what they had not sent."""

import os
import signal

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from ranks import WORLD_SIZE
from test_compress import COMPRESSED, SHAPES, Chosen, SlowTopK, backward, gradient_of, wrapped
from test_compress_gather import Slow, dynamic_tree, mean_of

import torch

VICTIM = 1
LOST_AT = 3
METHODS = {
    "topk": ({"ratio": 0.05}, lambda name: SlowTopK(SHAPES[name], int(torch.Size(SHAPES[name]).numel() * 0.05)).send),
    "u8bit": ({}, lambda name: Slow(dynamic_tree).step),
}


@pytest.mark.parametrize("method", METHODS)
def test_survivors_keep_their_residuals(method):
    options, make = METHODS[method]

    def on_rank(rank):
        model = wrapped(Chosen())
        state = netsum.torch.compress(model, method, **options)
        send = {name: [make(name) for _ in range(WORLD_SIZE)] for name in COMPRESSED}
        for step in range(LOST_AT):
            averaged = backward(model, gradient_of(rank, step))
            everyone = [gradient_of(r, step) for r in range(WORLD_SIZE)]
            for name in COMPRESSED:
                expected = mean_of([one(g[name]) for one, g in zip(send[name], everyone, strict=True)])
                assert torch.allclose(averaged[name], expected, atol=1e-6)
        saved = state.state_dict()
        dist.barrier()
        if rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises((netsum.torch.Error, RuntimeError)):  # noqa: PT012  (some step is the first to fail)
            while True:
                backward(model, gradient_of(rank, LOST_AT))
        survivors = netsum.torch.regroup()
        assert survivors == [r for r in range(WORLD_SIZE) if r != VICTIM]
        model = wrapped(Chosen())
        state = netsum.torch.compress(model, method, **options)
        state.load_state_dict(saved)
        for step in range(LOST_AT, LOST_AT + 2):
            averaged = backward(model, gradient_of(rank, step))
            for name in COMPRESSED:
                expected = mean_of([send[name][r](gradient_of(r, step)[name]) for r in survivors])
                assert torch.allclose(averaged[name], expected, atol=1e-6), (name, step)
        return True

    outcomes = ranks.run_all_outcomes(on_rank)
    assert outcomes.pop(VICTIM).exit_code == -signal.SIGKILL
    for outcome in outcomes:
        assert outcome.value is True, outcome.error
