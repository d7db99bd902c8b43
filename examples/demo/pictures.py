"""Pictures for the report, as SVG that takes its colours from the page, so that light and dark both read."""

import html
import math
import statistics

from summary import human_bytes

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 34


def ticks(low, high, about=5):
    """Round numbers from `low` to `high`, about as many as asked for."""
    span = (high - low) or 1.0
    power = 10 ** math.floor(math.log10(span / about))
    step = min((m * power for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(span / s - about))
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


class Axes:
    """Maps data to a rectangle of the picture and draws its frame."""

    def __init__(self, xs, ys, top=TOP, height=HEIGHT):
        (self.x0, self.x1), (self.y0, self.y1) = xs, ys
        self.top, self.bottom = top, top + height - BOTTOM

    def x(self, value):
        return LEFT + (value - self.x0) / ((self.x1 - self.x0) or 1) * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        return self.bottom - (value - self.y0) / ((self.y1 - self.y0) or 1) * (self.bottom - self.top)

    def frame(self, x_title=None, y_ticks=5):
        parts = []
        for value in ticks(self.y0, self.y1, y_ticks):
            y = self.y(value)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        if x_title:
            for value in ticks(self.x0, self.x1, 6):
                parts.append(
                    f'<text class="tick" x="{self.x(value):.1f}" y="{self.bottom + 17}" '
                    f'text-anchor="middle">{value:g}</text>'
                )
            parts.append(
                f'<text class="tick" x="{WIDTH - RIGHT}" y="{self.bottom + 31}" text-anchor="end">{x_title}</text>'
            )
        return "".join(parts)

    def curve(self, values, style):
        points = " ".join(f"{self.x(i):.1f},{self.y(v):.1f}" for i, v in enumerate(values, start=1))
        return f'<polyline class="curve {style}" points="{points}"/>'


def loss_curves(base, other):
    """Training loss of both runs: `base` broad and pale, `other` thin on top, for they nearly coincide."""
    every = base.losses + (other.losses if other else [])
    axes = Axes((1, base.steps), (0, max(every) * 1.04))
    body = axes.frame("step") + axes.curve(base.losses, f"broad {base.backend}")
    title = f"Training loss of {base.backend}"
    if other:
        body += axes.curve(other.losses, f"thin {other.backend}")
        title += f" and {other.backend}: {base.final_loss:.3f} and {other.final_loss:.3f} at the end"
    return _svg(WIDTH, HEIGHT, body, title)


def difference_strip(base, other, noise):
    """The difference of the two curves over a band that shows the noise from step to step."""
    differences = [b - a for a, b in zip(base.losses, other.losses, strict=True)]
    height = 130
    reach = 1.15 * max(2 * noise, max(map(abs, differences)))
    axes = Axes((1, base.steps), (-reach, reach), height=height)
    band_top, band_bottom = axes.y(noise), axes.y(-noise)
    body = (
        f'<rect class="band" x="{LEFT}" width="{WIDTH - LEFT - RIGHT}" y="{band_top:.1f}" '
        f'height="{band_bottom - band_top:.1f}"/>'
        + axes.frame("step", y_ticks=3)
        + axes.curve(differences, f"thin {other.backend}")
    )
    return _svg(WIDTH, height + TOP, body, f"Difference of the losses per step; noise is {noise:.3g}")


def flow_picture(summary):
    """Who sent how much to whom per step: workers on a circle, an aggregator in the middle."""
    flows = {tuple(key.split(">")): amount / summary.steps for key, amount in summary.flows.items()}
    # Acknowledgements and the like, below a hundredth of the largest flow, would only clutter.
    drawn = {ends: amount for ends, amount in flows.items() if amount > 0.01 * max(flows.values())}
    size, centre = 420, 210
    places = {"A": (centre, centre)}
    for rank in range(summary.workers):
        angle = 2 * math.pi * rank / summary.workers - 0.75 * math.pi
        places[str(rank)] = (centre + 150 * math.cos(angle), centre + 150 * math.sin(angle))
    widest = max(drawn.values())
    labelled = len(drawn) <= 2 * summary.workers
    arrows = "".join(
        _arrow(places[a], places[b], amount, widest, summary.backend, labelled) for (a, b), amount in drawn.items()
    )
    nodes = "".join(_worker(places[str(rank)], rank) for rank in range(summary.workers))
    if any("A" in ends for ends in drawn):
        nodes += _node((centre, centre), 44, "node sum", ("aggregator", "adds up"))
    sent = human_bytes(statistics.mean(summary.sent) / summary.steps)
    return _svg(size, size, arrows + nodes, f"{summary.backend}: each worker sends {sent} per step")


def _worker(place, rank):
    return _node(place, 32, "node", ("worker", str(rank)))


def _node(place, radius, style, lines):
    x, y = place
    text = "".join(
        f'<text class="name" x="{x:.1f}" y="{y + 5 + 16 * (i - (len(lines) - 1) / 2):.1f}" '
        f'text-anchor="middle">{html.escape(line)}</text>'
        for i, line in enumerate(lines)
    )
    return f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>{text}'


def _arrow(start, end, amount, widest, backend, labelled):
    """A bent arrow, so that the two directions between a pair lie side by side."""
    (x0, y0), (x1, y1) = start, end
    length = math.hypot(x1 - x0, y1 - y0)
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    side_x, side_y = uy, -ux
    gap, bend = 40 if length > 160 else 48, 14
    ax, ay = x0 + ux * 36 + side_x * 7, y0 + uy * 36 + side_y * 7
    bx, by = x1 - ux * (gap + 12) + side_x * 7, y1 - uy * (gap + 12) + side_y * 7
    mx, my = (ax + bx) / 2 + side_x * bend, (ay + by) / 2 + side_y * bend
    width = max(1.2, 5 * amount / widest)
    tip = _tip(bx, by, bx - mx, by - my, 6 + width)
    path = (
        f'<path class="flow {backend}" stroke-width="{width:.1f}" '
        f'd="M{ax:.1f},{ay:.1f} Q{mx:.1f},{my:.1f} {bx:.1f},{by:.1f}"/>'
        f'<polygon class="tip {backend}" points="{tip}"/>'
    )
    if labelled:
        label_x, label_y = mx + side_x * 22, my + side_y * 12 + 4
        path += (
            f'<text class="tick" x="{label_x:.1f}" y="{label_y:.1f}" text-anchor="middle">'
            f"{human_bytes(amount)}</text>"
        )
    return path


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
