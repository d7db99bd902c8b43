"""What can be measured: every case, with the question that it answers, what it compares, and its tables.

A new case is an entry here, with a lab (labs/) that measures its turns: that of the rack serves most. A table is a
report.Table, whose columns can stand here, or another function of the records (tables/). A sentence in docs/results.md,
or the page that quotes the figures, says what they mean. The order is that of importance: with a budget, `make results`
leaves out what comes last.
"""

import dataclasses
import functools
import os

from netsum_bench.labs import commands, groups, jobs, profile, racks, schedules, slow_link, sparse, training, trees
from netsum_bench.runner import Case
from netsum_bench.sparse_inputs import DENSITIES, OVERLAPS, SELECTIONS, UNITS
from netsum_bench.systems import COMPRESSED, SYSTEMS
from netsum_bench.tables import columns, compression, controller, micro
from netsum_bench.tables import racks as of_racks
from netsum_bench.tables import sparse as of_sparse

KI, MI = 1 << 10, 1 << 20
ALL_CPUS = os.cpu_count() or 1


def axes(**values):
    """By record field, the values; one that is no list is the only one. `rounds`: how many turns each system has, in
    the place of the axis."""
    found = {}
    for field, value in values.items():
        if field == "rounds":
            found["round"] = list(range(value))
        else:
            found[field] = value if isinstance(value, list) else [value]
    return found


# --- All-reduces in racks. Every worker is a network namespace with its own link to the switch.

EQUAL = ["netsum-user", "netsum-shards", "gloo", "openmpi"]
RACK = Case(
    "rack",
    "How long does an all-reduce take with netsum, Gloo and Open MPI?",
    racks.rack,
    axes(
        workers=[8, 4, 2],
        rate=["100mbit", "1gbit", "none"],
        mtu=1500,
        cores=racks.cores_of_daemon(),
        bytes=[4 * KI, 64 * KI, MI, 16 * MI],
        rounds=3,
        system=[
            *("netsum-user", "netsum-xdp", "netsum-mix", "netsum-shards", "gloo", "openmpi"),
            *("netsum-user-bfloat16", "gloo-bfloat16"),
        ],
    ),
    place=("workers", "rate", "mtu", "cores"),
    minutes=16,
    help={"cores": "threads of the daemon in the switch: a quarter of the machine's cores"},
    known={"system": [name for name in SYSTEMS if not name.endswith("-memory")]},
    key=("rate", "workers", "bytes", "system"),
    quick=axes(workers=4, rate=["100mbit", "none"], bytes=[4 * KI, MI], rounds=1),
    full=axes(workers=[8, 4, 2, 16], bytes=[4 * KI, 64 * KI, MI, 16 * MI, 64 * MI]),
    tables={
        "rack": of_racks.tables,
        "rack:systems": functools.partial(of_racks.by_system, counts=(8,)),
        "rack:links": of_racks.link_table,
        "rack:headline": of_racks.headline,
        "rack:papers": of_racks.papers,
    },
    plots=of_racks.plots,
)


def in_racks(name, question, minutes, system, tables, of, **more):
    """A case of the rack with other axes `of`, which compares other systems. `tables`: a table, or several by their names."""
    return dataclasses.replace(
        RACK,
        **{"name": name, "question": question, "minutes": minutes, "quick": {}, "full": {}, **more},
        tables=tables if isinstance(tables, dict) else {name: tables},
        axes={**RACK.axes, **of, "system": system},
    )


DOOR = axes(workers=8, rate="100mbit", bytes=[4 * KI, MI, 16 * MI])
LARGE_DOOR = {**DOOR, "bytes": [16 * MI]}
MANY_COUNTS = functools.partial(of_racks.by_system, counts=(2, 4, 8))
LANES = ["netsum-user", "netsum-xdp", "netsum-user-lanes8", "netsum-xdp-lanes8", "gloo", "openmpi"]
VARIANTS = ["netsum-user", "netsum-user-multicast", "netsum-user-af_xdp", "netsum-xdp", "netsum-xdp-af_xdp"]
COMPRESSIONS = ["netsum-user", "gloo", "openmpi", *COMPRESSED]


