"""compress(model, "auto"): the controller in training, with times that the tests make up where levels must change."""

import contextlib
import gc
import itertools
import os
import pathlib
import re
import signal
import urllib.request

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from netsum.torch import _control, _group
from ranks import WORLD_SIZE
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

LEVELS = ["none", "bf16", {"method": "topk", "ratio": 0.05}]
BYTES = [4, 2, 0.2]  # of an element, about
SLOW, FAST = 80_000, 100  # picoseconds for a byte: 100 Mbit/s, 80 Gbit/s
SHAPES = {"first": (200, 300), "bias": (300,), "second": (300, 200), "third": (300, 200)}
LONG_TIMEOUT_S = 60.0


class Chosen(nn.Module):
    """Its gradients are what gradient_of() says."""

    def __init__(self):
        super().__init__()
        for name, shape in SHAPES.items():
            setattr(self, name, nn.Parameter(torch.zeros(shape)))

    def forward(self, gradients):
        return sum((p * gradients[name]).sum() for name, p in self.named_parameters())


def gradient_of(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank + 1)
    return {name: (2 * torch.rand(shape, generator=generator) - 1) ** 5 for name, shape in SHAPES.items()}


def backward(model, gradients):
    model.zero_grad()
    model(gradients).backward()
    return {name: p.grad.clone() for name, p in model.module.named_parameters()}


def wrapped():
    return DistributedDataParallel(Chosen(), bucket_cap_mb=0.3)  # several buckets


def levels_of(state):
    return state.stats()["controller"]["levels"]


@contextlib.contextmanager
def made_up_times(rank, byte_ps):
    """What ranks measure is that of a network with this time of a byte, which may be changed in the list."""

    def measure(self, records, _packets, mine):
        computed, summed, buckets = 0, 1000, []
        for record, (elements, others) in zip(records, self._layout.values(), strict=True):
            computed += 10_000 + 100 * rank
            ready = computed
            computed += elements // 1000 if record.level > 0 else 0
            summed = max(summed, computed) + 100 + int((elements * BYTES[record.level] + others) * byte_ps[0] / 1e6)
            buckets.append((ready, computed, summed, summed + rank, 0, record.gradient_norm, record.residual_norm))
        agreed = 100 + int(4 * self._agreement._numbers.numel() * byte_ps[0] / 1e6)
        self._control.measurement((0, 0, agreed), 1000, 0, buckets, mine)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_control.Controller, "_measure", measure)
        patched.setattr(_control.Levels, "costs", lambda *_: [(bytes, 1.0, 0.0) for bytes in BYTES])
        yield


def run_steps(rank, model, state, steps, seen=None):
    """Returns the sums of what this rank had and of what arrived."""
    had, arrived = ({name: torch.zeros(shape) for name, shape in SHAPES.items()} for _ in range(2))
    for step in steps:
        gradients = gradient_of(rank, step)
        averaged = backward(model, gradients)
        for name in SHAPES:
            had[name] += gradients[name]
            arrived[name] += averaged[name]
        if seen is not None:
            seen.append(levels_of(state))
    return had, arrived


def residuals_of(state):
    return {
        name: saved["memory"].get("residual", torch.zeros(SHAPES[name])).reshape(SHAPES[name])
        for name, saved in state.state_dict()["parameters"].items()
    }


def test_levels_follow_the_network_alike_on_all_ranks_and_nothing_is_lost():
    def on_rank(rank):
        model, byte_ps, seen = wrapped(), [SLOW], []
        with made_up_times(rank, byte_ps):
            state = netsum.torch.compress(model, "auto", levels=LEVELS, warmup_steps=5)
            had, arrived = run_steps(rank, model, state, range(40), seen)
            assert "topk ratio=0.05" in seen[-1]
            kept = residuals_of(state)
            assert any(values.count_nonzero() > 0 for values in kept.values())
            byte_ps[0] = FAST
            more = run_steps(rank, model, state, range(40, 80), seen)
        assert set(seen[-1]) == {"none"}
        for name in SHAPES:
            had[name] += more[0][name]
            arrived[name] += more[1][name]
            dist.all_reduce(had[name], op=dist.ReduceOp.AVG)
            # bf16 levels round, without a memory.
            assert torch.allclose(had[name], arrived[name], atol=0.05), name
        counts = state.stats()["controller"]
        assert counts["changes"] >= 2 and counts["network_bits_per_second"] == pytest.approx(80e9, rel=0.2)
        assert min(counts["bucket_steps"][level] for level in ("none", "topk ratio=0.05")) > 10
        assert counts["predicted_step_s"] > 0 and counts["uncompressed_step_s"] > 0
        return seen

    results = ranks.run(on_rank)
    assert all(seen == results[0] for seen in results)


