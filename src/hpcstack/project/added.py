"""What a launch adds to its image: a project's packages, packed as one squashfs, and the project
itself, live.

    planned = plan_added(request, artifact, environ)   # nothing is made, nothing is asked
    make_added(planned, ...)                           # locks, installs and packs what is missing

The squashfs files lie in the user's data folder, named after what is in them: projects that need
the same share one. A link to the file is named after what was asked for, so an unchanged project is
found by one look.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from hpcstack.core.errors import InputError
from hpcstack.core.files import write_text
from hpcstack.core.lease import hold_lease
from hpcstack.core.names import ADDED as PLACE
from hpcstack.project import own_package
from hpcstack.project.lock_file import (
    ProjectLock,
    compare_locks,
    digest_image,
    name_lock_file,
    read_project_lock,
)
from hpcstack.project.own_package import OwnPackages, describe_own_packages
from hpcstack.project.packed import (
    find_projects_folder,
    make_packed,
    note_wanted,
    renew_use,
    sweep_projects,
)
from hpcstack.project.resolve import lock_project
from hpcstack.requirements.inputs import Inputs, read_inputs
from hpcstack.requirements.project_files import PYPROJECT, read_toml
from hpcstack.runtimes.base import SEPARATORS
from hpcstack.runtimes.squashfs_mounts import SquashfsMount

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import Any

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Progress
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact

# Runs a command with what was added before the image's own. As in a virtual environment, what the
# user has put into PYTHONPATH comes before it. Arguments: the folders of modules; `--`; the command.
USE = f"""\
PATH={own_package.PLACE}/bin:{PLACE}/bin:$PATH
add() {{ [ ! -d "$1" ] || PYTHONPATH=${{PYTHONPATH:+$PYTHONPATH:}}$1; }}
while [ "$1" != -- ]; do
    add "$1"
    shift
done
shift
for one in {own_package.PLACE}/site {PLACE}/lib/python3*/site-packages; do add "$one"; done
export PATH PYTHONPATH
exec "$@"
"""


@dataclass(frozen=True)
class Added:
    """What is added to one image: `inputs` say what, `own` is the project and other packages of the
    user's own.

    `packages` were named by hand. `lock` is what was locked before, if it is current. `file` is the
    link to the squashfs file; without a lock, it is one of this launch's own.
    """

    inputs: Inputs
    packages: tuple[str, ...]
    lock: ProjectLock | None
    lock_path: Path
    file: Path
    own: OwnPackages | None = None

    @property
    def wanted(self) -> tuple[str, ...]:
        """What was asked for, for people."""
        folder = (str(self.inputs.folder),) if self.inputs.folder else ()
        return (*folder, *self.inputs.requirements)

    @property
    def squashfs(self) -> SquashfsMount:
        return SquashfsMount(self.file, self.file.stem, PLACE)

    def list_mounts(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Return the mounts, SOURCE:TARGET, of the packages and of the project."""
        if not self.own:
            return (self.squashfs.mount,)
        return (
            self.squashfs.mount,
            *(f"{folder}:{folder}" for folder in self.own.folders),
            f"{self.own.find_place(environ)}:{own_package.PLACE}",
        )

    def command(self, inside: tuple[str, ...]) -> tuple[str, ...]:
        """Return the command INSIDE, run with what was added before the image's own."""
        roots = [str(one) for one in self.own.roots] if self.own else []
        return ("/bin/sh", "-c", USE, "with", *roots, "--", *inside)


def plan_added(
    artifact: Artifact,
    folder: Path | None,
    packages: tuple[str, ...],
    environ: Mapping[str, str],
    extras: tuple[str, ...] = (),
    groups: tuple[str, ...] = (),
) -> Added:
    """Return what the project in FOLDER and PACKAGES, which are named by hand, add to ARTIFACT.

    A lock for the image that the project has is followed if it is current. EXTRAS and GROUPS of its
    pyproject.toml are as the lock has them where none are given. Raise InputError for what cannot
    be read.
    """
    if folder:
        folder = folder.resolve()
        _check_mountable(folder)
    top = find_projects_folder(environ)
    _check_mountable(top)
    lock_path = _find_lock_path(folder, packages, artifact, environ)
    found = read_project_lock(lock_path)
    inputs = read_inputs(folder, packages, extras, groups)
    if found and not (extras or groups):
        extras, groups = _list_locked_extras(found, inputs)
        if extras or groups:
            inputs = read_inputs(folder, packages, extras, groups)

    image = digest_image(artifact)
    lock = found if found and found.fits(inputs.digest, image) else None
    # What will be locked is not known yet: such a link is not found by another launch.
    asked = lock.render() if lock else uuid.uuid4().hex
    about = "\0".join([inputs.digest, image, artifact.sha256, asked])
    name = hashlib.sha256(about.encode()).hexdigest()[:32]
    own = None
    if folder:
        for one in inputs.own:
            _check_mountable(one)
        own = describe_own_packages([folder, *inputs.own])
    return Added(inputs, packages, lock, lock_path, top / "asked" / f"{name}.sqsh", own)


