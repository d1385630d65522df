"""The sections of a site.yaml: registries, builds, node types, partitions, modules, policy.

Each `description` and each class's docstring goes into the JSON Schema that `hpcstack schema
--site` prints: it explains its key to whoever writes the file.

Tested in tests/unit/site/test_load.py.
"""

from __future__ import annotations

import re
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from hpcstack.core.bounds import ENTRIES, UNPACKED_BYTES, Bounds
from hpcstack.core.characters import CONTROL
from hpcstack.core.cpus import parse_cpu_list
from hpcstack.core.errors import did_you_mean
from hpcstack.recipe.fields import Line, Model
from hpcstack.site.injection import SiteOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

PUBLIC_KEY = re.compile(
    r"(ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]+ [A-Za-z0-9+/=]{40,20000}"  # its type and its bytes
    r"( [^\x00-\x1f\x7f]*)?"  # a comment
)
NODE_PLACE = "{node}"  # in `hang.command`: stands for the node's name
# The parts of a recipe that `policy` may hold.
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
    """How one registry is reached from this site."""

    mirror: str = Field(
        "",
        pattern=r"^([A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._-]+)*)?$",
        description="The mirror that is asked in place of the registry: HOST[:PORT][/PATH], "
        "without https://.",
    )
    plain_http: bool = Field(
        False,
        description="The mirror, or the registry where there is no mirror, speaks HTTP without "
        "TLS.",
    )
    credentials: str = Field(
        "",
        description="Absolute path of a file of logins for this registry, in the format of "
        "Docker's config.json or of Enroot's .credentials. By default the user's own files are "
        "read.",
    )

    trusted: bool = Field(
        False,
        description="Builds on this registry's images get the URLs in `build` (pip, apt, conda, "
        "git, proxy) with the logins in them. Programs of such an image can read those logins. By "
        "default the logins are taken out.",
    )
    token_server: str = Field(
        "",
        pattern=r"^([A-Za-z0-9.-]+(:[0-9]+)?)?$",
        description="HOST[:PORT] of the registry's token server, where it is on a different host. "
        "The login is sent there, so name it only if it is right.",
    )

    signature_key: str = Field(
        "",
        pattern=r"^(~?/[^\x00-\x1f]*)?$",
        description="Path of the public key (PEM) with which this registry's images are signed, as "
        "cosign signs them. `hpcstack lock` verifies bases with it.",
    )

    @field_validator("mirror", mode="before")
    @classmethod
    def _refuse_scheme(cls, value: object) -> object:
        if isinstance(value, str) and "://" in value:
            scheme, _, host = value.partition("://")
            also = "; and plain_http: true" if scheme == "http" else ""
            raise ValueError(f"write the host alone, without {scheme}://: {host}{also}")
        return value

    @field_validator("credentials")
    @classmethod
    def _check_credentials(cls, text: str) -> str:
        """Refuse what is no path: somebody may have written the key itself."""
        if text and (not text.startswith(("/", "~/")) or CONTROL.search(text)):
            raise ValueError(
                "name a file by its absolute path; a key itself never stands in site.yaml"
            )
        return text


class Proxy(Model):
    """The proxy of builds. Builds get the values as http_proxy, https_proxy and no_proxy."""

    http: str = Field("", description="URL of the proxy for http://, e.g. http://proxy:3128.")
    https: str = Field("", description="URL of the proxy for https://, e.g. http://proxy:3128.")
    no: str = Field("", description="Hosts that are reached without a proxy, separated by commas.")


class Pip(Model):
    """Where pip finds packages."""

    index_url: str = Field(
        "", description="URL of the index used in place of https://pypi.org/simple."
    )
    extra_index_urls: tuple[str, ...] = Field(
        (), description="URLs of indexes that are asked as well."
    )
    trusted_hosts: tuple[str, ...] = Field(
        (), description="Hosts that pip trusts without a valid certificate: HOST or HOST:PORT."
    )


class Apt(Model):
    """Where apt finds packages."""

    mirrors: dict[str, str] = Field(
        {},
        description="Mirrors of Debian's and Ubuntu's archives: {URL prefix in the image's "
        "sources: URL of the site's mirror}.",
    )


