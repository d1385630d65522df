"""What a colleague of the publishing group may write, and what root then makes of it: rows T1, T3,
T4, T5 of what once got through.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hpcstack.build.engines.enclosure import NoEnclosure
from hpcstack.publish import spider
from support.modules import Place

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
MALLORY = 65534
HPCSTACK = Path(sys.executable).with_name("hpcstack")


def run_hpcstack(
    place: Place, *words: str, user: int = 0, **site: object
) -> subprocess.CompletedProcess[str]:
    """Run hpcstack at PLACE's site, with more of SITE in its site.yaml."""
    said = {
        "store": str(place.site.store),
        "module_root": str(place.site.module_root),
        "lock_dir": str(place.site.lock_dir),
        **site,
    }
    file = place.top / "site.yaml"
    file.write_text(yaml.safe_dump(said))
    environment = {**os.environ, "HOME": str(place.top), "HPCSTACK_SITE": str(file)}
    return subprocess.run(
        [str(HPCSTACK), *words], capture_output=True, text=True, check=False, env=environment,
        user=user or None,
    )  # fmt: skip


def give_to_mallory(path: Path) -> None:
    os.chown(path, MALLORY, MALLORY, follow_symlinks=False)


# -- T1: Lmod's spider evaluates everybody's modulefiles


@pytest.fixture
def published(tmp_path: Path) -> Place:
    """A place with a modulefile; it was not tried by Lmod, which takes a second."""
    tmp_path.chmod(0o755)
    place = Place(tmp_path)
    (place.tree.core / "pytorch").mkdir(parents=True)
    (place.tree.core / "pytorch/24.11-r1.lua").write_text('whatis("Name: pytorch")\n')
    return place


def _plant_modulefile(place: Place, code: str) -> Path:
    """Put a modulefile with CODE into the tree, and mark the spider cache stale."""
    planted = place.site.module_root / "Core/pytorch/9.9.lua"
    planted.write_text(f'whatis("Name: planted")\n{code}\n')
    stale = place.site.module_root / "spider/stale"
    stale.parent.mkdir(exist_ok=True)
    stale.touch()
    return planted


def _read_cache(place: Place) -> str:
    return (place.site.module_root / "spider/cache/spiderT.lua").read_text()


@root
@pytest.mark.lmod
@pytest.mark.parametrize("publishers", [[], ["root"]])
def test_t1_a_modulefile_of_a_colleague_is_not_run_as_root(
    published: Place, publishers: list[str]
) -> None:
    proof = published.top / "proof"
    planted = _plant_modulefile(
        published, f'os.execute("id >{proof}; id >{published.site.module_root}/spider/proof")'
    )
    give_to_mallory(planted)

    done = run_hpcstack(published, "repair", modules={"publishers": publishers})

    assert "spider cache is rebuilt" in done.stdout + done.stderr
    assert not proof.exists()
    assert not (published.site.module_root / "spider/proof").exists()
    # A stranger's modulefile is in no cache where the site says who its publishers are.
    assert ("planted" in _read_cache(published)) == (not publishers)


@root
@pytest.mark.lmod
def test_t1_what_root_wrote_and_others_may_write_is_left_out(published: Place) -> None:
    planted = _plant_modulefile(published, "")
    planted.chmod(0o664)
    run_hpcstack(published, "repair", modules={"publishers": ["root"]})
    assert "planted" not in _read_cache(published)
    assert "24.11-r1" in _read_cache(published)


@pytest.mark.lmod
def test_t1_a_modulefile_reaches_no_file_process_or_network(
    published: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can say what it sees only by what it prints: so it puts that into its own description."""
    secret = published.top / "home/secret"
    secret.parent.mkdir(mode=0o700)
    secret.write_text("a secret")
    monkeypatch.setenv("A_SECRET", "of the environment")
    look = f"cat {secret}; env; ls /home /root /run /tmp; cat /proc/net/dev; ls /proc; id -u; echo >{published.top}/x"
    _plant_modulefile(
        published, f'local p = io.popen([[{look}]]); whatis("Description: " .. p:read("*a"))'
    )
    spider.rebuild_cache(published.tree, published.publisher.runner)
    seen = _read_cache(published)
    assert "planted" in seen
    assert "a secret" not in seen
    assert "of the environment" not in seen
    assert "eth0" not in seen
    assert not (published.top / "x").exists()


@pytest.mark.lmod
@pytest.mark.parametrize(
    "code",
    [
        "os.execute([[echo 'os.execute(1)']])",
        "os.execute([[echo 'os = {}']])",
        "os.execute([[cat /dev/zero]])",
    ],
)
def test_t1_what_lmod_is_made_to_print_becomes_no_cache(
    published: Place, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(spider, "MOST_CACHE", 8 << 20)
    _plant_modulefile(published, code)
    said = spider.rebuild_cache(published.tree, published.publisher.runner)
    assert "NOT rebuilt" in said
    assert not (published.site.module_root / "spider/cache/spiderT.lua").exists()
    assert published.tree.stale


@pytest.mark.lmod
def test_t1_without_an_enclosure_there_is_no_cache(
    published: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    spider.rebuild_cache(published.tree, published.publisher.runner)
    assert "24.11-r1" in _read_cache(published)
    old = published.site.module_root / "spider/cache/spiderT.luac_5.3"
    old.write_text("what Lmod's own tool made once")

    def refuse(*_: object, **__: object) -> bytes:
        raise NoEnclosure("this machine lets no enclosure be made: as if")

    monkeypatch.setattr(spider, "run_strangers_code", refuse)
    said = spider.rebuild_cache(published.tree, published.publisher.runner)
    assert "NOT rebuilt" in said
    assert "Lmod reads the modulefiles themselves" in said
    assert not list((published.site.module_root / "spider/cache").iterdir())
