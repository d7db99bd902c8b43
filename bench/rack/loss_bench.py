"""Goodput with packet loss on every link: netsum beside Gloo over TCP, in virtual racks on this machine.

Two racks of lossy links are up side by side, one whose switch adds in a daemon, one in XDP; Gloo runs in the first. The
systems take turns, loss by loss and round by round, so that whatever else the machine does falls on all of them. Every
link loses single packets by chance, each way; every result is verified. Goodput is relative to the same system's without
loss, round by round. Needs root.

  make bench-loss                                              8 workers, 100 Mbit/s, 16 MiB: a quarter of an hour
  make bench-loss BENCH_FLAGS="--losses 0,1% --systems netsum-user --rounds 1"
"""
import argparse
import contextlib
import html
import json
import pathlib
import statistics
import sys
import time

from bench import ROOT, machine, need_root, parse_size
from rack_report import COLOURS, figure_text, size_text
from systems import Failed, Gloo, Netsum, Rack

SYSTEMS = ["netsum-user", "netsum-xdp", "gloo"]
HEAVY_LOSS = 0.005  # from here on one iteration says enough, and a TCP ring takes long over it


def parse_loss(text):
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= value < 1:
        raise ValueError(text)
    return value


class Players:
    """The systems, opened when they are first needed, and anew after one has failed."""

    def __init__(self, racks):
        self.makers = {"netsum-user": lambda: Netsum(racks["user"]), "netsum-xdp": lambda: Netsum(racks["xdp"]),
                       "gloo": lambda: Gloo(racks["user"])}
        self.opened = {}

    def measure(self, name, loss, size, iterations):
        if name not in self.opened:
            self.opened[name] = self.makers[name]()
        system = self.opened[name]
        system.rack.set_links("--loss", loss)
        passed, lost = system.rack.packets()
        try:
            result = system.measure(size, iterations, 1)
        except Failed:
            self.opened.pop(name).close()
            raise
        finally:
            system.rack.set_links("--loss", 0)
        passed_after, lost_after = system.rack.packets()
        return {**result, "packets_passed": passed_after - passed, "packets_lost": lost_after - lost}

    def close(self):
        for system in self.opened.values():
            system.close()


def measure_all(options, out, say):
    with contextlib.ExitStack() as stack:
        racks = {dataplane: stack.enter_context(Rack(options.netsum, f"loss{dataplane}", options.workers, options.rate,
                                                     1500, dataplane, loss=0)) for dataplane in ("user", "xdp")}
        players = Players(racks)
        stack.callback(players.close)
        for number in range(options.rounds):
            for loss in options.losses:
                iterations = 1 if loss >= HEAVY_LOSS else 3
                for name in options.systems:
                    record = {"system": name, "workers": options.workers, "rate": options.rate, "bytes": options.size,
                              "loss": loss, "round": number, "iterations": iterations}
                    try:
                        record.update(players.measure(name, loss, options.size, iterations))
                        text = f"{record['median_s'] * 1e3:10.1f} ms" + (
                            "" if record["wrong"] == 0 else f"  {record['wrong']} WRONG ELEMENTS")
                    except Failed as problem:
                        record["failed"] = str(problem)
                        text = f"FAILED: {problem}"
                    out(record)
                    say(f"  round {number + 1}, loss {loss:7.2%}  {name:12} {text}")


def rows(records):
    """Per system and loss: medians over the rounds; goodput relative to no loss in the same round."""
    by_key = {}
    for record in records:
        if "loss" in record:
            by_key.setdefault((record["system"], record["loss"]), []).append(record)
    for (system, loss), rounds in by_key.items():
        well = [r for r in rounds if "median_s" in r]
        without = {r["round"]: r["median_s"] for r in by_key.get((system, 0.0), []) if "median_s" in r}
        relative = [without[r["round"]] / r["median_s"] for r in well if r["round"] in without]
        times = [r["median_s"] for r in well]
        packets = sum(r["packets_passed"] + r["packets_lost"] for r in well)
        yield {"system": system, "loss": loss, "rounds": len(well), "failed": len(rounds) - len(well),
               "median_s": statistics.median(times) if times else None, "low_s": min(times, default=None),
               "high_s": max(times, default=None), "relative": statistics.median(relative) if relative else None,
               "relative_low": min(relative, default=None), "relative_high": max(relative, default=None),
               "lost": sum(r["packets_lost"] for r in well), "lost_share": sum(r["packets_lost"] for r in well) / packets
               if packets else None, "wrong": sum(r["wrong"] for r in well)}


