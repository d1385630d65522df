"""`sync` on the testbed: a folder comes true, failures stay apart, one at a time, from a registry,
and by the templates of the documentation for cron, GitLab and GitHub.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.yaml import parse_yaml
from support.recipes import Recipes
from support.testbed import REPO, Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.registry,
    pytest.mark.slurm,
    pytest.mark.suite,
    pytest.mark.squashfs,
    pytest.mark.timeout(900),
]
PAGE = REPO / "docs/how-to/declare-releases.md"
PROVE = "prove: {partitions: [debug], nodes: 2, tier: quick}"


@pytest.fixture
def site(recipes: Recipes, small_base: str) -> Recipes:
    """A site whose gate asks for the quick tier, and whose recipes are quickly tested."""
    recipes.base = small_base
    recipes.site(f"{recipes.render_site_text}modules: {{tier: quick}}\n")
    # The nodes, which have a network of their own, reach no registry: the base is there before.
    done = recipes.run("import", recipes.base, "-o", f"{recipes.folder}/base.sqsh")
    assert done.returncode == 0, done.stderr
    return recipes


def write(site: Recipes, name: str, text: str) -> None:
    path = site.folder / name
    site.testbed.bash('mkdir -p "$1"', str(path.parent))
    site.testbed.give(str(path).removeprefix(f"{site.testbed.home}/"), text)


def declare(site: Recipes, *lines: str) -> None:
    write(site, "releases/releases.yaml", "\n".join(["releases:", *lines]) + "\n")


def sync(site: Recipes, *words: str, status: int = 0) -> Any:
    done = site.run("sync", f"{site.folder}/releases", "--json", *words)
    assert done.returncode == status, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout)


def statuses(document: Any) -> dict[str, str]:
    return {
        f"{name['name']}/{one['version']}": one["status"]
        for name in document["names"]
        for one in name["versions"]
    }


def test_a_folder_comes_true(site: Recipes) -> None:
    site.write("1", tests="[node.image]")
    site.write("2", tests="[node.image]")
    declare(site, f"  demo: {{newest: 1, default: newest, {PROVE}}}")
    before = site.stored()
    plan = sync(site, "--dry-run")
    verbs = [one["verb"] for one in plan["names"][0]["versions"][0]["steps"]]
    assert verbs == ["lock", "build", "test", "publish", "promote"]
    assert site.stored() == before, "a dry run writes nothing"

    page = f"{site.folder}/page.html"
    done = sync(site, "--html", page)
    assert statuses(done) == {"demo/2": "done"}
    assert "in production as 2-r2" in site.testbed.run("cat", page, check=True).stdout
    history = json.loads(site.run("history", "demo", "--json").stdout)["events"]
    assert [one["verb"] for one in history] == ["publish", "promote"]
    assert all("declared in releases.yaml" in one["reason"] for one in history)

    assert sync(site, "--check")["names"][0]["done"] == []
    quiet = site.run("sync", f"{site.folder}/releases", "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")

    # The image is lost: it is built again, to the same bytes, and its release is whole again.
    site.testbed.bash('rm -r "$1/store/images"', str(site.folder))
    assert sync(site, "--check", status=1)["names"][0]["versions"][0]["steps"][0]["verb"] == "build"
    sync(site)
    assert site.run("status", "--check").returncode == 0


def test_what_fails_holds_up_no_other(site: Recipes) -> None:
    site.write("1", tests="[node.image]")
    site.write("2", tests="[node.image]", run="[{name: no, command: 'exit 3'}]")
    site.write("3", tests="[node.image]", base="{image: 'nvcr.io/hpcstack-tests/no-such:1'}")
    site.write(
        "4", tests="[node.image]", checks="[{name: bad, about: bad, command: 'false', tier: quick}]"
    )
    write(site, "recipes/other.yaml", "apiVersion: hpcstack/v1\nname: other\nnonsense\n")
    declare(site, f"  demo: {{{PROVE}}}", f"  other: {{{PROVE}}}")
    done = sync(site, status=5)
    assert statuses(done) == {
        "demo/1": "done", "demo/2": "failed", "demo/3": "failed", "demo/4": "failed",
    }  # fmt: skip
    failed = {one["subject"]: one for one in done["names"][0]["failed"]}
    assert failed["demo-2"]["verb"] == "build"
    assert failed["demo-3"]["verb"] == "lock"
    (bad,) = [one for one in done["names"][0]["versions"] if one["version"] == "4"]
    assert "stack.bad is FAIL" in bad["why"]
    assert "other.yaml" in done["names"][1]["notes"][0]["why"]
    shown = site.run("status", "--json")
    published = {one["release"] for one in json.loads(shown.stdout)["releases"]}
    assert published == {"demo/1-r2"} or published == {"demo/1-r1", "demo/1-r2"}


def test_one_at_a_time(site: Recipes) -> None:
    site.write("1", tests="[node.image]")
    declare(site, f"  demo: {{{PROVE}}}")
    ended: list[subprocess.CompletedProcess[str]] = []

    def run() -> None:
        ended.append(site.run("sync", f"{site.folder}/releases", "--json"))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [one.returncode for one in ended] == [0, 0, 0], [one.stderr for one in ended]
    assert sum(bool(json.loads(one.stdout)["names"][0]["done"]) for one in ended) == 1
    assert any("waiting for another sync: process" in one.stderr for one in ended)
    history = json.loads(site.run("history", "demo", "--json").stdout)["events"]
    assert [one["verb"] for one in history] == ["publish", "promote"]


@pytest.mark.soak(
    "a push and a pull, which have tests of their own",
    kept="tests/integration/test_syncing.py::test_a_folder_comes_true",
)
def test_from_another_cluster(site: Recipes, testbed: Testbed) -> None:
    """Push there, sync here: what another site has built is pulled, proven and published."""
    site.testbed.bash(
        'cd "$1" && openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt '
        "-out key.pem && openssl pkey -in key.pem -pubout -out key.pub",
        str(site.folder),
    )
    name = f"{testbed.registry}/synced/demo"
    registries = (
        f"registries:\n  nvcr.io: {{mirror: '{testbed.registry}', plain_http: true}}\n"
        f"  '{testbed.registry}': {{plain_http: true, signature_key: {site.folder}/key.pub}}\n"
    )
    there = site.render_site_text + registries
    site.site(there)
    site.write("1", tests="[node.image]")
    assert site.run("build", "demo-1").returncode == 0
    pushed = site.run("push", "demo-1", name, "--key", f"{site.folder}/key.pem")
    assert pushed.returncode == 0, pushed.stderr

    site.site(re.sub(r"(store|modules)\n", r"\1-here\n", there))
    declare(site, f"  demo: {{from: {name}, {PROVE}}}")
    done = sync(site)
    assert [one["verb"] for one in done["names"][0]["done"]] == [
        "pull",
        "test",
        "publish",
        "promote",
    ]
    assert statuses(sync(site, "--check")) == {"demo/1": "done"}

    # The other cluster moves on: the same tag means another image, which comes here, too.
    site.site(there)
    site.write("1", tests="[node.image]", environment="{MORE: more}")
    assert site.run("lock", "demo-1").returncode == 0
    assert site.run("build", "demo-1").returncode == 0
    pushed = site.run("push", "demo-1", name, "--key", f"{site.folder}/key.pem")
    assert pushed.returncode == 0, pushed.stderr
    site.site(re.sub(r"(store|modules)\n", r"\1-here\n", there))
    done = sync(site)
    assert [one["verb"] for one in done["names"][0]["done"]] == [
        "pull",
        "test",
        "publish",
        "promote",
    ]


# -- the templates of the documentation


def read_templates() -> dict[str, str]:
    """{first words: text} of the fenced blocks that the page tells people to copy."""
    blocks = re.findall(r"^```(?:yaml|text)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    return {block.splitlines()[0]: block for block in blocks}


def list_gitlab_scripts() -> list[str]:
    """The scripts of the jobs, as GitLab's runner joins them."""
    (text,) = [text for head, text in read_templates().items() if ".gitlab-ci.yml" in head]
    jobs = parse_yaml(text, "gitlab").value
    return ["set -eo pipefail\n" + "\n".join(job["script"]) for job in jobs.values()]