class CondaSite(Model):
    """Where conda packages are found."""

    channel_alias: str = Field(
        "",
        description="URL that channel names are appended to, in place of "
        "https://conda.anaconda.org.",
    )


class GitSite(Model):
    """Where git repositories are cloned from."""

    mirrors: dict[str, str] = Field(
        {},
        description="Mirrors of repositories: {URL prefix in a recipe: URL of the site's mirror}.",
    )


class BoundsSite(Model):
    """How large an image may be. A larger one is refused while it is imported."""

    unpacked_bytes: int = Field(
        UNPACKED_BYTES,
        gt=0,
        description="Limit on the bytes of all files of all layers together, unpacked.",
    )
    entries: int = Field(
        ENTRIES, gt=0, description="Limit on the files, folders and links in all layers together."
    )

    def as_bounds(self) -> Bounds:
        """Return the same as the Bounds of an import."""
        return Bounds(self.unpacked_bytes, self.entries)


class BuildSite(Model):
    """What builds need here. It serves during the build and leaves no trace in the image."""

    engine: Literal["auto", "apptainer", "enroot", "builtin", "docker"] = Field(
        "auto",
        description="The engine that builds images. auto takes the first that can be used on the "
        "machine, and says why.",
    )
    tmpdir: str = Field(
        "",
        description="Folder to build in, on a local disk of the node. By default $TMPDIR, or /tmp.",
    )
    cachedir: str = Field(
        "",
        description="Folder in which hpcstack keeps imported bases and finished build steps: a "
        "folder hpcstack-bases-UID for each user. Apptainer's engine keeps its cache there, too. "
        "By default below ~/.cache.",
    )
    compression: Literal["zstd", "gzip", "xz", "lz4"] = Field(
        "zstd", description="How the image's SquashFS is compressed."
    )
    splice: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Whether a built image keeps the compressed bytes of its base and only adds "
        "what the steps changed. auto packs all anew where that is not possible, or would leave "
        "too many unused bytes. always fails where it is not possible. never packs all anew, as "
        "the engine docker does in any case.",
    )
    unconfined: bool = Field(
        False,
        description="Let Apptainer and Enroot build where the machine allows no enclosure for "
        "builds. Programs of a base and of a recipe can then read and write the user's own files. "
        "By default such builds are refused.",
    )
    ca_bundle: str = Field(
        "",
        description="PEM file of the certificate authorities to trust, e.g. that of a proxy which "
        "inspects TLS.",
    )
    proxy: Proxy = Proxy.model_construct()
    pip: Pip = Pip.model_construct()
    apt: Apt = Apt.model_construct()
    conda: CondaSite = CondaSite.model_construct()
    git: GitSite = GitSite.model_construct()
    bounds: BoundsSite = BoundsSite.model_construct()


class Gpus(Model):
    """The GPUs of one node."""

    model: str = Field(
        description="GPU model, e.g. H100. Write virtual where Slurm has a gres for GPUs that do "
        "not exist."
    )
    count: int = Field(ge=0, description="GPUs of one node.")
    mig: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$")], Annotated[int, Field(ge=1)]] = (
        Field(
            {},
            description="MIG slices of one node, {type in gres.conf: how many}. `count` is that of whole "
            "GPUs beside them. A job gets slices only where it asks for them, as in "
            "`--gres gpu:1g.10gb:1`.",
        )
    )
    nvlink: bool = Field(
        False, description="NVLink connects the GPUs of the node. The suite then requires it."
    )
    domain_nodes: int = Field(
        0,
        ge=0,
        description="Nodes that one NVLink domain spans: 18 of GB200 NVL72, 1 of NVL4. The suite "
        "requires it, and launches share jobs out by it (`--segment`). 0: not known.",
    )


# What `uname -m` prints on a node, and what registries call images for it.
PLATFORMS = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}


