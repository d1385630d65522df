"""Projects of a user's own on top of NVIDIA's packages: uv inside the image, with real wheels."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import subprocess
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.launching import RUNTIMES, STACK
from support.testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.jobs("second"),
    pytest.mark.slurm,
    pytest.mark.apptainer,
]
TOP = "tests/projects"
# Each test has a data folder of its own, so that nothing is there already.
ENTER = f"export XDG_DATA_HOME=$HOME/{TOP}/$NAME/share XDG_STATE_HOME=$HOME/{TOP}/$NAME/state; cd {TOP}/$NAME/it\n"


class Project:
    """A folder with a project, on the testbed."""

    def __init__(self, testbed: Testbed, name: str) -> None:
        self.testbed = testbed
        self.name = name
        self.bash(f"rm -rf $HOME/{TOP}/{name}; mkdir -p $HOME/{TOP}/{name}/it", inside=False)

    def bash(self, script: str, *, inside: bool = True) -> subprocess.CompletedProcess[str]:
        enter = f"NAME={self.name}; {ENTER}" if inside else ""
        return self.testbed.bash(enter + script, check=False)

    def write(self, **files: str) -> None:
        for name, text in files.items():
            self.testbed.give(f"{TOP}/{self.name}/it/{name.replace('__', '.')}", text)

    def lock(self, *words: str) -> dict[str, Any]:
        done = self.bash(f"hpcstack project lock . -s {STACK} --json {' '.join(words)}")
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def refused(self) -> str:
        done = self.bash(f"hpcstack project lock . -s {STACK}")
        assert done.returncode == 2, done.stderr
        assert "  TIP: " in done.stderr
        return done.stderr

    def launch(self, *words: str, runtime: str = "apptainer") -> subprocess.CompletedProcess[str]:
        line = " ".join(words)
        return self.bash(
            f"hpcstack launch {STACK} --project . --mode plain --runtime {runtime} {line}"
        )


@pytest.fixture
def project(testbed: Testbed, built: dict[str, Any], request: pytest.FixtureRequest) -> Project:
    name = hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    return Project(testbed, name)


PYPROJECT = """\
[project]
name = "my-project"
version = "1.2"
requires-python = ">=3.10"
dependencies = ["rich>=13", "torch", "numpy", "my-extra-free; python_version < '3'"]
[project.optional-dependencies]
report = ["cowsay==6.1"]
[project.scripts]
my-train = "mine.train:main"
[project.entry-points."mine.plugins"]
one = "mine.train:main"
"""
TRAIN = """\
import hashlib, importlib.metadata, torch, rich
def main():
    torch_file = open(torch.__file__, "rb").read()
    found = importlib.metadata.entry_points(group="mine.plugins")
    print(torch.__version__, torch.__file__, hashlib.sha256(torch_file).hexdigest(), rich.__file__,
          __file__, len(found), importlib.metadata.version("my-project"), flush=True)
"""


def write_src_layout(project: Project) -> None:
    project.write(pyproject__toml=PYPROJECT)
    project.testbed.give(f"{TOP}/{project.name}/it/src/mine/__init__.py", "")
    project.testbed.give(f"{TOP}/{project.name}/it/src/mine/train.py", TRAIN)


def describe_torch(testbed: Testbed) -> str:
    program = "import torch,hashlib; print(torch.__version__, torch.__file__, hashlib.sha256(open(torch.__file__,'rb').read()).hexdigest())"
    return testbed.bash(
        f'cd {TOP} && hpcstack launch {STACK} --runtime local -- python3 -c "{program}"'
    ).stdout.strip()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_project_runs_under_every_runtime(
    testbed: Testbed, built: dict[str, Any], runtime: str
) -> None:
    """Own modules from where they are, the packages from the squashfs, torch from the image."""
    project = Project(testbed, f"runs-{runtime}")
    write_src_layout(project)
    done = project.launch("-N2", "--", "my-train", runtime=runtime)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    torch = describe_torch(testbed)
    for line in lines:
        *of_torch, rich, mine, entry_points, version = line.split()
        assert " ".join(of_torch) == torch
        assert rich.startswith("/opt/hpcstack/with/")
        assert mine.endswith(f"{project.name}/it/src/mine/train.py")
        assert (entry_points, version) == ("1", "1.2")
    by_module = project.launch("--", "python3", "-m", "mine.train", runtime=runtime)
    assert by_module.returncode == 0, by_module.stderr
    listed = project.launch("--", "python3", "-m", "pip", "list", runtime=runtime).stdout
    assert built["pip"]["torch"] in listed
    assert "rich" in listed
    assert "my-project" in listed


FORTY = """\
[project]
name = "forty"
version = "0"
requires-python = "==3.11.*"
dependencies = ["httpx[http2]", "pandas", "jsonschema", "typer", "fastapi", "sqlalchemy", "pytest", "tomlkit", "arrow",
  "tabulate", "tenacity", "aiohttp", "beautifulsoup4", "lxml", "loguru", "click", "torch>=2.5", "networkx"]
