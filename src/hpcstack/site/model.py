"""The parts of a site.yaml: registries, builds, node types, partitions, staging, policy."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hpcstack.core.bounds import ENTRIES, UNPACKED_BYTES, Bounds
from hpcstack.core.characters import CONTROL
from hpcstack.core.cpus import parse_cpu_list
from hpcstack.core.errors import did_you_mean
from hpcstack.recipe.fields import Model

POLICY_KEYS = (
    "packages",
    "files",
    "run",
    "environment",
    "labels",
    "module",
    "launch",
    "lifecycle",
    "tests",
)


class RegistrySite(Model):
    """How one registry is reached from here."""

    mirror: str = Field(
        "",
        pattern=r"^([A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*)?$",
        description="HOST[:PORT][/PATH] that answers in its place",
    )
    plain_http: bool = Field(
        False, description="the mirror (or the registry) speaks http, not https"
    )
    credentials: str = Field(
        "",
        description="a file of logins: docker's config.json or Enroot's .credentials; by default the "
        "user's own",
    )

    trusted: bool = Field(
        False,
        description="programs of its images may see the logins in this site's URLs (pip, proxy, "
        "mirrors)",
    )
    token_server: str = Field(
        "",
        pattern=r"^([A-Za-z0-9.-]+(:[0-9]+)?)?$",
        description="a host that may be given the login for a token",
    )

    signature_key: str = Field(
        "",
        pattern=r"^(~?/[^\x00-\x1f]*)?$",
        description="a public key, PEM, that signs its images as cosign does",
    )

    @field_validator("mirror", mode="before")
    @classmethod
    def _without_scheme(cls, value: object) -> object:
        if isinstance(value, str) and "://" in value:
            scheme, _, host = value.partition("://")
            also = "; and plain_http: true" if scheme == "http" else ""
            raise ValueError(f"write the host alone, without {scheme}://: {host}{also}")
        return value

    @field_validator("credentials")
    @classmethod
    def _reference(cls, text: str) -> str:
        if text and (not text.startswith(("/", "~/")) or CONTROL.search(text)):
            raise ValueError(
                "name a file by its absolute path; a key itself never stands in site.yaml"
            )
        return text


class Proxy(Model):
    http: str = ""
    https: str = ""
    no: str = ""


class Pip(Model):
    index_url: str = Field("", description="in place of https://pypi.org/simple")
    extra_index_urls: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] = ()


class Apt(Model):
    mirrors: dict[str, str] = Field(
        {}, description="{URL prefix in sources: URL of the site's mirror}"
    )


class CondaSite(Model):
    channel_alias: str = Field("", description="in place of https://conda.anaconda.org")


class GitSite(Model):
    mirrors: dict[str, str] = Field({}, description="{URL prefix: URL of the site's mirror}")


class BoundsSite(Model):
    """How large an image may be before importing it is refused."""

    unpacked_bytes: int = Field(UNPACKED_BYTES, gt=0, description="of all files of all layers")
    entries: int = Field(ENTRIES, gt=0, description="files, folders and links of all layers")

    def as_bounds(self) -> Bounds:
        return Bounds(self.unpacked_bytes, self.entries)


class BuildSite(Model):
    """What builds need here. All of it serves during the build and leaves no trace in the image."""

    engine: Literal["auto", "apptainer", "enroot", "builtin", "docker"] = "auto"
    tmpdir: str = Field("", description="node-local folder to build in; by default $TMPDIR or /tmp")
    cachedir: str = Field(
        "",
        description="folder in which hpcstack keeps bases and finished steps; by default below "
        "~/.cache",
    )
    compression: Literal["zstd", "gzip", "xz", "lz4"] = "zstd"
    splice: Literal["auto", "always", "never"] = Field(
        "auto",
        description="whether an image keeps its base's compressed bytes and only adds what the steps changed (all "
        "engines but docker); auto packs it anew where that cannot be, or would leave too many "
        "dead bytes",
    )
    unconfined: bool = Field(
        False,
        description="where no enclosure for builds can be made, or no layers: let Apptainer and Enroot run programs "
        "of a base and of a recipe beside the user's own files, which they can read and write",
    )
    ca_bundle: str = Field("", description="PEM file to trust, for a proxy that signs anew")
    proxy: Proxy = Proxy.model_construct()
    pip: Pip = Pip.model_construct()
    apt: Apt = Apt.model_construct()
    conda: CondaSite = CondaSite.model_construct()
    git: GitSite = GitSite.model_construct()
    bounds: BoundsSite = BoundsSite.model_construct()


class Gpus(Model):
    model: str = Field(
        description="e.g. H100; `virtual` where Slurm has a gres and no device is behind it"
    )
    count: int = Field(ge=0)
    nvlink: bool = Field(False, description="the node's GPUs are joined by NVLink")
    domain_nodes: int = Field(
        0, ge=0, description="nodes that one NVLink domain spans: 18 of GB200 NVL72, 1 of NVL4"
    )


# What `uname -m` says on a node, and what registries call images for it.
PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


class NodeType(Model):
    """One kind of node: what the driver fit, the launchers and the suite's expectations are taken
    from.
    """

    gpus: Gpus | None = None
    driver: str = Field(
        "", pattern=r"^([0-9]+(\.[0-9]+)*)?$", description="NVIDIA's driver, e.g. 550.54.15"
    )
    cpu: str = Field("", description="the CPU's model, for people")
    architecture: Literal["x86_64", "aarch64"] = Field("x86_64", description="as `uname -m` says")
    cpus: int = Field(0, ge=0, description="cores that Slurm gives out; 0 where it is not said")
    hcas: tuple[str, ...] = Field((), description="InfiniBand or RoCE devices, e.g. mlx5_0")
    hca_rate: int = Field(
        0, ge=0, description="Gb/s of each HCA port; the suite warns of slower ones"
    )
    topology: str = Field(
        "", description="a name in facts/topologies.yaml: which cores are near which GPU"
    )
    gpu_cpus: tuple[str, ...] = Field(
        (),
        description="the cores near each GPU, as `nvidia-smi topo -m` says of this site's own nodes: "
        "[0-51, 52-103]",
    )
    hpcstack: str = Field(
        "",
        pattern=r"^(/[A-Za-z0-9._+-]+)*$",
        description="hpcstack's command there, where its processors are not those of the machine that "
        "submits",
    )
    virtual: bool = Field(False, description="several nodes share one machine: figures say nothing")

    @field_validator("gpu_cpus")
    @classmethod
    def _cpus(cls, lists: tuple[str, ...]) -> tuple[str, ...]:
        for one in lists:
            parse_cpu_list(one)
        return lists

    @property
    def platform(self) -> str:
        """The platform of images that run here, as registries call it."""
        return PLATFORMS[self.architecture]

    @property
    def real_gpus(self) -> int:
        return self.gpus.count if self.gpus and self.gpus.model != "virtual" else 0


class Partition(Model):
    node_type: str
    default: bool = False


class StagingSite(Model):
    """How images come to the nodes' own disks before the ranks start."""

    how: Literal["none", "copy", "sbcast"] = Field(
        "none",
        description="none: nodes read the shared file; copy: each copies it once; sbcast: Slurm broadcasts "
        "it",
    )
    folder: str = Field(
        "/tmp",
        pattern=r"^(/[A-Za-z0-9._-]+)+$",
        description="on the nodes' own disks, root's and sticky (1777); each user has hpcstack-staged-UID "
        "in it",
    )


