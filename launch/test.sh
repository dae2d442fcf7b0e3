#!/usr/bin/env bash
# Install evoharness_jax with what its tests need, then run all that this machine can.
#
#   bash launch/test.sh [--light] [PYTEST ARGUMENTS]
#
#   --light   leave torch and libtpu out, and the tests that need them
#
# It installs into the active virtual environment, else into .venv here, which it
# makes. The first install takes minutes (TextWorld's planner is compiled); the next
# run skips it while setup.py stays the same. PYTHON names the interpreter (python3),
# ALFWORLD_DATA the games; tests that the machine cannot run are listed with the
# reason. `-m slow` at the end runs the long ones instead, `-k NAME` a part.
set -euo pipefail

light=false
case ${1:-} in
  --light) light=true; shift ;;
  -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
esac

cd "${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"}./.."
source launch/venv.sh
if $light; then
  marks="not slow and not parity and not aot"
  install dev dev,aot,parity
else
  marks="not slow"
  install dev,aot,parity
fi

"$python" -m ruff check .
"$python" -m ruff format --check .
exec "$python" -m pytest -rs --no-fold-skipped -m "$marks" "$@"
