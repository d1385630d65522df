"""What source distributions are built with (PEP 517, PEP 518), by version and hash.

    python3 build_requirements.py REPORT OF_BASE WORK ANSWER

REPORT is what `pip install --dry-run --report` wrote, OF_BASE a folder of wheels that stand for
what the base brings, WORK a folder to work in. ANSWER becomes {"install": [as in a report of
pip's], "open": {"NAME VERSION": why it is not known}}.

Runs inside a base, whose Python may be old, and trusts no source distribution further than pip
does.
"""

import json
import os
import subprocess
import sys
import tarfile
import zipfile

# pip asks for these where a project names nothing; what pip asked for has changed over the years.
DEFAULT = ["setuptools>=40.8.0", "wheel"]
LEGACY = "setuptools.build_meta:__legacy__"

# PEP 517: what the backend wants beside what the project names. In an environment of its own, as
# pip has it: -S keeps the base's packages out, and the wheels of OF_BASE bring them in where the
# project names one of those.
ASK_BACKEND = """
import importlib, json, site, sys

environment, backend, backend_path, answer = json.loads(sys.argv[1])
site.addsitedir(environment)
sys.path[:0] = backend_path
module, _, attributes = backend.partition(":")
found = importlib.import_module(module)
for attribute in filter(None, attributes.split(".")):
    found = getattr(found, attribute)
ask = getattr(found, "get_requires_for_build_wheel", None)
wanted = list(ask(None)) if ask else []
with open(answer, "w") as file:
    json.dump(wanted, file)
"""


class NotKnown(Exception):
    """Why it cannot be said what a source distribution is built with."""


def run(argv, **options):
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    if done.returncode:
        said = [line for line in done.stdout.splitlines() if line.strip()]
        raise NotKnown(said[-1] if said else f"exit {done.returncode}")


def pip(*arguments):
    run([sys.executable, "-m", "pip", *arguments])


def unpack(archive, folder):
    """Unpack ARCHIVE into FOLDER; the one folder in it."""
    if archive.endswith(".zip"):
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(folder)
    else:
        with tarfile.open(archive) as opened:
            if hasattr(tarfile, "data_filter"):
                opened.extractall(folder, filter="data")
            else:
                opened.extractall(folder)
    (top,) = os.listdir(folder)
    return os.path.join(folder, top)


def build_system(project):
    """The table [build-system] of PROJECT's pyproject.toml; empty where it has none."""
    path = os.path.join(project, "pyproject.toml")
    if not os.path.isfile(path):
        return {}
    try:
        import tomllib
    except ImportError:  # before Python 3.11 pip brings one
        from pip._vendor import tomli as tomllib
    with open(path, "rb") as file:
        return tomllib.load(file).get("build-system", {})


def refuse_addresses(requirements):
    """What is fetched from an address of its own is asked of no index, and pip looks at no hash of
    it.
    """
    for requirement in requirements:
        if "@" in requirement.partition(";")[0]:
            raise NotKnown(f"it is built with {requirement}")


def resolve(requirements, environment, of_base, report, install):
    """What pip makes of REQUIREMENTS; where INSTALL says so, it goes into the folder ENVIRONMENT."""
    if not requirements:
        return []
    how = ["--target", environment] if install else ["--dry-run", "--ignore-installed"]
    # "--": a project's own words are no options of pip's.
    pip(
        "install",
        "--quiet",
        "--no-compile",
        "--only-binary",
        ":all:",
        "--find-links",
        of_base,
        "--report",
        report,
        *how,
        "--",
        *requirements,
    )
    with open(report) as file:
        return json.load(file)["install"]


def is_of_base(entry, of_base):
    return entry["download_info"]["url"].startswith("file://" + of_base)


def ask_backend(project, system, environment, work):
    """What the backend of PROJECT wants beside what [build-system] names."""
    answer = os.path.join(work, "wanted.json")
    backend_path = [os.path.join(project, path) for path in system.get("backend-path", [])]
    asked = json.dumps([environment, system.get("build-backend", LEGACY), backend_path, answer])
    path = os.pathsep.join([os.path.join(environment, "bin"), os.environ.get("PATH", "")])
    variables = dict(os.environ, PYTHONPATH=environment, PATH=path)
    run([sys.executable, "-S", "-c", ASK_BACKEND, asked], cwd=project, env=variables)
    with open(answer) as file:
        return [str(requirement) for requirement in json.load(file)]


def requirements_of(name, version, of_base, work):
    """What is installed into the build environment of NAME VERSION, as entries of pip's report."""
    os.makedirs(work)
    fetched, environment = os.path.join(work, "fetched"), os.path.join(work, "environment")
    pip(
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        name,
        "--find-links",
        of_base,
        "--dest",
        fetched,
        f"{name}=={version}",
    )
    (archive,) = os.listdir(fetched)
    project = unpack(os.path.join(fetched, archive), os.path.join(work, "source"))
    system = build_system(project)
    named = list(system.get("requires", DEFAULT))
    refuse_addresses(named)
    entries = resolve(named, environment, of_base, os.path.join(work, "named.json"), install=True)
    wanted = ask_backend(project, system, environment, work)
    refuse_addresses(wanted)
    if set(wanted) - set(named):
        entries += resolve(
            named + wanted, environment, of_base, os.path.join(work, "wanted.json"), install=False
        )
    return [entry for entry in entries if not is_of_base(entry, of_base)]


def main(report, of_base, work, answer):
    with open(report) as file:
        decided = json.load(file)["install"]
    found, unknown = [], {}
    for number, entry in enumerate(decided):
        if entry["download_info"]["url"].partition("#")[0].endswith(".whl"):
            continue
        name, version = entry["metadata"]["name"], entry["metadata"]["version"]
        print(f"what {name} {version} is built with", flush=True)
        try:
            needed = requirements_of(name, version, of_base, os.path.join(work, str(number)))
        except (NotKnown, OSError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
            unknown[f"{name} {version}"] = str(error)
            continue
        for one in needed:
            about = {key: one["metadata"][key] for key in ("name", "version")}
            found.append({"metadata": about, "download_info": one["download_info"]})
    with open(answer, "w") as file:
        json.dump({"install": found, "open": unknown}, file)


main(*sys.argv[1:])
