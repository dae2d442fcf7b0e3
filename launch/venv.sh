#!/usr/bin/env bash
# Sourced by the other scripts: the environment that they run in.
#
#   stop LINE...        say why, and exit
#   install EXTRAS...   have .[EXTRAS] installed, and name the interpreter in $python; of
#                       several, one that is there will do, else the first is installed
#
# It is the active virtual environment, else .venv here, which is made. The first install
# takes minutes (TextWorld's planner is compiled); it is skipped while setup.py stays the
# same. PYTHON names the interpreter (python3).
set -euo pipefail

stop() { printf '%s\n' "$@" >&2; exit 1; }

install() {
  local tool missing=() minor stamp source installed extras
  for tool in g++ make cmake; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  if ((${#missing[@]})); then
    local sudo=; ((EUID == 0)) || sudo="sudo "
    stop "TextWorld's planner is compiled when it is installed; missing: ${missing[*]}" \
      "On Debian or Ubuntu: ${sudo}apt-get install -y ${missing[*]}"
  fi
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
  # The stamp names what the last install was made from.
  stamp=$("$python" -c 'import sys; print(sys.prefix)')/.evoharness_jax
  source="$PWD $({ cat setup.py; grep __version__ evoharness_jax/__init__.py; } | cksum)"
  installed=$(cat "$stamp" 2>/dev/null || true)
  for extras in "$@"; do
    if [[ $installed == "$source $extras" ]]; then return; fi
  done
  echo "Installing .[$1] for $("$python" -V): minutes the first time"
  rm -f "$stamp"
  "$python" -m pip install --quiet --editable ".[$1]"
  echo "$source $1" >"$stamp"
  echo "Installed in $SECONDS s"
}
