"""The arithmetic of the tables, from records that were never measured."""

import pytest
from bench_harness import cells, rows_of
from netsum_bench import report
from netsum_bench.cases import CASES
from netsum_bench.labs import backlog, commands, schedules, serving, training, trees
from netsum_bench.runner import turns_of
from netsum_bench.tables import controller, micro, racks
from netsum_bench.tables.columns import (
    FAILURES,
    FLOODS,
    HOOKS,
    JOBS,
    LOSS,
    PREDICT,
    THRESHOLDS,
    VERIFY,
    lies_table,
    training_table,
)

RUN = {}


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
    found = racks.cells(
        [
            record("gloo", [4.0, 1.0], 0),
            record("gloo", [2.0, 3.0], 1, setting="all_reduce"),
            record("gloo", [], 2, failed="why") | {"times_ms": []},
        ]
    )
    cell = found["100mbit", 8, 1 << 20, "gloo"]
    assert (cell["median"], cell["iterations"], cell["up"]) == (2.5, 4, 2) and cell["settings"] == ["all_reduce"]


def test_distributions_are_of_all_turns_of_a_size():
    turns = [record("gloo", [float(100 * n + i) for i in range(100)], n, bytes=4096) for n in range(3)]
    (row,) = rows_of(racks.distributions([*turns, record("gloo", [], 3, bytes=4096, failed="why")]))
    assert list(row.values())[2:] == ["0.000", "30.000", "150.000", "270.000", "297.000", "49.500 - 249.500", "3"]
    small = [case for case in CASES.values() if case.name.startswith("small")]
    assert small and all(len(case.axes["round"]) >= 15 and max(case.axes["bytes"]) == 64 << 10 for case in small)


def test_processor_time_is_beside_gloos_where_no_link_limits_a_sum():
    def turns(system, *spent, **more):
        of = {"rate": "none", "bytes": 16 << 20, **more}
        return [record(system, [1.0], n, **{**of, "cpu_ms": ms}) for n, ms in enumerate(spent)]

    found = [
        *turns("netsum-user", 270.0, 250.0, 300.0, ranks_cpu_ms=134.2, daemon_cpu_ms=67.1, setting="1 engine thread"),
        *turns("netsum-mix", 540.0, setting="2 engine threads"),
        *turns("gloo", 135.0, setting="all_reduce"),
        *turns("openmpi", 200.0, setting="default"),
        *turns("openmpi", 100.0, wrong=1),
        *turns("gloo", None, workers=2),
        *turns("netsum-user", 1.0, bytes=1 << 20),
        *turns("netsum-user", 1.0, rate="1gbit"),
        *turns("netsum-user", 40.0, workers=4, ranks_cpu_ms=20.13),
        *turns("gloo-bfloat16", 1.0),
        record("gloo", [], 3, rate="none", cpu_ms=None, failed="why"),
    ]
    heading, _, daemon, mix, gloo, openmpi = racks.processor(found).splitlines()
    assert heading == "|16 MiB|8 ranks, ms|to Gloo|Gbit/s|4 ranks, ms|to Gloo|Gbit/s|rank, s/GB|daemon, s/GB|"
    # 8 tensors of 2^27 bits in 0.27 s, 4 of them in 0.04 s
    assert daemon == "|netsum, daemon, in the switch|270 (250-300)|2.00|3.98|40.0 (40.0-40.0)||13.42|1.00, 0.30|0.50|"
    assert mix.startswith("|netsum, daemon, on a spare host and in the workers (2 engine threads)|540")
    assert gloo == "|Gloo|135 (135-135)|1.00|7.95||||||" and openmpi.startswith(
        "|Open MPI (default)|200 (200-200)|1.48|"
    )
    assert racks.processor([]) == report.NOTHING