class NodeType(Model):
    """One kind of node. Driver checks, launches and what the smoke suite expects depend on it."""

    gpus: Gpus | None = Field(
        None, description="The GPUs of one node. Leave it out for nodes without GPUs."
    )
    driver: str = Field(
        "",
        pattern=r"^([0-9]+(\.[0-9]+)*)?$",
        description="Version of the NVIDIA driver, e.g. 550.54.15. lint, modules and launches "
        "judge by it which images run.",
    )
    cpu: str = Field("", description="The CPU's model, as people call it. Nothing depends on it.")
    architecture: Literal["x86_64", "aarch64"] = Field(
        "x86_64", description="Architecture of the processors, as `uname -m` prints it."
    )
    cpus: int = Field(
        0,
        ge=0,
        description="CPUs that Slurm gives out on one node (%c of sinfo). A step gets its share of "
        "them with its GPUs. 0: not known.",
    )
    hcas: tuple[str, ...] = Field(
        (),
        description="InfiniBand or RoCE devices that jobs use, e.g. mlx5_0, or one port of it: "
        "mlx5_0:1. The suite and the health check require them.",
    )
    hca_rate: int = Field(
        0,
        ge=0,
        description="Rate of each HCA port in Gb/s. Where `hcas` are named, a slower port fails "
        "the suite and the health check. 0: not known.",
    )
    topology: str = Field(
        "",
        description="Name of an entry in facts/topologies.yaml that says which cores are near "
        "which GPU. `gpu_cpus` takes precedence.",
    )
    gpu_cpus: tuple[str, ...] = Field(
        (),
        description="The cores near each GPU, in the order of the GPUs, as `nvidia-smi topo -m` "
        "prints them on these nodes: [0-51, 52-103]. Ranks are bound to the cores near their GPU.",
    )
    hpcstack: str = Field(
        "",
        pattern=r"^(/[A-Za-z0-9._+-]+)*$",
        description="Absolute path of the hpcstack command that jobs start on these nodes. Needed "
        "where their architecture is not that of the machine that submits.",
    )
    srun: SiteOptions = Field(
        {}, description="srun's options that every job on such nodes gets, as in `partitions`."
    )
    virtual: bool = Field(
        False,
        description="Several of these nodes share one machine, so figures measured on them are "
        "shown and not judged.",
    )

    @field_validator("gpu_cpus")
    @classmethod
    def _check_cpu_lists(cls, lists: tuple[str, ...]) -> tuple[str, ...]:
        for one in lists:
            parse_cpu_list(one)
        return lists

    @property
    def platform(self) -> str:
        """The platform of images that run here, as registries call it."""
        return PLATFORMS[self.architecture]

    @property
    def has_gpus(self) -> bool:
        """Whether a device stands behind GPUs of a node, be they whole ones or slices."""
        return bool(self.real_gpus or (self.gpus and self.gpus.mig))

    @property
    def has_virtual_gpus(self) -> bool:
        """Whether Slurm counts GPUs of a node that do not exist."""
        return self.gpus is not None and self.gpus.model == "virtual"

    @property
    def real_gpus(self) -> int:
        """How many whole GPUs a node has that are really there."""
        if self.gpus is None or self.has_virtual_gpus:
            return 0
        return self.gpus.count


def merge_node_types(nodes: Sequence[NodeType]) -> NodeType | None:
    """Return a type that promises no more than each of NODES has; None for no types."""
    if len(nodes) < 2:
        return nodes[0] if nodes else None
    every = [node.gpus for node in nodes]
    gpus = None
    if all(every):
        having = [one for one in every if one]
        models = dict.fromkeys(one.model for one in having)
        real = [model for model in models if model != "virtual"]
        gpus = Gpus(
            model=" or ".join(real) or "virtual",
            count=min(
                node.real_gpus if real else one.count
                for node, one in zip(nodes, having, strict=True)
            ),
            nvlink=all(one.nvlink for one in having),
            domain_nodes=_same([one.domain_nodes for one in having], 0),
        )
    return NodeType(
        gpus=gpus,
        driver=_same([node.driver for node in nodes], ""),
        architecture=nodes[0].architecture,  # plan_step looks at each
        cpus=min(node.cpus for node in nodes),
        hcas=_same([node.hcas for node in nodes], ()),
        hca_rate=min(node.hca_rate for node in nodes),
        topology=_same([node.topology for node in nodes], ""),
        gpu_cpus=_same([node.gpu_cpus for node in nodes], ()),
        virtual=any(node.virtual for node in nodes),
    )


T = TypeVar("T")


def _same(values: Sequence[T], otherwise: T) -> T:
    """Return what all VALUES are; OTHERWISE where they differ."""
    return values[0] if all(value == values[0] for value in values) else otherwise


