"""netsum emulate without PyTorch: ghosts beside real ranks that sleep, knobs, and profiles that are wrong."""

import json
import os
import pathlib
import signal
import subprocess

import pytest
from harness import NETSUM, PATIENCE_S, CommandTest
from rack_harness import RackCommandTest, namespaces

MS = 1_000_000


def record(rank, ranks, steps=4, compute_ms=20, count=20_000, **more):
    """The lines of a record: in each step two all-reduces, the first beside computing."""
    operations = [
        {
            "id": i,
            "collective": "all_reduce",
            "type": "float32",
            "count": count,
            "operation": "sum",
            "root": -1,
            "group": 0,
            "tag": 0,
            "submitted_ns": (i + 1) * compute_ms * MS // 2,
            "done_ns": (i + 1) * compute_ms * MS // 2 + MS,
            **more,
        }
        for i in range(2)
    ]
    half = ["compute", compute_ms * MS // 2]
    thread = [half, ["submit", 0], half, ["submit", 1], ["wait", 0], ["wait", 1]]
    header = {
        "format": "netsum-program",
        "version": 1,
        "world_size": ranks,
        "rank": rank,
        "model": "",
        "netsum": "0",
        "machine": "",
        "clock": "steady, ns",
        "steps": steps,
    }
    step = {"operations": operations, "threads": [thread], "duration_ns": compute_ms * MS + MS}
    return [header, *({"step": k, **step} for k in range(steps))]


def write_profile(folder, ranks, recorded=None, **more):
    for rank in range(recorded or ranks):
        lines = "".join(json.dumps(line) + "\n" for line in record(rank, ranks, **more))
        (folder / f"p.{rank}.jsonl").write_text(lines, encoding="ascii")
    return folder / "p"


def children_of(pid, word):
    """Children of a process with this word in their command line."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return [
        int(one) for one in children if word.encode() in pathlib.Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")
    ]


def report_of(command):
    """On a busy machine, ghosts may be late: then the run is void, and the report says so."""
    report = json.loads(command.text("out"))
    assert command.status == (0 if report["verdict"] == "valid" else 1), command.text("err")
    return report


class EmulateTest(CommandTest):
    def emulate(self, *arguments):
        return self.run_command("emulate", "--aggregator", self.start_aggregator().address, "--json", *arguments)

    def test_ghosts_beside_a_real_rank(self, tmp_path):
        # Rank 2 was not recorded.
        profile = write_profile(tmp_path, 3, recorded=2)
        report = report_of(self.emulate("--ranks", 3, "--profile", profile, "--speed", "2=0.05"))
        assert len(report["steps"]) == 3
        assert report["ghosts"]["count"] == 2
        assert report["ghosts"]["bytes_sent"] > 2 * 8 * 20_000 * 4, "lanes were left out"
        assert report["waited_for"][0] | {"seconds": 0} == {
            "rank": 2,
            "real": False,
            "operations": 6,
            "share": 1,
            "seconds": 0,
        }

    def test_ghost_racks_beside_real_ranks(self, tmp_path):
        profile = write_profile(tmp_path, 6)
        report = report_of(self.emulate("--ranks", 6, "--real", 2, "--ghost-rack", 2, "--profile", profile))
        assert len(report["steps"]) == 3
        assert report["ghosts"]["count"] == 4
        of_racks = report["ghosts"]["bytes_sent"] / (8 * 20_000 * 4)
        assert 2 < of_racks < 3, "one stream of each rack"

    def test_an_aggregator_adds_as_much_for_ghosts_as_for_real_ranks(self, tmp_path):
        profile = write_profile(tmp_path, 4, compute_ms=5, count=50_000)
        counts = {}
        for real in (4, 1):
            daemon = self.start_aggregator()
            arguments = ["--ranks", 4, "--real", real, "--profile", profile, "--json"]
            report_of(self.run_command("emulate", "--aggregator", daemon.address, *arguments))
            status = self.run_command("status", "--aggregator", daemon.address, "--once", "--json")
            counts[real] = json.loads(status.text("out"))["aggregators"][0]["counters"]
        for counter in ("contributions", "bytes_summed", "rounds_completed"):
            assert counts[1][counter] == counts[4][counter], counter
        assert counts[1]["bytes_summed"] > 4 * 4 * 2 * 50_000 * 4
        # Beyond what a busy machine has sent again.
        again = [name for name in counts[1] if name.startswith("drop_")] + ["results_repeated"]
        if not any(count[name] for count in counts.values() for name in again):
            asked = {
                real: 40 * count["statuses"] for real, count in counts.items()
            }  # of what was overdue, and answered
            for direction in ("bytes_received", "bytes_sent"):
                of_ghosts, of_real = (counts[real][direction] - asked[real] for real in (1, 4))
                assert abs(of_ghosts / of_real - 1) < 0.001, direction

    def test_noise_and_recorded_scales(self, tmp_path):
        scales = "7f" * (20_000 // 360 + 1)
        profile = write_profile(tmp_path, 3, compute_ms=5, scales=scales)
        plain = tmp_path / "plain"
        plain.mkdir()
        write_profile(plain, 3)
        for contributions in ("scales", "noise"):
            arguments = ["--ranks", 3, "--contributions", contributions, "--profile"]
            report = report_of(self.emulate(*arguments, profile))
            assert len(report["steps"]) == 3
            command = self.run_command("emulate", "--aggregator", "127.0.0.1:1", *arguments, plain / "p")
            assert command.status == 2
            assert "all_reduce has no scales" in command.text("err")
            assert "NETSUM_RECORD_SCALES=1" in command.text("err")

    def test_ghosts_follow_rank_0_where_recorded_ranks_do(self, tmp_path):
        # Each other step computes twice as long on all ranks.
        for rank in range(3):
            lines = [json.loads(json.dumps(line)) for line in record(rank, 3, steps=8)]
            lines[0]["machine"] = f"of rank {rank}"  # what they share is not one processor
            for step in lines[2::2]:
                for instruction in step["threads"][0]:
                    instruction[1] *= 2 if instruction[0] == "compute" else 1
                for operation in step["operations"]:
                    operation["submitted_ns"] *= 2
                    operation["done_ns"] = operation["submitted_ns"] + MS
                step["duration_ns"] = 41 * MS
            (tmp_path / f"p.{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        arguments = ["--ranks", 3, "--profile", tmp_path / "p"]
        report = report_of(self.emulate(*arguments, "--speed", "0=0.5"))
        assert report["follows_rank_0"]
        assert report["correlation"] > 0.99
        assert len(report["steps"]) == 7
        # It is slower than its record says, and still not the last to submit the first operation of a step.
        last = {one["rank"]: one["operations"] for one in report["waited_for"]}
        assert sum(last.values()) == 14
        assert last.get(0, 0) <= 7

    # What real packets add to the model's exact times depends on the machine: printed.
    @pytest.mark.soak
    def test_a_straggler_moves_the_step_as_its_program_says(self, tmp_path):
        steps, compute_ms, straggler = 40, 100, 1.2
        profile = write_profile(tmp_path, 4, steps=steps, compute_ms=compute_ms, count=100_000)
        moved = []
        for _ in range(5):
            medians = {}
            for factor in (1, straggler):
                flags = ["--straggler", f"2={factor}:0:{steps}"]
                report = report_of(self.emulate("--ranks", 4, "--profile", profile, *flags))
                medians[factor] = report["step_seconds"]["median"]
                assert len(report["steps"]) == steps - 1
            assert report["waited_for"][0]["rank"] == 2
            assert report["waited_for"][0]["operations"] > steps
            moved.append(medians[straggler] / medians[1])
        # Each step computes, and then waits for its second operation.
        waits_s = medians[1] - compute_ms / 1000
        says = (straggler * compute_ms / 1000 + waits_s) / medians[1]
        print(f"\nmoved by {sorted(moved)[2]:.4f} ({min(moved):.4f} to {max(moved):.4f}); the program says {says:.4f}")

    @pytest.mark.soak
    def test_512_ranks(self, tmp_path):
        profile = write_profile(tmp_path, 4, compute_ms=1000)
        arguments = ["--ranks", 512, "--other-size", "--ghost-rack", 64, "--profile", profile]
        report = report_of(self.emulate(*arguments, "--connect-timeout", "5m"))
        assert len(report["steps"]) == 3
        assert report["ghosts"]["count"] == 511

    def test_ghosts_in_groups(self, tmp_path):
        # Two pairs, and the group of all.
        for rank in range(4):
            lines = record(rank, 4)
            pair = [rank // 2 * 2, rank // 2 * 2 + 1]
            lines[0]["groups"] = [{"id": 0, "ranks": [0, 1, 2, 3]}, {"id": 1, "ranks": pair}]
            for step in lines[1:]:
                step["operations"][1]["group"] = 1
            (tmp_path / f"p.{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        arguments = ["--ranks", 4, "--profile", tmp_path / "p", "--speed", "1=0.05"]
        report = report_of(self.emulate(*arguments))
        assert len(report["steps"]) == 3
        assert report["waited_for"][0]["rank"] == 1
        assert sum(one["operations"] for one in report["waited_for"]) == 3, "those of all ranks"
        (tmp_path / "p.3.jsonl").unlink()
        command = self.run_command("emulate", "--aggregator", "127.0.0.1:1", *arguments)
        assert command.status == 2
        assert "rank 3 was not recorded" in command.text("err")

    def test_a_check_against_real_ranks(self, tmp_path):
        command = self.emulate("--ranks", 3, "--profile", write_profile(tmp_path, 3), "--check", 1)
        check = json.loads(command.text("out"))
        assert command.status == (0 if check["verdict"] == "same" else 1), command.text("err")
        [steps] = check["steps"]
        difference = steps["ghosts"] / ((steps["real"] + steps["real_again"]) / 2) - 1
        assert abs(check["difference"]["median"] - difference) < 1e-9
        assert check["memory_share"] < 1, "ghosts have no tensors"

    def test_a_ghost_that_crashes_is_a_lost_rank(self, tmp_path):
        profile = write_profile(tmp_path, 3)
        command = self.emulate("--ranks", 3, "--profile", profile, "--crash", "2:2")
        assert command.status == 3
        assert "rank 0: " in command.text("err")
        assert "rank 2 (127.0.0.1) disconnected without leaving" in command.text("err")
        assert "ghost 2: crashed, as asked for" in command.text("err")

    def test_a_killed_run_without_a_rack_ends_its_script(self, tmp_path):
        script = ["sh", "-c", "setsid sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1' & wait"]
        profile = write_profile(tmp_path, 2, steps=1)
        emulation = self.start(
            *["emulate", "--aggregator", self.start_aggregator().address],
            *["--ranks", 2, "--profile", profile, "--", *script],
        )
        emulation.wait_for("", name="out")
        emulation.process.kill()
        pid = int(emulation.lines["out"][0])
        self.cleanup.callback(lambda: subprocess.run(["kill", str(pid)], capture_output=True, check=False))
        self.until("the script has ended", lambda: not os.path.exists(f"/proc/{pid}"))

    def test_what_ghosts_cannot_do(self, tmp_path):
        for more, words in [
            ({"collective": "all_to_all", "operation": None}, "step 0: all_to_all is between single ranks"),
            ({"hosts": True}, "ran on the hosts"),
            ({"collective": "sparse_all_reduce"}, "depend on the data"),
        ]:
            profile = write_profile(tmp_path, 2, **{name: value for name, value in more.items() if value})
            if "operation" in more:
                for file in tmp_path.glob("p.*.jsonl"):
                    file.write_text(file.read_text().replace('"operation": "sum", ', ""))
            command = self.run_command("emulate", "--ranks", 2, "--profile", profile, "--aggregator", "127.0.0.1:1")
            assert command.status == 2, command.text("err")
            assert words in command.text("err")

    def test_bad_profiles_and_flags(self, tmp_path):
        profile = write_profile(tmp_path, 2)
        (tmp_path / "short.0.jsonl").write_text((tmp_path / "p.0.jsonl").read_text().rsplit("\n", 2)[0])
        wrong = (tmp_path / "p.0.jsonl").read_text().replace('["wait", 1]', '["sleep", 1]')
        (tmp_path / "wrong.0.jsonl").write_text(wrong)
        other = (tmp_path / "p.0.jsonl").read_text().replace('"version": 1', '"version": 2')
        (tmp_path / "newer.0.jsonl").write_text(other)
        (tmp_path / "p.0.values").write_bytes(b"values")
        values = ["--ranks", 2, "--profile", profile, "--contributions", "recorded"]
        for rank in range(2):
            (tmp_path / f"again.{rank}.jsonl").write_text((tmp_path / f"p.{rank}.jsonl").read_text())
        (tmp_path / "again.0.values").write_bytes(b"\xffnsvals\x02" + bytes(16))
        of_another = ["--ranks", 2, "--profile", tmp_path / "again", "--contributions", "recorded"]
        exported = self.run_command("program", profile, "--export", f"packed:{tmp_path}/small")
        assert exported.status == 0, exported.text("err")
        packed = (tmp_path / "small.0.packed").read_bytes()
        (tmp_path / "cut.0.packed").write_bytes(packed[:-9])
        (tmp_path / "garbled.0.packed").write_bytes(packed[:100] + b"!" + packed[101:])
        for arguments, words in [
            (["--ranks", 4, "--profile", profile], ["a job of 2 ranks, not 4", "--other-size"]),
            (["--ranks", 2, "--profile", tmp_path / "none"], ["there is no such file", "record one by NETSUM_RECORD="]),
            (["--ranks", 2, "--profile", tmp_path / "short"], ["short.0.jsonl", "truncated", "record again"]),
            (["--ranks", 2, "--profile", tmp_path / "newer"], ["newer.0.jsonl:1", "version 2"]),
            (values, ["p.0.values: it has no values of a program"]),
            (of_another, ["again.0.values: it is of another record than its program"]),
            ([*values[:4], "--other-size", *values[4:]], ["not of all ranks of this job"]),
            ([*values, "--steps", 9], ["values of 4 steps, fewer than --steps 9"]),
            (["--ranks", 2, "--profile", tmp_path / "wrong"], ["wrong.0.jsonl:2", "sleep", "Record again"]),
            (["--ranks", 2, "--profile", f"packed:{tmp_path}/cut"], ["cut.0.packed, byte", "truncated"]),
            (["--ranks", 2, "--profile", f"packed:{tmp_path}/garbled"], ["garbled.0.packed, byte", "garbled"]),
            (["--ranks", 3, "--profile", f"packed:{tmp_path}/small"], ["a job of 2 ranks, not 3"]),
            (
                ["--ranks", 2, "--profile", profile, "--contributions", "ones"],
                ["--contributions", "{zeros,scales,noise,recorded}"],
            ),
            (["--ranks", 2, "--real", 3, "--profile", profile], ["--real is 3"]),
            (["--ranks", 2, "--real", 0, "--profile", profile, "--", "true"], ["no rank runs 'true'"]),
            (["--ranks", 2, "--profile", profile, "--crash", "0:1"], ["rank 0", "real"]),
            (["--ranks", 2, "--profile", profile, "--crash", "1:99"], ["the last step is 3"]),
            (["--ranks", 2, "--profile", profile, "--speed", "5=2"], ["rank 5", "0 to 1"]),
            (["--ranks", 2, "--profile", profile, "--straggler", "1=fast"], ["RANK=FACTOR:FROM:TO"]),
            (
                ["--ranks", 2, "--profile", profile, "--dilate", 2, "--rate", "1mbit"],
                ["--dilate", "no --rack or --agg"],
            ),
            (["--ranks", 2, "--profile", profile, "--dilate", 2, "--", "true"], ["cannot slow", "'true'"]),
            (["--ranks", 66, "--profile", profile], ["66 members", "--ghost-rack 64"]),
            (["--ranks", 2, "--profile", profile, "--ghost-rack", 2, "--crash", "1:1"], ["not of a rack"]),
        ]:
            command = self.run_command("emulate", "--aggregator", "127.0.0.1:1", *arguments)
            assert command.status == 2, arguments
            for word in words:
                assert word in command.text("err")


class EmulateRackTest(RackCommandTest):
    def namespaces_of(self, command):
        return [name for name in namespaces() if name.startswith(f"netsum-emulate{command.process.pid}-")]

    def files(self):
        return list(self.folder.rglob("*.json"))

    def assert_all_gone(self, command):
        assert self.namespaces_of(command) == []
        assert self.files() == []

    def test_a_rack_for_the_time_of_a_run(self, tmp_path):
        arguments = ["--ranks", 3, "--real", 0, "--rate", "100mbit", "--dilate", 2]
        arguments += ["--profile", write_profile(tmp_path, 3)]
        command = self.run_command("emulate", "--json", *arguments, environment=self.environment)
        report = report_of(command)
        assert report["ghosts"]["count"] == 3
        assert report["dilate"] == 2
        assert len(report["steps"]) == 3
        self.assert_all_gone(command)

    def test_a_signal_ends_all(self, tmp_path):
        profile = write_profile(tmp_path, 2)
        script = ["sh", "-c", "echo started; sleep 100"]
        emulation = self.start(
            "emulate", "--ranks", 2, "--profile", profile, "--", *script, environment=self.environment
        )
        emulation.wait_for("started", name="out")
        emulation.process.send_signal(signal.SIGINT)
        assert emulation.end() == 3
        assert "stopped by signal 2" in emulation.text("err")
        self.assert_all_gone(emulation)

    def test_a_killed_run_leaves_nothing(self, tmp_path):
        (tmp_path / "files").mkdir()
        environment = self.environment | {"TMPDIR": str(tmp_path / "files")}
        profile = ["--ranks", 2, "--profile", write_profile(tmp_path, 2, steps=1)]
        # A script whose process is in a session of its own, as workers of torchrun are.
        script = ["sh", "-c", "setsid sh -c 'echo $$; exec sleep 1000 >/dev/null 2>&1' & wait"]

        def killed(*first):
            emulation = self.start("emulate", *profile, "--", *script, environment=environment)
            emulation.wait_for("", name="out")
            for kind in first:
                [pid] = children_of(emulation.process.pid, kind)
                os.kill(pid, signal.SIGKILL)
            emulation.process.kill()
            assert emulation.end() == -signal.SIGKILL
            return emulation, int(emulation.lines["out"][0])

        def is_gone(emulation, pid):
            return not os.path.exists(f"/proc/{pid}") and not self.namespaces_of(emulation) and not self.files()

        emulation, pid = killed()
        self.until("nothing is left", lambda: is_gone(emulation, pid) and not os.listdir(tmp_path / "files"))
        # Nobody is left who removes it, but the next run.
        emulation, pid = killed("emulate-keeper")
        assert self.namespaces_of(emulation)
        assert self.files()
        assert os.listdir(tmp_path / "files")
        ended = self.run_command("emulate", "--real", 0, *profile, environment=environment)
        assert ended.text("err").count("a run that was killed has left") == 2
        self.until("nothing is left", lambda: is_gone(emulation, pid))
        assert os.listdir(tmp_path / "files") == []

    def test_without_privilege(self, tmp_path):
        command = ["emulate", "--ranks", "2", "--profile", str(write_profile(tmp_path, 2))]
        refused = subprocess.run(
            ["setpriv", "--bounding-set", "-net_admin,-sys_admin", NETSUM, *command],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert refused.returncode == 3
        assert "CAP_NET_ADMIN" in refused.stderr
        assert "--aggregator HOST:PORT" in refused.stderr