def test_the_table_has_bounds_settings_failures_and_what_is_fastest():
    found = [
        record("netsum-user", [100.0] * 7),
        record("gloo", [80.0] * 7, setting="all_reduce"),
        record("netsum-user-bfloat16", [50.0] * 7),
        {k: v for k, v in record("openmpi", [], failed="line\nno end after 300 s").items() if k != "times_ms"},
    ]
    text = racks.tables(found)
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
    switch, spare = racks.headline(found).splitlines()[2:]
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
    headline = racks.headline(found)
    assert f"{ratio} times as fast" in headline and ("**" in headline) == is_bold
    on_host = racks.one_host_headline(
        [record("netsum-memory", ours, rate="host"), record("openmpi-memory", peers, rate="host")]
    )
    assert f"{ratio} times as fast" in on_host and ("**" in on_host) == is_bold
    collective = racks.collectives([{**one, "collective": "broadcast"} for one in found])
    assert f"{ratio} x" in collective and ("**" in collective) == is_bold


def test_the_best_of_a_table_is_bold_only_where_it_is_below_all_others():
    def bold(**times):
        found = [record(system.replace("_", "-"), of, rate="host") for system, of in times.items()]
        return [line.split("|")[1].strip() for line in racks.tables(found).splitlines() if "**" in line]

    assert bold(gloo=NOISY, netsum_user=CLEAR) == ["netsum, daemon"]
    assert bold(gloo=NOISY, netsum_user=[9.0, 9.9, 10.0]) == []
    assert bold(gloo=NOISY, netsum_user=CLEAR, netsum_shards=[5.0, 5.1, 5.2]) == []


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
    spare, unequal = racks.shares(found).splitlines()[2:]
    assert "| 1 spare host |" in spare and "| +100% |" in spare and "| +10, +0.1% | 2500 |" in spare
    assert float(spare.split("|")[3]) == pytest.approx(128 * 16.777216 * frame, rel=0.001)
    assert "not measured" in unequal and "5000" in unequal and "2500" not in unequal


def test_a_limit_that_no_link_carries_is_compared_only_if_it_was_counted():
    """A switch has no link: what it sums is counted at its bridge if that is shaped."""
    plan = {"loads": {"w0, in": 1.5, "sw, sums": 0.5}}
    size = 16 << 20
    units = size * 1514 / 1440
    beyond = lambda **carried: racks.beyond_program([{"link_bytes": carried}], plan, size)
    assert beyond(**{"w0, in": round(1.5 * units) + 10 * 1514}) == "+10, +0.1%"
    assert beyond(**{"w0, in": round(1.5 * units), "sw, sums": round(0.5 * units) + 20 * 1514}) == "+20, +0.3%"
    assert racks.beyond_program([], plan, size) == ""


def test_only_a_clear_winner_is_bold():
    def table(netsum, gloo):
        return racks.by_system([record("netsum-user", netsum), record("gloo", gloo)], counts=(8,))

    assert "**10.0 [10.0 - 10.0]**" in table([10.0] * 7, [20.0] * 7)
    assert "**" not in table([10.0] * 5 + [30.0] * 2, [20.0] * 7), "the ranges overlap"


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
    broadcast, gather = racks.collectives(found).splitlines()[2:]
    # 16 MiB in frames of 1514 bytes with 1440 of them, at 100 Mbit/s: 1411 ms
    assert broadcast.startswith("| broadcast, 16 MiB, 8 workers, links of 100 Mbit/s | 1480 | 1600 |")
    assert "| 2960 (yield, pipeline/65536) | 1411 (95%) | **2.00 x** |" in broadcast
    assert "| failed | 740 | 1235 (83%) | 0.50 x |" in gather, "a wrong result is no figure"


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
    none, one, five = LOSS(found).splitlines()[2:]
    assert none == "| 0 % | Gloo | 2000 [1200 - 3600] | 1.000 [1.000 - 1.000] | 30 (1.000%) | 0 | 0 |"
    assert one == "| 1 % | Gloo | 8000 [3200 - 8000] | 0.500 [0.250 - 0.500] | 30 (1.000%) | 0 | 0 |"
    assert five == "| 5 % | Gloo |  |  |  |  | 1 |"