class HealthSite(Model):
    """What `hpcstack site health` may do by itself, on every node, every few minutes."""

    max_drains: str = Field(
        "2%",
        pattern=r"^[1-9][0-9]{0,4}%?$",
        description="nodes that it drains within an hour in the whole cluster",
    )
    max_drained: str = Field(
        "10%",
        pattern=r"^[1-9][0-9]{0,4}%?$",
        description="nodes that are drained by it at a time, however long ago",
    )
    boot_minutes: int = Field(
        10,
        ge=0,
        le=120,
        description="after a start of a node, while what it finds wrong is not yet evidence",
    )
    misses: int = Field(
        5,
        ge=2,
        le=20,
        description="a probe that has not answered so often in a row drains; evidence does at once (site health "
        "--simulate says what fewer would cost)",
    )
    clean: int = Field(
        3,
        ge=1,
        le=100,
        description="clean rounds in a row after which it gives back what it has drained",
    )
    undrains: int = Field(
        2, ge=0, le=24, description="how often a day it gives a node back; 0: never"
    )
    ignore: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")], ...] = Field(
        (),
        description="checks that are left out, by the names in its JSON: kernel, nvlink, folder-1, "
        "...",
    )
    folder: str = Field(
        "/etc/hpcstack/health.d",
        pattern=r"^/[^\x00-\x1f]*$",
        description="the site's own checks: programs; one that fails says why in its first line",
    )


