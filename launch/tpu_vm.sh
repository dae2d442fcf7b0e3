#!/usr/bin/env bash
# A TPU pod from your own machine: make it, install on it, run, watch, delete.
#
#   launch/tpu_vm.sh create --type=TYPE [--version=VERSION] [--spot] [--direct]
#   launch/tpu_vm.sh setup  [--git=URL [--ref=BRANCH]] [--bucket=BUCKET]
#   launch/tpu_vm.sh run    [--env=NAME=VALUE]... -- ENTRY_POINT --config=... --workdir=...
#   launch/tpu_vm.sh logs   [--worker=N|all] [--lines=100] [--no-follow]
#   launch/tpu_vm.sh stop   [--wait=600]
#   launch/tpu_vm.sh delete [--direct] [--yes]
#
# create   asks for the pod by a queued resource of the same name; --direct at once,
#          or not at all. --version is the image; without it, the one for TYPE.
# setup    copies HEAD of this repository, or URL, to every worker, installs .[tpu]
#          there, and mounts BUCKET at /mnt/bucket.
# run      starts collect, train_sft, train_rl or evaluate on every worker, and leaves
#          it running; refused while one runs. Adds --config.distributed.init=auto.
# logs     follows the log of worker 0, or of N, or of all.
# stop     sends SIGTERM to the job on every worker, which saves and ends, and waits so
#          many seconds for that.
# delete   deletes the pod and its disks, and asks before.
#
# Every command takes, as a flag or from the environment:
#   --name=NAME       TPU_NAME      of the pod
#   --zone=ZONE       TPU_ZONE      where it is
#   --project=ID      TPU_PROJECT   optional: gcloud's own setting
#   --type=TYPE       TPU_TYPE      accelerator type: v5litepod-16, v6e-16, v5p-16, ...
#   --version=IMAGE   TPU_VERSION   optional: the one for the type
#   --user=USER       TPU_USER      optional: who logs in; a team shares one
#   --bucket=BUCKET   TPU_BUCKET    optional, of setup
#   --dry-run                       print the commands, one a line, and do nothing
#
# Wrong usage exits with 2. Not yet run on a TPU: checked by --dry-run, and against a
# stand-in for gcloud that runs the workers' side on this machine.
set -euo pipefail

bad() { printf '%s\n' "$@" >&2; exit 2; }
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; }

quote() { # the words as one shell line
  local word option line=''
  for word in "$@"; do
    option=''
    if [[ $word =~ ^--[a-z-]+= ]]; then option=${BASH_REMATCH[0]}; fi
    word=${word#"$option"}
    line+=" $option"
    if [[ $word =~ ^[A-Za-z0-9_./:=@%+,-]+$ ]]; then
      line+=$word
    elif [[ $word == *[[:cntrl:]]* ]]; then
      line+=$(printf %q "$word")
    else
      line+="'${word//\'/\'\\\'\'}'"
    fi
  done
  echo "${line# }"
}
call() { if $dry; then quote "$@"; else "$@"; fi; }

command=${1:-}
case $command in
  create) takes="type version spot direct" ;;
  setup) takes="git ref bucket" ;;
  run) takes="env" ;;
  logs) takes="worker lines no-follow" ;;
  stop) takes="wait" ;;
  delete) takes="direct yes" ;;
  -h | --help) usage; exit ;;
  "") bad "name a command: create, setup, run, logs, stop or delete; see --help" ;;
  *) bad "unknown command: $command; see --help" ;;
esac
shift
# What the environment may name for another command is no mistake here.
takes=" $takes name zone project user dry-run "

