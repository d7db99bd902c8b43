"""Where the processor time of a gigabyte goes: samples one side of a job by perf, writes its flame graph, and adds up its
time by pass."""

import collections
import contextlib
import dataclasses
import re
import signal
import subprocess
import time

import numpy

from netsum_bench.machine import ROOT
from netsum_bench.processes import DEADLINE_S, Failed, finish, free_port, running, start
from netsum_bench.rack import Rack
from netsum_bench.report import NOTHING, narrow

GRAPHS = ROOT / "build/profile"
LEAST_SHOWN = 0.015  # seconds per GB; what takes less is in "other"
FREQUENCY = 1999  # samples per second of each thread; not in step with anything
# A whole UDP burst is on the stack of the senders and receivers.
STACK_BYTES = 32 << 10


@dataclasses.dataclass
class Pass:
    """A part of the time. A sample belongs to the first pass whose `inside` is found in its call chain, and `leaf` in the
    function that was running. `touches`: bytes that it must read and write for each byte counted."""

    name: str
    leaf: str = ""
    inside: str = ""
    touches: float = 0


COPY = r"^(_?copy_|rep_movs|copyin|copyout|memcpy|__memcpy|__memmove|csum_partial_copy)|copy_(from|to)_|copy_past_cache"

KERNELS = [
    Pass("scan for the scale", "", r"scan_block|FixedPoint::scan", touches=1),
    Pass("quantise", "", r"kernels::to_\w*lanes|elements_to_\w*lanes|FixedPoint::encode", touches=2),
    Pass("de-quantise", "", r"kernels::from_\w*lanes|lanes\d+_to_elements|FixedPoint::(decode|from_lanes)", touches=2),
    Pass(
        "add",
        "",
        r"kernels::.*(add_lanes|max_lanes|combine_lanes|sum_narrow|sum_values|(add|add_floats|sum)_in_order)",
        touches=3,
    ),
]
SYSTEM = [
    Pass("copy into the socket", COPY, r"sendmsg", touches=2),
    Pass("copy from the socket", COPY, r"recvmsg|recvmmsg", touches=2),
    Pass("kernel: send, and deliver on loopback", "", r"sendmsg|sendmmsg"),
    Pass("kernel: receive", "", r"recvmsg|recvmmsg"),
    Pass(
        "wait and wake",
        "",
        r"ppoll|do_sys_poll|epoll|futex|sched_yield|eventfd|timerfd|WakeEvent::|CoreLock::sleep|do_syscall_64.*schedule",
    ),
]
OTHER = "other"
REST = [
    Pass("copy in user space", COPY),
    Pass("read the clock", r"clock_gettime|steady_clock::now"),
    Pass("protocol", r"netsum"),
    Pass("kernel: page faults, interrupts, other calls", "", r"do_syscall_64|entry_SYSCALL|asm_(exc|sysvec|common)"),
    Pass(OTHER),
]

WORKER = [
    *KERNELS[:3],
    Pass("hash", r"nh_hash|kernels::nh", touches=2),
    Pass("fetch the next chunk", r"fetch_after|DataCursor::fetch|fetch_input|fetch_output", touches=2),
    *SYSTEM,
    Pass("copy from the tensor", COPY, r"Floats::encode|Bytes::encode", touches=2),
    Pass("copy to the tensor", COPY, r"Floats::decode|Bytes::decode", touches=2),
    *REST,
]
DAEMON = [
    KERNELS[3],
    Pass("hash", r"nh_hash|kernels::nh", touches=1),
    *SYSTEM,
    Pass("copy what waits for its turn", COPY, r"AggregatorCore::add", touches=2),
    *REST,
]
XDP = [
    Pass("the program", r"^bpf_prog_"),
    Pass("helpers of the program", "", r"bpf_prog_"),
    Pass("kernel: packets into pages with headroom", "", r"skb_pp_cow_data|veth_convert"),
    Pass("kernel: copies of the result", "", r"xdpf_clone|dev_map_enqueue"),
    Pass("kernel: to the ranks' sockets", "", r"ip_list_rcv|ip_rcv|gro_receive|ip_local_deliver"),
    Pass("kernel: between interfaces"),
]
ONE_HOST = [
    *KERNELS,
    Pass("copy to and from the shared memory", COPY + "|copy_in|copy_out", touches=4),
    Pass("kernel: find the memory of other ranks", "", r"process_vm_r"),
    SYSTEM[-1],
    *REST,
]


