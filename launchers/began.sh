#!/bin/sh
# srun runs this on the node where it was started, once the step's nodes are known and before its tasks begin: which
# job and nodes a launch became is written into the launch's own folder.
if [ -d "${HPCSTACK_RUN:-}" ]; then
    printf '%s\n' "$SLURM_JOB_ID" "$SLURM_STEP_ID" "${SLURM_NODELIST:-${SLURM_JOB_NODELIST:-}}" \
        >"$HPCSTACK_RUN/.began" && mv "$HPCSTACK_RUN/.began" "$HPCSTACK_RUN/began"
fi
