"""Statistics and tables that the benchmarks share."""

from pandas import Series


def median(values):
    return float(Series(values).median())


def spread(values):
    """Median, and the 10th and 90th percentile."""
    return tuple(map(float, Series(values).quantile([0.5, 0.1, 0.9])))


def range_text(values, form="{:.0f}"):
    """Median, least and greatest."""
    values = Series(values)
    return f"{form} ({form} - {form})".format(values.median(), values.min(), values.max())


def change_text(of, to):
    """Median, least and greatest of the changes in percent, each from its value of `to` (same index)."""
    ratios = (of / to).dropna()
    return f"{range_text(100 * (ratios - 1), '{:+.0f}')} %" if len(ratios) else ""


def jain(values):
    """Jain's fairness index: 1 when all are equal, 1/n when one has everything."""
    values = Series(values)
    return values.sum() ** 2 / (len(values) * (values**2).sum())


def is_below(mine, other):
    """Whether the times of one cell (`low` and `high`: percentiles) are below those of the other, and not only their medians."""
    return mine["high"] < other["low"]


def verdict(ratio, mine, other, unit):
    """How many times as fast as the other cell; bold if it is faster, by more than the noise and than what the text shows."""
    text = f"{ratio:.2f}{unit}"
    return f"**{text}**" if is_below(mine, other) and float(f"{ratio:.2f}") > 1 else text


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def markdown(headings, rows, left=1):
    """A table, the columns from `left` on aligned to the right."""
    lines = [headings, ["--"] * left + ["--:"] * (len(headings) - left), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def pivot(frame, rows, column, text):
    """A table of `text(values)` for the pairs of a value of `rows` and one of `column`, both in the order of the frame."""
    cells = frame.groupby([rows, column], sort=False)["value"].agg(text).to_dict()
    columns = list(frame[column].unique())
    return columns, [[row, *(cells.get((row, c), "") for c in columns)] for row in frame[rows].unique()]
