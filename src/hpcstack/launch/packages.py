"""Add packages to an image for one user, without a new build: `hpcstack launch --with einops`.

They are installed into a folder below the user's data folder, named after the image and the
packages. This is done once, inside the image, with the versions of the image's own packages as
constraints. Jobs see the folder at one fixed place, PLACE.

Tested in tests/unit/cli/test_first_day.py.
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

from hpcstack.core.dirs import find_data_home
from hpcstack.core.errors import BuildError, InputError
from hpcstack.core.files import read_text, write_text
from hpcstack.core.quote import quote_sh
from hpcstack.recipe.fields import check_requirement
from hpcstack.recipe.model import read_image_part
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

PLACE = "/opt/hpcstack/with"  # in the container
# Runs a command with the added programs and modules before the image's
USE = f"""\
PATH={PLACE}/bin:$PATH
for one in {PLACE}/lib/python3*/site-packages; do PYTHONPATH=$one${{PYTHONPATH:+:$PYTHONPATH}}; done
export PATH PYTHONPATH
exec "$@"
"""


@dataclass(frozen=True)
class Added:
    """Packages that were added to one image: `folder` holds what was `wanted`."""

    folder: Path
    wanted: tuple[str, ...]

    @property
    def mounts(self) -> tuple[str, ...]:
        return (f"{self.folder}:{PLACE}",)

    def command(self, inside: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command INSIDE, run with the added packages before the image's."""
        return ("/bin/sh", "-c", USE, "with", *inside)


def plan_packages(artifact: Artifact, wanted: tuple[str, ...], environ: Mapping[str, str]) -> Added:
    """Return where the WANTED packages of ARTIFACT are, or will be.

    A file of requirements stands for its lines. Raise InputError for what pip does not take as a
    requirement, and for what looks like another file or a folder: pip would ask the index for a
    package of that name.
    """
    requirements = [line for one in wanted for line in _read_requirements(one)]
    for one in requirements:
        try:
            check_requirement(one)
        except ValueError as error:
            raise _explain_requirement(one, error) from None
    requirements.sort()
    name = hashlib.sha256("\0".join([artifact.sha256, *requirements]).encode()).hexdigest()[:32]
    return Added(find_data_home(environ) / "hpcstack" / "with" / name, tuple(requirements))


def _explain_requirement(said: str, error: ValueError) -> InputError:
    """Return the refusal of SAID, which is no requirement of pip's because of ERROR."""
    is_a_list = "," in said and not set("<>=!~[") & set(said)
    if is_a_list:
        each = " ".join(f"--with {name}" for name in said.split(","))
        return InputError(
            f"--with {said}: write --with before each package", each, page="add-a-pip-package"
        )
    if "://" in said:
        return InputError(
            f"--with {said}: a package is named, as the package index has it, not a URL",
            "git clone it, and export PYTHONPATH; or write a recipe",
            page="add-a-pip-package",
        )
    return InputError(
        f"--with {said!r}: {error}",
        "e.g. --with einops, --with 'einops==0.8.*'",
        page="add-a-pip-package",
    )


FILES = (".txt", ".yml", ".yaml", ".toml", ".lock", ".whl", ".zip", ".gz", ".cfg", ".py")


def _read_requirements(said: str) -> list[str]:
    """Return what SAID asks for: itself, or the lines of a file of requirements.

    Raise InputError for files of another kind, folders, and options of pip's.
    """
    editable = re.fullmatch(r"(?:-e|--editable)[ =]+(.+)", said)
    if said in ("-e", "--editable") or editable:
        raise make_own_package_error(Path(editable[1] if editable else "."), said)
    if said in ("-r", "--requirement"):
        raise InputError(
            "--with -r: name the file itself", "--with requirements.txt", page="add-a-pip-package"
        )

    looks_like_a_path = said.endswith(FILES) or "/" in said or said == "."
    is_a_url = " @ " in said or "://" in said
    if not looks_like_a_path or is_a_url:
        return [said]
    if said.endswith((".yml", ".yaml")):
        raise InputError(
            f"--with {said}: an environment of conda's belongs in an image",
            "a recipe: extends: STACK, packages: {conda: [...]}",
            page="write-a-recipe",
        )
    path = Path(said)
    if path.is_dir() or not said.endswith(".txt"):
        raise make_own_package_error(path, said)

    try:
        text = read_text(path, 1 << 20)
    except OSError as error:
        raise InputError(
            f"--with {said}: {error.strerror}",
            "name a file of requirements that exists",
            page="add-a-pip-package",
        ) from None
    except (InputError, UnicodeDecodeError) as error:
        raise InputError(
            f"--with {said}: {error}",
            "name an existing file of requirements",
            page="add-a-pip-package",
        ) from None
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    options = [line for line in lines if line.startswith("-")]
    if options:
        raise InputError(
            f"--with {said}: {options[0]} is an option of pip's, and only packages are accepted",
            "site.yaml names the index: build.pip.index_url",
            page="add-a-pip-package",
        )
    return [line for line in lines if line and not line.startswith("#")]


