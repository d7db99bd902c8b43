"""The benchmarks themselves: the clock rule, the arithmetic of the tables, and small real runs."""

import os
import subprocess
import sys
import threading

import pytest
from bench_harness import needs_root, run_module
from netsum_bench import (
    collectives_bench,
    loss_bench,
    machine,
    one_host,
    rack,
    rack_bench,
    rack_report,
    records,
    results,
    shares_bench,
    start_gate,
    systems,
    tables,
    training_bench,
)

NETSUM = machine.ROOT / "build/release/tools/netsum/netsum"


def namespaces():
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout


def test_an_iteration_lasts_from_the_first_start_to_the_last_end():
    ms = 1_000_000
    fast = {"wrong": 0, "sums": [5, 6], "stamps": [[10 * ms, 12 * ms, 100, 101], [50 * ms, 51 * ms, 110, 111]]}
    slow = {"wrong": 0, "sums": [5, 6], "stamps": [[11 * ms, 19 * ms, 99, 103], [49 * ms, 53 * ms, 110, 114]]}
    found = start_gate.combine([fast, slow])
    assert found["times_ms"] == [9, 4] and found["wrong"] == 0
    assert found["busy_s"] == pytest.approx((4 + 4) / start_gate.TICKS_PER_S)
    assert start_gate.combine([slow, fast]) == found, "no rank is special"
    assert start_gate.combine([fast, {**slow, "sums": [5, 7]}])["wrong"] == 1, (
        "results that differ between ranks are wrong"
    )
    with pytest.raises(ValueError, match="shorter"):
        start_gate.combine([fast, {**slow, "stamps": slow["stamps"][:1]}])


def test_the_gate_opens_for_all_when_the_last_is_ready():
    ranks, passed = 3, []
    with start_gate.gate_file(ranks) as path:
        gates = [start_gate.StartGate(path, rank, ranks) for rank in range(ranks)]
        threads = [threading.Thread(target=lambda g=gate: (g.wait(1, 30), passed.append(g.rank))) for gate in gates[:2]]
        for thread in threads:
            thread.start()
        assert gates[2].words[0] == 0 and not passed
        gates[2].wait(1, 30)
        for thread in threads:
            thread.join()
        assert sorted(passed) == [0, 1] and gates[0].words[0] == 1
        with pytest.raises(TimeoutError):
            gates[0].wait(2, 0.01)


def test_the_fastest_setting_of_a_peer_is_measured():
    class Peer(systems.Tuned):
        name, measured = "peer", []

        def candidates(self, sizes):
            return {"slow": sizes, "fast": sizes, "broken": sizes, "wrong": [sizes[0]]}

        def run_with(self, setting, plan):
            self.measured.append((setting, plan))
            if setting == "broken":
                raise systems.Failed("does not start")
            return [
                {"times_ms": [{"slow": 9.0, "fast": 3.0, "wrong": 1.0}[setting]], "wrong": int(setting == "wrong")}
                for _ in plan
            ]

    peer = Peer()
    found = peer.calibrate([(4096, 20, 2), (1 << 20, 1, 0)])
    assert found == {
        4096: {"slow": 9.0, "fast": 3.0, "broken": None, "wrong": None},
        1 << 20: {"slow": 9.0, "fast": 3.0, "broken": None},
    }
    assert peer.measure(4096, 7, 1)["setting"] == "fast" and peer.measured[-1] == ("fast", [(4096, 7, 1)])
    with pytest.raises(systems.Failed, match="no setting"):
        peer.measure(1 << 30, 7, 1)


@pytest.mark.parametrize("rate", ["100mbit", "1gbit", "none"])
@pytest.mark.parametrize("rounds", [1, 3, 10])
def test_every_cell_has_at_least_seven_iterations(rate, rounds):
    for size in (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20):
        assert sum(iterations for iterations, _ in rack_bench.plan_rounds(size, rate, rounds)) >= 7


