"""The aggregator of a P4 switch: what it refuses, and sums of ranks on BMv2 where p4c and BMv2 are on the PATH."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest
from harness import NETSUM, PATIENCE_S, CommandTest, clean_environment
from netsum_bench.processes import free_port
from rack_harness import may_make_namespaces

SOURCE = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("p4c-bm2-ss", "simple_switch_grpc")
RANKS = 3
OWN = ("--p4-address", "10.99.1.1", "--p4-ports", "0,1,2")
# The switch takes payloads of at most 1024 bytes.
MTU = 1100


class P4FlagsTest(CommandTest):
    def refused(self, status, words, *flags):
        daemon = self.run_command("aggregator", "--listen", "127.0.0.1:0", "--dataplane", "p4", *flags)
        assert daemon.status == status, daemon.text("err")
        daemon.wait_for(*words)

    def test_what_is_missing_is_named(self):
        server = ("--p4runtime", "127.0.0.1:1")
        self.refused(2, ["--p4runtime"], *OWN)
        self.refused(2, ["--p4-ports"], *server)
        self.refused(2, ["IPv4 address", "''", "--p4-address"], *server, "--p4-ports", "0")
        self.refused(2, ["'::1'", "--p4-address"], *server, "--p4-ports", "0", "--p4-address", "::1")
        self.refused(2, ["'0.0.0.0'", "--p4-address"], *server, "--p4-ports", "0", "--p4-address", "0.0.0.0")

    def test_files_that_cannot_be_read_or_used_are_named(self):
        server = ("--p4runtime", "127.0.0.1:1", *OWN)
        file = self.write_file("no P4Info")
        self.refused(2, ["cannot read", "/nowhere/info"], *server, "--p4info", "/nowhere/info", "--p4-config", file)
        self.refused(2, ["cannot read", "/nowhere/json"], *server, "--p4info", file, "--p4-config", "/nowhere/json")
        self.refused(2, ["--p4info", "--p4-config", "belong together"], *server, "--p4info", file)

    def test_what_a_switch_cannot_do_is_refused(self):
        server = ("--p4runtime", "127.0.0.1:1", *OWN)
        self.refused(3, ["packet rates", "--job-packet-rate"], *server, "--job-packet-rate", 1000)
        self.refused(3, ["injected faults", "--inject-loss"], *server, "--inject-loss", "1%")

    def test_without_a_switch_it_ends_and_says_so(self):
        server = f"127.0.0.1:{free_port()}"
        self.refused(
            3, ["no P4Runtime server answers at", server, "is the switch running?"], "--p4runtime", server, *OWN
        )


class P4SwitchTest(CommandTest):
    """Ranks in namespaces, each with a link to a port of BMv2, and one to a bridge for the control connection."""

    def set_up(self):
        for program in PROGRAMS:
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not on the PATH (docs/p4.md)")
        permitted, why = may_make_namespaces()
        if not permitted:
            pytest.skip(f"no network namespaces here: {why}")
        folder = tempfile.TemporaryDirectory()
        self.cleanup.callback(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.name = f"p4t{os.getpid()}"
        self.make_network()
        self.start_switch()

    def ip(self, *arguments):
        subprocess.run(["ip", *map(str, arguments)], check=True, timeout=PATIENCE_S)

    def make_network(self):
        switch = f"{self.name}-sw"
        for space in (switch, *(f"{self.name}-{rank}" for rank in range(RANKS))):
            self.ip("netns", "add", space)
            self.cleanup.callback(self.ip, "netns", "del", space)
            self.ip("-n", space, "link", "set", "lo", "up")
        self.ip("-n", switch, "link", "add", "control", "type", "bridge")
        self.ip("-n", switch, "address", "add", "10.98.0.254/24", "dev", "control")
        self.ip("-n", switch, "link", "set", "control", "up")
        for rank in range(RANKS):
            host = f"{self.name}-{rank}"
            for port, name, address in ((f"p{rank}", "eth0", "10.99.0"), (f"c{rank}", "eth1", "10.98.0")):
                self.ip(
                    *("-n", switch, "link", "add", port, "type", "veth", "peer", "name", name),
                    *("netns", host),
                )
                width = 16 if name == "eth0" else 24
                self.ip("-n", host, "address", "add", f"{address}.{rank + 1}/{width}", "dev", name)
                self.ip("-n", host, "link", "set", name, "up")
            # A veth link would hand the kernel's batches of datagrams (UDP GSO) to BMv2 as one frame.
            offload = ("ethtool", "-K", "eth0", "tx-udp-segmentation", "off")
            subprocess.run(["ip", "netns", "exec", host, *offload], check=True, timeout=PATIENCE_S)
            self.ip("-n", switch, "link", "set", f"p{rank}", "promisc", "on", "up")
            self.ip("-n", switch, "link", "set", f"c{rank}", "master", "control", "up")

    def start_in(self, space, *command):
        return self.start(
            *("netns", "exec", f"{self.name}-{space}", *command), program="ip", environment=clean_environment()
        )

    def start_switch(self):
        self.p4info, self.config = self.folder / "netsum.p4info.bin", self.folder / "netsum.json"
        source = SOURCE / "aggregator/p4/v1model/netsum.p4"
        files = ("--p4runtime-files", self.p4info, "-o", self.config)
        subprocess.run([PROGRAMS[0], "-I", SOURCE, *files, source], check=True, timeout=120)
        self.server = f"unix:{self.folder / 'grpc'}"
        ports = [word for rank in range(RANKS) for word in ("-i", f"{rank}@p{rank}")]
        self.start_in("sw", PROGRAMS[1], "--no-p4", *ports, "--", "--grpc-server-addr", self.server, "--cpu-port", 510)

    def aggregator_flags(self):
        files = ("--p4info", self.p4info, "--p4-config", self.config)
        return ("--listen", "10.98.0.254:5151", "--dataplane", "p4", "--p4runtime", self.server, *files, *OWN)

    def start_switch_aggregator(self, *flags):
        daemon = self.start_in("sw", NETSUM, "aggregator", *self.aggregator_flags(), *flags)
        assert "data 10.99.1.1:5152" in daemon.wait_for("ready:", name="out")
        return daemon

    def start_ranks(self, *flags, aggregators=("10.98.0.254:5151",) * RANKS):
        return [
            self.start_in(
                rank,
                *(NETSUM, "bench", "allreduce", "--rank", rank, "--world-size", RANKS, "--mtu", MTU, "--json"),
                *("--aggregator", aggregator, "--shares", "off", "--iterations", 3, "--timeout", "50s", *flags),
            )
            for rank, aggregator in enumerate(aggregators)
        ]

    def counters(self, aggregator="10.98.0.254:5151"):
        asked = self.start_in(0, NETSUM, "status", "--aggregator", aggregator, "--once", "--json")
        assert asked.end() == 0, asked.text("err")
        return json.loads(asked.text("out"))["aggregators"][0]["counters"]

    def test_ranks_sum_on_the_switch(self):
        daemon = self.start_switch_aggregator()
        for flags in (("--bytes", "64Ki"), ("--bytes", "16Ki", "--dtype", "int32")):
            for rank in self.start_ranks("--verify", "sum", *flags):
                assert rank.end() == 0, rank.text("err")
                report = json.loads(rank.text("out"))
                assert report["verified"]
                assert "the ranks verify every sum" in report["summed_by"]
        counters = self.counters()
        # 64 KiB in payloads of at most 1024 bytes, in three iterations: the switch has summed them.
        assert counters["rounds_completed"] >= 3 * 64
        assert counters["contributions"] >= RANKS * counters["rounds_completed"]
        assert daemon.process.poll() is None

    def test_a_switch_below_a_daemon(self):
        """Two ranks at the switch, and the third at the parent, which is on its host."""
        parent = "10.99.0.3:5151"
        self.ip("-n", f"{self.name}-sw", "route", "add", "10.99.0.3/32", "via", "10.98.0.3")
        self.start_in(2, NETSUM, "aggregator", "--listen", parent).wait_for("ready:", name="out")
        self.start_switch_aggregator("--parent", parent)
        at = ("10.98.0.254:5151", "10.98.0.254:5151", parent)
        for flags in (("--bytes", "64Ki"), ("--bytes", "16Ki", "--dtype", "int32")):
            for rank in self.start_ranks("--verify", "sum", *flags, aggregators=at):
                assert rank.end() == 0, rank.text("err")
                assert json.loads(rank.text("out"))["verified"]
        counters = self.counters()
        assert counters["parents_found"] == 2
        # One sum of its two ranks goes up for each round that the parent completes.
        assert counters["rounds_completed"] >= 3 * 64
        assert counters["sent_to_parent"] >= counters["rounds_completed"]
        assert counters["contributions"] == 2 * counters["rounds_completed"]

    def test_ranks_that_do_not_verify_sums_are_refused(self):
        self.start_switch_aggregator()
        for rank in self.start_ranks("--bytes", "16Ki", "--connect-timeout", "20s"):
            assert rank.end() == 3
            rank.wait_for("packets with keyed tags", "verify")

    def test_a_second_aggregator_is_refused(self):
        self.start_switch_aggregator()
        second = self.start_in("sw", NETSUM, "aggregator", *self.aggregator_flags())
        assert second.end() == 3
        second.wait_for("another control plane drives the switch at", self.server, "stop it first")
        assert "--data-port" not in second.text("err")
