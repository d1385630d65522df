"""Who uses what: module systems and launches tell syslog, and its logs are counted."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.core.errors import InputError
from hpcstack.core.process import Runner
from hpcstack.core.usage_line import TAG, LoggedUse, format_use, parse_use
from hpcstack.publish.holdings import list_holdings
from hpcstack.publish.usage import (
    Usage,
    count_people,
    count_usage,
    find_usage_logs,
    name_week,
    send_notices,
    write_notices,
)
from hpcstack.render.usage_hook import render_usage_hook
from hpcstack.site.model import UsageSite
from support.modules import Place, clean, system
from support.syslog import listen_to_syslog

NOW = datetime(2026, 11, 26, 12, tzinfo=timezone.utc)


def at(days: float) -> int:
    return int((NOW - timedelta(days=days)).timestamp())


def line(what: str, release: str, user: str, days: float, job: str = "-") -> str:
    use = LoggedUse("load" if what == "load" else "launch", release, user, job, at(days))
    return f"2026-11-26T09:33:07+00:00 login1 {TAG}[77]: {format_use(use)}\n"


LOG = "".join(
    [
        line("load", "pytorch/24.11-r1", "ann", 1),
        line("load", "pytorch/24.11-r1", "ann", 20),
        line("launch", "pytorch/24.11-r1", "bob", 2, "77"),
        line("load", "pytorch/24.11-r1", "eve", 200),  # long ago
        line("launch", "own-1", "ann", 3),
        "Nov 26 09:33:07 login1 sshd[1]: something else\n",
        f"Nov 26 09:33:07 login1 {TAG}: v1 what=load release=torn\n",
    ]
)


def count(place: Place, folder: Path, text: str = LOG, name: str = "", days: int = 90) -> Usage:
    (folder / "usage.log").write_text(text)
    return count_usage(place.site, place.tree, days, NOW, (str(folder / "usage.log*"),), name)


def backdate(place: Place) -> None:
    """As if all releases had been made a year ago."""
    for name in place.tree.names():
        path = place.tree.root / "state" / name / "current" / "ledger.json"
        text = path.read_text()
        for entry in place.tree.ledger(name).entries:
            text = text.replace(f'"made": "{entry.made}"', '"made": "2025-11-26T12:00:00+00:00"')
        path.write_text(text)


def test_uses_are_counted_by_release(tmp_path: Path) -> None:
    place = Place(tmp_path / "site")
    place.publish(content=b"one")
    place.publish(content=b"two")
    backdate(place)
    usage = count(place, tmp_path)
    assert [(one.release, one.loads, one.launches, dict(one.users)) for one in usage.releases] == [
        ("pytorch/24.11-r1", 2, 1, {"ann": 2, "bob": 1}),
        ("own-1", 0, 1, {"ann": 1}),
    ]
    assert usage.unused == ["pytorch/24.11-r2"]
    assert (usage.since, usage.asked) == ("2026-08-28", "2026-08-28")
    one = usage.releases[0]
    assert (one.first, one.last) == (at(20), at(1))
    assert dict(one.weeks) == {name_week(at(1)): 2, name_week(at(20)): 1}
    assert name_week(at(1)) == "2026-W48"


def test_of_days_before_the_logs_begin_nothing_is_said(tmp_path: Path) -> None:
    place = Place(tmp_path / "site")
    place.publish(content=b"one")
    text = line("load", "pytorch/24.10-r1", "ann", 20) + line("load", "pytorch/24.10-r1", "ann", 1)
    usage = count(place, tmp_path, text)
    assert (usage.since, usage.asked) == ("2026-11-06", "2026-08-28")
    # a release of today was not there all the time
    assert usage.unused == []
    backdate(place)
    assert count(place, tmp_path, text).unused == ["pytorch/24.11-r1"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pytorch", ["pytorch/24.11-r1"]),
        ("pytorch/24.11", ["pytorch/24.11-r1"]),
        ("pytorch/24.11-r1", ["pytorch/24.11-r1"]),
        ("pytorch/24.12", []),
        ("torch", []),
        ("own/1", ["own-1"]),
    ],
)
def test_a_name_leaves_others_out(tmp_path: Path, name: str, expected: list[str]) -> None:
    usage = count(Place(tmp_path / "site"), tmp_path, name=name)
    assert [one.release for one in usage.releases] == expected


def test_rotated_and_packed_logs_are_read_too(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "usage.log.2.gz", "wb") as packed:
        packed.write(line("load", "pytorch/24.11-r1", "eve", 30).encode())
    usage = count(Place(tmp_path / "site"), tmp_path)
    assert set(usage.releases[0].users) == {"ann", "bob", "eve"}


def test_a_log_that_is_torn_or_missing_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path / "site")
    (tmp_path / "usage.log.1.gz").write_bytes(gzip.compress(LOG.encode() * 100)[:60])
    with pytest.raises(InputError, match="cannot be read"):
        count(place, tmp_path)
    for patterns in ((), (str(tmp_path / "none*"),)):
        with pytest.raises(InputError):
            find_usage_logs(patterns)


def test_long_lines_are_passed_over(tmp_path: Path) -> None:
    text = "x" * 5000 + LOG.splitlines()[0] + "\n" + LOG
    usage = count(Place(tmp_path / "site"), tmp_path, text)
    assert usage.releases[0].loads == 2


WORDS = st.text(max_size=120)


@given(WORDS, WORDS, WORDS, st.integers(0, 10**11))
def test_whatever_is_written_is_one_line_that_is_read_again(
    release: str, user: str, job: str, when: int
) -> None:
    said = format_use(LoggedUse("load", release, user, job, when))
    assert len(said.splitlines()) == 1
    found = parse_use(f"Nov 26 host {TAG}: {said}")
    assert found
    assert found.at == when
    assert format_use(found) == said


def test_a_message_goes_to_each_user_whom_the_machine_knows(tmp_path: Path) -> None:
    sent = tmp_path / "sent"
    script = tmp_path / "mail"
    script.write_text(f'#!/bin/sh\n{{ echo "$@"; cat; }} >>{sent}\n[ "$2" != daemon ]\n')
    script.chmod(0o755)
    place = Place(tmp_path / "site", usage=UsageSite(mail=(str(script), "{subject}", "{user}")))
    text = "".join(
        line("load", "pytorch/24.11-r1", user, 1) for user in ("root", "daemon", "-x", "nobody-x")
    )
    usage = count(place, tmp_path, text, "pytorch/24.11")
    dates = {"remove": "2027-06-30", "successor": "pytorch/25.10", "reason": "CUDA 12 ends"}
    notices = write_notices(usage, place.site, "pytorch/24.11", dates)
    assert [one.user for one in notices] == ["-x", "daemon", "nobody-x", "root"]
    failed = send_notices(notices, Runner())
    assert [one.partition(":")[0] for one in failed] == ["-x", "daemon", "nobody-x"]
    said = sent.read_text()
    assert "pytorch/24.11 will be retired on 2027-06-30 root" in said
    assert "Use pytorch/25.10 instead: module load pytorch/25.10" in said
    assert "Why: CUDA 12 ends" in said


HOOKS = {
    "lmod": 'local log = dofile("{hook}")\nrequire("Hook").register("load", log)\n',
    "tcl": "source {hook}\n",
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("lmod", marks=pytest.mark.lmod),
        pytest.param("tcl", marks=pytest.mark.emodules),
    ],
)
def test_a_load_is_told_once_a_job(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, kind: str
) -> None:
    which = "lmod" if kind == "lmod" else "emodules"
    place = Place(tmp_path / "site")
    place.publish()
    hook = tmp_path / f"usage-hook.{kind}"
    hook.write_text(render_usage_hook(place.site, kind))
    (tmp_path / "etc").mkdir()
    named = {"lmod": "SitePackage.lua", "tcl": "siteconfig.tcl"}[kind]
    (tmp_path / "etc" / named).write_text(HOOKS[kind].format(hook=hook))
    env = clean(
        place,
        which,
        LMOD_PACKAGE_PATH=str(tmp_path / "etc"),
        MODULES_SITECONFIG=str(tmp_path / "etc/siteconfig.tcl"),
    )
    load = f'eval "$({system(which)} bash load pytorch/24.11)"; echo "$HPCSTACK_RELEASE"'

    with listen_to_syslog(tmp_path_factory.mktemp("log")) as syslog:
        done = syslog.run("bash", "-c", load, env=env)
        assert done.stdout == "pytorch/24.11-r1\n", done.stderr
        [said] = syslog.take()
        use = parse_use(said)
        assert use
        assert (use.what, use.release, use.user, use.job) == (
            "load",
            "pytorch/24.11-r1",
            "root",
            "-",
        )
        assert abs(use.at - datetime.now(timezone.utc).timestamp()) < 60

        # in a job the first task speaks for all; a job's number cannot add a line
        syslog.run(
            "bash", "-c", load, env={**env, "SLURM_JOB_ID": "7\n<1>x: y", "SLURM_PROCID": "0"}
        )
        [said] = syslog.take()
        use = parse_use(said)
        assert use
        assert use.job == "7??1?x??y"
        syslog.run("bash", "-c", load, env={**env, "SLURM_JOB_ID": "7", "SLURM_PROCID": "3"})
        # nor is what is not ours told of, or what is only looked at
        (tmp_path / "other").mkdir()
        text = 'setenv("X", "1")\n' if kind == "lmod" else "#%Module\nsetenv X 1\n"
        (tmp_path / "other" / ("x.lua" if kind == "lmod" else "x")).write_text(text)
        more = f'eval "$({system(which)} bash use {tmp_path}/other)"; eval "$({system(which)} bash load x)"'
        syslog.run("bash", "-c", more, env=env)
        syslog.run("bash", "-c", f"{system(which)} bash show pytorch/24.11", env=env)
        assert syslog.take() == []

        # a syslog that hangs holds up nobody: its queue takes a few lines, and no more are waited for
        began = time.monotonic()
        many = f"for n in $(seq 30); do {system(which)} bash load pytorch/24.11 >/dev/null; done"
        assert syslog.run("bash", "-c", many, env=env).returncode == 0
        assert time.monotonic() - began < 30
        assert 1 <= len(syslog.take(3)) <= 30

    # without a syslog a load works as before
    done = subprocess.run(
        ["bash", "-c", load], env=env, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("pytorch/24.11-r1\n", "")


MANY = "for number in range(30): log_launch('x', {})\n"


def test_a_launch_is_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    script = (
        "from hpcstack.launch.usage_log import log_launch\n"
        "log_launch('pytorch/24.11-r1', {'SLURM_JOB_ID': '12'})\n"
    )
    with listen_to_syslog(tmp_path_factory.mktemp("log")) as syslog:
        done = syslog.run(sys.executable, "-c", script, env=dict(os.environ))
        assert done.returncode == 0, done.stderr
        [said] = syslog.take()
        # thirty that nobody takes
        done = syslog.run(sys.executable, "-c", script + MANY)
        assert done.returncode == 0, done.stderr
        assert 1 <= len(syslog.take()) <= 31
    use = parse_use(said)
    assert use
    assert (use.what, use.release, use.job) == ("launch", "pytorch/24.11-r1", "12")


def test_standard_input_is_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LOG.encode())))
    place = Place(tmp_path / "site")
    usage = count_usage(place.site, place.tree, 90, NOW, ("-",))
    assert usage.releases[0].loads == 2
    assert json.dumps(usage.files) == '["-"]'


def test_a_verb_that_changes_something_is_told(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(f"store: {tmp_path}/store\nmodule_root: {tmp_path}/m\nusage: {{verbs: true}}\n")
    program = [sys.executable, "-m", "hpcstack", "--site", str(site)]
    with listen_to_syslog(tmp_path_factory.mktemp("log")) as syslog:
        env = {**os.environ, "HOME": str(tmp_path), "LOGNAME": "somebody-else"}
        told = (
            ["remove", "jax/1", "--reason", "a-secret"],
            ["remove", "--reason", "a-secret", "jax/1"],
        )
        for words in (*told, ["images"], ["--help"]):
            syslog.run(*program, *words, env=env)
        said, other = syslog.take()
    assert said.rpartition(" hpcstack: ")[2].startswith(
        "v1 verb=remove what=jax/1 who=root seconds="
    )
    assert said.endswith(" status=2")
    assert "verb=remove what=- who=" in other
    assert "secret" not in said + other


def test_releases_are_shown_with_their_people(tmp_path: Path) -> None:
    place = Place(tmp_path / "site")
    place.publish(content=b"one")
    place.publish(content=b"two")
    usage = count(place, tmp_path)
    [image, other] = list_holdings(place.store, place.tree).images
    said = {one.describe() for held in (image, other) for one in count_people(held.releases, usage)}
    assert said == {
        "pytorch/24.11-r1 (testing, 2 people)",
        "pytorch/24.11-r2 (testing, default, 0 people)",
    }
