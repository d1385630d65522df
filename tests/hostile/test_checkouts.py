"""Who wrote a checkout is not who owns its files: rows T2, T8 and T12 of what once got through."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcstack.core import git
from hpcstack.core.carried import check_carried_folder, check_carried_output
from hpcstack.core.errors import InputError
from hpcstack.core.outputs import open_output, write_output
from hpcstack.core.process import Runner
from hpcstack.publish.provenance import CHANGED, UNKNOWN, find_commit

HPCSTACK = Path(sys.executable).with_name("hpcstack")
DECLARED = "releases: {pytorch: newest 1}\n"
A_LOCK = "pytorch-24.11.lock.json"


def run_git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


class Checkout:
    """A folder that somebody else wrote, in which the victim types commands."""

    def __init__(self, top: Path) -> None:
        self.top = top / "checkout"
        self.home = top / "home"
        self.proof = top / "proof"
        self.program = top / "program"
        for folder in (self.top, self.home):
            folder.mkdir()
        self.program.write_text(f'#!/bin/sh\necho "$0 $*" >>{self.proof}\ncat\n')
        self.program.chmod(0o755)
        (top / "site.yaml").write_text(f"store: {top}/store\nmodule_root: {top}/modules\n")

    def run(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run hpcstack in the checkout."""
        environment = {
            **os.environ,
            "HOME": str(self.home),
            "HPCSTACK_SITE": str(self.top.parent / "site.yaml"),
            **more,
        }
        return subprocess.run(
            [str(HPCSTACK), *words], cwd=self.top, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    def name_programs(self, git_dir: Path, attributes: Path) -> None:
        """Let the configuration of GIT_DIR, and the file ATTRIBUTES, name every program they can."""
        program = str(self.program)
        pairs = {
            "filter.x.clean": program,
            "filter.x.smudge": program,
            "filter.x.process": program,
            "filter.x.required": "true",
            "diff.x.textconv": program,
            "diff.x.command": program,
            "diff.external": program,
            "core.fsmonitor": program,
            "core.pager": program,
            "core.editor": program,
            "core.sshCommand": program,
            "core.askPass": program,
            "core.hooksPath": str(self._make_hooks()),
            "credential.helper": f"!{program}",
            "gpg.program": program,
            "log.showSignature": "true",
            "alias.show": f"!{program}",
            "uploadpack.packObjectsHook": program,
            "remote.origin.url": str(self.top),
            "remote.origin.uploadpack": program,
            "remote.origin.promisor": "true",
            "remote.origin.partialclonefilter": "blob:none",
            "extensions.partialClone": "origin",
            "core.repositoryFormatVersion": "1",
            "url.ssh://elsewhere/.insteadOf": "https://127.0.0.1:1/",
        }
        for name, value in pairs.items():
            subprocess.run(
                ["git", "config", "--file", str(git_dir / "config"), name, value], check=True
            )
        attributes.write_text("* filter=x diff=x\n")

    def _make_hooks(self) -> Path:
        hooks = self.top.parent / "hooks"
        hooks.mkdir(exist_ok=True)
        for name in ("post-index-change", "pre-commit", "post-checkout", "fsmonitor-watchman"):
            (hooks / name).unlink(missing_ok=True)
            (hooks / name).symlink_to(self.program)
        return hooks


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def _make_bare_inside(checkout: Checkout) -> Path:
    """Make `releases/` a folder of declarations that is itself a bare repository."""
    folder = checkout.top / "releases"
    folder.mkdir()
    (folder / "a.yaml").write_text(DECLARED)
    run_git(folder, "init", "--quiet")
    run_git(folder, "add", "--all")
    run_git(folder, "commit", "--quiet", "-m", "one")
    for entry in (folder / ".git").iterdir():
        entry.rename(folder / entry.name)
    (folder / ".git").rmdir()
    subprocess.run(
        ["git", "config", "--file", "config", "core.bare", "false"], cwd=folder, check=True
    )
    subprocess.run(
        ["git", "config", "--file", "config", "core.worktree", "."], cwd=folder, check=True
    )
    return folder


# -- T2: git on a checkout


@pytest.mark.parametrize(
    "words", [("sync", "releases", "--dry-run"), ("sync", "releases/a.yaml", "--dry-run")]
)
def test_t2_a_folder_that_is_a_repository_itself_is_none(
    checkout: Checkout, words: tuple[str, ...]
) -> None:
    run_git(checkout.top, "init", "--quiet")
    run_git(checkout.top, "commit", "--quiet", "--allow-empty", "-m", "the outer one")
    folder = _make_bare_inside(checkout)
    checkout.name_programs(folder, folder / ".gitattributes")
    os.utime(folder / "a.yaml", (1, 1))  # git has to look into it

    done = checkout.run(*words)

    assert not checkout.proof.exists(), checkout.proof.read_text()
    assert "pytorch" in done.stdout, done.stderr


@pytest.mark.parametrize("how", ["a .git that came in an archive", "its objects are missing"])
def test_t2_a_repository_whose_configuration_names_programs(checkout: Checkout, how: str) -> None:
    recipe = checkout.top / "a.yaml"
    recipe.write_text(DECLARED)
    run_git(checkout.top, "init", "--quiet")
    run_git(checkout.top, "add", "--all")
    run_git(checkout.top, "commit", "--quiet", "-m", "one")
    git_dir = checkout.top / ".git"
    checkout.name_programs(git_dir, git_dir / "info/attributes")
    if how == "its objects are missing":
        head = run_git(checkout.top, "-c", "core.fsmonitor=false", "rev-parse", "HEAD^{tree}")
        (git_dir / "objects" / head[:2] / head[2:]).unlink()
    os.utime(recipe, (1, 1))

    find_commit(recipe, Runner())

    assert not checkout.proof.exists(), checkout.proof.read_text()


def test_t2_a_committed_lock_is_shown_without_a_text_converter(checkout: Checkout) -> None:
    (checkout.top / A_LOCK).write_text("{}")
    run_git(checkout.top, "init", "--quiet")
    run_git(checkout.top, "add", "--all")
    run_git(checkout.top, "commit", "--quiet", "-m", "one")
    checkout.name_programs(checkout.top / ".git", checkout.top / ".gitattributes")
    done = checkout.run("diff", f"./{A_LOCK}", "--git", "HEAD")
    assert "not a lock" in done.stderr
    assert not checkout.proof.exists(), checkout.proof.read_text()


def test_t2_a_source_is_asked_for_outside_of_the_checkout(checkout: Checkout) -> None:
    """`git ls-remote URL` reads the configuration of the repository that it is started in."""
    from conftest import make_site
    from hpcstack.recipe.packages import Source
    from hpcstack.resolve.packages import _find_commit

    folder = _make_bare_inside(checkout)
    checkout.name_programs(folder, folder / ".gitattributes")
    source = Source(name="x", git="https://127.0.0.1:1/none.git", ref="main", build="true")
    before = Path.cwd()
    os.chdir(folder)
    try:
        with pytest.raises(InputError, match="has no 'main'"):
            _find_commit(source, make_site(checkout.top.parent), Runner())
    finally:
        os.chdir(before)
    assert not checkout.proof.exists(), checkout.proof.read_text()


def test_t2_variables_name_no_other_repository(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = checkout.top / "a.yaml"
    recipe.write_text(DECLARED)
    run_git(checkout.top, "init", "--quiet")
    run_git(checkout.top, "add", "--all")
    run_git(checkout.top, "commit", "--quiet", "-m", "one")
    head = run_git(checkout.top, "rev-parse", "HEAD")
    folder = _make_bare_inside(checkout)
    checkout.name_programs(folder, folder / ".gitattributes")
    monkeypatch.setenv("GIT_DIR", str(folder))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(checkout.program))
    monkeypatch.setenv("GIT_INDEX_FILE", "/dev/null")
    assert find_commit(recipe, Runner()) == head + CHANGED  # releases/ is new
    assert not checkout.proof.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_t2_a_strangers_repository_around_ours_says_nothing(checkout: Checkout) -> None:
    """In /tmp anybody can make a `.git` that lies around everybody's folders."""
    mine = checkout.top / "mine"
    mine.mkdir()
    (mine / "a.yaml").write_text(DECLARED)
    run_git(checkout.top, "init", "--quiet")
    run_git(checkout.top, "add", "--all")
    run_git(checkout.top, "commit", "--quiet", "-m", "one")
    assert find_commit(mine / "a.yaml", Runner())
    os.chown(checkout.top / ".git", 65534, 65534)
    assert find_commit(mine / "a.yaml", Runner()) == ""


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ("nothing", False),
        ("contents", True),
        ("may be run", True),
        ("gone", True),
        ("new", True),
        ("new and staged", True),
        ("new and ignored", False),
        ("link", True),
        ("submodule", True),
        ("above", False),
    ],
)
def test_what_counts_as_changed(checkout: Checkout, change: str, differs: bool) -> None:
    top = checkout.top / "recipes"
    top.mkdir()
    (top / "a.yaml").write_text(DECLARED)
    (top / "b \t\n.txt").write_bytes(b"\xff\r\n")
    (top / "link").symlink_to("a.yaml")
    inner = top / "inner"
    inner.mkdir()
    (inner / "x").write_text("x")
    for folder in (inner, checkout.top):
        (folder / ".gitignore").write_text("*.log\n")
        run_git(folder, "init", "--quiet")
        run_git(folder, "add", "--all")
        run_git(folder, "commit", "--quiet", "-m", "one")
    if change == "contents":
        (top / "a.yaml").write_text(DECLARED.replace("1", "2"))
    elif change == "may be run":
        (top / "a.yaml").chmod(0o755)
    elif change == "gone":
        (top / "b \t\n.txt").unlink()
    elif change == "new":
        (top / "new").touch()
    elif change == "new and staged":
        (top / "new").touch()
        run_git(checkout.top, "add", "recipes/new")
    elif change == "new and ignored":
        (top / "new.log").touch()
    elif change == "link":
        (top / "link").unlink()
        (top / "link").symlink_to("inner/x")
    elif change == "submodule":
        (inner / "x").write_text("y")
    elif change == "above":
        (checkout.top / "elsewhere").touch()
    found = find_commit(top / "a.yaml", Runner())
    assert found == run_git(checkout.top, "rev-parse", "HEAD") + CHANGED * differs


