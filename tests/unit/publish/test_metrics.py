"""`status --prometheus`: what is published as numbers, in the exposition format."""

from __future__ import annotations

import re
from pathlib import Path

from hpcstack.publish.audit import Audit, Audits, Unaudited, Vulnerability
from hpcstack.publish.metrics import render_metrics
from hpcstack.store.package import Package
from support.modules import Place

LINE = re.compile(r'[a-z_]+(?:\{(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+\})? [0-9.e+-]+')


def test_what_is_published_is_counted(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.publish(content=b"one")
    place.publish(content=b"three")
    images = place.store.images()
    hole = Vulnerability("X", ("X",), Package("pypi", "a", "1"), "high", "2", "2026-01-01", "")
    audit = Audit(images[0], [hole], [], [Unaudited("deb", "why")])
    ledgers = [place.tree.ledger(name) for name in place.tree.names()]
    audits = Audits("/opt/osv", {}, 1, [], [audit])
    text = render_metrics(ledgers, images, 3, audits, 1764150000.0, has_database=True)

    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in lines), text
    assert 'hpcstack_releases{channel="testing",name="pytorch",state="live"} 2.0' in lines
    assert 'hpcstack_changes_total{verb="publish"} 2.0' in lines
    assert "hpcstack_wrong 3.0" in lines
    assert "hpcstack_audit_ok 1.0" in lines
    assert "hpcstack_images 2.0" in lines
    assert 'hpcstack_image_bytes{platform="linux/amd64",stack="pytorch-24.11"} 8.0' in lines
    key = images[0].key[:12]
    assert (
        f'hpcstack_vulnerabilities{{image="{key}",severity="high",stack="pytorch-24.11"}} 1.0'
        in lines
    )
    assert f'hpcstack_not_audited{{image="{key}",stack="pytorch-24.11"}} 1.0' in lines
    assert "hpcstack_status_timestamp_seconds 1.76415e+09" in lines
    [last] = [line for line in lines if line.startswith("hpcstack_last_change_timestamp_seconds")]
    assert float(last.rpartition(" ")[2]) > 1.7e9
    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(names) == len(set(names))


def test_nothing_published_is_zero_and_not_absent(tmp_path: Path) -> None:
    text = render_metrics([], [], 0, None, 0.0, has_database=False)
    assert "\nhpcstack_wrong 0.0\n" in text
    assert "\nhpcstack_images 0.0\n" in text
    assert "vulnerabilities" not in text
    assert "audit_ok" not in text
    text = render_metrics([], [], 0, None, 0.0, has_database=True)
    assert "\nhpcstack_audit_ok 0.0\n" in text
