"""Local SGD and DiLoCo: against simulations, compressed, in fragments, saved and restored."""

import pytest
import ranks
from local_updates import LocalUpdates
from test_compress_gather import chunk_top_k
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

SIZE = 2
LR = 0.1


def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 2))


def train_step(model, optimizer, rank, step):
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + rank))
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), torch.stack([x.sum(1), x[:, 0]], dim=1)).backward()
    optimizer.step()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def diloco(parameters):
    return torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)


def simulate(steps, every, outer):
    """All ranks one after the other; returns the weights after the last average."""
    models = [make_model() for _ in range(SIZE)]
    optimizers = [torch.optim.SGD(m.parameters(), lr=LR) for m in models]
    anchors = [nn.Parameter(w) for w in weights(models[0])]
    outer_optimizer = outer(anchors)
    for step in range(steps):
        for rank in range(SIZE):
            train_step(models[rank], optimizers[rank], rank, step)
        if (step + 1) % every == 0:
            for i, anchor in enumerate(anchors):
                anchor.grad = sum(anchor.detach() - weights(m)[i] for m in models) / SIZE
            outer_optimizer.step()
            for model in models:
                for p, anchor in zip(model.parameters(), anchors, strict=True):
                    p.data.copy_(anchor.data)
    return weights(models[0])


@pytest.mark.parametrize("outer", [None, diloco])
def test_weights_are_those_of_a_simulation(outer):
    expected = simulate(12, 4, outer or (lambda p: torch.optim.SGD(p, lr=1.0)))

    def on_rank(rank):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        local = LocalUpdates(model, every=4, outer=outer)
        calls = []
        for step in range(12):
            train_step(model, optimizer, rank, step)
            local.step()
            calls.append(sum(ranks.calls().values()))
        assert [calls[i] > calls[i - 1] for i in range(1, 12)] == [i % 4 == 3 for i in range(1, 12)]
        return weights(model)

    for result in ranks.run(on_rank, world_size=SIZE):
        for mine, theirs in zip(result, expected, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-5)


def test_fragments_take_turns():
    def on_rank(rank):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        local = LocalUpdates(model, every=6, fragments=3)
        same = []
        for step in range(12):
            train_step(model, optimizer, rank, step)
            local.step()
            everyone = [None] * SIZE
            torch.distributed.all_gather_object(everyone, weights(model))
            same.append([torch.equal(a, b) for a, b in zip(*everyone, strict=True)])
        return same

    for same in ranks.run(on_rank, world_size=SIZE):
        for step, of_step in enumerate(same):
            # Two of the six parameters every two steps.
            expected = [step % 2 == 1 and i // 2 == (step // 2) % 3 for i in range(6)]
            assert of_step == expected, step


@pytest.mark.parametrize(
    "settings", [{"method": "int4"}, {"method": "topk", "ratio": 0.1}, {"method": "powersgd", "rank": 2}]
)
def test_changes_are_compressed_and_learning_goes_on(settings):
    def on_rank(rank):
        model = make_model()
        x = torch.randn(200, 6, generator=torch.Generator().manual_seed(7))
        loss = lambda: nn.functional.mse_loss(model(x), torch.stack([x.sum(1), x[:, 0]], dim=1)).item()
        before = loss()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        local = LocalUpdates(model, every=4, **settings)
        assert settings["method"] in local.compression.describe()
        for step in range(120):
            train_step(model, optimizer, rank, step)
            local.step()
        assert local.state_dict()["compression"]["parameters"]["2.weight"]["step"] == 30
        return weights(model), before, loss()

    results = ranks.run(on_rank, world_size=SIZE)
    assert all(torch.equal(a, b) for a, b in zip(results[0][0], results[1][0], strict=True))
    assert results[0][2] < 0.3 * results[0][1]


def test_a_change_that_is_not_finite_is_taken_back_everywhere():
    def on_rank(rank):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        local = LocalUpdates(model, every=1)
        train_step(model, optimizer, rank, 0)
        local.step()
        good = weights(model)
        train_step(model, optimizer, rank, 1)
        if rank == 1:
            model[2].weight.data[3, 3] = torch.nan
        local.step()
        assert all(torch.equal(a, b) for a, b in zip(weights(model), good, strict=True))
        train_step(model, optimizer, rank, 2)
        local.step()
        assert all(w.isfinite().all() for w in weights(model))

    ranks.run(on_rank, world_size=SIZE)


def test_a_restored_state_continues_with_the_same_bits():
    def on_rank(rank):
        def run(model, local, steps):
            optimizer = torch.optim.SGD(model.parameters(), lr=LR)
            for step in steps:
                train_step(model, optimizer, rank, step)
                local.step()

        model, copy = make_model(), make_model()
        local = LocalUpdates(model, every=3, outer=diloco, method="topk", ratio=0.1)
        run(model, local, range(5))
        saved, at = local.state_dict(), weights(model)
        run(model, local, range(5, 9))
        restored = LocalUpdates(copy, every=3, outer=diloco, method="topk", ratio=0.1)
        restored.load_state_dict(saved)
        for p, values in zip(copy.parameters(), at, strict=True):
            p.data.copy_(values)
        run(copy, restored, range(5, 9))
        for a, b in zip(weights(model), weights(copy), strict=True):
            assert torch.allclose(a, b, atol=1e-6)
        other = LocalUpdates(nn.Linear(3, 3), every=3, outer=diloco)
        with pytest.raises(ValueError, match="fragments of the shapes"):
            other.load_state_dict(saved)

    ranks.run(on_rank, world_size=SIZE)


def test_wrong_settings_are_refused():
    def on_rank(rank):
        with pytest.raises(TypeError, match="without DistributedDataParallel"):
            LocalUpdates(DistributedDataParallel(make_model()), every=2)
        for fragments in (0, 3):
            with pytest.raises(ValueError, match="between 1 and every"):
                LocalUpdates(make_model(), every=2, fragments=fragments)

    ranks.run(on_rank, world_size=SIZE)


def test_sparse_loco():
    """The changes of weights, by the largest of every chunk in 2 bits: against a simulation of both ranks."""
    chunk, k, decay, every = 64, 8, 0.95, 3

    def send(change):
        parts = [chunk_top_k(part, chunk, k) for part in change.flatten().split(chunk)]
        return torch.cat(parts).reshape(change.shape)

    def on_rank(rank):
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        local = LocalUpdates(model, every=every, method="chunktopk", k=k, block=chunk, decay=decay, min_elements=0)
        models = [make_model() for _ in range(SIZE)]
        optimizers = [torch.optim.SGD(m.parameters(), lr=LR) for m in models]
        anchors = weights(models[0])
        kept = [[torch.zeros_like(a) for a in anchors] for _ in range(SIZE)]
        for step in range(4 * every):
            train_step(model, optimizer, rank, step)
            local.step()
            for r in range(SIZE):
                train_step(models[r], optimizers[r], r, step)
            if (step + 1) % every != 0:
                continue
            for i, anchor in enumerate(anchors):
                changes = [anchor - weights(m)[i] for m in models]
                if anchor.dim() > 1:  # others are not compressed
                    for r in range(SIZE):
                        kept[r][i] = decay * kept[r][i] + changes[r]
                        changes[r] = send(kept[r][i])
                        kept[r][i] = kept[r][i] - changes[r]
                anchors[i] = anchor - sum(changes) / SIZE
                for m in models:
                    list(m.parameters())[i].data.copy_(anchors[i])
            for mine, theirs in zip(weights(model), anchors, strict=True):
                assert torch.allclose(mine, theirs, atol=1e-5), step

    ranks.run(on_rank, world_size=SIZE)
