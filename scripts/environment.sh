#!/bin/sh
# Build .venv unless it is there already: environment.sh run|dev [PYTHON]
set -eu
cd "$(dirname "$0")/.."
flavour=$1
wanted=${2:-}

# The usual case, in a few hundredths of a second: the environment is there and up to date.
if [ -z "$wanted" ] && [ -x .venv/bin/python ] &&
  .venv/bin/python scripts/environment.py --check "$flavour" 2>/dev/null; then
  exit 0
fi

usable() {
  "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
    >/dev/null 2>&1 </dev/null
}

for candidate in ${wanted:-python3.13 python3.12 python3.11 python3 python}; do
  if usable "$candidate"; then
    exec "$candidate" scripts/environment.py "$flavour"
  fi
done
echo "no usable Python: 3.11, 3.12 or 3.13 with the venv module is needed (tried: ${wanted:-python3.13 python3.12 python3.11 python3 python}); name one with make PYTHON=..." >&2
exit 1
