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

HERE = pathlib.Path(__file__).resolve().parent
DEADLINE_S = 300  # of one measurement


class Failed(Exception):
    """A system could not be run or measured."""


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

    def __init__(self, netsum, name, workers, rate, mtu, dataplane, multicast=False, loss=None):
        self.netsum, self.name, self.workers, self.rate, self.mtu = netsum, name, workers, rate, mtu
        self.dataplane, self.multicast, self.loss = dataplane, multicast, loss

    def __enter__(self):
        self.up()
        return self

    def up(self):
        """Makes the rack; anew if its aggregator has died."""
        made = subprocess.run([self.netsum, "rack", "up", "--name", self.name, "--workers", str(self.workers), "--rate",
                               self.rate, "--mtu", str(self.mtu), "--dataplane", self.dataplane,
                               *(["--multicast"] if self.multicast else []),
                               *([] if self.loss is None else ["--loss", str(self.loss)])],
                              capture_output=True, text=True, timeout=120, check=False)
        if made.returncode != 0:
            raise Failed(made.stderr.strip())

    def __exit__(self, *_):
        subprocess.run([self.netsum, "rack", "down", "--name", self.name], capture_output=True, timeout=120, check=False)

    def inside(self, where, *command):
        return [str(self.netsum), "rack", "exec", "--name", self.name, str(where), "--", *map(str, command)]

    def set_links(self, *change, where="all"):
        """By `netsum rack set`."""
        done = subprocess.run([self.netsum, "rack", "set", "--name", self.name, str(where), *map(str, change)],
                              capture_output=True, text=True, timeout=60, check=False)
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
        listed = subprocess.run(["ip", "-n", space, "-s", "-j", "link", "show", "eth0"], capture_output=True, check=True)
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
        with running(self.inside(where, self.netsum, "aggregator", "--listen", address, "--cores", "1", *flags), "ready",
                     f"the aggregator at {address}"):
            yield address

    def switch_cpu_seconds(self):
        """CPU time of the switch's aggregator process (an XDP program's time is nobody's)."""
        fields = pathlib.Path(f"/proc/{self.aggregator_pid()}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def finish(processes, deadline_s=DEADLINE_S):
    """Waits for all; their output, or Failed with what the first bad one said. None is left running."""
    end = time.monotonic() + deadline_s
    outputs, problem = [], None
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
    if problem:
        raise Failed(problem)
    return outputs


class Netsum:
    """netsum over the switch's aggregator, each measurement a run of `netsum bench allreduce` on every worker."""

    def __init__(self, rack, dtype="float32", packet_io="udp"):
        if packet_io == "af_xdp" and rack.rate != "none":
            raise Failed("AF_XDP would go past the shaping of the links")
        self.rack, self.dtype, self.packet_io = rack, dtype, packet_io
        self.name = (f"netsum-{rack.dataplane}" + ("" if dtype == "float32" else f"-{dtype}")
                     + ("" if packet_io == "udp" else f"-{packet_io}") + ("-multicast" if rack.multicast else ""))

    def measure(self, size, iterations, warmup):
        # `size` is of the same tensor as float32: 16-bit types have as many elements.
        size = size if self.dtype == "float32" else size // 2
        command = [self.rack.netsum, "bench", "allreduce", "--world-size", self.rack.workers, "--bytes", size,
                   "--iterations", iterations, "--warmup", warmup, "--dtype", self.dtype, "--mtu", self.rack.mtu,
                   "--timeout", "120s", "--packet-io", self.packet_io, "--json", "--rank"]
        ranks = [start(self.rack.inside(w, *command, w)) for w in range(self.rack.workers)]
        reports = [json.loads(out) for out in finish(ranks)]
        if self.packet_io == "af_xdp" and "packets by af_xdp" not in reports[0]["summed_by"]:
            raise Failed(reports[0]["summed_by"])
        if self.rack.multicast != ("results by multicast" in reports[0]["summed_by"]):
            raise Failed(reports[0]["summed_by"])
        times = reports[0]["time_us"]
        return {"wrong": sum(r["results_wrong"] for r in reports), "median_s": times["median"] / 1e6,
                "min_s": times["min"] / 1e6, "max_s": times["max"] / 1e6, "p99_s": times["p99"] / 1e6,
                "cpu_seconds": sum(rank["cpu_seconds"] for r in reports for rank in r["ranks"]),
                "retransmissions": sum(rank["retransmissions"] for r in reports for rank in r["ranks"]),
                "probes": sum(rank["probes"] for r in reports for rank in r["ranks"])}

    def close(self):
        pass


def summary(result):
    times = sorted(result.pop("times_s"))
    return {**result, "median_s": statistics.median(times), "min_s": times[0], "max_s": times[-1],
            "p99_s": times[min(len(times) - 1, round(0.99 * len(times)))]}


class Gloo:
    """PyTorch's Gloo backend. The workers stay up between measurements, as importing torch takes seconds."""
    name = "gloo"

    def __init__(self, rack):
        self.rack = rack
        command = [sys.executable, HERE / "gloo_worker.py"]
        self.ranks = [subprocess.Popen(rack.inside(w, *command, w, rack.workers, rack.master),
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                       text=True, bufsize=1) for w in range(rack.workers)]
        self.answer()

    def answer(self):
        with selectors.DefaultSelector() as selector:
            selector.register(self.ranks[0].stdout, selectors.EVENT_READ)
            if not selector.select(DEADLINE_S):
                raise Failed(f"no answer within {DEADLINE_S} s")
        line = self.ranks[0].stdout.readline()
        if not line:
            raise Failed("a rank has ended")
        return json.loads(line)

    def measure(self, size, iterations, warmup):
        for rank in self.ranks:
            rank.stdin.write(f"{size} {iterations} {warmup}\n")
            rank.stdin.flush()
        return summary(self.answer())

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            try:
                rank.wait(timeout=20)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()


class OpenMpi:
    """MPI_Allreduce of Debian's Open MPI over TCP, started on every worker through the rack."""
    name = "openmpi"

    def __init__(self, rack):
        if not shutil.which("mpicc") or not shutil.which("mpirun"):
            raise Failed("mpicc and mpirun are not installed: apt-get install openmpi-bin libopenmpi-dev")
        self.rack = rack
        self.folder = tempfile.TemporaryDirectory(prefix="netsum-bench-")
        self.program = pathlib.Path(self.folder.name) / "mpi_allreduce"
        subprocess.run(["mpicc", "-O2", "-o", self.program, HERE / "mpi_allreduce.c"], check=True, timeout=60)
        # In the place of ssh: runs the command in the namespace of that address, under a host name of its own.
        self.agent = pathlib.Path(self.folder.name) / "agent"
        self.agent.write_text(
            "#!/bin/sh\nhost=$1; shift; worker=$((${host##*.} - 1))\n"
            'exec unshare --uts sh -c "hostname w$worker; exec \\"\\$0\\" rack exec --name '
            f'{rack.name} $worker -- sh -c \\"\\$1\\"" "{rack.netsum}" "$*"\n', encoding="ascii")
        self.agent.chmod(0o755)

    def measure(self, size, iterations, warmup):
        subnet = "10.77.0.0/16"
        hosts = ",".join(f"10.77.0.{w + 1}" for w in range(self.rack.workers))
        command = ["mpirun", "--mca", "plm_rsh_agent", self.agent, "--mca", "btl", "tcp,self", "--mca",
                   "btl_tcp_if_include", subnet, "--mca", "oob_tcp_if_include", subnet, "--host", hosts, "-np",
                   self.rack.workers, self.program, size, iterations, warmup]
        run = subprocess.Popen(self.rack.inside("sw", *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1",
                                               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        lines = [line for line in finish([run])[0].splitlines() if line.startswith("{")]
        if not lines:
            raise Failed("mpirun printed no result")
        return summary(json.loads(lines[-1]))

    def close(self):
        self.folder.cleanup()
