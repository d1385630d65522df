"""Render an image's definition in three formats, and its context: the folder of files for it.

The context, and the definition that an engine reads, go into the image's key: a change of one byte
gives images a new key.

Tested in tests/unit/render/test_render.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.characters import VARIABLE
from hpcstack.core.quote import check_unbroken, quote_sh
from hpcstack.lock.model import UNKNOWN, Lock, LockedPlatform
from hpcstack.oci.metadata import SINGULARITY, make_apptainer_files, render_entrypoint
from hpcstack.recipe import guard
from hpcstack.recipe.adopted import describe_adopted
from hpcstack.render.steps import HOME, plan_steps, render_step_files
from hpcstack.render.template import fill_template, read_data_file
from hpcstack_smoke import __version__ as suite_version

if TYPE_CHECKING:
    from hpcstack.recipe.model import Stack

CONTEXT = "context/hpcstack"
# The file that each kind of builder reads, and its template. Only the one that its engine reads is
# part of an image's key, so a format that is added here changes no key.
DEFINITIONS = {
    "apptainer.def": "apptainer.def.j2",
    "Dockerfile": "Dockerfile.j2",
    "enroot.sh": "enroot.sh.j2",
}
# What `uname -m` prints on each platform, and what Enroot's --arch wants.
KERNEL_NAMES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


def render_local_definition(definition: str, base: str) -> str:
    """Return the Apptainer DEFINITION, rendered for a registry, on the imported BASE instead."""
    head, found, rest = definition.partition("Bootstrap: docker\nFrom: ")
    assert found

    _, _, after_from = rest.partition("\n")
    return f"{head}Bootstrap: localimage\nFrom: {base}\n{after_from}"


def render_image_files(stack: Stack, lock: Lock, platform: str) -> dict[str, str]:
    """Return {path: text} of the image's definition in every format, and of the context.

    An adopted stack has a context only: nothing says how its image was built.
    """
    context = make_context_files(stack, lock, platform)
    if stack.adopted:
        return context

    values = _definition_values(stack, lock, platform)
    definitions = {
        name: fill_template("images", template, **values) for name, template in DEFINITIONS.items()
    }
    return definitions | context


def build_files(stack: Stack, lock: Lock, platform: str, definition: str) -> dict[str, str]:
    """Return {path: text} of what an engine reads: the context, and DEFINITION unless it is empty.

    DEFINITION is a name in DEFINITIONS.
    """
    context = make_context_files(stack, lock, platform)
    if not definition:
        return context

    values = _definition_values(stack, lock, platform)
    text = fill_template("images", DEFINITIONS[definition], **values)
    return {definition: text, **context}


def _definition_values(stack: Stack, lock: Lock, platform: str) -> dict[str, object]:
    """Return the values for the templates of the definitions."""
    base = lock.base
    locked = lock.platform(platform)

    digest = locked.digest
    if digest == UNKNOWN:
        digest = base.tag  # no registry was asked: name the base as the recipe does

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


def make_context_files(stack: Stack, lock: Lock, platform: str) -> dict[str, str]:
    """Return {path: text} of the context, which is copied to /opt/hpcstack in the image.

    It holds the functions that the steps use, the steps' own files, what Enroot and Apptainer read
    at a start, stack.json, and the smoke suite.
    """
    locked = lock.platform(platform)
    about = describe_image(stack, lock, platform)

    files = {
        "build/guard.sh": guard.render_guard(stack.packages.allow_replace),
        "build/lib.sh": read_data_file("images", "lib.sh"),
        "build/live_indexes.py": read_data_file("images", "live_indexes.py"),
        "compat.sh": read_data_file("images", "compat.sh"),
        **render_step_files(stack, locked),
        "etc/environment": render_environment_file(locked, stack),
        "etc/rc": render_enroot_rc(locked, stack),
    }
    if stack.adopted:
        files["etc/adopted"] = f"{describe_adopted(stack)}\n"
    else:
        files["etc/fstab"] = ""
    files["etc/profile.sh"] = render_profile(locked, stack)
    for path, text in render_singularity(locked, stack).items():
        files[f"etc/singularity/{path}"] = text

    files["stack.json"] = json.dumps(about, indent=1, sort_keys=True) + "\n"
    for path, text in data.read_smoke_files().items():
        files[f"smoke/{path}"] = text
    return {f"{CONTEXT}/{path}": text for path, text in files.items()}


def describe_image(stack: Stack, lock: Lock, platform: str) -> dict[str, object]:
    """Return what the image says of itself, in /opt/hpcstack/stack.json."""
    digest = lock.platform(platform).digest
    if lock.not_looked_up or digest == UNKNOWN:
        digest = ""

    about: dict[str, object] = {
        "format": "hpcstack/image/v1",
        "stack": stack.full_name,
        "summary": stack.summary,
        "spec_sha256": stack.checksum(),
        "base": lock.base_name(),
        "base_digest": digest,
        "platform": platform,
        "holds": lock.facts(platform),
        "stand_in": lock.stand_in(),
        "suite": suite_version,
        "tests": list(stack.tests),
    }
    if stack.adopted:
        about["adopted"] = stack.adopted.model_dump()
    return about


def render_environment_file(locked: LockedPlatform, stack: Stack) -> str:
    """Return /etc/environment, from which Enroot and Pyxis take the image's variables.

    It has one NAME=VALUE a line, without quotes.
    """
    merged = locked.environment | stack.variables(locked.environment)
    return "".join(
        f"{name}={check_unbroken(value)}\n"
        for name, value in merged.items()
        if VARIABLE.fullmatch(name)
    )


def render_profile(locked: LockedPlatform, stack: Stack) -> str:
    """Return /etc/profile.d/hpcstack.sh, which sets PATH to the image's own.

    Enroot starts a login shell, and Debian's /etc/profile sets PATH to a value of its own.
    """
    merged = locked.environment | stack.variables(locked.environment)
    path = merged.get("PATH", "")
    if not path:
        return "\n"

    value = quote_sh(check_unbroken(path))
    return (
        "# shellcheck shell=sh\n"
        "# The image's own PATH, also in a login shell.\n"
        f"export PATH={value}\n"
    )


def render_singularity(locked: LockedPlatform, stack: Stack) -> dict[str, str]:
    """Return {path below /.singularity.d: text} of the files that Apptainer reads at a start.

    They are those that Apptainer's own build would write.
    """
    entrypoint, command = choose_entrypoint(locked, stack)
    labels = locked.labels | {"org.hpcstack.stack": stack.full_name} | stack.labels

    files = make_apptainer_files(locked.environment, entrypoint, command, labels)
    own = "".join(
        f"export {name}={quote_sh(value)}\n"
        for name, value in stack.variables(locked.environment).items()
    )
    files[f"{SINGULARITY}/env/90-environment.sh"] = f"#!/bin/sh\n{own}. {HOME}/compat.sh\n"
    return {path.removeprefix(f"{SINGULARITY}/"): text for path, text in files.items()}


def choose_entrypoint(
    locked: LockedPlatform, stack: Stack
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the image's entrypoint and its default command.

    As with Docker, a stack that sets an entrypoint drops the base's command.
    """
    if stack.entrypoint:
        return stack.entrypoint, ()
    return locked.entrypoint, locked.command


def render_enroot_rc(locked: LockedPlatform, stack: Stack) -> str:
    """Return /etc/rc, which Enroot runs at a start: working directory, driver, entrypoint."""
    entrypoint, command = choose_entrypoint(locked, stack)
    return render_entrypoint(
        locked.workdir or "/",
        entrypoint,
        command,
        f"hpcstack: {stack.full_name}",
        sourced=f"{HOME}/compat.sh",
    )
