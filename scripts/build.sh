#!/usr/bin/env bash
# scripts/build.sh PRESET [JOBS]: configures (when needed) and builds one preset of CMakePresets.json.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
jobs=${2:-$(nproc)}
mkdir -p build
log="build/configure-$preset.log"
if ! cmake --preset "$preset" > "$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
cmake --build --preset "$preset" -j "$jobs"
