"""The one reporter: statistics, texts of figures, tables in Markdown, and pages with tables and plots."""

import dataclasses
import io
import itertools
import pathlib

import jinja2
import matplotlib
from matplotlib.figure import Figure
from pandas import Series

ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).parent),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
NOTHING = "*Nothing to compare yet.*"
# Ethernet frames of MTU 1500 over what they carry of a tensor; the racks shape frames.
NETSUM_FRAME, TCP_FRAME = 1514 / 1440, 1514 / 1448


# --- Statistics


def median(values):
    return float(Series(values).median())


def spread(values):
    """Median, and the 10th and 90th percentile."""
    return tuple(map(float, Series(values).quantile([0.5, 0.1, 0.9])))


def jain(values):
    """Jain's fairness index: 1 when all are equal, 1/n when one has everything."""
    values = Series(values)
    return values.sum() ** 2 / (len(values) * (values**2).sum())


def is_below(mine, other):
    """Whether the times of one cell (`low` and `high`: percentiles) are below those of the other, and not only their
    medians."""
    return mine["high"] < other["low"]


# --- Texts


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def spread_text(values, form=number):
    """Median, 10th and 90th percentile."""
    return "{} [{} - {}]".format(*map(form, spread(values)))


def range_text(values, form="{:.0f}"):
    """Median, least and greatest."""
    values = Series(values)
    return f"{form} ({form} - {form})".format(values.median(), values.min(), values.max())


def change_text(of, to):
    """Median, least and greatest of the changes in percent, each from its value of `to` (same index)."""
    ratios = (of / to).dropna()
    return f"{range_text(100 * (ratios - 1), '{:+.0f}')} %" if len(ratios) else ""


def verdict(ratio, mine, other, unit):
    """How many times as fast as the other cell; bold if it is faster, by more than the noise and than what the text shows."""
    text = f"{ratio:.2f}{unit}"
    return f"**{text}**" if is_below(mine, other) and float(f"{ratio:.2f}") > 1 else text


