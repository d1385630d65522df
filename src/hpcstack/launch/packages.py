"""Packages that a user adds to an image without building it again: `hpcstack launch STACK --with
einops`.

They lie in a virtual environment below the user's data folder, named after the image and what was
asked for, made once inside the image, with every version of the image's own packages as a
constraint. Jobs see it at one fixed place.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.dirs import data_home
from hpcstack.core.errors import BuildError, InputError
from hpcstack.core.files import read_text, write_text
from hpcstack.core.quote import quote_sh
from hpcstack.recipe.fields import check_requirement
from hpcstack.render.site_files import CA_FILE, list_build_variables
from hpcstack.render.template import read_data_file
from hpcstack.runtimes import Step, choose_runtime
from hpcstack.site.logins import build_for, redact_logins

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact

PLACE = "/opt/hpcstack/with"
USE = f"""\
PATH={PLACE}/bin:$PATH
for one in {PLACE}/lib/python3*/site-packages; do PYTHONPATH=$one${{PYTHONPATH:+:$PYTHONPATH}}; done
export PATH PYTHONPATH
exec "$@"
"""


@dataclass(frozen=True)
class Added:
    """`folder` holds what was WANTED, for one image."""

    folder: Path
    wanted: tuple[str, ...]

    @property
    def mounts(self) -> tuple[str, ...]:
        return (f"{self.folder}:{PLACE}",)

    def command(self, inside: tuple[str, ...]) -> tuple[str, ...]:
        """INSIDE, with the added packages before the image's."""
        return ("/bin/sh", "-c", USE, "with", *inside)


def plan_packages(artifact: Artifact, wanted: tuple[str, ...], environ: Mapping[str, str]) -> Added:
    """Where WANTED is, or will be. InputError for what is no requirement of pip's.

    A file of requirements is taken for its lines. What looks like another file or a folder is
    refused: pip would ask the index for a package of that name.
    """
    wanted = tuple(line for one in wanted for line in _lines(one))
    for one in wanted:
        try:
            check_requirement(one)
        except ValueError as error:
            if "," in one and not set("<>=!~[") & set(one):
                each = " ".join(f"--with {name}" for name in one.split(","))
                raise InputError(f"--with {one}: one package each", each) from None
            if "://" in one:
                raise InputError(
                    f"--with {one}: a URL is not a package of the index",
                    "git clone it, and export PYTHONPATH; or a recipe",
                ) from None
            raise InputError(
                f"--with {one!r}: {error}", "e.g. --with einops, --with 'einops==0.8.*'"
            ) from None
    name = hashlib.sha256("\0".join([artifact.sha256, *sorted(wanted)]).encode()).hexdigest()[:32]
    return Added(data_home(environ) / "hpcstack" / "with" / name, tuple(sorted(wanted)))


FILES = (".txt", ".yml", ".yaml", ".toml", ".lock", ".whl", ".zip", ".gz", ".cfg", ".py")


def _lines(said: str) -> list[str]:
    """What SAID asks for: itself, or the lines of a file of requirements."""
    editable = re.fullmatch(r"(?:-e|--editable)[ =]+(.+)", said)
    if said in ("-e", "--editable") or editable:
        raise own_package(Path(editable[1] if editable else "."), said)
    path = Path(said)
    if said in ("-r", "--requirement"):
        raise InputError("--with -r: the file itself is named", "--with requirements.txt")
    if not (said.endswith(FILES) or "/" in said or said == ".") or " @ " in said or "://" in said:
        return [said]
    if said.endswith((".yml", ".yaml")):
        raise InputError(
            f"--with {said}: conda's environments belong in an image",
            "a recipe: extends: STACK, packages: {conda: [...]} (docs/how-to/write-a-recipe.md)",
        )
    if path.is_dir() or not said.endswith(".txt"):
        raise own_package(path, said)
    try:
        text = read_text(path, 1 << 20)
    except OSError as error:
        raise InputError(
            f"--with {said}: {error.strerror}", "name a file of requirements that exists"
        ) from None
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(
            f"--with {said}: {error}", "name an existing file of requirements"
        ) from None
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    if options := [line for line in lines if line.startswith("-")]:
        raise InputError(
            f"--with {said}: {options[0]} is an option of pip's, and only packages are taken",
            "site.yaml names the index: build.pip.index_url",
        )
    return [line for line in lines if line and not line.startswith("#")]


