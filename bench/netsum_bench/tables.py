"""The tables of the documentation, in Markdown: TABLES has for each name a function of the records."""

import statistics

from netsum_bench import loss_bench, rack_report, training_bench
from netsum_bench.rack_report import PEERS, markdown, number, rate_text, size_text


def group(records, *fields):
    found = {}
    for record in records:
        found.setdefault(tuple(record[field] for field in fields), []).append(record)
    return found


def middle(values, form="{:.0f}"):
    values = sorted(values)
    return f"{form} ({form} - {form})".format(statistics.median(values), values[0], values[-1])


def best(cells, rate, workers, size, systems):
    """(time, system) of the fastest of these."""
    return min(
        (
            (cells[rate, workers, size, s]["median"], s)
            for s in systems
            if "median" in cells.get((rate, workers, size, s), {})
        ),
        default=None,
    )


def comparison(cells, rate, workers, size, ours, peers):
    """A row: our time, the fastest peer's, and how many times as fast we are."""
    mine, other = best(cells, rate, workers, size, ours), best(cells, rate, workers, size, peers)
    if not mine or not other:
        return None
    names = [" ".join(rack_report.SYSTEMS[s][:2]) if s in ours else rack_report.SYSTEMS[s][0] for _, s in (mine, other)]
    ratio = other[0] / mine[0]
    verdict = f"**{ratio:.2f} times as fast**" if ratio >= 1 else f"{ratio:.2f} times as fast"
    return [f"{number(mine[0])} ms ({names[0]})", f"{number(other[0])} ms ({names[1]})", verdict]


SWITCH = ("netsum-xdp", "netsum-user")


def headline(records):
    """What one gains, where, and where not: the largest size and 4 KiB at the most workers, against the fastest peer."""
    cells = rack_report.cells(records)
    workers = max((k[1] for k in cells if k[1] <= 8), default=0)
    size = 16 << 20
    rates = sorted({k[0] for k in cells}, key=lambda rate: rack_report.rate_bits(rate) or float("inf"))
    rows = []
    for rate in rates:
        for what, ours, peers, of in (
            ("", SWITCH, PEERS, size),
            (", bf16", ("netsum-user-bfloat16",), ("gloo-bfloat16",), size),
            (", sums on a spare host", ("netsum-spare",), PEERS, size),
            (", no aggregator", ("netsum-shards",), PEERS, size),
            ("", SWITCH, PEERS, 4 << 10),
        ):
            if what and rate != rates[0]:
                continue  # one row is enough to say it
            row = comparison(cells, rate, workers, of, ours, peers)
            if row:
                rows.append([f"{rate_text(rate)}, {size_text(of)}{what}", *row])
    if not rows:
        return "*Nothing to compare yet.*"
    return markdown([f"{workers} workers", "netsum", "fastest peer at its best setting", "netsum is"], rows)


def one_host_headline(records):
    cells = rack_report.cells(records)
    rows = []
    for workers in sorted({k[1] for k in cells}):
        for size in sorted({k[2] for k in cells}, reverse=True):
            row = comparison(cells, "host", workers, size, ("netsum-memory",), PEERS)
            if row:
                rows.append([f"{workers} ranks, {size_text(size)}", *row])
    return markdown(["one host", "netsum", "fastest peer at its best setting", "netsum is"], rows)


def papers(records):
    """In the terms of SwitchML's microbenchmark: the share of the link's greatest goodput, and the ratio to the best ring."""
    cells = rack_report.cells(records)
    rows = []
    for rate in sorted({k[0] for k in cells} - {"none"}, key=rack_report.rate_bits):
        size = max(k[2] for k in cells if k[0] == rate)
        if not rack_report.bounds_ms(rate, 2, size):
            continue
        for system in SWITCH:
            row = [rate_text(rate), size_text(size), rack_report.SYSTEMS[system][0]]
            for workers in (2, 4, 8, 16):
                mine, peer = best(cells, rate, workers, size, [system]), best(cells, rate, workers, size, PEERS)
                share = next(iter(rack_report.bounds_ms(rate, workers, size).values())) / mine[0] if mine else None
                row.append(f"{share:.1%}; {peer[0] / mine[0]:.2f} x" if mine and peer else "")
            rows.append(row)
    return markdown(["links", "size", "netsum", *(f"{n} workers" for n in (2, 4, 8, 16))], rows, 3)


def training(records):
    return training_bench.table(records)


SCENARIOS = {
    "rank-killed": "a rank is killed",
    "rank-stopped": "a rank is stopped (SIGSTOP), silence limit 5 s",
    "rank-stopped-800ms": "the same, `--liveness-timeout 800ms`",
    "rank-stopped-80ms": "the same, `--liveness-timeout 80ms`",
    "rank-cut-off-800ms": "a rank's link goes down, `--liveness-timeout 800ms`",
    "aggregator-killed": "the aggregator is killed",
    "failover-to-another": "failover to another aggregator",
    "failover-restarted": "failover to the same one, restarted at once",
}


