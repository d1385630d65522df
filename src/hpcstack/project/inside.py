"""Run uv inside an image, with the image's own Python.

It is the uv that hpcstack is installed with, never the image's: NVIDIA's images lost theirs.

Tested in tests/integration/test_projects.py.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack.core.descriptors import make_folder
from hpcstack.core.dirs import find_cache_home, find_config_home, find_data_home
from hpcstack.core.errors import InputError, MissingToolError
from hpcstack.core.files import read_text, remove_tree, write_text
from hpcstack.core.lease import make_label, remove_leftovers
from hpcstack.core.quote import quote_sh
from hpcstack.recipe.model import read_image_part
from hpcstack.render.site_files import CA_FILE, list_build_variables
from hpcstack.render.template import read_data_file
from hpcstack.runtimes import Step, choose_runtime
from hpcstack.site.logins import build_for, redact_logins

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from hpcstack.core.process import Completed, Runner
    from hpcstack.core.progress import Progress
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact

PREFIX = ".hpcstack-project-"  # of a folder that is lent; those of killed runs are removed
UV_PLACE = "/opt/hpcstack/uv"  # in the container
LENT = "/mnt"
UNUSED_DAYS = 60
# Of this machine's environment these would change what the image's Python has.
OF_THIS_MACHINE = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
# Where distributions keep the certificates that this machine trusts
SYSTEM_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
)
# pip's words in its files and in variables, and uv's for the same
PIP_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
}


@dataclass(frozen=True)
class Inside:
    """Where uv runs: the image, and `lent`, a folder that it sees as LENT."""

    artifact: Artifact
    site: Site
    runner: Runner
    progress: Progress
    lent: Path

    def run(
        self,
        words: tuple[str, ...],
        *,
        mounts: tuple[str, ...] = (),
        variables: Mapping[str, str] | None = None,
        workdir: Path = Path("/"),
    ) -> Completed:
        """Run launchers/in-image/project.sh with WORDS; its output is kept in `lent`/log.

        Its last lines are shown as well, unless it has failed: then the caller says why. The log holds
        no login.
        """
        script = read_data_file("launchers", "in-image/project.sh")
        cache = open_uv_cache(self.artifact)
        program = find_uv().parent
        step = Step(
            image=self.artifact.image,
            command=("/bin/sh", "-c", script, "project", *words),
            mounts=(
                *mounts,
                f"{self.lent}:{LENT}",
                f"{program}:{UV_PLACE}",
                f"{cache}:{cache}",
            ),
            workdir=workdir,
            environment={
                **{name: self.artifact.environment.get(name, "") for name in OF_THIS_MACHINE},
                "PYTHONNOUSERSITE": "1",
                "UV_CACHE_DIR": str(cache),
                **(variables or {}),
            },
            image_environment=self.artifact.environment,
        )
        runtime = choose_runtime(choose_local_runtime(self.site, self.runner), self.runner)[0]
        runtime.check_mounts(step)
        argv = [word for one in runtime.parts(step) for word in one.words]
        log = self.lent / "log"
        done = self.runner.logged(argv, log, env=runtime.environment(step))
        text = log.read_text(encoding="utf-8", errors="replace")
        write_text(log, redact_logins(text, self.site), 0o600)
        # but for the list of the packages that were installed
        lines = [line for line in done.tail if not line.lstrip().startswith("+ ")]
        for line in lines if done.status == 0 else ():
            self.progress(redact_logins(line, self.site))
        return done


def open_uv_cache(artifact: Artifact) -> Path:
    """Return the folder of uv's cache for the image of ARTIFACT; make it where it is missing.

    Programs of the image can write to it, so it is never the user's own cache of uv, nor another
    image's: what is installed from there runs elsewhere, too. Caches of images that were not used
    for UNUSED_DAYS are removed.
    """
    cache = _find_uv_folder() / artifact.sha256[:16]
    make_folder(cache)  # whatever the umask: others must not be able to swap what lies beside it
    os.utime(cache)
    for other in list_uv_caches():
        with contextlib.suppress(OSError):
            if other.lstat().st_mtime < time.time() - UNUSED_DAYS * 86400:
                remove_tree(other)
    return cache


def list_uv_caches() -> list[Path]:
    """Return the folders of uv's caches, one for each image that it was run in."""
    top = _find_uv_folder()
    return list(top.iterdir()) if top.is_dir() else []