[tool.uv]
environments = ["sys_platform == 'linux'"]
"""


def test_a_uv_project_of_forty_packages_keeps_the_versions_of_its_lock(project: Project) -> None:
    project.write(pyproject__toml=FORTY)
    # torch is the image's: uv is not to lock 3 GB of another one's dependencies
    locked = project.bash(
        "sed -i 's/\"torch>=2.5\", //' pyproject.toml; SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt $(dirname $(command -v hpcstack))/uv lock -q; "
        'sed -i \'s/"click", /"click", "torch>=2.5", /\' pyproject.toml; grep -c \'^name = \' uv.lock'
    )
    assert int(locked.stdout) > 40, locked.stderr
    chosen = project.lock()
    assert len(chosen["packages"]) >= 30
    assert "torch" in chosen["of_the_image"]
    lines = project.bash("grep -A1 '^name = ' uv.lock").stdout.replace("\nversion", "").splitlines()
    pinned = {tuple(line.split('"')[1::2]) for line in lines if line.count('"') == 4}
    # pandas of the lock wants another numpy than the image has
    (locked_pandas,) = [version for name, version in pinned if name == "pandas"]
    assert chosen["instead"]["pandas"].endswith(f"instead of {locked_pandas}")
    changed = {name for name in chosen["instead"] if name not in chosen["of_the_image"]}
    assert len(changed) <= 3
    assert {pair for pair in chosen["packages"].items() if pair[0] not in changed} <= pinned

    done = project.launch(
        "--", "python3", "-c", "'import pandas, aiohttp, lxml.etree, torch; print(pandas.__file__)'"
    )
    assert done.stdout.startswith("/opt/hpcstack/with/"), done.stderr

    tampered = project.bash(
        "sed -i '/^name = \"loguru\"/,/^$/s/sha256:..../sha256:0000/' uv.lock; "
        f"hpcstack project lock . -s {STACK}"
    )
    assert tampered.returncode == 2
    assert "uv.lock allows no file that the index has of loguru" in tampered.stderr


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("requirements.txt", "torch==2.7.0\n", ("torch==2.7.0 is wanted, and the image has 2.6.0a0",)),
        ("requirements.txt", "numpy>=2\nrich\n", ("numpy>=2 is wanted", "write numpy>=")),
        ("requirements.txt", "xformers==0.0.29\n", ("xformers==0.0.29 depends on torch==2.5.1", "the image has torch 2.6")),
        ("environment.yml", "dependencies: [python=3.11, cudatoolkit=11.8, rich]\n", ("only conda has cudatoolkit=11.8",)),
        ("requirements.txt", "rich==9999\n", ("rich==9999",)),
        ("nothing.txt", "", ("has none of pylock.toml",)),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    project: Project, name: str, text: str, says: tuple[str, ...]
) -> None:
    project.write(**{name.replace(".", "__"): text})
    said = project.refused()
    for one in says:
        assert one in said


def test_conda_names_and_pip_lines_that_pypi_has_are_taken(project: Project) -> None:
    project.write(
        environment__yml="dependencies:\n- python=3.11\n- pytorch\n- conda-forge::iniconfig=2\n- pip: ['rich>=13']\n"
    )
    locked = project.lock()
    assert locked["packages"]["iniconfig"].startswith("2.")
    assert "rich" in locked["packages"]
    assert "torch" in locked["of_the_image"]


def test_extras_are_kept_by_the_lock(project: Project) -> None:
    write_src_layout(project)
    assert "cowsay" not in project.lock()["packages"]
    assert project.lock("--extra", "report")["packages"]["cowsay"] == "6.1"
    done = project.launch("--", "python3", "-c", "'import cowsay; print(cowsay.__file__)'")
    assert done.stdout.startswith("/opt/hpcstack/with/"), done.stderr
    assert project.bash(f"hpcstack project lock . -s {STACK} --check").returncode == 0
    project.bash("sed -i s/6.1/6.0/ pyproject.toml")
    assert project.bash(f"hpcstack project lock . -s {STACK} --check").returncode == 1


def make_wheel(name: str, version: str, tag: str, text: str = "") -> bytes:
    """A wheel of one module."""
    made = io.BytesIO()
    stem = f"{name}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": text,
        f"{stem}/METADATA": about,
        f"{stem}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    rows = []
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode()
        rows.append(f"{path},sha256={digest.rstrip('=')},{len(content)}")
    files[f"{stem}/RECORD"] = "\n".join([*rows, f"{stem}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(made, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return made.getvalue()


def make_sdist(name: str, version: str) -> bytes:
    """A source distribution that is built by setuptools."""
    made = io.BytesIO()
    files = {
        "pyproject.toml": f'[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n[project]\nname = "{name}"\nversion = "{version}"\n[tool.setuptools]\npy-modules = ["{name}"]\n',
        f"{name}.py": "here = __file__\n",
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
    }
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for path, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{path}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


LOGIN = ("ann", "s3cret-of-ann")
FILES = {
    "mine_private": [("mine_private-1.0-py3-none-any.whl", make_wheel("mine_private", "1.0", "py3-none-any"))],
    "of_the_future": [("of_the_future-1.0-py3-none-manylinux_2_99_x86_64.whl", make_wheel("of_the_future", "1.0", "py3-none-manylinux_2_99_x86_64"))],
    "from_source": [("from_source-1.0.tar.gz", make_sdist("from_source", "1.0"))],
}  # fmt: skip


class Index(http.server.BaseHTTPRequestHandler):
    """A package index that wants a login; what it does not have, PyPI may."""

    def do_GET(self) -> None:
        wanted = "Basic " + base64.b64encode(":".join(LOGIN).encode()).decode()
        if self.headers.get("Authorization") != wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()
            return
        kind, _, rest = self.path.strip("/").partition("/")
        files = {name: content for one in FILES.values() for name, content in one}
        project = FILES.get(rest.replace("-", "_"))
        body = b""
        if kind == "simple" and project:
            rows = [
                f'<a href="/files/{name}#sha256={hashlib.sha256(content).hexdigest()}">{name}</a>'
                for name, content in project
            ]
            body = f"<html><body>{''.join(rows)}</body></html>".encode()
        elif kind == "files" and rest in files:
            body = files[rest]
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "text/html" if kind == "simple" else "application/zip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def index() -> Iterator[str]:
    """The URL of the index, without the login."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


