# One of these runs on each node: it starts DeepSpeed's own launcher, which starts the ranks. The launcher's front end
# would want ssh between the nodes; what it starts on each of them is this.
threads=$((${SLURM_CPUS_PER_TASK:-0} / ranks))
: "${OMP_NUM_THREADS:=$((threads > 0 ? threads : 1))}"
export OMP_NUM_THREADS
unset RANK LOCAL_RANK WORLD_SIZE

slots=0 rank=1
while [ "$rank" -lt "$ranks" ]; do slots=$slots,$rank rank=$((rank + 1)); done
world="\"n0\": [$slots]" node=1
while [ "$node" -lt "$nodes" ]; do world="$world, \"n$node\": [$slots]" node=$((node + 1)); done
world=$(printf '{%s}' "$world" | base64 -w0)

if [ -n "${HPCSTACK_CPUS:-}" ]; then
    case $1 in -m | *.py) set -- python3 -u "$@" ;; esac
    set -- --no_python /bin/sh -c "$NEAR" near "$@"
else
    case $1 in
    -m)
        shift
        set -- --module "$@"
        ;;
    *.py) ;;
    *) set -- --no_python "$@" ;;
    esac
fi
run python3 -m deepspeed.launcher.launch --world_info="$world" --node_rank="${SLURM_NODEID:-0}" \
    --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" "$@"
