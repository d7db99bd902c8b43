"""`netsum rack up --dataplane p4`: jobs through BMv2, where p4c and BMv2 are on the PATH."""

import json
import os
import pathlib
import random
import shutil
import signal
import sys

import pytest
from harness import NETSUM, CommandTest, clean_environment
from rack_harness import RackCommandTest, may_make_namespaces

PROGRAMS = ("p4c-bm2-ss", "simple_switch_grpc")
BAD_LINKS = pathlib.Path(__file__).with_name("bad_links.py")
RANKS = 8
PATIENCE_S = 300

# A rank of a training by DDP: prints the bits of its losses, and those of its parameters in the end.
TRAIN = """
import os, sys, torch, torch.distributed as dist, netsum.torch
rank, size, port = (int(word) for word in sys.argv[1:])
dist.init_process_group("netsum", init_method=f"tcp://{os.environ['MASTER_ADDR']}:{port}", rank=rank, world_size=size)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
data = torch.Generator().manual_seed(100 + rank)
for step in range(6):
    loss = (ddp(torch.randn(16, 32, generator=data)) - torch.randn(16, 8, generator=data)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex(), flush=True)
print("sum", sum(p.double().sum().item() for p in model.parameters()).hex(), flush=True)
dist.destroy_process_group()
"""


class RackP4RefusalsTest(CommandTest):
    def refused(self, status, words, *flags, **variables):
        up = self.run_command("rack", "up", "--dataplane", "p4", *flags, environment=clean_environment(**variables))
        assert up.status == status, up.text("err")
        up.wait_for(*words)

    def test_what_bmv2_cannot_do_is_refused(self):
        for flags in (["--racks", 2], ["--spare", 1], ["--no-switch-aggregator"], ["--multicast"]):
            self.refused(2, ["--dataplane p4 has one switch"], *flags)
        self.refused(2, ["--workers is 65", "at most 64 members"], "--workers", 65)

    def test_a_program_that_is_not_on_the_path_is_named(self):
        permitted, why = may_make_namespaces()
        if not permitted:
            pytest.skip(f"no network namespaces here: {why}")
        for missing, present in (PROGRAMS, PROGRAMS[::-1]):
            folder = self.write_file("").parent
            (folder / present).symlink_to("/bin/true")
            self.refused(3, [missing, "is not on the PATH", "docs/p4.md"], PATH=str(folder))


