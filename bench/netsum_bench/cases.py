"""What can be measured: every case, what it compares, and the columns of its tables.

A new case is an entry here, with a lab (labs/) that measures its turns: one for racks and one for commands serve most. A table is a
report.Table or, if it is more than rows and columns, a function of tables/. A sentence in docs/results.md, or the page that quotes the
figures, says what they mean. The order is that of importance: with a budget, `make results` leaves out what comes last.
"""

import dataclasses
import functools
import os

from netsum_bench.labs import commands, jobs, profile, racks, sparse, training
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
from netsum_bench.runner import Case
from netsum_bench.sparse_inputs import DENSITIES, OVERLAPS, SELECTIONS, UNITS
from netsum_bench.systems import COMPRESSED, SYSTEMS
from netsum_bench.tables import compression, controller, micro
from netsum_bench.tables import racks as of_racks
from netsum_bench.tables import sparse as of_sparse

KI, MI = 1 << 10, 1 << 20
ROUNDS_OF = lambda count: list(range(count))
ALL_CPUS = os.cpu_count() or 1


# --- All-reduces in racks. Every worker is a network namespace with its own link to the switch.

EQUAL = ["netsum-user", "netsum-shards", "gloo", "openmpi"]
RACK = Case(
    "rack",
    "How long does an all-reduce take with netsum, Gloo and Open MPI?",
    racks.rack,
    {
        "workers": [8, 4, 2],
        "rate": ["100mbit", "1gbit", "none"],
        "mtu": [1500],
        "cores": [racks.cores_of_daemon()],
        "bytes": [4 * KI, 64 * KI, MI, 16 * MI],
        "round": ROUNDS_OF(3),
        "system": [
            *("netsum-user", "netsum-xdp", "netsum-mix", "netsum-shards", "gloo", "openmpi"),
            *("netsum-user-bfloat16", "gloo-bfloat16"),
        ],
    },
    place=("workers", "rate", "mtu", "cores"),
    minutes=16,
    help={"cores": "threads of the daemon in the switch: a quarter of the machine's cores"},
    known={"system": [name for name in SYSTEMS if not name.endswith("-memory")]},
    key=("rate", "workers", "bytes", "system"),
    quick={"workers": [4], "rate": ["100mbit", "none"], "bytes": [4 * KI, MI], "round": [0]},
    full={"workers": [8, 4, 2, 16], "bytes": [4 * KI, 64 * KI, MI, 16 * MI, 64 * MI]},
    tables={
        "rack": of_racks.tables,
        "rack:systems": functools.partial(of_racks.by_system, counts=(8,)),
        "rack:links": of_racks.link_table,
        "rack:headline": of_racks.headline,
        "rack:papers": of_racks.papers,
    },
    plots=of_racks.plots,
)


def in_racks(name, question, minutes, system, table, **axes):
    """A case of the rack that compares other systems; `table`: of the case, if it is another one."""
    more = {field: axes.pop(field) for field in ("least_cores", "only_full") if field in axes}
    tables = table if isinstance(table, dict) else {name: table}
    axes = {**RACK.axes, "system": system, **axes}
    return dataclasses.replace(
        RACK, name=name, question=question, minutes=minutes, axes=axes, tables=tables, quick={}, full={}, **more
    )


DOOR = {"workers": [8], "rate": ["100mbit"], "bytes": [4 * KI, MI, 16 * MI]}
MANY_COUNTS = functools.partial(of_racks.by_system, counts=(2, 4, 8))
LANES = ["netsum-user", "netsum-xdp", "netsum-user-lanes8", "netsum-xdp-lanes8", "gloo", "openmpi"]
VARIANTS = ["netsum-user", "netsum-user-multicast", "netsum-user-af_xdp", "netsum-xdp", "netsum-xdp-af_xdp"]
COMPRESSIONS = ["netsum-user", "gloo", "openmpi", *COMPRESSED]


