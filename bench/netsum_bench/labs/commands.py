"""Cases whose turns are runs of one command on this machine: `netsum bench`, the simulator, microbenchmarks."""

import contextlib
import json
import os
import re
import subprocess

from netsum_bench.machine import ROOT
from netsum_bench.processes import Failed, reports

WARMUP = 1
# Enough for scales to be trusted, which takes three times.
PREDICTED_WARMUP = 8
# Fewer of large tensors: an iteration is verified, too, which takes each rank time in proportion to the data of all.
ITERATIONS_UP_TO = [(64 << 10, 200), (1 << 20, 50), (1 << 62, 12)]
PIECE_LIMIT_S = 3600


def bench(run, turn, iterations, warmup, *flags):
    """The report of `netsum bench allreduce` with an aggregator of its own."""
    command = [run.netsum, "bench", "allreduce", "--workers", turn["workers"], "--bytes", turn["bytes"]]
    command += ["--iterations", iterations, "--warmup", warmup, *flags, "--shares", "off", "--with-aggregator"]
    [report] = reports([list(map(str, [*command, "--json"]))])
    return report


def verified(report, iterations):
    """Of a report of so many timed iterations; the aggregator's time is that of the warm-up, too."""
    ranks = report["ranks"]
    packets = sum(rank["packets_sent"] + rank["packets_received"] for rank in ranks)
    return {
        "wrong": report["results_wrong"],
        "time_ms": report["time_us"]["median"] / 1e3,
        "ranks_cpu_ms": 1e3 * sum(rank["cpu_seconds"] for rank in ranks) / iterations,
        "packets": packets / iterations,
        "aggregator_ns": 1e9 * report["aggregator_cpu_seconds"] / (packets * (iterations + WARMUP) / iterations),
        "resent": sum(rank["retransmissions"] for rank in ranks) / iterations,
    }


@contextlib.contextmanager
def verify(run, place, turns):
    """Each turn is a new `netsum bench allreduce --verify MODE` with an aggregator of its own. Processor time of ranks
    is that of the timed operations, of the aggregator that of the whole run, divided by the packets that it has
    received and sent."""

    def measure(turn):
        count = turn["iterations"]
        return verified(bench(run, turn, count, WARMUP, "--verify", turn["mode"]), count)

    yield measure


def predicted(report):
    ranks, iterations = report["ranks"], report["iterations"]
    return {
        "wrong": report["results_wrong"],
        "time_us": report["time_us"]["median"],
        "cpu_ms": 1e3 * sum(rank["cpu_seconds"] for rank in ranks) / iterations,
        "predicted": ranks[0]["scales_predicted"] / iterations,
        "mispredicted": ranks[0]["scales_mispredicted"] / iterations,
        "resent": sum(rank["retransmissions"] for rank in ranks) / iterations,
    }


@contextlib.contextmanager
def predict(run, place, turns):
    """Inputs whose scales recur (`steady`), that are normally distributed with a slowly changing deviation (`normal`),
    and whose scales never recur (`varied`). Each turn is a new `netsum bench allreduce` with an aggregator of its own.
    Every result is verified."""

    def measure(turn):
        count = next(count for limit, count in ITERATIONS_UP_TO if turn["bytes"] <= limit)
        flags = ("--data", turn["data"], "--predict-scales", int(turn["predict"]))
        return predicted(bench(run, turn, count, PREDICTED_WARMUP, *flags))

    yield measure


# --- The simulator


def simulate_lies(run, seed, runs, jobs):
    """The counts of so many runs, from this seed on."""
    command = [run.netsum, "simulate", "--lying", "--json", "--seed", seed, "--runs", runs, "--jobs", jobs]
    process = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=PIECE_LIMIT_S, check=False
    )
    counts = [line for line in process.stdout.splitlines() if line.startswith("{")]
    if process.returncode != 0 or len(counts) != 1:
        raise Failed(f"{process.stdout.strip()}\n{process.stderr.strip()}".strip()[-3000:])
    return json.loads(counts[0])


def add(counts, more):
    """The sums of two trees of numbers."""
    if not counts:
        return more
    return {
        name: add(counts[name], value) if isinstance(value, dict) else counts[name] + value
        for name, value in more.items()
    }


