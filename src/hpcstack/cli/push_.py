"""`hpcstack push`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_pushing.py.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import (
    Session,
    answer,
    complete_stacks,
    events_option,
    find_image_named,
    json_option,
    say,
    show_progress,
)

if TYPE_CHECKING:
    from hpcstack.oci.signed import PrivateKey
    from hpcstack.publish.push_image import Pushed
    from hpcstack.recipe.model import Stack
    from hpcstack.store.artifact import Artifact


@click.command("push")
@click.argument(
    "name",
    metavar="STACK",
    shell_complete=lambda ctx, _param, start: complete_stacks(ctx, start),
)
@click.argument("target", metavar="REGISTRY/NAME[:TAG]")
@click.option(
    "--key",
    default="",
    metavar="FILE",
    show_default="signatures.push_with of site.yaml",
    help="Sign with this private key, as cosign does.",
)
@click.option("--unsigned", is_flag=True, help="Do not sign, although site.yaml names a key.")
@click.option(
    "--with-base",
    is_flag=True,
    help="Upload the base's layers where the registry does not have them.",
)
@events_option
@json_option
@click.pass_obj
def command(
    session: Session,
    name: str,
    target: str,
    key: str,
    unsigned: bool,
    with_base: bool,
    events: str,
    as_json: bool,
) -> None:
    """Push an image to a registry, with its SBOM, lock, reports and provenance.

    The base's layers keep their digests, and are not uploaded where the registry has them. STACK is
    a stack, or what is published as NAME/VERSION. Without a TAG, it is the stack's version. What is
    pushed runs in Docker, podman and Kubernetes, and by Pyxis, Enroot and Apptainer.
    """
    from hpcstack.oci.push import PushRegistry
    from hpcstack.oci.reference import parse_registry_image
    from hpcstack.publish.push_image import PushRequest, push_image
    from hpcstack.publish.reports import find_reports

    stack, artifact = _find_image(session, name)
    if ":" not in target.rpartition("/")[2]:
        target = f"{target}:{stack.release_version}"
    base = parse_registry_image(target)
    private = None if unsigned else _read_key(session, key)
    found = find_reports(stack.full_name, artifact.sha256, session.store)
    request = PushRequest(stack, artifact, tuple(found), with_base, private)

    with show_progress(f"pushing {artifact.stack}", events) as progress:
        registry = PushRegistry(session.site, base, warn=say)
        done = push_image(request, registry, session.workbench(progress))
    answer(asdict(done), as_json, lambda: _format_text(done))


def _find_image(session: Session, name: str) -> tuple[Stack, Artifact]:
    """Return the image that NAME means, and the stack that it was built as.

    That is a release, or the newest image of a stack whose recipe has not changed since.
    """
    from hpcstack.core.errors import InputError
    from hpcstack.store.find import find_stored

    artifact = find_stored(find_image_named(session, name), session.store)
    recipe = session.recipe(artifact.stack)
    if recipe.stack.checksum() != _read_spec(artifact):
        raise InputError(
            f"the recipe of {artifact.stack} has changed since its image was built",
            f"hpcstack build {artifact.stack}",
            page="push-an-image",
        )
    return recipe.stack, artifact


def _read_spec(artifact: Artifact) -> str:
    """Return the checksum of the recipe that the image of ARTIFACT was built of, as it says itself."""
    import json

    from hpcstack.render.steps import HOME
    from hpcstack.store.contents import read_optional

    try:
        return str(json.loads(read_optional(artifact.image, f"{HOME}/stack.json"))["spec_sha256"])
    except (ValueError, KeyError, TypeError):
        return ""


def _read_key(session: Session, file: str) -> PrivateKey | None:
    """Return the private key in FILE, or in the one that the site names; None without either."""
    from hpcstack.oci.signed import read_private_key

    named = file or session.site.signatures.push_with
    if not named:
        say("not signed: neither --key nor signatures.push_with in site.yaml names a key")
        return None
    return read_private_key(
        named, lambda: str(click.prompt(f"passphrase of {named}", hide_input=True, err=True))
    )


def _format_text(done: Pushed) -> str:
    lines = [done.image]
    mounted = f"{done.base_layers} layers of the base"
    if done.uploaded_base:
        mounted += f", of which {done.uploaded_base / 1e6:.1f} MB were uploaded"
    else:
        mounted += ", which the registry has"
    lines.append(f"  {mounted}")
    lines.append(f"  1 layer of its own, {done.delta_bytes / 1e6:.1f} MB")
    lines.append(f"  uploaded: {done.sent / 1e6:.1f} MB")
    lines += [f"  {what}: {digest}" for what, digest in done.attached.items()]
    lines.append("  signed" if done.signed else "  NOT signed")
    return "\n".join(lines)
