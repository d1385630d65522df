"""The network of a site, what NCCL and UCX are told of it, and what measurements should reach."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from pydantic import Field, field_validator

from hpcstack.recipe.fields import Line, Model, Value

if TYPE_CHECKING:
    from collections.abc import Mapping


class Reasoned(Model):
    """A value, and why it is so: nobody dares to remove a setting whose reason is lost."""

    value: Value
    reason: Line = Field(min_length=1, description="why this value, in a few words")


# What the network is called by the plugin that NCCL reaches it with: aws-ofi-nccl's on EFA and on Slingshot (CSCS and
# Argonne say so to their users), Google's own on its A3 Ultra, A4 and A4X. InfiniBand and RoCE need none.
PLUGIN_NETS = {"efa": "AWS Libfabric", "slingshot": "AWS Libfabric", "gib": "gIB"}
NET, NET_PLUGIN = "NCCL_NET", "NCCL_NET_PLUGIN"
# NCCL's own name for the plugin that it looks for by itself (NCCL's user guide, NCCL_NET_PLUGIN).
ANY_PLUGIN = "libnccl-net.so"


class Fabric(Model):
    """The network, and what NCCL and UCX are told of it in every job step. What the user has set wins."""

    kind: Literal["", "infiniband", "roce", "ethernet", "slingshot", "efa", "gib"] = ""
    settings: dict[str, Reasoned] = Field({}, description="NCCL_IB_HCA: {value: mlx5, reason: ...}")

    @field_validator("settings")
    @classmethod
    def _names(cls, settings: dict[str, Reasoned]) -> dict[str, Reasoned]:
        for name in settings:
            if not re.fullmatch(r"(NCCL|UCX|UCC|OMPI_MCA|FI|MELLANOX|SHARP|NVSHMEM|GLOO|TP)_[A-Za-z0-9_]+", name):
                raise ValueError(f"{name!r} is not a setting of NCCL, UCX, UCC, Open MPI, libfabric, SHARP or NVSHMEM")
        return settings

    def settings_for(self, nodes: int, image: Mapping[str, str]) -> dict[str, Reasoned]:
        """What a step on NODES nodes is told, in an IMAGE of these variables: what follows of the kind, and above it
        the site's own settings. On one node NCCL needs no network, and would fail for want of a plugin."""
        net = PLUGIN_NETS.get(self.kind, "")
        if not net or nodes < 2:
            return self.settings
        fails = "a step that lacks the fabric's plugin fails, and is not slow over sockets"
        implied = {NET: Reasoned(value=net, reason=fails)}
        if image.get(NET_PLUGIN):
            another = f"the image's own, {image[NET_PLUGIN]}, is for another fabric"
            implied[NET_PLUGIN] = Reasoned(value=ANY_PLUGIN, reason=another)
        return {**implied, **self.settings}

    def environment(self) -> dict[str, str]:
        return {name: setting.value for name, setting in self.settings.items()}


class Baseline(Model):
    """What a measurement of the suite should reach here."""

    value: float = Field(gt=0, allow_inf_nan=False)
    unit: Line = ""
    source: Line = Field(min_length=1, description="who measured it, and how")
