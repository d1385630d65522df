"""The steps of a build: what runs inside the base, in order, the same for every image format."""

from __future__ import annotations

from dataclasses import dataclass

from hpcstack.render.quote import words
from hpcstack.spec.model import Stack

HOME = "/opt/hpcstack"


@dataclass(frozen=True)
class Step:
    """A title, as logs show it, and lines of bash that fail at the first failing command."""

    title: str
    lines: tuple[str, ...]


def steps(stack: Stack) -> list[Step]:
    """What is done to the base, each between two looks at what NVIDIA built into it."""
    out = []
    if stack.packages.apt:
        out.append(Step(f"apt: {' '.join(stack.packages.apt)}", _apt(stack.packages.apt)))
    if stack.packages.pip:
        out.append(Step(f"pip: {' '.join(stack.packages.pip)}", _pip(stack.packages.pip)))
    out.append(Step("finish", ("hpcstack_finish",)))
    return out


def _apt(packages: tuple[str, ...]) -> tuple[str, ...]:
    install = ["apt-get", "-q", "install", "-y", "--no-install-recommends", *packages]
    return (
        "hpcstack_guard",
        "apt-get -q update",
        f"DEBIAN_FRONTEND=noninteractive {words(install)}",
        "hpcstack_clean_apt",
        "hpcstack_guard_check",
    )


def _pip(requirements: tuple[str, ...]) -> tuple[str, ...]:
    install = ["python3", "-m", "pip", "install", "--no-cache-dir", "--no-compile"]
    return (
        "hpcstack_guard",
        f'{words(install)} --constraint "$HPCSTACK_CONSTRAINT" {words(requirements)}',
        "hpcstack_guard_check",
    )