@pytest.mark.parametrize(
    ("attributes", "autocrlf", "lies_there", "says"),
    [
        ("", "", b"a\r\nb\r\n", CHANGED),
        ("* text=auto", "", b"a\r\nb\r\n", ""),
        ("* eol=crlf", "", b"a\r\nb\r\n", ""),
        ("* text=auto", "", b"a\r\nc\r\n", CHANGED),
        ("* -text", "true", b"a\r\nb\r\n", CHANGED),
        ("", "true", b"a\r\nb\r\n", ""),
        ("", "true", b"a\nc\n", CHANGED),
        ("* filter=lfs", "", b"the file itself", UNKNOWN),
        ("* filter=lfs", "", b"a\nb\n", ""),
        ("* ident", "", b"$Id: x $", UNKNOWN),
        ("* working-tree-encoding=UTF-16", "", b"a\0", UNKNOWN),
        ("* binary", "", b"c", CHANGED),
    ],
)
def test_a_file_that_git_stores_in_another_form(
    checkout: Checkout, attributes: str, autocrlf: str, lies_there: bytes, says: str
) -> None:
    """As `git diff` has it, where no program has to be run for it."""
    top = checkout.top
    run_git(top, "init", "--quiet")
    (top / "a.yaml").write_bytes(b"a\nb\n")
    run_git(top, "add", "--all")
    run_git(top, "commit", "--quiet", "-m", "one")
    (top / ".git/info/attributes").write_text(attributes + "\n")
    if autocrlf:
        run_git(top, "config", "core.autocrlf", autocrlf)
    (top / "a.yaml").write_bytes(lies_there)
    if says != UNKNOWN:
        assert bool(run_git(top, "diff")) == (says == CHANGED)
    found = find_commit(top / "a.yaml", Runner())
    assert found == run_git(top, "rev-parse", "HEAD") + says


