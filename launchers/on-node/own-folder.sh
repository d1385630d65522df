# own_folder NAME: sets `own` to a folder for temporary files that this user alone can write, and that this user's other
# tasks on the node find. Whoever takes its name before holds nothing up: then it has an ending that nobody can guess, and
# it is found by whose it is. It fails where no folder can be made.
own_folder() {
    _plain=${TMPDIR:-/tmp}/hpcstack-$1-$(id -u)
    own=$_plain
    mkdir -m 700 "$own" 2>/dev/null
    if [ -n "$(find "$own" -prune -type d -user "$(id -u)" ! -perm /077 2>/dev/null)" ]; then return 0; fi
    own=$(find_private "$1")
    if [ -n "$own" ]; then return 0; fi
    _drawn=$(mktemp -d "$_plain.XXXXXX") || return 1
    own=$(find_private "$1") # of several that were made at once, all tasks take the first
    if [ -n "$own" ]; then return 0; fi
    rmdir "$_drawn" # this filesystem has no modes: whose it is must do
    own=$_plain
    [ -d "$own" ] && [ -O "$own" ] && [ ! -L "$own" ]
}
find_private() { # NAME: the first of its folders with an ending that nobody else can open; one look, whatever else is there
    find "${TMPDIR:-/tmp}/" -maxdepth 1 -name "hpcstack-$1-$(id -u).??????" -type d -user "$(id -u)" ! -perm /077 2>/dev/null |
        LC_ALL=C sort | head -n 1
}
