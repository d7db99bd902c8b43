"""Figures of the report: SVG by matplotlib, with the colours of the page's style sheet, for light and dark."""

import math
import statistics

from matplotlib import patches, rc_context
from matplotlib.figure import Figure

from netsum_bench import report as pages
from netsum_bench.demo.summary import human_bytes

# Drawn with the colour at the left, which the page's variable replaces. (matplotlib knows no CSS variables.)
VARIABLES = {
    "#00000a": "var(--ink)",
    "#00000b": "var(--quiet)",
    "#00000c": "var(--line)",
    "#00000d": "var(--card)",
    "#00000e": "var(--band)",
    "#00000f": "var(--gloo)",
    "#00001a": "var(--netsum)",
    "#00001b": "var(--sum)",
}
INK, QUIET, LINE, CARD, BAND, GLOO, NETSUM, SUM = VARIABLES
COLOURS = {"gloo": GLOO, "netsum": NETSUM}
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "netsum",  # the same figure has the same text
    "font.size": 10,
    "text.color": INK,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "axes.labelcolor": QUIET,
    "grid.color": LINE,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.edgecolor": LINE,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.solid_joinstyle": "round",
}


def svg_of(draw, size, title):
    """The SVG element with what `draw(axes)` draws."""
    with rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        text = pages.svg_of(figure, title)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    return text


def plot_losses(axes, steps, series):
    """`series`: (losses, backend, width of the line, opacity)."""
    for losses, backend, width, opacity in series:
        axes.plot(range(1, steps + 1), losses, color=COLOURS[backend], linewidth=width, alpha=opacity)
    axes.set_xlabel("step", loc="right")
    axes.set_xlim(1, max(2, steps))
    axes.grid(axis="y")
    axes.set_axisbelow(True)


def loss_curves(base, other):
    """Training loss of both runs: `base` wide and pale, `other` thin on top, because they nearly coincide."""
    series = [(base.losses, base.backend, 4.5, 0.55)]
    title = f"Training loss of {base.backend}"
    if other:
        series.append((other.losses, other.backend, 1.2, 1))
        title += f" and {other.backend}: {base.final_loss:.3f} and {other.final_loss:.3f} at the end"

    def draw(axes):
        plot_losses(axes, base.steps, series)
        low, high = axes.get_ylim()
        if low < 0.3 * high:  # zero belongs in the picture where the losses come near it
            axes.set_ylim(bottom=0)

    return svg_of(draw, (5.8, 3.1), title)


def difference_strip(base, other, noise):
    """The difference of the two curves, on a band as high as the noise from step to step."""
    differences = [b - a for a, b in zip(base.losses, other.losses, strict=True)]

    def draw(axes):
        axes.axhspan(-noise, noise, color=BAND, linewidth=0)
        plot_losses(axes, base.steps, [(differences, other.backend, 1.2, 1)])
        reach = 1.15 * max(2 * noise, *map(abs, differences))
        if math.isfinite(reach) and reach > 0:
            axes.set_ylim(-reach, reach)

    return svg_of(draw, (5.8, 3.1), f"Difference of the losses per step; noise is {noise:.3g}")


BEND = 0.16  # of an arrow, so that the two directions between a pair lie side by side


def draw_node(axes, place, radius, text, fill=CARD, edge=QUIET):
    axes.text(*place, text, ha="center", va="center", zorder=4)
    return axes.add_patch(patches.Circle(place, radius, facecolor=fill, edgecolor=edge, linewidth=1.2, zorder=3))


def draw_arrow(axes, start, end, width, colour):
    """Between two nodes. Returns the middle of the arrow, and the direction in which it is bent."""
    axes.add_patch(
        patches.FancyArrowPatch(
            start.center,
            end.center,
            connectionstyle=f"arc3,rad={-BEND}",
            arrowstyle="-|>",
            mutation_scale=8 + 2 * width,
            patchA=start,
            patchB=end,
            shrinkA=3,
            shrinkB=3,
            linewidth=max(1, width),
            color=colour,
            alpha=0.85,
            gid="flow",
        )
    )
    (x0, y0), (x1, y1) = start.center, end.center
    dx, dy = x1 - x0, y1 - y0
    # A quadratic curve, whose control point lies BEND of the length beside the middle.
    middle = ((x0 + x1 - BEND * dy) / 2, (y0 + y1 + BEND * dx) / 2)
    length = math.hypot(dx, dy)
    return middle, (-dy / length, dx / length)


def flow_picture(summary):
    """Who sent how much to whom per step: workers on an ellipse, an aggregator in the middle."""
    flows = {tuple(key.split(">")): amount / summary.steps for key, amount in summary.flows.items()}
    widest = max(flows.values())
    # Flows below a hundredth of the largest, such as acknowledgements, are not drawn.
    drawn = {ends: amount for ends, amount in flows.items() if amount > 0.01 * widest}
    aggregated = any("A" in ends for ends in drawn)
    labelled = len(drawn) <= 2 * summary.workers
    angles = {str(rank): 2 * math.pi * rank / summary.workers - 0.75 * math.pi for rank in range(summary.workers)}
    places = {rank: (2 * math.cos(angle), -1.5 * math.sin(angle)) for rank, angle in angles.items()}

    def draw(axes):
        axes.set_aspect("equal")
        axes.axis("off")
        nodes = {rank: draw_node(axes, place, 0.33, f"worker\n{rank}") for rank, place in places.items()}
        if aggregated:
            nodes["A"] = draw_node(axes, (0, 0), 0.48, f"aggregator\nadds {summary.workers}", SUM, NETSUM)
        for (a, b), amount in drawn.items():
            colour = COLOURS[summary.backend]
            (x, y), (aside_x, aside_y) = draw_arrow(axes, nodes[a], nodes[b], 4 * amount / widest, colour)
            if labelled:
                anchor = "center" if abs(aside_x) < 0.3 else "left" if aside_x > 0 else "right"
                x, y = x + 0.09 * aside_x, y + 0.15 * aside_y
                axes.text(x, y, human_bytes(amount), ha=anchor, va="center", color=QUIET, fontsize=9)
        if not aggregated and not labelled:
            text = f"{human_bytes(statistics.median(drawn.values()))} on each arrow"
            plate = {"boxstyle": "round", "facecolor": CARD, "edgecolor": LINE}
            axes.text(0, 0, text, ha="center", va="center", color=QUIET, bbox=plate, zorder=4)
        axes.autoscale_view()

    sent = human_bytes(statistics.mean(summary.sent) / summary.steps)
    return svg_of(draw, (5.8, 4.6), f"{summary.backend}: each worker sends {sent} per step")
