"""The table and the plot of the benchmark of the controller of compression."""

from netsum_bench.labs.training import AUTO
from netsum_bench.report import NOTHING, markdown, number, plot, rate_text

SETTLED = 20  # steps after a change, from which on "auto" should not be slower than "none"


def numbers_of_workers(records):
    return sorted({record["workers"] for record in records if "step_ms" in record})


def phases(records, workers):
    """[(rate, {system: its step times})] in order."""
    found = {}
    for record in records:
        if "step_ms" in record and record["workers"] == workers:
            found.setdefault((record["phase"], record["rate"]), {})[record["system"]] = record["step_ms"]
    return [(rate, systems) for (_, rate), systems in sorted(found.items())]


def mean(values):
    return sum(values) / len(values)


def table(records):
    tables = [f"#### {workers} workers\n\n{one_table(records, workers)}" for workers in numbers_of_workers(records)]
    return "\n\n".join(tables) or NOTHING


def one_table(records, workers):
    """Mean times; the last row has the sum of all phases: the best fixed level of each, in hindsight, and "auto"."""
    found = phases(records, workers)
    fixed = [system for system in found[0][1] if system != AUTO]
    rows, total_best, total_auto = [], 0, 0
    for rate, systems in found:
        if AUTO not in systems or any(system not in systems for system in fixed):
            continue
        best = min(fixed, key=lambda system: mean(systems[system]))
        late = mean(systems[AUTO][SETTLED:]) / mean(systems["none"][SETTLED:]) if len(systems[AUTO]) > SETTLED else None
        total_best += sum(systems[best])
        total_auto += sum(systems[AUTO])
        rows.append(
            [
                rate_text(rate),
                *(number(mean(systems[system])) for system in fixed),
                number(mean(systems[AUTO])),
                best,
                f"{mean(systems[AUTO]) / mean(systems[best]):.2f}",
                f"{late:.2f}" if late is not None else "",
            ]
        )
    if total_best:
        rows.append(["all phases", *("" for _ in fixed), "", "", f"{total_auto / total_best:.2f}", ""])
    headings = ["phase", *(f"{system}, ms" for system in fixed), "auto, ms", "best level", "auto / best"]
    return markdown([*headings, f"auto / none after {SETTLED} steps"], rows)


def plots(records):
    """The time of every step with the most workers; the phases one after the other."""

    def draw(figure):
        axes = figure.add_subplot()
        lines, at = {}, 0
        for rate, systems in phases(records, max(numbers_of_workers(records), default=0)):
            longest = max(map(len, systems.values()))
            axes.axvline(at, color="0.8", linewidth=1)
            axes.annotate(rate, (at + longest / 2, 1.01), xycoords=("data", "axes fraction"), ha="center")
            for system, times in systems.items():
                lines.setdefault(system, []).extend((at + i, ms) for i, ms in enumerate(times))
            at += longest
        for system, points in lines.items():
            width = 1.6 if system == AUTO else 0.8
            axes.plot(
                *zip(*points, strict=True), linewidth=width, color="black" if system == AUTO else None, label=system
            )
        axes.set(xlabel="step", ylabel="ms", yscale="log")
        if lines:
            axes.legend(fontsize=8)

    yield plot(draw, (8.4, 4.2))
