"""Tests of the training benchmark's choices and table; nothing here trains."""

import pytest
from netsum_bench import training_bench
from netsum_bench.demo import train


def record(system, step_ms, model="lm", **more):
    spread = {"median": step_ms, "low": step_ms - 1, "high": step_ms + 1}
    return {
        "system": system,
        "model": model,
        "place": "rack",
        "workers": 8,
        "rate": "100mbit",
        "round": 0,
        "steps": 4,
        "step_ms": spread,
        "allreduce_ms": spread,
        "held_out_loss": 2.0,
        "accuracy_percent": 50.0,
        "sent_per_gradient_byte": None if training_bench.is_sharded(system) else 1.5,
        "losses": [4.0, 3.0, 3.5, 2.0],
        "run": {},
        **more,
    }


def test_each_system_is_compared_with_the_first_of_its_kind():
    found = [
        record("gloo", 300.0),
        record("netsum-xdp", 200.0),
        record("gloo-fsdp", 500.0),
        record("netsum-user-fsdp-overlap", 250.0),
    ]
    rows = {row["system"]: row for row in training_bench.rows(found)}
    assert rows["netsum-xdp"]["speed_up"] == pytest.approx(1.5)
    assert rows["gloo-fsdp"]["speed_up"] == 1 and rows["netsum-user-fsdp-overlap"]["speed_up"] == pytest.approx(2)
    assert all(row["agrees"] for row in rows.values())
    cells = [cell.strip() for cell in training_bench.table(found).splitlines()[-1].split("|")][1:-1]
    column = training_bench.HEADINGS.index("sent B/B")
    assert cells[3] == "netsum-user-fsdp-overlap" and cells[column] == "", "of two groups, one is counted"


def test_a_training_that_differs_is_told():
    found = [record("gloo", 300.0), record("netsum-xdp", 200.0, held_out_loss=2.5)]
    assert "| NO |" in training_bench.table(found)


def test_systems_train_the_models_that_they_can():
    trained = {
        model: [system for system in training_bench.SYSTEMS if training_bench.trains(system, model)]
        for model in training_bench.STEPS
    }
    assert not any("sparse" in system or "fsdp" in system for system in trained["digits"])
    assert "gloo-fsdp" in trained["lm"] and "gloo-sparse" not in trained["lm"]
    assert "gloo-sparse" in trained["recommender"] and "gloo-fsdp" not in trained["recommender"]
    assert {system.parallel for system in training_bench.SYSTEMS.values()} == set(train.PARALLEL)
