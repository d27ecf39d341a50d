#!/usr/bin/env bash
# Runs a stage as a Slurm array:
#
#   tools/slurm_array.sh [--tasks N] [--grace SECONDS] [--sbatch OPTION]... [--dry-run] -- VERB WORKSPACE ...
#   tools/slurm_array.sh --tasks 64 --sbatch --gpus-per-task=1 --sbatch --time=4:00:00 -- \
#       embed /shared/work source.images=/shared/sa-1b embed.device=cuda
#
# Each task takes its share of the shards, then what the others have not begun. Slurm sends SIGUSR1
# before the time is up; a task then finishes its shard if that takes less than --grace, and requeues
# itself. The same command again goes on where everything stopped. HAYSTACK names another command
# than `haystack`.
set -euo pipefail

tasks=8 grace=120 dry_run=false options=()
usage() { sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --tasks) tasks=${2:?--tasks N}; shift 2 ;;
    --grace) grace=${2:?--grace SECONDS}; shift 2 ;;
    --sbatch) options+=("${2:?--sbatch OPTION}"); shift 2 ;;
    --dry-run) dry_run=true; shift ;;
    --) shift; break ;;
    *) usage ;;
  esac
done
[ $# -ge 2 ] || usage
for number in "$tasks" "$grace"; do
  if ! [[ $number =~ ^[1-9][0-9]*$ ]]; then
    echo "slurm_array.sh: --tasks and --grace expect whole numbers from 1, got $number" >&2
    exit 2
  fi
done

haystack=${HAYSTACK:-haystack}
# The signal comes half a minute before the grace begins to be short.
command=(sbatch --parsable --requeue --open-mode=append "--array=0-$((tasks - 1))"
  "--signal=USR1@$((grace + 30))" "--job-name=haystack-$1" ${options[@]+"${options[@]}"})
# Exit code 3 is success with images set aside; Slurm would call it a failure.
script="#!/usr/bin/env bash
srun $haystack $(printf '%q ' "$@")--executor slurm --grace $grace
status=\$?
if [ \$status -eq 3 ]; then exit 0; fi
exit \$status"

if $dry_run; then
  printf '%q ' "${command[@]}"; printf "<<'END'\n%s\nEND\n" "$script"
else
  "${command[@]}" <<<"$script"
fi
