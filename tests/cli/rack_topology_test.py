"""netsum rack up --topology: racks of any shape, and trees of aggregators in them. Real namespaces, links and packets."""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import pytest
from harness import LONG, NETSUM, PATIENCE_S
from rack_harness import RackCommandTest

RACKS = """\
hosts:
  - {name: gpu, count: 4}
switches:
  - {name: leaf, count: 2}
  - {name: core}
links:
  - {between: ['gpu[0-1]', leaf0], rate: 100M}
  - {between: ['gpu[2-3]', leaf1], rate: 100M}
  - {between: [leaf, core], rate: 50M}
"""
# One way round: each reaches the next by one link, and the one before it by two.
CIRCLE = """\
hosts:
  - {name: h, count: 3}
links:
  - {from: h0, to: h1, rate: 30M}
  - {from: h1, to: h2, rate: 40M}
  - {from: h2, to: h0, rate: 50M}
"""
CUBE = "hosts: [{name: h, count: 8}]\nlinks:\n" + "".join(
    f"  - {{between: [h{a}, h{a ^ bit}], rate: 100M}}\n" for bit in (1, 2, 4) for a in range(8) if not a & bit
)
RING = "hosts: [{name: h, count: 4}]\nlinks:\n" + "".join(
    f"  - {{between: [h{a}, h{(a + 1) % 4}], rate: 60M}}\n" for a in range(4)
)
TWO_SPINES = """\
hosts: [{name: h, count: 4}]
switches: [{name: leaf, count: 2}, {name: spine, count: 2, sums: true}]
places: [{name: spare}]
links:
  - {between: ['h[0-1]', leaf0], rate: 100M}
  - {between: ['h[2-3]', leaf1], rate: 100M}
  - {between: [leaf, spine], rate: 100M}
  - {between: [spare, spine0], rate: 200M}
"""
STAR = """\
hosts: [{name: h, count: 3, link: 100M}]
places: [{name: spare, link: 100M}, {name: tor, kind: switch}]
"""
HOSTS = "hosts: [{name: a}, {name: b}]\n"
LINK = "  - {between: [a, b], rate: 1G}\n"
BAD_FILES = [
    (HOSTS + "links: []\n", ":1: ", "no way from 'a' to 'b'"),
    (HOSTS + "links:\n  - {between: [a, b], rate: 0G}\n", ":3: ", "'0G' is no rate"),
    (HOSTS + "links:\n  - {between: [a, b], rate: -1G}\n", ":3: ", "'-1G' is no rate"),
    (HOSTS + "links:\n  - {between: [a, b], rate: 900T}\n", ":3: ", "100 Tbit/s"),
    (HOSTS + "links:\n  - {between: [a, b], rate: 401G}\n", ":3: ", "at most 400gbit"),
    (HOSTS + "links:\n  - {between: [a, a], rate: 1G}\n", ":3: ", "'a' is linked to itself"),
    (HOSTS + "links:\n" + LINK + LINK, ":4: ", "given twice, first in line 3"),
    (HOSTS + "switches: [{name: a}]\nlinks:\n" + LINK, ":2: ", "'a' is given twice"),
    (HOSTS + "switches:\n  - {name: s}\nlinks:\n" + LINK, ":3: ", "no way from 'a' to 's'"),
    (
        HOSTS + "switches: [{name: s, slots: {count: 0, bytes: 8, round_trip_us: 1}}]\nlinks:\n" + LINK,
        ":2: ",
        "'count: 0'",
    ),
    ("hosts:\n  - {name: h, count: 33}\nlinks:\n  - {between: [h, h], rate: 1G}\n", ":2: ", "32 hosts"),
    ("hosts: [{name: a}]\n", ":1: ", "no 'link:'"),
]


