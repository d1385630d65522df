"""Every verb refuses what makes no sense, in words, with its exit code and what to type next; and
answers in JSON.

What a verb does is tested where it is done; here is the boundary that people and scripts meet.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from hpcstack.cli import VERBS, main
from hpcstack.cli.choices import OptionalChoice
from hpcstack.core.usage_line import LoggedUse, format_use
from hpcstack.lock.model import TEMPLATE_VERSION
from support.bundles import make_bundle
from support.layers import layout, member, tar
from support.locks import example_lock
from support.modules import Place, report
from support.osv import make_record, write_database

STACK = "pytorch-24.11"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A site, and nothing else on the machine: no Slurm, no engines, no network."""
    place = Place(tmp_path / "site", runtime="apptainer")
    (tmp_path / "site.yaml").write_text(
        f"store: {place.site.store}\nlock_dir: {place.site.lock_dir}\nmodule_root: "
        f"{place.site.module_root}\n"
        f"recipe_dirs: [{tmp_path / 'recipes'}]\n"
    )
    (tmp_path / "recipes").mkdir()
    lock = example_lock(place.stack()).model_copy(
        update={"spec_sha256": place.stack().checksum(), "template_version": TEMPLATE_VERSION}
    )
    place.site.lock_dir.mkdir(parents=True)
    (place.site.lock_dir / f"{STACK}.lock.json").write_text(lock.text())
    for name in [one for one in os.environ if one.startswith(("HPCSTACK_", "SLURM_"))]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "env"):
        (tmp_path / "bin" / tool).symlink_to(f"/usr/bin/{tool}")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HPCSTACK_SITE", str(tmp_path / "site.yaml"))
    monkeypatch.chdir(tmp_path)
    # other tests may have a release of this name loaded, in a process of this machine
    monkeypatch.setattr("hpcstack.publish.publisher.find_users", lambda *_, **__: [])
    return place


@pytest.fixture
def run(place: Place, capsys: pytest.CaptureFixture[str]) -> Run:
    """`hpcstack WORDS...`: (status, stdout, stderr)."""

    def call(*words: str) -> tuple[int, str, str]:
        place.publish() if words[0] in OF_RELEASES else place.artifact(place.stack())
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


