"""What the rack benchmark compares: each system measures all-reduces among the workers of one rack that is up."""

import contextlib
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

from netsum_bench.start_gate import combine, gate_file

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 300  # of one measurement
SMALL = 64 << 10  # up to here latency counts, and other settings are tried


class Failed(Exception):
    """A system could not be run or measured."""


# What may go wrong with one system without ending the run of all: also output that cannot be understood, or a timeout.
PROBLEMS = (Failed, OSError, ValueError, LookupError, subprocess.SubprocessError)


def start(command):
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@contextlib.contextmanager
def running(command, first_words, what):
    """A process for the time of a `with`, once its first line begins with these words; or Failed with what it said."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            if not process.stdout.readline().startswith(first_words):
                process.wait(10)
                log.seek(0)
                raise Failed(f"{what} did not start: {log.read().strip()[-500:]}")
            yield
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


class Rack:
    """A virtual rack, for the time of a `with`."""

    master = "10.77.0.1:29400"
    root = "10.77.0.1:5350"

    def __init__(self, netsum, name, workers, rate, mtu, dataplane, multicast=False, loss=None, spares=0):
        """`spares`: further nodes like workers, the first of them number `workers`."""
        self.netsum, self.name, self.workers, self.rate, self.mtu = netsum, name, workers, rate, mtu
        self.dataplane, self.multicast, self.loss, self.spares = dataplane, multicast, loss, spares

    def __enter__(self):
        self.up()
        return self

    def up(self):
        """Makes the rack; anew if its aggregator has died."""
        made = subprocess.run(
            [
                self.netsum,
                "rack",
                "up",
                "--name",
                self.name,
                "--workers",
                str(self.workers + self.spares),
                "--rate",
                self.rate,
                "--mtu",
                str(self.mtu),
                "--dataplane",
                self.dataplane,
                *(["--multicast"] if self.multicast else []),
                *([] if self.loss is None else ["--loss", str(self.loss)]),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if made.returncode != 0:
            raise Failed(made.stderr.strip())

    def __exit__(self, *_):
        subprocess.run(
            [self.netsum, "rack", "down", "--name", self.name], capture_output=True, timeout=120, check=False
        )

    def inside(self, where, *command):
        return [str(self.netsum), "rack", "exec", "--name", self.name, str(where), "--", *map(str, command)]

    def mpi_placement(self, folder):
        """Flags of mpirun, to have one rank on each worker."""
        # In the place of ssh: runs the command in the namespace of that address, under a host name of its own.
        agent = folder / "agent"
        agent.write_text(
            "#!/bin/sh\nhost=$1; shift; worker=$((${host##*.} - 1))\n"
            'exec unshare --uts sh -c "hostname w$worker; exec \\"\\$0\\" rack exec --name '
            f'{self.name} $worker -- sh -c \\"\\$1\\"" "{self.netsum}" "$*"\n',
            encoding="ascii",
        )
        agent.chmod(0o755)
        subnet = "10.77.0.0/16"
        hosts = ",".join(f"10.77.0.{w + 1}" for w in range(self.workers))
        return [
            "--mca",
            "plm_rsh_agent",
            agent,
            "--mca",
            "btl",
            "tcp,self",
            "--mca",
            "btl_tcp_if_include",
            subnet,
            "--mca",
            "oob_tcp_if_include",
            subnet,
            "--host",
            hosts,
        ]

    def set_links(self, *change, where="all"):
        """By `netsum rack set`."""
        done = subprocess.run(
            [self.netsum, "rack", "set", "--name", self.name, str(where), *map(str, change)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(done.stderr.strip())

    def status(self):
        listed = subprocess.run([self.netsum, "rack", "status", "--json"], capture_output=True, check=True)
        return next(r for r in json.loads(listed.stdout) if r["name"] == self.name)

    def packets(self):
        """Of all links of a rack with a loss, both ways: (passed, lost)."""
        links = self.status()["links"]
        return sum(link["packets_passed"] for link in links), sum(link["packets_lost"] for link in links)

    def link_bytes(self):
        """Bytes that worker 0's link has carried so far: (up, down), Ethernet headers included."""
        space = f"netsum-{self.name}-w0"
        if self.rate != "none":  # the buckets count segmented sends with all their headers
            listed = subprocess.run(["tc", "-n", space, "-s", "-j", "qdisc", "show"], capture_output=True, check=True)
            sent = {q["dev"]: q["bytes"] for q in json.loads(listed.stdout) if q["kind"] == "tbf"}
            return sent["eth0"], sent["ifb-eth0"]
        listed = subprocess.run(
            ["ip", "-n", space, "-s", "-j", "link", "show", "eth0"], capture_output=True, check=True
        )
        stats = json.loads(listed.stdout)[0]["stats64"]
        return stats["tx"]["bytes"], stats["rx"]["bytes"]

    def switch_address(self):
        return next(node["address"] for node in self.status()["nodes"] if node["id"] == "sw")

    def aggregator_pid(self):
        """Of the rack's own aggregator, in the switch."""
        return next(node["pid"] for node in self.status()["nodes"] if "pid" in node)

    @contextlib.contextmanager
    def aggregator(self, where, address, *flags):
        """Another aggregator, of one core, on a worker or in the switch ("sw"), for the time of a `with`."""
        with running(
            self.inside(where, self.netsum, "aggregator", "--listen", address, "--cores", "1", *flags),
            "ready",
            f"the aggregator at {address}",
        ):
            yield address

    def switch_cpu_seconds(self):
        """CPU time of the switch's aggregator process (an XDP program's time is nobody's)."""
        fields = (
            pathlib.Path(f"/proc/{self.aggregator_pid()}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def finish(processes, deadline_s=DEADLINE_S):
    """Waits for all; their output, or Failed with what the first bad one said. None is left running."""
    end = time.monotonic() + deadline_s
    outputs, problem = [], None
    try:
        for process in processes:
            try:
                out, err = process.communicate(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                problem = problem or f"no end after {deadline_s} s: {err.strip()[-500:]}"
            if process.returncode != 0 and problem is None:
                problem = err.strip()[-500:] or f"exit status {process.returncode}"
            outputs.append(out)
    finally:  # also when the benchmark is interrupted
        for process in processes:
            if process.returncode is None:
                process.kill()
                process.wait()
    if problem:
        raise Failed(problem)
    return outputs


@contextlib.contextmanager
def spare_host(rack):
    """An aggregator on the rack's last node, which has a link like the workers', for the time of a `with`: its address."""
    node = rack.workers
    with rack.aggregator(node, f"10.77.0.{node + 1}:5252") as address:
        yield address


class Netsum:
    """netsum, each measurement a run of `netsum bench allreduce` on every worker. `place`: where the sums are made, in the
    "switch", on a "spare" host, by "shards" embedded in the workers, or in the "memory" that they share."""

    setting = ""

    def __init__(self, rack, place="switch", dtype="float32", packet_io="udp"):
        if packet_io == "af_xdp" and rack.rate != "none":
            raise Failed("AF_XDP would go past the shaping of the links")
        self.rack, self.dtype, self.packet_io, self.place = rack, dtype, packet_io, place
        kind = {"switch": rack.dataplane, "memory": "memory"}.get(place, place)
        self.name = (
            f"netsum-{kind}"
            + ("" if dtype == "float32" else f"-{dtype}")
            + ("" if packet_io == "udp" else f"-{packet_io}")
            + ("-multicast" if rack.multicast else "")
        )
        self.resources = contextlib.ExitStack()
        if place == "spare":
            self.flags = ["--aggregator", self.resources.enter_context(spare_host(rack))]
        else:
            embedded = ["--aggregator", "", "--root", rack.root]
            self.flags = {"switch": [], "shards": embedded, "memory": [*embedded, "--shared-memory"]}[place]

    def calibrate(self, _plan):
        return {}

    def measure(self, size, iterations, warmup):
        size = size if self.dtype == "float32" else size // 2  # as many elements
        with gate_file(self.rack.workers) as gate:
            command = [
                self.rack.netsum,
                "bench",
                "allreduce",
                "--world-size",
                self.rack.workers,
                "--bytes",
                size,
                "--iterations",
                iterations,
                "--warmup",
                warmup,
                "--dtype",
                self.dtype,
                "--mtu",
                self.rack.mtu,
                "--timeout",
                "120s",
                "--packet-io",
                self.packet_io,
                "--start-gate",
                gate,
                *self.flags,
                "--json",
                "--rank",
            ]
            ranks = [start(self.rack.inside(w, *command, w)) for w in range(self.rack.workers)]
            reports = [json.loads(out) for out in finish(ranks)]
        summed_by = reports[0]["summed_by"]
        if (
            (self.packet_io == "af_xdp" and "packets by af_xdp" not in summed_by)
            or self.rack.multicast != ("results by multicast" in summed_by)
            or (self.place == "memory" and any(r["ranks"][0]["bytes_sent"] for r in reports))
        ):
            raise Failed(f"{self.name} was to be measured, but it is: {summed_by}")
        found = combine([{"wrong": r["results_wrong"], "sums": [], "stamps": r["ranks"][0]["stamps"]} for r in reports])
        return {**found, "retransmissions": sum(r["ranks"][0]["retransmissions"] for r in reports)}

    def close(self):
        self.resources.close()


class Tuned:
    """A peer that has settings to choose from: at each size the one that was fastest in a short run is measured."""

    def __init__(self):
        self.chosen = {}

    def calibrate(self, plan):
        """`plan`: (bytes, iterations, warm-up) for each size. Returns what each setting took, in ms, per size."""
        found = {}
        for setting, sizes in self.candidates([step[0] for step in plan]).items():
            part = [step for step in plan if step[0] in sizes]
            try:
                results = self.run_with(setting, part)
            except PROBLEMS as problem:
                results = [{"wrong": 0, "failed": str(problem)[-200:]} for _ in part]
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
            raise Failed("no setting of it worked in the calibration")
        [result] = self.run_with(self.chosen[size], [(size, iterations, warmup)])
        return {**result, "setting": self.chosen[size]}


class GlooRanks:
    """A process of PyTorch with Gloo on every worker. They stay up between measurements, as importing torch takes seconds."""

    def __init__(self, rack):
        self.workers = rack.workers
        command = [sys.executable, "-m", "netsum_bench.gloo_worker"]
        self.commands = [rack.inside(w, *command, w, rack.workers, rack.master) for w in range(rack.workers)]
        self.processes = []
        self.begin()

    def begin(self):
        self.processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1
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
                raise Failed("a rank has ended")
            answers.append(json.loads(line))
        return answers

    def measure(self, dtype, size, iterations, warmup, how):
        with gate_file(self.workers) as gate:
            try:
                for process in self.processes:
                    process.stdin.write(f"{gate} {dtype} {size} {iterations} {warmup} {how}\n")
                    process.stdin.flush()
                return combine(self.answers())
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


class Gloo(Tuned):
    """PyTorch's Gloo backend. PyTorch offers no choice of Gloo's algorithm for an all-reduce, so other calls that give the
    same result are tried for small tensors. `ranks` may be shared by several."""

    def __init__(self, rack, dtype="float32", ranks=None):
        super().__init__()
        self.rack, self.dtype, self.shared = rack, dtype, ranks
        self.name = "gloo" if dtype == "float32" else f"gloo-{dtype}"
        self.ranks = ranks or GlooRanks(rack)

    def candidates(self, sizes):
        small = [size for size in sizes if size <= SMALL]
        return {"all_reduce": sizes, **({"reduce+broadcast": small, "all_gather+sum": small} if small else {})}

    def run_with(self, setting, plan):
        return [
            self.ranks.measure(self.dtype, size if self.dtype == "float32" else size // 2, iterations, warmup, setting)
            for size, iterations, warmup in plan
        ]

    def close(self):
        if not self.shared:
            self.ranks.close()


class OpenMpi(Tuned):
    """MPI_Allreduce of Debian's Open MPI, over TCP between the workers of a rack, in shared memory on one host."""

    name = "openmpi"
    YIELD = ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]

    def __init__(self, rack):
        super().__init__()
        if not shutil.which("mpicc") or not shutil.which("mpirun"):
            raise Failed("mpicc and mpirun are not installed: apt-get install openmpi-bin libopenmpi-dev")
        self.rack = rack
        self.folder = tempfile.TemporaryDirectory(prefix="netsum-bench-")
        self.program = pathlib.Path(self.folder.name) / "mpi_allreduce"
        subprocess.run(
            ["mpicc", "-O2", "-I", HERE.parents[1], "-o", self.program, HERE / "mpi_allreduce.c"],
            check=True,
            timeout=60,
        )
        self.placement = rack.mpi_placement(pathlib.Path(self.folder.name))

    @classmethod
    def flags(cls, setting):
        """ "default" is Open MPI as installed: it polls without pause, bound to cores. The others yield, unbound."""
        if setting == "default":
            return []
        algorithm, _, segment = setting.removeprefix("yield").lstrip(", ").partition("/")
        if not algorithm:
            return cls.YIELD
        number = {"recursive doubling": 3, "ring": 4, "segmented ring": 5, "Rabenseifner": 6}[algorithm]
        return [
            *cls.YIELD,
            "--mca",
            "coll_tuned_use_dynamic_rules",
            "1",
            "--mca",
            "coll_tuned_allreduce_algorithm",
            str(number),
            *(["--mca", "coll_tuned_allreduce_algorithm_segmentsize", segment] if segment else []),
        ]

    def candidates(self, sizes):
        small = [size for size in sizes if size <= SMALL]
        large = [size for size in sizes if size > SMALL]
        found = {
            "default": sizes,
            "yield": sizes,
            "yield, recursive doubling": small,
            "yield, Rabenseifner": sizes,
            "yield, ring": large,
            "yield, segmented ring/65536": large,
            "yield, segmented ring/1048576": large,
        }
        return {setting: of_sizes for setting, of_sizes in found.items() if of_sizes}

    def run_with(self, setting, plan):
        with contextlib.ExitStack() as stack:
            steps = [part for step in plan for part in (stack.enter_context(gate_file(self.rack.workers)), *step)]
            command = ["mpirun", *self.placement, *self.flags(setting), "-np", self.rack.workers, self.program, *steps]
            run = subprocess.Popen(
                self.rack.inside("sw", *command),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
            )
            lines = [line for line in finish([run])[0].splitlines() if line.startswith("[{")]
        if len(lines) != len(plan):
            raise Failed("mpirun printed no result")
        return [combine(json.loads(line)) for line in lines]

    def close(self):
        self.folder.cleanup()
