"""Figures of the rack and one-host benchmarks from their records: text, Markdown, a page with plots."""

from matplotlib.figure import Figure
from pandas import DataFrame

from netsum_bench import pages
from netsum_bench.figures import is_below, markdown, median, number, spread

# (name, where the sums are made, colour), in the order of the tables.
SYSTEMS = {
    "netsum-xdp": ("netsum, XDP", "in the switch", "#2ca02c"),
    "netsum-user": ("netsum, daemon", "in the switch", "#1f77b4"),
    "netsum-xdp-lanes8": ("netsum, XDP, 8-bit lanes", "in the switch", "#c5b0d5"),
    "netsum-user-lanes8": ("netsum, daemon, 8-bit lanes", "in the switch", "#9edae5"),
    "netsum-mpi": ("netsum, daemon, by MPI_Allreduce", "in the switch", "#aec7e8"),
    "netsum-nccl": ("netsum, daemon, by NCCL's CollNet table", "in the switch", "#98df8a"),
    "netsum-user-multicast": ("netsum, daemon, multicast", "in the switch", "#7f7f7f"),
    "netsum-xdp-af_xdp": ("netsum, XDP; workers by AF_XDP", "in the switch", "#8c564b"),
    "netsum-user-af_xdp": ("netsum, daemon; workers by AF_XDP", "in the switch", "#e377c2"),
    "netsum-mix": ("netsum, daemon", "on a spare host and in the workers", "#9467bd"),
    "netsum-memory": ("netsum", "in shared memory", "#2ca02c"),
    "netsum-shards": ("netsum, embedded", "in the workers", "#bcbd22"),
    "gloo": ("Gloo", "in the workers", "#d62728"),
    "openmpi": ("Open MPI", "in the workers", "#ff7f0e"),
    "openmpi-memory": ("Open MPI, shared memory", "in the workers", "#ff7f0e"),
    "compressed-bf16": ("netsum, bf16", "in the switch", "#1b9e77"),
    "compressed-lanes8": ("netsum, lanes8", "in the switch", "#d95f02"),
    "compressed-topk-1%": ("netsum, topk 1 %", "in the switch", "#7570b3"),
    "compressed-topk-0.1%": ("netsum, topk 0.1 %", "in the switch", "#e7298a"),
    "compressed-dgc-1%": ("netsum, dgc 1 %", "in the switch", "#66a61e"),
    "compressed-dgc-0.1%": ("netsum, dgc 0.1 %", "in the switch", "#e6ab02"),
    "compressed-sidco-1%": ("netsum, sidco 1 %", "in the switch", "#a6761d"),
    "compressed-sidco-0.1%": ("netsum, sidco 0.1 %", "in the switch", "#666666"),
    "compressed-powersgd": ("netsum, powersgd of rank 4", "in the switch", "#a6cee3"),
    "netsum-user-bfloat16": ("netsum, daemon, bf16", "in the switch", "#17becf"),
    "gloo-bfloat16": ("Gloo, bf16", "in the workers", "#ff9896"),
}
PEERS = ("gloo", "openmpi", "openmpi-memory")
# Ethernet frames of MTU 1500 over what they carry of a tensor; the racks shape frames.
NETSUM_FRAME, TCP_FRAME = 1514 / 1440, 1514 / 1448


def is_lossy(system):
    """Less than float32."""
    return system.endswith("bfloat16") or system.startswith("compressed-")


