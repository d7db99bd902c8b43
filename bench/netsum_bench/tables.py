"""The tables of the documentation, in Markdown: TABLES has for each name a function of the records."""

import functools

import pandas
from pandas import Categorical, DataFrame, Series, json_normalize

from netsum_bench import (
    collectives_bench,
    compression_report,
    controller_report,
    hooks_bench,
    lies_bench,
    loss_bench,
    predict_bench,
    profile,
    rack_report,
    shares_bench,
    sparse_report,
    training_bench,
    verify_bench,
)
from netsum_bench.figures import jain, markdown, number, pivot, range_text, verdict
from netsum_bench.rack_report import PEERS, rate_text, size_text


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
    of = [cells[rate, workers, size, system] for _, system in (mine, other)]
    said = verdict(other[0] / mine[0], *of, " times as fast")
    return [f"{number(mine[0])} ms ({names[0]})", f"{number(other[0])} ms ({names[1]})", said]


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
            (", a spare host and shards", ("netsum-mix",), PEERS, size),
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


def by_system(records, counts=(4, 8)):
    """Every system at every rate and size, for these numbers of workers: rows are systems. Fastest float32 in bold, where
    its 10 to 90 % range is below all others'."""
    cells = rack_report.cells(records)
    places = sorted(
        {key[:3] for key in cells if key[1] in counts},
        key=lambda key: (rack_report.rate_bits(key[0]) or float("inf"), key[1], -key[2]),
    )
    systems = [system for system in rack_report.SYSTEMS if any((*place, system) in cells for place in places)]
    winners = {place: rack_report.clear_winner(cells, place, systems) for place in places}
    rows = []
    for place in places:
        row = [size_text(place[2]), str(place[1]), "" if place[0] == "host" else rate_text(place[0])]
        for system in systems:
            cell = cells.get((*place, system))
            row.append("" if cell is None else rack_report.time_text(cell, system == winners[place]))
        rows.append(row)
    names = [", ".join((rack_report.SYSTEMS[s][0], rack_report.place_of(s, places[0][0]))) for s in systems]
    return markdown(["ms", "ranks", "links", *names], rows, 3)


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


def side_by_side(records, systems):
    """Of each place and size that all systems have measured: its name, and the medians of the systems."""
    cells = rack_report.cells(records)
    for rate, workers, size in sorted({key[:3] for key in cells}, key=lambda key: key[2]):
        times = [(best(cells, rate, workers, size, [system]) or (None,))[0] for system in systems]
        if None not in times:
            yield f"{workers} ranks, {rate_text(rate)}, {size_text(size)}", times


def mpi(records):
    """MPI_Allreduce by the component, beside the C++ API and Open MPI's own."""
    rows = [
        [place, *map(number, times), f"{times[1] / times[0]:.2f}", f"{times[2] / times[1]:.2f}"]
        for place, times in side_by_side(records, ("netsum-user", "netsum-mpi", "openmpi"))
    ]
    headings = [
        "ms",
        "`netsum bench` (C++)",
        "`MPI_Allreduce`, component",
        "`MPI_Allreduce`, Open MPI's best setting",
        "component / C++",
        "Open MPI / component",
    ]
    return markdown(headings, rows)


def nccl(records):
    """An all-reduce through the CollNet table, beside the C++ API."""
    rows = [
        [place, *map(number, times), f"{times[1] / times[0]:.2f}"]
        for place, times in side_by_side(records, ("netsum-user", "netsum-nccl"))
    ]
    return markdown(["ms", "`netsum bench` (C++)", "CollNet table, harness", "CollNet / C++"], rows)


def lanes8(records):
    """float32 in 8-bit lanes, beside 32-bit ones and the fastest peer."""
    cells = rack_report.cells(records)
    rows = []
    for rate, workers, size in sorted({key[:3] for key in cells}, key=lambda key: key[2]):
        for dataplane in ("netsum-xdp", "netsum-user"):
            wide, narrow, peer = (
                best(cells, rate, workers, size, systems) for systems in ([dataplane], [f"{dataplane}-lanes8"], PEERS)
            )
            if not (wide and narrow and peer):
                continue
            where = f"{rack_report.SYSTEMS[dataplane][0]}, {workers} workers, {rate_text(rate)}, {size_text(size)}"
            times = map(number, (wide[0], narrow[0], peer[0]))
            rows.append([where, *times, f"{wide[0] / narrow[0]:.2f}", f"{peer[0] / narrow[0]:.2f}"])
    headings = ["ms", "32-bit lanes", "8-bit lanes", "fastest peer", "32-bit / 8-bit", "peer / 8-bit"]
    return markdown(headings, rows) if rows else "*Nothing to compare yet.*"


