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
# Runs of pytest. The tests of the package fork their ranks, which is not safe in a process with threads, such as
# the workers of pytest-xdist: they are several processes of pytest instead, which take about as long as each other. The files of
# `failure_tests` and `error_tests` mostly wait, for deadlines and for processes to start.
command_tests=(-n "$((5 * jobs / 2))" scripts tests/mutation tests/cli)  # more than half of their time they wait
link_tests=(-n "$jobs" tests/cli)  # those that are marked as measuring rates of links
torch_tests=(tests/torch)
training_tests=(tests/torch/test_{advice,compress,compress_gather,control,local_updates,one_bit_adam,overlap,priority,training}.py)
sharded_tests=(tests/torch/test_{compress_sharded,gpu_check,hsdp,segments,sharded_training}.py)
suite_tests=(tests/torch/test_{accelerator,operations,pytorch_suite}.py)
failure_tests=(tests/torch/test_{compress_failures,exit,failures,interruption}.py)
error_tests=(tests/torch/test_{errors,store}.py)
rack_tests=(tests/chaos tests/install tests/deploy tests/tutorial bench)
soak_tests=()
case "$what" in
  all) ;;
  check)
    ctest_which=(--label-regex '^(unit|conformance|sim|lint)$' --label-exclude '^soak$')
    command_tests=(scripts) link_tests=()
    torch_tests=() rack_tests=()
    export NETSUM_SIM_RUNS=${NETSUM_SIM_RUNS:-500} ;;
  soak)
    ctest_which=(--label-regex '^soak$')
    command_tests=() link_tests=()
    soak_only=${NETSUM_SOAK_ONLY:-.}
    export NETSUM_SOAK=1 ;;
  asan | tsan)
    preset=$what
    command_tests=(-n "$jobs" tests/cli) link_tests=()
    torch_tests=() rack_tests=() ;;
  *)
    sed -n '2,7p' "$0" >&2
    exit 2 ;;
esac

step() { echo; echo "== $* ($((SECONDS - started)) s)"; }

step "build ($preset)"
scripts/build.sh "$preset" "$jobs"
if [ ${#torch_tests[@]} -gt 0 ]; then scripts/install_wheel.sh; fi

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

# run_beside NAME COMMAND...: the same in the background; its output is shown by wait_for_all, whole.
run_beside() {
  runners+=("$1")
  (
    trap - INT  # which the shell lets background processes ignore
    status=0
    begun=$SECONDS
    scripts/cpu_seconds.sh "$results/$1.cpu" "${@:2}" > "$results/$1.log" 2>&1 || status=$?
    echo "$1: $((SECONDS - begun)) s" >> "$results/$1.log"
    echo "$status" > "$results/$1.exit"
  ) &
  beside+=("$1")
}
beside=()
wait_for_all() {
  wait
  for name in "${beside[@]}"; do cat "$results/$name.log"; done
  beside=()
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
# run_pytest HOW NAME ARGUMENTS...: HOW is `run` or `run_beside`. The tests whose marks are as `which` says.
which="not soak"
run_pytest() {
  "$1" "$2" "${pytest[@]}" -m "$which" "${@:3}" --junitxml "$results/$2.xml"
}
# Writes the names of all soak tests to soak-tests.txt, and chooses those that match.
choose_soak_tests() {
  local names="$results/soak-tests.txt" id name
  ctest --preset "$preset" "${ctest_which[@]}" -N | sed -n 's/^ *Test *#[0-9]*: //p' > "$names"
  if grep -Eq -- "$soak_only" "$names"; then ctest_which+=(--tests-regex "$soak_only"); else ctest_which=(); fi
  local status=0
  "${pytest[@]}" -m soak --collect-only tests/cli "${torch_tests[@]}" "${rack_tests[@]}" > "$results/collected.txt" || status=$?
  if [ "$status" -ne 0 ]; then
    cat "$results/collected.txt" >&2
    echo "test.sh: pytest cannot collect the soak tests (exit status $status): see above" >&2
    exit 1
  fi
  torch_tests=() rack_tests=()
  while read -r id; do
    # As in the JUnit file: tests/a_test.py::Class::name[x] is tests.a_test.Class.name[x].
    name=${id%%.py::*}
    name=${name//\//.}.${id#*.py::}
    name=${name/::/.}
    echo "$name" >> "$names"
    if [[ $name =~ $soak_only ]]; then soak_tests+=("$id"); fi
  done < <(grep '::' "$results/collected.txt")
}
if [ "$what" = soak ]; then choose_soak_tests; fi

if [ ${#torch_tests[@]} -gt 0 ]; then
  # Beside ctest, whose tests compute more.
  run_pytest run_beside failures "${failure_tests[@]}"
fi
if [ ${#ctest_which[@]} -gt 0 ]; then
  step "C++ tests, fuzzers, models, installation, layout (ctest)"
  ctest --preset "$preset" "${ctest_which[@]}" --show-only=json-v1 > "$results/ctest.json"
  # Most tests wait for deadlines and other threads; one that keeps a core busy counts as three (netsum_test BUSY).
  run ctest ctest --preset "$preset" "${ctest_which[@]}" -j "$((3 * jobs))" --output-junit "$results/ctest.xml"
fi
wait_for_all
if [ ${#command_tests[@]} -gt 0 ]; then
  step "command and scripts (pytest)"
  if [ ${#link_tests[@]} -gt 0 ]; then
    which="measures and not soak" run_pytest run links "${link_tests[@]}"
    which="not measures and not soak"
  fi
  if [ ${#torch_tests[@]} -gt 0 ]; then which="not soak" run_pytest run_beside errors "${error_tests[@]}"; fi
  run_pytest run command "${command_tests[@]}"
  wait_for_all
  which="not soak"
fi
if [ ${#torch_tests[@]} -gt 0 ]; then
  step "Python package beside demo, benchmarks, chaos and installed packages (pytest)"
  elsewhere=("${training_tests[@]}" "${sharded_tests[@]}" "${suite_tests[@]}" "${failure_tests[@]}" "${error_tests[@]}")
  run_pytest run_beside torch "${torch_tests[@]}" "${elsewhere[@]/#/--ignore=}"
  run_pytest run_beside suite "${suite_tests[@]}"
  run_pytest run_beside training "${training_tests[@]}"
  run_pytest run_beside sharded "${sharded_tests[@]}"
  run_pytest run_beside racks "${rack_tests[@]}"
  wait_for_all
fi
if [ ${#soak_tests[@]} -gt 0 ]; then
  step "soak tests in Python (pytest)"
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
