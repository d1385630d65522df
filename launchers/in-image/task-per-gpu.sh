# Needs rendezvous.sh ($ranks, MASTER_ADDR) and rank.sh before it.
# Each task of Slurm's is a rank: torch's variables are made of Slurm's.
RANK=${SLURM_PROCID:-0} LOCAL_RANK=${SLURM_LOCALID:-0} WORLD_SIZE=${SLURM_STEP_NUM_TASKS:-${SLURM_NTASKS:-1}}
LOCAL_WORLD_SIZE=$ranks GROUP_RANK=${SLURM_NODEID:-0} NODE_RANK=${SLURM_NODEID:-0}
: "${OMP_NUM_THREADS:=${SLURM_CPUS_PER_TASK:-1}}"
export RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK NODE_RANK OMP_NUM_THREADS

case $1 in
-m | *.py) set -- python3 "$@" ;;
esac
exec /bin/sh -c 'eval "$HPCSTACK_RANK"' rank "$@"
