"""The catalogue: whole without a script, searched with one, in a real browser; and what is not ours
stays.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hpcstack.core.errors import InputError
from hpcstack.publish import website
from hpcstack.releases.changes import retire_version
from hpcstack.releases.ledger import Dates
from support.modules import Place, report

pytestmark = pytest.mark.timeout(300)
BROWSER = [
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--allow-file-access-from-files",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The catalogue of four versions, one proven, one that goes, one with a hostile summary."""
    place = Place(tmp_path_factory.mktemp("catalog"), name="example")
    stack = place.stack()
    artifact = place.artifact(stack)
    shown = report(artifact, {"ddp.fp32": "PASS"})
    place.publisher.publish(stack, artifact, "production", shown, {})
    place.publish("pytorch-25.10", b"25", stand_in="Debian")
    place.publish("nemo-26.02", b"n", pip={})
    place.publish(
        "jax-26.06",
        b"j",
        pip={"jax": "0.5.1"},
        stack=place.stack("jax-26.06", summary="<script>alert(1)</script> & \"'"),
    )
    dates = Dates("2026-01-01", "2099-01-01", "pytorch/25.10", "CUDA 12 goes")
    place.publisher.change(
        "pytorch",
        "retire",
        lambda ledger, event: retire_version(ledger, "24.11", dates, "2026-01-01", event),
    )
    out = tmp_path_factory.mktemp("out") / "site"
    website.write_pages(website.render_pages(place.site, place.store), out)
    return out


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("href", "src") and value]


def test_every_link_leads_to_a_file_and_nothing_is_fetched(folder: Path) -> None:
    pages = list(folder.glob("*.html"))
    assert len(pages) == 6  # the index, four versions, one report
    for page in pages:
        links = Links()
        links.feed(page.read_text())
        assert all((folder / link).is_file() for link in links.found), (page.name, links.found)


def test_a_page_says_how_to_load_what_is_inside_and_until_when(folder: Path) -> None:
    said = (folder / "pytorch-24.11.html").read_text()
    for part in (("module load " "pytorch/24.11"), ("hpcstack launch " "pytorch-24.11"), "NCCL", "2.23.4", ("525.60.13 or " "newer"),
                 ("deprecated from 2026-01-01, refused from " "2099-01-01"), "CUDA 12 goes", "Use pytorch/25.10",
                 "PASS (1 PASS)", "pytorch-24.11-report.html", "deepspeed 0.16.2", "promote"):  # fmt: skip
        assert part in said, part
    assert "In testing" in (folder / "pytorch-25.10.html").read_text()
    assert "STAND-IN" in (folder / "pytorch-25.10.html").read_text()
    assert {one["alias"] for one in json.loads((folder / "catalog.json").read_text())["stacks"]} == {
        "pytorch/24.11", "pytorch/25.10", "nemo/26.02", "jax/26.06"}  # fmt: skip


def test_what_people_wrote_is_text(folder: Path) -> None:
    for page in folder.glob("*.html"):
        assert "<script>alert" not in page.read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in (folder / "jax-26.06.html").read_text()


def dom(page: Path, query: str = "") -> str:
    done = subprocess.run([*BROWSER, "--dump-dom", f"{page.as_uri()}{query}"], capture_output=True, text=True,
                          timeout=120, check=True)  # fmt: skip
    return done.stdout


def rows(page: str) -> set[str]:
    """What the index shows: the versions of rows that are not hidden."""
    found = re.findall(
        r"<tr data-words=(?:\"[^\"]*\"|'[^']*')([^>]*)>.*?<a href=\"[^\"]*\">([^<]*)</a>",
        page,
        re.DOTALL,
    )
    return {name for attributes, name in found if "hidden" not in attributes}


@pytest.mark.chromium
@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", {"pytorch/24.11", "pytorch/25.10", "nemo/26.02", "jax/26.06"}),
        ("?find=deepspeed/0.16.2", {"pytorch/24.11", "pytorch/25.10"}),
        ("?find=pytorch+25", {"pytorch/25.10"}),
        ("?find=JAX", {"jax/26.06"}),
        ("?find=nothing", set()),
    ],
)
def test_a_browser_finds_stacks_and_packages(folder: Path, query: str, shown: set[str]) -> None:
    assert rows(dom(folder / "index.html", query)) == shown


@pytest.mark.chromium
def test_without_a_script_all_is_there(folder: Path) -> None:
    """The browser is told to run none: everything is shown, and no box that would do nothing."""
    policy = '<head><meta http-equiv="Content-Security-Policy" content="script-src \'none\'">'
    copy = folder / "quiet.html"
    copy.write_text((folder / "index.html").read_text().replace("<head>", policy))
    try:
        page = dom(copy, "?find=jax")
    finally:
        copy.unlink()
    assert len(rows(page)) == 4
    assert re.search(r'<input id="find"[^>]*hidden', page)


@pytest.mark.chromium
def test_a_phone_shows_it_without_scrolling_sideways(folder: Path, tmp_path: Path) -> None:
    """A page of ours frames each page at a phone's width and writes down how wide its content is."""
    names = sorted(path.name for path in folder.glob("*.html") if "report" not in path.name)
    frames = "".join(f'<iframe width="360" height="600" src="{name}"></iframe>' for name in names)
    script = "onload=()=>{document.title=[...document.querySelectorAll('iframe')].map(f=>" \
        "f.contentDocument.documentElement.scrollWidth).join(' ')}"  # fmt: skip
    (folder / "frames.html").write_text(
        f"<!doctype html><title>x</title><body>{frames}<script>{script}</script>"
    )
    try:
        done = subprocess.run([*BROWSER, "--virtual-time-budget=5000", "--dump-dom", (folder / "frames.html").as_uri()],
                              capture_output=True, text=True, timeout=120, check=True)  # fmt: skip
    finally:
        (folder / "frames.html").unlink()
    match = re.search(r"<title>([0-9 ]+)</title>", done.stdout)
    assert match, done.stdout[:500]
    assert all(int(width) <= 360 for width in match[1].split()) and len(match[1].split()) == len(
        names
    ), match[1]


def test_what_is_no_catalogue_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years")
    with pytest.raises(InputError, match="something other than"):
        website.write_pages({"catalog.json": "{}"}, tmp_path / "mine")
    assert (tmp_path / "mine/thesis.txt").read_text() == "years"
    website.write_pages(
        {"catalog.json": json.dumps({"made_by": website.MADE}), "old": "x"}, tmp_path / "site"
    )
    website.write_pages({"catalog.json": json.dumps({"made_by": website.MADE})}, tmp_path / "site")
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["catalog.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "site"]


def test_a_catalogue_that_cannot_be_replaced_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = {"catalog.json": json.dumps({"made_by": website.MADE})}
    website.write_pages({**mine, "old": "x"}, tmp_path / "site")
    rename, calls = Path.rename, []

    def full(path: Path, target: Path) -> Path:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space"):
        website.write_pages(mine, tmp_path / "site")
    assert (tmp_path / "site/old").read_text() == "x"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_link_to_a_catalogue_is_followed(tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    (tmp_path / "link").symlink_to("www")
    website.write_pages({"catalog.json": "{}"}, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "www/catalog.json").exists()


def test_an_image_that_is_gone_still_has_its_page(tmp_path: Path) -> None:
    place = Place(tmp_path)
    stack = place.stack()
    artifact = replace(place.artifact(stack))
    place.publisher.publish(stack, artifact, "testing", None, {})
    artifact.image.unlink()
    assert (
        "its image is gone" in website.render_pages(place.site, place.store)["pytorch-24.11.html"]
    )
