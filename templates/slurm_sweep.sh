#!/bin/bash
# One sweep, divided by the tasks of a Slurm array:
#
#     sbatch slurm_sweep.sh /shared/results/digits --preset digits --seeds 20
#
# The first word is a folder that all nodes share, the others are options of the sweep.
# The same line again goes on with what is not finished, also with another --array.
#
#SBATCH --job-name=fedjax-pfl
#SBATCH --array=1-4
#SBATCH --cpus-per-task=2
#SBATCH --mem=8G
#SBATCH --time=04:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=fedjax-pfl-%A-%a.log

set -euo pipefail

out=${1:?"expected a folder that all nodes share, then options of fedjax-pfl sweep"}
shift

# Tasks compute alike whatever the nodes' numbers of cores are. The command takes the
# place of this shell, so that it gets the signal: it saves, and gives its unit back.
exec fedjax-pfl sweep --join --out "$out" --devices "${SLURM_CPUS_PER_TASK:-1}" "$@"
