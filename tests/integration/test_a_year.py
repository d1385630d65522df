"""A year of a declared stack, on the testbed, by a clock that is handed in: twelve months, a bad
one, damage, a rollback, a vulnerability, retirements with their messages, pruning; killed again and
again on the way.

The nodes are virtual and the image is a small one: what this shows is what becomes of releases.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.dated import PROGRAM
from support.index import add_wheel, serve_index
from support.osv import make_record, write_database
from support.recipes import Recipes
from support.testbed import CONTROL, Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.registry,
    pytest.mark.slurm,
    pytest.mark.suite,
    pytest.mark.squashfs,
    pytest.mark.timeout(1800),
]
HOST = "10.89.77.1"  # this machine, as the nodes see it
KILLS = int(os.environ.get("HPCSTACK_TIMES", "6"))  # ci/soak asks for more
MONTHS = [f"27.{month:02}" for month in range(1, 13)]
BAD = "27.05"
HOLE = {
    "id": "TEST-2027-1",
    "ecosystem": "PyPI",
    "name": "alpha",
    "fixed": "1.1",
    "published": "2027-07-10T00:00:00Z",
    "severity_type": "CVSS_V3",
    "severity": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H",
}
MAIL = """\
#!/bin/sh
# What the site's mail program would send: $1 is who, $2 is what about.
{ echo "To: $1"; echo "Subject: $2"; cat; echo .; } >>"$(dirname "$0")/mail.txt"
"""


class Year:
    """The site of this test: its declaration, and hpcstack at a day of the year."""

    def __init__(self, testbed: Testbed, recipes: Recipes, index: Path) -> None:
        self.testbed, self.recipes, self.index = testbed, recipes, index
        self.top = recipes.folder
        self.user = testbed.run("id", "-un", check=True).stdout.strip()
        self.versions: list[str] = []
        self.without: list[str] = []
        self.give("dated.py", PROGRAM)
        self.give("mail.sh", MAIL)
        testbed.bash('chmod +x "$1/mail.sh" && touch "$1/usage.log" "$1/mail.txt"', str(self.top))

    def give(self, name: str, text: str) -> None:
        path = self.top / name
        self.testbed.bash('mkdir -p "$1"', str(path.parent))
        self.testbed.give(str(path).removeprefix(f"{self.testbed.home}/"), text)

    def describe_site(self, url: str) -> None:
        self.recipes.site(
            f"name: yearly\nstore: {self.top}/store\nlock_dir: {self.top}/locks\n"
            f"module_root: {self.top}/modules\n"
            f"modules: {{tier: quick, keep_days: 60}}\n"
            f"audit: {{database: {self.top}/osv}}\n"
            f"usage: {{files: ['{self.top}/usage.log'], "
            f"mail: ['{self.top}/mail.sh', '{{user}}', '{{subject}}']}}\n"
            f"build: {{pip: {{index_url: '{url}', trusted_hosts: ['{HOST}']}}}}\n"
        )

    def declare(self) -> None:
        """Write recipes and declaration, as a merge request leaves them."""
        versions = json.dumps(self.versions)
        self.give(
            "recipes/demo.yaml",
            "apiVersion: hpcstack/v1\nname: demo\nsummary: a year of this test\n"
            f"base: {{image: {self.recipes.base}}}\n"
            "packages: {pip: [alpha]}\n"
            'environment: {MONTH: "${stack.version}"}\n'
            "tests: [node.image]\n"
            "checks:\n"
            f"  - {{name: month, about: the bad month, command: 'test $MONTH != {BAD}', tier: quick}}\n"
            f"matrix: {{version: {versions}}}\n",
        )
        self.give(
            "releases/demo.yaml",
            "releases:\n  demo:\n    newest: 3\n"
            f"    without: {json.dumps(self.without)}\n"
            "    default: newest\n"
            "    prove: {partitions: [debug], nodes: 2, tier: quick}\n"
            "    gate: {days: 7}\n"
            "    retire: {days: 30, notify: true, reason: three months are kept}\n"
            f"    tell: [{self.user}]\n"
            "prune: {days: 30}\n",
        )

    def argv(self, day: str, *arguments: str) -> list[str]:
        python = self.testbed.run("bash", "-c", "head -1 $(command -v hpcstack)").stdout
        return [
            str(CONTROL), "exec", "env", f"XDG_STATE_HOME={self.top}/state",
            f"XDG_CACHE_HOME={self.top}/cache", python.strip().removeprefix("#!"),
            str(self.top / "dated.py"), str(self.top / "pid"), f"{day}T06:00:00+00:00",
            "--site", str(self.top / "site.yaml"), "--recipes", str(self.top / "recipes"),
            *arguments,
        ]  # fmt: skip

    def at(self, day: str, *arguments: str, status: int = 0) -> str:
        """Return what hpcstack prints on DAY."""
        done = subprocess.run(
            self.argv(day, *arguments), capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == status, f"{day} {arguments}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def sync(self, day: str, status: int = 0) -> Any:
        return json.loads(self.at(day, "sync", f"{self.top}/releases", "--json", status=status))

    def sync_killed(self, day: str, after: float) -> bool:
        """Begin a sync and kill it AFTER so many seconds. Return whether it was still at work."""
        pid_file = self.top / "pid"
        self.testbed.bash('rm -f "$1"', str(pid_file))
        argv = self.argv(day, "sync", f"{self.top}/releases")
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not (text := self.testbed.run("cat", str(pid_file)).stdout):
            assert time.monotonic() < deadline
        time.sleep(after)
        was_at_work = process.poll() is None
        if was_at_work:
            try:
                os.kill(int(text), signal.SIGKILL)
            except ProcessLookupError:
                was_at_work = False
        process.wait()
        return was_at_work

    def read_ledger(self) -> dict[str, Any]:
        path = f"{self.top}/modules/state/demo/current/ledger.json"
        found: dict[str, Any] = json.loads(self.testbed.run("cat", path, check=True).stdout)
        return found

    def loads(self) -> dict[str, str]:
        """{version: the release that it means}."""
        aliases: dict[str, str] = self.read_ledger()["aliases"]
        return aliases

    def mail(self) -> str:
        return self.testbed.run("cat", f"{self.top}/mail.txt", check=True).stdout

    def use(self, release: str, day: str) -> None:
        """USER loads RELEASE on DAY, as the site's log has it."""
        at = int(time.mktime(time.strptime(f"{day} 12", "%Y-%m-%d %H")))
        line = (
            f"login1 hpcstack-usage: v1 what=load release={release} user={self.user} job=- at={at}"
        )
        self.testbed.bash('echo "$1" >>"$2"', line, f"{self.top}/usage.log")


