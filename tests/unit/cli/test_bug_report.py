"""A bug leaves one file that can be sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack import __version__
from hpcstack.cli import bug_report, help_, main
from hpcstack.cli.bug_report import render_bug_report, write_bug_report


def test_a_bug_says_which_file_to_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def fail() -> None:
        raise ValueError("it is broken at https://user:secret@registry.example/x")

    monkeypatch.setattr(help_, "list_topics", fail)
    with pytest.raises(SystemExit) as ended:
        main(["help"])

    assert ended.value.code == 70
    said = capsys.readouterr().err
    assert f"this is a bug in hpcstack {__version__}: ValueError: it is broken" in said
    assert "Traceback" not in said
    path = Path(said.splitlines()[-1].rpartition("send this file: ")[2])
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text()
    assert f"hpcstack {__version__}\n" in text
    assert "\n$ hpcstack help\n" in text
    assert "Traceback (most recent call last):" in text
    assert "in fail" in text
    assert "secret" not in text


def test_nothing_of_a_users_program_is_in_it() -> None:
    words = ["launch", "pytorch-24.11", "--", "train.py", "--token", "abc"]
    text = render_bug_report(ValueError("x"), words)
    assert "$ hpcstack launch pytorch-24.11 -- ...\n" in text
    assert "abc" not in text


@pytest.mark.parametrize("verb", ["python", "shell", "launch"])
def test_nor_is_a_program_without_a_dash_dash(verb: str) -> None:
    words = ["--site", "x.yaml", verb, "pytorch-24.11", "train.py", "--token", "abc"]
    text = render_bug_report(ValueError("x"), words)
    assert f"$ hpcstack --site x.yaml {verb} ...\n" in text
    assert "abc" not in text


def test_a_word_that_is_no_utf_8_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    path = write_bug_report(ValueError("x"), ["show", "\udcff"])
    assert "$ hpcstack show \\udcff\n" in path.read_text()


def test_a_report_that_fails_itself_has_the_traceback_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bug_report, "render_bug_report", lambda error, words: 1 / 0)
    monkeypatch.setattr(help_, "list_topics", lambda: [][0])
    with pytest.raises(SystemExit) as ended:
        main(["help"])
    assert ended.value.code == 70
    assert "IndexError" in capsys.readouterr().err


def test_a_home_that_takes_no_file_has_the_traceback_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hpcstack").write_text("a file in the place of the folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(help_, "list_topics", lambda: 1 / 0)
    with pytest.raises(SystemExit) as ended:
        main(["help"])
    assert ended.value.code == 70
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert "Traceback" in said
    assert "report it with the lines above" in said


def test_old_reports_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(bug_report, "KEPT", 2)
    paths = [write_bug_report(ValueError(str(number)), ["list"]) for number in range(4)]
    assert [path.exists() for path in paths] == [False, False, True, True]