def compressed(records):
    """What compression gains over float32, and over the fastest peer without compression."""
    cells = rack_report.cells(records)
    rows, notes = [], ""
    for rate, workers, size in sorted({key[:3] for key in cells}, reverse=True):
        notes += rack_report.notes(cells, rate, size, [workers])
        plain, peer = (best(cells, rate, workers, size, systems) for systems in (["netsum-user"], PEERS))
        for system, (name, *_) in rack_report.SYSTEMS.items():
            cell = cells.get((rate, workers, size, system), {})
            if "median" not in cell:
                continue
            ratios = [f"{other[0] / cell['median']:.2f}" if other else "" for other in (plain, peer)]
            place = f"{workers} workers, {rate_text(rate)}, {size_text(size)}"
            rows.append(
                [place, name, rack_report.time_text(cell, False), f"{cell['up']:.3f}", f"{cell['down']:.3f}", *ratios]
            )
    headings = ["", "system", "ms", "sent B/B", "received B/B", "netsum float32 / this", "fastest peer / this"]
    return markdown(headings, rows, 2) + "\n" + notes if rows else "*Nothing to compare yet.*"


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


DATAPLANES = {"user": "daemon", "xdp": "XDP"}


def failures(records):
    frame = DataFrame(records)
    frame["value"] = frame.get("seconds", Series(dtype=float)) * 1e3
    frame["scenario"] = Categorical(frame["scenario"], list(SCENARIOS))
    frame["dataplane"] = Categorical(frame["dataplane"], list(DATAPLANES))

    def text(times):
        failed = int(times.isna().sum())
        said = [range_text(times)] if failed < len(times) else []
        return " ".join([*said, *([f"{failed} of {len(times)} failed"] if failed else [])])

    planes, rows = pivot(frame.sort_values(["scenario", "dataplane"]), "scenario", "dataplane", text)
    headings = ["ms until the last rank knows, or goes on", *(DATAPLANES[plane] for plane in planes)]
    return markdown(headings, [[SCENARIOS[scenario], *cells] for scenario, *cells in rows])


def jobs(records):
    frame = json_normalize(records, "jobs", ["rate", "what", "round", "bytes"])
    speed = frame["bytes"].astype(float) * 8 / frame["median_s"] / 1e6
    keys = [frame["rate"], frame["what"]]
    fairness = speed.groupby([*keys, frame["round"]]).agg(jain)
    last = frame["seconds"].groupby([*keys, frame["round"]]).max()
    speed.index = pandas.MultiIndex.from_arrays(keys)
    seconds = functools.partial(range_text, form="{:.1f}")
    rows = [
        ("one job alone, Mbit/s of gradient", "alone", speed, range_text),
        ("each of them together, Mbit/s", "together", speed, range_text),
        ("Jain's fairness index, lowest round", "together", fairness, lambda of: f"{of.min():.4f}"),
        ("room for half, the others wait: all done after, s", "wait", last, seconds),
        ("room for half, the others summed by their hosts: all done after, s", "hosts", last, seconds),
    ]
    rates = list(frame["rate"].unique())
    found = []
    for title, what, values, text in rows:
        cells = values.groupby(["rate", "what"]).agg(text)
        found.append([title, *(cells.get((rate, what), "") for rate in rates)])
    return markdown(["", *map(rate_text, rates)], found)


def floods(records):
    frame = DataFrame(records)
    frame["value"] = frame["sums_per_s"]
    frame["plane"] = [
        f"{DATAPLANES[plane]}, {f'{flood} packets/s' if flood else 'all that one thread sends'}"
        for plane, flood in zip(frame["dataplane"], frame["flood"], strict=True)
    ]
    planes, rows = pivot(frame, "arm", "plane", range_text)
    return markdown(["sums per second", *planes], rows)


def kernels(records):
    frame = DataFrame([r for r in records if r["benchmark"] == "kernels" and r["bytes_per_second"]])
    speed = (frame.groupby("case")["bytes_per_second"].median() / 1e9).to_dict()
    rows = [
        [
            case.replace("/plain_", " ").replace("/plain", " "),
            f"{speed[case]:.2f}",
            f"{speed.get(case.replace('plain', 'vector'), 0):.1f}",
        ]
        for case in speed
        if "/plain" in case
    ]
    if "memory_copy" in speed:
        rows.append(["memory copy", "", f"{speed['memory_copy']:.1f}"])
    return markdown(["GB/s of tensor, one core", "plain", "vectors"], rows)


TAGS = {"without_tags": "without any check", "with_tags": "with tags", "aggregator_core": "`AggregatorCore` as it is"}


def tags(records):
    frame = DataFrame([r for r in records if r["benchmark"] == "tags"])
    cells = frame.groupby("case", sort=False)["cpu_ns"].agg(range_text)
    return markdown(["", "ns of CPU per packet"], [[TAGS.get(case, case), text] for case, text in cells.items()])


def engine(records):
    frame = DataFrame([r for r in records if r["benchmark"] == "engine"])
    frame["threads"] = frame["case"].str.extract(r"/(\d+)/", expand=False).astype(int)
    speeds = frame.groupby("threads")["bytes_per_second"]
    one = speeds.median()[1]
    rows = [[str(threads), range_text(of / 1e9, "{:.2f}"), f"{of.median() / one:.2f}"] for threads, of in speeds]
    return markdown(["engine threads", "GB/s of tensor", "times one thread"], rows)