def failures(records):
    planes = [p for p in ("user", "xdp") if any(r["dataplane"] == p for r in records)]
    of = group(records, "scenario", "dataplane")
    rows = []
    for scenario, what in SCENARIOS.items():
        row = [what]
        for plane in planes:
            found = of.get((scenario, plane), [])
            times = [r["seconds"] * 1e3 for r in found if "seconds" in r]
            failed = len(found) - len(times)
            row.append((middle(times) if times else "") + (f" {failed} of {len(found)} failed" if failed else ""))
        rows.append(row)
    return markdown(
        ["ms until the last rank knows, or goes on", *({"user": "daemon", "xdp": "XDP"}[p] for p in planes)], rows
    )


def jobs(records):
    rows = []
    by_rate = {rate: group(found, "what") for (rate,), found in group(records, "rate").items()}

    def speeds(record):
        return [record["bytes"] * 8 / job["median_s"] / 1e6 for job in record["jobs"]]

    def jain(values):
        return sum(values) ** 2 / (len(values) * sum(v * v for v in values))

    def row(what, turns, figure):
        rows.append([what, *(figure(of[(turns,)]) if (turns,) in of else "" for of in by_rate.values())])

    row("one job alone, Mbit/s of gradient", "alone", lambda of: middle([v for r in of for v in speeds(r)]))
    row("each of them together, Mbit/s", "together", lambda of: middle([v for r in of for v in speeds(r)]))
    row("Jain's fairness index, lowest round", "together", lambda of: f"{min(jain(speeds(r)) for r in of):.4f}")
    for turns, what in (
        ("wait", "room for half, the others wait: all done after, s"),
        ("hosts", "room for half, the others summed by their hosts: all done after, s"),
    ):
        row(what, turns, lambda of: middle([max(job["seconds"] for job in r["jobs"]) for r in of], "{:.1f}"))
    return markdown(["", *map(rate_text, by_rate)], rows)


def floods(records):
    planes = list(dict.fromkeys((r["dataplane"], r["flood"]) for r in records))
    of = group(records, "arm", "dataplane", "flood")
    rows = [
        [
            arm,
            *(middle([r["sums_per_s"] for r in of[(arm, *plane)]]) if (arm, *plane) in of else "" for plane in planes),
        ]
        for arm in dict.fromkeys(r["arm"] for r in records)
    ]
    name = {"user": "daemon", "xdp": "XDP"}
    return markdown(
        [
            "sums per second",
            *(f"{name[p]}, {f'{n} packets/s' if n else 'all that one thread sends'}" for p, n in planes),
        ],
        rows,
    )


def kernels(records):
    of = group([r for r in records if r["benchmark"] == "kernels"], "case")
    speed = {
        case: statistics.median(r["bytes_per_second"] for r in found) / 1e9
        for (case,), found in of.items()
        if found[0]["bytes_per_second"]
    }
    rows = [
        [
            case.replace("/plain_", " ").replace("/plain", " "),
            f"{speed[case]:.2f}",
            f"{speed.get(case.replace('plain', 'vector'), 0):.1f}",
        ]
        for case in sorted(speed)
        if "/plain" in case
    ]
    rows.append(["memory copy", "", f"{speed['memory_copy']:.1f}"] if "memory_copy" in speed else [])
    return markdown(["GB/s of tensor, one core", "plain", "vectors"], [row for row in rows if row])


def tags(records):
    of = group([r for r in records if r["benchmark"] == "tags"], "case")
    names = {
        "without_tags": "without any check",
        "with_tags": "with tags",
        "aggregator_core": "`AggregatorCore` as it is",
    }
    return markdown(
        ["", "ns of CPU per packet"],
        [[names.get(case, case), middle([r["cpu_ns"] for r in found])] for (case,), found in of.items()],
    )


def xdp(records):
    return markdown(
        ["", "bytes", "ns per packet (middle half)"],
        [
            [r["case"].strip(), r["bytes"], f"{r['ns']} ({r['low_ns']} - {r['high_ns']})"]
            for r in records
            if r["benchmark"] == "xdp"
        ],
    )


def said(records):
    return "```\n$ {}\n{}\n```".format(records[-1]["command"], "\n".join(records[-1]["lines"]).strip())


TABLES = {
    "simulation": said,
    "chaos": said,
    "variants": rack_report.tables,
    "rack": rack_report.tables,
    "rack:links": rack_report.link_table,
    "rack:headline": headline,
    "rack:papers": papers,
    "one-host": rack_report.tables,
    "one-host:headline": one_host_headline,
    "training": training,
    "loss": loss_bench.table,
    "failures": failures,
    "jobs": jobs,
    "floods": floods,
    "micro:kernels": kernels,
    "micro:tags": tags,
    "micro:xdp": xdp,
}