class Partition(Model):
    """One Slurm partition."""

    node_type: str = Field(
        "", description="The name in `node_types` of the nodes in this partition."
    )
    node_types: tuple[str, ...] = Field(
        (),
        description="In place of `node_type`, where the partition has nodes of several types: their "
        "names. A job chooses among them by a type of GPU (`--gpus-per-node h100:4`), by -C or -w.",
    )
    default: bool = Field(
        False,
        description="Commands that name no partition assume this partition's node type. At most "
        "one partition is the default.",
    )

    srun: SiteOptions = Field(
        {},
        description="srun's options that every job here gets, unless its user gives another value: "
        "{--constraint: {value: nvme, reason: the others have no local disk}}.",
    )

    @model_validator(mode="after")
    def _check_types(self) -> Partition:
        if bool(self.node_type) == bool(self.node_types):
            raise ValueError("write either node_type, or node_types for nodes of several types")
        return self

    @property
    def kinds(self) -> tuple[str, ...]:
        """The names of the types of its nodes."""
        return self.node_types or (self.node_type,)


class StagingSite(Model):
    """How images come to the nodes' own disks before the ranks start."""

    how: Literal["none", "copy", "sbcast"] = Field(
        "none",
        description="none: nodes read the image on the shared filesystem. copy: each node copies "
        "it to its own disk once. sbcast: Slurm broadcasts it to the nodes' disks.",
    )
    folder: str = Field(
        "/tmp",
        pattern=r"^(/[A-Za-z0-9._-]+)+$",
        description="Folder on each node's own disk. It must belong to root and be sticky (mode "
        "1777). Each user gets a folder hpcstack-staged-UID in it.",
    )


class HealthSite(Model):
    """What `hpcstack site health` may do by itself, on every node, every few minutes.

    It drains nodes that are not fit for work. A number may be a percentage of all nodes, e.g. 2%.
    """

    max_drains: str = Field(
        "2%",
        pattern=r"^[1-9][0-9]{0,4}%?$",
        description="Limit on the nodes of the whole cluster that it drains within an hour: a "
        "number, or a percentage. Beyond it, it only writes to syslog.",
    )
    max_drained: str = Field(
        "10%",
        pattern=r"^[1-9][0-9]{0,4}%?$",
        description="Limit on the nodes of the whole cluster that are drained by it at the same "
        "time: a number, or a percentage.",
    )
    boot_minutes: int = Field(
        10,
        ge=0,
        le=120,
        description="Minutes after a node's start in which a fault that it finds counts as a miss "
        "only, since devices come up one by one.",
    )
    misses: int = Field(
        5,
        ge=2,
        le=20,
        description="A node is drained when one of its probes has not answered this many times in "
        "a row. A fault that was found drains at once. `hpcstack site health --simulate` shows "
        "what a smaller number would cost.",
    )
    clean: int = Field(
        3,
        ge=1,
        le=100,
        description="Consecutive rounds without a fault after which it resumes a node that it has "
        "drained itself.",
    )
    undrains: int = Field(
        2, ge=0, le=24, description="How many times a day it may resume one node. 0: never."
    )
    ignore: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")], ...] = Field(
        (),
        description="Checks to leave out, by their names in its JSON output: kernel, nvlink, "
        "folder-1.",
    )
    folder: str = Field(
        "/etc/hpcstack/health.d",
        pattern=r"^/[^\x00-\x1f]*$",
        description="Folder, on each node, of the site's own checks. Each is a program. One that "
        "fails prints the reason as its first line.",
    )


