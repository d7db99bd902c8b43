"""Trainings with PyTorch: the demo's models, with compression, with the controller, with either hook, and thresholds."""

import contextlib
import dataclasses
import json
import os
import statistics
from types import SimpleNamespace

from netsum_bench.demo import children, places, summary
from netsum_bench.demo.command import Run
from netsum_bench.machine import ROOT
from netsum_bench.rack import Host, Rack
from netsum_bench.report import median
from netsum_bench.systems import TorchRanks

# --- The demo's models


@dataclasses.dataclass
class Trained:
    backend: str
    aggregator: str = "xdp"
    sparse: bool = False  # gradients of tables are sparse tensors
    parallel: str = "ddp"  # of train.PARALLEL


TRAINED = {
    "gloo": Trained("gloo"),
    "gloo-sparse": Trained("gloo", sparse=True),
    "netsum-xdp": Trained("netsum"),
    "netsum-user": Trained("netsum", "daemon"),
    "netsum-xdp-sparse": Trained("netsum", sparse=True),
    "gloo-fsdp": Trained("gloo", parallel="fsdp"),
    "gloo-fsdp-overlap": Trained("gloo", parallel="fsdp-overlap"),
    "netsum-user-fsdp": Trained("netsum", "daemon", parallel="fsdp"),
    "netsum-user-fsdp-overlap": Trained("netsum", "daemon", parallel="fsdp-overlap"),
}
STEPS = {"digits": 60, "lm": 12, "recommender": 20}


def is_sharded(system):
    return TRAINED[system].parallel != "ddp"


def that_trains(turn):
    """The turn, if its system trains its model."""
    wants, model = TRAINED[turn["system"]], turn["model"]
    fits = (model == "recommender" or not wants.sparse) and (model == "lm" or not is_sharded(turn["system"]))
    return {**turn, "steps": turn["steps"] or STEPS[model]} if fits else None


def training_record(system, result):
    return {
        "place": result.place,
        "step_ms": result.step_ms,
        "allreduce_ms": result.allreduce_ms,
        "held_out_loss": result.held_out_loss,
        "accuracy_percent": result.accuracy_percent,
        # The counters are those of one group, and FSDP2 can have two.
        "sent_per_gradient_byte": None if is_sharded(system) else result.sent_per_gradient_byte,
        "retransmissions": result.retransmissions,
        "where": result.where,
        "losses": [round(loss, 7) for loss in result.losses],
    }


@contextlib.contextmanager
def training(run, place, turns):
    """The recommender has a table of 200,000 items, whose gradient is a sparse tensor in the systems "-sparse", and
    otherwise dense. The systems "-fsdp" train the language model by FSDP2 (fully_shard) instead of DDP; in
    "-fsdp-overlap" it communicates while it computes, with a group of its own for reduce-scatters. All are compared
    with the first system."""

    def measure(turn):
        model, workers, rate, system = (turn[field] for field in ("model", "workers", "rate", "system"))
        how = TRAINED[system]
        folder = ROOT / "build/bench-training" / f"{model}-{workers}-{rate}-{system}"
        more = {"sparse": how.sparse, "parallel": how.parallel}
        training = Run(model, how.backend, workers, turn["steps"], turn["seed"], folder, "rack", **more)
        children.clear(training)
        with places.Rack(rate, how.aggregator, f"t{os.getpid()}").training(training) as starts:
            wall_s = children.run_training(training, starts, lambda progress, elapsed_s: None)
        counters = places.counters_in(folder / "aggregator.log")
        return training_record(system, summary.summarise(training, wall_s, counters))

    yield measure


