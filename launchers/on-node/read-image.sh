# How fast this machine mounts and reads IMAGE, READERS at once, by each program that can here: what a step in it would
# see. A line for each: PROGRAM MILLISECONDS-TO-MOUNT MILLISECONDS-TO-READ BYTES. `enroot` stands alone where it is here.
image=$1 readers=$2
work=$(mktemp -d) || exit 1
mkdir "$work/at"
unmount() { fusermount3 -u "$work/at" 2>/dev/null || fusermount -u "$work/at" 2>/dev/null; }
trap 'unmount; rm -rf "$work/list" "$work/at" && rmdir "$work"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
now() { date +%s%N; }
passed() { echo "$((($(now) - $1) / 1000000))"; }
# a part of many files, as Python and the linker read
list() { (cd "$1" && find . -xdev -type f -size +64k -print0 2>/dev/null | head -z -n 512); }
part="xargs -0 -P $readers -n 4 head -q -c 33554432"
for program in squashfuse_ll squashfuse; do
    command -v "$program" >/dev/null || continue
    # once for the list, and to have the file in memory
    "$program" "$image" "$work/at" 2>/dev/null || continue
    list "$work/at" >"$work/list"
    bytes=$(cd "$work/at" && $part <"$work/list" | wc -c)
    unmount
    began=$(now)
    "$program" "$image" "$work/at" && ls "$work/at" >/dev/null || continue
    mounted=$(passed "$began") began=$(now)
    (cd "$work/at" && $part <"$work/list" >/dev/null)
    echo "$program $mounted $(passed "$began") $bytes"
    unmount
done
for program in apptainer singularity; do
    command -v "$program" >/dev/null && [ -s "$work/list" ] || continue
    began=$(now)
    "$program" --quiet exec --no-home "$image" true </dev/null || continue
    mounted=$(passed "$began") began=$(now)
    "$program" --quiet exec --no-home "$image" sh -c "cd / && $part >/dev/null" <"$work/list" || continue
    read=$(($(passed "$began") - mounted))
    echo "$program $mounted $((read > 0 ? read : 1)) $bytes"
    break
done
! command -v enroot >/dev/null || echo enroot
