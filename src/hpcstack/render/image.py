"""The image's definition in three formats, and the folder of files that goes into it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.characters import VARIABLE
from hpcstack.core.quote import check_unbroken, quote_sh, quote_words
from hpcstack.lock.model import UNKNOWN, Lock, LockedPlatform
from hpcstack.oci.metadata import SINGULARITY, apptainer_files
from hpcstack.recipe import guard
from hpcstack.recipe.adopted import describe_adopted
from hpcstack.render.steps import HOME, plan_steps, step_files
from hpcstack.render.template import fill_template, read_data_file
from hpcstack_smoke import __version__ as suite_version

if TYPE_CHECKING:
    from hpcstack.recipe.model import Stack

CONTEXT = "context/hpcstack"
# The file that each kind of builder reads, and its template. An image's key is made of the one
# that its engine reads, so a format that is added here changes no key.
DEFINITIONS = {
    "apptainer.def": "apptainer.def.j2",
    "Dockerfile": "Dockerfile.j2",
    "enroot.sh": "enroot.sh.j2",
}
KERNEL_NAMES = {
    "linux/amd64": "x86_64",
    "linux/arm64": "aarch64",
}  # as `uname -m` says, and Enroot's --arch wants


def local_definition(definition: str, base: str) -> str:
    """DEFINITION, rendered for a registry, starting from the imported BASE instead."""
    head, found, rest = definition.partition("Bootstrap: docker\nFrom: ")
    assert found
    return f"{head}Bootstrap: localimage\nFrom: {base}\n{rest.partition(chr(10))[2]}"


def image_files(stack: Stack, lock: Lock, platform: str) -> dict[str, str]:
    """Return {path: text} of the image's definition in every format, and of the context."""
    context = context_files(stack, lock, platform)
    if stack.adopted:  # there is nothing to build it from
        return context

    values = _definition_values(stack, lock, platform)
    definitions = {
        name: fill_template("images", template, **values) for name, template in DEFINITIONS.items()
    }
    return definitions | context


def build_files(stack: Stack, lock: Lock, platform: str, definition: str) -> dict[str, str]:
    """Return {path: text} of the context, and of DEFINITION, one of DEFINITIONS or empty."""
    context = context_files(stack, lock, platform)
    if not definition:
        return context

    values = _definition_values(stack, lock, platform)
    text = fill_template("images", DEFINITIONS[definition], **values)
    return {definition: text, **context}


def _definition_values(stack: Stack, lock: Lock, platform: str) -> dict[str, object]:
    """Return what the templates of the definitions are filled with."""
    base = lock.base
    locked = lock.platform(platform)
    digest = locked.digest if locked.digest != UNKNOWN else base.tag
    return {
        "stack": stack,
        "steps": plan_steps(stack, locked, lock.sources),
        "environment": stack.variables(locked.environment),
        "entrypoint": stack.entrypoint,
        "docker_entrypoint": (f"{HOME}/compat.sh", *stack.entrypoint),
        "home": HOME,
        "context": CONTEXT,
        "tagged": f"{base.registry}/{base.repository}:{base.tag}",
        "pinned": lock.named(platform),
        "repository": base.repository,
        "digest": digest,
        "enroot_uri": f"docker://{base.registry}#{base.repository}:{digest}",
        "architecture": KERNEL_NAMES[platform],
        "stand_in": lock.stand_in(),
    }