class RackTopologyTest(RackCommandTest):
    def write(self, text):
        path = self.folder / "topology.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    def up_with(self, text, *flags):
        return self.up("--topology", self.write(text), *flags)

    def reach_each_other(self):
        """Every node sends each other one a datagram, which comes from its own address."""
        nodes = self.status()["nodes"]
        receive = (
            "import socket,sys;s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.bind(('0.0.0.0',9001))\n"
            "s.settimeout(30);print('listening',flush=True)\n"
            "missing=set(sys.argv[1:])\n"
            "while missing: missing.discard(s.recvfrom(64)[1][0])\n"
            "print('all',flush=True)"
        )
        send = (
            "import socket,sys;s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n"
            "for a in sys.argv[1:]: s.sendto(b'x',(a,9001))"
        )
        addresses = {node["id"]: node["address"] for node in nodes}
        receivers = [
            self.start_in(to, "python3", "-c", receive, *(a for node, a in addresses.items() if node != to))
            for to in addresses
        ]
        for receiver in receivers:
            receiver.wait_for("listening", name="out")
        for sender, own in addresses.items():
            sent = self.run_in(sender, "python3", "-c", send, *(a for a in addresses.values() if a != own))
            assert sent.status == 0, sent.text("err")
        for receiver in receivers:
            assert receiver.end() == 0, receiver.text("err")

    def test_racks_with_slow_uplinks_and_their_trees(self):
        up = self.up_with(RACKS, "--trees")
        up.wait_for("4 workers, 3 switches, 0 places, 12 links", name="out")
        up.wait_for("2 aggregators sum along 1 tree", name="out")
        self.up("--topology", self.folder / "topology.yaml", "--trees").wait_for("is up already", name="out")
        status = self.status()
        assert [node["name"] for node in status["nodes"]] == ["leaf0", "leaf1", "core", "gpu0", "gpu1", "gpu2", "gpu3"]
        assert {link["id"]: link["rate"] for link in status["links"]}["leaf1>core"] == "50mbit"
        report = self.sum_over(4, "--bytes", "256Ki", "--iterations", 3)
        assert report["verified"]
        assert "below" in report["summed_by"]
        assert self.run_in("gpu3", "sh", "-c", "test $NETSUM_WORKER = 3; exit $?").status == 0
        assert self.rack("set", "--name", self.name, "gpu3", "--rate", "60mbit").status == 0
        rates = {link["id"]: link["rate"] for link in self.status()["links"]}
        assert [rates["gpu3>leaf1"], rates["leaf1>gpu3"], rates["gpu2>leaf1"]] == ["60mbit", "60mbit", "100mbit"]
        assert self.rack("down", "--name", self.name).status == 0
        self.assert_nothing_left()

    def test_ranks_that_sum_along_trees_through_each_other(self):
        self.up_with(RACKS, "--trees", "--relays").wait_for(
            "0 aggregators sum along 1 tree, and so do workers", name="out"
        )
        plan = self.run_in("gpu0", "sh", "-c", "cat ${NETSUM_AGGREGATOR#plan:}").text("out")
        assert plan.startswith(f"network rack:{self.name}\nranks 4\ntree ")
        report = self.sum_over(4, "--bytes", "256Ki", "--iterations", 3, "--verify", "both")
        assert report["verified"]
        assert "user-space below user-space" in report["summed_by"]
        exported = self.run_command("plan", self.folder / "topology.yaml", "--export", "relays").text("out")
        assert exported.count("sum gpu") == plan.count("sum 10.77.0.")
        # A rank dies with the aggregators inside it, above or below those of others: no other place brings it back.
        inside = [int(line.split()[3]) for line in plan.splitlines() if line.startswith("sum ")]
        for victim in sorted(set(inside)):
            flags = (*LONG, "--on-failure", "failover", "--report-events")
            ranks = [self.start_rank(w, 4, *flags) for w in range(4)]
            for rank in ranks:
                rank.wait_for('"event":"iteration"', name="out")
            ranks[victim].process.kill()
            for rank in ranks[:victim] + ranks[victim + 1 :]:
                assert rank.end() == 3
                error = json.loads(rank.text("out").splitlines()[-1])
                assert (error["code"], error["rank"]) == ("peer_lost", victim), error

    def test_links_that_lose_packets_between_switches_are_named(self):
        topology = self.write(RACKS)
        self.up_with(RACKS)
        root = "10.77.0.1:5350"
        way = self.run_in("leaf0", "ip", "-j", "route", "get", "10.77.0.3").text("out")
        core = json.loads(way)[0]["dev"]
        lose = f"4,32 0 0 {2**32 - 0x1000 + 56},53 0 1 {2**32 // 50},6 0 0 {2**32 - 1},6 0 0 2"  # random() < 2 %
        for command in (
            ("qdisc", "add", "dev", core, "clsact"),
            ("filter", "add", "dev", core, "egress", "bpf", "da", "bytecode", lose),
        ):
            done = self.run_in("leaf0", "tc", *command)
            assert done.status == 0, done.text("err")
        ranks = [
            self.start_rank(w, 4, "--root", root, "--bytes", "1Mi", "--iterations", 1_000_000, "--report-events")
            for w in range(4)
        ]
        ranks[0].wait_for('"event":"iteration"', name="out")

        def named():
            command = (NETSUM, "doctor", "--aggregator", root, "--faults", "--topology", topology, "--json")
            return [one["found"] for one in json.loads(self.run_in("gpu0", *command).text("out"))["findings"]]

        # While few packets have been lost, they may all have been for one host.
        both = "% of its packets: leaf0 to core, core to leaf1"
        one = self.until("two links", lambda: [found for found in named() if found.endswith(both)])
        assert len(one) == 1
        assert one[0].startswith("one of these links loses")
        status = self.run_in("gpu0", NETSUM, "status", "--aggregator", root, "--once", "--json").text("out")
        paths = json.loads(status)["aggregators"][0]["jobs"][0]["paths"]
        assert {(path["ranks"][0], path["shard"]) for path in paths} == {
            (a, b) for a in range(4) for b in range(4) if a != b
        }
        # Of each path that loses packets, the host that has sent them, and the one that has not got them.
        lossy = {(path["ranks"][0], path["shard"]) for path in paths if path["lost_to"] > path["kept_to"] / 200}
        lossy |= {(path["shard"], path["ranks"][0]) for path in paths if path["lost_from"] > path["kept_from"] / 200}
        assert lossy
        assert lossy <= {(a, b) for a in (0, 1) for b in (2, 3)}

    def test_files_that_no_rack_can_be_made_of(self):
        for text, line, words in BAD_FILES:
            refused = self.rack("up", "--name", self.name, "--topology", self.write(text))
            assert refused.status == 2, text
            refused.wait_for("topology.yaml" + line, words)
        missing = self.rack("up", "--name", self.name, "--topology", self.folder / "none.yaml")
        assert missing.status == 2
        missing.wait_for("cannot be opened")
        for flag in (["--workers", 4], ["--loss", "1%"], ["--dataplane", "xdp"]):
            assert self.rack("up", "--name", self.name, "--topology", self.write(RACKS), *flag).status == 2
        assert self.rack("up", "--name", self.name, "--trees").status == 2
        self.assert_nothing_left()

    @pytest.mark.soak
    def test_links_in_one_direction(self):
        self.up_with(CIRCLE)
        self.reach_each_other()
        assert self.sum_over(3, "--bytes", "100k", "--iterations", 2, "--root", "10.77.0.1:5350")["verified"]
        routes = self.run_in("h1", "ip", "route", "get", "10.77.0.1").text("out")
        assert "via 10.77.0.3" in routes

    @pytest.mark.soak
    def test_a_cube_whose_hosts_forward(self):
        self.up_with(CUBE, "--trees")
        self.reach_each_other()
        assert self.sum_over(8, "--bytes", "1Mi", "--iterations", 3)["verified"]

    @pytest.mark.soak
    def test_places_and_switches_that_sum(self):
        self.up_with(TWO_SPINES)
        self.reach_each_other()
        assert [one["node"] for one in self.status()["aggregators"]] == ["sw2", "sw3", "s0"]
        assert self.sum_over(4, "--bytes", "256Ki", "--iterations", 2, "--shares", "off")["verified"]
        self.rack("down", "--name", self.name)
        self.up_with(TWO_SPINES, "--trees")
        assert self.sum_over(4, "--bytes", "256Ki", "--iterations", 2)["verified"]

    @pytest.mark.soak
    def test_a_file_of_hosts_and_places(self):
        self.up_with(STAR)
        self.reach_each_other()
        assert self.sum_over(3, "--bytes", "256Ki", "--iterations", 2)["verified"]

    @pytest.mark.soak
    def test_a_link_that_is_down_in_one_direction_loses_its_packets(self):
        self.up_with(RACKS)
        packets = lambda where, interface: json.loads(
            self.run_in(where, "ip", "-j", "-s", "link", "show", "dev", interface).text("out")
        )[0]["stats64"]["rx"]["packets"]
        send = "import socket;socket.socket(socket.AF_INET,socket.SOCK_DGRAM).sendto(b'x',('10.77.0.2',9))"
        assert self.run_in("gpu0", "python3", "-c", send).status == 0  # fills the tables of neighbours
        for state, more in (("down", 0), ("up", 1)):
            assert self.rack("set", "--name", self.name, "gpu0>leaf0", "--link", state).status == 0
            assert self.rack("set", "--name", self.name, "gpu0>leaf0", "--rate", "70mbit").status == 0
            before = packets("leaf0", "eth0")
            assert self.run_in("gpu0", "python3", "-c", send).status == 0
            assert packets("leaf0", "eth0") - before >= more
            assert more or packets("leaf0", "eth0") == before
        assert {link["id"]: link["up"] for link in self.status()["links"]}["gpu0>leaf0"]

    @pytest.mark.soak
    def test_an_aggregator_of_a_tree_that_dies_ends_the_job_on_every_rank(self):
        self.up_with(RACKS, "--trees")
        top, below = self.status()["aggregators"]
        ranks = [self.start_rank(w, 4, "--bytes", "1Mi", "--iterations", 100000) for w in range(4)]
        deadline = time.monotonic() + PATIENCE_S
        while "job running" not in pathlib.Path(top["log"]).read_text(encoding="utf-8"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(below["pid"], signal.SIGKILL)
        for rank in ranks:
            assert rank.end() == 3
            rank.wait_for("_lost: ")
        ranks[0].wait_for(f"aggregator_lost: lost the aggregator at {below['address']}")

    def loses_a_tree(self, which, how):
        self.up_with(RING, "--trees")
        lost = self.status()["aggregators"][which]
        flags = ("--iterations", 40, "--numerics", "fixed", "--on-failure", "failover", "--timeout", "60s", "--json")
        ranks = [self.start_rank(w, 4, "--bytes", "1Mi", *flags) for w in range(4)]
        deadline = time.monotonic() + PATIENCE_S
        received = ("ip", "-j", "-s", "link", "show", "dev", "eth0")
        # All ranks have connected: sums need more than so much.
        while json.loads(self.run_in("h2", *received).text("out"))[0]["stats64"]["rx"]["bytes"] < 2 << 20:
            assert time.monotonic() < deadline
        os.kill(lost["pid"], how)
        for report in self.reports_of(ranks):
            assert [one["failovers"] for one in report["ranks"]] == [1]
        if how == signal.SIGSTOP:
            os.kill(lost["pid"], signal.SIGCONT)
        assert self.rack("down", "--name", self.name).status == 0

    @pytest.mark.soak
    def test_the_loss_of_a_tree_is_transparent_with_failover(self):
        for which in range(8):  # above or below another, of each tree
            self.loses_a_tree(which, signal.SIGKILL)

    @pytest.mark.soak
    def test_a_tree_with_an_aggregator_that_is_stopped_is_lost(self):
        for which in range(8):
            self.loses_a_tree(which, signal.SIGSTOP)

    @pytest.mark.soak
    def test_what_a_failed_start_leaves_is_taken_away(self):
        theirs = f"netsum-{self.name}-w2"
        subprocess.run(["ip", "netns", "add", theirs], check=True)
        self.cleanup.callback(subprocess.run, ["ip", "netns", "del", theirs], check=False)
        refused = self.rack("up", "--name", self.name, "--topology", self.write(RACKS))
        assert refused.status == 3
        subprocess.run(["ip", "netns", "del", theirs], check=True)
        # A program in the place of iproute2's `tc` that fails: all namespaces and links are there by then.
        folder = tempfile.TemporaryDirectory()
        self.cleanup.callback(folder.cleanup)
        tools = pathlib.Path(folder.name)
        (tools / "tc").write_text("#!/bin/sh\necho no buckets today >&2\nexit 1\n", encoding="ascii")
        (tools / "tc").chmod(0o755)
        failed = subprocess.run(
            [NETSUM, "rack", "up", "--name", self.name, "--topology", self.folder / "topology.yaml"],
            env={**self.environment, "PATH": f"{tools}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert failed.returncode == 3
        assert "no buckets today" in failed.stderr
        self.assert_nothing_left()
