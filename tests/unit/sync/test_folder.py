"""A folder of declared releases is read as a whole, and what is wrong in it is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import HpcstackError, InputError, ProblemsError
from hpcstack.sync.declaration import Declared
from hpcstack.sync.folder import DeclaredFolder, read_folder


def read(tmp_path: Path, **files: str) -> DeclaredFolder:
    for name, text in files.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return read_folder(tmp_path)


def test_short_forms_and_defaults(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        all="defaults: {prove: {nodes: 4, partitions: [dgx]}, tell: [ops]}\nbuild: {on: here}\n",
        pytorch="releases: {pytorch: newest 3}\n",
        jax="releases: {jax: [25.10, 25.04], mine: {channel: testing, prove: {nodes: 1}}}\n",
    )
    releases = found.declaration.releases
    assert releases["pytorch"].newest == 3
    assert releases["jax"].versions == ("25.10", "25.04"), "a version is text, not a number"
    assert releases["pytorch"].tell == ("ops",)
    mine = releases["mine"]
    assert (mine.channel, mine.prove.nodes, mine.prove.partitions) == ("testing", 1, ("dgx",))
    assert releases["jax"].channel == "production"
    assert found.declaration.build.on == "here"
    assert found.files["mine"].name == "jax.yaml"


def test_a_single_file_will_do(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("releases: {a: newest 1}")
    assert read_folder(tmp_path / "x.txt").declaration.releases["a"] == Declared(newest=1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("releases: {pytorch: newest}", "write `newest 3`"),
        ("releases: {pytorch: []}", "write `newest 3`"),
        ("releases: {pytorch: }", "write `newest 3`"),
        ("releases: {a: {prove: {again: 0}}}", "greater than or equal to 1"),
        ("releases:\n  pytorch: {newst: 3}", ":2:13: releases.pytorch.newst: unknown key 'newst'"),
        ("releases: {PyTorch: newest 3}", "releases"),
        ("releases: {a: {prove: {nodes: 0}}}", "greater than or equal to 1"),
        ("releases: {a: {prove: {tier: burn}}}", "tier"),
        ("releases: {a: {tell: ['-oProxy=x']}}", "tell"),
        ("releases: {a: {tell: ['a b']}}", "tell"),
        ("releases: {a: {versions: ['-x']}}", "versions"),
        ("releases: {a: {dates: {'1': {refuse: 2027-02-30}}}}", "refuse"),
        ("releases: {a: {dates: {'1': {warn: 2027-02-03, refuse: 2027-02-01}}}}", "before `warn`"),
        ("releases: {a: {dates: {'1': {}}}}", "give `warn`"),
        ("releases: {a: {from: 'https://r.example/x'}}", "from"),
        ("releases: {a: {from: registry.example}}", "from"),
        ("- a", "is a mapping"),
        ("a: [", "not YAML"),
        ("{}", "declares no releases"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, releases=text)
    assert says in error.value.message
    assert error.value.page == "declare-releases"


def test_nothing_stands_twice(tmp_path: Path) -> None:
    one = "defaults: {channel: testing}\nreleases: {pytorch: newest 3}\n"
    with pytest.raises(ProblemsError) as error:
        read(tmp_path, a=one, b=one)
    assert "pytorch is also in a.yaml" in error.value.message
    assert "defaults is also in a.yaml" in error.value.message


def test_a_folder_must_be_there(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError):
            read_folder(folder)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "releases.yaml"
        path.write_text(text, encoding="utf-8", newline="")
        try:
            read_folder(path)
        except HpcstackError as error:
            assert error.exit_code == 2
