#!/usr/bin/env bash
# scripts/test.sh PRESET [JOBS]: builds, runs every test and ends with one line of counts.
# release also tests the Python package and the formatting; asan and tsan run the C++ tests alone.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
jobs=${2:-$(nproc)}
started=$SECONDS

step() { echo; echo "== $* ($((SECONDS - started)) s)"; }

step "build ($preset)"
scripts/build.sh "$preset" "$jobs"

results="$PWD/build/$preset/test-results"
rm -rf "$results"
mkdir -p "$results/gtest"

# A sanitizer's finding must end the test, and say where.
export ASAN_OPTIONS=halt_on_error=1:detect_leaks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# Debian's gRPC is not instrumented; see the suppressions.
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:ignore_noninstrumented_modules=1:suppressions=$PWD/tests/tsan.supp"

step "C++ tests, command, installation (ctest)"
# A failure shows in the counts at the end; the other tests still run.
GTEST_OUTPUT="xml:$results/gtest/" \
  ctest --preset "$preset" -j "$jobs" --output-junit "$results/ctest.xml" || true

if [ "$preset" = release ]; then
  step "Python package"
  scripts/install_wheel.sh
  step "PyTorch and demo tests (pytest)"
  .venv/bin/python -m pytest -q tests/torch examples/demo bench/rack tests/chaos --junitxml "$results/pytest.xml" || true
  step "formatting"
  scripts/lint.sh --format --junit "$results/format.xml" || true
fi

step "done"
python3 scripts/summarize_tests.py "$results"