# In the order of socket_bench.cc, which runs them in a random one.
SOCKET_WAYS = [
    "a call for each packet",
    "sendmmsg and recvmmsg",
    "with segmentation",
    "and coalescing",
    "and packets side by side",
    "and SO_BUSY_POLL",
    "and MSG_ZEROCOPY",
    "sent by io_uring",
    "sent by io_uring without copy",
    "sent and received by io_uring",
]


def sockets(records):
    frame = DataFrame([r for r in records if r["benchmark"] == "sockets"])
    frame["how"] = frame["case"].str.split("/").str[1]
    packets = 88  # of a burst
    ways = dict(list(frame.groupby("how")["cpu_ns"]))
    rows = [[how, range_text(ways.pop(how) / packets, "{:.0f}")] for how in SOCKET_WAYS if how in ways]
    assert not ways, f"socket_bench.cc has ways that the table does not know: {', '.join(ways)}"
    return markdown(["", "ns of CPU per packet"], rows)


def planner(records):
    frame = DataFrame([r for r in records if r["benchmark"] == "planner"])
    rows = []
    for case, runs in frame.groupby("case", sort=False):
        size = dict(part.split(":") for part in case.split("/")[1:])
        loss = max(0, runs["rounding_loss"].iloc[0])
        in_racks = ", in racks" if size["racks"] != "0" else ""
        rows.append(
            [
                f"{size['ranks']} ranks, {size['places']} spare host{'s' * (size['places'] != '1')}{in_racks}",
                range_text(runs["cpu_ns"] / 1e6, "{:.2f}"),
                f"{loss:.2%}",
            ]
        )
    return markdown(
        ["", "ms of CPU per plan", "lost to rounding"], sorted(rows, key=lambda row: float(row[1].split()[0]))
    )


STEPS = ("find", "pack", "unpack")  # of a sparse all-reduce


def sparse_steps(records):
    frame = DataFrame([r for r in records if r["benchmark"] == "sparse"])
    speed = (frame.groupby("case")["bytes_per_second"].median() / 1e9).to_dict()
    steps = {
        step: {int(case.split("/")[1]): speed[case] for case in speed if case.startswith(step + "/")} for step in STEPS
    }
    densities = sorted({density for of in steps.values() for density in of})
    rows = [
        [f"{density / 10:g} %", *(f"{steps[step][density]:.1f}" if density in steps[step] else "" for step in STEPS)]
        for density in densities
    ]
    return markdown(["density", *(f"{step}, GB/s" for step in STEPS)], rows)


def xdp(records):
    found = [r for r in records if r["benchmark"] == "xdp"]
    rows = [[r["case"].strip(), r["bytes"], f"{r['ns']} ({r['low_ns']} - {r['high_ns']})"] for r in found]
    return markdown(["", "bytes", "ns per packet (middle half)"], rows)


def said(records):
    return "```\n$ {}\n{}\n```".format(records[-1]["command"], "\n".join(records[-1]["lines"]).strip())


TABLES = {
    "controller": controller_report.table,
    "hooks": hooks_bench.table,
    "simulation": said,
    "chaos": said,
    "variants": rack_report.tables,
    "rack": rack_report.tables,
    "rack:systems": functools.partial(by_system, counts=(8,)),
    "rack:links": rack_report.link_table,
    "rack:headline": headline,
    "rack:papers": papers,
    "shares": shares_bench.table,
    "sparse": sparse_report.table,
    "sparse:index": sparse_report.index_table,
    "collectives": collectives_bench.table,
    "one-host": rack_report.tables,
    "one-host:headline": one_host_headline,
    "one-host:systems": by_system,
    "one-host-16-cores": rack_report.tables,
    "mpi": mpi,
    "nccl": nccl,
    "lanes8": lanes8,
    "compressed": compressed,
    "compressed-16-cores": compressed,
    "rack-16-cores": rack_report.tables,
    "rack-16-cores:systems": functools.partial(by_system, counts=(2, 4, 8)),
    "rack-9000": rack_report.tables,
    "rack-9000:systems": functools.partial(by_system, counts=(2, 4, 8)),
    "training": training,
    "fsdp": training,
    "recommender": training,
    "loss": loss_bench.table,
    "failures": failures,
    "jobs": jobs,
    "floods": floods,
    "profile": profile.tables,
    "verify": verify_bench.table,
    "predict": predict_bench.table,
    "lies": lies_bench.table,
    "compression": compression_report.table,
    "compression:reductions": compression_report.reductions,
    "compression:choice": compression_report.choice,
    "thresholds": compression_report.thresholds_table,
    "micro:kernels": kernels,
    "micro:tags": tags,
    "micro:planner": planner,
    "micro:engine": engine,
    "micro:sockets": sockets,
    "micro:xdp": xdp,
    "micro:sparse": sparse_steps,
    "micro:compression": compression_report.cost_table,
}

# Of the pieces that have one: writes it to the path, from the records.
PLOTS = {
    "sparse": sparse_report.write_plot,
    "compression": compression_report.write_plot,
    "controller": controller_report.write_plot,
}
