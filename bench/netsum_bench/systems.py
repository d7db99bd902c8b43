"""What is compared: each system measures a collective, an all-reduce unless a subclass says otherwise, among the
workers of one place that is up (rack.py). SYSTEMS lists them, with the names of the records and the tables."""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import selectors
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from netsum_bench.processes import DEADLINE_S, PROBLEMS, Failed, finish, reports, start
from netsum_bench.start_gate import combine, gate_file

HERE = pathlib.Path(__file__).resolve().parent
SMALL = 64 << 10  # up to here latency counts, and other settings are tried


@contextlib.contextmanager
def spare_host(rack):
    """An aggregator on the rack's last node, which has a link like the workers', for the time of a `with`: its address."""
    node = rack.workers
    rate = () if rack.rate == "none" else ("--link-rate", rack.rate)
    with rack.aggregator(node, f"10.77.0.{node + 1}:5252", *rate) as address:
        yield address


class Tuned:
    """A system that has settings to choose from: at each size the one that was fastest in a short run is measured."""

    def __init__(self):
        self.chosen = {}
        self.reasons = {}  # by size, of the last setting that failed there

    def calibrate(self, plan):
        """`plan`: (bytes, iterations, warm-up) for each size. Returns what each setting took, in ms, per size."""
        found = {}
        for setting, sizes in self.candidates([step[0] for step in plan]).items():
            part = [step for step in plan if step[0] in sizes]
            try:
                results = self.run_with(setting, part)
            except PROBLEMS as problem:
                results = [{"wrong": 0} for _ in part]
                self.reasons.update(dict.fromkeys(sizes, f"{setting}: {str(problem).strip()[-300:]}"))
            for (size, *_), result in zip(part, results, strict=True):
                found.setdefault(size, {})[setting] = (
                    round(statistics.median(result["times_ms"]), 3)
                    if "times_ms" in result and not result["wrong"]
                    else None
                )
        for size, times in found.items():
            worked = {setting: ms for setting, ms in times.items() if ms is not None}
            if worked:
                self.chosen[size] = min(worked, key=worked.get)
        return found

    def measure(self, size, iterations, warmup):
        if size not in self.chosen:
            raise Failed(
                f"no setting of it worked in the calibration; {self.reasons.get(size, 'the results were wrong')}"
            )
        [result] = self.run_with(self.chosen[size], [(size, iterations, warmup)])
        return {**result, "setting": self.chosen[size]}


