"""Verified sums: what a rank records of an aggregator whose sums are wrong."""

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from ranks import WORLD_SIZE
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

ELEMENTS = 50_000
STEPS = 40


@pytest.mark.network
@pytest.mark.parametrize("mode", ["both", "sum"])
def test_wrong_sums_are_recorded_and_outlive_the_failover(mode):
    with ranks.aggregator("--in-switch", "--inject-flips", "0.5%") as daemon:
        env = {
            "NETSUM_AGGREGATOR": daemon.address,
            "NETSUM_VERIFY": mode,
            "NETSUM_ON_FAILURE": "failover",
            "NETSUM_FALLBACK_AGGREGATORS": "hosts",
        }

        def on_rank(rank):
            right = torch.arange(ELEMENTS) % 100 * WORLD_SIZE + sum(range(WORLD_SIZE))
            for _ in range(STEPS):
                data = (torch.arange(ELEMENTS) % 100 + rank).float()
                dist.all_reduce(data)
                assert torch.equal(data, right.float())
            return netsum.torch.stats()

        found = ranks.run(on_rank, env=env)
    recorded = 0
    for stats in found:
        assert stats["failovers"] == 1
        assert stats["sums_refused"] == 0, "of the session at the hosts"
        for wrong in stats["wrong_sums"]:
            assert wrong["aggregator"] == daemon.address
            assert wrong["stripe"] == 0
            assert wrong["address"].startswith("127.0.0.1:")
            recorded += wrong["results"]
    assert recorded > 0


@pytest.mark.network
def test_right_sums_are_no_wrong_sums():
    with ranks.aggregator("--in-switch") as daemon:

        def on_rank(rank):
            dist.all_reduce(torch.ones(ELEMENTS))
            return netsum.torch.stats()

        env = {"NETSUM_AGGREGATOR": daemon.address, "NETSUM_VERIFY": "both", "NETSUM_SHARED_MEMORY": "0"}
        for stats in ranks.run(on_rank, env=env):
            assert stats["sums_verified"] > 0
            assert stats["wrong_sums"] == []


@pytest.mark.network
@pytest.mark.parametrize("mode", ["both", "sum"])
def test_compressions_that_need_maxima_are_refused_at_the_call(mode):
    """And the others work."""
    with ranks.aggregator("--in-switch") as daemon:

        def on_rank(rank):
            model = DistributedDataParallel(nn.Linear(40, 40))
            for method in ("int8", "qsgd", "thc", "auto"):
                with pytest.raises(ValueError, match="NETSUM_VERIFY=packet"):
                    netsum.torch.compress(model, method)
            with pytest.raises(ValueError, match="NETSUM_VERIFY=packet"):
                netsum.torch.compress(model, "bf16", rules=[("weight", "int8")])
            netsum.torch.compress(model, "powersgd", rules=[("bias", "bf16")])
            model(torch.full((1, 40), float(rank))).sum().backward()
            found = model.module.weight.grad
            assert torch.allclose(found, torch.full((40, 40), (WORLD_SIZE - 1) / 2), atol=1e-2)

        env = {"NETSUM_AGGREGATOR": daemon.address, "NETSUM_VERIFY": mode, "NETSUM_SHARED_MEMORY": "0"}
        ranks.run(on_rank, env=env)
