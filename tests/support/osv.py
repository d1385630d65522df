"""A database of vulnerabilities: real records' facts (tests/data/osv.yaml) in OSV's form."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from hpcstack.core.yaml import parse_yaml

FACTS = Path(__file__).parents[1] / "data" / "osv.yaml"


def read_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parse_yaml(FACTS.read_text(), FACTS.name).value["records"]
    return rows


def make_record(row: dict[str, Any]) -> dict[str, Any]:
    """The record that ROW has the facts of."""
    events: list[dict[str, str]] = []
    for one in row.get("ranges") or [row]:
        events.append({"introduced": str(one.get("introduced", "0"))})
        for key in ("fixed", "last_affected"):
            if one.get(key):
                events.append({key: str(one[key])})
    affected: dict[str, Any] = {
        "package": {"ecosystem": row["ecosystem"], "name": row["name"]},
        "ranges": [{"type": "ECOSYSTEM", "events": events}],
    }
    record: dict[str, Any] = {
        "schema_version": "1.6.0",
        "id": row["id"],
        "modified": str(row["published"]),
        "published": str(row["published"]),
        "aliases": row.get("aliases") or [],
        "upstream": row.get("upstream") or [],
        "affected": [affected],
    }
    if row.get("ubuntu_priority"):
        affected["ecosystem_specific"] = {"ubuntu_priority": row["ubuntu_priority"]}
    if row.get("severity"):
        record["severity"] = [{"type": row["severity_type"], "score": row["severity"]}]
    if row.get("word"):
        record["database_specific"] = {"severity": row["word"]}
    if row.get("withdrawn"):
        record["withdrawn"] = str(row["withdrawn"])
    return record


def write_database(folder: Path, records: list[dict[str, Any]]) -> Path:
    """RECORDS as OSV gives them out: an archive for each ecosystem, below FOLDER."""
    by_ecosystem: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        name = record["affected"][0]["package"]["ecosystem"] if record.get("affected") else "none"
        by_ecosystem.setdefault(name, []).append(record)
    for name, those in by_ecosystem.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(folder / name / "all.zip", "w") as archive:
            for record in those:
                archive.writestr(f"{record['id']}.json", json.dumps(record))
    return folder
