"""Chaos on real processes: PyTorch trains in a virtual rack while a seeded schedule kills, stops, unplugs, slows and loses.

Every worker is a network namespace with a link of its own; an aggregator, now a daemon, now XDP in the kernel, adds in the
switch. A lost aggregator is failed over; when a rank is lost all ranks start again from the last checkpoint, as torchrun
would have them. What must hold:

  - at every checkpoint all ranks, however often they got there, have the weights of an undisturbed run, bit for bit;
  - whoever survives a failure while training gets netsum's own typed error, which names a rank or the aggregator;
  - nothing hangs: ranks end within a deadline of the first one's end, and training goes on between the faults.

  make chaos                                            8 workers, 10 minutes
  make chaos CHAOS_FLAGS="--seed 7 --minutes 2 --workers 4"
"""

import argparse
import collections
import contextlib
import heapq
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

from actors import START_S, Agent, Aggregator, Broken, Rank
from netsum_bench.machine import ROOT, machine
from netsum_bench.rack import Rack

HERE = pathlib.Path(__file__).resolve().parent

RATE = "100mbit"
TIMEOUT_S = 20  # of every operation, of joining, and of a failover
# Dead ranks are known at once, silent ones after 5 s; joining and its errors take their turns of the timeout.
ALL_ENDED_S = 4 * TIMEOUT_S
STALLED_S = 4 * TIMEOUT_S  # without a checkpoint anywhere and without a fault in progress
CODES = {"peer_lost", "aggregator_lost", "timeout", "aborted", "unreachable"}


