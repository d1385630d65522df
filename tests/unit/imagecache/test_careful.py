"""Where a registry may send the service, and what of the login goes with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conftest import make_site
from hpcstack.core.errors import RegistryError
from hpcstack.imagecache.careful import CarefulRegistry
from hpcstack.imagecache.refusals import NotShared
from hpcstack.oci.client import Registry


class Reply:
    def __init__(self, target: str) -> None:
        self.is_redirect, self.headers = bool(target), {"Location": target}

    def close(self) -> None: ...


def asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, targets: list[str], **how: Any
) -> list[tuple[str, Any]]:
    """(URL, headers) of each request where the registry sends on to TARGETS, one after the other."""
    found: list[tuple[str, Any]] = []

    def fetch(_: Registry, url: str, _method: str = "GET", **given: Any) -> Reply:
        found.append((url, given["headers"]))
        return Reply(targets[len(found) - 1] if len(found) <= len(targets) else "")

    monkeypatch.setattr(Registry, "_request", fetch)
    headers = {"Authorization": "Bearer x"}
    CarefulRegistry(make_site(tmp_path))._fetch(
        "https://reg.example/v2/a", "HEAD", headers=headers, **how
    )
    return found


def test_a_storage_of_its_own_is_followed_without_the_login(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = asked(monkeypatch, tmp_path, ["/v2/b", "https://cdn.example/c"])
    assert [url for url, _ in found] == [
        "https://reg.example/v2/a",
        "https://reg.example/v2/b",
        "https://cdn.example/c",
    ]
    assert ["Authorization" in headers for _, headers in found] == [True, True, False]


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest",
        "https://127.0.0.1/x",
        "https://localhost/x",
        "http://cdn.example/x",
        "http://reg.example/v2/b",
    ],
)
def test_this_machine_and_bare_addresses_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, target: str
) -> None:
    with pytest.raises(NotShared, match="is not followed"):
        asked(monkeypatch, tmp_path, [target])


def test_a_ring_ends_and_who_follows_nothing_gets_the_answer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(RegistryError, match="again and again"):
        asked(monkeypatch, tmp_path, ["/v2/a"] * 20)
    assert len(asked(monkeypatch, tmp_path, ["/v2/b"], allow_redirects=False)) == 1