def test_failures_that_were_not_measured_are_counted():
    found = [{"scenario": "rank-killed", "dataplane": "user", "seconds": s} for s in (0.01, 0.02, 0.03)]
    found += [{"scenario": "rank-stopped", "dataplane": plane, "failed": "no end"} for plane in ("xdp", "user")]
    found += [{"scenario": "rank-killed", "dataplane": "xdp", "seconds": 0.5}, found[-1]]
    heading, _, killed, stopped = FAILURES(found).splitlines()
    assert heading.endswith("| daemon | XDP |")
    assert killed == "| a rank is killed | 20 (10 - 30) | 500 (500 - 500) |"
    assert stopped.endswith("| 2 of 2 failed | 1 of 1 failed |")


def test_jobs_are_compared_by_rates():
    def of(what, number, rate, *jobs):
        named = [{"median_s": median, "seconds": seconds} for median, seconds in jobs]
        return {"rate": rate, "what": what, "round": number, "bytes": 10**6, "jobs": named}

    found = [
        of("alone", 0, "100mbit", (0.1, 1.0)),
        of("together", 0, "100mbit", (0.2, 2.0), (0.2, 2.1)),
        of("together", 1, "100mbit", (0.2, 2.0), (0.4, 2.1)),
        of("wait", 0, "100mbit", (0.1, 2.0), (0.1, 4.0)),
        of("alone", 0, "none", (0.01, 1.0)),
    ]
    headings, _, alone, together, fairness, wait, hosts = map(cells, JOBS(found).splitlines())
    assert headings[1:] == ["links of 100 Mbit/s", "unshaped links"]
    assert alone[1:] == ["80 (80 - 80)", "800 (800 - 800)"] and together[1:] == ["40 (20 - 40)", ""]
    assert fairness[1] == "0.9000" and wait[1] == "4.0 (4.0 - 4.0)" and hosts[1] == ""


def test_floods_are_beside_each_other():
    found = [
        {"dataplane": plane, "flood": flood, "arm": arm, "round": number, "sums_per_s": rate + number}
        for plane, flood, rate in (("user", 300000, 100.0), ("xdp", 0, 10.0))
        for number in (0, 1, 2)
        for arm in ("to nobody", "no flood")
    ]
    none, nobody = rows_of(FLOODS(found))
    assert none["sums per second"] == "no flood" and nobody["daemon, 300000 packets/s"] == "101 (100 - 102)"
    assert none["XDP, all that one thread sends"] == "11 (10 - 12)"


def trained(system, median_ms, **more):
    model = more.get("model", "digits")
    sharded = training.is_sharded(system)
    return {
        "system": system,
        "model": model,
        "place": "rack",
        "workers": 4,
        "rate": "100mbit",
        "losses": [2.0, 1.0] * 5,
        "step_ms": {"median": median_ms, "low": median_ms - 1, "high": median_ms + 1},
        "held_out_loss": 0.5,
        "allreduce_ms": {"median": median_ms / 2, "low": 0, "high": 0},
        "accuracy_percent": 90.0,
        "sent_per_gradient_byte": None if sharded else 1.05,
        **more,
    }


def test_training_rows_are_medians_and_ratios():
    found = [
        trained(*of) for of in (("gloo", 30), ("netsum-xdp", 10), ("gloo", 40), ("netsum-xdp", 20), ("netsum-xdp", 30))
    ]
    gloo, ours = training.training_rows(found)
    assert (gloo["step_ms"], gloo["low_ms"], gloo["high_ms"]) == (35, 29, 41)
    assert ours["speed_up"] == pytest.approx(1.75) and ours["allreduce_ms"] == 10 and gloo["speed_up"] == 1
    assert gloo["agrees"] and ours["agrees"] and not training.disagreements(found)
    assert "| digits | 4 | 100mbit | netsum-xdp | 20.0 | 9.0 - 31.0 | 1.75 |" in training_table(found)


