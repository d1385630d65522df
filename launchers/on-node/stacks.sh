# Holds ranks.sh. What each rank of a job on this node is doing, as text: a line a rank, then its Python stack, else its
# threads. Nothing is stopped or changed. $1: the job; $2: a step of it, or nothing; $3: py-spy as the caller has it, or
# nothing. In a job that `hpcstack launch` did not start ranks are Python programs with a RANK or a SLURM_PROCID whose
# parent is no such program.
LC_ALL=C
export LC_ALL
job=$1 step=$2 lent=$3 host=${SLURMD_NODENAME:-$(uname -n)}
#: ranks.sh
stack() { # by py-spy: as the caller has it, of the node, of the image; but nothing of a user's image by root
    set -- "$1" "$lent" py-spy "/proc/$1/root/usr/local/bin/py-spy" "/proc/$1/root/opt/conda/bin/py-spy"
    whom=$1
    shift
    for spy in "$@"; do
        case $spy in /proc/*) [ "$(id -u)" != 0 ] || continue ;; esac
        command -v "$spy" >/dev/null 2>&1 || continue
        if said=$(timeout 15 "$spy" dump --nonblocking --full-filenames --pid "$whom" 2>&1); then
            printf '%s\n' "$said" | sed 's/^/  /'
            return
        fi
        tried=$(printf '%s' "$said" | tail -n 1)
    done
    return 1
}
threads() {
    for task in /proc/"$1"/task/*; do
        echo "$(cat "$task/comm"), state $(field "$1" 1), waits in $(cat "$task/wchan")"
    done 2>/dev/null | sort | uniq -c | sort -rn | head -n 12 | sed 's/^ */  threads: /'
}
look() {
    rank=$(of "$1" RANK)
    world=$(of "$1" WORLD_SIZE)
    rank=${rank:-$(of "$1" SLURM_PROCID)} world=${world:-$(of "$1" SLURM_STEP_NUM_TASKS)}
    echo "hpcstack: rank ${rank:-0} of ${world:-1} on $host is process $1 of step $(of "$1" SLURM_STEP_ID), state $(field "$1" 1): $(words "$1" | cut -c1-200)"
    tried=
    stack "$1" && return
    [ -z "$tried" ] || echo "  py-spy: $tried"
    threads "$1"
}
python() { case $(cat "/proc/$1/comm" 2>/dev/null) in python*) ;; *) return 1 ;; esac; }
others() {
    python "$1" || return 1
    if python "$(field "$1" 2)"; then [ -n "$(of "$1" RANK)" ] && [ -z "$(of "$(field "$1" 2)" RANK)" ]; fi
}
# NCCL's own RAS, which listens on each node and knows of all: asked by the first task, through one rank of its node.
ras() {
    [ "${SLURM_PROCID:-0}" = 0 ] && command -v bash >/dev/null || return 0
    address=$(of "$1" NCCL_RAS_ADDR)
    case ${address:=localhost:28028} in *[!A-Za-z0-9._:-]* | *:*[!0-9]* | *:) return 0 ;; esac
    # root connects to this node alone: where else is for the job's user to say
    [ "$(id -u)" != 0 ] || address=localhost:${address##*:}
    # shellcheck disable=SC2016 # for the other shell
    timeout 14 bash -c 'exec 3<>"/dev/tcp/$1/$2" || exit 1
        printf "timeout 8\nset format json\nverbose status\n" >&3
        cat <&3' ras "${address%:*}" "${address##*:}" 2>/dev/null | head -c 64000000 | sed 's/^/hpcstack-ras: /'
}
# What the node's GPUs do, and what its ports moved and counted within a second.
gpus() {
    command -v nvidia-smi >/dev/null 2>&1 || return 0
    own=
    for device in "${HPCSTACK_DEV:-/dev}"/nvidia[0-9]*; do # a job without a GPU has none that it may open
        if (: <"$device") 2>/dev/null; then own=yes; fi
    done
    [ -n "$own" ] || return 0
    said=$(timeout -k 1 8 nvidia-smi --query-gpu=index,utilization.gpu,power.draw,clocks.sm,temperature.gpu \
        --format=csv,noheader,nounits 2>&1) || said="failed: $(printf '%s' "$said" | tail -n 1)"
    printf '%s\n' "$said" | head -n 64 | sed "s/^/hpcstack-gpu: $host, /"
}
counted() { # every counter of every port: DEVICE/PORT NAME VALUE
    for port in "${HPCSTACK_SYS:-/sys}"/class/infiniband/*/ports/*; do
        [ -d "$port" ] || continue
        device=${port%/ports/*}
        for name in port_xmit_data port_rcv_data port_xmit_wait symbol_error link_error_recovery link_downed \
            local_link_integrity_errors port_rcv_errors excessive_buffer_overrun_errors; do
            [ ! -r "$port/counters/$name" ] || echo "${device##*/}/${port##*/} $name $(cat "$port/counters/$name")"
        done
        for name in local_ack_timeout_err packet_seq_err out_of_sequence rnr_nak_retry_err roce_slow_restart; do
            [ ! -r "$port/hw_counters/$name" ] || echo "${device##*/}/${port##*/} $name $(cat "$port/hw_counters/$name")"
        done
    done 2>/dev/null
}
ports() {
    before=$(counted)
    [ -n "$before" ] || return 0
    sleep 1
    # A line a port: what it moved, and what of the rest went up.
    { printf '%s\n' "$before" && echo again && counted; } | awk -v host="$host" '
        $1 == "again" { again = 1; next }
        !again { was[$1, $2] = $3; next }
        { gain = ($1, $2) in was && $3 > was[$1, $2] ? $3 - was[$1, $2] : 0 }
        !($1 in said) { said[$1] = ""; order[++count] = $1 }
        gain || $2 ~ /_data$/ { said[$1] = said[$1] " " $2 " " sprintf("%.0f", gain) }
        END { for (i = 1; i <= count; i++) print "hpcstack-port: " host " " order[i] said[order[i]] }'
}
# When a process was started, a minute early for the sake of other machines' clocks, in seconds of the epoch.
started() {
    booted=$(sed -n 's/^btime //p' /proc/stat 2>/dev/null)
    ticks=$(field "$1" 20)
    echo "$((${booted:-0} + ${ticks:-0} / $(getconf CLK_TCK 2>/dev/null || echo 100) - 60))"
}
# torch's flight recorder: where a rank has a pipe for it, it is asked to write; where it writes is said.
flights() {
    file=$(of "$1" TORCH_FR_DUMP_TEMP_FILE)
    file=${file:-$(of "$1" TORCH_NCCL_DEBUG_INFO_TEMP_FILE)}
    pipe=$(of "$1" TORCH_NCCL_DEBUG_INFO_PIPE_FILE)
    pipe=/proc/$1/root$pipe$(of "$1" RANK).pipe
    # Not for root, where the job is another one's: the path is its owner's to choose.
    # shellcheck disable=SC2016 # for the other shell
    if [ "$(id -u)" = "$(stat -c %u "/proc/$1" 2>/dev/null)" ] && [ -p "$pipe" ]; then
        timeout 2 sh -c 'printf 1 >"$1"' pipe "$pipe" 2>/dev/null
    fi
    case $file in /*) echo "hpcstack-flights: $(started "$1") $file" ;; esac
}
one() {
    look "$1"
    flights "$1"
}
every() { # all ranks at once: py-spy may need its 15 s for each. Each writes apart, so that no two lines mix
    apart=$(mktemp -d 2>/dev/null) || {
        for pid; do one "$pid"; done
        return
    }
    trap 'rm -rf "$apart"' EXIT
    for pid; do one "$pid" >"$apart/$pid" & done
    wait
    for pid; do cat "$apart/$pid"; done
}
listed=$(processes "$job")
for kind in ours others; do
    chosen=
    for pid in $listed; do
        "$kind" "$pid" && here "$pid" "$step" && chosen="$chosen $pid"
    done
    [ -n "$chosen" ] || continue
    # shellcheck disable=SC2086 # numbers
    every $chosen
    ras "${chosen##* }"
    ports
    gpus # the last, as it may not answer
    exit 0
done
echo "hpcstack: no rank of job $job is on $host"
