#!/bin/sh
# srun runs this on the node where it was started, once the step's nodes are known and before its tasks begin: which
# job and nodes a launch became is written into the launch's own folder.
if [ -d "${HPCSTACK_RUN:-}" ]; then
    printf '%s\n' "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}" "$SLURM_STEP_ID" "${SLURM_NODELIST:-${SLURM_JOB_NODELIST:-}}" "$SLURM_JOB_ID" \
        >"$HPCSTACK_RUN/.began.$$" && mv "$HPCSTACK_RUN/.began.$$" "$HPCSTACK_RUN/began"
    # Slurm forgets a job minutes after its end: where a batch job writes is written down while it knows. What was
    # submitted as a job has that already.
    if [ ! -e "$HPCSTACK_RUN/output" ]; then
        (
            # an array's last task has the array's own number, by which scontrol shows all of them
            said=$(scontrol show job "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}" |
                sed -n '/^ *StdOut=\(\/.*\)/{s//\1/p;q;}')
            [ -z "$said" ] || { printf '%s\n' "$said" >"$HPCSTACK_RUN/.output.$$" && mv "$HPCSTACK_RUN/.output.$$" "$HPCSTACK_RUN/output"; }
        ) >/dev/null 2>&1 </dev/null &
    fi
fi
# A step of an allocation has no comment of its own: gc sees by the job's which image is in use.
if [ -n "${HPCSTACK_KEY:-}" ]; then
    (
        said=$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %k 2>/dev/null)
        case $said in
        *"hpcstack:$HPCSTACK_KEY"*) ;;
        "(null)" | "") scontrol update "JobId=$SLURM_JOB_ID" "Comment=hpcstack:$HPCSTACK_KEY" ;;
        *) scontrol update "JobId=$SLURM_JOB_ID" "Comment=$said hpcstack:$HPCSTACK_KEY" ;;
        esac
    ) >/dev/null 2>&1 </dev/null &
fi