def context_files(stack: Stack, lock: Lock, platform: str) -> dict[str, str]:
    """What is copied to /opt/hpcstack: the build's functions, the smoke suite, and Enroot's files."""
    locked = lock.platform(platform)
    files = {
        "build/guard.sh": guard.render_guard(stack.packages.allow_replace),
        "build/lib.sh": read_data_file("images", "lib.sh"),
        "build/live_indexes.py": read_data_file("images", "live_indexes.py"),
        "compat.sh": read_data_file("images", "compat.sh"),
        **step_files(stack, locked),
        "etc/environment": environment_file(locked, stack),
        "etc/rc": enroot_rc(locked, stack),
        **({"etc/adopted": f"{describe_adopted(stack)}\n"} if stack.adopted else {"etc/fstab": ""}),
        "etc/profile.sh": render_profile(locked, stack),
        **{
            f"etc/singularity/{path}": text
            for path, text in render_singularity(locked, stack).items()
        },
        "stack.json": json.dumps(describe_image(stack, lock, platform), indent=1, sort_keys=True)
        + "\n",
    }
    files |= {f"smoke/{path}": text for path, text in data.smoke_files().items()}
    return {f"{CONTEXT}/{path}": text for path, text in files.items()}


def describe_image(stack: Stack, lock: Lock, platform: str) -> dict[str, object]:
    """What the image says of itself in /opt/hpcstack/stack.json."""
    digest = lock.platform(platform).digest
    return {
        "format": "hpcstack/image/v1",
        "stack": stack.full_name,
        "summary": stack.summary,
        "spec_sha256": stack.checksum(),
        "base": lock.base_name(),
        "base_digest": "" if lock.not_looked_up or digest == UNKNOWN else digest,
        **({"adopted": stack.adopted.model_dump()} if stack.adopted else {}),
        "platform": platform,
        "holds": lock.facts(platform),
        "stand_in": lock.stand_in(),
        "suite": suite_version,
        "tests": list(stack.tests),
    }


def environment_file(locked: LockedPlatform, stack: Stack) -> str:
    """/etc/environment, which is where Enroot and Pyxis take the image's variables from; a variable
    a line.
    """
    merged = locked.environment | stack.variables(locked.environment)
    return "".join(
        f"{name}={check_unbroken(value)}\n"
        for name, value in merged.items()
        if VARIABLE.fullmatch(name)
    )


def render_profile(locked: LockedPlatform, stack: Stack) -> str:
    """/etc/profile.d/hpcstack.sh: Enroot starts a login shell, and Debian's /etc/profile makes PATH
    its own.
    """
    path = (locked.environment | stack.variables(locked.environment)).get("PATH", "")
    if not path:
        return "\n"
    value = quote_sh(check_unbroken(path))
    return (
        f"# shellcheck shell=sh\n# The image's own PATH, also in a login shell.\nexport "
        f"PATH={value}\n"
    )


def render_singularity(locked: LockedPlatform, stack: Stack) -> dict[str, str]:
    """{path below /.singularity.d: text} of what Apptainer reads, as its own build would have it."""
    entrypoint, command = choose_entrypoint(locked, stack)
    labels = locked.labels | {"org.hpcstack.stack": stack.full_name} | stack.labels
    files = apptainer_files(locked.environment, entrypoint, command, labels)
    own = "".join(
        f"export {name}={quote_sh(value)}\n"
        for name, value in stack.variables(locked.environment).items()
    )
    files[f"{SINGULARITY}/env/90-environment.sh"] = f"#!/bin/sh\n{own}. {HOME}/compat.sh\n"
    return {path.removeprefix(f"{SINGULARITY}/"): text for path, text in files.items()}


def choose_entrypoint(
    locked: LockedPlatform, stack: Stack
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The entrypoint and the default command; as with Docker, a new entrypoint drops the base's
    command.
    """
    return (stack.entrypoint, ()) if stack.entrypoint else (locked.entrypoint, locked.command)


def enroot_rc(locked: LockedPlatform, stack: Stack) -> str:
    """/etc/rc, which Enroot runs: the working directory and the entrypoint of the base."""
    workdir = locked.workdir or "/"
    entrypoint, command = choose_entrypoint(locked, stack)
    return fill_template(
        "images",
        "rc.j2",
        name=stack.full_name,
        workdir=workdir,
        entrypoint=quote_words(entrypoint),
        start=quote_words((*entrypoint, *(command or ((), ("/bin/sh",))[not entrypoint]))),
    )
