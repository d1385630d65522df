"""What differs between two runs of the same commands, and the word that stands for it.

ci/transcript compares a log with the README by this table, and ci/pictures writes these words into
pictures of sessions: so neither changes when a time, a size, a digest or a date does.
"""

from __future__ import annotations

import re

# (what is looked for, what stands for it), applied in this order.
PLACEHOLDERS = (
    (r"\b\d{8}T\d{6}Z-[0-9a-f]{4,6}\b", "TIME-ID"),
    (r"\b\d{8}T?\d*Z?-?[0-9a-f]*\.\.\.$", "TIME-ID..."),  # where a long line was cut
    (r"\b\d{4}-\d{2}-\d{2}(T\d{2}:\d{2}:\d{2}(\+\d{2}:\d{2}|Z)?)?\b", "DATE"),
    (r"\bDATE \d{2}:\d{2} UTC\b", "DATE"),
    (r"\bsha256:[0-9a-f]{12,64}\b", "sha256:DIGEST"),
    (r"\b(sha256|key) [0-9a-f]{12,64}\b", r"\1 DIGEST"),
    (r"/images/[0-9a-f]{40}\b", "/images/KEY"),
    (r"\b\d+(\.\d+)? [kMGT]?B/s\b", "RATE"),
    (r"\b\d+(\.\d+)? ([kMGT]i?B|GB)\b", "SIZE"),
    (r"\b\d[\d,.]*/s\b", "RATE"),
    (r"\b\d+(\.\d+)? s\b", "SECONDS"),
)


def with_placeholders(text: str) -> str:
    """TEXT with a word for each time, size, digest and date."""
    for pattern, word in PLACEHOLDERS:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return text