# --- What rows and columns suffice for


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
        ("ms without", ranges("time_us", "{:.3g}", 1e-3, **WITHOUT)),
        ("ms with", ranges("time_us", "{:.3g}", 1e-3, **WITH)),
        ("time", changes("time_us", WITHOUT, WITH)),
        ("CPU of ranks", changes("cpu_ms", WITHOUT, WITH)),
    ],
    wanted=lambda row: row.select(**WITH).values("time_us") and row.select(**WITHOUT).values("time_us"),
    order=lambda row: (row["workers"], row["bytes"]),
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


# --- The cases


def trainings(name, question, minutes, model, system, **more):
    """Trainings of the demo's models in racks."""
    return Case(
        name,
        question,
        training.training,
        {
            "model": model,
            "rate": ["100mbit", "1gbit"],
            "workers": [8],
            "steps": [0],
            "seed": [1],
            "round": [0],
            "system": system,
        },
        minutes=minutes,
        help={
            "steps": "of every training; 0: what the model needs",
            "system": "the first is what others are compared with",
        },
        known={"model": list(training.STEPS), "system": list(training.TRAINED)},
        adapt=training.that_trains,
        shows="step_ms",
        unit="ms a step",
        key=("model", "workers", "rate", "system"),
        check=training.disagreements,
        tables={name: training_table},
        needs=("root", "package"),
        **more,
    )


