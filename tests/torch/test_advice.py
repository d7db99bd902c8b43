"""advise(): the formulas by known numbers, and a measurement that leaves the model as it was."""

import pathlib
import re

import netsum.torch
import pytest
import ranks
from netsum.torch import _advice
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]


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


def test_accumulation_wins_when_the_network_takes_longer_than_a_step_and_a_forward_pass():
    for network, wins in [(1.3, False), (1.4, True)]:
        rates = _advice.rates(1 / 3, 2 / 3, network)
        assert (rates["accumulation of 2 batches"] > rates["two waves"]) == wins


@pytest.mark.parametrize("share", [0.25, 0.5, 1, 2])
def test_the_formulas(share):
    """Batches per second, from forward pass 1, backward pass 2 and sums of 3 * share, as multiples of what the table has."""
    rates = _advice.rates(1.0, 2.0, 3.0 * share, bytes_left=0.25)
    wanted_s = {
        0.25: {"DDP": 3, "accumulation": 3, "delayed": 3, "priorities": 3, "waves": 3, "compression": 3},
        0.5: {"DDP": 3, "accumulation": 3, "delayed": 3, "priorities": 3, "waves": 3, "compression": 3},
        1: {"DDP": 4, "accumulation": 3.5, "delayed": 3, "priorities": 3, "waves": 3, "compression": 3},
        2: {"DDP": 7, "accumulation": 5, "delayed": 6, "priorities": 6, "waves": 6, "compression": 3},
    }
    assert [1 / rate for rate in rates.values()] == pytest.approx(list(wanted_s[share].values()))
    assert list(rates) == ["DDP", *_advice.MEASURED]
    said = {name: re.sub(r"([2q]) ([FA])", r"\1 * \2", text) for name, text in _advice.FORMULAS.items()}
    values = {"max": max, "F": 1.0, "B": 2.0, "A": 3.0 * share, "u": 2.0, "q": 0.25}
    rates = _advice.rates(1.0, 2.0, 3.0 * share, bytes_left=0.25, at_once=2.0)
    assert {name: eval(text, values) for name, text in said.items()} == pytest.approx(
        {name: 1 / rate for name, rate in rates.items()}
    )


WON = {
    "accumulation of 2 batches": (1.1, 1.6),
    "steps delayed by one batch": (0.9, 1.04),
    "priorities without barrier": (0.8, 1.05),
    "two waves": (0.9, 1.2),
    "compression": None,
}


NO = "does not pay"
OF_ACCUMULATION, OF_PRIORITIES = "may pay: measured 1.10 to 1.60 x", "may pay: measured 0.80 to 1.05 x"
OF_DELAYED, OF_WAVES = "does not pay: measured 0.90 to 1.04 x", "may pay: measured 0.90 to 1.20 x"
OF_COMPRESSION = "not measured against DDP"


@pytest.mark.parametrize(
    ("network", "pays", "verdicts"),
    [
        (0.25, [], [NO] * 5),
        (
            1,
            ["priorities without barrier", "two waves", "accumulation of 2 batches"],
            [OF_ACCUMULATION, OF_DELAYED, OF_PRIORITIES, OF_WAVES, OF_COMPRESSION],
        ),
        (
            4,
            ["accumulation of 2 batches", "priorities without barrier", "two waves"],
            [OF_ACCUMULATION, OF_DELAYED, OF_PRIORITIES, OF_WAVES, OF_COMPRESSION],
        ),
    ],
)
def test_only_what_won_where_it_was_measured_pays(monkeypatch, network, pays, verdicts):
    monkeypatch.setattr(_advice, "MEASURED", WON)
    advice = _advice.Advice(1 / 3, 2 / 3, network, 0.25)
    assert advice.pays == pays
    _, of_ddp, *lines = str(advice).splitlines()
    assert of_ddp == " 1.00 x  DDP: F + max(B, A) (as it is)"
    assert [line.rpartition(") ")[2] for line in lines] == verdicts
    assert " x  compression to 25% of the bytes: F + max(B, q A) (" in lines[-1]


COLUMNS = {
    "accumulation": "accumulation of 2 batches",
    "delayed": "steps delayed by one batch",
    "prioritised": "priorities without barrier",
    "waves": "two waves",
}


def published(page):
    """By schedule, the row "all" of the table of schedules, or None if the page has no such table."""
    table = re.search(r"<!-- figures schedules -->\n(.*?)<!-- end schedules -->", page, re.DOTALL)
    lines = [line.strip("| ").split(" | ") for line in (table[1] if table else "").splitlines() if line.startswith("|")]
    if not lines:
        return None
    of_all = dict(zip(lines[0], next(line for line in lines if line[0] == "all"), strict=True))
    return {name: tuple(map(float, of_all[column].split("-"))) for column, name in COLUMNS.items()}


def test_published_figures_are_found():
    names = ["accumulation", "delayed", "overlapped", "prioritised", "waves"]
    ranges = ["1.10-1.60", "0.90-1.04", "0.90-1.00", "0.80-1.05", "0.90-1.20"]
    rows = [["sums", "over/Mbit/s", "DDP, ms", *names], ["--"] * 8, ["1.00", "netsum/190", "200", *["1.00"] * 5]]
    lines = ["| " + " | ".join(row) + " |" for row in [*rows, ["all", "", "", *ranges]]]
    page = "\n".join(["<!-- figures schedules -->", "*netsum*", "", *lines, "<!-- end schedules -->"])
    assert published(page) == {name: of for name, of in WON.items() if of}
    assert published("<!-- figures schedules -->\n<!-- end schedules -->") is None


def test_the_advice_has_the_published_figures():
    found = published((ROOT / "docs/results.md").read_text(encoding="utf-8"))
    assert found is not None, "docs/results.md has no figures of schedules"
    assert {name: _advice.MEASURED[name] for name in found} == found


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
