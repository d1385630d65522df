# Takes the names before `--` from the arguments: variables of this shell that task-names.sh leaves out, as it does those
# that are the host's own.
_hpcstack_left=" PATH HOME SHELL PWD OLDPWD SHLVL TMPDIR LD_LIBRARY_PATH LD_PRELOAD _ "
while [ "$1" != -- ]; do _hpcstack_left="$_hpcstack_left$1 "; shift; done
shift