class Chaos:
    def __init__(self, options, rack, folder, say):
        self.options, self.rack, self.folder, self.say = options, rack, folder, say
        self.draw = random.Random(options.seed)
        self.aggregator = Aggregator(rack, folder, random.Random(options.seed + 1))
        self.ranks, self.generation, self.began = [], 0, 0.0
        self.later, self.order = [], 0  # a heap of what undoes a fault: (time, order, function)
        self.injected, self.exits = collections.Counter(), collections.Counter()
        self.longest_end_s = self.longest_pause_s = 0.0
        self.seen, self.progress_at, self.step = {}, 0.0, 0
        self.trains = False  # the present generation has got to a checkpoint

    # --- Faults: each does something to somebody, and sees to its end ---------------------------------------------------

    def undo(self, seconds, function):
        self.order += 1
        heapq.heappush(self.later, (time.monotonic() + seconds, self.order, function))

    def kill_worker(self):
        return self.draw.choice(self.ranks).signal(signal.SIGKILL)

    def stop_worker(self, low, high):
        rank = self.draw.choice(self.ranks)
        pid = rank.pid
        self.undo(self.draw.uniform(low, high), lambda: rank.pid == pid and rank.signal(signal.SIGCONT))
        return rank.signal(signal.SIGSTOP)

    def kill_aggregator(self):
        if self.aggregator.killed:
            return False
        self.aggregator.kill()
        self.undo(self.draw.uniform(0.2, 3), self.aggregator.start)
        return True

    def stop_aggregator(self, low, high):
        process = self.aggregator.process
        if self.aggregator.killed:
            return False
        process.send_signal(signal.SIGSTOP)
        self.undo(self.draw.uniform(low, high), lambda: process.poll() is None and process.send_signal(signal.SIGCONT))
        return True

    def unplug(self, low, high):
        worker = self.draw.randrange(self.options.workers)
        self.rack.set_links("--link", "down", where=worker)
        self.undo(self.draw.uniform(low, high), lambda: self.rack.set_links("--link", "up", where=worker))
        return True

    def one_or_all(self):
        return self.draw.choice([*range(self.options.workers), *["all"] * 3])

    def slow_down(self):
        where, rate = self.one_or_all(), self.draw.choice(["10mbit", "20mbit", "50mbit"])
        self.rack.set_links("--rate", rate, where=where)
        self.undo(self.draw.uniform(2, 10), lambda: self.rack.set_links("--rate", RATE, where=where))
        return True

    def lose(self):
        where, loss = self.one_or_all(), self.draw.choice([0.001, 0.01, 0.05])
        self.rack.set_links("--loss", loss, where=where)
        self.undo(self.draw.uniform(2, 10), lambda: self.rack.set_links("--loss", 0, where=where))
        return True

    FAULTS = {  # name: (how often, relatively; what)
        "worker killed": (2, kill_worker),
        "worker stopped for 0.2 to 3 s": (3, lambda self: self.stop_worker(0.2, 3)),
        "worker stopped for 8 to 12 s": (1, lambda self: self.stop_worker(8, 12)),
        "aggregator killed, back after 0.2 to 3 s": (3, kill_aggregator),
        "aggregator stopped for 0.2 to 3 s": (2, lambda self: self.stop_aggregator(0.2, 3)),
        "aggregator stopped for 7 to 9 s": (1, lambda self: self.stop_aggregator(7, 9)),
        "link unplugged for 0.1 to 3 s": (3, lambda self: self.unplug(0.1, 3)),
        "link unplugged for 8 to 12 s": (1, lambda self: self.unplug(8, 12)),
        "rate lowered for 2 to 10 s": (3, slow_down),
        "loss of 0.1, 1 or 5 % for 2 to 10 s": (4, lose),
    }

    def inject(self):
        names = list(self.FAULTS)
        name = self.draw.choices(names, [self.FAULTS[n][0] for n in names])[0]
        if self.FAULTS[name][1](self):
            self.injected[name] += 1
            self.say(f"  {time.monotonic() - self.began:6.1f} s  step {self.step:5}  {name}")

    # --- Ranks: start together, end together ----------------------------------------------------------------------------

    def start_generation(self):
        self.generation += 1
        self.trains = False
        environment = {
            "MASTER_PORT": str(29500 + self.generation % 1000),
            "NETSUM_ON_FAILURE": "failover",
            "NETSUM_FAILOVER_TIMEOUT": str(TIMEOUT_S),
            "NETSUM_CONNECT_TIMEOUT": str(TIMEOUT_S),
        }
        lossy = self.draw.random() < 0.3
        self.injected["ranks started with NETSUM_INJECT_LOSS=0.5%"] += lossy
        for rank in self.ranks:
            rank.start(
                self.generation,
                {
                    **environment,
                    "RANK": str(rank.rank),
                    "NETSUM_INJECT_SEED": str(self.generation),
                    "NETSUM_INJECT_LOSS": "0.5%" if lossy else "0",
                },
            )
        self.progress_at = time.monotonic()

    def end_generation(self):
        """One rank has ended: the others must, by their own errors. One that is stopped is told to go on, then killed."""
        first = time.monotonic()
        while any(rank.ended is None for rank in self.ranks):
            self.look_after_faults()
            waited = time.monotonic() - first
            stopped = [r for r in self.ranks if r.ended is None and is_stopped(r.pid)]
            left = [r.rank for r in self.ranks if r.ended is None]
            if len(stopped) == len(left):  # nobody else is left: a supervisor would kill them
                for rank in stopped:
                    rank.signal(signal.SIGKILL)
            if waited > ALL_ENDED_S:
                raise Broken(f"ranks {left} have not ended {waited:.0f} s after the first one")
            time.sleep(0.02)
        self.longest_end_s = max(self.longest_end_s, time.monotonic() - first)
        for rank in self.ranks:
            self.exits[rank.ended] += 1

    def look_after_faults(self):
        while self.later and self.later[0][0] <= time.monotonic():
            heapq.heappop(self.later)[2]()
        if not self.aggregator.killed and self.aggregator.process.poll() is not None:
            raise Broken(f"the aggregator has ended by itself, with status {self.aggregator.process.returncode}")

    def look_at_progress(self):
        for rank in range(self.options.workers):
            path = self.folder / f"rank{rank}.jsonl"
            size = path.stat().st_size if path.exists() else 0
            if size == self.seen.get(rank, 0):
                continue
            self.seen[rank] = size
            with contextlib.suppress(json.JSONDecodeError):  # of a rank that was killed while it wrote
                note = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
                self.step = max(self.step, note.get("step") or 0)
                self.trains = self.trains or (note["event"], note["generation"]) == ("checkpoint", self.generation)
                if note["event"] != "error":
                    self.longest_pause_s = max(self.longest_pause_s, time.monotonic() - self.progress_at)
                    self.progress_at = time.monotonic()
        if self.later:  # a fault is in progress
            return
        if time.monotonic() - self.progress_at > STALLED_S:
            raise Broken(f"no progress for {STALLED_S} s, at step {self.step}, without a fault in progress")

    def run(self):
        self.begin()
        end, next_fault = self.began + self.options.minutes * 60, self.began + 2
        while time.monotonic() < end or sum(self.injected.values()) < self.options.least_faults:
            self.look_after_faults()
            if time.monotonic() >= next_fault:
                # Mostly while it trains; if a start met as many faults, there would be few steps to disturb.
                if self.trains or self.draw.random() < 0.1:
                    self.inject()
                next_fault = time.monotonic() + self.draw.uniform(*self.options.pause)
            self.look_at_progress()
            if any(rank.ended is not None for rank in self.ranks):
                self.end_generation()
                self.start_generation()
            time.sleep(0.02)
        self.finish()

    def begin(self):
        os.kill(self.rack.status()["aggregators"][0]["pid"], signal.SIGKILL)
        self.aggregator.start()
        agent = self.ranks[0].agent
        agent.wait(lambda: agent.ready, START_S, "PyTorch")
        self.began = time.monotonic()
        self.start_generation()

    def finish(self):
        """No more faults; all train to one step, and end well."""
        while self.later:
            heapq.heappop(self.later)[2]()
        self.look_at_progress()
        target = (self.step // 10 + 6) * 10  # ranks are a step apart at most, and look at the file before each
        (self.folder / "stop_at").write_text(str(target), encoding="utf-8")
        limit = time.monotonic() + 2 * STALLED_S
        while True:
            if all(rank.ended == 0 for rank in self.ranks):
                return
            if any(rank.ended not in (None, 0) for rank in self.ranks):
                self.end_generation()
                self.start_generation()
            if time.monotonic() > limit:
                raise Broken(f"the training did not end within {2 * STALLED_S} s after the last fault")
            time.sleep(0.05)


def is_stopped(pid):
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] == "T"
    return False


