"""Everything that a recipe may say, in one image: built by Apptainer, from a lock that was settled
inside the base.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.conda import channel
from support.recipes import Recipes
from support.testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.builds, pytest.mark.apptainer, pytest.mark.registry]

# What no quoting may lose: each goes through a definition file, a shell, a label or a modulefile.
NASTY = [
    "a b",
    "it's",
    'say "q"',
    "$HOME `id` $(id)",
    "{{ x }} }} {{{",
    "#! %post",
    "ü ☃ 🚀",
    "-n",
    "a;b|c&d",
    "\t",
]


# YAML that is JSON, with its characters as they are: YAML has no surrogate pairs.
text_of = functools.partial(json.dumps, ensure_ascii=False)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """(address, commit, address's folder) of a server with a git repository and a conda channel."""
    top = tmp_path_factory.mktemp("served")
    channel(top / "hpc")
    work = tmp_path_factory.mktemp("git")
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", **{f"GIT_{who}_{what}": "x@y.z" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}}  # fmt: skip

    def git(*argv: str) -> str:
        done = subprocess.run(
            ["git", *argv], cwd=work, env=env, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q", "-b", "main")
    (work / "tool").write_text("#!/bin/sh\necho tool one\n")
    git("add", "tool")
    git("commit", "-qm", "one")
    git("tag", "-a", "v1", "-m", "one")
    commit = git("rev-parse", "HEAD")
    (work / "tool").write_text("#!/bin/sh\necho tool two\n")
    git("commit", "-qam", "two")
    subprocess.run(["git", "clone", "-q", "--bare", str(work), str(top / "tool.git")], check=True)
    subprocess.run(["git", "-C", str(top / "tool.git"), "update-server-info"], check=True)
    http = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(top)))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}", commit, str(top)
    http.shutdown()
    http.server_close()


