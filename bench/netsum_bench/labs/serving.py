"""Class-parallel serving of examples/serving: on one host, in a rack, and over links with a delay."""

import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from netsum_bench.machine import ROOT
from netsum_bench.processes import PROBLEMS, Failed, running
from netsum_bench.rack import Host, Place, Rack
from netsum_bench.report import NOTHING, Table, markdown, median, range_text, ranges
from netsum_bench.systems import TorchRanks

SCRIPTS = ROOT / "examples/serving"
FOLDER = ROOT / "build/serving/bench"
EPOCHS = 1  # times do not depend on what is learnt
PREPARE_S = 600
LINKS_GO_S = 30
PORT = 29410  # of the first system of a place, on rank 0's host
RANKS = 5
WARM_UP = 30  # requests
TRIED = 60  # with each setting, for each kind
KINDS = ("one by one", "pipelined")
NETWORKS = {"host": "one host", "rack": "100 Mbit/s", "delay": "1 ms"}
SETTINGS = {
    "netsum": {"": {"backend": "netsum"}},
    "netsum-shards": {"": {"backend": "netsum", "unset": ["NETSUM_AGGREGATOR"]}},
    "gloo": {
        f"{calls}, {2 * interfaces} threads": {"backend": "gloo", "calls": calls, "interfaces": interfaces}
        for calls in ("collectives", "messages")
        for interfaces in (1, 4)
    },
    "base": {"": {"backend": "base"}},
}
LABELS = {
    "netsum": {"host": "netsum, shared memory", "rack": "netsum, daemon in the switch", "delay": "netsum, daemon"},
    "netsum-shards": "netsum, embedded",
    "gloo": "Gloo",
    "base": "base on one rank",
}
ETHERNET_IP = 14 + 20
HEADERS = {"netsum": ETHERNET_IP + 8 + 32, "gloo": ETHERNET_IP + 32}  # UDP and netsum's; TCP's with timestamps


class Delayed(Place):
    """Namespaces whose links delay every packet (delayed_links.py), with an aggregator behind a link without delay."""

    master = "10.78.0.1:29400"

    def __init__(self, netsum, workers):
        super().__init__()
        self.netsum, self.workers = netsum, workers

    def __enter__(self):
        command = [sys.executable, SCRIPTS / "delayed_links.py", "--hosts", self.workers, "--delay", 1]
        command += ["--aggregator", self.netsum, "--", "sh", "-c", "echo ready; exec sleep infinity"]
        links = running(list(map(str, command)), "ready", "delayed_links.py", end_s=LINKS_GO_S)
        self.resources.enter_context(links)
        return self

    def __exit__(self, *_):
        self.resources.close()

    def inside(self, worker, *command):
        environment = [f"NETSUM_AGGREGATOR=10.78.0.{self.workers + 1}:5151", "NETSUM_SHARES=off"]
        return ["ip", "netns", "exec", f"delayed-{worker}", "env", *environment, *map(str, command)]


def opened(run, network):
    """The place, which is not up before its `with`."""
    if network == "host":
        return Host(run.netsum, RANKS)
    return (
        Rack(run.netsum, f"v{os.getpid()}", RANKS, "100mbit", 1500, "user")
        if network == "rack"
        else Delayed(run.netsum, RANKS)
    )


class Ranks(TorchRanks):
    def __init__(self, place, settings, port):
        super().__init__(place, "serving_worker", FOLDER, json.dumps(settings), port=port)

    def begin(self):
        if '"base"' in self.commands[0][-1]:
            self.commands = self.commands[:1]
        super().begin()
        self.answer(KINDS[0], WARM_UP)

    def answer(self, kind, count):
        return self.ask(lambda _gate: f"{kind} {count}")[0]


class System:
    """Of the settings of a system, for each kind of load the one that was fastest in a short run."""

    def __init__(self, place, name, ports):
        self._ranks, self.chosen = {}, {}
        tried, problems = {}, []
        for setting, of in SETTINGS[name].items():
            try:
                ranks = self._ranks[setting] = Ranks(place, of, next(ports))
                tried[setting] = {kind: ranks.answer(kind, TRIED)["per_s"] for kind in KINDS}
            except PROBLEMS as problem:
                problems.append(f"{setting}: {problem}")
        if not tried:
            raise Failed("; ".join(problems))
        self.tried = {setting: {kind: round(per_s, 1) for kind, per_s in of.items()} for setting, of in tried.items()}
        self.chosen = {kind: max(tried, key=lambda setting, kind=kind: tried[setting][kind]) for kind in KINDS}
        for setting in set(self._ranks) - set(self.chosen.values()):
            self._ranks.pop(setting).close()

    def answer(self, kind, count):
        return self._ranks[self.chosen[kind]].answer(kind, count)

    def close(self):
        for ranks in self._ranks.values():
            ranks.close()


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def prepare():
    if not (FOLDER / "groups.json").exists():
        command = [
            sys.executable,
            SCRIPTS / "serving.py",
            "prepare",
            FOLDER,
            "--groups",
            str(RANKS),
            "--epochs",
            str(EPOCHS),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=PREPARE_S)
    report = json.loads((FOLDER / "groups.json").read_text(encoding="utf-8"))
    pixels = 1
    for size in report["image"]:
        pixels *= size
    return {"input_bytes": 4 * pixels, "score_bytes": 4 * report["classes"]}


