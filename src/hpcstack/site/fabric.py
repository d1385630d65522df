"""The network of a site, what NCCL and UCX are told of it, and what measurements should reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from hpcstack.recipe.fields import Line, Model
from hpcstack.site.injection import Brought, Injection, Reasoned, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping


# What the network is called by the plugin that NCCL reaches it with: aws-ofi-nccl's on EFA and on
# Slingshot (CSCS and Argonne say so to their users), Google's own on its A3 Ultra, A4 and A4X.
# InfiniBand and RoCE need none.
PLUGIN_NETS = {"efa": "AWS Libfabric", "slingshot": "AWS Libfabric", "gib": "gIB"}
NET, NET_PLUGIN = "NCCL_NET", "NCCL_NET_PLUGIN"
# NCCL's own name for the plugin that it looks for by itself (NCCL's user guide, NCCL_NET_PLUGIN).
ANY_PLUGIN = "libnccl-net.so"


class Fabric(Model):
    """The network, and what NCCL and UCX are told of it in every job step.

    What the user has set wins.
    """

    kind: Literal["", "infiniband", "roce", "ethernet", "slingshot", "efa", "gib"] = ""
    settings: Settings = Field({}, description="NCCL_IB_HCA: {value: mlx5, reason: ...}")
    injections: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")], Injection] = Field(
        {}, description="{name: libraries of the nodes' own that reach the fabric}"
    )

    def bring(self, node_type: str | None, image: Mapping[str, str]) -> list[Brought]:
        """What an IMAGE of these variables gets on several nodes of NODE_TYPE (None: of any)."""
        cuda = image.get("CUDA_VERSION", "").partition(".")[0]
        return [
            one.bring(name)
            for name, one in self.injections.items()
            if (node_type is None or not one.node_types or node_type in one.node_types)
            and (not one.cuda or cuda in one.cuda)
        ]

    def settings_for(self, nodes: int, image: Mapping[str, str]) -> dict[str, Reasoned]:
        """What a step on NODES nodes is told, in an IMAGE of these variables: what follows of the
        kind, and above it the site's own settings. On one node NCCL needs no network, and would
        fail for want of a plugin.
        """
        net = PLUGIN_NETS.get(self.kind, "")
        if not net or nodes < 2:
            return dict(self.settings)
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
