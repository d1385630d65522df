# Around each rank: what it ended with is said in one line, with the moment, so that the first rank that failed is known
# whoever else fails of it (launchers/failure.awk reads the lines). Also the cores of HPCSTACK_CPUS that are near its GPU.
# A rank that was told to end (TERM, INT) has not failed. With --grace it gets USR1 before HPCSTACK_END, from here: a
# signal of Slurm's goes to all processes of a step on some clusters, and what serves the image by FUSE dies of it.
# No single quote may be in the text. It is handed on as a variable: torchrun makes $ of each $$ in what it is to run.
# shellcheck disable=SC2016 # for the ranks
HPCSTACK_RANK='left=${LOCAL_RANK:-0}
for one in ${HPCSTACK_CPUS:-}; do
    if [ "$left" = 0 ]; then taskset -pc "$one" $$ >/dev/null 2>&1 || echo "hpcstack: rank is not bound to $one" >&2; fi
    left=$((left - 1))
done
trap : USR1 USR2 # what a rank is told by a signal must not end its shell
if [ -n "${HPCSTACK_GRACE:-}" ]; then trap "" USR1; fi
timer=
if [ -n "${HPCSTACK_GRACE:-}" ] && [ -n "${HPCSTACK_END:-}" ]; then
    (
        left=$((HPCSTACK_END - HPCSTACK_GRACE - $(date +%s)))
        sleep "$((left > 1 ? left : 1))"
        own=$(exec /bin/sh -c "echo \$PPID")
        for one in $(cat /proc/$$/task/*/children); do [ "$one" = "$own" ] || kill -USR1 "$one"; done
    ) >/dev/null 2>&1 </dev/null &
    timer=$!
fi
"$@"
status=$?
[ -z "$timer" ] || kill "$timer" 2>/dev/null
case $status in
0 | 130 | 143) ;;
*)
    printf "hpcstack: rank %s on %s ended with %s [%s %s]\n" "${RANK:-${SLURM_PROCID:-0}}" "$(uname -n)" "$status" \
        "${TORCHELASTIC_RESTART_COUNT:-0}" "$(date +%s.%N)" >&2
    sleep 0.5 2>/dev/null || sleep 1 # srun ends a step without waiting for the last words of the rank that failed
    ;;
esac
exit "$status"'
export HPCSTACK_RANK