def training_rows(records):
    """One row per place, model and system: medians over its rounds, compared with the first system of the place, and those of
    FSDP2 with the first of these."""
    groups = {}
    for record in records:
        if "step_ms" in record:
            where = (record["model"], record["workers"], record["rate"], is_sharded(record["system"]))
            groups.setdefault(where, {}).setdefault(record["system"], []).append(record)
    for (model, workers, rate, sharded), systems in groups.items():
        base = next(iter(systems.values()))
        base_run = SimpleNamespace(**base[0])  # which has what the demo compares of its runs
        for system, rounds in systems.items():
            over = lambda name, which=rounds: median([r[name]["median"] for r in which])
            yield {
                "model": model,
                "workers": workers,
                "rate": rate,
                "system": system,
                "step_ms": over("step_ms"),
                "low_ms": min(r["step_ms"]["low"] for r in rounds),
                "high_ms": max(r["step_ms"]["high"] for r in rounds),
                "allreduce_ms": over("allreduce_ms"),
                "speed_up": over("step_ms", base) / over("step_ms"),
                "allreduce_speed_up": over("allreduce_ms", base) / over("allreduce_ms"),
                "held_out_loss": rounds[0]["held_out_loss"],
                "accuracy_percent": rounds[0]["accuracy_percent"],
                "sent": None if sharded else median([r["sent_per_gradient_byte"] for r in rounds]),
                "agrees": all(summary.compare(base_run, SimpleNamespace(**r)).agrees for r in rounds),
            }


def disagreements(records):
    return [f"{row['system']} does not agree" for row in training_rows(records) if not row["agrees"]]


# --- Compression


@dataclasses.dataclass
class Compressed:
    backend: str = "netsum"
    compression: dict | None = None  # arguments of netsum.torch.compress()
    hook: str | None = None  # of PyTorch
    sparse: bool = False  # gradients of tables are sparse tensors
    models: tuple = ()  # those it is for; none: all


def method(name, **options):
    return Compressed(compression={"method": name, **options})


def dgc(ratio):
    # It takes the place of the optimizer's momentum.
    return dataclasses.replace(method("dgc", ratio=ratio, sampled=True), models=("generated", "digits"))


# Those that come first are measured first.
COMPRESSED = {
    "netsum": Compressed(),
    "gloo": Compressed("gloo"),
    "gloo-fp16": Compressed("gloo", hook="fp16"),
    "gloo-powersgd": Compressed("gloo", hook="powersgd"),
    "netsum-powersgd": method("powersgd", rank=4),
    "netsum-bf16": method("bf16"),
    "netsum-lanes8": method("lanes8"),
    "netsum-topk-1%": method("topk", ratio=0.01, sampled=True),
    "netsum-topk-0.1%": method("topk", ratio=0.001, sampled=True),
    "netsum-dgc-1%": dgc(0.01),
    "netsum-dgc-0.1%": dgc(0.001),
    "netsum-sidco-1%": method("sidco", ratio=0.01, fit="pareto"),
    "netsum-sidco-0.1%": method("sidco", ratio=0.001, fit="pareto"),
    "netsum-sparse": Compressed(sparse=True, models=("recommender",)),
    "netsum-int4": method("int4", rotated=True),
    "netsum-fp16": method("fp16"),
    "netsum-int8": method("int8"),
    "netsum-thc": method("thc", block=1024),
    "netsum-fp8": method("fp8_e4m3"),
    "netsum-randomk-1%": method("randomk", ratio=0.01),
    "netsum-blocktopk-1%": method("blocktopk", ratio=0.01, block=64),
    "netsum-qsgd": method("qsgd", levels=127),
    "netsum-terngrad": method("terngrad"),
    "netsum-efsign": method("efsign"),
    "netsum-onebit": method("onebit"),
    "netsum-natural": method("natural"),
    "netsum-u8bit": method("u8bit"),
    "netsum-inceptionn": method("inceptionn"),
    "netsum-sketch": method("sketch"),
    "netsum-adaq-1%": method("adaq", ratio=0.01),
    "netsum-chunktopk": method("chunktopk", k=64, block=4096),
    "netsum-dcttopk": method("dcttopk", k=4, block=64),
    "netsum-countsketch-0.1%": method("countsketch", ratio=0.001),
}
BASE = "netsum"
CORE = list(COMPRESSED)[: list(COMPRESSED).index("netsum-sparse") + 1]
FEW = CORE[: CORE.index("netsum-topk-1%") + 1]
GENERATED = "generated"
COMPRESSED_STEPS = {GENERATED: 0, "digits": 120, "lm": 24, "recommender": 30}
SHORT_STEPS = {GENERATED: 0, "digits": 100, "lm": 30, "recommender": 24}  # of smaller models, with a budget below this
MINUTES_OF_ALL_STEPS = 60
EVALUATIONS = 10  # on the way to the last step
LONGEST = 4  # times the steps, for systems that are faster
COMPRESSED_PORTS = {"netsum": 29404, "gloo": 29405}


