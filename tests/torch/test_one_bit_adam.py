"""1-bit Adam: against Adam, and against a simulation of all ranks; skipped steps; saved and restored."""

import copy

import pytest
import ranks
from one_bit_adam import OneBitAdam
from test_compress import COMPRESSED, SHAPES, Chosen, batch, make_model
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

SIZE = 2
WARMUP = 4
LR, BETAS, EPS = 0.01, (0.9, 0.99), 1e-8


def gradient_of(rank, step):
    """Of the same sign on all ranks, and not small, so that no average is: Adam would magnify its last bits."""
    signs, sizes = (torch.Generator().manual_seed(seed) for seed in (step, 1000 * step + rank + 1))
    return {
        name: (torch.randint(0, 2, shape, generator=signs) - 0.5) * (1 + 2 * torch.rand(shape, generator=sizes))
        for name, shape in SHAPES.items()
    }


def take_step(optimizer, model, rank, step):
    for name, parameter in model.named_parameters():
        parameter.grad = gradient_of(rank, step)[name]
    optimizer.step()


def averages(step):
    everyone = [gradient_of(r, step) for r in range(SIZE)]
    return {name: sum(g[name] for g in everyone) / SIZE for name in SHAPES}


def test_the_warm_up_is_adam():
    def on_rank(rank):
        model, expected = Chosen(), Chosen()
        optimizer = OneBitAdam(model, LR, BETAS, EPS, warmup_steps=WARMUP)
        adam = torch.optim.Adam(expected.parameters(), LR, BETAS, EPS)
        for step in range(WARMUP):
            take_step(optimizer, model, rank, step)
            for name, parameter in expected.named_parameters():
                parameter.grad = averages(step)[name]
            adam.step()
            for mine, theirs in zip(model.parameters(), expected.parameters(), strict=True):
                assert torch.allclose(mine, theirs, atol=1e-4 * LR), step

    ranks.run(on_rank, world_size=SIZE)


def one_bit(tensors):
    """Of all ranks: signs, and the means of all that is positive and of all that is negative."""
    everything = torch.stack(tensors).double()
    plus, minus = everything[everything >= 0].mean(), everything[everything < 0].mean()
    return [torch.where(t >= 0, plus, minus).float() for t in tensors]


def test_momenta_are_those_of_a_simulation():
    def on_rank(rank):
        model = Chosen()
        optimizer = OneBitAdam(model, LR, BETAS, EPS, warmup_steps=WARMUP)
        m, v, x = ({name: torch.zeros(s) for name, s in SHAPES.items()} for _ in range(3))
        kept = {name: [torch.zeros(SHAPES[name]) for _ in range(SIZE)] for name in COMPRESSED}
        for step in range(3 * WARMUP):
            take_step(optimizer, model, rank, step)
            for name in SHAPES:
                everyone = [gradient_of(r, step)[name] for r in range(SIZE)]
                if step < WARMUP:
                    mean = sum(everyone) / SIZE
                    m[name] = BETAS[0] * m[name] + (1 - BETAS[0]) * mean
                    v[name] = BETAS[1] * v[name] + (1 - BETAS[1]) * mean**2
                else:
                    momenta = [BETAS[0] * m[name] + (1 - BETAS[0]) * g for g in everyone]
                    if name in COMPRESSED:
                        wanted = [k + own for k, own in zip(kept[name], momenta, strict=True)]
                        momenta = one_bit(wanted)
                        kept[name] = [w - sent for w, sent in zip(wanted, momenta, strict=True)]
                    m[name] = sum(momenta) / SIZE
                deviation = (v[name] / (1 - BETAS[1] ** min(step + 1, WARMUP))).sqrt() + EPS
                x[name] = x[name] - LR / (1 - BETAS[0] ** (step + 1)) * m[name] / deviation
            for name, parameter in model.named_parameters():
                assert torch.allclose(parameter, x[name], rtol=1e-4, atol=1e-4 * LR), (name, step)
        for name in COMPRESSED:
            saved = optimizer.state_dict()["compression"]["parameters"][name]["memory"]["residual"]
            assert torch.allclose(saved.reshape(SHAPES[name]), kept[name][rank], atol=1e-4)
        return [p.detach().clone() for p in model.parameters()]

    first, second = ranks.run(on_rank, world_size=SIZE)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def losses_of(rank, make_optimizer, steps=150):
    model = make_model()
    optimizer = make_optimizer(model)
    for step in range(steps):
        optimizer.zero_grad()
        x, y = batch(rank, step)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        return sum(nn.functional.mse_loss(model(x), y).item() for x, y in (batch(99, s) for s in range(20))) / 20


@pytest.mark.soak  # the tests above have each of its steps
def test_training_ends_near_the_loss_of_adam():
    def on_rank(rank):
        def optimizer(warmup):
            return lambda model: OneBitAdam(model, 0.01, warmup_steps=warmup)

        return [losses_of(rank, optimizer(1000), 0), losses_of(rank, optimizer(1000)), losses_of(rank, optimizer(50))]

    untrained, plain, compressed = ranks.run(on_rank, world_size=SIZE)[0]
    assert plain < 0.1 * untrained
    assert compressed < plain + 0.05 * untrained


def test_a_step_that_is_not_finite_is_skipped_on_all_ranks():
    def on_rank(rank):
        model = Chosen()
        optimizer = OneBitAdam(model, LR, BETAS, EPS, warmup_steps=2)
        for step in range(6):
            before = [p.detach().clone() for p in model.parameters()]
            for name, parameter in model.named_parameters():
                parameter.grad = gradient_of(rank, step)[name]
                if step in (1, 4) and rank == 1 and name == "deep.weight":
                    parameter.grad[3, 3] = float("nan")
            optimizer.step()
            moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
            assert all(moved) if step not in (1, 4) else not any(moved), step
            assert all(p.isfinite().all() for p in model.parameters())

    ranks.run(on_rank, world_size=SIZE)


def test_a_restored_state_continues():
    def on_rank(rank):
        models = [Chosen(), Chosen()]
        first, second = (OneBitAdam(m, LR, BETAS, EPS, warmup_steps=3) for m in models)
        for step in range(6):
            take_step(first, models[0], rank, step)
        models[1].load_state_dict(models[0].state_dict())
        second.load_state_dict(copy.deepcopy(first.state_dict()))  # which has the momenta themselves
        for step in range(6, 9):
            take_step(first, models[0], rank, step)
            take_step(second, models[1], rank, step)
        for mine, theirs in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-4 * LR)
        other = OneBitAdam(Chosen(shapes={"wide.weight": (30, 51)}), warmup_steps=3)
        with pytest.raises(
            ValueError, match=r"momenta of the shapes .*30, 50.* the model has parameters of \[\[30, 51\]\]"
        ):
            other.load_state_dict(first.state_dict())

    ranks.run(on_rank, world_size=SIZE)


def test_wrong_settings_are_refused():
    def on_rank(rank):
        with pytest.raises(ValueError, match="warmup_steps is 0"):
            OneBitAdam(Chosen(), warmup_steps=0)
        with pytest.raises(ValueError, match="betas are"):
            OneBitAdam(Chosen(), betas=(0.9, 1.0), warmup_steps=1)
        with pytest.raises(TypeError, match="without DistributedDataParallel"):
            OneBitAdam(DistributedDataParallel(Chosen()), warmup_steps=1)

    ranks.run(on_rank, world_size=SIZE)
