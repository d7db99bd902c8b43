"""Which address each rank gets, from what all ranks say of their hosts. With real hosts: tests/cli/hosts_test.py."""

import pytest
import torch.distributed as dist
from netsum.torch import _addresses, _rendezvous

DOCKER = ["docker0", "172.17.0.1", 16]


def host(*interfaces, route="", master="", name="", told=""):
    return {"route": route, "master": master, "name": name, "told": told, "interfaces": list(interfaces)}


def ib0(i):
    return ["ib0", f"10.77.0.{i}", 24]


def eth0(i):
    return ["eth0", f"10.1.{i}.1", 24]


def chosen(*hosts):
    return [_addresses.choose(list(hosts), rank) for rank in range(len(hosts))]


def test_the_route_to_the_master_counts():
    hosts = [host(eth0(i), ib0(i), route=f"10.77.0.{i}", master="10.77.0.1", told=f"10.1.{i}.1") for i in (1, 2)]
    assert chosen(*hosts) == ["10.77.0.1", "10.77.0.2"]


def test_one_host_stays_on_loopback():
    assert chosen(*[host(ib0(1), route="127.0.0.1", master="127.0.0.1", told="10.77.0.1")] * 2) == ["127.0.0.1"] * 2
    assert chosen(host(), host()) == ["127.0.0.1"] * 2
    assert chosen(host(route="::1", master="::1")) == ["::1"]


def test_a_master_whose_name_means_itself_is_where_the_others_reach_it():
    first = host(eth0(1), ib0(1), route="127.0.0.1", master="127.0.1.1")
    assert chosen(first, first, host(eth0(2), ib0(2), route="10.77.0.2", master="10.77.0.1")) == [
        *("10.77.0.1", "10.77.0.1", "10.77.0.2")
    ]


def test_without_a_master_the_network_of_all_hosts_counts():
    assert chosen(*[host(DOCKER, eth0(i), ib0(i)) for i in (1, 2, 3)]) == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    named = [host(eth0(i), ib0(i), name=f"10.1.{i}.1") for i in (1, 2)]
    assert chosen(*named) == ["10.77.0.1", "10.77.0.2"], "the name means a network of the host's own"
    two = [host(["a", f"10.5.0.{i}", 24], ib0(i), name=f"10.77.0.{i}") for i in (1, 2)]
    assert chosen(*two) == ["10.77.0.1", "10.77.0.2"], "the name means one of two networks of all"
    six = [host(eth0(i), ["ib0", f"fd77::{i}", 64]) for i in (1, 2)]
    assert chosen(*six) == ["fd77::1", "fd77::2"]


def test_where_no_network_is_common():
    routed = [host(eth0(i), name=f"10.1.{i}.1") for i in (1, 2)]
    assert chosen(*routed) == ["10.1.1.1", "10.1.2.1"], "the names may be right"
    told = [host(eth0(i), ib0(i), told=f"10.1.{i}.1") for i in (1, 2)]
    assert chosen(*told) == ["10.1.1.1", "10.1.2.1"]
    hosts = [host(DOCKER, eth0(i)) for i in (1, 2)]
    assert chosen(*hosts) == [None, None]
    with pytest.raises(
        _rendezvous._C.Error, match=r"rank 0 has no .*docker0 172.17.0.1, eth0 10.1.1.1.*GLOO_SOCKET_IFNAME"
    ):
        _rendezvous._choose_address(hosts, 1)


def test_what_another_program_writes_is_an_error():
    for broken in ({}, {**host(), "interfaces": [1]}, {**host(), "route": None}):
        with pytest.raises(_rendezvous._C.Error, match="same version"):
            _rendezvous._choose_address([broken, host(ib0(1))], 1)


def test_this_host(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    mine = _addresses.describe(dist.PrefixStore("x", dist.HashStore()), "")
    assert (mine["route"], mine["master"], mine["told"]) == ("", "", "")
    for name, address, prefix in mine["interfaces"]:
        assert name != "lo" and 0 < prefix <= (128 if ":" in address else 32)
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", name)
        assert _addresses.describe(dist.HashStore(), "")["told"] in [a for n, a, _ in mine["interfaces"] if n == name]
        assert _addresses.describe(dist.HashStore(), "1.2.3.4")["told"] == "1.2.3.4"
