#!/usr/bin/env bash
# scripts/test.sh WHAT [JOBS]: builds, runs tests and ends with one line of counts.
#   all     every test but the soak tests, in the release build (make test)
#   check   what is told in three minutes: unit, conformance and short simulation tests, layout, includes (make check)
#   soak    the tests that are too long for `all`, or those whose names match NETSUM_SOAK_ONLY, a regular expression (make soak)
#   asan    the tests of C++ and of the command under AddressSanitizer and UBSan; tsan: under ThreadSanitizer
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
jobs=${2:-$(nproc)}
started=$SECONDS
preset=release
ctest_which=(--label-exclude '^soak$')
# What pytest runs (scripts/run_pytest.py), by the label that its processor seconds are counted under.
python_tests=(torch=tests/torch racks=tests/chaos racks=tests/install racks=tests/deploy racks=tests/tutorial racks=bench
              command=scripts command=tests/mutation command=tests/cli)
# Some of them measure rates of links.
link_tests=(links=tests/cli/doctor_rates_test.py links=tests/cli/rack_spare_test.py links=tests/cli/mpi_test.py)
soak_tests=() soak_torch_tests=()
at_a_time=$((3 * jobs))  # most files wait for more than half of their time: for deadlines, and for processes to start
case "$what" in
  all) ;;
  check)
    ctest_which=(--label-regex '^(unit|conformance|sim|lint)$' --label-exclude '^soak$')
    python_tests=(command=scripts) link_tests=()
    export NETSUM_SIM_RUNS=${NETSUM_SIM_RUNS:-500} ;;
  soak)
    ctest_which=(--label-regex '^soak$')
    link_tests=()
    soak_only=${NETSUM_SOAK_ONLY:-.}
    export NETSUM_SOAK=1 ;;
  asan | tsan)
    preset=$what
    python_tests=(command=tests/cli) link_tests=() at_a_time=$jobs ;;
  *)
    sed -n '2,7p' "$0" >&2
    exit 2 ;;
esac

step() { echo; echo "== $* ($((SECONDS - started)) s)"; }

step "build ($preset)"
scripts/build.sh "$preset" "$jobs"

results="$PWD/build/$preset/test-results"
rm -rf "$results"
mkdir -p "$results/gtest"

# run NAME COMMAND...: a failure shows in the counts at the end; the other tests still run.
runners=()
run() {
  local status=0
  runners+=("$1")
  scripts/cpu_seconds.sh "$results/$1.cpu" "${@:2}" || status=$?
  echo "$status" > "$results/$1.exit"
}

# Other simulations every time, but in .ci/run; a failing one prints how to run it again.
export NETSUM_SIM_SEED=${NETSUM_SIM_SEED:-$(date +%s)00000}
echo "simulations start from NETSUM_SIM_SEED=$NETSUM_SIM_SEED; set it to run the same ones again"
export NETSUM_BUILD="$PWD/build/$preset"
export PYTHONDONTWRITEBYTECODE=1
# A sanitizer's finding must end the test, and say where.
export ASAN_OPTIONS=halt_on_error=1:detect_leaks=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
# Debian's gRPC is not instrumented; see the suppressions.
export TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:ignore_noninstrumented_modules=1:suppressions=$PWD/tests/tsan.supp"

