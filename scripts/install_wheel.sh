#!/usr/bin/env bash
# Builds the Python package from this checkout and installs it into .venv; quick when nothing has changed.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build
log=build/wheel.log
echo "building the Python package (minutes the first time, seconds later; log: $log)"
# The compilers' names as CMake finds them for build/release: ccache then has their objects already.
export CC=${CC:-cc} CXX=${CXX:-c++}
# Isolation would fetch torch a second time; everything the build needs is in .venv already.
if ! .venv/bin/pip install --disable-pip-version-check --no-build-isolation --no-deps --force-reinstall . \
  > "$log" 2>&1; then
  tail -n 60 "$log" >&2
  echo "install_wheel: building the Python package failed; the whole log is $log" >&2
  exit 1
fi
# The accelerator of tests/torch/test_accelerator.py, which is not in the wheel.
if ! cmake --build build/wheel --target netsum_test_accelerator >> "$log" 2>&1; then
  tail -n 60 "$log" >&2
  echo "install_wheel: building the tests' accelerator failed; the whole log is $log" >&2
  exit 1
fi