declare -A given=(
  [name]=${TPU_NAME:-} [zone]=${TPU_ZONE:-} [project]=${TPU_PROJECT:-}
  [type]=${TPU_TYPE:-} [version]=${TPU_VERSION:-} [user]=${TPU_USER:-}
  [bucket]=${TPU_BUCKET:-} [worker]=0 [lines]=100 [wait]=600
)
variables=() job=()
while (($#)); do
  case $1 in
    -h | --help) usage; exit ;;
    --) job=("${@:2}"); break ;;
    --*) option=${1%%=*} option=${option#--} ;;
    *) bad "what is $1? options begin with --, the job comes after --; see --help" ;;
  esac
  [[ $takes == *" $option "* ]] || bad "$command has no option --$option; see --help"
  case $option in
    spot | direct | yes | no-follow | dry-run)
      [[ $1 != *=* ]] || bad "--$option takes no value: $1"
      given[$option]=true
      shift
      continue
      ;;
  esac
  if [[ $1 == *=* ]]; then
    value=${1#*=}
  else
    (($# > 1)) || bad "--$option needs a value"
    value=$2
    shift
  fi
  shift
  [[ -n $value ]] || bad "--$option needs a value"
  if [[ $option == env ]]; then
    [[ $value =~ ^[A-Za-z_][A-Za-z0-9_]*= ]] || bad "--env=NAME=VALUE, not $value"
    variables+=("$value")
  else
    given[$option]=$value
  fi
done
dry=${given[dry-run]:-false}
((${#job[@]} == 0)) || [[ $command == run ]] || bad "$command takes no job after --"

need() { # OPTION VARIABLE PATTERN EXAMPLE
  local value=${given[$1]}
  [[ -n $value ]] || bad "--$1 is missing (or $2), such as $4"
  [[ $value =~ ^$3$ ]] || bad "--$1: '$value' is not one, such as $4"
}
word='[a-z]([a-z0-9-]*[a-z0-9])?'
need name TPU_NAME "$word" my-pod
need zone TPU_ZONE "$word" us-west4-a
name=${given[name]} zone=${given[zone]}
where=("--zone=$zone")
if [[ -n ${given[project]} ]]; then where+=("--project=${given[project]}"); fi
login=${given[user]:+${given[user]}@}$name
here=$(cd "${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"}./.." && pwd)

tpus=(gcloud compute tpus)
at() { # WORKER COMMAND
  call "${tpus[@]}" tpu-vm ssh "$login" "${where[@]}" "--worker=$1" "--command=$2"
}
worker() { # WORKER WORDS... : of worker.sh
  at "$1" "$(quote bash evoharness_jax/code/launch/worker.sh "${@:2}")"
}
number() { # OPTION
  [[ ${given[$1]} =~ ^[0-9]+$ ]] || bad "--$1 must be a number: ${given[$1]}"
}

create() {
  need type TPU_TYPE '[a-z0-9]+-[0-9]+' v5litepod-16
  local type=${given[type]} version=${given[version]} more=()
  if [[ -z $version ]]; then
    case $type in
      v5litepod-*) version=v2-alpha-tpuv5-lite ;;
      v5p-*) version=v2-alpha-tpuv5 ;;
      v6e-*) version=v2-alpha-tpuv6e ;;
      v2-* | v3-* | v4-*) version=tpu-ubuntu2204-base ;;
      *) bad "--version is missing (or TPU_VERSION): no image is known for $type" ;;
    esac
  fi
  if ${given[spot]:-false}; then more+=(--spot); fi
  more=("${where[@]}" "--accelerator-type=$type" ${more[@]+"${more[@]}"})
  if ${given[direct]:-false}; then
    call "${tpus[@]}" tpu-vm create "$name" "${more[@]}" "--version=$version"
  else
    call "${tpus[@]}" queued-resources create "$name" "--node-id=$name" "${more[@]}" \
      "--runtime-version=$version"
    echo "$name is queued; setup can begin when this says ACTIVE:" >&2
    quote "${tpus[@]}" queued-resources describe "$name" "${where[@]}" \
      "--format=value(state.state)" >&2
  fi
}

setup() {
  local new=evoharness_jax/code.new archive unpack install
  [[ -z ${given[ref]:-} || -n ${given[git]:-} ]] || bad "--ref goes with --git=URL"
  [[ ${given[bucket]} != *[/:]* ]] ||
    bad "--bucket: the bucket's name alone, not ${given[bucket]}"
  install=$(quote bash "$new/launch/worker.sh" setup)
  if [[ -n ${given[bucket]} ]]; then install+=" $(quote "${given[bucket]}")"; fi
  if [[ -n ${given[git]:-} ]]; then
    unpack=$(quote git clone --quiet --depth=1 ${given[ref]:+"--branch=${given[ref]}"} \
      -- "${given[git]}" "$new")
    at all "rm -rf $new && $unpack && $install"
    return
  fi
  archive=${TMPDIR:-/tmp}/evoharness_jax-$UID-$name.tar.gz
  if [[ -n $(git -C "$here" status --porcelain) ]]; then
    echo "changes that are not committed stay here: HEAD is what is copied" >&2
  fi
  call git -C "$here" archive --format=tar.gz "--output=$archive" HEAD
  call "${tpus[@]}" tpu-vm scp "$archive" "$login:evoharness_jax.tar.gz" "${where[@]}" \
    --worker=all
  unpack="mkdir -p $new && tar -xzf evoharness_jax.tar.gz -C $new"
  at all "rm -rf $new && $unpack && $install"
  call rm "$archive"
}

run() {
  local entry=${job[0]:-} config=false workdir='' distributed=false word found
  case $entry in
    collect | train_sft | train_rl | evaluate) ;;
    "") bad "name what to run after --: collect, train_sft, train_rl or evaluate" ;;
    *) bad "no entry point $entry; there are collect, train_sft, train_rl, evaluate" ;;
  esac
  for word in "${job[@]:1}"; do
    case $word in
      --config=*) config=true ;;
      --workdir=*) workdir=${word#*=} ;;
      --config.distributed.init=*) distributed=true ;;
    esac
  done
  $config || bad "--config=FILE is missing after $entry"
  [[ -n $workdir ]] || bad "--workdir=DIR is missing after $entry"
  [[ $workdir == /* ]] ||
    bad "--workdir: $workdir is no path from the root; a bucket that setup mounted is" \
      "/mnt/bucket, so --workdir=/mnt/bucket/${workdir##*/}"
  if ! $distributed; then job+=(--config.distributed.init=auto); fi
  # Each worker would refuse by itself, but then the others would start alone.
  if $dry; then
    worker all state
  else
    found=$(worker all state)
    echo "$found"
    if [[ $found == *": running "* ]]; then
      echo "a job is running. To stop it: launch/tpu_vm.sh stop --name=$name --zone=$zone" >&2
      exit 1
    fi
  fi
  worker all start ${variables[@]+"${variables[@]}"} -- "${job[@]}"
}

