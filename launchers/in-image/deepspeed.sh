# Needs rendezvous.sh ($ranks, $nodes, MASTER_ADDR, `run`) and rank.sh before it.
# One of these runs on each node: it starts DeepSpeed's own launcher, which starts the ranks. The launcher's front end
# would want ssh between the nodes; what it starts on each of them is this.
threads=$((${SLURM_CPUS_PER_TASK:-0} / ranks))
: "${OMP_NUM_THREADS:=$((threads > 0 ? threads : 1))}"
export OMP_NUM_THREADS
unset RANK LOCAL_RANK WORLD_SIZE

# The launcher gives its ranks CUDA_VISIBLE_DEVICES anew, from these: Slurm may have given this step 4 to 7.
devices=${CUDA_VISIBLE_DEVICES:-}
case $devices in *[!A-Za-z0-9,/_-]*) devices= ;; esac
slots='' rank=0
while [ "$rank" -lt "$ranks" ]; do
    device=${devices%%,*}
    devices=${devices#"$device"} devices=${devices#,}
    case ${device:-$rank} in
    *[!0-9]*) slots=$slots,\"$device\" ;;
    *) slots=$slots,${device:-$rank} ;;
    esac
    rank=$((rank + 1))
done
slots=${slots#,}
world="\"n0\": [$slots]" node=1
while [ "$node" -lt "$nodes" ]; do world="$world, \"n$node\": [$slots]" node=$((node + 1)); done
world=$(printf '{%s}' "$world" | base64 -w0)

# DeepSpeed's own launcher gives each rank --local_rank=N right after the program; here it would come before `-c`.
case $1 in
-m)
    shift
    set -- python3 -u -m "$@"
    kept=4
    ;;
*.py)
    set -- python3 -u "$@"
    kept=3
    ;;
*) kept=1 ;;
esac
# shellcheck disable=SC2016 # for the ranks
set -- --no_python --no_local_rank /bin/sh -c 'kept=$1
shift
count=$#
while [ "$count" -gt 0 ]; do # the words in turn to the end, so that one can come between
    set -- "$@" "$1"
    shift
    count=$((count - 1))
    kept=$((kept - 1))
    if [ "$kept" = 0 ]; then set -- "$@" "--local_rank=$LOCAL_RANK"; fi
done
eval "$HPCSTACK_RANK"' deepspeed "$kept" "$@"
run python3 -m deepspeed.launcher.launch --world_info="$world" --node_rank="${SLURM_NODEID:-0}" \
    --master_addr="$MASTER_ADDR" --master_port="$MASTER_PORT" "$@"