def record(system, times, number=0, **more):
    return {
        "system": system,
        "workers": 8,
        "rate": "100mbit",
        "bytes": 1 << 20,
        "round": number,
        "times_ms": times,
        "wrong": 0,
        "cpu_ms": 5.0,
        "link_up": 2 << 20,
        "link_down": 1 << 20,
        "run": {},
        **more,
    }


def test_cells_are_of_all_iterations():
    found = rack_report.cells(
        [
            record("gloo", [4.0, 1.0], 0),
            record("gloo", [2.0, 3.0], 1, setting="all_reduce"),
            record("gloo", [], 2, failed="why") | {"times_ms": []},
        ]
    )
    cell = found["100mbit", 8, 1 << 20, "gloo"]
    assert (cell["median"], cell["iterations"], cell["up"]) == (2.5, 4, 2) and cell["settings"] == ["all_reduce"]


def test_the_table_has_bounds_settings_failures_and_what_is_fastest():
    found = [
        record("netsum-user", [100.0] * 7),
        record("gloo", [80.0] * 7, setting="all_reduce"),
        record("netsum-user-bfloat16", [50.0] * 7),
        {k: v for k, v in record("openmpi", [], failed="line\nno end after 300 s").items() if k != "times_ms"},
    ]
    text = tables.TABLES["rack"](found)
    assert "1 MiB, links of 100 Mbit/s" in text and "**80.0 [80.0 - 80.0]**" in text and "**50.0" not in text
    assert "Gloo: all_reduce (8 workers)" in text and "Open MPI, 8 workers, failed: `no end after 300 s`" in text
    # 2(N-1)/N of a MiB in frames of 1514 bytes with 1448 of the tensor, at 100 Mbit/s
    ring = next(line for line in text.splitlines() if "a ring" in line)
    assert float(ring.split("|")[3]) == pytest.approx((8 << 20) / 1e8 * 1e3 * 1.75 * 1514 / 1448, rel=0.01)


def test_the_headline_says_where_netsum_is_slower():
    found = [
        record("netsum-xdp", [20.0], bytes=16 << 20),
        record("gloo", [30.0], bytes=16 << 20),
        record("openmpi", [10.0], bytes=16 << 20),
        record("netsum-mix", [100.0], bytes=16 << 20),
    ]
    switch, spare = tables.headline(found).splitlines()[2:]
    assert "0.50 times as fast" in switch and "Open MPI" in switch and "**" not in switch
    assert "spare host" in spare and "0.10 times as fast" in spare


NOISY, CLEAR = [9.0, 10.0, 11.0], [4.9, 5.0, 5.1]


@pytest.mark.parametrize(
    ("ours", "peers", "is_bold"),
    [
        (CLEAR, NOISY, True),
        (NOISY, CLEAR, False),  # slower
        ([9.0, 9.5, 10.9], NOISY, False),  # their ranges overlap
        ([10.0] * 3, [10.04] * 3, False),  # rounds to 1.00
        ([10.0] * 3, [10.06] * 3, True),
        (NOISY, NOISY, False),
    ],
)
def test_only_what_is_faster_beyond_the_noise_is_bold(ours, peers, is_bold):
    found = [record("netsum-user", ours, bytes=16 << 20), record("gloo", peers, bytes=16 << 20)]
    ratio = f"{sum(peers[1:2]) / sum(ours[1:2]):.2f}"
    headline = tables.headline(found)
    assert f"{ratio} times as fast" in headline and ("**" in headline) == is_bold
    on_host = tables.one_host_headline(
        [record("netsum-memory", ours, rate="host"), record("openmpi-memory", peers, rate="host")]
    )
    assert f"{ratio} times as fast" in on_host and ("**" in on_host) == is_bold
    collective = collectives_bench.table([{**one, "collective": "broadcast"} for one in found])
    assert f"{ratio} x" in collective and ("**" in collective) == is_bold