def list_github_scripts() -> list[str]:
    """The steps of the jobs, as GitHub's runner starts each with bash."""
    (text,) = [text for head, text in read_templates().items() if ".github/" in head]
    jobs = parse_yaml(text, "github").value["jobs"]
    return [
        "\n".join(
            f"bash -eo pipefail -c {json.dumps(step['run']).replace('$', chr(92) + '$')} || exit"
            for step in job["steps"]
            if "run" in step
        )
        for job in jobs.values()
    ]


def list_cron_scripts(folder: Path) -> list[str]:
    """The line of the crontab, as cron gives it to sh."""
    (line,) = [text for head, text in read_templates().items() if head.startswith("0 4 * * *")]
    command = line.split(maxsplit=5)[5].strip()
    command = command.replace("/srv/hpc-releases", str(folder / "work"))
    return [command.replace("/srv/www", str(folder))]


@pytest.mark.parametrize("which", ["cron", "gitlab", "github"])
@pytest.mark.soak("each starts the same line", but=lambda which: which == "cron")
def test_a_template(site: Recipes, which: str) -> None:
    """In a clone of a repository; a clone is fresh for each job, and cron has hardly a variable."""
    site.write("1", tests="[node.image]")
    assert site.run("lock", "demo-1").returncode == 0
    declare(site, f"  demo: {{{PROVE}}}")
    site.testbed.bash(
        'cd "$1" && git init -q origin && mv recipes releases origin/ && cd origin && git add . && '
        "git -c user.name=x -c user.email=x@example.org commit -qm 'demo 1' && cd .. && "
        "git clone -q origin work",
        str(site.folder),
    )
    scripts = {
        "cron": lambda: list_cron_scripts(site.folder),
        "gitlab": list_gitlab_scripts,
        "github": list_github_scripts,
    }[which]()
    shell = "sh" if which == "cron" else "bash"
    for script in scripts:
        done = site.testbed.bash(
            'top=$1; cd "$top/work"; shift; '
            'env -i HOME="$HOME" PATH="$PATH" LOGNAME="$(id -un)" XDG_STATE_HOME="$top/state" '
            'SLURM_CONF="$SLURM_CONF" HPCSTACK_SITE="$top/site.yaml" GITHUB_STEP_SUMMARY="$top/summary.md" "$@"',
            str(site.folder), shell, "-c", script, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    history = json.loads(site.run("history", "demo", "--json").stdout)["events"]
    assert [one["verb"] for one in history] == ["publish", "promote"]
    commit = site.testbed.bash('git -C "$1/work" rev-parse HEAD', str(site.folder)).stdout.strip()
    assert commit[:12] in history[0]["reason"]
    page = {"cron": "releases.html", "gitlab": "work/sync.html", "github": "summary.md"}[which]
    shown = site.testbed.run("cat", f"{site.folder}/{page}", check=True).stdout
    assert "in production as 1-r2" in shown
