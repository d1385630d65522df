# Holds own-folder.sh. Slurm gives a signal to every process of a step. What serves the image by FUSE would die of it, and
# take the image away from the ranks that are to write a checkpoint. Ignoring or blocking it further up does not reach that
# program (Go's runtime undoes both for its children), so it is started by one of ours that ignores it, first on PATH.
#: own-folder.sh
if own_folder shield 2>/dev/null; then
    for tool in squashfuse_ll squashfuse fuse-overlayfs; do
        real=$(command -v "$tool") || continue
        case $real in "$own"/*) continue ;; esac
        # One that cannot be written whole, on a full disk, is none: the tool itself is next on PATH.
        if printf '#!/bin/sh\ntrap "" TERM USR1 USR2\nexec "%s" "$@"\n' "$real" >"$own/.$tool.$$"; then
            chmod 755 "$own/.$tool.$$" && mv "$own/.$tool.$$" "$own/$tool"
        else
            rm -f "$own/.$tool.$$"
        fi
    done
    PATH=$own:$PATH
fi
exec "$@"
