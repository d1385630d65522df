"""What a site lends to a build serves it and leaves no trace: mirrors of pip and apt, each through
a server of ours.
"""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from support.recipes import Recipes

pytestmark = [pytest.mark.testbed, pytest.mark.builds, pytest.mark.apptainer, pytest.mark.registry]
UPSTREAM = {"/pypi/": "https://pypi.org/", "/debian/": "http://deb.debian.org/debian/"}


class Mirror(BaseHTTPRequestHandler):
    """Hands requests on to the real indexes, and remembers them."""

    seen: list[str] = []

    def do_GET(self) -> None:
        type(self).seen.append(self.path)
        prefix = next((prefix for prefix in UPSTREAM if self.path.startswith(prefix)), "")
        try:
            with urllib.request.urlopen(
                UPSTREAM[prefix] + self.path.removeprefix(prefix), timeout=60
            ) as answer:
                body, kind = (
                    answer.read(),
                    answer.headers.get("Content-Type", "application/octet-stream"),
                )
        except urllib.error.HTTPError as error:
            self.send_error(error.code)
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"mirror-of-the-site.localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.soak(
    "two servers and a build",
    kept="tests/integration/test_spec_in_image.py::test_the_sites_mirrors_are_in_neither_lock_nor_image",
)
def test_mirrors_serve_the_build_and_leave_no_trace(
    recipes: Recipes, small_base: str, mirror: str
) -> None:
    recipes.base = small_base
    address = mirror.replace("mirror-of-the-site.localhost", "127.0.0.1")
    ca = recipes.testbed.bash("grep -o 'ca_bundle: .*' \"$HPCSTACK_SITE\" || true").stdout.strip()
    recipes.site(
        f"store: {recipes.folder}/store\nlock_dir: {recipes.folder}/locks\n"
        f"build:\n  {ca}\n  pip: {{index_url: 'http://someone:pa55word@{address}/pypi/simple', "
        f"trusted_hosts: ['127.0.0.1']}}\n"
        f"  apt: {{mirrors: {{'http://deb.debian.org/debian': 'http://{address}/debian'}}}}\n"
        "  proxy: {no: 'no-proxy-of-the-site'}\n"
    )
    Mirror.seen.clear()
    name = recipes.write("1", packages="{apt: [hello], pip: [six==1.17.0]}")
    done = recipes.run("build", name, "--no-cache")  # another test may have kept this very step
    assert done.returncode == 0, done.stderr
    assert any("/debian/pool/main/h/hello/" in path for path in Mirror.seen)
    assert any(path.startswith("/pypi/simple/six") for path in Mirror.seen)
    image = done.stdout.split()[0]
    script = (
        'unsquashfs -q -n -d "$2/x" "$1" >/dev/null; grep -rlaE "$3" "$2/x" || true; ls -A '
        '"$2/x/mnt" "$2/x/tmp"; rm -rf "$2/x"'
    )
    traces = f"{address}|pa55word|no-proxy-of-the-site|hpcstack-site|127\\.0\\.0\\.1:5000"
    found = recipes.testbed.bash(script, image, str(recipes.folder), traces).stdout
    lines = [line for line in found.splitlines() if line and not line.endswith(("/mnt:", "/tmp:"))]
    own = [
        line for line in lines if line.endswith("/opt/hpcstack/build/lib.sh")
    ]  # names the file that is lent
    assert lines == own, found
    log = recipes.testbed.bash('cat "$1"/store/logs/*.log', str(recipes.folder)).stdout
    assert "pa55word" not in log
