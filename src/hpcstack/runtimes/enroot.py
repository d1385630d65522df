"""Enroot under srun where there is no Pyxis: `enroot start IMAGE.sqsh`, which mounts the image and unpacks nothing."""

from __future__ import annotations

from dataclasses import dataclass

from hpcstack.runtimes.base import SRUN, Part, Step, forced, mounted

IN = 'cd "$1" && shift && exec "$@"'
# Enroot hands on nothing of the task's environment but what is named: all is named, as Pyxis does, but for what is the
# image's own or the host's. What follows $0 is the names to leave out, `--`, Enroot's options and the command.
START = """\
left=" PATH HOME SHELL PWD OLDPWD SHLVL TMPDIR LD_LIBRARY_PATH LD_PRELOAD _ "
while [ "$1" != -- ]; do left="$left$1 "; shift; done
shift
for name in $(env -0 | tr '\\n\\0' ' \\n' | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do
    case $left in
    *" $name "*) ;;
    *) set -- --env "$name" "$@" ;;
    esac
done
exec enroot start "$@"
"""


@dataclass(frozen=True)
class Enroot:
    name: str = "enroot"

    def parts(self, step: Step) -> list[Part]:
        own = sorted(set(step.image_environment) - set(forced(step)))
        out = [SRUN, *step.slurm]
        out.append(
            Part(("/bin/sh", "-c", START, "enroot", *own, "--"), "the task's variables go in; the image is mounted")
        )
        out += [Part(("--mount", f"{mount}:none:x-create=auto,bind,rw"), why) for mount, why in mounted(step)]
        command = step.command
        if str(step.workdir) != "/":
            command = ("/bin/sh", "-c", IN, "in", str(step.workdir), *command)
        return [*out, Part((str(step.image),), "the image"), Part(command, "what each task runs, where it was started")]

    def environment(self, step: Step) -> dict[str, str]:
        return forced(step)


RUNTIME = Enroot()
