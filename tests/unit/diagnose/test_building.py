"""What the doctor says of where builds run their steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcstack.core.process import Runner
from hpcstack.diagnose import building
from support.modules import Place


@pytest.mark.parametrize(
    ("enclosure", "overlay", "unconfined", "code", "status"),
    [
        ("", "", False, "build", "OK"),
        ("", "an old kernel", False, "build.layers", "WARN"),
        ("", "", True, "build.allowed", "WARN"),
        ("/proc is masked", "", False, "build.enclosure", "WARN"),
        ("/proc is masked", "", True, "build.unconfined", "WARN"),
    ],
)
def test_where_steps_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    enclosure: str,
    overlay: str,
    unconfined: bool,
    code: str,
    status: str,
) -> None:
    monkeypatch.setattr(building, "explain_refused_enclosure", lambda _: enclosure)
    monkeypatch.setattr(building, "explain_refused_overlay", lambda _: overlay)
    site = Place(tmp_path).site
    site = site.model_copy(
        update={"build": site.build.model_copy(update={"unconfined": unconfined})}
    )
    (found,) = building.look_at_building(site, "here", Runner())
    assert (found.code, found.status) == (code, status)
    assert enclosure in found.found
    assert (found.remedy == "") == (status == "OK")
