# Holds left-out.sh and task-names.sh. A task under Enroot, which hands on nothing of the task's environment but what is
# named: all is, as Pyxis does it. Arguments: NAMES... -- OPTIONS of enroot start... COMMAND...
#: left-out.sh
#: task-names.sh
exec enroot start --env HPCSTACK_COMMAND_ONLY=yes "$@"