def size_text(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def rate_bits(rate):
    """None: not shaped."""
    return None if rate in ("none", "host") else float(rate[:-4]) * {"gbit": 1e9, "mbit": 1e6, "kbit": 1e3}[rate[-4:]]


def rate_text(rate):
    return "unshaped links" if rate == "none" else f"links of {rate[:-4]} {rate[-4].upper()}bit/s"


def by_rate(rate):
    """A key to sort rates; unshaped links are the fastest."""
    return rate_bits(rate) or float("inf")


def markdown(headings, rows, left=1):
    """A table, the columns from `left` on aligned to the right."""
    lines = [headings, ["--"] * left + ["--:"] * (len(headings) - left), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def narrow(headings, rows, left=1):
    """The same without spaces at the borders of cells."""
    return markdown(headings, rows, left).replace("| ", "|").replace(" |", "|")


# --- Tables as data


class Row:
    """The records that have the values `key`, and a view of those that have others."""

    def __init__(self, records, key):
        self._all, self.key = records, key
        self.records = [r for r in records if all(r.get(field) == value for field, value in key.items())]

    def __getitem__(self, field):
        return self.key[field]

    def select(self, **fields):
        """The row of these values instead."""
        return Row(self._all, {**self.key, **fields})

    def values(self, field):
        """Of all records; lists are joined."""
        found = [r[field] for r in self.records if r.get(field) is not None]
        return list(itertools.chain.from_iterable(found)) if found and isinstance(found[0], list) else found

    def rounds(self, field):
        """The value of each round, the median of a list."""
        found = {r["round"]: r[field] for r in self.records if r.get(field) is not None}
        return Series({n: median(v) if isinstance(v, list) else v for n, v in found.items()}, dtype=float)


@dataclasses.dataclass
class Table:
    """A row for all records that are alike in the fields `rows`; `columns` are headings, each with a function of a Row.
    `across`: fields for each of whose values there is a further column, with its heading and cell (functions of these
    values, and of a Row). `wanted`: which rows there are. `order`: a key to sort rows by; without it they stay in the
    order of the records. `transposed`: columns and rows change places."""

    rows: tuple
    columns: list
    across: tuple = ()
    heading: object = None
    cell: object = None
    left: int = 1
    wanted: object = None
    order: object = None
    transposed: bool = False

    def __call__(self, records):
        fields = (*self.rows, *self.across)
        records = [r for r in records if all(field in r for field in fields)]
        keys = dict.fromkeys(tuple(r[field] for field in self.rows) for r in records)
        rows = [Row(records, dict(zip(self.rows, key, strict=True))) for key in keys]
        rows = [row for row in rows if self.wanted is None or self.wanted(row)]
        rows = sorted(rows, key=self.order) if self.order else rows
        if not rows:
            return NOTHING
        beside = list(dict.fromkeys(tuple(r[field] for field in self.across) for r in records)) if self.across else []
        lines = [[heading for heading, _ in self.columns] + [self.heading(*values) for values in beside]]
        for row in rows:
            lines.append([text(row) for _, text in self.columns])
            lines[-1] += [self.cell(row.select(**dict(zip(self.across, of, strict=True)))) for of in beside]
        if self.transposed:
            lines = list(map(list, zip(*lines, strict=True)))
        return markdown(lines[0], lines[1:], self.left)


# Functions of a Row, for the columns of tables.


def spreads(field, form=number):
    """Median, 10th and 90th percentile of all values."""
    return lambda row: spread_text(row.values(field), form) if row.values(field) else ""


def ranges(field, form="{:.0f}", per=1, **of):
    """Median, least and greatest of all values, divided by `per`; `of`: of the row with these values instead."""

    def text(row):
        found = row.select(**of).values(field)
        return range_text(Series(found) / per, form) if found else ""

    return text


def changes(field, to, of=None):
    """From the row with the values `to`, round by round; nothing in that row itself."""

    def text(row):
        mine, base = row.select(**(of or {})), row.select(**to)
        return "" if mine.key == base.key else change_text(mine.rounds(field), base.rounds(field))

    return text


def medians(*fields, form=number, **of):
    return lambda row: ", ".join(form(median(row.select(**of).values(field))) for field in fields)


# --- Plots and pages

SVG = {"svg.hashsalt": "netsum", "svg.fonttype": "none"}  # the same figure has the same text


def svg_of(figure, title):
    """The SVG element of a matplotlib figure, for a page."""
    file = io.StringIO()
    about = {"Title": title, "Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(file, format="svg", transparent=True, metadata=about)
    return f'<svg role="img" {file.getvalue().partition("<svg ")[2]}'


def plot(draw, size=(6.4, 4.4)):
    """The SVG element of what `draw(figure)` draws, always of the same text."""
    with matplotlib.rc_context(SVG):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        return svg_of(figure, "netsum")


def render(template, **values):
    return ENVIRONMENT.get_template(template).render(**values)


def blocks(markdown_text):
    """For a page: (kind, content) of each heading, table and paragraph of such Markdown as there is here."""
    for block in markdown_text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.strip()]
        table = list(itertools.takewhile(lambda line: line.startswith("|"), lines))
        if table:
            yield "table", [[cell.strip().strip("*`") for cell in line[1:-1].split("|")] for line in table]
            lines = lines[len(table) :]
        if lines:
            kind = "heading" if lines[0].startswith("#") else "text"
            yield kind, "\n".join(lines).lstrip("# ")


def write_page(case, records, path):
    """The case's tables and plots in one file, which loads nothing."""
    tables = [(name, list(blocks(table(records)))) for name, table in case.tables.items()]
    plots = list(case.plots(records)) if case.plots else []
    page = render("report.html.j2", case=case, run=records[-1]["run"], tables=tables, plots=plots)
    path.write_text(page, encoding="utf-8")


def text_of(case, records):
    """The case's tables, with their names if there are several."""
    tables = {name: table(records) for name, table in case.tables.items()}
    return "\n\n".join(f"## {name}\n\n{text}" if len(tables) > 1 else text for name, text in tables.items())