@contextlib.contextmanager
def serving(run, place, turns):
    """A classifier of the digits in five groups, a rank each, and the base on one rank without a network. Every request waits for the
    one before it ("one by one"), or as many as the pattern allows are in flight ("pipelined"). In the rack, rank 0's link counts
    bytes and packets of requests one by one. Links with a delay are those of examples/serving/delayed_links.py. Gloo has the
    collectives that netsum has, or messages from rank 0 to each rank and back, on one or on four devices, which have two threads
    each; for each kind of load, the fastest in a short run is measured."""
    sizes = prepare()
    ports = iter(range(PORT, PORT + 100))
    systems = {}
    with opened(run, place["network"]) as network, contextlib.ExitStack() as stack:
        stack.callback(lambda: [system.close() for system in systems.values()])
        for name in dict.fromkeys(turn["system"] for turn in turns):
            systems[name] = System(network, name, ports)
            if len(systems[name].tried) > 1:
                run.say(f"  {name}, requests/s: {systems[name].tried}")

        def measure(turn):
            system, count = systems[turn["system"]], turn["requests"]
            counts = isinstance(network, Rack) and turn["system"] in ("netsum", "netsum-shards", "gloo")
            before = network.buckets("w0") if counts else {}
            found = system.answer(KINDS[0], count)
            after = network.buckets("w0") if counts else {}
            record = {
                **sizes,
                "p50_ms": quantile(found["times_ms"], 0.5),
                "p99_ms": quantile(found["times_ms"], 0.99),
                "one_by_one_per_s": found["per_s"],
                "pipelined_per_s": system.answer(KINDS[1], count)["per_s"],
                "settings": system.chosen,
            }
            for way, device in (("out", "eth0"), ("in", "ifb-eth0")) if counts else ():
                for unit in ("bytes", "packets"):
                    record[f"{unit}_{way}"] = (after[device][unit] - before[device][unit]) / count
            return record

        yield measure


# --- A rank that fails under load

EVENTS = {
    "killed": (3, signal.SIGKILL, "a rank is killed, a spare is there"),
    "hangs": (3, signal.SIGSTOP, "a rank hangs, a spare is there"),
    "front": (0, signal.SIGKILL, "rank 0 is killed"),
}
CLIENTS = 8
CALL_S, GONE_S = 10, 30
BEFORE_S, AFTER_S = 1.0, 5.0
PAUSE_S = 0.05  # of a client whose connection is refused


def call(url, body):
    """What becomes of a request: "complete", "incomplete", the status of a refusal, or "no answer"."""
    try:
        with urllib.request.urlopen(url, body, timeout=CALL_S) as reply:
            return "complete" if json.loads(reply.read())["complete"] else "incomplete"
    except urllib.error.HTTPError as error:
        return f"status {error.code}"
    except OSError:
        return "no answer"


def client(url, body, ended):
    """[(begun, ended, what became of it)] of requests one after the other."""
    found = []
    while not ended.is_set():
        begun = time.monotonic()
        outcome = call(url, body)
        found.append((begun, time.monotonic(), outcome))
        if outcome == "no answer":
            ended.wait(PAUSE_S)
    return found


def under_load(process, ranks, url, body, event):
    rank, number, _ = EVENTS[event]
    ended = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(client, url, body, ended) for _ in range(CLIENTS)]
        try:
            time.sleep(BEFORE_S)
            failed = time.monotonic()
            os.kill(ranks[rank], number)
            if event == "front":
                process.wait(GONE_S)
            else:
                time.sleep(AFTER_S)
            over = time.monotonic()
        finally:
            ended.set()
            if event == "hangs":
                os.kill(ranks[rank], signal.SIGCONT)
        requests = [request for one in clients for request in one.result(GONE_S)]
    after = [request for request in requests if failed < request[1] <= over]
    if not after:
        raise Failed("no request has ended after the failure")
    count = lambda outcome: sum(of == outcome for _, _, of in after)
    record = {"longest_ms": 1e3 * max(end - begun for begun, end, _ in after), "without_answer": count("no answer")}
    if event == "front":
        return {**record, "ended_s": over - failed, "left": sum(os.path.exists(f"/proc/{pid}") for pid in ranks)}
    incomplete = [end for _, end, outcome in after if outcome == "incomplete"]
    record.update(incomplete=len(incomplete), complete=count("complete"), refused=count("status 503"))
    return {**record, "whole_s": max(incomplete, default=failed) - failed}


