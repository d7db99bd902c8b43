"""Aggregators and the ranks' own shards sum together, by a plan."""

import warnings

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from netsum_bench.processes import free_port
from ranks import WORLD_SIZE

import torch


def _sum_and_report(rank):
    for count in (1, 1000, 1_000_000):
        tensor = torch.arange(count, dtype=torch.float32) % 512 + rank
        dist.all_reduce(tensor)
        expected = (torch.arange(count, dtype=torch.float32) % 512) * WORLD_SIZE + sum(range(WORLD_SIZE))
        assert torch.equal(tensor, expected)
    return netsum.torch.describe(), netsum.torch.stats()["stripes"]


def test_shares_are_planned_by_default():
    with ranks.aggregator("--link-rate", "25mbit") as slow, ranks.aggregator("--link-rate", "100mbit") as fast:
        env = {"NETSUM_AGGREGATOR": f"{slow.address},{fast.address}", "NETSUM_LINK_RATE": "100mbit"}
        for describe, stripes in ranks.run(_sum_and_report, env=env):
            assert "planned shares" in describe
            assert f"{WORLD_SIZE} embedded shards" in describe
            assert "times as fast as a ring" in describe
            assert len(stripes) == 2 + WORLD_SIZE
            assert sum(stripe["share"] for stripe in stripes) == pytest.approx(1)
            assert stripes[1]["share"] / stripes[0]["share"] == pytest.approx(4, abs=0.5)
            busiest = max(stripes, key=lambda stripe: stripe["share"])
            assert busiest["bytes_sent"] == max(stripe["bytes_sent"] for stripe in stripes)


def test_off_divides_equally_between_the_aggregators():
    with ranks.aggregator() as first, ranks.aggregator() as second:
        env = {"NETSUM_AGGREGATOR": f"{first.address},{second.address}", "NETSUM_SHARES": "off"}
        for describe, stripes in ranks.run(_sum_and_report, env=env):
            assert "shard" not in describe
            assert "a ring would be faster" in describe
            assert [stripe["share"] for stripe in stripes] == [0.5, 0.5]


def test_an_aggregator_in_the_switch_sums_all():
    with ranks.aggregator("--in-switch") as switch:
        for describe, stripes in ranks.run(_sum_and_report, env={"NETSUM_AGGREGATOR": switch.address}):
            assert "shard" not in describe
            assert len(stripes) == 1


@pytest.fixture
def plan(tmp_path):
    """NETSUM_AGGREGATOR of a plan by which rank 1 sums for all."""
    file, address = tmp_path / "plan", f"127.0.0.1:{free_port()}"
    joins = " ".join(map(str, range(WORLD_SIZE)))
    file.write_text(
        f"network test\nranks {WORLD_SIZE} # of the job\ntree 10000000\nsum {address} rank 1\njoin {address} {joins}\n",
        encoding="utf-8",
    )
    return f"plan:{file}"


def _sums_of_groups(make_groups):
    """Of each group: an element of a sum, and whether shards have summed; then the warnings."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        groups = make_groups()
    sums = []
    for group in groups:
        tensor = torch.full((300_000,), float(dist.get_rank()))
        dist.all_reduce(tensor, group=group)
        sums.append((tensor[-1].item(), "shard" in netsum.torch.describe(group)))
    return sums, [str(one.message) for one in told if "trees of plan:" in str(one.message)]


def test_further_groups_of_a_job_that_sums_along_trees_sum_with_shards(plan):
    def on_rank(rank):
        def make_groups():
            groups = [None, dist.new_group(), dist.new_group([0, 1, 2])]
            dist.new_group([0, 1])
            return groups[: 3 if rank < 3 else 2]

        return _sums_of_groups(make_groups)

    results = ranks.run(on_rank, env={"NETSUM_AGGREGATOR": plan})
    whole, part = float(sum(range(WORLD_SIZE))), 3.0
    assert [sums for sums, _ in results[:3]] == [[(whole, False), (whole, True), (part, True)]] * 3
    assert [len(told) for _, told in results] == [1] + [0] * (WORLD_SIZE - 1)


def test_the_first_group_beside_one_of_gloo_sums_along_trees(plan):
    def on_rank(_):
        return _sums_of_groups(lambda: [dist.new_group(backend="netsum") for _ in range(2)])

    results = ranks.run(on_rank, backend="gloo", env={"NETSUM_AGGREGATOR": plan})
    whole = float(sum(range(WORLD_SIZE)))
    assert [sums for sums, _ in results] == [[(whole, False), (whole, True)]] * WORLD_SIZE
    assert [len(told) for _, told in results] == [1] + [0] * (WORLD_SIZE - 1)
