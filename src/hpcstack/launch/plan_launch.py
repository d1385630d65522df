"""Turn a request into a planned launch: its image, added packages, staged data and step."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcstack.core.errors import InputError
from hpcstack.launch.page import add_needed
from hpcstack.launch.plan import plan_step
from hpcstack.launch.reach_slurm import wants_slurm
from hpcstack.launch.record import keep_prolog
from hpcstack.launch.request import check_grace
from hpcstack.launch.run import PlannedLaunch
from hpcstack.launch.staging import plan_staging
from hpcstack.launch.surroundings import look_around
from hpcstack.project.added import plan_added
from hpcstack.project.named import read_named_packages
from hpcstack.releases.seal import explain_image_change
from hpcstack.store.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpcstack.core.process import Runner
    from hpcstack.launch.request import LaunchRequest
    from hpcstack.naming.names import ChosenImage
    from hpcstack.recipe.catalog import Catalog
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact


def plan_launch(
    request: LaunchRequest, catalog: Callable[[], Catalog], site: Site, runner: Runner
) -> PlannedLaunch:
    """Return REQUEST with its image and its plan.

    CATALOG is called only where the image's name needs the recipes. Raise InputError for what
    cannot be launched.
    """
    around = look_around(
        request.runtime,
        site,
        runner,
        batch=request.batch,
        het_group=request.resources.extra.value("--het-group"),
    )
    names = around.find_names(request.resources, catalog)
    chosen = names.find_image_to_run(request.name)
    artifact = chosen.artifact
    require_signed(artifact, chosen.release, site, runner)

    if request.home is None:
        request = replace(request, home=site.mount_home)
    if request.slurm is None:
        request = replace(request, slurm=wants_slurm(artifact, around))

    request = add_needed(request, artifact)
    packages = read_named_packages((*chosen.layer, *request.packages))
    added = None
    if packages or request.project:
        added = plan_added(artifact, request.project, packages, os.environ)
    staged = plan_staging(artifact, site, request.stage, request.stage_in)
    plan = plan_step(request, artifact, around, prolog=keep_prolog(), staged=staged, added=added)

    check_grace(request.grace, request.resources.time)
    runner.which(plan.argv[0])  # raises where the program that starts the step is missing
    if plan.fit and not plan.fit.runs:
        raise InputError(
            f"the image does not run on these nodes: {plan.fit}",
            "hpcstack list shows the stacks that do",
            page="describe-your-cluster",
        )
    doubt = "; ".join(filter(None, (chosen.doubt, _note_own_image(chosen))))
    return PlannedLaunch(plan, artifact, chosen.why, site, runner, added, doubt, chosen.release)


def _note_own_image(chosen: ChosenImage) -> str:
    """Return what to say where this user has built another image of the stack since.

    What others have built, or have published for a test, is not this user's business.
    """
    built = chosen.built_since
    is_own = built is not None and built.image.stat().st_uid == os.geteuid()
    return chosen.note if is_own else ""


def require_signed(artifact: Artifact, release: str, site: Site, runner: Runner) -> None:
    """Raise InputError where the site requires signatures and ARTIFACT has none that it trusts.

    A signature is of an image's bytes, which no launch reads. Of a RELEASE the seal has been looked
    at; what is in none has one of its own.
    """
    if not site.signatures.required:
        return
    from hpcstack.store.signing import explain_distrust

    why = explain_distrust(artifact, site.signatures.keys, runner)
    if why:
        raise InputError(
            f"this site runs only signed images; {artifact.image}: {why}",
            "ask the site's administrators to sign it: hpcstack sign",
            page="sign-images",
        )
    changed = "" if release else explain_image_change(artifact, open_store(site))
    if changed:
        raise InputError(
            f"this site runs only signed images; {artifact.image}: {changed}",
            "a publisher reads it, and renews its seal: hpcstack verify --signature "
            f"{artifact.key[:12]}",
            page="sign-images",
        )
