"""The site: what a cluster has, and where things go.

It is read from layers of site.yaml, merged key by key; the origin of each value is kept. Weakest
first:

    built-in defaults
    /etc/hpcstack/site.yaml
    ~/.config/hpcstack/site.yaml
    $HPCSTACK_SITE
    --site FILE

What the file in /etc puts under `force` nothing later overrides.
"""

from __future__ import annotations

import contextlib
import grp
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError, field_validator, model_validator

from hpcstack.core.characters import CONTROL
from hpcstack.core.dirs import find_config_home, find_data_home, find_own_user_name
from hpcstack.core.errors import InputError, Problem, ProblemsError, did_you_mean
from hpcstack.core.names import RUNTIMES
from hpcstack.core.sharing import Sharing, find_sharing
from hpcstack.core.yaml import (
    MAX_BYTES,
    MAX_PROBLEMS,
    Document,
    WrongKeyError,
    find_wrong_key,
    format_path,
    list_problems,
    parse_yaml,
    read_yaml_text,
)
from hpcstack.recipe.fields import Model, Mount
from hpcstack.recipe.merge import Policy, extract_fragment, merge_documents
from hpcstack.recipe.own_checks import OF_SITE, OF_STACK, SiteCheck, check_unique_names
from hpcstack.site.fabric import Baseline, Fabric
from hpcstack.site.injection import SiteOptions
from hpcstack.site.model import (
    PLATFORMS,
    POLICY_KEYS,
    AuditSite,
    BuildSite,
    Gpus,
    HangSite,
    HealthSite,
    ImageCacheSite,
    ModulesSite,
    NodeType,
    Partition,
    PolicySite,
    RegistrySite,
    SignaturesSite,
    StagingSite,
    UsageSite,
    merge_node_types,
)
from hpcstack_smoke.select import CHECKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SYSTEM = Path("/etc/hpcstack/site.yaml")
USER = "{user}"  # stands for the user's name in `user_store`

# pydantic wants a Literal of all names; mypy takes no Literal made from a variable.
if TYPE_CHECKING:
    RuntimeName = str
else:
    RuntimeName = Literal[("auto", *RUNTIMES)]


