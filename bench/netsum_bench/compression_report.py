"""Figures of the benchmarks of compression from their records."""

from netsum_bench.figures import markdown

THRESHOLDS_HEADINGS = ["model", "wanted", "method", "sent / wanted", "10 % - 90 %", "least - most", "from 0.95 to 1.05"]


def thresholds_table(records):
    rows = [
        [
            r["model"],
            f"{100 * r['ratio']:g} %",
            r["method"],
            f"{r['median']:.3f}",
            f"{r['low']:.2f} - {r['high']:.2f}",
            f"{r['least']:.2f} - {r['most']:.2f}",
            f"{100 * r['near']:.1f} %",
        ]
        for r in sorted(records, key=lambda r: (r["model"], -r["ratio"]))
    ]
    return markdown(THRESHOLDS_HEADINGS, rows, 3)
