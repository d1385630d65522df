"""A site of plain pages about everything that is published: found, read and copied from, also on a
phone.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from hpcstack import report as reports
from hpcstack.core.errors import HpcstackError, InputError, StoreError
from hpcstack.core.files import write_text
from hpcstack.hardware.compatibility import driver_of
from hpcstack.publish import reports as proofs
from hpcstack.recipe.model import Stack
from hpcstack.releases.layout import TCL
from hpcstack.releases.ledger import Dates, Entry, Ledger, make_version_key
from hpcstack.releases.records import ReleaseRecord, read_record
from hpcstack.releases.tree import Tree
from hpcstack.render.template import fill_page, read_data_file

if TYPE_CHECKING:
    from pathlib import Path

    from hpcstack.site.load import Site
    from hpcstack.store.store import Store

MARK = "index.html"
MADE = "hpcstack catalog"  # in a file of ours: what is not ours is never replaced


def render_pages(site: Site, store: Store) -> dict[str, str]:
    """{file: text} of the catalogue: an index, a page a version, the reports, a style and a script."""
    tree = Tree(site.module_tree)
    stacks, out = [], {}
    for name in tree.names():
        ledger = tree.ledger(name)
        for version in sorted(ledger.aliases, key=make_version_key, reverse=True):
            entry = ledger.entry(ledger.aliases[version])
            one = describe_version(tree, store, ledger, entry)
            stacks.append(one)
            if found := _report(store, name, entry):
                out[one["report"]] = found
            else:
                one["report"] = ""
    shared = {
        "site": site.name,
        "modulepath": str(tree.core),
        "tclpath": str(tree.core.with_name(TCL)),
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
    }
    for one in stacks:
        out[one["page"]] = fill_page("modules", "catalog-stack.html.j2", one=one, **shared)
    out[MARK] = fill_page("modules", "catalog-index.html.j2", stacks=stacks, **shared)
    rows = [
        {
            key: one[key]
            for key in ("alias", "release", "stack", "channel", "sha256", "summary", "page")
        }
        for one in stacks
    ]
    out["catalog.json"] = (
        json.dumps({"made_by": MADE, "site": site.name, "stacks": rows}, indent=1) + "\n"
    )
    return out | {name: read_data_file("modules", name) for name in ("catalog.css", "catalog.js")}


def describe_version(tree: Tree, store: Store, ledger: Ledger, entry: Entry) -> dict[str, Any]:
    """All that a page says of what one version means."""
    record, image = _record(store, ledger.name, entry), _image(store, entry)
    dates = ledger.dates.get(entry.version, Dates())
    summary, commands = _said_of_stack(record)
    base = f"{ledger.name}-{entry.version}"
    versions = [f"{name}/{value}" for name, value in (*image["facts"], *image["pip"])]
    return {
        **image,
        **_tested(entry),
        "alias": f"{ledger.name}/{entry.version}",
        "release": f"{ledger.name}/{entry.release}",
        "stack": base,
        "page": f"{base}.html",
        "report": f"{base}-report.html",
        "channel": entry.channel,
        "default": ledger.default == entry.release,
        "summary": summary,
        "commands": commands,
        "fits": record.fits if record else [],
        "load": tree.how(ledger.name, entry.version),
        "sha256": entry.sha256,
        "made": entry.made[:10],
        "by": entry.by,
        "override": entry.override,
        "deprecate": dates.deprecate,
        "successor": dates.successor,
        "reason": dates.reason,
        "until": _until(dates),
        "events": [one for one in reversed(ledger.events) if one.version in (entry.version, "")],
        "words": " ".join([ledger.name, entry.version, summary, *versions]).lower(),
    }


def _image(store: Store, entry: Entry) -> dict[str, Any]:
    """What is in the image, as far as it is still there."""
    try:
        artifact = store.artifact(entry.key)
    except HpcstackError:
        artifact = None
    if artifact is None:
        empty = {
            "facts": [],
            "pip": [],
            "conda": [],
            "apt": [],
            "holds": "",
            "driver": "",
            "stand_in": "",
            "adopted": "",
        }
        return {**empty, "base": "its image is gone", "image": ""}
    facts, least = list(artifact.facts.items()), driver_of(artifact.environment).least
    return {
        "facts": facts,
        "holds": ", ".join(f"{name} {value}" for name, value in facts[:4]),
        "pip": sorted(artifact.pip.items(), key=lambda pair: pair[0].lower()),
        "conda": sorted(artifact.conda.items()),
        "apt": sorted(artifact.apt.items()),
        "driver": f"{least} or newer" if least else "",
        "stand_in": artifact.stand_in,
        "adopted": artifact.adopted,
        "base": artifact.base,
        "image": str(artifact.image),
    }


def _tested(entry: Entry) -> dict[str, Any]:
    verdict = entry.tested.get("verdict", "")
    return {
        "tested": list(entry.tested.items()),
        "verdict": f"{entry.tested.get('date', '')} {verdict}" if verdict else "not tested",
        "verdict_class": verdict.partition(" ")[0] or "soft",
    }


def _until(dates: Dates) -> str:
    parts = ((dates.deprecate, "deprecated"), (dates.remove, "refused"))
    return ", ".join(f"{what} from {day}" for day, what in parts if day)


def _record(store: Store, name: str, entry: Entry) -> ReleaseRecord | None:
    """What a release says of itself; None where that is damaged: a page shows what there is."""
    with contextlib.suppress(StoreError):
        return read_record(store, name, entry.release)
    return None


def _said_of_stack(record: ReleaseRecord | None) -> tuple[str, list[str]]:
    """The summary and the commands of a release's stack; nothing where its recipe is one that this
    hpcstack refuses.
    """
    try:
        stack = Stack.model_validate(record.stack) if record else None
    except ValueError:
        stack = None
    return (stack.summary, list(stack.module.commands)) if stack else ("", [])


def _report(store: Store, name: str, entry: Entry) -> str:
    """The page of the report that a release was published with; empty where there is none."""
    path = _file(store, name, entry, "report.json")
    try:
        return reports.render_html(proofs.read_report(path)) if path.exists() else ""
    except InputError:
        return ""


def _file(store: Store, name: str, entry: Entry, what: str) -> Path:
    return store.releases / name / entry.release / what


def write_pages(files: dict[str, str], folder: Path) -> None:
    """FILES as FOLDER, by rename.

    InputError where FOLDER holds something that is not a catalogue.
    """
    folder = folder.resolve()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "name another with -o")
    if folder.is_dir() and any(folder.iterdir()) and not _ours(folder):
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
                old.rename(folder)
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if folder.exists():
            shutil.rmtree(old, ignore_errors=True)


def _ours(folder: Path) -> bool:
    try:
        return bool(
            json.loads((folder / "catalog.json").read_text(encoding="utf-8"))["made_by"] == MADE
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False