# Before these a release is published; before others its image is built
A_HOLE = {
    "id": "X-1",
    "ecosystem": "PyPI",
    "name": "deepspeed",
    "fixed": "1",
    "word": "HIGH",
    "published": "2026-01-01",
}
OF_RELEASES = {
    "promote",
    "rollback",
    "default",
    "retire",
    "remove",
    "undo",
    "status",
    "history",
    "usage",
    "catalog",
}
# verb -> the words after it, its exit code, and what it says
REFUSALS: dict[str, list[tuple[tuple[str, ...], int, str]]] = {
    "project": [(("lock", "no-such-folder", "-s", STACK), 2, "does not exist")],
    "jupyter": [((STACK, "--runtime", "bogus"), 2, "is not one of")],
    "kernel": [
        (("install", STACK, "--runtime", "bogus"), 2, "is not one of"),
        (("start", STACK, "-f", "no-such-file"), 2, "no connection file"),
    ],
    "tensorboard": [
        ((), 2, "which logs are to be shown?"),
        (("no-such-folder", STACK), 2, "no-such-folder is no folder"),
    ],
    "tunnel": [(("x y",), 2, "is not the number of a job")],
    "enter": [(("x y",), 2, "is not the number of a job")],
    "pack": [
        (("no-such-folder",), 2, "does not exist"),
        ((".", "-o", "x.sqsh"), 2, "would lie in"),
    ],
    "list": [(("--bogus",), 2, "No such option")],
    "show": [((), 2, "say which stack, or --site"), (("pytroch-24.11",), 2, "did you mean")],
    "lint": [((), 2, "say which recipes")],
    "schema": [
        (("extra",), 2, "unexpected extra argument"),
        (("--site", "--releases"), 2, "exclude each other"),
    ],
    "sync": [
        ((), 2, "Missing argument"),
        (("no-such-folder",), 2, "no such folder"),
        ((".", "--quiet", "--events", "x"), 2, "--quiet reports no progress"),
        (("recipes",), 2, "has no *.yaml that declares releases"),
        (("site.yaml",), 2, "unknown key 'store'"),
    ],
    "lock": [((), 2, "Missing argument"), (("no-such-1",), 2, "there is no stack")],
    "diff": [((STACK,), 2, "two things are compared")],
    "outdated": [(("no-such-1",), 2, "there is no stack")],
    "bump": [
        ((STACK,), 2, "say where to"),
        (("no-such-*", "--newest"), 2, "no recipe of your own"),
    ],
    "render": [(("no-such-1",), 2, "there is no stack")],
    "import": [(("not an image",), 2, "")],
    "draft": [
        (("Dockerfile",), 2, "Missing option"),
        (("Dockerfile", "--as", "mine"), 2, "a name and a version"),
        (("Dockerfile", "--as", "mine/1"), 2, "does not exist"),
    ],
    "adopt": [
        (("x.sqsh",), 2, "Missing option"),
        (("x.sqsh", "--as", "mine"), 2, "a name and a version"),
        (("x.sqsh", "--as", "mine/1"), 2, "does not exist"),
        (("x.sif", "--as", "mine/1"), 2, "x.sif does not exist"),
    ],
    "build": [
        ((), 2, "name a stack, or say --all"),
        ((STACK, "--engine", "bogus"), 2, "no such engine"),
    ],
    "images": [(("extra",), 2, "unexpected extra argument")],
    "inspect": [(("no-such-1",), 2, "no image of no-such-1")],
    "verify": [
        ((STACK, "--parity"), 2, "name 2 images, not 1"),
        (("no-such-1",), 2, "no image of no-such-1"),
    ],
    "find": [((), 2, "Missing argument"), (("a b",), 2, "names no package")],
    "audit": [
        ((), 2, "no database of vulnerabilities"),
        (("--database", "none"), 2, "no such folder"),
    ],
    "sbom": [(("no-such-1",), 2, "no image of no-such-1")],
    "sign": [(("no-such-1",), 2, "no image of no-such-1")],
    "push": [
        (("no-such-1", "r.example.org/x"), 2, "no image of no-such-1"),
        ((STACK, "not an image"), 2, "has changed since its image was built"),
    ],
    "pull": [(("not an image",), 2, "is not a valid image name")],
    "bundle": [(("create",), 2, "Missing argument"), (("apply", "none.tar"), 2, "does not exist")],
    "gc": [(("--keep", "x"), 2, "")],
    "cache": [
        (("get",), 2, "Missing argument"),
        (("get", "ubuntu"), 2, "has no image cache"),
        (("list",), 2, "no image cache"),
        (("gc",), 2, "no image cache"),
        (("serve",), 2, "no image cache"),
    ],
    "publish": [
        ((STACK, "--override", "why"), 2, "testing has no gate to pass"),
        (("no-such-*",), 2, "no stack matches"),
        ((STACK, "--channel", "production"), 1, "the gate to production is shut"),
    ],
    "promote": [
        (("jax/1",), 2, "nothing is published"),
        (("pytorch/24.11",), 1, "there is no report of this image"),
    ],
    "rollback": [
        (("pytorch",), 2, "rollback wants a version"),
        (("jax/1",), 2, "nothing is published"),
    ],
    "default": [(("pytorch/9.9",), 2, "is not published")],
    "retire": [
        (("pytorch",), 2, "retire wants a version"),
        (("pytorch/24.11", "--now", "--on", "2030-01-01"), 2, "take only a --reason"),
        (("pytorch/24.11", "--notify"), 2, "does not say where its logs of use are"),
        (("pytorch/24.11", "--notify", "--cancel"), 2, "--cancel ends nothing"),
        (("pytorch/24.11", "--on", "soon"), 2, "write it as YYYY-MM-DD"),
        (("pytorch/24.11", "--successor", "pytorch/24.11"), 2, "is what is retired"),
    ],
    "remove": [(("jax/1",), 2, "nothing is published")],
    "undo": [(("jax",), 2, "nothing is published")],
    "status": [
        (("jax/9",), 2, "nothing is published"),
        (("--deep",), 2, "--deep goes with --check"),
        (("pytorch", "--prometheus", "x.prom"), 2, "about all that is published"),
    ],
    "repair": [
        (("no-such-name",), 2, "nothing is published"),
        (("--generation", "3"), 2, "is of one name"),
    ],
    "history": [(("jax",), 2, "")],
    "usage": [
        ((), 2, "does not say where its logs of use are"),
        (("--log", "none"), 2, "no such file"),
    ],
    "catalog": [((), 2, "Missing option")],
    "launch": [
        ((STACK,), 2, "what is to be run?"),
        ((STACK, "--mount", "/a:/b:ro", "--", "x.py"), 2, "read-only mounts are not offered"),
        ((STACK, "--json", "--", "x.py"), 2, "--json goes with --dry-run"),
    ],
    "shell": [((STACK, "--runtime", "bogus"), 2, "is not one of")],
    "python": [((STACK, "--runtime", "bogus"), 2, "is not one of")],
    "jobs": [(("-n", "x"), 2, "")],
    "logs": [(("x1",), 2, "")],
    "cancel": [((), 2, "Missing argument")],
    "test": [
        ((), 2, "name one stack, or two to compare"),
        ((STACK, "--only", "ddp.fp23"), 2, "did you mean 'ddp.fp32'"),
    ],
    "report": [(("none",), 2, ""), (("x", "--history", "--junit", "f"), 2, "a history is text")],
    "plan": [(("--params", "x"), 2, "")],
    "doctor": [(("--bogus",), 2, "No such option")],
    "explain": [(("no-such.log",), 2, "")],
    "hang": [(("x1",), 2, "")],
    "requeue": [(("x1",), 2, "Slurm knows no job 'x1'")],
    "rerun": [(("7",), 2, "was not submitted by")],
    "help": [(("squirrel",), 2, "no how-to page says 'squirrel'")],
    "why": [(("HOME",), 2, "")],
    "site": [(("init", "-o", "."), 2, "is a folder")],
    "completion": [(("tcsh",), 2, "is not one of")],
}