_ALL = [
    RACK,
    Case(
        "shares",
        "How close to the optimum of its plan is every placement of aggregators?",
        racks.shares,
        {
            "workers": [8],
            "rate": ["100mbit"],
            "bytes": [16 * MI],
            "round": ROUNDS_OF(3),
            "system": [*racks.PLACEMENTS, *racks.PLACED_PEERS],
        },
        place=("workers", "rate"),
        minutes=9,
        adapt=racks.in_one_round,
        tables={"shares": of_racks.shares},
    ),
    Case(
        "sparse",
        "How long does an all-reduce of a tensor take that is mostly zero?",
        sparse.sparse,
        {
            "workers": [8, 4],
            "rate": ["100mbit"],
            "dataplane": ["user"],
            "selection": ["essential"],
            "count": [0],
            "pattern": list(UNITS),
            "overlap": list(OVERLAPS),
            "density": list(DENSITIES),
            "system": list(sparse.SYSTEMS),
        },
        place=("workers", "rate", "dataplane"),
        minutes=15,
        help={
            "selection": "cases, the most important ones first",
            "count": "elements of all tensors, a multiple of 256; 0: those of the selection",
            **dict.fromkeys(("pattern", "overlap", "density"), "of the selection's, only these"),
        },
        known={"dataplane": ["user", "xdp"], "selection": list(SELECTIONS)},
        turns=sparse.turns,
        key=("rate", "workers", "count", "pattern", "overlap", "density", "system"),
        full={"selection": ["full"]},
        tables={"sparse": of_sparse.table, "sparse:index": of_sparse.index_table},
        plots=of_sparse.plots,
        needs=("netsum", "root", "package"),
    ),
    Case(
        "collectives",
        "How long do other collectives take, and how close are they to the bound?",
        racks.collectives,
        {
            "workers": [8],
            "rate": ["100mbit"],
            "collective": list(racks.COLLECTIVES),
            "bytes": [16 * MI, 4 * KI],
            "round": ROUNDS_OF(2),
            "system": ["netsum-xdp", "netsum-user", "gloo", "openmpi"],
        },
        place=("workers", "rate", "collective"),
        minutes=11,
        adapt=racks.without_size,
        tables={"collectives": of_racks.collectives},
    ),
    Case(
        "one-host",
        "How long does an all-reduce of ranks on one host take?",
        racks.one_host,
        {
            "rate": ["host"],
            "workers": [4, 8],
            "bytes": [KI, 4 * KI, 64 * KI, MI, 16 * MI, 64 * MI],
            "round": ROUNDS_OF(3),
            "system": ["netsum-memory", "openmpi-memory", "netsum-user", "netsum-shards", "gloo"],
        },
        place=("workers", "rate"),
        minutes=5,
        tables={
            "one-host": of_racks.tables,
            "one-host:headline": of_racks.one_host_headline,
            "one-host:systems": of_racks.by_system,
        },
        plots=of_racks.plots,
        needs=("netsum",),
    ),
    in_racks(
        "mpi",
        "What does MPI_Allreduce gain by the component of Open MPI?",
        3.5,
        ["netsum-user", "netsum-mpi", "openmpi"],
        of_racks.mpi,
        **DOOR,
    ),
    in_racks("lanes8", "What do 8-bit lanes gain over 32-bit ones?", 6, LANES, of_racks.lanes8, **DOOR),
    in_racks(
        "nccl",
        "What does an all-reduce through NCCL's CollNet table take?",
        2,
        ["netsum-user", "netsum-nccl"],
        of_racks.nccl,
        **DOOR,
    ),
    in_racks(
        "compressed",
        "How long does an all-reduce of tensors take that the workers compress?",
        5,
        COMPRESSIONS,
        of_racks.compressed,
        **{**DOOR, "bytes": [16 * MI]},
    ),
    in_racks(
        "rack-9000",
        "How long does an all-reduce take in frames of 9000 bytes?",
        2,
        EQUAL,
        {"rack-9000": of_racks.tables, "rack-9000:systems": MANY_COUNTS},
        rate=["none"],
        mtu=[9000],
        bytes=[MI, 16 * MI],
    ),
    in_racks(
        "rack-16-cores",
        "How long does an all-reduce take where every worker has a core?",
        3,
        [*EQUAL, "netsum-xdp"],
        {"rack-16-cores": of_racks.tables, "rack-16-cores:systems": MANY_COUNTS},
        rate=["none"],
        bytes=[4 * KI, MI, 16 * MI],
        least_cores=16,
    ),
    "one-host-16-cores",
    in_racks(
        "compressed-16-cores",
        "The same as compressed, where every worker has a core",
        3,
        COMPRESSIONS,
        of_racks.compressed,
        least_cores=16,
        **{**DOOR, "bytes": [16 * MI]},
    ),
    trainings(
        "training",
        "How long does a step of training take with Gloo and with netsum, and is the result the same?",
        4,
        ["lm"],
        ["gloo", "netsum-xdp"],
        full={"model": ["digits", "lm"], "workers": [4, 8]},
    ),
    trainings(
        "fsdp",
        "How long does a step of training by FSDP2 take?",
        6,
        ["lm"],
        ["gloo-fsdp", "gloo-fsdp-overlap", "netsum-user-fsdp", "netsum-user-fsdp-overlap"],
        full={"rate": ["100mbit"]},
    ),
    trainings(
        "recommender",
        "How long does a step of training take with sparse gradients?",
        5,
        ["recommender"],
        ["gloo", "gloo-sparse", "netsum-xdp", "netsum-xdp-sparse"],
        full={"workers": [4, 8]},
    ),
    Case(
        "loss",
        "How much goodput remains if every link loses packets?",
        racks.loss,
        {
            "workers": [8],
            "rate": ["100mbit"],
            "bytes": [4 * MI],
            "round": ROUNDS_OF(3),
            "loss": [0.0, 0.001, 0.01, 0.05],
            "system": ["netsum-user", "netsum-xdp", "gloo"],
        },
        place=("workers", "rate"),
        minutes=3,
        key=("loss", "system", "workers", "rate"),
        full={"bytes": [16 * MI]},
        tolerates=("gloo",),
        tables={"loss": LOSS},
    ),
    Case(
        "failures",
        "How soon is a failure known, and how long is an aggregator's loss felt?",
        jobs.failures,
        {
            "workers": [8],
            "rate": ["1gbit"],
            "dataplane": ["user", "xdp"],
            "bytes": [256 * KI],
            "scenario": list(jobs.SCENARIOS),
            "round": ROUNDS_OF(3),
        },
        place=("workers", "rate", "dataplane"),
        minutes=4,
        shows="seconds",
        unit="s",
        key=("scenario", "dataplane"),
        tables={"failures": FAILURES},
    ),
    Case(
        "jobs",
        "How evenly do jobs share an aggregator, and what becomes of those that find no room?",
        jobs.jobs,
        {
            "rate": ["100mbit", "none"],
            "jobs": [4],
            "bytes": [MI],
            "iterations": [30],
            "round": ROUNDS_OF(3),
            "what": ["alone", "together", "wait", "hosts"],
        },
        place=("rate", "jobs"),
        minutes=1.5,
        help={"jobs": "at once, of two workers each", "iterations": "sums of each job"},
        shows="slowest_s",
        unit="s",
        key=("rate", "what"),
        tables={"jobs": JOBS},
    ),
    Case(
        "floods",
        "What does a flood take from a job at the same aggregator?",
        jobs.floods,
        {
            "dataplane": ["user", "xdp"],
            "flood": [300_000, 0],
            "quota": [300_000],
            "bytes": [200_000],
            "iterations": [200],
            "deadline": [20],
            "round": ROUNDS_OF(3),
            "arm": jobs.ARMS,
        },
        place=("dataplane",),
        minutes=2,
        help={
            "flood": "packets per second, or 0 for as many as one thread can send",
            "quota": "packets per second of a job, where it has one",
            "deadline": "seconds after which a turn counts as 0",
        },
        shows="sums_per_s",
        unit="sums/s",
        key=("dataplane", "flood", "arm"),
        tables={"floods": FLOODS},
    ),
    Case(
        "simulation",
        "What do random simulated runs with faults find?",
        commands.capture("netsum", "simulate"),
        {"runs": [20_000]},
        minutes=1.5,
        key=("what",),
        tables={"simulation": said},
        needs=("netsum",),
    ),
    Case(
        "chaos",
        "Does a training survive ten minutes of injected faults?",
        commands.capture(".venv/bin/python", "tests/chaos/chaos.py"),
        {"seed": [1]},
        minutes=11,
        key=("what",),
        tables={"chaos": said},
        needs=("root", "package"),
        only_full=True,
    ),
    in_racks(
        "variants",
        "What do multicast and AF_XDP gain?",
        4,
        VARIANTS,
        of_racks.tables,
        workers=[4, 2],
        rate=["none"],
        bytes=[4 * KI, 16 * MI],
        only_full=True,
    ),
    Case(
        "compression",
        "What does compression of gradients cost and give?",
        training.compression,
        {
            "workers": [8, 4],
            "rate": ["100mbit", "1gbit", "none"],
            "dataplane": ["user"],
            "model": list(training.COMPRESSED_STEPS),
            "seed": [1, 2, 3],
            "steps": [0],
            "system": list(training.COMPRESSED),
        },
        minutes=30,
        help={"steps": "that all train; 0: what the model needs"},
        known={"dataplane": ["user", "xdp"]},
        turns=training.compression_turns,
        shows="reduction_ms",
        unit="ms a reduction",
        key=("rate", "model", "workers", "seed", "system"),
        quick={
            "model": ["generated", "digits"],
            "system": ["netsum", "gloo-fp16", "netsum-topk-1%"],
            "workers": [4],
            "rate": ["100mbit"],
            "seed": [1],
            "steps": [100],
        },
        tables={
            "compression": compression.table,
            "compression:reductions": compression.reductions,
            "compression:choice": compression.choice,
        },
        plots=compression.plots,
        needs=("root", "package"),
    ),
    Case(
        "thresholds",
        "How many elements does a threshold let pass?",
        training.thresholds,
        {"model": ["digits", "lm", "lm-wide"], "steps": [0], "seed": [1], "ratio": [0.1, 0.01, 0.001]},
        minutes=3,
        help={"steps": "of every training, more than 10; 0: what the model needs", "ratio": "wanted shares"},
        joint=("ratio",),
        shows="median",
        unit="of the wanted",
        key=("model", "method", "ratio"),
        tables={"thresholds": THRESHOLDS},
        needs=("package",),
    ),
    Case(
        "verify",
        "What do verified sums cost?",
        commands.verify,
        {
            "workers": [8],
            "bytes": [16 * MI],
            "iterations": [6],
            "round": ROUNDS_OF(9),
            "mode": ["packet", "both", "sum"],
        },
        minutes=3,
        shows="ranks_cpu_ms",
        unit="ms of CPU",
        key=("workers", "bytes", "mode"),
        tables={"verify": VERIFY},
        needs=("netsum",),
    ),
    Case(
        "predict",
        "What do predicted scales gain and cost?",
        commands.predict,
        {
            "workers": [4],
            "round": ROUNDS_OF(7),
            "bytes": [4 * KI, 64 * KI, MI, 16 * MI],
            "data": ["steady", "normal", "varied"],
            "predict": [False, True],
        },
        minutes=5,
        shows="time_us",
        unit="us",
        tables={"predict": PREDICT},
        needs=("netsum",),
    ),
    Case(
        "lies",
        "Which false results of aggregators reach a rank, and which are noticed?",
        commands.lies,
        {"runs": [1_000_000], "seed": [1], "piece": [10_000], "jobs": [ALL_CPUS]},
        minutes=20,
        help={"runs": "simulated", "piece": "runs between two reports", "jobs": "threads"},
        shows="runs",
        unit="runs, nothing wrong",
        key=("what",),
        tables={"lies": lies_table},
        needs=("netsum",),
    ),
    Case(
        "controller",
        "What does the controller of compression cost over the best level of each phase?",
        training.controller,
        {
            "workers": [4],
            "dataplane": ["user"],
            "trace": [""],
            "rate": ["1gbit", "100mbit", "10gbit", "300mbit", "3gbit"],
            "steps": [80],
            "system": list(training.CONTROLLED),
        },
        place=("workers", "dataplane", "trace"),
        minutes=6,
        help={
            "rate": "of the phases",
            "steps": "of a phase",
            "trace": "file for the controller's trace: netsum compression replay",
        },
        known={"dataplane": ["user", "xdp"]},
        joint=("system",),
        shows="step_ms",
        unit="ms a step",
        key=("workers", "phase", "system"),
        quick={"workers": [2], "rate": ["10gbit", "200mbit"], "steps": [20]},
        tables={"controller": controller.table},
        plots=controller.plots,
        needs=("netsum", "root", "package"),
    ),
    Case(
        "hooks",
        "What does the hook of compression in C++ gain over the same in Python?",
        training.hooks,
        {
            "workers": [4],
            "steps": [40],
            "load": ["quiet", "busy"],
            "method": list(training.HOOKED),
            "hook": ["Python", "C++"],
        },
        place=("workers",),
        minutes=4,
        help={"steps": "of each hook"},
        joint=("hook",),
        shows="step_ms",
        unit="ms a step",
        key=("workers", "load", "method", "hook"),
        quick={"steps": [training.HOOKS_TURN]},
        tables={"hooks": HOOKS},
        needs=("package",),
    ),
    Case(
        "profile",
        "Where does the processor time of a gigabyte go?",
        profile.profile,
        {"case": list(profile.CASES), "bytes": [16 * MI], "iterations": [40], "keep": [0]},
        minutes=1.5,
        help={"keep": "1: perf's data, beside the flame graphs in build/profile", "iterations": "sums"},
        shows="s_per_gb",
        unit="s per GB",
        key=("case",),
        tables={"profile": profile.tables},
        needs=("netsum", "root", "perf"),
    ),
    Case(
        "micro",
        "How long do the parts take: kernels, tags, the planner, sockets, the XDP program?",
        commands.micro,
        {
            "benchmark": [name for name in commands.TARGETS if name != "xdp" or os.geteuid() == 0],
            "repetitions": [9],
        },
        minutes=1,
        shows="cpu_ns",
        unit="ns",
        key=("benchmark",),
        tables={f"micro:{name}": table for name, table in micro.TABLES.items()},
        needs=(),
    ),
]
ONE_HOST = next(case for case in _ALL if getattr(case, "name", "") == "one-host")
_ALL[_ALL.index("one-host-16-cores")] = dataclasses.replace(
    ONE_HOST,
    name="one-host-16-cores",
    question="The same as one-host, where every rank has a core",
    axes={**ONE_HOST.axes, "system": ["netsum-memory", "openmpi-memory"]},
    minutes=2,
    tables={"one-host-16-cores": of_racks.tables},
    least_cores=16,
)
CASES = {case.name: case for case in _ALL}
