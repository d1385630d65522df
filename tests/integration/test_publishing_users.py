"""Publishing for others: what another user reads, and several publishers of one group."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from support.modules import Place, environment, whole
from support.testbed import REPO


@pytest.mark.lmod
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try a module as another user")
def test_a_tree_that_others_cannot_read_is_refused(tmp_path: Path) -> None:
    from hpcstack.core.errors import StoreError

    open_to_all = Place(
        Path("/tmp") / f"hpcstack-test-{os.getpid()}", modules={"check_as": "nobody"}
    )
    try:
        assert "also as nobody" in open_to_all.publish().checked
    finally:
        import shutil

        shutil.rmtree(open_to_all.top)
    closed = Place(tmp_path / "closed", modules={"check_as": "nobody"})
    closed.top.mkdir()
    closed.top.chmod(0o700)
    with pytest.raises(StoreError, match="as nobody"):
        closed.publish()
    assert not closed.tree.names(), "nothing was published"


@pytest.mark.lmod
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_group_of_publishers_shares_a_tree() -> None:
    """Another member of the site's group publishes, promotes and rolls back in a tree that root has
    begun.
    """
    import shutil
    import sys

    place = Place(
        Path("/tmp") / f"hpcstack-group-{os.getpid()}", modules={"mode": "0664", "group": "games"}
    )
    try:
        os.umask(0o077)
        place.publish(content=b"one")
        place.artifact(place.stack(), b"two")
        place.top.chmod(0o755)
        member = ["setpriv", "--reuid=65534", "--regid=60", "--clear-groups", "--"]
        assert subprocess.run(
            ["getent", "group", "60"], capture_output=True, check=True
        ).stdout.startswith(b"games:")
        for path in (
            place.store.top,
            *place.store.top.rglob("*"),
        ):  # the store's own marks are the site's affair
            shutil.chown(path, group="games")
            path.chmod(0o2775 if path.is_dir() else 0o664)
        script = VERB_IN_A_GROUP
        for what in ("publish", "rollback"):
            done = _elsewhere(
                place.top / "checkout", *member, sys.executable, "-c", script, str(place.top), what
            )
            assert done.returncode == 0, done.stderr
        assert [one.release for one in place.tree.ledger("pytorch").entries] == [
            "24.11-r1",
            "24.11-r2",
        ]
        place.publish(content=b"three")
        whole(place)
    finally:
        os.umask(0o022)
        shutil.rmtree(place.top)


def _elsewhere(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """ARGV with this checkout at FOLDER, which every user can reach: it may lie in a home that is
    closed to others.
    """
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    there = [
        word.replace(f"{REPO}/", f"{folder}/") if word.startswith(f"{REPO}/") else word
        for word in argv
    ]
    mount = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
    apart = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        mount,
        "sh",
        str(REPO),
        str(folder),
    ]
    variables = {**environment(), "PYTHONPATH": f"{folder}/tests:{folder}/src"}
    return subprocess.run(
        [*apart, *there], env=variables, capture_output=True, text=True, check=False, cwd="/"
    )


VERB_IN_A_GROUP = """
import os, sys
from pathlib import Path
from support.modules import Place
os.umask(0o077)
place = Place(Path(sys.argv[1]), modules={"mode": "0664", "group": "games"})
stack = place.stack()
if sys.argv[2] == "publish":
    import hashlib
    digest = hashlib.sha256(b"two").hexdigest()
    artifact = next(one for one in place.store.images() if one.sha256 == digest)
    place.publisher.publish(stack, artifact, "testing", None, {})
else:
    from hpcstack.releases.changes import roll_back_version
    place.publisher.change("pytorch", "rollback", lambda ledger, event: roll_back_version(ledger, "24.11", "", event))
"""