def test_the_best_of_a_table_is_bold_only_where_it_is_below_all_others():
    def bold(**times):
        found = [record(system.replace("_", "-"), of, rate="host") for system, of in times.items()]
        return [line.split("|")[1].strip() for line in tables.TABLES["rack"](found).splitlines() if "**" in line]

    assert bold(gloo=NOISY, netsum_user=CLEAR) == ["netsum, daemon"]
    assert bold(gloo=NOISY, netsum_user=[9.0, 9.9, 10.0]) == []
    assert bold(gloo=NOISY, netsum_user=CLEAR, netsum_shards=[5.0, 5.1, 5.2]) == []


def test_the_settings_of_open_mpi():
    def flags(setting):
        return " ".join(systems.OpenMpi.flags(setting))

    tuned = "--mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm"
    assert flags("default") == ""
    assert flags("default, nonoverlapping") == f"{tuned} 2"
    assert flags("yield") == "--bind-to none --mca mpi_yield_when_idle 1"
    assert flags("yield, segmented ring/65536").endswith(
        f"{tuned} 5 --mca coll_tuned_allreduce_algorithm_segmentsize 65536"
    )
    no_cma = "--mca btl_vader_single_copy_mechanism none"
    assert flags("yield, nonoverlapping, no CMA") == f"{flags('yield')} {tuned} 2 {no_cma}"
    in_memory = object.__new__(one_host.OpenMpiInMemory)
    for size in (1 << 10, systems.SMALL):
        found = [setting for setting, sizes in in_memory.candidates([size, 16 << 20]).items() if size in sizes]
        assert {"default, nonoverlapping", "yield, nonoverlapping", "yield, ring", "default, no CMA"} <= set(found)
        assert all(flags(setting) for setting in found if setting != "default")


def test_every_congestion_control_is_tried_on_lossy_links(monkeypatch):
    class FakeRack:
        controls = []

        def congestion_controls(self):
            return ["cubic", "reno", "bbr"]

        def set_congestion_control(self, name):
            self.controls.append(name)

    class FakeRanks:
        def __init__(self, rack):
            self.control = rack.controls[-1] if rack.controls else "cubic"
            self.closed = False
            opened.append(self)

        def measure(self, _dtype, _size, _iterations, _warmup, how):
            assert how == "all_reduce"
            return {"times_ms": [{"cubic": 9.0, "bbr": 3.0}[self.control]], "wrong": 0}

        def close(self):
            self.closed = True

    opened, rack = [], FakeRack()
    monkeypatch.setattr(systems, "GlooRanks", FakeRanks)
    gloo = systems.GlooOnLossyLinks(rack)
    assert gloo.calibrate([(1 << 20, 1, 0)]) == {1 << 20: {"cubic": 9.0, "bbr": 3.0}}
    assert gloo.measure(1 << 20, 3, 1)["setting"] == "bbr"
    gloo.chosen = {1 << 20: "cubic"}
    assert gloo.measure(1 << 20, 3, 1)["times_ms"] == [9.0]
    assert [ranks.control for ranks in opened] == ["cubic", "bbr"]
    assert rack.controls == ["bbr", "cubic"], "the default is that of all other connections"
    gloo.close()
    assert all(ranks.closed for ranks in opened)


