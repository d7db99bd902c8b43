"""The HTML report: one file, no scripts, nothing loaded from elsewhere."""

import html
import importlib.metadata
import os
import pathlib
import platform
import statistics

from netsum_bench.demo import pictures
from netsum_bench.demo.summary import ACCURACY_POINTS, BACKENDS, TITLES, human_bytes, table_cells
from netsum_bench.machine import command_line, processor

STYLE = (pathlib.Path(__file__).parent / "report.css").read_text()

LAUNCHERS = {
    "loopback": "torchrun --standalone --nproc-per-node {workers}",
    "rack": "RANK=… WORLD_SIZE={workers} netsum rack exec … --",
}

PLACE_NOTES = {
    "loopback": "Everything ran on one machine over its loopback device, where bytes cost next to nothing and workers "
    "and aggregator compete for the same cores. So the times above say little about a network; the byte counts, "
    "which do not depend on the machine, say what each worker's link would have to carry.",
    "rack": "Every worker ran in a network namespace of its own, with a link to the switch that was shaped in both "
    "directions, so bytes cost what they cost on such a link. All workers and the switch share this machine's cores: "
    "the arithmetic of a step is slower than on as many machines, the same for both backends.",
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
    sections = [
        _head(summaries, comparisons),
        _table(summaries),
        _flows(summaries),
        *(_curves(model, summaries, comparisons) for model in dict.fromkeys(s.model for s in summaries)),
        _notes(summaries),
        _facts(facts),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>netsum demo</title><style>{STYLE}</style></head><body><main>"
        + "\n".join(sections)
        + "</main></body></html>\n"
    )


def _head(summaries, comparisons):
    in_network = any("A" in flow for s in summaries for flow in s.flows)
    if not comparisons:
        title = "Training with " + ", ".join(dict.fromkeys(BACKENDS[s.backend] for s in summaries))
    elif not all(c.agrees for c in comparisons):
        title = "The two backends do not agree"
    elif in_network:
        title = "The same training, with gradients summed in the network"
    else:
        title = "The same training, with gradients summed by netsum"
    cards = []
    for comparison in comparisons:
        base, other = (s for s in summaries if s.model == comparison.model)
        ratio = statistics.mean(other.sent) / statistics.mean(base.sent)
        cards.append(
            f'<div class="card"><h3>{TITLES[base.model]}</h3>'
            f'<p class="big">{_in_words(ratio)} bytes sent</p>'
            f"<p>Each worker sent {human_bytes(statistics.mean(other.sent))} with {BACKENDS[other.backend]}, "
            f"{human_bytes(statistics.mean(base.sent))} with {BACKENDS[base.backend]}.</p>"
            + _speed(comparison, base, other)
            + f'<p class="big {"good" if comparison.agrees else "bad"}">'
            f"{'same result' if comparison.agrees else 'results differ'}</p>"
            f"<p>Accuracy {other.accuracy_percent:.2f} % and {base.accuracy_percent:.2f} % on held-out data, "
            f"loss {other.held_out_loss:.4f} and {base.held_out_loss:.4f}.</p></div>"
        )
    workers = summaries[0].workers
    return (
        f"<h1>{title}</h1><p class=lead>{workers} workers trained each model once per backend with PyTorch's "
        "DistributedDataParallel, from the same seed, on the same examples in the same order. "
        "Only the name given to <code>init_process_group</code> differed.</p>"
        f'<div class="cards">{"".join(cards)}</div>'
    )


def _speed(comparison, base, other):
    if comparison.place != "rack":
        return ""
    return (
        f'<p class="big">{comparison.speed_up:.2f} times as fast</p><p>A step took {other.step_ms["median"]:.0f} ms '
        f"with {BACKENDS[other.backend]}, {base.step_ms['median']:.0f} ms with {BACKENDS[base.backend]}.</p>"
    )


def _in_words(ratio):
    if abs(ratio - 1) < 0.02:
        return "as many"
    if ratio < 1:
        return f"{1 - ratio:.0%} fewer"
    return f"{ratio - 1:.0%} more" if ratio < 2 else f"{ratio:.1f} times the"


def _table(summaries):
    heads, lines = table_cells(summaries)
    models = "".join(
        f'<th colspan="{sum(m == model for m, _ in heads)}">{model}</th>'
        for model in dict.fromkeys(m for m, _ in heads)
    )
    backends = "".join(f"<th>{backend}</th>" for _, backend in heads)
    body = "".join(f"<tr><th>{html.escape(label)}</th>{_cells(values, summaries)}</tr>" for label, values in lines)
    return (
        "<h2>The numbers</h2><div class=scroll><table><thead>"
        f"<tr><td></td>{models}</tr><tr><td></td>{backends}</tr></thead><tbody>{body}</tbody></table></div>"
        "<p class=small>Bytes and retransmissions are those of the training steps, with Ethernet, IP and UDP or "
        "TCP headers. Times: median (10th to 90th percentile) over all workers.</p>"
    )


def _cells(values, summaries):
    return "".join(
        f'<td class="{s.backend}">{html.escape(value)}</td>' for value, s in zip(values, summaries, strict=True)
    )


def _flows(summaries):
    largest = max(summaries, key=lambda s: s.parameters)
    figures = "".join(
        f"<figure>{pictures.flow_picture(s)}<figcaption><b>{BACKENDS[s.backend]}</b>: {html.escape(s.where)}. "
        f"A worker sends {human_bytes(statistics.mean(s.sent) / s.steps)} and receives "
        f"{human_bytes(statistics.mean(s.received) / s.steps)} per step.</figcaption></figure>"
        for s in summaries
        if s.model == largest.model and s.flows
    )
    return (
        f"<h2>Who sent what to whom</h2><p>{TITLES[largest.model]}, {largest.parameters:,} parameters: "
        f"{human_bytes(4 * largest.parameters)} of gradients on each worker in each step. Arrows are measured, "
        f'not drawn from theory.</p><div class="pair">{figures}</div>'
    )


def _curves(model, summaries, comparisons):
    base, *others = (s for s in summaries if s.model == model)
    other = others[0] if others else None
    legend = f'<span class="key broad {base.backend}"></span>{BACKENDS[base.backend]}'
    figures = checks = ""
    if other:
        comparison = next(c for c in comparisons if c.model == model)
        checks = _checks(comparison)
        legend += f' <span class="key thin {other.backend}"></span>{BACKENDS[other.backend]}'
        figures = (
            f"<figure><h3>{BACKENDS[other.backend]} minus {BACKENDS[base.backend]}</h3>"
            f"{pictures.difference_strip(base, other, comparison.noise)}"
            f"<figcaption>The grey band is the {BACKENDS[base.backend]} curve's own noise: how far it lies on "
            "average from its moving average over 9 steps. The largest difference is "
            f"{comparison.largest_difference:.2g}.</figcaption></figure>"
        )
    return (
        f"<h2>{TITLES[model]}: training loss</h2><p>{base.parameters:,} parameters, {html.escape(base.data)}, "
        f'{base.steps} steps.</p><div class="pair"><figure><h3>Loss of each step, mean of {base.workers} workers</h3>'
        f"{pictures.loss_curves(base, other)}"
        f"<figcaption>{legend}</figcaption></figure>{figures}</div>{checks}"
    )


def _checks(comparison):
    lines = "".join(
        f"<tr><th>{html.escape(what[0].upper() + what[1:])}</th><td>{html.escape(by)}</td>"
        f"<td>{html.escape(limit)}</td>"
        f'<td class="{"good" if holds else "bad"}">{"agrees" if holds else "does not agree"}</td></tr>'
        for what, by, limit, holds in comparison.checks()
    )
    return (
        "<div class=scroll><table class=plain><thead><tr><th></th><th>difference</th><th>allowed</th><th></th></tr>"
        f"</thead><tbody>{lines}</tbody></table></div>"
    )


def _notes(summaries):
    notes = [
        PLACE_NOTES[summaries[0].place],
        "Gloo's bytes are the kernel's own counts (TCP_INFO) on the connections between workers, plus "
        "66 bytes of headers per 1448 bytes of payload, as on Ethernet with an MTU of 1500; pure acknowledgements "
        "are left out. netsum's bytes are counted packet by packet by the library.",
        "In a ring, each of N workers sends 2(N-1)/N of its gradients and waits 2(N-1) steps for the result. "
        "With an aggregator it sends its gradients once and waits two round trips for a tensor, whatever N is; the "
        "aggregator's own links then carry N times the gradients, in each direction.",
        "Agreement, by limits set before the backends were first compared: the training losses differ on average "
        "by no more than the curve's own noise; held-out loss by at most 1 % or 0.02, whichever is more; accuracy by "
        f"at most {ACCURACY_POINTS:g} point. netsum adds integers scaled per block and Gloo adds floats in ring order, so "
        "equality to the last bit is not to be expected.",
    ]
    for s in summaries:
        if s.aggregator.get("bytes_summed"):
            notes.append(
                f"{TITLES[s.model]}: the aggregator's own counter, for the whole run with the idle all-reduces and "
                f"the start, says {human_bytes(s.aggregator['bytes_summed'])} summed. "
                f"It sent {s.aggregator.get('results_repeated', 0):,} results again, to one worker each (in "
                f"answer to a probe, or to a contribution that it had already), and completed "
                f"{s.aggregator.get('rounds_completed', 0):,} rounds, whose results went to every worker."
            )
        if s.control_sent and sum(s.control_sent):
            notes.append(
                f"{TITLES[s.model]} with {BACKENDS[s.backend]}: beside the gradients each worker sent "
                f"{human_bytes(statistics.mean(s.control_sent))} over TCP (control and torchrun's store)."
            )
    return f"<h2>How to read this</h2><ul>{''.join(f'<li>{html.escape(note)}</li>' for note in notes)}</ul>"


def _facts(facts):
    lines = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>" for name, value in facts.items())
    return f"<h2>Machine, versions, commands</h2><dl>{lines}</dl>"
