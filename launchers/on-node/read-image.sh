# How fast this machine mounts and reads IMAGE, READERS at once, by each program that can here: what a step in it would
# see. A line for each: PROGRAM MILLISECONDS-TO-MOUNT MILLISECONDS-TO-READ BYTES. `enroot` stands alone where it is here.
# At most 256 files, of each at most 4 MB: a node may be at work.
image=$1 readers=$2
work=$(mktemp -d) || exit 1
mkdir "$work/at"
unmount() { fusermount3 -u "$work/at" 2>/dev/null || fusermount -u "$work/at" 2>/dev/null; }
trap 'unmount; rm -f "$work/list" && rmdir "$work/at" "$work"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
now() { date +%s%N; }
passed() { echo "$((($(now) - $1) / 1000000))"; }
# a part of many files, as Python and the linker read
list='cd "$1" && find . -xdev -type f -size +256k -print0 2>/dev/null | tr "\0\n" "\n\0" | head -n 256 | tr "\0\n" "\n\0"'
part="xargs -0 -P $readers -n 4 head -q -c 4194304"
measure() { # PROGRAM
    "$1" "$image" "$work/at" 2>/dev/null || return
    sh -c "$list" sh "$work/at" >"$work/list"
    bytes=$(cd "$work/at" && $part <"$work/list" | wc -c) # once to have the file in memory
    unmount
    began=$(now)
    "$1" "$image" "$work/at" && ls "$work/at" >/dev/null || return
    mounted=$(passed "$began") began=$(now)
    (cd "$work/at" && $part <"$work/list" >/dev/null)
    tell "$1" "$mounted" "$(passed "$began")" "$bytes"
}
tell() { if [ "$3" -gt 0 ] && [ "$4" -gt 0 ]; then echo "$1 $2 $3 $4"; fi; }
for program in squashfuse_ll squashfuse; do
    if command -v "$program" >/dev/null; then
        measure "$program"
        unmount
    fi
done
for program in apptainer singularity; do
    command -v "$program" >/dev/null || continue
    run="$program --quiet exec --no-home --contain"
    if [ ! -s "$work/list" ]; then $run "$image" sh -c "$list" sh / >"$work/list" </dev/null || continue; fi
    bytes=$($run "$image" sh -c "cd / && $part" <"$work/list" | wc -c)
    began=$(now)
    $run "$image" true </dev/null || continue
    mounted=$(passed "$began")
    # read in one container: two starts differ by more than the reading takes
    read=$($run "$image" sh -c "cd / && a=\$(date +%s%N) && { $part >/dev/null 2>&1; echo \$(((\$(date +%s%N) - a) / 1000000)); }" <"$work/list")
    tell "$program" "$mounted" "${read:-0}" "$bytes"
    break
done
! command -v enroot >/dev/null || echo enroot