class RackP4Test(RackCommandTest):
    def set_up(self):
        for program in PROGRAMS:
            if shutil.which(program) is None:
                pytest.skip(f"{program} is not on the PATH (docs/p4.md)")
        super().set_up()
        # The switch sums all, and is slow.
        self.environment["NETSUM_SHARES"] = "off"

    def start(self, *arguments, **more):
        return super().start(*arguments, patience_s=PATIENCE_S, **more)

    def start_rank(self, worker, workers, *flags):
        more = () if "--verify" in flags else ("--verify", "sum")
        return super().start_rank(worker, workers, "--mtu", 1135, "--shares", "off", *more, *flags)

    def sum_exactly(self, workers, *flags):
        """All sums are right, and come from the switch."""
        flags = ("--dtype", "int32", "--bytes", "32Ki", "--iterations", 3, "--timeout", "200s", "--json", *flags)
        for report in self.reports_of([self.start_rank(w, workers, *flags) for w in range(workers)]):
            assert "the ranks verify every sum" in report["summed_by"]
        counters = self.counters()
        # 32 KiB in payloads of 1024 bytes, three times.
        assert counters["rounds_completed"] >= 3 * 32
        return counters

    def counters(self):
        asked = self.run_in(0, NETSUM, "status", "--aggregator", self.status()["aggregator"], "--once", "--json")
        assert asked.status == 0, asked.text("err")
        return json.loads(asked.text("out"))["aggregators"][0]["counters"]

    def train(self, dataplane):
        name = f"{self.name}{dataplane}"
        up = self.rack("up", "--name", name, "--workers", 3, "--dataplane", dataplane)
        assert up.status == 0, up.text("err")
        # With payloads of 1024 bytes on both, numbers share their scales with the same others, and are rounded alike.
        environment = {**self.environment, "NETSUM_VERIFY": "sum", "NETSUM_MTU": "1100"}
        ranks = [
            self.start(
                *("rack", "exec", "--name", name, rank, "--", sys.executable, "-c", TRAIN, rank, 3, 29500),
                environment=environment,
            )
            for rank in range(3)
        ]
        for rank in ranks:
            assert rank.end() == 0, rank.text("err")
        down = self.rack("down", "--name", name)
        assert down.status == 0, down.text("err")
        return [rank.lines["out"] for rank in ranks]

    def test_up_status_down(self):
        up = self.up("--workers", 2, "--rate", "100mbit", "--dataplane", "p4")
        up.wait_for("dataplane p4", name="out")
        status = self.status()
        assert status["whole"]
        assert status["bmv2"]["serves"]
        assert status["aggregator"] == "10.78.1.1:5151"
        inside = self.run_in(1, "sh", "-c", "echo $NETSUM_AGGREGATOR $NETSUM_VERIFY $NETSUM_MTU $MASTER_ADDR")
        assert inside.text("out") == "10.78.1.1:5151 sum 1135 10.78.0.1"
        self.sum_exactly(2)
        # Other traffic passes the switch, too.
        self.send_between(0, 1, os.urandom(1 << 16))
        down = self.rack("down", "--name", self.name)
        assert down.status == 0, down.text("err")
        self.assert_nothing_left()
        # Of a process that has ended, but was not waited for, the words are gone.
        left = pathlib.Path(f"/proc/{status['bmv2']['pid']}/cmdline")
        assert not left.exists() or left.read_bytes() == b""

    def test_a_switch_that_does_not_start_leaves_nothing(self):
        folder = self.write_file("").parent
        (folder / PROGRAMS[1]).symlink_to("/bin/false")
        environment = {**self.environment, "PATH": f"{folder}:{os.environ['PATH']}"}
        flags = ("--name", self.name, "--workers", 2, "--dataplane", "p4")
        up = self.run_command("rack", "up", *flags, environment=environment)
        assert up.status == 3
        up.wait_for("BMv2 has ended")
        self.assert_nothing_left()

    def test_training_has_the_losses_of_the_daemon(self):
        on_bmv2 = self.train("p4")
        assert all(len(lines) == 7 for lines in on_bmv2)
        assert on_bmv2 == self.train("user")

    def test_eight_ranks_over_links_that_lose_packets(self):
        self.up("--workers", RANKS, "--dataplane", "p4", "--loss", "1%")
        self.sum_exactly(RANKS)
        assert sum(link["packets_lost"] for link in self.status()["links"]) > 0

    def test_eight_ranks_over_links_that_lose_repeat_and_reorder_packets(self):
        self.up("--workers", RANKS, "--dataplane", "p4", "--loss", 0)
        seed = random.randrange(1 << 32)
        ports = [f"w{rank}" for rank in range(RANKS)]
        links = self.start_in("sw", sys.executable, BAD_LINKS, seed, 0.01, 0.01, 0.02, *ports)
        links.wait_for("carries frames", name="out")
        self.sum_exactly(RANKS)
        self.send_signal(links)
        links.end()
        counts = json.loads(links.lines["out"][-1])
        print(counts)
        assert counts["seed"] == seed
        assert min(counts["lost"], counts["repeated"], counts["reordered"]) > 0, counts

    def test_a_switch_that_is_killed_ends_the_job_and_the_next_one_runs(self):
        self.up("--workers", 2, "--dataplane", "p4")
        long = ("--bytes", "32Ki", "--iterations", 1_000_000, "--report-events", "--timeout", "200s")
        ranks = [self.start_rank(rank, 2, *long) for rank in range(2)]
        for rank in ranks:
            rank.wait_for('"event":"iteration"', name="out")
        pid = self.status()["bmv2"]["pid"]
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        os.kill(pid, signal.SIGKILL)
        self.start_in("sw", *command)
        for rank in ranks:
            assert rank.end() == 3
            rank.wait_for("aggregator_lost", "has restarted", name="out")
        self.sum_exactly(2)

    def test_modes_that_differ_between_ranks_are_refused(self):
        self.up("--workers", 2, "--dataplane", "p4")
        flags = ("--bytes", "16Ki", "--connect-timeout", "20s")
        ranks = [self.start_rank(rank, 2, "--verify", mode, *flags) for rank, mode in enumerate(("sum", "both"))]
        assert [rank.end() for rank in ranks] == [3, 3]
        text = "\n".join(rank.text("err") for rank in ranks)
        assert "verify" in text, text
        self.sum_exactly(2)

    def test_a_second_control_plane_is_refused(self):
        self.up("--workers", 2, "--dataplane", "p4")
        pid = self.switch()["pid"]
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        command[command.index("--listen") + 1] = "10.78.1.1:5252"
        second = self.run_in("sw", NETSUM, *command[1:])
        assert second.status == 3
        second.wait_for("another control plane drives the switch at", "stop it first")
        self.sum_exactly(2)
