"""Looks at what is so of a declared name: recipes, locks, images, reports, ledger, damage.

Reads only; a registry is asked only for names that are pulled.

Tested in tests/integration/test_syncing.py.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hpcstack.build.options import BuildOptions
from hpcstack.core.errors import HpcstackError, InputError, StoreError, did_you_mean
from hpcstack.lock.file import LockFile
from hpcstack.publish.damage import can_be_mended, find_damage
from hpcstack.publish.publishable import choose_dates
from hpcstack.publish.reports import choose_report, find_reports, judge_reports
from hpcstack.releases.ledger import Ledger
from hpcstack.resolve.build_stack import request_stack
from hpcstack.sync.plan import choose_versions
from hpcstack.sync.state import ImageState, NameState, ProofState, StackState
from hpcstack_smoke.select import TIERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcstack.build.workbench import Workbench
    from hpcstack.publish.publisher import Publisher
    from hpcstack.publish.pull_image import PushedImage
    from hpcstack.recipe.catalog import Catalog, Recipe
    from hpcstack.report import Report
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store
    from hpcstack.sync.declaration import Declared, Proof

BAD = ("FAIL", "ERROR")  # outcomes of a check that has failed


@dataclass(frozen=True)
class Means:
    """What sync works with."""

    catalog: Catalog
    publisher: Publisher
    bench: Workbench
    words: tuple[str, ...]  # of this hpcstack's options, for its jobs
    # {REGISTRY/NAME:TAG: what it means}: asked once in a run
    pushed: dict[str, PushedImage] = field(default_factory=dict)

    @property
    def site(self) -> Site:
        """The site, whose module tree is that of the publisher."""
        return self.publisher.site


@dataclass(frozen=True)
class KnownRecipes:
    """{name: {version: full name of its stack}} of all recipes, and files that cannot be read."""

    versions: dict[str, dict[str, str]]
    unreadable: dict[str, str]  # {stem of a file: what is wrong with it}

    def list_unreadable(self, name: str) -> tuple[str, ...]:
        """Return what is wrong with the files that may hold versions of NAME."""
        return tuple(
            what
            for stem, what in self.unreadable.items()
            if stem == name or stem.startswith(f"{name}-") or name.startswith(f"{stem}-")
        )


def read_known_recipes(catalog: Catalog) -> KnownRecipes:
    """Return what CATALOG has. A file that cannot be read hides nothing: it is named."""
    versions: dict[str, dict[str, str]] = {}
    unreadable = {}
    for path in catalog.files():
        try:
            recipes = catalog.read(path)
        except HpcstackError as error:
            unreadable[path.stem] = error.message.splitlines()[0]
            continue
        for recipe in recipes:
            stack = recipe.stack
            versions.setdefault(stack.name, {}).setdefault(stack.release_version, stack.full_name)
    return KnownRecipes(versions, unreadable)


def look_at_name(name: str, declared: Declared, known: KnownRecipes, means: Means) -> NameState:
    """Return what is so of NAME."""
    site, publisher = means.site, means.publisher
    damage = find_damage(publisher.tree, publisher.store, name)
    mendable = tuple(one for one in damage if can_be_mended(one))
    try:
        ledger = publisher.tree.ledger(name)
    except StoreError as error:
        return NameState(Ledger(name), (), mendable, torn=error.message)

    stacks = known.versions.get(name, {})
    chosen = choose_versions(declared, stacks)
    over = {f"{name}/{one.release}" for one in ledger.entries if one.state in ("removed", "gone")}
    of_images = tuple(one for one in damage if one.repair == "image")
    return NameState(
        ledger=ledger,
        stacks=tuple(look_at_stack(one, stacks[one], declared, means) for one in chosen),
        damage=mendable,
        images=tuple(one for one in of_images if one.subject not in over),
        lost=tuple(one for one in damage if one not in of_images and one not in mendable),
        unreadable=known.list_unreadable(name),
        known=tuple(stacks),
        meant="" if stacks else did_you_mean(name, list(known.versions)),
        second_person=site.modules.approve == "other",
    )


def look_at_stack(version: str, full: str, declared: Declared, means: Means) -> StackState:
    """Return what is so of VERSION, which is the stack FULL."""
    unknown = StackState(version, full)
    try:
        recipe = means.catalog.find(full)
        platform = means.site.tree_platform or recipe.stack.base.platforms[0]
        partitions = list_partitions(means.site, declared.prove, platform)
        unknown = replace(
            unknown,
            proofs=tuple(map(ProofState, partitions)),
            lifecycle=choose_dates(recipe.stack),
        )
        stale = _find_staleness(recipe, declared, means)
        if stale:
            return replace(unknown, stale=stale)
        artifact = _find_image(recipe, declared, means)
    except HpcstackError as error:
        return replace(unknown, problem=error.message.splitlines()[0])
    if artifact is None:
        return unknown

    store = means.publisher.store
    reports = find_reports(full, artifact.sha256, store)
    site = make_strict_site(means.site, declared.prove)
    proofs = tuple(_judge_partition(one, recipe, artifact, site, reports) for one in partitions)
    shut: list[str] = []
    if all(not one.reasons for one in proofs):
        _, shut = judge_reports(recipe.stack, artifact, site, reports)
    image = ImageState(artifact.key, artifact.sha256)
    return replace(unknown, image=image, proofs=proofs, shut=tuple(shut))


def _find_staleness(recipe: Recipe, declared: Declared, means: Means) -> tuple[str, ...]:
    """Return why RECIPE is to be locked. What is pulled or adopted has its lock already."""
    if declared.pull_from or recipe.stack.adopted:
        return ()
    return LockFile(recipe, means.site).state().reasons


def _find_image(recipe: Recipe, declared: Declared, means: Means) -> Artifact | None:
    """Return the image that the lock of RECIPE, or its registry, means now, if it is there."""
    store = means.publisher.store
    stack = recipe.stack
    if stack.adopted:
        return find_newest_if_any(stack.full_name, store, means.site.tree_platform)
    if declared.pull_from:
        from hpcstack.publish.pull_image import find_pulled, read_pushed

        named = f"{declared.pull_from}:{stack.release_version}"
        pushed = means.pushed.get(named) or read_pushed(
            named, "", means.bench.registry, platform=means.site.tree_platform
        )
        means.pushed[named] = pushed
        if pushed.attested.lock.spec_sha256 != stack.checksum():
            raise InputError(
                f"{named} was made of another recipe than the {stack.full_name} that is here",
                "take the recipe that it was made of",
                page="declare-releases",
            )
        return find_pulled(pushed, means.bench)
    options = BuildOptions(platform=means.site.tree_platform)
    request = request_stack(recipe, options, means.bench, dry=True)
    with contextlib.suppress(StoreError):  # a damaged image is built again
        return store.artifact(request.key)
    return None


def find_newest_if_any(stack: str, store: Store, platform: str) -> Artifact | None:
    """Return the newest image of STACK, for PLATFORM where one is named."""
    return store.newest_for(stack, platform) if platform else store.newest(stack)


def list_partitions(site: Site, prove: Proof, platform: str) -> tuple[str, ...]:
    """Return the partitions that must prove an image for PLATFORM.

    They are those that are declared and that run such images, and one for each further node type of
    the site's modules.prove_on. By default it is Slurm's default partition, which is empty here.
    """
    named = list(prove.partitions)
    covered = {site.kind(one) for one in named}
    for kind in site.modules.prove_on:
        of_kind = [one for one, row in site.partitions.items() if kind in row.kinds]
        of_kind.sort(key=lambda one: len(site.partitions[one].kinds))  # that kind alone first
        if kind not in covered and of_kind and of_kind[0] not in named:
            named.append(of_kind[0])
    fitting = []
    for one in named or [""]:
        node = site.node_type(one)
        if node is None or node.platform == platform:
            fitting.append(one)
    return tuple(fitting)


def make_strict_site(site: Site, prove: Proof) -> Site:
    """Return SITE with the gate that PROVE asks for: never less than the site itself asks for."""
    # Of a partition with nodes of several types Slurm chooses the nodes, so none of them is required.
    kinds = [site.kind(partition) for partition in prove.partitions]
    own = site.modules
    changes = {
        "tier": choose_tier(site, prove),
        "prove_on": tuple(dict.fromkeys([*own.prove_on, *filter(None, kinds)])),
    }
    return site.model_copy(update={"modules": own.model_copy(update=changes)})


def choose_tier(site: Site, prove: Proof) -> str:
    """Return the tier of tests: the higher one of the site's and the declared one."""
    tiers = (site.modules.tier, prove.tier or site.modules.tier)
    return max(tiers, key=TIERS.index)


def _judge_partition(
    partition: str, recipe: Recipe, artifact: Artifact, site: Site, reports: Sequence[Report]
) -> ProofState:
    """Return what REPORTS, the newest first, say of the image on the nodes of PARTITION."""
    kinds = site.kinds(partition)
    meant = kinds if len(kinds) == 1 else (*kinds, "")
    of_kind = [one for one in reports if one.node_type in meant]
    good, why = choose_report(recipe.stack, artifact, site, of_kind)
    if good:
        return ProofState(partition, tested=good.started)

    # A report of a lower tier does not count as a try.
    tiers = TIERS[TIERS.index(site.modules.tier) :]
    enough = [one for one in of_kind if one.tier in tiers]
    newest = enough[0] if enough else None
    return ProofState(
        partition,
        tuple(map(str, why)),
        newest.started if newest else "",
        failed=bool(newest and any(one.status in BAD for one in newest.outcomes)),
        outdated=any(one.outdated for one in why),
    )
