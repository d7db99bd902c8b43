"""Waves: the schedule of the paper, its memory and its plan, what it refuses, and how it fails."""

import copy
import os
import threading

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from netsum.torch import Waves, _activations
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

BATCHES = 7


WIDTH = 128  # gradients of more than 4096 bytes: the groups join their jobs


def model_of():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(rank, number, size=5):
    generator = torch.Generator().manual_seed(1000 * number + rank)
    return torch.randn(size, WIDTH, generator=generator), torch.randn(size, 4, generator=generator)


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def vector(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def by_definition(world_size, make=momentum, batches=BATCHES, rank=0):
    """The losses of a rank, and the weights of both replicas, computed in one process, by the paper's order."""
    model = model_of()
    optimizer = make(model)
    replicas = [(model, optimizer), copy.deepcopy((model, optimizer))]
    losses, previous = [], [torch.zeros_like(p) for p in model.parameters()]
    for number in range(batches):
        model, optimizer = replicas[number % 2]
        optimizer.param_groups[0]["lr"] = 0.1 if number < 4 else 0.05
        optimizer.zero_grad()
        for other in range(world_size):
            loss = loss_of(model, *batch(other, number))
            (loss / world_size).backward()
            if other == rank:
                losses.append(loss.item())
        raw = [p.grad for p in model.parameters()]
        for parameter, before, now in zip(model.parameters(), previous, raw, strict=True):
            parameter.grad = (before + now) / 2
        optimizer.step()
        previous = raw
    return losses, [vector(model) for model, _ in replicas]


def weights_of(waves):
    return [vector(replica.module) for replica in waves._replicas]


@pytest.mark.filterwarnings("error:Detected call of")  # of a scheduler
@pytest.mark.parametrize(("backend", "at_once"), [("netsum", 1.0), ("gloo", 2.0)])
@pytest.mark.parametrize("make", [momentum, lambda model: torch.optim.AdamW(model.parameters(), lr=0.1)])
def test_the_steps_are_those_of_the_paper(backend, at_once, make):
    def on_rank(rank):
        model = model_of()
        optimizer = make(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
        waves = Waves(model, optimizer, loss_of, at_once=at_once, bucket_cap_mb=0.0001)
        losses = []
        for number in range(BATCHES):
            losses.append(waves.step(*batch(rank, number)))
            scheduler.step()
        waves.synchronize()
        wanted_losses, wanted = by_definition(3, make, rank=rank)
        torch.testing.assert_close(torch.stack([f.result() for f in losses]), torch.tensor(wanted_losses))
        found = weights_of(waves)
        for own, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)
        with waves.mean():
            torch.testing.assert_close(vector(model), (found[0] + found[1]) / 2)
            with pytest.raises(RuntimeError, match=r"inside mean\(\)"):
                waves.step(*batch(rank, 0))
        assert torch.equal(vector(model), found[0])
        waves.close()
        torch.testing.assert_close(vector(model), (found[0] + found[1]) / 2)
        assert threading.active_count() == 1 or all("wave" not in t.name for t in threading.enumerate())
        return found

    first, *others = ranks.run(on_rank, world_size=3, backend=backend)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_one_computes_while_the_sums_of_the_other_are_on_their_way():
    def on_rank(rank):
        held, events = [], []

        def hold(_, bucket):
            events.append("gradients")
            future = torch.futures.Future()
            if held:
                future.set_result(bucket.buffer())
            held.append((future, bucket.buffer()))
            return future

        def loss(model, x, y):
            events.append("forward")
            if len(events) == 3:  # of the second batch
                held[0][0].set_result(held[0][1])
            return loss_of(model, x, y)

        model = model_of()
        waves = Waves(model, momentum(model), loss, hook=lambda ddp: (None, hold), timeout_s=20)
        for number in range(2):
            waves.step(*batch(rank, number))
        waves.close()
        assert events == ["forward", "gradients"] * 2

    ranks.run(on_rank, world_size=1)


def test_a_wave_begins_where_the_plan_says():
    def on_rank(rank):
        model, has_begun = model_of(), threading.Event()

        def loss(ddp, x, y):
            if ddp.module is not model and len(x) == 3:
                has_begun.set()
            return loss_of(ddp, x, y)

        waves = Waves(model, momentum(model), loss, at_once=2.0)
        for number in range(4):
            waves.step(*batch(rank, number))
        waves.synchronize()
        waves.plan = _activations.WavesPlan(0.5, "2.weight", 0, 0, 0)  # the last layer, whose gradient comes first
        model[0].weight.register_hook(lambda gradient: None if has_begun.wait(20) else gradient * torch.nan)
        for number in range(2):
            waves.step(*batch(rank, number, size=3))
        waves.synchronize()
        assert has_begun.is_set() and vector(model).isfinite().all()
        waves.close()

    ranks.run(on_rank, world_size=1)


def test_the_difference_of_the_replicas_stays_until_one_is_broadcast():
    def on_rank(rank):
        torch.manual_seed(1)
        model = nn.Linear(3, 1, bias=False)
        # The loss of each coordinate is a parabola, so that only the factor -1 of the steps is left at the end.
        curvatures, target = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([[1.0, -2.0, 3.0]])

        def parabola(ddp, shift):
            return 0.5 * (curvatures * (ddp(torch.eye(3)).flatten() - target - shift) ** 2).sum()

        waves = Waves(model, torch.optim.SGD(model.parameters(), lr=0.6), parabola, broadcast_every=None)
        second = waves._replicas[1].module.weight
        with torch.no_grad():
            second.add_(0.5)
        differences = []
        for number in range(120):
            waves.step(torch.full((1, 3), rank - 0.5))
            if number in (59, 119):
                waves.synchronize()
                differences.append(second.detach() - model.weight.detach())
        with waves.mean():
            found = model.weight.detach().clone()
        torch.testing.assert_close(found, target, rtol=1e-4, atol=1e-4)
        assert differences[0].abs().min() > 0.1
        torch.testing.assert_close(*differences, rtol=1e-3, atol=1e-4)
        waves.broadcast()
        assert torch.equal(model.weight, second)
        waves.close()

    ranks.run(on_rank, world_size=2)


def test_a_broadcast_copies_weights_buffers_and_state():
    def on_rank(rank):
        model = nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        waves = Waves(model, optimizer, loss_of, broadcast_every=3)
        for number in range(3):
            waves.step(*batch(rank, number)).result()
        first, second = waves._replicas
        before = vector(first.module), vector(second.module)
        waves.step(*batch(rank, 3)).result()  # of the second one, which has first become as the first one
        assert torch.equal(vector(first.module), before[0])
        assert not torch.equal(*before)
        saved = [replica.optimizer.state_dict()["state"][0] for replica in (first, second)]
        assert [state["step"].item() for state in saved] == [2, 3]
        assert [replica.module[1].num_batches_tracked.item() for replica in (first, second)] == [2, 3]
        # At half weight, as the first step.
        gradient = torch.zeros(4, WIDTH)
        for other in range(2):
            twin = copy.deepcopy(first.module)
            loss_of(twin, *batch(other, 3)).backward()
            gradient += twin[0].weight.grad / 2
        wanted = saved[0]["exp_avg"] * 0.9 + 0.1 * gradient / 2
        torch.testing.assert_close(saved[1]["exp_avg"], wanted)
        assert optimizer.state_dict()["state"][0]["step"].item() == 2
        waves.close()

    ranks.run(on_rank, world_size=2)


class Some(nn.Module):
    """Uses its second layer in some batches."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.always, self.rare = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)

    def forward(self, x, rare):
        return self.always(x) + (self.rare(x) if rare else 0.0)


def loss_of_some(model, x, y, rare):
    return nn.functional.mse_loss(model(x, rare), y)


def test_parameters_that_a_batch_does_not_use():
    def on_rank(rank):
        model = Some()
        waves = Waves(model, momentum(model), loss_of_some, find_unused_parameters=True)
        before, moved = vector(model.rare), []
        twin = waves._replicas[1].module
        for number, rare in enumerate([False, False, rank == 1, False, False, False]):
            waves.step(*batch(rank, number), rare).result()
            now = vector((model, twin)[number % 2].rare)
            moved.append(not torch.equal(now, before))
        # The gradient of batch 2 is in two steps; after them, momentum alone does not move what has no gradient.
        assert moved == [False, False, True, True, True, True]
        assert [len(r.optimizer.state_dict()["state"]) for r in waves._replicas] == [4, 4]
        once = vector(twin.rare)
        waves.step(*batch(rank, 6), False).result()
        waves.step(*batch(rank, 7), False).result()
        assert torch.equal(vector(twin.rare), once)
        waves.close()

        model = Some()
        waves = Waves(model, momentum(model), loss_of_some)
        with pytest.raises(RuntimeError, match=r"does not depend on rare.weight, rare.bias.*find_unused_parameters"):
            waves.step(*batch(rank, 0), False).result()
        waves.close()

    ranks.run(on_rank, world_size=2)


def test_an_encoding_by_hook_and_clipping_before_the_step():
    def on_rank(rank):
        model = model_of()
        norms = []

        def clip(replica):
            norms.append(nn.utils.clip_grad_norm_(replica.parameters(), 0.01).item())

        waves = Waves(
            model,
            torch.optim.SGD(model.parameters(), lr=1.0),
            loss_of,
            before_step=clip,
            hook=lambda ddp: (netsum.torch.Compression(ddp, "bf16"), netsum.torch.compression_hook),
        )
        before = vector(model)
        waves.step(*batch(rank, 0)).result()
        assert norms[0] > 0.02
        assert (vector(model) - before).norm().item() == pytest.approx(0.01, rel=1e-3)
        waves.step(*batch(rank, 1)).result()
        waves.close()

    ranks.run(on_rank, world_size=2)


@pytest.mark.parametrize("backend", ["netsum", "gloo"])
def test_an_error_in_a_thread_ends_both_replicas_on_all_ranks(backend):
    def on_rank(rank):
        def loss(model, x, y):
            if rank == 1 and len(x) == 3:
                raise ArithmeticError("no loss for three samples")
            return loss_of(model, x, y)

        model = model_of()
        waves = Waves(model, momentum(model), loss)
        futures = []
        of_peer = netsum.torch.Error if backend == "netsum" else RuntimeError

        def train():
            for number in range(20):
                futures.append(waves.step(*batch(rank, number, size=3 if number == 3 else 5)))

        with pytest.raises(ArithmeticError if rank == 1 else of_peer) as caught:
            train()
        assert rank == 0 or futures[1].exception() is None  # replica 1 had ended it
        for call in (waves.synchronize, waves.step, futures[-1].result, waves.mean().__enter__):
            with pytest.raises(type(caught.value)):
                call()
        waves.close()
        assert not any(thread.name.startswith("wave") for thread in threading.enumerate())
        return len(futures)

    assert max(ranks.run(on_rank, world_size=2, backend=backend, timeout_s=20)) <= 6


def test_a_lost_rank_ends_the_training():
    def on_rank(rank):
        model = model_of()
        waves = Waves(model, momentum(model), loss_of)

        def train():
            for number in range(50):
                if (rank, number) == (1, 5):
                    os._exit(3)
                waves.step(*batch(rank, number))

        with pytest.raises(netsum.torch.Error) as caught:
            train()
        waves.close()
        return caught.value.code, caught.value.rank

    outcomes = ranks.run_all_outcomes(on_rank, world_size=2, timeout_s=10)
    assert outcomes[1].exit_code == 3
    assert outcomes[0].value == ("peer_lost", 1), outcomes[0]


def test_ranks_that_differ_are_told_at_once():
    def on_rank(rank):
        model = model_of()
        with pytest.raises(ValueError, match="broadcast_every is 100 on rank 0 and 101 on rank 1"):
            Waves(model, momentum(model), loss_of, broadcast_every=100 + rank)
        make = DistributedDataParallel if rank else lambda module: Waves(module, momentum(module), loss_of)
        with pytest.raises(dist.DistBackendError) as caught:
            make(model)
        assert netsum.torch.error().code == "mismatch"
        return str(caught.value)

    assert "all_reduce" in ranks.run(on_rank, world_size=2)[0]


class CountsSteps(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


class Halves(torch.optim.SGD):
    def __init__(self, parameters, lr):
        super().__init__(parameters, lr)
        self.factor = 0.5

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad.mul_(self.factor)
        return super().step(closure)


def test_an_optimizer_with_attributes():
    def on_rank(rank):
        model = model_of()
        waves = Waves(model, Halves(model.parameters(), 0.2), loss_of, separable=True)
        for number in range(4):
            waves.step(*batch(rank, number))
        waves.synchronize()
        _, wanted = by_definition(1, lambda model: torch.optim.SGD(model.parameters(), lr=0.1), batches=4)
        for own, expected in zip(weights_of(waves), wanted, strict=True):
            torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-6)
        waves.close()

    ranks.run(on_rank, world_size=1)


def test_refuses_what_it_cannot_train():
    def on_rank(rank):
        model = model_of()
        for optimizer, kind, text in [
            (torch.optim.LBFGS(model.parameters()), ValueError, "one state for all parameters"),
            (CountsSteps(model.parameters(), lr=0.1), ValueError, "separable=True"),
            (momentum(model_of()), ValueError, "not of the model"),
            (None, TypeError, "NoneType"),
        ]:
            with pytest.raises(kind, match=text):
                Waves(model, optimizer, loss_of)
        hooked = momentum(model)
        hooked.register_step_pre_hook(lambda *_: None)
        for arguments, options, text in [
            ((model, hooked), {}, "hooks of its steps"),
            ((model, momentum(model)), {"at_once": 0.5}, "at_once is 0.5"),
            ((model, momentum(model)), {"broadcast_every": 1}, "broadcast_every is 1"),
            ((model, momentum(model)), {"static_graph": True}, "static_graph"),
        ]:
            with pytest.raises(ValueError, match=text):
                Waves(*arguments, loss_of, **options)
        with pytest.raises(TypeError, match="pass the module itself"):
            Waves(DistributedDataParallel(model), momentum(model), loss_of)
        waves = Waves(model, CountsSteps(model.parameters(), lr=0.1), loss_of, separable=True)
        with pytest.raises(TypeError, match="its step changes steps"):
            waves.step(*batch(rank, 0)).result()
        waves.close()
        with pytest.raises(TypeError, match="its step changes steps"):
            waves.step(*batch(rank, 1))

    ranks.run(on_rank, world_size=2)


@pytest.mark.filterwarnings("error:Seems like")  # of a scheduler
@pytest.mark.parametrize("scheduled", [False, True])
def test_steps_of_the_optimizer_and_of_a_scaler_are_refused_until_it_is_closed(scheduled):
    def on_rank(rank):
        model = model_of()
        optimizer = momentum(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if scheduled else None
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        waves = Waves(model, optimizer, lambda *batch: scaler.scale(loss_of(*batch)))
        waves.step(*batch(rank, 0)).result()
        if scheduled:
            scheduler.step()
        before, gradients = vector(model), [p.grad.clone() for p in model.parameters()]
        with pytest.raises(RuntimeError, match="Waves takes the steps"):
            optimizer.step()
        for factor in (1.0, torch.inf):  # GradScaler leaves out the step of other optimizers
            model[0].weight.grad.mul_(factor)
            with pytest.raises(RuntimeError, match="GradScaler does not work"):
                scaler.step(optimizer)
            assert all(torch.equal(p.grad, g) for p, g in list(zip(model.parameters(), gradients, strict=True))[1:])
        assert torch.equal(vector(model), before)
        waves.close()
        model[0].weight.grad = gradients[0]
        before = vector(model)
        optimizer.step()
        assert not torch.equal(vector(model), before)
        assert not hasattr(optimizer, "_step_supports_amp_scaling")

    ranks.run(on_rank, world_size=1)


@pytest.mark.soak
@pytest.mark.parametrize("rate", [0.0, 0.9])  # of momentum
def test_the_loss_is_that_of_twice_as_many_ranks_at_equal_samples(rate):
    world_size, batches, size = 2, 600, 16
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(batches * world_size, size, 20, generator=generator)
    labels = (inputs @ torch.randn(20, 3, generator=generator) + torch.randn(3, generator=generator)).argmax(-1)

    def loss(model, x, y):
        return nn.functional.cross_entropy(model(x.flatten(0, -2)), y.flatten())

    def make():
        torch.manual_seed(1)
        model = nn.Linear(20, 3)
        return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=rate)

    def on_rank(rank):
        model, optimizer = make()
        first = loss(model, inputs, labels).item()
        waves = Waves(model, optimizer, loss)  # with a broadcast at 500
        for number in range(batches):
            waves.step(inputs[world_size * number + rank], labels[world_size * number + rank])
        waves.close()
        found = loss(model, inputs, labels).item()
        model, optimizer = make()
        for x, y in zip(inputs.split(2 * world_size), labels.split(2 * world_size), strict=True):
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
        return first, found, loss(model, inputs, labels).item()

    first, found, wanted = ranks.run(on_rank, world_size=world_size)[0]
    assert wanted < 0.5 * first
    assert found == pytest.approx(wanted, rel=0.01)


# Memory.


def linear(ratio, peak=1000, bins=1200):
    """A rise over the forward pass, and a fall over the backward pass, which takes `ratio` times as long."""
    forward = bins / (1 + ratio)
    return [peak * min(i / forward, (bins - i) / (bins - forward)) for i in range(bins)]


@pytest.mark.parametrize(
    ("ratio", "half", "after_forward"), [(1, 1.0, 1.0), (1.5, 1.17, 4 / 3), (2, 1.25, 1.5), (3, 1.33, 5 / 3)]
)
def test_the_peak_of_two_passes(ratio, half, after_forward):
    bins = linear(ratio)
    assert _activations.peak_of_two(bins, 0.5) == pytest.approx(1000 * half, rel=0.01)
    assert _activations.peak_of_two(bins, 1 / (1 + ratio)) == pytest.approx(1000 * after_forward, rel=0.01)
    assert _activations.peak_of_two(bins, 0) == 2 * max(bins)
    assert _activations.peak_of_two(bins, 1) == max(bins)


def test_the_plan_has_the_least_peak_that_is_fast_and_fits():
    bins, marks = linear(2), {"last": 0.4, "b": 0.5, "a": 0.6, "first": 1.0}
    assert _activations.turn_s(0.5, at_once=2) == 0.5
    assert _activations.turn_s(0.7, at_once=1) == pytest.approx(1)
    plans = [
        _activations.plan(bins, marks, fixed_bytes=100, memory_bytes=limit, at_once=at_once)
        for limit, at_once in [(None, 1), (None, 2), (1855, 2), (1705, 2), (1600, 2)]
    ]
    assert [(p.offset, p.start) for p in plans] == [(1.0, None), (0.5, "b"), (0.5, "b"), (0.6, "a"), (1.0, None)]
    assert [p.activation_bytes for p in plans] == pytest.approx([1000, 1250, 1250, 1100, 1000], rel=0.01)
    assert [p.most_bytes for p in plans] == pytest.approx([1000, 1750, 1750, 1600, 1000], rel=0.01)
    with pytest.raises(ValueError, match=r"1099 is too small for one wave.*100 bytes.* 1000"):
        _activations.plan(bins, marks, fixed_bytes=100, memory_bytes=1099)


class Counted:
    """The bytes that autograd keeps for both replicas together, by another way of counting: one by one, while they are alive."""

    def __init__(self, parameters):
        self.lock, self.alive, self.peak = threading.Lock(), {}, 0
        self.ours = {p.data_ptr() for p in parameters}

    def loss(self, model, x, y):
        with torch.autograd.graph.saved_tensors_hooks(self.keep, lambda kept: kept[0].tensor):
            return loss_of(model, x, y)

    def keep(self, tensor):
        kept = Box()
        kept.tensor, kept.counted = tensor.detach(), self
        if tensor.data_ptr() not in self.ours:
            with self.lock:
                self.alive[id(kept)] = (tensor.data_ptr(), tensor.numel() * tensor.element_size())
                self.peak = max(self.peak, sum(dict(self.alive.values()).values()))
        return (kept,)


class Box:
    def __del__(self):
        with self.counted.lock:
            self.counted.alive.pop(id(self), None)


@pytest.mark.parametrize(("layers", "at_once"), [(3, 1), (12, 2), pytest.param(12, 1, marks=pytest.mark.soak)])
def test_the_peak_of_the_plan_is_that_of_both_replicas(layers, at_once):
    def on_rank(rank):
        model = nn.Sequential(*(m for _ in range(layers) for m in (nn.Linear(64, 64), nn.Tanh())))
        counted = None

        def loss(ddp, x, y):
            return counted.loss(ddp, x, y) if counted else loss_of(ddp, x, y)

        optimizer = torch.optim.Adam(model.parameters())
        waves = Waves(model, optimizer, loss, at_once=at_once)
        x = torch.randn(100, 64)
        waves.step(x, x.flip(1)).result()
        # The input, and the output of every layer; the targets are flipped into a storage of their own.
        assert waves.plan.activation_bytes == (layers + 2) * 100 * 64 * 4
        weights = sum(p.nbytes for p in model.parameters())
        assert waves.plan.fixed_bytes == (2 + 3 + 2 * 2) * weights + 2 * 2 * layers * 4  # and the counts of steps
        for _ in range(2):
            waves.step(x, x.flip(1)).result()
        counted = Counted(p for replica in waves._replicas for p in replica.parameters)
        for _ in range(10):
            waves.step(x, x.flip(1))
        waves.close()
        if at_once == 1:
            assert counted.peak == pytest.approx(waves.plan.activation_bytes, rel=0.05)
        assert (layers + 2) * 100 * 64 * 4 <= counted.peak <= waves.plan.most_bytes

    ranks.run(on_rank, world_size=2)


def test_a_limit_of_memory():
    def on_rank(rank):
        model = model_of()
        waves = Waves(model, momentum(model), loss_of, memory_bytes=1 << 20)
        waves.step(*batch(rank, 0)).result()
        needed = waves.plan.fixed_bytes + waves.plan.activation_bytes
        waves.close()
        model = model_of()
        waves = Waves(model, momentum(model), loss_of, memory_bytes=needed)
        # One rank needs more, and all hear of it.
        with pytest.raises(ValueError, match=f"memory_bytes={needed} is too small for one wave"):
            waves.step(*batch(rank, 0, size=5 + rank)).result()
        waves.close()

    ranks.run(on_rank, world_size=2)