def make_own_package_error(path: Path, said: str) -> InputError:
    """Return the refusal of SAID, a package of the user's own in PATH, with what to type instead.

    The package may keep its modules below src/, which is then what PYTHONPATH names.
    """
    folder = path.resolve()
    modules = folder
    if (folder / "src").is_dir():
        modules = folder / "src"
    hint = f"export PYTHONPATH={shlex.quote(str(modules))}"
    if not folder.is_relative_to(Path.cwd().resolve()):
        mount = shlex.quote(f"{folder}:{folder}")
        hint += f", and --mount {mount}"
    return InputError(
        f"--with {said}: a folder or file of your own is not on the package index",
        hint,
        page="add-a-pip-package",
    )


def make_added(
    what: Added, artifact: Artifact, site: Site, runner: Runner, progress: Progress
) -> None:
    """Install WHAT into its folder, unless the folder exists.

    The folder appears by one rename, so that nobody sees half of it. Two launches that want the
    same packages install them once. Raise BuildError where pip cannot install them.
    """
    if what.folder.exists():
        return
    what.folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(what.folder):
        if what.folder.exists():  # another launch made it while this one waited
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
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of FOLDER, a file beside it; wait for whoever holds it now."""
    path = folder.with_name(f".{folder.name}.lock")
    lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
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
    """Install the WANTED packages into PART, by pip inside the image of ARTIFACT.

    The log is kept in PART, and also beside it where pip fails. It holds no login of the site's.
    """
    constraints = [f"{name}=={version}\n" for name, version in sorted(artifact.pip.items())]
    write_text(part / "constraints.txt", "".join(constraints))

    script = read_data_file("launchers", "in-image/added.sh")
    # pip runs on this machine, without Slurm, wherever Apptainer is installed.
    name = "local" if runner.has("apptainer") else site.runtime
    runtime = choose_runtime(name, runner)[0]
    with tempfile.TemporaryDirectory(prefix=".lent-", dir=part.parent) as lent:
        registry = read_image_part(artifact.base, "registry")
        _write_site_settings(Path(lent), site, registry)
        step = Step(
            image=artifact.image,
            command=("/bin/sh", "-c", script, "added", PLACE, *wanted),
            mounts=(f"{part}:{PLACE}", f"{lent}:/mnt"),
            environment={"PYTHONNOUSERSITE": "1"},
            image_environment=artifact.environment,
        )
        argv = [word for one in runtime.parts(step) for word in one.words]
        log = part / "install.log"
        done = runner.logged(argv, log, env=runtime.environment(step), on_line=progress)

    text = log.read_text(encoding="utf-8", errors="replace")
    write_text(log, redact_logins(text, site), 0o600)
    if done.status:
        kept = part.parent / "failed.log"
        shutil.copy(log, kept)
        reason = _explain_failure(done.tail, wanted)
        raise BuildError(
            redact_logins(reason, site), f"the whole log is {kept}", page="add-a-pip-package"
        )


def _write_site_settings(folder: Path, site: Site, registry: str) -> None:
    """Write into FOLDER the site's settings for builds on bases of REGISTRY.

    They are proxy, package index and certificates. Proxy and index may hold a login, so they are
    handed over in a file that only the user can read, and not on a command line.
    """
    variables = list_build_variables(build_for(site, registry))
    exports = [f"export {name}={quote_sh(value)}\n" for name, value in variables.items()]
    write_text(folder / "lent.sh", "".join(exports), 0o600)
    write_text(folder / "live_indexes.py", read_data_file("images", "live_indexes.py"))
    if bundle := site.build.ca_bundle:
        shutil.copyfile(bundle, folder / CA_FILE)


def _explain_failure(tail: tuple[str, ...], wanted: tuple[str, ...]) -> str:
    """Return why pip could not install WANTED, with its errors from the TAIL of its output.

    Without a line that begins with ERROR, the last three lines are shown.
    """
    said = [line for line in tail if line.startswith(("ERROR", "error"))] or list(tail[-3:])
    head = f"{', '.join(wanted)} cannot be added"
    if any("conflict" in line.lower() or "ResolutionImpossible" in line for line in tail):
        head += ": it needs other versions than the image has"
    return "\n".join([head, *(f"  < {line}" for line in said)])