@dataclasses.dataclass
class Job:
    netsum: object
    size: int
    iterations: int
    keep: bool = False  # perf's data, beside the flame graph


@dataclasses.dataclass
class Side:
    what: str  # of which bytes a gigabyte is counted
    passes: list
    counts: str  # only samples with this in their call chain
    run: object  # a function of the job and the file for perf's data; returns the bytes


def perf_record(data):
    return [
        *("perf", "record", "--quiet", "--event", "cpu-clock", "--freq", str(FREQUENCY), "--output", str(data)),
        *("--call-graph", f"dwarf,{STACK_BYTES}"),
    ]


@contextlib.contextmanager
def sampling(data, *target):
    """perf on a running process, or on all, for the time of a `with`."""
    perf = subprocess.Popen([*perf_record(data), *target], stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)  # it says nothing when it has begun
    try:
        yield
    finally:
        perf.send_signal(signal.SIGINT)
        said = perf.communicate(timeout=DEADLINE_S)[1]
    if not data.exists():
        raise Failed(f"perf has taken no samples: {said.strip()}")


def bench(job, size, *flags):
    return [
        *(str(job.netsum), "bench", "allreduce", "--bytes", str(size), "--warmup", "2", "--timeout", "120s"),
        *("--iterations", str(job.iterations), *map(str, flags)),
    ]


def run_ranks(job, size, ranks, flags, sampled=None):
    """Runs so many ranks on this host, the first of them under perf if there is a file for its data."""
    commands = [bench(job, size, "--world-size", ranks, *flags, "--rank", rank) for rank in range(ranks)]
    if sampled is not None:
        commands[0] = [*perf_record(sampled), "--", *commands[0]]
    finish([start(command) for command in commands])
    return size * (job.iterations + 2)


@contextlib.contextmanager
def daemon(job):
    """An aggregator on loopback: (its address, its process)."""
    address = f"127.0.0.1:{free_port()}"
    command = [str(job.netsum), "aggregator", "--listen", address, "--cores", "1"]
    with running(command, "ready", "the aggregator") as process:
        yield address, process


def worker(job, data):
    with daemon(job) as (address, _):
        return run_ranks(job, job.size, 2, ["--aggregator", address, "--shares", "off"], data)


def aggregator(job, data):
    with daemon(job) as (address, process), sampling(data, "--pid", str(process.pid)):
        return 2 * run_ranks(job, job.size, 2, ["--aggregator", address, "--shares", "off"])


def xdp(job, data):
    workers = 4
    with Rack(job.netsum, "profile", workers, "none", 1500, "xdp") as rack, sampling(data, "--all-cpus"):
        ranks = [
            start(rack.inside(w, *bench(job, job.size, "--world-size", workers, "--rank", w))) for w in range(workers)
        ]
        finish(ranks)
    return workers * job.size * (job.iterations + 2)


def one_host(job, data):
    flags = ["--aggregator", "", "--root", f"127.0.0.1:{free_port()}", "--shared-memory"]
    return run_ranks(job, job.size, 4, flags, data)


# The classes in whose functions a rank's work is done: by an engine's thread, or by a caller that waits and drives it.
# Every one of them is in the call chain of what it calls.
ENGINE_CLASSES = ["EngineThread", "CoreLock", "NetworkCore", "SharedMemoryCore"]
ENGINE = rf"netsum::({'|'.join(ENGINE_CLASSES)})::"
DATA_THREAD = r"netsum::CoreThread::"  # what the control plane does is not in proportion to bytes
CASES = {
    "worker": Side("summed by the rank, of 2 at a daemon on loopback", WORKER, ENGINE, worker),
    "daemon": Side("received by the daemon, from 2 ranks on loopback", DAEMON, DATA_THREAD, aggregator),
    "xdp": Side("received by the switch, from 4 workers of a rack", XDP, r"napi|net_rx_action|bpf_prog_", xdp),
    "one-host": Side("summed by the rank, of 4 on one host", ONE_HOST, ENGINE, one_host),
}