def notes_of(folder, workers):
    """What the ranks wrote. A line cut short by a kill is nobody's."""
    notes = []
    for rank in range(workers):
        for line in (folder / f"rank{rank}.jsonl").read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                notes.append({**json.loads(line), "of_rank": rank})
    return notes


def train_undisturbed(options, agent, steps, folder):
    """The same training on this host, in shared memory, nothing disturbing it: its digest at each checkpoint."""
    (folder / "stop_at").write_text(str(steps), encoding="utf-8")
    here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29499"}
    ranks = [Rank(rank, agent, folder) for rank in range(options.workers)]
    for rank in ranks:
        rank.start(1, {**here, "RANK": str(rank.rank), "REST_MS": "0"})
    agent.wait(lambda: all(rank.ended is not None for rank in ranks), 60 + steps, "the undisturbed training's end")
    if any(rank.ended for rank in ranks):
        raise Broken(f"the undisturbed training failed: exits {[rank.ended for rank in ranks]}")
    return {n["step"]: n["digest"] for n in notes_of(folder, options.workers) if n["event"] == "checkpoint"}


def environment_in(rack, rank, environment):
    """What `netsum rack exec` makes of the environment."""
    listed = subprocess.run(rack.inside(rank, "env", "-0"), env=environment, capture_output=True, text=True, check=True)
    return dict(line.split("=", 1) for line in listed.stdout.split("\0") if line)


def clean_environment(more):
    """Ours, without what `netsum rack exec` and the chaos set for themselves."""
    ours = ("NETSUM_", "MASTER_", "GLOO_SOCKET_IFNAME")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours) or name == "NETSUM_RACK_DIR"}
    # An aggregator may come back with the other dataplane, and XDP adds no floats: one way to add, for the same bits.
    fixed = {"NETSUM_NUMERICS": "fixed", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **fixed, **more}


def judge_errors(errors):
    """While training, an error is netsum's own and names a party. (While starting, PyTorch's own store and Gloo also fail.)"""
    for error in errors:
        if error["phase"] != "training":
            continue
        named = (error["rank"] is not None and error["rank"] >= 0) or "aggregator" in error["text"]
        if not error["netsum"] or error["code"] not in CODES or not named:
            raise Broken(f"rank {error['of_rank']} was told {error}")


def judge_weights(checkpoints, expected):
    for note in checkpoints:
        if note["digest"] != expected.get(note["step"]):
            raise Broken(
                f"generation {note['generation']}, rank {note['of_rank']}: other weights at step {note['step']} than "
                "without faults"
            )


def last_of_each_process(checkpoints):
    last = {}
    for note in checkpoints:
        last[note["generation"], note["of_rank"]] = note
    return last.values()


def report_of(options, chaos, notes, packets):
    checkpoints = [n for n in notes if n["event"] == "checkpoint"]
    errors = [n for n in notes if n["event"] == "error"]
    ends = list(last_of_each_process(checkpoints))
    codes = collections.Counter(e["code"] for e in errors if e["phase"] == "training")
    starting = collections.Counter(e["code"] or e["type"] for e in errors if e["phase"] != "training")
    return {
        "machine": machine(),
        "command": " ".join(sys.argv),
        "date": time.strftime("%Y-%m-%d"),
        "seed": options.seed,
        "minutes": options.minutes,
        "workers": options.workers,
        "injected": dict(chaos.injected),
        "faults": sum(chaos.injected.values()),
        "aggregator_starts": dict(chaos.aggregator.starts),
        "steps": chaos.step,
        "restarts": chaos.generation - 1,
        "failovers": max(
            [0, *(sum(n["failovers"] for n in ends if n["of_rank"] == rank) for rank in range(options.workers))]
        ),
        "errors_while_training": dict(codes),
        "errors_while_starting": dict(starting),
        "exits": {str(status): count for status, count in chaos.exits.items()},
        "retransmissions": sum(n["retransmissions"] for n in ends),
        "packets_sent": sum(n["packets_sent"] for n in ends),
        "packets_dropped_on_purpose_by_ranks": sum(n["injected"] for n in ends),
        "packets_lost_on_links": packets[1],
        "packets_passed_on_links": packets[0],
        "weights_compared": len(checkpoints),
        "longest_end_s": round(chaos.longest_end_s, 1),
        "longest_pause_s": round(chaos.longest_pause_s, 1),
    }


