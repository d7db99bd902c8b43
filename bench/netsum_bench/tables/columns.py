"""Tables that are rows and columns (report.Table), and simple ones: each a function of a case's records."""

import functools

from netsum_bench.labs import jobs, training
from netsum_bench.report import (
    NOTHING,
    Table,
    changes,
    jain,
    markdown,
    median,
    medians,
    number,
    range_text,
    ranges,
    rate_text,
    size_text,
    spread,
    spreads,
)
from netsum_bench.systems import SYSTEMS


def place_and(field):
    """The place of a row, and one of its fields."""
    return lambda row: f"{row['workers']} ranks, {size_text(row['bytes'])}, {row[field]}"


def relative_to_no_loss(row):
    relative = row.rounds("times_ms").rdiv(row.select(loss=0).rounds("times_ms")).dropna()
    return f"{relative.median():.3f} [{relative.min():.3f} - {relative.max():.3f}]" if len(relative) else ""


def packets_lost(row):
    lost, passed = sum(row.values("packets_lost")), sum(row.values("packets_passed"))
    return f"{lost} ({lost / max(1, lost + passed):.3%})" if lost + passed else ""


LOSS = Table(
    ("loss", "system"),
    [
        ("loss on every link", lambda row: f"{row['loss'] * 100:g} %"),
        ("system", lambda row: SYSTEMS[row["system"]].label),
        ("median [10 % - 90 %] ms", spreads("times_ms", "{:.0f}".format)),
        ("goodput relative to no loss", relative_to_no_loss),
        ("packets lost", packets_lost),
        ("wrong", lambda row: sum(row.values("wrong")) if row.values("times_ms") else ""),
        ("rounds failed", lambda row: len(row.values("failed"))),
    ],
    left=2,
    order=lambda row: (row["loss"], row["system"]),
)


def settled(row):
    """In each round."""
    found = [record["settled_after"] for record in row.records if "settled_after" in record]
    return ", ".join("never" if one is None else f"{one} sums" for one in found)


SLOW_LINK = Table(
    ("fraction", "system"),
    [
        ("left of the link", lambda row: f"{row['fraction'] * 100:g} %"),
        ("system", lambda row: SYSTEMS[row["system"]].label),
        ("bound, ms", medians("least_ms")),
        ("before, ms", ranges("before_ms")),
        ("slow, ms", ranges("slow_ms")),
        ("slow, over the bound", lambda row: f"{median(row.values('slow_ms')) / median(row.values('least_ms')):.2f}"),
        ("within 10 % after", settled),
        ("repaired, ms", ranges("after_ms")),
        ("wrong", lambda row: sum(row.values("wrong"))),
    ],
    left=2,
    wanted=lambda row: bool(row.values("slow_ms")),
)


def failed_or_ms(row):
    found, failed = row.values("seconds"), len(row.values("failed"))
    said = [range_text([s * 1e3 for s in found])] if found else []
    said += [f"{failed} of {len(row.records)} failed"] if failed else []
    return " ".join(said)


PLANES = {"user": "daemon", "xdp": "XDP"}
FAILURES = Table(
    ("scenario",),
    [("ms until the last rank knows, or goes on", lambda row: jobs.SCENARIOS[row["scenario"]][2])],
    across=("dataplane",),
    heading=PLANES.get,
    cell=failed_or_ms,
    order=lambda row: list(jobs.SCENARIOS).index(row["scenario"]),
)
FLOODS = Table(
    ("arm",),
    [("sums per second", lambda row: row["arm"])],
    across=("dataplane", "flood"),
    heading=lambda plane, flood: f"{PLANES[plane]}, {f'{flood} packets/s' if flood else 'all that one thread sends'}",
    cell=ranges("sums_per_s"),
    order=lambda row: jobs.ARMS.index(row["arm"]),
)


def of_jobs(what, value, text=range_text):
    """What `text` says of a figure of each record: of its list of jobs, and the bytes that they sum."""

    def cell(row):
        found = [value(r["jobs"], r["bytes"]) for r in row.select(what=what).records if "failed" not in r]
        flat = [v for values in found for v in (values if isinstance(values, list) else [values])]
        return text(flat) if flat else ""

    return cell


