"""Runs PyTorch's own tests on netsum; what is left out, and why, stands in excluded.py."""

import excluded
import pytorch_suite


class TestPyTorchSuite(pytorch_suite.ForkingTestCase, pytorch_suite.DistributedTest._DistTestBase):
    pass


pytorch_suite.choose_tests(TestPyTorchSuite, excluded.EXCLUDED)


def test_exclusions_are_up_to_date():
    known = pytorch_suite.skipped_by_pytorch()
    assert set(excluded.EXCLUDED) <= set(known), "excluded tests that PyTorch does not have"
    twice = [name for name in excluded.EXCLUDED if known[name]]
    assert not twice, f"PyTorch skips these by itself: {twice}"
    assert all(excluded.EXCLUDED.values()), "each exclusion has a reason"
