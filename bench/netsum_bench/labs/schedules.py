"""Schedules of computation and communication: what is gained, by the network's share of the time, and what formulas predict."""

import contextlib
import json
import os

from netsum_bench.rack import Rack
from netsum_bench.report import NOTHING, markdown, median, number, rate_bits, rate_text, spread_text
from netsum_bench.systems import TorchRanks

BACKENDS = {"netsum": 29406, "gloo": 29407}
SCHEDULES = ["DDP", "accumulation", "delayed", "overlapped", "prioritised", "waves"]
SYSTEMS = [f"{backend} {schedule}" for backend in BACKENDS for schedule in SCHEDULES]
# The names of the formulas (netsum.torch.advise()). Without priorities, there is none for updates without a barrier.
PREDICTED = {
    "DDP": "DDP",
    "accumulation": "accumulation of 2 batches",
    "delayed": "steps delayed by one batch",
    "prioritised": "priorities without barrier",
    "waves": "two waves",
}
REFERENCE = "1gbit"
WARM_UP = 4  # batches; DDP makes other buckets after the first
# So many samples that the links are slow beside the processors, which also run the sums.
MODEL = {"width": 512, "layers": 8, "batch": 512, "bucket_mb": 0.9}  # 8 MiB of gradients, a bucket for each layer


def with_whole_steps(turn):
    """The turn, if accumulation ends with a step."""
    if turn["steps"] % 2:
        raise ValueError(f"schedules: {turn['steps']} batches; accumulation needs an even number")
    return turn


@contextlib.contextmanager
def schedules(run, place, turns):
    """The ranks train a model of equal layers, each system a model of its own. For each backend, links get the rate at which the sums
    of its gradients take `percent` of the time of forward and backward pass, by a measurement at 1 Gbit/s, and are measured again at this
    rate, which gives the predictions."""
    rates = {}
    with Rack(run.netsum, f"d{os.getpid()}", place["workers"], REFERENCE, 1500, "user") as rack:
        ranks = {}

        def ask(backend, schedule, batches=0):
            if backend not in ranks:
                ranks[backend] = TorchRanks(rack, "schedule_worker", backend, port=BACKENDS[backend])
                rack.resources.callback(ranks[backend].close)
            line = {"schedule": schedule, "batches": batches, "model": MODEL}
            return ranks[backend].ask(lambda gate: json.dumps({"gate": gate, **line}))

        def set_rate(backend, percent):
            """Returns the rate, and what is measured at it."""
            if (backend, percent) not in rates:
                rack.set_links("--rate", REFERENCE)
                at_reference = ask(backend, "advise")[0]
                wanted_s = percent / 100 * at_reference["compute_s"]
                rate = f"{max(1, round(rate_bits(REFERENCE) * at_reference['network_s'] / wanted_s / 1e6))}mbit"
                rack.set_links("--rate", rate)
                rates[backend, percent] = rate, ask(backend, "advise")[0]
            rate, advice = rates[backend, percent]
            rack.set_links("--rate", rate)
            return rate, advice

        def measure(turn):
            backend, schedule = turn["system"].split(" ")
            rate, advice = set_rate(backend, turn["percent"])
            ask(backend, schedule, WARM_UP)
            answers = ask(backend, schedule, turn["steps"])
            predicted = PREDICTED.get(schedule)
            return {
                "rate": rate,
                "network_share": advice["network_s"] / advice["compute_s"],
                "batch_ms": [1e3 * max(answer["batch_s"] for answer in answers)],
                "predicted": advice["rates"][predicted] / advice["rates"]["DDP"] if predicted else None,
                "loss": median([answer["losses"][-1] for answer in answers]),
            }

        yield measure


def table(records):
    """A row for each share and system: the time, and how much faster than DDP over the same backend, measured and predicted."""
    times = {}
    for record in records:
        if "batch_ms" in record:
            where = (record["workers"], record["percent"], record["system"])
            times.setdefault(where, []).append(record)
    rows = []
    for (workers, percent, system), of in times.items():
        backend, schedule = system.split(" ")
        of_base = times.get((workers, percent, f"{backend} DDP"))
        batch_ms = [ms for record in of for ms in record["batch_ms"]]
        gain = ""
        if of_base:
            gain = number(median([ms for record in of_base for ms in record["batch_ms"]]) / median(batch_ms))
        predicted = of[0]["predicted"]
        rows.append(
            [
                f"{percent} %",
                backend,
                schedule,
                rate_text(of[0]["rate"]),
                f"{100 * of[0]['network_share']:.0f} %",
                spread_text(batch_ms),
                gain,
                number(predicted) if predicted else "",
            ]
        )
    if not rows:
        return NOTHING
    headings = ["wanted", "over", "schedule", "links", "sums / computation", "ms a batch", "DDP / it", "predicted"]
    return markdown(headings, sorted(rows, key=lambda row: int(row[0].split()[0])), left=4)
