# Once on each node, before the ranks: what they read lies on the node's own disk, whole, or is not there at all.
# FOLDER have NAME                             is it there?
# FOLDER begun BASE KEPT                       is an image there whose bytes up to KEPT are those of that base?
# FOLDER put SOURCE NAME BYTES SHA256 BASE KEPT ...
#     bring each, unless it is there; SHA256 is - for what is not checked, BASE is - for what has none. Of an image on a
#     base that another one is on, which is there, only what differs is brought: its first 96 bytes, and those from KEPT on
set -eu
folder=$1
verb=$2
shift 2
fail() {
    printf 'hpcstack: %s: %s\n' "$(uname -n)" "$1" >&2
    exit 125
}
safe() { # FOLDER: nobody but root and us can put another thing in the place of what lies in it
    owner=$(stat -c %u "$1") mode=$((0$(stat -c %a "$1")))
    case $owner in 0 | "$(id -u)") ;; *) return 1 ;; esac
    if [ "$(stat -c %G "$1")" = "$(stat -c %U "$1")" ]; then mode=$((mode & ~020)); fi # a group of one user's own
    [ "$((mode & 022))" = 0 ] || [ "$((mode & 01000))" != 0 ]
}
umask 022
mkdir -p "$(dirname "$folder")" 2>/dev/null || true
above=$(cd -P "$(dirname "$folder")" 2>/dev/null && pwd -P) ||
    fail "$(dirname "$folder") is not there: staging.folder in site.yaml names a folder that each node has"
around=$above
until safe "$around" && [ "$around" = / ]; do
    safe "$around" || fail "$around belongs to somebody who could swap what is staged there: staging.folder in site.yaml"
    around=$(dirname "$around")
done
mkdir -m 700 "$folder" 2>/dev/null || [ -d "$folder" ] || fail "$folder cannot be made"
if [ ! -O "$folder" ] || [ -L "$folder" ]; then fail "$folder is somebody else's ($(stat -c %U "$folder")); hpcstack launch --stage none reads the shared file"; fi
chmod 700 "$folder"
if [ "$verb" = have ]; then
    [ -e "$folder/$1" ]
    exit
fi
like() { # BASE KEPT: the image that is there and begins as those on this base do
    [ "$1" != - ] || return 1
    for about in "$folder"/.*.base; do
        image=${about%.base}
        image=$folder/${image##*/.}
        if [ -f "$image" ] && [ "$(cat "$about")" = "$1 $2" ]; then
            echo "$image"
            return 0
        fi
    done
    return 1
}
if [ "$verb" = begun ]; then
    like "$1" "$2" >/dev/null
    exit
fi
exec 9>"$folder/.lock"
flock 9 # two jobs of one user on one node bring it once
job=${SLURM_JOB_ID:-0}
keep=
trap 'exit 143' TERM INT HUP # so that the trap below is run: dash does not do it for a signal
trap 'rm -rf "${part:-}" "${cast:-}" "${rest:-}"' EXIT

runs() { # JOB: whether it has a step on this node, or may have one
    ours=
    for process in /proc/[0-9]*/cmdline; do
        case $(tr '\0' ' ' <"$process" 2>/dev/null) in
        "slurmstepd: [$1."*) return 0 ;;
        "slurmstepd: [$job."*) ours=seen ;;
        esac
    done
    if [ -r /proc/1/cmdline ]; then
        # A job may have a PID namespace of its own (namespace/linux of Slurm 25.11): others cannot be seen from there.
        # The number is that of the machine's first one: PROC_PID_INIT_INO in Linux's include/linux/proc_ns.h.
        [ -z "$ours" ] && [ "$(readlink /proc/self/ns/pid)" != "pid:[4026531836]" ]
        return
    fi
    for process in /proc/[0-9]*/environ; do # processes of others are hidden here (hidepid): our own are not
        if tr '\0' '\n' <"$process" 2>/dev/null | grep -qx "SLURM_JOB_ID=$1"; then return 0; fi
    done
    return 1
}