@contextlib.contextmanager
def failures(run, place, turns):
    """A server of the digits in five groups, with a spare, all on this machine, and 8 clients by HTTP, each with one request at a time.
    A second later a rank fails. `longest_ms` is of the requests that end after that, `whole_s` until the last incomplete answer,
    `ended_s` until all processes have ended because rank 0 is lost."""
    prepare()
    image = 0.5
    for size in reversed(json.loads((FOLDER / "groups.json").read_text(encoding="utf-8"))["image"]):
        image = [image] * size
    body = json.dumps({"image": image}).encode()
    command = [sys.executable, SCRIPTS / "serving.py", "serve", FOLDER, "--listen", "127.0.0.1:0", "--spares", 1]

    def measure(turn):
        with running(list(map(str, command)), "serving: ranks", "the server", end_s=GONE_S) as process:
            ready = re.search(r"ready: (\S+)", process.stdout.readline())
            if not ready:
                raise Failed("the server did not become ready")
            ranks = [int(pid) for pid in process.first_line.split("processes")[1].split()]
            return under_load(process, ranks, ready.group(1), body, turn["event"])

    yield measure


# --- Tables


def label(row):
    found = LABELS[row["system"]]
    return found if isinstance(found, str) else found[row["network"]]


def settings_text(row):
    found = {
        kind: dict.fromkeys(record["settings"][kind] for record in row.records if "settings" in record)
        for kind in KINDS
    }
    return "; ".join(f"{kind}: {', '.join(of)}" for kind, of in found.items() if any(of))


def of_rounds(field, form):
    return lambda row: range_text(row.values(field), form)


def gain(row):
    rounds = row.rounds("pipelined_per_s") / row.rounds("one_by_one_per_s")
    return range_text(rounds, "{:.2f}")


def order(row):
    return list(NETWORKS).index(row["network"]), list(SETTINGS).index(row["system"])


TIMES = Table(
    ("network", "system"),
    [
        ("links", lambda row: NETWORKS[row["network"]]),
        ("system", label),
        ("p50, ms", of_rounds("p50_ms", "{:.2f}")),
        ("p99, ms", of_rounds("p99_ms", "{:.1f}")),
        ("requests/s, pipelined", of_rounds("pipelined_per_s", "{:.0f}")),
        ("times one by one", gain),
        ("settings", settings_text),
    ],
    left=2,
    wanted=lambda row: row.values("p50_ms"),
    order=order,
)


def bytes_table(records):
    """Of a request on rank 0's link in the rack. Headers are those of the packets that carry it and that acknowledge."""
    rows = []
    for system, text in (
        ("netsum", LABELS["netsum"]["rack"]),
        ("netsum-shards", LABELS["netsum-shards"]),
        ("gloo", LABELS["gloo"]),
    ):
        found = [r for r in records if r.get("system") == system and "bytes_out" in r]
        for way, asked in (("out", "input_bytes"), ("in", "score_bytes")) if found else ():
            total, packets = (median([r[f"{unit}_{way}"] for r in found]) for unit in ("bytes", "packets"))
            headers = packets * HEADERS["gloo" if system == "gloo" else "netsum"]
            numbers = (f"{n:.0f}" for n in (total, total - headers, headers))
            rows.append([text, way, found[0][asked], *numbers, f"{packets:.1f}"])
    headings = ["rank 0's link in the rack", "way", "input, or 4 x classes", "bytes", "payload", "headers", "packets"]
    return markdown(headings, rows, 2) if rows else NOTHING


FAILURES = Table(
    ("event",),
    [
        ("8 clients", lambda row: EVENTS[row["event"]][2]),
        ("longest request, ms", ranges("longest_ms")),
        ("answers incomplete", ranges("incomplete")),
        ("until the last of them, s", ranges("whole_s", "{:.2f}")),
        ("without answer", ranges("without_answer")),
        ("until all ranks have ended, s", ranges("ended_s", "{:.2f}")),
        ("ranks left", ranges("left")),
    ],
    wanted=lambda row: row.values("longest_ms"),
    order=lambda row: list(EVENTS).index(row["event"]),
)
