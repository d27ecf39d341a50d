#!/usr/bin/env bash
# Runs a stage on a Ray cluster, one that runs, or one of machines that it starts and stops:
#
#   tools/ray_cluster.sh --address HOST:PORT [--dry-run] -- VERB WORKSPACE ...
#   tools/ray_cluster.sh --nodes 'node2 node3' [--port 6379] [--dry-run] -- VERB WORKSPACE ...
#   tools/ray_cluster.sh --nodes 'node2 node3' -- embed /shared/work embed.device=cuda
#
# With --nodes this machine is the head, and ssh reaches the others; they have the same Python
# environment in the same place, share the workspace, and run no other Ray: `ray stop` ends all of it.
# HAYSTACK and RAY name other commands than `haystack` and `ray`.
set -euo pipefail

address='' nodes='' port=6379 dry_run=false
usage() { sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --address) address=${2:?--address HOST:PORT}; shift 2 ;;
    --nodes) nodes=${2:?--nodes 'NODE ...'}; shift 2 ;;
    --port) port=${2:?--port PORT}; shift 2 ;;
    --dry-run) dry_run=true; shift ;;
    --) shift; break ;;
    *) usage ;;
  esac
done
[ $# -ge 2 ] || usage
if { [ -z "$address" ] && [ -z "$nodes" ]; } || { [ -n "$address" ] && [ -n "$nodes" ]; }; then usage; fi

run() { if $dry_run; then printf '%q ' "$@"; echo; else "$@"; fi; }
stop() {
  for node in $nodes; do run ssh "$node" "$ray stop" || true; done
  run "$ray" stop
}

ray=${RAY:-ray}
if [ -n "$nodes" ]; then
  address="$(hostname):$port"
  trap stop EXIT
  run "$ray" start --head "--port=$port" --disable-usage-stats
  for node in $nodes; do
    run ssh "$node" "cd $(printf %q "$PWD") && PATH=$(printf %q "$PATH") $ray start --address=$address"
  done
fi
run ${HAYSTACK:-haystack} "$@" --executor ray --ray-address "$address"