def test_a_private_index_with_a_login_from_netrc(project: Project, index: str) -> None:
    """The login is in no lock, no argv and no log. What else is needed comes from PyPI."""
    project.write(requirements__txt="mine-private\ncowsay\n")
    machine, _, port = index.partition(":")
    project.bash(
        f"umask 077; echo 'machine {machine} login {LOGIN[0]} password {LOGIN[1]}' >../netrc"
    )
    where = f"NETRC=$HOME/{TOP}/{project.name}/netrc UV_INDEX=http://{index}/simple"
    done = project.bash(
        f"{where} hpcstack launch {STACK} --project . --mode plain --runtime apptainer -- "
        "python3 -c 'import mine_private, cowsay; print(mine_private.__file__)'"
    )
    assert done.stdout.startswith("/opt/hpcstack/with/"), done.stderr
    found = project.bash(f"grep -rl {LOGIN[1]} . ../share ../state")
    assert found.stdout == ""
    assert port in project.bash("cat pylock.*.toml").stdout


def test_a_private_index_with_a_login_in_the_users_own_file(project: Project, index: str) -> None:
    """pip.conf, as people have it; what is only there as source is built inside the image."""
    project.write(requirements__txt="from-source\n")
    url = f"http://{':'.join(LOGIN)}@{index}/simple"
    done = project.bash(
        f"umask 077; printf '[global]\\nextra-index-url = {url}\\n' >../pip.conf; "
        f"PIP_CONFIG_FILE=$HOME/{TOP}/{project.name}/pip.conf hpcstack launch {STACK} --project . "
        "--mode plain --runtime apptainer -- python3 -c 'import from_source; print(from_source.here)'"
    )
    assert done.stdout.startswith("/opt/hpcstack/with/"), done.stderr
    assert LOGIN[1] not in done.stderr
    assert project.bash(f"grep -rl {LOGIN[1]} . ../share ../state").stdout == ""


