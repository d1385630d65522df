# Holds squashfs.sh. Around a task whose runtime mounts no squashfs file but the image: in the words of the command,
# `@squashfs1:`, `@squashfs2:` and so on become the folders where the files can be read. Run by apart.sh.
# Arguments: FILE NAME... -- COMMAND...
#: squashfs.sh
if [ "${HPCSTACK_APART:-}" != yes ]; then
    serve_squashfs() { return 1; } # a mount that everybody sees would outlive a task that is killed
    cannot_mount="no mount namespace for users here (unshare --map-current-user --keep-caps)"
fi
unset HPCSTACK_APART
served=$$
place=${TMPDIR:-/tmp}/hpcstack-mounts-$(id -u)
mkdir -m 700 "$place" 2>/dev/null
if [ ! -O "$place" ] || [ -L "$place" ]; then squashfs_fail "$place is somebody else's"; fi
count=0
found=
while [ "$1" != -- ]; do
    count=$((count + 1))
    open_squashfs "$1" "$2" "$place/$count"
    found="$found$opened
"
    shift 2
done
shift
words=$# left=$count # each is named once; what the user's own command says after that is left alone
while [ "$words" -gt 0 ]; do
    word=$1 words=$((words - 1))
    shift
    case $left:$word in
    0:*) ;;
    *@squashfs[0-9]*:*)
        left=$((left - 1))
        number=${word#*@squashfs}
        number=${number%%:*}
        folder=$(printf %s "$found" | sed -n "${number}p")
        word=${word%%@squashfs*}$folder:${word#*@squashfs"$number":}
        ;;
    esac
    set -- "$@" "$word"
done
exec "$@"
