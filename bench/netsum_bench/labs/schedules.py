"""Schedules of computation and communication: what is gained, by the network's share of the time, and what formulas predict."""

import contextlib
import json
import os

from netsum_bench.rack import Rack
from netsum_bench.report import NOTHING, markdown, median, number, rate_bits
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
SAME_LOSSES = ("DDP", "overlapped", "prioritised")  # the bits are the same
OF_LANGUAGE = [f"netsum {schedule}" for schedule in SAME_LOSSES]
REFERENCE, MOST_BITS = "1gbit", 10e9
# Batches of a turn. The waves are in step from the fourth on: step() returns when the batch before the last one has ended. After the
# first batch of all, DDP makes other buckets.
WARM_UP = 4
# MiB, the first one about a layer; of DDP, the fastest is measured.
BUCKETS = {"layers": [0.25, 1, 25], "language": [1, 5, 25]}
TRIALS, TRIED_AT = 2, 100  # of each size of buckets; percent
MEASUREMENTS, CLOSE = 3, 0.05  # of a rate, until the share is so close to the wanted one


def with_whole_steps(turn):
    """The turn, or None: the language model is trained where sums take as long as the computation, without barrier and with it."""
    if turn["steps"] % 2:
        raise ValueError(f"schedules: {turn['steps']} batches; accumulation needs an even number")
    if turn["model"] == "language" and (turn["percent"] != 100 or turn["system"] not in OF_LANGUAGE):
        return None
    return turn


class _Ranks:
    """The ranks of one backend, which train models at rates of the links."""

    def __init__(self, rack, backend, set_rate):
        self._set_rate = set_rate
        self._ranks = TorchRanks(rack, "schedule_worker", backend, port=BACKENDS[backend])
        rack.resources.callback(self._ranks.close)
        self._advice, self._bucket_mb = {}, {}

    def ask(self, model, schedule, name=None, bucket_mb=None, batches=0):
        line = {"model": model, "schedule": schedule, "name": name or schedule, "batches": batches, "warm_up": WARM_UP}
        line["bucket_mb"] = bucket_mb or BUCKETS[model][0]
        return self._ranks.ask(lambda gate: json.dumps({"gate": gate, **line}))

    def at_share(self, model, percent):
        """Sets the rate of the links at which the sums of the gradients take `percent` of the computation. Returns the rate, and
        what is measured at it."""
        if (model, percent) not in self._advice:
            self._set_rate(REFERENCE)
            bits, found = rate_bits(REFERENCE), []
            advice = self.ask(model, "advise")[0]
            for _ in range(MEASUREMENTS):
                bits = min(MOST_BITS, bits * share_of(advice) / (percent / 100))
                rate = f"{max(1, round(bits / 1e6))}mbit"
                self._set_rate(rate)
                advice = self.ask(model, "advise")[0]
                found.append((abs(share_of(advice) / (percent / 100) - 1), rate, advice))
                if found[-1][0] <= CLOSE:
                    break
            self._advice[model, percent] = min(found, key=lambda one: one[0])[1:]
        rate, advice = self._advice[model, percent]
        self._set_rate(rate)
        return rate, advice

    def bucket_mb(self, model, schedule, batches):
        """For overlap, a layer for each bucket; for others, what is fastest with DDP."""
        if schedule in ("overlapped", "prioritised"):
            return BUCKETS[model][0]
        if model not in self._bucket_mb:
            self.at_share(model, TRIED_AT)
            times = {size: [] for size in BUCKETS[model]}
            for size in [*times] * TRIALS:
                times[size].append(slowest_s(self.ask(model, "DDP", f"DDP {size}", size, batches)))
            self._bucket_mb[model] = min(times, key=lambda size: min(times[size]))
        return self._bucket_mb[model]


def share_of(advice):
    return advice["network_s"] / advice["compute_s"]


def slowest_s(answers):
    return max(answer["batch_s"] for answer in answers)


