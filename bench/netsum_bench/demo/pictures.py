"""Pictures for the report, as SVG that takes its colours from the page, so that light and dark both read."""

import html
import math
import statistics
from typing import NamedTuple

from netsum_bench.demo.summary import human_bytes

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 34


def ticks(low, high, about=5):
    """Round numbers from `low` to `high`, about as many as asked for."""
    span = (high - low) or 1.0
    power = 10 ** math.floor(math.log10(span / about))
    step = min((m * power for m in (1, 2, 5, 10)), key=lambda s: abs(span / s - about))
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


class Axes:
    """Maps data to the picture's plane and draws its frame."""

    bottom = HEIGHT - BOTTOM

    def __init__(self, xs, ys):
        (self.x0, self.x1), (self.y0, self.y1) = xs, ys

    def x(self, value):
        return LEFT + (value - self.x0) / ((self.x1 - self.x0) or 1) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        return self.bottom - (value - self.y0) / ((self.y1 - self.y0) or 1) * (self.bottom - TOP)

    def frame(self, x_title):
        parts = []
        for value in ticks(self.y0, self.y1):
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        for value in ticks(self.x0, self.x1, 6):
            parts.append(
                f'<text class="tick" x="{self.x(value):.1f}" y="{self.bottom + 17}" '
                f'text-anchor="middle">{value:g}</text>'
            )
        parts.append(
            f'<text class="tick" x="{WIDTH - RIGHT}" y="{self.bottom + 32}" text-anchor="end">{x_title}</text>'
        )
        return "".join(parts)

    def curve(self, values, style):
        points = " ".join(f"{self.x(i):.1f},{self.y(v):.1f}" for i, v in enumerate(values, start=1))
        return f'<polyline class="curve {style}" points="{points}"/>'


def loss_curves(base, other):
    """Training loss of both runs: `base` broad and pale, `other` thin on top, for they nearly coincide."""
    every = base.losses + (other.losses if other else [])
    low, high = min(every), max(every)
    # Zero belongs in the picture where the losses come near it.
    axes = Axes((1, base.steps), (0 if low < 0.3 * high else low - 0.06 * (high - low), 1.03 * high))
    body = axes.frame("step") + axes.curve(base.losses, f"broad {base.backend}")
    title = f"Training loss of {base.backend}"
    if other:
        body += axes.curve(other.losses, f"thin {other.backend}")
        title += f" and {other.backend}: {base.final_loss:.3f} and {other.final_loss:.3f} at the end"
    return _svg(WIDTH, HEIGHT, body, title)


def difference_strip(base, other, noise):
    """The difference of the two curves over a band that shows the noise from step to step."""
    differences = [b - a for a, b in zip(base.losses, other.losses, strict=True)]
    reach = 1.15 * max(2 * noise, max(map(abs, differences)))
    axes = Axes((1, base.steps), (-reach, reach))
    band_top, band_bottom = axes.y(noise), axes.y(-noise)
    body = (
        f'<rect class="band" x="{LEFT}" width="{WIDTH - LEFT - RIGHT}" y="{band_top:.1f}" '
        f'height="{band_bottom - band_top:.1f}"/>'
        + axes.frame("step")
        + axes.curve(differences, f"thin {other.backend}")
    )
    return _svg(WIDTH, HEIGHT, body, f"Difference of the losses per step; noise is {noise:.3g}")


