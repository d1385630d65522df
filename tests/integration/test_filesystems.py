"""Shared filesystems with two clients each: what is tried of them, and two publishers at once.

`ci/filesystems` mounts them and names them in HPCSTACK_FILESYSTEMS: NAME=CLIENT:CLIENT ...
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcstack.core.process import Runner
from hpcstack.diagnose.filesystem import try_filesystem
from hpcstack.imagecache.acl import keeps_acls
from support.modules import Place, bash

NAMED = [one.partition("=") for one in os.environ.get("HPCSTACK_FILESYSTEMS", "").split()]
CLIENTS = {name: tuple(map(Path, folders.split(":"))) for name, _, folders in NAMED}
# what cannot be kept by the client of sshfs: it tells nobody how many names a file has
WITHOUT_LEASES = {"sshfs"}
TIMES = 4  # publishes by each of two
COUNT = 2 * TIMES + 1  # releases at the end
PUBLISH = f"""
import sys
from pathlib import Path
from support.modules import Place
place = Place(Path(sys.argv[1]) / "site")
for number in range({TIMES}):
    place.publish(content=f"{{sys.argv[2]}}-{{number}}".encode())
"""

pytestmark = pytest.mark.skipif(not CLIENTS, reason="ci/filesystems mounts them")
every = pytest.mark.parametrize("name", CLIENTS)
shareable = pytest.mark.parametrize("name", [one for one in CLIENTS if one not in WITHOUT_LEASES])


@every
def test_what_is_kept(name: str) -> None:
    finding = try_filesystem("store", CLIENTS[name][0], "here", Runner())
    print(f"\n{name}: {finding.status} {finding.found}; ACLs: {keeps_acls(CLIENTS[name][0])}")
    assert finding.status == ("FAIL" if name in WITHOUT_LEASES else "OK"), finding.found
    assert not list(CLIENTS[name][0].glob(".hpcstack-try-*"))


@shareable
@pytest.mark.lmod
def test_two_clients_publish_while_a_third_reads(name: str) -> None:
    """Nothing is lost, what a reader sees never goes back, and what it names is there.

    The tree is made before. Two who make its first folders in the same moment may be refused on
    GlusterFS (ENOENT for a folder that the other has just made); the next publish works.
    """
    one, other = CLIENTS[name]
    Place(one / "site").publish(content=b"the first")
    began = time.monotonic()
    publishers = [
        subprocess.Popen(
            [sys.executable, "-c", PUBLISH, str(client), label], stderr=subprocess.PIPE, text=True
        )
        for client, label in ((one, "a"), (other, "b"))
    ]
    reader = Place(other / "site")
    seen: list[int] = []
    while any(each.poll() is None for each in publishers):
        if "pytorch" in reader.tree.names():
            entries = reader.tree.ledger("pytorch").entries
            seen.append(len(entries))
            for entry in entries:
                file = reader.tree.home("pytorch") / "pytorch" / f"{entry.release}.lua"
                assert file.exists(), (
                    f"{entry.release} is in the ledger, and its module is not there"
                )
        time.sleep(0.05)
    for each in publishers:
        assert each.returncode == 0, each.communicate()[1][-2000:]

    print(
        f"\n{name}: {2 * TIMES} publishes by two clients, {len(seen)} reads, {time.monotonic() - began:.0f} s"
    )
    assert seen == sorted(seen)
    assert len(seen) > 10
    for client in (one, other):
        place = Place(client / "site")
        entries = place.tree.ledger("pytorch").entries
        assert [entry.release for entry in entries] == [f"24.11-r{n + 1}" for n in range(COUNT)]
        assert len({entry.sha256 for entry in entries}) == COUNT
        done = bash(place, "lmod", 'module load pytorch/24.11; echo "$HPCSTACK_RELEASE"')
        assert done.stdout == f"pytorch/24.11-r{COUNT}\n", done.stderr
