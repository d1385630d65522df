"""The variables of a step, each with where its value comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from hpcstack.site import Site

USER, FABRIC, OWN, IMAGE, RUNTIME, OPTION = "the user's environment", "the site's fabric", "hpcstack", "the image", \
    "the runtime", "the command line"  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One variable: its value, who says so, and why."""

    name: str
    value: str
    origin: str
    why: str = ""

    @property
    def kept(self) -> bool:
        """Whether what the user has set at the time counts more."""
        return self.origin in (FABRIC, USER, OWN)

    def __str__(self) -> str:
        return f"{self.origin}: {self.why}" if self.why else self.origin


def told(site: Site, environ: Mapping[str, str] | None = None) -> list[Setting]:
    """What every step is told: the fabric's settings, and no packages of ~/.local. What the user has set wins."""
    environ = os.environ if environ is None else environ
    out = [Setting("PYTHONNOUSERSITE", "1", OWN, "packages in ~/.local are not the image's")]
    out += [Setting(name, row.value, FABRIC, row.reason) for name, row in site.fabric.settings.items()]
    return [
        Setting(one.name, environ[one.name], USER, f"{one.origin} would say {one.value!r}")
        if one.name in environ and environ[one.name] != one.value
        else one
        for one in out
    ]


def all_of(step: list[Setting], image: Mapping[str, str], environ: Mapping[str, str]) -> list[Setting]:
    """Every variable that a rank starts with, as known here: the step's above the image's above the host's."""
    out = {name: Setting(name, value, USER) for name, value in environ.items()}
    out |= {name: Setting(name, value, IMAGE) for name, value in image.items()}
    out |= {one.name: one for one in step}
    return [out[name] for name in sorted(out)]