# https://gitlab.com/x86-psABIs/x86-64-ABI, "Microarchitecture levels"
Cpu = Literal["", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"]


class Site(Model):
    """One cluster: what it has, where hpcstack puts things, and what applies to every stack.

    Files are merged key by key: built-in, /etc/hpcstack/site.yaml, ~/.config/hpcstack/site.yaml,
    $HPCSTACK_SITE, --site FILE. What /etc/hpcstack/site.yaml has under `force` wins over all.
    """

    api_version: Literal["hpcstack/site/v1"] = Field(
        "hpcstack/site/v1", alias="apiVersion", description="The format of this file."
    )
    group: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]*$",
        description="Unix group whose members build and publish together. Store, caches, locks, "
        "logs and module tree become the group's to write.",
    )
    locks: Literal["recipe", "site"] = Field(
        "recipe",
        description="Where locks are written. recipe: beside the recipe, where that folder can be "
        "written, else in `lock_dir`. site: always in `lock_dir`.",
    )
    name: str = Field(
        "local",
        pattern=r"^[A-Za-z0-9._-]+$",
        description="The site's name, shown in the catalogue and in generated scripts.",
    )
    store: Path = Field(
        description="Folder of images, releases, reports and logs. Every node must see it."
    )
    user_store: Path = Field(
        default_factory=lambda: find_data_home() / "hpcstack/store",
        description="Folder in which users who may not write `store` keep images of their own. It "
        "must contain {user}, which stands for the user's name. The nodes must see it.",
    )
    cpu: Cpu = Field(
        "",
        description="What every x86_64 node has at least, as compilers name it: x86-64-v3. Of a base "
        "that comes for several such levels, the highest that the nodes have is taken; without this "
        "the one that runs everywhere.",
    )
    lock_dir: Path = Field(description="Folder for locks that are not written beside their recipe.")
    module_root: Path = Field(
        description="Folder of the module tree. Users type: module use MODULE_ROOT/Core."
    )
    recipe_dirs: tuple[Path, ...] = Field(
        (),
        description="Folders of recipes. They are searched before the recipes that come with "
        "hpcstack.",
    )
    registries: dict[str, RegistrySite] = Field(
        {},
        description="Registries that need settings here, by host, e.g. {nvcr.io: {mirror: "
        "harbor.example.org}}.",
    )
    build: BuildSite = BuildSite.model_construct()
    node_types: dict[str, NodeType] = Field(
        {},
        description="Kinds of nodes, each under a name of your choice. `partitions` refers to "
        "these names.",
    )
    partitions: dict[str, Partition] = Field({}, description="Slurm partitions, by name.")
    srun: SiteOptions = Field(
        {}, description="srun's options that every job of the site gets, as in `partitions`."
    )
    fabric: Fabric = Fabric.model_construct()
    baselines: dict[str, dict[str, Baseline]] = Field(
        {},
        description="Figures that your own nodes reach, by node type, then by CHECK or "
        "CHECK/FIGURE as in the suite's report. Less than 95 % of one is a WARN.",
    )
    checks: tuple[SiteCheck, ...] = Field(
        (),
        description="Acceptance tests of the site's own, which `hpcstack test` runs in the images "
        "of the stacks that they are for, and which these must pass before they get into "
        "production.",
    )
    policy: PolicySite = PolicySite.model_construct()
    runtime: RuntimeName = Field(
        "auto",
        description="The container runtime that launches use. auto takes Pyxis where srun has it, "
        "else Apptainer, or Enroot where there is no Apptainer. Without srun it is local: "
        "Apptainer on this machine.",
    )
    mounts: tuple[Mount, ...] = Field(
        (), description="Folders that every job step sees: SOURCE:TARGET, e.g. /scratch:/scratch."
    )
    mount_home: bool = Field(
        True,
        description="Launches see the user's home directory, unless they are told otherwise "
        "(--home, --no-home).",
    )
    slurm_inside: bool = Field(
        False,
        description="Slurm's commands, such as srun and squeue, can be typed in the containers of "
        "launches, unless they are told otherwise (--slurm, --no-slurm).",
    )
    staging: StagingSite = StagingSite.model_construct()
    modules: ModulesSite = ModulesSite.model_construct()
    health: HealthSite = HealthSite.model_construct()
    hang: HangSite = HangSite.model_construct()
    audit: AuditSite = AuditSite.model_construct()
    usage: UsageSite = UsageSite.model_construct()
    signatures: SignaturesSite = SignaturesSite.model_construct()
    image_cache: ImageCacheSite = ImageCacheSite.model_construct()

    # Whose module tree is meant, where each architecture has its own: this machine's, unless
    # `for_architecture` says another.
    _architecture: str = PrivateAttr(default_factory=lambda: os.uname().machine)

    @field_validator("store", "user_store", "lock_dir", "module_root", "recipe_dirs", mode="after")
    @classmethod
    def _check_paths(cls, value: Path | tuple[Path, ...]) -> Path | tuple[Path, ...]:
        """Refuse paths that are relative, or that a runtime could not mount."""
        paths = value if isinstance(value, tuple) else (value,)
        for path in paths:
            if not path.is_absolute():
                raise ValueError(f"{path} must be an absolute path")
            # Runtimes take mounts as SOURCE:TARGET, some of them several separated by commas.
            if CONTROL.search(str(path)) or any(sign in str(path) for sign in ":,"):
                raise ValueError(
                    f"{str(path)!r}: no control characters, ':' or ',' in a path that "
                    "runtimes mount"
                )
        return value

    @model_validator(mode="after")
    def _check_names(self) -> Site:
        """Raise WrongKeyError where one part of the file names what another does not have."""
        defaults = self.default_partitions
        if len(defaults) > 1:
            both = ", ".join(defaults)
            raise WrongKeyError(
                ("partitions",),
                f"more than one partition is the default: {both}; keep `default: true` at one",
            )

        check_unique_names(self.checks)
        for number, check in enumerate(self.checks):
            for figure_name, figure in check.figures.items():
                node_types = figure.gate if isinstance(figure.gate, dict) else {}
                for node_type in node_types:
                    place = ("checks", number, "figures", figure_name, "gate")
                    self._check_node_type(place, node_type)
        for name, checks in self.baselines.items():
            self._check_node_type(("baselines",), name)
            self._check_codes(("baselines", name), checks)
        for name, injection in self.fabric.injections.items():
            for node_type in injection.node_types:
                self._check_node_type(("fabric", "injections", name), node_type)
        for node_type in self.modules.prove_on:
            self._check_node_type(("modules", "prove_on"), node_type)
        for name, partition in self.partitions.items():
            for node_type in partition.kinds:
                self._check_node_type(("partitions", name), node_type)
        return self

    def _check_node_type(self, path: tuple[str | int, ...], name: str) -> None:
        """Raise WrongKeyError where no node type has NAME, which stands at PATH."""
        if name not in self.node_types:
            near = did_you_mean(name, self.node_types)
            raise WrongKeyError(path, f"there is no node type {name!r}{near}")

    def _check_codes(self, path: tuple[str, ...], checks: Iterable[str]) -> None:
        """Raise WrongKeyError where one of CHECKS, which stand at PATH, is no check of the suite.

        Each is CODE or CODE/FIGURE. What the recipes' own checks are is not known here.
        """
        codes = [check.code for check in CHECKS]
        codes += [f"{OF_SITE}.{check.name}" for check in self.checks]
        for key in checks:
            code = key.partition("/")[0]
            if code.startswith(f"{OF_STACK}."):
                continue
            if code not in codes:
                raise WrongKeyError(path, f"there is no check {code!r}{did_you_mean(code, codes)}")

    def node_type(self, partition: str = "") -> NodeType | None:
        """Return the node type of PARTITION, or of the default partition where it is empty.

        Of several types it is one that promises no more than each of them has: `launch/node_types.py`
        chooses among them. None where the site does not say.
        """
        return merge_node_types([self.node_types[name] for name in self.kinds(partition)])

    @property
    def default_partitions(self) -> list[str]:
        """The name of the default partition; none where the site names none."""
        return [name for name, partition in self.partitions.items() if partition.default]

    def kinds(self, partitions: str = "") -> tuple[str, ...]:
        """Return the names of the node types of PARTITIONS, `a,b`, or of the default one.

        Empty where the site does not say: it describes none of them, or has no default one.
        """
        wanted = partitions.split(",") if partitions else self.default_partitions
        chosen = [self.partitions.get(name) for name in wanted]
        names = [name for partition in chosen if partition for name in partition.kinds]
        return tuple(dict.fromkeys(names))

    def kind(self, partition: str = "") -> str:
        """Return the name of the node type of PARTITION; empty where the site does not say, or it has
        several.
        """
        names = self.kinds(partition)
        return names[0] if len(names) == 1 else ""

    @property
    def module_tree(self) -> Path:
        """The module tree that is published into and loaded from.

        It is that of one architecture, where each has its own.
        """
        if self.modules.by_architecture:
            return self.module_root / self._architecture
        return self.module_root

    @property
    def cpu_levels(self) -> dict[str, int]:
        """{architecture as registries name it: its level}: {"amd64": 3}; empty where nobody says."""
        if not self.cpu:
            return {}
        _, _, level = self.cpu.partition("-v")
        return {"amd64": int(level or 1)}

    @property
    def tree_platform(self) -> str:
        """The platform of all images in the module tree; empty where it takes any."""
        if not self.modules.by_architecture:
            return ""
        return PLATFORMS.get(self._architecture, "")

    def for_architecture(self, architecture: str) -> Site:
        """Return the same site, seen from nodes of ARCHITECTURE, as `uname -m` prints it."""
        there = self.model_copy()
        there._architecture = architecture
        return there

    def every_architecture(self) -> list[Site]:
        """Return the site once for each module tree that it has."""
        if self.modules.by_architecture:
            return [self.for_architecture(one) for one in PLATFORMS]
        return [self]

    @property
    def sharing(self) -> Sharing:
        """Who shares what is written for this site, and whose records are believed."""
        return find_sharing(self.group, tuple(self.modules.publishers))

    @property
    def has_shared_store(self) -> bool:
        """Whether the site has a store for all, other than the one that each user has of their own."""
        return self.store != self.user_store

    @property
    def own_store(self) -> Path:
        """The store in which this caller's images are made.

        It is the site's, or the caller's own where the site's is not theirs to write. A store that
        does not exist is still taken for the site's: its filesystem may be missing just now. Nor
        does an administrator get a store of their own where the site's is mounted read-only: they
        are told that it cannot be written.
        """
        may_write = not self.store.exists() or os.access(self.store, os.W_OK)
        if may_write or self._is_administrators():
            return self.store
        return self.user_store

    def _is_administrators(self) -> bool:
        """Return whether the caller runs the store: its owner, root, or a member of `group`."""
        with contextlib.suppress(OSError):
            if os.geteuid() in (0, self.store.stat().st_uid):
                return True
        with contextlib.suppress(KeyError):  # this machine does not know the group
            number = grp.getgrnam(self.group).gr_gid if self.group else -1
            return number in (os.getegid(), *os.getgroups())
        return False

    @property
    def own_lock_dir(self) -> Path:
        """The folder of this caller's locks that do not lie beside a recipe."""
        if self.own_store == self.store:
            return self.lock_dir
        return self.own_store / "locks"

    @property
    def without_gpus(self) -> bool:
        """Whether the site names its node types, and none of them has a real GPU."""
        has_gpus = any(node.has_gpus for node in self.node_types.values())
        return bool(self.node_types) and not has_gpus

    def registry(self, host: str) -> RegistrySite:
        """Return how the registry HOST is reached; the defaults where the site says nothing."""
        return self.registries.get(host, RegistrySite())


