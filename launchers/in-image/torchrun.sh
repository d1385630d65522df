# Needs rendezvous.sh ($ranks, $nodes, MASTER_ADDR, `run`) and rank.sh before it.
# One of these runs on each node: it starts torchrun, which starts the ranks.
threads=$((${SLURM_CPUS_PER_TASK:-0} / ranks))
: "${OMP_NUM_THREADS:=$((threads > 0 ? threads : 1))}"
export OMP_NUM_THREADS
# RANK and its kin are torchrun's to set; Enroot's PyTorch hook may have set them for the task.
unset RANK LOCAL_RANK WORLD_SIZE

case $1 in -m | *.py) set -- "${PYTHON_EXEC:-python3}" -u "$@" ;; esac
set -- --no-python /bin/sh -c 'eval "$HPCSTACK_RANK"' rank "$@"
# Ranks that start again must not read what those before wrote into the launcher's store (pytorch #135712): they get one
# of their own.
if [ "$restarts" != 0 ]; then
    : "${TORCH_DISABLE_SHARE_RDZV_TCP_STORE:=1}"
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE
fi
if [ -n "$elastic" ]; then
    run torchrun --nnodes "$elastic" --nproc-per-node "$ranks" --max-restarts "$restarts" --rdzv-backend c10d \
        --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" --rdzv-id "${SLURM_JOB_ID:-0}.${SLURM_STEP_ID:-0}" "$@"
fi
run torchrun --nnodes "$nodes" --node-rank "${SLURM_NODEID:-0}" --nproc-per-node "$ranks" \
    --max-restarts "$restarts" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT" "$@"
