"""Workers whose packets go by AF_XDP, in a virtual rack: the same sums, other traffic unharmed, UDP where it cannot be."""

import json
import os
import subprocess

from harness import NETSUM
from rack_harness import RackCommandTest


class AfXdpTest(RackCommandTest):
    def start_ranks(self, workers, *flags):
        return [
            self.start_rank(
                w,
                workers,
                "--json",
                "--timeout",
                "20s",
                *flags,
            )
            for w in range(workers)
        ]

    def xdp_program_of(self, worker):
        shown = subprocess.run(
            ["ip", "-n", f"netsum-{self.name}-w{worker}", "-j", "link", "show", "eth0"],
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(shown.stdout)[0].get("xdp")

    def sums_and_tcp(self, dataplane):
        self.up("--workers", 3, "--dataplane", dataplane)
        ranks = self.start_ranks(3, "--bytes", "1Mi", "--iterations", 20, "--packet-io", "af_xdp")
        self.send_between(1, 2, os.urandom(4 << 20))
        for report in self.reports_of(ranks):
            assert "packets by af_xdp (copy mode, eth0)" in report["summed_by"]
        for dtype in ("bfloat16", "int64"):
            ranks = self.start_ranks(3, "--bytes", "100k", "--iterations", 2, "--dtype", dtype, "--packet-io", "af_xdp")
            self.reports_of(ranks)
        for worker in range(3):
            assert self.xdp_program_of(worker) is None

    def test_af_xdp_and_the_daemon(self):
        self.sums_and_tcp("user")

    def test_af_xdp_and_the_xdp_dataplane(self):
        self.sums_and_tcp("xdp")

    def test_ranks_may_differ(self):
        self.up("--workers", 2)
        ranks = [
            self.start_rank(
                w,
                2,
                "--bytes",
                "256Ki",
                "--iterations",
                3,
                "--json",
                "--packet-io",
                io,
            )
            for w, io in enumerate(("udp", "af_xdp"))
        ]
        by_udp, by_af_xdp = self.reports_of(ranks)
        assert "packets by" not in by_udp["summed_by"]
        assert "packets by af_xdp" in by_af_xdp["summed_by"]

    def test_embedded_shards(self):
        """One's own shard is reached by the UDP socket, those of others by the ring."""
        self.up("--workers", 2)
        ranks = [
            self.start_in(
                w,
                "env",
                "-u",
                "NETSUM_AGGREGATOR",
                NETSUM,
                "bench",
                "allreduce",
                "--rank",
                w,
                "--world-size",
                2,
                "--root",
                "10.77.0.1:5200",
                "--bytes",
                "256Ki",
                "--iterations",
                3,
                "--json",
                "--packet-io",
                "af_xdp",
            )
            for w in range(2)
        ]
        for report in self.reports_of(ranks):
            assert "embedded shards" in report["summed_by"]
            assert "packets by af_xdp" in report["summed_by"]

    def test_loopback_falls_back_to_udp(self):
        command = self.run_command(
            "bench",
            "allreduce",
            "--workers",
            2,
            "--bytes",
            "64Ki",
            "--iterations",
            1,
            "--json",
            environment={**self.environment, "NETSUM_PACKET_IO": "af_xdp"},
        )
        assert command.status == 0, command.text("err")
        report = json.loads(command.text("out"))
        assert report["verified"]
        assert "packets by UDP, not AF_XDP: " in report["summed_by"]

    def test_doctor_tries_it(self):
        self.up("--workers", 1)
        doctor = self.run_in(0, NETSUM, "doctor", "--packet-io", "af_xdp", "--json")
        assert doctor.status == 0, doctor.text("err")
        findings = {finding["subject"]: finding for finding in json.loads(doctor.text("out"))["findings"]}
        assert findings["AF_XDP"]["found"] == "available (--packet-io af_xdp)"
        tried = findings[self.status()["aggregator"] + " AF_XDP"]
        assert (tried["grade"], tried["found"]) == ("ok", "af_xdp (copy mode, eth0)")
        assert self.xdp_program_of(0) is None

    def test_a_shaped_link_is_left_to_udp(self):
        self.up("--workers", 2, "--rate", "1gbit")
        report = self.reports_of(self.start_ranks(2, "--bytes", "64Ki", "--iterations", 1, "--packet-io", "af_xdp"))[0]
        assert "packets by UDP, not AF_XDP: eth0 has the queueing discipline tbf" in report["summed_by"]
