"""PyTorch's own tests of a c10d backend, made to run against netsum.

The tests are those of torch.testing._internal.distributed.distributed_test, which every PyTorch wheel contains.
Two things differ from how PyTorch runs them:

- Many of them ask for the backend's name and skip themselves unless it is "gloo". netsum claims all that Gloo can
  do, so they are gated as for Gloo, and then run on netsum.
- PyTorch starts four new Pythons per test, each of which imports torch for seconds. Here they are forked from one
  that has imported everything and has not yet started a thread.
"""

import os
import tempfile

WORLD_SIZE = 4
TEST_TIMEOUT_S = 120

# distributed_test reads these when it is imported.
os.environ["BACKEND"] = "gloo"
os.environ["WORLD_SIZE"] = str(WORLD_SIZE)
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # with fewer GPUs than ranks the suite skips everything
os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(TEST_TIMEOUT_S)
os.environ.setdefault("INIT_METHOD", "file:///unused")  # each test makes its own; only the kind matters here
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp(prefix="netsum-pytorch-suite-"))

import torch  # noqa: E402
import torch.multiprocessing  # noqa: E402
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

import netsum.torch  # noqa: E402, F401

for _feature in ("ddp", "subgroup", "plugin"):
    DistTestCases.backend_feature[_feature].add("netsum")

from torch.testing._internal.distributed import distributed_test  # noqa: E402

DistributedTest = distributed_test.DistributedTest


def backend():
    """The backend that the tests run on: netsum, or another to compare with."""
    return os.environ.get("NETSUM_TEST_BACKEND", "netsum")


class ForkingTestCase(distributed_test.TestDistBackend):
    """Runs each test in WORLD_SIZE processes forked from this one."""

    def setUp(self):
        super().setUp()
        distributed_test.BACKEND = backend()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def test_names():
    """All tests that PyTorch has, by name, with PyTorch's reason for skipping each here, or None."""
    base = DistributedTest._DistTestBase
    names = [name for name in dir(base) if name.startswith("test_")]
    return {
        name: getattr(getattr(base, name), "__unittest_skip_why__", "no reason given")
        if getattr(getattr(base, name), "__unittest_skip__", False)
        else None
        for name in names
    }
