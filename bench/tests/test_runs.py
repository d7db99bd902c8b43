"""Small real runs of the cases, as their user would start them. One is short; the others are soak tests."""

import pathlib

import pytest
from bench_harness import namespaces, needs_package, needs_root, run_bench
from netsum_bench import records
from netsum_bench.cases import CASES
from netsum_bench.labs import backlog, jobs, racks, schedules, serving, sparse, training, trees
from netsum_bench.tables import racks as tables

soak = pytest.mark.soak


def measured(tmp_path, name, *flags, key="round"):
    """The records of a run that must end well and leave nothing; and what it printed."""
    path = tmp_path / f"{name}.jsonl"
    run = run_bench(name, *flags, "--json", path)
    assert run.returncode == 0, run.stdout + run.stderr
    assert path.with_suffix(".html").exists() and f"records: {path}" in run.stdout
    found = records.load(path)
    assert all(not r.get("wrong") for r in found)
    return [r for r in found if key in r], found, run.stdout


def systems_and(field, found):
    return {(r["system"], r[field]) for r in found}


@needs_root
def test_a_rack(tmp_path):
    flags = ("--workers", 2, "--rate", "1gbit", "--size", "512Ki", "--rounds", 1, "--system", "netsum-user,netsum-xdp")
    found, _, said = measured(tmp_path, "rack", *flags)
    assert systems_and("bytes", found) == {("netsum-user", 512 << 10), ("netsum-xdp", 512 << 10)}
    assert all(len(r["times_ms"]) >= 7 and r["link_up"] > r["bytes"] for r in found), "summed in the network"
    assert all(r["ranks_cpu_ms"] > 0 for r in found)
    assert {r["system"]: r.get("daemon_cpu_ms", 0) > 0 for r in found} == {"netsum-user": True, "netsum-xdp": False}
    assert "#### 512 KiB, links of 1 Gbit/s" in said
    assert not [line for line in namespaces().splitlines() if line.startswith(("netsum-bu", "netsum-bx"))]


@soak
@needs_root
def test_every_system_of_the_rack(tmp_path):
    flags = ("--workers", 2, "--rate", "1gbit", "--size", "4Ki,512Ki", "--rounds", 1)
    found, every, _ = measured(tmp_path, "rack", *flags)
    assert systems_and("bytes", found) == {(s, b) for s in CASES["rack"].axes["system"] for b in (4096, 512 << 10)}
    assert all(len(r["times_ms"]) >= 7 and r["link_up"] > r["bytes"] / 2 for r in found)
    tried = {s for r in every if r.get("calibrated") == "openmpi" for s in r["calibration_ms"]}
    assert {r["setting"] for r in found if r["system"] == "openmpi"} <= tried


@soak
@needs_root
def test_plug_ins(tmp_path):
    flags = ["--workers", "2", "--rate", "1gbit", "--size", "4Ki,5Mi", "--rounds", "1"]
    wanted = {"netsum-user", "netsum-mpi", "netsum-nccl"}
    found, _, _ = measured(tmp_path, "rack", *flags, "--system", ",".join(wanted))
    assert systems_and("bytes", found) == {(s, b) for s in wanted for b in (4096, 5 << 20)}
    assert all(len(r["times_ms"]) >= 7 and r["bytes"] < r["link_up"] for r in found), "summed in the network"
    assert tables.nccl(found).count("| 2 ranks, links of 1 Gbit/s") == 2


@soak
@needs_root
def test_8_bit_lanes_and_compressed_tensors(tmp_path):
    wanted = {"netsum-user", "netsum-user-lanes8", "compressed-topk-1%", "gloo"}
    flags = ["--workers", "2", "--rate", "1gbit", "--size", "5Mi", "--rounds", "1", "--system", ",".join(wanted)]
    found, _, _ = measured(tmp_path, "rack", *flags)
    up = {r["system"]: r["link_up"] for r in found}
    assert up.keys() == wanted
    assert up["netsum-user"] > 3.4 * up["netsum-user-lanes8"], up  # frames have other headers, too
    assert up["netsum-user"] > 9 * up["compressed-topk-1%"], up
    assert tables.lanes8(found).count("| netsum, daemon, 2 ranks, links of 1 Gbit/s, 5 MiB |") == 1
    compressed = tables.compressed(found)
    assert compressed.count("| 2 workers, links of 1 Gbit/s, 5 MiB |") == len(wanted)
    assert "| netsum, topk 1 % |" in compressed


