#!/usr/bin/env bash
# What launch/tpu_vm.sh has each worker of a pod do, over ssh.
#
#   worker.sh setup [BUCKET]     make the tree that this file lies in the worker's code,
#                                install it, mount the bucket at /mnt/bucket
#   worker.sh state              print `running PID` or `idle`
#   worker.sh start [NAME=VALUE...] -- ENTRY_POINT [ARGUMENTS]
#   worker.sh stop SECONDS       SIGTERM, then wait so long for the job to end
#   worker.sh log LINES [--follow] [--named]
#
# All of it lies in ~/evoharness_jax: code/, venv/ and job/, where every start leaves a
# log of its own and `log` is the last one.
set -euo pipefail

home=$HOME/evoharness_jax
lock=$home/job/lock
mount=/mnt/bucket

say() { echo "$(hostname): $*"; }
fail() { say "$@" >&2; exit 1; }

# The job holds the lock as long as it lives, so a reboot or a kill frees it.
idle() { mkdir -p "$home/job" && flock --nonblock "$lock" true; }

state() {
  if idle; then say idle; else say "running $(cat "$home/job/pid")"; fi
}

setup() { # [BUCKET]
  local tree tool missing=()
  idle || fail "a job is running, its code stays as it is"
  tree=$(cd "${BASH_SOURCE[0]%/*}/.." && pwd)
  if [[ $tree != "$home/code" ]]; then
    rm -rf "$home/code"
    mv "$tree" "$home/code"
  fi
  # TextWorld's planner is compiled when it is installed.
  for tool in g++ make cmake; do
    command -v "$tool" >/dev/null || missing+=("$tool")
  done
  if ((${#missing[@]})); then packages "${missing[@]}"; fi
  # The machine's own Python may be older than what setup.py asks for.
  if [[ ! -x $home/uv/uv ]]; then
    curl -LsSf https://astral.sh/uv/install.sh | env UV_UNMANAGED_INSTALL="$home/uv" sh
  fi
  [[ -x $home/venv/bin/python ]] || "$home/uv/uv" venv --python 3.12 "$home/venv"
  "$home/uv/uv" pip install --python "$home/venv/bin/python" \
    --editable "$home/code[tpu]"
  if (($#)); then mount_bucket "$1"; fi
  say "ready"
}

packages() { # NAME... : a young machine may still be busy with its own updates
  local apt=(sudo DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600)
  "${apt[@]}" update -qq
  "${apt[@]}" install -y -qq "$@"
}

mount_bucket() { # BUCKET
  local found source=https://packages.cloud.google.com/apt
  local key=/usr/share/keyrings/cloud.google.asc
  if ! command -v gcsfuse >/dev/null; then
    curl -sSf "$source/doc/apt-key.gpg" | sudo tee "$key" >/dev/null
    echo "deb [signed-by=$key] $source gcsfuse-$(lsb_release -c -s) main" |
      sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
    packages gcsfuse
  fi
  if mountpoint -q "$mount"; then
    found=$(findmnt -n -o SOURCE "$mount")
    [[ $found == "$1" ]] || fail "$mount already holds $found, not $1"
    return
  fi
  sudo mkdir -p "$mount"
  sudo chown "$(id -u):$(id -g)" "$mount"
  # A checkpoint becomes visible by the renaming of a folder. Buckets without a
  # hierarchical namespace refuse that unless a limit is named.
  gcsfuse --implicit-dirs --rename-dir-limit=200000 "$1" "$mount"
}

start() { # [NAME=VALUE...] -- ENTRY_POINT [ARGUMENTS]
  local variables=() log
  while [[ $1 != -- ]]; do variables+=("$1"); shift; done
  shift
  [[ -x $home/venv/bin/python ]] || fail "nothing is installed here: run setup first"
  mkdir -p "$home/job"
  exec 9>"$lock"
  flock --nonblock 9 || fail "a job is running: $(cat "$home/job/pid")"
  log=$home/job/$(date -u +%Y%m%dT%H%M%SZ)-$1.log
  # A session of its own, and nothing of the terminal: a lost connection does not
  # reach it. It inherits the lock.
  cd "$home/code"
  # shellcheck disable=SC2016  # for the inner shell
  env ${variables[@]+"${variables[@]}"} setsid nohup \
    bash -c 'echo $$ >"$0"; exec "$@"' "$home/job/pid" \
    "$home/venv/bin/python" -u -m "evoharness_jax.$1" "${@:2}" \
    </dev/null >"$log" 2>&1 &
  exec 9>&-
  ln -sfn "$log" "$home/job/log"
  sleep 3  # long enough for what cannot even start
  if idle; then
    tail -n 20 "$log" >&2
    fail "it ended at once: $log"
  fi
  say "started $(cat "$home/job/pid"), log $log"
}

stop() { # SECONDS
  local second
  if idle; then say idle; return; fi
  kill -TERM "$(cat "$home/job/pid")" 2>/dev/null ||
    fail "the job's process is gone, but something that it started holds $lock"
  for ((second = 0; second < $1; second++)); do
    sleep 1
    if idle; then say "ended"; return; fi
  done
  if (($1)); then fail "still running $1 s after SIGTERM; its log says why"; fi
  say "asked to stop"
}

log() { # LINES [--follow] [--named]
  local word tail=(tail -n "$1") named=false
  shift
  for word in "$@"; do
    case $word in
      --follow) tail+=(-F) ;;
      --named) named=true ;;
    esac
  done
  [[ -e $home/job/log ]] || fail "no job has been started here"
  if $named; then
    "${tail[@]}" "$home/job/log" | sed -u "s/^/$(hostname): /"
  else
    "${tail[@]}" "$home/job/log"
  fi
}

case ${1:-} in
  setup | state | start | stop | log) "$@" ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