def test_a_file_that_becomes_a_link_meanwhile_is_not_followed(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/dev/zero was read to its end."""
    top = checkout.top
    run_git(top, "init", "--quiet")
    (top / ".gitattributes").write_text("* text=auto\n")
    (top / "a.yaml").write_text("a\n")
    run_git(top, "add", "--all")
    run_git(top, "commit", "--quiet", "-m", "one")
    (top / "a.yaml").write_text("b\n")

    def swap(path: Path, size: int, like: str) -> str:
        if path.name != "a.yaml":
            return like
        path.unlink()
        path.symlink_to("/dev/zero")
        return "another"

    monkeypatch.setattr(git, "_hash_file", swap)
    assert find_commit(top / "a.yaml", Runner()).endswith(CHANGED)


def test_a_recipe_that_is_only_staged_is_in_no_commit(checkout: Checkout) -> None:
    run_git(checkout.top, "init", "--quiet")
    run_git(checkout.top, "commit", "--quiet", "--allow-empty", "-m", "one")
    (checkout.top / "a.yaml").write_text(DECLARED)
    run_git(checkout.top, "add", "--all")
    assert find_commit(checkout.top / "a.yaml", Runner()) == ""


def test_a_repository_that_is_closed_to_us_says_nothing(
    checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout.top / "a.yaml").write_text(DECLARED)
    (checkout.top / ".git").mkdir()
    real = Path.is_file

    def is_file(path: Path) -> bool:
        if path.name == "HEAD":
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(Path, "is_file", is_file)
    assert find_commit(checkout.top / "a.yaml", Runner()) == ""


# -- T8: what is written follows no link that git carries


@pytest.fixture
def victim(checkout: Checkout) -> Path:
    path = checkout.home / "authorized_keys"
    path.write_text("mine")
    return path


@pytest.mark.parametrize("option", ["--html", "--markdown", "--events"])
def test_t8_an_output_in_a_checkout_is_no_link(
    checkout: Checkout, victim: Path, option: str
) -> None:
    (checkout.top / "releases").mkdir()
    (checkout.top / "releases/a.yaml").write_text(DECLARED)
    (checkout.top / "plan").symlink_to(victim)
    done = checkout.run("sync", "releases", "--dry-run", option, "plan")
    assert done.returncode == 2, done.stderr
    assert "plan is a symbolic link" in done.stderr
    assert "rm plan" in done.stderr
    assert victim.read_text() == "mine"


@pytest.mark.parametrize(
    "words",
    [
        ("render", "pytorch-24.11", "--format", "edf", "--image", "x.sqsh", "-o", "out"),
        ("site", "init", "-o", "out", "--force"),
        ("build", "pytorch-24.11", "--sif", "out", "--offline"),
        ("render", "pytorch-24.11", "--offline", "-o", "out"),
    ],
)
def test_t8_other_outputs(checkout: Checkout, victim: Path, words: tuple[str, ...]) -> None:
    (checkout.top / "out").symlink_to(victim)
    done = checkout.run(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "out is a symbolic link" in done.stderr
    assert victim.read_text() == "mine"


def test_t8_a_folder_of_a_checkout_that_is_a_link_out_of_it(
    checkout: Checkout, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout.top / ".git").mkdir()
    (checkout.top / "public").symlink_to(checkout.home)
    monkeypatch.chdir("/")
    with pytest.raises(InputError, match="leads out of"):
        write_output(checkout.top / "public" / victim.name, "x")
    with pytest.raises(InputError, match="leads out of"):
        open_output(checkout.top / "public" / victim.name)
    assert victim.read_text() == "mine"


def test_t8_a_link_to_another_checkout_is_no_checkout_of_its_own(
    checkout: Checkout, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (checkout.top, checkout.home):
        (folder / ".git").mkdir()
    (checkout.top / "public").symlink_to(checkout.home)
    monkeypatch.chdir("/")
    with pytest.raises(InputError, match="leads out of"):
        write_output(checkout.top / "public" / victim.name, "x")
    with pytest.raises(InputError, match="leads out of"):
        check_carried_folder(checkout.top / "public")
    check_carried_output(checkout.home / "new.html")


def test_t8_events_go_to_a_pipe_and_to_a_device(checkout: Checkout) -> None:
    (checkout.top / "releases").mkdir()
    (checkout.top / "releases/a.yaml").write_text(DECLARED)
    done = checkout.run("sync", "releases", "--dry-run", "--events", "/dev/stderr")
    assert done.returncode == 0, done.stderr
    with open_output(Path("/dev/null")) as opened:
        opened.write("x")


def test_t8_ones_own_links_elsewhere_are_followed(
    checkout: Checkout, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home may hold links to larger disks, and to where a web server looks."""
    web = checkout.top.parent / "web"
    web.mkdir()
    (web / "page.html").symlink_to(victim)
    (checkout.home / "disk").symlink_to(web)
    monkeypatch.chdir(checkout.home)
    check_carried_output(Path("disk/new.html"))
    write_output(web / "page.html", "x")
    assert victim.read_text() == "x"


# -- T12: what is read follows no link out of its folder


def test_t12_a_declaration_that_is_a_link_is_not_shown(checkout: Checkout) -> None:
    secret = checkout.home / "secret.yaml"
    secret.write_text("password: hunter2\n")
    (checkout.top / "releases").mkdir()
    (checkout.top / "releases/x.yaml").symlink_to(secret)
    done = checkout.run("sync", "releases", "--dry-run")
    assert done.returncode == 2
    assert "leads out of its folder" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert "password" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "words", [("sync", "linked", "--dry-run"), ("--recipes", "linked", "list")]
)
def test_t12_a_folder_that_is_a_link_out_of_the_checkout(
    checkout: Checkout, words: tuple[str, ...]
) -> None:
    (checkout.top / ".git").mkdir()
    (checkout.home / "x.yaml").write_text("password: hunter2\n")
    (checkout.top / "linked").symlink_to(checkout.home)
    done = checkout.run(*words)
    assert done.returncode == 2
    assert "leads out of" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr


def test_t12_links_within_a_checkout_are_read(checkout: Checkout) -> None:
    (checkout.top / ".git").mkdir()
    (checkout.top / "a").mkdir()
    (checkout.top / "linked").symlink_to("a")
    check_carried_folder(checkout.top / "linked")
