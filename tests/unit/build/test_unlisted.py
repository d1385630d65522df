"""What an image could not list of its packages, as its record has it."""

from __future__ import annotations

from pydantic import TypeAdapter

from hpcstack.build.build import MOST_UNLISTED, read_unlisted
from hpcstack.core.records import Text


def test_a_base_that_names_its_folders_oddly_leaves_a_record_that_can_be_read() -> None:
    odd = f"/opt/\x1b[31m/x\u202e{'y' * 5000}.dist-info: its METADATA cannot be read"
    lines = read_unlisted("\n".join([odd, "", *["/a: b"] * MOST_UNLISTED]))
    for line in lines:
        TypeAdapter(Text).validate_python(line)
    assert lines[-1] == "and 1 more"
    assert len(lines) == MOST_UNLISTED + 1
    assert read_unlisted("") == []
