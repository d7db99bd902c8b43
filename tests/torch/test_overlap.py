"""OverlappedOptimizer: the bits of DistributedDataParallel, without its barrier; what it refuses; how it fails."""

import copy
import os
import queue

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from netsum.torch import Compression, OverlappedOptimizer, compression_hook
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

STEPS = 6
WORLD_SIZE = 3  # a number by which DDP's factor rounds
OPTIMIZERS = {
    "momentum": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, amsgrad=True),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5),
    "foreach": lambda groups: torch.optim.AdamW(groups, lr=0.01, foreach=True),
}


class Model(nn.Module):
    """With modules that use the parameters of others without calling them, and one parameter in two places."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(16, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)  # does not call its out_proj
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(32)) for _ in range(2)])
        self.weighted = nn.utils.weight_norm(nn.Linear(32, 32))
        self.norm = nn.BatchNorm1d(5)  # with buffers, which DDP broadcasts
        self.rare = nn.Linear(32, 32)
        self.last = nn.Linear(32, 16)
        self.tied = nn.Linear(16, 32)
        self.tied.weight = self.first.weight

    def forward(self, x, rare=False):
        y = self.norm(self.first(x))
        y = y + self.attention(y, y, y, need_weights=False)[0] * self.scales[0]
        y = torch.tanh(self.weighted(y) + self.scales[1])
        return self.last(self.rare(y) if rare else y) @ self.tied.weight.T + self.tied.bias


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(4, 5, 16, generator=generator)
    return x, torch.cat([x, x.flip(2)], dim=2)


def groups_of(model):
    """Two groups with settings of their own."""
    biases = [p for p in model.parameters() if p.dim() == 1]
    return [{"params": [p for p in model.parameters() if p.dim() > 1]}, {"params": biases, "lr": 0.02}]


class Late(queue.SimpleQueue):
    """step() finds nothing in it, so all updates are those of the next forward pass."""

    def empty(self):
        return True


def train(rank, overlaps, make=OPTIMIZERS["adamw"], *, use=None, rare=None, make_hook=None, **ddp_options):
    """Returns the losses of STEPS steps and the weights, with a scheduler, and an evaluation in the middle.

    use: what to do in the place of a step's backward pass. make_hook(model): a state and a communication hook. rare:
    (rank, step) for which some parameters have a gradient.
    """
    if rare is None:
        module = Model()
        module.rare.requires_grad_(False)
    else:
        module, ddp_options = Model(), {"find_unused_parameters": True, **ddp_options}
    model = DistributedDataParallel(module, bucket_cap_mb=0.0001, **ddp_options)
    optimizer = make(groups_of(model))
    hook = make_hook(model) if make_hook else None
    if overlaps:
        optimizer = OverlappedOptimizer(model, optimizer, hook=hook)
        if overlaps == "late":
            optimizer._arrivals = Late()
    elif hook:
        model.register_comm_hook(*hook)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    losses = []

    def backward(step):
        x, y = batch(rank, step)
        loss = nn.functional.mse_loss(model(x, rare=bool(rare and (rank, step) in rare)), y)
        loss.backward()
        losses.append(loss.item())
        return loss

    for step in range(STEPS):
        if use is None:
            backward(step)
            optimizer.step()
        else:
            use(step, model, optimizer, backward)
        scheduler.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        if step == 3:
            with torch.no_grad():
                losses.append(model(batch(rank, 0)[0]).sum().item())
    if overlaps:
        optimizer.synchronize()
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


def accumulate(step, model, optimizer, backward):
    with model.no_sync():
        backward(step)
    backward(step + 100)
    optimizer.step()


def accumulate_sums(step, _model, optimizer, backward):
    """Without no_sync(): the mean of a pass is there when the next one adds to it."""
    backward(step)
    backward(step + 100)
    optimizer.step()


def use_closure(step, _model, optimizer, backward):
    assert optimizer.step(lambda: backward(step)).item() > 0


def clip(step, model, optimizer, backward):
    backward(step)
    getattr(optimizer, "synchronize", lambda: None)()
    assert nn.utils.clip_grad_norm_(model.parameters(), 0.1) > 0.1
    optimizer.step()


def step_twice(step, _model, optimizer, backward):
    backward(step)
    optimizer.step()
    optimizer.step()


def save_and_load(step, model, optimizer, backward):
    backward(step)
    optimizer.step()
    weights = {n: t.clone() for n, t in model.state_dict().items()}
    saved = copy.deepcopy(optimizer.state_dict())
    backward(step + 100)
    optimizer.step()
    model.load_state_dict(weights)
    optimizer.load_state_dict(saved)


def skip_some(step, _model, optimizer, backward):
    backward(step)
    if step % 3:
        optimizer.step()


USES = [accumulate, accumulate_sums, use_closure, clip, step_twice, save_and_load, skip_some]


def compare(rank, **options):
    losses, weights = train(rank, False, **options)
    for overlaps in ("late", "at once"):
        own_losses, own_weights = train(rank, overlaps, **options)
        assert own_losses == losses, (overlaps, options, own_losses, losses)
        assert torch.equal(own_weights, weights), (overlaps, options)
    assert len(set(losses)) == len(losses)  # every step moves the weights


@pytest.mark.parametrize(
    ("optimizers", "uses"),
    [
        ([], [accumulate, clip]),
        pytest.param(list(OPTIMIZERS), USES, marks=pytest.mark.soak),
    ],
    ids=["some", "all"],
)
def test_same_bits_as_ddp(optimizers, uses):
    def on_rank(rank):
        for name in optimizers:
            compare(rank, make=OPTIMIZERS[name])
        for use in uses:
            compare(rank, use=use)
        compare(rank, rare={(0, 1), (1, 3), (2, 3)})  # and in steps 0, 2, 4, 5 no rank uses them
        compare(rank, rare={(0, 1)}, use=step_twice)

    ranks.run(on_rank, world_size=WORLD_SIZE)


def test_same_bits_as_ddp_over_gloo():
    def on_rank(rank):
        compare(rank)
        compare(rank, use=accumulate)

    ranks.run(on_rank, world_size=WORLD_SIZE, backend="gloo")


def test_hooks_sum_the_buckets():
    def on_rank(rank):
        compare(rank, make_hook=lambda model: (None, netsum.torch.ddp_hook))
        compare(rank, make_hook=lambda model: (Compression(model, "topk", ratio=0.1, min_elements=1), compression_hook))

    ranks.run(on_rank, world_size=2)


class Held:
    """A sum whose results arrive when the test lets them."""

    def __init__(self):
        self.futures = []

    def hook(self, state, bucket):
        future = torch.futures.Future()
        self.futures.append((future, netsum.torch.ddp_hook(state, bucket)))
        return future

    def release_all(self):
        while self.futures:
            self.release(0)
            del self.futures[0]

    def release(self, index):
        future, result = self.futures[index]
        future.set_result(result.wait())


def test_a_module_waits_for_its_own_parameters_only():
    def on_rank(rank):
        held = Held()
        model = DistributedDataParallel(nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))), bucket_cap_mb=0.015)
        optimizer = OverlappedOptimizer(
            model, torch.optim.SGD(model.parameters(), lr=0.1), hook=(None, held.hook), timeout_s=0.2
        )
        x = torch.ones(2, 64)
        for _ in range(2):  # DDP makes its buckets anew after the first pass
            held.release_all()
            model(x).sum().backward()
            optimizer.step()
        assert len(held.futures) == 4
        before = [p.detach().clone() for p in model.parameters()]
        called = []
        for index, module in enumerate(model.module):
            module.register_forward_hook(lambda *_, index=index: called.append(index))
        held.release(3)  # of the first layer
        held.release(2)
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            model(x)
        assert called == [0, 1]
        moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
        assert moved == [True] * 4 + [False] * 4
        with pytest.raises(dist.DistBackendError, match="Timed out"):
            optimizer.step()
        held.release(0)
        held.release(1)
        optimizer.close()
        model.module(x)  # without hooks

    ranks.run(on_rank, world_size=2)


def test_gradients_that_change_before_they_have_arrived_are_refused():
    def on_rank(rank):
        model = DistributedDataParallel(nn.Linear(4, 4))
        optimizer = OverlappedOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.ones(2, 4)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with pytest.raises(RuntimeError, match=r"synchronize\(\)"):
            optimizer.step()
        optimizer.zero_grad()
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(model(torch.ones(2, 4)).sum()).backward()
        with pytest.raises(RuntimeError, match="GradScaler"):
            scaler.step(optimizer)
        optimizer.zero_grad()
        optimizer.synchronize()

    ranks.run(on_rank, world_size=2)


def test_grad_scaler_after_synchronize_skips_the_step_on_every_rank():
    def on_rank(rank):
        model = DistributedDataParallel(nn.Linear(4, 4))
        optimizer = OverlappedOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        scales = []
        for step in range(3):
            loss = model(torch.ones(2, 4)).sum() * (torch.inf if (rank, step) == (1, 1) else 1)
            scaler.scale(loss).backward()
            optimizer.synchronize()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        return scales

    assert ranks.run(on_rank, world_size=2) == [[1024.0, 512.0, 512.0]] * 2


class CountsSteps(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


def refusals(model):
    """What is refused, and a part of the reason."""
    linear = model.module

    def with_option(**options):
        other = DistributedDataParallel(nn.Linear(4, 4), **options)
        return OverlappedOptimizer(other, torch.optim.SGD(other.parameters(), lr=0.1))

    yield (
        lambda: OverlappedOptimizer(linear, torch.optim.SGD(linear.parameters(), lr=0.1)),
        TypeError,
        "not a Distributed",
    )
    yield lambda: OverlappedOptimizer(model, torch.optim.LBFGS(model.parameters())), ValueError, "all parameters"
    yield lambda: OverlappedOptimizer(model, CountsSteps(model.parameters(), lr=0.1)), ValueError, "separable=True"
    yield lambda: OverlappedOptimizer(model, None), TypeError, "NoneType"
    yield lambda: with_option(static_graph=True), ValueError, "without static_graph"
    yield lambda: with_option(gradient_as_bucket_view=True), ValueError, "without gradient_as_bucket_view"


def test_what_cannot_be_split_is_refused():
    def on_rank(rank):
        model = DistributedDataParallel(nn.Linear(4, 4))
        for make, kind, text in refusals(model):
            with pytest.raises(kind, match=text):
                make()
        hooked = torch.optim.SGD(model.parameters(), lr=0.1)
        hooked.register_step_post_hook(lambda *_: None)
        with pytest.raises(ValueError, match="once for each step"):
            OverlappedOptimizer(model, hooked)
        optimizer = OverlappedOptimizer(model, CountsSteps(model.parameters(), lr=0.1), separable=True)
        with pytest.raises(TypeError, match="hooks of steps"):
            optimizer.register_step_pre_hook(lambda *_: None)
        model(torch.ones(2, 4)).sum().backward()

        def update():
            optimizer.step()  # finds it where the sums have arrived already
            optimizer.synchronize()

        with pytest.raises(TypeError, match="changes steps of a group"):
            update()

    ranks.run(on_rank, world_size=2)


class Direct(nn.Sequential):
    """May use its last module's parameters without calling it."""

    direct = False

    def forward(self, x):
        y = self[0](x)
        return nn.functional.linear(y, self[1].weight, self[1].bias) if self.direct else self[1](y)


