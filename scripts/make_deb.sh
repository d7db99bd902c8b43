#!/usr/bin/env bash
# scripts/make_deb.sh BUILD FOLDER: makes the Debian packages of a build, and puts them into a folder.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath "$1") folder=$2
log="$build/cpack.log"
rm -rf "$build/deb"
if ! cpack --config "$build/CPackConfig.cmake" -B "$build/deb" > "$log" 2>&1; then
  cat "$log" >&2
  exit 1
fi
mkdir -p "$folder"
rm -f "$folder"/*.deb
mv "$build"/deb/*.deb "$folder"
rm -rf "$build/deb"
ls "$folder"/*.deb
