"""The site: where and how. Layers of site.yaml, merged key by key, with the origin of each value.

built-in defaults < /etc/hpcstack/site.yaml < ~/.config/hpcstack/site.yaml < $HPCSTACK_SITE < --site
FILE; what the file in /etc puts under `force` nothing later overrides.
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
from hpcstack.core.dirs import config_home, data_home, own_user_name
from hpcstack.core.errors import InputError, ProblemsError, did_you_mean
from hpcstack.core.names import RUNTIMES
from hpcstack.core.yaml import (
    MAX_BYTES,
    Document,
    WrongKeyError,
    format_path,
    parse_yaml,
    problems_of,
    read_yaml_text,
    wrong_key,
)
from hpcstack.recipe.fields import Model, Mount
from hpcstack.recipe.merge import Policy, extract_fragment, merge_documents
from hpcstack.site.fabric import Baseline, Fabric
from hpcstack.site.model import (
    PLATFORMS,
    POLICY_KEYS,
    BuildSite,
    Gpus,
    HealthSite,
    ImageCacheSite,
    ModulesSite,
    NodeType,
    Partition,
    PolicySite,
    RegistrySite,
    SignaturesSite,
    StagingSite,
)
from hpcstack_smoke.select import CHECKS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SYSTEM = Path("/etc/hpcstack/site.yaml")
USER = "{user}"  # in `user_store`


if TYPE_CHECKING:
    RuntimeName = str
else:
    RuntimeName = Literal[("auto", *RUNTIMES)]


class Site(Model):
    """Every value of a site, validated."""

    api_version: Literal["hpcstack/site/v1"] = Field("hpcstack/site/v1", alias="apiVersion")
    group: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]*$",
        description="whose members build and publish together: store, caches, locks, logs and modules are "
        "theirs",
    )
    locks: Literal["recipe", "site"] = Field(
        "recipe",
        description="recipe: beside a recipe in a folder that can be written; site: always in "
        "lock_dir",
    )
    name: str = Field("local", pattern=r"^[A-Za-z0-9._-]+$")
    store: Path
    user_store: Path = Field(
        default_factory=lambda: data_home() / "hpcstack/store",
        description="where those who may not write the store keep images of their own; {user} is their "
        "name",
    )
    lock_dir: Path
    module_root: Path
    recipe_dirs: tuple[Path, ...] = ()
    registries: dict[str, RegistrySite] = Field({})
    build: BuildSite = BuildSite.model_construct()
    node_types: dict[str, NodeType] = Field({})
    partitions: dict[str, Partition] = Field({})
    fabric: Fabric = Fabric.model_construct()
    baselines: dict[str, dict[str, Baseline]] = Field(
        {}, description="{node type: {check: what it should reach}}"
    )
    policy: PolicySite = PolicySite.model_construct()
    runtime: RuntimeName = "auto"
    mounts: tuple[Mount, ...] = Field((), description="SOURCE:TARGET, bound into every job step")
    mount_home: bool = Field(
        True, description="whether launches have the user's home directory by default"
    )
    staging: StagingSite = StagingSite.model_construct()
    modules: ModulesSite = ModulesSite.model_construct()
    health: HealthSite = HealthSite.model_construct()
    signatures: SignaturesSite = SignaturesSite.model_construct()
    image_cache: ImageCacheSite = ImageCacheSite.model_construct()

    # Whose module tree is meant, where each architecture has one: this machine's own, unless
    # somebody says another.
    _architecture: str = PrivateAttr(default_factory=lambda: os.uname().machine)

    @field_validator("store", "user_store", "lock_dir", "module_root", "recipe_dirs", mode="after")
    @classmethod
    def _absolute(cls, value: Path | tuple[Path, ...]) -> Path | tuple[Path, ...]:
        for path in value if isinstance(value, tuple) else (value,):
            if not path.is_absolute():
                raise ValueError(f"{path} must be an absolute path")
            if CONTROL.search(str(path)) or any(sign in str(path) for sign in ":,"):
                raise ValueError(
                    f"{str(path)!r}: no control characters, ':' or ',' in a path that runtimes "
                    f"mount"
                )
        return value

    @model_validator(mode="after")
    def _check_names(self) -> Site:
        """Check that what one part of the file names is there in another."""
        defaults = [name for name, partition in self.partitions.items() if partition.default]
        if len(defaults) > 1:
            raise WrongKeyError(
                ("partitions",), f"more than one is the default: {', '.join(defaults)}"
            )

        for name, checks in self.baselines.items():
            self._check_node_type(("baselines",), name)
            self._check_codes(("baselines", name), checks)
        for name, injection in self.fabric.injections.items():
            for node_type in injection.node_types:
                self._check_node_type(("fabric", "injections", name), node_type)
        for node_type in self.modules.prove_on:
            self._check_node_type(("modules", "prove_on"), node_type)
        for name, partition in self.partitions.items():
            self._check_node_type(("partitions", name), partition.node_type)
        return self

    def _check_node_type(self, path: tuple[str, ...], name: str) -> None:
        """Raise WrongKeyError where no node type has NAME, which stands at PATH."""
        if name not in self.node_types:
            near = did_you_mean(name, self.node_types)
            raise WrongKeyError(path, f"there is no node type {name!r}{near}")

    def _check_codes(self, path: tuple[str, ...], checks: Iterable[str]) -> None:
        """Raise WrongKeyError where one of CHECKS, which stand at PATH, is no check: each is CODE
        or CODE/FIGURE.
        """
        codes = [check.code for check in CHECKS]
        for key in checks:
            code = key.partition("/")[0]
            if code not in codes:
                raise WrongKeyError(path, f"there is no check {code!r}{did_you_mean(code, codes)}")

    def node_type(self, partition: str = "") -> NodeType | None:
        """The node type of PARTITION (of a list the first), or of the default one; None where the
        site does not say.
        """
        if partition:
            chosen = self.partitions.get(partition.partition(",")[0])
        else:
            chosen = next((p for p in self.partitions.values() if p.default), None)
        return self.node_types[chosen.node_type] if chosen else None

    def kind(self, partition: str = "") -> str:
        """The name of `node_type`; empty where the site does not say."""
        node = self.node_type(partition)
        return next((name for name, one in self.node_types.items() if one is node), "")

    @property
    def module_tree(self) -> Path:
        """The module tree that is published into and loaded from: of one architecture, where each
        has its own.
        """
        return (
            self.module_root / self._architecture
            if self.modules.by_architecture
            else self.module_root
        )

    @property
    def tree_platform(self) -> str:
        """The platform of all images in the module tree; empty where it takes any."""
        return PLATFORMS.get(self._architecture, "") if self.modules.by_architecture else ""

    def for_architecture(self, architecture: str) -> Site:
        """The same site, seen from nodes of ARCHITECTURE, as `uname -m` says it."""
        there = self.model_copy()
        there._architecture = architecture
        return there

    def every_architecture(self) -> list[Site]:
        """The site once for each module tree that it has."""
        return (
            [self.for_architecture(one) for one in PLATFORMS]
            if self.modules.by_architecture
            else [self]
        )

    @property
    def own_store(self) -> Path:
        """Where this caller's images are made: the site's store, or his own where the site's is not
        his to write.

        A store that is not there is the site's still to make: its filesystem may be missing just
        now. Nor has an administrator a store of his own where the site's is mounted read-only: he
        is told that it cannot be written.
        """
        may_write = not self.store.exists() or os.access(self.store, os.W_OK)
        return self.store if may_write or self._is_administrators() else self.user_store

    def _is_administrators(self) -> bool:
        """Whether the store is this caller's: its owner's, root's, or a group's that he is a member
        of.
        """
        with contextlib.suppress(OSError):
            if os.geteuid() in (0, self.store.stat().st_uid):
                return True
        with contextlib.suppress(KeyError):
            number = grp.getgrnam(self.group).gr_gid if self.group else -1
            return number in (os.getegid(), *os.getgroups())
        return False

    @property
    def own_lock_dir(self) -> Path:
        """Where this caller's locks are written that lie beside no recipe."""
        return self.lock_dir if self.own_store == self.store else self.own_store / "locks"

    @property
    def without_gpus(self) -> bool:
        """Whether the site knows its nodes, and no real GPU is in any."""
        return bool(self.node_types) and not any(
            node.real_gpus for node in self.node_types.values()
        )

    def registry(self, host: str) -> RegistrySite:
        return self.registries.get(host, RegistrySite())


