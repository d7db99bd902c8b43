"""Figures of the benchmarks of compression from their records: tables, and the loss on the way."""

import matplotlib

from netsum_bench.labs.training import BASE, GENERATED
from netsum_bench.report import NOTHING, by_rate, markdown, median, number, plot, range_text, rate_text

PLACE = ("rate", "model", "workers", "steps", "parameters")
# A loss is within noise of the base's if it is not further above than this, or than the base's losses are apart with other seeds.
NOISE_RELATIVE, NOISE_ABSOLUTE = 0.01, 0.02
PAYS = 1.05  # times as soon at the loss of the base: less is no reason to compress


def places(records):
    """(place, {system: its records}) of all that ended well."""
    found = {}
    for record in records:
        if "curve" in record:
            found.setdefault(tuple(record[field] for field in PLACE), {}).setdefault(record["system"], []).append(
                record
            )
    rank = lambda item: (by_rate(item[0][0]), item[0][1], -item[0][2])
    return sorted(found.items(), key=rank)


def place_text(place):
    rate, model, workers, steps, parameters = place
    return f"{model}, {parameters / 1e6:.2f} million parameters, {workers} workers, {rate_text(rate)}, {steps} steps"


def within_noise(of_system, of_base):
    """Whether the loss after equal steps is as good as the base's, by the medians over the seeds."""
    ours, base = ([after_steps(record)["loss"] for record in records] for records in (of_system, of_base))
    allowed = max(NOISE_ABSOLUTE, NOISE_RELATIVE * median(base), max(base) - min(base))
    return median(ours) <= median(base) + allowed


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
    """The median of the seconds to the loss that the base has after equal steps; with how many seeds have reached it,
    if not all."""
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
        number(over("reduction_ms", of_system)) if all("reduction_ms" in r for r in of_system) else "",
        number(over("step_ms", of_system)),
        f"{over('step_ms', of_base) / over('step_ms', of_system):.2f}" if of_base else "",
        range_text([point["loss"] for point in steps], "{:.3f}"),
        ("yes" if within_noise(of_system, of_base) else "NO") if of_base else "",
        range_text([point["accuracy_percent"] for point in steps], "{:.1f}"),
        range_text([point["loss"] for point in timed], "{:.3f}") if timed else "",
        range_text([point["accuracy_percent"] for point in timed], "{:.1f}") if timed else "",
        time_to_loss(of_system, base_of),
    ]


HEADINGS = ["system", "seeds", "sent B/B", "encode ms", "decode ms", "reduction ms", "step ms", "speed-up"]
HEADINGS += [
    "loss, equal steps",
    "within noise",
    "accuracy %",
    "loss, equal time",
    "accuracy %",
    f"s to the loss of {BASE}",
]


def table(records):
    parts = []
    for place, systems in places(records):
        base = systems.get(BASE, [])
        rows = [row(system, of_system, base) for system, of_system in systems.items()]
        parts.append(f"#### {place_text(place)}\n\n{markdown(HEADINGS, rows)}")
    return "\n\n".join([*parts, *left_out(records)] if parts else [NOTHING])


def left_out(records):
    """Sentences about what a budget had no time for, and nothing has measured since; and about what failed."""
    name = lambda record: tuple(record.get(field) for field in ("rate", "workers", "model", "seed", "system"))
    measured = {name(record) for record in records if "reduction_ms" in record or "curve" in record}
    missing = {}
    for record in records:
        for one in record.get("left_out", []):
            if name(one) not in measured:
                *where, seed, system = name(one)
                missing.setdefault(tuple(where), {}).setdefault(system, []).append(str(seed))
    said = []
    for (rate, workers, model), systems in missing.items():
        by_seeds = {}
        for system, seeds in systems.items():
            by_seeds.setdefault(tuple(seeds), []).append(system)
        has = {one[3] for one in measured if one[:3] == (rate, workers, model)}
        for seeds, of_seeds in by_seeds.items():
            names = ", ".join(of_seeds) if any(int(seed) in has for seed in seeds) else f"{len(of_seeds)} systems"
            count = "seed" if len(seeds) == 1 else "seeds"
            said.append(f"- {model}, {workers} workers, {rate_text(rate)}, {count} {', '.join(seeds)}: {names}")
    parts = ["Left out, since the budget was spent:\n\n" + "\n".join(said)] if said else []
    failed = [
        f"- {r['model']}, {r['workers']} workers, {rate_text(r['rate'])}, seed {r['seed']}, {r['system']}: {r['failed'].splitlines()[-1]}"
        for r in records
        if "failed" in r and name(r) not in measured
    ]
    return parts + (["Failed:\n\n" + "\n".join(failed)] if failed else [])


