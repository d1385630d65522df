"""The network of a site, what NCCL and UCX are told of it, and what measurements should reach."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

from hpcstack.recipe.fields import Line, Model, Value


class Reasoned(Model):
    """A value, and why it is so: nobody dares to remove a setting whose reason is lost."""

    value: Value
    reason: Line = Field(min_length=1, description="why this value, in a few words")


class Fabric(Model):
    """The network, and what NCCL and UCX are told of it in every job step. What the user has set wins."""

    kind: Literal["", "infiniband", "roce", "ethernet", "slingshot", "efa"] = ""
    settings: dict[str, Reasoned] = Field({}, description="NCCL_IB_HCA: {value: mlx5, reason: ...}")

    @field_validator("settings")
    @classmethod
    def _names(cls, settings: dict[str, Reasoned]) -> dict[str, Reasoned]:
        for name in settings:
            if not re.fullmatch(r"(NCCL|UCX|UCC|OMPI_MCA|FI|MELLANOX|SHARP|NVSHMEM|GLOO|TP)_[A-Za-z0-9_]+", name):
                raise ValueError(f"{name!r} is not a setting of NCCL, UCX, UCC, Open MPI, libfabric, SHARP or NVSHMEM")
        return settings

    def environment(self) -> dict[str, str]:
        return {name: setting.value for name, setting in self.settings.items()}


class Baseline(Model):
    """What a measurement of the suite should reach here."""

    value: float = Field(gt=0, allow_inf_nan=False)
    unit: Line = ""
    source: Line = Field(min_length=1, description="who measured it, and how")
