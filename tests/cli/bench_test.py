"""netsum bench: every form of it, every type, and the report."""

import json
import pathlib
import re
import struct
import tempfile
import time

import pytest
from harness import PATIENCE_S, CommandTest
from netsum_bench.processes import free_port


class BenchTest(CommandTest):
    def bench(self, *arguments):
        command = self.run_command(
            "bench", "allreduce", "--bytes", "200000", "--iterations", 3, "--warmup", 1, "--json", *arguments
        )
        assert command.status == 0, command.text("err") + command.text("out")
        return json.loads(command.text("out"))

    def test_embedded_shards(self):
        report = self.bench("--workers", 3, "--inflight", 2)
        assert report["verified"]
        assert report["results_verified"] == 3 * 2 * (3 + 1)
        assert report["results_wrong"] == 0
        assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2]
        for rank in report["ranks"]:
            assert rank["gradient_bytes"] == 200000 * 2 * 3
            assert rank["bytes_sent"] > rank["gradient_bytes"]
            # A third of what is sent stays in the process.
            assert rank["link_bytes_sent"] > 0

    def test_other_collectives(self):
        # Every one at one place or the other; api/collectives_test.cc has all of them at all places.
        for collective, where in (
            *(("broadcast", "--with-aggregator"), ("allgather", "--shared-memory"), ("gather", "--with-aggregator")),
            *(("scatter", "--shared-memory"), ("reduce", "--with-aggregator"), ("reducescatter", "--shared-memory")),
            *(("barrier", "--with-aggregator"), ("allgather+reducescatter", "--with-aggregator")),
        ):
            started = 2 if "+" in collective else 1
            size = () if collective == "barrier" else ("--bytes", "100004")
            command = self.run_command("bench", collective, "--workers", 3, *size, "--iterations", 2, "--json", where)
            assert command.status == 0, command.text("err") + command.text("out")
            report = json.loads(command.text("out"))
            assert report["benchmark"] == collective
            assert report["verified"]
            assert report["results_verified"] == 3 * (2 + 2) * started
        # What a collective that sums nothing has no use for.
        command = self.run_command("bench", "broadcast", "--workers", 2, "--op", "sum")
        assert command.status == 2
        assert "--op" in command.text("err")

    def test_engine_threads(self):
        report = self.bench("--workers", 3, "--engine-threads", 2)
        assert report["verified"]
        assert "; 2 engine threads" in report["summed_by"]
        report = self.bench("--workers", 2, "--with-aggregator", "--engine-threads", 4)
        assert report["verified"]
        assert "1 engine thread, WARNING: 4 were asked for, and 1 stripe can be divided" in report["summed_by"]
        command = self.run_command("bench", "allreduce", "--workers", 2, "--engine-threads", 65)
        assert command.status == 2
        assert "--engine-threads" in command.text("err")

    def test_spin(self):
        for where in (["--with-aggregator"], ["--shared-memory"], []):
            # More ranks than cores: those that poll must let the others run.
            assert self.bench("--workers", 4, "--spin", "1s", *where)["verified"]
        for spin in ("0", "10ms"):
            assert self.bench("--workers", 2, "--spin", spin)["verified"]
        for command in (["bench", "allreduce"], ["aggregator"]):
            for spin in ("-1", "2", "61s"):
                refused = self.run_command(*command, f"--spin={spin}")
                assert refused.status == 2
                assert "such as 10ms" in refused.text("err")

    def test_private_aggregator(self):
        report = self.bench("--workers", 2, "--with-aggregator")
        assert report["verified"]
        assert report["aggregator_cpu_seconds"] > 0
        for rank in report["ranks"]:
            assert rank["link_bytes_sent"] == rank["bytes_sent"]
            assert rank["payload_share"] > 0.5

    @pytest.mark.soak  # 66 processes; host_core_test.cc has as many ranks in one
    def test_more_workers_than_an_aggregator_takes(self):
        command = self.run_command(
            "bench",
            "allreduce",
            "--workers",
            66,
            "--bytes",
            "4000",
            "--iterations",
            1,
            "--warmup",
            0,
            "--connect-timeout",
            "90s",
            "--timeout",
            "60s",
            "--json",
            patience_s=180,  # longer than both deadlines, so that the command says what was late
        )
        assert command.status == 0, command.text("err") + command.text("out")
        report = json.loads(command.text("out"))
        assert report["verified"], report
        assert len(report["ranks"]) == 66
        assert report["aggregator_cpu_seconds"] > 0

    def test_the_workers_of_a_killed_bench_end(self):
        bench = self.start("bench", "allreduce", "--workers", 2, "--with-aggregator", "--iterations", 1_000_000)
        children = pathlib.Path(f"/proc/{bench.process.pid}/task/{bench.process.pid}/children")
        deadline = time.monotonic() + PATIENCE_S
        while len(pids := children.read_text(encoding="ascii").split()) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        bench.process.kill()
        bench.process.wait(PATIENCE_S)
        while left := [pid for pid in pids if pathlib.Path("/proc", pid).exists()]:
            assert time.monotonic() < deadline, left
            time.sleep(0.01)

    def test_racks_of_few_workers(self):
        assert self.bench("--workers", 4, "--racks", 2)["verified"]
        for arguments, complaint in (
            (("--workers", 200, "--racks", 3), "at most 64 of the 200 workers"),
            (("--racks", 2, "--aggregator", "127.0.0.1:1"), "leave out --aggregator"),
        ):
            command = self.run_command("bench", "allreduce", *arguments)
            assert command.status == 2
            assert complaint in command.text("err")

    def test_every_type_and_operation(self):
        daemon = self.start_aggregator()
        for dtype in ("float32", "bfloat16", "float16", "int32", "int64"):
            for op in ("sum", "avg"):
                if op == "avg" and dtype.startswith("int"):
                    continue
                report = self.bench("--workers", 2, "--aggregator", daemon.address, "--dtype", dtype, "--op", op)
                assert report["verified"], f"{dtype} {op}: {report['first_wrong']}"
                element_bytes = {"int64": 8, "float32": 4, "int32": 4}.get(dtype, 2)
                assert report["lane_bits"] == 8 * element_bytes

    def test_half_types_cost_what_they_are_in_memory(self):
        for dtype, numerics, lane_bits, least, most in (
            ("bfloat16", "auto", 16, 0.9, 1),
            ("float16", "auto", 32, 0.9, 1),
            ("bfloat16", "fixed", 16, 0.9, 1),
            ("float16", "fixed", 32, 0.4, 0.5),
        ):
            args = ("--dtype", dtype, "--numerics", numerics, "--lane-bits", lane_bits)
            report = self.bench("--workers", 2, "--with-aggregator", *args)
            assert report["verified"], report["first_wrong"]
            for rank in report["ranks"]:
                assert least < rank["payload_share"] < most, rank["payload_share"]

    def test_8_bit_lanes_take_one_byte_for_each_element(self):
        for dtype, element_bytes in (("float32", 4), ("bfloat16", 2), ("float16", 2)):
            for op in ("sum", "avg"):
                report = self.bench("--workers", 2, "--with-aggregator", "--dtype", dtype, "--op", op, "--lane-bits", 8)
                assert report["verified"], report["first_wrong"]
                assert report["lane_bits"] == 8
                for rank in report["ranks"]:
                    assert 0.9 * element_bytes < rank["payload_share"] < element_bytes, rank["payload_share"]
        assert self.bench("--workers", 2, "--dtype", "int32", "--lane-bits", 8)["lane_bits"] == 32

    def test_compressed_tensors(self):
        """All ranks have the same bits, and less travels; the error is that of the method."""
        several = ("--workers", 3, "--with-aggregator", "--data", "normal")
        for method, most_bytes, least_error, most_error in (
            ("none", 1.1, 0, 1e-6),
            ("bf16", 0.55, 1e-4, 1e-2),
            ("lanes8", 0.3, 1e-3, 0.1),
            ("topk,ratio=0.01,sampled=true", 0.1, 0.5, 2),
            ("natural", 0.35, 0.1, 0.5),  # payloads that cannot be added are gathered
        ):
            report = self.bench(*several, "--compress", method)
            assert report["verified"], report["first_wrong"]
            assert report["op"] == "avg"
            assert report["compression"].startswith(method.split(",")[0])
            assert least_error <= report["relative_error"] <= most_error, (method, report["relative_error"])
            for rank in report["ranks"]:
                sent = rank["bytes_sent"] / (report["bytes"] * report["iterations"])
                assert sent < most_bytes, (method, sent)
        for arguments, complaint in (
            (("--compress", "best"), "'best'"),
            (("--compress", "topk,ratio=2"), "ratio is 2"),
            (("--compress", "topk", "--dtype", "int32"), "--dtype float32"),
            (("--compress", "topk", "--op", "sum"), "--op avg"),
        ):
            command = self.run_command("bench", "allreduce", *arguments)
            assert command.status == 2
            assert complaint in command.text("err")

    def test_ranks_that_compress_in_different_ways_are_told(self):
        daemon = self.start_aggregator()
        several = ("bench", "allreduce", "--world-size", 2, "--aggregator", daemon.address, "--bytes", "64Ki")
        ranks = [
            self.start(*several, "--rank", rank, "--compress", f"topk,ratio={ratio}")
            for rank, ratio in enumerate(("0.01", "0.02"))
        ]
        for rank in ranks:
            assert rank.end() == 3
            assert "ratio=0.01" in rank.text("err")
            assert "ratio=0.02" in rank.text("err")

    def test_scales_that_recur_are_predicted(self):
        fixed = ("--numerics", "fixed")  # floats have no scales
        where = ("--workers", 2, "--with-aggregator", "--bytes", "256Ki", "--iterations", 8, "--json", *fixed)
        for data, some in (("steady", True), ("varied", False)):
            bench = self.run_command("bench", "allreduce", *where, "--data", data)
            assert bench.status == 0, bench.text("err")
            report = json.loads(bench.text("out"))
            assert report["verified"]
            assert all((rank["scales_predicted"] > 0) == some for rank in report["ranks"]), (data, report["ranks"])

    def test_data_that_a_type_does_not_have(self):
        for dtype, data, words in (
            ("int32", "steady", "integers have no scales"),
            ("bfloat16", "normal", "float32 only"),
        ):
            bench = self.run_command("bench", "allreduce", "--dtype", dtype, "--data", data)
            assert bench.status == 2
            assert "--data" in bench.text("err")
            assert words in bench.text("err")

    def test_ranks_of_other_lane_widths_are_told_so(self):
        root = f"127.0.0.1:{free_port()}"
        ranks = [
            self.start(
                "bench",
                "allreduce",
                "--rank",
                rank,
                "--world-size",
                2,
                "--root",
                root,
                "--bytes",
                "64Ki",
                "--dtype",
                "bfloat16",
                "--numerics",
                "fixed",
                "--lane-bits",
                bits,
            )
            for rank, bits in enumerate((16, 32))
        ]
        for rank in ranks:
            assert rank.end() == 3, rank.text("out")
            assert "mismatch" in rank.text("err")
            assert "-bit lanes" in rank.text("err")

    def test_two_aggregators(self):
        addresses = ",".join(self.start_aggregator().address for _ in range(2))
        assert self.bench("--workers", 2, "--aggregator", addresses)["verified"]

    def test_a_group_started_by_hand(self):
        root = f"127.0.0.1:{free_port()}"
        ranks = [
            self.start(
                "bench",
                "allreduce",
                "--rank",
                rank,
                "--world-size",
                2,
                "--root",
                root,
                "--bytes",
                "64Ki",
                "--iterations",
                2,
                "--json",
            )
            for rank in range(2)
        ]
        times = []
        for number, rank in enumerate(ranks):
            assert rank.end() == 0, rank.text("err")
            report = json.loads(rank.text("out"))
            assert report["verified"]
            assert report["workers"] == 2
            assert [entry["rank"] for entry in report["ranks"]] == [number]
            times.append(report["time_us"])
        assert times[0] == times[1], "every report has the times of the slowest rank"

    def test_ranks_start_together_by_a_gate(self):
        root, ranks, iterations = f"127.0.0.1:{free_port()}", 3, 4
        with tempfile.NamedTemporaryFile() as gate:
            gate.truncate(8 * (2 + ranks))
            processes = [
                self.start(
                    "bench",
                    "allreduce",
                    "--rank",
                    rank,
                    "--world-size",
                    ranks,
                    "--root",
                    root,
                    "--bytes",
                    "256Ki",
                    "--iterations",
                    iterations,
                    "--warmup",
                    1,
                    "--start-gate",
                    gate.name,
                    "--json",
                )
                for rank in range(ranks)
            ]
            reports = []
            for rank in processes:
                assert rank.end() == 0, rank.text("err")
                reports.append(json.loads(rank.text("out")))
            opened, start = struct.unpack("qq", gate.read(16))
        stamps = [report["ranks"][0]["stamps"] for report in reports]
        assert {len(of_rank) for of_rank in stamps} == {iterations}
        assert opened == iterations + 1
        assert all(of_rank[-1][0] >= start for of_rank in stamps), "nobody starts before the gate opens"
        slowest = sorted(
            max(end - begin for begin, end, _, _ in of_one) // 1000 for of_one in zip(*stamps, strict=True)
        )
        assert [slowest[0], slowest[-1]] == [reports[0]["time_us"]["min"], reports[0]["time_us"]["max"]]

    def test_a_gate_that_cannot_be_used_is_refused(self):
        with tempfile.NamedTemporaryFile() as empty:
            for path, reason in (("/nonexistent/gate", "No such file"), (empty.name, "Invalid argument")):
                rank = self.run_command(
                    "bench",
                    "allreduce",
                    "--rank",
                    0,
                    "--world-size",
                    1,
                    "--root",
                    f"127.0.0.1:{free_port()}",
                    "--bytes",
                    "4Ki",
                    "--start-gate",
                    path,
                )
                assert rank.status == 3, rank.text("out")
                assert reason in rank.text("err")
                assert "--start-gate" in rank.text("err")

    def test_ranks_with_other_inputs_than_agreed_are_found_wrong(self):
        root = f"127.0.0.1:{free_port()}"
        ranks = [
            self.start(
                "bench",
                "allreduce",
                "--rank",
                rank,
                "--world-size",
                2,
                "--root",
                root,
                "--bytes",
                "64Ki",
                "--iterations",
                1,
                "--seed",
                1 + rank,
                "--json",
            )
            for rank in range(2)
        ]
        for rank in ranks:
            assert rank.end() == 1, rank.text("err")
            report = json.loads(rank.text("out"))
            assert not report["verified"]
            assert "expected" in report["first_wrong"]

    def test_the_report_says_where_and_how(self):
        report = self.bench("--workers", 2)
        assert "bench allreduce" in report["command"]
        for key in ("cpu", "cores", "kernel"):
            assert report["machine"][key]
        assert report["time_us"]["min"] <= report["time_us"]["median"]
        assert report["time_us"]["median"] <= report["time_us"]["p99"]
        assert report["time_us"]["p99"] <= report["time_us"]["max"]
        assert re.search(r"^\d+\.", report["version"])

    def test_the_table(self):
        command = self.run_command("bench", "allreduce", "--workers", 2, "--bytes", "64Ki", "--iterations", 1)
        assert command.status == 0, command.text("err")
        assert "verified: true" in command.text("out")
        assert "payload" in command.text("out")