@needs_root
def test_workers_connect_with_the_congestion_control_that_is_set():
    made = object.__new__(rack.Rack)
    made.name, made.workers = f"cc{os.getpid()}", 1
    space, peer = f"netsum-{made.name}-w0", f"netsum-{made.name}-peer"

    def ip(*words):
        return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout

    try:
        ip("netns", "add", space)
        ip("netns", "add", peer)
        ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", peer)
        for namespace, address in ((space, "10.77.0.1/16"), (peer, "10.77.0.2/16")):
            ip("-n", namespace, "addr", "add", address, "dev", "eth0")
            ip("-n", namespace, "link", "set", "eth0", "up")
        default, *others = made.congestion_controls()
        asks = "import socket; s = socket.socket(); s.setblocking(False); s.connect_ex(('10.77.0.2', 9)); print(s.getsockopt(6, 13, 16))"
        for control in (*others, default):
            made.set_congestion_control(control)
            used = ip("netns", "exec", space, sys.executable, "-c", asks)
            assert control in used, f"{control}: {used}"
        assert ip("-n", space, "route", "show", "dev", "eth0").count("congctl") == 1
    finally:
        for namespace in (space, peer):
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def test_settings_of_open_mpi_in_the_shell_have_no_effect(monkeypatch):
    seen = {}

    class Run:
        def __init__(self, _command, *, env, **_):
            seen.update(env)
            raise systems.Failed("seen")

    monkeypatch.setenv("OMPI_MCA_coll", "basic")
    monkeypatch.setenv("PMIX_MCA_gds", "hash")
    monkeypatch.setattr(systems.subprocess, "Popen", Run)
    mpi = object.__new__(systems.OpenMpi)
    mpi.placement, mpi.program = [], "mpi_collective"
    mpi.rack = type("Rack", (), {"workers": 2, "inside": lambda self, _where, *command: list(command)})()
    with pytest.raises(systems.Failed, match="seen"):
        mpi.run_with("default", [])
    assert not [name for name in seen if name.startswith(("OMPI_MCA_", "PMIX_MCA_"))]
    assert "PATH" in seen


def share_records(times, link_bytes, name="netsum-spare1"):
    key = {"rate": "100mbit", "workers": 8, "bytes": 16 << 20, "system": name}
    plan = {"s_per_gigabyte": 128, "ring_s_per_gigabyte": 140, "loads": {"w0, in": 1.5, "s0, in": 0.5}}
    return [{**key, "plan": plan}, record(name, times, bytes=16 << 20, link_bytes=link_bytes)]


def test_placements_are_compared_with_their_plans():
    frame = 1514 / 1440
    carried = {"w0, in": round(1.5 * (16 << 20) * frame) + 10 * 1514, "s0, in": round(0.5 * (16 << 20) * frame)}
    found = share_records([2 * 128 * 16.777216 * frame] * 7, carried)
    found += [record("gloo", [2500.0], bytes=16 << 20), record("gloo-unequal", [5000.0], bytes=16 << 20)]
    found += [share_records([], {}, "netsum-unequal")[0]]
    spare, unequal = shares_bench.table(found).splitlines()[2:]
    assert "| 1 spare host |" in spare and "| +100% |" in spare and "| +10, +0.1% | 2500 |" in spare
    assert float(spare.split("|")[3]) == pytest.approx(128 * 16.777216 * frame, rel=0.001)
    assert "not measured" in unequal and "5000" in unequal and "2500" not in unequal


@pytest.mark.parametrize("rack", {placement.rack for placement in shares_bench.PLACEMENTS.values()})
def test_racks_of_placements_follow_the_rate(rack):
    assert not any("100" in str(flag) for flag in shares_bench.rack_flags(rack, 8, "1gbit"))


def test_a_limit_that_no_link_carries_is_compared_only_if_it_was_counted():
    """A switch has no link: what it sums is counted at its bridge if that is shaped."""
    plan = {"loads": {"w0, in": 1.5, "sw, sums": 0.5}}
    size = 16 << 20
    units = size * 1514 / 1440
    beyond = lambda **carried: shares_bench.beyond_program([{"link_bytes": carried}], plan, size)
    assert beyond(**{"w0, in": round(1.5 * units) + 10 * 1514}) == "+10, +0.1%"
    assert beyond(**{"w0, in": round(1.5 * units), "sw, sums": round(0.5 * units) + 20 * 1514}) == "+20, +0.3%"
    assert shares_bench.beyond_program([], plan, size) == ""