@pytest.mark.parametrize("in_training", [True, False])
def test_a_module_waits_for_parameters_of_modules_that_it_does_not_call(in_training):
    def on_rank(rank):
        held = Held()
        model = DistributedDataParallel(Direct(nn.Linear(64, 64), nn.Linear(64, 64)), bucket_cap_mb=0.015)
        optimizer = OverlappedOptimizer(
            model, torch.optim.SGD(model.parameters(), lr=0.1), hook=(None, held.hook), timeout_s=0.2
        )
        model.module.direct = in_training
        for _ in range(2):
            held.release_all()
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
        assert len(held.futures) == 2
        held.release(1)  # of the first module
        model.module.direct = True
        with torch.set_grad_enabled(in_training), pytest.raises(dist.DistBackendError, match="Timed out"):
            model(torch.ones(2, 64))
        held.release(0)
        optimizer.close()

    ranks.run(on_rank, world_size=2)


def test_parameters_that_are_used_before_they_have_arrived_are_refused():
    def on_rank(rank):
        held = Held()
        model = DistributedDataParallel(Direct(nn.Linear(64, 64), nn.Linear(64, 64)), bucket_cap_mb=0.015)
        optimizer = OverlappedOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1), hook=(None, held.hook))
        for _ in range(2):
            held.release_all()
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
        assert len(held.futures) == 2
        held.release(1)
        model.module.direct = True
        loss = model(torch.ones(2, 64)).sum()
        with pytest.raises(RuntimeError, match="update was pending"):
            loss.backward()
        held.release(0)
        optimizer.close()

    ranks.run(on_rank, world_size=2)


def test_the_error_of_a_sum_ends_the_training():
    def on_rank(rank):
        model = DistributedDataParallel(nn.Linear(400, 400))
        optimizer = OverlappedOptimizer(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for step in range(100):
            if (rank, step) == (1, 2):
                os._exit(3)
            try:
                model(torch.ones(2, 400)).sum().backward()
                optimizer.step()
            except dist.DistBackendError:
                for call in (optimizer.step, optimizer.synchronize, lambda: model(torch.ones(2, 400))):
                    with pytest.raises(dist.DistBackendError):
                        call()
                optimizer.close()
                return netsum.torch.error().code
        return None

    outcomes = ranks.run_all_outcomes(on_rank, world_size=2, timeout_s=10)
    assert outcomes[0].value == "peer_lost", outcomes[0].error
    assert outcomes[1].exit_code == 3
