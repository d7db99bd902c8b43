"""What a planted bug is."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Bug:
    """`old`, which stands exactly once in `file`, becomes `new`; `suite`, "TARGET [GTEST_FILTER]", must then fail."""

    area: str
    name: str
    what: str
    file: str
    old: str
    new: str
    suite: str
    hangs: bool = False  # the test fails by its deadline of minutes: not for a sample

    @property
    def target(self):
        return self.suite.split()[0]

    @property
    def tests(self):
        return self.suite.partition(" ")[2]
