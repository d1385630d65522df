"""A log's bytes as text, and what others have put before its lines."""

from __future__ import annotations

import io

import pytest

from hpcstack.launch import log_lines
from hpcstack.launch.log_lines import LABELS, Labels, read_log_blocks


def read_all(data: bytes) -> str:
    return b"".join(read_log_blocks(io.BytesIO(data))).decode(errors="replace")


TEXT = "step 1\nKeyError: 'ä'\n"


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode(),
        TEXT.encode("utf-8-sig"),
        TEXT.encode("utf-16"),
        b"\xfe\xff" + TEXT.encode("utf-16-be"),
        TEXT.encode("utf-16-le"),
        TEXT.replace("1", "1\0\0").encode(),
    ],
)
def test_a_log_is_text(data: bytes) -> None:
    assert read_all(data) == TEXT


def test_what_is_no_text_is_kept_as_far_as_it_is() -> None:
    assert read_all(b"a\xff\xfeb") == "a\ufffd\ufffdb"
    assert read_all(b"") == ""


def test_terminals_commands_are_not_passed_on() -> None:
    assert read_all(b"\x1b]0;title\x07\x1b[31mred\x1b[0m\r\nnext\x07\n") == "red\nnext\n"


@pytest.mark.parametrize("size", [2, 3, 5, 7, 64])
def test_blocks_are_whole_lines(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "BLOCK", size)
    for text in ("", "one\ntwo\nthree", "ä\n" * 5, "a long line\nb\n"):
        for encoding in ("utf-8", "utf-16"):
            blocks = list(read_log_blocks(io.BytesIO(text.encode(encoding))))
            assert b"".join(blocks).decode() == text
            assert all(block.endswith(b"\n") or len(block) > size for block in blocks[:-1])


@pytest.mark.parametrize(
    ("line", "speaker", "text"),
    [
        ("[rank12]: KeyError: 'x'", "12", "KeyError: 'x'"),
        ("[default3]:  File", "[default3]", "  File"),
        ("[1,3]<stdout>: x", "3", "x"),
        ("(train_fn pid=812, ip=10.0.0.7) x", "(train_fn pid=812, ip=10.0.0.7)", "x"),
        (" 7: [rank3]: x", "3", "x"),
        ("KeyError: 'x'", "", "KeyError: 'x'"),
        ("\x1b[31mTraceback\x1b[0m", "", "Traceback"),
        ("10%|#\r 20%|##\rdone", "", "done"),
        ("2026-03-01T10:00:00,123+01:00 x", "", "x"),
        ("12 of 13", "", "12 of 13"),
    ],
)
def test_whose_a_line_is(line: str, speaker: str, text: str) -> None:
    assert Labels().split(line) == (speaker, text)


HEAD = "Traceback (most recent call last):"
FRAME = '  File "/home/me/train.py", line 3, in <module>'


@pytest.mark.parametrize(
    ("first", "second", "speaker"),
    [
        ("gpu12: ", "gpu3: ", "gpu3"),
        ("[3] ", "[11] ", "[11]"),
        ("worker-1  | ", "worker-0  | ", "worker-0"),
        ("cn01-03: ", "cn01-04: ", "cn01-04"),
        ("ip-10-0-0-5: ", "ip-10-0-0-7: ", "ip-10-0-0-7"),
        ("10.0.0.7: ", "10.0.0.8: ", "10.0.0.8"),
        ("2026-11-28 10:00:01 ERROR    | ", "2026-11-28 10:00:09 INFO     | ", ""),
        ("2025-05-05 10:00:00 ", "2025-05-05 11:00:00 ", ""),
        ("[2025-05-05 10:00:00] [ERROR] [rank 1] ", "[2025-05-05 10:00:01] [ERROR] [rank 0] ", "[rank 0]"),
        ("2025-06-01T10:00:00.123456789Z stderr F ", "2025-06-01T10:00:01.1Z stderr F ", "stderr F"),
        ("(EngineCore_DP0 pid=3321) ERROR 06-01 10:00:30 [core.py:396] ", "(EngineCore_DP0 pid=3321) ERROR 06-01 10:00:31 [core.py:397] ", "[core.py:397]"),
    ],
)  # fmt: skip
def test_what_stands_before_a_traceback_and_its_frames_is_a_label(
    first: str, second: str, speaker: str
) -> None:
    """The form of a label is learnt, each number in it a 0: pdsh, Intel MPI, compose, CRI, logging."""
    labels = Labels()
    labels.split(first + HEAD)
    assert labels.split(first + FRAME)[1] == FRAME
    assert labels.split(second + "KeyError: hello") == (speaker, "KeyError: hello")
    assert labels.split("KeyError: hello") == ("", "KeyError: hello")


@pytest.mark.parametrize(
    "head", ["ERROR:root:it failed ", "  traceback : ", "x^y ", " 45%|#### | 4it/s]"]
)
def test_what_does_not_stand_before_the_frames_is_none(head: str) -> None:
    labels = Labels()
    labels.split(head + HEAD)
    assert labels.split(FRAME) == ("", FRAME)
    assert labels.others == {}


def test_every_pattern_is_one_for_any_awk() -> None:
    assert all("{" not in label.pattern for label in LABELS)
    assert not any(
        sign in label.pattern for label in LABELS for sign in (r"\d", r"\S", r"\w", "(?")
    )
