"""A Dockerfile's instructions, as BuildKit's own parser reads them."""

from __future__ import annotations

from pathlib import Path

import dockerfile as buildkit
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import InputError
from hpcstack.draft.dockerfile import Dockerfile, Instruction, parse_dockerfile

PATH = Path("Dockerfile")
Read = list[tuple[object, ...]]

# Lines of which Dockerfiles are made, so that a drawn one has all that joins, ends or hides them.
LINES = (
    "FROM a AS b",
    "RUN a && \\",
    "RUN a \\\\",
    "RUN echo 'x # y'",
    "  RUN  b",
    "run --mount=type=cache,target=/x --network=none c \\ ",
    'RUN ["a", "b c"]',
    'RUN ["a", b]',
    'ENTRYPOINT ["x"]',
    'CMD ["x", 1]',
    "RUN <<E",
    "RUN bash <<-'E' && true",
    "COPY <<E <<F /x/",
    "COPY --chmod=755 a b",
    "\tE",
    "E",
    "F",
    "# a comment",
    "  # another",
    "    && d \\",
    "    e",
    "\\",
    "",
    "   ",
    "ENV A=1 B='2 3'",
    "LABEL a.b=c",
    "ARG X",
    "WORKDIR /x\\ y",
    "RUN a\tb",
)


def read(text: str) -> Read | None:
    try:
        found = parse_dockerfile(text, PATH).instructions
    except InputError:
        return None
    return [
        (
            one.name,
            one.number,
            one.flags,
            tuple((here.name, here.content) for here in one.heredocs),
            one.argv,
        )
        for one in found
    ]


def read_by_buildkit(text: str) -> Read | None:
    try:
        found = buildkit.parse_string(text)
    except buildkit.GoParseError:
        return None
    if not all((one.cmd or "").isalpha() for one in found):
        return None  # its builder refuses such an instruction, and its parser does not
    return [
        (
            one.cmd.upper(),
            one.start_line,
            one.flags,
            # A recipe's text has no carriage returns.
            tuple((here.name, here.content.replace("\r\n", "\n")) for here in one.heredocs),
            one.value if one.json else None,
        )
        for one in found
    ]


@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_buildkit_reads_the_same(lines: list[str], end: str) -> None:
    text = end.join(["FROM x", *lines, ""])
    theirs = read_by_buildkit(text)
    if theirs is not None:
        assert read(text) == theirs


def parse(text: str) -> Dockerfile:
    return parse_dockerfile(text, PATH)


def read_one(text: str) -> Instruction:
    [found] = parse(text).instructions
    return found


def test_a_step_keeps_its_lines() -> None:
    text = "RUN --network=none a && \\\n      # why\n      b; \\\n\n        c\n"
    found = read_one(text)
    assert found.text == "a &&       b;         c"
    assert found.script == "a && \\\n    b; \\\n      c"
    assert found.find_flag("network") == "none"


def test_a_backtick_escapes_where_the_file_says_so() -> None:
    found = parse("# syntax=docker/dockerfile:1\n# escape=`\nFROM a\nRUN b `\n  c:\\d\n")
    assert found.escape == "`"
    assert found.instructions[1].text == "b   c:\\d"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "has no instruction"),
        ("# escape=x\nFROM a\n", "escape=x is neither"),
        ("FROM a\nRUN <<E\nb\n", "Dockerfile:2: <<E has no line E"),
        ("FROM a\n=====\n", "Dockerfile:2: '=====' is no instruction"),
    ],
)
def test_what_is_none_is_refused_with_its_line(text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        parse(text)
