"""Figures of the benchmarks of compression from their records: tables, and the loss on the way."""

import matplotlib
from matplotlib.figure import Figure

from netsum_bench.figures import markdown, median, number, range_text
from netsum_bench.rack_report import rate_bits, rate_text
from netsum_bench.sparse_report import SVG

PLACE = ("rate", "model", "workers", "steps")
BASE = "netsum"

THRESHOLDS_HEADINGS = ["model", "wanted", "method", "sent / wanted", "10 % - 90 %", "least - most", "from 0.95 to 1.05"]


def thresholds_table(records):
    rows = [
        [
            r["model"],
            f"{100 * r['ratio']:g} %",
            r["method"],
            f"{r['median']:.3f}",
            f"{r['low']:.2f} - {r['high']:.2f}",
            f"{r['least']:.2f} - {r['most']:.2f}",
            f"{100 * r['near']:.1f} %",
        ]
        for r in sorted(records, key=lambda r: (r["model"], -r["ratio"]))
    ]
    return markdown(THRESHOLDS_HEADINGS, rows, 3)


def places(records):
    """(place, {system: its records}) of all that ended well."""
    found = {}
    for record in records:
        if "curve" in record:
            found.setdefault(tuple(record[field] for field in PLACE), {}).setdefault(record["system"], []).append(
                record
            )
    rank = lambda item: (rate_bits(item[0][0]) or float("inf"), item[0][1], -item[0][2])
    return sorted(found.items(), key=rank)


def after_steps(record):
    """The point of the curve at the steps that all have trained."""
    return next(point for point in record["curve"] if point["step"] == record["steps"])


def after_time(record, seconds):
    """The last point of the curve that was reached within the time; None if none was."""
    return max((point for point in record["curve"] if point["s"] <= seconds), key=lambda p: p["step"], default=None)


def seconds_to(record, loss):
    """When the curve first reached the loss; None if it never did."""
    return next((point["s"] for point in record["curve"] if point["loss"] <= loss), None)


def time_to_loss(of_system, base_of):
    """The median of the seconds to the loss that the base has after equal steps; with how many seeds have reached it, if not all."""
    compared = [r for r in of_system if r["seed"] in base_of]
    reached = [seconds_to(r, after_steps(base_of[r["seed"]])["loss"]) for r in compared]
    found = [seconds for seconds in reached if seconds is not None]
    if not compared:
        return ""
    if not found:
        return "not reached"
    return number(median(found)) + (f" ({len(found)} of {len(compared)})" if len(found) < len(compared) else "")


def row(system, of_system, of_base):
    """A row of the table. Times are medians over the seeds; losses have the least and the greatest."""
    base_of = {record["seed"]: record for record in of_base}
    over = lambda name, of: median([r[name]["median"] for r in of])
    mean_ms = lambda name: [r[name] for r in of_system if r.get(name) is not None]
    steps = [after_steps(r) for r in of_system]
    timed = [after_time(r, after_steps(base_of[r["seed"]])["s"]) for r in of_system if r["seed"] in base_of]
    timed = [point for point in timed if point]
    full = 4 * of_system[0]["parameters"]
    return [
        system,
        str(len(of_system)),
        f"{median([r['sent_bytes_per_step'] for r in of_system]) / full:.3f}",
        number(median(mean_ms("encode_ms"))) if mean_ms("encode_ms") else "",
        number(median(mean_ms("decode_ms"))) if mean_ms("decode_ms") else "",
        number(over("reduction_ms", of_system)),
        number(over("step_ms", of_system)),
        f"{over('step_ms', of_base) / over('step_ms', of_system):.2f}" if of_base else "",
        range_text([point["loss"] for point in steps], "{:.3f}"),
        range_text([point["accuracy_percent"] for point in steps], "{:.1f}"),
        range_text([point["loss"] for point in timed], "{:.3f}") if timed else "",
        range_text([point["accuracy_percent"] for point in timed], "{:.1f}") if timed else "",
        time_to_loss(of_system, base_of),
    ]


HEADINGS = ["system", "seeds", "sent B/B", "encode ms", "decode ms", "reduction ms", "step ms", "speed-up"]
HEADINGS += ["loss, equal steps", "accuracy %", "loss, equal time", "accuracy %", f"s to the loss of {BASE}"]


def table(records):
    parts = []
    for (rate, model, workers, steps), systems in places(records):
        base = systems.get(BASE, [])
        rows = [row(system, of_system, base) for system, of_system in systems.items()]
        parts.append(f"#### {model}, {workers} workers, {rate_text(rate)}, {steps} steps\n\n{markdown(HEADINGS, rows)}")
    return "\n\n".join(parts) or "*Nothing to compare yet.*"


def write_plot(records, path):
    """Held-out loss against the time of training: the first seed of every place."""
    found = places(records)
    columns = min(3, max(1, len(found)))
    lines = max(1, -(-len(found) // columns))
    with matplotlib.rc_context(SVG):
        figure = Figure(figsize=(4.2 * columns, 3.4 * lines), layout="constrained")
        colours = matplotlib.colormaps["tab20"].colors
        names = list(dict.fromkeys(system for _, systems in found for system in systems))
        for index, ((rate, model, workers, _), systems) in enumerate(found):
            axes = figure.add_subplot(lines, columns, index + 1)
            for system, of_system in systems.items():
                points = [(point["s"], point["loss"]) for point in of_system[0]["curve"]]
                colour = colours[names.index(system) % len(colours)]
                style = "--" if system.startswith("gloo") else "-"
                axes.plot(*zip(*points, strict=True), style, marker=".", markersize=3, color=colour, label=system)
            axes.set(
                xlabel="s of training", ylabel="held-out loss", title=f"{model}, {workers} workers, {rate_text(rate)}"
            )
            axes.grid(alpha=0.3)
            axes.legend(fontsize=6)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def cost_table(records):
    """Of the microbenchmark: seconds of a core for a gigabyte of float32."""
    found = {}
    for record in records:
        if record["benchmark"] == "compression":
            found.setdefault(record["case"], []).append(1e9 / record["bytes_per_second"])
    rows = [[case, range_text(seconds, "{:.2f}")] for case, seconds in found.items()]
    return markdown(["method", "s per GB and core"], rows)