class HangSite(Model):
    """How `hpcstack hang` asks nodes where a step of Slurm's cannot."""

    command: tuple[Line, ...] = Field(
        (),
        description="Words that run a shell command on a node, in which {node} stands for its "
        "name: [ssh, -o, BatchMode=yes, '{node}'], or [pdsh, -N, -R, ssh, -w, '{node}']. `hpcstack "
        "hang` uses them where Slurm refuses a step, and for root, whose step Slurm never starts in "
        "another user's job.",
    )

    @field_validator("command")
    @classmethod
    def _check_node(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        if words and not any(NODE_PLACE in word for word in words):
            raise ValueError(f"no word names the node: write {NODE_PLACE} where its name belongs")
        return words


class ModulesSite(Model):
    """How releases are published: owner and mode of modulefiles, and what must have been passed."""

    direct: tuple[str, ...] | None = Field(
        None,
        description="Names of stacks whose modules lie in Core, so that they load in one step. "
        "Others need `module load hpcstack/NAME` first. By default the names that are published "
        "first, while Core has room (100 modulefiles). A name that lies somewhere already stays "
        "there.",
    )
    mode: Literal["0644", "0664", "0640", "0660"] = Field(
        "0644",
        description="Mode of files in the module tree. Folders also get x wherever they have r.",
    )
    group: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]*$",
        description="Group of files in the module tree. By default the site's `group`, or else the "
        "publisher's own.",
    )
    publishers: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")], ...] = Field(
        (),
        description="Users, besides root, whose releases and reports are trusted. By default "
        "everybody who can write the folders.",
    )
    check_as: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]*$",
        description="An ordinary user, e.g. nobody. Where root publishes, each new module is also "
        "loaded as this user before users see it.",
    )
    tier: Literal["quick", "standard", "full"] = Field(
        "standard",
        description="Tier of the smoke suite that a release must have passed before it gets into "
        "production.",
    )
    keep_days: int = Field(
        30,
        ge=0,
        description="Days for which gc keeps the files of releases that were withdrawn, retired or "
        "removed.",
    )
    prove_on: tuple[str, ...] = Field(
        (),
        description="Names in `node_types`. Before a release gets into production, it must have "
        "passed the suite on each of them that can run its image. By default any one node type "
        "will do.",
    )
    approve: Literal["self", "other"] = Field(
        "self",
        description="Who may promote a release: `self`, anybody who publishes, or `other`, somebody "
        "other than its publisher. Then one person alone gets nothing into production; to roll back, "
        "one is enough. Write it under `force`, or users' own site.yaml can change it.",
    )
    by_architecture: bool = Field(
        False,
        description="A module tree for each architecture, MODULE_ROOT/x86_64 and "
        "MODULE_ROOT/aarch64, so that one name means each node's own image. Set it before the "
        "first release: what was published before is not moved.",
    )


