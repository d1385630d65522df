"""For runtimes that hand a container nothing of the task's environment, or all of it: what each variable is to be.

The rule is Pyxis's: the image's own variables win over the host's, but for those that the step forces; all else of the
task's environment, Slurm's and MPI's variables among it, is there.
"""

from __future__ import annotations

from hpcstack.core.characters import VARIABLE
from hpcstack.runtimes.base import Step, forced

HOSTS = ("PATH", "HOME", "SHELL", "PWD", "OLDPWD", "SHLVL", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "_")
# Puts OPTION NAME before the arguments for each variable of this shell that is not in $_hpcstack_left.
NAMES = """\
for _hpcstack_name in $(env -0 | tr '\\n\\0' ' \\n' | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do
    case $_hpcstack_left in
    *" $_hpcstack_name "*) ;;
    *) set -- --env "$_hpcstack_name" "$@" ;;
    esac
done
"""
LEFT = f"""\
_hpcstack_left=" {" ".join(HOSTS)} "
while [ "$1" != -- ]; do _hpcstack_left="$_hpcstack_left$1 "; shift; done
shift
"""


def kept(step: Step) -> dict[str, str]:
    """The image's variables that the step does not force."""
    found = sorted(step.image_environment.items())
    return {name: value for name, value in found if VARIABLE.fullmatch(name) and name not in forced(step)}
