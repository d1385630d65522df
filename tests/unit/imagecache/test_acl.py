"""ACLs as the kernel takes them, judged by the kernel: it refuses what is not one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcstack.imagecache import acl

USERS = st.sets(st.integers(min_value=1, max_value=2**31), max_size=20)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    if not acl.keeps_acls(tmp_path):
        pytest.skip("this filesystem keeps no ACLs")
    path = tmp_path / "image"
    path.write_bytes(b"hsqs")
    path.chmod(0o600)
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=USERS, then=USERS)
def test_the_readers_that_were_set_are_the_readers(
    file: Path, first: set[int], then: set[int]
) -> None:
    acl.set_readers(file, first)
    acl.set_readers(file, then)
    assert acl.list_readers(file) == then
    assert file.stat().st_mode & 0o007 == 0, "nobody else may"
    assert file.read_bytes() == b"hsqs"


def test_a_file_without_readers_stays_as_it_is(file: Path) -> None:
    acl.set_readers(file, set())
    assert acl.list_readers(file) == set()
    assert file.stat().st_mode & 0o777 == 0o600
    assert "system.posix_acl_access" not in os.listxattr(file)


def test_a_filesystem_without_acls_is_known(tmp_path: Path) -> None:
    assert not acl.keeps_acls(Path("/proc/self"))
    assert acl.list_readers(Path("/proc/self/status")) == set()
