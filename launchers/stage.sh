# Once on each node, before the ranks: what they read lies on the node's own disk, whole, or is not there at all.
# FOLDER have NAME                             is it there?
# FOLDER put SOURCE NAME BYTES SHA256 ...      bring each, unless it is there; SHA256 is - for what is not checked
set -eu
folder=$1
verb=$2
shift 2
fail() {
    printf 'hpcstack: %s: %s\n' "$(uname -n)" "$1" >&2
    exit 125
}
above=$(dirname "$folder")
[ -d "$above" ] || mkdir -p -m 1777 "$above" 2>/dev/null || [ -d "$above" ] || fail "$above cannot be made"
mkdir -m 700 "$folder" 2>/dev/null || [ -d "$folder" ] || fail "$folder cannot be made"
if [ ! -O "$folder" ] || [ -L "$folder" ]; then fail "$folder is somebody else's"; fi
if [ "$verb" = have ]; then
    [ -e "$folder/$1" ]
    exit
fi
exec 9>"$folder/.lock"
flock 9 # two jobs of one user on one node bring it once

room() { # BYTES: what was used longest ago goes until they fit
    while [ "$(df -Pk "$folder" | awk 'NR == 2 { print $4 }')" -le $(($1 / 1024 + 1024)) ]; do
        # shellcheck disable=SC2012 # the names are our own
        oldest=$(ls -tr "$folder" | head -n 1)
        [ -n "$oldest" ] || fail "$folder has no room for $1 bytes; hpcstack launch --stage none reads the shared file"
        rm -rf "${folder:?}/$oldest"
    done
}

while [ "$#" -gt 0 ]; do
    source=$1 name=$2 bytes=$3 sha256=$4
    shift 4
    cast=$folder/.$name.${SLURM_JOB_ID:-0}.cast part=$folder/.$name.${SLURM_JOB_ID:-0}.part
    if [ -e "$folder/$name" ]; then
        touch "$folder/$name"
        rm -f "$cast"
        continue
    fi
    trap 'rm -rf "$part" "$cast"' EXIT
    if [ -e "$cast" ]; then
        mv "$cast" "$part"
    else
        rm -rf "$part"
        room "$bytes"
        cp -r --preserve=mode,timestamps,links "$source" "$part" || fail "$source was not copied to $folder"
    fi
    if [ "$sha256" != - ] && [ "$(sha256sum <"$part")" != "$sha256  -" ]; then fail "$source is not what was built"; fi
    sync -f "$part"
    mv "$part" "$folder/$name"
    touch "$folder/$name"
    trap - EXIT
done