@soak
def test_one_host(tmp_path):
    found, _, _ = measured(tmp_path, "one-host", "--workers", 2, "--size", "4Ki,1Mi", "--rounds", 1)
    assert systems_and("bytes", found) == {(s, b) for s in CASES["one-host"].axes["system"] for b in (4096, 1 << 20)}
    assert all(len(r["times_ms"]) >= 7 for r in found)


@soak
@needs_root
def test_collectives(tmp_path):
    found, _, _ = measured(tmp_path, "collectives", "--workers", 2, "--rate", "1gbit", "--size", "512Ki", "--rounds", 1)
    wanted = {(c, 0 if c == racks.BARRIER else 512 << 10) for c in racks.COLLECTIVES}
    systems = CASES["collectives"].axes["system"]
    assert {(r["collective"], r["bytes"], r["system"]) for r in found} == {(*w, s) for w in wanted for s in systems}
    assert all(r["times_ms"] for r in found)


@soak
@needs_root
def test_placements(tmp_path):
    names = ["netsum-shares", "netsum-ports", "netsum-half", "netsum-wrong", "gloo"]
    flags = ["--workers", "2", "--size", "256Ki", "--rounds", "1", "--system", ",".join(names)]
    found, every, _ = measured(tmp_path, "shares", *flags)
    by_system = {r["system"]: r for r in found}
    assert set(by_system) == set(names) and all(len(r["times_ms"]) >= 7 for r in found)
    assert by_system["netsum-wrong"]["bytes"] == (256 << 10) // racks.SMALLER
    plans = {r["system"]: r["plan"] for r in every if "plan" in r}
    assert set(plans) == set(names) - {"gloo"}
    # Two ranks that sum for each other: each link carries the data once, which the program says, too.
    carried, loads = by_system["netsum-shares"]["link_bytes"], plans["netsum-shares"]["loads"]
    assert set(carried) == {f"w{w}, {way}" for w in (0, 1) for way in ("in", "out")} == set(loads)
    for link, load in loads.items():
        assert load * (256 << 10) < carried[link] < 1.2 * load * (256 << 10)


@soak
@needs_root
@pytest.mark.parametrize("fabric", list(trees.FABRICS))
def test_trees(tmp_path, fabric):
    flags = ["--fabric", fabric, "--workers", "4", "--mtu", "1500", "--size", "1Mi", "--rounds", "1"]
    found, every, said = measured(tmp_path, "trees", *flags)
    assert {r["system"] for r in found} == set(trees.SYSTEMS) and all(len(r["times_ms"]) >= 7 for r in found)
    [plan] = [r["plan"] for r in every if "plan" in r]
    assert plan["bound"] == plan["time"] < plan["ring"]
    assert trees.FABRICS[fabric][0] in said


@soak
@needs_root
def test_loss(tmp_path):
    found, _, _ = measured(
        tmp_path, "loss", "--workers", 2, "--rate", "200mbit", "--size", "2Mi", "--loss", "0,1%", "--rounds", 1
    )
    assert systems_and("loss", found) == {(s, loss) for s in CASES["loss"].axes["system"] for loss in (0.0, 0.01)}
    assert all((r["packets_lost"] > 0) == (r["loss"] > 0) for r in found)


@soak
@needs_root
def test_jobs(tmp_path):
    found, _, said = measured(tmp_path, "jobs", "--jobs", 2, "--rate", "none", "--iterations", 5, "--rounds", 1)
    assert [(r["what"], len(r["jobs"])) for r in found] == [("alone", 1), ("together", 2), ("wait", 2), ("hosts", 2)]
    hosts = [job for job in found[-1]["jobs"] if "embedded shards" in job["summed_by"]]
    assert len(hosts) <= 1, "there is room for one"
    assert "Jain's fairness index" in said


@soak
@needs_root
def test_floods(tmp_path):
    found, _, _ = measured(tmp_path, "floods", "--flood", 100_000, "--iterations", 20, "--rounds", 1)
    wanted = {(plane, arm) for plane in ("user", "xdp") for arm in jobs.ARMS}
    assert {(r["dataplane"], r["arm"]) for r in found} == wanted


