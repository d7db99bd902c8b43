"""The HTML report: one file, no scripts, nothing loaded from elsewhere."""

import importlib.metadata
import os
import pathlib
import platform
import statistics

from netsum_bench import report as pages
from netsum_bench.demo import pictures
from netsum_bench.demo.summary import ACCURACY_POINTS, BACKENDS, TITLES, human_bytes, table_cells
from netsum_bench.machine import command_line, processor

STYLE = (pathlib.Path(__file__).parent / "report.css").read_text()

LAUNCHERS = {
    "loopback": "torchrun --standalone --nproc-per-node {workers}",
    "rack": "RANK=… WORLD_SIZE={workers} netsum rack exec … --",
}


def machine_facts(options, place, total_s):
    return {
        "Command": command_line(),
        "Where": place.sentence,
        "Started by it": f"OMP_NUM_THREADS=1 {LAUNCHERS[place.name].format(workers=options.workers)} "
        f"train.py --model … --backend … --seed {options.seed}",
        "Whole time": f"{total_s:.0f} s",
        "Processor": f"{processor()}, {os.cpu_count()} cores",
        "System": f"{system()}, Linux {platform.release()}",
        "Python": platform.python_version(),
        **{name: version(name) for name in ("torch", "netsum", "scikit-learn")},
    }


def system():
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return "unknown distribution"


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def render(summaries, comparisons, facts):
    of_model = {
        model: [s for s in summaries if s.model == model] for model in dict.fromkeys(s.model for s in summaries)
    }
    compared = {comparison.model: comparison for comparison in comparisons}
    _, lines = table_cells(summaries)
    return pages.render(
        "demo/report.html.j2",
        title=title_of(summaries, comparisons),
        style=STYLE,
        summaries=summaries,
        of_model=of_model,
        pairs=[(comparison, *of_model[comparison.model]) for comparison in comparisons],
        curves=[(runs[0], next(iter(runs[1:]), None), compared.get(model)) for model, runs in of_model.items()],
        lines=[(label, list(zip(summaries, values, strict=True))) for label, values in lines],
        largest=max(summaries, key=lambda s: s.parameters),
        facts=facts,
        TITLES=TITLES,
        BACKENDS=BACKENDS,
        ACCURACY_POINTS=ACCURACY_POINTS,
        human_bytes=human_bytes,
        in_words=in_words,
        mean=statistics.mean,
        pictures=pictures,
    )


def title_of(summaries, comparisons):
    if not comparisons:
        return "Training with " + ", ".join(dict.fromkeys(BACKENDS[s.backend] for s in summaries))
    if not all(c.agrees for c in comparisons):
        return "The two backends do not agree"
    in_network = any("A" in flow for s in summaries for flow in s.flows)
    return f"The same training, with gradients summed {'in the network' if in_network else 'by netsum'}"


def in_words(ratio):
    if abs(ratio - 1) < 0.02:
        return "as many"
    if ratio < 1:
        return f"{1 - ratio:.0%} fewer"
    return f"{ratio - 1:.0%} more" if ratio < 2 else f"{ratio:.1f} times the"
