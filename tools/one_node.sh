#!/usr/bin/env bash
# Runs a stage on the GPUs of this machine, a process for each:
#
#   tools/one_node.sh [--gpus N] [--dry-run] -- VERB WORKSPACE ...
#   tools/one_node.sh -- embed work source.images=/data/sa-1b
#
# Without --gpus it asks nvidia-smi. HAYSTACK names another command than `haystack`.
set -euo pipefail

gpus='' dry_run=false
usage() { sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --gpus) gpus=${2:?--gpus N}; shift 2 ;;
    --dry-run) dry_run=true; shift ;;
    --) shift; break ;;
    *) usage ;;
  esac
done
[ $# -ge 2 ] || usage
if [ -z "$gpus" ]; then
  gpus=$({ nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU' || true)
fi
if ! [ "$gpus" -ge 1 ] 2>/dev/null; then
  echo "one_node.sh: nvidia-smi lists no GPU here; say --gpus N, or run haystack --workers N for CPUs" >&2
  exit 2
fi

devices=$(seq -s, -f 'cuda:%g' 0 $((gpus - 1)))
command=(${HAYSTACK:-haystack} "$@" --devices "$devices")
if $dry_run; then printf '%q ' "${command[@]}"; echo; else exec "${command[@]}"; fi
