"""The operators, and programs that have all mutants in them."""

import os
import pathlib
import subprocess

import operators
import pytest

FOLDER = pathlib.Path(__file__).resolve().parent


def changes(text, operator):
    """The texts that an operator makes of one, without their white space."""
    source = text.encode()
    made = [
        operators.changed(source, mutant)
        for mutant in operators.mutants_of("a.cc", source)
        if mutant.operator == operator
    ]
    return [" ".join(one.decode().split()) for one in made]


@pytest.mark.parametrize(
    ("operator", "text", "made"),
    [
        ("relational", "bool f(int a) { return a < 3; }", ["bool f(int a) { return a <= 3; }"]),
        ("relational", "bool f(int a) { return a == 3; }", ["bool f(int a) { return a != 3; }"]),
        ("arithmetic", "void f(int a) { a += g(a - 1); }", ["void f(int a) { a -= g(a - 1); }", "void f(int a) { a += g(a + 1); }"]),
        ("arithmetic", "void f(int a) { ++a; }", ["void f(int a) { --a; }"]),
        ("arithmetic", "int f(int a) { return ~a; }", ["int f(int a) { return a; }"]),
        ("logical", "bool f(int a) { return a > 0 && a < 3; }", ["bool f(int a) { return a > 0; }", "bool f(int a) { return a < 3; }"]),
        ("logical", "bool f(bool a) { return !a; }", ["bool f(bool a) { return a; }"]),
        ("condition", "void f(int a) { if (a) g(); }", ["void f(int a) { if (false) g(); }", "void f(int a) { if (true) g(); }"]),
        ("condition", "void f(int a) { while (a) g(); }", ["void f(int a) { while (false) g(); }"]),
        ("condition", "void f() { if (auto a = g(); a) h(); }", ["void f() { if (auto a = g(); false) h(); }", "void f() { if (auto a = g(); true) h(); }"]),
        ("constant", "int f() { return 7u; }", ["int f() { return (7u + 1); }", "int f() { return (7u - 1); }"]),
        ("constant", "int a = 0;", ["int a = (0 + 1);"]),
        ("constant", "float a = 0.5f;", ["float a = (0.5f + 1);"]),
        ("constant", "bool a = true;", ["bool a = false;"]),
        ("deletion", "void f() { g(); for (;;) break; }", ["void f() { ; for (;;) break; }", "void f() { g(); for (;;) ; }"]),
        ("deletion", "void f(int a) { if (a) return; g(); }", ["void f(int a) { if (a) ; g(); }", "void f(int a) { if (a) return; ; }"]),
        ("return", "int f(int a) { return a; }", ["int f(int a) { return {}; }"]),
        ("return", "int f() { return {}; }", []),
        ("arguments", "int f(int a) { return g(a, 1, 2); }", ["int f(int a) { return g(1, a, 2); }", "int f(int a) { return g(a, 2, 1); }"]),
    ],
)  # fmt: skip
def test_an_operator(operator, text, made):
    assert changes(text, operator) == made


@pytest.mark.parametrize(
    "text",
    [
        "static_assert(1 + 1 == 2);",
        "std::array<int, 3> a;",
        "enum { A = 3 };",
        "#define A 3",
        "void f(int a) { switch (a) { case 3: ; } }",
        "void f() { if constexpr (A) ; }",
        "void f() { if (int* a = g()) ; }",
        "int a = std::max(b, c);",
        "void f(int a) { NETSUM_ASSERT(a < 3); }",
        "// a < b",
        'const char* a = "a < 3";',
    ],
)
def test_no_mutants(text):
    assert operators.mutants_of("a.cc", text.encode()) == []


def test_signatures_with_macros():
    assert changes("NETSUM_INLINE struct a f(int b) { return b < 3; }", "relational") == [
        "NETSUM_INLINE struct a f(int b) { return b <= 3; }"
    ]


def test_constants_of_the_compiler_are_not_switched():
    mutants = operators.mutants_of("a.cc", b"constexpr int a = 3;\nint b = 3;\n")
    assert [(mutant.first_line, mutant.switchable) for mutant in mutants] == [(1, False)] * 2 + [(2, True)] * 2


PROGRAM = b"""
#include <cstdio>
constexpr int add(int a, int b) { return a + b; }
int calls;
int f(int a, int b) {
  if (a < b && b != 5)
    ++calls;
  else if (!a)
    calls += 2;
  for (int i = 0; i < a; ++i) {
    if (i == 3) break;
    b -= add(i,
             // the lines of an expression
             2);
  }
  return a > b ? a : b * 2;
}
int main() {
  for (int a = 0; a < 6; ++a) std::printf("%d %d ", f(a, a * 2 - 3), f(2, a));
  std::printf("%d %d", f(1, 9), calls);
}
int unused(int a) { return a + 1; }
"""


def run_program(folder, name, text, **environment):
    source = folder / f"{name}.cc"
    source.write_bytes(text)
    subprocess.run(["g++", "-std=c++20", f"-I{FOLDER}", source, "-o", folder / name], check=True, timeout=120)
    return lambda **more: (
        subprocess.run(
            [folder / name], env={**os.environ, **environment, **more}, capture_output=True, check=True, timeout=60
        ).stdout
    )


def test_a_switched_program_does_what_each_mutant_does_alone(tmp_path):
    mutants = [
        mutant
        for mutant in operators.mutants_of("a.cc", PROGRAM)
        # The loops of the others do not end.
        if not (mutant.operator == "arithmetic" and b"++" in PROGRAM[mutant.start : mutant.end])
    ]
    text, _ = operators.switched(PROGRAM, mutants)
    switched = run_program(tmp_path, "all", b'#include "switch.h"\n' + text)
    assert {mutant.operator for mutant in mutants} == set(operators.OPERATORS)
    assert switched() == run_program(tmp_path, "none", PROGRAM)()
    outputs = set()
    for mutant in mutants[::3]:
        alone = run_program(tmp_path, "alone", operators.changed(PROGRAM, mutant))()
        assert switched(NETSUM_MUTANT=str(mutant.number)) == alone, mutant
        outputs.add(alone)
    assert len(outputs) > 5


def test_a_switched_program_notes_what_it_reaches(tmp_path):
    mutants = operators.mutants_of("a.cc", PROGRAM)
    text, _ = operators.switched(PROGRAM, mutants)
    switched = run_program(tmp_path, "all", b'#include "switch.h"\n' + text)
    reached = tmp_path / "reached"
    reached.write_bytes(bytes(1 << 16))
    switched(NETSUM_REACHED=str(reached))
    notes = reached.read_bytes()
    last = len(PROGRAM.decode().splitlines())
    assert {mutant.number for mutant in mutants if not notes[mutant.number]} == {
        mutant.number for mutant in mutants if mutant.first_line == last
    }


def test_places_of_a_switched_program():
    source = b"int f(int a) { return a + (a < 2); }"
    mutants = operators.mutants_of("a.cc", source)
    text, places = operators.switched(source, mutants)
    assert text.count(b"\n") == source.count(b"\n")
    for start, end, mutant in places:
        assert f"NETSUM_MUTANT({mutant.number})".encode() in text[start:end] or text[start:end] in (b"))", b" }")
