"""Tables of the cases that measure collectives: every system, what is fastest, against the bounds and against the peers."""

from netsum_bench.labs.racks import COLLECTIVES, PLACEMENTS
from netsum_bench.report import (
    NETSUM_FRAME,
    NOTHING,
    TCP_FRAME,
    by_rate,
    is_below,
    markdown,
    median,
    narrow,
    number,
    plot,
    rate_bits,
    rate_text,
    size_text,
    spread,
    verdict,
)
from netsum_bench.systems import PEERS, SYSTEMS, Netsum, is_lossy

USUAL = {Netsum.threads_text(1), "all_reduce"}  # settings that need not be said
DATAPLANES = ("netsum-xdp", "netsum-user")  # which sum in the switch


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
                f"{SYSTEMS[system].label}: " + "; ".join(f"{s} ({', '.join(n)} workers)" for s, n in settings.items())
            )
        for n in counts:
            for reason in dict.fromkeys(found.get((rate, n, size, system), {}).get("failed", [])):
                lines.append(f"{SYSTEMS[system].label}, {n} workers, failed: `{reason.strip().splitlines()[-1][:150]}`")
    return "".join(f"\n{line}.  " for line in lines)


def place_of(system, rate):
    """Where the sums are made."""
    return "aggregator on this host" if (rate, system) == ("host", "netsum-user") else SYSTEMS[system].where


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
            SYSTEMS[system].label,
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
    rates = {rate for (rate, *_) in found}
    parts = []
    for rate in sorted(rates, key=by_rate):
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
    rates = sorted({k[0] for k in found}, key=by_rate)
    rows = []
    for system in SYSTEMS:
        of = [next((found[r, n, size, system] for r in rates if (r, n, size, system) in found), None) for n in counts]
        if any(of):
            rows.append(
                [
                    SYSTEMS[system].label,
                    SYSTEMS[system].where,
                    *("" if c is None else f"{c['up']:.2f} / {c['down']:.2f}" for c in of),
                ]
            )
    return markdown(["system", "summed", *(f"{n} workers, up / down" for n in counts)], rows, 2)


def best(found, rate, workers, size, systems):
    """(time, system) of the fastest of these."""
    return min(
        (
            (found[rate, workers, size, s]["median"], s)
            for s in systems
            if "median" in found.get((rate, workers, size, s), {})
        ),
        default=None,
    )


def comparison(found, rate, workers, size, ours, peers):
    """A row: our time, the fastest peer's, and how many times as fast we are."""
    mine, other = best(found, rate, workers, size, ours), best(found, rate, workers, size, peers)
    if not mine or not other:
        return None
    names = [
        " ".join((SYSTEMS[s].label, SYSTEMS[s].where)) if s in ours else SYSTEMS[s].label for _, s in (mine, other)
    ]
    of = [found[rate, workers, size, system] for _, system in (mine, other)]
    said = verdict(other[0] / mine[0], *of, " times as fast")
    return [f"{number(mine[0])} ms ({names[0]})", f"{number(other[0])} ms ({names[1]})", said]


def headline(records):
    """What one gains, where, and where not: the largest size and 4 KiB at the most workers, against the fastest peer."""
    found = cells(records)
    workers = max((k[1] for k in found if k[1] <= 8), default=0)
    size = 16 << 20
    rates = sorted({k[0] for k in found}, key=by_rate)
    rows = []
    for rate in rates:
        for what, ours, peers, of in (
            ("", DATAPLANES, PEERS, size),
            (", bf16", ("netsum-user-bfloat16",), ("gloo-bfloat16",), size),
            (", a spare host and shards", ("netsum-mix",), PEERS, size),
            (", no aggregator", ("netsum-shards",), PEERS, size),
            ("", DATAPLANES, PEERS, 4 << 10),
        ):
            if what and rate != rates[0]:
                continue  # one row is enough to say it
            row = comparison(found, rate, workers, of, ours, peers)
            if row:
                rows.append([f"{rate_text(rate)}, {size_text(of)}{what}", *row])
    if not rows:
        return NOTHING
    return markdown([f"{workers} workers", "netsum", "fastest peer at its best setting", "netsum is"], rows)


