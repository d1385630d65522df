#!/usr/bin/env bash
#SBATCH --job-name=pytorch-24.11
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=01:00:00
#SBATCH --output=%x-%j.out
#
# A batch job in pytorch-24.11. Copy it, change the lines above and the last one, then: sbatch sbatch.sh train.py
set -euo pipefail

: "${HPCSTACK_IMAGE:?module load pytorch/24.11 before sbatch}"
# Slurm copies this script away from its folder; where it was submitted lies srun.sh.
launcher=${HPCSTACK_SRUN:-$SLURM_SUBMIT_DIR/srun.sh}

# srun does not take over every flag of the job: what matters is said again.
exec "$launcher" --nodes="$SLURM_JOB_NUM_NODES" --gpus-per-node=8 -- "${@:-train.py}"