@needs_root
def test_a_small_run_of_placements(tmp_path):
    output = tmp_path / "shares.jsonl"
    names = ["netsum-shares", "netsum-ports", "netsum-half", "gloo"]
    flags = ["--workers", "2", "--size", "256Ki", "--rounds", "1", "--placements", ",".join(names)]
    run = run_module("shares_bench", *flags, "--output", output)
    assert run.returncode == 0, run.stdout + run.stderr
    found = records.load(output)
    measured = {r["system"]: r for r in found if "round" in r}
    assert set(measured) == set(names) and all(len(r["times_ms"]) >= 7 and not r["wrong"] for r in measured.values())
    assert {r["system"] for r in found if "plan" in r} == set(names) - {"gloo"}
    # Two ranks that sum for each other: each link carries the data once, which the program says, too.
    [plan] = [r["plan"] for r in found if r.get("plan") and r["system"] == "netsum-shares"]
    carried = measured["netsum-shares"]["link_bytes"]
    assert set(carried) == {f"w{w}, {way}" for w in (0, 1) for way in ("in", "out")} == set(plan["loads"])
    for link, load in plan["loads"].items():
        assert load * (256 << 10) < carried[link] < 1.2 * load * (256 << 10)
    assert "netsum-shares" not in namespaces()


def test_records_stay_and_the_last_run_counts(tmp_path):
    path = tmp_path / "data" / "x.jsonl"
    first = records.append_to(path)
    first({"rate": "a", "round": 0})
    first({"rate": "b", "round": 0})
    records.append_to(path)({"rate": "a", "round": 7})
    found = records.latest(records.load(path), "rate")
    assert [(r["rate"], r["round"]) for r in found] == [("b", 0), ("a", 7)]
    records.compact(path, "rate")
    assert [(r["rate"], r["round"]) for r in records.load(path)] == [("b", 0), ("a", 7)]
    assert all(r["run"]["machine"] and r["run"]["command"] for r in found)


def test_published_tables_have_marks_and_functions():
    for page in results.PUBLISHED:
        text = page.read_text(encoding="utf-8")
        names = [found[2] for found in results.MARKS.finditer(text)]
        assert text.count("<!-- figures ") == len(names) > 0, "every start has its end"
        assert set(names) <= set(tables.TABLES)


def test_publishing_writes_the_tables_that_have_records(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- figures rack:systems -->\nold\n<!-- end rack:systems -->\n<!-- figures loss -->\nkept\n<!-- end loss -->\n"
    )
    monkeypatch.setattr(results, "PUBLISHED", [page])
    out = records.append_to(tmp_path / "rack.jsonl")
    out(record("netsum-user", [100.0] * 7))
    results.write_page()
    results.publish()
    text = page.read_text()
    assert f"netsum {machine.version()}, `make results ONLY=rack`" in text and "old" not in text and "kept" in text
    assert "100 [100 - 100]" in text and "100 [100 - 100]" in (tmp_path / "results.md").read_text()


def test_only_a_clear_winner_is_bold():
    def table(netsum, gloo):
        return tables.by_system([record("netsum-user", netsum), record("gloo", gloo)], counts=(8,))

    assert "**10.0 [10.0 - 10.0]**" in table([10.0] * 7, [20.0] * 7)
    assert "**" not in table([10.0] * 5 + [30.0] * 2, [20.0] * 7), "the ranges overlap"


def test_bad_arguments():
    refused = run_module("rack_bench", "--systems", "nccl")
    assert refused.returncode == 2 and "unknown system nccl" in refused.stderr
    assert run_module("rack_bench", "--netsum", "/nonexistent").returncode == 3
    refused = run_module("results", "--only", "nothing")
    assert refused.returncode == 2 and "there is no nothing" in refused.stderr