def one_host_headline(records):
    found = cells(records)
    rows = []
    for workers in sorted({k[1] for k in found}):
        for size in sorted({k[2] for k in found}, reverse=True):
            row = comparison(found, "host", workers, size, ("netsum-memory",), PEERS)
            if row:
                rows.append([f"{workers} ranks, {size_text(size)}", *row])
    return markdown(["one host", "netsum", "fastest peer at its best setting", "netsum is"], rows)


def by_system(records, counts=(4, 8)):
    """Every system at every rate and size, for these numbers of workers: rows are systems. Fastest float32 in bold, where
    its 10 to 90 % range is below all others'."""
    found = cells(records)
    places = sorted({key[:3] for key in found if key[1] in counts}, key=lambda key: (by_rate(key[0]), key[1], -key[2]))
    systems = [system for system in SYSTEMS if any((*place, system) in found for place in places)]
    winners = {place: clear_winner(found, place, systems) for place in places}
    rows = []
    for place in places:
        row = [size_text(place[2]), str(place[1]), "" if place[0] == "host" else rate_text(place[0])]
        for system in systems:
            cell = found.get((*place, system))
            row.append("" if cell is None else time_text(cell, system == winners[place]))
        rows.append(row)
    names = [", ".join((SYSTEMS[s].label, place_of(s, places[0][0]))) for s in systems]
    return narrow(["ms", "ranks", "links", *names], rows, 3)


def processor(records, rate="none"):
    """What a float32 sum of the largest size costs where no link limits it, a row for each system: for each number of ranks the
    processor time of the whole machine, that to Gloo's, and the bits of all tensors per second of it; then the seconds of a
    rank's process, and of the daemon's, per gigabyte that each has summed or received."""
    groups = {}
    for record in records:
        counts = record.get("rate") == rate and record.get("cpu_ms") and not record["wrong"]
        if counts and not is_lossy(record["system"]):
            groups.setdefault((record["system"], record["bytes"], record["workers"]), []).append(record)
    size = max((of_size for _, of_size, _ in groups), default=0)
    counts = sorted({workers for _, of_size, workers in groups if of_size == size}, reverse=True)
    present = [name for name in SYSTEMS if any((name, size, workers) in groups for workers in counts)]
    labels = [SYSTEMS[name].label for name in present]

    def of(name, workers, field):
        found = [turn[field] for turn in groups.get((name, size, workers), []) if turn.get(field) is not None]
        return {"median": median(found), "low": min(found), "high": max(found)} if found else None

    def costs(name, workers):
        mine, gloo = of(name, workers, "cpu_ms"), of("gloo", workers, "cpu_ms")
        if mine is None:
            return ["", "", ""]
        spent = mine["median"]
        return [
            f"{number(spent)} ({number(mine['low'])}-{number(mine['high'])})",
            f"{spent / gloo['median']:.2f}" if gloo else "",
            f"{8 * workers * size / spent / 1e6:.2f}",
        ]

    def per_gigabyte(name, field):
        found = [(of(name, workers, field), workers) for workers in counts]
        return ", ".join(f"{1e6 * one['median'] / workers / size:.2f}" for one, workers in found if one)

    rows = []
    for name in present:
        label = SYSTEMS[name].label
        label += f", {SYSTEMS[name].where}" if labels.count(label) > 1 else ""
        turns = [turn for workers in counts for turn in groups.get((name, size, workers), [])]
        settings = dict.fromkeys(turn["setting"] for turn in turns if turn.get("setting"))
        settings = "; ".join(setting for setting in settings if setting not in USUAL)
        row = [f"{label} ({settings})" if settings else label]
        for workers in counts:
            row += costs(name, workers)
        rows.append([*row, per_gigabyte(name, "ranks_cpu_ms"), per_gigabyte(name, "daemon_cpu_ms")])
    headings = [size_text(size)]
    for workers in counts:
        headings += [f"{workers} ranks, ms", "to Gloo", "Gbit/s"]
    return narrow([*headings, "rank, s/GB", "daemon, s/GB"], rows) if rows else NOTHING


