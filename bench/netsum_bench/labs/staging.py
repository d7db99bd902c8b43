"""All-reduces of an accelerator's tensors: how much of the copies to and from the host the network hides."""

import contextlib
import json
import os

from netsum_bench.labs.racks import link_seconds
from netsum_bench.rack import Rack
from netsum_bench.report import NOTHING, markdown, median, number, rate_bits, rate_text, size_text, spread_text
from netsum_bench.systems import TorchRanks

CPU, WHOLE = "CPU tensors", "whole tensors"
SEGMENT_KIB = {WHOLE: 0, **{f"segments of {kib >> 10} MiB": kib for kib in (1024, 2048, 4096)}}
SYSTEMS = [CPU, *SEGMENT_KIB]
DEFAULT = "segments of 1 MiB"
NO_COPIES = "none"
FIRST_PORT = 29420


def that_tells(turn):
    """CPU tensors once, whatever copies take; copies no more than ten times as fast as the links."""
    if turn["system"] == CPU:
        return {**turn, "copies": NO_COPIES}
    return None if (rate_bits(turn["copies"]) or 0) > 10 * (rate_bits(turn["rate"]) or 1e10) else turn


@contextlib.contextmanager
def staging(run, place, turns):
    """Ranks with the tests' accelerator, whose bus has a simulated rate, in a rack whose links have another. CPU tensors have no copies."""
    with Rack(run.netsum, f"g{os.getpid()}", place["workers"], place["rate"], 1500, "user") as rack:
        ranks = {}

        def measure(turn):
            kib = SEGMENT_KIB.get(turn["system"], 0)
            if kib not in ranks:
                ranks[kib] = TorchRanks(rack, "staging_worker", "netsum", kib, port=FIRST_PORT + len(ranks))
                rack.resources.callback(ranks[kib].close)
            asked = {
                "device": "cpu" if turn["system"] == CPU else "accelerator",
                "copy_rate": int((rate_bits(turn["copies"]) or 0) / 8),
                "bytes": turn["bytes"],
                "iterations": 1,
                "warmup": int(turn["round"] == 0),
            }
            answers = ranks[kib].ask(lambda gate: json.dumps({"gate": gate, **asked}))
            times = zip(*(answer["times_s"] for answer in answers), strict=True)
            return {
                "times_ms": [1e3 * max(of_ranks) for of_ranks in times],
                "wrong": sum(answer["wrong"] for answer in answers),
            }

        yield measure


def wrong_sums(records):
    return [f"{record['system']}: {record['wrong']} sums are wrong" for record in records if record.get("wrong")]


def table(records):
    """A row for each rate and system. The bound: max(1/c, 1/r) and a segment, for copies at rate c and the sum of CPU tensors at r.

    What copies hide: nothing if all of them come before or after the sum, all if the sum of CPU tensors takes as long.
    """
    times = {}
    for record in records:
        if "times_ms" not in record:
            continue
        where = record["workers"], record["rate"], record["copies"], record["bytes"], record["system"]
        times.setdefault(where, []).extend(record["times_ms"])
    rows = []
    for (workers, rate, copies, size, system), of in times.items():
        without = times.get((workers, rate, NO_COPIES, size, CPU))
        if not without:
            continue
        row = [size_text(size), rate_text(rate)]
        if system == CPU:
            row += ["", system, spread_text(of), "", "", ""]
        else:
            copy_ms = 1e3 * link_seconds(size, copies)
            bound = max(copy_ms, median(without)) + 1e3 * link_seconds(SEGMENT_KIB[system] << 10, copies)
            hidden = 1 - (median(of) - median(without)) / (2 * copy_ms)
            row += [rate_text(copies).removeprefix("links of "), system, spread_text(of), number(bound)]
            row += [f"{median(of) / bound:.2f}", f"{100 * hidden:.0f} %"]
        rows.append(row)
    headings = [
        "tensor",
        "links",
        "copies, each way",
        "staged as",
        "ms",
        "bound",
        "times the bound",
        "copies overlapped",
    ]
    return markdown(headings, rows, left=4) if rows else NOTHING