@pytest.mark.parametrize(
    ("field", "value"), [("losses", [3.0, 2.0] * 5), ("held_out_loss", 0.6), ("accuracy_percent", 88)]
)
def test_trainings_that_differ_are_told(field, value):
    found = [trained("gloo", 30), trained("netsum-xdp", 10, **{field: value})]
    assert [row["agrees"] for row in training.training_rows(found)] == [True, False]
    assert "| NO |" in training_table(found) and training.disagreements(found) == ["netsum-xdp does not agree"]


def test_each_training_is_compared_with_the_first_of_its_kind():
    times = {"gloo": 300.0, "netsum-xdp": 200.0, "gloo-fsdp": 500.0, "netsum-user-fsdp-overlap": 250.0}
    found = [trained(system, ms, model="lm") for system, ms in times.items()]
    rows = {row["system"]: row for row in training.training_rows(found)}
    assert rows["netsum-xdp"]["speed_up"] == pytest.approx(1.5)
    assert rows["gloo-fsdp"]["speed_up"] == 1 and rows["netsum-user-fsdp-overlap"]["speed_up"] == pytest.approx(2)
    last = rows_of(training_table(found))[-1]
    assert last["system"] == "netsum-user-fsdp-overlap" and last["sent B/B"] == "", "of two groups, one is counted"


def report_of(cpu, packets, aggregator):
    rank = {"packets_sent": packets, "packets_received": packets, "cpu_seconds": cpu, "retransmissions": 3}
    times = {"results_wrong": 0, "time_us": {"median": 2500}}
    return {"ranks": [rank, rank], "aggregator_cpu_seconds": aggregator, **times}


def test_a_verified_sum_counts_the_warm_up_of_the_aggregator_alone():
    found = commands.verified(report_of(0.5, 1000, 0.06), iterations=5)
    assert found["ranks_cpu_ms"] == 200 and found["packets"] == 800
    assert round(found["aggregator_ns"]) == 12500  # 4000 packets timed, 800 of the warm-up
    assert (found["time_ms"], found["wrong"], found["resent"]) == (2.5, 0, 1.2)


def test_the_cost_of_verified_sums_is_that_of_the_same_round():
    def of(mode, number, ranks_cpu, aggregator):
        place = {"workers": 8, "bytes": 16 << 20, "mode": mode, "round": number}
        return {**place, "ranks_cpu_ms": ranks_cpu, "aggregator_ns": aggregator, "packets": 100, "time_ms": 50}

    found = [of("packet", n, 100.0 * (n + 1), 1000.0) for n in range(3)]
    found += [of("sum", n, 110.0 * (n + 1), 800.0) for n in range(3)]
    found += [{"workers": 8, "bytes": 16 << 20, "mode": "both", "round": 0, "failed": "no end"}]
    packet, by_sum = VERIFY(found).splitlines()[2:]
    assert packet.startswith("| 8 ranks, 16 MiB, `packet` | 200 (100 - 300) |  | 1000 ")
    assert "| 220 (110 - 330) | +10 (+10 - +10) % | 800 (800 - 800) | -20 (-20 - -20) % |" in by_sum


def test_predicted_scales_are_compared_with_the_same_round():
    def of(data, predict, number, time_us, cpu_ms):
        place = {"workers": 4, "bytes": 64 << 10, "data": data, "predict": predict, "round": number}
        return {**place, "time_us": time_us, "cpu_ms": cpu_ms, "predicted": 46.0, "mispredicted": 1.0}

    found = [of("steady", False, n, 1000.0 * (n + 1), 10.0) for n in range(3)]
    found += [of("steady", True, n, 800.0 * (n + 1), 11.0) for n in range(3)]
    found += [of("normal", True, 0, 500.0, 1.0)]  # alone: nothing to compare with
    (row,) = PREDICT(found).splitlines()[2:]
    assert row.startswith("| 4 ranks, 64 KiB, steady | 46.0, 1.00 | 2 (1 - 3) | 1.6 (0.8 - 2.4) |")
    assert row.endswith("| -20 (-20 - -20) % | +10 (+10 - +10) % |")


