"""What a text means among what is published: the one place where it is split."""

from __future__ import annotations

import pytest

from hpcstack.core.errors import InputError
from hpcstack.releases.ledger import Entry, Ledger
from hpcstack.releases.published import find_version, read_published, require_version


def entry(version: str, number: int = 1) -> Entry:
    return Entry(
        f"{version}-r{number}", version, "production", "live", "0" * 24, "1" * 64, "2026-01-01", "a"
    )


class MadeUp:
    """A tree of these names: {name: its versions, each published once}."""

    def __init__(self, **versions: list[str]) -> None:
        self.versions = {name.replace("_", "-"): of for name, of in versions.items()}

    def names(self) -> list[str]:
        return list(self.versions)

    def ledger(self, name: str) -> Ledger:
        entries = tuple(entry(version) for version in self.versions[name])
        return Ledger(name, entries, default=entries[-1].release if entries else "")


TREE = MadeUp(
    pytorch=["24.11", "25.10"], pytorch_lightning=["2.0"], hpc=["1", "benchmarks-9"],
    hpc_benchmarks=["26.02"], python=["3.12-mpi"], empty=[],
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name", "version", "release"),
    [
        ("pytorch", "pytorch", "", ""),
        ("pytorch-24.11", "pytorch", "24.11", ""),
        ("pytorch/24.11", "pytorch", "24.11", ""),
        ("pytorch/24.11-r1", "pytorch", "24.11", "24.11-r1"),
        ("pytorch-24.11-r1", "pytorch", "24.11", "24.11-r1"),
        ("pytorch-lightning", "pytorch-lightning", "", ""),
        ("pytorch-lightning-2.0", "pytorch-lightning", "2.0", ""),
        ("hpc-benchmarks-26.02", "hpc-benchmarks", "26.02", ""),
        ("hpc-benchmarks-9", "hpc", "benchmarks-9", ""),
        ("hpc/1", "hpc", "1", ""),
        ("python-3.12-mpi", "python", "3.12-mpi", ""),
        ("python/3.12-mpi-r1", "python", "3.12-mpi", "3.12-mpi-r1"),
        ("pytorch/99", "pytorch", "", ""),
        ("pytorch/24.11-r9", "pytorch", "", ""),
        ("pytorch-lightning-9", "pytorch-lightning", "", ""),
    ],
)
def test_a_text_is_split_at_what_is_published(
    text: str, name: str, version: str, release: str
) -> None:
    found = read_published(text, TREE)  # type: ignore[arg-type]
    assert found
    assert (found.ledger.name, found.version, found.release) == (name, version, release)
    assert found.is_known == bool(version or text == name)


@pytest.mark.parametrize("text", ["", "jax", "pytorc", "pytorch24.11", "hpcx/1", "/pytorch"])
def test_what_no_name_begins_is_nothing(text: str) -> None:
    assert read_published(text, TREE) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pytroch", "did you mean 'pytorch'"),
        ("pytorch/99", r"pytorch/99 is not published \(there are: 24.11, 25.10\)"),
        ("pytorch/24.11-r9", r"is not published \(there are: 24.11-r1\)"),
    ],
)
def test_what_is_not_published_is_refused_with_what_is(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        find_version(text, TREE)  # type: ignore[arg-type]


def test_the_version_of_a_name_alone_is_its_defaults_and_may_not_be_guessed() -> None:
    assert find_version("pytorch", TREE)[1:] == ("25.10", "")  # type: ignore[arg-type]
    assert find_version("python", TREE)[1:] == ("3.12-mpi", "")  # type: ignore[arg-type]
    assert find_version("empty", TREE)[1:] == ("", "")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"retire wants a version; pytorch has 24\.11, 25\.10"):
        require_version("retire", "pytorch", TREE)  # type: ignore[arg-type]
