"""Runs PyTorch's own tests on netsum; what is left out, and why, stands in excluded.py.

This process runs them one way, which the environment chooses (pytorch_suite.py). The other ways are runs of their own,
because PyTorch reads the number of ranks when its tests are imported.
"""

import contextlib
import os
import pathlib
import subprocess
import sys

import excluded
import pytest
import pytorch_suite
import ranks

EXCLUDED = excluded.at_world_size(pytorch_suite.WORLD_SIZE)
DEADLINE_S = 3000


@pytest.fixture(scope="module")
def place():
    """Where the sums happen, for all tests of this module."""
    with contextlib.ExitStack() as stack:
        if pytorch_suite.WHERE == "daemon":
            os.environ["NETSUM_AGGREGATOR"] = stack.enter_context(ranks.aggregator()).address
            stack.callback(os.environ.pop, "NETSUM_AGGREGATOR")
        yield


@pytest.mark.usefixtures("place")
class TestPyTorchSuite(pytorch_suite.ForkingTestCase, pytorch_suite.DistributedTest._DistTestBase):
    pass


OURS = set(excluded.USE_NETSUM) - excluded.REPEATS
pytorch_suite.choose_tests(TestPyTorchSuite, EXCLUDED, only=OURS if pytorch_suite.ONLY_OURS else None)


@pytest.mark.skipif(pytorch_suite.backend() != "netsum", reason="counts netsum's calls")
def test_which_tests_use_netsum():
    """Runs behind them. A test that passes without a collective of netsum's says nothing about netsum."""
    calls = pytorch_suite.calls_by_test()
    used = {name for name, count in calls.items() if count > 0}
    assert used - excluded.ON_CPU == set(calls) & set(excluded.USE_NETSUM)


def test_exclusions_are_up_to_date():
    known = pytorch_suite.skipped_by_pytorch()
    listed = excluded.at_world_size(2)
    assert set(listed) | set(excluded.USE_NETSUM) <= set(known), "excluded tests that PyTorch does not have"
    twice = [name for name in listed if known[name]]
    assert not twice, f"PyTorch skips these by itself: {twice}"
    assert all(listed.values()), "each exclusion has a reason"


@pytest.mark.soak  # as part of test_the_whole_suite, but in a minute
def test_eight_ranks_and_a_daemon():
    """Of the tests that use netsum, one that PyTorch skips in fewer ranks: its group leaves ranks out."""
    run_suite(8, "daemon", "ours", "all_gather_group")


@pytest.mark.soak
@pytest.mark.timeout(DEADLINE_S)
@pytest.mark.parametrize(("world_size", "where"), [(4, "shards"), (4, "daemon"), (8, "shards"), (8, "daemon")])
def test_the_whole_suite(world_size, where):
    run_suite(world_size, where, "all")


def run_suite(world_size, where, suite, keyword=""):
    this = pathlib.Path(__file__)
    env = {
        "NETSUM_TEST_WORLD_SIZE": str(world_size),
        "NETSUM_TEST_WHERE": where,
        "NETSUM_TEST_SUITE": suite,
        "NETSUM_TEST_BACKEND": "netsum",
    }
    which = f"(TestPyTorchSuite and ({keyword or 'test'})) or test_which"
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not soak", str(this), "-k", which],
        cwd=this.parents[2],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    print(result.stdout[-2000:])
    assert result.returncode == 0, result.stdout + result.stderr
    assert "passed" in result.stdout