def test_both_hooks_are_beside_each_other():
    def of(load, method, hook, step_ms):
        return {"workers": 4, "load": load, "method": method, "hook": hook, "step_ms": step_ms}

    found = [
        of("quiet", "bf16", "Python", [30.0] * 8 + [300.0] * 2),
        of("quiet", "bf16", "C++", [20.0] * 10),
        of("busy", "bf16", "Python", [100.0] * 10),
        of("busy", "bf16", "C++", [40.0] * 10),
        of("busy", "int8", "C++", [40.0] * 10),  # the other hook has failed
        {"workers": 4, "failed": "it hung"},
    ]
    assert list(map(cells, HOOKS(found).splitlines()[2:])) == [
        ["nothing", "bf16", "30.0 (30.0 - 300)", "20.0 (20.0 - 20.0)", "1.50"],
        ["Python", "bf16", "100 (100 - 100)", "40.0 (40.0 - 40.0)", "2.50"],
    ]
    assert HOOKS(found[-1:]) == report.NOTHING


def test_thresholds_are_listed_by_model_and_share():
    quantiles = {"least": 0.5, "low": 0.9, "median": 1.0, "high": 1.1, "most": 2.0, "near": 0.75}
    found = [{"model": "lm", "ratio": ratio, "method": "topk", **quantiles} for ratio in (0.001, 0.1)]
    first, second = THRESHOLDS(found).splitlines()[2:]
    assert first == "| lm | 10 % | topk | 1.000 | 0.90 - 1.10 | 0.50 - 2.00 | 75.0 % |" and "| 0.1 % |" in second


def test_counts_of_lies_are_added_by_name():
    one = {"told": {"zeros": 1, "noise": 2}, "runs": 10}
    assert commands.add({}, one) == one
    assert commands.add(one, one) == {"told": {"zeros": 2, "noise": 4}, "runs": 20}


def test_lies_are_counted_in_the_last_record():
    names = ("sums_verified", "false_sent", "flipped_in_ranks", "wrong_delivered", "false_alarms", "runs_without")
    last = {"runs": 3000, "told": {"zeros": 7, "noise": 2}, "refused": 4, "scales_taken": 1, **dict.fromkeys(names, 0)}
    last |= {"runs_reached": 5, "runs_ended": 1, "runs_unbalanced": 0}
    lines = lies_table([{**last, "runs": 1}, last, {"failed": "stopped"}]).splitlines()
    assert {"| runs | 3,000 |", "| lies told, all kinds | 9 |", "| - zeros | 7 |", "| - with an alarm | 4 |"} <= set(
        lines
    )


CONTROLLED = [
    {"system": system, "phase": phase, "rate": rate, "workers": 4, "step_ms": step_ms}
    for phase, rate, system, step_ms in (
        (0, "1gbit", "none", [10.0] * 30),
        (0, "1gbit", "topk 1 %", [15.0] * 30),
        (0, "1gbit", "auto", [10.0] * 30),
        (1, "100mbit", "none", [100.0] * 30),
        (1, "100mbit", "topk 1 %", [20.0] * 30),
        (1, "100mbit", "auto", [100.0] * 3 + [20.0] * 27),
    )
]


def test_the_best_level_of_each_phase_is_that_of_hindsight():
    of_two = [{**found, "workers": 2} for found in CONTROLLED[:3]]
    two, four = controller.table([*CONTROLLED, {"system": "int8", "failed": "it hung"}, *of_two]).split("#### ")[1:]
    assert two.startswith("2 workers") and "100 Mbit/s" not in two
    rows = [cells(line) for line in four.splitlines() if line.startswith("|")]
    assert rows[2][4:] == ["none", "1.00", "1.00"]
    assert rows[3][4:] == ["topk 1 %", "1.40", "0.20"]
    # 300 + 840 ms, where 300 + 600 are possible.
    assert rows[4][0] == "all phases" and rows[4][5] == "1.27"
    [plot] = controller.plots(CONTROLLED)
    assert "topk 1 %" in plot and "100mbit" in plot


