"""What comes through the ports of an XDP aggregator beside good packets, while it adds: bad input and other traffic."""

import json
import os
import pathlib
import subprocess
import sys
import time

from harness import LONG, PATIENCE_S
from rack_harness import RackCommandTest

RAW_FRAMES = pathlib.Path(__file__).resolve().parent / "raw_frames.py"

# Kinds of raw_frames.py to the aggregator's port, and the name that each is refused under.
REFUSED = {
    "vlan": "drop_vlan_tag",
    "provider_vlan": "drop_vlan_tag",
    "options": "drop_ip_options",
    "first_fragment": "drop_ip_fragment",
    "ip_checksum": "drop_ip_checksum",
    "ip_too_long": "drop_ip_length",
    "ip_too_short": "drop_ip_length",
    "udp_too_long": "drop_ip_length",
    "udp_too_short": "drop_ip_length",
    "trailer": "drop_ip_length",
    "no_header": "drop_too_short",
    "odd_payload": "drop_bad_length",
    "magic": "drop_bad_magic",
    "version": "drop_bad_version",
    "type": "drop_bad_type",
    "flags": "drop_bad_flags",
    "format": "drop_bad_format",
}
# These are not netsum's: the host's stack gets them.
PASSED = ["two_vlans", "later_fragment", "tcp", "ipv6", "ipv6_extension"]


class XdpTrafficTest(RackCommandTest):
    def start_sums(self, workers):
        """Ranks on the first workers, which sum until they are ended; returns once every one has got a sum."""
        ranks = [
            self.start_rank(
                w,
                workers,
                *LONG,
                "--report-events",
                "--timeout",
                "20s",
            )
            for w in range(workers)
        ]
        self.wait_for_sums(ranks)
        return ranks

    def sums(self, rank):
        return [json.loads(line) for line in list(rank.lines["out"]) if '"event":"iteration"' in line]

    def wait_for_sums(self, ranks):
        """Until every rank has got one more."""

        def count(rank):
            return sum('"event":"iteration"' in line for line in list(rank.lines["out"]))

        had = [count(rank) for rank in ranks]
        deadline = time.monotonic() + PATIENCE_S
        while any(count(rank) <= before for rank, before in zip(ranks, had, strict=True)):
            assert all(rank.process.poll() is None for rank in ranks), [rank.lines for rank in ranks]
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def end_right_sums(self, ranks):
        """They are still at it, and no sum was wrong."""
        self.wait_for_sums(ranks)
        for rank in ranks:
            assert {event["wrong"] for event in self.sums(rank)} == {0}
        for rank in ranks:
            rank.stop()

    def send_frames(self, worker, address, port, counts):
        """Returns {kind: frame in hex}."""
        sent = self.run_in(
            worker,
            sys.executable,
            RAW_FRAMES,
            "send",
            "eth0",
            address,
            port,
            *(f"{kind}={count}" for kind, count in counts.items()),
        )
        assert sent.status == 0, sent.text("err")
        return dict(line.split() for line in sent.text("out").splitlines())

    def test_bad_frames_are_refused_by_name_while_it_adds(self):
        self.up("--workers", 3, "--dataplane", "xdp")
        ranks = self.start_sums(3)
        # Another number of each, so that none can pass for another.
        counts = {kind: number for number, kind in enumerate(["plain", *REFUSED, *PASSED], start=1)}
        self.send_frames(0, self.switch()["address"], self.data_port(), counts)
        self.end_right_sums(ranks)
        counters = self.end_aggregator()
        expected = {}
        for kind, name in REFUSED.items():
            expected[name] = expected.get(name, 0) + counts[kind]
        assert {name: counters.get(name) for name in expected} == expected
        # A frame without a fault gets as far as netsum's own rules, as do the last packets of the job that was ended.
        assert counters["drop_unknown_job"] >= counts["plain"]
        assert counters["other_traffic_passed"] >= sum(counts[kind] for kind in PASSED)

    def test_frames_to_others_pass_untouched(self):
        self.up("--workers", 2, "--dataplane", "xdp")
        # A bridge may look at IP itself (br_netfilter): it drops some frames that contradict themselves, and trims others.
        trimmed = ("ip_checksum", "ip_too_long", "ip_too_short", "trailer")
        counts = {kind: 2 for kind in ["plain", *REFUSED, *PASSED] if kind not in trimmed}
        receiver = self.start_in(1, sys.executable, RAW_FRAMES, "receive", "eth0", sum(counts.values()))
        receiver.wait_for("ready", name="out")
        # To the aggregator's port number, but of another host.
        address = next(node["address"] for node in self.status()["nodes"] if node["id"] == "w1")
        sent = self.send_frames(0, address, self.data_port(), counts)
        assert receiver.end() == 0, receiver.text("err")
        received = receiver.text("out").splitlines()[1:]
        assert received == [sent[kind] for kind in counts for _ in range(2)]

    def test_tcp_through_the_same_ports_while_it_adds(self):
        self.up("--workers", 3, "--dataplane", "xdp", "--rate", "1gbit")
        ranks = self.start_sums(3)
        for sender, receiver in ((0, 1), (1, 2), (2, 0)):
            self.send_between(sender, receiver, os.urandom(4 << 20))
        self.end_right_sums(ranks)
        assert self.end_aggregator()["interfaces_attached"] == 3

    def test_an_interface_that_vanishes(self):
        self.up("--workers", 3, "--dataplane", "xdp")
        ranks = self.start_sums(3)
        space = self.switch()["namespace"]
        subprocess.run(["ip", "-n", space, "link", "del", "w2"], check=True, timeout=PATIENCE_S)
        self.wait_in_log("interface 'w2' has vanished")
        for rank in ranks:
            assert rank.end() == 3
        ranks[0].wait_for('"event":"error"', "rank 2", name="out")
        assert self.sum_over(2, "--bytes", "256Ki", "--iterations", 3)["verified"]
        assert self.end_aggregator()["interfaces_attached"] == 2
        assert self.rack("down", "--name", self.name).status == 0
        self.assert_nothing_left()
