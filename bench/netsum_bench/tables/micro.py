"""Tables of the microbenchmarks."""

from pandas import DataFrame

from netsum_bench.report import NOTHING, markdown, range_text


def kernels(records):
    frame = DataFrame([r for r in records if r["bytes_per_second"]])
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
    frame = DataFrame(records)
    cells = frame.groupby("case", sort=False)["cpu_ns"].agg(range_text)
    return markdown(["", "ns of CPU per packet"], [[TAGS.get(case, case), text] for case, text in cells.items()])


def engine(records):
    frame = DataFrame(records)
    frame["threads"] = frame["case"].str.extract(r"/(\d+)/", expand=False).fillna("1, packets metered twice")
    speeds = frame.groupby("threads")["bytes_per_second"]
    one = speeds.median()["1"]
    rows = [[threads, range_text(of / 1e9, "{:.2f}"), f"{of.median() / one:.3f}"] for threads, of in speeds]
    return markdown(["engine threads", "GB/s of tensor", "times one thread"], rows)


def metering(records):
    more = DataFrame(records)["more_time"] * 100
    speed = DataFrame(records)["bytes_per_second"] / 1e9
    return markdown(
        ["GB/s of tensor", "more time with meters, %"], [[range_text(speed, "{:.2f}"), range_text(more, "{:+.2f}")]]
    )


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
    frame = DataFrame(records)
    frame["how"] = frame["case"].str.split("/").str[1]
    packets = 88  # of a burst
    ways = dict(list(frame.groupby("how")["cpu_ns"]))
    rows = [[how, range_text(ways.pop(how) / packets, "{:.0f}")] for how in SOCKET_WAYS if how in ways]
    assert not ways, f"socket_bench.cc has ways that the table does not know: {', '.join(ways)}"
    return markdown(["", "ns of CPU per packet"], rows)


def planner(records):
    frame = DataFrame(records)
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
    frame = DataFrame(records)
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
    rows = [[r["case"].strip(), r["bytes"], f"{r['ns']} ({r['low_ns']} - {r['high_ns']})"] for r in records]
    return markdown(["", "bytes", "ns per packet (middle half)"], rows)


def compression(records):
    """Of the microbenchmark: seconds of a core for a gigabyte of float32."""
    found = {}
    for record in records:
        found.setdefault(record["case"], []).append(1e9 / record["bytes_per_second"])
    rows = [[case, range_text(seconds, "{:.2f}")] for case, seconds in found.items()]
    return markdown(["method", "s per GB and core"], rows)


def _of(benchmark, table):
    """The table of this benchmark's records."""

    def of_it(records):
        found = [r for r in records if r.get("benchmark") == benchmark and "case" in r]
        return table(found) if found else NOTHING

    return of_it


_ALL = {
    "kernels": kernels,
    "tags": tags,
    "planner": planner,
    "engine": engine,
    "metering": metering,
    "sockets": sockets,
    "xdp": xdp,
    "sparse": sparse_steps,
    "compression": compression,
}
TABLES = {name: _of(name, table) for name, table in _ALL.items()}