def test_microbenchmarks_have_a_table_each():
    found = [
        {"benchmark": "tags", "case": "with_tags", "cpu_ns": 200.0, "bytes_per_second": None},
        {"benchmark": "kernels", "case": "scan/plain/4", "cpu_ns": 1.0, "bytes_per_second": 1e9},
        {"benchmark": "kernels", "case": "scan/vector/4", "cpu_ns": 1.0, "bytes_per_second": 8e9},
        {"benchmark": "xdp", "case": "sum ", "bytes": 1400, "ns": 300, "low_ns": 290, "high_ns": 310},
    ]
    assert "| with tags | 200 (200 - 200) |" in micro.TABLES["tags"](found)
    assert "| scan /4 | 1.00 | 8.0 |" in micro.TABLES["kernels"](found)
    assert "| sum | 1400 | 300 (290 - 310) |" in micro.TABLES["xdp"](found)
    assert micro.TABLES["planner"](found) == report.NOTHING
    found = [
        {"benchmark": "metering", "case": "meters", "bytes_per_second": 1e9, "more_time": x} for x in (0.002, 0.004)
    ]
    assert "| 1.00 (1.00 - 1.00) | +0.30 (+0.20 - +0.40) |" in micro.TABLES["metering"](found)


def test_requests_of_a_server_have_times_and_bytes():
    def of(number, system, p50_ms, one_by_one, pipelined, **more):
        rates = {"one_by_one_per_s": one_by_one, "pipelined_per_s": pipelined}
        sizes = {"input_bytes": 256, "score_bytes": 40}
        return {
            "network": "rack",
            "system": system,
            "round": number,
            "p50_ms": p50_ms,
            "p99_ms": 9.0,
            **rates,
            **sizes,
            **more,
        }

    settings = {"settings": {"one by one": "messages, 2 threads", "pipelined": "collectives, 8 threads"}}
    found = [
        of(0, "gloo", 5.0, 100.0, 200.0, **settings),
        of(0, "netsum", 2.0, 200.0, 300.0, bytes_out=404.0, packets_out=2.0, bytes_in=114.0, packets_in=1.0),
        of(1, "netsum", 4.0, 100.0, 400.0),
    ]
    netsum, gloo = map(cells, serving.TIMES(found).splitlines()[2:])
    assert netsum == [
        "100 Mbit/s",
        "netsum, daemon in the switch",
        "3.00 (2.00 - 4.00)",
        "9.0 (9.0 - 9.0)",
        *netsum[4:],
    ]
    assert netsum[4:] == ["350 (300 - 400)", "2.75 (1.50 - 4.00)", ""]
    assert gloo[6] == "one by one: messages, 2 threads; pipelined: collectives, 8 threads"
    out, back = map(cells, serving.bytes_table(found).splitlines()[2:])
    assert out[1:] == ["out", "256", "404", "256", "148", "2.0"]
    assert back[1:] == ["in", "40", "114", "40", "74", "1.0"]


@pytest.mark.parametrize("name", list(CASES))
def test_a_run_in_which_all_failed_has_tables(name):
    case = CASES[name]
    turn = {field: values[0] for field, values in case.axes.items() if field not in case.joint}
    for records in ([{**turn, "failed": "it hung", "run": {}}], [{"left_out": [turn], "run": {}}]):
        for table in case.tables.values():
            assert isinstance(table(records), str)
        assert all(isinstance(plot, str) for plot in (case.plots(records) if case.plots else []))


def of_schedule(system, batch_ms, predicted=None, **more):
    one = {"workers": 2, "model": "layers", "percent": 100, "round": 0, "system": system, "batch_ms": [batch_ms]}
    of = {"predicted": predicted, "rate": "80mbit", "network_share": 1.02, "trained": 12, "losses": [7, 8], "loss": 0.5}
    return {**one, **of, **more, "run": RUN}