class Netsum(Tuned):
    """netsum, each measurement a run of `netsum bench` on every worker. `place`: where the sums are made, in the
    "switch", by "shards" embedded in the workers, on a spare host and by shards as planned ("mix"), or in the "memory"
    that the workers share. `lane_bits`: of elements on the wire, 0 for the type's usual ones. `compress`: what
    --compress takes. Settings are that its threads poll for long, for small tensors, and how many engine threads each
    worker has, where the machine has more cores than workers."""

    collective = "allreduce"
    POLLING = "1 engine thread, polling for 10ms"

    def __init__(self, rack, place="switch", dtype="float32", packet_io="udp", lane_bits=0, compress=None):
        super().__init__()
        if packet_io == "af_xdp" and rack.rate != "none":
            raise Failed("AF_XDP would go past the shaping of the links")
        self.rack, self.dtype, self.packet_io, self.place, self.lane_bits = rack, dtype, packet_io, place, lane_bits
        self.compress = ["--data", "normal", "--compress", compress] if compress else []
        self.resources = contextlib.ExitStack()
        if place == "mix":
            self.flags = ["--aggregator", self.resources.enter_context(spare_host(rack))]
        else:
            embedded = ["--aggregator", "", "--root", rack.root]
            self.flags = {"switch": [], "shards": embedded, "memory": [*embedded, "--shared-memory"]}[place]

    def candidates(self, sizes):
        if self.packet_io != "udp":
            return {}
        small = [size for size in sizes if size <= SMALL]
        large = [size for size in sizes if size > SMALL and self.place != "memory"]
        cores_of_each = os.cpu_count() // self.rack.workers
        found = {
            self.threads_text(1): sizes,
            self.POLLING: small,
            **{self.threads_text(n): large for n in (2, 4) if n <= cores_of_each},
        }
        return {setting: of_sizes for setting, of_sizes in found.items() if of_sizes}

    @staticmethod
    def threads_text(number):
        return f"{number} engine thread{'s' if number > 1 else ''}"

    def calibrate(self, plan):
        return super().calibrate(plan) if len(self.candidates([size for size, *_ in plan])) > 1 else {}

    def measure(self, size, iterations, warmup):
        if size in self.chosen:
            return super().measure(size, iterations, warmup)
        return self.run(size, iterations, warmup)

    def run_with(self, setting, plan):
        threads = contextlib.nullcontext(["--engine-threads", setting.split()[0]])
        with self.polling() if setting == self.POLLING else threads as flags:
            return [self.run(*step, *flags) for step in plan]

    @contextlib.contextmanager
    def polling(self):
        """As Open MPI does as installed: the flags of the workers. The rack's aggregator does not poll, another one in
        the switch does."""
        flags = ["--spin", self.POLLING.split()[-1]]
        if self.place == "switch" and self.rack.dataplane == "user" and not self.rack.multicast:
            with self.rack.another_in_switch(*flags) as address:
                yield [*flags, "--aggregator", address]
        else:
            yield flags

    def run(self, size, iterations, warmup, *more, during=contextlib.nullcontext):
        """`during`: makes a context manager of the start gate's path, in which the workers run."""
        size = size if self.dtype == "float32" else size // 2  # as many elements
        with gate_file(self.rack.workers) as gate, during(gate):
            command = [self.rack.netsum, "bench", self.collective, "--world-size", self.rack.workers]
            command += ["--bytes", size] if size else []
            command += ["--iterations", iterations, "--warmup", warmup, "--dtype", self.dtype]
            command += ["--lane-bits", self.lane_bits] if self.lane_bits else []
            command += [*self.compress, "--mtu", self.rack.mtu, "--timeout", "120s", "--packet-io", self.packet_io]
            command += ["--start-gate", gate, *self.flags, *more, "--json", "--rank"]
            before = self.daemon_cpu_s(size)
            found = reports([self.rack.inside(w, *command, w) for w in range(self.rack.workers)])
            after = self.daemon_cpu_s(size)
        ranks, summed_by = [report["ranks"][0] for report in found], found[0]["summed_by"]
        if (
            (self.packet_io == "af_xdp" and "packets by af_xdp" not in summed_by)
            or self.rack.multicast != ("results by multicast" in summed_by)
            or (self.place == "memory" and any(rank["bytes_sent"] for rank in ranks))
        ):
            raise Failed(f"another system was to be measured, but it is: {summed_by}")
        wrong = sum(report["results_wrong"] for report in found)
        timed = combine([{"wrong": 0, "sums": [], "cpu_s": r["cpu_seconds"], "stamps": r["stamps"]} for r in ranks])
        # It has nothing else to do; of the sums of warm-up, too.
        daemon = {} if before is None else {"daemon_cpu_ms": round((after - before) / (iterations + warmup) * 1e3, 2)}
        return {**timed, **daemon, "wrong": wrong, "retransmissions": sum(rank["retransmissions"] for rank in ranks)}

    def daemon_cpu_s(self, size):
        """Processor time so far of the daemon that makes sums of this size; None where none does, or where they are small."""
        adds_all = self.place == "switch" and self.rack.dataplane == "user" and size > SMALL
        return self.rack.aggregators_cpu_s() if adds_all else None

    def close(self):
        self.resources.close()


