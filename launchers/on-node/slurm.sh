# Before a container: starts the helper, once a node and step, that runs Slurm's commands for the programs in it. The name
# of its socket is a digest that no other user can know before there is one.
# Arguments: FOLDER STEP COMMAND... FOLDER has the helper; STEP is a file for it.
_folder=$1 _step=$2
shift 2
if [ ! -r "$_folder/../secret" ]; then
    echo "hpcstack: $(uname -n): $_folder cannot be read here; set XDG_DATA_HOME to a folder that all nodes can read" >&2
    exit 125
fi
HPCSTACK_SLURM_SOCKET=hpcstack-$(
    { cat "$_folder/../secret" && echo "${SLURM_JOB_ID:-} ${SLURM_STEP_ID:-batch} ${SLURM_RESTART_COUNT:-0} $(uname -n)"; } |
        sha256sum | cut -c1-32
)
export HPCSTACK_SLURM_SOCKET
if [ "${SLURM_LOCALID:-0}" = 0 ]; then
    # no child of what follows
    # Of a step whose nodes the job script has put in order: those that are started from inside are in Slurm's order.
    (if [ "${SLURM_DISTRIBUTION:-}" = arbitrary ]; then unset SLURM_DISTRIBUTION HPCSTACK_ORDER; fi
    python3 -I -S -B "$_folder/slurm_helper.py" "$HPCSTACK_SLURM_SOCKET" "$$" "$_step" </dev/null >/dev/null &)
fi
exec "$@"