def test_schedules_are_compared_with_ddp_of_the_same_round():
    found = [
        of_schedule("netsum DDP", 40.0, 1.0),
        of_schedule("netsum DDP", 60.0, 1.0, round=1),
        of_schedule("netsum delayed", 20.0, 1.333),
        of_schedule("netsum delayed", 60.0, 1.333, round=1),
        of_schedule("netsum delayed", 1.0, 1.333, round=2),  # without DDP in its round
        of_schedule("gloo overlapped", 50.0),  # without DDP beside it
        of_schedule("netsum DDP", 20.0, 1.0, percent=25),
        of_schedule("netsum delayed", 16.0, 1.0, percent=25),
        of_schedule("netsum DDP", 200.0, 1.0, model="language"),
        of_schedule("netsum overlapped", 160.0, model="language"),
        {"workers": 2, "percent": 50, "system": "gloo DDP", "failed": "it hung"},
    ]
    assert list(map(cells, schedules.table(found).splitlines()[2:])) == [
        ["1.02", "netsum/80", "20.0±0.00", "", "1.25±0.00/1.00", "", "", ""],
        ["1.02", "netsum/80", "50.0±10.0", "", "1.50±0.50/1.33", "", "", ""],
        ["1.02, language", "netsum/80", "200±0.00", "", "", "1.25±0.00", "", ""],
        ["all", "", "", "", "1.25-1.50", "1.25-1.25", "", ""],
    ]
    equal = [of_schedule(f"netsum {name}", 40.0, loss=0.5 + i / 16) for i, name in enumerate(schedules.SCHEDULES)]
    losses = ["0.5000", "0.5625", "0.6250", "0.6875", "0.7500", "0.8125"]
    assert cells(schedules.table(equal).splitlines()[-1]) == ["loss after 12", "", *losses]


def test_schedules_have_the_losses_of_ddp_where_they_promise_it():
    same = [of_schedule(f"netsum {name}", 40.0) for name in ("DDP", "overlapped", "prioritised")]
    later = [{**one, "round": 1, "trained": 24, "losses": [9, 10]} for one in same]
    others = [of_schedule("netsum waves", 40.0, losses=[1, 2])]
    assert schedules.differing_losses(same + later + others) == []
    wrong = {**later[1], "losses": [9, 11]}
    said = "netsum overlapped, layers, 100 %: after 24 batches the losses are not those of DDP"
    assert schedules.differing_losses([*same, later[0], wrong]) == [said]
    alone = schedules.differing_losses([same[1], {**same[0], "trained": 10}, {**same[0], "run": {}}])
    assert alone == ["netsum overlapped, layers, 100 %: no losses of DDP to compare with"]
    by_gloo = [{**one, "workers": 3, "system": one["system"].replace("netsum", "gloo"), "losses": [1]} for one in same]
    assert schedules.differing_losses([{**by_gloo[0], "losses": [2]}, *by_gloo[1:]]) == []
    assert schedules.differing_losses([{**by_gloo[0], "workers": 2, "losses": [2]}, {**by_gloo[1], "workers": 2}]) != []


def test_the_language_model_is_trained_without_barrier_and_with_it_only():
    case = CASES["schedules"]
    turns = [turn for turn in turns_of(case, case.axes) if turn["model"] == "language"]
    assert {(turn["percent"], turn["system"]) for turn in turns} == {(100, s) for s in schedules.OF_LANGUAGE}
    with pytest.raises(ValueError, match="5 batches; accumulation needs an even number"):
        turns_of(case, {**case.axes, "steps": [5]})