def scrape(address):
    """The series of a page of metrics: {(name, labels): value}."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as page:
        lines = [line for line in page.read().decode().splitlines() if not line.startswith("#")]
    series = {}
    for line in lines:
        name, labels, value = re.fullmatch(r"(\w+)(?:{(.*)})? (\S+)", line).groups()
        key = (name, tuple(sorted(re.findall(r'(\w+)="([^"]*)"', labels or ""))))
        assert key not in series, f"twice on one page: {line}"
        series[key] = float(value)
    return series


def test_metrics_show_what_the_controller_does():
    prefix = "netsum_worker_compression_"

    def on_rank(rank):
        model, other = wrapped(), wrapped()
        with made_up_times(rank, [SLOW]):
            state = netsum.torch.compress(model, "auto", levels=LEVELS, warmup_steps=5)
            second = netsum.torch.compress(other, "auto", levels=LEVELS)
            run_steps(rank, model, state, range(20))
            address = _group.backend_of(None).metrics_address
            page = scrape(address)
        stats = state.stats()["controller"]
        of_first = {"controller": "1", "rank": str(rank), "job_name": _group.backend_of(None).job}

        def value(name, **labels):
            return page[prefix + name, tuple(sorted({**of_first, **labels}.items()))]

        for level in ("none", "bf16", "topk ratio=0.05"):
            assert value("buckets", level=level) == stats["levels"].count(level)
            # This step's buckets had not been sent when it began.
            sent = stats["bucket_steps"][level] - stats["levels"].count(level)
            assert value("bucket_steps_total", level=level) == sent, level
        assert value("buckets", level="topk ratio=0.05") > 0
        assert value("steps_total") == stats["steps"] == 18
        assert value("changes_total") == stats["changes"] >= 1
        # The last 17 of 18 steps: what they have sent is known at their end.
        gradients = sum(p.numel() * 4 for p in model.parameters())
        assert value("gradient_bytes_total") == 17 * gradients == stats["gradient_bytes"]
        assert 0 < value("sent_bytes_total") == stats["sent_bytes"] < 0.9 * value("gradient_bytes_total")
        assert value("predicted_step_seconds") == pytest.approx(stats["predicted_step_s"])
        assert value("uncompressed_step_seconds") == pytest.approx(stats["uncompressed_step_s"])
        assert value("predicted_step_seconds") < value("uncompressed_step_seconds")
        assert value("network_bits_per_second") == pytest.approx(100e6, rel=0.2)
        assert 0 < value("measured_step_seconds") < 60
        assert sum(("controller", "2") in labels for _, labels in page) == 8, "that of `second`, which has not begun"
        del second
        return {name for name, _ in page if name.startswith(prefix)}

    (names, *others) = ranks.run(on_rank, env={"NETSUM_METRICS": "127.0.0.1:0"})
    assert all(names == other for other in others) and len(names) == 10
    documented = (pathlib.Path(__file__).parents[2] / "docs/operations.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in documented for name in names)


def test_a_controller_that_is_gone_has_no_metrics():
    def on_rank(rank):
        model = wrapped()
        state = netsum.torch.Compression(model, "auto", levels=LEVELS)
        address = _group.backend_of(None).metrics_address
        state._controller._metrics.publish([("none", 1, 2)], 3, 0, 4, 4, (0.0, 0.0, 0.0), 0.0)
        assert any("compression" in name for name, _ in scrape(address))
        del state
        gc.collect()
        assert not any("compression" in name for name, _ in scrape(address))

    ranks.run(on_rank, world_size=1, env={"NETSUM_METRICS": "127.0.0.1:0"})


@pytest.mark.parametrize("method", ["topk", "natural", "topk by gather", "int8"])
def test_bytes_are_those_that_have_travelled(method):
    """With the sizes that follow from the shapes or, of what varies, those that the library has counted."""
    count = 300 * 200
    settings = {"method": method.split()[0], **({"ratio": 0.02} if "topk" in method else {})}
    settings |= {"path": "gather"} if "gather" in method else {}

    def on_rank(rank):
        state = netsum.torch.Compression(Chosen(), "none", rules=[("second", settings)])
        entry = next(entry for entry in state._parameters if entry.name == "second")
        plan = netsum.torch._C.BucketPlan([entry.item], torch.float32, WORLD_SIZE)
        backend = _group.backend_of(None)
        gradient = gradient_of(rank, 1)["second"].flatten()
        before = backend.stats()
        for work in plan.start(backend, [gradient], state._pass, state._stats):
            work.wait()
        plan.finish([gradient], state._stats)
        after = backend.stats()
        grown = {name: after[name] - before[name] for name in ("sparse_sent_elements", "sparse_index_bytes")}
        return plan.link_bytes, 4 * grown["sparse_sent_elements"] + grown["sparse_index_bytes"]

    for got, of_sparse in ranks.run(on_rank):
        if method == "topk":
            assert got == of_sparse
            assert 4 * 0.02 * count < got < 6 * WORLD_SIZE * 0.02 * count
        elif method == "natural":
            assert got == pytest.approx(WORLD_SIZE * count, rel=0.02)  # 8 bits an element, of each rank
        elif method == "int8":
            assert count < got < 1.5 * count
        else:
            assert WORLD_SIZE * 0.02 * count * 4 < got < WORLD_SIZE * 0.02 * count * 6


def test_residuals_are_carried_from_level_to_level():
    def on_rank(rank):
        levels = ["none", {"method": "topk", "ratio": 0.2}, {"method": "topk", "ratio": 0.01}, "int4"]
        state = netsum.torch.Compression(Chosen(), "auto", levels=levels)
        entry = state._parameters[0]
        gradient = torch.zeros(entry.count)
        entry.set_level(1, gradient)
        before = entry.tensor.state()["residual"]
        entry.tensor.restore(7, {"residual": before + 2})
        for level in (2, 3):
            entry.set_level(level, gradient)
            assert torch.equal(entry.tensor.state()["residual"], before + 2)
            assert entry.tensor.step == 7
        assert gradient.count_nonzero() == 0
        assert entry.residual_norm() == pytest.approx(2 * entry.count**0.5)
        entry.set_level(0, gradient)
        assert torch.equal(gradient, torch.full_like(gradient, 2))
        assert entry.residual_norm() == 0
        entry.set_level(1, gradient)
        assert entry.tensor.state()["residual"].count_nonzero() == 0 and entry.tensor.step == 7

    ranks.run(on_rank, world_size=1)


def test_training_continues_from_a_saved_state():
    def on_rank(rank):
        with made_up_times(rank, [SLOW]):
            model = wrapped()
            state = netsum.torch.compress(model, "auto", levels=LEVELS, warmup_steps=5)
            run_steps(rank, model, state, range(30))
            saved, seen = state.state_dict(), []
            run_steps(rank, model, state, range(30, 34), seen)
            again, seen_again = wrapped(), []
            restored = netsum.torch.compress(again, "auto", levels=LEVELS, warmup_steps=5)
            restored.load_state_dict(saved)
            for name, values in residuals_of(restored).items():
                assert torch.equal(
                    values, saved["parameters"][name]["memory"].get("residual", torch.zeros(0)).reshape(values.shape)
                )
            # Until it knows its buckets, nothing is compressed: in two steps, and the first one after them has the old level.
            run_steps(rank, again, restored, range(30, 34), seen_again)
        assert seen_again[-1] == seen[0] != ["none"] * len(seen[0])
        assert restored.stats()["controller"]["steps"] >= 30
        with pytest.raises(ValueError, match="has the level 9"):
            restored.load_state_dict(
                {**saved, "parameters": {n: {**p, "level": 9} for n, p in saved["parameters"].items()}}
            )
        other = netsum.torch.Compression(Chosen(), "auto", levels=["none", "bf16"])
        with pytest.raises(ValueError, match=r"is one of 'auto: none; bf16, .* topk"):
            other.load_state_dict(saved)

    ranks.run(on_rank, world_size=2)


def test_survivors_of_a_lost_rank_keep_residuals_and_decide_alike():
    victim = 2

    def on_rank(rank):
        with made_up_times(rank, [SLOW]):
            model = wrapped()
            state = netsum.torch.compress(model, "auto", levels=LEVELS, warmup_steps=5)
            with pytest.raises(RuntimeError):  # noqa: PT012
                for step in itertools.count():
                    if rank == victim and step == 40:
                        os.kill(os.getpid(), signal.SIGKILL)
                    run_steps(rank, model, state, [step])
            if rank == 3:
                state._controller._control.begin_step(None)  # it got one step further than the others
            saved = state.state_dict()
            del model
            assert netsum.torch.regroup() == [r for r in range(WORLD_SIZE) if r != victim]
            model, seen = wrapped(), []
            state = netsum.torch.compress(model, "auto", levels=LEVELS, warmup_steps=5)
            state.load_state_dict(saved)
            kept = residuals_of(state)
            assert any(values.count_nonzero() > 0 for values in kept.values())
            run_steps(dist.get_rank(), model, state, range(100, 130), seen)
        assert "topk ratio=0.05" in seen[-1]
        assert state.stats()["controller"]["steps"] > 60, "it went on"
        return seen

    outcomes = ranks.run_all_outcomes(on_rank, timeout_s=LONG_TIMEOUT_S)
    seen = [outcome.value for rank, outcome in enumerate(outcomes) if rank != victim]
    assert all(outcome.value or rank == victim for rank, outcome in enumerate(outcomes)), [o.error for o in outcomes]
    assert seen[0] == seen[1] == seen[2]


def test_ranks_that_differ_are_told_so():
    def on_rank(rank):
        model = wrapped()
        state = netsum.torch.compress(model, "auto", levels=LEVELS)
        run_steps(rank, model, state, range(8))
        if rank == 1:
            state._controller._control.begin_step(None)  # one more
        with pytest.raises(ValueError, match="decided differently"):
            run_steps(rank, model, state, range(8, 12))

    ranks.run(on_rank, world_size=2)


def test_a_real_training_with_rules_and_traces(tmp_path):
    """With the times that were really measured: whatever is decided, all ranks decide it, and training works."""

    def on_rank(rank):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(50, 40), nn.Flatten(), nn.Linear(160, 300), nn.Tanh(), nn.Linear(300, 1))
        model = DistributedDataParallel(model, bucket_cap_mb=0.1)
        rules = [(nn.Embedding, "none"), ("4.*", {"method": "topk", "ratio": 0.1})]
        state = netsum.torch.compress(
            model, "auto", rules=rules, warmup_steps=3, min_elements=100, trace=str(tmp_path / "{rank}.jsonl")
        )
        lines = state.describe().splitlines()
        assert "auto: none; bf16" in lines[1] and "uncompressed" in lines[0] and "topk ratio=0.1" in lines[3]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        losses, seen = [], []
        for step in range(60):
            words = torch.randint(0, 50, (16, 4), generator=torch.Generator().manual_seed(1000 * step + rank))
            loss = nn.functional.mse_loss(model(words)[:, 0], (words.float().mean(1) - 25) / 10)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            seen.append(levels_of(state))
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        state._controller._trace._file.close()
        return seen, weights, sum(losses[:10]), sum(losses[-10:])

    results = ranks.run(on_rank, world_size=3)
    traces = [(tmp_path / f"{rank}.jsonl").read_text() for rank in range(3)]
    assert traces[0] == traces[1] == traces[2]
    assert len(traces[0].splitlines()) == 2 + 60 - 2, "two steps until the buckets are known"
    for seen, weights, _, _ in results[1:]:
        assert seen == results[0][0] and torch.equal(weights, results[0][1])
    assert results[0][3] < 0.8 * results[0][2]


def test_grad_scaler_skips_the_step_on_every_rank_at_every_level():
    def on_rank(rank):
        torch.manual_seed(1)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 300), nn.Tanh(), nn.Linear(300, 3)))
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        state = netsum.torch.compress(model, "auto", levels=LEVELS, warmup_steps=0, grad_scaler=scaler)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
        batches = [(torch.randn(4, 20), torch.randn(4, 3)) for _ in range(20)]
        if rank == 1:
            batches = ranks.with_infinity(ranks.with_infinity(batches, 16), 1)
        with made_up_times(rank, [100 * SLOW]):
            history = ranks.scaled_steps(scaler, model, optimizer, batches, nn.functional.mse_loss)
        return history, levels_of(state)

    (history, levels), other = ranks.run(on_rank, world_size=2)
    assert (history, levels) == other
    assert [moved for moved, _ in history] == [step not in (1, 16) for step in range(20)]
    assert levels == ["topk ratio=0.05"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"levels": ["bf16", "none"]}, "first level of 'auto' must be 'none'"),
        ({"levels": []}, "first level of 'auto' must be 'none'"),
        ({"levels": ["none", "dgc"]}, "'topk .*, memory dgc, .* cannot be a level"),
        ({"levels": ["none", "signsgd"]}, "'signsgd.* cannot be a level"),
        ({"levels": ["none", "nonsense"]}, "no compression method 'nonsense'"),
        ({"payoff": 2}, "payoff is 2"),
        ({"rules": [("first", {"method": "auto", "ratio": 0.1})]}, "no compression method 'auto'"),
    ],
    ids=str,
)
def test_bad_settings(arguments, message):
    def on_rank(rank):
        with pytest.raises(ValueError, match=message):
            netsum.torch.Compression(Chosen(), "auto", **arguments)
        with pytest.raises(ValueError, match="control is for the method 'auto'"):
            netsum.torch.Compression(Chosen(), "topk", control={})
        with pytest.raises(TypeError, match="ratio"):
            netsum.torch.Compression(Chosen(), "auto", ratio=0.1)

    ranks.run(on_rank, world_size=1)


def test_settings_that_differ_are_named():
    def on_rank(rank):
        with pytest.raises(ValueError, match=r"rank 1 has .*'warmup_steps': 9.*rank 0 has .*'warmup_steps': 5"):
            netsum.torch.Compression(Chosen(), "auto", warmup_steps=9 if rank == 1 else 5)

    ranks.run(on_rank, world_size=2)