pytest=(.venv/bin/python -m pytest -q -p no:cacheprovider)
# It names the files that it has run. It fails itself only if it could not run them: then there is no pytest.exit.
run_files=(.venv/bin/python scripts/run_pytest.py "$results")
# Writes the names of all soak tests to soak-tests.txt, and chooses those that match.
choose_soak_tests() {
  local names="$results/soak-tests.txt" id name
  ctest --preset "$preset" "${ctest_which[@]}" -N | sed -n 's/^ *Test *#[0-9]*: //p' > "$names"
  if grep -Eq -- "$soak_only" "$names"; then ctest_which+=(--tests-regex "$soak_only"); else ctest_which=(); fi
  local status=0 folders=("${python_tests[@]#*=}")
  collect() { "${pytest[@]}" -m soak --collect-only "$@" >> "$results/collected.txt" || status=$?; }
  # Files of tests/torch, the first one, and of other folders have the same names, which one pytest refuses.
  collect "${folders[0]}"
  collect "${folders[@]:1}"
  if [ "$status" -ne 0 ]; then
    cat "$results/collected.txt" >&2
    echo "test.sh: pytest cannot collect the soak tests (exit status $status): see above" >&2
    exit 1
  fi
  python_tests=()
  while read -r id; do
    # As in the JUnit file: tests/a_test.py::Class::name[x] is tests.a_test.Class.name[x].
    name=${id%%.py::*}
    name=${name//\//.}.${id#*.py::}
    name=${name/::/.}
    echo "$name" >> "$names"
    if ! [[ $name =~ $soak_only ]]; then continue; fi
    if [[ $id == tests/torch/* ]]; then soak_torch_tests+=("$id"); else soak_tests+=("$id"); fi
  done < <(grep '::' "$results/collected.txt")
}
wheel=
if [ "$what" = soak ]; then
  scripts/install_wheel.sh
  choose_soak_tests
elif [[ ${python_tests[*]} == *torch=* ]]; then
  # Beside the rates of links, whose tests mostly wait, at the lowest priority; in a session of its own, to be ended with all its processes.
  setsid nice -n 19 scripts/install_wheel.sh &
  wheel=$!
  trap 'kill -- "-$wheel"' EXIT
fi
if [ ${#link_tests[@]} -gt 0 ]; then
  step "rates of links (pytest), beside the Python package"
  "${run_files[@]}" --jobs "${#link_tests[@]}" --marks "measures and not soak" "${link_tests[@]}" || runners+=(pytest)
fi
if [ -n "$wheel" ]; then
  wait "$wheel"
  trap - EXIT
fi
if [ ${#python_tests[@]} -gt 0 ]; then
  step "Python package, command, racks (pytest), beside ctest"
  "${run_files[@]}" --jobs "$((jobs + 1))" --after "$results/ctest.exit" --then "$at_a_time" --marks "not measures and not soak" \
    "${python_tests[@]}" > "$results/pytest.log" 2>&1 &
  trap 'kill $!; wait $!' EXIT
fi
if [ ${#ctest_which[@]} -gt 0 ]; then
  step "C++ tests, fuzzers, models, installation, layout (ctest)"
  ctest --preset "$preset" "${ctest_which[@]}" --show-only=json-v1 > "$results/ctest.json"
  # Most tests wait for deadlines and other threads; one that keeps a core busy counts as three (netsum_test BUSY).
  run ctest ctest --preset "$preset" "${ctest_which[@]}" -j "$((3 * jobs))" --output-junit "$results/ctest.xml"
fi
if [ ${#python_tests[@]} -gt 0 ]; then
  step "Python (pytest)"
  tail -n +1 --pid=$! -f "$results/pytest.log"
  wait $! || runners+=(pytest)
  trap - EXIT
fi
if [ -e "$results/pytest.runners" ]; then mapfile -t -O ${#runners[@]} runners < "$results/pytest.runners"; fi
if [ ${#soak_torch_tests[@]} -gt 0 ]; then
  step "soak tests of PyTorch (pytest)"
  run torch "${pytest[@]}" "${soak_torch_tests[@]}" --junitxml "$results/torch.xml"
fi
if [ ${#soak_tests[@]} -gt 0 ]; then
  step "other soak tests in Python (pytest)"
  run package "${pytest[@]}" "${soak_tests[@]}" --junitxml "$results/package.xml"
fi

step "done"
if [ ${#runners[@]} -eq 0 ]; then
  echo "test.sh: no soak test has a name that matches '$soak_only'; $results/soak-tests.txt lists them" >&2
  exit 1
fi
budgets=()
if [ "$what" = all ]; then budgets=(--budgets scripts/test_budgets.txt); fi
python3 scripts/summarize_tests.py "${budgets[@]}" "$results" "${runners[@]}"
