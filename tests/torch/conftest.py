"""Which way the ranks' sums go, and a count of the tests of PyTorch's own suite, for the record."""

import collections
import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the ranks share a few cores

_counts = collections.Counter()
_SUITE = "test_pytorch_suite.py::TestPyTorchSuite::"
RECORD = "build/pytorch-suite-{backend}.txt"


# By what means the ranks, all on this host, are summed; the second is the default of the package.
WAYS = {"network": "0", "shared_memory": "1"}
BOTH_WAYS = ("test_operations", "test_training", "test_errors", "test_exit", "test_failures")


def pytest_generate_tests(metafunc):
    only_network = metafunc.definition.get_closest_marker("network") is not None
    if metafunc.module.__name__ in BOTH_WAYS and not only_network:
        metafunc.parametrize("way", WAYS, indirect=True)


@pytest.fixture(autouse=True)
def way(request, monkeypatch):
    """Set for all ranks that the test starts; tests that are not run both ways test the network."""
    chosen = getattr(request, "param", "network")
    monkeypatch.setenv("NETSUM_SHARED_MEMORY", WAYS[chosen])
    return chosen


def pytest_configure(config):
    config.addinivalue_line("markers", "network: is not run both ways")


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
    by_reason = collections.Counter(excluded.EXCLUDED.values())
    own_skips = [reason for reason in known.values() if reason and reason != pytorch_suite.KEPT_FOR_MPI]
    text = (
        f"PyTorch {torch.__version__}: DistributedTest has {len(known)} tests. On {pytorch_suite.backend()} at world "
        f"size {pytorch_suite.WORLD_SIZE}: {_counts['passed']} passed, {_counts['failed']} failed, "
        f"{_counts['skipped']} skipped. Not run: {len(own_skips)} that PyTorch marks as NCCL's or as broken"
    )
    text += "".join(f"; {count}: {reason}" for reason, count in by_reason.items()) + "."
    terminalreporter.write_line(text)
    record = config.rootpath / RECORD.format(backend=pytorch_suite.backend())
    record.parent.mkdir(exist_ok=True)
    record.write_text(text + "\n", encoding="utf-8")
