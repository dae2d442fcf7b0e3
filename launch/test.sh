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

stop() { printf '%s\n' "$@" >&2; exit 1; }

light=false
case ${1:-} in
  --light) light=true; shift ;;
  -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
esac

missing=()
for tool in g++ make cmake; do
  command -v "$tool" >/dev/null || missing+=("$tool")
done
if ((${#missing[@]})); then
  sudo=; ((EUID == 0)) || sudo="sudo "
  stop "TextWorld's planner is compiled when it is installed; missing: ${missing[*]}" \
    "On Debian or Ubuntu: ${sudo}apt-get install -y ${missing[*]}"
fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
command -v "$python" >/dev/null || stop "Python 3.11 or newer is needed: no $python"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
  stop "Python 3.11 or newer is needed: $python is $("$python" -V). Name one in PYTHON."
if "$python" -c 'import sys; sys.exit(sys.prefix != sys.base_prefix)'; then
  .venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv .venv ||
    stop "No virtual environment could be made (Debian or Ubuntu: python3-venv)"
  minor='import sys; print("Python %d.%d" % sys.version_info[:2])'
  [[ $(.venv/bin/python -c "$minor") == $("$python" -c "$minor") ]] ||
    stop ".venv has $(.venv/bin/python -V), $python is $("$python" -V): remove .venv"
  python=$PWD/.venv/bin/python
fi

# The stamp names what the last install was made from; all extras serve light too.
all=dev,aot,parity
extras=$all marks="not slow"
if $light; then extras=dev marks="not slow and not parity and not aot"; fi
stamp=$("$python" -c 'import sys; print(sys.prefix)')/.evoharness_jax
source="$PWD $({ cat setup.py; grep __version__ evoharness_jax/__init__.py; } | cksum)"
installed=$(cat "$stamp" 2>/dev/null || true)
if [[ $installed != "$source $extras" && $installed != "$source $all" ]]; then
  echo "Installing .[$extras] for $("$python" -V): minutes the first time"
  rm -f "$stamp"
  "$python" -m pip install --quiet --editable ".[$extras]"
  echo "$source $extras" >"$stamp"
  echo "Installed in $SECONDS s"
fi

"$python" -m ruff check .
"$python" -m ruff format --check .
exec "$python" -m pytest -rs --no-fold-skipped -m "$marks" "$@"