def mbit(jobs_of, size):
    return [size * 8 / job["median_s"] / 1e6 for job in jobs_of]


SECONDS = functools.partial(range_text, form="{:.1f}")
LAST = lambda jobs_of, _size: max(job["seconds"] for job in jobs_of)
JOBS = Table(
    ("rate",),
    [
        ("", lambda row: rate_text(row["rate"])),
        ("one job alone, Mbit/s of gradient", of_jobs("alone", mbit)),
        ("each of them together, Mbit/s", of_jobs("together", mbit)),
        (
            "Jain's fairness index, lowest round",
            of_jobs("together", lambda *of: jain(mbit(*of)), lambda found: f"{min(found):.4f}"),
        ),
        ("room for half, the others wait: all done after, s", of_jobs("wait", LAST, SECONDS)),
        ("room for half, the others summed by their hosts: all done after, s", of_jobs("hosts", LAST, SECONDS)),
    ],
    transposed=True,
)
VERIFY = Table(
    ("workers", "bytes", "mode"),
    [
        (
            "median (least - greatest) of the rounds",
            lambda row: f"{row['workers']} ranks, {size_text(row['bytes'])}, `{row['mode']}`",
        ),
        ("CPU ms of all ranks, per operation", ranges("ranks_cpu_ms")),
        ("to `packet`", changes("ranks_cpu_ms", {"mode": "packet"})),
        ("CPU ns of the aggregator, per packet", ranges("aggregator_ns")),
        ("to `packet`", changes("aggregator_ns", {"mode": "packet"})),
        ("packets per operation", lambda row: f"{median(row.values('packets')):.0f}"),
        ("ms per operation", ranges("time_ms")),
    ],
    wanted=lambda row: row.values("time_ms"),
    order=lambda row: (row["workers"], row["bytes"], ["packet", "both", "sum"].index(row["mode"])),
)
WITH, WITHOUT = {"predict": True}, {"predict": False}
PREDICT = Table(
    ("workers", "bytes", "data"),
    [
        ("median (least - greatest) of the rounds", place_and("data")),
        ("chunks predicted, wrong", medians("predicted", "mispredicted", **WITH)),
        ("ms without", ranges("time_us", "{:.3g}", 1e3, **WITHOUT)),
        ("ms with", ranges("time_us", "{:.3g}", 1e3, **WITH)),
        ("time", changes("time_us", WITHOUT, WITH)),
        ("CPU of ranks", changes("cpu_ms", WITHOUT, WITH)),
    ],
    wanted=lambda row: row.select(**WITH).values("time_us") and row.select(**WITHOUT).values("time_us"),
    order=lambda row: (row["workers"], row["bytes"]),
)


GROUPS = Table(
    ("elements", "system"),
    [
        ("process groups", lambda row: row["system"]),
        ("make, use, destroy: median [10 % - 90 %] ms", spreads("times_ms")),
        ("new_group", spreads("new_group_ms")),
        ("all_reduce", spreads("all_reduce_ms")),
        ("destroy", spreads("destroy_ms")),
        ("descriptors of a living group", ranges("descriptors", "{:g}")),
        ("threads", ranges("threads", "{:g}")),
        ("MiB", ranges("mib", "{:.2f}")),
    ],
    wanted=lambda row: row.values("times_ms"),
)


def step_spread(hook):
    def text(row):
        middle, low, high = map(number, spread(row.select(hook=hook).values("step_ms")))
        return f"{middle} ({low} - {high})"

    return text


def python_over_cxx(row):
    python, cxx = (median(row.select(hook=hook).values("step_ms")) for hook in ("Python", "C++"))
    return f"{python / cxx:.2f}"


HOOKS = Table(
    ("load", "method"),
    [
        ("beside it", lambda row: {"quiet": "nothing", "busy": "Python"}[row["load"]]),
        ("method", lambda row: row["method"]),
        ("Python, ms", step_spread("Python")),
        ("C++, ms", step_spread("C++")),
        ("Python / C++", python_over_cxx),
    ],
    left=2,
    wanted=lambda row: all(row.select(hook=hook).values("step_ms") for hook in ("Python", "C++")),
)