def flow_picture(summary):
    """Who sent how much to whom per step: workers on a circle, an aggregator in the middle."""
    flows = {tuple(key.split(">")): amount / summary.steps for key, amount in summary.flows.items()}
    # Acknowledgements and the like, below a hundredth of the largest flow, would only clutter.
    widest = max(flows.values())
    drawn = {ends: amount for ends, amount in flows.items() if amount > 0.01 * widest}
    aggregated = any("A" in ends for ends in drawn)
    centre, circle = (260, 215), (200, 155)
    places = {"A": Place(*centre, 50)}
    for rank in range(summary.workers):
        angle = 2 * math.pi * rank / summary.workers - 0.75 * math.pi
        # On an ellipse, because pictures are wider than high.
        x, y = (
            c + r * math.sqrt(2) / 1.3 * f(angle) for c, r, f in zip(centre, circle, (math.cos, math.sin), strict=True)
        )
        places[str(rank)] = Place(x, y, 34)
    labelled = len(drawn) <= 2 * summary.workers
    body = "".join(
        _arrow(places[a], places[b], 5 * amount / widest, summary.backend, human_bytes(amount) if labelled else "")
        for (a, b), amount in drawn.items()
    )
    for rank in range(summary.workers):
        body += _node(places[str(rank)], "node", ("worker", str(rank)))
    if aggregated:
        body += _node(places["A"], "node sum", ("aggregator", f"adds {summary.workers}"))
    elif not labelled:
        body += _caption(centre, f"{human_bytes(statistics.median(drawn.values()))} on each arrow")
    sent = human_bytes(statistics.mean(summary.sent) / summary.steps)
    return _svg(2 * centre[0], 2 * centre[1], body, f"{summary.backend}: each worker sends {sent} per step")


class Place(NamedTuple):
    x: float
    y: float
    radius: float


def _node(place, style, lines):
    text = "".join(
        f'<text class="name" x="{place.x:.1f}" y="{place.y + 5 + 16 * (i - (len(lines) - 1) / 2):.1f}" '
        f'text-anchor="middle">{html.escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return f'<circle class="{style}" cx="{place.x:.1f}" cy="{place.y:.1f}" r="{place.radius}"/>{text}'


def _caption(centre, text):
    x, y = centre
    return (
        f'<rect class="plate" x="{x - 84}" y="{y - 14}" width="168" height="28" rx="6"/>'
        f'<text class="tick" x="{x}" y="{y + 4}" text-anchor="middle">{html.escape(text)}</text>'
    )


def _arrow(start, end, width, backend, label):
    """A bent arrow, so that the two directions between a pair lie side by side."""
    shift, bend, margin = 7, 16, 4
    length = math.hypot(end.x - start.x, end.y - start.y)
    ux, uy = (end.x - start.x) / length, (end.y - start.y) / length
    side_x, side_y = uy, -ux
    tip_length = 7 + width
    leave, arrive = start.radius + margin, end.radius + margin + tip_length
    ax, ay = start.x + ux * leave + side_x * shift, start.y + uy * leave + side_y * shift
    bx, by = end.x - ux * arrive + side_x * shift, end.y - uy * arrive + side_y * shift
    mx, my = (ax + bx) / 2 + side_x * bend, (ay + by) / 2 + side_y * bend
    drawn = (
        f'<path class="flow {backend}" stroke-width="{max(1.2, width):.1f}" '
        f'd="M{ax:.1f},{ay:.1f} Q{mx:.1f},{my:.1f} {bx:.1f},{by:.1f}"/>'
        f'<polygon class="tip {backend}" points="{_tip(bx, by, bx - mx, by - my, tip_length)}"/>'
    )
    if label:
        # Beside the middle of the bow; text is wider than high, so it needs more room to the sides.
        anchor = "middle" if abs(side_x) < 0.3 else ("start" if side_x > 0 else "end")
        x, y = mx + side_x * 4, my + side_y * (12 if abs(side_x) < 0.3 else 8) + 4
        drawn += f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{label}</text>'
    return drawn


def _tip(x, y, dx, dy, size):
    length = math.hypot(dx, dy)
    ux, uy = dx / length, dy / length
    corners = [
        (x + ux * size, y + uy * size),
        (x - uy * size * 0.6, y + ux * size * 0.6),
        (x + uy * size * 0.6, y - ux * size * 0.6),
    ]
    return " ".join(f"{cx:.1f},{cy:.1f}" for cx, cy in corners)


def _svg(width, height, body, title):
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(title)}">'
        f"<title>{html.escape(title)}</title>{body}</svg>"
    )
