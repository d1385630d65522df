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
    json_option,
    say,
    show_progress,
)

if TYPE_CHECKING:
    from hpcstack.publish.push_image import Pushed


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
    from hpcstack.publish.push_image import push_image, request_push

    artifact = session.find_image(name)
    request = request_push(
        session.recipe(artifact.stack),
        artifact,
        target,
        session.store,
        with_base=with_base,
        key_file="" if unsigned else _choose_key(session, key),
        ask_passphrase=_ask_passphrase,
    )
    with show_progress(f"pushing {artifact.stack}", events) as progress:
        done = push_image(request, session.workbench(progress))
    answer(asdict(done), as_json, lambda: _format_text(done))


def _choose_key(session: Session, file: str) -> str:
    """Return the file of the key to sign with; empty where neither the user nor the site has one."""
    named = file or session.site.signatures.push_with
    if not named:
        say("not signed: neither --key nor signatures.push_with in site.yaml names a key")
    return named


def _ask_passphrase(file: str) -> str:
    return str(click.prompt(f"passphrase of {file}", hide_input=True, err=True))


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
