"""Collectives of one tensor in racks and on one host: systems that take turns, with the clock rule of start_gate.py."""

import contextlib
import dataclasses
import functools
import os

from netsum_bench.processes import PROBLEMS, reports
from netsum_bench.rack import Host, Rack
from netsum_bench.report import rate_bits, size_text
from netsum_bench.start_gate import idle_share
from netsum_bench.systems import SMALL, SYSTEMS, Gloo, GlooOnLossyLinks, Netsum, OpenMpi

LEAST_ITERATIONS = 7  # of each system in each cell, over all rounds
SLOW_S = 0.5


def link_seconds(size, rate):
    return size * 8 / (rate_bits(rate) or 1e9)


def plan_rack(size, rate, rounds, _system=None):
    """(iterations, warm-up) of each round, for all systems alike: what takes about a second, but LEAST_ITERATIONS in all rounds
    together; one iteration of warm-up, or none where the link alone needs more than half a second for one."""
    if link_seconds(size, rate) > SLOW_S:
        shares = [LEAST_ITERATIONS // rounds + (n < LEAST_ITERATIONS % rounds) for n in range(rounds)]
        return [(share, 0) for share in shares if share]
    least = -(-LEAST_ITERATIONS // rounds)
    count = max(least, 30) if size <= SMALL else int(min(10, max(least, 0.5 / link_seconds(size, rate))))
    return [(count, 1)] * rounds


def plan_host(size, _rate, rounds, _system):
    return [(30 if size <= SMALL else max(-(-LEAST_ITERATIONS // rounds), 5), 1)] * rounds


def plan_collective(size, rate, rounds, _system):
    """Of fewer iterations: the collectives are many."""
    return [(2, 0) if link_seconds(size, rate) > SLOW_S else (30 if size <= SMALL else 4, 1)] * rounds


def measure_one(system, size, iterations, warmup, idle):
    """One turn of a system. Processor time is what the whole machine spent during the timed iterations, softirqs included,
    without what it spends when idle; nothing where those are too short for the kernel's ticks. Beside it, that of the ranks'
    processes together."""
    up, down = system.rack.link_bytes()
    result = system.measure(size, iterations, warmup)
    up_after, down_after = system.rack.link_bytes()
    window_s = sum(result["times_ms"]) / 1e3
    busy_s = result.pop("busy_s") - idle * window_s
    cpu_ms = round(max(0, busy_s) / iterations * 1e3, 2) if window_s > 0.1 and size > SMALL else None
    if "ranks_cpu_s" in result:
        result["ranks_cpu_ms"] = round(result.pop("ranks_cpu_s") / iterations * 1e3, 2)
    return {
        **result,
        "cpu_ms": cpu_ms,
        "link_up": round((up_after - up) / (iterations + warmup)),
        "link_down": round((down_after - down) / (iterations + warmup)),
    }


def calibrate(system, sizes, rate):
    """A look at each setting: at sizes that take long on the link, a single sum."""
    slow = lambda size: link_seconds(size, rate) > SLOW_S
    return system.calibrate([(s, 20, 2) if s <= SMALL else (s, 1, 0) if slow(s) else (s, 5, 1) for s in sizes])


def open_systems(run, stack, place, turns, makers, rate):
    """By name, those that can be opened, at their best settings. What the others lack, and the calibrations, are records."""
    opened = {}
    for name in sorted({turn["system"] for turn in turns}, key=run.axes["system"].index):
        try:
            system = makers[name]()
        except PROBLEMS as problem:
            run.say(f"  {name} is left out: {problem}")
            run.keep({**place, "left_out": name, "failed": str(problem)})
            continue
        opened[name] = system
        stack.callback(system.close)
        if run.expired():
            continue
        found = calibrate(system, list(dict.fromkeys(t["bytes"] for t in turns if t["system"] == name)), rate)
        for size, times in found.items():
            run.keep({**place, "bytes": size, "calibrated": name, "calibration_ms": times})
            run.say(f"  {name}, {size_text(size)}: {system.chosen.get(size, 'no setting works')}")
    return opened


def taking_turns(run, stack, place, turns, makers, plan):
    """A function that measures a turn of these systems. `plan`: iterations and warm-up of the rounds of a size."""
    rate = turns[0]["rate"]
    opened = open_systems(run, stack, place, turns, makers, rate)
    idle = idle_share()

    def measure(turn):
        rounds = plan(turn["bytes"], rate, run.rounds, turn["system"])
        if turn["system"] not in opened or turn["round"] >= len(rounds):
            return None
        return measure_one(opened[turn["system"]], turn["bytes"], *rounds[turn["round"]], idle)

    return measure


def open_racks(run, stack, place, systems, mtu=1500, flags=(), spares=0):
    """By their kind, those that the systems need."""
    racks = {}
    for kind in dict.fromkeys(SYSTEMS[name].rack for name in systems):
        dataplane, multicast = ("user", True) if kind == "multicast" else (kind, False)
        more = {"multicast": True} if multicast else {"spares": spares, "flags": flags}
        name = f"b{kind[0]}{os.getpid()}"
        racks[kind] = stack.enter_context(
            Rack(run.netsum, name, place["workers"], place["rate"], mtu, dataplane, **more)
        )
    return racks


def cores_of_daemon():
    """A quarter of the machine's."""
    return max(1, min(8, (os.cpu_count() or 1) // 4))


@contextlib.contextmanager
def rack(run, place, turns):
    """For each number of workers and link rate, two racks are up side by side, one whose switch adds in a daemon, one
    in XDP; everything else runs in the first, whose last node is a spare host. First the peers' settings are tried at
    each size, and the best is taken. Then the systems take turns, size by size and round by round. Every result is
    verified."""
    systems = dict.fromkeys(turn["system"] for turn in turns)
    with contextlib.ExitStack() as stack:
        flags = ("--cores", place["cores"])
        racks = open_racks(run, stack, place, systems, place["mtu"], flags, spares=1)
        makers = {name: functools.partial(SYSTEMS[name].make, racks[SYSTEMS[name].rack]) for name in systems}
        yield taking_turns(run, stack, place, turns, makers, plan_rack)


@contextlib.contextmanager
def one_host(run, place, turns):
    """Ranks on this machine without a network between them. netsum and Open MPI use shared memory; Gloo, netsum with an
    aggregator, and netsum with embedded shards use loopback."""
    with Host(run.netsum, place["workers"]) as host, contextlib.ExitStack() as stack:
        host.serve()
        makers = {name: functools.partial(SYSTEMS[name].make, host) for name in run.axes["system"]}
        yield taking_turns(run, stack, place, turns, makers, plan_host)


# --- Other collectives

BARRIER = "barrier"
RINGS = (("allgather", 4, 0), ("reduce_scatter", 3, 0))
ONE_AFTER_THE_OTHER = "one after the other, "


@dataclasses.dataclass
class Collective:
    """`gloo`: what its settings call (gloo_worker.py). `large` and `small`: algorithms of Open MPI for such tensors,
    (module, number, segment). `load`: how much each link must carry in its busier direction, of all parts together,
    whatever the algorithm, by the number of workers."""

    title: str
    gloo: list
    large: dict
    small: dict
    load: object


COLLECTIVES = {
    "broadcast": Collective(
        "broadcast",
        ["broadcast"],
        {
            "pipeline/65536": ("bcast", 3, 65536),
            "chain/65536": ("bcast", 2, 65536),
            "scatter, ring all-gather": ("bcast", 9, 0),
            "binomial/65536": ("bcast", 6, 65536),
        },
        {"binomial": ("bcast", 6, 0), "linear": ("bcast", 1, 0)},
        lambda n: 1,
    ),
    "allgather": Collective(
        "all-gather",
        ["all_gather", "all_gather_into_tensor"],
        {"ring": ("allgather", 4, 0), "neighbor exchange": ("allgather", 5, 0)},
        {"recursive doubling": ("allgather", 3, 0), "Bruck": ("allgather", 2, 0)},
        lambda n: (n - 1) / n,
    ),
    "reducescatter": Collective(
        "reduce-scatter",
        ["reduce_scatter", "reduce_scatter_tensor", "all_reduce_for_a_part"],
        {"ring": ("reduce_scatter", 3, 0), "recursive halving": ("reduce_scatter", 2, 0)},
        {"recursive halving": ("reduce_scatter", 2, 0), "butterfly": ("reduce_scatter", 4, 0)},
        lambda n: (n - 1) / n,
    ),
    # An all-gather needs 1/N of the one direction and (N-1)/N of the other, a reduce-scatter the reverse.
    "allgather+reducescatter": Collective(
        "all-gather and reduce-scatter at once", ["both_at_once", "one_after_the_other"], {}, {}, lambda n: 1
    ),
    BARRIER: Collective(
        "barrier",
        ["barrier"],
        {},
        {"recursive doubling": ("barrier", 3, 0), "Bruck": ("barrier", 4, 0), "tree": ("barrier", 6, 0)},
        None,
    ),
}


class NetsumCollective(Netsum):
    def __init__(self, rack, collective):
        super().__init__(rack)
        self.collective = collective


class GlooCollective(Gloo):
    def __init__(self, rack, collective):
        super().__init__(rack)
        self.collective = collective

    def candidates(self, sizes):
        return dict.fromkeys(COLLECTIVES[self.collective].gloo, sizes)


class OpenMpiCollective(OpenMpi):
    """Settings as those of OpenMpi, with algorithms of the collective. "Both" is tried with the calls that do not block, and
    one after the other, with rings for large tensors."""

    def __init__(self, rack, collective):
        super().__init__(rack)
        self.collective = collective

    def algorithms(self):
        """By setting: for which sizes, and the flags."""
        of = COLLECTIVES[self.collective]
        rules = ["--mca", "coll_tuned_use_dynamic_rules", "1"]

        def forced(algorithm):
            module, number_of, segment = algorithm
            flags = [*rules, "--mca", f"coll_tuned_{module}_algorithm", str(number_of)]
            return flags + (["--mca", f"coll_tuned_{module}_algorithm_segmentsize", str(segment)] if segment else [])

        every = lambda size: True
        found = {"default": (every, []), "yield": (every, self.YIELD)}
        for sizes, algorithms in ((lambda size: size > SMALL, of.large), (lambda size: size <= SMALL, of.small)):
            for name, algorithm in algorithms.items():
                found[f"yield, {name}"] = (sizes, [*self.YIELD, *forced(algorithm)])
        if self.collective == "allgather+reducescatter":
            rings = [flag for ring in RINGS for flag in forced(ring)]
            found[ONE_AFTER_THE_OTHER + "yield"] = (every, self.YIELD)
            found[ONE_AFTER_THE_OTHER + "rings"] = (lambda size: size > SMALL, [*self.YIELD, *rings])
        return found

    def flags(self, setting):
        return self.algorithms()[setting][1]

    def program_of(self, setting):
        return self.collective.replace("+", ", ") if setting.startswith(ONE_AFTER_THE_OTHER) else self.collective

    def candidates(self, sizes):
        found = {setting: [s for s in sizes if fits(s)] for setting, (fits, _) in self.algorithms().items()}
        return {setting: of_sizes for setting, of_sizes in found.items() if of_sizes}


def without_size(turn):
    """A barrier has none."""
    return {**turn, "bytes": 0} if turn["collective"] == BARRIER else turn


@contextlib.contextmanager
def collectives(run, place, turns):
    """Broadcast, all-gather, reduce-scatter, the last two at once (as in FSDP), and barrier. Sizes are those of all
    parts together. Every result is verified."""
    kinds = {"gloo": GlooCollective, "openmpi": OpenMpiCollective}
    systems = dict.fromkeys(turn["system"] for turn in turns)
    with contextlib.ExitStack() as stack:
        racks = open_racks(run, stack, place, systems)
        makers = {
            name: functools.partial(kinds.get(name, NetsumCollective), racks[SYSTEMS[name].rack], place["collective"])
            for name in systems
        }
        yield taking_turns(run, stack, place, turns, makers, plan_collective)


# --- Loss on every link

LOSSY_ITERATIONS = 3  # of a round


@contextlib.contextmanager
def loss(run, place, turns):
    """Two racks of lossy links are up side by side, one whose switch adds in a daemon, one in XDP; Gloo runs in the
    first. Every link loses single packets by chance, each way; every result is verified."""
    opened, settings = {}, {}  # the best settings, by name and loss
    with contextlib.ExitStack() as stack:
        racks = {
            kind: stack.enter_context(
                Rack(run.netsum, f"l{kind[0]}{os.getpid()}", place["workers"], place["rate"], 1500, kind, loss=0)
            )
            for kind in dict.fromkeys(SYSTEMS[turn["system"]].rack for turn in turns)
        }
        stack.callback(lambda: [system.close() for system in opened.values()])

        def measure(turn):
            name, lost_share, size = turn["system"], turn["loss"], turn["bytes"]
            if name not in opened:  # also after it has failed
                kind = GlooOnLossyLinks if name == "gloo" else SYSTEMS[name].make
                opened[name] = kind(racks[SYSTEMS[name].rack])
            system = opened[name]
            system.rack.set_links("--loss", lost_share)
            try:
                if (name, lost_share) not in settings:  # which is best depends on the loss
                    system.calibrate([(size, 1, 0)])
                    settings[name, lost_share] = system.chosen.get(size)
                system.chosen = {size: settings[name, lost_share]} if settings[name, lost_share] else {}
                passed, lost = system.rack.packets()
                result = system.measure(size, LOSSY_ITERATIONS, 1)
            except PROBLEMS:
                opened.pop(name).close()
                raise
            finally:
                system.rack.set_links("--loss", 0)
            passed_after, lost_after = system.rack.packets()
            return {**result, "packets_passed": passed_after - passed, "packets_lost": lost_after - lost}

        yield measure


# --- Planned shares

SPARES = 8


@dataclasses.dataclass
class Placement:
    """A row of the table. `rack`: of rack_flags(). `places`: the aggregators' nodes in it, all of them if None. `case`:
    of netsum plan. `corrects`: whether a plan from a wrong rate is corrected; None: the rates are right."""

    title: str
    rack: str
    places: list | None
    case: str
    corrects: bool | None = None


def _spares(k):
    title = f"{k} spare host{'s' * (k > 1)}"
    return Placement(title, "equal", [f"s{s}" for s in range(k)], f"{title} and shards")


PLACEMENTS = {
    "netsum-shares": Placement("nothing but the workers", "equal", [], "embedded shards"),
    **{f"netsum-spare{k}": _spares(k) for k in (1, 2, 4, 8)},
    "netsum-fast": Placement("1 spare host, its link 4 times as fast", "fast", None, "best mix"),
    "netsum-ports": Placement("1 spare host with 4 ports", "ports", None, "best mix"),
    "netsum-unequal": Placement("half of the workers' links half as fast", "unequal", [], "embedded shards"),
    "netsum-unequal-spare": Placement("the same, and 1 spare host", "unequal", None, "best mix"),
    "netsum-switch": Placement("an aggregator in the switch", "equal", ["sw"], "sw alone"),
    "netsum-half": Placement("the same, which sums only half the rate", "half", None, "best mix"),
    "netsum-wrong-planned": Placement(
        "1 spare host with half of the declared rate, `--shares planned`", "wrong", None, "best mix", corrects=False
    ),
    "netsum-wrong": Placement("the same, `--shares auto`", "wrong", None, "best mix", corrects=True),
}
# What is measured after a plan from a wrong rate: iterations, and those before them in which it can be corrected. A quarter of
# the size, because there are many.
CORRECTED = (7, 56)
SMALLER = 4
PLACED_PEERS = {
    "gloo": (Gloo, "equal"),
    "openmpi": (OpenMpi, "equal"),
    "gloo-unequal": (Gloo, "unequal"),
    "openmpi-unequal": (OpenMpi, "unequal"),
}


def has_wrong_rate(name):
    return name in PLACEMENTS and PLACEMENTS[name].corrects is not None


def in_one_round(turn):
    """Where a plan is from a wrong rate."""
    if turn["rate"] == "none":
        raise ValueError("without a rate there is nothing to plan")
    return {**turn, "round": 0, "bytes": turn["bytes"] // SMALLER} if has_wrong_rate(turn["system"]) else turn


def rack_flags(rack, workers, rate):
    """Of `netsum rack up`."""
    bits = rate_bits(rate)
    times = lambda factor: f"{bits * factor / 1e3:.0f}kbit"
    return {
        "equal": ("--spare", SPARES),
        "fast": ("--spare", 1, "--spare-rate", times(4), "--no-switch-aggregator"),
        "ports": ("--spare", 1, "--ports", 4, "--no-switch-aggregator"),
        "unequal": (
            *("--worker-rate", f"{workers // 2}-{workers - 1}={times(0.5)}"),
            *("--spare", 1, "--no-switch-aggregator"),
        ),
        "half": ("--switch-rate", times(0.5)),
        "wrong": ("--spare", 1, "--no-switch-aggregator"),
    }[rack]


class Placed(Netsum):
    """netsum at one placement."""

    def __init__(self, rack, name):
        super().__init__(rack)
        placement = PLACEMENTS[name]
        used = [
            one["address"]
            for one in rack.status()["aggregators"]
            if placement.places is None or one["node"] in placement.places
        ]
        self.flags = ["--aggregator", ",".join(used), *(() if used else ("--root", rack.root))]
        self.flags += ["--shares", "planned"] if placement.corrects is False else []
        [plan] = reports([[rack.netsum, "plan", "--rack", rack.name, "--json"]])
        self.case = next(case for case in plan["cases"] if case["name"] == placement.case)
        self.ring_s_per_gigabyte = plan["ring_s_per_gigabyte"]

    def plan(self):
        """What the program says, for the records; loads are in units of the gradient."""
        return {
            "s_per_gigabyte": self.case["s_per_gigabyte"],
            "ring_s_per_gigabyte": self.ring_s_per_gigabyte,
            "bottleneck": self.case["bottleneck"],
            "stripes": sum(one["weight"] > 0 for one in self.case["weights"]),
            "loads": {link["name"]: link["bytes_per_gigabyte"] / 1e9 for link in self.case["links"]},
        }

    def carried(self, size, iterations, warmup):
        """A measurement, and the bytes of each link in it, named as in the plan."""
        before = self.counted()
        result = super().measure(size, iterations, warmup)
        return result, {link: count - before[link] for link, count in self.counted().items()}

    def counted(self):
        """Bytes so far of each link, and of what a slow switch sums from each worker."""
        counts = {
            f"{link.replace('-p', ' port ')}, {way}": carried[way]
            for link, carried in self.rack.all_link_bytes().items()
            for way in ("in", "out")
        }
        if shaped := self.rack.bucket_bytes("sw"):
            counts["sw, sums"] = shaped["ifb-br0"] // self.rack.workers
        return counts

    @functools.cached_property
    def joining(self):
        return self.carried(4, 1, 0)[1]

    def measure(self, size, iterations, warmup):
        joining = self.joining
        result, carried = self.carried(size, iterations, warmup)
        per_operation = {
            link: round((count - joining[link]) / (iterations + warmup))
            for link, count in carried.items()
            if link in self.plan()["loads"]
        }
        return {**result, "link_bytes": per_operation}


@contextlib.contextmanager
def shares(run, place, turns):
    """Virtual racks with spare hosts, several ports, unequal links and a slow switch are up side by side. For each
    placement the optimum is that of `netsum plan` for the same rack. The bytes of every link are those of its token
    buckets, without those of joining."""
    sizes = {turn["system"]: turn["bytes"] for turn in turns}
    rack_of = {name: PLACEMENTS[name].rack if name in PLACEMENTS else PLACED_PEERS[name][1] for name in sizes}
    with contextlib.ExitStack() as stack:
        racks = {}
        for number, name in enumerate(dict.fromkeys(rack_of.values())):
            flags = rack_flags(name, place["workers"], place["rate"])
            racks[name] = stack.enter_context(
                Rack(run.netsum, f"s{number}x{os.getpid()}", place["workers"], place["rate"], 1500, "user", flags=flags)
            )
            if name == "wrong":  # the aggregator has declared the other rate
                racks[name].set_links("--rate", f"{rate_bits(place['rate']) / 2e3:.0f}kbit", where="s0")

        def make(name):
            if name in PLACED_PEERS:
                return PLACED_PEERS[name][0](racks[rack_of[name]])
            system = Placed(racks[rack_of[name]], name)
            run.keep({**place, "bytes": sizes[name], "system": name, "plan": system.plan()})
            return system

        def plan(size, rate, rounds, name):
            return [CORRECTED] if has_wrong_rate(name) else plan_rack(size, rate, rounds)

        makers = {name: functools.partial(make, name) for name in sizes}
        yield taking_turns(run, stack, place, turns, makers, plan)
