"""What a recipe says of lists of packages, EDFs and devcontainers; and the recipe that is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcstack.cli import main
from hpcstack.core.errors import InputError
from hpcstack.draft.draft import DraftRequest, draft_recipe
from hpcstack.draft.recipe_draft import RecipeDraft
from hpcstack.recipe.catalog import Catalog

AMD64 = "linux/amd64"


def draft(path: Path, text: str, stack: str = "") -> RecipeDraft:
    path.write_text(text)
    return draft_recipe(DraftRequest(path, AMD64, stack))


def left_out(found: RecipeDraft) -> list[int]:
    return [one.place.line for one in found.left_out]


def test_a_list_of_pips(tmp_path: Path) -> None:
    text = (
        "--extra-index-url https://example.org/simple\neinops==0.8.0 ; python_version > '3.8'\n"
        "-c constraints.txt\n./mine\ngit+https://example.org/a\nsix --hash=sha256:"
        + "0" * 64
        + "\n"
    )
    (tmp_path / "constraints.txt").write_text("numpy<2\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/setup.py").write_text("")
    found = draft(tmp_path / "requirements.txt", text, "pytorch-24.11")
    assert found.pip == ["einops==0.8.0 ; python_version > '3.8'", "six"]
    assert found.constraints == ["numpy<2"]
    assert left_out(found) == [1, 4, 5]
    assert [one.place.line for one in found.notes] == [6]
    assert found.extends == "pytorch-24.11"


def test_an_environment_of_condas(tmp_path: Path) -> None:
    text = "name: x\ndependencies:\n  - python=3.11\n  - numpy=1.26\n  - cudatoolkit\n  - pip:\n    - einops\n"
    found = draft(tmp_path / "environment.yml", text, "pytorch-24.11")
    assert found.pip == ["numpy==1.26.*", "einops"]
    assert left_out(found) == [5]
    assert "conda" in found.left_out[0].instead
    assert [one.place.line for one in found.notes] == [3]


def test_an_edf(tmp_path: Path) -> None:
    text = (
        'image = "nvcr.io#nvidia/pytorch:24.11-py3"\n'
        'mounts = ["/data:/data", "/a:/b:ro", "${SCRATCH}:/scratch", "/c", "/d.sqsh:/d:sqsh"]\n'
        'workdir = "/w"\nentrypoint = false\nwritable = true\n'
        '[env]\nA = "1"\nB = "${HOME}/x"\n'
        '[annotations]\ncom.hooks.cxi.enabled = "true"\n'
    )
    found = draft(tmp_path / "x.toml", text)
    assert found.image == "nvcr.io/nvidia/pytorch:24.11-py3"
    assert found.mounts == ["/data:/data", "/c:/c"]
    assert found.environment == {"A": "1"}
    assert left_out(found) == [2, 2, 2, 3, 5, 8, 9]


def test_an_edf_of_a_file_is_adopted_instead(tmp_path: Path) -> None:
    text = 'image = "/images/x.sqsh"\n'
    with pytest.raises(InputError, match="names no base to start from: nothing says how a file"):
        draft(tmp_path / "x.toml", text)
    assert left_out(draft(tmp_path / "x.toml", text, "pytorch-24.11")) == [1]


def test_a_devcontainer(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("ARG TAG\nFROM ubuntu:$TAG\nRUN make\n")
    text = """{
  // what the editor shows
  "name": "x",
  "build": {"dockerfile": "Dockerfile", "args": {"TAG": "24.04"}},
  "features": {"ghcr.io/devcontainers/features/node:1": {}},
  "containerEnv": {"A": "1", "B": "${localEnv:HOME}"},
  "mounts": ["source=/data,target=/data,type=bind", "source=v,target=/v,type=volume"],
  "postCreateCommand": "pip install -e .",
  "remoteUser": "me",
  "unheard": 1, /* and */
}
"""
    found = draft(tmp_path / "devcontainer.json", text)
    assert found.image == "docker.io/library/ubuntu:24.04"
    assert [one["name"] for one in found.run] == ["make (Dockerfile:3)"]
    assert (found.environment, found.mounts) == ({"A": "1"}, ["/data:/data"])
    assert left_out(found) == [5, 6, 7, 8, 9, 10]
    image = draft(tmp_path / "devcontainer.json", '{"image": "ubuntu:24.04"}')
    assert image.image == "docker.io/library/ubuntu:24.04"


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("devcontainer.json", "{", "cannot be read"),
        ("devcontainer.json", "[]", "is no devcontainer.json"),
        ("x.toml", "image =", "x.toml: "),
        ("requirements.txt", "a\n", "names no base to start from"),
        ("x.unknown", "", "is of no kind that is read"),
        ("pixi.toml", "", "is of a project, and a recipe reads it itself"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        draft(tmp_path / name, text)


def test_a_folder_or_nothing_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "gone"):
        with pytest.raises(InputError, match=r"is a folder|does not exist"):
            draft_recipe(DraftRequest(path, AMD64))


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """A verb is typed on a machine of a known kind: its status, and what it prints."""
    monkeypatch.setattr("hpcstack.build.base.find_host_platform", lambda: AMD64)

    def type_words(*words: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out + printed.err

    return type_words


RECIPE = """\
# Written by hpcstack draft of Dockerfile.
# LEFT OUT Dockerfile:6: USER me: steps run as root of the image, and containers as whoever starts them
apiVersion: hpcstack/v1
name: mine
version: '1.0'
summary: Made of Dockerfile
base:
  image: nvcr.io/nvidia/pytorch:24.11-py3
  platforms:
  - linux/amd64