@soak
@needs_root
def test_failures(tmp_path):
    wanted = [name for name in jobs.SCENARIOS if not name.endswith("80ms")]  # which a busy machine exceeds
    flags = ("--workers", 2, "--rounds", 1, "--dataplane", "user", "--scenario", ",".join(wanted))
    found, _, _ = measured(tmp_path, "failures", *flags)
    assert [r["scenario"] for r in found] == wanted and all(r["seconds"] > 0 for r in found)


@soak
def test_verified_sums(tmp_path):
    found, _, _ = measured(tmp_path, "verify", "--workers", 2, "--size", "256Ki", "--iterations", 2, "--rounds", 1)
    assert {r["mode"] for r in found} == {"packet", "both", "sum"}
    assert all(r["ranks_cpu_ms"] > 0 and r["aggregator_ns"] > 0 for r in found)


@soak
def test_predicted_scales(tmp_path):
    found, _, _ = measured(tmp_path, "predict", "--workers", 2, "--size", "64Ki", "--rounds", 1)
    by = {(r["data"], r["predict"]): r for r in found}
    assert len(by) == 6 and all(r["time_us"] > 0 for r in found)
    assert all((r["predicted"] > 0) == (predict and data != "varied") for (data, predict), r in by.items())
    assert by["steady", True]["mispredicted"] == 0 < by["steady", True]["predicted"]
    assert by["normal", True]["predicted"] < by["steady", True]["predicted"]


@soak
def test_lies(tmp_path):
    flags = ("--runs", 300, "--piece", 200, "--seed", 5, "--jobs", 2)
    (first, last), _, said = measured(tmp_path, "lies", *flags, key="told")
    assert (first["runs"], last["runs"]) == (200, 300)
    assert last["runs_reached"] + last["runs_without"] == 300
    assert last["refused"] > 100 and last["told_upwards"] > 50
    assert last["runs_upwards"] > 10 and last["runs_switches"] > 10
    assert (last["wrong_delivered"], last["false_alarms"]) == (0, 0)
    assert f"| runs in which a rack lied to its parent | {last['runs_upwards']} |" in said


def test_a_simulation_that_fails_says_so(tmp_path):
    wrong = pathlib.Path(tmp_path / "netsum")
    wrong.write_text("#!/bin/sh\necho '{}'\necho 'WRONG, with seed 7'\nexit 1\n", encoding="utf-8")
    wrong.chmod(0o755)
    run = run_bench("lies", "--netsum", wrong, "--runs", 10, "--json", tmp_path / "lies.jsonl")
    assert run.returncode == 1 and "WRONG, with seed 7" in run.stdout
    [record] = records.load(tmp_path / "lies.jsonl")
    assert "WRONG, with seed 7" in record["failed"]


@soak
@needs_package
def test_exact_and_sampled_thresholds_pass_what_is_wanted(tmp_path):
    flags = ("--model", "digits", "--steps", 16, "--ratio", "0.1,0.001")
    found, _, said = measured(tmp_path, "thresholds", *flags, key="method")
    by = {(r["method"], r["ratio"]): r for r in found}
    assert len(by) == 10
    for ratio in (0.1, 0.001):
        for method in ("topk", "topk, sampled"):
            record = by[method, ratio]
            assert record["measured"] == 6 * record["layers"]
            assert record["near"] == 1 and record["least"] >= 0.95 and record["most"] <= 1.05
        # What is fitted is not what is wanted in every layer, but something is sent.
        assert 0 < by["sidco, pareto", ratio]["least"] < by["topk", ratio]["least"]
    assert "| digits | 0.1 % | topk, sampled | 1.000 | 1.00 - 1.00 | 1.00 - 1.00 | 100.0 % |" in said


@soak
@needs_package
def test_hooks(tmp_path):
    found, _, _ = measured(tmp_path, "hooks", "--workers", 2, "--steps", 5, "--method", "bf16", key="hook")
    assert {(r["load"], r["hook"]) for r in found} == {
        (load, hook) for load in ("quiet", "busy") for hook in ("Python", "C++")
    }
    assert all(len(r["step_ms"]) == 5 and min(r["step_ms"]) > 0 for r in found)


