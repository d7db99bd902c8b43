"""Results by IP multicast: real links, both dataplanes, all members behind the aggregator's one port."""

import json
import subprocess

import pytest
from harness import NETSUM, PATIENCE_S
from rack_harness import RackCommandTest

WORKERS = 3
SERVER = 3  # the spare server is one more worker of the rack
TENSOR_BYTES = 1 << 20
ITERATIONS = 3


class MulticastRackTest(RackCommandTest):
    def namespace_of(self, node):
        return next(one["namespace"] for one in self.status()["nodes"] if one["id"] == node)

    def change(self, node, *command):
        subprocess.run(["ip", "netns", "exec", self.namespace_of(node), *command], check=True, timeout=PATIENCE_S)

    def received_bytes(self, node, interface):
        shown = json.loads(self.run_in(node, "ip", "-j", "-s", "link", "show", "dev", interface).text("out"))
        return shown[0]["stats64"]["rx"]["bytes"]

    def start_spare_server(self, *flags):
        """An aggregator on a host with one link, which all members are behind."""
        daemon = self.start_in(
            SERVER,
            NETSUM,
            "aggregator",
            "--listen",
            f"10.77.0.{SERVER + 1}:5200",
            "--multicast",
            "239.1.2.0/24",
            *flags,
        )
        daemon.wait_for("ready:", name="out")
        return daemon

    def start_ranks(self, *flags, flags_of_last=()):
        return [
            self.start_rank(
                w,
                WORKERS,
                "--aggregator",
                f"10.77.0.{SERVER + 1}:5200",
                "--bytes",
                TENSOR_BYTES,
                "--iterations",
                ITERATIONS,
                "--warmup",
                0,
                "--timeout",
                "20s",
                # All of it by the server, though it is slower than the ranks' own shards.
                "--shares",
                "off",
                "--json",
                *flags,
                *(flags_of_last if w == WORKERS - 1 else ()),
            )
            for w in range(WORKERS)
        ]

    def sums_with_one_packet_for_all(self, *flags, flags_of_ranks=()):
        self.up("--workers", WORKERS + 1)
        # veth takes redirected frames only where the other end polls, which GRO makes it do.
        self.change("sw", "ethtool", "-K", f"w{SERVER}", "gro", "on")
        daemon = self.start_spare_server(*flags)
        links = [("sw", f"w{SERVER}"), *((f"w{w}", "eth0") for w in range(WORKERS))]
        before = [self.received_bytes(*link) for link in links]
        reports = self.reports_of(self.start_ranks(*flags_of_ranks))
        after = [self.received_bytes(*link) for link in links]
        for report in reports:
            assert "results by multicast to 239.1.2." in report["summed_by"]
        for link, was, now in zip(links, before, after, strict=True):
            per_gradient_byte = (now - was) / (ITERATIONS * TENSOR_BYTES)
            # From the server once, and once to each worker: 1.06, and some control traffic. Copies would be 3.2.
            assert per_gradient_byte > 1.0, link
            assert per_gradient_byte < 1.5, link
        counters = self.counters_of(daemon)
        # Results, and an answer to some of the HELLOs.
        assert counters["multicast_packets_sent"] > counters["rounds_completed"]

    def counters_of(self, daemon):
        asked = self.run_in(SERVER, NETSUM, "status", "--aggregator", f"10.77.0.{SERVER + 1}:5200", "--once", "--json")
        assert daemon.process.poll() is None
        return json.loads(asked.text("out"))["aggregators"][0]["counters"]

    def test_the_daemon_sends_each_result_once(self):
        self.sums_with_one_packet_for_all("--cores", 2)

    def test_each_engine_thread_receives_from_its_stripe(self):
        self.sums_with_one_packet_for_all("--cores", 2, flags_of_ranks=("--engine-threads", 2))

    def test_xdp_sends_each_result_once(self):
        self.sums_with_one_packet_for_all("--dataplane", "xdp", "--interfaces", "eth0")

    def copies_for_a_member_without_multicast(self, *flags):
        self.up("--workers", WORKERS + 1)
        self.change("sw", "ethtool", "-K", f"w{SERVER}", "gro", "on")
        daemon = self.start_spare_server(*flags)
        for report in self.reports_of(self.start_ranks(flags_of_last=("--packet-io", "af_xdp"))):
            assert "multicast" not in report["summed_by"]
        assert self.counters_of(daemon)["multicast_packets_sent"] == 0

    def test_the_daemon_copies_for_a_member_without_multicast(self):
        self.copies_for_a_member_without_multicast("--cores", 1)

    def test_xdp_copies_for_a_member_without_multicast(self):
        self.copies_for_a_member_without_multicast("--dataplane", "xdp", "--interfaces", "eth0")

    def filtered_multicast_is_said(self, *flags):
        self.up("--workers", WORKERS + 1)
        self.change("sw", "ethtool", "-K", f"w{SERVER}", "gro", "on")
        self.start_spare_server(*flags)
        # A switch that does not pass the group on to the last worker.
        self.change("sw", "ip", "link", "set", "dev", f"w{WORKERS - 1}", "type", "bridge_slave", "mcast_flood", "off")
        ranks = self.start_ranks("--connect-timeout", "3s")
        assert [rank.end() for rank in ranks] == [3] * WORKERS
        ranks[-1].wait_for(
            "data port at 10.77.0.4:", "multicast group 239.1.2.", "does not arrive", "IGMP snooping", "--multicast"
        )
        ranks[0].wait_for("rank 2", "reported", "does not arrive")

    def test_the_daemon_and_a_switch_that_filters_multicast(self):
        self.filtered_multicast_is_said("--cores", 1)

    def test_xdp_and_a_switch_that_filters_multicast(self):
        self.filtered_multicast_is_said("--dataplane", "xdp", "--interfaces", "eth0")

    def sums_in_racks(self, dataplane):
        self.up("--workers", 4, "--racks", 2, "--dataplane", dataplane, "--multicast")
        ranks = [
            self.start_rank(
                w,
                4,
                "--bytes",
                TENSOR_BYTES,
                "--iterations",
                ITERATIONS,
                "--json",
                "--timeout",
                "20s",
            )
            for w in range(4)
        ]
        reports = self.reports_of(ranks)
        for w, report in enumerate(reports):
            assert f"results by multicast to 239.77.{w // 2}." in report["summed_by"]

    @pytest.mark.soak  # as XDP below a spine
    def test_daemons_below_a_spine(self):
        self.sums_in_racks("user")

    def test_xdp_below_a_spine(self):
        self.sums_in_racks("xdp")

    def test_refusals(self):
        for words, (groups, listen) in (
            (["not multicast", "239.1.2.0/24"], ["10.0.0.0/8", "127.0.0.1:0"]),
            (["has 16 addresses", "max_jobs is 64", "--max-jobs"], ["239.1.2.0/28", "127.0.0.1:0"]),
            (["IPv4 address", "--listen"], ["239.1.2.0/24", "0.0.0.0:0"]),
            (["IPv4 address", "--listen"], ["239.1.2.0/24", "[::1]:0"]),
        ):
            refused = self.run_command("aggregator", "--listen", listen, "--multicast", groups)
            assert refused.status == 2
            refused.wait_for(*words)
