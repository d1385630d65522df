# Around each rank: what it ended with is said in one line, with the moment, so that the first rank that failed is known
# whoever else fails of it (launchers/jobs/failure.awk reads the lines). Also the cores of HPCSTACK_CPUS that are near its GPU.
# A rank that was told to end (TERM, INT) has not failed. Signals are handed on: some of Slurm's ways to track processes
# give them to a task's first process only. With --grace the rank gets USR1 before HPCSTACK_END, from here: where Slurm
# gives a signal to all processes of a step, what serves the image by FUSE would die of it.
# No single quote may be in the text. It is handed on as a variable: torchrun makes $ of each $$ in what it is to run.
# shellcheck disable=SC2016,SC2089,SC2090 # for the ranks
HPCSTACK_RANK='if [ -n "${HPCSTACK_LABEL:-}" ] && command -v python3 >/dev/null; then # label.py
    label=$HPCSTACK_LABEL
    unset HPCSTACK_LABEL
    HPCSTACK_LABELLED=yes
    export HPCSTACK_LABELLED
    exec python3 -I -S -c "$label" "[rank${RANK:-${SLURM_PROCID:-0}}]: " /bin/sh -c "eval \"\$HPCSTACK_RANK\"" rank "$@"
fi
labelled=${HPCSTACK_LABELLED:-}
unset HPCSTACK_LABELLED
rank=""
early=""
# Traps first: a signal that comes before there is a rank is kept for it, and does not end this shell.
hand_on() { if [ -n "$rank" ]; then kill "-$1" "$rank" 2>/dev/null; else early="$early $1"; fi; }
for name in TERM INT HUP USR1 USR2; do trap "told=yes; hand_on $name" "$name"; done
# Ctrl-C on `hpcstack launch` comes as URG (launchers/on-node/interrupt.sh), which means: interrupt the rank, once, and
# stay when it has ended. torchrun, DeepSpeed and srun end all ranks as soon as one is gone, in the middle of what the
# others do in their `finally`; so no rank is gone before hpcstack, which knows of all, ends the step.
interrupted="" told=""
ignores_interrupts() { # bit 2 of its mask
    case $(sed -n "s/^SigIgn:.*\(.\)$/\1/p" "/proc/$rank/status" 2>/dev/null) in [2367abef]) ;; *) return 1 ;; esac
}
interrupt() { # as a terminal does it: all programs of the rank
    if [ -z "$rank" ]; then
        early="$early INT"
    elif ignores_interrupts; then
        kill -TERM "$rank" 2>/dev/null
    else
        kill -s INT -- "-$rank" 2>/dev/null || kill -INT "$rank" 2>/dev/null
    fi
}
trap "[ -n \"\$interrupted\" ] || { interrupted=yes; told=\"\"; interrupt; }" URG
left=${LOCAL_RANK:-0}
for one in ${HPCSTACK_CPUS:-}; do
    if [ "$left" = 0 ]; then taskset -pc "$one" $$ >/dev/null 2>&1 || echo "hpcstack: rank is not bound to $one" >&2; fi
    left=$((left - 1))
done
# Where the site has recorded no topology, the node says which cores are near a GPU. GPUs are counted as nvidia-smi counts
# them, by their PCI addresses, and those of other jobs, which may not be opened, are left out. A rank never gets a core
# that it did not have. HPCSTACK_NEAR is shared where the ranks of a node share the cores of one task, else own.
expand() { echo "$1" | tr , "\n" | while IFS=- read -r first last; do seq "$first" "${last:-$first}"; done; }
near_gpu() {
    sys=${HPCSTACK_SYS:-/sys}/bus/pci/drivers/nvidia
    nth=${LOCAL_RANK:-${SLURM_LOCALID:-0}}
    sharing=""
    case ${CUDA_VISIBLE_DEVICES:-} in
    "") ;;
    *[!0-9,]*) return ;; # by UUID, or parts of a GPU: which one that is the node does not say
    *)
        sharing=$(echo "$CUDA_VISIBLE_DEVICES" | tr , "\n" | wc -l)
        nth=$(echo "$CUDA_VISIBLE_DEVICES" | cut -d, -f"$((nth + 1))")
        ;;
    esac
    near=""
    count=0
    for gpu in "$sys"/*:*:*.*; do
        minor=$(sed -n "s/^Device Minor:[^0-9]*//p" "${HPCSTACK_PROC:-/proc}/driver/nvidia/gpus/${gpu##*/}/information")
        # without opening it, which wakes a GPU that nobody uses
        device=${HPCSTACK_DEV:-/dev}/nvidia$minor
        if [ -z "$minor" ] || [ ! -r "$device" ] || [ ! -w "$device" ]; then continue; fi
        if [ "$count" = "${nth:-none}" ]; then near=$(cat "$gpu/local_cpulist"); fi
        count=$((count + 1))
    done
    [ -n "$near" ] || return 0
    sharing=${sharing:-$count}
    if [ "$HPCSTACK_NEAR" = own ]; then
        case ${SLURM_CPU_BIND_TYPE:-} in *mask* | *map*) sharing=1 ;; esac # Slurm has given each task its own
    fi
    allowed=$(sed -n "s/^Cpus_allowed_list:[^0-9]*//p" "/proc/$$/status")
    both=$({ expand "$near" && expand "$allowed"; } | sort | uniq -d)
    all=$(expand "$allowed" | wc -l)
    some=$(echo "$both" | grep -c .)
    # Of the cores that the rank has, too few may be near: then it is better off with all of them.
    if [ "$some" -gt 0 ] && [ $((some * sharing)) -ge "$all" ]; then
        taskset -pc "$(echo "$both" | tr "\n" , | sed "s/,\$//")" $$ >/dev/null
    fi
}
if [ -n "${HPCSTACK_NEAR:-}" ] && [ -z "${HPCSTACK_CPUS:-}" ]; then near_gpu 2>/dev/null; fi
# In a session of its own the rank gets a signal for the whole group once, from here; it ends with this shell
# (util-linux 2.33). A shell starts what runs beside it with INT ignored, and only env undoes that (coreutils 8.31), or
# Python.
plain=
if setsid true 2>/dev/null; then plain=setsid; fi
if setpriv --pdeathsig KILL true 2>/dev/null; then plain="$plain setpriv --pdeathsig KILL"; fi
if env --default-signal=INT true 2>/dev/null; then
    plain="$plain env --default-signal=INT,QUIT"
