#!/usr/bin/env bash
# on_workers.sh RACK COMMAND...: runs the command on all workers of a virtual rack, as one rank of a job on each. Shows the output
# of rank 0; that of the others goes to build/tutorial/logs.
set -uo pipefail
if [ $# -lt 2 ]; then
  sed -n '2,3s/^# //p' "$0" >&2
  exit 2
fi
rack=$1
shift
netsum rack exec --name "$rack" 0 -- true || exit # which says what is missing
workers=$(netsum rack status --json | python3 -c \
  'import json, sys; print(*(rack["workers"] for rack in json.load(sys.stdin) if rack["name"] == sys.argv[1]))' "$rack")
logs=build/tutorial/logs
mkdir -p "$logs"

# rank RANK COMMAND...
rank() {
  netsum rack exec --name "$rack" "$1" -- \
    env RANK="$1" WORLD_SIZE="$workers" MASTER_PORT=29400 OMP_NUM_THREADS=1 TORCH_CPP_LOG_LEVEL=ERROR "${@:2}"
}
ranks=()
for ((number = 1; number < workers; ++number)); do
  rank "$number" "$@" > "$logs/rank$number" 2>&1 &
  ranks+=($!)
done
status=0
rank 0 "$@" 2>&1 || status=$?
for process in "${ranks[@]}"; do wait "$process" || status=$?; done
if [ "$status" -ne 0 ]; then echo "on_workers.sh: failed; the output of the other ranks is in $logs" >&2; fi
exit "$status"