HEADINGS = ["loss on every link", "system", "median [low - high] ms", "goodput relative to no loss", "packets lost", "wrong",
            "failed"]


def texts(row):
    if row["median_s"] is None:
        return [f"{row['loss'] * 100:g} %", row["system"], "", "", "", "", str(row["failed"])]
    relative = "" if row["relative"] is None else (
        f"{row['relative']:.3f} [{row['relative_low']:.3f} - {row['relative_high']:.3f}]")
    return [f"{row['loss'] * 100:g} %", row["system"],
            f"{row['median_s'] * 1e3:.0f} [{row['low_s'] * 1e3:.0f} - {row['high_s'] * 1e3:.0f}]", relative,
            f"{row['lost']} ({row['lost_share']:.3%})", str(row["wrong"]), str(row["failed"])]


def table(records):
    """In Markdown, ready for docs/results.md."""
    lines = [HEADINGS, ["--"] + ["--"] + ["--:"] * (len(HEADINGS) - 2), *map(texts, rows(records))]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plot(records):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(6.4, 4))
    points = [row for row in rows(records) if row["relative"] is not None]
    losses = sorted({row["loss"] for row in points})
    for system in dict.fromkeys(row["system"] for row in points):
        own = sorted((row for row in points if row["system"] == system), key=lambda row: row["loss"])
        middle = [row["relative"] for row in own]
        axes.errorbar([losses.index(row["loss"]) for row in own], middle, marker="o", capsize=3, label=system,
                      color=COLOURS.get(system), yerr=[[m - row["relative_low"] for m, row in zip(middle, own)],
                                                       [row["relative_high"] - m for m, row in zip(middle, own)]])
    axes.set_xticks(range(len(losses)), [f"{loss * 100:g} %" for loss in losses])
    axes.set(ylim=(0, 1.1), title="Goodput with loss", xlabel="loss on every link, each way",
             ylabel="goodput relative to no loss")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure_text(figure, "Goodput with loss")


def write_html(records, path):
    head = records[0]
    body = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in texts(row)) + "</tr>"
                   for row in rows(records))
    headings = "".join(f"<th>{html.escape(text)}</th>" for text in HEADINGS)
    path.write_text(f"<!doctype html><meta charset=utf-8><title>Goodput with loss</title><h1>Goodput with loss</h1>"
                    f"<p>{html.escape(head['machine'])}<br><code>{html.escape(head['command'])}</code>, {head['date']}</p>"
                    f"{plot(records)}<table border=1 cellpadding=4><tr>{headings}</tr>{body}</table>", encoding="utf-8")
    return path


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8, help="(default %(default)s)")
    parser.add_argument("--rate", default="100mbit", help="of every link (default %(default)s)")
    parser.add_argument("--size", type=parse_size, default="16Mi", help="bytes as float32 (default %(default)s)")
    parser.add_argument("--losses", default="0,0.01%,0.1%,1%,5%", help="on every link, each way (default %(default)s)")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="of %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every system (default %(default)s)")
    parser.add_argument("--netsum", type=pathlib.Path, default=ROOT / "build/release/tools/netsum/netsum",
                        help="the command to measure")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "build/bench-loss", help="folder of the results")
    options = parser.parse_args()
    options.systems = options.systems.split(",")
    unknown = set(options.systems) - set(SYSTEMS)
    if unknown:
        parser.error(f"unknown system {', '.join(sorted(unknown))}; there are {', '.join(SYSTEMS)}")
    try:
        options.losses = [parse_loss(text) for text in options.losses.split(",")]
    except ValueError as problem:
        parser.error(f"--losses: {problem} is no probability below 1: use e.g. 0.01 or 1%")
    need_root(parser)
    if not options.netsum.exists():
        parser.exit(3, f"loss_bench: there is no {options.netsum}: run make build first\n")
    return options


def main():
    options = parse_arguments()
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "results.jsonl"
    say = lambda text: print(text, flush=True)
    records = []
    with path.open("w", encoding="utf-8") as file:
        def out(record):
            records.append(record)
            file.write(json.dumps(record) + "\n")
            file.flush()
        out({"machine": machine(), "command": " ".join(sys.argv), "date": time.strftime("%Y-%m-%d")})
        say(f"{options.workers} workers, {options.rate}, {size_text(options.size)}")
        measure_all(options, out, say)
    say("\n" + table(records))
    say(f"\nresults: {path}\nreport:  {write_html(records, options.output / 'report.html')}")
    return 1 if any(r.get("wrong") or ("failed" in r and r["system"] != "gloo") for r in records) else 0


if __name__ == "__main__":
    sys.exit(main())