@dataclass(frozen=True)
class Origin:
    """Where a value came from: a FILE, perhaps from what it `force`s; without one it is built in."""

    file: Path | None = None
    forced: bool = False

    def __str__(self) -> str:
        if not self.file:
            return "built-in"
        return f"{self.file} (force)" if self.forced else str(self.file)


@dataclass(frozen=True)
class Loaded:
    """A site and where each of its values came from, by dotted path."""

    site: Site
    origins: Mapping[str, Origin] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)


def make_defaults(environ: Mapping[str, str]) -> dict[str, Any]:
    """The built-in layer: everything below the user's own data folder."""
    top = f"{data_home(environ)}/hpcstack"
    store = f"{top}/store"
    return {
        "store": store,
        "user_store": store,
        "lock_dir": f"{top}/locks",
        "module_root": f"{top}/modules",
    }


def find_layers(environ: Mapping[str, str], explicit: str = "") -> list[Path]:
    """The files that are there, weakest first; a file that was named must be there."""
    found = [
        path for path in (SYSTEM, config_home(environ) / "hpcstack/site.yaml") if path.is_file()
    ]
    for named, how in ((environ.get("HPCSTACK_SITE", ""), "$HPCSTACK_SITE"), (explicit, "--site")):
        if named and not Path(named).is_file():
            raise InputError(f"{named}: no such file, named by {how}")
        if named:
            found.append(Path(named))
    return found


