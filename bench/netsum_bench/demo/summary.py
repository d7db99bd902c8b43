"""Turns what the workers wrote into the numbers of the table and the report, and compares two backends."""

import dataclasses
import json
import statistics

# What Ethernet would carry around TCP's payload at an MTU of 1500: Ethernet, IPv4 and TCP headers with
# timestamps, around 1448 bytes. netsum counts its headers itself; for Gloo they are added by this rule.
TCP_PAYLOAD, TCP_FRAME = 1448, 1514

# Agreement, by limits chosen before the backends were first compared: see docs/start.md.
HELD_OUT_RELATIVE = 0.01
HELD_OUT_ABSOLUTE = 0.02
ACCURACY_POINTS = 1.0

# Where Gloo sums, without and with sparse gradients.
GLOO = {
    False: "summed by the workers themselves, in Gloo's ring over TCP",
    True: "summed by the workers themselves, which gather the rows of all workers over TCP",
}


@dataclasses.dataclass
class Summary:
    """One training run. Bytes and retransmissions are of the training steps alone."""

    model: str
    backend: str
    place: str  # "rack" or "loopback"
    workers: int
    parameters: int
    data: str
    losses: list  # per step, mean over the workers
    final_loss: float  # mean of the last tenth of the steps
    held_out_loss: float
    accuracy_percent: float
    step_ms: dict  # median, low and high: the 10th and 90th percentile
    allreduce_ms: dict  # the same, for one all-reduce of all gradients on idle workers
    sent: list  # bytes per worker, headers included
    received: list
    control_sent: list  # per worker: TCP payload beside the gradients (netsum only)
    summed_in_network: int  # gradient bytes of all workers that an aggregator added up
    retransmissions: int
    flows: dict  # {"0>1": bytes}, "A" for an aggregator
    where: str  # one line: where the sums happened
    wall_s: float
    aggregator: dict  # a daemon's own counters of the whole run, its start and the idle all-reduces included

    @property
    def steps(self):
        return len(self.losses)

    @property
    def gradient_bytes(self):
        """Of one worker, over all steps."""
        return 4 * self.parameters * self.steps

    @property
    def sent_per_gradient_byte(self):
        return statistics.mean(self.sent) / self.gradient_bytes


