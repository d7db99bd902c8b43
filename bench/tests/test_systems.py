"""The clock rule, the choice of settings, and what systems are told."""

import os
import subprocess
import sys
import threading

import pytest
from bench_harness import needs_root
from netsum_bench import machine, rack, start_gate, systems
from netsum_bench.labs import racks

NETSUM = machine.ROOT / "build/release/tools/netsum/netsum"


def test_an_iteration_lasts_from_the_first_start_to_the_last_end():
    ms = 1_000_000
    fast = {"wrong": 0, "sums": [5, 6], "stamps": [[10 * ms, 12 * ms, 100, 101], [50 * ms, 51 * ms, 110, 111]]}
    slow = {"wrong": 0, "sums": [5, 6], "stamps": [[11 * ms, 19 * ms, 99, 103], [49 * ms, 53 * ms, 110, 114]]}
    found = start_gate.combine([fast, slow])
    assert found["times_ms"] == [9, 4] and found["wrong"] == 0
    assert found["busy_s"] == pytest.approx((4 + 4) / start_gate.TICKS_PER_S)
    assert start_gate.combine([slow, fast]) == found, "no rank is special"
    assert "ranks_cpu_s" not in found and "ranks_cpu_s" not in start_gate.combine([fast, {**slow, "cpu_s": 0.5}])
    own = [{**fast, "cpu_s": 0.25}, {**slow, "cpu_s": 0.5}]
    assert start_gate.combine(own) == {**found, "ranks_cpu_s": 0.75}
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
        assert sum(iterations for iterations, _ in racks.plan_rack(size, rate, rounds)) >= 7


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
    in_memory = object.__new__(systems.OpenMpiInMemory)
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


@pytest.mark.parametrize("rack", sorted({placement.rack for placement in racks.PLACEMENTS.values()}))
def test_racks_of_placements_follow_the_rate(rack):
    assert not any("100" in str(flag) for flag in racks.rack_flags(rack, 8, "1gbit"))


@pytest.mark.soak  # it waits for PyTorch
def test_a_rank_that_dies_costs_one_measurement():
    with rack.Host(NETSUM, 2) as host:
        ranks = host.shared(systems.GlooRanks)
        assert host.shared(systems.GlooRanks) is ranks
        ranks.processes[1].kill()
        with pytest.raises(systems.PROBLEMS):
            ranks.measure("float32", 4096, 7, 1, "all_reduce")
        found = ranks.measure("float32", 4096, 7, 1, "all_reduce")
    assert found["wrong"] == 0 and len(found["times_ms"]) == 7
    assert all(process.poll() is not None for process in ranks.processes)
