"""What the doctor says of an image cache: whose it is, who may write it, whether rights can be
noted there.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.core.files import name_owner
from hpcstack.diagnose.image_cache import look_at_image_cache


def findings(tmp_path: Path, **settings: str) -> list[tuple[str, str, str]]:
    site = make_site(tmp_path, image_cache=settings)
    return [(one.code, one.status, one.found) for one in look_at_image_cache(site, "login")]


def test_a_site_without_one_hears_nothing(tmp_path: Path) -> None:
    assert findings(tmp_path) == []


@pytest.mark.parametrize(
    ("mode", "account", "status", "says"),
    [
        (0o755, "", "OK", "no service"),
        (0o775, "", "FAIL", "may write"),
        (0o755, "nobody-of-ours", "FAIL", "belongs to"),
    ],
)
def test_a_folder_is_one_accounts(
    tmp_path: Path, mode: int, account: str, status: str, says: str
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    found = findings(
        tmp_path,
        folder=str(folder),
        account=account or name_owner(folder),
        socket=str(tmp_path / "s"),
    )
    assert [(code, state) for code, state, _ in found] == [("image-cache", status)]
    assert says in found[0][2]


def test_a_folder_that_is_not_there_and_a_service_that_is(tmp_path: Path) -> None:
    assert findings(tmp_path, folder=str(tmp_path / "none"))[0][1] == "FAIL"
    folder = tmp_path / "cache"
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        found = findings(
            tmp_path, folder=str(folder), account=name_owner(folder), socket=str(tmp_path / "s")
        )
    assert "answers here" in found[0][2]
    assert os.getuid() == folder.stat().st_uid