def table(report):
    lines = [
        f"{report['machine']}; seed {report['seed']}, {report['workers']} workers, {report['minutes']} minutes",
        "",
    ]
    lines += [f"  {count:5}  {name}" for name, count in sorted(report["injected"].items())]
    for name, value in report.items():
        if name not in ("machine", "command", "date", "seed", "minutes", "workers", "injected"):
            lines.append(f"{name.replace('_', ' '):38} {value}")
    return "\n".join(lines)


def run(options, say):
    folder = options.output
    folder.mkdir(parents=True)
    undisturbed = folder / "undisturbed"
    undisturbed.mkdir()
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((folder / "ranks.log").open("w", encoding="utf-8"))
        environment = clean_environment({"WORLD_SIZE": str(options.workers), "REST_MS": str(options.rest_ms)})
        agent = Agent([sys.executable, HERE / "agent.py", str(TIMEOUT_S)], environment, log)
        stack.callback(agent.close)
        disturbed(options, agent, environment, folder, say)
        notes = notes_of(folder, options.workers)
        steps = max(n["step"] for n in notes if n["event"] == "done")
        judge_errors([n for n in notes if n["event"] == "error"])
        say(f"comparing with an undisturbed training of {steps} steps")
        expected = train_undisturbed(options, agent, steps, undisturbed)
    checkpoints = [n for n in notes if n["event"] == "checkpoint"]
    judge_weights(checkpoints, expected)
    say(
        f"nothing wrong, nothing hung: {len(checkpoints)} times all weights, bit for bit those of the undisturbed "
        f"training\nreport: {folder / 'report.json'}"
    )


def disturbed(options, agent, environment, folder, say):
    """Trains in a rack, and writes the report."""
    with contextlib.ExitStack() as stack:
        rack = stack.enter_context(
            Rack(options.netsum, f"chaos{os.getpid()}", options.workers, RATE, 1500, "user", loss=0)
        )
        chaos = Chaos(options, rack, folder, say)
        stack.callback(lambda: chaos.aggregator.process and chaos.aggregator.kill())
        for number in range(options.workers):
            there = environment_in(rack, number, environment)
            rank = Rank(number, agent, folder, f"netsum-{rack.name}-w{number}", there)
            stack.callback(rank.signal, signal.SIGKILL)
            chaos.ranks.append(rank)
        chaos.run()
        packets = rack.packets()
    notes = notes_of(folder, options.workers)
    chaos.step = max(n["step"] for n in notes if n["event"] == "done")
    report = report_of(options, chaos, notes, packets)
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    say("\n" + table(report))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the schedule (%(default)s)")
    parser.add_argument("--minutes", type=float, default=10, help="of faults (%(default)s)")
    parser.add_argument(
        "--least-faults", type=int, default=0, help="go on after these minutes until there were so many (%(default)s)"
    )
    parser.add_argument("--workers", type=int, default=8, help="ranks (%(default)s)")
    parser.add_argument(
        "--rest-ms",
        type=float,
        default=0,
        help="of each rank after each step, so that fewer are compared (%(default)g)",
    )
    parser.add_argument("--pause", default="2,6", help="least and most seconds from fault to fault (%(default)s)")
    parser.add_argument(
        "--netsum",
        type=pathlib.Path,
        default=ROOT / "build/release/tools/netsum/netsum",
        help="the command, for rack and aggregator",
    )
    parser.add_argument("--output", type=pathlib.Path, help="folder of logs and report, new (build/chaos/SEED-TIME)")
    options = parser.parse_args()
    options.pause = [float(text) for text in options.pause.split(",")]
    if len(options.pause) != 2 or not 0 < options.pause[0] <= options.pause[1]:
        parser.error("--pause: give two numbers of seconds, e.g. 2,6")
    if options.workers < 2 or options.minutes <= 0:
        parser.error("--workers must be 2 at least, --minutes above 0")
    options.output = (options.output or ROOT / f"build/chaos/{options.seed}-{time.strftime('%H%M%S')}").resolve()
    if os.geteuid() != 0:
        parser.exit(3, "chaos: virtual racks need root: run it with sudo\n")
    if not options.netsum.exists():
        parser.exit(3, f"chaos: there is no {options.netsum}: run make build first\n")
    return options


def main():
    options = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        run(options, lambda text: print(text, flush=True))
    except Broken as problem:
        print(f"chaos: seed {options.seed}: {problem}; logs: {options.output}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
