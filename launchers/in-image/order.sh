# Before all else in a task. The job script may have put the nodes into an order of its own (HPCSTACK_ORDER, a list as Slurm
# writes them), which the tasks follow. Slurm's variables of the step are made to say the same: programs find the first rank
# by them. A step that is started from inside is in Slurm's order again.
if [ -n "${HPCSTACK_ORDER:-}" ]; then
    SLURM_STEP_NODELIST=$HPCSTACK_ORDER
    SLURM_NODEID=$((SLURM_PROCID / (SLURM_STEP_NUM_TASKS / SLURM_STEP_NUM_NODES)))
    export SLURM_STEP_NODELIST SLURM_NODEID
    unset SLURM_DISTRIBUTION
fi
unset HPCSTACK_ORDER