def summarise(run, wall_s, aggregator_counters):
    ranks = [json.loads((run.folder / f"rank{rank}.json").read_text()) for rank in range(run.workers)]
    losses = [statistics.mean(step) for step in zip(*(rank["losses"] for rank in ranks), strict=True)]
    held_out = {key: sum(rank["held_out"][key] for rank in ranks) for key in ranks[0]["held_out"]}
    traffic = netsum_traffic(ranks) if ranks[0]["netsum"] else tcp_traffic(ranks)
    return Summary(
        model=run.model,
        backend=run.backend,
        place=run.place,
        workers=run.workers,
        parameters=ranks[0]["parameters"],
        data=ranks[0]["data"],
        losses=losses,
        final_loss=statistics.mean(losses[-max(1, len(losses) // 10) :]),
        held_out_loss=held_out["loss_sum"] / held_out["count"],
        accuracy_percent=100 * held_out["right"] / held_out["count"],
        # The first steps allocate memory and rebuild DDP's buckets.
        step_ms=spread([s for rank in ranks for s in rank["step_s"][min(3, len(losses) - 1) :]]),
        allreduce_ms=spread([s for rank in ranks for s in rank["allreduce_s"]]),
        where=ranks[0]["describe"] or GLOO[run.sparse],
        wall_s=wall_s,
        aggregator=aggregator_counters,
        **traffic,
    )


def spread(seconds):
    ordered = sorted(1000 * s for s in seconds)
    at = lambda share: ordered[round(share * (len(ordered) - 1))]
    return {"median": statistics.median(ordered), "low": at(0.1), "high": at(0.9)}


def tcp_traffic(ranks):
    """Gloo: every connection between two workers, as the kernel counted it at either end."""
    owner = {sock["local"]: rank for rank, result in enumerate(ranks) for sock in result["tcp"]}
    sent, received, flows, retransmitted = [0] * len(ranks), [0] * len(ranks), {}, 0
    for rank, result in enumerate(ranks):
        for sock in result["tcp"]:
            peer = owner.get(sock["peer"])
            if peer is None:  # torchrun's store
                continue
            out, into = (round(sock[way] * TCP_FRAME / TCP_PAYLOAD) for way in ("sent", "received"))
            sent[rank] += out
            received[rank] += into
            flows[f"{rank}>{peer}"] = flows.get(f"{rank}>{peer}", 0) + out
            retransmitted += sock["retransmitted"]
    return {
        "sent": sent,
        "received": received,
        "control_sent": [0] * len(ranks),
        "summed_in_network": 0,
        "retransmissions": retransmitted,
        "flows": flows,
    }


def netsum_traffic(ranks):
    """netsum: the library's counters. What a rank exchanges with its own shard never reaches a link."""
    counts = [_difference(rank["netsum"]) for rank in ranks]
    sent, received, flows = [], [], {}
    for rank, count in enumerate(counts):
        stripes = count["stripes"]
        local = [s for s in stripes if s["local"]]
        out = sum(s["bytes_sent"] for s in stripes if not s["local"])
        into = sum(s["bytes_received"] for s in stripes if not s["local"])
        out += count["shard_bytes_sent"] - sum(s["bytes_received"] for s in local)
        into += count["shard_bytes_received"] - sum(s["bytes_sent"] for s in local)
        sent.append(out)
        received.append(into)
        embedded = any(s["local"] for s in stripes)
        for index, stripe in enumerate(stripes):
            if stripe["local"]:
                continue
            other = str(index) if embedded else "A"  # shards are listed in rank order
            for flow, amount in ((f"{rank}>{other}", "bytes_sent"), (f"{other}>{rank}", "bytes_received")):
                flows[flow] = flows.get(flow, 0) + stripe[amount]
    return {
        "sent": sent,
        "received": received,
        "control_sent": [sum(sock["sent"] for sock in rank["tcp"]) for rank in ranks],
        "summed_in_network": sum(count["gradient_bytes"] for count in counts),
        "retransmissions": sum(count["retransmissions"] for count in counts),
        "flows": flows,
    }


def _difference(snapshots):
    before, after = snapshots["before"], snapshots["after"]
    change = {
        key: value - before[key]
        for key, value in after.items()
        if isinstance(value, int) and not isinstance(value, bool)
    }
    # Stripes may first appear with the first all-reduce.
    old = {s["address"]: s for s in before["stripes"]}
    none = {"bytes_sent": 0, "bytes_received": 0}
    change["stripes"] = [
        {"local": s["local"], **{key: s[key] - old.get(s["address"], none)[key] for key in none}}
        for s in after["stripes"]
    ]
    return change


@dataclasses.dataclass
class Comparison:
    """How far two runs of one model are apart, and whether that is within the noise of training."""

    model: str
    curve_difference: float  # mean over the steps of |other - base|
    largest_difference: float
    noise: float  # how much the base's own loss jumps from step to step
    held_out_difference: float
    held_out_allowed: float
    accuracy_difference_points: float
    speed_up: float  # of the median step
    place: str

    def checks(self):
        """[(what, difference, allowed, holds)], for people."""
        return [
            (
                "training loss, mean over the steps",
                f"{self.curve_difference:.2g}",
                f"{self.noise:.2g}, the noise from step to step",
                self.curve_difference <= self.noise,
            ),
            (
                "held-out loss",
                f"{self.held_out_difference:+.2g}",
                f"{self.held_out_allowed:.2g}",
                abs(self.held_out_difference) <= self.held_out_allowed,
            ),
            (
                "held-out accuracy",
                f"{self.accuracy_difference_points:+.2f} points",
                f"{ACCURACY_POINTS:.2f}",
                abs(self.accuracy_difference_points) <= ACCURACY_POINTS,
            ),
        ]

    @property
    def agrees(self):
        return all(holds for *_, holds in self.checks())

    def sentence(self):
        verdict = "the runs agree" if self.agrees else "THE RUNS DO NOT AGREE"
        differences = "; ".join(f"{what} {by} (allowed: {limit})" for what, by, limit, _ in self.checks())
        # On loopback, where links cost nothing, times compare only the cost of the software.
        speed = f"a step {self.speed_up:.2f} times as fast; " if self.place == "rack" else ""
        return f"{speed}{verdict}. Differences: {differences}"


def compare(base, other):
    differences = [abs(a - b) for a, b in zip(base.losses, other.losses, strict=True)]
    return Comparison(
        model=base.model,
        curve_difference=statistics.mean(differences),
        largest_difference=max(differences),
        noise=step_noise(base.losses),
        held_out_difference=other.held_out_loss - base.held_out_loss,
        held_out_allowed=max(HELD_OUT_ABSOLUTE, HELD_OUT_RELATIVE * base.held_out_loss),
        accuracy_difference_points=other.accuracy_percent - base.accuracy_percent,
        speed_up=base.step_ms["median"] / other.step_ms["median"],
        place=base.place,
    )


def step_noise(losses, window=9):
    """Mean distance of a curve from its own moving average: what no two data orders would agree on."""
    half = window // 2
    residuals = [abs(loss - statistics.mean(losses[max(0, i - half) : i + half + 1])) for i, loss in enumerate(losses)]
    return statistics.mean(residuals)


TITLES = {"digits": "Digits", "lm": "Language model", "recommender": "Recommender"}
BACKENDS = {"gloo": "Gloo", "netsum": "netsum"}


def rows(summary):
    """The table's rows for one run: [(label, value)], the same labels for every run."""
    per_worker = statistics.mean
    return [
        ("Training loss at the end", f"{summary.final_loss:.4f}"),
        ("Held-out loss", f"{summary.held_out_loss:.4f}"),
        ("Held-out accuracy", f"{summary.accuracy_percent:.2f} %"),
        ("Time of a step", milliseconds(summary.step_ms)),
        ("All-reduce alone, idle", milliseconds(summary.allreduce_ms)),
        ("Gradients of each worker", human_bytes(summary.gradient_bytes)),
        ("Sent by each worker", human_bytes(per_worker(summary.sent))),
        ("Received by each worker", human_bytes(per_worker(summary.received))),
        ("Sent per gradient byte", f"{summary.sent_per_gradient_byte:.3f}"),
        ("Summed by aggregators", human_bytes(summary.summed_in_network)),
        ("Retransmissions", f"{summary.retransmissions}"),
    ]


def table_cells(summaries):
    """Heads [(model, backend)] and lines [(label, [value per summary])]."""
    columns = [rows(summary) for summary in summaries]
    lines = [(line[0][0], [value for _, value in line]) for line in zip(*columns, strict=True)]
    return [(TITLES[s.model], BACKENDS[s.backend]) for s in summaries], lines


def text_table(summaries):
    heads, lines = table_cells(summaries)
    label_width = max(len(label) for label, _ in lines)
    widths = [
        max(len(backend), len(model), *(len(values[i]) for _, values in lines))
        for i, (model, backend) in enumerate(heads)
    ]

    def line(label, cells):
        return "  ".join([label.ljust(label_width), *(c.rjust(w) for c, w in zip(cells, widths, strict=True))])

    rule = "-" * len(line("", [""] * len(widths)))
    models = [m if i == 0 or heads[i - 1][0] != m else "" for i, (m, _) in enumerate(heads)]
    text = [line("", models), line("", [backend for _, backend in heads]), rule]
    return "\n".join(text + [line(label, values) for label, values in lines])


def human_bytes(count):
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            value = count / size
            return f"{value:.1f} {unit}" if value >= 100 else f"{value:.2f} {unit}"
    return f"{round(count)} B"


def milliseconds(spread_ms):
    digits = 0 if spread_ms["median"] >= 100 else 1
    low, median, high = (f"{spread_ms[key]:.{digits}f}" for key in ("low", "median", "high"))
    return f"{median} ({low}-{high}) ms"
