"""A rank that is lost in the middle: the survivors keep what they had not sent, and all ranks that go on are in the same step."""

import os
import signal

import netsum.torch
import netsum.torch._group
import pytest
import ranks
import torch.distributed as dist
from local_updates import LocalUpdates
from netsum.torch._buckets import Bucket
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


def assert_same(state, expected):
    assert state["parameters"].keys() == expected["parameters"].keys()
    for name, parameter in expected["parameters"].items():
        found = state["parameters"][name]
        assert found["step"] == parameter["step"], name
        for part, values in parameter["memory"].items():
            assert torch.equal(found["memory"][part], values), (name, part)


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
        assert_same(state.state_dict(), saved)
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


# Those whose ranks share random numbers, on each path and with agreed values, and one that keeps what it has found out.
SHARED = {
    "randomk": {"ratio": 0.1},
    "randomk gather": {"ratio": 0.1, "path": "gather"},
    "countsketch": {"ratio": 0.02},
    "int8": {"rotated": True},
    "lanes8": {"rotated": True},
    "thc": {},
    "powersgd": {},
}


def residuals_of(state):
    return {name: p["memory"]["residual"].double() for name, p in state.state_dict()["parameters"].items()}


def check_balance(model, state, gradients):
    """What the ranks have received in a step is what they have sent; where they add up different elements, it is not."""
    before = residuals_of(state)
    averaged = backward(model, gradients)
    after = residuals_of(state)
    for name in COMPRESSED:
        sent = gradients[name].double().flatten() + before[name] - after[name]
        dist.all_reduce(sent)  # float64
        assert torch.allclose(averaged[name].double().flatten(), sent / dist.get_world_size(), atol=1e-4), name


@pytest.mark.parametrize("python", [False, True])
def test_ranks_of_another_past_are_in_the_same_step(python):
    """Rank 1 is new, as after a readmission; rank 2 is a step ahead, as after a shrink."""

    def on_rank(rank):
        for name, options in SHARED.items():
            method = name.split()[0]

            def make():
                model = wrapped(Chosen())
                if not python:
                    return model, netsum.torch.compress(model, method, **options)  # noqa: B023
                state = netsum.torch.Compression(model, method, **options)  # noqa: B023
                model.register_comm_hook(state, netsum.torch.compression_hook)
                return model, state

            model, state = make()
            for step in range(2):
                check_balance(model, state, gradient_of(rank, step))
            saved = state.state_dict()
            model, state = make()
            if rank == 2:
                for parameter in saved["parameters"].values():
                    parameter["step"] += 1
            if rank != 1:
                state.load_state_dict(saved)
            for step in range(2, 4):
                check_balance(model, state, gradient_of(rank, step))
            steps = {p["step"] for p in state.state_dict()["parameters"].values()}
            assert steps == {5}, name

    ranks.run(on_rank)


# One of each way to agree; the others are soak tests.
@pytest.mark.parametrize(
    "method",
    [
        *("randomk", "int8", "powersgd", "topk", "natural", "bf16"),
        *(
            pytest.param(name, marks=pytest.mark.soak)
            for name in [*SHARED, "qsgd"]
            if name not in ("randomk", "int8", "powersgd")
        ),
    ],
)
def test_ranks_in_different_steps_are_told_at_once(method):
    def on_rank(rank):
        model = wrapped(Chosen())
        state = netsum.torch.compress(model, method.split()[0], **SHARED.get(method, {}))
        backward(model, gradient_of(rank, 0))
        entry = next(e for e in state._parameters if e.name == COMPRESSED[-1])
        entry.set_step(5 if rank == 1 else 4)
        with pytest.raises((netsum.torch.Error, RuntimeError)):
            backward(model, gradient_of(rank, 1))
        assert netsum.torch.error().code == "mismatch"

    ranks.run(on_rank)


AGREED = ["int8", "thc", "qsgd", "powersgd", "blocktopk"]