logs() {
  local words=(log "${given[lines]}") which=${given[worker]}
  number lines
  [[ $which == all ]] || [[ $which =~ ^[0-9]+$ ]] ||
    bad "--worker must be a number or all: $which"
  if ! ${given[no-follow]:-false}; then words+=(--follow); fi
  if [[ $which == all ]]; then words+=(--named); fi
  worker "$which" "${words[@]}"
}

stop() {
  number wait
  worker all stop "${given[wait]}"
}

delete() {
  local answer=''
  if ! $dry && ! ${given[yes]:-false}; then
    echo "$name in $zone, and all on its disks, would be gone." >&2
    read -rp "Delete it? [y/N] " answer || true
    [[ $answer == [yY] || $answer == yes ]] || { echo "nothing deleted" >&2; exit 1; }
  fi
  if ${given[direct]:-false}; then
    call "${tpus[@]}" tpu-vm delete "$name" "${where[@]}" --quiet
  else
    # --force: the pod too, not only the request for it.
    call "${tpus[@]}" queued-resources delete "$name" "${where[@]}" --force --quiet
  fi
}

if ! $dry && ! command -v gcloud >/dev/null; then
  echo "gcloud is needed: https://cloud.google.com/sdk/docs/install" >&2
  exit 1
fi
"$command"