# verb -> the words of an answer in JSON, its exit code, and what it holds
ANSWERS: dict[str, tuple[tuple[str, ...], int, Callable[[Any], bool]]] = {
    "list": ((), 0, lambda said: any(STACK in json.dumps(one) for one in said)),
    "show": ((STACK,), 0, lambda said: said["stack"]["name"] == "pytorch"),
    "lint": ((STACK,), 0, lambda said: said["checked"] == 1),
    "lock": ((STACK, "--check"), 0, lambda said: said["current"] is True),
    "diff": ((STACK, STACK), 0, lambda said: said == []),
    "render": ((STACK, "--offline"), 0, lambda said: "apptainer.def" in said["files"]),
    "draft": (
        ("Containerfile", "--as", "mine/1"),
        1,
        lambda said: (said["base"], said["left_out"][0]["line"]) == ("docker.io/a/b:1", 2),
    ),
    "images": ((), 0, lambda said: [one["stack"] for one in said] == [STACK]),
    "find": (("torch",), 0, lambda said: said["hits"][0]["version"] == "2.6.0a0"),
    "audit": (
        ("--stored", "--database", "osv"),
        0,
        lambda said: said["images"][0]["counts"] == {"high": 1},
    ),
    "gc": (("--dry-run", "--no-slurm"), 0, lambda said: "images" in json.dumps(said)),
    "publish": ((STACK, "--dry-run"), 0, lambda said: said["dry_run"] is True),
    "retire": (("pytorch/24.11", "--dry-run"), 0, lambda said: said["version"] == "pytorch/24.11"),
    "remove": (
        ("pytorch/24.11-r1", "--dry-run", "--no-slurm"),
        0,
        lambda said: said["dry_run"] is True,
    ),
    "undo": (("pytorch", "--dry-run", "--no-slurm"), 0, lambda said: said["dry_run"] is True),
    "default": (("pytorch/24.11", "--dry-run"), 0, lambda said: said["dry_run"] is True),
    "status": (
        ("--prometheus", "status.prom"),
        0,
        lambda said: (
            said["releases"][0]["release"] == "pytorch/24.11-r1"
            and "\nhpcstack_wrong 0.0\n" in Path("status.prom").read_text()
        ),
    ),
    "repair": (
        ("--dry-run",),
        0,
        lambda said: said == {"dry_run": True, "mended": [], "images": [], "left": [], "cache": ""},
    ),
    "usage": (
        ("--log", "usage.log"),
        0,
        lambda said: (said["releases"][0]["people"], said["unused"]) == (1, ["pytorch/24.11-r1"]),
    ),
    "history": (("pytorch",), 0, lambda said: len(said["events"]) == 1),
    "catalog": (("-o", "site-pages"), 0, lambda said: "site-pages" in json.dumps(said)),
    "jobs": ((), 0, lambda said: said == []),
    "test": (("--list",), 0, lambda said: len(said["checks"]) > 80),
    "plan": (("--params", "7e9", "--gpus", "h100:8"), 0, lambda said: said["gpu"] == "h100"),
    "explain": (("log.txt",), 0, lambda said: said["findings"][0]["id"] == "cuda-out-of-memory"),
    "help": ((), 0, lambda said: "roll-back" in [one["topic"] for one in said]),
    "promote": (
        ("pytorch/24.11", "--dry-run", "--override", "why"),
        0,
        lambda said: said["dry_run"] is True,
    ),
    "launch": ((STACK, "--template", "ddp"), 0, lambda said: said["script"].startswith("#!")),
}
# What answers only with a cluster, an engine or a history: its JSON is looked at in
# tests/integration, and of these below
ELSEWHERE = {
    "build", "inspect", "verify", "rollback", "logs", "cancel", "report", "doctor", "hang", "requeue", "rerun", "why", "import", "sign",
    "adopt",
    "bump", "bundle", "cache", "pack", "pull", "push", "project", "jupyter", "kernel", "tensorboard", "tunnel",
    "sync",
}  # fmt: skip
UNSEEN = {"outdated"}  # needs a registry with newer tags: no test looks at its JSON yet
# What is text for a program already
NO_JSON = {"enter", "schema", "sbom", "shell", "python", "site", "completion"}