def recipe(values: list[str], commit_or_ref: str) -> dict[str, str]:
    environment = {f"NASTY{n}": value for n, value in enumerate(values)}
    environment_text = text_of(
        {**environment, "PATH": {"prepend": ["/opt/first", "/opt/second"]}, "NEW": {"append": "x"}}
    )
    return {
        "packages": text_of({
            "apt": ["git"], "pip": ["colorama==0.4.6"], "conda": {"channels": ["hpc"], "packages": ["hello<2"]},
            "source": [{"name": "tool", "git": "https://git.example.org/tool.git", "build": "install -D -m 755 tool /usr/local/bin/tool\n",
                        **({"ref": commit_or_ref} if len(commit_or_ref) < 40 else {"commit": commit_or_ref})}],
        }),
        "files": text_of([{"path": f"/etc/demo/{n} {{{{x}}}} 'q'", "content": value + "\n", "mode": "0664"} for n, value in enumerate(values)]),
        "run": text_of([
            {"name": "one {{x}}", "command": "for x in 1 2; do echo \"$x {{y}}\"; done >/etc/demo/one\n"},
            {"name": "two", "command": "cat /etc/demo/one /etc/demo/one >/etc/demo/two"},
        ]),
        "environment": environment_text,
        "labels": text_of({f"org.example.n{n}": value for n, value in enumerate(values) if "{{" not in value and value.strip()}),
        "entrypoint": text_of(["/bin/sh", "-c", "echo entry \"$@\"", "name it's"]),
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(
    testbed: Testbed, small_base: str, server: tuple[str, str, str]
) -> tuple[Recipes, dict[str, Any], dict[str, Any]]:
    """The recipes of this test, the lock and the artifact."""
    recipes = Recipes(testbed, small_base, "spec-in-image")
    address = server[0]
    ca = testbed.bash("grep -o 'ca_bundle: .*' \"$HPCSTACK_SITE\" || true").stdout.strip()
    recipes.site(recipes.render_site_text + f"build:\n  {ca}\n  conda: {{channel_alias: '{address}'}}\n"
                 f"  git: {{mirrors: {{'https://git.example.org/': '{address}/'}}}}\n")  # fmt: skip
    recipes.write("1", **recipe([value for value in NASTY if value != "\t"], "v1"))
    locked = recipes.run("lock", "demo-1", "--json")
    assert locked.returncode == 0, locked.stderr
    built = recipes.run("build", "--locked", "demo-1", "--json")
    assert built.returncode == 0, built.stderr
    return recipes, json.loads(locked.stdout), json.loads(built.stdout)


Made = tuple[Recipes, dict[str, Any], dict[str, Any]]


def inside(made: Made, *argv: str) -> str:
    return (
        made[0]
        .testbed.run(
            "apptainer",
            "--quiet",
            "exec",
            "--cleanenv",
            "--containall",
            made[2]["image"],
            *argv,
            check=True,
        )
        .stdout
    )


def test_the_lock_holds_every_set(made: Made, server: tuple[str, str, str]) -> None:
    lock = made[1]
    platform = lock["base"]["platforms"]["linux/amd64"]
    assert lock["unresolved"] == []
    assert lock["sources"] == {"tool": server[1]}  # the tag, peeled to its commit
    assert [entry["name"] for entry in platform["pip"]] == ["colorama"]
    assert platform["pip"][0]["hashes"][0].startswith("sha256:")
    assert {"git", "git-man"} <= {entry["name"] for entry in platform["apt"]}
    assert all(entry["hash"] for entry in platform["apt"])
    assert [(entry["name"], entry["version"]) for entry in platform["conda"]] == [
        ("hello", "1.0"),
        ("word", "2.1"),
    ]


def test_the_sites_mirrors_are_in_neither_lock_nor_image(
    made: Made, server: tuple[str, str, str]
) -> None:
    text = json.dumps(made[1])
    assert server[0] not in text
    assert "https://conda.anaconda.org/hpc/" in text
    script = "grep -rlE '127\\.0\\.0\\.1:[0-9]{4,5}' /opt /etc /.singularity.d 2>/dev/null || true"
    assert inside(made, "sh", "-c", script) == "", (
        "of whatever run: the image may be of an earlier one"
    )
    # rattler lets only its owner, root, read it
    said = inside(made, "cat", "/opt/conda/conda-meta/hello-1.0-0.json")
    mode = inside(made, "stat", "-c", "%a", "/opt/conda/conda-meta/hello-1.0-0.json")
    assert mode == "644\n"
    assert '"https://conda.anaconda.org/hpc' in said


def test_exactly_what_was_locked_is_in_the_image(made: Made) -> None:
    platform = made[1]["base"]["platforms"]["linux/amd64"]
    assert {entry["name"]: entry["version"] for entry in platform["pip"]}.items() <= made[2][
        "pip"
    ].items()
    assert {entry["name"]: entry["version"] for entry in platform["apt"]}.items() <= made[2][
        "apt"
    ].items()


def test_source_conda_and_scripts(made: Made) -> None:
    assert inside(made, "tool") == "tool one\n"
    assert inside(made, "hello") == "hello 1.0 from /opt/conda, word\n"
    assert inside(made, "cat", "/etc/demo/two") == "1 {{y}}\n2 {{y}}\n" * 2


def test_variables_files_and_paths_survive(made: Made) -> None:
    values = [value for value in NASTY if value != "\t"]
    script = "import json,os; print(json.dumps(dict(os.environ)))"
    environment = json.loads(inside(made, "python3", "-c", script))
    assert {f"NASTY{n}": environment.get(f"NASTY{n}") for n in range(len(values))} == {
        f"NASTY{n}": value for n, value in enumerate(values)
    }
    assert environment["PATH"].startswith("/opt/first:/opt/second:/opt/conda/bin:/usr/local/sbin:")
    assert environment["NEW"] == "x"
    for n, value in enumerate(values):
        assert inside(made, "cat", f"/etc/demo/{n} {{{{x}}}} 'q'") == value + "\n"
    assert inside(made, "stat", "-c", "%a", "/etc/demo/0 {{x}} 'q'") == "664\n"


def test_labels_survive(made: Made) -> None:
    said = (
        made[0]
        .testbed.run("apptainer", "inspect", "--json", "--labels", made[2]["image"], check=True)
        .stdout
    )
    labels = json.loads(said)["data"]["attributes"]["labels"]
    values = {
        f"org.example.n{n}": v
        for n, v in enumerate(v for v in NASTY if v != "\t")
        if "{{" not in v and v.strip()
    }
    assert {name: labels.get(name) for name in values} == values


def test_the_entrypoint_is_the_recipes(made: Made) -> None:
    done = made[0].testbed.run(
        "apptainer", "--quiet", "run", "--cleanenv", made[2]["image"], "a b", check=True
    )
    assert done.stdout == "entry a b\n"


@pytest.mark.enroot
@pytest.mark.pyxis
def test_enroot_and_pyxis_see_the_same(made: Made) -> None:
    values = [value for value in NASTY if value != "\t"]
    script = "import json,os; print(json.dumps(dict(os.environ)))"
    done = made[0].testbed.bash(
        'NVIDIA_VISIBLE_DEVICES=void srun --container-image="$1" --container-env=NVIDIA_VISIBLE_DEVICES python3 -c "$2"',
        made[2]["image"], script,
    )  # fmt: skip
    environment = json.loads(done.stdout)
    assert [environment.get(f"NASTY{n}") for n in range(len(values))] == values
    assert environment["PATH"].startswith("/opt/first:/opt/second:/opt/conda/bin:")


def test_check_says_what_is_stale(made: Made) -> None:
    recipes = made[0]
    assert recipes.run("lock", "demo-1", "--check").returncode == 0
    parts = recipe(["changed"], "v1")
    recipes.write("1", **parts)
    done = recipes.run("lock", "demo-1", "--check")
    assert done.returncode == 1
    assert "the recipe has changed since it was locked" in done.stderr
    assert "hpcstack lock demo-1" in done.stderr
    refused = recipes.run("build", "--locked", "demo-1")
    assert refused.returncode == 2
    assert "the recipe has changed since it was locked" in refused.stderr


def test_base_only_says_what_it_leaves_open_and_locked_refuses_it(recipes: Recipes) -> None:
    name = recipes.write("1", packages="{apt: [hello], pip: [colorama]}")
    done = recipes.run("lock", name, "--base-only", "--json")
    assert json.loads(done.stdout)["unresolved"] == ["apt of linux/amd64", "pip of linux/amd64"]
    refused = recipes.run("build", "--locked", name)
    assert refused.returncode == 2
    assert "it leaves open: apt of linux/amd64, pip of linux/amd64" in refused.stderr
    assert "leaves open" in recipes.run("lock", name, "--check").stdout


def test_a_source_distribution_sees_nothing_of_the_user(
    recipes: Recipes, small_base: str, tmp_path: Path
) -> None:
    """pip has to run setup.py to learn what a source distribution needs: it runs in a container of
    its own.
    """
    recipes.base = small_base
    testbed = recipes.testbed
    home = str(testbed.home)
    setup = (
        "import os, setuptools\n"
        f"seen = [p for p in ({home!r}, '/root/.docker', '/home') if os.path.isdir(p) and "
        f"os.listdir(p)]\n"
        "leak = [k for k in os.environ if k.startswith('SECRET')]\n"
        "if seen or leak: raise SystemExit(f'LEAK {seen} {leak}')\n"
        "setuptools.setup(name='made-by-hand', version='1.0')\n"
    )
    package = tmp_path / "made-by-hand-1.0"
    package.mkdir()
    (package / "setup.py").write_text(setup)
    (package / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: made-by-hand\nVersion: 1.0\n")
    folder = tmp_path / "simple/made-by-hand"
    folder.mkdir(parents=True)
    archive = "made-by-hand-1.0.tar.gz"
    subprocess.run(
        ["tar", "-czf", str(folder / archive), "-C", str(tmp_path), package.name], check=True
    )
    (folder / "index.html").write_text(f'<a href="{archive}">{archive}</a>')
    http = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path)))
    threading.Thread(target=http.serve_forever, daemon=True).start()
    ca = testbed.bash("grep -o 'ca_bundle: .*' \"$HPCSTACK_SITE\" || true").stdout.strip()
    recipes.site(recipes.render_site_text + f"build:\n  {ca}\n  pip:\n    extra_index_urls: ['http://127.0.0.1:{http.server_port}/simple']\n"
                 "    trusted_hosts: ['127.0.0.1']\n")  # fmt: skip
    done = recipes.run(
        "lock",
        recipes.write("1", packages="{pip: [made-by-hand]}"),
        "--json",
        SECRET_TOKEN="s3cret",
    )
    http.shutdown()
    http.server_close()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["base"]["platforms"]["linux/amd64"]["pip"][0]["file"] == archive