def one(form):
    """The fields of a row with one record."""
    return lambda row: form.format(**row.records[0])


THRESHOLDS = Table(
    ("model", "ratio", "method"),
    [
        ("model", lambda row: row["model"]),
        ("wanted", lambda row: f"{100 * row['ratio']:g} %"),
        ("method", lambda row: row["method"]),
        ("sent / wanted", one("{median:.3f}")),
        ("10 % - 90 %", one("{low:.2f} - {high:.2f}")),
        ("least - most", one("{least:.2f} - {most:.2f}")),
        ("from 0.95 to 1.05", lambda row: f"{100 * row.records[0]['near']:.1f} %"),
    ],
    left=3,
    wanted=lambda row: row.values("near"),
    order=lambda row: (row["model"], -row["ratio"]),
)
TRAINING = [
    ("model", "{model}"),
    ("workers", "{workers}"),
    ("rate", "{rate}"),
    ("system", "{system}"),
    ("step ms", "{step_ms:.1f}"),
    ("10 % - 90 %", "{low_ms:.1f} - {high_ms:.1f}"),
    ("speed-up", "{speed_up:.2f}"),
    ("all-reduce ms", "{allreduce_ms:.1f}"),
    ("speed-up", "{allreduce_speed_up:.2f}"),
    ("sent B/B", "{sent}"),
    ("held-out loss", "{held_out_loss:.4f}"),
    ("accuracy", "{accuracy_percent:.2f} %"),
    ("same", "{same}"),
]


def training_table(records):
    rows = []
    for row in training.training_rows(records):
        texts = {"sent": "" if row["sent"] is None else f"{row['sent']:.3f}", "same": "yes" if row["agrees"] else "NO"}
        rows.append([form.format(**{**row, **texts}) for _, form in TRAINING])
    return markdown([heading for heading, _ in TRAINING], rows, len(TRAINING))


LIES = {
    "runs": "runs",
    "sums_verified": "sums verified by ranks",
    "told": "lies told, all kinds",
    "told_upwards": "of all kinds, those of racks to their parents",
    "false_sent": "false results sent: lies, sums with flipped bits or of what racks have altered, and what racks pass on of these",
    "flipped_in_ranks": "bits flipped in what ranks have received",
    "reached": "false results that reached ranks that waited for them",
    "refused": "- refused at once",
    "scales_taken": "- false scales, taken until they were to be confirmed, before data is sent",
    "wrong_delivered": "**wrong sums delivered**",
    "false_alarms": "**right results refused (false alarms)**",
    "runs_upwards": "runs in which a rack lied to its parent",
    "runs_switches": "runs with P4 switches, as the model of their pipeline, in which false results were sent",
    "runs_without": "runs in which no false result reached a rank",
    "runs_reached": "runs in which one did",
    "alarms": "- with an alarm",
    "runs_ended": "- without: the job ended before the false scales were confirmed",
    "runs_unbalanced": "- without: the false scales were those of a correction of the stripes' weights, unconfirmed when the last operation ended",
}


def lies_table(records):
    """Of the last record: those before it are parts of it."""
    found = [r for r in records if "told" in r]
    if not found:
        return NOTHING
    counts = found[-1]
    counts = {
        **counts,
        "reached": counts["refused"] + counts["scales_taken"],
        "alarms": counts["runs_reached"] - counts["runs_ended"] - counts["runs_unbalanced"],
    }
    rows = []
    for field, title in LIES.items():
        value = counts.get(field, 0)
        rows.append([title, f"{sum(value.values()) if field == 'told' else value:,}"])
        if field == "told":
            rows += [[f"- {kind}", f"{count:,}"] for kind, count in value.items()]
    return markdown(["", ""], rows)


def said(records):
    found = [r for r in records if "lines" in r]
    return (
        "```\n$ {}\n{}\n```".format(found[-1]["command"], "\n".join(found[-1]["lines"]).strip()) if found else NOTHING
    )
