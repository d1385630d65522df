#!/usr/bin/env bash
# Start a command in pytorch-24.11 on the nodes of a job step, and return the step's own status.
#
#   module load pytorch/24.11
#   ./srun.sh [srun's options] -- COMMAND [ARGUMENTS]      e.g. ./srun.sh -N 2 -- train.py --epochs 3
#
# mode torchrun: one task a node, which starts torchrun there. RANKS_PER_NODE=8 says how many ranks a node gets.
set -euo pipefail

image=${HPCSTACK_IMAGE:?module load pytorch/24.11 first}
options=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    options+=("$1")
    shift
done
if [ $# -lt 2 ]; then
    echo "usage: $0 [srun's options] -- COMMAND [ARGUMENTS]" >&2
    exit 125
fi
shift

inner=$(cat <<'HPCSTACK_TORCHRUN'
# One of these runs on each node, inside the image: it finds the step's first node and starts torchrun.
# Arguments: RANKS-PER-NODE COMMAND...   What the user has set in MASTER_ADDR or MASTER_PORT is kept.
set -u
ranks=$1
shift
if [ -r /opt/hpcstack/compat.sh ]; then . /opt/hpcstack/compat.sh; fi

# The first host of a Slurm node list, without Slurm's tools: rack[1-3]n[01,07],b2 -> rack1n01
first_host() {
    list=$1 host=
    while [ -n "$list" ]; do
        case $list in
        ,*) break ;;
        \[*)
            inside=${list#\[} list=${list#*\]}
            inside=${inside%%\]*} inside=${inside%%,*}
            host=$host${inside%%-*}
            ;;
        *)
            plain=${list%%[\[,]*} list=${list#"${list%%[\[,]*}"}
            host=$host$plain
            ;;
        esac
    done
    printf '%s\n' "$host"
}

nodes=${SLURM_STEP_NUM_NODES:-${SLURM_JOB_NUM_NODES:-1}}
if [ "$nodes" -gt 1 ]; then
    head=$(first_host "${SLURM_STEP_NODELIST:-$SLURM_JOB_NODELIST}")
    address=$(getent ahostsv4 "$head" 2>/dev/null | { read -r first _ && printf '%s' "$first"; })
    : "${MASTER_ADDR:=${address:-$head}}"
else
    : "${MASTER_ADDR:=127.0.0.1}"
fi
# Enroot's PyTorch hook makes its port of the job id alone: two steps of one job would meet.
if [ "${MASTER_PORT:-}" = "$((61000 + ${SLURM_JOB_ID:-0} % 4536))" ]; then unset MASTER_PORT; fi
# Two steps of one job must not meet: the port is made of both numbers, below the ephemeral range.
: "${MASTER_PORT:=$((10000 + (${SLURM_JOB_ID:-$$} * 31 + ${SLURM_STEP_ID:-0}) % 20000))}"
: "${OMP_NUM_THREADS:=1}"
export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS
# RANK and its kin are torchrun's to set; Enroot's PyTorch hook may have set them for the task.
unset RANK LOCAL_RANK WORLD_SIZE

case $1 in
-m | *.py) ;;
*) set -- --no-python "$@" ;;
esac
exec torchrun --nnodes "$nodes" --node-rank "${SLURM_NODEID:-0}" --nproc-per-node "$ranks" \
    --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"
HPCSTACK_TORCHRUN
)
set -- /bin/sh -c "$inner" torchrun "${RANKS_PER_NODE:-8}" "$@"
options=(--ntasks-per-node=1 "${options[@]}")
export PYTHONNOUSERSITE="${PYTHONNOUSERSITE:-1}" # packages in ~/.local are not the image's
nv=(--nv)

if srun --help 2>&1 | grep -q -- --container-image; then runtime=pyxis; else runtime=apptainer; fi
case $runtime in
pyxis)
    exec srun --export=ALL --kill-on-bad-exit=1 "${options[@]}" --container-image="$image" --container-mounts=/scratch:/scratch,"$PWD:$PWD" \
        --no-container-mount-home \
        --container-workdir="$PWD" "$@"
    ;;
*)
    export APPTAINER_NO_EVAL=1 # a variable's value is text, not shell
    exec srun --export=ALL --kill-on-bad-exit=1 "${options[@]}" apptainer --quiet exec "${nv[@]}" --bind /scratch:/scratch,"$PWD" --pwd "$PWD" \
        "$image" "$@"
    ;;
esac
