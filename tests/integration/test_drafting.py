"""A Dockerfile becomes a recipe: what hpcstack builds of it is what Docker builds of it."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from support.recipes import Recipes
from support.testbed import Testbed
from support.trees import trust_archive

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.builds,
    pytest.mark.registry,
    pytest.mark.squashfs,
    pytest.mark.docker,
]
# Each line leaves something in /result that would be another with other rules: of quotes, of echo,
# of pipes, of variables that come later, of folders.
DOCKERFILE = r"""
ARG BASE
FROM ${BASE} AS first
ARG WHO=me
ARG NOBODY
ENV GREETING="a  b" PATH=/opt/x/bin:$PATH OLD=${NOBODY:-$WHO}
ENV LIST=/a${LIST:+:$LIST}
WORKDIR /srv/app
WORKDIR sub
COPY tool.sh /opt/x/bin/tool
COPY conf ./
COPY conf/*.conf /result/
RUN mkdir -p /result && echo "one\ttwo $GREETING" > /result/echo && \
    # a comment between
    printf '%s\n' "$WHO" "${NOBODY}." "$NOT_SET." "$PWD" "$LIST" "$LATER." > /result/printf
FROM first
ENV LATER=now GREETING="c \$d"
RUN false | true; tool > /result/tool
RUN ["sh", "-c", "echo $GREETING $LATER > /result/list"]
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN echo 'a\tb' | cat > /result/bash; [[ $LATER == now ]] && echo {1..3} >> /result/bash
WORKDIR /
RUN ls -A /srv/app/sub > /result/ls; stat -c '%a %n' /opt/x/bin/tool /srv/app/sub/a.conf > /result/modes
"""
SHOWN = ("GREETING", "LATER", "LIST", "OLD", "PATH")


@pytest.fixture
def recipes(testbed: Testbed, small_base: str) -> Recipes:
    return Recipes(testbed, small_base, "drafting")


@pytest.fixture
def context(testbed: Testbed, recipes: Recipes) -> Path:
    """The folder of DOCKERFILE, which is the user's."""
    folder = recipes.folder / "context"
    files = {
        "Dockerfile": DOCKERFILE,
        "tool.sh": "#!/bin/sh\necho tool $GREETING\n",
        "conf/a.conf": "a\n",
        "conf/below/b.conf": "b\n",
    }
    for name, text in files.items():
        testbed.give(str((folder / name).relative_to(testbed.home)), text)
    testbed.bash('chmod 755 "$1"', str(folder / "tool.sh"))
    return folder


def build_with_docker(
    testbed: Testbed, context: Path, base: Path, scratch: Path
) -> tuple[dict[str, str], dict[str, str]]:
    """What Docker's own builder makes: the files of /result, and the variables."""
    socket = testbed.folder / "run/docker.sock"
    docker = ("docker", "--host", f"unix://{socket}")
    tag = f"hpcstack-tests/drafting-{os.getpid()}"

    def run(*words: str, given: bytes = b"") -> bytes:
        done = subprocess.run([*docker, *words], input=given, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    unpacked = scratch / "base"
    subprocess.run(["unsquashfs", "-q", "-n", "-d", unpacked, base], check=True)
    packed = subprocess.run(["tar", "-C", unpacked, "-c", "."], check=True, capture_output=True)
    run("import", "-", f"{tag}:base", given=packed.stdout)
    run("build", "--build-arg", f"BASE={tag}:base", "-t", f"{tag}:made", str(context))
    try:
        container = run("create", f"{tag}:made", "true").decode().strip()
        files = {}
        with tarfile.open(fileobj=BytesIO(run("cp", f"{container}:/result", "-"))) as archive:
            trust_archive(archive)
            for member in archive:
                content = archive.extractfile(member)
                if content:
                    files[member.name.removeprefix("result/")] = content.read().decode()
        run("rm", container)
        [about] = json.loads(run("image", "inspect", f"{tag}:made"))
        return files, dict(pair.split("=", 1) for pair in about["Config"]["Env"])
    finally:
        run("rmi", "--force", f"{tag}:made", f"{tag}:base")


def test_what_is_built_of_a_dockerfile_is_what_docker_builds(
    testbed: Testbed, recipes: Recipes, small_base: str, context: Path, tmp_path: Path
) -> None:
    drafted = recipes.run(
        "draft",
        str(context / "Dockerfile"),
        "--as",
        "drafted/1",
        "--build-arg",
        f"BASE={small_base}",
        "--recipes-to",
        str(recipes.folder / "recipes"),
        "--json",
    )
    assert drafted.returncode == 0, drafted.stdout + drafted.stderr
    document = json.loads(drafted.stdout)
    assert document["left_out"] == [], drafted.stdout
    locked = recipes.run("lock", "drafted-1")
    assert locked.returncode == 0, locked.stderr
    built = recipes.run("build", "drafted-1", "--engine", "builtin", "--json")
    assert built.returncode == 0, built.stderr
    artifact: dict[str, Any] = json.loads(built.stdout)

    base = recipes.folder / "base.sqsh"
    testbed.hpcstack("import", small_base, "-o", str(base))
    files, variables = build_with_docker(testbed, context, base, tmp_path)
    ours = tmp_path / "ours"
    subprocess.run(["unsquashfs", "-q", "-n", "-d", ours, artifact["image"], "result"], check=True)
    assert {
        str(path.relative_to(ours / "result")): path.read_text()
        for path in (ours / "result").rglob("*")
        if path.is_file()
    } == files
    assert {name: artifact["environment"].get(name) for name in SHOWN} == {
        name: variables.get(name) for name in SHOWN
    }