def test_trees_are_compared_with_the_time_of_their_plan():
    place = {"fabric": "racks", "mtu": 1500, "bytes": 1_000_000}
    plan = {**place, "workers": 8, "rate": "100mbit", "trees": 3}
    found = [
        {**plan, "plan": {"time": 160, "bound": 160, "ring": 280}},
        record("netsum-trees", [168.0] * 7, **place),
        record("gloo", [300.0] * 7, **place),
        record("gloo", [1.0] * 7, **{**place, "fabric": "cube"}),
        {**plan, "mtu": 9000, "plan": {"time": 160, "bound": 160, "ring": 280}},
    ]
    rows = list(map(cells, trees.table(found).splitlines()[2:]))
    links = trees.FABRICS["racks"][0]
    assert [row[1:] for row in rows] == [
        [links, "160", "280", "168 [168 - 168]", "1.050", "300 [300 - 300]", ""],
        [links, "160", "280", "failed", "", "", ""],
    ]


def test_links_of_fabrics_follow_the_rate():
    assert trees.racks_of(8, 50_000).count("rate: 50000k") == 2 and "rate: 25000k" in trees.racks_of(8, 50_000)
    assert trees.cube_of(8, 50_000).count("rate: 50000k") == 12
    for wrong in ({"workers": 6, "fabric": "cube"}, {"workers": 5}, {"workers": 2}, {"rate": "none"}):
        with pytest.raises(ValueError, match=r"workers|rate"):
            trees.that_can_be_linked({"workers": 8, "fabric": "racks", "rate": "1gbit", **wrong})


def test_backlogs():
    def turn(pace, ms, needs, **more):
        needs = {f"w{host}": 1000 * kb for host, kb in enumerate(needs)}
        barrier = {"jobs": 1, "system": "ring", "barrier": "none", "pace": pace}
        return {**barrier, "step_ms": ms, "backlog_bytes": needs, **more}

    found = [
        turn(0.0, [40.4], [1, 66, 3]),
        turn(0.5, [80.0], [24.04, 2]),
        turn(0.0, [50, 60], [7, 8], jobs=2, barrier="barrier"),
        {"jobs": 2, "system": "server", "barrier": "none", "pace": 0.0, "failed": "why"},
    ]
    assert backlog.table(found).splitlines() == [
        "|jobs||unpaced|0.5R|",
        "|--|--|--:|--:|",
        "|1|ring|40/66.0|80/24.0|",
        "|2|ring, barrier|55/8.00||",
    ]
    assert [backlog.share_of(system) for system in backlog.SYSTEMS] == [1, 1, 0.25]
    # In the rings of three jobs, one host receives from all others.
    before = [{order[i]: order[i - 1] for i in range(len(order))} for order in backlog.ORDERS]
    assert len({of[2] for of in before}) == 3 and all(sorted(of) == [0, 1, 2, 3] for of in before)
    assert all(order[0] == 0 for order in backlog.ORDERS), "where the ranks meet"


def test_peaks_of_a_training():
    # Bursts of 100 kB every 100 ms: 64 KiB at once, and the rest at 12.5 bytes a microsecond.
    times = [100_000, 1_000_000, 2_000_000, 10_000_000, 100_000_000, 200_000_000]
    envelope = [66_786, 78_036 * 1.1, 90_536, 100_000, 100_000, 200_000]
    windows = [
        {"tau_ns": tau, "bytes": most, "peak_to_mean": most / (tau * 1e-9 * 10**6)}
        for tau, most in zip(times, envelope, strict=True)
    ]
    one = {"rate": "100mbit", "period": 100, "step_bytes": 100_000, "mean_bytes_per_s": 10**6, "windows": windows}
    assert [list(row.values()) for row in rows_of(backlog.peaks_table([one, {"failed": "why"}]))] == [
        ["0.1", "100", "1.00", "1.00", "+0.0 %"],
        ["0.1", "all", "", "", "+0.0 to +10.0 %"],
    ]


def test_what_meters_cost():
    speeds = {"threads/1/real_time": [2e9, 2.2e9, 1e9], "threads/2/real_time": [4e9], "meters/real_time": [1.99e9]}
    found = [{"case": case, "bytes_per_second": speed} for case, of in speeds.items() for speed in of]
    rows = {row["engine threads"]: row["times one thread"] for row in rows_of(micro.engine(found))}
    assert rows == {"1": "1.000", "1, packets metered twice": "0.995", "2": "2.000"}
