"""What `pull` and `verify --from` share: which key counts, and what is said of the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from hpcstack.cli.session import Session
    from hpcstack.publish.pull_image import Evidence
    from hpcstack.recipe.model import Base

KEY = click.option(
    "--key",
    default="",
    metavar="FILE",
    show_default="registries.NAME.signature_key of site.yaml",
    help="Trust this public key.",
)


def read_trusted(session: Session, image: str, key: str) -> tuple[Base, Evidence, list[str]]:
    """Return the image that IMAGE names, its evidence, and notes on what was not checked.

    Raise AnswerIsNo where something about it is wrong.
    """
    from hpcstack.core.errors import NotInRegistry, RegistryError
    from hpcstack.oci.reference import parse_registry_image
    from hpcstack.oci.signed import read_key
    from hpcstack.publish.pull_image import check_base_layers, read_evidence

    base = parse_registry_image(image)
    named = key or session.site.registry(base.registry).signature_key
    where = "--key" if key else f"registries.{base.registry}.signature_key in site.yaml"
    trusted = read_key(named, where) if named else None

    evidence = read_evidence(base, trusted, session.registry)
    notes = []
    if not trusted:
        notes.append("no key was named: nobody vouches for it (--key FILE)")
    try:
        check_base_layers(base, evidence, session.registry)
    except NotInRegistry as error:
        notes.append(f"its base is not in its registry any more: {error.message}")
    except RegistryError as error:
        notes.append(f"its base's registry was not asked: {error.message}")
    return base, evidence, notes


def describe_evidence(evidence: Evidence, notes: list[str]) -> dict[str, Any]:
    """Return EVIDENCE for JSON, with NOTES on what was not checked."""
    report = evidence.report
    tested = ""
    if report:
        tested = f"{report.verdict()} on {', '.join(report.nodes[:4])}, {report.started[:10]}"
    return {
        "stack": evidence.lock.stack,
        "digest": evidence.digest,
        "lock": evidence.lock.digest(),
        "squashfs": evidence.squashfs,
        "tested": tested,
        "signed by": evidence.signed_by,
        "notes": notes,
    }
