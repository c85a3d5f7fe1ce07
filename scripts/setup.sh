#!/usr/bin/env bash
# Installs what a make target needs and this machine lacks (Debian, Ubuntu), and says what it does. Quick when nothing is missing.
#   scripts/setup.sh build          compiler, CMake, Ninja, the command's libraries
#   scripts/setup.sh test           the above, test libraries and a private Python environment in .venv
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build libcli11-dev nlohmann-json3-dev libfmt-dev)
if [ "${1:-build}" = test ]; then
  packages+=(libgtest-dev librapidcheck-dev binutils python3 python3-dev python3-venv)
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q '^install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  if ! command -v apt-get >/dev/null; then
    echo "octavo: error: missing: ${missing[*]} (Debian names); install them and run again" >&2
    exit 1
  fi
  as_root=(env)
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "octavo: error: missing: ${missing[*]}; install them as root and run again" >&2; exit 1; }
    as_root=(sudo env)
  fi
  echo "Installing with apt: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

if [ "${1:-build}" = test ]; then
  wanted="numpy>=1.24 ml_dtypes>=0.3 pytest>=7 nanobind>=2.4 scikit-build-core>=0.10"
  if [ "$(cat .venv/octavo-requirements 2>/dev/null)" != "$wanted" ]; then
    echo "Setting up a Python environment in .venv: $wanted"
    .venv/bin/python -m pip --version >/dev/null 2>&1 || /usr/bin/env python3 -m venv --clear .venv
    # shellcheck disable=SC2086 # one word for each requirement
    .venv/bin/python -m pip install --quiet --disable-pip-version-check $wanted
    echo "$wanted" >.venv/octavo-requirements
  fi
fi
