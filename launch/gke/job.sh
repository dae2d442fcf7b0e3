#!/usr/bin/env bash
# The first process of a pod: runs an entry point, and says when it is to be run again.
#
#   job.sh ENTRY_POINT [ARGUMENTS]
#
# Told to end, a run saves and exits with 0. Kubernetes would take a pod that does so for
# a success, and the unfinished job for done. So after a SIGTERM this exits with 143,
# and JobSet starts the job again; a run that had reached its last step ends at once.
set -euo pipefail

asked=false child=''
tell() { asked=true; [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true; }
trap tell TERM

python -u -m "evoharness_jax.$1" "${@:2}" &
child=$!
if $asked; then tell; fi  # between the trap and the start
while :; do
  status=0
  wait "$child" || status=$?
  kill -0 "$child" 2>/dev/null || break  # the trap ends a wait before the child ends
done
if $asked && ((status == 0)); then exit 143; fi
exit "$status"