def test_a_verb_has_one_description() -> None:
    """The line in `hpcstack --help` and the first paragraph of the verb's own help are equal."""
    differ = {}
    for verb in VERBS:
        command = importlib.import_module(f"hpcstack.cli.{verb}_").command
        first_paragraph = " ".join(command.help.partition("\n\n")[0].split())
        if first_paragraph != VERBS[verb]:
            differ[verb] = first_paragraph
    assert differ == {}


def test_an_open_choice_is_no_choice() -> None:
    """`--mode ""` of a script is taken; help and completion name the words alone."""
    command = importlib.import_module("hpcstack.cli.launch_").command
    choices = {one.name: one for one in command.params if isinstance(one.type, OptionalChoice)}
    assert set(choices) == {"mode", "stage", "template"}
    for option in choices.values():
        assert option.type("") == ""
        assert "" not in option.type.choices
        assert "[|" not in option.make_metavar(click.Context(command))


def test_no_verb_is_forgotten() -> None:
    assert set(REFUSALS) == set(VERBS)
    assert set(ANSWERS) | ELSEWHERE | UNSEEN | NO_JSON == set(VERBS)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((verb, *words), code, says)
        for verb, cases in REFUSALS.items()
        for words, code, says in cases
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_it_refuses(run: Run, words: tuple[str, ...], code: int, says: str) -> None:
    status, out, err = run(*words)
    assert (status, out) == (code, ""), (status, out, err)
    assert err.splitlines()[-2:][0].startswith("ERROR: ") or "ERROR: " in err, err
    assert says in err and "  TIP: " in err and "Traceback" not in err, err


@pytest.mark.parametrize("verb", ANSWERS)
def test_it_answers_in_json(run: Run, verb: str) -> None:
    # `run` publishes the releases after this, perhaps a second later. They were there all the time
    # that the log covers, so its line is of later still.
    use = LoggedUse("load", "pytorch/24.10-r1", "ann", "-", int(time.time()) + 3600)
    Path("usage.log").write_text(f"Nov 26 09:00:00 login1 hpcstack-usage: {format_use(use)}\n")
    write_database(Path("osv"), [make_record(A_HOLE)])
    Path("log.txt").write_text("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    Path("Containerfile").write_text("FROM a/b:1\nUSER me\n")
    words, code, holds = ANSWERS[verb]
    status, out, err = run(verb, *words, "--json")
    assert status == code, err
    assert holds(json.loads(out)), out[:500]


def test_a_report_of_another_image_opens_no_gate(run: Run, place: Place) -> None:
    artifact = place.artifact(place.stack("pytorch-25.10"), b"other")
    Path("report.json").write_text(report(artifact, {"node.image": "PASS"}).model_dump_json())
    status, _, err = run("promote", "pytorch/24.11", "--report", "report.json")
    assert status == 1
    assert "the gate to production is shut" in err


def test_a_signature_and_a_bundle_answer_in_json(
    run: Run, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "own"], check=True)
    status, out, err = run("sign", STACK, "--key", "own", "--json")
    assert status == 0 and Path(json.loads(out)["signature"]).is_file(), err
    bundle = make_bundle(Path.cwd(), place.site)
    status, out, err = run("bundle", "apply", str(bundle), "--recipes-to", "recipes", "--json")
    assert status == 0 and json.loads(out)["stack"] == "demo-1", err


@pytest.mark.squashfs
def test_an_import_answers_in_json(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin")
    image = layout(Path("image"), [tar([member("a")])])
    status, out, err = run(
        "import", f"oci:{image}", "--platform", "linux/amd64", "-o", "out.sqsh", "--json"
    )
    assert status == 0 and json.loads(out)["layers"] == 1 and Path("out.sqsh").is_file(), err