def distributions(records):
    """Of each system at each place, over all turns: percentiles of its times, and the least and greatest median of a turn."""
    groups = {}
    for record in records:
        if record.get("times_ms"):
            key = (by_rate(record["rate"]), record["workers"], record["bytes"], list(SYSTEMS).index(record["system"]))
            groups.setdefault(key, []).append(record)
    rows = []
    for _, turns in sorted(groups.items()):
        of = turns[0]
        place = [str(of["workers"]), *([] if of["rate"] == "host" else [rate_text(of["rate"])]), size_text(of["bytes"])]
        times = sorted(t for turn in turns for t in turn["times_ms"])
        percentiles = [f"{times[min(len(times) - 1, len(times) * p // 100)]:.3f}" for p in (0, 10, 50, 90, 99)]
        medians = [median(turn["times_ms"]) for turn in turns]
        system = f"{SYSTEMS[of['system']].label}, {place_of(of['system'], of['rate'])}"
        rows.append(
            [", ".join(place), system, *percentiles, f"{min(medians):.3f} - {max(medians):.3f}", str(len(turns))]
        )
    headings = ["ranks, size", "ms", "least", "10 %", "50 %", "90 %", "99 %", "medians of turns", "turns"]
    return markdown(headings, rows, 2) if rows else NOTHING


def papers(records):
    """In the terms of SwitchML's microbenchmark: the share of the link's greatest goodput, and the ratio to the best ring."""
    found = cells(records)
    rows = []
    for rate in sorted({k[0] for k in found} - {"none"}, key=rate_bits):
        size = max(k[2] for k in found if k[0] == rate)
        if not bounds_ms(rate, 2, size):
            continue
        for system in DATAPLANES:
            row = [rate_text(rate), size_text(size), SYSTEMS[system].label]
            for workers in (2, 4, 8, 16):
                mine, peer = best(found, rate, workers, size, [system]), best(found, rate, workers, size, PEERS)
                share = next(iter(bounds_ms(rate, workers, size).values())) / mine[0] if mine else None
                row.append(f"{share:.1%}; {peer[0] / mine[0]:.2f} x" if mine and peer else "")
            rows.append(row)
    return markdown(["links", "size", "netsum", *(f"{n} workers" for n in (2, 4, 8, 16))], rows, 3)


def side_by_side(columns, ratios, where=""):
    """A table of the times of some systems, side by side, where all of them are measured. `columns`: headings, each
    with systems of which the fastest counts; `ratios`: headings, each with the numbers of two columns. `where` goes
    before the place."""

    def rows(records):
        found = cells(records)
        for rate, workers, size in sorted({key[:3] for key in found}, key=lambda key: key[2]):
            times = [(best(found, rate, workers, size, systems) or (None,))[0] for systems in columns.values()]
            if None not in times:
                place = f"{where}{workers} ranks, {rate_text(rate)}, {size_text(size)}"
                yield [place, *map(number, times), *(f"{times[a] / times[b]:.2f}" for a, b in ratios.values())]

    return rows, ["ms", *columns, *ratios]


def beside(*parts):
    """The table of these parts, which have the same headings."""

    def table(records):
        rows = [row for of_part, _ in parts for row in of_part(records)]
        return markdown(parts[0][1], rows) if rows else NOTHING

    return table


