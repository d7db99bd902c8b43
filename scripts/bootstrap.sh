#!/usr/bin/env bash
# Installs what building, testing and the demo need: Debian packages, and Python packages in .venv.
# Safe to run again: when nothing has changed it only compares a stamp and ends at once.
#
#   scripts/bootstrap.sh            everything
#   scripts/bootstrap.sh --demo     what the demo and the Python package need: the lists up to `# ===`
#   scripts/bootstrap.sh --system   Debian packages only
#   scripts/bootstrap.sh --docs     what the site of the documents needs, and nothing else
#   scripts/bootstrap.sh --kernel-test   Debian packages of `make test-kernel` only
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.deps-stamp
python_list=scripts/requirements.txt
package_list=scripts/packages.txt
case "${1:-}" in
  --kernel-test) package_list=tests/kernel/packages.txt ;;
  --docs)
    package_list=docs/site/packages.txt
    python_list=docs/site/requirements.txt ;;
  --demo)
    mkdir -p build
    for list in "$package_list" "$python_list"; do sed '/^# ===/,$d' "$list" > "build/demo-${list##*/}"; done
    package_list=build/demo-packages.txt
    python_list=build/demo-requirements.txt ;;
esac
# One package per line; comments start with '#'.
mapfile -t packages < <(sed -e 's/#.*//' -e 's/[[:space:]]*$//' -e '/^$/d' "$package_list")

fingerprint() {
  { cat "$package_list" "$python_list"; uname -m; python3 --version 2>&1 || true; } | sha256sum | cut -d' ' -f1
}

missing_packages() {
  local installed
  # dpkg-query fails when it does not know one of the names; what it knows it prints all the same.
  installed=$(dpkg-query -W -f='${binary:Package} ${db:Status-Status}\n' "${packages[@]}" 2>/dev/null || true)
  installed=$(sed -n 's/^\([^: ]*\).* installed$/\1/p' <<< "$installed" | sort -u)
  comm -23 <(printf '%s\n' "${packages[@]}" | sort -u) <(echo "$installed")
}

# apt, as root or through sudo; otherwise says what an administrator has to type.
install_packages() {
  local -a missing as_root=()
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -eq 0 ] && return
  local command="apt-get install -y --no-install-recommends ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      echo "bootstrap: ${#missing[@]} Debian packages are missing, and installing them needs root. As root, run:" >&2
      echo "  apt-get update && $command" >&2
      exit 1
    fi
    as_root=(sudo)
  fi
  echo "bootstrap: installing ${#missing[@]} Debian packages"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
}

install_python() {
  # A folder without pip is what an interrupted first run leaves.
  if [ ! -x .venv/bin/pip ]; then
    rm -rf .venv
    python3 -m venv .venv
  fi
  echo "bootstrap: installing Python packages in .venv"
  .venv/bin/pip install --quiet --disable-pip-version-check -r "$python_list"
  # mpi4py's tests are in its source package only.
  local mpi4py
  if ! mpi4py=$(grep '^mpi4py==' "$python_list"); then return; fi
  .venv/bin/pip download --quiet --disable-pip-version-check --no-deps --no-binary mpi4py --dest .venv/sources "$mpi4py"
}

if ! command -v dpkg-query >/dev/null; then
  echo "bootstrap: this is not a Debian system; install the equivalents of scripts/packages.txt by hand" >&2
  exit 1
fi
install_packages
case "${1:-}" in --system | --kernel-test) exit 0 ;; esac
if [ -x .venv/bin/pip ] && grep -qs "$(fingerprint)" "$stamp"; then
  exit 0
fi
install_python
# Last, so that a run cut short is done again. Lines are those of the lists that are installed.
fingerprint >> "$stamp"
