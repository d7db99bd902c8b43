"""What PyTorch asks a group's backend for, or sets, besides collectives."""

import datetime
import time
import warnings

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout
from torch.nn.parallel import DistributedDataParallel

import torch


def backend():
    return netsum.torch._group.backend_of(None)


def test_a_timeout_that_is_set_later():
    def on_rank(rank):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _set_pg_timeout(datetime.timedelta(seconds=2))
        assert backend().options._timeout == backend().timeout == datetime.timedelta(seconds=2)
        if rank == 1:
            while netsum.torch.error() is None:
                time.sleep(0.01)
            return "timeout"
        with pytest.raises(netsum.torch.Error) as caught:
            dist.all_reduce(torch.ones(10))
        return caught.value.code

    assert ranks.run(on_rank, world_size=2, timeout_s=100) == ["timeout"] * 2


def test_a_timeout_of_another_backend():
    def on_rank(_rank):
        group = dist.new_group(backend="gloo")
        _set_pg_timeout(datetime.timedelta(seconds=7), group)
        return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()

    assert ranks.run(on_rank, world_size=2) == [7.0] * 2


def test_split():
    def on_rank(rank):
        assert backend().supports_splitting
        members = [rank - rank % 2, rank - rank % 2 + 1]
        half = dist.group.WORLD.split_group(members, group_name=f"half {members[0]}")
        assert (half.rank(), half.size()) == (rank % 2, 2)
        tensor = torch.full((10,), float(rank))
        half.allreduce([tensor]).wait()
        return tensor[0].item()

    assert ranks.run(on_rank) == [1.0, 1.0, 5.0, 5.0]


def test_the_log_of_ddp_after_shrink_group():
    """DDP's logger takes a group that has shrunk for one of Gloo, and reads how many threads it has."""

    def on_rank(rank):
        if rank == 2:
            return 2
        group = dist.shrink_group([2])
        model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)
        model(torch.ones(1, 2)).sum().backward()
        return model._get_ddp_logging_data()["gloo_num_threads"]

    assert ranks.run(on_rank, world_size=3) == [2, 2, 2]
