"""The network of a site, what NCCL and UCX are told of it, and what its nodes should reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from hpcstack.recipe.fields import Line, Model
from hpcstack.site.injection import Brought, Injection, Reasoned, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


# NCCL_NET for each kind of fabric that NCCL reaches by a plugin: aws-ofi-nccl's name on EFA and on
# Slingshot (CSCS and Argonne say so to their users), that of Google's own on its A3 Ultra, A4 and
# A4X. InfiniBand and RoCE need none.
PLUGIN_NETS = {"efa": "AWS Libfabric", "slingshot": "AWS Libfabric", "gib": "gIB"}
NET, NET_PLUGIN = "NCCL_NET", "NCCL_NET_PLUGIN"
# NCCL's own name for the plugin that it looks for by itself (NCCL's user guide, NCCL_NET_PLUGIN).
ANY_PLUGIN = "libnccl-net.so"


class Fabric(Model):
    """The network, and what NCCL and UCX are told of it in every job step.

    What the user has set wins.
    """

    kind: Literal["", "infiniband", "roce", "ethernet", "slingshot", "efa", "gib"] = Field(
        "",
        description="The network between nodes. The suite then requires its devices (not on "
        "ethernet). On slingshot, efa and gib, steps on several nodes also get NCCL_NET for the "
        "fabric's plugin: without the plugin they fail, instead of running slowly over sockets.",
    )
    settings: Settings = Field(
        {},
        description="Variables of NCCL, UCX, UCC, Open MPI, libfabric, SHARP or NVSHMEM that every "
        "job step gets, each with the reason for it: {NCCL_IB_HCA: {value: mlx5_0, reason: mlx5_1 "
        "is the storage network}}.",
    )
    injections: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")], Injection] = Field(
        {},
        description="Libraries of the nodes that reach the fabric, each group under a name of your "
        "choice. Steps on several nodes get them in their containers.",
    )

    def bring(self, kinds: Sequence[str] | None, image: Mapping[str, str]) -> list[Brought]:
        """Return what an image with the variables IMAGE gets on several nodes of KINDS.

        Of several kinds, what all of them have counts. None for KINDS: any.
        """
        cuda = image.get("CUDA_VERSION", "").partition(".")[0]
        out = []
        for name, injection in self.injections.items():
            is_everywhere = kinds is None or not injection.node_types
            if not is_everywhere and not (kinds and set(kinds) <= set(injection.node_types)):
                continue
            if injection.cuda and cuda not in injection.cuda:
                continue
            out.append(injection.bring(name))
        return out

    def settings_for(self, nodes: int, image: Mapping[str, str]) -> dict[str, Reasoned]:
        """Return the variables of a step on NODES nodes, in an image with the variables IMAGE.

        They follow from the fabric's kind; the site's own settings go above them. On one node NCCL
        needs no network, and would fail for want of a plugin: there only the settings count.
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
        """Return the site's own settings without their reasons."""
        return {name: setting.value for name, setting in self.settings.items()}


class Baseline(Model):
    """A figure of the suite that nodes of this site reach."""

    value: float = Field(gt=0, allow_inf_nan=False, description="The figure.")
    unit: Line = Field("", description="Its unit, as in the suite's report, e.g. GB/s.")
    source: Line = Field(min_length=1, description="Who measured it, how and when.")