@pytest.mark.parametrize("method", [*AGREED, "topk", "efsign", "natural"])
def test_a_backward_pass_that_fails_is_taken_back(method):
    """Also those of its buckets that were summed, and passes on a broken group."""

    def on_rank(rank):
        model = wrapped(Chosen())
        state = netsum.torch.compress(model, method)
        for step in range(2):
            backward(model, gradient_of(rank, step))
        saved = state.state_dict()
        calls = 0

        def fail(gradient):
            nonlocal calls
            calls += 1
            if calls == 1:
                dist.distributed_c10d._get_default_group().abort()
            return gradient

        # Deep comes before wide: one bucket has begun when the group breaks.
        model.module.wide.weight.register_hook(fail)
        with pytest.raises((netsum.torch.Error, RuntimeError)):
            backward(model, gradient_of(rank, 2))
        assert_same(state.state_dict(), saved)
        # DDP refuses another pass.
        bucket = Bucket([model.module.deep.weight])
        bucket.buffer().copy_(gradient_of(rank, 3)["deep.weight"].flatten())
        for _ in range(3):
            with pytest.raises((netsum.torch.Error, RuntimeError)):
                state._reduce(bucket).wait()
        assert_same(state.state_dict(), saved)
        return calls

    assert any(ranks.run(on_rank)), (
        "one rank at least was in the midst of its pass; it may have ended those of the others"
    )


LEVELS = ["none", "int8", {"method": "topk", "ratio": 0.1}]


def step_at(level, state, gradients):
    """The averages of a step of "auto" at this level."""
    state._controller.enter = lambda entries, dtype: netsum.torch._control.Record(level)
    bucket = Bucket([e.parameter() for e in state._parameters if e.is_controlled])
    bucket.buffer().copy_(gradients)
    state._reduce(bucket).wait()
    return bucket.buffer()


def test_a_level_of_auto_is_taken_back():
    def on_rank(rank):
        del rank
        model, other = Chosen(), Chosen()
        state = netsum.torch.Compression(model, "auto", levels=LEVELS)
        gradients = torch.randn(sum(e.count for e in state._parameters if e.is_controlled))
        step_at(2, state, gradients)
        saved = state.state_dict()
        undisturbed = netsum.torch.Compression(other, "auto", levels=LEVELS)
        undisturbed.load_state_dict(saved)
        for level in (1, 0, 2, 1):
            step_at(level, state, gradients)
            state._pass.fail()
            found = state.state_dict()
            assert_same(found, saved)
            assert all(p["level"] == 2 for p in found["parameters"].values())
        assert torch.equal(step_at(1, state, gradients), step_at(1, undisturbed, gradients))

    ranks.run(on_rank)


def test_a_loaded_state_of_auto_counts_in_the_next_step():
    def on_rank(rank):
        del rank
        model = Chosen()
        state = netsum.torch.Compression(model, "auto", levels=LEVELS)
        gradients = torch.randn(sum(e.count for e in state._parameters if e.is_controlled))
        step_at(2, state, gradients)
        saved = state.state_dict()
        second = step_at(2, state, gradients)
        third = step_at(2, state, gradients)
        state.load_state_dict(saved)
        again = step_at(2, state, gradients)
        assert torch.equal(again, second) and not torch.equal(again, third)

    ranks.run(on_rank)


def test_an_average_of_weights_that_fails_leaves_those_before_it():
    """Fragments are averaged at different steps: one that was averaged does not fail with the next one."""

    def on_rank(rank):
        model = Chosen()
        updates = LocalUpdates(model, every=2, fragments=2, method="topk", ratio=0.1)
        generator = torch.Generator().manual_seed(rank)

        def train():
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += torch.randn(parameter.shape, generator=generator)
            updates.step()

        train()
        train()
        train()  # the first fragment, for the second time
        saved = updates.compression.state_dict()
        ranks.meet()  # no barrier, which an abort ends on slow ranks
        dist.distributed_c10d._get_default_group().abort()
        with pytest.raises((netsum.torch.Error, RuntimeError)):
            train()
        assert_same(updates.compression.state_dict(), saved)

    ranks.run(on_rank)


def test_ranks_that_average_different_fragments_are_told_at_once():
    """Which one it is follows from a rank's count of steps; the fragments have equal shapes, and are not compressed."""

    def on_rank(rank):
        model = Chosen(shapes={"one.weight": (4, 4), "other.weight": (4, 4)})
        updates = LocalUpdates(model, every=2, fragments=2)
        updates._steps = int(rank == 1)
        with pytest.raises((netsum.torch.Error, RuntimeError)):
            updates.step()
        assert netsum.torch.error().code == "mismatch"

    ranks.run(on_rank)