@contextlib.contextmanager
def schedules(run, place, turns):
    """The ranks train a model, each system one of its own: equal layers, or the demo's language model. For each backend, links get the
    rate at which the sums of its gradients take `percent` of the time of forward and backward pass, and the formulas have what is
    measured at this rate. The time of a batch is that of the slowest rank, while the schedule runs on. DDP has the best of
    some sizes of buckets."""
    with Rack(run.netsum, f"d{os.getpid()}", place["workers"], REFERENCE, 1500, "user") as rack:
        ranks, now = {}, [REFERENCE]

        def set_rate(rate):
            if now != [rate]:
                rack.set_links("--rate", rate)
                now[0] = rate

        def measure(turn):
            backend, schedule = turn["system"].split(" ")
            if backend not in ranks:
                ranks[backend] = _Ranks(rack, backend, set_rate)
            of, model = ranks[backend], turn["model"]
            bucket_mb = of.bucket_mb(model, schedule, turn["steps"])
            rate, advice = of.at_share(model, turn["percent"])
            answers = of.ask(model, schedule, None, bucket_mb, turn["steps"])
            predicted = PREDICTED.get(schedule)
            return {
                "rate": rate,
                "network_share": share_of(advice),
                "batch_ms": [1e3 * slowest_s(answers)],
                "predicted": advice["rates"][predicted] / advice["rates"]["DDP"] if predicted else None,
                "bucket_mb": bucket_mb,
                "trained": answers[0]["trained"],
                "losses": [answer["losses"] for answer in answers],
                "loss": sum(answer["loss"] for answer in answers) / len(answers),
            }

        yield measure


def differing_losses(records):
    """Complaints where updates without a barrier had other losses than DDP, after as many batches of the same run, or where nothing
    could be compared. (With more than two ranks, the bits of Gloo's sums depend on the buckets.)"""
    of_ddp, compared, complaints = {}, {}, []
    where = lambda r: (r["workers"], r["model"], r["system"].split(" ")[0], r["trained"], id(r["run"]))
    found = [r for r in records if "losses" in r and (r["workers"] == 2 or not r["system"].startswith("gloo"))]
    for record in found:
        if record["system"].endswith(" DDP"):
            of_ddp[where(record)] = record["losses"]
    for record in found:
        if record["system"].split(" ")[1] not in SAME_LOSSES:
            continue
        of = f"{record['system']}, {record['model']}, {record['percent']} %"
        wanted = of_ddp.get(where(record))
        compared[of] = compared.get(of, 0) + (wanted is not None)
        if wanted not in (None, record["losses"]):
            complaints.append(f"{of}: after {record['trained']} batches the losses are not those of DDP")
    return complaints + [f"{of}: no losses of DDP to compare with" for of, count in compared.items() if count == 0]


def with_distance(values):
    """The median, and how far the furthest value is from it."""
    middle = median(values)
    return f"{number(middle)}±{number(max(abs(value - middle) for value in values))}"


def table(records):
    """A row for each share and backend: the time of DDP, and how much faster each other schedule is in the same round, over what its
    formula predicts; then the least and the most of all rows, and the losses of equal layers after as many batches as all have."""
    times, first, losses = {}, {}, {}
    for record in records:
        if "batch_ms" not in record:
            continue
        backend, schedule = record["system"].split(" ")
        row = record["model"], record["percent"], backend, record["workers"]
        times.setdefault(row, {}).setdefault(schedule, {})[record["round"]] = median(record["batch_ms"])
        first.setdefault(row, {})[schedule] = record
        if record["model"] == "layers":
            losses.setdefault(schedule, {}).setdefault(record["trained"], []).append(record["loss"])
    rows, of_all = [], {}
    for row, by_schedule in sorted(times.items(), key=lambda one: (one[0][0] != "layers", *one[0][1:])):
        base = by_schedule.get("DDP")
        if not base:
            continue
        cells = []
        for schedule in SCHEDULES[1:]:
            gains = [base[n] / ms for n, ms in by_schedule.get(schedule, {}).items() if n in base]
            if gains:
                of_all.setdefault(schedule, []).append(median(gains))
                predicted = first[row][schedule]["predicted"]
                cells.append(with_distance(gains) + (f"/{number(predicted)}" if predicted else ""))
            else:
                cells.append("")
        model, _, backend, _ = row
        one = first[row]["DDP"]
        share = f"{one['network_share']:.2f}{', language' if model == 'language' else ''}"
        place = f"{backend}/{rate_bits(one['rate']) / 1e6:.0f}"
        rows.append([share, place, with_distance([*base.values()]), *cells])
    if not rows:
        return NOTHING
    ranges = [f"{number(min(g))}-{number(max(g))}" if (g := of_all.get(s)) else "" for s in SCHEDULES[1:]]
    rows.append(["all", "", "", *ranges])
    of_every = [set(losses.get(schedule, ())) for schedule in SCHEDULES]
    if trained := set.intersection(*of_every):
        last = max(trained)
        rows.append([f"loss after {last}", "", *(f"{median(losses[s][last]):.4f}" for s in SCHEDULES)])
    headings = ["sums / computation", "over/Mbit/s", "DDP, ms", *SCHEDULES[1:]]
    return markdown(headings, rows, left=2)
