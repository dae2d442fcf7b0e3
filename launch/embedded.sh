#!/usr/bin/env bash
# Make the checkpoint `embedded-sft` that comes with the package: hours on two cores.
#
#   ALFWORLD_DATA=GAMES bash launch/embedded.sh FOLDER
#
# GAMES holds the real training games; 2,000 homes are made beside them. The teacher errs
# on purpose (detours, refused commands, slips of a number, the same mistake again), and
# is never learned from where it errs. Then three times the student plays, and the teacher says
# at every turn what would have been right. Killed and started again, it goes on.
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
corrected() { # FOLDER STUDENT GAMES SHARE
  collect "$1" --config.collect.student="$work/$2" --config.collect.games="$3" \
    --config.collect.student_share="$4" --config.collect.passes=1
}
teacher=$work/teacher one=$work/corrected-1 two=$work/corrected-2 three=$work/corrected-3
all=(--config.data.only_won=False --config.data.prompt_weight=0.02)

collect teacher-little --config.collect.noise=0.12
sft sft-1 "$work/teacher-little" 1800 2e-3 --config.data.prompt_weight=0.0
collect teacher --config.collect.noise=0.2
corrected corrected-1 sft-1 600 0.7
sft sft-2 "$teacher" 750 1.5e-3 --config.model.init="$work/sft-1"
corrected corrected-2 sft-2 700 0.8
sft sft-3 "$teacher:$one:$one:$one" 300 1.2e-3 "${all[@]}" \
  --config.model.init="$work/sft-2"
sft sft-4 "$teacher:$one:$two:$one:$two:$one:$two" 860 1.3e-3 "${all[@]}" \
  --config.model.init="$work/sft-3"
corrected corrected-3 sft-4 600 0.9
sft sft-5 "$three:$three:$two:$one" 430 1e-3 "${all[@]}" --config.model.init="$work/sft-4"
run export --run "$work/sft-5" --out "$work/embedded-sft" --dtype bfloat16
