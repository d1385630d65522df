"""What is collected: never what is used or new, whatever times an image's own files carry."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import make_site
from hpcstack.build.engines.base import EPOCH
from hpcstack.core import lease
from hpcstack.core.errors import SlurmError
from hpcstack.core.process import Completed, Runner
from hpcstack.publish import gc
from hpcstack.site.load import Site
from hpcstack.store.cache import cache_of, hold_cache


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return make_site(tmp_path)


def kept(site: Site, days: float = 14) -> dict[str, str]:
    return {item.path.name: item.keep for item in gc.list_items(site, Runner(), days, slurm=False)}


def step(site: Site, name: str) -> Path:
    """A kept step as a build leaves it: its time is that of all that a build makes."""
    folder = cache_of(site).top / "steps" / name
    folder.mkdir(parents=True)
    os.utime(folder, (EPOCH, EPOCH))
    return folder


def test_a_step_is_as_old_as_its_last_use_not_as_its_files_say(site: Site) -> None:
    step(site, "k")
    assert kept(site) == {"k": "younger than 14 days"}
    assert kept(site, 0) == {"k": ""}


def test_nothing_of_the_caches_goes_while_somebody_builds(site: Site) -> None:
    step(site, "k")
    with hold_cache(cache_of(site)):
        assert kept(site, 0) == {"k": "somebody is building"}
    assert kept(site, 0) == {"k": ""}


def test_who_begins_to_build_meanwhile_keeps_what_is_there(site: Site) -> None:
    folder = step(site, "k")
    (folder / "file").touch()
    (item,) = gc.list_items(site, Runner(), 0, slurm=False)
    with hold_cache(cache_of(site)):
        gc.remove_item(item, site)
    assert (folder / "file").exists()
    gc.remove_item(item, site)
    assert not folder.exists()
    assert not list(folder.parent.iterdir())


def test_what_somebody_else_has_made_stays_under_its_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache_of(site).top / "partial/k.1"
    folder.mkdir(parents=True)
    (item,) = gc.list_items(site, Runner(), 0, slurm=False)
    monkeypatch.setattr("hpcstack.core.descriptors.remove_tree", lambda _: None)
    monkeypatch.setattr(time, "time", lambda: folder.stat().st_ctime + 2 * 86400)
    (item,) = gc.list_items(site, Runner(), 0, slurm=False)
    gc.remove_item(item, site)
    assert [path.name for path in folder.parent.iterdir()] == ["k.1"]


def test_a_kill_leaves_no_half_of_a_step(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = step(site, "k")
    for name in "abc":
        (folder / name).touch()
    (item,) = gc.list_items(site, Runner(), 0, slurm=False)

    def killed(path: Path) -> None:
        (path / "a").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr("hpcstack.core.descriptors.remove_tree", killed)
    with pytest.raises(KeyboardInterrupt):
        gc.remove_item(item, site)
    assert not folder.exists()
    assert kept(site, 0) == {
        path.name: "somebody may be writing it" for path in folder.parent.iterdir()
    }


def test_what_another_machine_has_left_goes_after_a_week(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = str(replace(lease.identify_process(), boot="00000000")).rpartition("+")[0]
    step(site, f".{other}+k")
    assert kept(site, 0) == {f".{other}+k": "somebody may be writing it"}
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + lease.ABANDONED_S + 1)
    assert kept(site, 0) == {f".{other}+k": ""}


class Slurm(Runner):
    """A cluster with one job, whose script somebody else wrote."""

    def __init__(self, said: str) -> None:
        self.said = said

    def has(self, tool: str) -> bool:
        return tool == "squeue"

    def output(self, argv: object, **_: object) -> Completed:
        if "squeue" in str(argv):
            return Completed(("squeue",), 0, ("7|(null)|(null)|/",), "7|(null)|(null)|/\n")
        return Completed(("scontrol",), 1, (self.said,))


def test_where_a_jobs_script_may_not_be_read_nothing_is_removed(site: Site) -> None:
    with pytest.raises(SlurmError, match="job 7 cannot be read"):
        gc.list_items(site, Slurm("job script retrieval failed: Access/permission denied"), 14)
    assert (
        gc.list_items(site, Slurm("job script retrieval failed: Invalid job id specified"), 14)
        == []
    )