# --- The cases


def trainings(name, question, minutes, model, system, rate=("100mbit", "1gbit"), **more):
    """Trainings of the demo's models in racks."""
    return Case(
        name,
        question,
        training.training,
        axes(model=model, rate=list(rate), workers=8, steps=0, seed=1, rounds=1, system=system),
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
        tables={name: columns.training_table},
        needs=("root", "package"),
        **more,
    )


ONE_HOST = Case(
    "one-host",
    "How long does an all-reduce of ranks on one host take?",
    racks.one_host,
    axes(
        rate="host",
        workers=[4, 8],
        bytes=[KI, 4 * KI, 64 * KI, MI, 16 * MI, 64 * MI],
        rounds=3,
        system=["netsum-memory", "openmpi-memory", "netsum-user", "netsum-shards", "gloo"],
    ),
    place=("workers", "rate"),
    minutes=5,
    tables={
        "one-host": of_racks.tables,
        "one-host:headline": of_racks.one_host_headline,
        "one-host:systems": of_racks.by_system,
    },
    plots=of_racks.plots,
    needs=("netsum",),
)

IN_ORDER = [
    RACK,
    Case(
        "shares",
        "How close to the optimum of its plan is every placement of aggregators?",
        racks.shares,
        axes(workers=8, rate="100mbit", bytes=16 * MI, rounds=3, system=[*racks.PLACEMENTS, *racks.PLACED_PEERS]),
        place=("workers", "rate"),
        minutes=7,
        adapt=racks.in_one_round,
        tables={"shares": of_racks.shares},
    ),
    Case(
        "trees",
        "How close to the time of planned trees is an all-reduce along them, in networks of any shape?",
        trees.trees,
        axes(
            fabric=list(trees.FABRICS),
            workers=8,
            rate="100mbit",
            mtu=[9000, 1500],
            bytes=16 * MI,
            rounds=3,
            system=list(trees.SYSTEMS),
        ),
        place=("fabric", "workers", "rate", "mtu"),
        minutes=12,
        help={"fabric": "racks: two, with uplinks half as fast as a host's link; cube: hosts linked directly"},
        known={"system": list(trees.SYSTEMS), "fabric": list(trees.FABRICS)},
        adapt=trees.that_can_be_linked,
        tables={"trees": trees.table},
    ),
    Case(
        "slow-link",
        "How long does an all-reduce take when the link of one worker becomes slow?",
        slow_link.slow_link,
        axes(
            workers=8,
            rate="100mbit",
            bytes=4 * MI,
            fraction=[0.75, 0.5, 0.25],
            rounds=2,
            system=[slow_link.OURS, "gloo", "openmpi"],
        ),
        place=("workers", "rate"),
        minutes=8,
        help={"fraction": "of its rate that the link has left"},
        known={"system": [slow_link.OURS, "gloo", "openmpi"]},
        key=("fraction", "system"),
        tables={"slow-link": columns.SLOW_LINK},
    ),
    Case(
        "sparse",
        "How long does an all-reduce of a tensor take that is mostly zero?",
        sparse.sparse,
        axes(
            workers=[8, 4],
            rate="100mbit",
            dataplane="user",
            selection="essential",
            count=0,
            pattern=list(UNITS),
            overlap=list(OVERLAPS),
            density=list(DENSITIES),
            system=list(sparse.SYSTEMS),
        ),
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
        full=axes(selection="full"),
        tables={"sparse": of_sparse.table, "sparse:index": of_sparse.index_table},
        plots=of_sparse.plots,
        needs=("netsum", "root", "package"),
    ),
    Case(
        "collectives",
        "How long do other collectives take, and how close are they to the bound?",
        racks.collectives,
        axes(
            workers=8,
            rate="100mbit",
            collective=list(racks.COLLECTIVES),
            bytes=[16 * MI, 4 * KI],
            rounds=2,
            system=["netsum-xdp", "netsum-user", "gloo", "openmpi"],
        ),
        place=("workers", "rate", "collective"),
        minutes=11,
        adapt=racks.without_size,
        tables={"collectives": of_racks.collectives},
    ),
    ONE_HOST,
    in_racks(
        "mpi",
        "What does MPI_Allreduce gain by the component of Open MPI?",
        3.5,
        ["netsum-user", "netsum-mpi", "openmpi"],
        of_racks.mpi,
        DOOR,
    ),
    in_racks("lanes8", "What do 8-bit lanes gain over 32-bit ones?", 6, LANES, of_racks.lanes8, DOOR),
    in_racks(
        "nccl",
        "What does an all-reduce through NCCL's CollNet table take?",
        2,
        ["netsum-user", "netsum-nccl"],
        of_racks.nccl,
        DOOR,
    ),
    in_racks(
        "compressed",
        "How long does an all-reduce of tensors take that the workers compress?",
        5,
        COMPRESSIONS,
        of_racks.compressed,
        LARGE_DOOR,
    ),
    in_racks(
        "rack-9000",
        "How long does an all-reduce take in frames of 9000 bytes?",
        2,
        EQUAL,
        {"rack-9000": of_racks.tables, "rack-9000:systems": MANY_COUNTS},
        axes(rate="none", mtu=9000, bytes=[MI, 16 * MI]),
    ),
    in_racks(
        "rack-16-cores",
        "How long does an all-reduce take where every worker has a core?",
        3,
        [*EQUAL, "netsum-xdp"],
        {"rack-16-cores": of_racks.tables, "rack-16-cores:systems": MANY_COUNTS},
        axes(rate="none", bytes=[4 * KI, MI, 16 * MI]),
        least_cores=16,
    ),
    dataclasses.replace(
        ONE_HOST,
        name="one-host-16-cores",
        question="The same as one-host, where every rank has a core",
        axes={**ONE_HOST.axes, "system": ["netsum-memory", "openmpi-memory"]},
        minutes=2,
        tables={"one-host-16-cores": of_racks.tables},
        least_cores=16,
    ),
    in_racks(
        "compressed-16-cores",
        "The same as compressed, where every worker has a core",
        3,
        COMPRESSIONS,
        of_racks.compressed,
        LARGE_DOOR,
        least_cores=16,
    ),
    trainings(
        "training",
        "How long does a step of training take with Gloo and with netsum, and is the result the same?",
        4,
        "lm",
        ["gloo", "netsum-xdp"],
        full=axes(model=["digits", "lm"], workers=[4, 8]),
    ),
    trainings(
        "fsdp",
        "How long does a step of training by FSDP2 take?",
        6,
        "lm",
        ["gloo-fsdp", "gloo-fsdp-overlap", "netsum-user-fsdp", "netsum-user-fsdp-overlap"],
        rate=["100mbit"],
        full=axes(workers=[4, 8]),
    ),
    trainings(
        "recommender",
        "How long does a step of training take with sparse gradients?",
        5,
        "recommender",
        ["gloo", "gloo-sparse", "netsum-xdp", "netsum-xdp-sparse"],
        full=axes(workers=[4, 8]),
    ),
    Case(
        "loss",
        "How much goodput remains if every link loses packets?",
        racks.loss,
        axes(
            workers=8,
            rate="100mbit",
            bytes=4 * MI,
            rounds=3,
            loss=[0.0, 0.001, 0.01, 0.05],
            system=["netsum-user", "netsum-xdp", "gloo"],
        ),
        place=("workers", "rate"),
        minutes=3,
        key=("loss", "system", "workers", "rate"),
        full=axes(bytes=16 * MI),
        tolerates=("gloo",),
        tables={"loss": columns.LOSS},
    ),
    Case(
        "failures",
        "How soon is a failure known, and how long is an aggregator's loss felt?",
        jobs.failures,
        axes(
            workers=8, rate="1gbit", dataplane=["user", "xdp"], bytes=256 * KI, scenario=list(jobs.SCENARIOS), rounds=3
        ),
        place=("workers", "rate", "dataplane"),
        minutes=4,
        shows="seconds",
        unit="s",
        key=("scenario", "dataplane"),
        tables={"failures": columns.FAILURES},
    ),
    Case(
        "jobs",
        "How evenly do jobs share an aggregator, and what becomes of those that find no room?",
        jobs.jobs,
        axes(
            rate=["100mbit", "none"],
            jobs=4,
            bytes=MI,
            iterations=30,
            rounds=3,
            what=["alone", "together", "wait", "hosts"],
        ),
        place=("rate", "jobs"),
        minutes=1.5,
        help={"jobs": "at once, of two workers each", "iterations": "sums of each job"},
        shows="slowest_s",
        unit="s",
        key=("rate", "what"),
        tables={"jobs": columns.JOBS},
    ),
    Case(
        "floods",
        "What does a flood take from a job at the same aggregator?",
        jobs.floods,
        axes(
            dataplane=["user", "xdp"],
            flood=[300_000, 0],
            quota=300_000,
            bytes=200_000,
            iterations=200,
            deadline=20,
            rounds=3,
            arm=jobs.ARMS,
        ),
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
        tables={"floods": columns.FLOODS},
    ),
    Case(
        "simulation",
        "What do random simulated runs with faults find?",
        commands.capture("netsum", "simulate"),
        axes(runs=20_000),
        minutes=1.5,
        key=("what",),
        tables={"simulation": columns.said},
        needs=("netsum",),
    ),
    Case(
        "chaos",
        "Does a training survive ten minutes of injected faults?",
        commands.capture(".venv/bin/python", "tests/chaos/chaos.py"),
        axes(seed=1),
        minutes=11,
        key=("what",),
        tables={"chaos": columns.said},
        needs=("root", "package"),
        only_full=True,
    ),
    in_racks(
        "variants",
        "What do multicast and AF_XDP gain?",
        4,
        VARIANTS,
        of_racks.tables,
        axes(workers=[4, 2], rate="none", bytes=[4 * KI, 16 * MI]),
        only_full=True,
    ),
    Case(
        "compression",
        "What does compression of gradients cost and give?",
        training.compression,
        axes(
            workers=[8, 4],
            rate=["100mbit", "1gbit", "none"],
            dataplane="user",
            model=list(training.COMPRESSED_STEPS),
            seed=[1, 2, 3],
            steps=0,
            system=list(training.COMPRESSED),
        ),
        minutes=30,
        help={"steps": "that all train; 0: what the model needs"},
        known={"dataplane": ["user", "xdp"]},
        turns=training.compression_turns,
        shows="reduction_ms",
        unit="ms a reduction",
        key=("rate", "model", "workers", "seed", "system"),
        quick=axes(
            model=["generated", "digits"],
            system=["netsum", "gloo-fp16", "netsum-topk-1%"],
            workers=4,
            rate="100mbit",
            seed=1,
            steps=100,
        ),
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
        axes(model=["digits", "lm", "lm-wide"], steps=0, seed=1, ratio=[0.1, 0.01, 0.001]),
        minutes=3,
        help={"steps": "of every training, more than 10; 0: what the model needs", "ratio": "wanted shares"},
        joint=("ratio",),
        shows="median",
        unit="of the wanted",
        key=("model", "method", "ratio"),
        tables={"thresholds": columns.THRESHOLDS},
        needs=("package",),
    ),
    Case(
        "verify",
        "What do verified sums cost?",
        commands.verify,
        axes(workers=8, bytes=16 * MI, iterations=6, rounds=9, mode=["packet", "both", "sum"]),
        minutes=3,
        shows="ranks_cpu_ms",
        unit="ms of CPU",
        key=("workers", "bytes", "mode"),
        tables={"verify": columns.VERIFY},
        needs=("netsum",),
    ),
    Case(
        "predict",
        "What do predicted scales gain and cost?",
        commands.predict,
        axes(
            workers=4,
            rounds=7,
            bytes=[4 * KI, 64 * KI, MI, 16 * MI],
            data=["steady", "normal", "varied"],
            predict=[False, True],
        ),
        minutes=5,
        shows="time_us",
        unit="us",
        tables={"predict": columns.PREDICT},
        needs=("netsum",),
    ),
    Case(
        "lies",
        "Which false results of aggregators reach a rank, and which are noticed?",
        commands.lies,
        axes(runs=1_000_000, seed=1, piece=10_000, jobs=ALL_CPUS),
        minutes=20,
        help={"runs": "simulated", "piece": "runs between two reports", "jobs": "threads"},
        shows="runs",
        unit="runs, nothing wrong",
        key=("what",),
        tables={"lies": columns.lies_table},
        needs=("netsum",),
    ),
    Case(
        "controller",
        "What does the controller of compression cost over the best level of each phase?",
        training.controller,
        axes(
            workers=4,
            dataplane="user",
            trace="",
            rate=["1gbit", "100mbit", "10gbit", "300mbit", "3gbit"],
            steps=80,
            system=list(training.CONTROLLED),
        ),
        place=("workers", "dataplane", "trace"),
        minutes=6,
        help={
            "rate": "of the phases",
            "steps": "of a phase",
            "trace": "file for the controller's trace",
        },
        known={"dataplane": ["user", "xdp"]},
        joint=("system",),
        shows="step_ms",
        unit="ms a step",
        key=("workers", "phase", "system"),
        quick=axes(workers=2, rate=["10gbit", "200mbit"], steps=20),
        tables={"controller": controller.table},
        plots=controller.plots,
        needs=("netsum", "root", "package"),
    ),
    Case(
        "hooks",
        "What does the hook of compression gain if DDP does not call it through Python?",
        training.hooks,
        axes(workers=4, steps=40, load=["quiet", "busy"], method=list(training.HOOKED), hook=["Python", "C++"]),
        place=("workers",),
        minutes=4,
        help={"steps": "of each hook"},
        joint=("hook",),
        shows="step_ms",
        unit="ms a step",
        key=("workers", "load", "method", "hook"),
        quick=axes(steps=training.HOOKS_TURN),
        tables={"hooks": columns.HOOKS},
        needs=("package",),
    ),
    Case(
        "schedules",
        "What do schedules of computation and communication gain over DDP?",
        schedules.schedules,
        axes(workers=2, percent=[25, 50, 100, 200], steps=16, rounds=5, system=schedules.SYSTEMS),
        place=("workers",),
        minutes=18,
        help={
            "percent": "that sums of gradients take of the time of computation",
            "steps": "batches of a turn, an even number",
        },
        shows="batch_ms",
        unit="ms a batch",
        key=("workers", "percent", "round", "system"),
        quick=axes(percent=[100], rounds=2),
        tables={"schedules": schedules.table},
        needs=("netsum", "root", "package"),
        only_full=True,
    ),
    Case(
        "groups",
        "What does a process group of PyTorch, or a communicator of MPI, cost?",
        groups.groups,
        axes(elements=4, groups=20, rounds=5, system=["netsum", "gloo", "netsum-mpi", "openmpi"]),
        minutes=1,
        help={"elements": "of the float32 tensor that each group reduces", "groups": "made, and kept, in each round"},
        key=("elements", "system"),
        tables={"groups": columns.GROUPS},
        needs=("package",),
    ),
    Case(
        "profile",
        "Where does the processor time of a gigabyte go?",
        profile.profile,
        axes(case=list(profile.CASES), bytes=16 * MI, iterations=40, keep=0),
        minutes=1.5,
        help={"keep": "1: perf's data, beside the flame graphs in build/profile", "iterations": "sums"},
        shows="s_per_gb",
        unit="s per GB",
        named=("pass",),
        key=("case",),
        tables={"profile": profile.tables},
        needs=("netsum", "root", "perf"),
    ),
    Case(
        "micro",
        "How long do the parts take: kernels, tags, the planner, sockets, the XDP program?",
        commands.micro,
        axes(benchmark=[name for name in commands.TARGETS if name != "xdp" or os.geteuid() == 0], repetitions=9),
        minutes=1,
        shows="cpu_ns",
        unit="ns",
        named=("case",),
        key=("benchmark",),
        tables={f"micro:{name}": table for name, table in micro.TABLES.items()},
        needs=(),
    ),
]
CASES = {case.name: case for case in IN_ORDER}