class ModulesSite(Model):
    """What publishing makes: where modulefiles lie, whose they are, and what a release must have
    proven.
    """

    direct: tuple[str, ...] | None = Field(
        None,
        description="the names in Core, which load without a gateway; by default the first, while there is "
        "room",
    )
    mode: Literal["0644", "0664", "0640", "0660"] = Field(
        "0644", description="of files; folders get x where they have r"
    )
    group: str = Field(
        "", pattern=r"^[A-Za-z0-9._-]*$", description="whose group; empty is the publisher's"
    )
    publishers: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")], ...] = Field(
        (),
        description="users whose releases count, beside root; empty: whoever the folders' modes let write "
        "there",
    )
    check_as: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]*$",
        description="a user as whom each release is tried too, where root publishes",
    )
    tier: Literal["quick", "standard", "full"] = Field(
        "standard", description="of the report that production requires"
    )
    keep_days: int = Field(
        30,
        ge=0,
        description="how long gc keeps the files of releases that were withdrawn, retired or "
        "removed",
    )
    prove_on: tuple[str, ...] = Field(
        (),
        description="the node types that a release must be proven on before production; empty: any "
        "one",
    )
    by_architecture: bool = Field(
        False,
        description="a module tree for each kind of processor, module_root/x86_64 and module_root/aarch64: one name "
        "means each node's own image",
    )


class SignaturesSite(Model):
    """Whose signatures count here, and whether images without one are run."""

    keys: tuple[str, ...] = Field(
        (),
        description="public keys that are trusted, as in ~/.ssh/id_ed25519.pub: `ssh-ed25519 AAAA... "
        "who`",
    )
    required: bool = Field(
        False, description="publish, launch and the importer refuse what none of these keys signed"
    )
    sign_with: str = Field(
        "", description="the private key with which publish signs, a file of who publishes"
    )

    @field_validator("keys")
    @classmethod
    def _public(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for key in keys:
            if not re.fullmatch(
                r"(ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]+ [A-Za-z0-9+/=]{40,20000}( [^\x00-\x1f\x7f]*)?",
                key,
            ):
                raise ValueError(
                    f"{key[:40]!r} is not a public key of OpenSSH's: `ssh-ed25519 AAAA... who`"
                )
        return keys

    @model_validator(mode="after")
    def _can_be_met(self) -> SignaturesSite:
        if self.required and not self.keys:
            raise ValueError("signatures.required wants `keys`: nothing could be run")
        return self


class ImageCacheSite(Model):
    """One import a cluster: any registry's images, which a service on each node keeps for all
    (docs/how-to/set-up-the-image-cache.md).
    """

    folder: str = Field(
        "",
        pattern=r"^(/[A-Za-z0-9._-]+)*$",
        description="on a filesystem that all nodes share; empty: no such cache",
    )
    account: str = Field(
        "hpcstack",
        pattern=r"^[A-Za-z0-9._-]+$",
        description="whom the folder belongs to; nobody else is that account",
    )
    socket: str = Field(
        "/run/hpcstack/images.sock",
        pattern=r"^(/[A-Za-z0-9._-]+)+$",
        max_length=100,
        description="where the service listens on each node",
    )
    keep_days: int = Field(30, ge=1, description="an image that nobody got for so long goes")
    max_gb: float = Field(
        0, ge=0, description="more than this goes, the longest unused first; 0: no bound"
    )


class PolicySite(Model):
    """Parts of recipes that the site puts under every recipe, and over it."""

    defaults: dict[str, Any] = Field({}, description="what a recipe may override")
    force: dict[str, Any] = Field({}, description="what no recipe overrides")
    require_signed_base: bool = Field(
        False,
        description="only bases are locked and built that the registry's signature_key has signed",
    )

    @field_validator("defaults", "force")
    @classmethod
    def _keys(cls, part: dict[str, Any]) -> dict[str, Any]:
        for key in part:
            if key not in POLICY_KEYS:
                near = did_you_mean(key, POLICY_KEYS)
                raise ValueError(
                    f"a policy has no {key!r}{near}; it may say: {', '.join(POLICY_KEYS)}"
                )
        return part