def load_site(explicit: str = "", environ: Mapping[str, str] | None = None) -> Loaded:
    """The site of this caller. All problems of a layer are in the ProblemsError that it raises."""
    environ = os.environ if environ is None else environ
    merged: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    _merge(merged, make_defaults(environ), origins, Origin())
    forced: list[tuple[dict[str, Any], Origin]] = []
    documents: list[Document] = []
    for path in find_layers(environ, explicit):
        document = _read(path)
        if "force" in document.value:
            forced.append((_force(document, path), Origin(path, forced=True)))
        _merge(merged, document.value, origins, Origin(path))
        documents.append(document)
    for values, origin in forced:
        _merge(merged, values, origins, origin)
    _name_user(merged, origins)
    try:
        site = Site.model_validate(merged)
    except ValidationError as error:
        raise ProblemsError(_problems(error, documents)) from None
    policy = _policy(documents, [values for values, _ in forced])
    effective = {
        kind: part.value
        for kind, part in (("defaults", policy.defaults), ("force", policy.force))
        if part
    }
    stated = site.policy.model_copy(update=effective)
    return Loaded(site.model_copy(update={"policy": stated}), origins, policy)


def _name_user(merged: dict[str, Any], origins: dict[str, Origin]) -> None:
    """The user's name in place of {user} in `user_store`.

    InputError where a site names one folder for everybody.
    """
    said = str(merged["user_store"])
    if origins["user_store"].file and USER not in said:
        raise InputError(
            f"{origins['user_store']}: user_store: {said} is one folder for all users",
            f"say {USER} where the name of the user stands: /scratch/{USER}/hpcstack",
        )
    if USER in said:
        merged["user_store"] = said.replace(USER, own_user_name())


def _policy(documents: list[Document], forced: list[dict[str, Any]]) -> Policy:
    """The policy of all layers, weakest first, with the place of each value."""
    parts: dict[str, Document | None] = {"defaults": None, "force": None}
    for document in documents:
        for kind, so_far in parts.items():
            stated = document.value.get("policy")
            if isinstance(stated, dict) and isinstance(stated.get(kind), dict):
                part = extract_fragment(document, ("policy", kind))
                parts[kind] = merge_documents(so_far, part) if so_far else part
    for values in forced:
        for kind, so_far in list(parts.items()):
            if said := (values.get("policy") or {}).get(kind):
                above = Document(f"{SYSTEM} (force)", said)
                parts[kind] = merge_documents(so_far, above) if so_far else above
    return Policy(parts["defaults"], parts["force"])


def _force(document: Document, path: Path) -> dict[str, Any]:
    force = document.value.pop("force")
    if path != SYSTEM:
        raise ProblemsError(
            [document.problem(("force",), f"`force` counts in {SYSTEM} only", at_key=True)]
        )
    if not isinstance(force, dict):
        raise ProblemsError(
            [document.problem(("force",), "`force` is a mapping of what is forced")]
        )
    return force


def _read(path: Path) -> Document:
    try:
        document = parse_yaml(read_yaml_text(path, MAX_BYTES), str(path))
    except ValueError as error:
        raise InputError(f"{path}: {error}") from None
    if document.value is None:
        document.value = {}
    if not isinstance(document.value, dict):
        raise ProblemsError([document.problem((), "a site file is a mapping")])
    return document


def _problems(error: ValidationError, documents: list[Document]) -> list[Any]:
    """Each problem at the strongest layer that holds the key."""
    if not documents:
        raise InputError(f"the built-in site is wrong: {error}")
    out = []
    for number, entry in enumerate(error.errors()):
        wrong = wrong_key(entry)
        path = (*entry["loc"], *wrong.path) if wrong else tuple(entry["loc"])
        holder = next((d for d in reversed(documents) if path in d.marks), documents[-1])
        if wrong:
            out.append(holder.problem(path, wrong.what))
        else:
            out.append(list(problems_of(error, holder, Site))[number])
    return out


def _merge(
    into: dict[str, Any],
    layer: dict[str, Any],
    origins: dict[str, Origin],
    origin: Origin,
    path: tuple[str, ...] = (),
) -> None:
    for key, value in layer.items():
        here = (*path, key)
        if isinstance(value, dict) and isinstance(into.get(key, {}), dict):
            _merge(into.setdefault(key, {}), value, origins, origin, here)
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