def _list_locked_extras(
    lock: ProjectLock, inputs: Inputs
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the extras and the groups that LOCK was made with and the project still has."""
    if not inputs.folder or PYPROJECT not in [path.name for path in inputs.files]:
        return (), ()
    document = read_toml(inputs.folder / PYPROJECT)
    project = document.get("project", {})
    return (
        _keep_known(lock.about.get("extras", ()), project.get("optional-dependencies")),
        _keep_known(lock.about.get("groups", ()), document.get("dependency-groups")),
    )


def _keep_known(names: Iterable[str], table: dict[str, Any] | None) -> tuple[str, ...]:
    """Return those of NAMES that are keys of TABLE, in whatever spelling.

    All of them where there is no TABLE: a build backend may know them.
    """
    if table is None:
        return tuple(names)
    known = {canonicalize_name(key) for key in table}
    return tuple(name for name in names if canonicalize_name(name) in known)


def _check_mountable(folder: Path) -> None:
    """Raise InputError for a FOLDER that no runtime can mount.

    The one of the launch says what else it does not take (`Runtime.check_mounts`).
    """
    if SEPARATORS.search(str(folder)):
        raise InputError(
            f"{folder} cannot be mounted: its path has a ':', a ',' or a new line",
            "move the project, or set XDG_DATA_HOME to another folder",
            page="your-own-project",
        )


def _find_lock_path(
    folder: Path | None, packages: tuple[str, ...], artifact: Artifact, environ: Mapping[str, str]
) -> Path:
    """Return where the lock is: in the project, or in the user's data folder.

    It is not in the project where packages were named besides, or the user may not write there.
    """
    name = name_lock_file(artifact.stack)
    if folder and not packages and ((folder / name).exists() or os.access(folder, os.W_OK)):
        return folder / name
    about = "\0".join([str(folder), *sorted(packages), digest_image(artifact)])
    digest = hashlib.sha256(about.encode()).hexdigest()[:32]
    return find_projects_folder(environ) / "locks" / digest / name


def make_added(
    planned: Added,
    artifact: Artifact,
    site: Site,
    runner: Runner,
    progress: Progress,
    environ: Mapping[str, str],
) -> None:
    """Make what of PLANNED is missing: the lock, and the squashfs file of the packages.

    Two launches that want the same make it once. Nothing half-made is seen: the file appears by a
    rename, and the link after it. Raise InputError where versions do not fit, BuildError where they
    cannot be installed.
    """
    if planned.own:
        planned.own.write(environ)
        renew_use(planned.own.find_place(environ))
    if planned.lock and planned.lock_path.is_relative_to(find_projects_folder(environ)):
        renew_use(planned.lock_path.parent)
    if planned.file.exists():
        renew_use(planned.file)
        return
    planned.file.parent.mkdir(parents=True, exist_ok=True)
    folder = find_projects_folder(environ)
    with hold_lease(folder / "lease", progress, planned.file.exists) as is_to_be_made:
        if not is_to_be_made or planned.file.exists():
            return
        lock = planned.lock or make_lock_file(planned, artifact, site, runner, progress)
        packed = folder / f"{lock.name_contents(artifact)}.sqsh"
        if packed.exists():
            note_wanted(packed, planned.wanted)
        else:
            sweep_projects(folder, time.time())
            folders = [planned.inputs.folder] if planned.inputs.folder else []
            make_packed(lock, packed, folders, planned.wanted, artifact, site, runner, progress)
        _link(planned.file, packed)
        # With the lock that is there now, the next launch asks by another name. It may be another
        # one than was followed here: somebody has locked or switched branches meanwhile.
        again = plan_added(artifact, planned.inputs.folder, planned.packages, environ)
        if again.lock and again.lock.name_contents(artifact) == lock.name_contents(artifact):
            _link(again.file, packed)


def make_lock_file(
    planned: Added,
    artifact: Artifact,
    site: Site,
    runner: Runner,
    progress: Progress,
    *,
    upgrade: bool = False,
) -> ProjectLock:
    """Lock what PLANNED asks for, and write the lock where it belongs.

    The versions of the lock that was there are kept as far as they fit, unless UPGRADE.
    """
    before = read_project_lock(planned.lock_path)
    inputs = planned.inputs
    lock = lock_project(inputs, artifact, site, runner, progress, None if upgrade else before)
    now = read_inputs(inputs.folder, planned.packages, inputs.extras, inputs.groups)
    if now.digest != inputs.digest:
        raise InputError(
            f"the files of {inputs.folder} changed while versions were chosen",
            "type the same command again",
            page="your-own-project",
        )
    about = lock.about
    if about["instead"]:
        said = ", ".join(f"{name} {how}" for name, how in about["instead"].items())
        progress(f"other versions than your own lock has: {said}")
    about["extras"] = list(planned.inputs.extras)
    about["groups"] = list(planned.inputs.groups)
    if before:
        changes = [str(change) for change in compare_locks(before, lock)]
        progress(f"compared with the lock before: {', '.join(changes) or 'nothing changed'}")
    planned.lock_path.parent.mkdir(parents=True, exist_ok=True)
    write_text(planned.lock_path, lock.render())
    return lock


def _link(link: Path, packed: Path) -> None:
    """Make LINK lead to PACKED, by a rename."""
    part = link.with_name(f".{link.name}.{uuid.uuid4().hex[:8]}")
    part.symlink_to(os.path.relpath(packed, link.parent))
    part.rename(link)