class SignaturesSite(Model):
    """Whose signatures count here, and whether images without one are run."""

    keys: tuple[str, ...] = Field(
        (),
        description="Public SSH keys whose signatures count, each as in ~/.ssh/id_ed25519.pub: "
        "ssh-ed25519 AAAA... who.",
    )
    required: bool = Field(
        False,
        description="publish, launch and Pyxis's importer refuse images that none of `keys` has "
        "signed.",
    )
    sign_with: str = Field(
        "",
        description="Path of the private SSH key with which publish signs images. The publisher "
        "must be able to read it.",
    )
    push_with: str = Field(
        "",
        pattern=r"^(~?/[^\x00-\x1f]*)?$",
        description="Path of the private key (PEM, or as ssh-keygen writes one) with which `push` "
        "signs images and their provenance, as cosign does.",
    )

    @field_validator("keys")
    @classmethod
    def _check_public_keys(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for key in keys:
            if not PUBLIC_KEY.fullmatch(key):
                raise ValueError(
                    f"{key[:40]!r} is not an OpenSSH public key, e.g. ssh-ed25519 AAAA... who"
                )
        return keys

    @model_validator(mode="after")
    def _check_keys_given(self) -> SignaturesSite:
        """Refuse a site on which no image could be run."""
        if self.required and not self.keys:
            raise ValueError(
                "signatures.required without `keys` would refuse every image: "
                "name the keys that count"
            )
        return self


class ImageCacheSite(Model):
    """A cache of images from any registry, each imported once for the whole cluster.

    A service on each node serves it (docs/how-to/set-up-the-image-cache.md).
    """

    folder: str = Field(
        "",
        pattern=r"^(/[A-Za-z0-9._-]+)*$",
        description="Folder of the cache, on a filesystem that all nodes share. Without it there "
        "is no cache.",
    )
    account: str = Field(
        "hpcstack",
        pattern=r"^[A-Za-z0-9._-]+$",
        description="The account that the folder belongs to and the service runs as. No person may "
        "use it.",
    )
    socket: str = Field(
        "/run/hpcstack/images.sock",
        pattern=r"^(/[A-Za-z0-9._-]+)+$",
        max_length=100,
        description="Path of the Unix socket on which the service listens on each node.",
    )
    keep_days: int = Field(
        30, ge=1, description="Days without use after which an image is removed from the cache."
    )
    max_gb: float = Field(
        0,
        ge=0,
        description="Limit on the images in the cache, in GB (10^9 bytes). Beyond it, those unused "
        "the longest are removed, except what was used within a day. 0: no limit.",
    )


class AuditSite(Model):
    """Where the site keeps known vulnerabilities, for `hpcstack audit`."""

    database: str = Field(
        "",
        description="Folder with the archives of https://osv.dev (all.zip of PyPI, of "
        "Ubuntu:24.04:LTS, ...). The site fetches them; hpcstack asks no network for them.",
    )


class UsageSite(Model):
    """Who loads and launches what: whether it is logged, and where the log is read."""

    log: bool = Field(
        False,
        description="`hpcstack launch` writes a line to syslog for each launch, tagged "
        "hpcstack-usage. Loads are logged by the hook that `hpcstack site usage-hook` writes.",
    )
    verbs: bool = Field(
        False,
        description="Each verb that builds, publishes or removes something writes a line to syslog, "
        "tagged hpcstack: who, what, how long, and its exit status.",
    )
    files: tuple[Line, ...] = Field(
        (),
        description="Files that `hpcstack usage` reads, with * and ?, also packed by gzip: "
        "[/var/log/hpcstack-usage.log*].",
    )
    names: bool = Field(
        True, description="`hpcstack usage` may show who the users are, not only how many."
    )
    mail: tuple[Line, ...] = Field(
        (),
        description="Words of a command that sends a message from its input to {user}, about "
        "{subject}: [mail, -s, '{subject}', '{user}']. `retire --notify` runs it.",
    )


class Waiver(Model):
    """A vulnerability that the site lets pass until a day."""

    id: Line = Field(description="The id of the CVE, or of a record of OSV.")
    until: str = Field(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="The last day on which it passes."
    )
    reason: Line = Field(description="Why it does no harm here.")

    @field_validator("until")
    @classmethod
    def _check_day(cls, day: str) -> str:
        date.fromisoformat(day)  # ValueError for the 31st of February
        return day


class PolicySite(Model):
    """Parts of recipes that the site adds to every recipe.

    They are part of each stack's spec, so that a change of them makes locks stale.
    """

    defaults: dict[str, Any] = Field(
        {},
        description="Parts of a recipe that hold unless the recipe says otherwise, e.g. "
        "{environment: {HF_HOME: /scratch/hf}}.",
    )
    force: dict[str, Any] = Field(
        {},
        description="Parts of a recipe that override what every recipe says, e.g. {labels: "
        "{org.example.site: mycluster}}.",
    )
    require_signed_base: bool = Field(
        False,
        description="Lock and build only on bases that are signed with the `signature_key` of "
        "their registry.",
    )

    max_severity: Literal["", "negligible", "low", "medium", "high"] = Field(
        "",
        description="Promote no image with a known vulnerability that is more severe, as "
        "`hpcstack audit` finds it. Empty: any may be promoted.",
    )
    unknown_severity: Literal["refuse", "pass"] = Field(
        "refuse",
        description="What `max_severity` does with a vulnerability of which no record says how "
        "severe it is, as with many of Debian's.",
    )
    unaudited: tuple[Literal["conda", "deb", "other", "pypi"], ...] = Field(
        (),
        description="Packages that `max_severity` accepts although they cannot be audited: OSV has "
        "no records of conda's; `other` are packages of rpm or apk, and what could not be listed.",
    )
    waivers: tuple[Waiver, ...] = Field((), description="Vulnerabilities that pass until a day.")

    @field_validator("defaults", "force")
    @classmethod
    def _check_policy_keys(cls, part: dict[str, Any]) -> dict[str, Any]:
        for key in part:
            if key not in POLICY_KEYS:
                raise ValueError(
                    f"a policy cannot set {key!r}{did_you_mean(key, POLICY_KEYS)}; "
                    f"known: {', '.join(POLICY_KEYS)}"
                )
        return part