@pytest.fixture
def year(
    testbed: Testbed,
    recipes: Recipes,
    small_base: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Year]:
    recipes.base = small_base
    index = tmp_path_factory.mktemp("index")
    add_wheel(index, "alpha", "1.0", {"alpha.py": "VERSION = '1.0'\n"})
    found = Year(testbed, recipes, index)
    with serve_index(index, HOST) as url:
        found.describe_site(url)
        yield found


def publish_package(year: Year, version: str) -> None:
    """The package gets a newer VERSION, in the index that is being served."""
    add_wheel(year.index, "alpha", version, {"alpha.py": f"VERSION = '{version}'\n"})
    project = year.index / "simple/alpha"
    links = "".join(f'<a href="{one.name}">{one.name}</a><br>' for one in project.glob("*.whl"))
    (project / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")


@pytest.mark.soak(
    "four minutes of builds and kills: what each step of a sync does is shown in one of its own",
    kept="tests/integration/test_syncing.py::test_a_folder_comes_true",
)
def test_a_year(year: Year) -> None:
    chance = random.Random(KILLS)
    kills = 0
    waits: list[float] = []  # how long the syncs took that were not killed

    def sync(day: str, status: int = 0) -> Any:
        """A sync that is killed on its way, and then left alone."""
        nonlocal kills
        for _ in range(3 if KILLS > 10 else 1):
            if kills < KILLS and waits:
                kills += year.sync_killed(day, chance.uniform(0.2, chance.choice(waits)))
        began = time.monotonic()
        done = year.sync(day, status)
        waits.append(time.monotonic() - began)
        if len(waits) % 3 == 1:
            again = year.sync(day, status)
            assert [one["done"] for one in again["names"]] == [[]], "run again, it does nothing"
        return done

    for month, version in enumerate(MONTHS, 1):
        year.versions.append(version)
        if version == "27.06":
            year.without.append(BAD)  # nobody waits for it any longer
        year.declare()
        if version == BAD:
            (name,) = sync(f"2027-{month:02}-02", status=1)["names"]
            (bad,) = [one for one in name["versions"] if one["version"] == BAD]
            assert bad["status"] == "failed"
            assert "stack.month is FAIL" in bad["why"]
            assert BAD not in year.loads()
            sync(f"2027-{month:02}-10", status=1)
            assert set(year.loads()) >= {"27.02", "27.03", "27.04"}, "nothing goes without it"
            assert "Subject: demo at yearly: " in year.mail()
            continue

        sync(f"2027-{month:02}-02")
        assert version in year.loads()
        for release in year.loads().values():
            year.use(f"demo/{release}", f"2027-{month:02}-05")
        sync(f"2027-{month:02}-10")
        assert year.loads()[version].endswith("-r2"), "promoted after a week in testing"

        if version == "27.03":
            damage_the_tree(year)
        if version == "27.07":
            find_a_hole(year, sync)
        if version == "27.09":
            year.at("2027-09-15", "default", "demo/27.08", "--reason", "by hand")
            sync("2027-09-16")
            assert year.read_ledger()["default"] == "27.09-r2"

    assert kills >= KILLS * 2 // 3, "the moments are drawn: some come when it has ended"
    check_the_end(year)


def damage_the_tree(year: Year) -> None:
    """Somebody removes the default's modulefile, and writes into another."""
    core = f"{year.top}/modules/Core/demo"
    year.testbed.bash('rm "$1/27.03-r2.lua" && echo "-- mine" >>"$1/27.02-r2.lua"', core)
    year.at("2027-03-12", "status", "--check", status=1)
    plan = json.loads(
        year.at("2027-03-12", "sync", f"{year.top}/releases", "--check", "--json", status=1)
    )
    assert [one["verb"] for one in plan["names"][0]["repairs"]] == ["repair"]
    done = year.sync("2027-03-12")
    assert [one["verb"] for one in done["names"][0]["done"]] == ["repair"]
    year.at("2027-03-12", "status", "--check")


def find_a_hole(year: Year, sync: Any) -> None:
    """A vulnerability is found and mended; the mended release is rolled back; a third takes over."""
    database = year.index / "osv"
    write_database(database, [make_record(HOLE)])
    for path in database.rglob("all.zip"):
        name = path.relative_to(database)
        year.testbed.bash('mkdir -p "$1"', str(year.top / "osv" / name.parent))
        subprocess.run(
            [str(CONTROL), "exec", "bash", "-c", 'cat >"$1"', "bash", str(year.top / "osv" / name)],
            input=path.read_bytes(),
            check=True,
        )
    found = year.at("2027-07-12", "audit", "--json", status=0)
    assert "TEST-2027-1" in found

    publish_package(year, "1.1")
    year.at("2027-07-12", "lock", "demo-27.0[467]", "--only", "alpha")
    sync("2027-07-12")
    sync("2027-07-20")
    assert year.loads()["27.07"] == "27.07-r4"
    mended = json.loads(year.at("2027-07-20", "audit", "demo-27.07", "--json"))
    assert "TEST-2027-1" not in json.dumps(mended)

    # The mended release turns out to be worse. Whoever is on call takes it back, and sync does not
    # bring it again.
    year.at("2027-07-22", "rollback", "demo/27.07", "--reason", "it diverges")
    assert year.loads()["27.07"] == "27.07-r2"
    (name,) = sync("2027-07-23", status=1)["names"]
    (held,) = [one for one in name["versions"] if one["version"] == "27.07"]
    assert held["status"] == "held"
    assert "it diverges" in held["why"]
    assert year.loads()["27.07"] == "27.07-r2"

    publish_package(year, "1.2")
    year.at("2027-07-24", "lock", "demo-27.07", "--only", "alpha")
    sync("2027-07-24")
    sync("2027-08-01")
    assert year.loads()["27.07"] == "27.07-r6"


def check_the_end(year: Year) -> None:
    """History, usage, catalogue and store are what the declaration says."""
    year.at("2027-12-20", "sync", f"{year.top}/releases", "--check")
    loadable = year.loads()
    assert set(loadable) == {"27.09", "27.10", "27.11", "27.12"}, "one is in its last month"
    year.at("2027-12-20", "status", "--check")

    pages = f"{year.top}/pages"
    year.at("2027-12-20", "catalog", "-o", pages)
    catalog = json.loads(year.testbed.run("cat", f"{pages}/catalog.json", check=True).stdout)
    assert {one["alias"] for one in catalog["stacks"]} == {f"demo/{one}" for one in loadable}

    history = json.loads(year.at("2027-12-20", "history", "demo", "--json"))["events"]
    verbs = [one["verb"] for one in history]
    good = [one for one in MONTHS if one != BAD]
    promoted = [one["version"] for one in history if one["verb"] == "promote"]
    assert set(promoted) == set(good)
    assert len(promoted) == len(good) + 3 + 1, "each once, the mended ones twice, one three times"
    assert verbs.count("rollback") == 1
    assert "repair" not in verbs
    retired = [one["version"] for one in history if one["verb"] == "sync retire"]
    assert set(retired) == set(good[:-3])

    usage = json.loads(year.at("2027-12-20", "usage", "--days", "365", "--json"))
    assert {one["release"].partition("-")[0] for one in usage["releases"]} == {
        f"demo/{one}" for one in good
    }

    mail = year.mail()
    assert mail.count("demo/27.01 will be retired on 2027-05-10") == 1
    assert "Use demo/27.0" in mail
    assert mail.count("is held") == 0

    images = json.loads(year.at("2027-12-20", "images", "--json"))
    assert {one["stack"] for one in images} == {
        f"demo-{one}" for one in ("27.07", "27.08", *loadable)
    }, "what nobody needs is pruned, once its release has been retired for two months"
    loaded = year.testbed.bash(
        'module use "$1/modules/Core" && module load demo && echo "$HPCSTACK_RELEASE"',
        str(year.top),
    )
    assert "27.12" in loaded.stdout + loaded.stderr
