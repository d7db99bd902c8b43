"""Runs PyTorch's own tests on netsum; what is left out, and why, stands in excluded.py."""

import pytorch_suite


class TestPyTorchSuite(pytorch_suite.ForkingTestCase, pytorch_suite.DistributedTest._DistTestBase):
    pass
