# Holds ranks.sh. Interrupts the ranks of a step on this node, as Ctrl-C on a terminal of their own would, and waits until
# all have ended. $1: the job; $2: the step; $3: for how many seconds. The answer is one line: how many there were,
# and the numbers of those that had not ended.
#: ranks.sh
found=
for pid in $(processes "$1"); do
    if ours "$pid" && here "$pid" "$2"; then found="$found $pid:$(of "$pid" RANK):$(of "$pid" SLURM_PROCID)"; fi
done
count=0
for one in $found; do
    count=$((count + 1))
    kill -URG "$(field "${one%%:*}" 2)" 2>/dev/null
done
until=$(($(date +%s) + $3))
left=$found
while [ -n "$left" ] && [ "$(date +%s)" -le "$until" ]; do
    sleep 0.1 2>/dev/null || sleep 1
    still=
    for one in $left; do
        if kill -0 "${one%%:*}" 2>/dev/null; then still="$still $one"; fi
    done
    left=$still
done
numbers=
for one in $left; do
    rank=${one#*:}
    number=${rank%%:*}
    numbers="$numbers ${number:-${rank#*:}}"
done
echo "hpcstack-interrupted: $count$numbers"
