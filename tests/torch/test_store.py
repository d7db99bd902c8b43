"""What groups leave in the store that their ranks meet at, and what they make of what they find there."""

import datetime
import json

import netsum.torch
import pytest
import ranks
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

import torch

GROUPS = 50


def meeting(size):
    """A place where all ranks meet that leaves no keys, and that no group's end can fail."""
    return ranks.CONTEXT.Barrier(size, timeout=ranks.DEADLINE_S)


def number_of_keys(store, everybody):
    """While no rank is about to make the next group, nor to take the store away."""
    everybody.wait()
    count = store.num_keys()
    everybody.wait()
    return count


def make_and_destroy(count):
    for _ in range(count):
        group = dist.new_group()
        ones = torch.ones(10)
        dist.all_reduce(ones, group=group)
        assert ones[0] == dist.get_world_size()
        dist.destroy_process_group(group)


@pytest.mark.parametrize("kind", ["tcp", "file"])
def test_groups_leave_no_keys(store_port, kind):
    everybody = meeting(2)

    def on_rank(rank):
        store = ranks.tcp_group(rank, store_port, world_size=2) if kind == "tcp" else _get_default_store()
        before = number_of_keys(store, everybody)
        make_and_destroy(GROUPS if kind == "tcp" else 3)
        return before, number_of_keys(store, everybody)

    for before, after in ranks.run(on_rank, world_size=2):
        assert after == before


def test_a_group_over_the_hosts_alone_leaves_no_keys(store_port):
    everybody = meeting(2)

    def on_rank(rank):
        store = ranks.tcp_group(rank, store_port, world_size=2)
        before = number_of_keys(store, everybody)
        netsum.torch._C.MAX_MEMBERS = 1
        group = dist.new_group()
        assert "hosts" in netsum.torch.describe(group)
        return number_of_keys(store, everybody) - before

    assert ranks.run(on_rank, world_size=2) == [0, 0]


def test_a_regroup_leaves_only_its_list(store_port):
    everybody = meeting(ranks.WORLD_SIZE)

    def on_rank(rank):
        store = ranks.tcp_group(rank, store_port)
        grown = []
        for _ in range(3):
            before = number_of_keys(store, everybody)
            netsum.torch.regroup(gather_s=30.0)
            grown.append(number_of_keys(store, everybody) - before)
        return grown

    # The list, for a rank that comes too late.
    assert ranks.run(on_rank) == [[1, 1, 1]] * ranks.WORLD_SIZE


def test_the_same_names_again(store_port):
    """Groups with the store and the names of former ones, as after torchrun's restarts."""

    def on_rank(rank):
        store = ranks.tcp_group(rank, store_port)
        for _ in range(10):
            dist.destroy_process_group()
            dist.init_process_group("netsum", store=store, rank=rank, world_size=ranks.WORLD_SIZE)
            ones = torch.ones(10)
            dist.all_reduce(ones)
            assert ones[0] == ranks.WORLD_SIZE
        dist.barrier()

    ranks.run(on_rank)


class Scribbler(dist.Store):
    """Passes everything on to a store, but for the keys that end in `name`: who asks for one reads `text`."""

    def __init__(self, store, name, text):
        super().__init__()
        self.store, self.name, self.text = store, name, text

    def get(self, key):
        return self.text if key.endswith(self.name) else self.store.get(key)

    def set(self, key, value):
        self.store.set(key, value)

    def compare_set(self, key, expected, desired):
        return self.store.compare_set(key, expected, desired)

    def add(self, key, value):
        return self.store.add(key, value)

    def check(self, keys):
        return self.store.check(keys)

    def wait(self, keys, timeout=datetime.timedelta(seconds=30)):
        self.store.wait(keys, timeout)

    def num_keys(self):
        return self.store.num_keys()

    def delete_key(self, key):
        return self.store.delete_key(key)


HELLO = {"settings": "", "host": {}, "job": "j", "token": "t"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("hello/0", b"", id="empty"),
        pytest.param("hello/0", b"\xff\xfe\x00", id="binary"),
        pytest.param("hello/0", b"[" * 5000, id="deep"),
        pytest.param("hello/0", b"[1, 2]", id="list"),
        pytest.param("hello/0", json.dumps({**HELLO, "settings": 7}).encode(), id="settings_of_another_type"),
        pytest.param("hello/0", json.dumps({"settings": ""}).encode(), id="without_a_job"),
        pytest.param("hello/1", b'{"problem": 3}', id="problem_of_another_type"),
        pytest.param("root", b'{"address": 5151}', id="root"),
    ],
)
def test_what_another_program_wrote_is_refused(store_port, name, text):
    assert_refused(store_port, name, text, "version_mismatch", name)


def test_settings_of_another_version_are_named(store_port):
    assert_refused(
        store_port,
        "hello/0",
        json.dumps({**HELLO, "settings": "NETSUM_NEW=1"}).encode(),
        "mismatch",
        "different versions",
    )


def assert_refused(store_port, name, text, code, told):
    def on_rank(rank):
        store = ranks.tcp_store(store_port)
        mine = Scribbler(store, name, text) if rank == 1 else store
        dist.destroy_process_group()
        with pytest.raises(netsum.torch.Error) as caught:
            dist.init_process_group(
                "netsum",
                store=mine,
                rank=rank,
                world_size=2,
                timeout=datetime.timedelta(seconds=5),
            )
        # The other rank hears of it, or waits in vain: it ends by its deadline.
        store.set(f"seen_by/{rank}", "")
        store.wait(["seen_by/0", "seen_by/1"])
        return caught.value.code, str(caught.value)

    other, mine = ranks.run(on_rank, world_size=2, env={"NETSUM_CONNECT_TIMEOUT": "5"})
    assert mine[0] == code, mine
    assert told in mine[1], mine
    # With the reason of the rank that refused, if that arrived before the deadline.
    assert other[0] in (code, "unreachable", "timeout") and told in other[1], other


def test_a_lead_that_no_rank_wrote_is_not_followed(store_port):
    """Left by another program, say: rank 1 waits until rank 0 has written its own."""

    def on_rank(rank):
        store = ranks.tcp_store(store_port)
        dist.destroy_process_group()
        if rank == 1:
            for text in (b"junk", b"\xff", b'{"word": 1, "ranks": {}}', b'{"word": "w", "ranks": []}'):
                store.set("0//cpu//netsum/lead", text)
        store.set(f"there/{rank}", "")
        store.wait(["there/0", "there/1"])
        dist.init_process_group("netsum", store=store, rank=rank, world_size=2)
        dist.barrier()
        keys = store.list_keys()
        dist.barrier()
        return any("netsum/lead" in key for key in keys)

    assert ranks.run(on_rank, world_size=2) == [False, False]
