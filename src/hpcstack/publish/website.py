"""The catalogue: a website of plain pages about all that is published, readable on a phone, too.

Tested in tests/integration/test_catalog.py.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from typing import TYPE_CHECKING, Any

from hpcstack import report as reports
from hpcstack.core.carried import check_carried_output
from hpcstack.core.clock import read_clock
from hpcstack.core.errors import HpcstackError, InputError, StoreError
from hpcstack.core.files import write_text
from hpcstack.hardware.compatibility import read_driver_needs
from hpcstack.publish import reports as proofs
from hpcstack.publish.audit import describe_vulnerabilities
from hpcstack.publish.gate import KNOWN_VULNERABILITIES, read_verdict
from hpcstack.recipe.model import Stack
from hpcstack.releases.layout import TCL
from hpcstack.releases.ledger import Dates, Entry, Ledger, make_version_key
from hpcstack.releases.records import ReleaseRecord, name_release_folder, read_record
from hpcstack.releases.tree import Tree, open_tree
from hpcstack.render.template import fill_page, read_data_file

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact
    from hpcstack.store.store import Store

MARK = "index.html"
MADE = "hpcstack catalog"  # stands in catalog.json: a folder without it is never replaced


def render_pages(site: Site, store: Store) -> dict[str, str]:
    """Return {file: text} of the catalogue.

    It has an index, a page for each version, the reports, a style sheet and a script; and
    catalog.json, which says the same to programs.
    """
    tree = open_tree(site)
    stacks, out = [], {}
    for name in tree.names():
        ledger = tree.ledger(name)
        for version in sorted(ledger.aliases, key=make_version_key, reverse=True):
            entry = ledger.entry(ledger.aliases[version])
            one = describe_version(tree, store, ledger, entry)
            stacks.append(one)
            report_page = _render_report(store, name, entry)
            if report_page:
                out[one["report"]] = report_page
            else:
                one["report"] = ""

    # as they are known now, not on the day of the release
    known = describe_vulnerabilities(_list_images(stacks, store), site)
    for one in stacks:
        one["vulnerabilities"] = known.get(one["key"], one["vulnerabilities"])

    shared = {
        "site": site.name,
        "modulepath": str(tree.core),
        "tclpath": str(tree.core.with_name(TCL)),
        "made": read_clock().strftime("%Y-%m-%d %H:%M UTC"),
    }
    for one in stacks:
        out[one["page"]] = fill_page("modules", "catalog-stack.html.j2", one=one, **shared)
    out[MARK] = fill_page("modules", "catalog-index.html.j2", stacks=stacks, **shared)

    keys = ("alias", "release", "stack", "channel", "sha256", "summary", "vulnerabilities", "page")
    rows = [{key: one[key] for key in keys} for one in stacks]
    document = {"made_by": MADE, "site": site.name, "stacks": rows}
    out["catalog.json"] = json.dumps(document, indent=1) + "\n"
    return out | {name: read_data_file("modules", name) for name in ("catalog.css", "catalog.js")}


def _list_images(stacks: list[dict[str, Any]], store: Store) -> list[Artifact]:
    """Return the images of STACKS that are whole."""
    out = {}
    for one in stacks:
        with contextlib.suppress(HpcstackError):
            artifact = store.artifact(one["key"])
            if artifact:
                out[artifact.key] = artifact
    return list(out.values())


def describe_version(tree: Tree, store: Store, ledger: Ledger, entry: Entry) -> dict[str, Any]:
    """Return all that a page says of ENTRY, the release that its version means.

    The keys are those that catalog-stack.html.j2 and catalog-index.html.j2 ask for.
    """
    record = _read_record_if_whole(store, ledger.name, entry)
    image = _describe_image(store, entry)
    dates = ledger.dates.get(entry.version, Dates())
    summary, commands = _describe_stack(record)
    stack = f"{ledger.name}-{entry.version}"
    versions = [f"{name}/{value}" for name, value in (*image["facts"], *image["pip"])]

    return {
        **image,
        **_describe_tests(entry),
        "alias": f"{ledger.name}/{entry.version}",
        "release": f"{ledger.name}/{entry.release}",
        "stack": stack,
        "page": f"{stack}.html",
        "report": f"{stack}-report.html",
        "channel": entry.channel,
        "default": ledger.default == entry.release,
        "summary": summary,
        "commands": commands,
        "fits": record.fits if record else [],
        "load": tree.how(ledger.name, entry.version),
        "sha256": entry.sha256,
        "key": entry.key,
        "made": entry.made[:10],
        "by": entry.by,
        "override": entry.override,
        "deprecate": dates.deprecate,
        "successor": dates.successor,
        "reason": dates.reason,
        "until": _describe_end(dates),
        "events": [one for one in reversed(ledger.events) if one.version in (entry.version, "")],
        # what the search of the index looks in
        "words": " ".join([ledger.name, entry.version, summary, *versions]).lower(),
    }


def _describe_image(store: Store, entry: Entry) -> dict[str, Any]:
    """Return what is in the image; empty values where the image is gone or damaged."""
    try:
        artifact = store.artifact(entry.key)
    except HpcstackError:
        artifact = None
    if artifact is None:
        nothing: dict[str, Any] = dict.fromkeys(("holds", "driver", "stand_in", "adopted"), "")
        packages: dict[str, Any] = {"facts": [], "pip": [], "conda": [], "apt": [], "unlisted": []}
        return {**packages, **nothing, "base": "its image is gone", "image": ""}

    facts = list(artifact.facts.items())
    least = read_driver_needs(artifact.environment).least
    return {
        "facts": facts,
        "holds": ", ".join(f"{name} {value}" for name, value in facts[:4]),
        "pip": sorted(artifact.pip.items(), key=lambda pair: pair[0].lower()),
        "conda": sorted(artifact.conda.items()),
        "apt": sorted(artifact.apt.items()),
        "driver": f"{least} or newer" if least else "",
        "stand_in": artifact.stand_in,
        "adopted": artifact.adopted,
        "unlisted": artifact.unlisted,
        "base": artifact.base,
        "image": str(artifact.image),
    }


def _describe_tests(entry: Entry) -> dict[str, Any]:
    """Return what the report says that ENTRY was published with, and how its verdict is shown."""
    verdict = entry.tested.get("verdict", "")
    date = entry.tested.get("date", "")
    tests = {name: said for name, said in entry.tested.items() if name != KNOWN_VULNERABILITIES}
    return {
        "tested": list(tests.items()),
        "vulnerabilities": entry.tested.get(KNOWN_VULNERABILITIES, ""),
        "verdict": f"{date} {verdict}" if verdict else "not tested",
        "verdict_class": read_verdict(entry.tested) or "soft",  # a class of catalog.css
    }


def _describe_end(dates: Dates) -> str:
    parts = ((dates.deprecate, "deprecated"), (dates.remove, "refused"))
    return ", ".join(f"{what} from {day}" for day, what in parts if day)


def _read_record_if_whole(store: Store, name: str, entry: Entry) -> ReleaseRecord | None:
    """Return the record of a release; None where it is damaged: a page shows what there is."""
    with contextlib.suppress(StoreError):
        return read_record(store, name, entry.release)
    return None


def _describe_stack(record: ReleaseRecord | None) -> tuple[str, list[str]]:
    """Return the summary and the commands of a release's stack.

    Both are empty where this version of hpcstack refuses the recipe that the release keeps.
    """
    if not record:
        return "", []
    try:
        stack = Stack.model_validate(record.stack)
    except ValueError:
        return "", []
    return stack.summary, list(stack.module.commands)


def _render_report(store: Store, name: str, entry: Entry) -> str:
    """Return the page of the report that a release was published with; empty without a report."""
    path = name_release_folder(store, name, entry.release) / "report.json"
    try:
        return reports.render_html(proofs.read_report(path)) if path.exists() else ""
    except InputError:
        return ""


def write_pages(files: dict[str, str], folder: Path) -> None:
    """Write FILES into FOLDER, which is replaced as a whole by a rename.

    InputError where FOLDER holds something that is not a catalogue.
    """
    check_carried_output(folder)
    folder = folder.resolve()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "name another with -o")
    if folder.is_dir() and any(folder.iterdir()) and not _is_catalogue(folder):
        raise InputError(
            f"{folder} contains something other than a catalogue", "name another with -o"
        )

    part = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.part")
    old = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.old")
    try:
        for name, text in files.items():
            write_text(part / name, text)
        if folder.exists():
            folder.rename(old)
        try:
            part.rename(folder)
        except OSError:
            if old.exists():
                old.rename(folder)  # the old catalogue is back in its place
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)


def _is_catalogue(folder: Path) -> bool:
    """Whether hpcstack wrote FOLDER, as its catalog.json says."""
    try:
        document = json.loads((folder / "catalog.json").read_text(encoding="utf-8"))
        return bool(document["made_by"] == MADE)
    except (OSError, ValueError, KeyError, TypeError):
        return False