def test_a_wheel_for_another_glibc_is_refused(project: Project, index: str) -> None:
    project.write(requirements__txt="of-the-future\n")
    url = f"http://{':'.join(LOGIN)}@{index}/simple"
    done = project.bash(f"UV_INDEX={url} hpcstack project lock . -s {STACK}")
    assert done.returncode == 2, done.stderr
    assert "manylinux_2_99" in done.stderr or "platform" in done.stderr
    assert LOGIN[1] not in done.stderr


def test_without_a_network_the_cache_is_enough(project: Project) -> None:
    project.write(requirements__txt="cowsay==6.1\nrich\n")
    before = project.lock()
    done = project.bash(
        "rm -rf ../share pylock.*; export HTTPS_PROXY=http://127.0.0.1:9 HTTP_PROXY=http://127.0.0.1:9; "
        f"hpcstack launch {STACK} --project . --mode plain --runtime apptainer -- "
        "python3 -c 'import cowsay; print(cowsay.__file__)'"
    )
    if "not answer" not in done.stderr:  # what was only locked has not been downloaded
        assert done.returncode != 0
        project.launch("--", "true")
        done = project.bash(
            "rm -rf ../share pylock.*; export HTTPS_PROXY=http://127.0.0.1:9; "
            f"hpcstack launch {STACK} --project . --mode plain --runtime apptainer -- "
            "python3 -c 'import cowsay; print(cowsay.__file__)'"
        )
    assert done.stdout.startswith("/opt/hpcstack/with/"), done.stderr
    assert "the package index does not answer" in done.stderr
    assert project.lock()["packages"] == before["packages"]


def test_alike_projects_share_one_file(project: Project) -> None:
    project.write(requirements__txt="cowsay==6.1\n")
    assert project.launch("--", "true").returncode == 0
    again = project.bash(
        "mkdir ../other && cp requirements.txt ../other && cd ../other && "
        f"hpcstack launch {STACK} --project . --mode plain --runtime apptainer -- true; "
        "ls $XDG_DATA_HOME/hpcstack/projects/*.sqsh | wc -l"
    )
    assert again.stdout.strip() == "1", again.stderr
    assert "installing" not in again.stderr
    with_package = project.bash(
        f"hpcstack launch {STACK} --with cowsay==6.1 --mode plain --runtime apptainer -- "
        "python3 -c 'import cowsay'; ls $XDG_DATA_HOME/hpcstack/projects/*.sqsh | wc -l"
    )
    assert with_package.stdout.strip() == "1", with_package.stderr


def test_one_more_dependency_costs_one_installation(project: Project) -> None:
    """researcher 8, and `project list` and `clear`, which show and remove what is kept."""
    project.write(requirements__txt="cowsay==6.1\n")
    assert project.launch("--", "true").returncode == 0
    project.write(requirements__txt="cowsay==6.1\niniconfig==2.0.0\n")
    done = project.launch(
        "--", "python3", "-c", "'import cowsay, iniconfig; print(iniconfig.__file__)'"
    )
    assert done.stdout.startswith("/opt/hpcstack/with/"), done.stderr
    assert "packed already: 1 of 2 packages" in done.stderr
    assert "installing 1 package" in done.stderr
    assert "compared with the lock before: + iniconfig 2.0.0" in done.stderr

    apart = "export UV_CACHE_DIR=$PWD/uv; "  # the cache of other tests is no affair of this one
    listed = project.bash(f"{apart}hpcstack project list --json")
    kept = json.loads(listed.stdout)
    packed = [one for one in kept if one["kind"] == "packed"]
    assert [len(one["wanted"]) for one in packed] == [1, 1]
    shown = project.bash(f"{apart}hpcstack project clear --dry-run")
    assert shown.stdout.count(": kept, ") == len(kept), shown.stdout
    cleared = project.bash(
        f"{apart}touch -d -1day $XDG_DATA_HOME/hpcstack/projects/*.sqsh; hpcstack project clear --json; "
        "ls $XDG_DATA_HOME/hpcstack/projects/*.sqsh $XDG_DATA_HOME/hpcstack/projects/*.json 2>/dev/null"
    )
    removed = [one["kind"] for one in json.loads(cleared.stdout)["removed"]]
    assert removed.count("packed") == 2, cleared.stderr
    again = project.launch("--", "python3", "-c", "'import iniconfig'")
    assert again.returncode == 0, again.stderr