elif python3 -I -S -c "import os" 2>/dev/null; then
    heed="import os, signal, sys; signal.signal(2, signal.SIG_DFL); signal.signal(3, signal.SIG_DFL)"
    set -- python3 -I -S -c "$heed; os.execvp(sys.argv[1], sys.argv[1:])" "$@"
fi
exec 3<&0
if [ -n "${HPCSTACK_GRACE:-}" ]; then
    (trap "" USR1 && exec $plain "$@" <&3 3<&- 9<&-) &
else
    (exec $plain "$@" <&3 3<&- 9<&-) &
fi
rank=$!
exec 3<&-
# Right after its start the rank still is a copy of this shell, with the traps of it: a signal would be lost there.
[ -z "$early" ] || sleep 0.2 2>/dev/null || sleep 1
for name in $early; do
    if [ "$name" != USR1 ] || [ -z "${HPCSTACK_GRACE:-}" ]; then hand_on "$name"; fi
done
timer=
if [ -n "${HPCSTACK_GRACE:-}" ] && [ -n "${HPCSTACK_END:-}" ]; then
    (
        caught() { # whether process $1 has a handler of USR1, bit 9 of its mask
            case $(sed -n "s/^SigCgt:.*\(.\)..\$/\1/p" "/proc/$1/status") in [2367abef]) ;; *) return 1 ;; esac
        }
        tell() { # process $1 if it listens; else those of its children that do: a script may run the program
            if caught "$1"; then kill -USR1 "$1" && told=yes && return; fi
            for child in $(cat /proc/"$1"/task/*/children); do tell "$child"; done
        }
        left=$((HPCSTACK_END - HPCSTACK_GRACE - $(date +%s)))
        sleep "$((left > 1 ? left : 1))" &
        nap=$! told=
        trap "kill $nap; exit 0" TERM
        wait "$nap" || exit 0
        while [ -z "$told" ] && [ "$(date +%s)" -lt "$HPCSTACK_END" ]; do # a program that still starts is told later
            tell "$rank"
            [ -n "$told" ] || sleep 1
        done
    ) >/dev/null 2>&1 </dev/null &
    timer=$!
fi
while :; do
    status=0 again=0
    wait "$rank" || status=$?
    kill -0 "$rank" 2>/dev/null && continue
    wait "$rank" 2>/dev/null || again=$? # a signal may have ended the first wait: this one knows; 127 is neither
    [ "$again" = 127 ] || status=$again
    break
done
[ -z "$timer" ] || kill "$timer" 2>/dev/null
left_before() { # the ranks of this node that are gone: who had failed would have said so, and would still be here
    [ "$status" -lt 128 ] && [ "${LOCAL_WORLD_SIZE:-1}" -gt 1 ] && [ -n "${SLURM_JOB_ID:-}" ] && [ -n "${SLURM_STEP_ID:-}" ] || return 0
    local_=0
    while [ "$local_" -lt "$LOCAL_WORLD_SIZE" ]; do
        found=$(grep -lzxF "LOCAL_RANK=$local_" /proc/[0-9]*/environ | xargs grep -lzxF "SLURM_STEP_ID=$SLURM_STEP_ID" |
            xargs grep -lzxF "SLURM_JOB_ID=$SLURM_JOB_ID")
        if [ -z "$found" ] && [ "$local_" != "$LOCAL_RANK" ]; then
            printf "hpcstack: rank %s on %s had left before [%s %s]\n" "$((RANK - LOCAL_RANK + local_))" \
                "${SLURMD_NODENAME:-$(uname -n)}" "${TORCHELASTIC_RESTART_COUNT:-0}" "$(date +%s.%N)" >&4
        fi
        local_=$((local_ + 1))
    done
}
case $status in
0 | 130 | 143) ;;
*)
    left_before 4>&2 2>/dev/null
    printf "hpcstack: rank %s on %s ended with %s [%s %s]\n" "${RANK:-${SLURM_PROCID:-0}}" "${SLURMD_NODENAME:-$(uname -n)}" "$status" \
        "${TORCHELASTIC_RESTART_COUNT:-0}" "$(date +%s.%N)" >&2
    sleep 0.5 2>/dev/null || sleep 1 # srun ends a step without waiting for the last words of the rank that failed
    ;;
esac
if [ -n "$labelled" ]; then # until its last lines are written; what it has left behind may hold them open
    exec >/dev/null 2>&1
    timeout 2 cat <&9
fi
if [ -n "$interrupted" ] && [ -z "$told" ]; then
    trap "exit $status" TERM INT HUP
    exec 2>/dev/null # what serves the image may end first, and then there is no sleep any more
    # Longer than hpcstack needs to tell all nodes and to wait for them (launch/interrupt.py), which may be gone itself.
    until=$(($(date +%s) + 90))
    while [ "$(date +%s)" -lt "$until" ]; do sleep 0.2 || sleep 1 || break; done
fi
exit "$status"'
export HPCSTACK_RANK