def _find_uv_folder() -> Path:
    named = os.environ.get("UV_CACHE_DIR")
    return Path(named) / "hpcstack" if named else find_cache_home() / "hpcstack/uv"


def choose_local_runtime(site: Site, runner: Runner) -> str:
    """Return the runtime for uv: on this machine, without Slurm, wherever Apptainer is installed."""
    return "local" if runner.has("apptainer") else site.runtime


def find_uv() -> Path:
    """Return the path of uv's program. Raise MissingToolError where hpcstack has none."""
    try:
        from uv import find_uv_bin

        return Path(find_uv_bin())
    except (ImportError, FileNotFoundError):
        raise MissingToolError(
            "uv is missing: it chooses and installs packages",
            "install hpcstack again, with its dependencies: pip install hpcstack",
            page="install",
        ) from None


@contextlib.contextmanager
def open_inside(
    artifact: Artifact, site: Site, runner: Runner, progress: Progress
) -> Iterator[Inside]:
    """Yield where uv can be run in the image of ARTIFACT; what was lent to it is removed at the end.

    The folder is on this machine's own disk, unless a node must see it.
    """
    above = Path(tempfile.gettempdir())
    if choose_local_runtime(site, runner) != "local":
        above = find_data_home() / "hpcstack" / "projects"
        above.mkdir(parents=True, exist_ok=True)
    remove_leftovers(above, PREFIX, _remove_tree)
    lent = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{make_label()}", dir=above))
    try:
        _lend(lent, artifact, site)
        yield Inside(artifact, site, runner, progress, lent)
    finally:
        _remove_tree(lent)


def _remove_tree(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _lend(folder: Path, artifact: Artifact, site: Site) -> None:
    """Write into FOLDER what uv is to know of this site and this user.

    Proxy, package index and certificates may come with a login, so they are handed over in a file
    that only the user can read, and not on a command line. The site's are lent as for a build on
    the same base; the user's own settings of pip win.
    """
    build = build_for(site, read_image_part(artifact.base, "registry"))
    of_the_site = list_build_variables(build)
    variables = {name: value for name, value in of_the_site.items() if not name.startswith("PIP_")}
    for word, name in PIP_SETTINGS.items():
        value = of_the_site.get(f"PIP_{word.replace('-', '_').upper()}", "")
        if value:
            variables[name] = value
    variables |= read_pip_settings(os.environ)

    certificates = find_certificates(site)
    if certificates:
        shutil.copyfile(certificates, folder / CA_FILE)
        variables["SSL_CERT_FILE"] = f"{LENT}/{CA_FILE}"
    # What the user has set for uv counts more than the site's settings.
    exports = [
        f"export {name}={quote_sh(value)}\n"
        for name, value in variables.items()
        if not (name.startswith("UV_") and name in os.environ)
    ]
    write_text(folder / "lent.sh", "".join(exports), 0o600)
    base = read_data_file("launchers", "in-image/project_base.py")
    write_text(folder / "project_base.py", base)


def find_certificates(site: Site) -> Path | None:
    """Return the file of certificates that servers are checked by; None for uv's own."""
    named = [site.build.ca_bundle, os.environ.get("PIP_CERT"), os.environ.get("SSL_CERT_FILE")]
    for one in (*named, *SYSTEM_CERTIFICATES):
        if one and Path(one).is_file():
            return Path(one)
    return None


def read_pip_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the user has set for pip, in uv's words: {variable: value}.

    Settings of uv's own stay in the environment, where uv reads them. Only URLs count: a folder of
    this machine is not in the container.
    https://pip.pypa.io/en/stable/topics/configuration/
    """
    found: dict[str, str] = {}
    home = Path(environ.get("HOME", "/"))
    files = [home / ".pip/pip.conf", find_config_home(environ) / "pip/pip.conf"]
    if environ.get("PIP_CONFIG_FILE"):
        files.append(Path(environ["PIP_CONFIG_FILE"]))
    for path in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(read_text(path.resolve(), 1 << 20))
        except (OSError, InputError, UnicodeDecodeError, configparser.Error):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {name.replace("_", "-"): value for name, value in parser.items(section)}

    out = {}
    for word, name in PIP_SETTINGS.items():
        said = environ.get(f"PIP_{word.replace('-', '_').upper()}") or found.get(word, "")
        values = [one for one in said.split() if word == "trusted-host" or "://" in one]
        values = [one for one in values if not one.startswith("file:")]
        if values and name not in environ:
            out[name] = " ".join(values)
    return out
