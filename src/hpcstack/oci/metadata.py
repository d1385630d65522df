"""Make the files that runtimes expect in an image.

They are Enroot's in /etc, Apptainer's in /.singularity.d, and mount points. They are put over the
image's layers as one more layer. What is needed only if no layer has it lies below them, as the
lowest layer. Enroot's files:
https://github.com/NVIDIA/enroot/blob/master/doc/image-format.md; Apptainer's:
https://apptainer.org/docs/user/main/environment_and_metadata.html.

Tested in tests/unit/oci/test_importer.py.
"""

from __future__ import annotations

import json
import tarfile
from typing import TYPE_CHECKING

from hpcstack.core.characters import VARIABLE
from hpcstack.core.quote import check_unbroken, join_lines, quote_sh, quote_words

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.oci.manifest import Image

Added = list[tuple[tarfile.TarInfo, bytes]]
ETC, SINGULARITY = "etc", ".singularity.d"
FOLDERS = {
    "dev": 0o755,
    "proc": 0o755,
    "sys": 0o755,
    "run": 0o755,
    "root": 0o700,
    "home": 0o755,
    "mnt": 0o755,
    "tmp": 0o1777,
    "etc": 0o755,
    "var": 0o755,
    "var/tmp": 0o1777,
}
LIBRARIES = """\
#!/bin/sh
# Where `apptainer exec --nv` binds the driver's libraries.
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
"""
EMPTY = ("etc/resolv.conf", "etc/hosts", "etc/rc.local")


def list_files_above(image: Image, provenance: str) -> Added:
    """Return the files that give the image's config in the form that each runtime reads.

    PROVENANCE is the image's name, for a comment in /etc/rc.
    """
    entrypoint, command = image.words("Entrypoint"), image.words("Cmd")
    texts = {
        f"{ETC}/environment": render_environment(image.environment),
        f"{ETC}/fstab": "",
        f"{ETC}/rc": render_entrypoint(
            image.workdir, entrypoint, command, name_provenance(provenance)
        ),
        **make_apptainer_files(image.environment, entrypoint, command, image.labels),
    }
    return [make_file_member(path, text) for path, text in texts.items()] + [
        make_folder_member(f"{SINGULARITY}/libs", 0o755),
        make_link_member("singularity", f"{SINGULARITY}/runscript"),
        make_link_member("environment", f"{SINGULARITY}/env/90-environment.sh"),
    ]


def list_files_below(image: Image) -> Added:
    """Return mount points, the working directory and empty files, for images that lack them."""
    folders = dict(FOLDERS)
    workdir = image.workdir.strip("/")
    if workdir and ".." not in workdir.split("/"):
        folders[workdir] = 0o755
    return [make_folder_member(path, mode) for path, mode in folders.items()] + [
        make_file_member(path, "") for path in EMPTY
    ]


def render_environment(variables: Mapping[str, str]) -> str:
    """Return /etc/environment, one variable a line."""
    return "".join(
        f"{name}={check_unbroken(value)}\n"
        for name, value in variables.items()
        if VARIABLE.fullmatch(name)
    )


def name_provenance(image: str) -> str:
    """Return the first line of an /etc/rc, as Enroot's import has it: where IMAGE came from."""
    return f"enroot-provenance: {image}"


def render_entrypoint(
    workdir: str,
    entrypoint: tuple[str, ...],
    command: tuple[str, ...],
    comment: str,
    sourced: str = "",
) -> str:
    """Return /etc/rc, which Enroot runs to start a container. Its first line is COMMENT.

    It changes to the working directory, sources the file SOURCED if one is named, and runs the
    entrypoint with the user's command, or with the image's own COMMAND. Without either, it runs
    /bin/sh.
    """
    default = command
    if not entrypoint and not command:
        default = ("/bin/sh",)
    entry = f"{quote_words(entrypoint)} " if entrypoint else ""
    folder = quote_sh(check_unbroken(workdir))
    source = f". {quote_sh(sourced)}\n" if sourced else ""

    # launchers/on-node/enroot.sh sets HPCSTACK_COMMAND_ONLY: a launch runs its command without the
    # entrypoint, as Pyxis and `apptainer exec` do. So no task writes a banner.
    alone = (
        'if [ -n "${HPCSTACK_COMMAND_ONLY:-}" ]; then\n    unset HPCSTACK_COMMAND_ONLY\n    exec '
        '"$@"\nfi\n'
    )
    return (
        f"# {join_lines(comment)}\n"
        f"mkdir -p {folder} 2>/dev/null\ncd {folder} && unset OLDPWD || exit 1\n\n"
        f"if [ -s /etc/rc.local ]; then\n    . /etc/rc.local\nfi\n{source}\n"
        f'{alone}if [ $# -gt 0 ]; then\n    exec {entry}"$@"\nelse\n    exec '
        f"{quote_words((*entrypoint, *default))}\nfi\n"
    )


def make_apptainer_files(
    variables: Mapping[str, str],
    entrypoint: tuple[str, ...],
    command: tuple[str, ...],
    labels: Mapping[str, str],
) -> dict[str, str]:
    """Return {path: text} of the files below /.singularity.d.

    They are the image's variables, what `apptainer run` starts, and the labels.
    """
    start = f"{quote_words(entrypoint)} " if entrypoint else ""
    words = command
    if not entrypoint and not command:
        words = ("/bin/sh",)
    default = quote_words(words)
    if entrypoint and not command:
        run = f'exec {start}"$@"\n'
    else:
        run = f'if [ $# -gt 0 ]; then\n    exec {start}"$@"\nfi\nexec {start}{default}\n'
    return {
        f"{SINGULARITY}/env/10-docker2singularity.sh": "#!/bin/sh\n" + render_exports(variables),
        f"{SINGULARITY}/env/90-environment.sh": "#!/bin/sh\n# A stack's own variables follow.\n",
        f"{SINGULARITY}/env/99-base.sh": LIBRARIES,
        f"{SINGULARITY}/runscript": f"#!/bin/sh\n{run}",
        f"{SINGULARITY}/labels.json": json.dumps(dict(labels), indent=1, sort_keys=True) + "\n",
    }


def render_exports(variables: Mapping[str, str]) -> str:
    """Return shell lines that export the image's variables under Apptainer.

    A value that is already set wins, except for PATH. Apptainer does the same with images that it
    converts from Docker's.
    """
    lines = []
    for name, value in variables.items():
        if not VARIABLE.fullmatch(name):
            continue
        check_unbroken(value)
        if name == "PATH":
            lines.append(f"export {name}={quote_sh(value)}\n")
            continue
        current = f"${{{name}:-}}"
        lines.append(f'if [ -z "{current}" ]; then {name}={quote_sh(value)}; fi\n')
        lines.append(f"export {name}\n")
    return "".join(lines)


def make_file_member(path: str, text: str) -> tuple[tarfile.TarInfo, bytes]:
    """Return a tar member for a file and its content; executable if it begins with `#!`."""
    data = text.encode("utf-8", "surrogateescape")
    out = tarfile.TarInfo(path)
    out.size = len(data)
    out.mode = 0o755 if text.startswith("#!") else 0o644
    return out, data


def make_folder_member(path: str, mode: int) -> tuple[tarfile.TarInfo, bytes]:
    """Return a tar member for a folder."""
    out = tarfile.TarInfo(path)
    out.type, out.mode = tarfile.DIRTYPE, mode
    return out, b""


def make_link_member(path: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    """Return a tar member for a symbolic link."""
    out = tarfile.TarInfo(path)
    out.type, out.linkname, out.mode = tarfile.SYMTYPE, target, 0o777
    return out, b""
