"""Figures of the sparse benchmark from its records: tables, and a plot of times against bounds."""

from netsum_bench.report import (
    NETSUM_FRAME,
    NOTHING,
    TCP_FRAME,
    markdown,
    median,
    number,
    plot,
    rate_bits,
    rate_text,
    spread_text,
)

# Records hold one measurement for each of these; what is measured once per size lacks some.
PLACE = ("rate", "workers", "count")
CASE = (*PLACE, "pattern", "overlap", "density")
PLOTTED = {  # name, marker, colour
    "netsum-auto": ("netsum, auto", "o", "#2ca02c"),
    "netsum-coo": ("netsum, COO", "s", "#1f77b4"),
    "gloo-coo": ("Gloo, COO", "^", "#d62728"),
    "gloo-dense": ("Gloo, dense", "v", "#ff9896"),
    "openmpi-dense": ("Open MPI, dense", "x", "#ff7f0e"),
}


def bound_ms(payload, rate, frame=NETSUM_FRAME):
    """What the link needs for so many bytes of payload, headers included. None where it is not shaped."""
    bits = rate_bits(rate)
    return payload * 8e3 / bits * frame if bits else None


class Cells:
    """Measured times by case and system. Systems that do not depend on the tensor's contents have one for each size."""

    def __init__(self, records):
        self.first, self.of_case, self.of_size = {}, {}, {}
        for record in records:
            if "system" not in record or "model" not in record:
                continue
            case = tuple(record[field] for field in CASE)
            self.first.setdefault(case, record)
            if "times_ms" not in record:
                continue
            self.of_case[(*case, record["system"])] = record
            if record["system"] in ("gloo-dense", "openmpi-dense"):
                self.of_size[(*case[: len(PLACE)], record["system"])] = record

    def cases(self):
        """Small tensors first, then in the order of pattern, overlap and density."""
        order = {name: i for i, name in enumerate(("element", "row", "block", "zipf", "full", "random", "none"))}
        rank = lambda case: (case[0], -case[1], case[2], order[case[3]], order[case[4]], -case[5])
        return sorted(self.first, key=rank)

    def find(self, case, system):
        return self.of_case.get((*case, system)) or self.of_size.get((*case[: len(PLACE)], system))

    def ms(self, case, system):
        record = self.find(case, system)
        return median(record["times_ms"]) if record else None

    def text(self, case, system):
        """The median, and in brackets the 10th and 90th percentile."""
        record = self.find(case, system)
        if not record:
            return ""
        return spread_text(record["times_ms"]) + (" WRONG" if record["wrong"] else "")


def title(case):
    _, _, count, pattern, overlap, density = case
    what = "dense" if density >= 1 else pattern if pattern == "zipf" else f"{pattern}, {overlap}"
    return f"{count >> 20} Mi, {what}" if count >= 1 << 20 else f"{count}, {what}"


def sections(cells):
    """(heading, cases) of each number of workers and rate."""
    found = {}
    for case in cells.cases():
        found.setdefault(f"{case[1]} workers, {rate_text(case[0])}", []).append(case)
    return found.items()


def ratio(a, b):
    return f"{a / b:.1f}" if a and b else ""


def table(records):
    """Times. `netsum is`: in comparison with the peers, by the faster of its sparse all-reduces of dense and sparse tensors."""
    cells, parts = Cells(records), []
    headings = ["elements, pattern, overlap", "density", "union", "bound, ms", "netsum auto, ms", "netsum COO, ms"]
    headings += ["over the bound", "netsum dense, ms", "OmniReduce model, ms", "Gloo COO, ms", "Gloo dense, ms"]
    headings += ["Open MPI dense, ms", "x Gloo COO", "x Gloo dense"]
    for heading, cases in sections(cells):
        rows = []
        for case in cases:
            first = cells.first[case]
            bound = bound_ms(first["model"]["netsum"], case[0])
            blocks = bound_ms(first["model"]["omnireduce"], case[0], TCP_FRAME)
            best = min((ms for s in ("netsum-auto", "netsum-coo") if (ms := cells.ms(case, s))), default=None)
            auto = cells.ms(case, "netsum-auto")
            rows.append(
                [title(case), f"{case[-1]:g}", f"{first['union'] / first['count']:.2%}", number(bound) if bound else ""]
                + [cells.text(case, "netsum-auto"), cells.text(case, "netsum-coo")]
                + [f"{auto / bound:.2f}" if auto and bound else "", cells.text(case, "netsum-dense")]
                + [number(blocks) if blocks else ""]
                + [cells.text(case, system) for system in ("gloo-coo", "gloo-dense", "openmpi-dense")]
                + [ratio(cells.ms(case, peer), best) for peer in ("gloo-coo", "gloo-dense")]
            )
        parts.append(f"#### {heading}\n\n{markdown(headings, rows)}")
    return "\n\n".join(parts) or NOTHING


def index_table(records):
    """What netsum has sent, and its modes beside its dense all-reduce."""
    cells, parts = Cells(records), []
    headings = ["elements, pattern, overlap", "density", "index bits per element of the union", "of the best levels"]
    headings += ["index, % of the dense tensor", "on, ms", "on / dense", "auto / dense", "first auto, ms"]
    headings += ["processor time / cores, ms"]
    for heading, cases in sections(cells):
        rows = []
        for case in cases:
            on, auto = cells.find(case, "netsum-on"), cells.find(case, "netsum-auto")
            dense = cells.ms(case, "netsum-dense")
            if not on or not on["sparse_sent_elements"]:
                continue
            bits = 8 * on["sparse_index_bytes"]
            rows.append(
                [title(case), f"{case[-1]:g}", f"{bits / on['sparse_sent_elements']:.2f}"]
                + [f"{on['index_bits'] / on['union']:.2f}", f"{bits / 8 / (4 * on['count']):.2%}"]
                + [cells.text(case, "netsum-on")]
                + [
                    f"{ms / dense:.3f}" if ms and dense else ""
                    for ms in (cells.ms(case, "netsum-on"), cells.ms(case, "netsum-auto"))
                ]
                + [number(auto["first_ms"][0]) if auto and auto["first_ms"] else ""]
                + [number(on["cpu_ms"] / on["cores"]) if on.get("cpu_ms") else ""]
            )
        parts.append(f"#### {heading}\n\n{markdown(headings, rows)}")
    return "\n\n".join(parts) or NOTHING


def plots(records):
    """Each case's median time against its bound, beside the bound and 1.15 times the bound."""
    cells = Cells(records)

    def draw(figure):
        axes = figure.add_subplot()
        bounds = []
        for system, (name, marker, colour) in PLOTTED.items():
            points = []
            for case in cells.cases():
                bound, ms = bound_ms(cells.first[case]["model"]["netsum"], case[0]), cells.ms(case, system)
                if bound and ms and case[1] == 8:
                    points.append((bound, ms))
            bounds += [bound for bound, _ in points]
            if points:
                axes.plot(*zip(*sorted(points), strict=True), marker, label=name, color=colour, markersize=4)
        if bounds:
            ends = [min(bounds), max(bounds)]
            axes.plot(ends, ends, color="black", linewidth=0.8, label="the bound")
            axes.plot(
                ends,
                [1.15 * end for end in ends],
                color="black",
                linewidth=0.8,
                linestyle=":",
                label="1.15 x the bound",
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set(xlabel="bound of the byte model, ms", ylabel="time of the slowest rank, median, ms", title="8 workers")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=7)

    yield plot(draw)