@contextlib.contextmanager
def lies(run, place, turns):
    """Runs `netsum simulate --lying` on all processors, piece by piece, and adds the counts up after each piece. A run
    in which something false is delivered, something right refused, or a lie not noticed ends it, with the command that
    replays the run."""

    def measure(turn):
        counts, done = {}, 0
        while done < turn["runs"] and not run.expired():
            runs = min(turn["piece"], turn["runs"] - done)
            counts = add(counts, simulate_lies(run, turn["seed"] + done, runs, turn["jobs"]))
            done += runs
            yield counts

    yield measure


# --- What a command says


REPORT_BEGINS = re.compile(r"^\d+ runs in |; \d+ cores; Linux")


def capture(*command):
    """A lab that runs the command with the turn's fields as flags, and keeps what it prints, without its lines of progress."""

    @contextlib.contextmanager
    def lab(run, place, turns):
        def measure(turn):
            flags = [part for field, value in turn.items() for part in (f"--{field}", str(value))]
            program = [str(run.netsum) if part == "netsum" else part for part in command]
            lines = []
            process = subprocess.Popen([*program, *flags], cwd=ROOT, stdout=subprocess.PIPE, text=True)
            try:
                for line in process.stdout:
                    print(line, end="", flush=True)
                    lines.append(line.rstrip().replace(str(ROOT) + os.sep, ""))
            finally:
                status = process.wait()
            if status != 0:
                raise Failed(f"{' '.join(command)} ended with status {status}")
            first = max((n for n, line in enumerate(lines) if REPORT_BEGINS.search(line)), default=0)
            lines = [line for line in lines[first:] if not line.startswith("report:")]
            return {"what": "said", "command": " ".join([*command, *flags]), "lines": lines}

        yield measure

    lab.__doc__ = f"What `{' '.join(command)}` says."
    return lab


# --- Microbenchmarks

BUILD = ROOT / "build/micro"
TARGETS = {
    "kernels": "netsum_kernels_bench",
    "tags": "netsum_tag_bench",
    "planner": "netsum_plan_bench",
    "memory": "netsum_local_sum_bench",
    "engine": "netsum_engine_bench",
    "metering": "netsum_meter_bench",
    "sparse": "netsum_sparse_bench",
    "compression": "netsum_compress_bench",
    "sockets": "netsum_socket_bench",
    "xdp": "xdp_bench",
}
XDP_LINE = re.compile(r"^(.+?) +(\d+) B +(\d+) ns +\((\d+) to (\d+)\)$")


def build_micro(benchmarks=tuple(TARGETS)):
    """Builds the microbenchmarks in build/micro, which takes minutes for the first time."""
    flags = [f"-DCMAKE_{language}_FLAGS_RELWITHDEBINFO=-O3 -g1" for language in ("C", "CXX")]
    flags += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DNETSUM_BUILD_BENCH=ON"]
    subprocess.run(["cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *flags], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", BUILD, "--target", *(TARGETS[name] for name in benchmarks)], check=True)


def google_benchmark(benchmark, repetitions):
    flags = [f"--benchmark_repetitions={repetitions}", "--benchmark_enable_random_interleaving=true"]
    flags += ["--benchmark_format=json", "--benchmark_min_time=0.02"]
    program = BUILD / "bench/micro" / TARGETS[benchmark]
    said = subprocess.run([program, *flags], check=True, capture_output=True, text=True).stdout
    return [
        {
            "case": entry["run_name"],
            "cpu_ns": entry["cpu_time"],
            "bytes_per_second": entry.get("bytes_per_second"),
            **{counter: entry[counter] for counter in ("rounding_loss", "more_time") if counter in entry},
        }
        for entry in json.loads(said)["benchmarks"]
        if entry["run_type"] == "iteration"
    ]


def xdp_program():
    program = BUILD / "bench/micro" / TARGETS["xdp"]
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    for line in said.splitlines():
        if found := XDP_LINE.match(line):
            case, *numbers = found.groups()
            size, middle, low, high = map(int, numbers)
            yield {"case": case, "bytes": size, "ns": middle, "low_ns": low, "high_ns": high}


@contextlib.contextmanager
def micro(run, place, turns):
    """Builds and runs the microbenchmarks of bench/micro: kernels, tags, the planner, sparse tensors, compression,
    engine threads, what metering costs, sockets, the XDP program (as root)."""
    build_micro([turn["benchmark"] for turn in turns])

    def measure(turn):
        name = turn["benchmark"]
        return list(xdp_program()) if name == "xdp" else google_benchmark(name, turn["repetitions"])

    yield measure
