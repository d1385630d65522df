"""Which image of an index is taken, by the specification of OCI's image index."""

from __future__ import annotations

from typing import Any

import pytest

from hpcstack.oci.manifest import MOST_LOOKED, NotOffered, find_manifest, list_platforms

UNKNOWN = {"os": "unknown", "architecture": "unknown"}
ATTESTATION = {"vnd.docker.reference.type": "attestation-manifest"}


def digest_of(name: str) -> str:
    return "sha256:" + name.encode().hex().rjust(64, "0")


def entry(name: str, architecture: str = "", variant: str = "", **more: Any) -> dict[str, Any]:
    place = {"os": "linux", "architecture": architecture, "variant": variant}
    platform = {"platform": {key: value for key, value in place.items() if value}}
    return {"digest": digest_of(name), **(platform if architecture else {}), **more}


def index(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"manifests": list(entries)}


@pytest.mark.parametrize(
    ("entries", "taken"),
    [
        ([entry("a", "amd64"), entry("r", "arm64")], "a"),
        ([entry("r", "arm64", "v8"), entry("a", "amd64")], "a"),
        ([{**entry("u"), "platform": UNKNOWN}, entry("a", "amd64")], "a"),
        ([entry("u", "amd64", annotations=ATTESTATION), entry("a", "amd64")], "a"),
        ([entry("v3", "amd64", "v3"), entry("a", "amd64")], "a"),
        ([entry("v3", "amd64", "v3"), entry("a", "amd64", "v1")], "a"),
        (
            [entry("v4", "amd64", "v4"), entry("v2", "amd64", "v2"), entry("v3", "amd64", "v3")],
            "v2",
        ),
        ([entry("a", "amd64"), entry("b", "amd64")], "a"),
    ],
)
def test_what_runs_on_the_most_machines_is_taken(entries: list[dict[str, Any]], taken: str) -> None:
    assert list_platforms(index(*entries))["linux/amd64"] == digest_of(taken)


@pytest.mark.parametrize(
    ("level", "variants", "taken"),
    [
        (3, ["", "v2", "v3", "v4"], "v3"),
        (2, ["v3", "", "v4"], ""),
        (2, ["v1", "v2"], "v2"),
        (1, ["v2", "v1"], "v1"),
        (4, ["v4", "v3"], "v4"),
    ],
)
def test_the_highest_is_taken_that_nodes_have(level: int, variants: list[str], taken: str) -> None:
    of = {name: entry(f"of {name}", "amd64", name) for name in variants}
    found = list_platforms(index(*of.values(), entry("arm", "arm64", "v9")), {"amd64": level})
    assert found["linux/amd64"] == digest_of(f"of {taken}")
    assert found["linux/arm64"] == digest_of("arm")


def test_what_is_above_what_nodes_have_is_not_taken() -> None:
    assert list_platforms(index(entry("v4", "amd64", "v4")), {"amd64": 3}) == {}


def test_of_arm_the_least_is_taken() -> None:
    found = list_platforms(index(entry("v9", "arm64", "v9"), entry("v8", "arm64", "v8")))
    assert found == {"linux/arm64": digest_of("v8")}


DOCUMENTS = {
    "amd": {"config": "linux/amd64"},
    "arm": {"config": "linux/arm64"},
    "nested": index(entry("arm", "arm64"), entry("amd", "amd64")),
    "bare": index(entry("arm"), entry("amd")),
    "deep": index(entry("bare")),
    "circle": index(entry("circle"), entry("circle")),
    "of-arm": index(entry("arm", "arm64")),
}


@pytest.mark.parametrize(
    "top",
    [
        DOCUMENTS["nested"],
        DOCUMENTS["bare"],
        DOCUMENTS["deep"],
        index(entry("nested")),
        index(entry("arm"), entry("nested", "amd64")),
        index(entry("of-arm"), entry("deep")),
    ],
)
def test_nested_indexes_and_entries_without_a_platform(top: dict[str, Any]) -> None:
    documents = {digest_of(name): document for name, document in DOCUMENTS.items()}
    digest, found = find_manifest(
        top, "linux/amd64", documents.__getitem__, lambda one: one["config"]
    )
    assert (digest, found) == (digest_of("amd"), DOCUMENTS["amd"])


@pytest.mark.parametrize(
    ("top", "says"),
    [
        (index(entry("arm", "arm64")), "for linux/arm64, not for linux/amd64"),
        (index(entry("arm")), "for linux/arm64, not for linux/amd64"),
        (index(), "for no platform"),
        (DOCUMENTS["circle"], f"more than {MOST_LOOKED} documents"),
    ],
)
def test_what_is_not_there_is_said(top: dict[str, Any], says: str) -> None:
    documents = {digest_of(name): document for name, document in DOCUMENTS.items()}
    with pytest.raises(NotOffered, match=says):
        find_manifest(top, "linux/amd64", documents.__getitem__, lambda one: one["config"])


def test_only_a_level_that_nodes_lack_is_blamed_on_them() -> None:
    def no_document(_: object) -> dict[str, Any]:
        raise AssertionError

    def no_platform(_: object) -> str:
        raise AssertionError

    found = index(entry("v4", "amd64", "v4"))
    with pytest.raises(NotOffered, match="not for linux/amd64 of `cpu` in site.yaml"):
        find_manifest(found, "linux/amd64", no_document, no_platform, {"amd64": 3})
    with pytest.raises(NotOffered, match="not for linux/arm64$"):
        find_manifest(found, "linux/arm64", no_document, no_platform, {"amd64": 3})
