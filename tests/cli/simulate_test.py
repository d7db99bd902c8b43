"""netsum simulate: runs, traces, and says how to replay. That it finds bugs: tests/mutation."""

import re

from harness import CommandTest


class SimulateTest(CommandTest):
    def test_runs_and_reports_what_was_injected(self):
        command = self.run_command("simulate", "--runs", "100", "--jobs", "2", "--twice")
        assert command.status == 0, command.text("out")
        assert "100 runs in" in command.text("out")
        assert "nothing wrong" in command.text("out")
        for count in ("lost", "corrupted", "partitions", "worker crashes", "restarts", "summed right"):
            assert re.search(r"[1-9]\d* (\w+ )*" + count, command.text("out"))

    def test_the_hash_of_all_runs_does_not_depend_on_threads(self):
        def traces(*arguments):
            command = self.run_command("simulate", "--runs", "30", *arguments)
            return re.search(r"traces +hash ([0-9a-f]{16})", command.text("out")).group(1)

        assert traces("--jobs", "1") == traces("--jobs", "2")
        assert traces() != traces("--seed", "2")

    def test_a_seed_gives_the_same_packets_always(self):
        first = self.run_command("simulate", "--seed", "6", "--trace")
        again = self.run_command("simulate", "--seed", "6", "--trace")
        other = self.run_command("simulate", "--seed", "7", "--trace")
        assert first.status == 0
        assert "contribution" in first.text("err")
        assert re.search(r"trace hash +[0-9a-f]{16}", first.text("out"))
        assert first.text("err") == again.text("err")
        assert first.text("out") == again.text("out")
        assert first.text("out") != other.text("out")

    def test_faults_are_chosen_by_name(self):
        command = self.run_command("simulate", "--runs", "100", "--faults", "loss,pause")
        assert command.status == 0
        counts = {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", command.text("out"))}
        assert counts["lost"] > 0
        assert counts["pauses"] > 0
        assert counts["corrupted"] + counts["partitions"] + counts["duplicated"] == 0

    def test_bad_flags(self):
        for arguments, words in [
            (["--faults", "gremlins"], ["gremlins", "partition"]),
            (["--runs", "0"], ["--runs"]),
            (["--runs", "5", "--trace"], ["--trace", "one run"]),
            (["--seed", str(2**64 - 1), "--runs", "2"], ["--seed"]),
            (["--max-ranks", "0"], ["--max-ranks"]),
        ]:
            command = self.run_command("simulate", *arguments)
            assert command.status == 2, arguments
            for word in words:
                assert word in command.text("err")
