"""advise(): the formulas by known numbers, and a measurement that leaves the model as it was."""

import netsum.torch
import pytest
import ranks
from netsum.torch import _advice
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn


@pytest.mark.parametrize(("network", "to_ddp", "to_accumulation"), [(0.5, 1, 1), (1, 4 / 3, 7 / 6), (2, 7 / 6, 5 / 6)])
def test_two_waves_by_the_formulas(network, to_ddp, to_accumulation):
    rates = _advice.rates(1 / 3, 2 / 3, network)
    assert rates["two waves"] / rates["DDP"] == pytest.approx(to_ddp)
    assert rates["two waves"] / rates["accumulation of 2 batches"] == pytest.approx(to_accumulation)
    # Delayed steps tie with the waves, with one replica.
    assert rates["steps delayed by one batch"] == pytest.approx(rates["two waves"])


def test_two_waves_where_processors_compute_more_than_one_pass():
    alone, both = (_advice.Advice(1 / 3, 2 / 3, 0.5, 0.25, at_once) for at_once in (1, 2))
    assert alone.gains["two waves"] == pytest.approx(1)
    assert both.gains["two waves"] == pytest.approx(4 / 3)
    assert both.pays == ["two waves"]


def test_accumulation_wins_when_the_network_takes_longer_than_a_step_and_a_forward_pass():
    for network, wins in [(1.3, False), (1.4, True)]:
        rates = _advice.rates(1 / 3, 2 / 3, network)
        assert (rates["accumulation of 2 batches"] > rates["two waves"]) == wins


@pytest.mark.parametrize(
    ("network", "pays"),
    [
        (0.25, []),
        (
            1,
            [
                "steps delayed by one batch",
                "priorities without barrier",
                "two waves",
                "compression",
                "accumulation of 2 batches",
            ],
        ),
        (
            4,
            [
                "compression",
                "accumulation of 2 batches",
                "steps delayed by one batch",
                "priorities without barrier",
                "two waves",
            ],
        ),
    ],
)
def test_what_pays(network, pays):
    advice = _advice.Advice(1 / 3, 2 / 3, network, 0.25)
    assert advice.pays == pays
    lines = str(advice).splitlines()[1:]
    assert [line.split(" x ")[1].split(" (")[0].strip() for line in lines if line.endswith(") may pay")] == [
        n + (" to 25% of the bytes" if n == "compression" else "") for n in advice.rates if n in pays
    ]


@pytest.mark.parametrize("backend", ["netsum", "gloo"])
def test_measures_and_leaves_the_model_as_it_was(backend, capfd):
    def on_rank(rank):
        model = DistributedDataParallel(nn.Sequential(nn.Linear(50, 50), nn.BatchNorm1d(50), nn.Dropout()))
        model(torch.ones(4, 50)).sum().backward()
        before = [t.clone() for t in model.state_dict().values()] + [p.grad.clone() for p in model.parameters()]
        random_state = torch.get_rng_state()
        advice = netsum.torch.advise(model, (torch.randn(4, 50, generator=torch.Generator().manual_seed(1)),), steps=2)
        after = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
        assert all(map(torch.equal, before, after))
        assert torch.equal(random_state, torch.get_rng_state())
        return advice

    advices = ranks.run(on_rank, world_size=2, backend=backend)
    assert advices[0] == advices[1]
    assert min(advices[0].forward_s, advices[0].backward_s, advices[0].network_s) > 0
    assert capfd.readouterr().out.count("sums of gradients") == 1  # rank 0 alone


def test_refuses_what_it_cannot_measure():
    with pytest.raises(TypeError, match="not a DistributedDataParallel"):
        netsum.torch.advise(nn.Linear(1, 1), ())

    def on_rank(rank):
        with pytest.raises(ValueError, match=r"at_once is 0\.5"):
            netsum.torch.advise(DistributedDataParallel(nn.Linear(1, 1)), (), at_once=0.5)

    ranks.run(on_rank, world_size=1)
