"""Benchmark records: lines of JSON, those of one run behind a head that says what was measured, where, when and how."""

import json
import os
import time

from netsum_bench.machine import command_line, git, machine


def head():
    """Of a run that begins now. `changed`: files that differ from the commit."""
    return {
        "commit": git("rev-parse", "HEAD"),
        "changed": git("diff", "--name-only", "HEAD").splitlines(),
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load": os.getloadavg()[0],
        "command": command_line(),
    }


def append_to(path, **more):
    """A function that adds records to the file, the head of this run before the first. Without a path it does nothing.
    What has been added stays, whatever happens to the run."""
    started = []

    def out(record):
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            if not started:
                started.append(True)
                file.write(json.dumps({"head": {**head(), **more}}) + "\n")
            file.write(json.dumps(record) + "\n")

    return out


def load(path):
    """All records of a file, each with the head of its run."""
    records, current = [], {}
    for line in path.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "head" in record:
            current = record["head"]
        else:
            records.append({**record, "run": current})
    return records


def latest(records, *key):
    """For each value of the key fields, only the records of the last run that has it."""
    last = {}
    for record in records:
        last[tuple(record.get(field) for field in key)] = record["run"]
    return [r for r in records if last[tuple(r.get(field) for field in key)] is r["run"]]


def compact(path, *key):
    """Rewrites the file without the records that a later run has replaced."""
    lines, written = [], None
    for record in latest(load(path), *key):
        run = record.pop("run")
        if run is not written:
            lines.append(json.dumps({"head": run}))
            written = run
        lines.append(json.dumps(record))
    beside = path.with_suffix(".new")
    beside.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    beside.replace(path)