@dataclass(frozen=True)
class Origin:
    """Where a value came from: a FILE, or its `force`. Without a file it is built in."""

    file: Path | None = None
    forced: bool = False

    def __str__(self) -> str:
        if not self.file:
            return "built-in"
        if self.forced:
            return f"{self.file} (force)"
        return str(self.file)


@dataclass(frozen=True)
class Loaded:
    """A site, the origin of each of its values by dotted path, and its policy with places."""

    site: Site
    origins: Mapping[str, Origin] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)


def make_defaults(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the built-in layer: all lies below the user's own data folder."""
    top = f"{find_data_home(environ)}/hpcstack"
    store = f"{top}/store"
    return {
        "store": store,
        "user_store": store,
        "lock_dir": f"{top}/locks",
        "module_root": f"{top}/modules",
    }


def find_layers(environ: Mapping[str, str], explicit: str = "") -> list[Path]:
    """Return the site files that exist, weakest first.

    Raise InputError where one that was named, by $HPCSTACK_SITE or as EXPLICIT, does not exist.
    """
    usual = (SYSTEM, find_config_home(environ) / "hpcstack/site.yaml")
    found = [path for path in usual if path.is_file()]
    for named, how in ((environ.get("HPCSTACK_SITE", ""), "$HPCSTACK_SITE"), (explicit, "--site")):
        if named and not Path(named).is_file():
            raise InputError(f"{named}: no such file, named by {how}", page="describe-your-cluster")
        if named:
            found.append(Path(named))
    return found


def load_site(explicit: str = "", environ: Mapping[str, str] | None = None) -> Loaded:
    """Return this caller's site. EXPLICIT is the file that --site names.

    Raise ProblemsError with all problems of its files, InputError for a file that cannot be read.
    """
    environ = os.environ if environ is None else environ
    merged: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    _merge_layer(merged, make_defaults(environ), origins, Origin())
    forced: list[tuple[dict[str, Any], Origin]] = []
    documents: list[Document] = []

    for path in find_layers(environ, explicit):
        document = _read_document(path)
        if "force" in document.value:
            forced.append((_take_force(document, path), Origin(path, forced=True)))
        _merge_layer(merged, document.value, origins, Origin(path))
        documents.append(document)
    for values, origin in forced:
        _merge_layer(merged, values, origins, origin)

    _fill_in_user(merged, origins)
    try:
        site = Site.model_validate(merged)
    except ValidationError as error:
        raise ProblemsError(
            _list_problems(error, documents), page="describe-your-cluster"
        ) from None

    # `_merge_layer` has replaced the policy's lists. They are merged again as recipes' lists are.
    policy = _merge_policies(documents, [values for values, _ in forced])
    remerged = {}
    if policy.defaults:
        remerged["defaults"] = policy.defaults.value
    if policy.force:
        remerged["force"] = policy.force.value
    stated = site.policy.model_copy(update=remerged)
    return Loaded(site.model_copy(update={"policy": stated}), origins, policy)


def _fill_in_user(merged: dict[str, Any], origins: dict[str, Origin]) -> None:
    """Replace {user} in `user_store` by the user's name.

    Raise InputError where a site names one folder for all users.
    """
    if not isinstance(merged["user_store"], str | Path):
        return  # what is no path is refused by the model, with its place
    said = str(merged["user_store"])
    if origins["user_store"].file and USER not in said:
        raise InputError(
            f"{origins['user_store']}: user_store: {said} is one folder for all users",
            f"say {USER} where the user's name belongs, e.g. /scratch/{USER}/hpcstack",
            page="build-my-own-stack",
        )
    if USER in said:
        merged["user_store"] = said.replace(USER, find_own_user_name())


def _merge_policies(documents: list[Document], forced: list[dict[str, Any]]) -> Policy:
    """Return the policy of all layers, merged weakest first, with the place of each value."""
    parts: dict[str, Document | None] = {"defaults": None, "force": None}
    for document in documents:
        for kind, so_far in parts.items():
            stated = document.value.get("policy")
            if isinstance(stated, dict) and isinstance(stated.get(kind), dict):
                part = extract_fragment(document, ("policy", kind))
                parts[kind] = merge_documents(so_far, part) if so_far else part

    for values in forced:
        for kind, so_far in list(parts.items()):
            said = (values.get("policy") or {}).get(kind)
            if said:
                above = Document(f"{SYSTEM} (force)", said)
                parts[kind] = merge_documents(so_far, above) if so_far else above
    return Policy(parts["defaults"], parts["force"])


def _take_force(document: Document, path: Path) -> dict[str, Any]:
    """Take `force` out of DOCUMENT and return it. Raise ProblemsError where it may not be."""
    force = document.value.pop("force")
    if path != SYSTEM:
        what = f"`force` is allowed in {SYSTEM} only"
        raise ProblemsError(
            [document.problem(("force",), what, at_key=True)], page="describe-your-cluster"
        )
    if not isinstance(force, dict):
        what = "`force` must be a mapping of the keys to force, e.g. {runtime: pyxis}"
        raise ProblemsError([document.problem(("force",), what)], page="describe-your-cluster")
    return force


def _read_document(path: Path) -> Document:
    """Read one site file; an empty one is {}. Raise InputError or ProblemsError for a bad one."""
    try:
        document = parse_yaml(read_yaml_text(path, MAX_BYTES), str(path))
    except ValueError as error:
        raise InputError(f"{path}: {error}", page="describe-your-cluster") from None
    except ProblemsError as error:
        raise ProblemsError(error.problems, error.hint, page="describe-your-cluster") from None
    if document.value is None:
        document.value = {}
    if not isinstance(document.value, dict):
        what = "a site file must be a mapping of keys, e.g. name: mycluster"
        raise ProblemsError([document.problem((), what)], page="describe-your-cluster")
    return document


def _list_problems(error: ValidationError, documents: list[Document]) -> list[Problem]:
    """Return each problem at its place in the strongest layer that holds the key."""
    if not documents:
        raise InputError(f"hpcstack's built-in site is wrong: {error}")
    out = []
    for number, entry in enumerate(error.errors()[:MAX_PROBLEMS]):
        wrong = find_wrong_key(entry)
        path = (*entry["loc"], *wrong.path) if wrong else tuple(entry["loc"])
        holder = next((d for d in reversed(documents) if path in d.marks), documents[-1])
        if wrong:
            out.append(holder.problem(path, wrong.what))
        else:
            out.append(list(list_problems(error, holder, Site))[number])
    return out


def _merge_layer(
    into: dict[str, Any],
    layer: dict[str, Any],
    origins: dict[str, Origin],
    origin: Origin,
    path: tuple[str, ...] = (),
) -> None:
    """Merge LAYER, which came from ORIGIN and lies at PATH, over INTO; note each value's origin."""
    for key, value in layer.items():
        here = (*path, key)
        if isinstance(value, dict) and isinstance(into.get(key, {}), dict):
            _merge_layer(into.setdefault(key, {}), value, origins, origin, here)
        else:
            into[key] = value
            origins[format_path(here)] = origin


__all__ = [
    "POLICY_KEYS",
    "SYSTEM",
    "BuildSite",
    "Gpus",
    "Loaded",
    "NodeType",
    "Partition",
    "RegistrySite",
    "Site",
    "StagingSite",
    "make_defaults",
    "find_layers",
    "load_site",
]
