"""A requirements.txt as pip reads it, and what is refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import InputError
from hpcstack.requirements.allowed_files import list_allowed_hashes
from hpcstack.requirements.pip_file import PipFile, read_pip_file

A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
URL = "https://h/foo-1.0-py3-none-any.whl"


def read(folder: Path, content: str | bytes) -> PipFile:
    path = folder / "requirements.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_pip_file(path)


@pytest.mark.parametrize(
    "content",
    [
        f"foo==1.0 --hash={A}\n",
        f"\ufefffoo==1.0 --hash={A}\n",
        f"# a comment \\\nfoo==1.0 --hash={A}\n",
        f"foo==1.0 \\\n  --hash={A}\n",
        f"foo>=1.0 --hash={A}\n",
        f"foo==1.* --hash={A}\n",
        f"foo ~= 1.0 --hash {A}\n",
        f"foo (==1.0) --hash={A}\n",
        f"foo==1.0,>0.1 --hash={A}\n",
        f"foo===1.0 --hash={A}\n",
        f"Foo[x,y] == 1.0 ; python_version > '3' --hash={A}\n",
        f"foo --hash={A}\n",
        f"foo==1.0 --hash={A.replace('a' * 64, 'A' * 64)}\n",
        f"{URL} --hash={A}\n",
        f"foo @ {URL} --hash={A}\n",
        f"foo @ {URL}#sha256={'a' * 64}\n",
        f"foo @ {URL}#sha256={'a' * 64} --hash={A} --hash={B}\n",
        f"foo==1.0 --hash={A}\r\n".encode(),
        f"foo==1.0 --hash={A}\r\n".encode("utf-16"),
        f"foo==1.0 --hash={A}",
    ],
)
def test_a_hash_is_read_in_whatever_form_a_line_has(tmp_path: Path, content: str | bytes) -> None:
    """pip#3125, uv#7535: in ten of these a wrong hash was locked."""
    (line,) = read(tmp_path, content).lines
    assert line.requirement
    assert line.requirement.name.lower() == "foo"
    allowed = line.allowed
    assert allowed
    assert list_allowed_hashes([allowed], "foo", "1.0", line.url) == frozenset({A})
    assert list_allowed_hashes([allowed], "bar", "1.0") is None


def test_a_hash_is_of_the_versions_of_its_line(tmp_path: Path) -> None:
    lines = read(tmp_path, f"foo==1.4 --hash={A}\nfoo==1.5; python_version<'3' --hash={B}\n").lines
    allowed = [one.allowed for one in lines if one.allowed]
    assert list_allowed_hashes(allowed, "Foo", "1.4.0") == frozenset({A})
    assert list_allowed_hashes(allowed, "foo", "1.5") == frozenset({B})
    assert list_allowed_hashes(allowed, "foo", "1.4+cu121") == frozenset({A}), (
        "a build of that version"
    )
    assert list_allowed_hashes(allowed, "foo", "2") is None
    assert [one.pinned for one in allowed] == ["1.4", "1.5"]


def test_uv_gets_a_url_without_the_hash_that_it_would_believe(tmp_path: Path) -> None:
    end = f"#sha256={'a' * 64}"
    for text in (f"foo[x] @ {URL}{end}&subdirectory=y ; python_version > '3'", f"{URL}{end}"):
        (line,) = read(tmp_path, f"{text}\n").lines
        assert URL in line.without_url_hash
        assert "sha256" not in line.without_url_hash
        assert line.hashes == {A}
    (line,) = read(tmp_path, f"foo @ {URL} --hash={A}\n").lines
    assert line.without_url_hash == ""


def test_an_archive_without_a_name_is_known_by_its_url(tmp_path: Path) -> None:
    (line,) = read(tmp_path, f"https://h/x-1.tar.gz --hash={A}\n").lines
    assert line.allowed
    assert list_allowed_hashes([line.allowed], "x", "1", "https://h/x-1.tar.gz") == frozenset({A})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("foo==1.0 --hash=sha256", "no hash that pip takes"),
        ("foo==1.0 --hash=sha256:12", "no hash that pip takes"),
        (f"foo==1.0 --hash=sha256:{'g' * 64}", "no hash that pip takes"),
        (f"foo==1.0 --hash=md5:{'0' * 32}", "no hash that pip takes"),
        (f"foo @ {URL}#md5={'0' * 32}", "no hash that pip takes"),
        (f"foo @ {URL}#sha256={'b' * 64} --hash={A}", "two hashes"),
        (f"./core --hash={A}", "a folder has no hash"),
        (f"foo==1.0 -hash={A}", "no such option"),
        ("foo bar", "semicolon"),
        ("foo==", "version"),
        ("-i https://h/simple foo", "trailing argument"),
        ("foo --no-such", "no such option"),
        ('"foo"', "package name"),
    ],
)
def test_what_is_not_understood_is_refused_by_line(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(InputError, match=f"requirements.txt:2: .*{says}") as refused:
        read(tmp_path, f"rich\n{line}\n")
    assert refused.value.hint


def test_a_refusal_repeats_no_login(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="https://h/simple") as refused:
        read(tmp_path, "-i https://me:token@h/simple foo\n")
    assert "token" not in str(refused.value)


@pytest.mark.parametrize(
    ("line", "folder"),
    [
        ("-e ../core", "../core"),
        ("-e core", "core"),
        ("--editable=../core[gpu,dev]", "../core"),
        ("-e '../core'", "../core"),
        ("./core ; python_version > '3'", "./core"),
        ("core @ file:///home/me/my%20core", "/home/me/my core"),
        ("-e git+https://github.com/a/b", ""),
        ("core @ https://example.org/core.tar.gz", ""),
        ("core==1.0", ""),
        ("-e../core", "../core"),
        ("core @ ../core", "../core"),
        ("./core-1.0-py3-none-any.whl", ""),
        ("core @ git+https://h/core@v1", ""),
    ],
)
def test_a_line_that_names_a_folder(tmp_path: Path, line: str, folder: str) -> None:
    (found,) = read(tmp_path, f"{line}\n").lines
    assert found.folder == folder


def test_what_is_included_is_read_once_and_known_as_constraints(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more/others.txt").write_text("-r ../requirements.txt\neinops\n-c pins.txt\n")
    (tmp_path / "more/pins.txt").write_text("einops==0.8\n-r deeper.txt\n")
    (tmp_path / "more/deeper.txt").write_text("rich==13\n")
    found = read(
        tmp_path, "-r more/others.txt\n-c https://h/c.txt\n--index-url https://h/simple\nrich\n"
    )
    said = [(one.text, one.is_constraint) for one in found.lines]
    assert said == [("rich", False), ("einops", False), ("einops==0.8", True), ("rich==13", True)]
    names = ["requirements.txt", "others.txt", "pins.txt", "deeper.txt"]
    assert [path.name for path in found.files] == names
    assert [one.text for one in found.options] == ["--index-url https://h/simple"]


def test_a_file_elsewhere_is_not_read_where_that_is_not_allowed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("not a requirement: token\n")
    folder = tmp_path / "it"
    folder.mkdir()
    (folder / "requirements.txt").write_text("-r ../secret\n")
    with pytest.raises(InputError, match="leads out of") as refused:
        read_pip_file(folder / "requirements.txt", folder)
    assert "token" not in str(refused.value)


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    try:
        found = read(folder, content)
    except InputError:
        return
    assert all(one.text for one in found.lines)
