"""What tests of metrics share: pages, Prometheus' text format read strictly, and waiting for what a page says."""

import re
import urllib.error
import urllib.request

from harness import PATIENCE_S, CommandTest

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE = re.compile(rf"({NAME})(?:\{{(.*)\}})? (\S+)$")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\["\\n])*)"(?:,|$)')


def get(address, path):
    """Status and text of one page."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def parse(text):
    """Prometheus' text format, strictly: {family: type}, {sample name: [(labels, value)]}."""
    types, samples, helped = {}, {}, set()
    for line in text.splitlines():
        if line.startswith("# HELP "):
            helped.add(line.split(" ", 3)[2])
            continue
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name} has two TYPE lines"
            assert name in helped, f"{name} has no HELP line before its TYPE"
            types[name] = kind
            continue
        match = SAMPLE.match(line)
        assert match, f"not a sample: {line}"
        name, labels, value = match.groups()
        pairs = LABEL.findall(labels or "")
        assert "".join(f'{key}="{text}",' for key, text in pairs).rstrip(",") == (labels or "").rstrip(","), line
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in types or types.get(family) == "histogram", f"{name} has no TYPE line"
        found = samples.setdefault(name, [])
        assert dict(pairs) not in [known for known, _ in found], f"twice: {line}"
        found.append((dict(pairs), float(value)))
    return types, samples


def value(samples, name, **labels):
    found = [number for known, number in samples.get(name, []) if labels.items() <= known.items()]
    assert len(found) == 1, f"{name} {labels}: {samples.get(name)}"
    return found[0]


class MetricsTest(CommandTest):
    def start_with_metrics(self, *arguments):
        daemon = self.start_aggregator("--metrics", "127.0.0.1:0", *arguments)
        daemon.metrics = daemon.wait_for("metrics: http://", name="out").split("/")[2]
        return daemon

    def scrape(self, address):
        status, text = get(address, "/metrics")
        assert status == 200
        return parse(text)
