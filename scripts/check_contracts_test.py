"""check_contracts.py and check_budget.py find what differs, and what is too much."""

import pathlib
import subprocess

import check_budget
import check_contracts

ROOT = pathlib.Path(__file__).resolve().parents[1]
IDS = (ROOT / "wire/ids.h").read_text(encoding="utf-8")
PROTOCOL = (ROOT / "wire/PROTOCOL.md").read_text(encoding="utf-8")


def test_the_protocol_agrees_with_the_header():
    assert list(check_contracts.wire_offences(IDS, PROTOCOL)) == []


def test_a_changed_number_is_found():
    for old, new in (
        ("#define NETSUM_LANE_I8 3", "#define NETSUM_LANE_I8 9"),
        ("#define NETSUM_OP_XOR 6", "#define NETSUM_OP_XOR 7"),
        ("#define NETSUM_TYPE_ERROR 5", "#define NETSUM_TYPE_ERROR 9"),
        ("#define NETSUM_DROP_BAD_SLOT 11", "#define NETSUM_DROP_BAD_SLOT 19"),
    ):
        assert old in IDS
        assert list(check_contracts.wire_offences(IDS.replace(old, new), PROTOCOL)), new
    assert list(check_contracts.wire_offences(IDS, PROTOCOL.replace("| 0x13 |", "| 0x19 |")))


def test_a_known_bug_whose_text_has_changed_is_found(tmp_path):
    (tmp_path / "tests/mutation").mkdir(parents=True)
    (tmp_path / "a.cc").write_text("int a = 1;\nint b = 1;\n", encoding="utf-8")
    for old, offences in (("int a", 0), ("int c", 1), ("int", 1)):
        (tmp_path / "tests/mutation/known.toml").write_text(
            f'[[bug]]\nname = "bug"\nfile = "a.cc"\nold = "{old}"\n', encoding="utf-8"
        )
        assert len(list(check_contracts.known_bug_offences(tmp_path))) == offences, old


def test_budgets(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "README.md").write_text("short\n", encoding="utf-8")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.h").write_text(
        "class A {\n};\nstruct B : public A {\n};\nenum class C { kD };\nclass E;\n", encoding="utf-8"
    )
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    assert check_budget.check(tmp_path) == []
    assert check_budget.counts_of(tmp_path)["named types in production"] == 3
    (tmp_path / "README.md").write_text("line\n" * 91, encoding="utf-8")
    (tmp_path / "plot.svg").write_text("<svg/>", encoding="utf-8")
    subprocess.run(["git", "-C", tmp_path, "add", "."], check=True)
    assert len(check_budget.check(tmp_path)) == 2
