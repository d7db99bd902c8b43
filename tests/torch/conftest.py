"""Which way the ranks' sums go, and a count of the tests of PyTorch's own suite, for the record."""

import collections
import contextlib
import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the ranks share a few cores

_counts = collections.Counter()
_SUITE = "test_pytorch_suite.py::TestPyTorchSuite::"
RECORD = "build/pytorch-suite-{backend}-{world_size}-{where}.txt"


# By what means the ranks, all on this host, are summed: shards in the ranks, shared memory (the default of the package), or
# an aggregator alone.
WAYS = {"network": "0", "shared_memory": "1", "daemon": "0"}
_NETWORK_AND_MEMORY = ("network", "shared_memory")
WAYS_OF = {
    "test_operations": _NETWORK_AND_MEMORY,
    "test_training": _NETWORK_AND_MEMORY,
    "test_errors": _NETWORK_AND_MEMORY,
    "test_exit": _NETWORK_AND_MEMORY,
    "test_failures": _NETWORK_AND_MEMORY,
    "test_collectives": tuple(WAYS),
    "test_collective_calls": tuple(WAYS),
    "test_operators": tuple(WAYS),
    "test_sharded_training": _NETWORK_AND_MEMORY,
    "test_sparse": _NETWORK_AND_MEMORY,
}


def pytest_generate_tests(metafunc):
    ways = WAYS_OF.get(metafunc.module.__name__, ())
    if metafunc.definition.get_closest_marker("network") is not None:
        ways = ()
    elif metafunc.definition.get_closest_marker("shared_memory") is not None:
        ways = ("shared_memory",)
    if ways:
        metafunc.parametrize("way", ways, indirect=True)


@pytest.fixture(autouse=True)
def way(request, monkeypatch):
    """Set for all ranks that the test starts; tests that are not run in several ways test the network."""
    chosen = getattr(request, "param", "network")
    monkeypatch.setenv("NETSUM_SHARED_MEMORY", WAYS[chosen])
    with contextlib.ExitStack() as stack:
        if chosen == "daemon":
            import ranks

            monkeypatch.setenv("NETSUM_AGGREGATOR", stack.enter_context(ranks.aggregator()).address)
            monkeypatch.setenv("NETSUM_SHARES", "off")  # otherwise shards take part
        yield chosen


@pytest.fixture
def store_port():
    """The port of a TCP store that outlives the ranks."""
    import ranks

    with ranks.store_server() as port:
        yield port


def pytest_configure(config):
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