CXX = {"`netsum bench` (C++)": ["netsum-user"]}
mpi = beside(
    side_by_side(
        {**CXX, "`MPI_Allreduce`, component": ["netsum-mpi"], "`MPI_Allreduce`, Open MPI's best setting": ["openmpi"]},
        {"component / C++": (1, 0), "Open MPI / component": (2, 1)},
    )
)
nccl = beside(side_by_side({**CXX, "CollNet table, harness": ["netsum-nccl"]}, {"CollNet / C++": (1, 0)}))
lanes8 = beside(
    *(
        side_by_side(
            {"32-bit lanes": [system], "8-bit lanes": [f"{system}-lanes8"], "fastest peer": PEERS},
            {"32-bit / 8-bit": (0, 1), "peer / 8-bit": (2, 1)},
            f"{SYSTEMS[system].label}, ",
        )
        for system in DATAPLANES
    )
)


def compressed(records):
    """What compression gains over float32, and over the fastest peer without compression."""
    found = cells(records)
    rows, about_all = [], ""
    for rate, workers, size in sorted({key[:3] for key in found}, reverse=True):
        about_all += notes(found, rate, size, [workers])
        plain, peer = (best(found, rate, workers, size, systems) for systems in (["netsum-user"], PEERS))
        for system, about in SYSTEMS.items():
            cell = found.get((rate, workers, size, system), {})
            if "median" not in cell:
                continue
            ratios = [f"{other[0] / cell['median']:.2f}" if other else "" for other in (plain, peer)]
            place = f"{workers} workers, {rate_text(rate)}, {size_text(size)}"
            rows.append(
                [place, about.label, time_text(cell, False), f"{cell['up']:.3f}", f"{cell['down']:.3f}", *ratios]
            )
    headings = ["", "system", "ms", "sent B/B", "received B/B", "netsum float32 / this", "fastest peer / this"]
    return markdown(headings, rows, 2) + "\n" + about_all if rows else NOTHING


def beyond_program(rounds, plan, size):
    """The link that differs most from the program: in packets and in percent of what the program says, headers included. Links
    that the program leaves idle count as packets only."""
    differences = []
    for link, units in plan["loads"].items():
        expected = units * size * NETSUM_FRAME
        counted = [r["link_bytes"][link] for r in rounds if link in r.get("link_bytes", {})]
        if not counted:  # nothing counts what an unshaped switch sums
            continue
        difference = median(counted) - expected
        differences.append((abs(difference), difference, expected))
    if not differences:
        return ""
    _, difference, expected = max(differences)
    share = f", {difference / expected:+.1%}" if expected else ""
    return f"{difference / 1514:+.0f}{share}"


def shares(records):
    """A row for each placement, with the peers on the same links."""
    found = cells(records)
    plans = {(r["rate"], r["workers"], r["bytes"], r["system"]): r["plan"] for r in records if "plan" in r}
    rows = []
    for key, plan in sorted(plans.items(), key=lambda item: list(PLACEMENTS).index(item[0][-1])):
        rate, workers, size, name = key
        cell = found.get(key, {})
        where = f"{workers} workers, {rate_text(rate)}, {size_text(size)}"
        optimum = plan["s_per_gigabyte"] * size / 1e6 * NETSUM_FRAME
        ring = plan["ring_s_per_gigabyte"] * size / 1e6 * TCP_FRAME
        suffix = "-unequal" if PLACEMENTS[name].rack == "unequal" else ""
        row = [where, PLACEMENTS[name].title, number(optimum)]
        if "median" in cell:
            rounds = [
                r for r in records if "times_ms" in r and (r["rate"], r["workers"], r["bytes"], r["system"]) == key
            ]
            time_ms = cell["median"]
            row += [time_text(cell, False), f"{time_ms / optimum - 1:+.0%}", f"{ring / time_ms:.2f}"]
            row += [beyond_program(rounds, plan, size)]
        else:
            row += ["failed" if cell else "not measured", "", "", ""]
        for peer in ("gloo", "openmpi"):
            other = found.get((rate, workers, size, peer + suffix), {})
            row.append(number(other["median"]) if "median" in other else "")
        rows.append(row)
    headings = ["", "what there is", "optimum, ms", "netsum, ms", "over the optimum", "over a ring's bound"]
    headings += ["link that differs most from the program, packets", "Gloo, ms", "Open MPI, ms"]
    return markdown(headings, rows, 2)