gone() { # NAME: it goes, unless this call needs it or a job that runs here does
    case $keep in *" $1 "*) return 1 ;; esac
    while read -r user; do
        if [ "$user" != "$job" ] && runs "$user"; then return 1; fi
    done 2>/dev/null <"$folder/.$1.jobs"
    chmod -R u+w "$folder/$1"
    rm -rf "${folder:?}/$1" "$folder/.$1.jobs" "$folder/.$1.base"
}

room() { # BYTES: what was used longest ago goes until they fit
    # shellcheck disable=SC2045 # the names are our own
    for oldest in $(ls -tr "$folder") end; do
        [ "$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')" -le $(($1 / 1024 + 1024)) ] || return 0
        [ "$oldest" = end ] || gone "$oldest" || true
    done
    fail "$folder has no room for $1 bytes; hpcstack launch --stage none reads the shared file"
}

whole() { # FILE SHA256
    [ "$2" = - ] || [ "$(sha256sum <"$1")" = "$2  -" ]
}

differs() { # SOURCE REST BASE KEPT PART: an image that is here, and of SOURCE (or REST, which was broadcast) what differs
    beginning=$(like "$3" "$4") || return 1
    cp --reflink=auto "$beginning" "$5" && chmod u+w "$5" && truncate -s "$4" "$5" || return 1
    if [ -e "$2" ]; then
        dd if="$2" of="$5" bs=96 count=1 conv=notrunc status=none && tail -c +97 "$2" >>"$5"
    else
        dd if="$1" of="$5" bs=96 count=1 conv=notrunc status=none && tail -c +"$(($4 + 1))" "$1" >>"$5"
    fi
}

for left in "$folder"/.*.part; do # of jobs that were killed: nobody else holds the lock
    [ ! -e "$left" ] || { chmod -R u+w "$left"; rm -rf "$left"; }
done
for left in "$folder"/.*.cast "$folder"/.*.rest; do
    owner=${left%.*}
    if [ -e "$left" ] && [ "${owner##*.}" != "$job" ] && ! runs "${owner##*.}"; then rm -f "$left"; fi
done
position=0
for word in "$@"; do
    if [ $((position % 6)) = 1 ]; then keep="$keep $word "; fi
    position=$((position + 1))
done

while [ "$#" -gt 0 ]; do
    source=$1 name=$2 bytes=$3 sha256=$4 base=$5 kept=$6
    shift 6
    cast=$folder/.$name.$job.cast rest=$folder/.$name.$job.rest part=$folder/.$name.$job.part
    grep -qx "$job" "$folder/.$name.jobs" 2>/dev/null || echo "$job" >>"$folder/.$name.jobs"
    if [ -e "$folder/$name" ]; then
        touch "$folder/$name"
        rm -f "$cast" "$rest"
        continue
    fi
    if [ -e "$cast" ] && whole "$cast" "$sha256"; then
        mv "$cast" "$part"
    else
        rm -f "$cast" # what was broken off: it is copied
        beginning=$(like "$base" "$kept") || beginning=
        # what it begins with stays, if there is room for both
        (keep="$keep ${beginning##*/} " && room "$bytes") 2>/dev/null || room "$bytes"
        if ! { differs "$source" "$rest" "$base" "$kept" "$part" 2>/dev/null && whole "$part" "$sha256"; }; then
            rm -f "$part" # nothing here to begin with, or it is not what it should be
            cp -rH --preserve=mode,timestamps,links "$source" "$part" || fail "$source was not copied to $folder"
            whole "$part" "$sha256" || fail "$source is not what was built"
        fi
    fi
    rm -f "$rest"
    chmod -R a-w "$part" # the next job gets the same
    sync -f "$part"
    [ "$base" = - ] || printf '%s\n' "$base $kept" >"$folder/.$name.base"
    mv "$part" "$folder/$name"
    touch "$folder/$name"
done
part='' cast='' rest=''
