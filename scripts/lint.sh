#!/usr/bin/env bash
# Formatting, include directions, and what ruff and clang-tidy find.
#   scripts/lint.sh [--changed]             all of them; clang-tidy on files that differ from the main branch
#   scripts/lint.sh --all                   all of them; clang-tidy on every source of the release build
#   scripts/lint.sh --format                formatting, and ruff
#   scripts/lint.sh --fix-format            rewrites the files
set -euo pipefail
cd "$(dirname "$0")/.."
build=build/release
if ! ruff=$(command -v .venv/bin/ruff || command -v ruff); then
  echo "lint: there is no .venv/bin/ruff; run scripts/bootstrap.sh first" >&2
  exit 1
fi

own_sources() { git ls-files -co --exclude-standard '*.cc' '*.h' '*.c' | while read -r file; do
  if [ -f "$file" ]; then echo "$file"; fi
done; }

# C++: files that have not passed before, by the sums of the file and of the style.
check_format() {
  local passed=build/formatted.txt style
  style=$(sha256sum < .clang-format)
  mkdir -p build
  touch "$passed"
  own_sources | xargs -r sha256sum | sed "s/^/${style:0:16} /" | LC_ALL=C sort > "$passed.new"
  LC_ALL=C comm -23 "$passed.new" "$passed" | sed 's/^[^ ]* [^ ]*  //' \
    | xargs -r -P "$(nproc)" -n 40 clang-format-14 --dry-run -Werror
  mv "$passed.new" "$passed"
  "$ruff" format --quiet --diff
  "$ruff" check --quiet --output-format concise
}

# What a change touches: commits since the main branch, and what is not committed.
changed_sources() {
  local base
  base=$(git merge-base HEAD origin/main 2>/dev/null || git rev-parse HEAD~1 2>/dev/null || git rev-parse HEAD)
  { git diff --name-only "$base"; git ls-files -o --exclude-standard; } | sort -u
}

# Only what the release build compiles: clang-tidy needs its flags. For a source that is compiled together with others, it takes
# those of a source near it.
compiled() { python3 -c '
import json, os, re, sys
root = os.getcwd() + "/"
known = {entry["file"].removeprefix(root) for entry in json.load(open(sys.argv[1]))}
for name in [name for name in known if name.startswith("build/") and os.path.exists(name)]:
    known.update(re.findall(r"^#include \"([^\"]*\.cc)\"$", open(name).read(), re.M))
wanted = known if sys.argv[2] == "--all" else known & {line.strip() for line in sys.stdin}
print("\n".join(sorted(name for name in wanted if not name.startswith("build/"))))
' "$build/compile_commands.json" "$1"; }

tidy() {
  local -a files
  mapfile -t files < <(changed_sources | compiled "$1" | sed '/^$/d')
  echo "clang-tidy: ${#files[@]} files"
  [ ${#files[@]} -eq 0 ] && return
  printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p "$build" --quiet
}

case "${1:---changed}" in
  --format)
    check_format ;;
  --fix-format)
    own_sources | xargs -r clang-format-14 -i
    "$ruff" check --quiet --fix --exit-zero
    "$ruff" format --quiet ;;
  --changed | --all)
    check_format
    python3 scripts/check_includes.py
    python3 scripts/check_docs.py
    python3 scripts/check_budget.py
    python3 scripts/check_contracts.py
    if [ ! -f "$build/compile_commands.json" ]; then
      echo "lint: clang-tidy needs $build/compile_commands.json; run make build first" >&2
      exit 1
    fi
    tidy "${1:---changed}"
    echo "lint: in order" ;;
  *)
    sed -n '2,6p' "$0" >&2
    exit 2 ;;
esac