@soak
@needs_root
@needs_package
def test_schedules(tmp_path):
    flags = ("--percent", 100, "--steps", 4, "--rounds", 1)
    found, _, said = measured(tmp_path, "schedules", *flags, key="system")
    assert {(r["model"], r["system"]) for r in found} == {
        *(("layers", system) for system in schedules.SYSTEMS),
        *(("language", system) for system in schedules.OF_LANGUAGE),
    }
    by = {(r["model"], r["system"]): r for r in found}
    for model, system in by:
        backend, schedule = system.split(" ")
        if schedule in schedules.SAME_LOSSES:
            assert by[model, system]["losses"] == by[model, f"{backend} DDP"]["losses"]
    assert len({tuple(r["losses"]) for r in found}) > 2  # checksums of losses that differ
    assert "| all |" in said


@soak
@needs_root
@needs_package
def test_the_controller(tmp_path):
    found, _, said = measured(tmp_path, "controller", "--quick", key="phase")
    by = {(r["phase"], r["system"]): r for r in found}
    assert set(by) == {(phase, system) for phase in (0, 1) for system in training.CONTROLLED}
    for (_, system), one in by.items():
        assert len(one["step_ms"]) == 20 and min(one["step_ms"]) > 0
        assert (one["controller"] is not None) == (system == "auto")
    assert by[1, "auto"]["controller"]["steps"] >= 50 and "| all phases |" in said


@soak
@needs_root
@needs_package
def test_sparse(tmp_path):
    flags = ["--workers", 2, "--rate", "1gbit", "--count", "256Ki", "--density", "1,0.01", "--overlap", "random"]
    found, _, _ = measured(tmp_path, "sparse", *flags, "--pattern", "element,zipf", "--selection", "full", key="system")
    assert all(len(r["times_ms"]) >= 3 for r in found)
    for name, system in sparse.SYSTEMS.items():
        places = sorted((r["pattern"], r["density"]) for r in found if r["system"] == name)
        everywhere = [("element", 0.01), ("element", 1), ("zipf", 0.01)]
        assert len(places) == 1 if system.per_size else places == everywhere, name
    by = {(r["pattern"], r["density"], r["system"]): r for r in found}
    indexed, dense = by["element", 0.01, "netsum-on"], by["element", 0.01, "netsum-dense"]
    assert indexed["sparse_sent_elements"] < 0.03 * (256 << 10) and indexed["link_up"] < dense["link_up"] / 5
    assert by["element", 1, "netsum-auto"]["sparse_dense"] == 1, "what is dense goes as dense"


@soak
@needs_root
@needs_package
def test_trainings(tmp_path):
    flags = ("--workers", 2, "--rate", "1gbit", "--model", "digits", "--steps", 6, "--system", "gloo,netsum-xdp")
    found, _, _ = measured(tmp_path, "training", *flags)
    assert [r["system"] for r in found] == ["gloo", "netsum-xdp"]
    assert "xdp" in found[1]["where"] and all(r["step_ms"]["median"] > 0 for r in found)


@soak
@needs_root
@needs_package
def test_compression(tmp_path):
    systems = "netsum,gloo-fp16,netsum-topk-1%,netsum-fp16"
    flags = ("--model", "generated,digits", "--workers", 2, "--rate", "none", "--seed", 1, "--steps", 24)
    found, _, said = measured(tmp_path, "compression", *flags, "--system", systems, key="system")
    reduced = {r["system"]: r for r in found if r["model"] == "generated"}
    found = {r["system"]: r for r in found if r["model"] == "digits"}
    assert set(found) == set(reduced) == set(systems.split(",")) and next(iter(found)) == "netsum"
    for one in found.values():
        assert {2, 24, one["steps_in_all"]} <= {point["step"] for point in one["curve"]}
        assert 24 <= one["steps_in_all"] <= 96
        losses = [point["loss"] for point in one["curve"]]
        assert losses[-1] < losses[0], "it learns"
        assert one["reduction_ms"]["median"] > 0
    plain, fp16, topk = (found[s]["sent_bytes_per_step"] for s in ("netsum", "netsum-fp16", "netsum-topk-1%"))
    assert topk < fp16 < 0.7 * plain
    plain, fp16, topk = (reduced[s]["reduction_bytes"] for s in ("netsum", "netsum-fp16", "netsum-topk-1%"))
    assert 16 << 20 < plain < 18 << 20 and topk < 0.1 * plain < fp16 < 0.6 * plain
    for one in (reduced["netsum-topk-1%"], found["netsum-topk-1%"]):
        assert one["encode_ms"] > 0 and one["decode_ms"] > 0
    assert "| netsum-topk-1% | 1 |" in said and "16 MiB of generated gradients" in said