def test_a_second_package_of_ones_own_is_live(project: Project) -> None:
    """researcher 9: `-e ../core` was refused, and PYTHONPATH came after the project's packages."""
    core = f"{TOP}/{project.name}/core"
    project.testbed.give(
        f"{core}/pyproject.toml",
        '[project]\nname = "core"\nversion = "3"\ndependencies = ["cowsay==6.1"]\n',
    )
    project.testbed.give(f"{core}/src/core/__init__.py", "WORD = 'one'\n")
    project.testbed.give(f"{TOP}/{project.name}/first/cowsay.py", "WORD = 'mine'\n")
    project.write(requirements__txt="-e ../core\n")
    program = "import core, cowsay, importlib.metadata as m; print(core.WORD, cowsay.__file__, m.version('core'))"
    done = project.launch("--", "python3", "-c", f'"{program}"')
    word, place, version = done.stdout.split()
    assert (word, version) == ("one", "3"), done.stderr
    assert place.startswith("/opt/hpcstack/with/")

    project.testbed.give(f"{core}/src/core/__init__.py", "WORD = 'two'\n")
    again = project.bash(
        "export PYTHONPATH=$PWD/../first; "
        f"hpcstack launch {STACK} --project . --mode plain --runtime apptainer "
        f'--mount $PYTHONPATH:$PYTHONPATH -- python3 -c "{program}"'
    )
    assert again.stdout.split()[0] == "two", again.stderr
    assert again.stdout.split()[1].endswith("/first/cowsay.py")
    assert "installing" not in again.stderr


@pytest.mark.parametrize("stage", ["choosing", "installing", "packing"])
@pytest.mark.soak("the last of three stages", but=lambda stage: stage == "packing")
def test_a_build_that_is_killed_leaves_nothing_half_made(project: Project, stage: str) -> None:
    project.write(requirements__txt="cowsay==6.1\nrich\n")
    killed = project.bash(
        f"hpcstack project build . -s {STACK} 2>../log & pid=$!; "
        f"until grep -q {stage} ../log; do kill -0 $pid || break; sleep 0.01; done; "
        "kill -KILL $pid; wait $pid; "
        'for file in "$XDG_DATA_HOME"/hpcstack/projects/*.sqsh; do '
        '[ ! -e "$file" ] || unsquashfs -lln "$file" >/dev/null || echo "$file is torn"; done'
    )
    assert killed.stdout == "", killed.stderr
    done = project.launch("--", "python3", "-c", "'import cowsay, rich'")
    assert done.returncode == 0, done.stderr
    left = project.bash(
        "ls -d /tmp/.hpcstack-project-* 2>/dev/null; find $XDG_DATA_HOME/hpcstack/projects -name '.*'"
    )
    assert left.stdout == ""


def test_the_second_launch_finds_it_at_once(project: Project) -> None:
    """Nothing is asked, read or made again: ci/bench/project has the seconds."""
    project.write(requirements__txt="cowsay==6.1\n")
    project.launch("--", "true")
    began = time.monotonic()
    done = project.launch("--dry-run", "--json", "--", "true")
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert took < 10
    argv = json.loads(done.stdout)["argv"]
    (bind,) = [word for word in argv if word.endswith(":/opt/hpcstack/with:image-src=/,ro")]
    assert Path(bind.partition(":")[0]).exists()


# -- a project in a recipe

RECIPE = """\
apiVersion: hpcstack/v1
name: mine
version: "1"
summary: The packages of a project, in an image
base: {image: "nvcr.io/nvidia/pytorch:24.11-py3"}
packages: {project: it}
launch: {mode: plain}
"""
UV_PROJECT = """\
[project]
name = "mine"
version = "0"
dependencies = ["torch", "rich>=13", "cowsay"]
"""