packages:
  pip:
  - einops
run:
- name: make && make install (Dockerfile:4)
  command: |
    export A='a b'
    # what the file itself runs:
    make && \\
        make install
environment:
  A: a b
"""


def test_the_recipe_is_whole_and_one_that_lint_takes(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(
        "FROM nvcr.io/nvidia/pytorch:24.11-py3\nRUN pip install einops\nENV A='a b'\n"
        "RUN make && \\\n  make install\nUSER me\n"
    )
    words = ("draft", str(file), "--as", "mine/1.0", "--recipes-to", str(tmp_path))
    status, said = run(*words)
    assert status == 1
    assert "LEFT OUT     Dockerfile:6: USER me" in said
    path = tmp_path / "mine-1.0.yaml"
    assert path.read_text() == RECIPE
    assert Catalog([tmp_path]).find("mine-1.0").stack.packages.pip == ("einops",)

    document = json.loads(run(*words, "--json")[1])  # again: the same recipe
    assert (document["understood"], document["left_out"][0]["line"]) == (4, 6)
    file.write_text("FROM ubuntu:24.04\n")
    status, said = run(*words)
    assert (status, "is another recipe" in said) == (2, True)
    assert path.read_text() == RECIPE
    status, said = run(*words[:-1], "-")
    assert (status, said.splitlines()[0]) == (0, "# Written by hpcstack draft of Dockerfile.")


def test_a_stack_instead_of_the_base(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM ubuntu\nRUN pip install einops\n")
    to = ("--recipes-to", str(tmp_path))
    assert run("draft", str(file), "--as", "a/1", "--on", "pytorch-24.11", *to)[0] == 0
    stack = Catalog([tmp_path, *Catalog([]).folders]).text(tmp_path / "a-1.yaml")
    assert "extends: pytorch-24.11" in stack
    status, said = run("draft", str(file), "--as", "b/1", "--on", "pytorch-2411", *to)
    assert (status, "pytorch-2411" in said) == (2, True)
    assert not (tmp_path / "b-1.yaml").exists()
    assert run("draft", str(file), "--as", "pytorch/24.11", *to)[0] == 2
    assert run("draft", str(file), "--as", "x", *to)[0] == 2
    assert run("draft", str(file), "--as", "x/1", "--build-arg", "A", *to)[0] == 2


# -- what somebody with fresh eyes found


def test_a_list_reads_no_file_of_another_folder_or_machine(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    with pytest.raises(InputError, match="leads out of"):
        draft(folder / "requirements.txt", "-r /etc/hostname\n", "pytorch-24.11")
    found = draft(
        folder / "requirements.txt", "-r https://example.org/r.txt\nsix\n", "pytorch-24.11"
    )
    assert (left_out(found), found.pip) == ([1], ["six"])
    twice = draft(
        folder / "requirements.txt", 'a==1; python_version<"3.9"\na==2\na==2\n', "pytorch-24.11"
    )
    assert left_out(twice) == [2, 3]


def test_variables_of_an_environment_and_what_is_none(tmp_path: Path) -> None:
    found = draft(
        tmp_path / "environment.yml", "dependencies: [numpy]\nvariables: {A: b}\n", "pytorch-24.11"
    )
    assert found.environment == {"A": "b"}
    with pytest.raises(InputError, match="not a conda environment"):
        draft(tmp_path / "docker-compose.yml", "services: {a: {image: b}}\n", "pytorch-24.11")


@pytest.mark.parametrize(
    "text", ["image = 5\n", '[env]\nA = ""\n', "[env]\nA = 5\n", "nothing = true\n"]
)
def test_each_key_of_an_edf_is_said_or_left_out(tmp_path: Path, text: str) -> None:
    found = draft(tmp_path / "x.toml", text, "pytorch-24.11")
    assert len(found.left_out) == 1


@pytest.mark.parametrize(
    "content",
    [b"a = 1\xff", b"a = " + b"[" * 3000, b"a = " + b"9" * 10_000, b"\0", b"x" * (1 << 19)],
    ids=["latin-1", "deep", "digits", "binary", "large"],
)
@pytest.mark.parametrize("name", ["x.toml", "devcontainer.json", "Dockerfile", "x.def"])
def test_what_cannot_be_read_ends_in_words(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError):
        draft_recipe(DraftRequest(tmp_path / name, AMD64))


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('{"image": "a:1", "mounts": [5, null, ["a"]]}', 3),
        ('{"image": "a:1", "mounts": ["source=/a,target=/b,readonly"]}', 1),
        ('{"image": "a:1", "containerEnv": {"A": null, "B": true}}', 2),
        ('{"image": "a:1", "postCreateCommand": ["a", "b"]}', 1),
        ('{"build": {"dockerfile": "Dockerfile", "args": ["A=1"]}}', 1),
        ('{"build": {"dockerfile": "Dockerfile", "args": null}}', 0),
        ('{"build": {"dockerfile": "Dockerfile", "args": {"V": "${localEnv:V}", "W": "1"}}}', 1),
        ('{"build": {"dockerfile": "Dockerfile", "options": ["--x"], "cacheFrom": "y"}}', 2),
    ],
)
def test_each_part_of_a_devcontainer_is_said_or_left_out(
    tmp_path: Path, text: str, lines: int
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM a:1\n")
    found = draft(tmp_path / "devcontainer.json", text)
    assert len(found.left_out) == lines


def test_a_devcontainer_reads_its_own_project_alone(tmp_path: Path) -> None:
    folder = tmp_path / "project/.devcontainer"
    folder.mkdir(parents=True)
    (tmp_path / "project/a").write_text("a\n")
    (tmp_path / "outside").write_text("secret\n")
    (folder / "Dockerfile").write_text("FROM b:1\nCOPY a /a\n")
    path = folder / "devcontainer.json"
    found = draft(path, '{"build": {"dockerfile": "Dockerfile", "context": ".."}}')
    assert list(found.files) == ["/a"]
    for build in ({"dockerfile": "Dockerfile", "context": "../.."}, {"dockerfile": "/etc/passwd"}):
        with pytest.raises(InputError, match="outside of its project"):
            draft(path, json.dumps({"build": build}))
    with pytest.raises(InputError, match="neither --build-arg"):
        draft_recipe(DraftRequest(tmp_path / "requirements.txt", AMD64, arguments={"A": "1"})) if (
            tmp_path / "requirements.txt"
        ).write_text("a\n") else None
