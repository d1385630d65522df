"""What is published and stored, as numbers for Prometheus' textfile collector."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING

from hpcstack.report import escape_label

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hpcstack.publish.audit import Audits
    from hpcstack.releases.ledger import Ledger
    from hpcstack.store.artifact import Artifact


def render_metrics(
    ledgers: Sequence[Ledger],
    images: Sequence[Artifact],
    wrong: int,
    audits: Audits | None,
    now: float,
    *,
    has_database: bool,
) -> str:
    """Return the numbers: releases by channel and state, changes by verb and when the last one was,
    what is WRONG, images and their bytes, and known vulnerabilities by AUDITS. These are None where
    the site has no database (HAS_DATABASE), or it cannot be read.

    NOW is in seconds since 1970. An alert on its age notices that cron has stopped.
    """
    releases: Counter[tuple[str, ...]] = Counter()
    changes: Counter[tuple[str, ...]] = Counter()
    last: dict[tuple[str, ...], float] = {}
    for ledger in ledgers:
        for entry in ledger.entries:
            releases[ledger.name, entry.channel, entry.state] += 1
        for event in ledger.events:
            changes[event.verb,] += 1
            last[event.verb,] = max(last.get((event.verb,), 0), _read_time(event.at))

    stored: Counter[tuple[str, ...]] = Counter()
    for image in images:
        stored[image.stack, image.platform] += image.size

    out = _render(
        "releases",
        "gauge",
        "Releases, by their channel and state.",
        ("name", "channel", "state"),
        releases,
    )
    out += _render("changes_total", "counter", "Changes of releases, by verb.", ("verb",), changes)
    out += _render(
        "last_change_timestamp_seconds", "gauge", "When a verb last changed one.", ("verb",), last
    )
    out += _render("wrong", "gauge", "Things that `status` calls wrong.", (), {(): wrong})
    out += _render("images", "gauge", "Images in the store.", (), {(): len(images)})
    out += _render(
        "image_bytes", "gauge", "Bytes of images, by stack.", ("stack", "platform"), stored
    )
    if has_database:
        is_whole = audits is not None and not audits.doubts
        out += _render(
            "audit_ok", "gauge", "Whether the database could be read.", (), {(): int(is_whole)}
        )
    if audits:
        found: Counter[tuple[str, ...]] = Counter()
        unknown: Counter[tuple[str, ...]] = Counter()
        for audit in audits.audits:
            unknown[audit.artifact.stack, audit.artifact.key[:12]] = len(audit.unknown)
            for severity, count in audit.count().items():
                found[audit.artifact.stack, audit.artifact.key[:12], severity] = count
        out += _render(
            "vulnerabilities",
            "gauge",
            "Known vulnerabilities of published images that nobody waived.",
            ("stack", "image", "severity"),
            found,
        )
        out += _render(
            "not_audited",
            "gauge",
            "Reasons why an image could not be checked whole for vulnerabilities.",
            ("stack", "image"),
            unknown,
        )
    out += _render("status_timestamp_seconds", "gauge", "When this was written.", (), {(): now})
    return "\n".join(out) + "\n"


def _read_time(said: str) -> float:
    """Return the time SAID of an event in seconds since 1970; 0 where it is none."""
    try:
        return datetime.fromisoformat(said).timestamp()
    except ValueError:
        return 0.0


def _render(
    name: str, kind: str, about: str, labels: Iterable[str], values: Mapping[tuple[str, ...], float]
) -> list[str]:
    """Return the lines of one metric, each of VALUES with its LABELS."""
    lines = [f"# HELP hpcstack_{name} {about}", f"# TYPE hpcstack_{name} {kind}"]
    for key, value in sorted(values.items()):
        pairs = [f"{label}={escape_label(said)}" for label, said in zip(labels, key, strict=True)]
        where = f"{{{','.join(pairs)}}}" if pairs else ""
        lines.append(f"hpcstack_{name}{where} {value:.12g}")
    return lines
