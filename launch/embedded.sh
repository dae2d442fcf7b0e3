#!/usr/bin/env bash
# Make the checkpoint `embedded-sft` that comes with the package: hours on two cores.
#
#   ALFWORLD_DATA=GAMES bash launch/embedded.sh FOLDER
#
# GAMES holds the real training games; 2,000 homes are made beside them. The teacher errs
# on purpose (detours, refused commands, slips of a number, the same mistake again), and
# is never learned from where it errs. Then twice the student plays, greedily, and the
# teacher says at every turn what would have been right. Killed and started again, it
# goes on.
set -euo pipefail

case ${1:-} in
  -h | --help | "") sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit ;;
esac
work=$(realpath -m "$1")
cd "${BASH_SOURCE[0]%"${BASH_SOURCE[0]##*/}"}./.."
source launch/venv.sh
[[ -d ${ALFWORLD_DATA:-} ]] || stop "ALFWORLD_DATA: no folder ${ALFWORLD_DATA:-}"
install report dev dev,aot,parity
mkdir -p "$work"

run() { "$python" -m "evoharness_jax.$1" "${@:2}"; }
homes() { run envs.alfworld.households "$work/homes" --split train "$@" 2>/dev/null; }
if [[ ! -e $work/homes/made ]]; then
  homes --games 1000
  homes --games 400 --first 1000 --shift 0.5
  homes --games 400 --first 1400 --rarity 0.5
  homes --games 200 --first 1800 --size 1.4
  touch "$work/homes/made"
fi
export ALFWORLD_DATA=$ALFWORLD_DATA:$work/homes

sft() { # FOLDER EPISODES STEPS LR [SETTINGS]
  run train_sft --config=configs/quickstart.py:sft --workdir="$work/$1" \
    --config.data.episodes="$2" --config.optim.steps="$3" --config.optim.lr="$4" "${@:5}"
}
collect() { # FOLDER SETTINGS
  [[ -e $work/$1/collect.json ]] && return
  run collect --config=configs/quickstart.py:sft --workdir="$work/$1" \
    --config.collect.batch=64 "${@:2}"
}
corrected() { # FOLDER STUDENT
  collect "$1" --config.collect.student="$work/$2" --config.collect.games=512 \
    --config.collect.student_share=1.0 --config.collect.student_temperature=0.0 \
    --config.collect.passes=1
}
again() { # FOLDER EPISODES STEPS LR START
  sft "$1" "$2" "$3" "$4" --config.model.init="$work/$5" \
    --config.data.only_won=False --config.data.prompt_weight=0.05
}
teacher=$work/teacher one=$work/corrected-1 two=$work/corrected-2

collect teacher
sft sft-1 "$teacher" 1200 1e-3
corrected corrected-1 sft-1
again sft-2 "$teacher:$one:$one:$one:$one:$one" 500 8e-4 sft-1
corrected corrected-2 sft-2
again sft-3 "$teacher:$two:$two:$two:$two" 450 1e-3 sft-2
run export --run "$work/sft-3" --out "$work/embedded-sft" --dtype bfloat16