def compresses(system, model):
    return not COMPRESSED[system].models or model in COMPRESSED[system].models


def compression_turns(axes):
    """All that is to be measured, what matters most first: all systems of interest at the first number of workers, rate
    and seed; few systems at the other rates, and at the next number of workers; the spread over seeds; then everything
    else."""
    if axes["system"][0] != BASE:
        raise ValueError(f"the systems must begin with {BASE}: its time is that of the others")
    workers, rates, seeds = axes["workers"], axes["rate"], axes["seed"]
    trained = [model for model in axes["model"] if model != GENERATED]
    generated = [model for model in axes["model"] if model == GENERATED]
    first, every = (workers[:1], rates[:1]), list(COMPRESSED)
    place = lambda some, systems: [(*some, generated, seeds[:1], CORE), (*some, trained, seeds[:1], systems)]
    blocks = place(first, CORE)
    for some in [*((workers[:1], [rate]) for rate in rates[1:]), (workers[1:], rates[:1])]:
        blocks += place(some, FEW)
    blocks += [(*first, trained, [seed], FEW) for seed in seeds[1:]]
    for rate in rates[1:]:
        blocks += place((workers[1:], [rate]), FEW)
    blocks += [(*first, trained, seeds[1:], CORE), (*first, axes["model"], seeds[:1], every)]
    blocks += [(workers, rates, axes["model"], seeds[:1], every), (workers, rates, trained, seeds, every)]
    found = {}  # in their order, each once
    for of_workers, of_rates, of_models, of_seeds, systems in blocks:
        for count in of_workers:
            for rate in of_rates:
                for seed in of_seeds:
                    for model in of_models:
                        for system in (s for s in systems if s in axes["system"] and compresses(s, model)):
                            found[count, rate, model, seed, system] = None
    [steps], [dataplane] = axes["steps"], axes["dataplane"]  # ValueError if there are several
    rest = {"steps": steps, "dataplane": dataplane}
    names = ("workers", "rate", "model", "seed", "system")
    return [{**dict(zip(names, values, strict=True)), **rest} for values in found]


def is_short(budget):
    return budget is not None and budget < MINUTES_OF_ALL_STEPS