def own_package(path: Path, said: str) -> InputError:
    """What to type for a package of one's own in PATH, which may keep its modules below src/."""
    folder = path.resolve()
    where = folder / "src" if (folder / "src").is_dir() else folder
    hint = f"export PYTHONPATH={shlex.quote(str(where))}"
    if not folder.is_relative_to(Path.cwd().resolve()):
        hint += f", and --mount {shlex.quote(f'{folder}:{folder}')}"
    return InputError(
        f"--with {said}: a folder or file of your own is not a package of the index", hint
    )


def make_added(
    what: Added, artifact: Artifact, site: Site, runner: Runner, progress: Progress
) -> None:
    """The folder of WHAT, unless it is there: by one rename, so that nobody sees half of it."""
    if what.folder.exists():
        return
    what.folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(what.folder):
        if what.folder.exists():
            return
        part = what.folder.with_name(f".{what.folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o755)
        try:
            progress(f"adding {', '.join(what.wanted)} to {artifact.stack}")
            _install(part, what.wanted, artifact, site, runner, progress)
            part.rename(what.folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    lock = os.open(
        folder.with_name(f".{folder.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _install(
    part: Path,
    wanted: tuple[str, ...],
    artifact: Artifact,
    site: Site,
    runner: Runner,
    progress: Progress,
) -> None:
    write_text(
        part / "constraints.txt",
        "".join(f"{name}=={it}\n" for name, it in sorted(artifact.pip.items())),
    )
    runtime = choose_runtime("local" if runner.has("apptainer") else site.runtime, runner)[0]
    with tempfile.TemporaryDirectory(prefix=".lent-", dir=part.parent) as lent:
        _lend(Path(lent), site, artifact.base.partition("/")[0])
        step = Step(
            image=artifact.image,
            command=(
                "/bin/sh",
                "-c",
                read_data_file("launchers", "in-image/added.sh"),
                "added",
                PLACE,
                *wanted,
            ),
            mounts=(f"{part}:{PLACE}", f"{lent}:/mnt"),
            environment={"PYTHONNOUSERSITE": "1"},
            image_environment=artifact.environment,
        )
        argv = [word for one in runtime.parts(step) for word in one.words]
        done = runner.logged(
            argv, part / "install.log", env=runtime.environment(step), on_line=progress
        )
    log = part / "install.log"
    write_text(log, redact_logins(log.read_text(encoding="utf-8", errors="replace"), site), 0o600)
    if done.status:
        kept = part.parent / "failed.log"
        shutil.copy(log, kept)
        raise BuildError(redact_logins(_why(done.tail, wanted), site), f"the whole log is {kept}")


def _lend(folder: Path, site: Site, registry: str) -> None:
    """What the site lends to builds on bases of REGISTRY: proxy and index may hold a login, so they
    are in no argv.
    """
    lent = list_build_variables(build_for(site, registry))
    given = "".join(f"export {name}={quote_sh(value)}\n" for name, value in lent.items())
    write_text(folder / "lent.sh", given, 0o600)
    write_text(folder / "live_indexes.py", read_data_file("images", "live_indexes.py"))
    if bundle := site.build.ca_bundle:
        shutil.copyfile(bundle, folder / CA_FILE)


def _why(tail: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    said = [line for line in tail if line.startswith(("ERROR", "error"))] or list(tail[-3:])
    conflict = any("conflict" in line.lower() or "ResolutionImpossible" in line for line in tail)
    head = f"{', '.join(wanted)} cannot be added" + (
        ": it wants other versions than the image has" if conflict else ""
    )
    return "\n".join([head, *(f"  < {line}" for line in said)])
