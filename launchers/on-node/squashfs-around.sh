# Holds own-folder.sh and squashfs.sh. Around a task whose runtime mounts no squashfs file but the image: in the words of
# the command, `@squashfs1:`, `@squashfs2:` and so on become the folders where the files can be read. Run by apart.sh.
# Arguments: FILE NAME... -- COMMAND...
#: own-folder.sh
#: squashfs.sh
if [ "${HPCSTACK_APART:-}" != yes ]; then
    serve_squashfs() { return 1; } # a mount that everybody sees would outlive a task that is killed
    cannot_mount="no mount namespace for users here (unshare --map-current-user --keep-caps)"
fi
unset HPCSTACK_APART
served=$$
own_folder mounts || squashfs_fail "no folder can be made in ${TMPDIR:-/tmp}"
place=$own
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
