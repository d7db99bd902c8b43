"""Racks under a spine: aggregators that feed a parent, with real links, in both dataplanes and mixed."""

import json
import os
import signal
import time

import pytest
from harness import PATIENCE_S
from rack_harness import RackCommandTest

WORKERS = 4
TENSOR_BYTES = 1 << 20


class HierarchyRackTest(RackCommandTest):
    def link_bytes(self, where, interface):
        """(sent, received) by the interface, with Ethernet headers."""
        shown = json.loads(self.run_in(where, "ip", "-j", "-s", "link", "show", "dev", interface).text("out"))
        return [shown[0]["stats64"][way]["bytes"] for way in ("tx", "rx")]

    def sums_with_one_packet_per_rack(self, racks, spine):
        self.up("--workers", WORKERS, "--racks", 2, "--dataplane", racks, "--spine-dataplane", spine)
        before = [self.link_bytes(up, "spine") for up in ("up0", "up1")]
        report = self.sum_over(WORKERS, "--bytes", TENSOR_BYTES, "--iterations", 2, "--warmup", 0)
        after = [self.link_bytes(up, "spine") for up in ("up0", "up1")]
        assert report["verified"]
        names = {"user": "user-space", "xdp": "xdp"}
        assert f"{names[racks]} below {names[spine]}" in report["summed_by"]
        for up, (were, are) in enumerate(zip(before, after, strict=True)):
            for way, was, now in zip(("up", "down"), were, are, strict=True):
                per_gradient_byte = (now - was) / (2 * TENSOR_BYTES)
                # One packet per chunk each way: 1.06, and some control traffic. Two workers' packets would be 2.1.
                assert per_gradient_byte > 1.0, (up, way)
                assert per_gradient_byte < 1.5, (up, way)
        for dtype in ("bfloat16", "int64"):
            assert self.sum_over(WORKERS, "--bytes", "100k", "--iterations", 1, "--dtype", dtype)["verified"]

    @pytest.mark.soak  # the next two have each of them above and below
    def test_daemons_below_a_daemon(self):
        self.sums_with_one_packet_per_rack("user", "user")

    @pytest.mark.soak
    def test_xdp_below_xdp(self):
        self.sums_with_one_packet_per_rack("xdp", "xdp")

    def test_xdp_below_a_daemon(self):
        self.sums_with_one_packet_per_rack("xdp", "user")

    def test_daemons_below_xdp(self):
        self.sums_with_one_packet_per_rack("user", "xdp")

    def test_a_dead_worker_is_named_in_the_other_rack(self):
        self.up("--workers", WORKERS, "--racks", 2)
        ranks = [
            self.start_rank(
                w,
                WORKERS,
                "--bytes",
                "1Mi",
                "--iterations",
                100000,
            )
            for w in range(WORKERS)
        ]
        self.wait_in_log("running")
        ranks[3].process.kill()
        for rank in ranks[:3]:
            assert rank.end() != 0
            rank.wait_for("rank 3 (10.77.0.4")

    def test_a_job_outlives_an_aggregator_below_the_spine(self):
        self.up("--workers", WORKERS, "--racks", 2)
        status = self.status()
        root = next(node["address"] for node in status["nodes"] if node["id"] == "w0")
        failover = ("--on-failure", "failover", "--fallback", "hosts", "--root", f"{root}:6000")
        ranks = [
            self.start_rank(
                w, WORKERS, "--bytes", "64k", "--iterations", 500, "--numerics", "fixed", "--json", *failover
            )
            for w in range(WORKERS)
        ]
        deadline = time.monotonic() + PATIENCE_S
        while self.link_bytes("up1", "spine")[0] < 1 << 20:
            assert time.monotonic() < deadline
        os.kill(status["aggregators"][2]["pid"], signal.SIGKILL)
        for report in self.reports_of(ranks):
            assert [one["failovers"] for one in report["ranks"]] == [1]