def collapse(script):
    """From the lines of `perf script`: the seconds of each call chain, a tuple with the outermost function first."""
    chains = collections.Counter()
    frames, seconds = [], 0.0
    for line in [*script, ""]:
        if line.startswith("\t"):  # an address and a function, whose arguments would make it long
            name = line.split(maxsplit=1)[1]
            frames.append(re.sub(r"\((?!anonymous|lambda).*", "", name).strip().replace(";", ":") or "[unknown]")
        elif line.strip():  # a sample begins: the thread's name and nanoseconds
            seconds = int(line.split()[-1]) / 1e9
        elif frames:
            chains[tuple(reversed(frames))] += seconds
            frames = []
    return chains


def read_samples(data):
    script = subprocess.run(
        ["perf", "script", "--input", str(data), "--no-inline", "--fields", "comm,period,ip,sym"],
        capture_output=True,
        text=True,
        check=True,
    )
    return collapse(script.stdout.splitlines())


def pass_of(chain, passes):
    for one in passes:
        if re.search(one.leaf, chain[-1]) and re.search(one.inside, ";".join(chain)):
            return one
    return passes[-1]


def copy_rate():
    """Bytes that one core reads and writes per second in memory that is in no cache: the best of five."""
    source, target = numpy.ones(32 << 20), numpy.zeros(32 << 20)
    best = 0
    for _ in range(5):
        begun = time.thread_time()
        numpy.copyto(target, source)
        best = max(best, 2 * source.nbytes / (time.thread_time() - begun))
    return best


def take(name, job):
    """Samples a side of the job: the records of its passes. Its flame graph goes to GRAPHS."""
    side = CASES[name]
    GRAPHS.mkdir(parents=True, exist_ok=True)
    data, graph = GRAPHS / f"{name}.perf", GRAPHS / f"{name}.svg"
    data.unlink(missing_ok=True)
    rate = copy_rate()
    counted = side.run(job, data)
    chains = {c: s for c, s in read_samples(data).items() if re.search(side.counts, ";".join(c))}
    if not chains:
        raise Failed(f"{name}: no sample has '{side.counts}' in its call chain")
    from pyinferno.pyinferno import flamegraph_from_lines  # only here: nothing else needs it

    lines = [f"{';'.join(chain)} {round(1e6 * seconds)}" for chain, seconds in chains.items()]
    graph.write_text(flamegraph_from_lines(lines, f"{name}: microseconds of {counted / 1e9:.2f} GB {side.what}"))
    if not job.keep:
        data.unlink()
    seconds = collections.Counter()
    for chain, spent in chains.items():
        seconds[pass_of(chain, side.passes).name] += spent
    return [
        {
            "what": side.what,
            "pass": one.name,
            "s_per_gb": 1e9 * seconds[one.name] / counted,
            "bound_s_per_gb": 1e9 * one.touches / rate,
            "copy_bytes_per_s": rate,
        }
        for one in side.passes
        if seconds[one.name] > 0
    ]


@contextlib.contextmanager
def profile(run, place, turns):
    """The cases: `worker` and `daemon`, a job of two ranks with an aggregator on loopback, `xdp`, four workers of a
    virtual rack whose switch sums in the kernel, and `one-host`, four ranks in shared memory. The flame graphs are in
    build/profile."""
    yield lambda turn: take(turn["case"], Job(run.netsum, turn["bytes"], turn["iterations"], turn["keep"]))


def table(records):
    """Seconds of each pass, the longest first, a column for each case; in brackets those of a copy of as much in memory."""
    records = [record for record in records if "pass" in record]
    cases = [name for name in CASES if any(record["case"] == name for record in records)]
    passes, rest, all_of = {}, dict.fromkeys(cases, 0), dict.fromkeys(cases, 0)
    for record in sorted(records, key=lambda record: -record["s_per_gb"]):
        case, seconds, bound = record["case"], record["s_per_gb"], record["bound_s_per_gb"]
        all_of[case] += seconds
        if record["pass"] == OTHER or seconds < LEAST_SHOWN:
            rest[case] += seconds
        else:
            passes.setdefault(record["pass"], {})[case] = f"{seconds:.2f}" + (f" ({bound:.2f})" if bound else "")
    rows = [[name, *(of.get(case, "") for case in cases)] for name, of in passes.items()]
    rows += [[OTHER, *(f"{rest[case]:.2f}" for case in cases)]]
    rows += [["**all**", *(f"**{all_of[case]:.2f}**" for case in cases)]]
    return narrow(["pass", *cases], rows) if cases else NOTHING
