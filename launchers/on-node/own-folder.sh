# own_folder NAME: sets `own` to a folder for temporary files that this user alone can write, and that this user's other
# tasks on the node find. Whoever takes its name before holds nothing up: then it has an ending that nobody can guess, and
# it is found by whose it is. It fails where no folder can be made.
own_folder() {
    own=${TMPDIR:-/tmp}/hpcstack-$1-$(id -u)
    mkdir -m 700 "$own" 2>/dev/null
    if is_private "$own"; then return 0; fi
    for own in "$own".??????; do
        if is_private "$own"; then return 0; fi
    done
    own=$(mktemp -d "${TMPDIR:-/tmp}/hpcstack-$1-$(id -u).XXXXXX")
}
is_private() { # FOLDER, which is no link: nobody else can open it
    [ -n "$(find "$1" -prune -type d -user "$(id -u)" ! -perm /077 2>/dev/null)" ]
}
