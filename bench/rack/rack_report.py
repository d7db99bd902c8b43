"""Table and page of the rack benchmark's results (records as bench.py writes them)."""
import base64
import html
import io
import statistics

COLOURS = {"netsum-user": "#1f77b4", "netsum-xdp": "#2ca02c", "netsum-user-bfloat16": "#17becf", "gloo": "#d62728",
           "openmpi": "#ff7f0e"}


def size_text(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:g} {name}"
    return f"{size} B"


def rate_bits(rate):
    return None if rate == "none" else float(rate[:-4]) * {"gbit": 1e9, "mbit": 1e6}[rate[-4:]]


def cells(records):
    """Per (rate, workers, bytes, system): medians over the rounds, and the spread of the rounds' medians."""
    groups = {}
    for record in records:
        if "median_s" in record:
            key = (record["rate"], record["workers"], record["bytes"], record["system"])
            groups.setdefault(key, []).append(record)
    result = {}
    for key, rounds in groups.items():
        cell = {name: statistics.median(r[name] for r in rounds)
                for name in ("median_s", "p99_s", "cpu_seconds_per_rank", "switch_cpu_seconds", "link_bytes_up",
                             "link_bytes_down")}
        medians = [r["median_s"] for r in rounds]
        cell.update(low_s=min(medians), high_s=max(medians), wrong=sum(r["wrong"] for r in rounds), rounds=len(rounds))
        result[key] = cell
    return result


def rows(records):
    all_cells = cells(records)
    for (rate, workers, size, system), cell in all_cells.items():
        bits = rate_bits(rate)
        bandwidth = size * 8 / cell["median_s"]
        row = {"rate": rate, "workers": workers, "size": size, "system": system, "bandwidth": bandwidth, **cell,
               "share": bandwidth / bits if bits else None}
        for peer in ("gloo", "openmpi"):
            other = all_cells.get((rate, workers, size, peer))
            row[f"over_{peer}"] = other["median_s"] / cell["median_s"] if other else None
        yield row


HEADINGS = ["rate", "workers", "size", "system", "median ms", "low - high", "p99 ms", "Gbit/s", "of link", "x Gloo",
            "x MPI", "up B/B", "down B/B", "CPU ms/rank", "switch ms", "wrong"]


def texts(row):
    share = "" if row["share"] is None else f"{row['share']:.3f}"
    ratio = lambda value: "" if value is None else f"{value:.2f}"
    return [row["rate"], str(row["workers"]), size_text(row["size"]), row["system"], f"{row['median_s'] * 1e3:.3f}",
            f"{row['low_s'] * 1e3:.3f} - {row['high_s'] * 1e3:.3f}", f"{row['p99_s'] * 1e3:.3f}",
            f"{row['bandwidth'] / 1e9:.3f}", share, ratio(row["over_gloo"]), ratio(row["over_openmpi"]),
            f"{row['link_bytes_up'] / row['size']:.3f}", f"{row['link_bytes_down'] / row['size']:.3f}",
            f"{row['cpu_seconds_per_rank'] * 1e3:.2f}", f"{row['switch_cpu_seconds'] * 1e3:.2f}", str(row["wrong"])]


def table(records):
    lines = [HEADINGS] + [texts(row) for row in rows(records)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines)


def figure_text(figure, title):
    """The figure as an image in HTML; closes it."""
    import matplotlib.pyplot as plt
    figure.tight_layout()
    data = io.BytesIO()
    figure.savefig(data, format="svg")
    plt.close(figure)
    return f'<img alt="{html.escape(title)}" src="data:image/svg+xml;base64,{base64.b64encode(data.getvalue()).decode()}">'


def picture(title, y_label, series, x_label, log_y):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(6.4, 4))
    for name, points in series.items():
        points.sort()
        axes.plot([p[0] for p in points], [p[1] for p in points], marker="o", label=name, color=COLOURS.get(name))
    axes.set_xscale("log", base=2)
    if log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set(title=title, xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure_text(figure, title)


def pictures(all_rows):
    """Per rate: bandwidth against workers at the largest size, and time against size at the most workers."""
    for rate in dict.fromkeys(row["rate"] for row in all_rows):
        here = [row for row in all_rows if row["rate"] == rate]
        largest, most = max(row["size"] for row in here), max(row["workers"] for row in here)
        by_workers, by_size = {}, {}
        for row in here:
            if row["size"] == largest:
                by_workers.setdefault(row["system"], []).append((row["workers"], row["bandwidth"] / 1e9))
            if row["workers"] == most:
                by_size.setdefault(row["system"], []).append((row["size"], row["median_s"] * 1e3))
        name = "links as fast as the machine" if rate == "none" else f"links of {rate}"
        yield picture(f"{size_text(largest)}, {name}", "Gbit/s of gradient", by_workers, "workers", False)
        yield picture(f"{most} workers, {name}", "median time, ms", by_size, "bytes", True)


def write_html(records, path):
    head = records[0]
    all_rows = list(rows(records))
    table_rows = "".join("<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in texts(row)) + "</tr>"
                         for row in all_rows)
    headings = "".join(f"<th>{html.escape(text)}</th>" for text in HEADINGS)
    failures = "".join(f"<li>{html.escape(str(r))}</li>" for r in records if "failed" in r)
    path.write_text(f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>netsum rack benchmark</title>
<style>body{{font:14px sans-serif;margin:2em}}td,th{{padding:2px 8px;text-align:right;border-bottom:1px solid #ddd}}
img{{max-width:48%}}</style><h1>netsum rack benchmark</h1>
<p>{html.escape(head['machine'])}; {html.escape(head['date'])}<br><code>{html.escape(head['command'])}</code></p>
<p>Medians over rounds in which the systems took turns; low and high are the rounds' own medians. "of link": gradient
bits per second as a share of the link's rate. "x": times faster than that system. "B/B": bytes on worker 0's link per
gradient byte. CPU per operation. bfloat16 rows: as many elements as the float32 tensor of that size.</p>
{''.join(pictures(all_rows))}<table><tr>{headings}</tr>{table_rows}</table><ul>{failures}</ul></html>
""", encoding="utf-8")
    return path