@needs_root
def test_a_small_run(tmp_path):
    assert NETSUM.exists()
    output = tmp_path / "rack.jsonl"
    run = run_module(
        "rack_bench",
        "--workers",
        "2",
        "--rates",
        "1gbit",
        "--sizes",
        "4Ki,512Ki",
        "--rounds",
        "1",
        "--output",
        output,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = records.load(output)
    measured = [r for r in found if "round" in r]
    assert {(r["system"], r["bytes"]) for r in measured} == {
        (s, b)
        for s in (
            "netsum-user",
            "netsum-xdp",
            "netsum-mix",
            "netsum-shards",
            "gloo",
            "openmpi",
            "netsum-user-bfloat16",
            "gloo-bfloat16",
        )
        for b in (4096, 512 << 10)
    }
    assert all(r["wrong"] == 0 and len(r["times_ms"]) >= 7 and r["link_up"] > r["bytes"] / 2 for r in measured)
    assert {r["setting"] for r in measured if r["system"] == "openmpi"} <= {
        s for r in found if r.get("calibrated") == "openmpi" for s in r["calibration_ms"]
    }
    assert "netsum-bench" not in namespaces()


@needs_root
def test_a_small_run_of_plug_ins(tmp_path):
    assert NETSUM.exists()
    output = tmp_path / "rack.jsonl"
    wanted = {"netsum-user", "netsum-mpi", "netsum-nccl"}
    flags = ["--workers", "2", "--rates", "1gbit", "--sizes", "4Ki,5Mi", "--rounds", "1"]
    run = run_module("rack_bench", *flags, "--systems", ",".join(wanted), "--output", output)
    assert run.returncode == 0, run.stdout + run.stderr
    measured = [r for r in records.load(output) if "round" in r]
    assert {(r["system"], r["bytes"]) for r in measured} == {(s, b) for s in wanted for b in (4096, 5 << 20)}
    for record in measured:
        assert record["wrong"] == 0 and len(record["times_ms"]) >= 7, record
        assert record["bytes"] < record["link_up"], "it was summed in the network"
    assert tables.nccl(records.load(output)).count("| 2 ranks, links of 1 Gbit/s") == 2


@needs_root
def test_a_small_run_of_8_bit_lanes_and_compressed_tensors(tmp_path):
    assert NETSUM.exists()
    output = tmp_path / "rack.jsonl"
    wanted = {"netsum-user", "netsum-user-lanes8", "compressed-topk-1%", "gloo"}
    flags = ["--workers", "2", "--rates", "1gbit", "--sizes", "5Mi", "--rounds", "1"]
    run = run_module("rack_bench", *flags, "--systems", ",".join(wanted), "--output", output)
    assert run.returncode == 0, run.stdout + run.stderr
    up = {r["system"]: r["link_up"] for r in records.load(output) if "round" in r and r["wrong"] == 0}
    assert up.keys() == wanted
    assert up["netsum-user"] > 3.4 * up["netsum-user-lanes8"], up  # frames have other headers, too
    assert tables.lanes8(records.load(output)).count("| netsum, daemon, 2 workers, links of 1 Gbit/s, 5 MiB |") == 1
    assert up["netsum-user"] > 9 * up["compressed-topk-1%"], up
    compressed = tables.compressed(records.load(output))
    assert compressed.count("| 2 workers, links of 1 Gbit/s, 5 MiB |") == len(wanted)
    assert "| netsum, topk 1 % |" in compressed


def test_collectives_are_compared_with_their_bounds():
    found = [
        record(system, times, bytes=16 << 20, collective=collective, **more)
        for collective, system, times, more in (
            ("broadcast", "netsum-xdp", [2000.0, 1480.0, 1000.0], {}),
            ("broadcast", "netsum-user", [1600.0], {}),
            ("broadcast", "openmpi", [2960.0], {"setting": "yield, pipeline/65536"}),
            ("allgather", "netsum-xdp", [1480.0], {}),
            ("allgather", "gloo", [740.0], {"wrong": 1}),
            ("allgather", "openmpi", [740.0], {}),
        )
    ]
    broadcast, gather = collectives_bench.table(found).splitlines()[2:]
    # 16 MiB in frames of 1514 bytes with 1440 of them, at 100 Mbit/s: 1411 ms
    assert broadcast.startswith("| broadcast, 16 MiB, 8 workers, links of 100 Mbit/s | 1480 | 1600 |")
    assert "| 2960 (yield, pipeline/65536) | 1411 (95%) | **2.00 x** |" in broadcast
    assert "| failed | 740 | 1235 (83%) | 0.50 x |" in gather, "a wrong result is no figure"


@needs_root
@pytest.mark.parametrize(
    "collectives",
    [["allgather+reducescatter"], pytest.param(list(collectives_bench.COLLECTIVES), marks=pytest.mark.soak)],
)
def test_a_small_run_of_collectives(tmp_path, collectives):
    output = tmp_path / "collectives.jsonl"
    flags = ["--workers", "2", "--rate", "1gbit", "--sizes", "512Ki", "--rounds", "1"]
    run = run_module("collectives_bench", *flags, "--collectives", ",".join(collectives), "--output", output)
    assert run.returncode == 0, run.stdout + run.stderr
    measured = [r for r in records.load(output) if "round" in r]
    cells = {(collective, 0 if collective == "barrier" else 512 << 10) for collective in collectives}
    wanted = {(*cell, system) for cell in cells for system in collectives_bench.WANTED}
    assert {(r["collective"], r["bytes"], r["system"]) for r in measured} == wanted
    assert all(r["wrong"] == 0 and r["times_ms"] for r in measured)
    assert "netsum-bench" not in namespaces()


@needs_root
def test_a_spent_budget_ends_the_run(tmp_path):
    run = run_module("rack_bench", "--budget", "0", "--output", tmp_path / "rack.jsonl")
    assert run.returncode == 0 and "9 of 9 places left out" in run.stdout, run.stdout + run.stderr


def test_ranks_on_one_host(tmp_path):
    assert NETSUM.exists()
    output = tmp_path / "one_host.jsonl"
    run = run_module("one_host", "--workers", "2", "--sizes", "4Ki,1Mi", "--rounds", "1", "--output", output)
    assert run.returncode == 0, run.stdout + run.stderr
    measured = [r for r in records.load(output) if "round" in r]
    assert {(r["system"], r["bytes"]) for r in measured} == {
        (s, b)
        for s in ("netsum-memory", "openmpi-memory", "netsum-user", "netsum-shards", "gloo")
        for b in (4096, 1 << 20)
    }
    assert all(r["wrong"] == 0 and len(r["times_ms"]) >= 7 for r in measured)
    refused = run_module("one_host", "--netsum", "/nonexistent")
    assert refused.returncode == 3 and "make build" in refused.stderr


def test_a_rank_that_dies_costs_one_measurement():
    ranks = systems.GlooRanks(one_host.Host(NETSUM, 2))
    try:
        ranks.processes[1].kill()
        with pytest.raises(systems.PROBLEMS):
            ranks.measure("float32", 4096, 7, 1, "all_reduce")
        found = ranks.measure("float32", 4096, 7, 1, "all_reduce")
    finally:
        ranks.close()
    assert found["wrong"] == 0 and len(found["times_ms"]) == 7


def training(system, median_ms, **more):
    return {
        "system": system,
        "model": "digits",
        "place": "rack",
        "workers": 4,
        "rate": "100mbit",
        "losses": [2.0, 1.0] * 5,
        "step_ms": {"median": median_ms, "low": median_ms - 1, "high": median_ms + 1},
        "held_out_loss": 0.5,
        "allreduce_ms": {"median": median_ms / 2, "low": 0, "high": 0},
        "accuracy_percent": 90.0,
        "sent_per_gradient_byte": 1.05,
        **more,
    }


def test_training_rows_are_medians_and_ratios():
    found = [
        training("gloo", 30),
        training("netsum-xdp", 10),
        training("gloo", 40),
        training("netsum-xdp", 20),
        training("netsum-xdp", 30),
    ]
    gloo, ours = training_bench.rows(found)
    assert (gloo["step_ms"], gloo["low_ms"], gloo["high_ms"]) == (35, 29, 41)
    assert ours["speed_up"] == pytest.approx(1.75) and ours["allreduce_ms"] == 10 and gloo["speed_up"] == 1
    assert gloo["agrees"] and ours["agrees"]
    assert "| digits | 4 | 100mbit | netsum-xdp | 20.0 | 9.0 - 31.0 | 1.75 |" in training_bench.table(found)


@pytest.mark.parametrize(
    ("field", "value"), [("losses", [3.0, 2.0] * 5), ("held_out_loss", 0.6), ("accuracy_percent", 88)]
)
def test_trainings_that_differ_are_told(field, value):
    found = [training("gloo", 30), training("netsum-xdp", 10, **{field: value})]
    assert [row["agrees"] for row in training_bench.rows(found)] == [True, False]
    assert "NO" in training_bench.table(found)


@needs_root
def test_a_small_run_of_trainings(tmp_path):
    output = tmp_path / "training.jsonl"
    run = run_module(
        "training_bench",
        "--workers",
        "2",
        "--rates",
        "1gbit",
        "--models",
        "digits",
        "--steps",
        "6",
        "--rounds",
        "1",
        "--systems",
        "gloo,netsum-xdp",
        "--output",
        output,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = records.load(output)
    assert [r["system"] for r in found] == ["gloo", "netsum-xdp"] and "cores" in found[0]["run"]["machine"]
    assert "xdp" in found[1]["where"] and all(r["step_ms"]["median"] > 0 for r in found)
    assert "netsum-train" not in namespaces()


def lossy(system, loss, times, number=0, **more):
    return {
        "system": system,
        "loss": loss,
        "round": number,
        "times_ms": times,
        "wrong": 0,
        "packets_passed": 990,
        "packets_lost": 10,
        **more,
    }


def test_goodput_with_loss_is_relative_to_the_same_round():
    found = [lossy("gloo", 0.0, [t], n) for n, t in enumerate((1000.0, 2000.0, 4000.0))]
    found += [lossy("gloo", 0.01, [t], n) for n, t in enumerate((2000.0, 8000.0, 8000.0))]
    found += [{"system": "gloo", "loss": 0.05, "round": 0, "failed": "no end"}]
    none, one, five = loss_bench.table(found).splitlines()[2:]
    assert none == "| 0 % | Gloo | 2000 [1200 - 3600] | 1.000 [1.000 - 1.000] | 30 (1.000%) | 0 | 0 |"
    assert one == "| 1 % | Gloo | 8000 [3200 - 8000] | 0.500 [0.250 - 0.500] | 30 (1.000%) | 0 | 0 |"
    assert five == "| 5 % | Gloo |  |  |  |  | 1 |"


def test_failures_that_were_not_measured_are_counted():
    found = [{"scenario": "rank-killed", "dataplane": "user", "seconds": s} for s in (0.01, 0.02, 0.03)]
    found += [{"scenario": "rank-stopped", "dataplane": plane, "failed": "no end"} for plane in ("xdp", "user")]
    found += [{"scenario": "rank-killed", "dataplane": "xdp", "seconds": 0.5}, found[-1]]
    heading, _, killed, stopped = tables.failures(found).splitlines()
    assert heading.endswith("| daemon | XDP |")
    assert killed == "| a rank is killed | 20 (10 - 30) | 500 (500 - 500) |"
    assert stopped.endswith("| 2 of 2 failed | 1 of 1 failed |")


@needs_root
def test_a_small_run_with_loss(tmp_path):
    output = tmp_path / "loss.jsonl"
    run = run_module(
        "loss_bench",
        "--workers",
        "2",
        "--rate",
        "200mbit",
        "--size",
        "2Mi",
        "--losses",
        "0,1%",
        "--rounds",
        "1",
        "--output",
        output,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = records.load(output)
    assert {(r["system"], r["loss"]) for r in found} == {(s, loss) for s in loss_bench.SYSTEMS for loss in (0.0, 0.01)}
    assert all((r["packets_lost"] > 0) == (r["loss"] > 0) and r["wrong"] == 0 for r in found)
    assert "netsum-loss" not in namespaces()