REDUCTION_HEADINGS = ["system", "sent B/B", "times fewer bytes", "encode ms", "decode ms", "reduction ms"]
REDUCTION_HEADINGS += [f"times as fast as {BASE}", "as Gloo"]


def reductions(records):
    """The reductions of generated gradients: bytes and times, and what they are to uncompressed ones."""
    found = {}
    for record in records:
        if record.get("model") == GENERATED and "reduction_ms" in record:
            found.setdefault((record["rate"], record["workers"], record["parameters"]), {})[record["system"]] = record
    parts = []
    for (rate, workers, parameters), systems in sorted(
        found.items(), key=lambda item: (by_rate(item[0][0]), -item[0][1])
    ):
        against = lambda field, of, other: f"{field(systems[other]) / field(of):.2f}" if other in systems else ""  # noqa: B023
        rows = [
            [
                system,
                f"{sent_bytes(record) / (4 * parameters):.3f}",
                against(sent_bytes, record, BASE),
                *(
                    "" if record[f"{part}_ms"] is None else number(record[f"{part}_ms"])
                    for part in ("encode", "decode")
                ),
                spread_text(record["reduction_ms"]),
                against(reduction_ms, record, BASE),
                against(reduction_ms, record, "gloo"),
            ]
            for system, record in systems.items()
        ]
        title = f"#### {4 * parameters >> 20} MiB of generated gradients, {workers} workers, {rate_text(rate)}"
        parts.append(f"{title}\n\n{markdown(REDUCTION_HEADINGS, rows)}")
    return "\n\n".join(parts) or NOTHING


def sent_bytes(record):
    return record["reduction_bytes"]


def reduction_ms(record):
    return record["reduction_ms"]["median"]


def spread_text(spread):
    return f"{number(spread['median'])} ({number(spread['low'])} - {number(spread['high'])})"


CHOICE_HEADINGS = [
    "training",
    "advice",
    f"soonest at the loss of {BASE}",
    "sooner",
    "fastest step within noise",
    "faster",
]
CHOICE_HEADINGS += ["fastest step of all", "faster", f"{BASE} over Gloo without compression"]


def choice(records):
    """For every place, what has paid: the soonest at the base's loss and the fastest, of netsum's methods."""
    rows = []
    for place, systems in places(records):
        if BASE not in systems:
            continue
        base = systems[BASE]
        base_of = {record["seed"]: record for record in base}
        target_s = median([after_steps(record)["s"] for record in base])
        step = {name: median([r["step_ms"]["median"] for r in of]) for name, of in systems.items()}
        soonest = {}
        for name, of in systems.items():
            compared = [r for r in of if r["seed"] in base_of]
            reached = [seconds_to(r, after_steps(base_of[r["seed"]])["loss"]) for r in compared]
            if compared and None not in reached and not name.startswith("gloo"):
                soonest[name] = median(reached)
        ours = [name for name in systems if not name.startswith("gloo")]
        good = [name for name in ours if within_noise(systems[name], base)]
        first = min(soonest, key=soonest.get)
        fastest_good, fastest = min(good, key=step.get), min(ours, key=step.get)
        sooner = target_s / soonest[first]
        rows.append(
            [
                place_text(place),
                f"`{first}`" if first != BASE and sooner >= PAYS else "none",
                first,
                f"{sooner:.2f}",
                fastest_good,
                f"{step[BASE] / step[fastest_good]:.2f}",
                fastest,
                f"{step[BASE] / step[fastest]:.2f}",
                f"{step['gloo'] / step[BASE]:.2f}" if "gloo" in step else "",
            ]
        )
    return markdown(CHOICE_HEADINGS, rows, 2) if rows else NOTHING


def plots(records):
    """Held-out loss against the time of training: the first seed of every place."""
    found = places(records)
    columns = min(3, max(1, len(found)))
    lines = max(1, -(-len(found) // columns))

    def draw(figure):
        colours = matplotlib.colormaps["tab20"].colors
        names = list(dict.fromkeys(system for _, systems in found for system in systems))
        for index, ((rate, model, workers, *_), systems) in enumerate(found):
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

    yield plot(draw, (4.2 * columns, 3.4 * lines))
