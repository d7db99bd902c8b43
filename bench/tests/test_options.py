"""The command lines of the benchmarks."""

import importlib
import pathlib
import sys

import netsum_bench
import pytest

BENCHMARKS = sorted(path.stem for path in pathlib.Path(netsum_bench.__file__).parent.glob("*_bench.py"))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_can_be_shown(name, monkeypatch, capsys):
    """argparse formats it, so a per cent sign in a name must be escaped."""
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(f"netsum_bench.{name}").main()
    assert end.value.code == 0
    assert "--output" in capsys.readouterr().out
