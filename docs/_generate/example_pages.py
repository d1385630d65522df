"""Pages that hpcstack makes, as pictures: the real page's markup and style, inside an SVG.

The report is one that was recorded on a testbed of two virtual nodes (example-report.json: some of
its checks, without the kernel's name and with another path of the image). The catalogue is that of
a site made here, of two releases.
"""

from __future__ import annotations

import re
import sys
import tempfile
from html import escape
from pathlib import Path

from bs4 import BeautifulSoup
from placeholders import with_placeholders

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
RECORDED = Path(__file__).with_name("example-report.json")
XHTML = "http://www.w3.org/1999/xhtml"


def draw_report(width: int = 1100, height: int = 1640) -> str:
    """The upper part of a report's page."""
    from hpcstack.report import Report
    from hpcstack.report.html import render_html

    report = Report.model_validate_json(RECORDED.read_text())
    return draw_page(render_html(report), width, height, "A report of the smoke suite")


def draw_catalogue(width: int = 900, height: int = 320) -> str:
    """The index of a site's catalogue."""
    from hpcstack.publish.website import render_pages
    from hpcstack.report import Report
    from support.modules import Place

    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), name="example-cluster")
        recorded = Report.model_validate_json(RECORDED.read_text())
        tested = recorded.model_copy(update={"image_sha256": ""})
        place.publish("pytorch-24.11", b"A", "production", tested)
        # facts/ngc-pytorch.yaml, tag 25.10-py3
        newer = {"CUDA": "13.0.2.006", "NCCL": "2.27.7"}
        place.publish("pytorch-25.10", b"B", "testing", facts=newer)
        pages = render_pages(place.site, place.store)
        index = pages["index.html"].replace(folder, "/shared")
    style = f"<style>{pages['catalog.css']}</style>"
    page = with_placeholders(index).replace("</head>", f"{style}</head>")
    return draw_page(page, width, height, "The catalogue of what a site has published")


def draw_page(page: str, width: int, height: int, title: str) -> str:
    """The upper HEIGHT of an HTML PAGE, WIDTH wide, as an SVG; TITLE is read out in place of it."""
    soup = BeautifulSoup(page, "html.parser")
    for script in soup.find_all("script"):
        script.decompose()
    styles = "".join(style.extract().get_text() for style in soup.find_all("style"))
    body = soup.body
    assert body
    body["xmlns"] = XHTML
    for drawing in body.find_all("svg"):
        drawing["xmlns"] = "http://www.w3.org/2000/svg"
        drawing["viewBox"] = drawing.attrs.pop("viewbox")  # HTML's parser writes names small
    # A picture has no pages and is not printed: what is for those is of no use in it.
    styles = re.sub(r"@media print\{.*?\}\}", "", styles)
    markup = body.decode(formatter="minimal")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n'
        f"<title>{escape(title, quote=False)}</title>\n"
        f"<style>{escape(styles, quote=False)}</style>\n"
        f'<foreignObject width="{width}" height="{height}">\n{markup}\n</foreignObject></svg>\n'
    )
