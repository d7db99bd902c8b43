"""netsum simulate: runs, traces, and says how to replay. That it finds bugs: tests/planted."""
import re
import unittest

from harness import CommandTest


class SimulateTest(CommandTest):
    def test_runs_and_reports_what_was_injected(self):
        command = self.run_command("simulate", "--runs", "300", "--jobs", "2", "--twice")
        self.assertEqual(command.status, 0, command.text("out"))
        self.assertIn("300 runs in", command.text("out"))
        self.assertIn("nothing wrong", command.text("out"))
        for count in ("lost", "damaged", "partitions", "worker crashes", "restarts", "summed right"):
            self.assertRegex(command.text("out"), r"[1-9]\d* (\w+ )*" + count)

    def test_a_seed_gives_the_same_packets_always(self):
        first = self.run_command("simulate", "--seed", "6", "--trace")
        again = self.run_command("simulate", "--seed", "6", "--trace")
        other = self.run_command("simulate", "--seed", "7", "--trace")
        self.assertEqual(first.status, 0)
        self.assertIn("contribution", first.text("err"))
        self.assertRegex(first.text("out"), r"trace hash +[0-9a-f]{16}")
        self.assertEqual(first.text("err"), again.text("err"))
        self.assertEqual(first.text("out"), again.text("out"))
        self.assertNotEqual(first.text("out"), other.text("out"))

    def test_faults_are_chosen_by_name(self):
        command = self.run_command("simulate", "--runs", "100", "--faults", "loss,pause")
        self.assertEqual(command.status, 0)
        counts = {name: int(count) for count, name in re.findall(r"(\d+) (\w+)", command.text("out"))}
        self.assertGreater(counts["lost"], 0)
        self.assertGreater(counts["pauses"], 0)
        self.assertEqual(counts["damaged"] + counts["partitions"] + counts["duplicated"], 0)

    def test_bad_flags(self):
        for arguments, words in [(["--faults", "gremlins"], ["gremlins", "partition"]),
                                 (["--runs", "0"], ["--runs"]),
                                 (["--runs", "5", "--trace"], ["--trace", "one run"]),
                                 (["--seed", str(2**64 - 1), "--runs", "2"], ["--seed"]),
                                 (["--max-ranks", "0"], ["--max-ranks"])]:
            command = self.run_command("simulate", *arguments)
            self.assertEqual(command.status, 2, arguments)
            for word in words:
                self.assertIn(word, command.text("err"))


if __name__ == "__main__":
    unittest.main()
