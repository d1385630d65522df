"""What is published and stored, as numbers for Prometheus' textfile collector."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING

from hpcstack.core.prometheus import Metric, render_metrics_text

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    out = [
        Metric(
            "releases",
            "Releases, by their channel and state.",
            ("name", "channel", "state"),
            releases,
        ),
        Metric("changes_total", "Changes of releases, by verb.", ("verb",), changes, "counter"),
        Metric("last_change_timestamp_seconds", "When a verb last changed one.", ("verb",), last),
        Metric("wrong", "Things that `status` calls wrong.", (), {(): wrong}),
        Metric("images", "Images in the store.", (), {(): len(images)}),
        Metric("image_bytes", "Bytes of images, by stack.", ("stack", "platform"), stored),
    ]
    if has_database:
        is_whole = audits is not None and not audits.doubts
        out.append(
            Metric("audit_ok", "Whether the database could be read.", (), {(): int(is_whole)})
        )
    if audits:
        found: Counter[tuple[str, ...]] = Counter()
        unknown: Counter[tuple[str, ...]] = Counter()
        for audit in audits.audits:
            unknown[audit.artifact.stack, audit.artifact.key[:12]] = len(audit.unknown)
            for severity, count in audit.count().items():
                found[audit.artifact.stack, audit.artifact.key[:12], severity] = count
        out += [
            Metric(
                "vulnerabilities",
                "Known vulnerabilities of published images that nobody waived.",
                ("stack", "image", "severity"),
                found,
            ),
            Metric(
                "not_audited",
                "Reasons why an image could not be checked whole for vulnerabilities.",
                ("stack", "image"),
                unknown,
            ),
        ]
    out.append(Metric("status_timestamp_seconds", "When this was written.", (), {(): now}))
    return render_metrics_text(out)


def _read_time(said: str) -> float:
    """Return the time SAID of an event in seconds since 1970; 0 where it is none."""
    try:
        return datetime.fromisoformat(said).timestamp()
    except ValueError:
        return 0.0