def lock_by_uv(project: Project) -> None:
    """A uv.lock as the user's own uv writes it, for the project and PyPI's own torch."""
    done = project.bash(
        "export SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt; "
        "$(dirname $(command -v hpcstack))/uv lock -q && grep -c nvidia uv.lock"
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0  # it pins what PyPI's torch needs, too


def run_recipe(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    project.testbed.give(f"{TOP}/{project.name}/mine-1.yaml", RECIPE)
    return project.bash(f"hpcstack --recipes .. {' '.join(words)}")


@pytest.mark.builds
@pytest.mark.registry
def test_a_recipe_installs_what_a_project_asks_for(project: Project) -> None:
    project.write(pyproject__toml=UV_PROJECT)
    lock_by_uv(project)
    pinned = project.bash("sed -n '/^name = \"rich\"/{n;p}' uv.lock").stdout.split('"')[1]
    locked = run_recipe(project, "lock", "mine-1")
    assert locked.returncode == 0, locked.stderr
    lock = json.loads(project.bash("cat ../mine-1.lock.json").stdout)
    chosen = {
        one["name"]: one["version"] for one in lock["base"]["platforms"]["linux/amd64"]["pip"]
    }
    assert chosen["rich"] == pinned
    assert "cowsay" in chosen
    assert not {"torch", "triton", "numpy"} & set(chosen)
    assert not any(name.startswith("nvidia-") for name in chosen)
    assert lock["project_sha256"].startswith("sha256:")
    assert run_recipe(project, "lock", "mine-1", "--check").returncode == 0

    built = run_recipe(project, "build", "mine-1")
    assert built.returncode == 0, built.stderr
    program = "import torch, rich, cowsay; print(torch.__version__, torch.__file__, rich.__file__)"
    said = run_recipe(
        project, "launch", "mine-1", "--runtime", "local", "--", "python3", "-c", f'"{program}"'
    )
    assert said.stdout.startswith("2.6.0a0"), said.stderr
    # With the code beside it, nothing is left to be added.
    again = run_recipe(project, "project", "lock", ".", "-s", "mine-1", "--json")
    assert json.loads(again.stdout)["packages"] == {}, again.stderr

    # Another hash in the project's lock, of the same version: the lock is stale, and then refused.
    project.bash(
        "python3 - <<'END'\n"
        "import re\n"
        "text = open('uv.lock').read()\n"
        "head, tail = text.split('name = \"cowsay\"', 1)\n"
        "one, rest = tail.split('[[package]]', 1)\n"
        "one = re.sub('sha256:[0-9a-f]{4}', 'sha256:0000', one)\n"
        "open('uv.lock', 'w').write(head + 'name = \"cowsay\"' + one + '[[package]]' + rest)\n"
        "END"
    )
    stale = run_recipe(project, "lock", "mine-1", "--check")
    assert stale.returncode == 1
    assert "the files of its project have changed" in stale.stdout + stale.stderr
    refused = run_recipe(project, "lock", "mine-1")
    assert refused.returncode == 2
    assert "cowsay" in refused.stderr
    assert "allows none of these files" in refused.stderr


@pytest.mark.builds
@pytest.mark.registry
def test_a_recipe_does_not_replace_torch(project: Project) -> None:
    project.write(requirements__txt="torch==2.7.0\nrich\n")
    refused = run_recipe(project, "lock", "mine-1")
    assert refused.returncode == 2
    assert "torch==2.7.0" in refused.stderr
    assert "  TIP: " in refused.stderr


def test_a_member_of_a_workspace_needs_its_sibling(project: Project) -> None:
    """The table of members is above both, in a folder that the image does not see."""
    top = f"{TOP}/{project.name}"
    for folder, needs in (("it", "sibling"), ("sibling", "cowsay==6.1")):
        project.testbed.give(
            f"{top}/{folder}/pyproject.toml",
            f'[project]\nname = "{folder}"\nversion = "3"\ndependencies = ["{needs}"]\n'
            "[tool.uv.sources]\nsibling = {workspace = true}\n",
        )
    project.testbed.give(f"{top}/sibling/src/sibling/__init__.py", "WORD = 'one'\n")
    project.testbed.give(
        f"{top}/pyproject.toml", '[tool.uv.workspace]\nmembers = ["it", "sibling"]\n'
    )
    program = "import sibling, cowsay; print(sibling.WORD, cowsay.__file__)"
    done = project.launch("--", "python3", "-c", f'"{program}"')
    assert done.stdout.startswith("one /opt/hpcstack/with/"), done.stderr
