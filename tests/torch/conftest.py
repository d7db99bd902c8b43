"""Which way the ranks' sums go, and a count of the tests of PyTorch's own suite, for the record."""

import collections
import os
import zlib

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the ranks share a few cores

_counts = collections.Counter()
_SUITE = "test_pytorch_suite.py::TestPyTorchSuite::"
RECORD = "build/pytorch-suite-{backend}-{world_size}-{where}.txt"


# By what means the ranks, all on this host, are summed: shards in the ranks, shared memory (the default of the package), or
# an aggregator alone.
WAYS = {"network": "0", "shared_memory": "1", "daemon": "0"}
_NETWORK_AND_MEMORY = ("network", "shared_memory")
# Files whose tests run in several ways. What depends on the way runs in all of them. Of the other files, each test runs in one
# way, which its name determines, so that all ways have their share; the others are soak tests. Shards and an aggregator differ
# little to a rank: a test of TWO_WAYS_OF runs by one of them, and in shared memory.
ALL_WAYS_OF = {"test_failures": _NETWORK_AND_MEMORY}
TWO_WAYS_OF = {"test_collectives": ("network", "daemon"), "test_operators": ("network", "daemon")}
ONE_WAY_OF = {
    "test_operations": _NETWORK_AND_MEMORY,
    "test_training": _NETWORK_AND_MEMORY,
    "test_errors": _NETWORK_AND_MEMORY,
    "test_exit": _NETWORK_AND_MEMORY,
    "test_collective_calls": tuple(WAYS),
    "test_sharded_training": _NETWORK_AND_MEMORY,
    "test_sparse": _NETWORK_AND_MEMORY,
}


def pytest_generate_tests(metafunc):
    name = metafunc.module.__name__
    ways = tuple(WAYS) if name in TWO_WAYS_OF else {**ALL_WAYS_OF, **ONE_WAY_OF}.get(name, ())
    if metafunc.definition.get_closest_marker("network") is not None:
        ways = ()
    elif metafunc.definition.get_closest_marker("shared_memory") is not None:
        ways = ("shared_memory",)
    if ways:
        metafunc.parametrize("way", ways, indirect=True)


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is marked
def pytest_collection_modifyitems(items):
    for item in items:
        ways = {**ONE_WAY_OF, **TWO_WAYS_OF}.get(item.module.__name__, ()) if hasattr(item, "callspec") else ()
        way = item.callspec.params.get("way") if ways else None
        if way not in ways or item.get_closest_marker("all_ways") or item.get_closest_marker("shared_memory"):
            continue
        number = zlib.crc32(item.name.replace(way, "").encode())
        if way != ways[number % len(ways)]:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(scope="module")
def daemon():
    """The address of an aggregator for the tests of a module."""
    import ranks

    with ranks.aggregator() as process:
        yield process.address


@pytest.fixture(autouse=True)
def way(request, monkeypatch):
    """Set for all ranks that the test starts; tests that are not run in several ways test the network."""
    chosen = getattr(request, "param", "network")
    monkeypatch.setenv("NETSUM_SHARED_MEMORY", WAYS[chosen])
    if chosen == "daemon":
        monkeypatch.setenv("NETSUM_AGGREGATOR", request.getfixturevalue("daemon"))
        monkeypatch.setenv("NETSUM_SHARES", "off")  # otherwise shards take part
    return chosen


@pytest.fixture(autouse=True)
def no_threads():
    """Names the test that leaves a thread in this process, where the ranks of the next tests are forked from."""
    import ranks

    yield
    ranks.assert_no_threads()


@pytest.fixture
def store_port():
    """The port of a TCP store that outlives the ranks."""
    import ranks

    with ranks.store_server() as port:
        yield port


def pytest_configure(config):
    config.addinivalue_line("markers", "all_ways: depends on the way, and runs in all of them")
    config.addinivalue_line("markers", "network: is not run both ways, but over the network")
    config.addinivalue_line(
        "markers", "shared_memory: is not run both ways, but in shared memory, which takes less time"
    )


def pytest_runtest_logreport(report):
    if _SUITE in report.nodeid and (report.when == "call" or report.outcome != "passed"):
        _counts[report.outcome] += 1


def pytest_terminal_summary(terminalreporter, config):
    if not _counts:
        return
    import excluded
    import pytorch_suite

    import torch

    known = pytorch_suite.skipped_by_pytorch()
    calls = pytorch_suite.calls_by_test()
    left_out = excluded.at_world_size(pytorch_suite.WORLD_SIZE)
    marked = [name for name, reason in known.items() if reason not in (None, pytorch_suite.KEPT_FOR_MPI)]
    own_skips = [name for name in marked if name not in left_out]
    by_reason = collections.Counter(left_out.values())
    text = (
        f"PyTorch {torch.__version__}: DistributedTest has {len(known)} tests. On {pytorch_suite.backend()} at world "
        f"size {pytorch_suite.WORLD_SIZE}, summed by {pytorch_suite.WHERE}: {_counts['passed']} passed, "
        f"{_counts['failed']} failed, {_counts['skipped']} skipped. {sum(1 for count in calls.values() if count)} of "
        f"these {len(calls)} used netsum's collectives: {sum(calls.values())} calls over all ranks, without barriers. "
        f"Not run: {len(own_skips)} that PyTorch marks as NCCL's or as broken"
    )
    if pytorch_suite.ONLY_OURS:
        text += "; those that never use netsum's collectives"
    text += "".join(f"; {count}: {reason}" for reason, count in by_reason.items()) + "."
    terminalreporter.write_line(text)
    if pytorch_suite.ONLY_OURS:
        return
    text += "\n" + "\n".join(f"{count:7} {name}" for name, count in sorted(calls.items()))
    record = config.rootpath / RECORD.format(
        backend=pytorch_suite.backend(), world_size=pytorch_suite.WORLD_SIZE, where=pytorch_suite.WHERE
    )
    record.parent.mkdir(exist_ok=True)
    record.write_text(text + "\n", encoding="utf-8")