class TorchRanks:
    """A process of PyTorch on every worker, which answers lines. They stay up between measurements, as importing torch takes
    seconds. `arguments`: of the module, behind rank, number of ranks and the master's address. `hosts`: the worker of each rank,
    if not the one of the same number; that of rank 0 is the first."""

    def __init__(self, rack, module, *arguments, port=None, hosts=None):
        self.workers = rack.workers
        hosts = range(rack.workers) if hosts is None else hosts
        command = [sys.executable, "-m", f"netsum_bench.{module}"]
        master = rack.master if port is None else f"{rack.master.split(':')[0]}:{port}"
        self.commands = [rack.inside(w, *command, r, rack.workers, master, *arguments) for r, w in enumerate(hosts)]
        self.processes = []
        self.log = tempfile.TemporaryFile("a+")  # noqa: SIM115  what any of them says besides answers; ends with this object
        self.begin()

    def begin(self):
        self.processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, bufsize=1
            )
            for command in self.commands
        ]
        self.answers()

    def answers(self):
        """What each has to say next."""
        deadline, answers = time.monotonic() + DEADLINE_S, []
        for process in self.processes:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                if not selector.select(max(0, deadline - time.monotonic())):
                    raise Failed(f"no answer within {DEADLINE_S} s")
            line = process.stdout.readline()
            if not line:
                raise Failed(f"a rank has ended: {self.last_words()}")
            answers.append(json.loads(line))
        return answers

    def last_words(self):
        self.log.seek(0)
        return self.log.read().strip()[-500:]

    def tell(self, line):
        for process in self.processes:
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def ask(self, line_of):
        """What all answer to the line that `line_of` makes of the path of a start gate."""
        with gate_file(self.workers) as gate:
            try:
                self.tell(line_of(gate))
                return self.answers()
            except PROBLEMS:  # of which this measurement fails, but not those that follow
                self.close(0)
                self.begin()
                raise

    def close(self, patience_s=20):
        for process in self.processes:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process in self.processes:
            try:
                process.wait(timeout=patience_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


class GlooRanks(TorchRanks):
    def __init__(self, rack):
        super().__init__(rack, "gloo_worker")

    def measure(self, dtype, size, iterations, warmup, how):
        return combine(self.ask(lambda gate: f"{gate} {dtype} {size} {iterations} {warmup} {how}"))


class Gloo(Tuned):
    """PyTorch's Gloo backend. PyTorch offers no choice of Gloo's algorithm for an all-reduce, so other calls that give the
    same result are tried for small tensors. The ranks are those of all such systems of the place."""

    def __init__(self, rack, dtype="float32"):
        super().__init__()
        self.rack, self.dtype = rack, dtype
        self.ranks = self.open_ranks()

    def open_ranks(self):
        return self.rack.shared(GlooRanks)

    def candidates(self, sizes):
        small = [size for size in sizes if size <= SMALL]
        return {"all_reduce": sizes, **({"reduce+broadcast": small, "all_gather+sum": small} if small else {})}

    def run_with(self, setting, plan):
        return [
            self.ranks.measure(self.dtype, size if self.dtype == "float32" else size // 2, iterations, warmup, setting)
            for size, iterations, warmup in plan
        ]

    def close(self):
        pass


class GlooOnLossyLinks(Gloo):
    """A congestion control of TCP is a setting as well: with losses, what takes them for congestion is slow.
    Connections last as long as the ranks, so that each setting has ranks of its own."""

    TRIED = ("cubic", "bbr")

    def __init__(self, rack):
        default, *others = rack.congestion_controls()
        self.controls = [default, *(one for one in others if one in self.TRIED)]
        self.control, self.others = default, {}
        super().__init__(rack)

    def open_ranks(self):
        return GlooRanks(self.rack)

    def candidates(self, sizes):
        return dict.fromkeys(self.controls, sizes)

    def run_with(self, setting, plan):
        if setting != self.control:
            self.others[self.control], self.control = self.ranks, setting
            self.ranks = self.others.pop(setting, None) or self.ranks_with(setting)
        return super().run_with("all_reduce", plan)

    def ranks_with(self, control):
        self.rack.set_congestion_control(control)
        try:
            return GlooRanks(self.rack)
        finally:
            self.rack.set_congestion_control(self.controls[0])

    def close(self):
        for ranks in (self.ranks, *self.others.values()):
            ranks.close()


class OpenMpi(Tuned):
    """Debian's Open MPI, over TCP between the workers of a rack, in shared memory on one host."""

    collective = "allreduce"  # of mpi_collective.c
    environment = {}  # of the ranks, besides that of the benchmark
    YIELD = ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    NO_CMA = ["--mca", "btl_vader_single_copy_mechanism", "none"]

    def __init__(self, rack):
        super().__init__()
        if not shutil.which("mpicc") or not shutil.which("mpirun"):
            raise Failed("mpicc and mpirun are not installed: apt-get install openmpi-bin libopenmpi-dev")
        self.rack = rack
        self.folder = tempfile.TemporaryDirectory(prefix="netsum-bench-")
        self.program = pathlib.Path(self.folder.name) / "mpi_collective"
        build = ["mpicc", "-O2", "-I", HERE.parents[1], "-o", self.program, HERE / "mpi_collective.c"]
        subprocess.run(build, check=True, timeout=60)
        self.placement = rack.mpi_placement(pathlib.Path(self.folder.name))

    @classmethod
    def flags(cls, setting):
        """ "default" is Open MPI as installed: it polls without pause, bound to cores. With "yield" it yields, unbound.
        "no CMA": ranks of one host do not read each other's memory, but copy through shared memory."""
        first, *more = setting.split(", ")
        flags = list(cls.YIELD) if first == "yield" else []
        for one in more:
            flags += cls.NO_CMA if one == "no CMA" else cls.algorithm(*one.split("/"))
        return flags

    @staticmethod
    def algorithm(name, segment=None):
        """The flags of an algorithm of coll/tuned."""
        number = {"nonoverlapping": 2, "recursive doubling": 3, "ring": 4, "segmented ring": 5, "Rabenseifner": 6}[name]
        flags = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", str(number)]
        return flags + (["--mca", "coll_tuned_allreduce_algorithm_segmentsize", segment] if segment else [])

    def program_of(self, _setting):
        """The first argument of mpi_collective.c."""
        return self.collective

    def candidates(self, sizes):
        small = [size for size in sizes if size <= SMALL]
        large = [size for size in sizes if size > SMALL]
        found = {
            "default": sizes,
            "yield": sizes,
            "default, nonoverlapping": small,
            "default, ring": small,
            "yield, nonoverlapping": small,
            "yield, recursive doubling": small,
            "yield, Rabenseifner": sizes,
            "yield, ring": sizes,
            "yield, segmented ring/65536": large,
            "yield, segmented ring/1048576": large,
        }
        return {setting: of_sizes for setting, of_sizes in found.items() if of_sizes}

    def run_with(self, setting, plan):
        with contextlib.ExitStack() as stack:
            steps = [part for step in plan for part in (stack.enter_context(gate_file(self.rack.workers)), *step)]
            command = ["mpirun", *self.placement, *self.flags(setting), "-np", self.rack.workers, self.program]
            command += [self.program_of(setting), *steps]
            as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            run = start(
                self.rack.inside(self.rack.launcher, *command), env={**os.environ, **self.environment, **as_root}
            )
            lines = [line for line in finish([run])[0].splitlines() if line.startswith("[{")]
        if len(lines) != len(plan):
            raise Failed("mpirun printed no result")
        return [combine(json.loads(line)) for line in lines]

    def close(self):
        self.folder.cleanup()


def plugin_environment(rack):
    """What makes a plug-in of netsum sum at the rack's aggregator."""
    return {
        "NETSUM_AGGREGATOR": rack.status()["aggregators"][0]["address"],
        "NETSUM_MTU": str(rack.mtu),
        "NETSUM_SHARED_MEMORY": "0",
    }


class NetsumNccl:
    """The plug-in of NCCL, driven by the harness of its tests, with the rack's aggregator."""

    def __init__(self, rack):
        self.rack = rack
        self.program = pathlib.Path(rack.netsum).parents[2] / "nccl/nccl_all_reduce"
        if not self.program.exists():
            raise Failed(f"the plug-in of NCCL was not built: there is no {self.program}")
        self.environment = plugin_environment(rack)

    def calibrate(self, _plan):
        return {}

    def measure(self, size, iterations, warmup):
        workers = self.rack.workers
        with gate_file(workers) as gate, tempfile.NamedTemporaryFile(prefix="netsum-board-") as board:
            command = lambda w: (self.program, board.name, gate, w, workers, size, iterations, warmup)
            commands = [self.rack.inside(w, *command(w)) for w in range(workers)]
            found = reports(commands, env={**os.environ, **self.environment})
        if "summed in the network by 1 aggregator" not in found[0]["log"]:
            raise Failed(f"NCCL was to sum by netsum, but it is: {found[0]['log']}")
        return combine(found)

    def close(self):
        pass


def component_flags(netsum):
    """Of mpirun: collectives pass through netsum's component, which was built beside the command."""
    component = pathlib.Path(netsum).parents[2] / "mpi/mca_coll_netsum.so"
    if not component.exists():
        raise Failed(f"the component of Open MPI was not built: there is no {component}")
    return ["--mca", "mca_base_component_path", f"SYS_DEFAULT:{component.parent}", "--mca", "coll_netsum_enable", "1"]


class NetsumMpi(OpenMpi):
    """The same program, whose MPI_Allreduce the component of Open MPI passes to netsum, with the rack's aggregator."""

    def __init__(self, rack):
        self.component = component_flags(rack.netsum)
        super().__init__(rack)
        self.environment = plugin_environment(rack)
        self.component += [part for name in self.environment for part in ("-x", name)]

    def flags(self, setting):
        return [*super().flags(setting), *self.component]

    def candidates(self, sizes):
        return {"yield": sizes}


class OpenMpiInMemory(OpenMpi):
    def candidates(self, sizes):
        without = ["default", "default, nonoverlapping", "yield", "yield, nonoverlapping"]
        return {**super().candidates(sizes), **{f"{setting}, no CMA": sizes for setting in without}}


@dataclasses.dataclass
class System:
    """`label` and `where` it sums: for the tables. `make`: of the place. `rack`: which it needs, by the switch's dataplane."""

    label: str
    where: str
    colour: str
    make: object
    rack: str = "user"


def _netsum(**more):
    return functools.partial(Netsum, **more)


def _compressed(name, label, colour, method):
    """Tensors that the workers compress, summed by the daemon. `method`: what --compress takes."""
    return {name: System(f"netsum, {label}", SWITCH, colour, _netsum(compress=method))}


SWITCH, WORKERS = "in the switch", "in the workers"
# In the order of the tables. AF_XDP only on unshaped links. (In XDP each worker has a port of its own, so multicast saves nothing.)
SYSTEMS = {
    "netsum-xdp": System("netsum, XDP", SWITCH, "#2ca02c", Netsum, "xdp"),
    "netsum-user": System("netsum, daemon", SWITCH, "#1f77b4", Netsum),
    "netsum-xdp-lanes8": System("netsum, XDP, 8-bit lanes", SWITCH, "#c5b0d5", _netsum(lane_bits=8), "xdp"),
    "netsum-user-lanes8": System("netsum, daemon, 8-bit lanes", SWITCH, "#9edae5", _netsum(lane_bits=8)),
    "netsum-mpi": System("netsum, daemon, by MPI_Allreduce", SWITCH, "#aec7e8", NetsumMpi),
    "netsum-nccl": System("netsum, daemon, by NCCL's CollNet table", SWITCH, "#98df8a", NetsumNccl),
    "netsum-user-multicast": System("netsum, daemon, multicast", SWITCH, "#7f7f7f", Netsum, "multicast"),
    "netsum-xdp-af_xdp": System(
        "netsum, XDP; workers by AF_XDP", SWITCH, "#8c564b", _netsum(packet_io="af_xdp"), "xdp"
    ),
    "netsum-user-af_xdp": System("netsum, daemon; workers by AF_XDP", SWITCH, "#e377c2", _netsum(packet_io="af_xdp")),
    "netsum-mix": System("netsum, daemon", "on a spare host and in the workers", "#9467bd", _netsum(place="mix")),
    "netsum-memory": System("netsum", "in shared memory", "#2ca02c", _netsum(place="memory")),
    "netsum-shards": System("netsum, embedded", WORKERS, "#bcbd22", _netsum(place="shards")),
    "gloo": System("Gloo", WORKERS, "#d62728", Gloo),
    "openmpi": System("Open MPI", WORKERS, "#ff7f0e", OpenMpi),
    "openmpi-memory": System("Open MPI, shared memory", WORKERS, "#ff7f0e", OpenMpiInMemory),
    **_compressed("compressed-bf16", "bf16", "#1b9e77", "bf16"),
    **_compressed("compressed-lanes8", "lanes8", "#d95f02", "lanes8"),
    **_compressed("compressed-topk-1%", "topk 1 %", "#7570b3", "topk,ratio=0.01,sampled=true"),
    **_compressed("compressed-topk-0.1%", "topk 0.1 %", "#e7298a", "topk,ratio=0.001,sampled=true"),
    **_compressed("compressed-dgc-1%", "dgc 1 %", "#66a61e", "dgc,ratio=0.01,sampled=true"),
    **_compressed("compressed-dgc-0.1%", "dgc 0.1 %", "#e6ab02", "dgc,ratio=0.001,sampled=true"),
    **_compressed("compressed-sidco-1%", "sidco 1 %", "#a6761d", "sidco,ratio=0.01,fit=pareto"),
    **_compressed("compressed-sidco-0.1%", "sidco 0.1 %", "#666666", "sidco,ratio=0.001,fit=pareto"),
    **_compressed("compressed-powersgd", "powersgd of rank 4", "#a6cee3", "powersgd,rank=4"),
    "netsum-user-bfloat16": System("netsum, daemon, bf16", SWITCH, "#17becf", _netsum(dtype="bfloat16")),
    "gloo-bfloat16": System("Gloo, bf16", WORKERS, "#ff9896", functools.partial(Gloo, dtype="bfloat16")),
}
COMPRESSED = [name for name in SYSTEMS if name.startswith("compressed-")]
PEERS = ("gloo", "openmpi", "openmpi-memory")


def is_lossy(system):
    """Less than float32."""
    return system.endswith("bfloat16") or system.startswith("compressed-")