def size_text(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def rate_bits(rate):
    """None: not shaped."""
    return None if rate in ("none", "host") else float(rate[:-4]) * {"gbit": 1e9, "mbit": 1e6}[rate[-4:]]


def rate_text(rate):
    return "unshaped links" if rate == "none" else f"links of {rate[:-4]} {rate[-4].upper()}bit/s"


def bounds_ms(rate, workers, size):
    """What the links allow a float32 tensor, headers included. Nothing where they are not shaped, or the tensor is so small
    that the links' token buckets let it through at once."""
    bits = rate_bits(rate)
    if bits is None or size <= 256 << 10:
        return {}
    once = size * 8 / bits * 1e3
    return {
        "bound: the data once over each link": once * NETSUM_FRAME,
        "bound: a ring, 2(N-1)/N of the data": once * TCP_FRAME * 2 * (workers - 1) / workers,
        "bound: one host takes in all workers' data": once * NETSUM_FRAME * workers,
    }


def cells(records):
    """Per (rate, workers, bytes, system): the figures over all rounds' iterations."""
    groups = {}
    for record in records:
        if "round" in record:
            groups.setdefault((record["rate"], record["workers"], record["bytes"], record["system"]), []).append(record)
    found = {}
    for key, rounds in groups.items():
        well = [r for r in rounds if "times_ms" in r]
        cell = {"failed": [r["failed"] for r in rounds if "failed" in r], "wrong": sum(r["wrong"] for r in well)}
        times = [t for r in well for t in r["times_ms"]]
        if times:
            cell["median"], cell["low"], cell["high"] = spread(times)
            cell["iterations"] = len(times)
            cpu = [r["cpu_ms"] for r in well if r.get("cpu_ms") is not None]
            cell["cpu_ms"] = median(cpu) if cpu else None
            cell["settings"] = sorted({r["setting"] for r in well if r.get("setting")})
            if "link_up" in well[0]:
                cell["up"], cell["down"] = (median([r[f"link_{way}"] for r in well]) / key[2] for way in ("up", "down"))
        found[key] = cell
    return found


def time_text(cell, best):
    if "median" not in cell:
        return "failed"
    text = f"{number(cell['median'])} [{number(cell['low'])} - {number(cell['high'])}]"
    text = f"**{text}**" if best else text
    return text + (f", {len(cell['failed'])} failed" if cell["failed"] else "") + (" WRONG" if cell["wrong"] else "")


def notes(found, rate, size, counts):
    """What a table of one rate and size cannot hold: the settings taken, and reasons of failures."""
    lines = []
    for system in SYSTEMS:
        settings = {}
        for n in counts:
            for setting in found.get((rate, n, size, system), {}).get("settings", []):
                settings.setdefault(setting, []).append(str(n))
        if settings:
            lines.append(
                f"{SYSTEMS[system][0]}: " + "; ".join(f"{s} ({', '.join(n)} workers)" for s, n in settings.items())
            )
        for n in counts:
            for reason in dict.fromkeys(found.get((rate, n, size, system), {}).get("failed", [])):
                lines.append(f"{SYSTEMS[system][0]}, {n} workers, failed: `{reason.strip().splitlines()[-1][:150]}`")
    return "".join(f"\n{line}.  " for line in lines)


def place_of(system, rate):
    """Where the sums are made."""
    return "aggregator on this host" if (rate, system) == ("host", "netsum-user") else SYSTEMS[system][1]


def clear_winner(found, place, systems):
    """The float32 system with the least median at a place (rate, workers, bytes), if its range of 10 to 90 % ends before
    every other's begins."""
    of = {s: found[(*place, s)] for s in systems if "median" in found.get((*place, s), {}) and not is_lossy(s)}
    best = min(of, key=lambda s: of[s]["median"], default=None)
    clear = len(of) > 1 and all(is_below(of[best], cell) for s, cell in of.items() if s != best)
    return best if clear else None


def one_table(found, rate, size):
    counts = sorted({n for (r, n, s, _) in found if (r, s) == (rate, size)})
    present = [system for system in SYSTEMS if any((rate, n, size, system) in found for n in counts)]
    best = {n: clear_winner(found, (rate, n, size), present) for n in counts}
    has_cpu = any(c.get("cpu_ms") is not None for k, c in found.items() if (k[0], k[2]) == (rate, size))
    headings = ["system", "summed", *(f"{n} workers, ms" for n in counts)]
    headings += ["CPU ms: " + " / ".join(map(str, counts))] if has_cpu else []
    rows = []
    for system in present:
        of = [found.get((rate, n, size, system)) for n in counts]
        row = [
            SYSTEMS[system][0],
            place_of(system, rate),
            *("" if c is None else time_text(c, system == best[n]) for n, c in zip(counts, of, strict=True)),
        ]
        cpu = [c.get("cpu_ms") if c else None for c in of]
        rows.append(
            row
            + (
                ["" if cpu == [None] * len(cpu) else " / ".join("-" if c is None else number(c) for c in cpu)]
                if has_cpu
                else []
            )
        )
    for name in bounds_ms(rate, 2, size):
        rows.append(
            [f"*{name}*", "", *(number(bounds_ms(rate, n, size)[name]) for n in counts), *([""] if has_cpu else [])]
        )
    return markdown(headings, rows, 2) + "\n" + notes(found, rate, size, counts)


def tables(records, heading="####"):
    """A table for each rate and size, with every system."""
    found = cells(records)
    order = {rate: rate_bits(rate) or float("inf") for (rate, *_) in found}
    parts = []
    for rate in sorted(order, key=order.get):
        for size in sorted({s for (r, _, s, _) in found if r == rate}, reverse=True):
            title = size_text(size) + ("" if rate == "host" else f", {rate_text(rate)}")
            parts.append(f"{heading} {title}\n\n{one_table(found, rate, size)}")
    return "\n\n".join(parts)


def link_table(records):
    """Bytes on worker 0's link at the largest size, per byte of a float32 tensor."""
    found = {k: c for k, c in cells(records).items() if "up" in c}
    if not found:
        return ""
    size = max(k[2] for k in found)
    counts = sorted({k[1] for k in found})
    rates = sorted({k[0] for k in found}, key=lambda rate: rate_bits(rate) or float("inf"))
    rows = []
    for system in SYSTEMS:
        of = [next((found[r, n, size, system] for r in rates if (r, n, size, system) in found), None) for n in counts]
        if any(of):
            rows.append([*SYSTEMS[system][:2], *("" if c is None else f"{c['up']:.2f} / {c['down']:.2f}" for c in of)])
    return markdown(["system", "summed", *(f"{n} workers, up / down" for n in counts)], rows, 2)


def text(records):
    lines = []
    for (rate, workers, size, system), cell in cells(records).items():
        figures = [number(cell[f]) if f in cell else "" for f in ("median", "low", "high")]
        settings = ", ".join(cell.get("settings", []))
        cpu, failed = cell.get("cpu_ms") or "", len(cell["failed"]) or ""
        lines.append(
            [rate, workers, size_text(size), system, *figures, cell.get("iterations", 0), cpu, settings, failed]
        )
    headings = ["rate", "workers", "size", "system", "median ms", "10 %", "90 %", "n", "CPU ms", "setting", "failed"]
    return DataFrame(lines, columns=headings).to_string(index=False)


def plots(found):
    """Per rate and number of workers, time against size, as SVG."""
    for rate, workers in dict.fromkeys((k[0], k[1]) for k in found):
        figure = Figure(figsize=(6.4, 4), layout="constrained")
        axes = figure.add_subplot()
        for system, (name, where, colour) in SYSTEMS.items():
            points = sorted(
                (k[2], c["median"])
                for k, c in found.items()
                if (k[0], k[1], k[3]) == (rate, workers, system) and "median" in c
            )
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=f"{name}, {where}", color=colour)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        title = f"{workers} workers" + ("" if rate == "host" else f", {rate_text(rate)}")
        axes.set(title=title, xlabel="bytes", ylabel="median time, ms")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
        yield pages.svg_of(figure, title)


def write_html(records, path):
    page = pages.render("rack_report.html.j2", run=records[-1]["run"], plots=plots(cells(records)), text=text(records))
    path.write_text(page, encoding="utf-8")
    return path
