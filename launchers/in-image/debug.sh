# Runs a rank; the one that is to be debugged below its debugger. Arguments: RANK DEBUGGER COMMAND... DEBUGGER is a Python
# program.
wanted=$1 debugger=$2
shift 2
case $1 in -m | *.py) set -- python3 -u "$@" ;; esac
if [ "${RANK:-${SLURM_PROCID:-0}}" != "$wanted" ]; then exec "$@"; fi
case ${1##*/} in
python | python[0-9]*) ;;
*)
    echo "hpcstack: rank $wanted cannot be debugged: $1 is not a Python interpreter" >&2
    exit 2
    ;;
esac
# Python's own options stay before -c, and the program comes after it.
python=$1 count=0
shift
for word in "$@"; do
    case ${value:-}$word in
    of:*) value= ;;
    -m | -c | [!-]*) break ;;
    -X | -W) value=of: ;;
    -[XW]?*) ;;
    -[!-]*[cm]*)
        echo "hpcstack: rank $wanted cannot be debugged: write $word as options of one letter each" >&2
        exit 2
        ;;
    esac
    count=$((count + 1))
done
if [ "$count" = "$#" ]; then
    echo "hpcstack: rank $wanted cannot be debugged: there is no program" >&2
    exit 2
fi
left=$#
while [ "$left" -gt 0 ]; do # turned round once: the debugger comes between
    if [ "$count" = 0 ]; then set -- "$@" -c "$debugger"; fi
    count=$((count - 1)) left=$((left - 1))
    set -- "$@" "$1"
    shift
done
exec "$python" -u "$@"
