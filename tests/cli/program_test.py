"""netsum program: summaries, traces of Chakra and back, and files that are wrong. The formats: src/program, program_trace_test.cc."""

import json
import pathlib
import re
import subprocess

from harness import CommandTest

MS = 1_000_000


def step(number, **more):
    """80 ms in which two buckets of 4 MB are summed, the second one for 20 ms after the backward pass."""
    operations = [
        {"id": 0, "collective": "all_reduce", "type": "float32", "count": 1_000_000, "operation": "avg", "root": -1}
        | {"group": 0, "tag": 0, "submitted_ns": 30 * MS, "done_ns": 45 * MS},
        {"id": 1, "collective": "all_gather", "type": "byte", "count": 4_000_000, "root": -1}
        | {"group": 1, "tag": 7, "submitted_ns": 50 * MS, "done_ns": 70 * MS},
    ]
    thread = [["compute", 30 * MS], ["submit", 0], ["compute", 20 * MS], ["submit", 1], ["wait", 0], ["wait", 1]]
    thread.append(["compute", 10 * MS])
    return {"step": number, **more, "operations": operations, "threads": [thread], "duration_ns": 80 * MS}


def program(rank, world_size=2, steps=3):
    header = {"format": "netsum-program", "version": 1, "world_size": world_size, "rank": rank, "model": "m"}
    header |= {"netsum": "0.2.0", "machine": "host", "clock": "steady, ns"}
    header |= {"groups": [{"id": 0, "ranks": list(range(world_size))}, {"id": 1, "ranks": [rank]}], "steps": steps}
    lines = [header, *(step(number) for number in range(steps))]
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


class ProgramTest(CommandTest):
    def write(self, folder, **more):
        for rank in range(2):
            (folder / f"job.{rank}.jsonl").write_text(program(rank, **more))
        return str(folder / "job")

    def refused(self, what, *words):
        command = self.run_command("program", what)
        assert command.status == 2, command.text("out")
        for word in words:
            assert word in command.text("err")

    def test_a_summary(self, tmp_path):
        prefix = self.write(tmp_path)
        for what in (prefix, str(tmp_path)):
            command = self.run_command("program", what)
            assert command.status == 0, command.text("err")
            text = command.text("out")
            assert "rank 0 of 2, 3 steps, 2 groups, model m" in text and "rank 1 of 2" in text
            row = next(line for line in text.splitlines() if line.startswith("median of 2 others"))
            assert row.split()[4:] == ["80.000", "75.0", "25.0", "2", "8000000", "0"]
            assert re.search(r"all_reduce float32 avg, group 0 +1 +4000000 bytes", text)
        steps = self.run_command("program", f"{prefix}.1.jsonl", "--steps").text("out")
        assert [line.split()[0] for line in steps.splitlines()[3:6]] == ["0", "1", "2"]

    def export_and_back(self, tmp_path, form):
        """From job.RANK.jsonl by way of the form to again.RANK.jsonl."""
        for given, made in ((self.write(tmp_path), form), (form, f"{tmp_path}/again")):
            command = self.run_command("program", given, "--export", made)
            assert command.status == 0, command.text("err")

    def test_packed_and_back(self, tmp_path):
        self.export_and_back(tmp_path, f"packed:{tmp_path}/small")
        for rank in range(2):
            lines, packed = tmp_path / f"job.{rank}.jsonl", tmp_path / f"small.{rank}.packed"
            assert (tmp_path / f"again.{rank}.jsonl").read_text() == lines.read_text()
            assert packed.stat().st_size * 4 < lines.stat().st_size
        assert "rank 1 of 2" in self.run_command("program", packed).text("out")

    def test_traces_of_chakra_and_back(self, tmp_path):
        self.export_and_back(tmp_path, f"chakra:{tmp_path}/trace")
        for rank in range(2):
            again = (tmp_path / f"again.{rank}.jsonl").read_text()
            assert again == (tmp_path / f"job.{rank}.jsonl").read_text()
        # What simulators read, by another reader: the nodes of the first step.
        data, nodes = (tmp_path / "trace.0.et").read_bytes(), []
        while data:
            end = next(i for i, byte in enumerate(data) if byte < 128) + 1
            size = sum((byte & 127) << 7 * i for i, byte in enumerate(data[:end]))
            nodes.append(data[end : end + size])
            data = data[end + size :]
        source = pathlib.Path(__file__).parents[2] / "tools/netsum"
        decode = ["protoc", "-I", source, "--decode=netsum.chakra.Node", "chakra.proto"]
        texts = [
            subprocess.run(decode, input=node, capture_output=True, check=True, timeout=30).stdout.decode()
            for node in nodes[1:8]
        ]
        assert "type: METADATA_NODE" in texts[0] and "process_group:init" in texts[0]
        kinds = [re.search(r"type: (\w+)", text)[1] for text in texts[1:]]
        assert kinds == ["COMP_NODE", "COMM_COLL_NODE", "COMP_NODE", "COMM_COLL_NODE", "COMP_NODE", "COMP_NODE"]
        assert [re.findall(r"data_deps: (\d+)", text) for text in texts[1:]] == [
            [],
            ["2"],
            ["2"],
            ["4"],
            ["4", "3", "5"],
            ["6"],
        ]
        for text, kind, size in ((texts[2], 0, 4_000_000), (texts[4], 2, 4_000_000)):
            assert re.search(rf'"comm_type"\s+int64_value: {kind}\n', text)
            assert re.search(rf'"comm_size"\s+int64_value: {size}\n', text)
        assert '"pg_name"' not in texts[2] and re.search(r'"pg_name"\s+string_value: "1"', texts[4])
        assert "duration_micros: 30000\n" in texts[1]

    def test_wrong_files(self, tmp_path):
        prefix = self.write(tmp_path)
        self.refused(
            f"{tmp_path}/none",
            "none: there is no such file, and no file",
            "none.RANK.jsonl: record one by NETSUM_RECORD=",
        )
        self.refused(f"chakra:{prefix}", "job.RANK.et: make one by netsum program --export chakra:")
        first, second = tmp_path / "job.0.jsonl", tmp_path / "job.1.jsonl"
        second.write_text(program(1)[:-1])
        self.refused(
            prefix, "job.1.jsonl:4: the file ends within this line: it is truncated: copy it again, whole, or record"
        )
        second.write_text(program(1, world_size=3))
        self.refused(prefix, "job.1.jsonl: it is of a job of 3 ranks", "job.0.jsonl of 2 ranks")
        second.write_text(program(0))
        self.refused(prefix, "job.1.jsonl: it is of rank 0, but its name says 1")
        first.write_text(program(0).replace('"submit"', '"send"'))
        self.refused(prefix, 'job.0.jsonl:2: the instruction "send" is unknown')
        (tmp_path / "bad.0.et").write_bytes(b"no trace")
        self.refused(f"chakra:{tmp_path}/bad", "bad.0.et: byte 0")
        second.unlink()
        first.write_text(program(0))
        for to in (f"{tmp_path}/no/job", f"chakra:{tmp_path}/no/job"):
            command = self.run_command("program", prefix, "--export", to)
            assert command.status == 2 and "cannot be written" in command.text("err")