def collective_bound_ms(collective, rate, workers, size):
    """What the links allow any algorithm, headers included; None where their token buckets let it through at once."""
    load, bits = COLLECTIVES[collective].load, rate_bits(rate)
    if load is None or bits is None or size <= 256 << 10:
        return None
    return load(workers) * size * 8 / bits * 1e3 * NETSUM_FRAME


def collectives(records):
    """Rows of collectives and sizes: the median of each system in ms, what the links allow, and the verdict."""
    times, settings = {}, {}
    for record in records:
        if "round" in record:
            key = record["collective"], record["rate"], record["workers"], record["bytes"]
            system = record["system"]
            good = [] if record.get("wrong") else record.get("times_ms", [])
            times.setdefault(key, {}).setdefault(system, []).extend(good)
            if good and record.get("setting"):
                settings.setdefault((key, system), record["setting"])
    present = [s for s in SYSTEMS if any(s in of for of in times.values())]
    rows = []
    for key in sorted(times, key=lambda k: (k[1], k[2], list(COLLECTIVES).index(k[0]), -k[3])):
        collective, rate, workers, size = key
        ranges = {s: dict(zip(("median", "low", "high"), spread(t), strict=True)) for s, t in times[key].items() if t}
        medians = {s: of["median"] for s, of in ranges.items()}
        texts = []
        for system in present:
            # One engine thread is the usual case.
            setting = settings.get((key, system), "").removeprefix(Netsum.threads_text(1)).removeprefix(", ")
            text = number(medians[system]) if system in medians else "failed" if system in times[key] else ""
            texts.append(f"{text} ({setting})" if setting and system in medians else text)
        bound = collective_bound_ms(collective, rate, workers, size)
        our_name = min((s for s in medians if s.startswith("netsum")), key=medians.get, default=None)
        peers_name = min((s for s in medians if s in PEERS), key=medians.get, default=None)
        mine = medians.get(our_name)
        what = COLLECTIVES[collective].title + (f", {size_text(size)}" if size else "")
        of_bound = f"{number(bound)} ({bound / mine:.0%})" if bound and mine else number(bound) if bound else ""
        said = ""
        if our_name and peers_name:
            said = verdict(medians[peers_name] / mine, ranges[our_name], ranges[peers_name], " x")
        rows.append([f"{what}, {workers} workers, {rate_text(rate)}", *texts, of_bound, said])
    headings = ["ms", *(SYSTEMS[s].label for s in present), "bound (netsum's share of it)", "times as fast"]
    return markdown(headings, rows)


def plots(records):
    """Per rate and number of workers, time against size, as SVG."""
    found = cells(records)
    for rate, workers in dict.fromkeys((k[0], k[1]) for k in found):

        def draw(figure, rate=rate, workers=workers):
            axes = figure.add_subplot()
            for name, system in SYSTEMS.items():
                points = sorted(
                    (k[2], c["median"])
                    for k, c in found.items()
                    if (k[0], k[1], k[3]) == (rate, workers, name) and "median" in c
                )
                if points:
                    label = f"{system.label}, {system.where}"
                    axes.plot(*zip(*points, strict=True), marker="o", label=label, color=system.colour)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            title = f"{workers} workers" + ("" if rate == "host" else f", {rate_text(rate)}")
            axes.set(title=title, xlabel="bytes", ylabel="median time, ms")
            axes.grid(alpha=0.3)
            if axes.lines:
                axes.legend(fontsize=7)

        yield plot(draw, (6.4, 4))