@soak
@needs_root
@needs_package
def test_a_budget_that_is_spent_on_the_way(tmp_path):
    flags = ("--model", "recommender", "--workers", 2, "--rate", "none", "--seed", "1,2", "--steps", 4)
    more = ("--system", "netsum,netsum-sparse", "--budget", "0.001")
    _, (first, rest), said = measured(tmp_path, "compression", *flags, *more)
    assert (first["system"], first["seed"], first["parameters"]) == ("netsum", 1, 50_000 * 16 + 48 * 64 + 64 + 130)
    names = [(one["system"], one["seed"]) for one in rest["left_out"]]
    assert names == [("netsum-sparse", 1), ("netsum", 2), ("netsum-sparse", 2)]
    assert "3 of 4 left out" in said and "seed 2: 1 systems" in said


@soak
@needs_root
def test_serving(tmp_path):
    """In the rack and over links with a delay: rank 0 sends the input once, and requests that are in flight together take less time."""
    flags = ("--network", "rack,delay", "--system", "netsum,gloo,base", "--requests", 40, "--rounds", 1)
    found, _, said = measured(tmp_path, "serving", *flags)
    assert [(r["network"], r["system"]) for r in found] == [
        (network, system) for network in ("rack", "delay") for system in ("netsum", "gloo", "base")
    ]
    assert all(0 < r["p50_ms"] <= r["p99_ms"] for r in found)
    by = {(r["network"], r["system"]): r for r in found}
    for system in ("netsum", "gloo"):
        assert by["rack", system]["bytes_out"] > by["rack", system]["input_bytes"] == 256
        assert by["rack", system]["bytes_in"] > by["rack", system]["score_bytes"] == 40
        assert by["delay", system]["p50_ms"] > 4, "two links there, two back"
        assert by["delay", system]["pipelined_per_s"] > by["delay", system]["one_by_one_per_s"]
    assert set(by["rack", "gloo"]["settings"].values()) <= set(serving.SETTINGS["gloo"])
    assert "| 1 ms | netsum, daemon |" in said
    assert not [line for line in namespaces().splitlines() if line.startswith(("netsum-v", "delayed-"))]


@soak
def test_serving_failures(tmp_path):
    found, _, said = measured(tmp_path, "serving-failures", "--rounds", 1)
    by = {r["event"]: r for r in found}
    for event in ("killed", "hangs"):
        assert by[event]["complete"] > 0 and by[event]["without_answer"] == 0
    assert by["front"]["without_answer"] > 0 and by["front"]["left"] == 0
    assert "| rank 0 is killed |" in said


@soak
@needs_package
@needs_root
def test_backlog(tmp_path):
    flags = ("--jobs", "1,2", "--pace", "0,0.5", "--barrier", "none", "--steps", 4)
    found, _, said = measured(tmp_path, "backlog", *flags, key="step_ms")
    assert len(found) == 2 * 3 * 2
    links = {f"w{host}" for host in range(backlog.HOSTS + 1)}
    for r in found:
        # The frames of a full packet at least; the server's link carries packets of its jobs only.
        assert set(r["backlog_bytes"]) <= links and max(r["backlog_bytes"].values()) > 1000
        assert len(r["step_ms"]) == r["jobs"]
    by = {(r["jobs"], r["system"], r["pace"]): r for r in found}
    for system in ("ring", "server"):
        assert min(by[1, system, 0.5]["step_ms"]) > min(by[1, system, 0.0]["step_ms"]), "half of the rate takes longer"
    # 256 KiB from each of four ranks to one link, and the sums back.
    assert min(by[1, "server", 0.0]["step_ms"]) > 4 * 256 / 12.5 * 1.024
    assert "|1|ring|" in said
    assert not [line for line in namespaces().splitlines() if line.startswith("netsum-q")]


@soak
@needs_package
@needs_root
def test_peaks(tmp_path):
    found, _, said = measured(tmp_path, "peaks", "--steps", 3, "--period", 4000, key="windows")
    assert len(found) == 1 and found[0]["peak_to_mean"][0] > 60
    assert found[0]["step_bytes"] > 4 * 2 * (256 * 256 + 256), "a DDP step's gradients"
    assert "| 4 | all |" in said
