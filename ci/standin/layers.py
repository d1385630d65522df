"""The layers of a stand-in image, as gzip files: Debian, torch's CPU build, and what makes it the
month's.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from rpm_based import make_rpm_script

LAYOUT = 2  # of what is in a layer: kept ones of another are not taken
SUITE = "bookworm"
PYTHON = "3.11"
TORCH = "2.13.0+cpu"
NUMPY = "1.26.4"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
PACKAGES = "python3,python3-pip,python-is-python3,ca-certificates,iproute2,procps"
SITE_PACKAGES = f"usr/local/lib/python{PYTHON}/dist-packages"

ENTRYPOINT_FILE = "/opt/nvidia/nvidia_entrypoint.sh"
ENTRYPOINT = """#!/bin/bash
# Stand-in of NVIDIA's entrypoint: the parts in entrypoint.d in order, then the command.
for part in /opt/nvidia/entrypoint.d/*; do
    [ -r "$part" ] || continue
    case "$part" in
    *.txt) cat "$part" ;;
    *.sh) . "$part" ;;
    esac
done
if [ $# -eq 0 ]; then exec /bin/bash; else exec "$@"; fi
"""


def as_root(*argv: str, **options: object) -> None:
    """Run ARGV as root of this machine, or of a user namespace with the caller's subordinate ids."""
    prefix = () if os.getuid() == 0 else ("unshare", "--map-root-user", "--map-auto", "--mount")
    run(*prefix, *argv, **options)


def run(*argv: str, **options: object) -> None:
    print("  >", " ".join(argv)[:160], flush=True)
    subprocess.run(argv, check=True, **options)  # type: ignore[call-overload]


def wheels(cache: Path) -> Path:
    """A folder of the wheels of torch's CPU build and what it needs, for the image's Python."""
    folder = cache / "wheels"
    if (folder / ".complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    common = ["python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "-d", str(folder),
              "--python-version", PYTHON, "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64",
              "--platform", "manylinux2014_x86_64"]  # fmt: skip
    try:
        run(*common, "--no-deps", f"torch=={TORCH}", stderr=subprocess.DEVNULL)
    except subprocess.CalledProcessError:
        run(*common, "--no-deps", "--index-url", TORCH_INDEX, f"torch=={TORCH}")
    torch = next(folder.glob("torch-*.whl"))
    run(
        *common,
        "--find-links",
        str(folder),
        str(torch),
        f"numpy=={NUMPY}",
        "setuptools<81",
        "wheel",
    )
    (folder / ".complete").touch()
    return folder


def unpack_root(archive: Path, root: Path) -> None:
    """Unpack ARCHIVE into the new folder ROOT, without devices and this machine's resolv.conf."""
    root.mkdir(parents=True)
    as_root(
        "tar",
        "-xf",
        str(archive),
        "-C",
        str(root),
        "--exclude=./dev/*",
        "--exclude=./etc/resolv.conf",
    )


def debian_root(cache: Path, root: Path) -> None:
    """A Debian root folder with Python and pip."""
    archive = cache / "debian.tar"
    if not archive.exists():
        run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}",
            "--aptopt=Acquire::Retries \"3\"", SUITE, f"{archive}.part.tar")  # fmt: skip
        os.replace(f"{archive}.part.tar", archive)
    unpack_root(archive, root)


def install(root: Path, wheel_folder: Path, packages: list[str]) -> None:
    """PACKAGES into the root, from WHEEL_FOLDER alone, by the root's own pip and without a network."""
    inside = root / "tmp" / "wheels"
    as_root("cp", "-r", str(wheel_folder), str(inside))
    argv = ("python3", "-m", "pip", "install", "--quiet", "--no-index", "--find-links=/tmp/wheels",
               "--break-system-packages", "--root-user-action=ignore")  # fmt: skip
    # pip leaves bytecode: each rank would compile torch again, in an image that it cannot write to. With this variable
    # there are no times in it (PEP 552).
    clean = {
        "SOURCE_DATE_EPOCH": "1704067200",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LC_ALL": "C.UTF-8",
    }
    as_root("chroot", str(root), *argv, *packages, env=clean)
    as_root("rm", "-rf", str(inside))


def gzip_of(tar: Path) -> Path:
    """TAR compressed beside it by pigz; the plain file is removed.

    No name or time in the header.
    """
    out = tar.with_suffix(".tar.gz")
    with tar.open("rb") as source, out.open("wb") as sink:
        subprocess.run(["pigz", "-n", "-c", "-3"], stdin=source, stdout=sink, check=True)
    tar.unlink()
    return out


def diff_id(gz: Path) -> str:
    process = subprocess.Popen(["pigz", "-dc", str(gz)], stdout=subprocess.PIPE)
    digest = hashlib.sha256()
    assert process.stdout
    while block := process.stdout.read(1 << 20):
        digest.update(block)
    if process.wait():
        raise SystemExit(f"cannot read {gz} back")
    return f"sha256:{digest.hexdigest()}"


def common_layers(cache: Path) -> list[Path]:
    """The two layers that every month shares: Debian, and torch with what it needs."""
    out = [cache / "debian-layer-2.tar.gz", cache / "torch-layer-2.tar.gz"]
    if all(path.exists() for path in out):
        return out
    root = cache / "root"
    as_root("rm", "-rf", str(root))
    debian_root(cache, root)
    layer = cache / "debian-layer-2.tar"
    as_root("tar", "-cf", str(layer), "--sort=name", "--numeric-owner", "-C", str(root), ".")
    install(root, wheels(cache), [f"torch=={TORCH}", f"numpy=={NUMPY}", "setuptools", "wheel"])
    old = root / "opt/pytorch/examples"
    as_root("mkdir", "-p", str(old))
    as_root("touch", str(old / "hidden-by-the-opaque-directory.txt"))
    second = cache / "torch-layer-2.tar"
    as_root(
        "tar",
        "-cf",
        str(second),
        "--sort=name",
        "--numeric-owner",
        "-C",
        str(root),
        "usr/local",
        "opt/pytorch",
    )
    as_root("rm", "-rf", str(root))
    return [gzip_of(layer), gzip_of(second)]


# Debian's archive as Ubuntu 24.04 writes its own down: one file of stanzas, which name the key.
DEB822 = """\
Types: deb
URIs: http://deb.debian.org/debian
Suites: {suite} {suite}-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://security.debian.org/debian-security
Suites: {suite}-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
"""


def own_layer(cache: Path, facts: dict[str, object]) -> Path:
    """All of a stand-in that has packages of its own: Debian with those of apt, then those of pip,
    in one layer.

    A framework's CPU build, or a compiler and an MPI: what the suite's checks of that stack run on.
    `suite`: another Debian than the usual one; `deb822`: its sources are stanzas.
    """
    packages = facts["packages"]
    assert isinstance(packages, dict)
    layer = (
        cache
        / f"own-{hashlib.sha256(json.dumps([LAYOUT, packages], sort_keys=True).encode()).hexdigest()[:12]}.tar"
    )
    if layer.with_suffix(".tar.gz").exists():
        return layer.with_suffix(".tar.gz")
    root, archive = cache / "root", cache / "own.tar"
    as_root("rm", "-rf", str(root))
    include = ",".join([PACKAGES, *packages.get("apt", [])])
    suite = str(packages.get("suite", SUITE))
    sources = []
    if packages.get("deb822"):
        (cache / "debian.sources").write_text(DEB822.format(suite=suite))
        sources = [str(cache / "debian.sources")]
    run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={include}", "--aptopt=Acquire::Retries \"3\"", suite,
        str(archive), *sources)  # fmt: skip
    unpack_root(archive, root)
    archive.unlink()
    if pip := packages.get("pip", []):
        folder = cache / "own-wheels"
        shutil.rmtree(folder, ignore_errors=True)
        run("python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "-d", str(folder),
            "--python-version", PYTHON, "--only-binary", ":all:", "--platform", "manylinux_2_28_x86_64",
            "--platform", "manylinux_2_17_x86_64", "--platform", "manylinux2014_x86_64", *pip)  # fmt: skip
        install(root, folder, pip)
        shutil.rmtree(folder)
    if "rpm" in packages:
        as_root("chroot", str(root), "bash", "-c", make_rpm_script(packages["rpm"]))
    as_root("tar", "-cf", str(layer), "--sort=name", "--numeric-owner", "-C", str(root), ".")
    as_root("rm", "-rf", str(root))
    return gzip_of(layer)


def foreign_layer(cache: Path, architecture: str, packages: list[str]) -> Path:
    """A Debian root of another ARCHITECTURE, as apt calls it: PACKAGES unpacked, and none of their
    scripts run.
    """
    about = json.dumps([LAYOUT, SUITE, architecture, packages])
    layer = cache / f"foreign-{hashlib.sha256(about.encode()).hexdigest()[:12]}.tar"
    if layer.with_suffix(".tar.gz").exists():
        return layer.with_suffix(".tar.gz")
    root, archive = cache / "root", cache / "foreign.tar"
    as_root("rm", "-rf", str(root))
    run("mmdebstrap", "--quiet", f"--arch={architecture}", "--variant=extract", f"--include={','.join(packages)}",
        "--aptopt=Acquire::Retries \"3\"", SUITE, str(archive))  # fmt: skip
    unpack_root(archive, root)
    archive.unlink()
    as_root("tar", "-cf", str(layer), "--sort=name", "--numeric-owner", "-C", str(root), ".")
    as_root("rm", "-rf", str(root))
    return gzip_of(layer)


class Layer:
    """One layer written entry by entry."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tar = tarfile.open(path, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.folders: set[str] = set()

    def folder(self, name: str) -> None:
        if name and name not in self.folders:
            self.folder(os.path.dirname(name))
            self.folders.add(name)
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            self.tar.addfile(info)

    def file(self, name: str, text: str | bytes, mode: int = 0o644) -> None:
        self.folder(os.path.dirname(name))
        data = text.encode() if isinstance(text, str) else text
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), mode
        self.tar.addfile(info, io.BytesIO(data))

    def link(self, name: str, target: str) -> None:
        self.folder(os.path.dirname(name))
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self.tar.addfile(info)

    def hard_link(self, name: str, target: str) -> None:
        self.folder(os.path.dirname(name))
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.LNKTYPE, target
        self.tar.addfile(info)

    def done(self) -> Path:
        self.tar.close()
        return gzip_of(self.path)


def retag_torch(layer: Layer, torch_layer: Path, version: str) -> None:
    """torch says NVIDIA's version, in its metadata and in version.py; the old metadata is whited
    out.
    """
    old, new = f"torch-{TORCH}.dist-info", f"torch-{version}.dist-info"
    layer.file(f"{SITE_PACKAGES}/.wh.{old}", "")
    with tarfile.open(torch_layer, "r:gz") as tar:
        for member in tar:
            if member.name.startswith(f"{SITE_PACKAGES}/{old}/") and member.isfile():
                data = tar.extractfile(member)
                assert data
                text = data.read()
                name = member.name.rpartition("/")[2]
                if name == "METADATA":
                    text = text.replace(
                        f"Version: {TORCH}".encode(), f"Version: {version}".encode(), 1
                    )
                if name == "RECORD":
                    text = text.replace(old.encode(), new.encode())
                layer.file(member.name.replace(old, new), text)
            elif member.name == f"{SITE_PACKAGES}/torch/version.py":
                data = tar.extractfile(member)
                assert data
                source = data.read().decode()
                layer.file(
                    member.name,
                    re.sub(r"__version__ = '[^']*'", f"__version__ = '{version}'", source),
                )


def _file_name(facts: dict[str, object]) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", f"{facts['repository']}-{facts['tag']}")


def plain_layer(cache: Path, facts: dict[str, object]) -> Path:
    """The layer of a stand-in without torch: its working directory and entrypoint, and a file that
    says what it is.
    """
    layer = Layer(cache / f"plain-{_file_name(facts)}.tar")
    layer.file(
        "opt/stand-in.txt", f"Stand-in of {facts['repository']}:{facts['tag']}\n{facts['about']}\n"
    )
    if facts.get("entrypoint") == [ENTRYPOINT_FILE]:
        layer.file(ENTRYPOINT_FILE.lstrip("/"), ENTRYPOINT, 0o755)
    if workdir := str(facts.get("workdir") or "").strip("/"):
        layer.folder(workdir)
    return layer.done()


DPKG = "var/lib/dpkg"


def add_packages(layer: Layer, below: Path, packages: list[dict[str, object]]) -> None:
    """dpkg's records of PACKAGES ({name, version, hold, files}) over those of the layer BELOW, and
    none of their files: so NVIDIA's images have what somebody installed by `dpkg -i` and then
    removed in part.
    """
    with tarfile.open(below, "r:gz") as tar:
        status = tar.extractfile(
            next(one for one in tar if one.name.lstrip("./") == f"{DPKG}/status")
        )
        assert status
        text = status.read().decode().rstrip("\n") + "\n"
    for package in packages:
        wanted = "hold" if package.get("hold") else "install"
        text += (
            f"\nPackage: {package['name']}\nStatus: {wanted} ok installed\nPriority: "
            f"optional\nSection: net\n"
            f"Maintainer: stand-in <nobody@example.invalid>\nArchitecture: amd64\nVersion: "
            f"{package['version']}\n"
            "Description: stand-in\n"
        )
        files = package.get("files", [])
        assert isinstance(files, list)
        layer.file(
            f"{DPKG}/info/{package['name']}.list", "".join(f"{path}\n" for path in ["/.", *files])
        )
    layer.file(f"{DPKG}/status", text)


def files_layer(cache: Path, facts: dict[str, object], below: Path) -> Path:
    """The layer of what the facts say of single files: {path: {text, mode}, or {link: to what}};
    and of `dpkg`.
    """
    files, packages = facts["files"], facts.get("dpkg", [])
    assert isinstance(files, dict) and isinstance(packages, list)
    layer = Layer(cache / f"files-{_file_name(facts)}.tar")
    if packages:
        add_packages(layer, below, packages)
    for path, about in files.items():
        if "link" in about:
            layer.link(path.lstrip("/"), about["link"])
        else:
            layer.file(path.lstrip("/"), about["text"], int(about.get("mode", "0644"), 8))
    return layer.done()


def month_layer(cache: Path, facts: dict[str, object], torch_layer: Path) -> Path:
    """The layer that turns the common ones into the stand-in of one month."""
    version = str(facts["torch_version"])
    layer = Layer(cache / f"month-{_file_name(facts)}.tar")
    if version != TORCH:  # nobody knows which torch that image has
        retag_torch(layer, torch_layer, version)
    layer.file("opt/pytorch/examples/.wh..wh..opq", "")
    layer.file(
        "opt/pytorch/examples/README.md", f"Stand-in of {facts['repository']}:{facts['tag']}\n"
    )
    layer.file("opt/nvidia/nvidia_entrypoint.sh", ENTRYPOINT, 0o755)
    layer.hard_link("usr/local/bin/nvidia_entrypoint.sh", "opt/nvidia/nvidia_entrypoint.sh")
    layer.folder("workspace")
    return layer.done()
