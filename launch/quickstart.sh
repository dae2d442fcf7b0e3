#!/usr/bin/env bash
# Watch a small agent learn when its workspace is worth the price: one command.
#
#   bash launch/quickstart.sh [--from-scratch] [--fresh] [FOLDER]
#
#   --from-scratch   train the supervised stage here too, from teacher episodes
#   --fresh          remove what FOLDER holds of an earlier quickstart
#
# Makes homes, starts from the checkpoint that comes with the package (or that it
# trains), runs a short cost-aware policy gradient, and evaluates before and after on 200
# homes that it was not trained on: same games, greedy. The table is printed, the pages
# lie in FOLDER (runs/quickstart). Killed and started again, it goes on.
set -euo pipefail

scratch=false fresh=false work=
for word in "$@"; do
  case $word in
    --from-scratch) scratch=true ;;
    --fresh) fresh=true ;;
    -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
    -*) echo "unknown option: $word; see --help" >&2; exit 2 ;;
    *) [[ -z $work ]] || { echo "one FOLDER, not $work and $word" >&2; exit 2; }
       work=$(realpath -m "$word") ;;
  esac
done
cd "${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"}./.."
source launch/venv.sh

export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}  # the model is too small for more
work=${work:-$PWD/runs/quickstart}
start=embedded-sft
if $scratch; then start=$work/sft; fi
if [[ -d $work && ! -e $work/.quickstart && -n $(ls -A "$work") ]]; then
  stop "$work holds something else; name an empty FOLDER"
fi
if $fresh; then rm -rf "$work"; fi
begun=$(cat "$work/.quickstart" 2>/dev/null || echo "$start")
if [[ $begun != "$start" ]]; then
  stop "$work holds a quickstart from $begun, this one is from $start: add --fresh"
fi
install report dev dev,aot,parity
mkdir -p "$work"
echo "$start" >"$work/.quickstart"
SECONDS=0

say() { printf '\n[%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$1"; }
run() { "$python" -m "evoharness_jax.$1" "${@:2}"; }
homes() { # SPLIT GAMES
  [[ -e $work/homes/$1.made ]] && return
  run envs.alfworld.households "$work/homes" --split "$1" --games "$2" 2>"$work/homes.log"
  touch "$work/homes/$1.made"
}
evaluate() { # CHECKPOINT FOLDER
  [[ -e $2/summary.json ]] && return
  run evaluate --config=configs/quickstart.py:evaluate --config.checkpoint="$1" \
    --workdir="$2"
}

say "Making homes"
mkdir -p "$work/homes"
homes train "$($scratch && echo 3000 || echo 400)"
homes valid_seen 200
export ALFWORLD_DATA=$work/homes

if $scratch; then
  say "Supervised stage from scratch: about an hour on two cores"
  run train_sft --config=configs/quickstart.py:sft --workdir="$work/sft"
fi

say "Before (beside the training; its lines are in before.log) and policy gradient"
evaluate "$start" "$work/before" >"$work/before.log" 2>&1 &
before=$!
trap 'kill $before 2>/dev/null || true' EXIT
run train_rl --config=configs/quickstart.py:rl --config.model.init="$start" \
  --workdir="$work/rl"
wait $before || { cat "$work/before.log" >&2; stop "the evaluation before failed"; }
trap - EXIT

say "After, on the same homes"
evaluate "$work/rl" "$work/after"

say "What it learned"
run report --workdir="$work/rl" >"$work/rl.log"
run report --workdir="$work/after" --versus="$work/before"
printf '\nTraining:   %s\nEvaluation: %s\n' "$work/rl/report.html" "$work/after/report.html"
