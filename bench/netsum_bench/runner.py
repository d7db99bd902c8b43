"""The one runner: a case is a product of axes, which its lab measures turn by turn; the records go to a file.

The last axis of a case, which are the systems, takes turns: in each round every system is measured once, and another
one is first, so that whatever else the machine does falls on all of them. A failure costs one turn. A budget ends the
run between two turns.
"""

import dataclasses
import itertools
import json
import time

from netsum_bench.processes import PROBLEMS
from netsum_bench.records import append_to, latest, load
from netsum_bench.report import median, number, rate_text, size_text


@dataclasses.dataclass
class Case:
    """What is measured. `axes`: by record field, the values; the first ones change least often. `round` is one of them.

    `lab(run, place, turns)` is a context manager that yields `measure(turn)`, which gives a record, several of them, or None if
    there is nothing to measure; `place` has the values of the fields `place`, for which one lab is open at a time.
    """

    name: str
    question: str
    lab: object
    axes: dict
    place: tuple = ()
    tables: dict = dataclasses.field(default_factory=dict)  # by name: a function of the records that gives Markdown
    minutes: float = 1  # on two cores, about
    help: dict = dataclasses.field(default_factory=dict)  # of axes, beyond that of options.FIELDS
    known: dict = dataclasses.field(default_factory=dict)  # values that an axis may have, if these are not its own ones
    joint: tuple = ()  # axes of which a turn has the list of all values
    adapt: object = None  # a turn that is measured instead, or None
    turns: object = None  # a function of the axes that gives the turns in their order, instead of the product
    shows: str = "times_ms"  # the field of a record that is shown on the way
    unit: str = "ms"
    named: tuple = ()  # fields of a record, besides axes and key, that say on the way what it is of
    quick: dict = dataclasses.field(default_factory=dict)  # axes for --quick
    full: dict = dataclasses.field(default_factory=dict)  # axes for --full
    key: tuple = ()  # fields; what is alike in them, a later run replaces. Empty: all axes but the round
    plots: object = None  # a function of the records that gives SVG elements
    check: object = None  # a function of the records that gives complaints
    tolerates: tuple = ()  # systems whose failure is a result
    needs: tuple = ("netsum", "root")  # of options.NEEDS
    least_cores: int = 1  # of a machine that measures it
    only_full: bool = False  # too long for `make results` without FULL=1

    @property
    def fields(self):
        return self.key or tuple(field for field in self.axes if field != "round")


def product(axes):
    """All combinations, the values of the last axis in another order in each round."""
    *first, last = axes
    for values in itertools.product(*(axes[field] for field in first)):
        turn = dict(zip(first, values, strict=True))
        shift = turn.get("round", 0) % len(axes[last])
        for value in axes[last][shift:] + axes[last][:shift]:
            yield {**turn, last: value}


def turns_of(case, axes):
    """All turns in their order, each once; or ValueError if there are none that make sense."""
    joined = {field: [values] if field in case.joint else values for field, values in axes.items()}
    found = {}
    for turn in case.turns(joined) if case.turns else product(joined):
        if (turn := case.adapt(turn) if case.adapt else turn) is not None:
            found.setdefault(json.dumps(turn), turn)
    if not found:
        raise ValueError(f"{case.name}: these options leave nothing to measure")
    return list(found.values())


TEXTS = {
    "bytes": size_text,
    "count": lambda count: f"{size_text(count)[:-1].replace('iB', 'i')} elements",
    "workers": "{} workers".format,
    "loss": lambda loss: f"{loss:.1%} lost",
    "round": lambda number_of: f"round {number_of + 1}",
    "rate": lambda rate: "" if rate == "host" else rate_text(rate),
}


def turn_text(turn, axes):
    """The values that differ between the turns of this run."""
    shown = [field for field in turn if len(axes.get(field, ())) != 1 and not isinstance(turn[field], list)]
    texts = [
        TEXTS.get(field, lambda v, field=field: v if isinstance(v, str) else f"{field} {v}")(turn[field])
        for field in shown
    ]
    return ", ".join(text for text in texts if text)


def result_text(case, record):
    if "failed" in record:
        return f"FAILED: {record['failed']}"
    value = record.get(case.shows)
    wrong = f", {record['wrong']} WRONG" if record.get("wrong") else ""
    if isinstance(value, dict):
        value = value["median"]
    return (f"{number(median(value))} {case.unit}" if value not in (None, []) else "done") + wrong


class Run:
    """One run of a case: what its lab may ask and tell."""

    def __init__(self, case, axes, netsum, path, budget=None, say=print):
        """`axes`: those of this run; ValueError if they do not go together. `path`: of the records. `budget`: minutes
        after which no further turn begins, or None."""
        self.case, self.axes, self.netsum, self.path, self.budget = case, axes, netsum, path, budget
        self.turns = turns_of(case, axes)
        self.rounds = len(axes.get("round", [0]))
        self.failures = []
        self._append, self._say, self._begun = append_to(path), say, time.monotonic()

    def seconds(self):
        return time.monotonic() - self._begun

    def expired(self):
        return self.budget is not None and self.seconds() >= 60 * self.budget

    def say(self, text):
        self._say(text, flush=True)

    def keep(self, record):
        self._append(record)
        if "failed" in record or record.get("wrong"):
            self.failures.append(record)

    def measure_all(self):
        """Measures all turns, place by place."""
        turns = self.turns
        where = lambda turn: {field: turn[field] for field in self.case.place}
        done = 0
        for place, of_place in itertools.groupby(turns, where):
            of_place = list(of_place)
            if self.expired():
                break
            if place and len(turns) > len(of_place):
                self.say(f"{turn_text(place, self.axes)}:")
            try:
                with self.case.lab(self, place, of_place) as measure:
                    for turn in of_place:
                        if self.expired():
                            break
                        done += 1
                        self._take(measure, turn, done)
            except PROBLEMS as problem:  # of the place itself
                self.keep({**place, "failed": str(problem)})
                self.say(f"  FAILED: {problem}")
                done += len(of_place)
        if self.expired() and done < len(turns):
            self.keep({"left_out": turns[done:]})
            self.say(f"the budget of {self.budget:g} minutes is spent: {len(turns) - done} of {len(turns)} left out")

    def _take(self, measure, turn, number_of):
        own = {field: value for field, value in turn.items() if field not in self.case.joint}
        try:
            found = measure(turn)
            for result in [found] if isinstance(found, dict) else found or ():
                self._took({**own, **result}, number_of)
        except PROBLEMS as problem:
            self._took({**own, "failed": str(problem)}, number_of)

    def _took(self, record, number_of):
        self.keep(record)
        fields = dict.fromkeys([*self.axes, *self.case.key, *self.case.named])
        text = turn_text({field: record[field] for field in fields if field in record}, self.axes)
        self.say(f"  [{number_of}/{len(self.turns)}] {self.seconds():.0f} s  {text}: {result_text(self.case, record)}")

    def records(self):
        """Of the file: what this and earlier runs have measured, without what was measured again."""
        return latest(load(self.path), *self.case.fields) if self.path.exists() else []

    def well(self):
        """Whether nothing failed but what the case tolerates, and no result was wrong."""
        bad = [r for r in self.failures if r.get("wrong") or r.get("system") not in self.case.tolerates]
        complaints = self.case.check(self.records()) if self.case.check else []
        for complaint in complaints:
            self.say(f"WRONG: {complaint}")
        return not bad and not complaints
