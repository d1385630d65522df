"""Pyxis, a SPANK plugin that runs Enroot: `srun --container-image=/absolute/image.sqsh`.

The path is absolute, because Pyxis looks for a bare name on Docker Hub. The image's variables win
over the host's, except for those that --container-env names.

Tested in tests/unit/launch/test_plan.py and tests/integration/test_chain.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcstack.core import data
from hpcstack.runtimes.base import (
    OF_A_SHELL,
    SRUN,
    Part,
    Runtime,
    Step,
    explain_binds,
    list_forced_variables,
    list_hook_binds,
    list_hook_variables,
    make_option,
)

SAY = """\
if [ -n "${HPCSTACK_UNPACKED:-}" ] && [ "${SLURM_LOCALID:-0}" = 0 ]; then
    echo "hpcstack: $(uname -n): no FUSE here: squashfs files are unpacked, once for all tasks" >&2
fi
unset HPCSTACK_UNPACKED
exec "$@"
"""


@dataclass(frozen=True)
class Pyxis(Runtime):
    """srun itself starts one container on each node."""

    name: str = "pyxis"
    tool: str = "enroot"
    refused_signs: str = OF_A_SHELL
    is_plugin_of_srun: bool = True
    uses_hooks: bool = True
    container_per_rank: bool = False  # one a node
    in_modules: bool = True
    in_scripts: bool = True

    def parts(self, step: Step) -> list[Part]:
        out = [SRUN, *step.slurm]
        why = "the image; a bare name would be Docker Hub's"
        out.append(make_option("--container-image", step.image, why))
        why = "what lies in the home directory is not the image's"
        out.append(make_option("--no-container-mount-home", why=why))

        mounts = [mount for mount, _ in explain_binds(step, list_hook_binds(step))]
        if mounts:
            reasons = ["the site's, the user's, this folder"]
            reasons += dict.fromkeys(step.mount_reasons.values())
            out.append(make_option("--container-mounts", ",".join(mounts), "; ".join(reasons)))
        if step.slurm_inside:
            why = "Slurm's commands must know who asks"
            out.append(make_option("--no-container-remap-root", why=why))
        if str(step.workdir) != "/":
            out.append(make_option("--container-workdir", step.workdir, "where it was started"))

        names = sorted(list_forced_variables(step))
        if names:
            why = "these win over the image's own"
            out.append(make_option("--container-env", ",".join(names), why))

        command = step.command
        if step.squashfs:
            # Pyxis shows nothing of what Enroot's hooks say.
            command = ("/bin/sh", "-c", SAY, "say", *command)
        if step.stack:
            proof = data.read_script("in-image/proof.sh")
            command = ("/bin/sh", "-c", proof, "proof", step.stack, step.recipe, *command)
        out.append(Part(command, "what each task runs"))
        return out

    def environment(self, step: Step) -> dict[str, str]:
        variables = list_forced_variables(step) | list_hook_variables(step)
        if step.slurm_inside:
            variables |= step.slurm_inside.make_environment()
        return variables


RUNTIME = Pyxis()
