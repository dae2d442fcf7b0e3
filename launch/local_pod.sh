#!/usr/bin/env bash
# A pod on one machine: N processes with virtual CPU devices, which work as one job.
#
#   bash launch/local_pod.sh N [--devices D] ENTRY --config=FILE --workdir=DIR ...
#
#   N           processes
#   --devices   virtual devices of each (1)
#   ENTRY       train_sft or train_rl, with its own arguments
#
# Lines of process 1 and above begin with their number. What stops one process stops
# all, and is said; Ctrl-C and SIGTERM ask all of them to save and end. PYTHON names the
# interpreter (.venv's, or python3).
set -euo pipefail

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }
stop() { echo "$1; see --help" >&2; exit 2; }

case ${1:-} in -h | --help | "") usage; exit ;; esac
count=$1 devices=1
[[ $count =~ ^[1-9][0-9]*$ ]] || stop "N must be a number of processes, not $count"
shift
if [[ ${1:-} == --devices ]]; then
  devices=${2:-}
  [[ $devices =~ ^[1-9][0-9]*$ ]] || stop "--devices must be a number, not '$devices'"
  shift 2
fi
entry=${1:-}
[[ $entry =~ ^[a-z_]+$ ]] || stop "ENTRY must be train_sft or train_rl, not '$entry'"
shift
here=${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"}
python=${PYTHON:-}
if [[ -z $python ]]; then
  python=${here}../.venv/bin/python
  [[ -x $python ]] || python=python3
fi

export JAX_PLATFORMS=cpu PYTHONUNBUFFERED=1
export XLA_FLAGS="${XLA_FLAGS:-} --xla_force_host_platform_device_count=$devices"
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
one() { # PROCESS ARGUMENTS
  exec "$python" -m "evoharness_jax.$entry" "${@:2}" \
    --config.distributed.init=explicit --config.distributed.coordinator="localhost:$port" \
    --config.distributed.processes="$count" --config.distributed.process="$1"
}

pids=()
trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' INT TERM
one 0 "$@" &
pids+=($!)
for ((i = 1; i < count; i++)); do
  one "$i" "$@" > >(sed "s/^/[$i] /") 2>&1 &
  pids+=($!)
done

code=0
for i in "${!pids[@]}"; do
  while true; do
    result=0
    wait "${pids[$i]}" || result=$?
    # A signal to this script ends `wait`, not what it waits for.
    kill -0 "${pids[$i]}" 2>/dev/null || break
  done
  if ((result)); then
    how="ended with $result"
    if ((result > 128)); then how="was ended by signal $((result - 128))"; fi
    echo "process $i $how" >&2
    code=1
  fi
done
exit $code
