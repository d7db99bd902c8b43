"""All-reduces along trees of aggregators in racks of any shape, beside rings of the same ranks."""

import contextlib
import functools
import os
import pathlib
import tempfile

from netsum_bench.labs.racks import plan_rack, taking_turns
from netsum_bench.processes import reports
from netsum_bench.rack import Fabric
from netsum_bench.report import NOTHING, markdown, number, rate_bits, rate_text, size_text
from netsum_bench.systems import Gloo, Netsum, OpenMpi
from netsum_bench.tables.racks import cells, time_text


class NetsumTrees(Netsum):
    """Settings are the chunks in flight of each tree: several trees fill the queue of a link together."""

    def candidates(self, sizes):
        return {f"{slots} slots": sizes for slots in (256, 64, 16)}

    def run_with(self, setting, plan):
        return [self.run(*step, "--slots", setting.split()[0]) for step in plan]


SYSTEMS = {"netsum-trees": NetsumTrees, "gloo": Gloo, "openmpi": OpenMpi}


def racks_of(workers, kbit):
    """Two racks, whose uplinks are half as fast as a host's link."""
    half = workers // 2
    return f"""
hosts: [{{name: h, count: {workers}}}]
switches: [{{name: leaf, count: 2}}, {{name: core}}]
links:
  - {{between: ['h[0-{half - 1}]', leaf0], rate: {kbit}k}}
  - {{between: ['h[{half}-{workers - 1}]', leaf1], rate: {kbit}k}}
  - {{between: [leaf, core], rate: {kbit // 2}k}}
"""


def cube_of(workers, kbit):
    """Hosts that differ in one binary digit of their number are linked."""
    bits = workers.bit_length() - 1
    pairs = [(a, a | 1 << bit) for a in range(workers) for bit in range(bits) if not a & 1 << bit]
    links = "".join(f"  - {{between: [h{a}, h{b}], rate: {kbit}k}}\n" for a, b in pairs)
    return f"hosts: [{{name: h, count: {workers}}}]\nlinks:\n{links}"


FABRICS = {
    "racks": ("two racks, uplinks half as fast as a host's link", racks_of),
    "cube": ("a cube of hosts linked directly", cube_of),
}


def that_can_be_linked(turn):
    """The turn, if the fabric has so many workers."""
    workers = turn["workers"]
    if turn["rate"] == "none":
        raise ValueError("without a rate there is nothing to plan")
    if turn["fabric"] == "cube" and workers & (workers - 1):
        raise ValueError(f"a cube of {workers} workers; take a power of two")
    if workers % 2 or not 4 <= workers <= 16:
        raise ValueError(f"{workers} workers; take an even number from 4 to 16")
    return turn


@contextlib.contextmanager
def trees(run, place, turns):
    """The rack is that of a topology file, and its aggregators sum along the trees that `netsum plan` computes for it. Gloo and Open
    MPI, at their best settings, use the same links. Every result is verified."""
    sizes = {turn["system"]: turn["bytes"] for turn in turns}
    with contextlib.ExitStack() as stack:
        file = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="netsum-bench-"))) / "topology.yaml"
        text = FABRICS[place["fabric"]][1](place["workers"], round(rate_bits(place["rate"]) / 1e3))
        file.write_text(text, encoding="ascii")
        [plan] = reports([[run.netsum, "plan", file, "--json"]])
        fabric = stack.enter_context(
            Fabric(run.netsum, f"f{os.getpid()}", place["workers"], place["rate"], place["mtu"], file)
        )
        for size in set(sizes.values()):
            times = {name: plan[name]["s_per_gigabyte"] for name in ("time", "bound", "ring")}
            run.keep({**place, "bytes": size, "trees": len(plan["trees"]), "plan": times})
        makers = {name: functools.partial(kind, fabric) for name, kind in SYSTEMS.items() if name in sizes}
        yield taking_turns(run, stack, place, turns, makers, plan_rack)


def table(records):
    """A row for each fabric and size."""
    rows = []
    for plan in (record for record in records if "plan" in record):
        alike = [r for r in records if r.get("fabric") == plan["fabric"] and r.get("mtu") == plan["mtu"]]
        found = cells(alike)
        cell = lambda name: found.get((plan["rate"], plan["workers"], plan["bytes"], name), {})  # noqa: B023
        optimum = plan["plan"]["time"] * plan["bytes"] / 1e6
        where = f"{plan['workers']} workers, {rate_text(plan['rate'])}, {size_text(plan['bytes'])}, MTU {plan['mtu']}"
        row = [where, FABRICS[plan["fabric"]][0], number(optimum), number(plan["plan"]["ring"] * plan["bytes"] / 1e6)]
        ours = cell("netsum-trees")
        row += [time_text(ours, False), f"{ours['median'] / optimum:.3f}"] if "median" in ours else ["failed", ""]
        row += [time_text(cell(peer), False) if cell(peer) else "" for peer in ("gloo", "openmpi")]
        rows.append(row)
    headings = ["", "links", "T M, ms", "a ring's, ms", "netsum, ms", "over T M", "Gloo, ms", "Open MPI, ms"]
    return markdown(headings, rows, 2) if rows else NOTHING