def compressed_task(turn, budget, seconds):
    """For compression_worker.py. `seconds`: that it trains for at least."""
    how, short = COMPRESSED[turn["system"]], is_short(budget)
    steps = turn["steps"] or (SHORT_STEPS if short else COMPRESSED_STEPS)[turn["model"]]
    return {
        "model": turn["model"],
        "seed": turn["seed"],
        "small": short,
        "compression": how.compression,
        "hook": how.hook,
        "sparse": how.sparse,
        "steps": steps,
        "seconds": seconds,
        "most_steps": LONGEST * steps,
        "evaluate_every": max(1, steps // EVALUATIONS),
    }


class ChangingRack:
    """The rack that is up, with the ranks of each backend that has been needed. Links with a rate can get another one;
    links without one need a rack of their own."""

    def __init__(self, netsum):
        self._netsum, self._kind, self._rack, self._ranks = netsum, None, None, {}
        self._stack = contextlib.ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stack.close()

    def ranks(self, workers, rate, dataplane, backend):
        kind = (workers, rate == "none", dataplane)
        if self._kind != kind:
            self._kind, self._ranks = None, {}
            self._stack.close()
            rack = Rack(self._netsum, f"k{os.getpid()}", workers, rate, 1500, dataplane)
            self._rack = self._stack.enter_context(rack)
            self._kind = kind
        if rate != "none":
            self._rack.set_links("--rate", rate)
        if backend not in self._ranks:
            ranks = TorchRanks(self._rack, "compression_worker", backend, port=COMPRESSED_PORTS[backend])
            self._stack.callback(ranks.close)
            self._ranks[backend] = ranks
        return self._ranks[backend]


def sent_by(ranks):
    """Mean bytes of a rank, headers included, and what was sent again by all."""
    traffic = summary.netsum_traffic(ranks) if ranks[0]["netsum"] else summary.tcp_traffic(ranks)
    return statistics.mean(traffic["sent"]), traffic["retransmissions"]


def curve_of(ranks):
    """Steps, seconds of rank 0, and the loss and accuracy on the held-out data of all ranks."""
    curve = []
    for points in zip(*(rank["curve"] for rank in ranks), strict=True):
        count = sum(point["count"] for point in points)
        curve.append(
            {
                "step": points[0]["step"],
                "s": round(points[0]["s"], 4),
                "loss": round(sum(point["loss_sum"] for point in points) / count, 6),
                "accuracy_percent": round(100 * sum(point["right"] for point in points) / count, 3),
            }
        )
    return curve


def reduction_of(ranks):
    """What the reduction on idle workers took, for the record."""
    reductions = [rank["reduction"] for rank in ranks]
    if None in reductions:
        return {}
    sent, _ = sent_by(reductions)
    found = {"reduction_ms": summary.spread([s for one in reductions for s in one["s"]])}
    found["reduction_bytes"] = sent / reductions[0]["steps"]
    for part in ("encode", "decode"):
        seconds = [one.get(f"{part}_s") for one in reductions]
        found[f"{part}_ms"] = None if None in seconds else 1000 * statistics.mean(seconds)
    return found


def compressed_record(model, steps, ranks):
    record = {"parameters": ranks[0]["parameters"], **reduction_of(ranks)}
    if model == GENERATED:
        return record
    count = len(ranks[0]["step_s"])
    sent, retransmissions = sent_by(ranks)
    # The first steps allocate memory and rebuild DDP's buckets.
    of_steps = summary.spread([s for rank in ranks for s in rank["step_s"][min(3, count - 1) :]])
    record |= {"steps": steps, "steps_in_all": count, "step_ms": of_steps, "sent_bytes_per_step": sent / count}
    return {**record, "retransmissions": retransmissions, "curve": curve_of(ranks)}


def base_seconds(records, turn):
    """What the base took for the steps that all train, in the place of the turn; None if it failed."""
    for other in records:
        same = all(other[field] == turn[field] for field in ("model", "workers", "rate", "seed"))
        if same and other["system"] == BASE and "curve" in other:
            return next(point["s"] for point in other["curve"] if point["step"] == other["steps"])
    return None


@contextlib.contextmanager
def compression(run, place, turns):
    """Reductions: the ranks reduce 16 MiB of generated gradients, normally distributed and different on all ranks, as
    DistributedDataParallel does in a step, on idle workers. Trainings: the base, netsum without compression, trains so
    many steps; what it takes for them is the time that all others get, too. Each system trains at least these steps,
    and on until the time is over (for at most 4 times the steps). Held-out data are evaluated on the way, outside the
    time. So there are a loss after equal steps, and one after equal time. After training, the last gradients are
    reduced on idle workers, too: "reduction" is encoding, sum and decoding.

    With a budget of less than an hour, the language model and the recommender are smaller, and all train fewer steps.
    The first system must be "netsum": its time is that of the others.
    """
    kept = []
    with ChangingRack(run.netsum) as rack:

        def measure(turn):
            seconds = None if turn["system"] == BASE else base_seconds(kept, turn)
            task = compressed_task(turn, run.budget, seconds)
            backend = COMPRESSED[turn["system"]].backend
            ranks = rack.ranks(turn["workers"], turn["rate"], turn["dataplane"], backend)
            answers = ranks.ask(lambda gate: json.dumps({"gate": gate, **task}))
            record = compressed_record(turn["model"], task["steps"], answers)
            kept.append({**turn, **record})
            return record

        yield measure


# --- Steps of systems that take turns, so that what else the machine does meets all of them


def take_turns(ranks, asked, steps, turn):
    """Trains so many steps of each system. `asked`: by system, what step_worker.py is asked for; `turn`: steps before
    the next one trains. The times of all steps, of the slowest rank in each, and the last counts of a controller."""
    times, counts = {system: [] for system in asked}, {}
    while any(len(of) < steps for of in times.values()):
        for system, what in asked.items():
            line = {
                "system": system,
                "hook": "C++",
                "load": "quiet",
                **what,
                "steps": min(turn, steps - len(times[system])),
            }
            answers = ranks.ask(lambda gate, line=line: json.dumps({"gate": gate, **line}))
            of_ranks = zip(*(a["step_s"] for a in answers), strict=True)
            times[system] += [round(1e3 * max(seconds), 3) for seconds in of_ranks]
            counts[system] = answers[0]["controller"]
    return times, counts


LEVELS = ["none", "bf16", "int8", {"method": "topk", "ratio": 0.01, "sampled": True}]
AUTO = "auto"
CONTROLLED = {
    "none": None,
    "bf16": {"method": "bf16"},
    "int8": {"method": "int8"},
    "topk 1 %": LEVELS[3],
    AUTO: {"method": "auto", "levels": LEVELS, "warmup_steps": 5},
}
CONTROLLER_PORT = 29403
CONTROLLER_TURN, CONTROLLER_WARM_UP = 10, 20  # steps; those of the warm-up do not count
CONTROLLER_MODEL = {"width": 1024, "layers": 4, "batch": 64, "bucket_mb": 4}  # 16 MiB of gradients


@contextlib.contextmanager
def controller(run, place, turns):
    """The ranks train a model of 16 MiB of gradients with each fixed level and with "auto", which take turns of 10
    steps. `netsum rack set --rate` changes all links between two phases of so many steps. The first steps are a
    warm-up, and do not count."""
    settings = {system: CONTROLLED[system] for system in turns[0]["system"]}
    if AUTO in settings and place["trace"]:
        settings[AUTO] = {**settings[AUTO], "trace": place["trace"]}
    asked = {system: {"settings": of, "model": CONTROLLER_MODEL} for system, of in settings.items()}
    phases = iter(range(len(turns)))
    with Rack(run.netsum, f"c{os.getpid()}", place["workers"], turns[0]["rate"], 1500, place["dataplane"]) as rack:
        ranks = TorchRanks(rack, "step_worker", port=CONTROLLER_PORT)
        rack.resources.callback(ranks.close)
        take_turns(ranks, asked, CONTROLLER_WARM_UP, CONTROLLER_TURN)

        def measure(turn):
            rack.set_links("--rate", turn["rate"])
            times, counts = take_turns(ranks, asked, turn["steps"], CONTROLLER_TURN)
            phase = next(phases)
            return [{"phase": phase, "system": s, "step_ms": times[s], "controller": counts[s]} for s in asked]

        yield measure


HOOKED = {
    "none": {"method": "none"},
    "bf16": {"method": "bf16"},
    "int8": {"method": "int8"},
    "topk 1 %": {"method": "topk", "ratio": 0.01},
    "powersgd": {"method": "powersgd"},
}
HOOKS_TURN, HOOKS_WARM_UP = 5, 3  # steps; DDP makes other buckets after the first
HOOKS_MODEL = {
    "width": 192,
    "layers": 48,
    "batch": 16,
    "bucket_mb": 0.15,
}  # 6.75 MiB of gradients, a bucket for each layer


@contextlib.contextmanager
def hooks(run, place, turns):
    """Ranks on this machine, summed in shared memory, train a model of many small buckets, with each method and both
    hooks, which take turns; once alone, and once beside a thread of the same process that computes in Python."""
    with Host(None, place["workers"]) as host:
        ranks = TorchRanks(host, "step_worker")
        host.resources.callback(ranks.close)

        def measure(turn):
            what = {"settings": HOOKED[turn["method"]], "load": turn["load"], "model": HOOKS_MODEL}
            asked = {f"{turn['method']}, {hook}": {**what, "hook": hook} for hook in turn["hook"]}
            take_turns(ranks, asked, HOOKS_WARM_UP, HOOKS_WARM_UP)
            times, _ = take_turns(ranks, asked, turn["steps"], HOOKS_TURN)
            return [{"hook": asked[system]["hook"], "step_ms": of} for system, of in times.items()]

        yield measure


# --- Thresholds


@contextlib.contextmanager
def thresholds(run, place, turns):
    """How many elements a threshold lets pass, in proportion to how many are wanted: on the gradients of every layer of
    trained models. Each model is trained on this machine by one process, without compression. Every compressor sees all
    gradients, and keeps a residual of its own. The exact top-k is beside the estimated thresholds; layers too small for
    a sample have an exact one anyway."""
    from netsum_bench.labs import gradients  # which imports torch

    yield lambda turn: gradients.measure(turn["model"], turn["steps"], turn["ratio"], turn["seed"])
