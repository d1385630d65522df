#!/bin/sh
# Runs a command in the image, for which Slurm's commands are on PATH. What the caller of srun or sbatch had in another
# container of this image, and the node's programs must not see, has come under other names.
# Arguments: COMMAND...
names() { cat /proc/self/environ | tr '\n\0' ' \n' | sed -n "s/^\($1\)=.*/\1/p"; }
if [ -n "${HPCSTACK_SLURM_BATCH:-}" ]; then # as the batch script sees it, not as this step
    for name in $(names 'SLURM_[A-Za-z0-9_]*'); do unset "$name"; done
    unset HPCSTACK_SLURM_BATCH
fi
for name in $(names 'HPCSTACK_INSIDE_[A-Za-z_][A-Za-z0-9_]*'); do
    plain=${name#HPCSTACK_INSIDE_}
    eval "export \"$plain=\$$name\""
    unset "$name"
done
case :$PATH: in
*:/opt/hpcstack/slurm/bin:*) ;;
*) export PATH="/opt/hpcstack/slurm/bin:$PATH" ;;
esac
if [ -n "${HPCSTACK_SLURM_PWD:-}" ]; then
    cd "$HPCSTACK_SLURM_PWD" || echo "hpcstack: continuing in $PWD" >&2
    unset HPCSTACK_SLURM_PWD
fi
exec "$@"
